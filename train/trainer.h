/* SPDX-License-Identifier: Apache-2.0 */
/* What a run needs of a trainer besides the public header. */
#ifndef NDM_TRAIN_TRAINER_H
#define NDM_TRAIN_TRAINER_H

#include <ndmesh/trainer.h>

/* After loading a checkpoint: steps done, and valid tokens seen. */
void ndm_trainer_set_progress(ndm_trainer *trainer, int64_t steps, int64_t tokens_total);

ndm_model *ndm_trainer_model(const ndm_trainer *trainer);
const ndm_trainer_options *ndm_trainer_get_options(const ndm_trainer *trainer);
int64_t ndm_trainer_tokens_total(const ndm_trainer *trainer);

/* As ndm_trainer_request_stop(), with a reason above 0, which all ranks then know: the largest, if
 * there are several. */
void ndm_trainer_request_stop_for(ndm_trainer *trainer, int reason);
int ndm_trainer_stopped_for(const ndm_trainer *trainer); /* 0: nobody asked */

/* Micro-batch i of a step's batch. */
ndm_batch ndm_trainer_micro_batch(const ndm_trainer *trainer, const ndm_batch *batch, int64_t i);

/* Called in every step when gradients are reduced and weights not yet changed. */
void ndm_trainer_before_update(ndm_trainer *trainer, ndm_status (*call)(void *user), void *user);

#endif
