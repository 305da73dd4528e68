/* SPDX-License-Identifier: Apache-2.0 */
/* Copies by streaming stores. An ordinary copy reads each line of its target before it overwrites
 * it, and throws out of the caches what training has there. */
#include "train/checkpoint_copy.h"

#include <emmintrin.h>
#include <string.h>

void ndm_copy_past_caches(void *target, const void *source, int64_t bytes)
{
    int64_t skew = (int64_t)(-(uintptr_t)target & 15);
    const char *from = source;
    char *to = target;

    if (bytes < 4096) {
        memcpy(to, from, (size_t)bytes);
        return;
    }
    memcpy(to, from, (size_t)skew);
    for (to += skew, from += skew, bytes -= skew; bytes >= 64; to += 64, from += 64, bytes -= 64) {
        __m128i a = _mm_loadu_si128((const __m128i *)(const void *)from);
        __m128i b = _mm_loadu_si128((const __m128i *)(const void *)(from + 16));
        __m128i c = _mm_loadu_si128((const __m128i *)(const void *)(from + 32));
        __m128i d = _mm_loadu_si128((const __m128i *)(const void *)(from + 48));

        _mm_stream_si128((__m128i *)(void *)to, a);
        _mm_stream_si128((__m128i *)(void *)(to + 16), b);
        _mm_stream_si128((__m128i *)(void *)(to + 32), c);
        _mm_stream_si128((__m128i *)(void *)(to + 48), d);
    }
    _mm_sfence();
    memcpy(to, from, (size_t)bytes);
}
