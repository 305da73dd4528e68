/* SPDX-License-Identifier: Apache-2.0 */
/* `ndmesh checkpoint`: looks into checkpoints, verifies them, and exports their weights. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "core/dtype.h"
#include "core/file.h"
#include "train/checkpoint_tools.h"

static const ndm_option options[] = {
    {.name = "to",
     .type = NDM_OPTION_STRING,
     .value = "DIR",
     .help = "export: folder to write, required"},
    {.name = "dtype",
     .type = NDM_OPTION_ENUM,
     .choices = "fp32|bf16|fp16",
     .map = "float32=fp32 bfloat16=bf16 float16=fp16",
     .initially = "the model's",
     .help = "export: type of the weights"},
    {.name = "shard-size",
     .type = NDM_OPTION_SIZE,
     .initial = "5G",
     .help = "export: largest safetensors file, 0 = one file"},
    {.name = "json",
     .type = NDM_OPTION_BOOL,
     .initial = "false",
     .help = "print one JSON document and nothing else"},
};

static const ndm_option_table table = {
    .command = "checkpoint",
    .usage = "inspect|verify|export DIR [options]",
    .summary = "look into, verify or export a checkpoint, or the newest of a folder",
    .options = options,
    .n_options = sizeof options / sizeof options[0],
};

/* What a verb works on. */
typedef struct job {
    const ndm_options *options;
    char *path; /* the checkpoint */
} job;

/* DIR is a checkpoint, or a folder of them. */
static ndm_status find(const char *folder, char **path)
{
    char name[NDM_CHECKPOINT_NAME_BYTES];
    char *trainer = ndm_text_printf("%s/" NDM_CHECKPOINT_TRAINER, folder);
    bool is_one = trainer && ndm_file_exists(trainer);
    int64_t step = 0;

    free(trainer);
    if (!ndm_file_is_dir(folder))
        NDM_FAIL(NDM_ERR_IO, "%s: there is no such folder", folder);
    if (!is_one)
        NDM_TRY(ndm_checkpoint_find_latest(folder, &step, name));
    if (step < 0)
        NDM_FAIL(NDM_ERR_FORMAT, "%s: is no checkpoint, and has no complete one in it", folder);
    *path = is_one ? ndm_text_duplicate(folder) : ndm_text_printf("%s/%s", folder, name);
    if (!*path)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for a path");
    return NDM_OK;
}

/* ---- inspect ------------------------------------------------------------------------------ */

static void shape_text(const ndm_tensor_info *info, char *text, size_t bytes)
{
    size_t used = 0;

    text[0] = '\0';
    for (int d = 0; d < info->ndim && used < bytes; d++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%" PRId64, d ? " x " : "",
                                 info->shape[d]);
}

static void print_facts(const job *j, const ndm_checkpoint_facts *f)
{
    printf("checkpoint    %s\n", j->path);
    printf("step          %" PRId64 "\n", f->state.step);
    printf("tokens_total  %" PRId64 "\n", f->state.tokens_total);
    printf("samples       %" PRId64 "\n", f->state.samples);
    printf("seed          %" PRIu64 "\n", f->state.seed);
    printf("model_dtype   %s\n", ndm_dtype_name(f->model_dtype));
    printf("saved by      ndmesh %s on", f->version);
    for (int a = 0; a < NDM_AXIS_COUNT; a++)
        printf("%s %s %" PRId64, a ? " x" : "", ndm_axis_table()[a].name, f->mesh[a]);
    putchar('\n');
}

static void print_tensors(const ndm_safetensors *reader)
{
    char shape[256];

    printf("\n%-6s  %-20s  %s\n", "dtype", "shape", "tensor");
    for (int64_t i = 0; i < ndm_safetensors_count(reader); i++) {
        const ndm_tensor_info *info = ndm_safetensors_at(reader, i);
        shape_text(info, shape, sizeof shape);
        printf("%-6s  %-20s  %s\n", ndm_dtype_name(info->dtype), shape, info->name);
    }
}

static void json_facts(const job *j, const ndm_checkpoint_facts *f, ndm_json *json)
{
    ndm_json_key_string(json, "checkpoint", j->path);
    ndm_json_key_int(json, "step", f->state.step);
    ndm_json_key_int(json, "tokens_total", f->state.tokens_total);
    ndm_json_key_int(json, "samples", f->state.samples);
    ndm_json_key_int(json, "seed", (int64_t)f->state.seed);
    ndm_json_key_string(json, "model_dtype", ndm_dtype_name(f->model_dtype));
    ndm_json_key_string(json, "version", f->version);
    ndm_json_key(json, "mesh");
    ndm_json_begin_object(json);
    for (int a = 0; a < NDM_AXIS_COUNT; a++)
        ndm_json_key_int(json, ndm_axis_table()[a].name, f->mesh[a]);
    ndm_json_end_object(json);
}

static void json_tensors(const ndm_safetensors *reader, ndm_json *json)
{
    for (int64_t i = 0; i < ndm_safetensors_count(reader); i++) {
        const ndm_tensor_info *info = ndm_safetensors_at(reader, i);
        ndm_json_begin_object(json);
        ndm_json_key_string(json, "name", info->name);
        ndm_json_key_string(json, "dtype", ndm_dtype_name(info->dtype));
        ndm_json_key(json, "shape");
        ndm_json_begin_array(json);
        for (int d = 0; d < info->ndim; d++)
            ndm_json_int(json, info->shape[d]);
        ndm_json_end_array(json);
        ndm_json_key_string(json, "file", ndm_safetensors_path(reader, info->file));
        ndm_json_end_object(json);
    }
}

static ndm_status inspect_text(const job *j, const ndm_checkpoint_facts *facts,
                               ndm_safetensors *const *readers)
{
    print_facts(j, facts);
    for (int i = 0; i < NDM_CHECKPOINT_STEMS; i++)
        print_tensors(readers[i]);
    return NDM_OK;
}

static ndm_status inspect_json(const job *j, const ndm_checkpoint_facts *facts,
                               ndm_safetensors *const *readers)
{
    ndm_json json;

    ndm_json_init_file(&json, stdout, true);
    ndm_json_begin_object(&json);
    json_facts(j, facts, &json);
    ndm_json_key(&json, "tensors");
    ndm_json_begin_array(&json);
    for (int i = 0; i < NDM_CHECKPOINT_STEMS; i++)
        json_tensors(readers[i], &json);
    ndm_json_end_array(&json);
    ndm_json_end_object(&json);
    return ndm_json_finish(&json);
}

static ndm_status inspect(const job *j)
{
    ndm_safetensors *readers[NDM_CHECKPOINT_STEMS] = {NULL};
    ndm_checkpoint_facts facts;
    ndm_status status = NDM_OK;

    NDM_TRY(ndm_checkpoint_facts_read(j->path, &facts));
    for (int i = 0; i < NDM_CHECKPOINT_STEMS && status == NDM_OK; i++)
        status = ndm_safetensors_open_stem(j->path, ndm_checkpoint_stems[i].stem, &readers[i]);
    if (status == NDM_OK)
        status = ndm_option_bool(j->options, "json") ? inspect_json(j, &facts, readers)
                                                     : inspect_text(j, &facts, readers);
    for (int i = 0; i < NDM_CHECKPOINT_STEMS; i++)
        ndm_safetensors_close(readers[i]);
    return status;
}

/* ---- verify ------------------------------------------------------------------------------- */

/* The first fault is the message of the failure; the others are listed. */
typedef struct faults {
    char first[4096];
    ndm_json *json; /* NULL = text */
} faults;

static void on_fault(void *user, const char *message)
{
    faults *f = user;

    if (f->json)
        ndm_json_string(f->json, message);
    else
        printf("%s\n", message);
    if (!f->first[0])
        snprintf(f->first, sizeof f->first, "%s", message);
}

static ndm_status judge(const job *j, const faults *f, int64_t n)
{
    if (n > 0)
        NDM_FAIL(NDM_ERR_CHECK, "%s: %" PRId64 " thing%s not hold: %s", j->path, n,
                 n > 1 ? "s do" : " does", f->first);
    return NDM_OK;
}

static ndm_status verify_json(const job *j)
{
    ndm_json json;
    faults f = {.json = &json};
    ndm_buffer text = {0};
    ndm_status status;
    int64_t n = 0;

    ndm_json_init_buffer(&json, &text, true);
    ndm_json_begin_object(&json);
    ndm_json_key_string(&json, "checkpoint", j->path);
    ndm_json_key(&json, "faults");
    ndm_json_begin_array(&json);
    NDM_TRY_OR(status, ndm_checkpoint_verify(j->path, on_fault, &f, &n), done);
    ndm_json_end_array(&json);
    ndm_json_key_bool(&json, "holds", n == 0);
    ndm_json_end_object(&json);
    NDM_TRY_OR(status, ndm_json_finish(&json), done);
    fputs(text.data, stdout); /* a document that has begun is whole */
    status = judge(j, &f, n);
done:
    ndm_buffer_finish(&text);
    return status;
}

static ndm_status verify(const job *j)
{
    faults f = {0};
    int64_t n = 0;

    if (ndm_option_bool(j->options, "json"))
        return verify_json(j);
    NDM_TRY(ndm_checkpoint_verify(j->path, on_fault, &f, &n));
    NDM_TRY(judge(j, &f, n));
    printf("%s: all checksums hold\n", j->path);
    return NDM_OK;
}

/* ---- export ------------------------------------------------------------------------------- */

static ndm_status export_json(const job *j, const char *to)
{
    ndm_json json;

    ndm_json_init_file(&json, stdout, true);
    ndm_json_begin_object(&json);
    ndm_json_key_string(&json, "checkpoint", j->path);
    ndm_json_key_string(&json, "export", to);
    ndm_json_end_object(&json);
    return ndm_json_finish(&json);
}

static ndm_status export_weights(const job *j)
{
    const char *to = ndm_option_string(j->options, "to");
    ndm_dtype dtype = NDM_DTYPE_COUNT;

    if (!to)
        NDM_FAIL(NDM_ERR_USAGE, "checkpoint export needs --to DIR");
    if (ndm_option_has_value(j->options, "dtype"))
        NDM_TRY(ndm_dtype_parse(ndm_option_string(j->options, "dtype"), &dtype));
    NDM_TRY(ndm_checkpoint_export(j->path, to, dtype, ndm_option_int64(j->options, "shard-size")));
    if (ndm_option_bool(j->options, "json"))
        return export_json(j, to);
    printf("%s: weights of %s\n", to, j->path);
    return NDM_OK;
}

/* ---- the verb ----------------------------------------------------------------------------- */

typedef struct action {
    const char *name;
    ndm_status (*run)(const job *j);
} action;

static const action actions[] = {
    {"inspect", inspect}, {"verify", verify}, {"export", export_weights}};

static ndm_status find_action(const char *name, const action **found)
{
    const char *names[3];

    for (size_t i = 0; i < 3; i++) {
        names[i] = actions[i].name;
        if (strcmp(name, names[i]) != 0)
            continue;
        *found = &actions[i];
        return NDM_OK;
    }
    const char *near = ndm_text_nearest(name, names, 3);
    NDM_FAIL(NDM_ERR_USAGE, "checkpoint: unknown action '%.64s'; %s%s", name,
             near ? "did you mean " : "inspect, verify and export are known", near ? near : "");
}

/* The others write nothing. */
static ndm_status refuse_options_of_export(const ndm_options *o, const char *asked)
{
    static const char *const names[] = {"to", "dtype", "shard-size"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (ndm_option_is_set(o, names[i]))
            NDM_FAIL(NDM_ERR_USAGE, "checkpoint %s: %s is for export alone", asked,
                     ndm_option_origin(o, names[i]));
    return NDM_OK;
}

static ndm_status run_action(const ndm_options *o, const char *const *words, int n)
{
    job j = {.options = o};
    const action *a;

    if (n != 2)
        NDM_FAIL(NDM_ERR_USAGE, "checkpoint: inspect, verify or export, and one folder are needed");
    NDM_TRY(find_action(words[0], &a));
    if (a->run != export_weights)
        NDM_TRY(refuse_options_of_export(o, a->name));
    NDM_TRY(find(words[1], &j.path));
    ndm_status status = a->run(&j);
    free(j.path);
    return status;
}

static int run(int argc, const char *const *argv)
{
    const char **words = calloc((size_t)argc + 1, sizeof *words);
    ndm_options *o = NULL;
    int n = 0;
    ndm_status status = words ? ndm_cli_options(&table, argc, argv, words, &n, &o) : NDM_ERR_MEMORY;

    if (status == NDM_OK)
        status = run_action(o, words, n);
    ndm_options_destroy(o);
    free(words);
    return ndm_cli_report(status);
}

const ndm_verb ndm_verb_checkpoint = {&table, run, true};
