/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives as phases of shared memory: what a rank puts out in a phase, and what it takes from
 * the others. Reductions read all members' slices in rank order, in one pass. */
#include <stdlib.h>
#include <string.h>

#include "collectives/reduce.h"
#include "collectives/shm.h"
#include "core/dtype.h"

enum { ELEMENT_ALIGN = 64, SMALL_REDUCE_BYTES = 16 * 1024 };

static int64_t members(const ndm_shm_run *r)
{
    return r->run.comm->size;
}

static int64_t self(const ndm_shm_run *r)
{
    return r->run.comm->index;
}

static int64_t element(const ndm_shm_run *r)
{
    return (int64_t)ndm_dtype_bytes(r->run.args.dtype);
}

static int64_t at_most(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static void copy(void *dst, const void *src, int64_t bytes)
{
    if (bytes > 0 && dst != src)
        memcpy(dst, src, (size_t)bytes);
}

/* ---- a stream of bytes: all_gather, broadcast, send_recv ------------------------------------- */

typedef struct piece {
    int64_t at, bytes;
} piece;

static piece piece_of(const ndm_shm_run *r, int64_t phase)
{
    int64_t total = r->run.args.count * element(r), at = phase * NDM_SHM_SLOT_BYTES;
    return (piece){at, at_most(total - at, NDM_SHM_SLOT_BYTES)};
}

static int64_t stream_phases(const ndm_shm_run *r)
{
    return ceil_div(r->run.args.count * element(r), NDM_SHM_SLOT_BYTES);
}

static const char *stream_locate(const ndm_shm_run *r, int64_t phase)
{
    piece p = piece_of(r, phase);
    const char *data = (const char *)r->run.args.send + p.at;
    return ndm_shm_find_window(r->run.comm, data, p.bytes) ? data : NULL;
}

static void stream_write(const ndm_shm_run *r, int64_t phase, char *staging)
{
    piece p = piece_of(r, phase);
    copy(staging, (const char *)r->run.args.send + p.at, p.bytes);
}

/* All members gather into the same memory. What one member's block could hold may be the first
 * one's own, and then no other member would say the same. */
static bool is_window_gather(const ndm_shm_run *r)
{
    const ndm_collective_args *a = &r->run.args;
    int64_t bytes = a->count * element(r);
    const ndm_shm_window *w = ndm_shm_find_window(r->run.comm, a->recv, 1);

    return w && a->recv == w->map.base && bytes <= w->block && members(r) * bytes > w->block &&
           a->send == (const char *)a->recv + self(r) * bytes;
}

/* A window gathered in place holds everybody's block as soon as everybody has come. */
static int64_t gather_phases(const ndm_shm_run *r)
{
    return is_window_gather(r) ? 1 : stream_phases(r);
}

static const char *gather_locate(const ndm_shm_run *r, int64_t phase)
{
    return is_window_gather(r) ? NULL : stream_locate(r, phase);
}

static void gather_write(const ndm_shm_run *r, int64_t phase, char *staging)
{
    if (!is_window_gather(r))
        stream_write(r, phase, staging);
}

static void gather_read(ndm_shm_run *r, int64_t phase)
{
    const ndm_collective_args *a = &r->run.args;
    int64_t block = a->count * element(r), n = members(r);
    piece p = piece_of(r, phase);

    if (is_window_gather(r))
        return;
    /* start behind oneself, so that not all read the same member at once */
    for (int64_t i = 1; i <= n; i++) {
        int64_t m = (self(r) + i) % n;
        const char *source = m == self(r) ? (const char *)a->send + p.at
                                          : ndm_shm_source(r, phase, m);
        copy((char *)a->recv + m * block + p.at, source, p.bytes);
    }
}

static bool from_source(const ndm_shm_run *r, int64_t member)
{
    return member == r->run.args.peer_src;
}

static void broadcast_write(const ndm_shm_run *r, int64_t phase, char *staging)
{
    if (self(r) == r->run.args.peer_src)
        stream_write(r, phase, staging);
}

static const char *broadcast_locate(const ndm_shm_run *r, int64_t phase)
{
    return self(r) == r->run.args.peer_src ? stream_locate(r, phase) : NULL;
}

static void broadcast_read(ndm_shm_run *r, int64_t phase)
{
    piece p = piece_of(r, phase);

    if (self(r) != r->run.args.peer_src)
        copy((char *)r->run.args.recv + p.at, ndm_shm_source(r, phase, r->run.args.peer_src),
             p.bytes);
}

/* From oneself too: send and recv may then be staged like anybody's. */
static void send_recv_read(ndm_shm_run *r, int64_t phase)
{
    piece p = piece_of(r, phase);
    copy((char *)r->run.args.recv + p.at, ndm_shm_source(r, phase, r->run.args.peer_src), p.bytes);
}

/* ---- slices for each member: reduce_scatter, all_to_all -------------------------------------- */

/* Elements of a block that a phase moves: a slot of staging holds that much for every member. */
static int64_t slice_elements(const ndm_shm_run *r)
{
    return NDM_SHM_SLOT_BYTES / element(r) / members(r) / ELEMENT_ALIGN * ELEMENT_ALIGN;
}

static int64_t slice_phases(const ndm_shm_run *r)
{
    return ceil_div(r->run.args.count, slice_elements(r));
}

/* The part of each block that this phase moves, in elements. */
static piece slice_of(const ndm_shm_run *r, int64_t phase)
{
    int64_t at = phase * slice_elements(r);
    return (piece){at, at_most(r->run.args.count - at, slice_elements(r))};
}

static void slice_write(const ndm_shm_run *r, int64_t phase, char *staging)
{
    const ndm_collective_args *a = &r->run.args;
    int64_t size = element(r), stride = slice_elements(r) * size;
    piece p = slice_of(r, phase);

    for (int64_t m = 0; m < members(r); m++)
        if (m != self(r))
            copy(staging + m * stride, (const char *)a->send + (m * a->count + p.at) * size,
                 p.bytes * size);
}

/* In a window the slices of a phase lie a block apart: all of send must be there. */
static const char *slice_locate(const ndm_shm_run *r, int64_t phase)
{
    const ndm_collective_args *a = &r->run.args;
    const char *data = a->send;

    if (!ndm_shm_find_window(r->run.comm, data, members(r) * a->count * element(r)))
        return NULL;
    return data + slice_of(r, phase).at * element(r);
}

/* Member's slice for this rank. */
static const char *slice_from(const ndm_shm_run *r, int64_t phase, int64_t member)
{
    const ndm_collective_args *a = &r->run.args;
    int64_t size = element(r);

    if (member == self(r))
        return (const char *)a->send + (self(r) * a->count + slice_of(r, phase).at) * size;
    return ndm_shm_source(r, phase, member) +
           self(r) * (ndm_shm_in_window(r, phase, member) ? a->count : slice_elements(r)) * size;
}

static void reduce_scatter_read(ndm_shm_run *r, int64_t phase)
{
    const ndm_collective_args *a = &r->run.args;
    const void *slices[NDM_SHM_MAX_MEMBERS];
    int64_t size = (int64_t)ndm_dtype_bytes(a->recv_dtype);
    piece p = slice_of(r, phase);

    for (int64_t m = 0; m < members(r); m++)
        slices[m] = slice_from(r, phase, m);
    ndm_reduce_slices((char *)a->recv + p.at * size, a->recv_dtype, slices, members(r), p.bytes,
                      a->dtype, a->op, a->count * size);
}

static void all_to_all_read(ndm_shm_run *r, int64_t phase)
{
    const ndm_collective_args *a = &r->run.args;
    int64_t size = element(r), n = members(r);
    piece p = slice_of(r, phase);

    for (int64_t i = 1; i <= n; i++) {
        int64_t m = (self(r) + i) % n;
        copy((char *)a->recv + (m * a->count + p.at) * size, slice_from(r, phase, m),
             p.bytes * size);
    }
}

/* ---- all_reduce ------------------------------------------------------------------------------ */

/* Small buffers: everybody puts out all of it and sums all. Where the buffers of all members lie in
 * windows, everybody sums a share of all and writes it to all: in its share nobody else reads or
 * writes, so one phase does. Others, a slot of staging at a time, in
 * two phases: A, everybody puts out all of the piece and sums a share of it; B, everybody puts out
 * his share and takes the others'. Their order is A0 A1 B0 A2 B1 A3 B2 ... B, so that there is a
 * phase to write while the shares of another are not there yet. */
static bool is_small(const ndm_shm_run *r)
{
    return r->run.args.count * element(r) <= SMALL_REDUCE_BYTES;
}

static int64_t all_reduce_phases(const ndm_shm_run *r)
{
    int64_t bytes = r->run.args.count * element(r);

    if (is_small(r))
        return bytes > 0 ? 1 : 0;
    return 2 * ceil_div(bytes, NDM_SHM_SLOT_BYTES);
}

static bool is_second(const ndm_shm_run *r, int64_t phase)
{
    return !is_small(r) && phase > 0 && (phase % 2 == 0 || phase == r->n_phases - 1);
}

/* The whole buffer is where the others can read and write it. */
static bool is_in_window(const ndm_shm_run *r)
{
    const ndm_collective_args *a = &r->run.args;

    return !is_small(r) && ndm_shm_find_window(r->run.comm, a->recv, a->count * element(r));
}

/* Shares can be written when the sums of their piece have been made, in phase A of it: number 2i -
 * 1 where B is 2i + 2, but A0 is 0, and the last B comes right behind its A. */
static bool all_reduce_writable(const ndm_shm_run *r, int64_t phase)
{
    int64_t a = phase <= 2 ? 0 : phase == r->n_phases - 1 ? phase - 2 : phase - 3;

    if (phase > 0 && r->read == 0 && is_in_window(r))
        return false; /* perhaps one phase is all there is */
    return !is_second(r, phase) || r->read > a;
}

/* The piece of the buffer that a phase works on, in elements. */
static piece reduce_piece(const ndm_shm_run *r, int64_t phase)
{
    int64_t chunk = NDM_SHM_SLOT_BYTES / element(r);
    int64_t i = is_small(r) ? 0 : is_second(r, phase) ? (phase - 1) / 2 : (phase + 1) / 2;

    return (piece){i * chunk, at_most(r->run.args.count - i * chunk, chunk)};
}

/* Member's share of a piece: offset in it, and elements. */
static piece share_of(const ndm_shm_run *r, piece p, int64_t member)
{
    int64_t share = ceil_div(ceil_div(p.bytes, members(r)), ELEMENT_ALIGN) * ELEMENT_ALIGN;
    int64_t at = at_most(member * share, p.bytes);

    return (piece){at, at_most(share, p.bytes - at)};
}

static void all_reduce_write(const ndm_shm_run *r, int64_t phase, char *staging)
{
    int64_t size = element(r);
    piece p = reduce_piece(r, phase), share = share_of(r, p, self(r));
    const char *data = (const char *)r->run.args.recv + p.at * size;

    if (is_second(r, phase))
        copy(staging, data + share.at * size, share.bytes * size);
    else
        copy(staging, data, p.bytes * size);
}

static const char *all_reduce_locate(const ndm_shm_run *r, int64_t phase)
{
    int64_t size = element(r);
    piece p = reduce_piece(r, phase), share = share_of(r, p, self(r));
    const char *data = (const char *)r->run.args.recv + p.at * size;

    if (!is_in_window(r)) /* a small buffer is overwritten while others still read */
        return NULL;
    return is_second(r, phase) ? data + share.at * size : data;
}

static bool all_in_windows(const ndm_shm_run *r)
{
    for (int64_t m = 0; m < members(r); m++)
        if (!ndm_shm_in_window(r, 0, m))
            return false;
    return true;
}

/* Sums this rank's share of the whole buffer, into everybody's. */
static void sum_for_all(ndm_shm_run *r)
{
    const ndm_collective_args *a = &r->run.args;
    void *slices[NDM_SHM_MAX_MEMBERS];
    piece share = share_of(r, (piece){0, a->count}, self(r));

    for (int64_t m = 0; m < members(r); m++)
        slices[m] = (char *)ndm_shm_source(r, 0, m) + share.at * element(r);
    ndm_reduce_slices_to_all(slices, members(r), share.bytes, a->dtype, a->op);
    r->n_phases = 1;
}

static void all_reduce_read(ndm_shm_run *r, int64_t phase)
{
    const ndm_collective_args *a = &r->run.args;
    const void *slices[NDM_SHM_MAX_MEMBERS];
    int64_t size = element(r);
    piece p = reduce_piece(r, phase),
          share = is_small(r) ? (piece){0, p.bytes} : share_of(r, p, self(r));
    char *data = (char *)a->recv + p.at * size;

    if (phase == 0 && all_in_windows(r)) {
        sum_for_all(r);
        return;
    }
    if (!is_second(r, phase)) {
        for (int64_t m = 0; m < members(r); m++)
            slices[m] = ndm_shm_source(r, phase, m) + share.at * size;
        ndm_reduce_slices(data + share.at * size, a->dtype, slices, members(r), share.bytes,
                          a->dtype, a->op, 0);
        return;
    }
    for (int64_t m = 0; m < members(r); m++) {
        piece theirs = share_of(r, p, m);
        if (m != self(r))
            copy(data + theirs.at * size, ndm_shm_source(r, phase, m), theirs.bytes * size);
    }
}

static int64_t one_phase(const ndm_shm_run *r)
{
    (void)r;
    return 1;
}

const ndm_shm_algo ndm_shm_algos[NDM_COLLECTIVE_COUNT] = {
    [NDM_ALL_GATHER] = {.phases = gather_phases,
                        .locate = gather_locate,
                        .write = gather_write,
                        .read = gather_read},
    [NDM_REDUCE_SCATTER] = {.phases = slice_phases,
                            .locate = slice_locate,
                            .write = slice_write,
                            .read = reduce_scatter_read},
    [NDM_ALL_REDUCE] = {.phases = all_reduce_phases,
                        .locate = all_reduce_locate,
                        .write = all_reduce_write,
                        .writable = all_reduce_writable,
                        .read = all_reduce_read},
    [NDM_ALL_TO_ALL] = {.phases = slice_phases,
                        .locate = slice_locate,
                        .write = slice_write,
                        .read = all_to_all_read},
    [NDM_BROADCAST] = {.phases = stream_phases,
                       .locate = broadcast_locate,
                       .write = broadcast_write,
                       .needs = from_source,
                       .read = broadcast_read},
    [NDM_SEND_RECV] = {.phases = stream_phases,
                       .locate = stream_locate,
                       .write = stream_write,
                       .needs = from_source,
                       .read = send_recv_read},
    [NDM_BARRIER] = {.phases = one_phase},
};
