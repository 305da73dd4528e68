/* SPDX-License-Identifier: Apache-2.0 */
/* Training data: streams of tokens, mixed by weight, and which sample a number stands for. */
#include "train/data.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/rng.h"
#include "core/text.h"
#include "train/data_mix.h"
#include "train/data_stream.h"

struct ndm_data {
    ndm_token_stream *streams; /* [stream_count]; several only where they are mixed by weight */
    bool *wrapped;             /* [stream_count] */
    int64_t stream_count;
    ndm_mix mix; /* if stream_count > 1 */
    bool shuffle;
    uint64_t seed;
};

/* ---- what is asked for -------------------------------------------------------------------- */

/* Paths, and weights where they have some. */
typedef struct source_list {
    char **paths;    /* [count] */
    double *weights; /* [count], 0 = none */
    int64_t count;
} source_list;

static void finish_list(source_list *l)
{
    for (int64_t i = 0; i < l->count; i++)
        free(l->paths[i]);
    free(l->paths);
    free(l->weights);
}

/* "a.bin:0.7" is weight 0.7 of length 5; 0 where text does not end in a weight. */
static double weight_of(const char *text, size_t bytes, size_t *path_bytes)
{
    const char *colon = memrchr(text, ':', bytes);
    char *end;
    double weight;

    *path_bytes = bytes;
    if (!colon || colon == text || colon + 1 == text + bytes || strchr(" +-", colon[1]))
        return 0.0;
    weight = ndm_text_to_double(colon + 1, &end);
    if (end != text + bytes || isalpha((unsigned char)colon[1]))
        return 0.0;
    *path_bytes = (size_t)(colon - text);
    return weight > 0.0 && isfinite(weight) ? weight : -1.0;
}

/* Room for one more. */
static ndm_status grow_list(source_list *l)
{
    size_t count = (size_t)(l->count + 1);
    void *paths = realloc(l->paths, count * sizeof *l->paths);

    if (paths)
        l->paths = paths;
    void *weights = realloc(l->weights, count * sizeof *l->weights);
    if (weights)
        l->weights = weights;
    if (!paths || !weights)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for %zu data files", count);
    return NDM_OK;
}

static ndm_status add_source(source_list *l, const char *text, size_t bytes)
{
    size_t n;
    double weight = weight_of(text, bytes, &n);

    if (weight < 0.0)
        NDM_FAIL(NDM_ERR_USAGE, "data '%.*s': a weight is a number above 0", (int)bytes, text);
    NDM_TRY(grow_list(l));
    l->weights[l->count] = weight;
    l->paths[l->count] = ndm_text_printf("%.*s", (int)n, text);
    if (!l->paths[l->count])
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for %" PRId64 " data files", l->count + 1);
    l->count++;
    return NDM_OK;
}

/* One text of the option: a path, which may have commas, or several with weights: "a:0.7,b:0.3". */
static ndm_status add_sources(source_list *l, const char *text)
{
    size_t path;

    for (const char *comma; (comma = strchr(text, ',')) != NULL; text = comma + 1) {
        if (weight_of(text, (size_t)(comma - text), &path) == 0.0)
            break;
        NDM_TRY(add_source(l, text, (size_t)(comma - text)));
    }
    return add_source(l, text, strlen(text));
}

static ndm_status check_weights(const source_list *l, const ndm_data_options *o)
{
    int64_t weighted = 0;

    for (int64_t i = 0; i < l->count; i++)
        weighted += l->weights[i] > 0.0;
    if (weighted == 0)
        return NDM_OK;
    if (weighted != l->count)
        NDM_FAIL(NDM_ERR_USAGE,
                 "%" PRId64 " of %" PRId64 " data files have a weight: all have one, or none",
                 weighted, l->count);
    if (o->no_weights)
        NDM_FAIL(NDM_ERR_USAGE,
                 "data '%s' has a weight: evaluation takes every sample once, so weights mean "
                 "nothing there",
                 l->paths[0]);
    if (l->count > 1 && (o->labels || o->documents))
        NDM_FAIL(
            NDM_ERR_USAGE,
            "data with weights is several streams, and %s is for one: put it beside the tokens "
            "of each, in a folder (docs/data.md)",
            o->labels ? o->labels : o->documents);
    return NDM_OK;
}

/* ---- opening ------------------------------------------------------------------------------ */

static ndm_status open_streams(ndm_data *d, const ndm_data_options *o, const source_list *l)
{
    bool mixed = l->count > 1 && l->weights[0] > 0.0;
    int64_t streams = mixed ? l->count : 1;

    d->streams = calloc((size_t)streams, sizeof *d->streams);
    d->wrapped = calloc((size_t)streams, sizeof *d->wrapped);
    if (!d->streams || !d->wrapped)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for %" PRId64 " streams of data", streams);
    for (int64_t i = 0; i < streams; i++) {
        const ndm_token_stream_options so = {.paths = (const char *const *)l->paths + i,
                                             .path_count = mixed ? 1 : l->count,
                                             .labels = o->labels,
                                             .documents = o->documents,
                                             .seq_len = o->seq_len,
                                             .vocab = o->vocab,
                                             .random = o->shuffle};

        NDM_TRY(ndm_token_stream_open(&so, &d->streams[i]));
        d->stream_count = i + 1;
    }
    return mixed ? ndm_mix_init(l->weights, l->count, &d->mix) : NDM_OK;
}

static ndm_status open_all(ndm_data *d, const ndm_data_options *o, source_list *l)
{
    if (o->file_count < 1)
        NDM_FAIL(NDM_ERR_USAGE, "no data file is given");
    if (o->seq_len < 1 || o->vocab < 1)
        NDM_FAIL(NDM_ERR_CONFIG,
                 "seq_len %" PRId64 " and vocabulary %" PRId64 " must be at least 1", o->seq_len,
                 o->vocab);
    d->shuffle = o->shuffle, d->seed = o->seed;
    for (int64_t i = 0; i < o->file_count; i++)
        NDM_TRY(add_sources(l, o->files[i]));
    NDM_TRY(check_weights(l, o));
    return open_streams(d, o, l);
}

ndm_status ndm_data_open(const ndm_data_options *options, ndm_data **data)
{
    ndm_data *d = calloc(1, sizeof *d);
    source_list list = {0};
    ndm_status status;

    if (d == NULL)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory to open data");
    status = open_all(d, options, &list);
    finish_list(&list);
    if (status != NDM_OK) {
        ndm_data_close(d);
        return status;
    }
    *data = d;
    return NDM_OK;
}

void ndm_data_close(ndm_data *d)
{
    if (d == NULL)
        return;
    for (int64_t i = 0; i < d->stream_count; i++)
        ndm_token_stream_close(&d->streams[i]);
    ndm_mix_finish(&d->mix);
    free(d->streams);
    free(d->wrapped);
    free(d);
}

const char *ndm_data_text(const ndm_data *d)
{
    for (int64_t i = 0; i < d->stream_count; i++)
        for (int64_t j = 0; j < d->streams[i].part_count; j++)
            if (strcmp(d->streams[i].parts[j].file.format, "text") == 0)
                return d->streams[i].parts[j].file.map.path;
    return NULL;
}

int64_t ndm_data_tokens(const ndm_data *d)
{
    int64_t sum = 0;

    for (int64_t i = 0; i < d->stream_count; i++)
        sum += d->streams[i].tokens;
    return sum;
}

int64_t ndm_data_samples(const ndm_data *d)
{
    int64_t sum = 0;

    for (int64_t i = 0; i < d->stream_count; i++)
        sum += d->streams[i].samples;
    return sum;
}

int64_t ndm_data_global_batch(const ndm_data_split *s)
{
    return s->micro_batch * s->grad_accum * s->dp;
}

int64_t ndm_data_index(const ndm_data_split *s, int64_t used, int64_t micro, int64_t row)
{
    return used + (micro * s->dp + s->dp_rank) * s->micro_batch + row;
}

/* ---- one sample --------------------------------------------------------------------------- */

static void tell_epoch(ndm_data *d, int64_t stream, int64_t epoch)
{
    if (d->wrapped[stream])
        return;
    d->wrapped[stream] = true;
    ndm_log(NDM_LOG_INFO, "data", "%s: all %" PRId64 " samples are used; epoch %" PRId64 " begins",
            d->streams[stream].parts[0].file.map.path, d->streams[stream].samples, epoch + 1);
}

/* Stream and first token of the sample that number `index` stands for. Each stream has epochs of
 * its own, each in an order of its own. */
static const ndm_token_stream *locate(const ndm_data *d, int64_t index, int64_t *start,
                                      int64_t *epoch)
{
    int64_t k = 0, local = index;

    if (d->stream_count > 1)
        k = ndm_mix_locate(&d->mix, index, &local);
    const ndm_token_stream *s = &d->streams[k];
    int64_t i = local % s->samples;
    *epoch = local / s->samples;
    if (d->shuffle)
        i = (int64_t)ndm_rng_permute(
            d->seed, ndm_rng_stream("data") + ((uint64_t)k << 40) + (uint64_t)*epoch, (uint64_t)i,
            (uint64_t)s->samples);
    *start = i * s->seq_len;
    return s;
}

ndm_status ndm_data_sample(ndm_data *d, int64_t index, int32_t *inputs, int32_t *targets,
                           int32_t *positions, int32_t *first)
{
    const ndm_token_stream *s;
    int64_t start, epoch;

    if (index < 0)
        NDM_FAIL(NDM_ERR_USAGE, "there is no sample %" PRId64, index);
    s = locate(d, index, &start, &epoch);
    if (epoch > 0)
        tell_epoch(d, s - d->streams, epoch);
    return ndm_token_stream_sample(s, start, inputs, targets, positions, first);
}

void ndm_data_advise(const ndm_data *d, int64_t index)
{
    int64_t start, epoch;
    const ndm_token_stream *s = locate(d, index, &start, &epoch);

    ndm_token_stream_advise(s, start);
}
