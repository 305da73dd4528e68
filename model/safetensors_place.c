/* SPDX-License-Identifier: Apache-2.0 */
/* Safetensors writer, last part: the index, and how written files take the place of others. */
#include "model/safetensors_writer.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/dtype.h"
#include "core/file.h"
#include "core/json.h"

#define SUFFIX ".safetensors"
#define PARTIAL ".partial"

/* ---- the index ---------------------------------------------------------------------------- */

static ndm_status make_index(const ndm_safetensors_writer *w, ndm_buffer *text)
{
    int64_t elements = 0, bytes = 0;
    ndm_json json;

    for (int64_t i = 0; i < w->count; i++) {
        elements += w->infos[i].count;
        bytes += w->infos[i].count * (int64_t)ndm_dtype_bytes(w->infos[i].dtype);
    }
    ndm_json_init_buffer(&json, text, true);
    ndm_json_begin_object(&json);
    ndm_json_key(&json, "metadata");
    ndm_json_begin_object(&json);
    ndm_json_key_int(&json, "total_parameters", elements);
    ndm_json_key_int(&json, "total_size", bytes);
    ndm_json_end_object(&json);
    ndm_json_key(&json, "weight_map");
    ndm_json_begin_object(&json);
    for (int64_t i = 0; i < w->count; i++)
        ndm_json_key_string(&json, w->infos[i].name, w->files[w->infos[i].file].name);
    ndm_json_end_object(&json);
    ndm_json_end_object(&json);
    return ndm_json_finish(&json);
}

/* One file has no index; one left from an earlier export would win over the file, so it goes. */
static ndm_status place_index(const ndm_safetensors_writer *w, const char *path)
{
    ndm_buffer text = {0};
    ndm_status status;

    if (w->file_count == 1) {
        if (unlink(path) != 0 && errno != ENOENT)
            NDM_FAIL(NDM_ERR_IO, "%s: cannot remove the old index: %s", path, strerror(errno));
        return NDM_OK;
    }
    status = make_index(w, &text);
    if (status == NDM_OK)
        status = ndm_file_write_atomic(path, text.data, text.length);
    ndm_buffer_finish(&text);
    return status;
}

ndm_status ndm_safetensors_write_index(const ndm_safetensors_writer *w)
{
    char *path = ndm_text_printf("%s/%s.safetensors.index.json", w->folder, w->stem);
    ndm_status status;

    if (path == NULL)
        NDM_FAIL(NDM_ERR_MEMORY, "%s: no memory for the index", w->folder);
    status = place_index(w, path);
    free(path);
    return status;
}

/* ---- taking the place of others ----------------------------------------------------------- */

static ndm_status stage_file(struct ndm_safetensors_out *out)
{
    char *target;

    NDM_TRY(ndm_file_target(out->path, &target));
    if (target == NULL)
        NDM_FAIL(NDM_ERR_IO, "%s: is no regular file, and cannot hold tensors", out->path);
    free(out->path);
    out->final = target;
    out->path = ndm_text_printf("%s" PARTIAL, target);
    if (out->path == NULL)
        NDM_FAIL(NDM_ERR_MEMORY, "%s: no memory for a path", target);
    return NDM_OK;
}

ndm_status ndm_safetensors_writer_stage(ndm_safetensors_writer *w)
{
    w->staged = true;
    for (int64_t f = 0; f < w->file_count; f++)
        NDM_TRY(stage_file(&w->files[f]));
    return NDM_OK;
}

static ndm_status remove_file(const ndm_safetensors_writer *w, const char *name)
{
    char *path = ndm_text_printf("%s/%s", w->folder, name);

    if (path == NULL)
        NDM_FAIL(NDM_ERR_MEMORY, "%s: no memory for a path", w->folder);
    int failed = unlink(path) != 0 && errno != ENOENT;
    int error = errno;
    free(path);
    if (failed)
        NDM_FAIL(NDM_ERR_IO, "%s/%s: cannot remove the file of before: %s", w->folder, name,
                 strerror(error));
    return NDM_OK;
}

/* "STEM" and an end. */
static ndm_status remove_of_stem(const ndm_safetensors_writer *w, const char *end)
{
    char *name = ndm_text_printf("%s%s", w->stem, end);

    if (name == NULL)
        NDM_FAIL(NDM_ERR_MEMORY, "%s: no memory for a path", w->folder);
    ndm_status status = remove_file(w, name);
    free(name);
    return status;
}

static bool has_form(const char *text, const char *form)
{
    for (; *form != '\0'; text++, form++)
        if (*form == '#' ? !isdigit((unsigned char)*text) : *text != *form)
            return false;
    return *text == '\0';
}

/* A name that an export gives to shards, and this one did not. */
static bool is_old_shard(const ndm_safetensors_writer *w, const char *name)
{
    size_t stem = strlen(w->stem);

    if (strncmp(name, w->stem, stem) != 0)
        return false;
    if (!has_form(name + stem, "-#####-of-#####" SUFFIX) &&
        !has_form(name + stem, "-#####-of-#####" SUFFIX PARTIAL))
        return false;
    for (int64_t f = 0; f < w->file_count; f++)
        if (strcmp(name, w->files[f].name) == 0)
            return false;
    return true;
}

static ndm_status remove_old_shards(const ndm_safetensors_writer *w)
{
    DIR *folder = opendir(w->folder);
    ndm_status status = NDM_OK;
    struct dirent *e;

    if (folder == NULL)
        NDM_FAIL(NDM_ERR_IO, "%s: %s", w->folder, strerror(errno));
    while (status == NDM_OK && (e = readdir(folder)) != NULL)
        if (is_old_shard(w, e->d_name))
            status = remove_file(w, e->d_name);
    closedir(folder);
    return status;
}

static ndm_status name_files(const ndm_safetensors_writer *w)
{
    for (int64_t f = 0; f < w->file_count; f++)
        if (rename(w->files[f].path, w->files[f].final) != 0)
            NDM_FAIL(NDM_ERR_IO, "%s: cannot be renamed to %s: %s", w->files[f].path,
                     w->files[f].final, strerror(errno));
    return ndm_file_sync_dir(w->folder);
}

/* Whatever is there in between is the old tensors, the new ones, or nothing: shards under an index
 * of before could be a mixture. Some readers prefer the index to the single file, others the
 * single file: the one that is not of this plan goes. */
ndm_status ndm_safetensors_writer_commit(ndm_safetensors_writer *w)
{
    bool many = w->file_count > 1;

    if (many) {
        NDM_TRY(remove_of_stem(w, SUFFIX ".index.json"));
        NDM_TRY(ndm_file_sync_dir(w->folder));
    }
    NDM_TRY(name_files(w));
    w->begun = false;
    NDM_TRY(ndm_safetensors_write_index(w));
    NDM_TRY(remove_of_stem(w, many ? SUFFIX : SUFFIX ".index.json"));
    NDM_TRY(remove_of_stem(w, SUFFIX PARTIAL));
    NDM_TRY(remove_old_shards(w));
    return ndm_file_sync_dir(w->folder);
}

void ndm_safetensors_writer_abandon(const ndm_safetensors_writer *w)
{
    for (int64_t f = 0; w->begun && w->staged && f < w->file_count; f++)
        unlink(w->files[f].path);
}
