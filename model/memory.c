/* SPDX-License-Identifier: Apache-2.0 */
/* The pieces behind model/memory.h: a list of allocations and windows, freed together. */
#include "model/memory.h"

#include <stdlib.h>

#include "strategies/internal.h"

void ndm_model_memory_finish(ndm_model_memory *memory)
{
    for (int64_t i = 0; i < memory->n; i++) {
        if (memory->pieces[i].shared)
            ndm_window_free(memory->pieces[i].shared, memory->pieces[i].base);
        else
            ndm_device_free(memory->context->device, memory->pieces[i].base);
    }
    free(memory->pieces);
    memory->pieces = NULL;
    memory->n = memory->capacity = 0;
}

static ndm_status make_room(ndm_model_memory *memory)
{
    int64_t capacity = memory->capacity ? 2 * memory->capacity : 64;

    if (memory->n < memory->capacity)
        return NDM_OK;
    ndm_memory_piece *pieces = realloc(memory->pieces, (size_t)capacity * sizeof *pieces);
    if (!pieces)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for a list of %lld allocations", (long long)capacity);
    memory->pieces = pieces;
    memory->capacity = capacity;
    return NDM_OK;
}

static ndm_status take(ndm_model_memory *memory, int64_t bytes, ndm_memory_kind kind,
                       void **pointer)
{
    NDM_TRY(make_room(memory));
    NDM_TRY(ndm_device_alloc(memory->context->device, bytes, kind, pointer));
    memory->pieces[memory->n++] = (ndm_memory_piece){NULL, *pointer};
    return ndm_zero(memory->context->compute, *pointer,
                    bytes); /* rows beyond the batch stay zero for good */
}

ndm_status ndm_model_memory_take(ndm_model_memory *memory, int64_t bytes, ndm_memory_kind kind,
                                 void **pointer)
{
    *pointer = NULL;
    if (bytes > 0 && memory->failed == NDM_OK)
        memory->failed = take(memory, bytes, kind, pointer);
    return NDM_OK;
}

/* *window NULL: there is none, or this rank has no memory. */
static ndm_status take_window(ndm_model_memory *memory, ndm_comm *comm, int64_t bytes_per_rank,
                              ndm_memory_kind kind, char **window)
{
    void *base = NULL;

    *window = NULL;
    if (memory->failed == NDM_OK)
        memory->failed = make_room(memory);
    NDM_TRY(ndm_window_alloc(comm, bytes_per_rank, kind, &base));
    if (memory->failed != NDM_OK)
        ndm_window_free(comm, base);
    if (!base || memory->failed != NDM_OK)
        return NDM_OK;
    *window = base;
    memory->pieces[memory->n++] = (ndm_memory_piece){comm, base};
    return ndm_zero(memory->context->compute, *window + ndm_comm_index(comm) * bytes_per_rank,
                    bytes_per_rank);
}

ndm_status ndm_model_memory_take_gathered(ndm_model_memory *memory, ndm_comm *comm,
                                          int64_t bytes_per_rank, ndm_memory_kind kind,
                                          void **pointer)
{
    char *window;

    NDM_TRY(take_window(memory, comm, bytes_per_rank, kind, &window));
    if (!window)
        return ndm_model_memory_take(memory, ndm_comm_size(comm) * bytes_per_rank, kind, pointer);
    *pointer = window;
    return NDM_OK;
}

ndm_status ndm_model_memory_take_readable(ndm_model_memory *memory, ndm_comm *comm, int64_t bytes,
                                          ndm_memory_kind kind, void **pointer)
{
    char *window;

    NDM_TRY(take_window(memory, comm, bytes, kind, &window));
    if (!window)
        return ndm_model_memory_take(memory, bytes, kind, pointer);
    *pointer = window + ndm_comm_index(comm) * bytes;
    return NDM_OK;
}
