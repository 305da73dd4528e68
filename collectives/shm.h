/* SPDX-License-Identifier: Apache-2.0 */
/* Backend over shared memory: groups of ranks of one node.
 *
 * One segment a node holds a bell of every local rank, and an area for every (local rank,
 * communicator): counters, and two halves of staging. A collective is a sequence of phases. In
 * phase k a rank writes its data to half k mod 2 and posts k+1; when the others have posted, it
 * reads theirs and says that it has consumed k+1. A half is written again only when all have
 * consumed what it held. Nobody waits in a loop: a run looks at the counters when it is polled.
 *
 * Collectives of one communicator run one after the other, so a phase has the same number on all
 * members. Each posts with a phase what it called; those that read compare. */
#ifndef NDM_COLLECTIVES_SHM_H
#define NDM_COLLECTIVES_SHM_H

#include <stdatomic.h>

#include "collectives/comms.h"
#include "collectives/schedule.h"
#include "device/wait.h"

enum { NDM_SHM_SLOTS = 4, NDM_SHM_SLOT_BYTES = 512 * 1024, NDM_SHM_MAX_MEMBERS = 512 };
enum { NDM_SHM_LINE = 64 };

/* What a rank posts with a phase. Others read the first line only, unless the calls differ. */
typedef struct ndm_shm_post {
    _Alignas(
        NDM_SHM_LINE) int64_t window; /* -1: the data is in staging; else: in this window ... */
    int64_t offset;                   /* ... from here on */
    ndm_signature signature;
} ndm_shm_post;

/* Area of one rank and one communicator. Written by its rank only. */
typedef struct ndm_shm_area {
    _Alignas(NDM_SHM_LINE) _Atomic uint64_t posted;
    _Alignas(NDM_SHM_LINE) _Atomic uint64_t consumed;
    _Alignas(NDM_SHM_LINE)
        ndm_shm_post posts[NDM_SHM_SLOTS]; /* of the phases that the slots hold */
    _Alignas(4096) char staging[NDM_SHM_SLOTS][NDM_SHM_SLOT_BYTES];
} ndm_shm_area;

/* Memory that all ranks of a node see (shm_segment.c). */
typedef struct ndm_shm_map {
    char *base;
    int64_t bytes;
} ndm_shm_map;

/* Creates anonymous shared memory that lives as long as a process has it mapped; handle: what
 * others on this node need to map it, valid until ndm_shm_close_handle(). */
typedef struct ndm_shm_handle {
    int64_t pid, fd;
    int64_t failed; /* errno of the owner, or 0 */
} ndm_shm_handle;
ndm_shm_handle ndm_shm_create(int64_t bytes);
NDM_MUST_USE ndm_status ndm_shm_attach(const ndm_shm_handle *handle, int64_t bytes,
                                       ndm_shm_map *map);
void ndm_shm_close_handle(const ndm_shm_handle *handle); /* by the owner, when all have attached */
void ndm_shm_detach(ndm_shm_map *map);

/* A window: member i's block of `block` bytes starts at map.base + i * block. */
typedef struct ndm_shm_window {
    struct ndm_shm_window *next;
    ndm_shm_map map;
    int64_t id, block;
    ndm_memory_kind kind;
} ndm_shm_window;

typedef struct ndm_shm_member {
    ndm_shm_area *area;
    ndm_bell *bell;
    int64_t local; /* its place among the ranks of the node */
} ndm_shm_member;

/* comm->state */
typedef struct ndm_shm_comm {
    ndm_staging staging;     /* first: of schedules that the host runs on this communicator */
    ndm_shm_member *members; /* [size] */
    bool rings;              /* members share cores and may sleep: put out, then ring */
    uint64_t phase;          /* phases of all collectives that are done */
    bool busy;               /* one is in flight */
    ndm_shm_window *windows;
    int64_t n_windows; /* made so far: the next id, the same on all members */
} ndm_shm_comm;

typedef struct ndm_shm_run {
    ndm_run run; /* first */
    const struct ndm_shm_algo *algo;
    int64_t n_phases;
    int64_t written, read; /* phases of this run that are done; written >= read */
    bool direct;           /* a phase was put out in a window, not in staging */
} ndm_shm_run;

/* One collective as phases (shm_algo.c). NULL: nothing to do. */
typedef struct ndm_shm_algo {
    int64_t (*phases)(const ndm_shm_run *r);
    /* Where the data of a phase lies in this rank's memory, if that is in a window; NULL: write()
     * puts it to staging. */
    const char *(*locate)(const ndm_shm_run *r, int64_t phase);
    void (*write)(const ndm_shm_run *r, int64_t phase, char *staging);
    bool (*writable)(const ndm_shm_run *r, int64_t phase); /* NULL = before any phase is read */
    bool (*needs)(const ndm_shm_run *r, int64_t member);   /* NULL = every member */
    /* May find that the phases that follow are not needed, as all members then find: n_phases. */
    void (*read)(ndm_shm_run *r, int64_t phase);
} ndm_shm_algo;

extern const ndm_shm_algo ndm_shm_algos[NDM_COLLECTIVE_COUNT];

ndm_shm_comm *ndm_shm_state(const ndm_comm *comm);

/* Data of a member's phase: its staging, or its window. Own data included. */
const char *ndm_shm_source(const ndm_shm_run *r, int64_t phase, int64_t member);
bool ndm_shm_in_window(const ndm_shm_run *r, int64_t phase, int64_t member);

/* shm_run.c, shm_window.c: the backend's functions. */
ndm_status ndm_shm_submit(ndm_comm *comm, const ndm_collective_args *args, ndm_stream *stream);
ndm_status ndm_shm_window_alloc(ndm_comm *comm, int64_t bytes_per_rank, ndm_memory_kind kind,
                                void **all);
void ndm_shm_window_free(ndm_comm *comm, void *all);

/* The window that holds [data, data + bytes), or NULL. */
const ndm_shm_window *ndm_shm_find_window(const ndm_comm *comm, const void *data, int64_t bytes);

#endif
