/* SPDX-License-Identifier: Apache-2.0 */
/* Every mesh against one rank: problems, ways to run them, and what a run leaves behind. */
#ifndef NDM_TESTS_EQUIV_EQUIV_H
#define NDM_TESTS_EQUIV_EQUIV_H

#include <mpi.h>
#include <stdio.h>

#include "model/model.h"

enum { STEPS = 5, SEQ_LEN = 24, GLOBAL_BATCH = 24 };

/* ---- problems: a tiny model and its data (problem.c) ------------------------------------------
 */

typedef struct problem {
    const char *name;
    const char *summary;
    int64_t hidden, layers, heads, kv_heads, head_dim, ffn, vocab;
    bool tied;
    bool masked; /* unlike numbers of valid labels, and micro-batches and ranks without any */
} problem;

extern const problem problems[];
extern const int problem_count;

/* Writes config.json to a fresh file; path, [path_bytes]. Dies on failure. */
void problem_write_config(const problem *p, char *path, size_t path_bytes);

/* Inputs and targets of one global sample of a step, [SEQ_LEN] each. */
void problem_sample(const problem *p, int64_t step, int64_t sample, int32_t *inputs,
                    int32_t *targets);

/* ---- variants: one way to run a problem (variant.c) -------------------------------------------
 */

typedef struct variant {
    int64_t mesh[NDM_AXIS_COUNT];
    int zero;
    int64_t reshard; /* NDM_RESHARD_*, or k */
    int64_t accum;
    ndm_recompute recompute;
    bool defer_sync, defer_replicas;
    ndm_cp_method cp_method;
    bool sequence_parallel;
    const char *collectives; /* NULL: auto */
    bool bf16;               /* weights gathered and gradients sent as bf16 */
    bool fp8;                /* products of layers with 8-bit numbers */
    bool fp8_gather;         /* their weights gathered as such */
    bool bf16_activations;   /* activations as well, kept and on the wire */
    int64_t min_num_params;  /* of a unit; 0: a unit a layer */
} variant;

int64_t variant_size(const variant *v, ndm_axis_set axes);
const char *variant_text(const variant *v, char *text, size_t text_bytes);

/* Whether the engine must refuse it: the rules, written down a second time. */
bool variant_refused(const problem *p, const variant *v);

/* All meshes of `ranks` ranks, and all variants of one that differ in something that matters there.
 * Lists grow; free `items`. */
typedef struct variant_list {
    variant *items;
    int64_t n;
} variant_list;

void list_meshes(int64_t ranks, variant_list *list);
void list_variants(const int64_t *mesh, variant_list *list);
/* Keeps cp methods x sequence parallelism x recompute, sharded by ZeRO-3, one micro-batch. */
void list_crossed(variant_list *list);
/* Moves `count` of them, drawn from the seed, to the front, and shortens the list. */
void list_draw(variant_list *list, int64_t count, uint64_t seed);

/* ---- runs (run.c) -----------------------------------------------------------------------------
 */

typedef struct tensor {
    char name[96];
    int64_t first, count; /* in the arrays of a record */
    bool matrix;
} tensor;

/* What a run leaves behind, on the first rank of its communicator; numbers of steps on all. */
typedef struct record {
    double loss[STEPS], norm[STEPS];
    int64_t tokens[STEPS];
    tensor *tensors; /* [n_tensors], by name */
    int64_t n_tensors, total;
    float *start, *end; /* [total] weights before the first step and after the last */
    bool replicas_differ;
} record;

void record_finish(record *r);

/* Where to run, and what to do between: all but comm may be zero. */
typedef struct setup {
    MPI_Comm comm;                                 /* as many ranks as the mesh */
    const char *device;                            /* NULL: cpu */
    ndm_toggle graphs;                             /* of the trainer */
    int64_t head_chunk;                            /* 0: logits come in several uneven parts */
    void (*opened)(void *user, ndm_model *model);  /* before the first step */
    void (*stepped)(void *user, ndm_model *model); /* after each */
    void *user;
} setup;

/* Trains STEPS steps. Collective over: s->comm. */
ndm_status run_variant(const problem *p, const variant *v, const setup *s, record *out);

/* Ends all ranks with a message: for what must not fail. */
_Noreturn void die(const char *format, ...) NDM_PRINTF(1, 2);
#define MUST(call)                                                                \
    do {                                                                          \
        if ((call) != NDM_OK)                                                     \
            die("%s:%d: %s: %s", __FILE__, __LINE__, #call, ndm_error_message()); \
    } while (0)

/* ---- weights over ranks (weights.c) -----------------------------------------------------------
 */

/* The tensors of a model, by name. */
void tensors_of(const ndm_model *model, record *r);
/* All weights on the first rank; every element must come from exactly one rank. */
void weights_collect(ndm_model *model, const record *r, MPI_Comm comm, float *weights);
/* Whether what ranks hold in common is the same to the bit. */
bool replicas_equal(ndm_model *model, MPI_Comm comm);

/* ---- comparison (compare.c) -------------------------------------------------------------------
 */

typedef struct errors {
    double loss, norm, update; /* largest relative differences */
    const char *tensor;        /* of the largest update */
    int64_t unchanged;         /* elements of matrices that training left as they were */
} errors;

errors compare(const record *got, const record *want);
bool same_bits(const record *a, const record *b);

#endif
