/* SPDX-License-Identifier: Apache-2.0 */
/* Checksums of files by blocks: XXH3-128 of each run of block_bytes.
 *
 * A block belongs to the file, not to who wrote it, so any rank of any mesh verifies any range by
 * itself. Writers hash the blocks that they write whole, from memory; blocks that several ranks
 * share are hashed from the files when all have written. What a rank knows travels in part files
 * beside the data: nothing here communicates. */
#ifndef NDM_TRAIN_CHECKPOINT_SUMS_H
#define NDM_TRAIN_CHECKPOINT_SUMS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/hash.h"
#include "model/safetensors.h"

typedef struct ndm_sums_file {
    char *name; /* in the folder */
    int64_t bytes, n_blocks;
    ndm_hash128 *blocks;  /* [n_blocks] */
    unsigned char *known; /* [n_blocks] */
} ndm_sums_file;

typedef struct ndm_sums {
    int64_t block_bytes;
    int64_t n_files;
    ndm_sums_file *files;
} ndm_sums;

void ndm_sums_init(ndm_sums *sums, int64_t block_bytes);
void ndm_sums_finish(ndm_sums *sums); /* all-zero is fine */
NDM_MUST_USE ndm_status ndm_sums_add_file(ndm_sums *sums, const char *name, int64_t bytes);

/* Index of a file by its name, -1 if there is none. */
int64_t ndm_sums_find(const ndm_sums *sums, const char *name);

/* Hashes the blocks that lie whole in bytes [offset, offset + bytes) of a file. */
void ndm_sums_put(ndm_sums *sums, int64_t file, int64_t offset, const void *data, int64_t bytes);

/* Hashes unknown blocks from the files of a folder: the i-th of them where i % n == k. */
NDM_MUST_USE ndm_status ndm_sums_fill(ndm_sums *sums, const char *folder, int64_t k, int64_t n);

/* What this process knows, for others; and adding what another knew. */
NDM_MUST_USE ndm_status ndm_sums_write_part(const ndm_sums *sums, const char *path);
NDM_MUST_USE ndm_status ndm_sums_read_part(ndm_sums *sums, const char *path);

/* As a JSON file. Saving wants every block known; the hash is that of the file written. Loading is
 * NDM_ERR_FORMAT where the document is not what it should be, NDM_ERR_CHECK where its hash is
 * another. */
NDM_MUST_USE ndm_status ndm_sums_save(const ndm_sums *sums, const char *path, ndm_hash128 *hash);
NDM_MUST_USE ndm_status ndm_sums_load(ndm_sums *sums, const char *path, const char *hash_hex);

/* ---- verifying reads ---------------------------------------------------------------------- */

enum { NDM_VERIFIED_BLOCKS = 4 };

/* Reads ranges of files and compares every block that it touches; a few blocks stay, since short
 * runs follow each other. All-zero but for sums (and reader) is ready. */
typedef struct ndm_verified {
    const ndm_sums *sums;
    const ndm_safetensors *reader; /* names tensors in messages; may be NULL */
    struct {
        int64_t file, block; /* valid where data is set */
        char *data;          /* [block_bytes] */
    } kept[NDM_VERIFIED_BLOCKS];
    int64_t next; /* to be replaced */
} ndm_verified;
void ndm_verified_finish(ndm_verified *verified);

/* An ndm_safetensors_source; user: ndm_verified. NDM_ERR_CHECK names file, bytes and tensor. */
ndm_status ndm_verified_read(void *user, int fd, const char *path, void *dst, int64_t n,
                             int64_t offset);

/* An ndm_gather_options.check for blocks of sums->block_bytes; user: ndm_verified with a reader. */
ndm_status ndm_verified_check(const void *user, int64_t file, int64_t begin, const void *data,
                              int64_t bytes);

/* NDM_ERR_CHECK unless data, the block's bytes, has the hash that is known. */
NDM_MUST_USE ndm_status ndm_sums_compare(const ndm_sums *sums, int64_t file, int64_t block,
                                         const void *data, const char *path,
                                         const ndm_safetensors *reader);

/* Bytes of a block: the last one of a file may be short. */
int64_t ndm_sums_block_bytes(const ndm_sums *sums, int64_t file, int64_t block);

#endif
