/* SPDX-License-Identifier: Apache-2.0 */
/* Opens and checks tables of documents.
 *
 * Megatron's index: "MMIDIDX\0\0", int64 version 1, a byte for the type, int64 sequences n, int64
 * entries m; then int32 lengths[n] in tokens, int64 pointers[n] in bytes, int64 documents[m] (the
 * sequence at which each starts, then n), and for several modalities a byte a sequence. */
#include "train/data_documents.h"

#include <inttypes.h>
#include <string.h>

enum { HEAD_BYTES = 34, VERSION_AT = 9, SEQUENCES_AT = 18, ENTRIES_AT = 26 };

/* In place, while the table is checked. */
static int64_t load(const unsigned char *table, int64_t i)
{
    int64_t value;

    memcpy(&value, table + i * (int64_t)sizeof value, sizeof value);
    return value;
}

static ndm_status check_offsets(const ndm_documents *d, int64_t tokens)
{
    int64_t before = -1;

    for (int64_t i = 0; i < d->count; i++) {
        int64_t start = load(d->offsets, i);

        if (i == 0 && start != 0)
            NDM_FAIL(NDM_ERR_FORMAT, "%s: the first document starts at token %" PRId64 ", not 0",
                     d->map.path, start);
        if (start <= before || start >= tokens)
            NDM_FAIL(NDM_ERR_FORMAT,
                     "%s: document %" PRId64 " starts at token %" PRId64
                     ", which is not within %" PRId64 " to %" PRId64,
                     d->map.path, i, start, before + 1, tokens - 1);
        before = start;
    }
    return NDM_OK;
}

ndm_status ndm_documents_open(const char *path, int64_t tokens, ndm_documents *d)
{
    *d = (ndm_documents){.width = 1};
    NDM_TRY(ndm_mapped_open(path, false, &d->map));
    if (d->map.size % 8 != 0)
        NDM_FAIL(NDM_ERR_FORMAT, "%s: %" PRId64 " bytes are no whole number of int64 offsets", path,
                 d->map.size);
    d->offsets = d->map.bytes;
    d->count = d->map.size / 8;
    return check_offsets(d, tokens);
}

/* Sequences must lie one behind the other, and fill the token file. */
static ndm_status check_sequences(const ndm_documents *d, int64_t n, int64_t tokens)
{
    const unsigned char *lengths = d->map.bytes + HEAD_BYTES;
    int64_t next = 0;

    for (int64_t i = 0; i < n; i++) {
        int64_t pointer = load(d->offsets, i);
        int32_t length;

        memcpy(&length, lengths + i * 4, sizeof length);
        if (pointer != next * d->width || length < 0 || length > tokens - next)
            NDM_FAIL(NDM_ERR_FORMAT,
                     "%s: sequence %" PRId64 " has %" PRId32 " tokens from byte %" PRId64
                     "; %" PRId64 " of the %" PRId64 " tokens are before it",
                     d->map.path, i, length, pointer, next, tokens);
        next += length;
    }
    if (next != tokens)
        NDM_FAIL(NDM_ERR_FORMAT, "%s: its sequences have %" PRId64 " tokens, the .bin has %" PRId64,
                 d->map.path, next, tokens);
    return NDM_OK;
}

static ndm_status check_order(const ndm_documents *d, int64_t n, int64_t entries)
{
    int64_t before = 0;

    for (int64_t i = 0; i < entries; i++) {
        int64_t at = load(d->order, i);

        if ((i == 0 && at != 0) || at < before || at > n || (i == entries - 1 && at != n))
            NDM_FAIL(NDM_ERR_FORMAT,
                     "%s: entry %" PRId64 " of its documents is sequence %" PRId64
                     "; they ascend from 0 to %" PRId64,
                     d->map.path, i, at, n);
        before = at;
    }
    return NDM_OK;
}

/* Documents that start where the tokens end are empty, and nothing asks for them. */
static void drop_last_empty(ndm_documents *d, int64_t n)
{
    while (d->count > 0 && load(d->order, d->count - 1) >= n)
        d->count--;
}

static ndm_status read_index(ndm_documents *d, int64_t tokens)
{
    int64_t size = d->map.size, n, entries;

    if (size < HEAD_BYTES)
        NDM_FAIL(NDM_ERR_FORMAT, "%s: %" PRId64 " bytes are too few for an index", d->map.path,
                 size);
    if (load(d->map.bytes + VERSION_AT, 0) != 1)
        NDM_FAIL(NDM_ERR_FORMAT, "%s: version %" PRId64 " of the index is not known; 1 is",
                 d->map.path, load(d->map.bytes + VERSION_AT, 0));
    n = load(d->map.bytes + SEQUENCES_AT, 0);
    entries = load(d->map.bytes + ENTRIES_AT, 0);
    if (n < 1 || entries < 2 || n > size / 12 || entries > size / 8 ||
        (size != HEAD_BYTES + 12 * n + 8 * entries && size != HEAD_BYTES + 13 * n + 8 * entries))
        NDM_FAIL(NDM_ERR_FORMAT,
                 "%s: %" PRId64 " bytes do not hold the %" PRId64 " sequences and %" PRId64
                 " document entries that it announces",
                 d->map.path, size, n, entries);
    d->offsets = d->map.bytes + HEAD_BYTES + 4 * n;
    d->order = d->offsets + 8 * n;
    d->count = entries - 1;
    NDM_TRY(check_sequences(d, n, tokens));
    NDM_TRY(check_order(d, n, entries));
    drop_last_empty(d, n);
    return NDM_OK;
}

ndm_status ndm_documents_open_index(const char *path, int64_t tokens, int width, ndm_documents *d)
{
    *d = (ndm_documents){.width = width};
    NDM_TRY(ndm_mapped_open(path, false, &d->map));
    return read_index(d, tokens);
}

static ndm_status read_entry(const ndm_documents *d, const unsigned char *table, int64_t i,
                             int64_t *value)
{
    int64_t bytes = (int64_t)sizeof *value;

    return ndm_mapped_copy(d->map.path, table + i * bytes, bytes, value);
}

/* Sequence at which document i starts. The file may have been written over since it was checked. */
static ndm_status sequence_of(const ndm_documents *d, int64_t i, int64_t *sequence)
{
    int64_t n = (d->order - d->offsets) / (int64_t)sizeof *sequence;

    NDM_TRY(read_entry(d, d->order, i, sequence));
    if (*sequence < 0 || *sequence >= n)
        NDM_FAIL(NDM_ERR_FORMAT,
                 "%s: document %" PRId64 " is sequence %" PRId64 " of %" PRId64
                 ", which it was not: the file was written over",
                 d->map.path, i, *sequence, n);
    return NDM_OK;
}

ndm_status ndm_documents_start(const ndm_documents *d, int64_t i, int64_t *token)
{
    if (d->order)
        NDM_TRY(sequence_of(d, i, &i));
    NDM_TRY(read_entry(d, d->offsets, i, token));
    *token /= d->width;
    return NDM_OK;
}

void ndm_documents_close(ndm_documents *d)
{
    ndm_mapped_close(&d->map);
    *d = (ndm_documents){0};
}
