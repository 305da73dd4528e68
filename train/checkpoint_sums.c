/* SPDX-License-Identifier: Apache-2.0 */
/* Checksums of files by blocks: hashing, part files, and the JSON file. Verifying reads are in
 * checkpoint_verified.c. */
#include "train/checkpoint_sums.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/file.h"
#include "core/json.h"
#include "core/json_read.h"
#include "model/safetensors_reader.h"

void ndm_sums_init(ndm_sums *sums, int64_t block_bytes)
{
    *sums = (ndm_sums){.block_bytes = block_bytes};
}

void ndm_sums_finish(ndm_sums *sums)
{
    for (int64_t i = 0; i < sums->n_files; i++) {
        free(sums->files[i].name);
        free(sums->files[i].blocks);
        free(sums->files[i].known);
    }
    free(sums->files);
    *sums = (ndm_sums){0};
}

ndm_status ndm_sums_add_file(ndm_sums *sums, const char *name, int64_t bytes)
{
    int64_t n = (bytes + sums->block_bytes - 1) / sums->block_bytes;
    ndm_sums_file *files = realloc(sums->files, (size_t)(sums->n_files + 1) * sizeof *files);

    if (!files)
        NDM_FAIL(NDM_ERR_MEMORY, "%s: no memory for its checksums", name);
    sums->files = files;
    ndm_sums_file *f = &files[sums->n_files++];
    *f = (ndm_sums_file){.name = ndm_text_duplicate(name), .bytes = bytes, .n_blocks = n};
    f->blocks = calloc((size_t)n + 1, sizeof *f->blocks);
    f->known = calloc((size_t)n + 1, sizeof *f->known);
    if (!f->name || !f->blocks || !f->known)
        NDM_FAIL(NDM_ERR_MEMORY, "%s: no memory for its checksums", name);
    return NDM_OK;
}

int64_t ndm_sums_find(const ndm_sums *sums, const char *name)
{
    for (int64_t i = 0; i < sums->n_files; i++)
        if (strcmp(sums->files[i].name, name) == 0)
            return i;
    return -1;
}

int64_t ndm_sums_block_bytes(const ndm_sums *sums, int64_t file, int64_t block)
{
    int64_t left = sums->files[file].bytes - block * sums->block_bytes;

    return left < sums->block_bytes ? left : sums->block_bytes;
}

static void set_block(ndm_sums *sums, int64_t file, int64_t block, const void *data)
{
    ndm_sums_file *f = &sums->files[file];

    f->blocks[block] = ndm_hash_128(data, (size_t)ndm_sums_block_bytes(sums, file, block));
    f->known[block] = 1;
}

void ndm_sums_put(ndm_sums *sums, int64_t file, int64_t offset, const void *data, int64_t bytes)
{
    int64_t block = (offset + sums->block_bytes - 1) / sums->block_bytes;

    for (; block < sums->files[file].n_blocks; block++) {
        int64_t begin = block * sums->block_bytes;
        if (begin + ndm_sums_block_bytes(sums, file, block) > offset + bytes)
            break;
        set_block(sums, file, block, (const char *)data + (begin - offset));
    }
}

/* ---- blocks that several wrote ------------------------------------------------------------ */

static ndm_status open_in(const char *folder, const char *name, char **path, int *fd)
{
    *path = ndm_text_printf("%s/%s", folder, name);
    if (!*path)
        NDM_FAIL(NDM_ERR_MEMORY, "%s: no memory for a path", folder);
    *fd = open(*path, O_RDONLY | O_CLOEXEC);
    if (*fd >= 0)
        return NDM_OK;
    (void)ndm_error_set(NDM_ERR_IO, __FILE__, __LINE__, "%s: %s", *path, strerror(errno));
    free(*path);
    return NDM_ERR_IO;
}

/* The unknown blocks of a file; *turn counts unknown blocks over all files. */
static ndm_status fill_file(ndm_sums *sums, int64_t file, const char *folder, int64_t k, int64_t n,
                            int64_t *turn, void *data)
{
    ndm_sums_file *f = &sums->files[file];
    ndm_status status = NDM_OK;
    char *path;
    int fd;

    NDM_TRY(open_in(folder, f->name, &path, &fd));
    for (int64_t b = 0; b < f->n_blocks && status == NDM_OK; b++) {
        if (f->known[b] || (*turn)++ % n != k)
            continue;
        status = ndm_safetensors_pread(fd, path, data, ndm_sums_block_bytes(sums, file, b),
                                       b * sums->block_bytes);
        if (status == NDM_OK)
            set_block(sums, file, b, data);
    }
    close(fd);
    free(path);
    return status;
}

ndm_status ndm_sums_fill(ndm_sums *sums, const char *folder, int64_t k, int64_t n)
{
    void *data = malloc((size_t)sums->block_bytes);
    ndm_status status = NDM_OK;
    int64_t turn = 0;

    if (!data)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for a block of %lld bytes",
                 (long long)sums->block_bytes);
    for (int64_t i = 0; i < sums->n_files && status == NDM_OK; i++)
        status = fill_file(sums, i, folder, k, n, &turn, data);
    free(data);
    return status;
}

/* ---- part files: [file, block, low, high] of 64 bits each --------------------------------- */

typedef struct part_record {
    int64_t file, block;
    uint64_t low, high;
} part_record;

ndm_status ndm_sums_write_part(const ndm_sums *sums, const char *path)
{
    ndm_buffer text = {0};

    for (int64_t i = 0; i < sums->n_files; i++)
        for (int64_t b = 0; b < sums->files[i].n_blocks; b++) {
            const ndm_hash128 *h = &sums->files[i].blocks[b];
            part_record record = {i, b, h->low, h->high};
            if (sums->files[i].known[b])
                ndm_buffer_append(&text, &record, sizeof record);
        }
    ndm_status status = ndm_buffer_status(&text);
    if (status == NDM_OK)
        status = ndm_file_write(path, text.data, text.length);
    ndm_buffer_finish(&text);
    return status;
}

static ndm_status add_record(ndm_sums *sums, const part_record *r, const char *path)
{
    if (r->file < 0 || r->file >= sums->n_files || r->block < 0 ||
        r->block >= sums->files[r->file].n_blocks)
        NDM_FAIL(NDM_ERR_FORMAT, "%s: has block %lld of file %lld, which is not there", path,
                 (long long)r->block, (long long)r->file);
    sums->files[r->file].blocks[r->block] = (ndm_hash128){.low = r->low, .high = r->high};
    sums->files[r->file].known[r->block] = 1;
    return NDM_OK;
}

ndm_status ndm_sums_read_part(ndm_sums *sums, const char *path)
{
    ndm_buffer text = {0};
    part_record record;
    ndm_status status;

    NDM_TRY(ndm_file_read(path, &text));
    status = ndm_buffer_status(&text);
    for (size_t at = 0; status == NDM_OK && at + sizeof record <= text.length;
         at += sizeof record) {
        memcpy(&record, text.data + at, sizeof record);
        status = add_record(sums, &record, path);
    }
    ndm_buffer_finish(&text);
    return status;
}

/* ---- JSON --------------------------------------------------------------------------------- */

static void put_file(ndm_json *json, const ndm_sums_file *f)
{
    char hex[NDM_HASH128_HEX_BYTES];

    ndm_json_key(json, f->name);
    ndm_json_begin_object(json);
    ndm_json_key_int(json, "bytes", f->bytes);
    ndm_json_key(json, "blocks");
    ndm_json_begin_array(json);
    for (int64_t b = 0; b < f->n_blocks; b++)
        ndm_json_string(json, ndm_hash_128_hex(f->blocks[b], hex));
    ndm_json_end_array(json);
    ndm_json_end_object(json);
}

static ndm_status put_all(const ndm_sums *sums, ndm_buffer *text)
{
    ndm_json json;

    for (int64_t i = 0; i < sums->n_files; i++)
        for (int64_t b = 0; b < sums->files[i].n_blocks; b++)
            if (!sums->files[i].known[b])
                NDM_FAIL(NDM_ERR_INTERNAL, "%s: nobody hashed its block %lld", sums->files[i].name,
                         (long long)b);
    ndm_json_init_buffer(&json, text, true);
    ndm_json_begin_object(&json);
    ndm_json_key_string(&json, "algorithm", "xxh3_128");
    ndm_json_key_int(&json, "block_bytes", sums->block_bytes);
    ndm_json_key(&json, "files");
    ndm_json_begin_object(&json);
    for (int64_t i = 0; i < sums->n_files; i++)
        put_file(&json, &sums->files[i]);
    ndm_json_end_object(&json);
    ndm_json_end_object(&json);
    return ndm_json_finish(&json);
}

ndm_status ndm_sums_save(const ndm_sums *sums, const char *path, ndm_hash128 *hash)
{
    ndm_buffer text = {0};
    ndm_status status = put_all(sums, &text);

    if (status == NDM_OK)
        status = ndm_file_write_atomic(path, text.data, text.length);
    if (status == NDM_OK)
        *hash = ndm_hash_128(text.data, text.length);
    ndm_buffer_finish(&text);
    return status;
}

static bool parse_hex(const char *text, ndm_hash128 *hash)
{
    char half[17] = "";

    if (!text || strlen(text) != 32 || strspn(text, "0123456789abcdef") != 32)
        return false;
    memcpy(half, text, 16);
    hash->high = strtoull(half, NULL, 16);
    hash->low = strtoull(text + 16, NULL, 16);
    return true;
}

static ndm_status get_file(ndm_sums *sums, const char *name, json_t *entry, const char *path)
{
    const json_t *blocks;
    int64_t bytes;

    if (strchr(name, '/'))
        NDM_FAIL(NDM_ERR_FORMAT, "%s: '%.64s' is not a file beside it", path, name);
    NDM_TRY(ndm_json_get_int64(entry, "bytes", true, 0, &bytes, path));
    NDM_TRY(ndm_json_get_array(entry, "blocks", true, &blocks, path));
    if (bytes < 0 || bytes > (int64_t)json_array_size(blocks) * sums->block_bytes)
        NDM_FAIL(NDM_ERR_FORMAT, "%s: %s: %zu blocks do not hold %lld bytes", path, name,
                 json_array_size(blocks), (long long)bytes);
    NDM_TRY(ndm_sums_add_file(sums, name, bytes));
    ndm_sums_file *f = &sums->files[sums->n_files - 1];
    for (int64_t b = 0; b < f->n_blocks; b++) {
        const char *hex = json_string_value(json_array_get(blocks, (size_t)b));
        if (!parse_hex(hex, &f->blocks[b]))
            NDM_FAIL(NDM_ERR_FORMAT, "%s: %s: block %lld has no checksum", path, name,
                     (long long)b);
        f->known[b] = 1;
    }
    return NDM_OK;
}

static ndm_status get_all(ndm_sums *sums, json_t *root, const char *path)
{
    const char *algorithm, *name;
    const json_t *files;
    json_t *entry;
    int64_t block_bytes;

    NDM_TRY(ndm_json_get_string(root, "algorithm", true, NULL, &algorithm, path));
    NDM_TRY(ndm_json_get_int64(root, "block_bytes", true, 0, &block_bytes, path));
    NDM_TRY(ndm_json_get_object(root, "files", true, &files, path));
    if (strcmp(algorithm, "xxh3_128") != 0)
        NDM_FAIL(NDM_ERR_FORMAT, "%s: checksums are '%.32s'; xxh3_128 is known", path, algorithm);
    if (block_bytes < 1 || block_bytes > (int64_t)1 << 30)
        NDM_FAIL(NDM_ERR_FORMAT, "%s: block_bytes is %lld", path, (long long)block_bytes);
    ndm_sums_init(sums, block_bytes);
    json_object_foreach((json_t *)files, name, entry) NDM_TRY(get_file(sums, name, entry, path));
    return NDM_OK;
}

static ndm_status parse(ndm_sums *sums, const ndm_buffer *text, const char *path,
                        const char *hash_hex)
{
    char hex[NDM_HASH128_HEX_BYTES];
    json_t *root;

    ndm_hash_128_hex(ndm_hash_128(text->data, text->length), hex);
    if (strcmp(hex, hash_hex) != 0)
        NDM_FAIL(NDM_ERR_CHECK, "%s: does not match its checksum (%s, saved as %.32s)", path, hex,
                 hash_hex);
    NDM_TRY(ndm_json_load_text(text->data, text->length, path, &root));
    ndm_status status = get_all(sums, root, path);
    json_decref(root);
    return status;
}

ndm_status ndm_sums_load(ndm_sums *sums, const char *path, const char *hash_hex)
{
    ndm_buffer text = {0};

    NDM_TRY(ndm_file_read(path, &text));
    *sums = (ndm_sums){0};
    ndm_status status = parse(sums, &text, path, hash_hex);
    ndm_buffer_finish(&text);
    if (status != NDM_OK)
        ndm_sums_finish(sums);
    return status;
}
