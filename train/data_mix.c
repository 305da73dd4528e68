/* SPDX-License-Identifier: Apache-2.0 */
/* Mixtures. A period of samples has a whole number from each source. Their order in it gives every
 * place to the source that is furthest behind its share, so that any stretch of samples has the
 * shares of the whole; it is computed once and repeats. */
#include "train/data_mix.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

/* Shares of the period in whole samples: rounded down, then the largest remainders get what is
 * left. */
static void share_out(const double *weights, int64_t count, int64_t *quotas)
{
    double sum = 0.0;
    int64_t left = NDM_MIX_PERIOD;

    for (int64_t i = 0; i < count; i++)
        sum += weights[i];
    for (int64_t i = 0; i < count; i++) {
        quotas[i] = (int64_t)floor(weights[i] / sum * NDM_MIX_PERIOD);
        left -= quotas[i];
    }
    for (; left > 0; left--) {
        double most = -1.0;
        int64_t best = 0;

        for (int64_t i = 0; i < count; i++) {
            double rest = weights[i] / sum * NDM_MIX_PERIOD - (double)quotas[i];

            if (rest > most)
                most = rest, best = i;
        }
        quotas[best]++;
    }
}

static void order(ndm_mix *m, int32_t *taken)
{
    for (int64_t at = 0; at < NDM_MIX_PERIOD; at++) {
        int64_t most = INT64_MIN, best = 0;

        for (int64_t i = 0; i < m->count; i++) {
            int64_t behind = m->quotas[i] * (at + 1) - (int64_t)taken[i] * NDM_MIX_PERIOD;

            if (taken[i] < m->quotas[i] && behind > most)
                most = behind, best = i;
        }
        m->source[at] = (uint16_t)best;
        m->rank[at] = taken[best]++;
    }
}

static ndm_status allocate(int64_t count, ndm_mix *m, int32_t **taken)
{
    m->count = count;
    m->quotas = calloc((size_t)count, sizeof *m->quotas);
    m->source = calloc(NDM_MIX_PERIOD, sizeof *m->source);
    m->rank = calloc(NDM_MIX_PERIOD, sizeof *m->rank);
    *taken = calloc((size_t)count, sizeof **taken);
    if (m->quotas && m->source && m->rank && *taken)
        return NDM_OK;
    free(*taken);
    ndm_mix_finish(m);
    NDM_FAIL(NDM_ERR_MEMORY, "no memory for a mixture of %" PRId64 " sources", count);
}

ndm_status ndm_mix_init(const double *weights, int64_t count, ndm_mix *mix)
{
    int32_t *taken;

    *mix = (ndm_mix){0};
    if (count > NDM_MIX_SOURCES)
        NDM_FAIL(NDM_ERR_CONFIG, "a mixture of %" PRId64 " sources; at most %d are mixed", count,
                 NDM_MIX_SOURCES);
    NDM_TRY(allocate(count, mix, &taken));
    share_out(weights, count, mix->quotas);
    for (int64_t i = 0; i < count; i++) {
        if (mix->quotas[i] > 0)
            continue;
        free(taken);
        ndm_mix_finish(mix);
        NDM_FAIL(NDM_ERR_CONFIG, "weight %g of source %" PRId64 " is less than 1 sample in %d",
                 weights[i], i, NDM_MIX_PERIOD);
    }
    order(mix, taken);
    free(taken);
    return NDM_OK;
}

void ndm_mix_finish(ndm_mix *m)
{
    free(m->quotas);
    free(m->source);
    free(m->rank);
    *m = (ndm_mix){0};
}

int64_t ndm_mix_locate(const ndm_mix *m, int64_t index, int64_t *local)
{
    int64_t period = index / NDM_MIX_PERIOD, at = index % NDM_MIX_PERIOD;
    int64_t source = m->source[at];

    *local = period * m->quotas[source] + m->rank[at];
    return source;
}
