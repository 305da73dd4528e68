/* SPDX-License-Identifier: Apache-2.0 */
/* The objects of a run, each made from the options alone. All are collective over the world. */
#ifndef NDM_TRAIN_RUN_SETUP_H
#define NDM_TRAIN_RUN_SETUP_H

#include "core/option.h"
#include "model/model.h"
#include "model/safetensors.h"
#include "train/data.h"
#include "train/schedule.h"
#include "train/trainer.h"

/* --zero and --reshard-after-forward: what contradicts is refused. Not collective. */
NDM_MUST_USE ndm_status ndm_setup_sharding(const ndm_options *options, ndm_fsdp_config *fsdp);
/* Options of units and models. context: NULL before there is one. Not collective. */
NDM_MUST_USE ndm_status ndm_setup_fsdp(const ndm_options *options, const ndm_context *context,
                                       ndm_fsdp_config *fsdp);
void ndm_setup_model_options(const ndm_options *options, ndm_model_options *model);

/* run_mesh.c: sizes that are given, and a choice of those that are not when the context asks for
 * it: `mesh` must live until then. */
typedef struct ndm_setup_mesh {
    const ndm_options *options;
    int64_t sizes[NDM_AXIS_COUNT]; /* 0 = open */
    char why[400];                 /* on rank 0, if there was a choice */
} ndm_setup_mesh;
void ndm_setup_read_mesh(const ndm_options *options, ndm_setup_mesh *mesh,
                         ndm_parallelism_config *parallelism, ndm_context_options *context);
void ndm_setup_say_mesh(const ndm_setup_mesh *mesh, const ndm_context *context);

NDM_MUST_USE ndm_status ndm_setup_context(const ndm_options *options, ndm_context **context);
/* On the counting device; once in a process. */
NDM_MUST_USE ndm_status ndm_setup_dry_context(const ndm_options *options, ndm_context **context);
NDM_MUST_USE ndm_status ndm_setup_model(const ndm_options *options, ndm_context *context,
                                        ndm_model **model);
/* The mesh and the kernels of another context, on the device that counts. */
NDM_MUST_USE ndm_status ndm_setup_count_context(const ndm_options *options, const ndm_context *like,
                                                ndm_context **context);
/* Counts what the run will take, and fails with NDM_ERR_MEMORY on all ranks if a host has not that
 * much for its ranks (run_fit.c). For a context that has nothing yet. */
NDM_MUST_USE ndm_status ndm_setup_check_memory(const ndm_options *options,
                                               const ndm_context *context);
/* Whether the run computes in the host's memory, also where this context only counts. */
bool ndm_setup_is_of_host(const ndm_options *options, const ndm_context *context);
/* Without weights: a run that goes on loads them from its checkpoint. */
NDM_MUST_USE ndm_status ndm_setup_empty_model(const ndm_options *options, ndm_context *context,
                                              ndm_model **model);
/* Whether the model's folder gives them; refuses --init weights of what has none. */
NDM_MUST_USE ndm_status ndm_setup_has_weights(const ndm_options *options, bool *has);
/* Weights of the folder, or random ones; *read_ms: what reading took, 0 if nothing was read. */
NDM_MUST_USE ndm_status ndm_setup_weights(const ndm_options *options, ndm_model *model,
                                          double *read_ms);
/* list: the option that holds the files, "data" or "eval-data". */
NDM_MUST_USE ndm_status ndm_setup_data(const ndm_options *options, const char *list,
                                       const ndm_model *model, ndm_data **data);
NDM_MUST_USE ndm_status ndm_setup_trainer(const ndm_options *options, ndm_model *model,
                                          ndm_trainer **trainer);

#endif
