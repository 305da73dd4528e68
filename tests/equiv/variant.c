/* SPDX-License-Identifier: Apache-2.0 */
/* The ways to run a problem on a number of ranks, and which of them the engine must refuse. */
#include <stdlib.h>

#include "core/rng.h"
#include "equiv.h"

int64_t variant_size(const variant *v, ndm_axis_set axes)
{
    int64_t n = 1;

    for (int a = 0; a < NDM_AXIS_COUNT; a++)
        if (axes & 1u << a)
            n *= v->mesh[a];
    return n;
}

const char *variant_text(const variant *v, char *text, size_t text_bytes)
{
    static const char *const recompute[] = {"none", "full", "selective"};
    static const char *const method[] = {"auto", "ring", "all_gather", "ulysses"};

    snprintf(text, text_bytes,
             "%lld.%lld.%lld.%lld zero%d reshard=%lld accum=%lld %s%s%s cp=%s%s%s%s%s%s%s",
             (long long)v->mesh[0], (long long)v->mesh[1], (long long)v->mesh[2],
             (long long)v->mesh[3], v->zero, (long long)v->reshard, (long long)v->accum,
             recompute[v->recompute], v->defer_sync ? " defer_sync" : "",
             v->defer_replicas ? "" : " eager_replicas", method[v->cp_method],
             v->sequence_parallel ? "" : " no_sp", v->bf16 ? " bf16" : "",
             v->bf16_activations ? " and activations" : "", v->fp8 ? " fp8" : "",
             v->collectives ? " " : "", v->collectives ? v->collectives : "");
    return text;
}

bool variant_refused(const problem *p, const variant *v)
{
    int64_t cp = v->mesh[NDM_CP], tp = v->mesh[NDM_TP];
    int64_t shards = variant_size(v, NDM_AXES_DP_SHARD_CP);

    if (p->heads % tp || (p->kv_heads % tp && tp % p->kv_heads))
        return true; /* heads are not cut, and each rank has as many */
    if (v->cp_method == NDM_CP_METHOD_ULYSSES && p->heads / tp % cp)
        return true; /* it trades the sequence for heads */
    return v->zero == 3 && v->reshard > 1 && shards > 1 && shards % v->reshard;
}

static void list_add(variant_list *list, const variant *v)
{
    variant *grown = realloc(list->items, (size_t)(list->n + 1) * sizeof *grown);

    if (!grown)
        die("no memory for a list of variants");
    list->items = grown;
    list->items[list->n++] = *v;
}

void list_meshes(int64_t ranks, variant_list *list)
{
    *list = (variant_list){0};
    for (int64_t r = 1; r <= ranks; r++)
        for (int64_t s = 1; s <= ranks; s++)
            for (int64_t c = 1; c <= ranks; c++)
                if (r * s * c <= ranks && ranks % (r * s * c) == 0)
                    list_add(list, &(variant){.mesh = {r, s, c, ranks / (r * s * c)}});
}

typedef struct sharding {
    int zero;
    int64_t reshard;
} sharding;

/* Stages and ways to reshard; the last one does not divide, and is refused. */
static int shardings(int64_t shards, sharding out[8])
{
    int n = 0;

    out[n++] = (sharding){3, NDM_RESHARD_ALWAYS};
    if (shards == 1)
        return n;
    out[n++] = (sharding){1, NDM_RESHARD_ALWAYS};
    out[n++] = (sharding){2, NDM_RESHARD_ALWAYS};
    out[n++] = (sharding){3, NDM_RESHARD_NEVER};
    for (int64_t k = 2; k <= shards && k <= 4; k++)
        if (shards % k == 0)
            out[n++] = (sharding){3, k};
    out[n++] = (sharding){3, 5};
    return n;
}

/* Adds the variants of one sharding: accumulation, deferral, recompute; the best collectives there
 * are, and those that any machine has. */
static void add_schedules(variant_list *list, variant v)
{
    int64_t dp = variant_size(&v, NDM_AXES_DP), shards = variant_size(&v, NDM_AXES_DP_SHARD_CP);
    /* 3 micro-batches, or 2 where 3 do not divide the samples of a rank */
    int64_t accums[] = {1, GLOBAL_BATCH / dp % 3 == 0 ? 3 : 2};

    for (int a = 0; a < 2; a++)
        for (int recompute = 0; recompute <= NDM_RECOMPUTE_SELECTIVE; recompute++)
            for (int sync = 0; sync <= (accums[a] > 1 && shards > 1 && v.zero > 1); sync++)
                for (int eager = 0; eager <= (accums[a] > 1 && shards > 1 && v.mesh[0] > 1);
                     eager++) {
                    v.accum = accums[a];
                    v.recompute = (ndm_recompute)recompute;
                    v.defer_sync = sync;
                    v.defer_replicas = !eager;
                    v.collectives = NULL;
                    list_add(list, &v);
                    v.collectives = "mpi";
                    if (variant_size(&v, NDM_AXES_ALL) > 1)
                        list_add(list, &v);
                }
}

void list_variants(const int64_t *mesh, variant_list *list)
{
    sharding choices[8];
    variant v = {.mesh = {mesh[0], mesh[1], mesh[2], mesh[3]}};
    int n = shardings(variant_size(&v, NDM_AXES_DP_SHARD_CP), choices);
    int first_method = mesh[NDM_CP] > 1 ? NDM_CP_METHOD_RING : NDM_CP_METHOD_AUTO;
    int last_method = mesh[NDM_CP] > 1 ? NDM_CP_METHOD_ULYSSES : NDM_CP_METHOD_AUTO;

    *list = (variant_list){0};
    for (int method = first_method; method <= last_method; method++)
        for (int sp = 1; sp >= (mesh[NDM_TP] > 1 ? 0 : 1); sp--)
            for (int i = 0; i < n; i++) {
                v.cp_method = (ndm_cp_method)method;
                v.sequence_parallel = sp;
                v.zero = choices[i].zero;
                v.reshard = choices[i].reshard;
                add_schedules(list, v);
            }
}

void list_crossed(variant_list *list)
{
    int64_t n = 0;

    for (int64_t i = 0; i < list->n; i++) {
        const variant *v = &list->items[i];
        if (v->zero == 3 && v->reshard == NDM_RESHARD_ALWAYS && v->accum == 1 && !v->collectives)
            list->items[n++] = *v;
    }
    list->n = n;
}

void list_draw(variant_list *list, int64_t count, uint64_t seed)
{
    if (count <= 0 || count >= list->n)
        return;
    for (int64_t i = 0; i < count; i++) {
        uint64_t draw = ndm_rng_u64(seed, ndm_rng_stream("draw"), (uint64_t)i);
        int64_t j = i + (int64_t)(draw % (uint64_t)(list->n - i));
        variant other = list->items[j];
        list->items[j] = list->items[i];
        list->items[i] = other;
    }
    list->n = count;
}
