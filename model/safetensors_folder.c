/* SPDX-License-Identifier: Apache-2.0 */
/* Opens safetensors by path: one file, or a folder's index with its shards. The index and the
 * shards must say the same. */
#include "model/safetensors_reader.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/json_read.h"

#define INDEX_SUFFIX ".safetensors.index.json"

static bool ends_with(const char *text, const char *suffix)
{
    size_t n = strlen(text), m = strlen(suffix);

    return n >= m && strcmp(text + n - m, suffix) == 0;
}

/* "FOLDER/NAME" with the length checked. */
static ndm_status join(char out[PATH_MAX], const char *folder, const char *name)
{
    int n = snprintf(out, PATH_MAX, "%s/%s", folder, name);

    if (n < 0 || n >= PATH_MAX)
        NDM_FAIL(NDM_ERR_IO, "%s: the path is too long", folder);
    return NDM_OK;
}

/* A shard is a plain file name beside the index: an index must not lead elsewhere. */
static ndm_status check_shard_name(const char *index, const char *tensor, json_t *value)
{
    const char *file = json_string_value(value);

    if (file == NULL)
        NDM_FAIL(NDM_ERR_FORMAT, "%s: weight_map '%s' is not a file name", index, tensor);
    if (strchr(file, '/') != NULL || !ends_with(file, ".safetensors"))
        NDM_FAIL(NDM_ERR_FORMAT,
                 "%s: weight_map '%s': '%.64s' is not a .safetensors file beside it", index, tensor,
                 file);
    return NDM_OK;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash != NULL ? slash + 1 : path;
}

static int64_t file_of(const ndm_safetensors *r, const char *name)
{
    for (int64_t i = 0; i < r->file_count; i++) {
        if (strcmp(base_name(r->files[i].path), name) == 0)
            return i;
    }
    return -1;
}

static ndm_status open_shards(ndm_safetensors *r, const char *index, const char *folder,
                              json_t *map)
{
    char path[PATH_MAX];
    const char *tensor;
    json_t *value;

    json_object_foreach(map, tensor, value)
    {
        NDM_TRY(check_shard_name(index, tensor, value));
        if (file_of(r, json_string_value(value)) >= 0)
            continue;
        NDM_TRY(join(path, folder, json_string_value(value)));
        NDM_TRY(ndm_safetensors_add_file(r, path));
    }
    return ndm_safetensors_finish_open(r);
}

/* Every tensor of the index is in the file it says, and the other way round. */
static ndm_status compare_index(const ndm_safetensors *r, const char *index, json_t *map)
{
    const char *tensor;
    json_t *value;

    json_object_foreach(map, tensor, value)
    {
        const ndm_tensor_info *info = ndm_safetensors_find(r, tensor);

        if (info == NULL || info->file != file_of(r, json_string_value(value)))
            NDM_FAIL(NDM_ERR_FORMAT, "%s: tensor '%s' is not in %s", index, tensor,
                     json_string_value(value));
    }
    for (int64_t i = 0; i < r->count; i++) {
        if (json_object_get(map, r->infos[i].name) == NULL)
            NDM_FAIL(NDM_ERR_FORMAT, "%s: tensor '%s' of %s is not in the index", index,
                     r->infos[i].name, base_name(r->files[r->infos[i].file].path));
    }
    return NDM_OK;
}

static ndm_status open_index(ndm_safetensors *r, const char *index)
{
    char folder[PATH_MAX];
    ndm_status status;
    json_t *root, *map;

    snprintf(folder, sizeof folder, "%s", index);
    folder[base_name(index) - index] = '\0';
    if (folder[0] == '\0')
        snprintf(folder, sizeof folder, ".");
    NDM_TRY(ndm_json_load_file(index, &root));
    map = json_object_get(root, "weight_map");
    if (!json_is_object(map) || json_object_size(map) == 0) {
        json_decref(root);
        NDM_FAIL(NDM_ERR_FORMAT, "%s: has no weight_map", index);
    }
    status = open_shards(r, index, folder, map);
    if (status == NDM_OK)
        status = compare_index(r, index, map);
    json_decref(root);
    return status;
}

static ndm_status open_path(ndm_safetensors *r, const char *path)
{
    if (ends_with(path, ".json"))
        return open_index(r, path);
    NDM_TRY(ndm_safetensors_add_file(r, path));
    return ndm_safetensors_finish_open(r);
}

static ndm_status open_any(const char *path, ndm_safetensors **reader)
{
    ndm_safetensors *r = calloc(1, sizeof *r);
    ndm_status status;

    if (r == NULL)
        NDM_FAIL(NDM_ERR_MEMORY, "%s: no memory to open it", path);
    status = open_path(r, path);
    if (status != NDM_OK) {
        ndm_safetensors_close(r);
        return status;
    }
    *reader = r;
    return NDM_OK;
}

/* Path of STEM's index or single file in the folder; false if neither is there. The index wins, as
 * in transformers. */
static bool find_stem(const char *folder, const char *stem, char out[PATH_MAX])
{
    int n = snprintf(out, PATH_MAX, "%s/%s" INDEX_SUFFIX, folder, stem);

    if (n < 0 || n >= PATH_MAX)
        return false;
    if (ndm_file_exists(out))
        return true;
    snprintf(out, PATH_MAX, "%s/%s.safetensors", folder, stem);
    return ndm_file_exists(out);
}

bool ndm_safetensors_present(const char *folder, const char *stem)
{
    char path[PATH_MAX];

    return find_stem(folder, stem, path);
}

ndm_status ndm_safetensors_open_stem(const char *folder, const char *stem, ndm_safetensors **reader)
{
    char path[PATH_MAX];

    if (find_stem(folder, stem, path))
        return open_any(path, reader);
    NDM_TRY(join(path, folder, "pytorch_model.bin"));
    NDM_FAIL(NDM_ERR_IO, "%s: has neither %s.safetensors nor %s" INDEX_SUFFIX "%s", folder, stem,
             stem, ndm_file_exists(path) ? "; convert its pytorch_model.bin to safetensors" : "");
}

ndm_status ndm_safetensors_open(const char *path, ndm_safetensors **reader)
{
    if (ndm_file_is_dir(path))
        return ndm_safetensors_open_stem(path, "model", reader);
    return open_any(path, reader);
}
