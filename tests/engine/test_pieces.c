/* SPDX-License-Identifier: Apache-2.0 */
/* The gradient of a large head, made and reduced in pieces: the same bits as when it is made whole,
 * on every mesh that shards it and in every way to accumulate and send, from two buffers of a
 * layer's size. */
#include <stdlib.h>

#include "tests/equiv/equiv.h"
#include "tests/mpi/harness.h"

/* The last piece of a slice holds a final norm; natural slices would begin within rows. */
static const problem large_head = {.name = "large head",
                                   .hidden = 64,
                                   .layers = 2,
                                   .heads = 4,
                                   .kv_heads = 2,
                                   .head_dim = 16,
                                   .ffn = 300,
                                   .vocab = 4200};

enum { HELD_POLLS = 50, TOKENS = GLOBAL_BATCH * SEQ_LEN };

static const double LIMIT = 1e-5; /* sums in another order; tests/equiv says why not less */

/* A way to train, and what is seen of it. */
typedef struct watch {
    bool whole;           /* do without pieces */
    bool abandon;         /* begin with a window of micro-batches that is not gone on with */
    bool misuse;          /* begin with a reduction of what no product has made */
    uint64_t late;        /* 0, or the seed that holds collectives back */
    int64_t taken;        /* buffers of gradients that nobody gave back */
    int64_t pieces;       /* of the head's gradient */
    int64_t over;         /* peak bytes of gradients beside the slices */
    int64_t allowed;      /* two buffers of a layer's size, and what adds micro-batches up */
    ndm_comm_stats stats; /* of the ranks that shard, at the last look; */
    int64_t calls, bytes; /* reduce-scatters of the step since the look before */
    int64_t said_calls, said_bytes;
} watch;

static ndm_unit *head_of(const ndm_model *model)
{
    return model->units[model->n_units - 1];
}

/* The first of two micro-batches, whose gradients are kept whole for the second. */
static void abandon_window(ndm_model *model)
{
    static int32_t tokens[TOKENS];
    const ndm_batch batch = {model->options.micro_batch, tokens, tokens, NULL, NULL};
    double loss;

    ndm_context_micro_batch(model->context, 0, 2);
    must(ndm_model_train(model, &batch, 1.0));
    must(ndm_model_take_loss(model, &loss));
}

static void reduce_too_early(ndm_model *model)
{
    ndm_unit *head = head_of(model);

    ndm_context_micro_batch(model->context, 0, 1);
    must(ndm_unit_grads_begin(head, model->context->compute));
    check_all(ndm_unit_reduce_grads(head, model->context->compute) == NDM_ERR_STATE);
}

static void opened(void *user, ndm_model *model)
{
    const watch *w = user;

    if (w->whole) /* in the same layout */
        head_of(model)->pieces.units = NULL;
    if (w->late)
        ndm_comms_delay(model->context->comms, HELD_POLLS, w->late);
    if (w->abandon)
        abandon_window(model);
    if (w->misuse)
        reduce_too_early(model);
}

static void on_traffic(void *user, const ndm_traffic *t)
{
    watch *w = user;

    w->said_calls += t->kind == NDM_REDUCE_SCATTER ? t->calls : 0;
    w->said_bytes += t->kind == NDM_REDUCE_SCATTER ? t->bytes : 0;
}

static void look_at_traffic(watch *w, const ndm_model *model)
{
    ndm_comm_stats now = ndm_comm_statistics(head_of(model)->shard);

    w->calls = now.calls[NDM_REDUCE_SCATTER] - w->stats.calls[NDM_REDUCE_SCATTER];
    w->bytes = now.received_bytes[NDM_REDUCE_SCATTER] - w->stats.received_bytes[NDM_REDUCE_SCATTER];
    w->stats = now;
    w->said_calls = w->said_bytes = 0;
    ndm_model_describe(model, -1, on_traffic, w);
}

static void stepped(void *user, ndm_model *model)
{
    enum { FLOAT = sizeof(float) };
    watch *w = user;
    ndm_memory_stats memory = ndm_device_memory(model->context->device);
    const ndm_unit *layer = model->units[1], *head = head_of(model);

    w->pieces = ndm_unit_pieces_of_step(head);
    w->over = memory.peak_bytes[NDM_MEMORY_GRADIENTS];
    for (int64_t i = 0; i < model->n_units; i++)
        w->over -= model->units[i]->slice * FLOAT;
    w->allowed = 2 * layer->numel * FLOAT;
    if (model->context->micro_batches > 1)
        w->allowed += (layer->slice + head->slice) * FLOAT;
    w->taken = 0;
    for (const ndm_pool_buffer *b = model->context->pool; b; b = b->next)
        w->taken += b->taken && b->kind == NDM_MEMORY_GRADIENTS;
    look_at_traffic(w, model);
}

static void run(const problem *p, const variant *v, int64_t head_chunk, ndm_toggle graphs, watch *w,
                record *r)
{
    const char *name = getenv("NDM_TEST_DEVICE");

    ok_all(run_variant(p, v,
                       &(setup){.comm = MPI_COMM_WORLD,
                                .device = name ? name : "cpu",
                                .graphs = graphs,
                                .head_chunk = head_chunk,
                                .opened = opened,
                                .stepped = stepped,
                                .user = w},
                       r));
}

static variant on_mesh(int64_t replicate, int64_t shard, int64_t cp, int64_t tp)
{
    return (variant){.mesh = {replicate, shard, cp, tp},
                     .zero = 3,
                     .reshard = NDM_RESHARD_ALWAYS,
                     .accum = 1,
                     .defer_replicas = true,
                     .sequence_parallel = true};
}

static bool fits(const variant *v)
{
    return variant_size(v, NDM_AXES_ALL) == ndm_world_size(world);
}

/* Pieces, with collectives that are late, and whole. */
static void check_bits(const variant *v)
{
    watch pieces = {.late = 7, .abandon = v->defer_sync, .misuse = v->accum == 1};
    watch whole = {.whole = true};
    record got, want;
    char text[256];

    if (!fits(v))
        return;
    print_message("  %s\n", variant_text(v, text, sizeof text));
    run(&large_head, v, TOKENS, NDM_TOGGLE_AUTO, &pieces, &got);
    run(&large_head, v, TOKENS, NDM_TOGGLE_AUTO, &whole, &want);
    check_all(pieces.pieces > 2 && whole.pieces == 1 && pieces.taken == 0);
    check_all(ndm_world_rank(world) != 0 || same_bits(&got, &want));
    check_all(!got.replicas_differ);
    if (!v->defer_sync)
        check_all(pieces.over <= pieces.allowed && pieces.over < whole.over);
    if (v->collectives && v->accum == 1)
        check_all(pieces.calls == pieces.said_calls && pieces.bytes == pieces.said_bytes &&
                  pieces.calls == whole.calls + pieces.pieces - 1 && pieces.bytes == whole.bytes);
    record_finish(&got);
    record_finish(&want);
}

static void pieces_change_no_bit(void **state)
{
    const int64_t meshes[][NDM_AXIS_COUNT] = {{1, 2, 1, 1}, {1, 1, 2, 1}, {1, 4, 1, 1},
                                              {2, 2, 1, 1}, {1, 2, 1, 2}, {1, 2, 2, 1},
                                              {2, 1, 2, 1}, {1, 1, 2, 2}};

    (void)state;
    for (size_t i = 0; i < sizeof meshes / sizeof meshes[0]; i++) {
        variant v = on_mesh(meshes[i][0], meshes[i][1], meshes[i][2], meshes[i][3]);
        check_bits(&v);
    }
}

static void nor_do_other_ways_to_reduce(void **state)
{
    int64_t n = ndm_world_size(world);
    variant v = on_mesh(n / 2, 2, 1, 1);

    (void)state;
    v.collectives = "mpi";
    check_bits(&v);
    v.bf16 = v.bf16_activations = true;
    check_bits(&v);
    v.collectives = NULL;
    v.bf16_activations = false;
    v.accum = 2; /* a part of every piece is added to the slice */
    check_bits(&v);
    v.bf16 = v.defer_replicas = false;
    check_bits(&v);
    v.accum = v.zero = 1;
    check_bits(&v);
    v.defer_sync = true;
    check_bits(&v);
}

static int64_t pieces_of(const problem *p, const variant *v, int64_t head_chunk)
{
    watch w = {0};
    record r;

    run(p, v, head_chunk, NDM_TOGGLE_AUTO, &w, &r);
    record_finish(&r);
    return w.pieces;
}

/* Somebody else's strategy, which does nothing. */
static bool somebody_else;

static bool else_applies(const ndm_context *context, const ndm_fsdp_config *fsdp)
{
    (void)context;
    (void)fsdp;
    return somebody_else;
}

static const ndm_strategy elses = {
    .name = "somebody_else", .summary = "does nothing", .applies = else_applies};

/* Where gradients add up before they are reduced, rows are not aligned, there is one table for both
 * ends, a layer is as large, or somebody else may look at them. */
static void whole_where_it_must_be(void **state)
{
    int64_t n = ndm_world_size(world);
    variant v = on_mesh(1, n, 1, 1), sums = v;
    problem odd = large_head, tied = large_head, wide = large_head;

    (void)state;
    sums.accum = 2;
    sums.defer_sync = true;
    odd.hidden = 72;
    tied.tied = true;
    wide.ffn = 1400;
    check_all(pieces_of(&large_head, &v, TOKENS) > 1 || n == 1);
    check_all(pieces_of(&large_head, &v, 17) == 1); /* chunks of logits add up */
    check_all(pieces_of(&large_head, &sums, TOKENS) == 1);
    check_all(pieces_of(&odd, &v, TOKENS) == 1);
    check_all(pieces_of(&tied, &v, TOKENS) == 1);
    check_all(pieces_of(&wide, &v, TOKENS) == 1);
    somebody_else = true;
    check_all(pieces_of(&large_head, &v, TOKENS) == 1);
    somebody_else = false;
}

/* A smaller one; in the cuda world, steps as graphs. */
static void pieces_equal_one_rank(void **state)
{
    int64_t n = ndm_world_size(world);
    variant v = on_mesh(1, n, 1, 1), one = on_mesh(1, 1, 1, 1);
    ndm_toggle graphs = getenv("NDM_TEST_DEVICE") ? NDM_TOGGLE_ON : NDM_TOGGLE_AUTO;
    problem p = large_head;
    record got, want = {0};
    watch w = {0};

    (void)state;
    p.layers = 1;
    p.vocab = 550 * n;
    p.ffn = 80 * n;
    run(&p, &v, TOKENS, graphs, &w, &got);
    if (ndm_world_rank(world) == 0)
        must(run_variant(&p, &one, &(setup){.comm = MPI_COMM_SELF}, &want));
    errors e = ndm_world_rank(world) == 0 ? compare(&got, &want) : (errors){0};
    check_all(w.pieces == (n > 1 ? 2 : 1));
    check_all(e.loss <= LIMIT && e.norm <= LIMIT && e.update <= LIMIT);
    record_finish(&got);
    record_finish(&want);
}

/* A pattern of tests may be asked for. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_change_no_bit),
        cmocka_unit_test(nor_do_other_ways_to_reduce),
        cmocka_unit_test(whole_where_it_must_be),
        cmocka_unit_test(pieces_equal_one_rank),
    };

    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    if (ndm_strategy_register(&elses) != NDM_OK)
        return 1;
    return harness_run("pieces", tests);
}
