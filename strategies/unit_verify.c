/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that make different units of one name would read beyond each other's memory, or sum what
 * does not belong together: the units are compared before anything is shared. */
#include <stdio.h>
#include <stdlib.h>

#include "core/dtype.h"
#include "strategies/internal.h"

enum { OWN = 2, VALUE_BYTES = 224 };

static void describe_fsdp(const ndm_fsdp_config *f, char text[VALUE_BYTES])
{
    snprintf(text, VALUE_BYTES,
             "zero=%d, reshard_after_forward=%lld, live_units=%lld, param_dtype=%s, "
             "reduce_dtype=%s, defer_sync=%d, defer_replicas=%d, fp8_gather=%d",
             f->zero, (long long)f->reshard_after_forward, (long long)f->live_units,
             ndm_dtype_name(f->param_dtype), ndm_dtype_name(f->reduce_dtype), f->defer_sync,
             f->defer_replicas, f->fp8_gather);
}

static void describe_param(const ndm_param_spec *s, char text[VALUE_BYTES])
{
    snprintf(text, VALUE_BYTES,
             "[%lld, %lld], role=%d, transposed=%d, head_local=%d, blocks=%lld, parts=%lld, "
             "fp8_group=%lld, no_decay=%d, init_mean=%.9g, init_std=%.9g, whole_rows=%d",
             (long long)s->shape[0], s->ndim > 1 ? (long long)s->shape[1] : 1LL, (int)s->role,
             s->transposed, s->head_local, (long long)s->blocks, (long long)s->parts,
             (long long)s->fp8_group, s->no_decay, (double)s->init_mean, (double)s->init_std,
             s->whole_rows);
}

ndm_status ndm_unit_verify(const ndm_unit *u)
{
    int64_t n = OWN + u->n_params;
    ndm_fact *facts = calloc((size_t)n, sizeof *facts);
    char(*values)[VALUE_BYTES] = calloc((size_t)n, sizeof *values);
    ndm_status status;

    if (!facts || !values) {
        free(facts);
        free(values);
        NDM_FAIL(NDM_ERR_MEMORY, "no memory to compare unit %s", u->name);
    }
    describe_fsdp(&u->fsdp, values[1]);
    facts[0] = (ndm_fact){"unit", u->name};
    facts[1] = (ndm_fact){"fsdp config", values[1]};
    for (int64_t i = 0; i < u->n_params; i++) {
        describe_param(&u->params[i].spec, values[OWN + i]);
        facts[OWN + i] = (ndm_fact){u->params[i].spec.name, values[OWN + i]};
    }
    status = ndm_world_verify(u->context->world, facts, n);
    free(facts);
    free(values);
    return status;
}
