/* SPDX-License-Identifier: Apache-2.0 */
/* One stream of tokens: files one behind the other, each with its labels and documents, cut into
 * samples. */
#ifndef NDM_TRAIN_DATA_STREAM_H
#define NDM_TRAIN_DATA_STREAM_H

#include <stdbool.h>
#include <stdint.h>

#include <ndmesh/status.h>

#include "train/data_documents.h"
#include "train/data_file.h"

typedef struct ndm_token_part {
    ndm_token_file file;
    ndm_mapped labels_map;       /* its own; bytes NULL if it has none */
    const unsigned char *labels; /* int32 a token, or NULL: the tokens themselves */
    const char *labels_path;     /* for messages */
    ndm_documents documents;
    int64_t start;          /* its first token in the stream */
    int64_t first_document; /* its first document in the stream */
} ndm_token_part;

typedef struct ndm_token_stream {
    ndm_token_part *parts; /* [part_count] */
    int64_t part_count;
    ndm_mapped labels;       /* over all parts, or bytes NULL */
    ndm_documents documents; /* over all parts, instead of the parts' own */
    int64_t document_count;  /* 0: nothing is known of documents */
    int64_t tokens, samples;
    int64_t seq_len, vocab;
} ndm_token_stream;

typedef struct ndm_token_stream_options {
    const char *const *paths; /* [path_count]: files, or folders that tools/prepare.py wrote */
    int64_t path_count;
    const char *labels, *documents; /* over all files; NULL: what comes with each file */
    int64_t seq_len, vocab;
    bool random; /* advice on the order of reads */
} ndm_token_stream_options;

NDM_MUST_USE ndm_status ndm_token_stream_open(const ndm_token_stream_options *options,
                                              ndm_token_stream *stream);
void ndm_token_stream_close(ndm_token_stream *stream);

/* The sample that begins at token `start`, as ndm_data_sample() says. */
NDM_MUST_USE ndm_status ndm_token_stream_sample(const ndm_token_stream *stream, int64_t start,
                                                int32_t *inputs, int32_t *targets,
                                                int32_t *positions, int32_t *first);

/* That sample will be read soon: lets the system fetch it meanwhile. */
void ndm_token_stream_advise(const ndm_token_stream *stream, int64_t start);

#endif
