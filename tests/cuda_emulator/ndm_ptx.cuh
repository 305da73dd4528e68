/* SPDX-License-Identifier: Apache-2.0 */
/* CPU bodies of the PTX wrappers in kernels/cuda/gpu/ndm_ptx.cuh: the same names, first on the
 * include path. */
#pragma once

static inline float cuemu_bf16(unsigned word, int high)
{
    return __uint_as_float(high ? word & 0xffff0000u : word << 16);
}

/* Lane 4 g + t holds rows g and g + 8 of A, column g of B; element pairs 2t and 2t + 8. */
struct cuemu_fragment {
    unsigned a[4], b[2];
};

/* The whole product at once: the lanes' fragments become their four sums. */
static void cuemu_mma_all(char (*lanes)[CUEMU_LANE_BYTES])
{
    float a[16][16], b[16][8], d[16][8] = {};
    for (int lane = 0; lane < 32; lane++) {
        int g = lane / 4, t = lane % 4;
        cuemu_fragment f;
        std::memcpy(&f, lanes[lane], sizeof f);
        for (int odd = 0; odd < 2; odd++)
            for (int half = 0; half < 2; half++) {
                int k = 2 * t + 8 * half + odd;
                a[g][k] = cuemu_bf16(f.a[2 * half], odd);
                a[g + 8][k] = cuemu_bf16(f.a[2 * half + 1], odd);
                b[k][g] = cuemu_bf16(f.b[half], odd);
            }
    }
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 16; k++)
            for (int j = 0; j < 8; j++)
                d[i][j] += a[i][k] * b[k][j];
    for (int lane = 0; lane < 32; lane++)
        for (int high = 0; high < 2; high++)
            std::memcpy(lanes[lane] + 8 * high, &d[lane / 4 + 8 * high][2 * (lane % 4)], 8);
}

static inline void ndm_mma_bf16(float d[4], const unsigned a[4], const unsigned b[2])
{
    cuemu_fragment mine = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
    const char *all = cuemu_exchange_changed(0xffffffffu, &mine, sizeof mine, cuemu_mma_all);
    float sums[4];
    std::memcpy(sums, all + CUEMU_LANE_BYTES * cuemu_lane(), sizeof sums);
    for (int i = 0; i < 4; i++)
        d[i] += sums[i];
}

/* What hardware refuses ends the device process: cudaErrorMisalignedAddress. */
static inline void cuemu_need_aligned(const void *p)
{
    if (reinterpret_cast<uintptr_t>(p) % 16)
        __builtin_trap();
}

/* Lane l gives the address of row l % 8 of tile l / 8. */
static inline void cuemu_ldmatrix(unsigned out[4], const void *row, bool transposed)
{
    uint16_t mine[8];
    cuemu_need_aligned(row);
    std::memcpy(mine, row, sizeof mine);
    const char *all = cuemu_exchange(0xffffffffu, mine, sizeof mine);
    int g = cuemu_lane() / 4, t = cuemu_lane() % 4;
    for (int tile = 0; tile < 4; tile++) {
        uint16_t pair[2];
        for (int i = 0; i < 2; i++) {
            int r = transposed ? 2 * t + i : g, c = transposed ? g : 2 * t + i;
            std::memcpy(&pair[i], all + CUEMU_LANE_BYTES * (8 * tile + r) + 2 * c, sizeof pair[i]);
        }
        out[tile] = pair[0] | (unsigned)pair[1] << 16;
    }
}

static inline void ndm_ldmatrix_x4(unsigned out[4], const void *row)
{
    cuemu_ldmatrix(out, row, false);
}

static inline void ndm_ldmatrix_x4_trans(unsigned out[4], const void *row)
{
    cuemu_ldmatrix(out, row, true);
}

static inline void ndm_cp_async_16(void *shared, const void *global, int bytes)
{
    cuemu_need_aligned(shared);
    cuemu_need_aligned(global);
    cuemu_cp_async(shared, global, (size_t)bytes);
}

static inline void ndm_cp_async_commit(void)
{
    cuemu_cp_async_commit();
}

template <int PENDING> static inline void ndm_cp_async_wait(void)
{
    cuemu_cp_async_wait(PENDING);
}
