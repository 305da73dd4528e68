/* SPDX-License-Identifier: Apache-2.0 */
/* Packs processes into positions, innermost axis first: groups are cut from the smallest place that
 * holds a whole one, and what is left over at one level is grouped at the next. On even machines
 * this is the order of the hardware. */
#include "mesh/placement.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/text.h"
#include "mesh/shape.h"

/* A group made so far: `size` processes that keep together from now on. */
typedef struct unit {
    ndm_place_facts facts; /* what all of them share */
    int64_t first;         /* its processes stand at sequence[first...] */
} unit;

typedef struct packer {
    unit *units;       /* [n] */
    unit *merged;      /* [n] */
    int64_t *sequence; /* [world] ranks */
    int64_t *scratch;  /* [world] */
    int64_t *picked;   /* [n] indices of units, group by group */
    bool *taken;       /* [n] */
    int64_t n, n_picked, world, size;
} packer;

static const char *const level_names[NDM_PLACE_LEVELS] = {"host",      "island",   "package",
                                                          "numa node", "l3 cache", "core"};

const char *ndm_place_level_name(ndm_place_level level)
{
    return level_names[level];
}

void ndm_place_facts_settle(ndm_place_facts *facts)
{
    bool known = true;
    for (int l = 0; l < NDM_PLACE_LEVELS; l++) {
        known = known && facts->id[l] != NDM_PLACE_UNKNOWN;
        if (!known)
            facts->id[l] = NDM_PLACE_UNKNOWN;
    }
}

/* Number of levels, from the outermost, at which both are in the same place. */
static int shared_levels(const ndm_place_facts *a, const ndm_place_facts *b)
{
    int l = 0;
    while (l < NDM_PLACE_LEVELS && a->id[l] == b->id[l] && a->id[l] != NDM_PLACE_UNKNOWN)
        l++;
    return l;
}

static void narrow(ndm_place_facts *facts, const ndm_place_facts *other)
{
    for (int l = shared_levels(facts, other); l < NDM_PLACE_LEVELS; l++)
        facts->id[l] = NDM_PLACE_UNKNOWN;
}

/* By place; what is in no one place comes last, and equals stay in order. */
static int compare_units(const void *a, const void *b)
{
    const unit *x = a, *y = b;
    for (int l = 0; l < NDM_PLACE_LEVELS; l++)
        if (x->facts.id[l] != y->facts.id[l])
            return (uint64_t)x->facts.id[l] < (uint64_t)y->facts.id[l] ? -1 : 1;
    return x->first < y->first ? -1 : x->first > y->first;
}

/* Picks all whole groups of k free units that share `level`; level -1: of any. Units are sorted, so
 * those of one place follow each other. */
static void pick_groups(packer *p, int64_t k, int level)
{
    int64_t start = p->n_picked, pending = 0;
    for (int64_t i = 0; i < p->n; i++) {
        const ndm_place_facts *facts = &p->units[i].facts;
        if (p->taken[i] || (level >= 0 && facts->id[level] == NDM_PLACE_UNKNOWN))
            continue;
        if (pending > 0 && level >= 0 &&
            shared_levels(&p->units[p->picked[start]].facts, facts) <= level)
            pending = 0;
        p->picked[start + pending++] = i;
        if (pending < k)
            continue;
        for (int64_t j = 0; j < k; j++)
            p->taken[p->picked[start + j]] = true;
        start += k;
        pending = 0;
    }
    p->n_picked = start;
}

/* Every k picked units become one. */
static void merge_groups(packer *p, int64_t k)
{
    for (int64_t g = 0; g < p->n / k; g++) {
        unit *m = &p->merged[g];
        *m = p->units[p->picked[g * k]];
        for (int64_t j = 0; j < k; j++) {
            const unit *u = &p->units[p->picked[g * k + j]];
            memcpy(p->scratch + (g * k + j) * p->size, p->sequence + u->first,
                   (size_t)p->size * sizeof *p->scratch);
            narrow(&m->facts, &u->facts);
        }
        m->first = g * k * p->size;
    }
    memcpy(p->sequence, p->scratch, (size_t)p->world * sizeof *p->sequence);
    memcpy(p->units, p->merged, (size_t)(p->n / k) * sizeof *p->units);
    p->n /= k;
    p->size *= k;
}

static void pack_axis(packer *p, int64_t k)
{
    qsort(p->units, (size_t)p->n, sizeof *p->units, compare_units);
    memset(p->taken, 0, (size_t)p->n * sizeof *p->taken);
    p->n_picked = 0;
    for (int level = NDM_PLACE_LEVELS - 1; level >= -1; level--)
        pick_groups(p, k, level);
    merge_groups(p, k);
}

static ndm_status packer_init(packer *p, int64_t world, const ndm_place_facts *facts,
                              int64_t *order)
{
    size_t n = (size_t)world;
    *p = (packer){.n = world, .world = world, .size = 1, .sequence = order};
    p->units = calloc(n, sizeof *p->units);
    p->merged = calloc(n, sizeof *p->merged);
    p->scratch = calloc(n, sizeof *p->scratch);
    p->picked = calloc(n, sizeof *p->picked);
    p->taken = calloc(n, sizeof *p->taken);
    if (p->units == NULL || p->merged == NULL || p->scratch == NULL || p->picked == NULL ||
        p->taken == NULL)
        NDM_FAIL(NDM_ERR_MEMORY, "mesh: no memory to place %" PRId64 " ranks", world);
    for (int64_t r = 0; r < world; r++) {
        p->units[r] = (unit){facts[r], r};
        ndm_place_facts_settle(&p->units[r].facts);
        order[r] = r;
    }
    return NDM_OK;
}

static void packer_finish(packer *p)
{
    free(p->units);
    free(p->merged);
    free(p->scratch);
    free(p->picked);
    free(p->taken);
}

ndm_status ndm_placement_order(const ndm_parallelism_config *config, int64_t world,
                               const ndm_place_facts *facts, int64_t *order)
{
    int64_t sizes[NDM_AXIS_COUNT];
    NDM_TRY(ndm_shape_resolve(config, world, sizes));
    if (config->order != NULL) {
        memcpy(order, config->order, (size_t)world * sizeof *order);
        return NDM_OK;
    }
    packer p;
    ndm_status status = packer_init(&p, world, facts, order);
    for (int a = NDM_AXIS_COUNT - 1; a >= 0 && status == NDM_OK; a--)
        if (sizes[a] > 1)
            pack_axis(&p, sizes[a]);
    packer_finish(&p);
    return status;
}

ndm_place_span ndm_placement_span(const ndm_mesh *mesh, const ndm_place_facts *facts,
                                  ndm_axis_set axes)
{
    ndm_place_span span = {0};
    int64_t n = ndm_mesh_size(mesh, axes);
    for (int64_t r = 0; r < ndm_mesh_world(mesh); r++) {
        if (ndm_mesh_group(mesh, axes, r).index != 0)
            continue;
        ndm_place_facts common = facts[r];
        ndm_place_facts_settle(&common);
        for (int64_t i = 1; i < n; i++)
            narrow(&common, &facts[ndm_mesh_member(mesh, axes, r, i)]);
        int levels = shared_levels(&common, &common);
        while (levels > 0 && common.id[levels - 1] == NDM_PLACE_NONE)
            levels--;
        span.groups++;
        if (levels == 0)
            span.across++;
        else
            span.inside[levels - 1]++;
    }
    return span;
}

const char *ndm_placement_describe(const ndm_mesh *mesh, const ndm_place_facts *facts,
                                   ndm_axis_set axes, char *text, size_t text_bytes)
{
    ndm_place_span span = ndm_placement_span(mesh, facts, axes);
    ndm_buffer line = {0};
    ndm_buffer_printf(&line, "%" PRId64 " group%s of %" PRId64, span.groups,
                      span.groups == 1 ? "" : "s", ndm_mesh_size(mesh, axes));
    const char *join = ": ";
    for (int l = NDM_PLACE_LEVELS - 1; l >= 0; l--) {
        if (span.inside[l] == 0)
            continue;
        ndm_buffer_printf(&line, "%s%" PRId64 " inside one %s", join, span.inside[l],
                          level_names[l]);
        join = ", ";
    }
    if (span.across > 0)
        ndm_buffer_printf(&line, "%s%" PRId64 " across hosts", join, span.across);
    size_t n = line.length < text_bytes ? line.length : text_bytes - 1;
    memcpy(text, ndm_buffer_text(&line), n);
    text[n] = '\0';
    ndm_buffer_finish(&line);
    return text;
}
