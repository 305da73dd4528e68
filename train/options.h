/* SPDX-License-Identifier: Apache-2.0 */
/* The options of `ndmesh train`: flags, YAML keys of Accelerate and Axolotl files, defaults,
 * ranges.
 */
#ifndef NDM_TRAIN_OPTIONS_H
#define NDM_TRAIN_OPTIONS_H

#include <core/option.h>

extern const ndm_option_table ndm_train_option_table;

/* Of the text of an axis' size, which is not 0: what it must be; NULL where it is. */
const char *ndm_train_check_axis(const char *text);

#endif
