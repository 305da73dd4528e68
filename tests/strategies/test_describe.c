/* SPDX-License-Identifier: Apache-2.0 */
/* What describe() says against what a step does, and the table of docs/strategies.md.
 *
 *     mpiexec.mpich -n 8 test_strategies_describe                   compares
 *     NDM_WRITE_DOCS=1 mpiexec.mpich -n 8 test_strategies_describe  writes the table anew */
#include <stdlib.h>
#include <string.h>

#include "collectives/comms.h"
#include "core/file.h"
#include "core/text.h"
#include "session.h"

enum { RANKS = 8, STRATEGIES = 16, PLACES = 6, LAYER = 1 };

static const char *const places[PLACES] = {"unit", "rows", "linear", "attention", "loss", "scales"};

typedef struct entry {
    const char *how; /* beside the mesh; NULL: not in the table */
    int64_t mesh[NDM_AXIS_COUNT];
    int zero;
    int64_t reshard;
    ndm_cp_method cp_method;
    bool no_sequence_parallel;
    ndm_recompute recompute;
    const char *preset;
    int64_t parts; /* of tp's regions; 0 = one */
    bool fp8, fp8_gather;
} entry;

/* clang-format off */
static const entry entries[] = {
    {"", {4, 1, 1, 1}, 3, NDM_RESHARD_ALWAYS, 0, false, 0, "llama-tiny", 0, false, false},
    {"zero 3", {1, 4, 1, 1}, 3, NDM_RESHARD_ALWAYS, 0, false, 0, "llama-tiny", 0, false, false},
    {"zero 3, reshard to 2", {1, 4, 1, 1}, 3, 2, 0, false, 0, "llama-tiny", 0, false, false},
    {"zero 3, no reshard", {1, 4, 1, 1}, 3, NDM_RESHARD_NEVER, 0, false, 0, "llama-tiny", 0, false, false},
    {"zero 2", {1, 4, 1, 1}, 2, NDM_RESHARD_ALWAYS, 0, false, 0, "llama-tiny", 0, false, false},
    {"zero 3", {2, 2, 1, 1}, 3, NDM_RESHARD_ALWAYS, 0, false, 0, "llama-tiny", 0, false, false},
    {"sequence parallel", {1, 1, 1, 2}, 3, NDM_RESHARD_ALWAYS, 0, false, 0, "llama-tiny", 0, false, false},
    {"no sequence parallel", {1, 1, 1, 2}, 3, NDM_RESHARD_ALWAYS, 0, true, 0, "llama-tiny", 0, false, false},
    {"kv heads on 2 ranks each", {1, 1, 1, 4}, 3, NDM_RESHARD_ALWAYS, 0, false, 0, "llama-tiny", 0, false, false},
    {"recompute full", {1, 1, 1, 2}, 3, NDM_RESHARD_ALWAYS, 0, false, NDM_RECOMPUTE_FULL, "llama-tiny", 0, false, false},
    {"in 4 parts", {1, 1, 1, 2}, 3, NDM_RESHARD_ALWAYS, 0, false, 0, "llama-tiny", 4, false, false},
    {"ring", {1, 1, 2, 1}, 3, NDM_RESHARD_ALWAYS, NDM_CP_METHOD_RING, false, 0, "llama-tiny", 0, false, false},
    {"all_gather", {1, 1, 2, 1}, 3, NDM_RESHARD_ALWAYS, NDM_CP_METHOD_ALL_GATHER, false, 0, "llama-tiny", 0, false, false},
    {"ulysses", {1, 1, 2, 1}, 3, NDM_RESHARD_ALWAYS, NDM_CP_METHOD_ULYSSES, false, 0, "llama-tiny", 0, false, false},
    {"ring", {1, 1, 4, 1}, 3, NDM_RESHARD_ALWAYS, NDM_CP_METHOD_RING, false, 0, "llama-tiny", 0, false, false},
    {"ddp + tp", {2, 1, 1, 2}, 3, NDM_RESHARD_ALWAYS, 0, false, 0, "llama-tiny", 0, false, false},
    {"fsdp + tp", {1, 2, 1, 2}, 3, NDM_RESHARD_ALWAYS, 0, false, 0, "llama-tiny", 0, false, false},
    {"ddp + cp", {2, 1, 2, 1}, 3, NDM_RESHARD_ALWAYS, NDM_CP_METHOD_ALL_GATHER, false, 0, "llama-tiny", 0, false, false},
    {"fsdp + cp", {1, 2, 2, 1}, 3, NDM_RESHARD_ALWAYS, NDM_CP_METHOD_ALL_GATHER, false, 0, "llama-tiny", 0, false, false},
    {"cp + tp", {1, 1, 2, 2}, 3, NDM_RESHARD_ALWAYS, NDM_CP_METHOD_ALL_GATHER, false, 0, "llama-tiny", 0, false, false},
    {"hsdp + tp", {2, 2, 1, 2}, 3, NDM_RESHARD_ALWAYS, 0, false, 0, "llama-tiny", 0, false, false},
    {"hsdp + cp", {2, 2, 2, 1}, 3, NDM_RESHARD_ALWAYS, NDM_CP_METHOD_ALL_GATHER, false, 0, "llama-tiny", 0, false, false},
    {"fsdp + cp + tp", {1, 2, 2, 2}, 3, NDM_RESHARD_ALWAYS, NDM_CP_METHOD_ALL_GATHER, false, 0, "llama-tiny", 0, false, false},
    {NULL, {1, 4, 1, 1}, 3, NDM_RESHARD_ALWAYS, 0, false, 0, "gpt2-tiny", 0, false, false}, /* tied */
    {NULL, {1, 4, 1, 1}, 3, 2, 0, false, 0, "gpt2-tiny", 0, false, false},
    {NULL, {1, 2, 2, 2}, 3, NDM_RESHARD_ALWAYS, NDM_CP_METHOD_RING, false, NDM_RECOMPUTE_SELECTIVE, "gpt2-tiny", 0, false, false},
    {NULL, {1, 2, 2, 2}, 1, NDM_RESHARD_ALWAYS, NDM_CP_METHOD_ULYSSES, true, NDM_RECOMPUTE_FULL, "llama-tiny", 0, false, false},
    {NULL, {1, 2, 2, 2}, 3, NDM_RESHARD_ALWAYS, NDM_CP_METHOD_RING, false, NDM_RECOMPUTE_FULL, "llama-tiny", 3, false, false},
    {NULL, {1, 1, 1, 4}, 3, NDM_RESHARD_ALWAYS, 0, true, NDM_RECOMPUTE_SELECTIVE, "llama-tiny", 2, false, false},
    {NULL, {2, 1, 4, 1}, 2, NDM_RESHARD_ALWAYS, NDM_CP_METHOD_AUTO, false, NDM_RECOMPUTE_FULL, "llama-tiny", 0, false, false},
    {NULL, {2, 1, 1, 2}, 3, NDM_RESHARD_ALWAYS, 0, false, 0, "llama-tiny", 0, true, false},
    {NULL, {1, 4, 1, 1}, 3, NDM_RESHARD_ALWAYS, 0, false, NDM_RECOMPUTE_SELECTIVE, "llama-tiny", 0, true, true},
    {NULL, {1, 4, 1, 1}, 3, NDM_RESHARD_NEVER, 0, false, 0, "gpt2-tiny", 0, true, true},
    {NULL, {2, 2, 1, 2}, 3, NDM_RESHARD_ALWAYS, 0, false, NDM_RECOMPUTE_FULL, "llama-tiny", 0, true, true},
};
/* clang-format on */
enum { ENTRIES = sizeof entries / sizeof entries[0] };

/* ---- accounts -------------------------------------------------------------------------------- */

typedef struct traffic {
    int64_t calls, bytes;
} traffic;

/* Of one rank, or the largest over ranks. */
typedef struct account {
    traffic of[STRATEGIES][PLACES][2][NDM_COLLECTIVE_COUNT];
    ndm_axis_set axes[STRATEGIES][PLACES];
} account;

typedef struct totals {
    traffic of[NDM_COLLECTIVE_COUNT];
} totals;

/* What is no strategy's, products of 8-bit numbers, comes after the last. */
static int strategy_index(const char *name)
{
    int i = 0;

    while (ndm_strategy_at(i) && strcmp(ndm_strategy_at(i)->name, name) != 0)
        i++;
    if (!ndm_strategy_at(i) && strcmp(name, "fp8") != 0)
        die("no strategy is called %s", name);
    return i;
}

static int place_index(const char *name)
{
    int i = 0;

    while (strcmp(places[i], name) != 0)
        i++;
    return i;
}

static void on_traffic(void *user, const ndm_traffic *t)
{
    account *a = user;
    int s = strategy_index(t->strategy);
    int p = place_index(t->where);
    traffic *sum = &a->of[s][p][t->direction][t->kind];

    sum->calls += t->calls;
    sum->bytes += t->bytes;
    a->axes[s][p] = t->axes;
}

static totals said(const account *a, ndm_direction first, ndm_direction last)
{
    totals sum = {0};

    for (int s = 0; s < STRATEGIES; s++)
        for (int p = 0; p < PLACES; p++)
            for (int d = (int)first; d <= (int)last; d++)
                for (int k = 0; k < NDM_COLLECTIVE_COUNT; k++) {
                    sum.of[k].calls += a->of[s][p][d][k].calls;
                    sum.of[k].bytes += a->of[s][p][d][k].bytes;
                }
    return sum;
}

/* What all communicators of a context have counted. Barriers move nothing. */
static totals counted(const session *s)
{
    ndm_comms *comms = s->context->comms;
    totals sum = {0};

    for (int64_t i = 0; ndm_comms_at(comms, i); i++) {
        ndm_comm *comm = ndm_comms_at(comms, i);
        ndm_comm_stats stats = ndm_comm_statistics(comm);
        for (int k = 0; ndm_comm_size(comm) > 1 && k < NDM_BARRIER; k++) {
            sum.of[k].calls += stats.calls[k];
            sum.of[k].bytes += stats.received_bytes[k];
        }
    }
    return sum;
}

static totals less(totals a, totals b)
{
    for (int k = 0; k < NDM_COLLECTIVE_COUNT; k++) {
        a.of[k].calls -= b.of[k].calls;
        a.of[k].bytes -= b.of[k].bytes;
    }
    return a;
}

/* Takes the trainer's own sums away: an all-reduce of so many bytes over n ranks. */
static void without_sum(totals *t, int64_t n, int64_t bytes)
{
    t->of[NDM_ALL_REDUCE].calls -= n > 1;
    t->of[NDM_ALL_REDUCE].bytes -= 2 * (n - 1) * bytes / n;
}

static bool equal(const char *what, const totals *traced, const totals *told)
{
    for (int k = 0; k < NDM_COLLECTIVE_COUNT; k++)
        if (traced->of[k].calls != told->of[k].calls || traced->of[k].bytes != told->of[k].bytes) {
            fprintf(stderr, "%s, %s: traced %lld calls, %lld bytes; described %lld, %lld\n", what,
                    ndm_collective_name((ndm_collective)k), (long long)traced->of[k].calls,
                    (long long)traced->of[k].bytes, (long long)told->of[k].calls,
                    (long long)told->of[k].bytes);
            return false;
        }
    return true;
}

/* ---- a traced run ---------------------------------------------------------------------------- */

static int64_t ranks_of(const entry *e)
{
    return e->mesh[0] * e->mesh[1] * e->mesh[2] * e->mesh[3];
}

static task task_of(const entry *e)
{
    task t = task_default();

    t.preset = e->preset;
    memcpy(t.mesh, e->mesh, sizeof t.mesh);
    t.cp_method = e->cp_method;
    t.no_sequence_parallel = e->no_sequence_parallel;
    t.recompute = e->recompute;
    t.tp_overlap_chunks = e->parts;
    t.collectives = "mpi";
    t.fsdp.zero = e->zero;
    t.fsdp.reshard_after_forward = e->reshard;
    t.fp8 = e->fp8;
    t.fsdp.fp8_gather = e->fp8_gather;
    t.seq_len = MAX_SEQ;
    t.batch = 2 * e->mesh[NDM_DP_REPLICATE] * e->mesh[NDM_DP_SHARD];
    return t;
}

/* As if the step before had not gathered the first ones ahead. */
static void make_weights_old(session *s)
{
    int64_t n;
    ndm_unit *const *units = ndm_model_units(s->model, &n);

    for (int64_t i = 0; i < n; i++)
        must(ndm_unit_changed(units[i]));
}

/* The optimizer makes weights old: a step before each measure, so that all of them are gathered. A
 * step that begins with some gathered ahead ends with as many. */
static bool traced_is_described(session *s, const account *a)
{
    int64_t n = ndm_context_size(s->context),
            dp = s->task.mesh[NDM_DP_REPLICATE] * s->task.mesh[NDM_DP_SHARD], tokens;
    totals forward = said(a, NDM_FORWARD, NDM_FORWARD), step = said(a, NDM_FORWARD, NDM_BACKWARD);
    ndm_step_result result = {0};
    double sum;

    must(session_step(s, 0, &result));
    make_weights_old(s);
    totals before = counted(s);
    must(session_evaluate(s, 1, &sum, &tokens));
    totals evaluated = less(counted(s), before);
    must(session_step(s, 2, &result));
    before = counted(s);
    must(session_step(s, 3, &result));
    totals stepped = less(counted(s), before);
    without_sum(&evaluated, dp, 8);
    without_sum(&stepped, dp, 8); /* tokens */
    without_sum(&stepped, n, 16); /* norm and loss */
    without_sum(&stepped, n, 40); /* facts for the report */
    return equal("forward", &evaluated, &forward) && equal("step", &stepped, &step);
}

/* Collective over comm. layer and step: the largest over ranks. */
static bool run_entry(const entry *e, MPI_Comm comm, account *layer, account *step)
{
    task t = task_of(e);
    session s;

    must(session_open(&t, &comm, &s));
    ndm_model_describe(s.model, LAYER, on_traffic, layer);
    ndm_model_describe(s.model, -1, on_traffic, step);
    bool good = traced_is_described(&s, step);
    session_close(&s);
    int count = (int)(sizeof layer->of / sizeof(int64_t));
    MPI_Allreduce(MPI_IN_PLACE, layer->of, count, MPI_INT64_T, MPI_MAX, comm);
    MPI_Allreduce(MPI_IN_PLACE, step->of, count, MPI_INT64_T, MPI_MAX, comm);
    MPI_Allreduce(MPI_IN_PLACE, step->axes, STRATEGIES * PLACES, MPI_UNSIGNED, MPI_MAX, comm);
    return good;
}

/* ---- the table ------------------------------------------------------------------------------- */

static ndm_buffer table;

static void add_number(int64_t n)
{
    if (n >= 1000) {
        add_number(n / 1000);
        ndm_buffer_printf(&table, ",%03lld", (long long)(n % 1000));
    } else {
        ndm_buffer_printf(&table, "%lld", (long long)n);
    }
}

/* "2 all_gather 16,384 B, 1 reduce_scatter 8,192 B", or a dash. */
static void add_cell(const traffic of[NDM_COLLECTIVE_COUNT])
{
    const char *separator = " ";

    ndm_buffer_printf(&table, " |");
    for (int k = 0; k < NDM_COLLECTIVE_COUNT; k++) {
        if (of[k].calls == 0)
            continue;
        ndm_buffer_printf(&table, "%s%lld %s ", separator, (long long)of[k].calls,
                          ndm_collective_name((ndm_collective)k));
        add_number(of[k].bytes);
        ndm_buffer_printf(&table, " B");
        separator = ", ";
    }
    if (separator[0] == ' ')
        ndm_buffer_printf(&table, " -");
}

static int64_t bytes_of_step(traffic of[2][NDM_COLLECTIVE_COUNT])
{
    int64_t bytes = 0;

    for (int d = 0; d < 2; d++)
        for (int k = 0; k < NDM_COLLECTIVE_COUNT; k++)
            bytes += of[d][k].bytes;
    return bytes;
}

static void add_rows(const entry *e, account *layer, account *step)
{
    bool first = true;
    char axes[64];

    for (int s = 0; s < STRATEGIES; s++)
        for (int p = 0; p < PLACES; p++) {
            int64_t bytes = bytes_of_step(step->of[s][p]);
            if (bytes == 0)
                continue;
            if (first)
                ndm_buffer_printf(&table, "| %lld.%lld.%lld.%lld %s", (long long)e->mesh[0],
                                  (long long)e->mesh[1], (long long)e->mesh[2],
                                  (long long)e->mesh[3], e->how);
            else
                ndm_buffer_printf(&table, "|");
            first = false;
            ndm_buffer_printf(&table, " | %s: %s | %s", ndm_strategy_at(s)->name, places[p],
                              ndm_axis_set_name(step->axes[s][p], axes, sizeof axes));
            add_cell(layer->of[s][p][NDM_FORWARD]);
            add_cell(layer->of[s][p][NDM_BACKWARD]);
            ndm_buffer_printf(&table, " | ");
            add_number(bytes);
            ndm_buffer_printf(&table, " |\n");
        }
}

static void add_heading(void)
{
    ndm_buffer_printf(
        &table,
        "| mesh | strategy: place | axes | a layer, forward | a layer, backward | bytes of a step "
        "|\n|---|---|---|---|---|--:|\n");
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void a_step_is_what_describe_says(void **state)
{
    static account layer, step;

    (void)state;
    check_all(ndm_world_size(world) == RANKS);
    add_heading();
    for (int i = 0; i < ENTRIES; i++) {
        const entry *e = &entries[i];
        bool inside = ndm_world_rank(world) < ranks_of(e), good = true;
        MPI_Comm comm;
        print_message("  %s %lld.%lld.%lld.%lld %s\n", e->preset, (long long)e->mesh[0],
                      (long long)e->mesh[1], (long long)e->mesh[2], (long long)e->mesh[3],
                      e->how ? e->how : "");
        memset(&layer, 0, sizeof layer);
        memset(&step, 0, sizeof step);
        MPI_Comm_split(MPI_COMM_WORLD, inside, 0, &comm);
        if (inside)
            good = run_entry(e, comm, &layer, &step);
        MPI_Comm_free(&comm);
        check_all(good);
        if (e->how)
            add_rows(e, &layer, &step);
    }
}

static const char begin[] = "<!-- begin of the table -->\n", end[] = "<!-- end of the table -->\n";

static void write_table(const char *path, const char *text, const char *from, const char *to)
{
    ndm_buffer out = {0};

    ndm_buffer_append(&out, text, (size_t)(from - text));
    ndm_buffer_puts(&out, ndm_buffer_text(&table));
    ndm_buffer_puts(&out, to);
    must(ndm_buffer_status(&out));
    must(ndm_file_write_atomic(path, ndm_buffer_text(&out), strlen(ndm_buffer_text(&out))));
    ndm_buffer_finish(&out);
}

static void the_table_is_up_to_date(void **state)
{
    const char *path = NDM_DOCS "/strategies.md";
    ndm_buffer file = {0};
    bool same = true;

    (void)state;
    if (ndm_world_rank(world) == 0) {
        must(ndm_file_read(path, &file));
        const char *text = ndm_buffer_text(&file), *from = strstr(text, begin),
                   *to = strstr(text, end);
        if (!from || !to)
            die("%s has no place for the table", path);
        from += strlen(begin);
        size_t bytes = strlen(ndm_buffer_text(&table));
        same = (size_t)(to - from) == bytes && memcmp(from, ndm_buffer_text(&table), bytes) == 0;
        if (!same && getenv("NDM_WRITE_DOCS")) {
            write_table(path, text, from, to);
            same = true;
        }
        if (!same)
            fprintf(stderr, "%s is not up to date; docs/strategies.md says how it is made\n", path);
        ndm_buffer_finish(&file);
    }
    ndm_buffer_finish(&table);
    check_all(same);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_is_what_describe_says),
        cmocka_unit_test(the_table_is_up_to_date),
    };

    return harness_run("describe", tests);
}
