/* SPDX-License-Identifier: Apache-2.0 */
/* A step as one graph of the device, where all steps are alike. */
#ifndef NDM_TRAIN_STEP_GRAPH_H
#define NDM_TRAIN_STEP_GRAPH_H

#include "strategies/internal.h"

typedef struct ndm_step_graph ndm_step_graph;

/* NDM_ERR_UNSUPPORTED: graphs are on, and the message is the rule that forbids it. */
NDM_MUST_USE ndm_status ndm_step_graph_create(ndm_context *context, ndm_toggle wanted,
                                              int64_t grad_accum, ndm_step_graph **graph);
bool ndm_step_graph_wanted(const ndm_step_graph *graph); /* steps are, or may become, a graph */
void ndm_step_graph_destroy(ndm_step_graph *graph);      /* NULL is fine */

/* Does what `launch` launches: by calling it in the first steps, then by a graph of what it did.
 * It changes the weights of the units. */
NDM_MUST_USE ndm_status ndm_step_graph_run(ndm_step_graph *graph, ndm_status (*launch)(void *user),
                                           void *user, ndm_unit *const *units, int64_t n_units);

#endif
