/* SPDX-License-Identifier: Apache-2.0 */
/* Folders of checkpoints: names, which are complete, the newest, what goes. On one rank alone. */
#ifndef NDM_TRAIN_CHECKPOINT_FILES_H
#define NDM_TRAIN_CHECKPOINT_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <ndmesh/checkpoint.h>

#include "train/checkpoint_sums.h"

#define NDM_CHECKPOINT_TRAINER "trainer.json"
#define NDM_CHECKPOINT_SUMS "checksums.json"
#define NDM_CHECKPOINT_NAME_BYTES 32

/* The stems of a checkpoint's tensors, and what they add to a parameter's name. */
enum { NDM_CHECKPOINT_STEMS = 3 };
typedef struct ndm_checkpoint_stem {
    const char *stem, *suffix;
} ndm_checkpoint_stem;
extern const ndm_checkpoint_stem ndm_checkpoint_stems[NDM_CHECKPOINT_STEMS]; /* weights first */

/* "step-00000100" */
char *ndm_checkpoint_name(int64_t step, char text[NDM_CHECKPOINT_NAME_BYTES]);

/* The step of a folder's name; false unless it is "step-" and digits. */
bool ndm_checkpoint_parse_name(const char *name, int64_t *step);

/* NDM_OK if trainer.json and every file it stands for are there, with their sizes. Contents are not
 * read. */
NDM_MUST_USE ndm_status ndm_checkpoint_check_complete(const char *path);

/* Highest complete step of a folder, and its name; *step = -1 if there is none. Incomplete ones are
 * passed over with a warning, other names in silence. */
NDM_MUST_USE ndm_status ndm_checkpoint_find_latest(const char *folder, int64_t *step,
                                                   char name[NDM_CHECKPOINT_NAME_BYTES]);

/* Removes complete checkpoints until `keep` are left, lowest steps first, never `written`. What
 * cannot be removed is a warning: nothing that is saved depends on it. */
NDM_MUST_USE ndm_status ndm_checkpoint_retain(const char *folder, int64_t keep, int64_t written);

/* Removes the remains of unfinished saves; likewise. */
NDM_MUST_USE ndm_status ndm_checkpoint_sweep(const char *folder);

/* Puts a written folder in place of `path`, which may exist; durable on return. */
NDM_MUST_USE ndm_status ndm_checkpoint_publish(const char *folder, const char *temporary,
                                               const char *path);

/* Removes a folder of plain files; fine if there is none. */
NDM_MUST_USE ndm_status ndm_checkpoint_remove(const char *path);

/* NDM_ERR_IO with both numbers unless the file system of a folder has room for `bytes`. */
NDM_MUST_USE ndm_status ndm_checkpoint_check_space(const char *folder, int64_t bytes);

/* ---- trainer.json ------------------------------------------------------------------------- */

/* What trainer.json holds besides the options. */
typedef struct ndm_checkpoint_facts {
    ndm_checkpoint_state state;
    char version[32];            /* of ndmesh that saved it */
    ndm_dtype model_dtype;       /* of the model's own files: what an export gives */
    ndm_trainer_options trainer; /* for the reader; a run goes on with its own */
    int64_t mesh[NDM_AXIS_COUNT];
    const char *options_json;              /* NULL = none */
    char sums_hash[NDM_HASH128_HEX_BYTES]; /* of checksums.json */
} ndm_checkpoint_facts;

/* Whether a caller's options_json is what trainer.json can keep: NULL, or an object. */
NDM_MUST_USE ndm_status ndm_checkpoint_check_options_json(const char *text);

NDM_MUST_USE ndm_status ndm_checkpoint_facts_write(const ndm_checkpoint_facts *facts,
                                                   const char *path);

/* Reads trainer.json of a checkpoint, and compares its own checksum. options_json stays NULL. */
NDM_MUST_USE ndm_status ndm_checkpoint_facts_read(const char *checkpoint,
                                                  ndm_checkpoint_facts *facts);

/* The checksums that the facts stand for. Finish with ndm_sums_finish(). */
NDM_MUST_USE ndm_status ndm_checkpoint_sums_read(const char *checkpoint,
                                                 const ndm_checkpoint_facts *facts, ndm_sums *sums);

#endif
