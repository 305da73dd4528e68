/* SPDX-License-Identifier: Apache-2.0 */
/* From options to objects: context, model, data, trainer. */
#include "train/run_setup.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/count.h"
#include "core/clock.h"
#include "core/dtype.h"
#include "core/file.h"
#include "core/log.h"
#include "device/count.h"
#include "strategies/internal.h"

/* ---- the context -------------------------------------------------------------------------- */

/* Every option is a fact that ranks must share: a rank started otherwise is named with the option
 * that differs. */
static ndm_status collect_facts(const ndm_options *o, ndm_named_value **facts, int64_t *n)
{
    const ndm_option_table *table = ndm_options_table(o);

    *n = (int64_t)table->n_options;
    *facts = calloc(table->n_options, sizeof **facts);
    if (!*facts)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for %zu options", table->n_options);
    for (size_t i = 0; i < table->n_options; i++) {
        const char *value = ndm_option_string(o, table->options[i].name);
        (*facts)[i] = (ndm_named_value){table->options[i].name, value ? value : ""};
    }
    return NDM_OK;
}

static ndm_status read_order(const ndm_options *o, int64_t **order, size_t *n)
{
    *n = ndm_option_count(o, "order");
    *order = NULL;
    if (*n == 0)
        return NDM_OK;
    *order = calloc(*n, sizeof **order);
    if (!*order)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for an order of %zu ranks", *n);
    for (size_t i = 0; i < *n; i++)
        (*order)[i] = strtoll(ndm_option_item(o, "order", i), NULL, 10);
    return NDM_OK;
}

static ndm_status setup_context(const ndm_options *o, bool dry, ndm_context **context)
{
    ndm_parallelism_config p = NDM_PARALLELISM_CONFIG_INIT;
    ndm_context_options c = NDM_CONTEXT_OPTIONS_INIT;
    ndm_named_value *facts = NULL;
    int64_t *order = NULL;
    size_t n_order;
    ndm_setup_mesh mesh;

    ndm_setup_read_mesh(o, &mesh, &p, &c);
    p.cp_method = (ndm_cp_method)ndm_option_enum(o, "cp-method");
    p.no_sequence_parallel = !ndm_option_bool(o, "sequence-parallel");
    c.device = dry ? ndm_device_count.name : ndm_option_string(o, "backend");
    c.collectives = dry ? "count" : ndm_option_string(o, "collectives");
    c.kernels = ndm_option_string(o, "kernels");
    c.timeout_s = ndm_option_double(o, "timeout");
    c.threads = (int)ndm_option_int64(o, "threads");
    c.progress_thread = dry ? NDM_TOGGLE_OFF : (ndm_toggle)ndm_option_enum(o, "progress-thread");
    c.ranks = ndm_option_int64(o, "ranks");
    c.bind = dry ? NDM_BIND_NONE : (ndm_bind)ndm_option_enum(o, "bind");
    NDM_TRY(read_order(o, &order, &n_order));
    ndm_status status = collect_facts(o, &facts, &c.n_facts);
    p.order = order;
    p.n_order = (int64_t)n_order;
    c.facts = facts;
    if (status == NDM_OK)
        status = ndm_context_create(&p, &c, context);
    if (status == NDM_OK)
        ndm_setup_say_mesh(&mesh, *context);
    free(facts);
    free(order);
    return status;
}

ndm_status ndm_setup_context(const ndm_options *o, ndm_context **context)
{
    return setup_context(o, false, context);
}

ndm_status ndm_setup_dry_context(const ndm_options *o, ndm_context **context)
{
    NDM_TRY(ndm_device_register(&ndm_device_count));
    ndm_count_mimic(ndm_option_string(o, "collectives"));
    return setup_context(o, true, context);
}

ndm_status ndm_setup_count_context(const ndm_options *o, const ndm_context *like,
                                   ndm_context **context)
{
    ndm_parallelism_config p = like->parallelism;
    ndm_context_options c = NDM_CONTEXT_OPTIONS_INIT;

    p.n_order = ndm_context_size(like);
    NDM_TRY(ndm_device_register(&ndm_device_count));
    ndm_count_mimic(ndm_option_string(o, "collectives"));
    c.device = ndm_device_count.name;
    c.collectives = "count";
    c.kernels = ndm_option_string(o, "kernels");
    c.timeout_s = ndm_option_double(o, "timeout");
    c.threads = (int)ndm_option_int64(o, "threads");
    c.progress_thread = NDM_TOGGLE_OFF;
    c.bind = NDM_BIND_NONE;
    return ndm_context_create(&p, &c, context);
}

/* ---- the model ---------------------------------------------------------------------------- */

ndm_status ndm_setup_sharding(const ndm_options *o, ndm_fsdp_config *f)
{
    const char *text = ndm_option_string(o, "reshard-after-forward");
    char *end = NULL;

    f->zero = (int)ndm_option_int64(o, "zero");
    f->reshard_after_forward = strcmp(text, "true") == 0    ? NDM_RESHARD_ALWAYS
                               : strcmp(text, "false") == 0 ? NDM_RESHARD_NEVER
                                                            : strtoll(text, &end, 10);
    if (end && (*end || f->reshard_after_forward < 2))
        NDM_FAIL(NDM_ERR_USAGE,
                 "--reshard-after-forward: '%s': true, false, or a number of ranks above 1", text);
    if (f->zero < 3 && f->reshard_after_forward == NDM_RESHARD_ALWAYS &&
        ndm_option_is_set(o, "reshard-after-forward"))
        NDM_FAIL(NDM_ERR_CONFIG,
                 "reshard_after_forward=true (%s) needs zero=3: with zero=%d (%s) weights stay "
                 "gathered, which is false",
                 ndm_option_origin(o, "reshard-after-forward"), f->zero,
                 ndm_option_origin(o, "zero"));
    return NDM_OK;
}

static ndm_dtype param_dtype(const ndm_options *o, const ndm_context *context)
{
    const char *name = ndm_option_string(o, "dtype");

    if (strcmp(name, "bf16") == 0)
        return NDM_BF16;
    bool automatic = strcmp(name, "auto") == 0;
    return automatic && context && strcmp(ndm_device_name(ndm_context_device(context)), "cuda") == 0
               ? NDM_BF16
               : NDM_F32;
}

static ndm_dtype activation_dtype(const ndm_options *o)
{
    const char *name = ndm_option_string(o, "activation-dtype");

    if (strcmp(name, "auto") == 0)
        return NDM_DTYPE_COUNT;
    return strcmp(name, "bf16") == 0 ? NDM_BF16 : NDM_F32;
}

/* auto goes by what else is given. */
static ndm_status find_wrap(const ndm_options *o, ndm_wrap *wrap)
{
    bool classes = ndm_option_count(o, "wrap-classes") > 0,
         size = ndm_option_is_set(o, "min-num-params");

    *wrap = (ndm_wrap)ndm_option_enum(o, "wrap");
    if (*wrap != NDM_WRAP_AUTO)
        return NDM_OK;
    if (classes && size)
        NDM_FAIL(NDM_ERR_CONFIG,
                 "wrap_classes (%s) and min_num_params (%s) are given, and wrap is auto: "
                 "transformer_based_wrap goes by the first, size_based_wrap by the second",
                 ndm_option_origin(o, "wrap-classes"), ndm_option_origin(o, "min-num-params"));
    *wrap = classes ? NDM_WRAP_TRANSFORMER : size ? NDM_WRAP_SIZE : NDM_WRAP_AUTO;
    return NDM_OK;
}

ndm_status ndm_setup_fsdp(const ndm_options *o, const ndm_context *context, ndm_fsdp_config *f)
{
    NDM_TRY(ndm_setup_sharding(o, f));
    NDM_TRY(find_wrap(o, &f->wrap));
    f->min_num_params = ndm_option_int64(o, "min-num-params");
    f->live_units = ndm_option_int64(o, "live-units");
    f->param_dtype = param_dtype(o, context);
    f->reduce_dtype = strcmp(ndm_option_string(o, "reduce-dtype"), "bf16") == 0 ? NDM_BF16
                                                                                : NDM_F32;
    f->defer_sync = ndm_option_bool(o, "defer-sync");
    f->defer_replicas = ndm_option_bool(o, "defer-replicas");
    f->fp8_gather = ndm_option_bool(o, "fp8-gather");
    return NDM_OK;
}

void ndm_setup_model_options(const ndm_options *o, ndm_model_options *m)
{
    m->micro_batch = ndm_option_int64(o, "micro-batch");
    m->seq_len = ndm_option_int64(o, "seq-len");
    m->recompute = (ndm_recompute)ndm_option_enum(o, "recompute");
    m->head_chunk = ndm_option_int64(o, "head-chunk");
    m->tp_overlap_chunks = ndm_option_int64(o, "tp-overlap-chunks");
    m->activation_dtype = activation_dtype(o);
    m->fp8 = ndm_option_bool(o, "fp8");
    m->label_smoothing = ndm_option_double(o, "label-smoothing");
}

static ndm_status create_model(const ndm_options *o, ndm_context *context, ndm_model **model)
{
    ndm_fsdp_config fsdp = NDM_FSDP_CONFIG_INIT;
    ndm_model_options m = NDM_MODEL_OPTIONS_INIT;
    size_t n = ndm_option_count(o, "wrap-classes");
    const char **classes = calloc(n + 1, sizeof *classes);

    if (!classes)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for %zu class names", n);
    for (size_t i = 0; i < n; i++)
        classes[i] = ndm_option_item(o, "wrap-classes", i);
    ndm_status status = ndm_setup_fsdp(o, context, &fsdp);
    fsdp.wrap_classes = n > 0 ? classes : NULL;
    ndm_setup_model_options(o, &m);
    if (status == NDM_OK)
        status = ndm_model_create(context, ndm_option_string(o, "model"), &fsdp, &m, model);
    free(classes);
    return status;
}

static bool starts_with_one_of(const char *name, const char *const *prefixes)
{
    while (*prefixes && strncmp(name, *prefixes, strlen(*prefixes)) != 0)
        prefixes++;
    return *prefixes != NULL;
}

/* Weights that are there, and not as they are read, must not become random ones. */
static ndm_status refuse_other_weights(const char *folder)
{
    static const char *const prefixes[] = {"pytorch_model",
                                           "consolidated.",
                                           "adapter_model",
                                           "tf_model",
                                           "flax_model",
                                           "model-0",
                                           NULL};
    char found[256] = "";
    DIR *d = opendir(folder);

    for (const struct dirent *e; d && !found[0] && (e = readdir(d));)
        if (starts_with_one_of(e->d_name, prefixes))
            snprintf(found, sizeof found, "%.255s", e->d_name);
    if (d)
        closedir(d);
    if (found[0])
        NDM_FAIL(NDM_ERR_CONFIG,
                 "%s has %s, but neither model.safetensors nor model.safetensors.index.json: "
                 "save its weights as those, or start with --init random",
                 folder, found);
    return NDM_OK;
}

/* Weights if the folder has them, unless random ones are asked for. */
ndm_status ndm_setup_has_weights(const ndm_options *o, bool *has)
{
    const char *model = ndm_option_string(o, "model");
    bool asked = ndm_option_has_value(o, "init");

    *has = asked ? strcmp(ndm_option_string(o, "init"), "weights") == 0
                 : ndm_file_is_dir(model) && ndm_safetensors_present(model, "model");
    if (*has && !ndm_file_is_dir(model))
        NDM_FAIL(NDM_ERR_CONFIG,
                 "--init weights: %s is %s, which has no weights; give --model a folder with "
                 "model.safetensors, or --init random",
                 model, ndm_file_exists(model) ? "a configuration alone" : "a built-in shape");
    return asked || *has ? NDM_OK : refuse_other_weights(model);
}

ndm_status ndm_setup_weights(const ndm_options *o, ndm_model *model, double *read_ms)
{
    double begin = ndm_clock_s();
    bool has;

    *read_ms = 0.0;
    NDM_TRY(ndm_setup_has_weights(o, &has));
    if (!has)
        return ndm_model_init(model, (uint64_t)ndm_option_int64(o, "seed"));
    NDM_TRY(ndm_model_load(model, ndm_option_string(o, "model")));
    *read_ms = (ndm_clock_s() - begin) * 1e3;
    return NDM_OK;
}

ndm_status ndm_setup_empty_model(const ndm_options *o, ndm_context *context, ndm_model **model)
{
    return create_model(o, context, model);
}

ndm_status ndm_setup_model(const ndm_options *o, ndm_context *context, ndm_model **model)
{
    double read_ms;
    ndm_model *m;

    NDM_TRY(create_model(o, context, &m));
    ndm_status status = ndm_setup_weights(o, m, &read_ms);
    if (status != NDM_OK) {
        ndm_model_destroy(m);
        return status;
    }
    *model = m;
    return NDM_OK;
}

/* ---- data and trainer --------------------------------------------------------------------- */

/* Bytes are hardly what a model with a tokenizer has learned. */
static void warn_of_text(const char *model, const ndm_data *data)
{
    static const char *const tokenizers[] = {"tokenizer.json", "tokenizer.model"};
    const char *text = ndm_data_text(data);
    char path[4096];

    for (size_t i = 0; text && i < sizeof tokenizers / sizeof tokenizers[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", model, tokenizers[i]);
        if (!ndm_file_exists(path))
            continue;
        ndm_log(NDM_LOG_WARNING, "data",
                "%s is read as bytes, but there is %s: tools/prepare.py makes its tokens", text,
                path);
        return;
    }
}

ndm_status ndm_setup_data(const ndm_options *o, const char *list, const ndm_model *model,
                          ndm_data **data)
{
    size_t n = ndm_option_count(o, list);
    const char **files = calloc(n + 1, sizeof *files);
    bool training = strcmp(list, "data") == 0;
    ndm_data_options d = {
        .files = files,
        .file_count = (int64_t)n,
        .labels = ndm_option_string(o, training ? "labels" : "eval-labels"),
        .documents = ndm_option_string(o, training ? "documents" : "eval-documents"),
        .seq_len = ndm_model_get_options(model)->seq_len,
        .vocab = ndm_model_vocab(model),
        .no_weights = !training,
        .shuffle = training && ndm_option_bool(o, "shuffle"),
        .seed = (uint64_t)ndm_option_int64(o, "seed"),
    };

    if (!files)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for %zu file names", n);
    for (size_t i = 0; i < n; i++)
        files[i] = ndm_option_item(o, list, i);
    ndm_status status = ndm_context_agree(ndm_model_context(model), ndm_data_open(&d, data));
    free(files);
    if (status == NDM_OK && ndm_context_rank(ndm_model_context(model)) == 0)
        warn_of_text(ndm_option_string(o, "model"), *data);
    return status;
}

/* Steps of warm-up, in number or as a share of the run. */
static ndm_status find_warmup(const ndm_options *o, int64_t *steps)
{
    *steps = ndm_option_int64(o, "warmup");
    if (!ndm_option_has_value(o, "warmup-ratio") || ndm_option_double(o, "warmup-ratio") == 0)
        return NDM_OK;
    if (*steps > 0)
        NDM_FAIL(NDM_ERR_CONFIG,
                 "%s: warmup_ratio=%g beside warmup=%lld (%s); one of them is meant",
                 ndm_option_origin(o, "warmup-ratio"), ndm_option_double(o, "warmup-ratio"),
                 (long long)*steps, ndm_option_origin(o, "warmup"));
    *steps = (int64_t)ceil(ndm_option_double(o, "warmup-ratio") *
                           (double)ndm_option_int64(o, "steps"));
    return NDM_OK;
}

/* The device that counts has no graphs: those of a GPU are not looked for there. */
static ndm_status read_graphs(const ndm_options *o, const ndm_context *context, ndm_toggle *graphs)
{
    *graphs = (ndm_toggle)ndm_option_enum(o, "cuda-graphs");
    if (strcmp(ndm_device_name(ndm_context_device(context)), ndm_device_count.name) != 0)
        return NDM_OK;
    if (*graphs == NDM_TOGGLE_ON && ndm_setup_is_of_host(o, context))
        NDM_FAIL(NDM_ERR_UNSUPPORTED, "%s: graphs are on, but device cpu has none",
                 ndm_option_origin(o, "cuda-graphs"));
    *graphs = NDM_TOGGLE_OFF;
    return NDM_OK;
}

ndm_status ndm_setup_trainer(const ndm_options *o, ndm_model *model, ndm_trainer **trainer)
{
    ndm_trainer_options t = NDM_TRAINER_OPTIONS_INIT;
    ndm_schedule_kind kind;

    NDM_TRY(ndm_schedule_parse(ndm_option_string(o, "lr-schedule"), &kind));
    t.grad_accum = ndm_option_int64(o, "grad-accum");
    NDM_TRY(read_graphs(o, ndm_model_context(model), &t.graphs));
    t.steps = ndm_option_int64(o, "steps");
    t.lr_schedule = (ndm_lr_schedule)kind;
    NDM_TRY(find_warmup(o, &t.warmup));
    t.min_lr_ratio = ndm_option_double(o, "min-lr-ratio");
    t.optimizer.lr = ndm_option_double(o, "lr");
    t.optimizer.beta1 = ndm_option_double(o, "beta1");
    t.optimizer.beta2 = ndm_option_double(o, "beta2");
    t.optimizer.eps = ndm_option_double(o, "eps");
    t.optimizer.weight_decay = ndm_option_double(o, "weight-decay");
    t.optimizer.grad_clip = ndm_option_double(o, "grad-clip");
    t.optimizer.grad_norm = (ndm_grad_norm)ndm_option_enum(o, "grad-norm-type");
    return ndm_trainer_create(model, &t, trainer);
}
