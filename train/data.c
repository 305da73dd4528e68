/* SPDX-License-Identifier: Apache-2.0 */
/* Training data: samples from a stream of tokens, its labels and its documents. */
#include "train/data.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/rng.h"
#include "train/data_file.h"

struct ndm_data {
    ndm_token_file *files; /* [file_count] */
    int64_t *starts;       /* [file_count + 1]: first token of each file in the stream */
    int64_t file_count;
    ndm_mapped labels, documents; /* bytes NULL if there are none */
    int64_t document_count;
    int64_t tokens, samples, seq_len, vocab;
    bool shuffle, wrapped;
    uint64_t seed;
};

static int64_t document_at(const ndm_data *d, int64_t i)
{
    int64_t start;

    memcpy(&start, d->documents.bytes + i * (int64_t)sizeof start, sizeof start);
    return start;
}

static ndm_status open_files(ndm_data *d, const ndm_data_options *o)
{
    d->files = calloc((size_t)o->file_count, sizeof *d->files);
    d->starts = calloc((size_t)o->file_count + 1, sizeof *d->starts);
    if (d->files == NULL || d->starts == NULL)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for %" PRId64 " data files", o->file_count);
    for (int64_t i = 0; i < o->file_count; i++) {
        d->file_count = i + 1;
        NDM_TRY(ndm_token_file_open(o->files[i], o->vocab, o->shuffle, &d->files[i]));
        ndm_log(NDM_LOG_INFO, "data", "%s: %" PRId64 " tokens (%s)", o->files[i], d->files[i].count,
                d->files[i].format);
        d->starts[i + 1] = d->starts[i] + d->files[i].count;
    }
    d->tokens = d->starts[o->file_count];
    return NDM_OK;
}

static ndm_status open_labels(ndm_data *d, const char *path)
{
    NDM_TRY(ndm_mapped_open(path, d->shuffle, &d->labels));
    if (d->labels.size % 4 != 0 || d->labels.size / 4 != d->tokens)
        NDM_FAIL(NDM_ERR_FORMAT,
                 "%s: %" PRId64 " bytes are not one int32 for each of the %" PRId64 " tokens", path,
                 d->labels.size, d->tokens);
    return NDM_OK;
}

static ndm_status check_documents(const ndm_data *d)
{
    int64_t before = -1;

    for (int64_t i = 0; i < d->document_count; i++) {
        int64_t start = document_at(d, i);

        if (i == 0 && start != 0)
            NDM_FAIL(NDM_ERR_FORMAT, "%s: the first document starts at token %" PRId64 ", not 0",
                     d->documents.path, start);
        if (start <= before || start >= d->tokens)
            NDM_FAIL(NDM_ERR_FORMAT,
                     "%s: document %" PRId64 " starts at token %" PRId64
                     ", which is not within %" PRId64 " to %" PRId64,
                     d->documents.path, i, start, before + 1, d->tokens - 1);
        before = start;
    }
    return NDM_OK;
}

static ndm_status open_documents(ndm_data *d, const char *path)
{
    NDM_TRY(ndm_mapped_open(path, false, &d->documents));
    if (d->documents.size % 8 != 0)
        NDM_FAIL(NDM_ERR_FORMAT, "%s: %" PRId64 " bytes are no whole number of int64 offsets", path,
                 d->documents.size);
    d->document_count = d->documents.size / 8;
    return check_documents(d);
}

static ndm_status open_all(ndm_data *d, const ndm_data_options *o)
{
    if (o->file_count < 1)
        NDM_FAIL(NDM_ERR_USAGE, "no data file is given");
    if (o->seq_len < 1 || o->vocab < 1)
        NDM_FAIL(NDM_ERR_CONFIG,
                 "seq_len %" PRId64 " and vocabulary %" PRId64 " must be at least 1", o->seq_len,
                 o->vocab);
    d->seq_len = o->seq_len, d->vocab = o->vocab;
    d->shuffle = o->shuffle, d->seed = o->seed;
    NDM_TRY(open_files(d, o));
    d->samples = (d->tokens - 1) / d->seq_len;
    if (d->samples < 1)
        NDM_FAIL(NDM_ERR_CONFIG,
                 "%s: %" PRId64 " tokens are too few for one sample of seq_len %" PRId64 " + 1",
                 o->files[0], d->tokens, d->seq_len);
    if (o->labels != NULL)
        NDM_TRY(open_labels(d, o->labels));
    return o->documents != NULL ? open_documents(d, o->documents) : NDM_OK;
}

ndm_status ndm_data_open(const ndm_data_options *options, ndm_data **data)
{
    ndm_data *d = calloc(1, sizeof *d);
    ndm_status status;

    if (d == NULL)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory to open data");
    status = open_all(d, options);
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
    for (int64_t i = 0; i < d->file_count; i++)
        ndm_mapped_close(&d->files[i].map);
    ndm_mapped_close(&d->labels);
    ndm_mapped_close(&d->documents);
    free(d->files);
    free(d->starts);
    free(d);
}

int64_t ndm_data_tokens(const ndm_data *d)
{
    return d->tokens;
}

int64_t ndm_data_samples(const ndm_data *d)
{
    return d->samples;
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

/* Last i of ascending starts(0..n-1) with starts(i) <= token; starts(0) is 0. */
static int64_t file_of(const ndm_data *d, int64_t token)
{
    int64_t low = 0, high = d->file_count;

    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;

        if (d->starts[middle] <= token)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static int64_t document_of(const ndm_data *d, int64_t token)
{
    int64_t low = 0, high = d->document_count;

    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;

        if (document_at(d, middle) <= token)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Copies tokens [start, start + n) of the stream, over the boundaries of files. */
static ndm_status copy_tokens(const ndm_data *d, int64_t start, int64_t n, int32_t *out)
{
    int64_t f = file_of(d, start);

    for (int64_t i = 0; i < n; i++) {
        int64_t id;

        while (start + i >= d->starts[f + 1])
            f++;
        id = ndm_token_at(&d->files[f], start + i - d->starts[f]);
        if (id >= d->vocab)
            NDM_FAIL(
                NDM_ERR_FORMAT,
                "%s: token %" PRId64 " has id %" PRId64 ", but the vocabulary has %" PRId64 " (%s)",
                d->files[f].map.path, start + i - d->starts[f], id, d->vocab, d->files[f].format);
        out[i] = (int32_t)id;
    }
    return NDM_OK;
}

/* Targets from the labels file: labels of tokens [start, start + n). */
static ndm_status copy_labels(const ndm_data *d, int64_t start, int64_t n, int32_t *out)
{
    memcpy(out, d->labels.bytes + start * 4, (size_t)n * sizeof *out);
    for (int64_t i = 0; i < n; i++) {
        if (out[i] != NDM_IGNORE && (out[i] < 0 || out[i] >= d->vocab))
            NDM_FAIL(NDM_ERR_FORMAT,
                     "%s: label %" PRId64 " is %" PRId32 ", neither %d nor an id below %" PRId64,
                     d->labels.path, start + i, out[i], NDM_IGNORE, d->vocab);
    }
    return NDM_OK;
}

static ndm_status copy_targets(const ndm_data *d, int64_t start, const int32_t *inputs,
                               int32_t *targets)
{
    int64_t n = d->seq_len;

    if (d->labels.bytes != NULL)
        return copy_labels(d, start + 1, n, targets);
    memcpy(targets, inputs + 1, (size_t)(n - 1) * sizeof *targets);
    return copy_tokens(d, start + n, 1, targets + n - 1);
}

static void place_in_sample(const ndm_data *d, int32_t *positions, int32_t *first)
{
    for (int64_t i = 0; i < d->seq_len; i++) {
        positions[i] = (int32_t)i;
        first[i] = 0;
    }
}

/* Positions restart where a document does, nothing before it is seen, and nothing predicts its
 * first token. */
static void place_in_documents(const ndm_data *d, int64_t start, int32_t *targets,
                               int32_t *positions, int32_t *first)
{
    int64_t next = document_of(d, start) + 1, begin = 0;

    for (int64_t i = 0; i < d->seq_len; i++) {
        if (next < d->document_count && document_at(d, next) == start + i)
            begin = i, next++;
        positions[i] = (int32_t)(i - begin);
        first[i] = (int32_t)begin;
        if (next < d->document_count && document_at(d, next) == start + i + 1)
            targets[i] = NDM_IGNORE;
    }
}

/* Sample of the stream that number `index` stands for. */
static int64_t locate(ndm_data *d, int64_t index)
{
    int64_t epoch = index / d->samples, i = index % d->samples;

    if (epoch > 0 && !d->wrapped)
        ndm_log(NDM_LOG_INFO, "data", "all %" PRId64 " samples are used; epoch %" PRId64 " begins",
                d->samples, epoch + 1);
    d->wrapped |= epoch > 0;
    if (!d->shuffle)
        return i;
    return (int64_t)ndm_rng_permute(d->seed, ndm_rng_stream("data") + (uint64_t)epoch, (uint64_t)i,
                                    (uint64_t)d->samples);
}

ndm_status ndm_data_sample(ndm_data *d, int64_t index, int32_t *inputs, int32_t *targets,
                           int32_t *positions, int32_t *first)
{
    int64_t start;

    if (index < 0)
        NDM_FAIL(NDM_ERR_USAGE, "there is no sample %" PRId64, index);
    start = locate(d, index) * d->seq_len;
    NDM_TRY(copy_tokens(d, start, d->seq_len, inputs));
    NDM_TRY(copy_targets(d, start, inputs, targets));
    if (d->documents.bytes != NULL)
        place_in_documents(d, start, targets, positions, first);
    else
        place_in_sample(d, positions, first);
    return NDM_OK;
}
