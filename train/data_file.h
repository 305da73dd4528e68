/* SPDX-License-Identifier: Apache-2.0 */
/* A mapped file, and a file of tokens in one of the formats that are known. */
#ifndef NDM_TRAIN_DATA_FILE_H
#define NDM_TRAIN_DATA_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include <ndmesh/status.h>

typedef struct ndm_mapped {
    char *path;
    const unsigned char *bytes; /* NULL if nothing is mapped */
    int64_t size;
} ndm_mapped;

/* Maps a file for reading; an empty one is NDM_ERR_FORMAT. `random`: advice on the order of reads.
 */
NDM_MUST_USE ndm_status ndm_mapped_open(const char *path, bool random, ndm_mapped *file);
void ndm_mapped_close(ndm_mapped *file);

/* These mapped bytes will be read soon. */
void ndm_mapped_advise(const unsigned char *bytes, int64_t n);

/* Copies mapped bytes of the file `path`. A file that ends earlier than when it was mapped, or
 * whose disk fails, is an error here and a signal to who reads it in place. */
NDM_MUST_USE ndm_status ndm_mapped_copy(const char *path, const unsigned char *bytes, int64_t n,
                                        void *to);

typedef struct ndm_token_file {
    ndm_mapped map;
    const unsigned char *tokens; /* first token */
    int64_t count;
    int width;          /* bytes of a token: 1, 2, 4; little-endian */
    const char *format; /* "text", "uint16", "uint32", "llm.c", "megatron" */
} ndm_token_file;

/* text: any file that is nothing else. *.uint16.bin, *.uint32.bin: as they say. *.bin: uint16, or
 * uint32 where its content can only be that.
 * llm.c: known by its header. Megatron: X.bin beside X.idx, which says the type. */
NDM_MUST_USE ndm_status ndm_token_file_open(const char *path, int64_t vocab, bool random,
                                            ndm_token_file *file);

/* Token i of `tokens`, which are `width` bytes each. */
static inline int64_t ndm_token_at(const unsigned char *tokens, int width, int64_t i)
{
    const unsigned char *p = tokens + i * width;

    if (width == 1)
        return p[0];
    if (width == 2)
        return p[0] | p[1] << 8;
    return (int64_t)((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 |
                     (uint32_t)p[3] << 24);
}

#endif
