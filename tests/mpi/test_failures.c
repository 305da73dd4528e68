/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that disagree, are late, or leave: the error names them, and nothing hangs. */
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"

static const int64_t SECOND = 1000000000;

/* Runs a body on a fresh set of communicators for every backend that serves several ranks. */
static void every_backend(void (*body)(fixture *f, ndm_comm *comm))
{
    const char *const *list = harness_backends();
    ndm_parallelism_config config = NDM_PARALLELISM_CONFIG_INIT;
    ndm_comm *comm;
    fixture f;

    for (; *list && ndm_world_size(world) > 1; list++) {
        if (!fixture_init(&f, &config, *list))
            continue;
        must(ndm_comms_get(f.comms, NDM_AXES_ALL, &comm));
        must(ndm_barrier(comm, f.compute));
        body(&f, comm);
        fixture_finish(&f);
    }
}

/* The message is copied: the next failing call replaces it. */
typedef struct outcome {
    ndm_status status;
    char message[1024];
} outcome;

static outcome catch (ndm_status status)
{
    outcome o = {status, ""};

    if (status != NDM_OK)
        snprintf(o.message, sizeof o.message, "%s", ndm_error_message());
    return o;
}

/* Rank 1 makes another call than the rest. All of those that wait for it, and it, must fail with
 * a mismatch within 10 s, and name both calls. With more than 2 ranks, those that do not talk to
 * rank 1 run into their deadline. */
static void check_mismatch(const outcome *o, int64_t start, const char *first, const char *second)
{
    bool concerned = ndm_world_rank(world) < 2;
    bool named = strstr(o->message, first) && strstr(o->message, second);

    if (concerned && (o->status != NDM_ERR_MISMATCH || !named))
        fprintf(stderr, "rank %lld: %s: %s\n", (long long)ndm_world_rank(world),
                ndm_status_name(o->status), o->message);
    check_all(ndm_clock_ns() - start < 10 * SECOND);
    check_all(!concerned || o->status == NDM_ERR_MISMATCH);
    check_all(!concerned || named);
}

static void another_collective(fixture *f, ndm_comm *comm)
{
    int64_t n = ndm_world_size(world), start = ndm_clock_ns();
    float *x = calloc((size_t)n * 10, sizeof *x), *y = calloc((size_t)n * 10, sizeof *y);
    bool odd = ndm_world_rank(world) == 1;

    outcome o = catch (
        odd ? ndm_all_gather(comm, x, y, 10, NDM_F32, f->compute)
            : ndm_reduce_scatter(comm, x, y, 10, NDM_F32, NDM_F32, NDM_SUM, f->compute));
    check_mismatch(&o, start, "called all_gather #2", "called reduce_scatter #2");
    free(x);
    free(y);
}

static void another_count(fixture *f, ndm_comm *comm)
{
    int64_t start = ndm_clock_ns();
    float *x = calloc(1000, sizeof *x);
    bool odd = ndm_world_rank(world) == 1;

    outcome o = catch (ndm_all_reduce(comm, x, odd ? 999 : 1000, NDM_F32, NDM_SUM, f->compute));
    check_mismatch(&o, start, "all_reduce #2 of 999 fp32", "all_reduce #2 of 1000 fp32");
    free(x);
}

static void another_type(fixture *f, ndm_comm *comm)
{
    int64_t start = ndm_clock_ns();
    float *x = calloc(1000, sizeof *x);
    bool odd = ndm_world_rank(world) == 1;

    outcome o = catch (ndm_all_reduce(comm, x, 100, odd ? NDM_I32 : NDM_F32, NDM_SUM, f->compute));
    check_mismatch(&o, start, "100 int32", "100 fp32");
    free(x);
}

static void set_timeout(int64_t ns)
{
    world->timeout_ns = ns;
}

static void case_29_different_collectives_are_named(void **state)
{
    (void)state;
    set_timeout(6 * SECOND);
    every_backend(another_collective);
}

static void case_29_different_counts_are_named(void **state)
{
    (void)state;
    set_timeout(6 * SECOND);
    every_backend(another_count);
}

static void case_29_different_types_are_named(void **state)
{
    (void)state;
    set_timeout(6 * SECOND);
    every_backend(another_type);
}

/* Two communicators in two orders: each rank waits in the one that the other has not called. */
static void another_order(fixture *f, ndm_comm *comm)
{
    int64_t n = ndm_world_size(world), start = ndm_clock_ns();
    float x = 1, y = 1;
    ndm_comm *half;

    (void)comm;
    ndm_parallelism_config config = NDM_PARALLELISM_CONFIG_INIT;
    config.dp_replicate = n / 2, config.dp_shard = 2;
    if (n % 2)
        return;
    fixture g;
    check_all(fixture_init(&g, &config, comm->backend->name));
    must(ndm_comms_get(g.comms, NDM_AXES_ALL, &comm));
    must(ndm_comms_get_block(f->comms, NDM_AXIS_DP_SHARD, 2, &half));
    bool odd = ndm_world_rank(world) % 2;
    outcome o = catch (ndm_all_reduce(odd ? comm : half, &x, 1, NDM_F32, NDM_SUM, f->compute));
    if (o.status == NDM_OK)
        o = catch (ndm_all_reduce(odd ? half : comm, &y, 1, NDM_F32, NDM_SUM, f->compute));
    if (!strstr(o.message, "different orders"))
        fprintf(stderr, "rank %lld: %s\n", (long long)ndm_world_rank(world), o.message);
    check_all(ndm_clock_ns() - start < 10 * SECOND);
    check_all(o.status == NDM_ERR_MISMATCH || o.status == NDM_ERR_TIMEOUT);
    check_all(ndm_world_rank(world) > 1 || o.status == NDM_ERR_MISMATCH);
    check_all(ndm_world_rank(world) > 1 || strstr(o.message, "different orders"));
    fixture_finish(&g);
}

static void case_29_different_orders_are_named(void **state)
{
    (void)state;
    set_timeout(8 * SECOND);
    every_backend(another_order);
}

static void a_late_rank(fixture *f, ndm_comm *comm)
{
    float x[100] = {0};
    int64_t n = ndm_world_size(world), start = ndm_clock_ns();
    char expected[128];
    outcome o = {NDM_OK, ""};

    if (ndm_world_rank(world) == n - 1)
        sleep(2);
    else
        o = catch (ndm_all_reduce(comm, x, 100, NDM_F32, NDM_SUM, f->compute));
    snprintf(expected, sizeof expected, "rank %lld (node %s, pid", (long long)n - 1,
             ndm_world_host(world, n - 1));
    bool sleeper = ndm_world_rank(world) == n - 1;
    bool named = strstr(o.message, expected) && strstr(o.message, "all_reduce #2 on ") &&
                 strstr(o.message, "has not arrived after 1 s; it last took part in barrier #1");
    if (!sleeper && !named)
        fprintf(stderr, "rank %lld: %s\n", (long long)ndm_world_rank(world), o.message);
    set_timeout(60 * SECOND);
    check_all(sleeper || o.status == NDM_ERR_TIMEOUT);
    check_all(sleeper || named);
    check_all(ndm_clock_ns() - start < 10 * SECOND);
    set_timeout(SECOND);
}

static void a_late_rank_is_named(void **state)
{
    (void)state;
    set_timeout(SECOND);
    every_backend(a_late_rank);
    set_timeout(60 * SECOND);
}

/* After a failure, what follows on the same communicator fails at once. */
static void a_broken_communicator(fixture *f, ndm_comm *comm)
{
    float x[4] = {0};
    ndm_stream *other;
    bool late = ndm_world_rank(world) == 0;

    must(ndm_stream_create(device, NDM_STREAM_COMPUTE, "other", &other));
    if (!late) {
        outcome o = catch (ndm_all_reduce(comm, x, 4, NDM_F32, NDM_SUM, f->compute));
        if (o.status != NDM_ERR_TIMEOUT)
            late = true;
        int64_t start = ndm_clock_ns();
        o = catch (ndm_all_reduce(comm, x, 4, NDM_F32, NDM_SUM, other));
        late |= o.status == NDM_OK || ndm_clock_ns() - start > SECOND / 2;
    } else {
        sleep(2);
        late = false;
    }
    set_timeout(60 * SECOND);
    check_all(!late);
    ndm_stream_destroy(other);
    set_timeout(SECOND);
}

static void what_follows_a_failure_fails_at_once(void **state)
{
    (void)state;
    set_timeout(SECOND);
    every_backend(a_broken_communicator);
    set_timeout(60 * SECOND);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_29_different_collectives_are_named),
        cmocka_unit_test(case_29_different_counts_are_named),
        cmocka_unit_test(case_29_different_types_are_named),
        cmocka_unit_test(case_29_different_orders_are_named),
        cmocka_unit_test(a_late_rank_is_named),
        cmocka_unit_test(what_follows_a_failure_fails_at_once),
    };

    return harness_run("failures", tests);
}
