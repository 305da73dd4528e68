/* SPDX-License-Identifier: Apache-2.0 */
/* Opens a stream of token files and cuts samples out of it. */
#include "train/data_stream.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/log.h"
#include "core/text.h"
#include "train/data.h"

/* ---- opening ------------------------------------------------------------------------------ */

static ndm_status map_labels(const char *path, int64_t tokens, bool random, ndm_mapped *map)
{
    NDM_TRY(ndm_mapped_open(path, random, map));
    if (map->size % 4 != 0 || map->size / 4 != tokens)
        NDM_FAIL(NDM_ERR_FORMAT,
                 "%s: %" PRId64 " bytes are not one int32 for each of the %" PRId64 " tokens", path,
                 map->size, tokens);
    return NDM_OK;
}

static ndm_status open_labels(ndm_token_part *p, const char *path, bool random)
{
    NDM_TRY(map_labels(path, p->file.count, random, &p->labels_map));
    p->labels = p->labels_map.bytes;
    p->labels_path = p->labels_map.path;
    return NDM_OK;
}

static ndm_status open_index(ndm_token_part *p)
{
    const char *path = p->file.map.path;
    char *index = ndm_text_printf("%.*s.idx", (int)(strlen(path) - strlen(".bin")), path);
    ndm_status status;

    if (!index)
        NDM_FAIL(NDM_ERR_MEMORY, "%s: no memory for a path", path);
    status = ndm_documents_open_index(index, p->file.count, p->file.width, &p->documents);
    free(index);
    return status;
}

static ndm_status open_tokens(ndm_token_part *p, const ndm_token_stream_options *o,
                              const char *path)
{
    NDM_TRY(ndm_token_file_open(path, o->vocab, o->random, &p->file));
    ndm_log(NDM_LOG_INFO, "data", "%s: %" PRId64 " tokens (%s)", path, p->file.count,
            p->file.format);
    return strcmp(p->file.format, "megatron") == 0 ? open_index(p) : NDM_OK;
}

/* The first of the names that the folder has; NULL if it has none. The caller frees. */
static ndm_status find_in(const char *folder, const char *const *names, char **path)
{
    for (; *names; names++) {
        *path = ndm_text_printf("%s/%s", folder, *names);
        if (!*path)
            NDM_FAIL(NDM_ERR_MEMORY, "%s: no memory for a path", folder);
        if (ndm_file_exists(*path))
            return NDM_OK;
        free(*path);
    }
    *path = NULL;
    return NDM_OK;
}

/* Labels and documents beside the tokens, unless there are some for all files together. */
static ndm_status open_companions(ndm_token_part *p, const ndm_token_stream_options *o,
                                  char *const paths[2])
{
    if (paths[0])
        NDM_TRY(open_labels(p, paths[0], o->random));
    if (!paths[1])
        return NDM_OK;
    ndm_documents_close(&p->documents); /* an index beside the tokens */
    return ndm_documents_open(paths[1], p->file.count, &p->documents);
}

static ndm_status find_companions(const ndm_token_stream_options *o, const char *folder,
                                  char *paths[2])
{
    if (!o->labels)
        NDM_TRY(find_in(folder, (const char *const[]){"labels.bin", NULL}, &paths[0]));
    if (!o->documents)
        NDM_TRY(find_in(folder, (const char *const[]){"documents.bin", NULL}, &paths[1]));
    return NDM_OK;
}

static ndm_status open_folder(ndm_token_part *p, const ndm_token_stream_options *o,
                              const char *folder)
{
    static const char *const names[] = {"tokens.bin", "tokens.uint16.bin", "tokens.uint32.bin",
                                        NULL};
    char *path;

    NDM_TRY(find_in(folder, names, &path));
    if (!path)
        NDM_FAIL(NDM_ERR_IO, "%s: is a folder without tokens.bin, as tools/prepare.py makes it",
                 folder);
    ndm_status status = open_tokens(p, o, path);
    free(path);
    NDM_TRY(status);
    char *paths[2] = {NULL, NULL};
    status = find_companions(o, folder, paths);
    if (status == NDM_OK)
        status = open_companions(p, o, paths);
    free(paths[0]);
    free(paths[1]);
    return status;
}

static ndm_status open_parts(ndm_token_stream *s, const ndm_token_stream_options *o)
{
    s->parts = calloc((size_t)o->path_count, sizeof *s->parts);
    if (!s->parts)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for %" PRId64 " data files", o->path_count);
    for (int64_t i = 0; i < o->path_count; i++) {
        ndm_token_part *p = &s->parts[i];

        s->part_count = i + 1;
        NDM_TRY(ndm_file_is_dir(o->paths[i]) ? open_folder(p, o, o->paths[i])
                                             : open_tokens(p, o, o->paths[i]));
        p->start = s->tokens;
        s->tokens += p->file.count;
    }
    return NDM_OK;
}

static ndm_status open_common_labels(ndm_token_stream *s, const char *path, bool random)
{
    NDM_TRY(map_labels(path, s->tokens, random, &s->labels));
    for (int64_t i = 0; i < s->part_count; i++) {
        s->parts[i].labels = s->labels.bytes + s->parts[i].start * 4;
        s->parts[i].labels_path = s->labels.path;
    }
    return NDM_OK;
}

/* If one part knows documents, a part that knows none is one. */
static void count_documents(ndm_token_stream *s)
{
    bool any = false;

    for (int64_t i = 0; i < s->part_count; i++)
        any |= s->parts[i].documents.count > 0;
    for (int64_t i = 0; i < s->part_count && any; i++) {
        int64_t n = s->parts[i].documents.count;

        s->parts[i].first_document = s->document_count;
        s->document_count += n > 0 ? n : 1;
    }
}

static ndm_status open_stream(ndm_token_stream *s, const ndm_token_stream_options *o)
{
    s->seq_len = o->seq_len, s->vocab = o->vocab;
    NDM_TRY(open_parts(s, o));
    s->samples = (s->tokens - 1) / s->seq_len;
    if (s->samples < 1)
        NDM_FAIL(NDM_ERR_CONFIG,
                 "%s: %" PRId64 " tokens are too few for one sample of seq_len %" PRId64 " + 1",
                 o->paths[0], s->tokens, s->seq_len);
    if (o->labels)
        NDM_TRY(open_common_labels(s, o->labels, o->random));
    if (!o->documents) {
        count_documents(s);
        return NDM_OK;
    }
    NDM_TRY(ndm_documents_open(o->documents, s->tokens, &s->documents));
    s->document_count = s->documents.count;
    return NDM_OK;
}

ndm_status ndm_token_stream_open(const ndm_token_stream_options *options, ndm_token_stream *stream)
{
    ndm_status status;

    *stream = (ndm_token_stream){0};
    status = open_stream(stream, options);
    if (status != NDM_OK)
        ndm_token_stream_close(stream);
    return status;
}

void ndm_token_stream_close(ndm_token_stream *s)
{
    for (int64_t i = 0; i < s->part_count; i++) {
        ndm_mapped_close(&s->parts[i].file.map);
        ndm_mapped_close(&s->parts[i].labels_map);
        ndm_documents_close(&s->parts[i].documents);
    }
    ndm_mapped_close(&s->labels);
    ndm_documents_close(&s->documents);
    free(s->parts);
    *s = (ndm_token_stream){0};
}

/* ---- one sample --------------------------------------------------------------------------- */

typedef ndm_status (*start_fn)(const ndm_token_stream *s, int64_t i, int64_t *start);

static ndm_status part_start(const ndm_token_stream *s, int64_t i, int64_t *start)
{
    *start = s->parts[i].start;
    return NDM_OK;
}

static ndm_status part_first_document(const ndm_token_stream *s, int64_t i, int64_t *first)
{
    *first = s->parts[i].first_document;
    return NDM_OK;
}

/* Last i below n with start(i) <= value, where starts ascend from 0. */
static ndm_status last_below(const ndm_token_stream *s, int64_t n, int64_t value, start_fn start,
                             int64_t *last)
{
    int64_t low = 0, high = n;

    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2, at;

        NDM_TRY(start(s, middle, &at));
        if (at <= value)
            low = middle;
        else
            high = middle;
    }
    *last = low;
    return NDM_OK;
}

static ndm_status part_of(const ndm_token_stream *s, int64_t value, start_fn start,
                          const ndm_token_part **part)
{
    int64_t i;

    NDM_TRY(last_below(s, s->part_count, value, start, &i));
    *part = &s->parts[i];
    return NDM_OK;
}

/* First token of document i of the stream. */
static ndm_status document_start(const ndm_token_stream *s, int64_t i, int64_t *start)
{
    const ndm_token_part *p;

    if (s->documents.count > 0)
        return ndm_documents_start(&s->documents, i, start);
    NDM_TRY(part_of(s, i, part_first_document, &p));
    *start = 0;
    if (p->documents.count > 0)
        NDM_TRY(ndm_documents_start(&p->documents, i - p->first_document, start));
    *start += p->start;
    return NDM_OK;
}

/* Ids are not wider than what they become: they are read into the end of its place, and widened
 * from the front. */
static ndm_status copy_part_tokens(const ndm_token_stream *s, const ndm_token_part *p, int64_t from,
                                   int64_t n, int32_t *out)
{
    int width = p->file.width;
    unsigned char *read = (unsigned char *)(out + n) - n * width;

    NDM_TRY(ndm_mapped_copy(p->file.map.path, p->file.tokens + from * width, n * width, read));
    for (int64_t i = 0; i < n; i++) {
        int64_t id = ndm_token_at(read, width, i);

        if (id >= s->vocab)
            NDM_FAIL(NDM_ERR_FORMAT,
                     "%s: token %" PRId64 " has id %" PRId64 ", but the vocabulary has %" PRId64
                     " (%s)",
                     p->file.map.path, from + i, id, s->vocab, p->file.format);
        out[i] = (int32_t)id;
    }
    return NDM_OK;
}

static ndm_status copy_part_labels(const ndm_token_stream *s, const ndm_token_part *p, int64_t from,
                                   int64_t n, int32_t *out)
{
    if (!p->labels)
        return copy_part_tokens(s, p, from, n, out);
    NDM_TRY(ndm_mapped_copy(p->labels_path, p->labels + from * 4, n * 4, out));
    for (int64_t i = 0; i < n; i++) {
        if (out[i] != NDM_IGNORE && (out[i] < 0 || out[i] >= s->vocab))
            NDM_FAIL(NDM_ERR_FORMAT,
                     "%s: label %" PRId64 " is %" PRId32 ", neither %d nor an id below %" PRId64,
                     p->labels_path, from + i, out[i], NDM_IGNORE, s->vocab);
    }
    return NDM_OK;
}

/* Tokens or labels [start, start + n) of the stream, part by part. */
static ndm_status copy(const ndm_token_stream *s, int64_t start, int64_t n, int32_t *out,
                       ndm_status (*copy_part)(const ndm_token_stream *, const ndm_token_part *,
                                               int64_t, int64_t, int32_t *))
{
    const ndm_token_part *p;

    NDM_TRY(part_of(s, start, part_start, &p));
    for (int64_t done = 0, more; done < n; done += more, p++) {
        int64_t from = start + done - p->start, left = p->file.count - from;

        more = n - done < left ? n - done : left;
        NDM_TRY(copy_part(s, p, from, more, out + done));
    }
    return NDM_OK;
}

/* Where the document after *next begins, which becomes it; -1 behind the last. */
static ndm_status start_of_next(const ndm_token_stream *s, int64_t *next, int64_t *start)
{
    *start = -1;
    return ++*next < s->document_count ? document_start(s, *next, start) : NDM_OK;
}

/* Positions restart where a document does, nothing before it is seen, and nothing predicts its
 * first token. */
static ndm_status place(const ndm_token_stream *s, int64_t start, int32_t *targets,
                        int32_t *positions, int32_t *first)
{
    int64_t n = s->document_count, begin = 0, next = 0, at = -1;

    if (n > 0) {
        NDM_TRY(last_below(s, n, start, document_start, &next));
        NDM_TRY(start_of_next(s, &next, &at));
    }
    for (int64_t i = 0; i < s->seq_len; i++) {
        while (next < n && at == start + i) { /* more than once: empty documents */
            begin = i;
            NDM_TRY(start_of_next(s, &next, &at));
        }
        positions[i] = (int32_t)(i - begin);
        first[i] = (int32_t)begin;
        if (next < n && at == start + i + 1)
            targets[i] = NDM_IGNORE;
    }
    return NDM_OK;
}

ndm_status ndm_token_stream_sample(const ndm_token_stream *s, int64_t start, int32_t *inputs,
                                   int32_t *targets, int32_t *positions, int32_t *first)
{
    NDM_TRY(copy(s, start, s->seq_len, inputs, copy_part_tokens));
    NDM_TRY(copy(s, start + 1, s->seq_len, targets, copy_part_labels));
    return place(s, start, targets, positions, first);
}

void ndm_token_stream_advise(const ndm_token_stream *s, int64_t start)
{
    const ndm_token_part *p, *end = s->parts + s->part_count;

    if (part_of(s, start, part_start, &p) != NDM_OK)
        return;
    for (int64_t left = s->seq_len + 1; left > 0 && p < end; p++) {
        int64_t from = start + s->seq_len + 1 - left - p->start, n = p->file.count - from;

        n = n < left ? n : left;
        ndm_mapped_advise(p->file.tokens + from * p->file.width, n * p->file.width);
        if (p->labels)
            ndm_mapped_advise(p->labels + from * 4, n * 4);
        left -= n;
    }
}
