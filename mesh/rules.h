/* SPDX-License-Identifier: Apache-2.0 */
/* Divisibility of a model and a batch over a mesh, checked before any communicator exists. */
#ifndef NDM_MESH_RULES_H
#define NDM_MESH_RULES_H

#include <ndmesh/mesh.h>

/* Sizes that the caller pads up to a multiple instead of having them refused. */
typedef enum ndm_mesh_padding {
    NDM_PAD_FFN = 1,
    NDM_PAD_VOCAB = 2,
    NDM_PAD_SEQ = 4,    /* a sequence to 2 * cp (or cp) */
    NDM_PAD_TOKENS = 8, /* a rank's tokens to tp */
} ndm_mesh_padding;

/* What a model and a run ask of the mesh; 0 = unknown, its rule is not checked. */
typedef struct ndm_mesh_demands {
    int64_t heads, kv_heads; /* attention heads, and heads of keys and values */
    int64_t ffn;             /* width of the feed-forward layer */
    int64_t vocab;           /* rows of the embedding */
    int64_t seq_len;         /* tokens of a sample */
    int64_t micro_batch;     /* samples per data-parallel rank and forward */
    int64_t global_batch;    /* samples per optimizer step over all ranks */
    ndm_cp_method
        cp_method; /* AUTO and RING balance causal attention: 2 * cp chunks; the others cp */
    bool sequence_parallel; /* activations between tp regions are split by token */
    unsigned padded;        /* ndm_mesh_padding bits */
} ndm_mesh_demands;

/* NDM_ERR_CONFIG: the first rule that fails, in one sentence with numbers, and how many others fail
 * too. */
NDM_MUST_USE ndm_status ndm_mesh_check(const ndm_mesh *mesh, const ndm_mesh_demands *demands);

/* The rules one by one, i in 0..count-1. `holds` writes the sentence to text when it answers false.
 */
int ndm_mesh_rule_count(void);
const char *ndm_mesh_rule_name(int i);
bool ndm_mesh_rule_holds(int i, const ndm_mesh *mesh, const ndm_mesh_demands *demands, char *text,
                         size_t text_bytes);

#endif
