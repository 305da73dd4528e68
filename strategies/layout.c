/* SPDX-License-Identifier: Apache-2.0 */
/* Where a parameter lies: the tensor-parallel cut of its shape, and the way back from local to
 * global elements.
 *
 * Along the cut dim of `parts` fused parts, tp rank t holds piece t of each part. A part of `whole`
 * indices in `blocks` blocks is cut into pieces of ceil(blocks / tp) blocks; what the last pieces
 * lack is padding (zeros, which stay zero: their gradients are). With fewer blocks than ranks, tp /
 * blocks consecutive ranks share one block. */
#include <math.h>
#include <string.h>

#include "strategies/internal.h"

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static int cut_dim(const ndm_param_spec *spec)
{
    switch (spec->role) {
    case NDM_ROLE_COLUMN:
        return spec->ndim == 2 && spec->transposed ? 1 : 0;
    case NDM_ROLE_ROW:
        if (spec->ndim == 1)
            return -1; /* the bias of a row-parallel linear is whole, and added once */
        return spec->transposed ? 0 : 1;
    case NDM_ROLE_VOCAB:
        return 0;
    default:
        return -1;
    }
}

/* More elements than these no array of theirs can be told in bytes. */
static const int64_t NUMEL_MAX = INT64_MAX / 64;

static ndm_status check_shape(const ndm_param_spec *spec)
{
    for (int d = 0; d < spec->ndim; d++)
        if (spec->shape[d] < 1)
            NDM_FAIL(NDM_ERR_CONFIG, "parameter %s: dimension %d is %lld", spec->name, d,
                     (long long)spec->shape[d]);
    if (spec->shape[0] > NUMEL_MAX / (spec->ndim == 2 ? spec->shape[1] : 1))
        NDM_FAIL(NDM_ERR_CONFIG, "parameter %s: %lld x %lld elements are too many", spec->name,
                 (long long)spec->shape[0], (long long)(spec->ndim == 2 ? spec->shape[1] : 1));
    return NDM_OK;
}

static ndm_status check_spec(const ndm_param_spec *spec)
{
    if (!spec->name || !spec->name[0])
        NDM_FAIL(NDM_ERR_CONFIG, "a parameter has no name");
    if (spec->ndim < 1 || spec->ndim > 2)
        NDM_FAIL(NDM_ERR_CONFIG, "parameter %s has %d dimensions, 1 or 2 are supported", spec->name,
                 spec->ndim);
    NDM_TRY(check_shape(spec));
    if ((unsigned)spec->role > NDM_ROLE_VOCAB)
        NDM_FAIL(NDM_ERR_CONFIG, "parameter %s: there is no role %d", spec->name, spec->role);
    if (spec->blocks < 0 || spec->parts < 0)
        NDM_FAIL(NDM_ERR_CONFIG, "parameter %s: %lld blocks, %lld parts; neither is negative",
                 spec->name, (long long)spec->blocks, (long long)spec->parts);
    if (!isfinite(spec->init_mean) || !isfinite(spec->init_std) || spec->init_std < 0.0f)
        NDM_FAIL(NDM_ERR_CONFIG, "parameter %s: init_mean %g, init_std %g", spec->name,
                 (double)spec->init_mean, (double)spec->init_std);
    return NDM_OK;
}

/* Cuts `whole` indices of one part; sets run, offset, valid and sharers. */
static ndm_status cut_part(ndm_param *p, int64_t tp, int64_t t)
{
    int64_t blocks = p->spec.blocks > 0 ? p->spec.blocks : p->whole, block = p->whole / blocks;

    if (p->whole % blocks)
        NDM_FAIL(NDM_ERR_CONFIG, "parameter %s: %lld blocks do not divide its %lld indices",
                 p->spec.name, (long long)blocks, (long long)p->whole);
    if (p->spec.blocks > 0 && blocks % tp && tp % blocks)
        NDM_FAIL(NDM_ERR_CONFIG, "tp=%lld does not divide the %lld heads of %s, nor they it",
                 (long long)tp, (long long)blocks, p->spec.name);
    p->sharers = p->spec.blocks > 0 && blocks < tp ? tp / blocks : 1;
    int64_t pieces = tp / p->sharers, piece = t / p->sharers;
    int64_t per_piece = ceil_div(blocks, pieces) * block;
    p->run = per_piece;
    p->offset = piece * per_piece < p->whole ? piece * per_piece : p->whole;
    p->valid = p->whole - p->offset < per_piece ? p->whole - p->offset : per_piece;
    return NDM_OK;
}

ndm_status ndm_param_place(const ndm_context *context, const ndm_param_spec *spec, ndm_param *param)
{
    int64_t tp = ndm_context_axes_size(context, NDM_AXIS_TP),
            t = ndm_context_coord(context, NDM_TP);

    NDM_TRY(check_spec(spec));
    memset(param, 0, sizeof *param);
    param->spec = *spec;
    param->cut = tp > 1 ? cut_dim(spec) : -1;
    param->local[0] = spec->shape[0];
    param->local[1] = spec->ndim == 2 ? spec->shape[1] : 1;
    param->parts = 1;
    param->sharers = 1;
    param->decay = spec->ndim == 2 && !spec->no_decay;
    if (param->cut >= 0) {
        param->parts = spec->parts > 0 ? spec->parts : 1;
        if (spec->shape[param->cut] % param->parts)
            NDM_FAIL(NDM_ERR_CONFIG, "parameter %s: %lld parts do not divide its dimension of %lld",
                     spec->name, (long long)param->parts, (long long)spec->shape[param->cut]);
        param->whole = spec->shape[param->cut] / param->parts;
        NDM_TRY(cut_part(param, tp, t));
        param->local[param->cut] = param->parts * param->run;
        param->sum_over_sharers = param->sharers > 1;
    } else {
        param->sharers = tp;
        param->sum_over_sharers = tp > 1 &&
                                  (spec->head_local || ndm_context_sequence_parallel(context));
    }
    param->numel = param->local[0] * param->local[1];
    return NDM_OK;
}

/* ---- local to global ------------------------------------------------------------------------- */

/* Runs along a row-major array cut along dim 0 (or not at all): whole rows, so a part is one run.
 */
static ndm_status runs_by_rows(const ndm_param *p, int64_t first, int64_t count,
                               ndm_param_run_fn visit, void *user)
{
    int64_t width = p->local[1], run = p->cut < 0 ? p->numel : p->run * width;

    for (int64_t part = first / run; part < p->parts && part * run < first + count; part++) {
        int64_t begin = part * run, end = begin + (p->cut < 0 ? run : p->valid * width);
        int64_t from = begin > first ? begin : first,
                to = end < first + count ? end : first + count;
        int64_t global = p->cut < 0 ? from : (part * p->whole + p->offset) * width + (from - begin);
        if (from < to)
            NDM_TRY(visit(user, from, global, to - from));
    }
    return NDM_OK;
}

/* Runs of an array cut along dim 1: every part of every row is one. */
static ndm_status runs_by_columns(const ndm_param *p, int64_t first, int64_t count,
                                  ndm_param_run_fn visit, void *user)
{
    int64_t width = p->local[1], global_width = p->spec.shape[1], last = first + count;

    for (int64_t row = first / width; row * width < last; row++)
        for (int64_t part = 0; part < p->parts; part++) {
            int64_t begin = row * width + part * p->run, end = begin + p->valid;
            int64_t from = begin > first ? begin : first, to = end < last ? end : last;
            int64_t global = row * global_width + part * p->whole + p->offset + (from - begin);
            if (from < to)
                NDM_TRY(visit(user, from, global, to - from));
        }
    return NDM_OK;
}

ndm_status ndm_param_runs(const ndm_param *param, int64_t first, int64_t count,
                          ndm_param_run_fn visit, void *user)
{
    return param->cut == 1 ? runs_by_columns(param, first, count, visit, user)
                           : runs_by_rows(param, first, count, visit, user);
}
