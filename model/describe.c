/* SPDX-License-Identifier: Apache-2.0 */
/* A model's account of its collectives: each strategy's describe(), asked for every block and unit
 * with the numbers of uses that the run of a micro-batch makes of them. */
#include <string.h>

#include "model/model.h"
#include "strategies/fp8.h"

/* What a strategy says of one use, and how often it is made in which direction. */
typedef struct retold {
    ndm_traffic_fn emit;
    void *user;
    int64_t forward, backward; /* gathers of a unit in each direction */
    bool again;                /* forward ops that are made again in the backward */
} retold;

static void tell(const retold *r, const ndm_traffic *said, ndm_direction direction, int64_t times)
{
    ndm_traffic t = *said;

    t.direction = direction;
    t.calls *= times;
    t.bytes *= times;
    if (t.calls > 0)
        r->emit(r->user, &t);
}

/* ---- units -------------------------------------------------------------------------------- */

/* The unit of the last layer stays gathered from the forward into the backward. */
static bool enters(const ndm_model *m, int64_t block, ndm_direction direction)
{
    if (direction == NDM_FORWARD)
        return !ndm_model_same_unit(m, block - 1);
    return block > 0 && block < m->n_blocks - 2 && !ndm_model_same_unit(m, block);
}

static int64_t gathers(const ndm_model *m, const ndm_unit *unit, ndm_direction direction)
{
    int64_t n = 0;

    for (int64_t b = 0; b < m->n_blocks; b++)
        n += m->blocks[b].unit == unit && enters(m, b, direction);
    return n;
}

/* The first gather is from all shards; the others are what is said of the backward. */
static void retell_unit(void *user, const ndm_traffic *said)
{
    const retold *r = user;

    bool gather = (said->kind == NDM_ALL_GATHER && strcmp(said->where, "unit") == 0) ||
                  strcmp(said->where, "scales") == 0;

    if (!gather || said->direction == NDM_FORWARD) {
        tell(r, said, said->direction, 1);
        return;
    }
    tell(r, said, NDM_FORWARD, r->forward - 1);
    tell(r, said, NDM_BACKWARD, r->backward);
}

static void describe_unit(const ndm_model *m, const ndm_unit *unit, ndm_traffic_fn emit, void *user)
{
    ndm_describe_args args = {.unit = unit};
    retold r = {.emit = emit,
                .user = user,
                .forward = gathers(m, unit, NDM_FORWARD),
                .backward = gathers(m, unit, NDM_BACKWARD)};

    ndm_engine_describe(m->context, &args, retell_unit, &r);
}

/* ---- blocks ------------------------------------------------------------------------------- */

static void retell_block(void *user, const ndm_traffic *said)
{
    const retold *r = user;

    if (!r->again)
        tell(r, said, said->direction, 1);
    else if (said->direction == NDM_FORWARD)
        tell(r, said, NDM_BACKWARD, 1);
}

/* Regions that ops of a layer enter and leave, attentions, and linears: of all, or of those made
 * again. */
typedef struct uses {
    int64_t inputs, outputs, attentions, linears;
} uses;

static uses uses_of_layer(const ndm_model *m, bool again)
{
    uses u = {0};

    for (int i = 0; i < ndm_decoder_op_count; i++) {
        const ndm_model_op *op = &ndm_decoder_ops[i];
        if (again && !ndm_op_runs_again(m, op))
            continue;
        u.inputs += op->forward == ndm_op_norm_forward;
        u.outputs += op->forward == ndm_op_row_forward;
        u.attentions += op->forward == ndm_op_attention_forward;
        u.linears += op->forward == ndm_op_column_forward || op->forward == ndm_op_row_forward;
    }
    return u;
}

/* Regions are of all rows, padded to tp; attention is of the tokens that there are. */
static void describe_uses(const ndm_model *m, const uses *u, retold *r)
{
    const ndm_sizes *s = &m->size;
    ndm_describe_args regions = {.dtype = m->dtype,
                                 .rows = s->padded / m->region.parts,
                                 .hidden = s->hidden,
                                 .column_inputs = u->inputs * m->region.parts,
                                 .row_outputs = u->outputs * m->region.parts};
    ndm_describe_args attention = {.dtype = m->dtype,
                                   .rows = s->rows,
                                   .hidden = s->hidden,
                                   .kv_width = 2 * s->kv_width,
                                   .heads = s->heads,
                                   .kv_heads = s->kv_heads,
                                   .head_dim = s->head_dim};

    ndm_engine_describe(m->context, &regions, retell_block, r);
    for (int64_t i = 0; i < u->attentions; i++)
        ndm_engine_describe(m->context, &attention, retell_block, r);
    for (int d = NDM_FORWARD; m->options.fp8 && d <= NDM_BACKWARD; d++)
        ndm_fp8_describe(m->context, (ndm_direction)d, u->linears, retell_block, r);
}

static void describe_layer(const ndm_model *m, retold *r)
{
    uses once = uses_of_layer(m, false), again = uses_of_layer(m, true);

    describe_uses(m, &once, r);
    r->again = true;
    describe_uses(m, &again, r);
}

static void describe_head(const ndm_model *m, retold *r)
{
    const ndm_sizes *s = &m->size;
    uses u = {.inputs = 1};
    ndm_describe_args loss = {.loss_rows = s->padded,
                              .loss_calls = (s->padded + s->chunk - 1) / s->chunk};

    describe_uses(m, &u, r);
    ndm_engine_describe(m->context, &loss, retell_block, r);
}

static void describe_block(const ndm_model *m, int64_t block, ndm_traffic_fn emit, void *user)
{
    retold r = {.emit = emit, .user = user};
    uses embed = {.outputs = 1};

    switch (m->blocks[block].kind) {
    case NDM_BLOCK_EMBED:
        describe_uses(m, &embed, &r);
        break;
    case NDM_BLOCK_LAYER:
        describe_layer(m, &r);
        break;
    case NDM_BLOCK_HEAD:
        describe_head(m, &r);
        break;
    }
}

/* Whether block b is the first of its unit. */
static bool opens_unit(const ndm_model *m, int64_t b)
{
    for (int64_t i = 0; i < b; i++)
        if (m->blocks[i].unit == m->blocks[b].unit)
            return false;
    return true;
}

void ndm_model_describe(const ndm_model *model, int64_t block, ndm_traffic_fn emit, void *user)
{
    if (!model || !emit)
        return;
    int64_t first = block < 0 ? 0 : block, last = block < 0 ? model->n_blocks - 1 : block;

    for (int64_t b = first; b <= last && b < model->n_blocks; b++) {
        describe_block(model, b, emit, user);
        if (opens_unit(model, b))
            describe_unit(model, model->blocks[b].unit, emit, user);
    }
}
