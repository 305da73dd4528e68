/* SPDX-License-Identifier: Apache-2.0 */
/* A save in its phases. Each phase is local to a rank and may run in a thread; ranks agree between
 * two of them:
 *
 *   create  all plan the same files; the first rank makes them, at their full size
 *   write   every rank writes and hashes the ranges it owns
 *   fill    the blocks that nobody wrote whole are shared out, and hashed from the files
 *   finish  the first rank gathers the hashes, writes trainer.json, and renames the folder
 */
#ifndef NDM_TRAIN_CHECKPOINT_SAVE_H
#define NDM_TRAIN_CHECKPOINT_SAVE_H

#include <stdatomic.h>

#include "model/model.h"
#include "train/checkpoint_files.h"

typedef enum ndm_save_phase {
    NDM_SAVE_IDLE,
    NDM_SAVE_CREATE,
    NDM_SAVE_WRITE,
    NDM_SAVE_FILL,
    NDM_SAVE_FINISH
} ndm_save_phase;

/* Hands out the ranges of a unit that this rank writes: of its weights (stem 0) or a moment. */
typedef ndm_status (*ndm_save_source)(void *user, int64_t unit, int stem, ndm_unit_range_fn write,
                                      void *write_user);

typedef struct ndm_save {
    const ndm_model *model;
    const char *folder;
    const ndm_checkpoint_options *options;
    int64_t rank, world;
    ndm_save_source source; /* called in the phase `write`, by `threads` at once */
    int threads;
    void *source_user;
    ndm_checkpoint_facts facts;
    char *temporary, *path;
    ndm_safetensors_writer *writers[NDM_CHECKPOINT_STEMS];
    int64_t first_file[NDM_CHECKPOINT_STEMS]; /* of a stem, in sums */
    ndm_sums sums;
    int64_t bytes;         /* of all tensor files */
    atomic_llong progress; /* grows with what is written: a sign of life */
} ndm_save;

NDM_MUST_USE ndm_status ndm_save_run_phase(ndm_save *save, ndm_save_phase phase);

/* Frees what the phases made; an unpublished folder is removed by the first rank. */
void ndm_save_finish(ndm_save *save, bool published);

#endif
