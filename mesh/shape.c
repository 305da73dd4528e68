/* SPDX-License-Identifier: Apache-2.0 */
/* Resolves the sizes of a mesh's axes. Every refusal says which rule failed, with the numbers that
 * clash. */
#include "mesh/shape.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <ndmesh/mesh.h>

enum { MAX_SHOWN_DIVISORS = 8, MAX_DIVISORS = 2048 };

/* Product of the fixed sizes but the one of axis `but` (-1: of all). Saturates far above any world.
 */
static int64_t product(const int64_t *sizes, int but)
{
    int64_t p = 1;
    for (int a = 0; a < NDM_AXIS_COUNT; a++) {
        if (a == but || sizes[a] == NDM_AUTO)
            continue;
        if (sizes[a] > INT64_MAX / 4 / p)
            return INT64_MAX / 4;
        p *= sizes[a];
    }
    return p;
}

static int find_auto(const int64_t *sizes)
{
    for (int a = 0; a < NDM_AXIS_COUNT; a++)
        if (sizes[a] == NDM_AUTO)
            return a;
    return -1;
}

/* Ascending; a number below 2^31 has at most 1536 divisors. */
static int divisors(int64_t n, int64_t *d)
{
    int count = 0;
    for (int64_t i = 1; i * i <= n; i++)
        if (n % i == 0)
            d[count++] = i;
    for (int i = count - 1; i >= 0; i--)
        if (d[i] * d[i] != n)
            d[count++] = n / d[i];
    return count;
}

const char *ndm_shape_divisors(int64_t n, int64_t wanted, char *text, size_t text_bytes)
{
    int64_t d[MAX_DIVISORS];
    int first = 0, last = divisors(n, d) - 1;
    while (last - first >= MAX_SHOWN_DIVISORS) {
        if (wanted - d[first] > d[last] - wanted)
            first++;
        else
            last--;
    }
    size_t used = 0;
    for (int i = first; i <= last && used < text_bytes; i++)
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%" PRId64,
                                 i > first ? ", " : "", d[i]);
    return text;
}

/* "dp_replicate 1, cp 1, tp 1" or, joined by " x ", "dp_replicate 1 x cp 1 x tp 1". */
static const char *list_fixed(const int64_t *sizes, int but, const char *join, char *text,
                              size_t text_bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (int a = 0; a < NDM_AXIS_COUNT; a++) {
        if (a == but || sizes[a] == NDM_AUTO || used >= text_bytes)
            continue;
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%s %" PRId64, used ? join : "",
                                 ndm_axis_table()[a].name, sizes[a]);
    }
    return text;
}

static ndm_status check_each(const int64_t *sizes)
{
    int found = -1;
    for (int a = 0; a < NDM_AXIS_COUNT; a++) {
        const char *name = ndm_axis_table()[a].name;
        if (sizes[a] == NDM_AUTO && found >= 0)
            NDM_FAIL(NDM_ERR_CONFIG, "mesh: %s and %s are both -1 (auto); one axis takes the rest",
                     ndm_axis_table()[found].name, name);
        if (sizes[a] == NDM_AUTO)
            found = a;
        else if (sizes[a] < 1)
            NDM_FAIL(NDM_ERR_CONFIG,
                     "mesh: %s is %" PRId64 "; a size is 1 or more, or -1 (auto) for the rest",
                     name, sizes[a]);
    }
    return NDM_OK;
}

/* Blames the outermost axis whose change alone would do; without one, the product. */
static ndm_status refuse_indivisible(const int64_t *sizes, int64_t world)
{
    char others[160], tries[160];
    for (int a = 0; a < NDM_AXIS_COUNT; a++) {
        int64_t rest = product(sizes, a);
        if (sizes[a] == NDM_AUTO || world % rest != 0 || (world / rest) % sizes[a] == 0)
            continue;
        NDM_FAIL(NDM_ERR_CONFIG,
                 "mesh: %s %" PRId64 " does not divide the %" PRId64 " rank%s left by %s; try %s",
                 ndm_axis_table()[a].name, sizes[a], world / rest, world / rest == 1 ? "" : "s",
                 list_fixed(sizes, a, ", ", others, sizeof others),
                 ndm_shape_divisors(world / rest, sizes[a], tries, sizeof tries));
    }
    int64_t all = product(sizes, -1);
    NDM_FAIL(NDM_ERR_CONFIG,
             "mesh: %s = %s%" PRId64 " does not divide the %" PRId64 " ranks; try a product of %s",
             list_fixed(sizes, -1, " x ", others, sizeof others),
             all == INT64_MAX / 4 ? "over " : "", all, world,
             ndm_shape_divisors(world, all, tries, sizeof tries));
}

/* The product divides the world, but ranks would be left over. */
static ndm_status refuse_leftover(const int64_t *sizes, int64_t world)
{
    char all[160], tries[160];
    int64_t have = product(sizes, -1);
    size_t used = 0;
    for (int a = 0; a < NDM_AXIS_COUNT; a++)
        used += (size_t)snprintf(tries + used, sizeof tries - used, "%s%s %" PRId64,
                                 a == 0                    ? ""
                                 : a == NDM_AXIS_COUNT - 1 ? " or "
                                                           : ", ",
                                 ndm_axis_table()[a].name, world / have * sizes[a]);
    NDM_FAIL(NDM_ERR_CONFIG,
             "mesh: %s = %" PRId64 " is not the %" PRId64 " ranks of the world; try %s",
             list_fixed(sizes, -1, " x ", all, sizeof all), have, world, tries);
}

ndm_status ndm_shape_resolve(const ndm_parallelism_config *config, int64_t world, int64_t *sizes)
{
    if (world < 1 || world > NDM_MESH_MAX_WORLD)
        NDM_FAIL(NDM_ERR_CONFIG, "mesh: %" PRId64 " ranks; a world has 1 to %d", world,
                 NDM_MESH_MAX_WORLD);
    const int64_t asked[NDM_AXIS_COUNT] = {config->dp_replicate, config->dp_shard, config->cp,
                                           config->tp};
    NDM_TRY(check_each(asked));

    int64_t fixed = product(asked, -1);
    int rest = find_auto(asked);
    if (world % fixed != 0)
        return refuse_indivisible(asked, world);
    if (rest < 0 && fixed != world)
        return refuse_leftover(asked, world);
    memcpy(sizes, asked, sizeof asked);
    if (rest >= 0)
        sizes[rest] = world / fixed;
    return NDM_OK;
}
