/* SPDX-License-Identifier: Apache-2.0 */
/* The backward of attention from two sides. With p = exp(scale q.k - lse), dp = dout.v and
 * ds = p (dp - delta):
 *
 *     a block that owns keys (and values) walks over queries: dv = p' dout, dk = scale ds' q
 *     a block that owns queries (and dout) walks over keys:   dq = scale ds k
 *
 * Either recomputes the scores, so no sum is shared by two blocks: no atomics, the same bits
 * always. On both sides a score is own1 . other1 and dp is own2 . other2, so that one kernel does
 * either; WANT says what it makes. Keys are seen by all heads of their group, so that side walks
 * over the tiles of each head in turn. */
#ifndef NDM_KERNELS_CUDA_ATTENTION_SIDES_CUH
#define NDM_KERNELS_CUDA_ATTENTION_SIDES_CUH

#include "kernels/cuda/attention.cuh"

enum { WANT_DV = 1, WANT_DK = 2, WANT_DKV = 3, WANT_DQ = 4 };

static __host__ __device__ constexpr bool owns_keys(int want)
{
    return want != WANT_DQ;
}

/* What a query brings: lse as the forward left it, or made ready. */
typedef struct query_row {
    int index, first;
    float lse, delta;
} query_row;

static __device__ __forceinline__ query_row query_at(const ndm_attention_backward_args &a,
                                                     int64_t b, int64_t head, int64_t i)
{
    const ndm_attention_args &f = a.forward;
    query_row q = {0, 0, -INFINITY, 0.0f};

    if (i >= f.tq)
        return q;
    int64_t at = (b * f.heads + head) * f.tq + i;
    q.index = query_index(f, b, i);
    q.first = query_first(f, b, i);
    q.lse = f.lse[at];
    q.delta = a.delta[at];
    return q;
}

/* lse in powers of 2, +inf where nothing is seen, so that p is 0. By itself because it waits for
 * what query_at() has only asked for. */
static __device__ __forceinline__ query_row query_ready(query_row q)
{
    q.lse = q.lse == -INFINITY ? INFINITY : q.lse * LOG2_E;
    return q;
}

static __device__ __forceinline__ int key_at(const ndm_attention_args &f, int64_t b, int64_t j)
{
    return j < f.tk ? key_index(f, b, j) : (int)NO_KEY;
}

/* What a block does. Steps are tiles of the other side, of every head that it walks over. */
typedef struct backward_place {
    int b, row;               /* first own row */
    int head, heads, kv_head; /* heads of queries: the first, how many */
    int tiles, steps;         /* of one head, of all */
    extent own;
} backward_place;

template <int WANT, int OWN, int OTHER>
static __device__ __forceinline__ backward_place place_of_block(const ndm_attention_args &f,
                                                                attention_extents extents)
{
    int group = (int)(f.heads / f.kv_heads), tq = (int)f.tq, tk = (int)f.tk;
    backward_place p;

    p.b = blockIdx.z;
    if (owns_keys(WANT)) {
        p.row = (int)blockIdx.x * OWN;
        p.kv_head = blockIdx.y;
        p.head = p.kv_head * group;
        p.heads = group;
        p.tiles = (tq + OTHER - 1) / OTHER;
        p.own = extent_of(extents.keys, p.b, p.row, OWN, tk);
    } else {
        p.row = (int)(gridDim.x - 1 - blockIdx.x) * OWN; /* the longest ones start first */
        p.head = blockIdx.y;
        p.kv_head = p.head / group;
        p.heads = 1;
        p.tiles = (tk + OTHER - 1) / OTHER;
        p.own = extent_of(extents.queries, p.b, p.row, OWN, tq);
    }
    p.steps = p.tiles * p.heads;
    return p;
}

/* Of a tile of the other side. */
template <int WANT, int OTHER>
static __device__ __forceinline__ extent other_extent(const ndm_attention_args &f,
                                                      attention_extents extents,
                                                      const backward_place &p, int tile)
{
    if (owns_keys(WANT))
        return extent_of(extents.queries, p.b, tile * OTHER, OTHER, (int)f.tq);
    return extent_of(extents.keys, p.b, tile * OTHER, OTHER, (int)f.tk);
}

/* The first step from `step` on in which anything is seen. */
template <int WANT, int OTHER>
static __device__ __forceinline__ int
next_step(const ndm_attention_args &f, attention_extents extents, const backward_place &p, int step)
{
    for (; step < p.steps; step++) {
        extent other = other_extent<WANT, OTHER>(f, extents, p, step % p.tiles);
        if (owns_keys(WANT) ? extents_meet(f.causal, other, p.own)
                            : extents_meet(f.causal, p.own, other))
            break;
    }
    return step;
}

/* Every pair of the tile is seen, and there are no rows past the last. */
template <int WANT, int OWN, int OTHER>
static __device__ __forceinline__ bool
step_open(const ndm_attention_args &f, attention_extents extents, const backward_place &p, int step)
{
    int tile = step % p.tiles;
    extent other = other_extent<WANT, OTHER>(f, extents, p, tile);

    if (owns_keys(WANT))
        return p.row + OWN <= f.tk && (tile + 1) * OTHER <= f.tq &&
               extents_open(f.causal, other, p.own);
    return p.row + OWN <= f.tq && (tile + 1) * OTHER <= f.tk &&
           extents_open(f.causal, p.own, other);
}

/* Rows of scores' first and second operand. */
template <int WANT>
static __device__ __forceinline__ void own_rows(const ndm_attention_backward_args &a,
                                                const backward_place &p, head_rows *first,
                                                head_rows *second)
{
    *first = owns_keys(WANT) ? key_rows(a.forward, p.b, p.kv_head)
                             : query_rows(a.forward, p.b, p.head);
    *second = owns_keys(WANT) ? value_rows(a.forward, p.b, p.kv_head)
                              : gradient_rows(a, p.b, p.head);
}

template <int WANT>
static __device__ __forceinline__ void other_rows(const ndm_attention_backward_args &a,
                                                  const backward_place &p, int head,
                                                  head_rows *first, head_rows *second)
{
    *first = owns_keys(WANT) ? query_rows(a.forward, p.b, head)
                             : key_rows(a.forward, p.b, p.kv_head);
    *second = owns_keys(WANT) ? gradient_rows(a, p.b, head) : value_rows(a.forward, p.b, p.kv_head);
}

/* Blocks of a side. */
static inline dim3 backward_grid(const ndm_attention_args *f, bool keys, int own)
{
    return dim3(ndm_cuda_blocks(keys ? f->tk : f->tq, own),
                (unsigned)(keys ? f->kv_heads : f->heads), (unsigned)f->batch);
}

#endif
