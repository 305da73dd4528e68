/* SPDX-License-Identifier: Apache-2.0 */
/* Training data: token files, labels and documents as samples of a fixed length.
 *
 * The files are one stream of tokens. Sample i of an epoch is tokens [i*S, i*S + S] : S inputs and,
 * shifted, S targets. With weights each file is a stream of its own, with its own epochs, and the
 * samples of all are mixed (data_mix.h). Which sample a rank takes depends on the sample's number
 * alone (ndm_data_index), so every split of a step over ranks and micro-batches sees the same
 * samples. */
#ifndef NDM_TRAIN_DATA_H
#define NDM_TRAIN_DATA_H

#include <stdbool.h>
#include <stdint.h>

#include <ndmesh/status.h>

#define NDM_IGNORE (-100) /* a target that does not count */

typedef struct ndm_data_options {
    const char *const *files; /* [file_count]: text (a token is a byte) or token files, told apart
                                 by name and content, or folders with tokens.bin and perhaps
                                 labels.bin and documents.bin. "FILE:0.7", "A:0.7,B:0.3": weights,
                                 for all or none */
    int64_t file_count;
    const char *labels; /* int32, one a token, not shifted, NDM_IGNORE = ignored; NULL: the tokens
                           themselves, or what the folder has */
    const char *documents; /* int64 offsets of tokens that start a document, ascending, the first 0;
                              NULL: what the folder or a Megatron index says, else one document
                            */
    int64_t seq_len;       /* S */
    int64_t vocab;         /* ids are below it */
    bool no_weights;       /* refuse them */
    bool shuffle;          /* each epoch in an order of its own, drawn from seed */
    uint64_t seed;
} ndm_data_options;

typedef struct ndm_data ndm_data;

/* Maps the files and checks what can be checked without reading all of them. NDM_ERR_IO,
 * NDM_ERR_FORMAT (a size or an offset does not fit), NDM_ERR_CONFIG (not even one sample). */
NDM_MUST_USE ndm_status ndm_data_open(const ndm_data_options *options, ndm_data **data);
void ndm_data_close(ndm_data *data); /* NULL is fine */

int64_t ndm_data_tokens(const ndm_data *data);
const char *ndm_data_text(const ndm_data *data); /* path of the first file of text, NULL = none */
int64_t ndm_data_samples(
    const ndm_data *data); /* of one epoch; tokens after the last whole one are not used */

/* One sample, each array [S]. `index` counts on over epochs.
 * inputs: token ids. targets: ids, or NDM_IGNORE. positions: from the start of the document or of
 * the sample, whichever is later. first: the sample's earliest token that this one sees (its
 * document's start, or 0). NDM_ERR_FORMAT: an id or a label is out of range; the message names
 * file, offset, value and vocabulary. */
NDM_MUST_USE ndm_status ndm_data_sample(ndm_data *data, int64_t index, int32_t *inputs,
                                        int32_t *targets, int32_t *positions, int32_t *first);

/* Sample `index` will be read soon: lets the system fetch it meanwhile. */
void ndm_data_advise(const ndm_data *data, int64_t index);

/* How a step is split. */
typedef struct ndm_data_split {
    int64_t micro_batch; /* samples of one rank and forward */
    int64_t grad_accum;  /* micro-batches of a step */
    int64_t dp;          /* data-parallel ranks: dp_replicate x dp_shard */
    int64_t dp_rank;     /* dp_replicate major */
} ndm_data_split;

/* Samples of one step over all ranks. */
int64_t ndm_data_global_batch(const ndm_data_split *split);

/* Number of the sample at `row` of micro-batch `micro` of this rank, in the step that starts after
 * `used` samples. */
int64_t ndm_data_index(const ndm_data_split *split, int64_t used, int64_t micro, int64_t row);

#endif
