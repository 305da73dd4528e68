/* SPDX-License-Identifier: Apache-2.0 */
/* The message of the last failure, kept over calls that may fail as well. */
#ifndef NDM_CORE_ERROR_H
#define NDM_CORE_ERROR_H

#include <stdbool.h>

#include "core/module.h"
#include <ndmesh/status.h>

enum { NDM_ERROR_MESSAGE_BYTES = 4096, NDM_ERROR_WHERE_BYTES = 128 };

typedef struct ndm_error {
    char message[NDM_ERROR_MESSAGE_BYTES];
    char where[NDM_ERROR_WHERE_BYTES];
    bool agreed; /* all ranks have it, and its message says which one it is from */
} ndm_error;

NDM_MODULE_API void ndm_error_keep(ndm_error *error);
NDM_MODULE_API void ndm_error_restore(const ndm_error *error);

#endif
