/* SPDX-License-Identifier: Apache-2.0 */
/* Every collective, type, size, group and backend gives what its definition says. */
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"

enum { GUARD = 64 };
static const unsigned char GUARD_BYTE = 0xa5;

/* Buffers of one case, with guard bytes behind. */
typedef struct buffers {
    char *send, *recv;
    int64_t send_bytes, recv_bytes;
} buffers;

/* What the collectives are run on. */
typedef struct place {
    ndm_comm *comm;
    ndm_stream *stream;
    int64_t n, index;
} place;

static const ndm_dtype all_dtypes[] = {NDM_F32, NDM_BF16, NDM_F16, NDM_F64,
                                       NDM_I32, NDM_I64,  NDM_U8,  NDM_U16};
static const ndm_dtype sum_dtypes[] = {NDM_F32, NDM_BF16, NDM_F16, NDM_F64, NDM_I32, NDM_I64};
static const int64_t counts[] = {0, 1, 7, 1000, 9001};

enum { N_ALL = 8, N_SUM = 6, N_COUNTS = 5 };

/* Small integers: exact in every type, and their sums over up to 8 ranks are too. */
static double value(int64_t rank, int64_t i)
{
    return (double)((rank * 5 + i * 3 + i / 7) % 13);
}

static void *make(int64_t bytes)
{
    char *p = malloc((size_t)(bytes + GUARD));

    memset(p, 0x5c, (size_t)bytes);
    memset(p + bytes, GUARD_BYTE, GUARD);
    return p;
}

static bool guard_intact(const char *p, int64_t bytes)
{
    for (int i = 0; i < GUARD; i++)
        if ((unsigned char)p[bytes + i] != GUARD_BYTE)
            return false;
    return true;
}

static buffers buffers_make(int64_t send_count, int64_t recv_count, ndm_dtype dtype,
                            ndm_dtype recv_dtype)
{
    buffers b = {.send_bytes = send_count * (int64_t)ndm_dtype_bytes(dtype),
                 .recv_bytes = recv_count * (int64_t)ndm_dtype_bytes(recv_dtype)};

    b.send = make(b.send_bytes);
    b.recv = make(b.recv_bytes);
    return b;
}

static bool buffers_free(buffers *b)
{
    bool intact = guard_intact(b->send, b->send_bytes) && guard_intact(b->recv, b->recv_bytes);

    free(b->send);
    free(b->recv);
    return intact;
}

static int64_t rank_of(const place *p, int64_t member)
{
    return ndm_comm_world_rank(p->comm, member);
}

static void fill(void *array, int64_t n, ndm_dtype dtype, int64_t rank)
{
    for (int64_t i = 0; i < n; i++)
        element_set(array, i, dtype, value(rank, i));
}

static ndm_status finish(const place *p, ndm_status status)
{
    return status != NDM_OK ? status : ndm_stream_synchronize(p->stream);
}

static bool all_gather(const place *p, int64_t count, ndm_dtype dtype, bool in_place)
{
    buffers b = buffers_make(count, p->n * count, dtype, dtype);
    char *own = b.recv + p->index * b.send_bytes;
    bool good = true;

    fill(in_place ? own : b.send, count, dtype, rank_of(p, p->index));
    must(finish(p,
                ndm_all_gather(p->comm, in_place ? own : b.send, b.recv, count, dtype, p->stream)));
    for (int64_t m = 0; m < p->n; m++)
        for (int64_t i = 0; i < count; i++)
            good &= element_get(b.recv, m * count + i, dtype) == value(rank_of(p, m), i);
    return buffers_free(&b) && good;
}

static double expected(const place *p, int64_t i, ndm_reduce_op op)
{
    double sum = 0, max = 0;

    for (int64_t m = 0; m < p->n; m++) {
        double v = value(rank_of(p, m), i);
        sum += v;
        max = v > max ? v : max;
    }
    return op == NDM_SUM ? sum : max;
}

static bool reduce_scatter(const place *p, int64_t count, ndm_dtype dtype, ndm_dtype recv_dtype,
                           ndm_reduce_op op, bool in_place)
{
    buffers b = buffers_make(p->n * count, count, dtype, recv_dtype);
    char *out = in_place ? b.send + p->index * b.recv_bytes : b.recv;
    bool good = true;

    fill(b.send, p->n * count, dtype, rank_of(p, p->index));
    must(finish(p,
                ndm_reduce_scatter(p->comm, b.send, out, count, dtype, recv_dtype, op, p->stream)));
    for (int64_t i = 0; i < count; i++)
        good &= element_get(out, i, recv_dtype) == expected(p, p->index * count + i, op);
    return buffers_free(&b) && good;
}

static bool all_reduce(const place *p, int64_t count, ndm_dtype dtype, ndm_reduce_op op)
{
    buffers b = buffers_make(0, count, dtype, dtype);
    bool good = true;

    fill(b.recv, count, dtype, rank_of(p, p->index));
    must(finish(p, ndm_all_reduce(p->comm, b.recv, count, dtype, op, p->stream)));
    for (int64_t i = 0; i < count; i++)
        good &= element_get(b.recv, i, dtype) == expected(p, i, op);
    return buffers_free(&b) && good;
}

static bool all_to_all(const place *p, int64_t count, ndm_dtype dtype)
{
    buffers b = buffers_make(p->n * count, p->n * count, dtype, dtype);
    bool good = true;

    fill(b.send, p->n * count, dtype, rank_of(p, p->index));
    must(finish(p, ndm_all_to_all(p->comm, b.send, b.recv, count, dtype, p->stream)));
    for (int64_t m = 0; m < p->n; m++)
        for (int64_t i = 0; i < count; i++)
            good &= element_get(b.recv, m * count + i, dtype) ==
                    value(rank_of(p, m), p->index * count + i);
    return buffers_free(&b) && good;
}

static bool broadcast(const place *p, int64_t count, ndm_dtype dtype, int64_t root)
{
    buffers b = buffers_make(0, count, dtype, dtype);
    bool good = true;

    fill(b.recv, count, dtype, rank_of(p, p->index));
    must(finish(p, ndm_broadcast(p->comm, b.recv, count, dtype, root, p->stream)));
    for (int64_t i = 0; i < count; i++)
        good &= element_get(b.recv, i, dtype) == value(rank_of(p, root), i);
    return buffers_free(&b) && good;
}

static bool send_recv(const place *p, int64_t count, ndm_dtype dtype, int64_t shift)
{
    buffers b = buffers_make(count, count, dtype, dtype);
    int64_t dst = (p->index + shift) % p->n, src = (p->index - shift % p->n + p->n) % p->n;
    bool good = true;

    fill(b.send, count, dtype, rank_of(p, p->index));
    must(finish(p, ndm_send_recv(p->comm, b.send, dst, b.recv, src, count, dtype, p->stream)));
    for (int64_t i = 0; i < count; i++)
        good &= element_get(b.recv, i, dtype) == value(rank_of(p, src), i);
    return buffers_free(&b) && good;
}

static bool moves(const place *p, int64_t count)
{
    bool good = true;

    for (int t = 0; t < N_ALL; t++) {
        ndm_dtype d = all_dtypes[t];
        good &= all_gather(p, count, d, false) && all_gather(p, count, d, true);
        good &= all_to_all(p, count, d);
        good &= broadcast(p, count, d, t % p->n);
        good &= send_recv(p, count, d, 0) && send_recv(p, count, d, 1);
    }
    return good;
}

static bool reductions(const place *p, int64_t count)
{
    bool good = true;

    for (int t = 0; t < N_SUM; t++) {
        ndm_dtype d = sum_dtypes[t], wide = d == NDM_BF16 || d == NDM_F16 ? NDM_F32 : d;
        ndm_reduce_op op = (ndm_reduce_op)(t % 2);
        good &= reduce_scatter(p, count, d, d, NDM_SUM, false);
        good &= reduce_scatter(p, count, d, d, op, true);
        good &= reduce_scatter(p, count, d, wide, NDM_MAX, false);
        good &= all_reduce(p, count, d, NDM_SUM) && all_reduce(p, count, d, NDM_MAX);
    }
    return good;
}

static void try_place(const place *p, const char *what)
{
    char text[160];

    for (int c = 0; c < N_COUNTS; c++) {
        bool good = moves(p, counts[c]) && reductions(p, counts[c]);
        must(finish(p, ndm_barrier(p->comm, p->stream)));
        snprintf(text, sizeof text, "%s: %s, %lld ranks, count %lld", what, ndm_comm_name(p->comm),
                 (long long)p->n, (long long)counts[c]);
        check_all_at(good, text, __FILE__, __LINE__);
    }
}

/* Every axis set whose communicator has not been tried on this mesh. */
static void try_mesh(fixture *f, const char *backend)
{
    ndm_comm *seen[NDM_AXES_ALL + 1] = {0}, *comm;

    for (ndm_axis_set axes = 0; axes <= NDM_AXES_ALL; axes++) {
        bool known = false;
        must(ndm_comms_get(f->comms, axes, &comm));
        for (ndm_axis_set other = 0; other < axes; other++)
            known |= seen[other] == comm;
        seen[axes] = comm;
        if (known)
            continue;
        place p = {comm, axes % 2 ? f->compute : f->comm_stream, ndm_comm_size(comm),
                   ndm_comm_index(comm)};
        try_place(&p, backend);
    }
}

static void every_backend(void (*body)(fixture *, const char *), int64_t max_meshes)
{
    const char *const *list = harness_backends();
    int64_t n;
    ndm_parallelism_config *meshes = harness_meshes(100, &n);
    fixture f;

    for (; *list; list++)
        for (int64_t m = 0; m < max_meshes && m < n; m++) {
            /* spread over the list, so that each axis is seen split and whole */
            const ndm_parallelism_config *config = &meshes[m * (n - 1) / max_meshes];
            if (!fixture_init(&f, config, *list))
                break;
            body(&f, *list);
            fixture_finish(&f);
        }
    free(meshes);
}

static void collectives_match_their_definition(void **state)
{
    (void)state;
    every_backend(try_mesh, ndm_world_size(world) > 4 ? 3 : 5);
}

static void try_large(fixture *f, const char *backend)
{
    ndm_comm *comm;

    must(ndm_comms_get(f->comms, NDM_AXES_ALL, &comm));
    place p = {comm, f->comm_stream, ndm_comm_size(comm), ndm_comm_index(comm)};
    int64_t big = 1500001;
    check_all(all_gather(&p, big / 4, NDM_F32, true));
    check_all(reduce_scatter(&p, big / 2, NDM_BF16, NDM_F32, NDM_SUM, false));
    check_all(reduce_scatter(&p, big / 2, NDM_F32, NDM_F32, NDM_SUM, true));
    check_all(all_reduce(&p, big, NDM_F32, NDM_SUM));
    check_all(all_to_all(&p, big / 8, NDM_F32));
    check_all(broadcast(&p, big, NDM_F32, p.n - 1));
    check_all(send_recv(&p, big, NDM_U8, 1));
    (void)backend;
}

static void large_buffers_are_cut_into_chunks(void **state)
{
    (void)state;
    every_backend(try_large, 1);
}

/* Stands for counts beyond 2^31 bytes: the same code cuts at another size. */
static void messages_are_cut_at_the_limit(void **state)
{
    (void)state;
    ndm_p2p_set_message_limit(world, 1000);
    every_backend(try_mesh, 1);
    ndm_p2p_set_message_limit(world, (int64_t)1 << 30);
}

/* 1 + 2^-10 + 2^-10 + ...: bf16 has 8 bits, so adding one by one in bf16 would stay at 1. */
static void try_small_terms(fixture *f, const char *backend)
{
    enum { COUNT = 300 };
    int64_t n = ndm_world_size(world);
    uint16_t *send = calloc((size_t)n * COUNT, sizeof *send), *recv = calloc(COUNT, sizeof *recv);
    float wide[COUNT];
    bool good = true;
    ndm_comm *comm;
    double mine = ndm_world_rank(world) == 0 ? 1.0 : 1.0 / 1024;

    must(ndm_comms_get(f->comms, NDM_AXES_ALL, &comm));
    for (int64_t i = 0; i < n * COUNT; i++)
        element_set(send, i, NDM_BF16, mine);
    float exact = 1.0f + (float)(n - 1) / 1024;
    must(ndm_reduce_scatter(comm, send, wide, COUNT, NDM_BF16, NDM_F32, NDM_SUM, f->compute));
    must(ndm_reduce_scatter(comm, send, recv, COUNT, NDM_BF16, NDM_BF16, NDM_SUM, f->compute));
    for (int i = 0; i < COUNT; i++)
        good &= wide[i] == exact && recv[i] == ndm_f32_to_bf16(exact);
    must(ndm_all_reduce(comm, send, n * COUNT, NDM_BF16, NDM_SUM, f->compute));
    for (int64_t i = 0; i < n * COUNT; i++)
        good &= send[i] == ndm_f32_to_bf16(exact);
    check_all_at(good, backend, __FILE__, __LINE__);
    free(send);
    free(recv);
}

static void sums_of_bf16_are_made_in_fp32(void **state)
{
    (void)state;
    every_backend(try_small_terms, 1);
}

/* Sums that depend on their order: in rank order they have one value, which rank 0's serial sum
 * gives. */
static void try_order(fixture *f, const char *backend)
{
    enum { COUNT = 30011 };
    int64_t n = ndm_world_size(world);
    float *buffer = malloc(COUNT * sizeof *buffer), *all = malloc((size_t)n * sizeof *all * COUNT);
    ndm_comm *comm;
    bool good = true;

    must(ndm_comms_get(f->comms, NDM_AXES_ALL, &comm));
    for (int64_t r = 0; r < n; r++)
        for (int64_t i = 0; i < COUNT; i++)
            all[r * COUNT + i] = (float)(1.0 / (double)(1 + (i * 7 + r * 13) % 97)) *
                                 (float)((r + i) % 3 ? 1 : -1e4);
    for (int count = 1000; count <= COUNT; count += COUNT - 1000) { /* both algorithms */
        memcpy(buffer, all + ndm_world_rank(world) * COUNT, COUNT * sizeof *buffer);
        must(ndm_all_reduce(comm, buffer, count, NDM_F32, NDM_SUM, f->compute));
        for (int64_t i = 0; i < count; i++) {
            float sum = all[ndm_comm_world_rank(comm, 0) * COUNT + i];
            for (int64_t m = 1; m < n; m++)
                sum += all[ndm_comm_world_rank(comm, m) * COUNT + i];
            good &= sum == buffer[i];
        }
    }
    check_all_at(good, backend, __FILE__, __LINE__);
    free(buffer);
    free(all);
}

static void sums_are_made_in_rank_order(void **state)
{
    (void)state;
    every_backend(try_order, 1);
}

static void try_nan(fixture *f, const char *backend)
{
    float v = ndm_world_rank(world) == ndm_world_size(world) / 2 ? NAN : 1.0f;
    ndm_comm *comm;

    must(ndm_comms_get(f->comms, NDM_AXES_ALL, &comm));
    must(ndm_all_reduce(comm, &v, 1, NDM_F32, NDM_MAX, f->compute));
    check_all_at(isnan(v), backend, __FILE__, __LINE__);
}

static void a_maximum_with_a_nan_is_nan(void **state)
{
    (void)state;
    every_backend(try_nan, 1);
}

static void try_usage(fixture *f, const char *backend)
{
    float x[2] = {0};
    ndm_comm *comm;

    must(ndm_comms_get(f->comms, NDM_AXES_ALL, &comm));
    int64_t n = ndm_comm_size(comm);
    ndm_stream *s = f->compute;
    check_all(ndm_all_reduce(comm, x, -1, NDM_F32, NDM_SUM, s) == NDM_ERR_USAGE);
    check_all(ndm_all_reduce(comm, x, 1, NDM_U8, NDM_SUM, s) == NDM_ERR_USAGE);
    check_all(ndm_all_reduce(comm, NULL, 1, NDM_F32, NDM_SUM, s) == NDM_ERR_USAGE);
    check_all(ndm_broadcast(comm, x, 1, NDM_F32, n, s) == NDM_ERR_USAGE);
    check_all(ndm_send_recv(comm, x, -1, x + 1, 0, 1, NDM_F32, s) == NDM_ERR_USAGE);
    check_all(ndm_reduce_scatter(comm, x, x, 1, NDM_F32, NDM_BF16, NDM_SUM, s) == NDM_ERR_USAGE);
    check_all(ndm_all_to_all(comm, x, x, 1, NDM_F32, s) == NDM_ERR_USAGE);
    (void)backend;
}

static void wrong_arguments_are_refused(void **state)
{
    (void)state;
    every_backend(try_usage, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_match_their_definition),
        cmocka_unit_test(large_buffers_are_cut_into_chunks),
        cmocka_unit_test(messages_are_cut_at_the_limit),
        cmocka_unit_test(sums_of_bf16_are_made_in_fp32),
        cmocka_unit_test(sums_are_made_in_rank_order),
        cmocka_unit_test(a_maximum_with_a_nan_is_nan),
        cmocka_unit_test(wrong_arguments_are_refused),
    };

    return harness_run("collectives", tests);
}
