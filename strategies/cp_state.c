/* SPDX-License-Identifier: Apache-2.0 */
/* What context parallelism keeps in a context: a workspace, and a stream for transfers. */
#include <stdlib.h>

#include "strategies/cp.h"

static ndm_status open_parts(ndm_context *context, struct ndm_cp *cp)
{
    ndm_device *device = context->device;

    NDM_TRY(ndm_stream_create(device, NDM_STREAM_COMM, "ring", &cp->ring));
    NDM_TRY(ndm_event_create(device, &cp->ready));
    NDM_TRY(ndm_event_create(device, &cp->pairs_here));
    return ndm_event_create(device, &cp->grads_here);
}

ndm_status ndm_cp_state(ndm_context *context, struct ndm_cp **state)
{
    if (!context->cp) {
        context->cp = calloc(1, sizeof *context->cp);
        if (!context->cp)
            NDM_FAIL(NDM_ERR_MEMORY, "no memory for context parallelism");
        ndm_status status = open_parts(context, context->cp);
        if (status != NDM_OK) {
            ndm_cp_finish(context);
            return status;
        }
    }
    *state = context->cp;
    return NDM_OK;
}

void ndm_cp_finish(ndm_context *context)
{
    struct ndm_cp *cp = context->cp;

    if (!cp)
        return;
    ndm_event_destroy(cp->ready);
    ndm_event_destroy(cp->pairs_here);
    ndm_event_destroy(cp->grads_here);
    ndm_stream_destroy(cp->ring);
    ndm_device_free(context->device, cp->workspace);
    ndm_cp_windows_free(cp);
    free(cp);
    context->cp = NULL;
}

/* Pieces start on cache lines, as kernels like it. */
static int64_t whole_lines(int64_t n)
{
    return (n + NDM_UNIT_ALIGN - 1) / NDM_UNIT_ALIGN * NDM_UNIT_ALIGN;
}

static ndm_status grow(const ndm_cp_job *job, struct ndm_cp *cp, int64_t words)
{
    void *memory;

    NDM_TRY(ndm_stream_synchronize(job->stream));
    NDM_TRY(ndm_stream_synchronize(cp->ring));
    ndm_device_free(job->context->device, cp->workspace);
    cp->workspace = NULL;
    cp->workspace_words = 0;
    NDM_TRY(
        ndm_device_alloc(job->context->device, words * NDM_CP_WORD, NDM_MEMORY_WORKSPACE, &memory));
    cp->workspace = memory;
    cp->workspace_words = words;
    return NDM_OK;
}

ndm_status ndm_cp_workspace(const ndm_cp_job *job, const ndm_cp_piece *pieces, int64_t n_pieces)
{
    struct ndm_cp *cp;
    int64_t words = 0;

    NDM_TRY(ndm_cp_state(job->context, &cp));
    for (int64_t i = 0; i < n_pieces; i++)
        words += whole_lines(pieces[i].n);
    if (words > cp->workspace_words)
        NDM_TRY(grow(job, cp, words));
    words = 0;
    for (int64_t i = 0; i < n_pieces; i++) {
        *pieces[i].at = cp->workspace + words;
        words += whole_lines(pieces[i].n);
    }
    return NDM_OK;
}
