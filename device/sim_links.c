/* SPDX-License-Identifier: Apache-2.0 */
/* The time table of a link. Work fills the gaps that earlier work has left: a link that several
 * collectives want is never idle and never busy twice, whatever the order in which they are known.
 */
#include "device/sim_links.h"

#include <stdlib.h>
#include <string.h>

/* Index of the first interval that ends after t. */
static int64_t find(const ndm_sim_times *s, double t)
{
    int64_t low = s->first, high = s->n;

    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (s->items[middle].end > t)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static ndm_status make_room(ndm_sim_times *s)
{
    if (s->n < s->capacity)
        return NDM_OK;
    if (s->first > s->capacity / 2) {
        memmove(s->items, s->items + s->first, (size_t)(s->n - s->first) * sizeof *s->items);
        s->n -= s->first;
        s->first = 0;
        return NDM_OK;
    }
    int64_t capacity = s->capacity ? 2 * s->capacity : 64;
    ndm_sim_interval *items = realloc(s->items, (size_t)capacity * sizeof *items);
    if (!items)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for a link's %lld times", (long long)capacity);
    s->items = items;
    s->capacity = capacity;
    return NDM_OK;
}

/* Replaces intervals [at, to) by one that covers them and the time between. */
static ndm_status replace(ndm_sim_times *s, int64_t at, int64_t to, ndm_sim_interval with)
{
    if (at == to) {
        int64_t first = s->first;
        NDM_TRY(make_room(s));
        at -= first - s->first;
        memmove(s->items + at + 1, s->items + at, (size_t)(s->n - at) * sizeof *s->items);
        s->n++;
    } else {
        memmove(s->items + at + 1, s->items + to, (size_t)(s->n - to) * sizeof *s->items);
        s->n -= to - at - 1;
    }
    s->items[at] = with;
    return NDM_OK;
}

ndm_status ndm_sim_times_take(ndm_sim_times *s, double past, double from, double ns, double *end)
{
    while (s->first < s->n && s->items[s->first].end < past)
        s->first++;
    *end = from;
    if (ns <= 0.0)
        return NDM_OK;
    int64_t at = find(s, from), to = at;
    ndm_sim_interval all = {from, from};
    if (at < s->n && s->items[at].begin <= from)
        all.begin = s->items[at].begin;
    double now = from;
    for (; to < s->n; to++) {
        double gap = s->items[to].begin - now;
        if (gap > 0.0 && ns < gap)
            break;
        ns -= gap > 0.0 ? gap : 0.0;
        now = s->items[to].end;
    }
    *end = now + ns;
    all.end = *end;
    return replace(s, at, to, all);
}

double ndm_sim_times_slowed(const ndm_sim_times *s, double from, double ns, double share)
{
    double now = from;

    for (int64_t i = find(s, from); i < s->n; i++) {
        double free = s->items[i].begin - now;
        if (free > 0.0) {
            if (ns <= free)
                return now + ns;
            ns -= free;
            now = s->items[i].begin;
        }
        double beside = (s->items[i].end - now) / (1.0 + share);
        if (ns <= beside)
            return now + ns * (1.0 + share);
        ns -= beside;
        now = s->items[i].end;
    }
    return now + ns;
}

void ndm_sim_times_finish(ndm_sim_times *s)
{
    free(s->items);
}
