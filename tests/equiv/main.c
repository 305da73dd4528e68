/* SPDX-License-Identifier: Apache-2.0 */
/* Trains tiny models on every mesh of the ranks it is started on and compares with one rank: rank 0
 * makes the reference alone, in the same process. */
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/rng.h"
#include "equiv.h"

/* fp32: sums over ranks, micro-batches and blocks of keys come in another order than one rank's, so
 * each sum differs by some units of 6e-8 in the last place; 5 steps through a few layers leave a
 * few 1e-7, and 1e-5 is what cannot be a mistake yet. bf16: weights and gradients lose 2^-9 each on
 * their way; what remains differs from fp32 by the same few per cent wherever it is cut. The bound
 * is one for all meshes. */
static const errors LIMIT = {.loss = 1e-5, .norm = 1e-5, .update = 1e-5};
static const errors LIMIT_BF16 = {.loss = 1.5e-3, .norm = 1.5e-2, .update = 6e-2};
/* Partial sums of tp are rounded before they are added: up to 6.2e-2 seen on 4 ranks. */
/* 8-bit products against those of one rank: where a sum comes out differently in its last bits, a
 * number now and then rounds to its neighbour, up to 2^-3 away, and micro-batches have scales of
 * their own. Up to 3.4e-3, 8.4e-2 and 2.3e-1 were seen. One rank is judged beside fp32:
 * judge_fp8(). */
static const errors LIMIT_FP8 = {.loss = 1e-2, .norm = 1.5e-1, .update = 4e-1};
static const errors LIMIT_ACTIVATIONS = {.loss = 2e-3, .norm = 3e-2, .update = 9e-2};

typedef struct options {
    int64_t variants; /* of each mesh; 0 = all */
    uint64_t seed;
    const char *problem, *mesh, *device; /* device: NULL = cpu; the reference is made on cpu */
    bool verbose, repeat, rotate, crossed, brief;
    ndm_axis_set axes; /* only meshes whose other axes are 1 */
} options;

typedef struct tally {
    int64_t runs, refused, failed, repeated;
    errors worst, worst_bf16, worst_fp8;
} tally;

static int rank;

static void report(const char *verdict, const problem *p, const variant *v, const char *note)
{
    char text[256];

    if (rank == 0)
        printf("%-7s %-7s %s%s%s\n", verdict, p->name, variant_text(v, text, sizeof text),
               note[0] ? ": " : "", note);
    if (rank == 0)
        fflush(stdout);
}

static void fail(tally *t, const problem *p, const variant *v, const char *note)
{
    t->failed++;
    report("FAIL", p, v, note);
}

static void worst(errors *w, const errors *e)
{
    w->loss = fmax(w->loss, e->loss);
    w->norm = fmax(w->norm, e->norm);
    w->update = fmax(w->update, e->update);
}

/* On rank 0: judges the numbers of a run. */
static void judge(const options *o, tally *t, const problem *p, const variant *v, const record *got,
                  const record *want)
{
    const errors *limit = v->fp8                ? &LIMIT_FP8
                          : v->bf16_activations ? &LIMIT_ACTIVATIONS
                          : v->bf16             ? &LIMIT_BF16
                                                : &LIMIT;
    errors e = compare(got, want);
    char note[256];

    worst(v->fp8 ? &t->worst_fp8 : v->bf16 ? &t->worst_bf16 : &t->worst, &e);
    snprintf(note, sizeof note, "loss %.1e norm %.1e update %.1e (%s)%s", e.loss, e.norm, e.update,
             e.tensor ? e.tensor : "-", got->replicas_differ ? ", replicas differ" : "");
    /* rounded activations may cancel: a gradient is then nothing */
    int64_t unchanged = v->bf16_activations || v->fp8 ? got->total / 1000 : 0;
    if (e.unchanged > unchanged)
        snprintf(note, sizeof note, "%lld elements of matrices never changed",
                 (long long)e.unchanged);
    bool good = e.loss <= limit->loss && e.norm <= limit->norm && e.update <= limit->update &&
                e.unchanged <= unchanged && !got->replicas_differ;
    if (!good)
        fail(t, p, v, note);
    else if (o->verbose)
        report("ok", p, v, note);
}

static void run_again(const options *o, tally *t, const problem *p, const variant *v,
                      const record *first)
{
    record second;

    MUST(run_variant(p, v, &(setup){.comm = MPI_COMM_WORLD, .device = o->device}, &second));
    t->repeated++;
    if (rank == 0 && !same_bits(first, &second))
        fail(t, p, v, "the second time, other bits");
    record_finish(&second);
}

static void try_variant(const options *o, tally *t, const problem *p, const variant *v,
                        const record *want, bool repeat)
{
    record got;
    const setup here = {.comm = MPI_COMM_WORLD, .device = o->device};
    ndm_status status = run_variant(p, v, &here, &got);
    bool refused = variant_refused(p, v);

    t->runs++;
    if (refused || status == NDM_ERR_CONFIG) {
        t->refused++;
        if (!refused || status != NDM_ERR_CONFIG)
            fail(t, p, v, refused ? "must be refused" : ndm_error_message());
        else if (o->verbose)
            report("refused", p, v, ndm_error_message());
    } else if (status != NDM_OK) {
        char text[256];
        die("%s %s: %s: %s", p->name, variant_text(v, text, sizeof text), ndm_status_name(status),
            ndm_error_message());
    } else {
        if (rank == 0)
            judge(o, t, p, v, &got, want);
        if (repeat)
            run_again(o, t, p, v, &got);
    }
    record_finish(&got);
}

static bool wanted(const options *o, const variant *mesh)
{
    char text[64];

    for (int a = 0; a < NDM_AXIS_COUNT; a++)
        if (!(o->axes & 1u << a) && mesh->mesh[a] > 1)
            return false;
    if (GLOBAL_BATCH % variant_size(mesh, NDM_AXES_DP))
        return false; /* no whole samples for a rank: the global batch is fixed */
    snprintf(text, sizeof text, "%lld.%lld.%lld.%lld", (long long)mesh->mesh[0],
             (long long)mesh->mesh[1], (long long)mesh->mesh[2], (long long)mesh->mesh[3]);
    return !o->mesh || strcmp(o->mesh, text) == 0;
}

/* Other numbers in the simplest way to run the mesh. In brief: bf16 throughout, and 8 bits with the
 * messages that any machine has. */
static void try_types(const options *o, tally *t, const problem *p, variant v, const record *want,
                      const record *want_fp8)
{
    v.zero = 3;
    v.reshard = NDM_RESHARD_ALWAYS;
    v.bf16 = true;
    if (o->brief)
        v.collectives = NULL;
    else
        try_variant(o, t, p, &v, want, false);
    v.bf16_activations = true;
    try_variant(o, t, p, &v, want, true);
    v.bf16 = v.bf16_activations = false;
    v.fp8 = true;
    if (o->brief && variant_size(&v, NDM_AXES_ALL) > 1)
        v.collectives = "mpi";
    try_variant(o, t, p, &v, want_fp8, false);
}

static void try_mesh(const options *o, tally *t, const problem *p, const variant *mesh,
                     const record *want, const record *want_fp8)
{
    variant_list list;
    char text[64];

    snprintf(text, sizeof text, "%s.%lld.%lld.%lld.%lld", p->name, (long long)mesh->mesh[0],
             (long long)mesh->mesh[1], (long long)mesh->mesh[2], (long long)mesh->mesh[3]);
    list_variants(mesh->mesh, &list);
    if (o->crossed)
        list_crossed(&list);
    list_draw(&list, o->variants, o->seed + ndm_rng_stream(text));
    for (int64_t i = 0; i < list.n; i++)
        try_variant(o, t, p, &list.items[i], want, o->repeat || (i == 0 && !o->brief));
    try_types(o, t, p, list.items[0], want, want_fp8);
    free(list.items);
}

/* On one rank: 8-bit products are others than fp32's, and no worse than their rounding of 2^-4 and,
 * of gradients, 2^-3. */
static void judge_fp8(tally *t, const problem *p, const variant *v, const record *got,
                      const record *want)
{
    errors e = compare(got, want);
    char note[128];

    snprintf(note, sizeof note, "beside fp32: loss %.1e norm %.1e update %.1e", e.loss, e.norm,
             e.update);
    if (e.loss == 0.0 || !(e.loss < 0.02 && e.norm < 0.2 && e.update < 0.7))
        fail(t, p, v, note);
}

static void try_problem(const options *o, tally *t, const problem *p, const variant_list *meshes)
{
    variant one = {.mesh = {1, 1, 1, 1},
                   .zero = 3,
                   .reshard = NDM_RESHARD_ALWAYS,
                   .accum = 1,
                   .defer_replicas = true,
                   .sequence_parallel = true};
    record want = {0}, want_fp8 = {0};

    if (o->problem && strcmp(o->problem, p->name) != 0)
        return;
    if (rank == 0)
        MUST(run_variant(p, &one, &(setup){.comm = MPI_COMM_SELF}, &want));
    one.fp8 = true;
    if (rank == 0) {
        MUST(run_variant(p, &one, &(setup){.comm = MPI_COMM_SELF}, &want_fp8));
        judge_fp8(t, p, &one, &want_fp8, &want);
    }
    for (int64_t i = 0; i < meshes->n; i++)
        if (wanted(o, &meshes->items[i]) && (!o->rotate || i % problem_count == (p - problems)))
            try_mesh(o, t, p, &meshes->items[i], &want, &want_fp8);
    record_finish(&want);
    record_finish(&want_fp8);
}

static void usage(void)
{
    if (rank == 0)
        fprintf(
            stderr,
            "usage: mpiexec -n RANKS test_equiv [--variants K] [--seed S] [--problem NAME]\n"
            "         [--mesh R.S.C.T] [--axes dp,cp,tp] [--repeat] [--rotate] [--verbose]\n"
            "         [--device NAME] [--crossed] [--brief]\n"
            "  --brief        less for each mesh: one repeated run, no bf16 with fp32 activations\n"
            "  --crossed      only what the axes themselves offer: cp methods, sequence\n"
            "                 parallelism and recompute, all with all, under ZeRO-3\n"
            "  --variants K   draw K ways to run each mesh; 0 (default): all\n"
            "  --repeat       run each twice and compare bits, not just the first of a mesh\n"
            "  --device NAME  what the meshes run on; the one rank runs on cpu\n"
            "  --rotate       one problem on each mesh, in turn; default: all of them\n");
    MPI_Finalize();
    exit(2);
}

static options parse(int argc, char **argv)
{
    static const struct option names[] = {
        {"variants", required_argument, NULL, 'k'}, {"seed", required_argument, NULL, 's'},
        {"problem", required_argument, NULL, 'p'},  {"mesh", required_argument, NULL, 'm'},
        {"axes", required_argument, NULL, 'a'},     {"device", required_argument, NULL, 'd'},
        {"repeat", no_argument, NULL, 'r'},         {"rotate", no_argument, NULL, 'o'},
        {"verbose", no_argument, NULL, 'v'},        {"crossed", no_argument, NULL, 'c'},
        {"brief", no_argument, NULL, 'b'},          {0}};
    options o = {.seed = 1, .axes = NDM_AXES_ALL};
    int c;

    while ((c = getopt_long(argc, argv, "", names, NULL)) != -1) {
        if (c == 'k')
            o.variants = strtoll(optarg, NULL, 10);
        else if (c == 's')
            o.seed = strtoull(optarg, NULL, 10);
        else if (c == 'p')
            o.problem = optarg;
        else if (c == 'm')
            o.mesh = optarg;
        else if (c == 'd')
            o.device = optarg;
        else if (c == 'r')
            o.repeat = true;
        else if (c == 'o')
            o.rotate = true;
        else if (c == 'c')
            o.crossed = true;
        else if (c == 'b')
            o.brief = true;
        else if (c == 'v')
            o.verbose = true;
        else if (c != 'a' || ndm_axis_set_parse(optarg, &o.axes) != NDM_OK)
            usage();
    }
    return o;
}

int main(int argc, char **argv)
{
    variant_list meshes;
    tally t = {0};
    int size, failed;
    double start = ndm_clock_s();

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    options o = parse(argc, argv);
    list_meshes(size, &meshes);
    for (int i = 0; i < problem_count; i++)
        try_problem(&o, &t, &problems[i], &meshes);
    free(meshes.items);
    if (rank == 0)
        printf("%d ranks, seed %llu: %lld runs, %lld refused by the rule, %lld repeated, %lld "
               "failed; largest errors: loss %.1e norm %.1e update %.1e, bf16 %.1e %.1e %.1e, fp8 "
               "%.1e "
               "%.1e %.1e; "
               "%.1f s\n",
               size, (unsigned long long)o.seed, (long long)t.runs, (long long)t.refused,
               (long long)t.repeated, (long long)t.failed, t.worst.loss, t.worst.norm,
               t.worst.update, t.worst_bf16.loss, t.worst_bf16.norm, t.worst_bf16.update,
               t.worst_fp8.loss, t.worst_fp8.norm, t.worst_fp8.update, ndm_clock_s() - start);
    failed = t.failed > 0 || t.runs == 0;
    MPI_Bcast(&failed, 1, MPI_INT, 0, MPI_COMM_WORLD);
    MPI_Finalize();
    return failed;
}
