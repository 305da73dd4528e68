/* SPDX-License-Identifier: Apache-2.0 */
/* Recording of collectives. */
#include "trace.h"

#include <stdlib.h>

#include "collectives/comms.h"
#include "tests/mpi/harness.h"

static void on_call(void *user, const ndm_collective_call *c)
{
    trace *t = user;
    call *grown = realloc(t->calls, (size_t)(t->n + 1) * sizeof *grown);

    if (!grown)
        die("no memory for a trace");
    t->calls = grown;
    t->calls[t->n++] = (call){t->step, c->kind, c->comm, c->count, c->dtype};
}

static void on_traffic(void *user, const ndm_traffic *traffic)
{
    account *a = user;

    a->calls[traffic->direction][traffic->kind] += traffic->calls;
    a->bytes[traffic->direction][traffic->kind] += traffic->bytes;
}

static unit_facts facts_of(const ndm_unit *u)
{
    ndm_describe_args args = {.unit = u};
    unit_facts f = {.slice = u->slice, .numel = u->numel};

    ndm_engine_describe(u->context, &args, on_traffic, &f.said);
    return f;
}

static void describe_tp(const ndm_model *m, trace *t)
{
    ndm_describe_args args = {.rows = m->size.padded,
                              .hidden = m->size.hidden,
                              .column_inputs = 2 * m->config.layers + 1,
                              .row_outputs = 2 * m->config.layers + 1};

    ndm_engine_describe(m->context, &args, on_traffic, &t->tp_said);
}

static void opened(void *user, ndm_model *m)
{
    trace *t = user;
    ndm_comm *tp;

    MUST(ndm_context_comm(m->context, NDM_AXIS_TP, &tp));
    t->shard = m->units[0]->shard;
    t->replicas = m->units[0]->replicas;
    t->block = m->units[m->n_units > 1]->block;
    t->tp = tp;
    t->embed = facts_of(m->units[0]);
    t->layer = facts_of(m->units[m->n_units > 1]);
    t->head = facts_of(m->units[m->n_units - 1]);
    t->rows = m->size.padded;
    t->hidden = m->size.hidden;
    describe_tp(m, t);
    ndm_comms_observe(m->context->comms, on_call, t);
}

static void stepped(void *user, ndm_model *m)
{
    trace *t = user;
    ndm_comm_stats stats = ndm_comm_statistics(m->units[0]->shard);

    if (t->step++ == 0)
        t->first_step = stats;
    for (int k = 0; k < NDM_COLLECTIVE_COUNT; k++)
        t->shard_bytes[k] = stats.received_bytes[k] - t->first_step.received_bytes[k];
}

void trace_run(int64_t layers, const variant *v, trace *t)
{
    problem p = problems[0];
    record r;

    *t = (trace){0};
    p.layers = layers;
    p.vocab = 64; /* slices of embedding and head differ for 2, 4 and 8 ranks; and so few rows are
                     reduced whole */
    ok_all(run_variant(
        &p, v, &(setup){.comm = MPI_COMM_WORLD, .opened = opened, .stepped = stepped, .user = t},
        &r));
    record_finish(&r);
}

void trace_finish(trace *t)
{
    free(t->calls);
}

int64_t trace_count(const trace *t, int64_t step, ndm_collective kind, const void *comm,
                    int64_t count)
{
    int64_t n = 0;

    for (int64_t i = 0; i < t->n; i++) {
        const call *c = &t->calls[i];
        n += c->step == step && c->kind == kind && c->comm == comm &&
             (count < 0 || c->count == count);
    }
    return n;
}
