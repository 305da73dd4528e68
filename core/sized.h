/* SPDX-License-Identifier: Apache-2.0 */
/* Options structs of callers. They begin with their size, so that a program goes on working with a
 * later library: what its struct has is taken, what was added since is the default. */
#ifndef NDM_CORE_SIZED_H
#define NDM_CORE_SIZED_H

#include <stddef.h>

#include <ndmesh/status.h>

/* Copies `given` over `defaults` into `mine`, all of the struct `type` that has `bytes` bytes here
 * and starts with a size_t, its size. given: NULL = the defaults. Fails with NDM_ERR_USAGE where
 * given's size is too small to be one (it did not begin with its _INIT), or larger than known. */
NDM_MUST_USE ndm_status ndm_sized_take(void *mine, size_t bytes, const void *defaults,
                                       const void *given, const char *type);

/* mine, defaults: structs of `type`; given: a pointer to one, or NULL. */
#define NDM_SIZED_TAKE(type, mine, defaults, given) \
    ndm_sized_take((mine), sizeof(type), &(const type)defaults, (given), #type)

#endif
