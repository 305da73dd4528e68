/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes of a mesh that nobody gave: the planner's fastest that fits. */
#ifndef NDM_TRAIN_AUTO_MESH_H
#define NDM_TRAIN_AUTO_MESH_H

#include "core/option.h"
#include "train/plan.h"

/* Whether the options leave more than one size open: several are -1, or all that are not given are
 * wanted open, by `search` or --mesh auto. Then sizes, [NDM_AXIS_COUNT], are those that are given,
 * and 0 where they are open. */
bool ndm_auto_mesh_sizes(const ndm_options *options, bool search, int64_t *sizes);

/* NDM_ERR_USAGE where the flag `name`, which is for sizes that are open, is given and none are; a
 * warning where it comes from elsewhere. */
NDM_MUST_USE ndm_status ndm_auto_mesh_refuse_idle(const ndm_options *options, const char *name);

/* Fills the request's mesh: the fastest of all that have the given sizes and fit.
 *
 * request: all but machine and stack. cluster: a profile, or NULL: the CPUs of this machine, whose
 * ranks share its cores and memory. why: what was chosen, and what was next. NDM_ERR_CONFIG if no
 * mesh runs, with a reason. */
NDM_MUST_USE ndm_status ndm_auto_mesh_choose(ndm_plan_request *request, const char *cluster,
                                             int64_t hosts, const int64_t *sizes, char *why,
                                             size_t why_bytes);

#endif
