/* SPDX-License-Identifier: Apache-2.0 */
/* Mixtures: which source each sample of a weighted mix is from, by its number alone. */
#ifndef NDM_TRAIN_DATA_MIX_H
#define NDM_TRAIN_DATA_MIX_H

#include <stdint.h>

#include <ndmesh/status.h>

enum { NDM_MIX_PERIOD = 100000, NDM_MIX_SOURCES = 1000 };

typedef struct ndm_mix {
    int64_t count;
    int64_t *quotas;  /* [count]: samples of each source in a period */
    uint16_t *source; /* [NDM_MIX_PERIOD] */
    int32_t *rank;    /* [NDM_MIX_PERIOD]: how many of that source are before it in the period */
} ndm_mix;

/* weights: [count], positive, of any sum. NDM_ERR_CONFIG: too many, or a share below 1/period. */
NDM_MUST_USE ndm_status ndm_mix_init(const double *weights, int64_t count, ndm_mix *mix);
void ndm_mix_finish(ndm_mix *mix);

/* Sample `index` of the mix is sample *local of the source that is returned. */
int64_t ndm_mix_locate(const ndm_mix *mix, int64_t index, int64_t *local);

#endif
