/* SPDX-License-Identifier: Apache-2.0 */
/* Windows: memory that all members of a communicator see. Made and given back by all members. */
#include <stdlib.h>

#include "collectives/shm.h"
#include "device/turn.h"

/* Everybody's answer: all attached, or nobody keeps the window. */
static ndm_status agree(ndm_comm *comm, ndm_status mine)
{
    int32_t ok = mine == NDM_OK, *all = calloc((size_t)comm->size, sizeof *all);
    ndm_collective_args args = {.kind = NDM_ALL_GATHER,
                                .send = &ok,
                                .recv = all,
                                .count = 1,
                                .dtype = NDM_I32,
                                .recv_dtype = NDM_I32};
    ndm_status status = NDM_OK;

    if (!all)
        NDM_FAIL(NDM_ERR_MEMORY, "comm: no memory for a window of %s", comm->name);
    NDM_TRY_OR(status, ndm_comm_host_run(comm, &args), out);
    status = mine;
    for (int64_t i = 0; i < comm->size && status == NDM_OK; i++)
        if (!all[i])
            status = ndm_error_set(NDM_ERR_MEMORY, __FILE__, __LINE__,
                                   "comm: rank %lld could not map a window of %s",
                                   (long long)comm->ranks[i], comm->name);
out:
    free(all);
    return status;
}

static ndm_status share(ndm_comm *comm, int64_t bytes, ndm_shm_map *map)
{
    ndm_shm_handle handle = {0};
    ndm_collective_args args = {.kind = NDM_BROADCAST,
                                .send = &handle,
                                .recv = &handle,
                                .count = sizeof handle,
                                .dtype = NDM_U8,
                                .recv_dtype = NDM_U8};
    ndm_status status;

    if (comm->index == 0)
        handle = ndm_shm_create(bytes);
    NDM_TRY(ndm_comm_host_run(comm, &args));
    status = agree(comm, ndm_shm_attach(&handle, bytes, map));
    if (comm->index == 0)
        ndm_shm_close_handle(&handle);
    if (status != NDM_OK)
        ndm_shm_detach(map);
    return status;
}

ndm_status ndm_shm_window_alloc(ndm_comm *comm, int64_t bytes_per_rank, ndm_memory_kind kind,
                                void **all)
{
    ndm_shm_comm *s = ndm_shm_state(comm);
    ndm_shm_window *w;

    if (bytes_per_rank < 1)
        NDM_FAIL(NDM_ERR_USAGE, "comm: a window of %lld bytes a rank on %s",
                 (long long)bytes_per_rank, comm->name);
    w = calloc(1, sizeof *w);
    if (!w)
        NDM_FAIL(NDM_ERR_MEMORY, "comm: no memory for a window of %s", comm->name);
    ndm_status status = share(comm, bytes_per_rank * comm->size, &w->map);
    if (status != NDM_OK) {
        free(w);
        return status;
    }
    ndm_turn_take();
    w->id = s->n_windows++;
    w->block = bytes_per_rank;
    w->kind = kind;
    w->next = s->windows;
    s->windows = w;
    ndm_turn_give();
    ndm_device_account(comm->owner->device, kind, bytes_per_rank);
    *all = w->map.base;
    return NDM_OK;
}

void ndm_shm_window_free(ndm_comm *comm, void *all)
{
    ndm_shm_comm *s = ndm_shm_state(comm);

    for (ndm_shm_window **link = &s->windows; *link; link = &(*link)->next) {
        ndm_shm_window *w = *link;
        if (w->map.base != all)
            continue;
        ndm_turn_take();
        *link = w->next;
        ndm_turn_give();
        ndm_device_account(comm->owner->device, w->kind, -w->block);
        ndm_shm_detach(&w->map);
        free(w);
        return;
    }
}

const ndm_shm_window *ndm_shm_find_window(const ndm_comm *comm, const void *data, int64_t bytes)
{
    const char *at = data;

    for (const ndm_shm_window *w = ndm_shm_state(comm)->windows; w; w = w->next)
        if (at >= w->map.base && at + bytes <= w->map.base + w->map.bytes)
            return w;
    return NULL;
}
