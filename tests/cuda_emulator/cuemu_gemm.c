/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products of the emulated cuBLAS. Both factors are packed to float, then multiplied in
 * tiles of 16 x 4; each element is one sum over k in ascending order, so results are the same on
 * every machine. */
#include "cuemu_device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TILE_M = 16, TILE_N = 4, BLOCK_N = 256, LONG_K = 1024 };
typedef float vec8 __attribute__((vector_size(32)));

static float round_tf32(float value)
{
    uint32_t word;
    memcpy(&word, &value, sizeof word);
    if (isfinite(value))
        word = (word + 0xfff + (word >> 13 & 1)) & 0xffffe000u;
    memcpy(&value, &word, sizeof value);
    return value;
}

/* Panels of `tile` rows of op(X)^T: packed[panel][k][tile], zeros beyond the edge. */
static void pack(float *packed, const void *x, cuemu_type type, bool rows_are_strided, int64_t ld,
                 int first, int rows, int k, int tile, bool tf32)
{
    for (int r = 0; r < (rows + tile - 1) / tile * tile; r++) {
        float *to = packed + (size_t)(r / tile) * (size_t)tile * (size_t)k + r % tile;
        int64_t row = first + r;
        for (int p = 0; p < k; p++) {
            int64_t at = rows_are_strided ? row * ld + p : row + p * ld;
            float v = r < rows ? cuemu_number_get(x, (size_t)at, type) : 0;
            to[(size_t)p * (size_t)tile] = tf32 ? round_tf32(v) : v;
        }
    }
}

static inline __attribute__((always_inline)) void tile_body(int k, const float *a, const float *b,
                                                            float out[TILE_N][TILE_M])
{
    vec8 sum[TILE_N][2] = {0};
    for (int p = 0; p < k; p++, a += TILE_M, b += TILE_N) {
        vec8 low, high;
        memcpy(&low, a, sizeof low);
        memcpy(&high, a + 8, sizeof high);
        for (int j = 0; j < TILE_N; j++) {
            sum[j][0] += low * b[j];
            sum[j][1] += high * b[j];
        }
    }
    memcpy(out, sum, sizeof sum);
}

__attribute__((target("avx2"))) static void tile_avx2(int k, const float *a, const float *b,
                                                      float out[TILE_N][TILE_M])
{
    tile_body(k, a, b, out);
}

static void tile_plain(int k, const float *a, const float *b, float out[TILE_N][TILE_M])
{
    tile_body(k, a, b, out);
}

typedef struct {
    const cuemu_gemm *g;
    const void *c, *bias;
    void *d;
    float alpha, scale_d, amax;
} target;

static void store(target *t, int i, int j, float sum)
{
    const cuemu_gemm *g = t->g;
    float v = t->alpha * sum;
    if (g->beta != 0)
        v += g->beta * cuemu_number_get(t->c, (size_t)(i + j * g->ldc), g->type_c);
    if (t->bias)
        v += cuemu_number_get(t->bias, (size_t)i, g->type_bias);
    if (!(fabsf(v) <= t->amax))
        t->amax = fabsf(v);
    cuemu_number_put(t->d, (size_t)(i + j * g->ldd), g->type_d, t->scale_d * v);
}

/* out += more, as parts of a sum that lie in memory of D's type. */
static void add_part(const cuemu_gemm *g, float out[TILE_N][TILE_M], float more[TILE_N][TILE_M])
{
    float parts[2];
    for (int i = 0; i < TILE_N * TILE_M; i++) {
        uint64_t kept[2];
        cuemu_number_put(kept, 0, g->type_d, (&out[0][0])[i]);
        parts[0] = cuemu_number_get(kept, 0, g->type_d);
        cuemu_number_put(kept, 0, g->type_d, (&more[0][0])[i]);
        parts[1] = cuemu_number_get(kept, 0, g->type_d);
        (&out[0][0])[i] = parts[0] + parts[1];
    }
}

static void multiply(target *t, const float *a, const float *b, int first_n, int columns)
{
    void (*tile)(int, const float *, const float *,
                 float[TILE_N][TILE_M]) = __builtin_cpu_supports("avx2") ? tile_avx2 : tile_plain;
    const cuemu_gemm *g = t->g;
    bool parts = g->reduced && g->k >= LONG_K && cuemu_type_bytes(g->type_d) == 2;
    int first_k = parts ? g->k / 2 : g->k;
    for (int j = 0; j < columns; j += TILE_N)
        for (int i = 0; i < g->m; i += TILE_M) {
            _Alignas(32) float out[TILE_N][TILE_M];
            const float *from_a = a + (size_t)i * (size_t)g->k;
            const float *from_b = b + (size_t)j * (size_t)g->k;
            tile(first_k, from_a, from_b, out);
            if (first_k < g->k) {
                _Alignas(32) float more[TILE_N][TILE_M];
                tile(g->k - first_k, from_a + (size_t)first_k * TILE_M,
                     from_b + (size_t)first_k * TILE_N, more);
                add_part(g, out, more);
            }
            for (int y = 0; y < TILE_N && j + y < columns; y++)
                for (int x = 0; x < TILE_M && i + x < g->m; x++)
                    store(t, i + x, first_n + j + y, out[y][x]);
        }
}

static const void *at(const void *base, cuemu_type type, int64_t elements)
{
    return (const char *)base + elements * (int64_t)cuemu_type_bytes(type);
}

static void one(const cuemu_gemm *g, int batch, float *a, float *b)
{
    float scale = (g->scale_a ? *g->scale_a : 1) * (g->scale_b ? *g->scale_b : 1);
    target t = {.g = g,
                .alpha = g->alpha * scale,
                .scale_d = g->scale_d ? *g->scale_d : 1,
                .bias = g->bias};
    t.c = at(g->c, g->type_c, batch * g->stride_c);
    t.d = (char *)g->d + batch * g->stride_d * (int64_t)cuemu_type_bytes(g->type_d);
    const void *from_b = at(g->b, g->type_b, batch * g->stride_b);
    pack(a, at(g->a, g->type_a, batch * g->stride_a), g->type_a, g->trans_a, g->lda, 0, g->m, g->k,
         TILE_M, g->tf32);
    for (int j = 0; j < g->n; j += BLOCK_N) {
        int columns = g->n - j < BLOCK_N ? g->n - j : BLOCK_N;
        pack(b, from_b, g->type_b, !g->trans_b, g->ldb, j, columns, g->k, TILE_N, g->tf32);
        multiply(&t, a, b, j, columns);
    }
    if (g->amax_d && !(t.amax <= *g->amax_d))
        *g->amax_d = t.amax;
}

void cuemu_gemm_execute(const cuemu_gemm *g)
{
    size_t rows = (size_t)(g->m + TILE_M) * (size_t)(g->k + 1) * sizeof(float);
    float *a = malloc(rows), *b = malloc((size_t)BLOCK_N * (size_t)(g->k + 1) * sizeof(float));
    if (!a || !b)
        abort();
    if (g->amax_d)
        *g->amax_d = 0;
    for (int batch = 0; batch < g->batch; batch++)
        one(g, batch, a, b);
    free(a);
    free(b);
}
