/* SPDX-License-Identifier: Apache-2.0 */
/* What the methods of context parallelism share. Blocks that ranks exchange hold rows of
 * activations and int32 places side by side: both are counted in words of 4 bytes. Rows of 16-bit
 * activations are whole words, because head_dim is even. */
#ifndef NDM_STRATEGIES_CP_H
#define NDM_STRATEGIES_CP_H

#include "core/dtype.h"
#include "strategies/internal.h"

/* One attention on this rank, before cp cuts anything: rows = B*T, its own tokens. */
typedef struct ndm_cp_sizes {
    int64_t cp, rows, heads, kv_heads, head_dim;
    ndm_dtype dtype; /* of activations */
} ndm_cp_sizes;

enum { NDM_CP_WORD = 4 };

/* Words of n activations. */
static inline int64_t ndm_cp_words(ndm_dtype dtype, int64_t n)
{
    return n * (int64_t)ndm_dtype_bytes(dtype) / NDM_CP_WORD;
}

/* An attention that is being done. */
typedef struct ndm_cp_job {
    ndm_context *context;
    ndm_comm *comm; /* over cp */
    const ndm_attention_call *call;
    ndm_stream *stream;
    ndm_cp_sizes sizes;
    int64_t pair_width; /* elements of a row of K and V side by side */
    ndm_dtype dtype;    /* of activations */
} ndm_cp_job;

typedef struct ndm_cp_method_ops {
    const char *name;
    bool zigzag;                             /* the batch is cut in 2 * cp chunks, else in cp */
    bool (*fits)(const ndm_cp_sizes *sizes); /* NULL = always */
    const char *rule;                        /* what fits() asks for */
    ndm_status (*forward)(const ndm_cp_job *job);
    ndm_status (*backward)(const ndm_cp_job *job);
    void (*describe)(const ndm_cp_sizes *sizes, ndm_traffic_fn emit, void *user);
} ndm_cp_method_ops;

extern const ndm_cp_method_ops ndm_cp_ring, ndm_cp_all_gather, ndm_cp_ulysses;

/* ---- what a context keeps between calls (strategies/cp_state.c) ------------------------------ */

/* Memory that all ranks of cp see, on one node: `words` of each, one rank's after the other's. */
typedef struct ndm_cp_window {
    ndm_comm *comm; /* NULL: nobody has asked for it */
    void *base;     /* NULL: there is none */
    int64_t words;
} ndm_cp_window;

struct ndm_cp {
    const ndm_cp_method_ops *method; /* of the model checked last: it decides how batches are cut */
    float *workspace;
    int64_t workspace_words;
    ndm_cp_window gathered[2], sums; /* cp_window.c */
    int64_t gathers;
    ndm_stream *ring; /* transfers that overlap with kernels */
    ndm_event *ready, *pairs_here, *grads_here;
};

NDM_MUST_USE ndm_status ndm_cp_state(ndm_context *context, struct ndm_cp **state);

/* A stretch of the workspace: *at is set to n words. */
typedef struct ndm_cp_piece {
    float **at;
    int64_t n;
} ndm_cp_piece;

/* Lays pieces out in the context's workspace, which grows to the largest call and then stays. What
 * the last call left there is lost. */
NDM_MUST_USE ndm_status ndm_cp_workspace(const ndm_cp_job *job, const ndm_cp_piece *pieces,
                                         int64_t n_pieces);

/* ---- memory of all ranks of cp (strategies/cp_window.c) -------------------------------------- */

/* Memory for n words of each rank, [cp * n], which an all-gather in place makes known: after it all
 * see what each has written anywhere in it. Valid until the call after the next. *all NULL: there
 * is no such memory. Collective over: cp. */
NDM_MUST_USE ndm_status ndm_cp_gather_window(const ndm_cp_job *job, int64_t n, float **all);
/* Where to put n words that the others read in a collective, as above. */
NDM_MUST_USE ndm_status ndm_cp_sum_window(const ndm_cp_job *job, int64_t n, float **words);
void ndm_cp_windows_free(struct ndm_cp *cp);

/* ---- blocks: what one rank sends or receives (strategies/cp_blocks.c) ------------------------ */

/* Copies m rows of n words; strides in words. */
NDM_MUST_USE ndm_status ndm_cp_copy(ndm_stream *stream, const void *src, int64_t src_stride,
                                    void *dst, int64_t dst_stride, int64_t m, int64_t n);

/* An array over the tokens of all ranks, [groups, cp * run], in words. A rank's part, [groups,
 * run], lies in a block behind the parts of the planes before it. */
typedef struct ndm_cp_plane {
    float *whole;
    int64_t groups, run;
} ndm_cp_plane;

int64_t ndm_cp_block_words(const ndm_cp_plane *planes, int64_t n_planes);
/* blocks, [cp, block]: from the parts of all ranks to whole arrays, and back. */
NDM_MUST_USE ndm_status ndm_cp_join(const ndm_cp_job *job, const float *blocks,
                                    const ndm_cp_plane *planes, int64_t n_planes);
NDM_MUST_USE ndm_status ndm_cp_split(const ndm_cp_job *job, float *blocks,
                                     const ndm_cp_plane *planes, int64_t n_planes);

/* A block of own keys and values: rows [k | v], [B*T, pair_width], then their places, [B*T]. */
static inline int64_t ndm_cp_pairs_words(const ndm_cp_sizes *s)
{
    return s->rows * (ndm_cp_words(s->dtype, 2 * s->kv_heads * s->head_dim) + 1);
}
NDM_MUST_USE ndm_status ndm_cp_pack_pairs(const ndm_cp_job *job, float *block);
/* The same rows and places, to where they lie in [B, cp*T, pair_width] and [B, cp*T]. */
NDM_MUST_USE ndm_status ndm_cp_place_pairs(const ndm_cp_job *job, const ndm_cp_plane planes[2]);
/* grads, [B*T, pair_width] of the call's dtype, to the call's dk and dv. */
NDM_MUST_USE ndm_status ndm_cp_unpack_grads(const ndm_cp_job *job, const void *grads);

/* The call's own queries against tk keys a sequence: pairs, [B*tk, pair_width], places, [B*tk]. */
ndm_attention_args ndm_cp_attention(const ndm_cp_job *job, const void *pairs, const void *places,
                                    int64_t tk);
/* Its backward, with dk and dv written to grads, [B*tk, pair_width], in the call's dtype. */
ndm_attention_backward_args ndm_cp_attention_backward(const ndm_cp_job *job, const void *pairs,
                                                      const void *places, int64_t tk, void *grads);

#endif
