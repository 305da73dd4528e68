/* SPDX-License-Identifier: Apache-2.0 */
/* Small training runs over any mesh, with data that a test chooses, and the same run on one rank.
 */
#ifndef NDM_TESTS_STRATEGIES_SESSION_H
#define NDM_TESTS_STRATEGIES_SESSION_H

#include <ndmesh/trainer.h>

#include "tests/equiv/equiv.h"
#include "tests/mpi/harness.h"

enum { MAX_SEQ = 64 };

/* A decoder in few numbers; sizes that divide by nothing. */
typedef struct shape {
    int64_t hidden, layers, heads, kv_heads, head_dim, ffn, vocab;
    bool tied;
    int64_t window;    /* 0 = none */
    int64_t pad_token; /* the embedding row that learns nothing; -1 = none */
} shape;

/* One sequence of the global batch. */
typedef struct sequence {
    int32_t inputs[MAX_SEQ], targets[MAX_SEQ], positions[MAX_SEQ], first[MAX_SEQ];
} sequence;

/* What to train, where and how. */
typedef struct task {
    const char *preset; /* NULL: shape */
    shape shape;
    int64_t mesh[NDM_AXIS_COUNT];
    ndm_cp_method cp_method;
    bool no_sequence_parallel;
    const char *collectives;
    ndm_fsdp_config fsdp;
    ndm_recompute recompute;
    bool fp8;
    int64_t seq_len, batch, accum, steps; /* batch: sequences of a step, over all ranks */
    double label_smoothing;
    int64_t tp_overlap_chunks;   /* 0 = one */
    ndm_trainer_options trainer; /* grad_accum and steps are the task's */
    /* Sequence `index` of a step's global batch; comes filled with random tokens, all with labels.
     */
    void (*fill)(const struct task *t, int64_t step, int64_t index, sequence *s);
} task;

/* 12 sequences of 12 tokens, one step, on one rank. */
task task_default(void);
task task_on(task t, int64_t dp_replicate, int64_t dp_shard, int64_t cp, int64_t tp);
/* Whether the engine must refuse its mesh. */
bool task_refused(const task *t);
void task_sequence(const task *t, int64_t step, int64_t index, sequence *s);

/* A task that is being done. */
typedef struct session {
    task task;
    ndm_context *context;
    ndm_model *model;
    ndm_trainer *trainer;
} session;

/* Collective over comm, which has as many ranks as the mesh. Weights are drawn. */
ndm_status session_open(const task *t, const MPI_Comm *comm, session *s);
ndm_status session_step(session *s, int64_t step, ndm_step_result *result);
/* Sum of token losses of a step's sequences and their number, without training; accum is 1. */
ndm_status session_evaluate(session *s, int64_t step, double *sum, int64_t *tokens);
void session_close(session *s);

/* A whole run, as equiv records it. */
ndm_status task_run(const task *t, MPI_Comm comm, record *out);

/* Whether two records agree within 1e-5; says on stderr if not. */
bool alike(const record *got, const record *want);

/* Trains on the world and, on its first rank, alone; all ranks fail if they differ by more than
 * 1e-5, or if a mesh that must be refused is not. */
void check_like_one_rank(const task *t);
/* For every mesh of the world's ranks. */
void check_every_mesh(task t);

#endif
