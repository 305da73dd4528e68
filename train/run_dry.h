/* SPDX-License-Identifier: Apache-2.0 */
/* What a dry run found, before it is printed. */
#ifndef NDM_TRAIN_RUN_DRY_H
#define NDM_TRAIN_RUN_DRY_H

#include "train/run_fit.h"
#include "train/run_internal.h"

/* Bytes of a rank, peaks but for the last. */
typedef struct ndm_dry_memory {
    int64_t bytes[NDM_MEMORY_KIND_COUNT];
    int64_t
        device;   /* the peak of all kinds together: not their sum, they peak at different times */
    int64_t host; /* copies for saves in the background */
    int64_t program; /* resident before there was a model; 0 unknown */
} ndm_dry_memory;

typedef struct ndm_dry_report {
    const ndm_training *run;
    ndm_dry_memory mine, worst;
    ndm_fit fit;
} ndm_dry_report;

void ndm_dry_print_text(const ndm_dry_report *report, FILE *out);
NDM_MUST_USE ndm_status ndm_dry_print_json(const ndm_dry_report *report, FILE *out);

#endif
