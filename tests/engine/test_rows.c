/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of a table by rows: on every mesh, with every way to accumulate, each element of the
 * table is the exact sum over ranks and micro-batches of whole numbers that any order can add. */
#include <string.h>

#include "strategies/internal.h"
#include "tests/mpi/harness.h"

/* Slices that begin and end within rows; ids that repeat, and some that no rank has. */
enum { ROWS = 203, WIDTH = 5, TOKENS = 7, MICRO_BATCHES = 3, STEPS = 2, SCALE = 2, MANY = 500 };

typedef struct table {
    ndm_context *context;
    ndm_unit *unit;
    ndm_comm *data; /* ranks with tokens of their own */
    int64_t micro_batches;
} table;

static int32_t id_of(int64_t rank, int64_t micro, int64_t i)
{
    return (int32_t)((rank * 31 + micro * 17 + i * i * 11) % (ROWS + 9)) - 4;
}

static float value_of(int64_t rank, int64_t micro, int64_t i, int64_t j)
{
    return (float)((rank + 2 * micro + 3 * i + 5 * j) % 8);
}

static table open_table(const int64_t *mesh, int64_t rows, int64_t params, int64_t tokens,
                        const ndm_fsdp_config *fsdp)
{
    const ndm_param_spec specs[2] = {
        {.name = "table", .ndim = 2, .shape = {rows, WIDTH}, .role = NDM_ROLE_VOCAB},
        {.name = "more", .ndim = 1, .shape = {3}}};
    ndm_parallelism_config p = NDM_PARALLELISM_CONFIG_INIT;
    ndm_context_options o = NDM_CONTEXT_OPTIONS_INIT;
    table t = {0};

    p.dp_replicate = mesh[NDM_DP_REPLICATE];
    p.dp_shard = mesh[NDM_DP_SHARD];
    p.cp = mesh[NDM_CP];
    p.tp = mesh[NDM_TP];
    o.threads = 1;
    must(ndm_context_create(&p, &o, &t.context));
    must(ndm_context_comm(t.context, NDM_AXES_DP_CP, &t.data));
    must(ndm_unit_create(t.context, "table", specs, params, fsdp, &t.unit));
    must(ndm_unit_expect_rows(t.unit, tokens, NDM_F32));
    return t;
}

static void close_table(table *t)
{
    ndm_unit_destroy(t->unit);
    ndm_context_destroy(t->context);
}

/* A micro-batch; what the rows lay in is something else right after. */
static void give_rows(table *t, int64_t micro)
{
    ndm_stream *stream = ndm_context_stream(t->context);
    float rows[TOKENS][WIDTH];
    int32_t ids[TOKENS];

    for (int64_t i = 0; i < TOKENS; i++) {
        ids[i] = id_of(ndm_comm_index(t->data), micro, i);
        for (int64_t j = 0; j < WIDTH; j++)
            rows[i][j] = value_of(ndm_comm_index(t->data), micro, i, j);
    }
    ndm_context_micro_batch(t->context, micro, t->micro_batches);
    must(ndm_unit_grads_begin(t->unit, stream));
    must(ndm_unit_grad_rows(t->unit, ids, rows, NDM_F32, t->unit->params[0].offset, SCALE, stream));
    memset(rows, 0xff, sizeof rows);
    memset(ids, 0xff, sizeof ids);
    must(ndm_unit_reduce_grads(t->unit, stream));
}

static float expected(const table *t, int64_t element)
{
    float sum = 0.0f;

    for (int64_t rank = 0; rank < ndm_comm_size(t->data); rank++)
        for (int64_t micro = 0; micro < t->micro_batches; micro++)
            for (int64_t i = 0; i < TOKENS; i++)
                if (id_of(rank, micro, i) == element / WIDTH)
                    sum += SCALE * value_of(rank, micro, i, element % WIDTH);
    return sum;
}

typedef struct comparison {
    const table *table;
    bool right;
} comparison;

static ndm_status compare(void *user, const ndm_param_spec *spec, int64_t first, int64_t count,
                          float *values)
{
    comparison *c = user;

    (void)spec;
    for (int64_t i = 0; i < count; i++)
        c->right = c->right && values[i] == expected(c->table, first + i);
    return NDM_OK;
}

/* Slices of later steps begin anew. */
static void check_sums(const int64_t *mesh, const ndm_fsdp_config *fsdp, int64_t micro_batches)
{
    table t = open_table(mesh, ROWS, 1, TOKENS, fsdp);
    comparison c = {&t, true};

    t.micro_batches = micro_batches;
    ndm_context_micro_batch(t.context, 0, micro_batches);
    for (int step = 0; step < STEPS && ndm_unit_by_rows(t.unit); step++) {
        for (int64_t micro = 0; micro < micro_batches; micro++)
            give_rows(&t, micro);
        must(ndm_unit_write(t.unit, NDM_UNIT_GRADS, compare, &c));
    }
    check_all(ndm_unit_by_rows(t.unit) || ndm_comm_size(t.data) == 1 || mesh[NDM_TP] > 1 ||
              micro_batches > 1);
    check_all(c.right);
    close_table(&t);
}

static void check_mesh(const int64_t *mesh)
{
    ndm_fsdp_config fsdp = NDM_FSDP_CONFIG_INIT;

    for (fsdp.zero = 1; fsdp.zero <= 3; fsdp.zero++)
        for (int64_t micro_batches = 1; micro_batches <= MICRO_BATCHES; micro_batches += 2)
            check_sums(mesh, &fsdp, micro_batches);
    fsdp.zero = 3;
    fsdp.defer_sync = true;
    check_sums(mesh, &fsdp, MICRO_BATCHES);
    fsdp.reduce_dtype = NDM_BF16; /* the rows travel as such, and are exact */
    check_sums(mesh, &fsdp, 1);
}

static void each_element_is_the_sum_of_its_rows(void **state)
{
    int64_t n = ndm_world_size(world);

    (void)state;
    for (int64_t r = 1; r <= n; r++)
        for (int64_t s = 1; r * s <= n; s++)
            for (int64_t c = 1; r * s * c <= n; c++)
                if (n % (r * s * c) == 0)
                    check_mesh((int64_t[]){r, s, c, n / (r * s * c)});
}

static bool by_rows(int64_t rows, int64_t params, const ndm_fsdp_config *fsdp,
                    int64_t micro_batches)
{
    table t = open_table((int64_t[]){1, ndm_world_size(world), 1, 1}, rows, params, MANY, fsdp);

    ndm_context_micro_batch(t.context, 0, micro_batches);
    bool yes = ndm_unit_by_rows(t.unit);
    close_table(&t);
    return yes;
}

/* n ranks send n * MANY rows and ids a micro-batch, 6 numbers each; or the whole table, of 5 a row.
 */
static void whole_tables_are_reduced_where_less_travels_so(void **state)
{
    ndm_fsdp_config fsdp = NDM_FSDP_CONFIG_INIT;
    int64_t n = ndm_world_size(world), few = n * 580, many = n * 610;

    (void)state;
    if (n == 1)
        return;
    check_all(!by_rows(few, 1, &fsdp, 1) && by_rows(many, 1, &fsdp, 1));
    check_all(!by_rows(few, 1, &fsdp, 3) && by_rows(many, 1, &fsdp, 3));
    check_all(!by_rows(many, 2, &fsdp, 1)); /* there is more than the table */
    fsdp.defer_sync = true;
    check_all(!by_rows(many, 1, &fsdp, 3) && by_rows(3 * many, 1, &fsdp, 3));
    fsdp.reduce_dtype = NDM_BF16; /* the table is half of it, rows and ids are 14 bytes of 24 */
    check_all(!by_rows(many, 1, &fsdp, 1) && by_rows(2 * many, 1, &fsdp, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_element_is_the_sum_of_its_rows),
        cmocka_unit_test(whole_tables_are_reduced_where_less_travels_so),
    };

    return harness_run("rows", tests);
}
