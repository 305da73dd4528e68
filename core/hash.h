/* SPDX-License-Identifier: Apache-2.0 */
/* XXH3 hashes (libxxhash): of a block at once, or of a stream of blocks. The same on every machine.
 */
#ifndef NDM_CORE_HASH_H
#define NDM_CORE_HASH_H

#include <stddef.h>
#include <stdint.h>

#include <ndmesh/status.h>

#define NDM_HASH128_HEX_BYTES 33 /* 32 digits and NUL */
#define NDM_HASH64_HEX_BYTES 17

typedef struct ndm_hash128 {
    uint64_t low, high;
} ndm_hash128;

uint64_t ndm_hash_64(const void *data, size_t bytes);
ndm_hash128 ndm_hash_128(const void *data, size_t bytes);

/* Hash of the concatenation of all updates; equal to the one-shot hash of the whole. */
typedef struct ndm_hasher ndm_hasher;
NDM_MUST_USE ndm_status ndm_hasher_create(ndm_hasher **hasher);
void ndm_hasher_update(ndm_hasher *hasher, const void *data, size_t bytes);
uint64_t ndm_hasher_digest_64(const ndm_hasher *hasher);
ndm_hash128 ndm_hasher_digest_128(const ndm_hasher *hasher);
void ndm_hasher_reset(ndm_hasher *hasher);
void ndm_hasher_destroy(ndm_hasher *hasher);

/* Lower-case digits, most significant first, as xxhsum prints them; return text. */
char *ndm_hash_64_hex(uint64_t hash, char text[NDM_HASH64_HEX_BYTES]);
char *ndm_hash_128_hex(ndm_hash128 hash, char text[NDM_HASH128_HEX_BYTES]);

#endif
