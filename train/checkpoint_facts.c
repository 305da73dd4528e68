/* SPDX-License-Identifier: Apache-2.0 */
/* trainer.json: the run's state, what it was saved from, and the hashes that the rest hangs on. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"
#include "core/file.h"
#include "core/json_read.h"
#include "train/checkpoint_files.h"
#include "train/schedule.h"

enum { FORMAT = 1 };

/* Hash of the document without the member that holds it; keys sorted, so the order of a file does
 * not count. */
static ndm_status hash_document(json_t *root, char hex[NDM_HASH128_HEX_BYTES])
{
    json_t *copy = json_copy(root);
    char *text = NULL;

    if (copy) {
        json_object_del(copy, "xxh3_128");
        text = json_dumps(copy, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(17));
    }
    json_decref(copy);
    if (!text)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for " NDM_CHECKPOINT_TRAINER);
    ndm_hash_128_hex(ndm_hash_128(text, strlen(text)), hex);
    free(text);
    return NDM_OK;
}

/* ---- writing ------------------------------------------------------------------------------ */

/* A failed set leaves a key out; the caller sees it by counting failures. */
static void set(json_t *object, const char *key, json_t *value, int *failed)
{
    *failed |= json_object_set_new(object, key, value);
}

static json_t *make_schedule(const ndm_trainer_options *t, int *failed)
{
    static const char *const names[] = {"constant", "linear", "cosine"};
    json_t *o = json_object();

    set(o, "lr", json_real(t->optimizer.lr), failed);
    set(o, "lr_schedule", json_string(names[t->lr_schedule]), failed);
    set(o, "warmup", json_integer(t->warmup), failed);
    set(o, "min_lr_ratio", json_real(t->min_lr_ratio), failed);
    set(o, "steps", json_integer(t->steps), failed);
    return o;
}

static json_t *make_optimizer(const ndm_trainer_options *t, int *failed)
{
    json_t *o = json_object();

    set(o, "beta1", json_real(t->optimizer.beta1), failed);
    set(o, "beta2", json_real(t->optimizer.beta2), failed);
    set(o, "eps", json_real(t->optimizer.eps), failed);
    set(o, "weight_decay", json_real(t->optimizer.weight_decay), failed);
    set(o, "grad_clip", json_real(t->optimizer.grad_clip), failed);
    return o;
}

static json_t *make_mesh(const int64_t *mesh, int *failed)
{
    json_t *o = json_object();

    for (int a = 0; a < NDM_AXIS_COUNT; a++)
        set(o, ndm_axis_table()[a].name, json_integer(mesh[a]), failed);
    return o;
}

ndm_status ndm_checkpoint_check_options_json(const char *text)
{
    json_error_t error;

    if (!text)
        return NDM_OK;
    json_t *root = json_loads(text, 0, &error); /* of nothing else than an object or a list */
    bool object = json_is_object(root);
    bool parsed = root != NULL;
    json_decref(root);
    if (!parsed)
        NDM_FAIL(NDM_ERR_USAGE, "checkpoints: options_json:%d:%d: %s", error.line, error.column,
                 error.text);
    if (!object)
        NDM_FAIL(NDM_ERR_USAGE, "checkpoints: options_json is not an object");
    return NDM_OK;
}

static json_t *make_document(const ndm_checkpoint_facts *f, int *failed)
{
    json_t *root = json_object();

    set(root, "format", json_integer(FORMAT), failed);
    set(root, "version", json_string(NDM_VERSION), failed);
    set(root, "step", json_integer(f->state.step), failed);
    set(root, "tokens_total", json_integer(f->state.tokens_total), failed);
    set(root, "samples", json_integer(f->state.samples), failed);
    set(root, "seed", json_integer((int64_t)f->state.seed), failed);
    set(root, "model_dtype", json_string(ndm_dtype_name(f->model_dtype)), failed);
    set(root, "schedule", make_schedule(&f->trainer, failed), failed);
    set(root, "optimizer", make_optimizer(&f->trainer, failed), failed);
    set(root, "mesh", make_mesh(f->mesh, failed), failed);
    if (f->options_json)
        set(root, "options", json_loads(f->options_json, 0, NULL), failed);
    set(root, "checksums_xxh3_128", json_string(f->sums_hash), failed);
    return root;
}

static ndm_status write_document(json_t *root, const char *path)
{
    char hex[NDM_HASH128_HEX_BYTES];
    int failed = 0;

    NDM_TRY(hash_document(root, hex));
    set(root, "xxh3_128", json_string(hex), &failed);
    char *text = json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
    if (!text || failed) {
        free(text);
        NDM_FAIL(NDM_ERR_MEMORY, "%s: no memory to write it", path);
    }
    ndm_status status = ndm_file_write_atomic(path, text, strlen(text));
    free(text);
    return status;
}

ndm_status ndm_checkpoint_facts_write(const ndm_checkpoint_facts *facts, const char *path)
{
    int failed = 0;
    json_t *root = make_document(facts, &failed);

    if (!root || failed) {
        json_decref(root);
        NDM_FAIL(NDM_ERR_MEMORY, "%s: no memory to write it", path);
    }
    ndm_status status = write_document(root, path);
    json_decref(root);
    return status;
}

/* ---- reading ------------------------------------------------------------------------------ */

static ndm_status check_document(json_t *root, const char *path)
{
    char hex[NDM_HASH128_HEX_BYTES];
    const char *saved;
    int64_t format;

    NDM_TRY(ndm_json_get_int64(root, "format", true, 0, &format, path));
    if (format != FORMAT)
        NDM_FAIL(NDM_ERR_FORMAT, "%s: has format %lld, this is for %d", path, (long long)format,
                 FORMAT);
    NDM_TRY(ndm_json_get_string(root, "xxh3_128", true, NULL, &saved, path));
    NDM_TRY(hash_document(root, hex));
    if (strcmp(hex, saved) != 0)
        NDM_FAIL(NDM_ERR_CHECK, "%s: does not match its checksum (%s, saved as %.32s)", path, hex,
                 saved);
    return NDM_OK;
}

static ndm_status read_mesh(const json_t *root, int64_t *mesh, const char *path)
{
    const json_t *object;

    NDM_TRY(ndm_json_get_object(root, "mesh", true, &object, path));
    for (int a = 0; a < NDM_AXIS_COUNT; a++)
        NDM_TRY(ndm_json_get_int64(object, ndm_axis_table()[a].name, false, 1, &mesh[a], path));
    return NDM_OK;
}

static ndm_status read_document(json_t *root, ndm_checkpoint_facts *f, const char *path)
{
    const char *dtype, *hash, *version;
    int64_t seed;

    NDM_TRY(check_document(root, path));
    NDM_TRY(ndm_json_get_int64(root, "step", true, 0, &f->state.step, path));
    NDM_TRY(ndm_json_get_int64(root, "tokens_total", true, 0, &f->state.tokens_total, path));
    NDM_TRY(ndm_json_get_int64(root, "samples", true, 0, &f->state.samples, path));
    NDM_TRY(ndm_json_get_int64(root, "seed", true, 0, &seed, path));
    f->state.seed = (uint64_t)seed;
    NDM_TRY(ndm_json_get_string(root, "version", true, NULL, &version, path));
    snprintf(f->version, sizeof f->version, "%s", version);
    NDM_TRY(ndm_json_get_string(root, "model_dtype", true, NULL, &dtype, path));
    NDM_TRY(ndm_dtype_parse(dtype, &f->model_dtype));
    NDM_TRY(ndm_json_get_string(root, "checksums_xxh3_128", true, NULL, &hash, path));
    if (f->state.step < 0 || f->state.samples < 0 || strlen(hash) >= sizeof f->sums_hash)
        NDM_FAIL(NDM_ERR_FORMAT, "%s: step %lld, samples %lld or a hash of %zu digits is wrong",
                 path, (long long)f->state.step, (long long)f->state.samples, strlen(hash));
    snprintf(f->sums_hash, sizeof f->sums_hash, "%s", hash);
    return read_mesh(root, f->mesh, path);
}

static ndm_status read_file(const char *path, ndm_checkpoint_facts *facts)
{
    json_t *root;

    NDM_TRY(ndm_json_load_file(path, &root));
    ndm_status status = read_document(root, facts, path);
    json_decref(root);
    return status;
}

ndm_status ndm_checkpoint_facts_read(const char *checkpoint, ndm_checkpoint_facts *facts)
{
    char *path = ndm_text_printf("%s/" NDM_CHECKPOINT_TRAINER, checkpoint);

    *facts = (ndm_checkpoint_facts){0};
    if (!path)
        NDM_FAIL(NDM_ERR_MEMORY, "%s: no memory for a path", checkpoint);
    ndm_status status = read_file(path, facts);
    free(path);
    return status;
}

ndm_status ndm_checkpoint_sums_read(const char *checkpoint, const ndm_checkpoint_facts *facts,
                                    ndm_sums *sums)
{
    char *path = ndm_text_printf("%s/" NDM_CHECKPOINT_SUMS, checkpoint);

    if (!path)
        NDM_FAIL(NDM_ERR_MEMORY, "%s: no memory for a path", checkpoint);
    ndm_status status = ndm_sums_load(sums, path, facts->sums_hash);
    free(path);
    return status;
}
