/* SPDX-License-Identifier: Apache-2.0 */
/* Philox4x32-10 and what is drawn from it. The counter is (index, stream), the key is the seed. */
#include <core/rng.h>

#include <assert.h>
#include <math.h>

enum { PHILOX_ROUNDS = 10, FEISTEL_ROUNDS = 8 };

void ndm_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0;
        uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

static void block_at(uint64_t seed, uint64_t stream, uint64_t block, uint32_t out[4])
{
    const uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), (uint32_t)stream,
                                 (uint32_t)(stream >> 32)};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    ndm_philox4x32(counter, key, out);
}

uint64_t ndm_rng_u64(uint64_t seed, uint64_t stream, uint64_t index)
{
    uint32_t words[4];
    block_at(seed, stream, index, words);
    return (uint64_t)words[1] << 32 | words[0];
}

double ndm_rng_uniform(uint64_t seed, uint64_t stream, uint64_t index)
{
    return (double)(ndm_rng_u64(seed, stream, index) >> 11) * 0x1p-53;
}

/* u1 in (0, 1), so that the logarithm is finite. */
static void box_muller(const uint32_t words[2], float out[2])
{
    double u1 = ((double)words[0] + 0.5) * 0x1p-32;
    double angle = 6.283185307179586476925 * ((double)words[1] * 0x1p-32);
    double radius = sqrt(-2.0 * log(u1));
    out[0] = (float)(radius * cos(angle));
    out[1] = (float)(radius * sin(angle));
}

float ndm_rng_normal(uint64_t seed, uint64_t stream, uint64_t index)
{
    uint32_t words[4];
    float pair[2];
    block_at(seed, stream, index / 4, words);
    box_muller(words + (index & 2u), pair);
    return pair[index & 1u];
}

void ndm_rng_normal_fill(uint64_t seed, uint64_t stream, uint64_t first, int64_t n, float *out)
{
    for (int64_t i = 0; i < n;) {
        uint64_t index = first + (uint64_t)i;
        uint32_t words[4];
        float four[4];
        block_at(seed, stream, index / 4, words);
        box_muller(words, four);
        box_muller(words + 2, four + 2);
        for (unsigned k = index & 3u; k < 4 && i < n; k++)
            out[i++] = four[k];
    }
}

uint64_t ndm_rng_stream(const char *name)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (const char *c = name; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 0x100000001b3u;
    return hash;
}

/* One pass through the network over pairs of half-words. */
static uint64_t feistel(uint64_t seed, uint64_t stream, uint64_t x, unsigned half_bits)
{
    uint32_t mask = (uint32_t)(((uint64_t)1 << half_bits) - 1);
    uint32_t left = (uint32_t)(x >> half_bits), right = (uint32_t)x & mask;
    for (uint32_t round = 0; round < FEISTEL_ROUNDS; round++) {
        uint32_t words[4];
        /* The high word sets these blocks apart from those of ndm_rng_u64 with small indices. */
        block_at(seed, stream, (uint64_t)(0xFE157E10u + round) << 32 | right, words);
        uint32_t next = left ^ (words[0] & mask);
        left = right;
        right = next;
    }
    return (uint64_t)left << half_bits | right;
}

/* The network permutes 2^(2*half_bits) < 4n places; walking its cycle until below n permutes n. */
uint64_t ndm_rng_permute(uint64_t seed, uint64_t stream, uint64_t i, uint64_t n)
{
    assert(i < n);
    if (n == 1)
        return 0;
    unsigned half_bits = 1;
    while (half_bits < 32 && ((n - 1) >> (2 * half_bits)) != 0)
        half_bits++;
    uint64_t x = i;
    do {
        x = feistel(seed, stream, x, half_bits);
    } while (x >= n);
    return x;
}
