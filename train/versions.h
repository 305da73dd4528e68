/* SPDX-License-Identifier: Apache-2.0 */
/* What this program is made of: versions of itself, its compiler and the libraries it uses. */
#ifndef NDM_TRAIN_VERSIONS_H
#define NDM_TRAIN_VERSIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/json.h"
#include "device/device.h"

enum { NDM_VERSIONS_MAX = 16, NDM_VERSION_BYTES = 256 };

typedef struct ndm_version {
    const char *name;             /* "mpi", "onednn", ... */
    const char *summary;          /* what it is used for */
    bool there;                   /* otherwise text says why not */
    char text[NDM_VERSION_BYTES]; /* one line */
} ndm_version;

/* Returns how many. Loads the libraries that are loaded when they are used. */
int64_t ndm_versions_read(ndm_version versions[NDM_VERSIONS_MAX]);

/* {"ndmesh": "0.1.0", "compiler": ..., "mpi": ...}: those that a run on this device uses. */
void ndm_versions_write_json(ndm_json *json, const ndm_device *device);

#endif
