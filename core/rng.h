/* SPDX-License-Identifier: Apache-2.0 */
/* Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as
 * 1, 2, 3", 2011). A number depends on (seed, stream, index) alone, so every mesh draws the same
 * ones. */
#ifndef NDM_CORE_RNG_H
#define NDM_CORE_RNG_H

#include <stdint.h>

/* One block of four words. */
void ndm_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

uint64_t ndm_rng_u64(uint64_t seed, uint64_t stream, uint64_t index);
double ndm_rng_uniform(uint64_t seed, uint64_t stream, uint64_t index); /* [0, 1) */

/* Standard normal by Box-Muller in double on a pair of 32-bit words; element index uses half of
 * block index / 4's words. */
float ndm_rng_normal(uint64_t seed, uint64_t stream, uint64_t index);

/* out[i] = ndm_rng_normal(seed, stream, first + i), the same bits, at a quarter of the draws. */
void ndm_rng_normal_fill(uint64_t seed, uint64_t stream, uint64_t first, int64_t n, float *out);

/* Stream number of a name: a 64-bit hash that never changes (FNV-1a). */
uint64_t ndm_rng_stream(const char *name);

/* Place of element i under the permutation of 0..n-1 that (seed, stream) names; O(1), by a Feistel
 * network with cycle walking. */
uint64_t ndm_rng_permute(uint64_t seed, uint64_t stream, uint64_t i, uint64_t n);

#endif
