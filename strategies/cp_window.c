/* SPDX-License-Identifier: Apache-2.0 */
/* Windows of context parallelism: where the ranks of cp share a node, blocks are gathered by all
 * writing to one memory, and sums are read from where they were made. They grow to the largest call
 * and then stay. */
#include "strategies/cp.h"

static void drop(ndm_cp_window *w)
{
    if (w->base)
        ndm_window_free(w->comm, w->base);
    *w = (ndm_cp_window){0};
}

/* Ranks ask for the same, so that they grow together. Who still reads the old memory has it mapped
 * for himself. */
static ndm_status at_least(const ndm_cp_job *job, ndm_cp_window *w, int64_t words)
{
    if (w->comm == job->comm && words <= w->words)
        return NDM_OK;
    drop(w);
    NDM_TRY(ndm_window_alloc(job->comm, words * NDM_CP_WORD, NDM_MEMORY_WORKSPACE, &w->base));
    w->comm = job->comm;
    w->words = words;
    return NDM_OK;
}

/* By turns one of two: who comes to the next gather has read the last one, and so the one before
 * that may be written as soon as the next is done. */
ndm_status ndm_cp_gather_window(const ndm_cp_job *job, int64_t n, float **all)
{
    struct ndm_cp *cp;

    NDM_TRY(ndm_cp_state(job->context, &cp));
    ndm_cp_window *w = &cp->gathered[cp->gathers++ % 2];
    NDM_TRY(at_least(job, w, n));
    *all = w->base;
    return NDM_OK;
}

/* One will do: a collective that reads from it ends when all have read. */
ndm_status ndm_cp_sum_window(const ndm_cp_job *job, int64_t n, float **words)
{
    struct ndm_cp *cp;

    NDM_TRY(ndm_cp_state(job->context, &cp));
    NDM_TRY(at_least(job, &cp->sums, n));
    *words = cp->sums.base ? (float *)cp->sums.base + ndm_comm_index(job->comm) * cp->sums.words
                           : NULL;
    return NDM_OK;
}

void ndm_cp_windows_free(struct ndm_cp *cp)
{
    drop(&cp->gathered[0]);
    drop(&cp->gathered[1]);
    drop(&cp->sums);
}
