/* SPDX-License-Identifier: Apache-2.0 */
/* XXH3 through libxxhash. */
#include <core/hash.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include <xxhash.h>

struct ndm_hasher {
    XXH3_state_t *narrow; /* 64 bits */
    XXH3_state_t *wide;   /* 128 bits */
};

uint64_t ndm_hash_64(const void *data, size_t bytes)
{
    return XXH3_64bits(data, bytes);
}

ndm_hash128 ndm_hash_128(const void *data, size_t bytes)
{
    XXH128_hash_t h = XXH3_128bits(data, bytes);
    return (ndm_hash128){.low = h.low64, .high = h.high64};
}

ndm_status ndm_hasher_create(ndm_hasher **hasher)
{
    ndm_hasher *h = calloc(1, sizeof *h);
    if (h) {
        h->narrow = XXH3_createState();
        h->wide = XXH3_createState();
    }
    if (!h || !h->narrow || !h->wide) {
        ndm_hasher_destroy(h);
        NDM_FAIL(NDM_ERR_MEMORY, "out of memory for a hash");
    }
    ndm_hasher_reset(h);
    *hasher = h;
    return NDM_OK;
}

void ndm_hasher_update(ndm_hasher *hasher, const void *data, size_t bytes)
{
    XXH3_64bits_update(hasher->narrow, data, bytes);
    XXH3_128bits_update(hasher->wide, data, bytes);
}

uint64_t ndm_hasher_digest_64(const ndm_hasher *hasher)
{
    return XXH3_64bits_digest(hasher->narrow);
}

ndm_hash128 ndm_hasher_digest_128(const ndm_hasher *hasher)
{
    XXH128_hash_t h = XXH3_128bits_digest(hasher->wide);
    return (ndm_hash128){.low = h.low64, .high = h.high64};
}

void ndm_hasher_reset(ndm_hasher *hasher)
{
    XXH3_64bits_reset(hasher->narrow);
    XXH3_128bits_reset(hasher->wide);
}

void ndm_hasher_destroy(ndm_hasher *hasher)
{
    if (!hasher)
        return;
    XXH3_freeState(hasher->narrow);
    XXH3_freeState(hasher->wide);
    free(hasher);
}

char *ndm_hash_64_hex(uint64_t hash, char text[NDM_HASH64_HEX_BYTES])
{
    snprintf(text, NDM_HASH64_HEX_BYTES, "%016" PRIx64, hash);
    return text;
}

char *ndm_hash_128_hex(ndm_hash128 hash, char text[NDM_HASH128_HEX_BYTES])
{
    snprintf(text, NDM_HASH128_HEX_BYTES, "%016" PRIx64 "%016" PRIx64, hash.high, hash.low);
    return text;
}
