/* SPDX-License-Identifier: Apache-2.0 */
/* Safetensors: read a file or a Hugging Face folder, write one from many processes.
 *
 * A file is an 8-byte little-endian length, a JSON header of that length, and the tensors' bytes. A
 * folder holds STEM.safetensors, or shards and STEM.safetensors.index.json. Files are untrusted:
 * whatever does not hold is NDM_ERR_FORMAT with file and tensor. Reads are by pread, so that a file
 * cut short is an error and not a signal. */
#ifndef NDM_MODEL_SAFETENSORS_H
#define NDM_MODEL_SAFETENSORS_H

#include <stdbool.h>
#include <stdint.h>

#include <ndmesh/status.h>
#include <ndmesh/types.h>

#define NDM_TENSOR_MAX_DIMS 8

/* What a file says about one tensor. Strings belong to the reader or writer. */
typedef struct ndm_tensor_info {
    const char *name;
    ndm_dtype dtype;
    int ndim;
    int64_t shape[NDM_TENSOR_MAX_DIMS];
    int64_t count;  /* elements, the product of shape */
    int64_t file;   /* which file of the reader or writer */
    int64_t offset; /* of the first byte in that file */
} ndm_tensor_info;

/* ---- reading ------------------------------------------------------------------------------ */

typedef struct ndm_safetensors ndm_safetensors;

/* Opens a .safetensors file, an .index.json, or a folder with "model" files. Close with
 * ndm_safetensors_close(). */
NDM_MUST_USE ndm_status ndm_safetensors_open(const char *path, ndm_safetensors **reader);

/* Opens STEM.safetensors, or STEM.safetensors.index.json and its shards, in a folder. */
NDM_MUST_USE ndm_status ndm_safetensors_open_stem(const char *folder, const char *stem,
                                                  ndm_safetensors **reader);

/* Whether the folder holds STEM.safetensors or its index. */
bool ndm_safetensors_present(const char *folder, const char *stem);

void ndm_safetensors_close(ndm_safetensors *reader); /* NULL is fine */

/* Tensors, sorted by name. at() wants an index in 0..count-1; find() gives NULL for an unknown
 * name. */
int64_t ndm_safetensors_count(const ndm_safetensors *reader);
const ndm_tensor_info *ndm_safetensors_at(const ndm_safetensors *reader, int64_t index);
const ndm_tensor_info *ndm_safetensors_find(const ndm_safetensors *reader, const char *name);

/* Path of file i of the reader, and how many there are. */
int64_t ndm_safetensors_files(const ndm_safetensors *reader);
const char *ndm_safetensors_path(const ndm_safetensors *reader, int64_t file);

/* Reads exactly n bytes of a file at an offset: what stands between a reader and its files, e.g. to
 * verify them. */
typedef ndm_status (*ndm_safetensors_source)(void *user, int fd, const char *path, void *dst,
                                             int64_t n, int64_t offset);

/* Ranges and blocks are read through source from here on; headers were read at open. NULL: the
 * files as they are. */
void ndm_safetensors_set_source(ndm_safetensors *reader, ndm_safetensors_source source, void *user);

/* Reads raw bytes of file i, through the source: headers too. */
NDM_MUST_USE ndm_status ndm_safetensors_read_bytes(const ndm_safetensors *reader, int64_t file,
                                                   void *dst, int64_t n, int64_t offset);

/* A value of the first file's __metadata__, or NULL. */
const char *ndm_safetensors_metadata(const ndm_safetensors *reader, const char *key);

/* Finds a tensor and compares its shape, [ndim]. NDM_ERR_FORMAT: missing (with the nearest name) or
 * another shape. */
NDM_MUST_USE ndm_status ndm_safetensors_require(const ndm_safetensors *reader, const char *name,
                                                int ndim, const int64_t *shape,
                                                const ndm_tensor_info **info);

/* Reads elements [first, first + n) of a tensor into dst, [n] of dtype. Floating types convert to
 * each other; others only to themselves. */
NDM_MUST_USE ndm_status ndm_safetensors_read(const ndm_safetensors *reader, const char *name,
                                             int64_t first, int64_t n, void *dst, ndm_dtype dtype);

/* Reads rows [r0, r1), columns [c0, c1) of a tensor of two dimensions into dst, [r1 - r0, c1 - c0]
 * of dtype. */
NDM_MUST_USE ndm_status ndm_safetensors_read_block(const ndm_safetensors *reader, const char *name,
                                                   int64_t r0, int64_t r1, int64_t c0, int64_t c1,
                                                   void *dst, ndm_dtype dtype);

/* ---- writing ------------------------------------------------------------------------------ */

/* A tensor to be written. */
typedef struct ndm_tensor_spec {
    const char *name; /* copied */
    ndm_dtype dtype;
    int ndim;
    int64_t shape[NDM_TENSOR_MAX_DIMS];
} ndm_tensor_spec;

typedef struct ndm_safetensors_writer ndm_safetensors_writer;

/* Plans files in a folder, without touching it: STEM.safetensors, or shards of up to shard_bytes (a
 * larger tensor has a shard of its own; 0 = one file) and an index. The same arguments give the
 * same plan in every process. metadata: NULL, or key, value, ..., NULL besides {"format": "pt"}.
 *
 * Then: one process calls begin(); all, after it has returned, call write() for what they own and
 * sync(); when all have synced, the files are complete. */
NDM_MUST_USE ndm_status ndm_safetensors_writer_create(const char *folder, const char *stem,
                                                      const ndm_tensor_spec *specs, int64_t n,
                                                      int64_t shard_bytes,
                                                      const char *const *metadata,
                                                      ndm_safetensors_writer **writer);
void ndm_safetensors_writer_destroy(ndm_safetensors_writer *writer); /* closes; NULL is fine */

/* Before begin(), in every process: the files are written under other names, and what is in the
 * folder stays as it is until one process, after all have synced, calls commit(). Then they take
 * its place, and files of the same stem that are not of this plan are removed: the single file
 * beside shards, an index, shards. Links stay links. Not committed, what was written is removed. */
NDM_MUST_USE ndm_status ndm_safetensors_writer_stage(ndm_safetensors_writer *writer);
NDM_MUST_USE ndm_status ndm_safetensors_writer_commit(ndm_safetensors_writer *writer);

/* Creates the files at their full size with their headers, and the index. NDM_ERR_IO: also if the
 * disk is full. */
NDM_MUST_USE ndm_status ndm_safetensors_writer_begin(ndm_safetensors_writer *writer);

/* Writes elements [first, first + n) of a tensor from src, [n] of dtype. */
NDM_MUST_USE ndm_status ndm_safetensors_write(ndm_safetensors_writer *writer, const char *name,
                                              int64_t first, int64_t n, const void *src,
                                              ndm_dtype dtype);

/* Writes rows [r0, r1), columns [c0, c1) of a tensor of two dimensions from src, [r1 - r0, c1 - c0]
 * of dtype. */
NDM_MUST_USE ndm_status ndm_safetensors_write_block(ndm_safetensors_writer *writer,
                                                    const char *name, int64_t r0, int64_t r1,
                                                    int64_t c0, int64_t c1, const void *src,
                                                    ndm_dtype dtype);

/* fsync of the files that this process has written to. */
NDM_MUST_USE ndm_status ndm_safetensors_writer_sync(ndm_safetensors_writer *writer);

int64_t ndm_safetensors_writer_files(const ndm_safetensors_writer *writer);
const char *ndm_safetensors_writer_path(const ndm_safetensors_writer *writer, int64_t file);

int64_t ndm_safetensors_writer_bytes(const ndm_safetensors_writer *writer,
                                     int64_t file); /* of the whole file */

/* Where a tensor will be, or NULL. */
const ndm_tensor_info *ndm_safetensors_writer_find(const ndm_safetensors_writer *writer,
                                                   const char *name);

#endif
