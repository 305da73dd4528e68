/* SPDX-License-Identifier: Apache-2.0 */
/* Weights of a model that is spread over ranks: all of them in one place, and replicas side by
 * side.
 */
#include <stdlib.h>
#include <string.h>

#include "core/hash.h"
#include "equiv.h"

static int by_name(const void *a, const void *b)
{
    return strcmp(((const tensor *)a)->name, ((const tensor *)b)->name);
}

static void add_tensor(record *r, const ndm_param_spec *spec)
{
    tensor *grown = realloc(r->tensors, (size_t)(r->n_tensors + 1) * sizeof *grown);

    if (!grown)
        die("no memory for a tensor");
    r->tensors = grown;
    tensor *t = &r->tensors[r->n_tensors++];
    snprintf(t->name, sizeof t->name, "%s", spec->name);
    t->count = spec->shape[0] * (spec->ndim == 2 ? spec->shape[1] : 1);
    t->matrix = spec->ndim == 2;
}

void tensors_of(const ndm_model *model, record *r)
{
    int64_t n_units;
    ndm_unit *const *units = ndm_model_units(model, &n_units);

    for (int64_t u = 0; u < n_units; u++)
        for (int64_t i = 0; i < ndm_unit_params(units[u]); i++)
            add_tensor(r, ndm_unit_spec(units[u], i));
    qsort(r->tensors, (size_t)r->n_tensors, sizeof *r->tensors, by_name);
    for (int64_t i = 0; i < r->n_tensors; i++) {
        r->tensors[i].first = r->total;
        r->total += r->tensors[i].count;
    }
}

typedef struct collector {
    const record *record;
    float *values;
    int *writers; /* ranks that gave each element */
} collector;

static ndm_status collect_range(void *user, const ndm_param_spec *spec, int64_t first,
                                int64_t count, float *values)
{
    collector *c = user;
    tensor key;

    snprintf(key.name, sizeof key.name, "%s", spec->name);
    const tensor *t = bsearch(&key, c->record->tensors, (size_t)c->record->n_tensors, sizeof key,
                              by_name);
    if (!t || first < 0 || first + count > t->count)
        die("%s: [%lld, %lld) is not part of it", spec->name, (long long)first,
            (long long)(first + count));
    memcpy(c->values + t->first + first, values, (size_t)count * sizeof *values);
    for (int64_t i = 0; i < count; i++)
        c->writers[t->first + first + i]++;
    return NDM_OK;
}

/* The sum over ranks is exact: all but one hold a zero. */
void weights_collect(ndm_model *model, const record *r, MPI_Comm comm, float *weights)
{
    collector c = {r, calloc((size_t)r->total, sizeof(float)),
                   calloc((size_t)r->total, sizeof(int))};
    int64_t n_units;
    ndm_unit *const *units = ndm_model_units(model, &n_units);
    int rank, *writers = calloc((size_t)r->total, sizeof *writers);

    if (!c.values || !c.writers || !writers)
        die("no memory to collect weights");
    for (int64_t u = 0; u < n_units; u++)
        MUST(ndm_unit_write(units[u], NDM_UNIT_WEIGHTS, collect_range, &c));
    MPI_Reduce(c.values, weights, (int)r->total, MPI_FLOAT, MPI_SUM, 0, comm);
    MPI_Reduce(c.writers, writers, (int)r->total, MPI_INT, MPI_SUM, 0, comm);
    MPI_Comm_rank(comm, &rank);
    for (int64_t i = 0; rank == 0 && i < r->n_tensors; i++)
        for (int64_t j = 0; j < r->tensors[i].count; j++)
            if (writers[r->tensors[i].first + j] != 1)
                die("%s: element %lld is written by %d ranks", r->tensors[i].name, (long long)j,
                    writers[r->tensors[i].first + j]);
    free(writers);
    free(c.values);
    free(c.writers);
}

/* ---- replicas ----------------------------------------------------------------------------------
 */

/* One hash for the slice, and one for each parameter's part of it that tp ranks share. */
static void hash_unit(ndm_unit *u, uint64_t *hashes)
{
    int64_t bytes = u->slice * (int64_t)sizeof(float), begin = u->index * u->slice;
    float *host = malloc((size_t)bytes);

    if (!host)
        die("no memory for a slice");
    MUST(ndm_copy(u->context->compute, host, ndm_unit_master(u), bytes, NDM_DEVICE_TO_HOST));
    MUST(ndm_stream_synchronize(u->context->compute));
    hashes[0] = ndm_hash_64(host, (size_t)bytes);
    for (int64_t i = 0; i < u->n_params; i++) {
        const ndm_param *p = &u->params[i];
        int64_t from = p->start > begin ? p->start : begin;
        int64_t to = p->start + p->numel < begin + u->slice ? p->start + p->numel
                                                            : begin + u->slice;
        hashes[1 + i] = from < to
                            ? ndm_hash_64(host + from - begin, (size_t)(to - from) * sizeof *host)
                            : 0;
    }
    free(host);
}

static bool same_but_for(const ndm_mesh *mesh, int64_t a, int64_t b, ndm_axis axis)
{
    for (int i = 0; i < NDM_AXIS_COUNT; i++)
        if (i != (int)axis &&
            ndm_mesh_coord(mesh, a, (ndm_axis)i) != ndm_mesh_coord(mesh, b, (ndm_axis)i))
            return false;
    return true;
}

/* Compares a unit's hashes of this rank with another's. */
static bool unit_equal(const ndm_unit *u, const uint64_t *mine, const uint64_t *other, int64_t me,
                       int64_t rank)
{
    const ndm_mesh *mesh = u->context->mesh;

    if (same_but_for(mesh, me, rank, NDM_DP_REPLICATE) && mine[0] != other[0])
        return false;
    if (!same_but_for(mesh, me, rank, NDM_TP))
        return true;
    int64_t t = ndm_mesh_coord(mesh, me, NDM_TP), s = ndm_mesh_coord(mesh, rank, NDM_TP);
    for (int64_t i = 0; i < u->n_params; i++)
        if (t / u->params[i].sharers == s / u->params[i].sharers && mine[1 + i] != other[1 + i])
            return false;
    return true;
}

static bool unit_replicas_equal(ndm_unit *u, MPI_Comm comm)
{
    int64_t me = ndm_context_rank(u->context), size = ndm_context_size(u->context);
    int64_t n = 1 + u->n_params;
    uint64_t *mine = calloc((size_t)n, sizeof *mine);
    uint64_t *all = calloc((size_t)(n * size), sizeof *all);
    bool equal = true;

    if (!mine || !all)
        die("no memory for hashes");
    hash_unit(u, mine);
    MPI_Allgather(mine, (int)n, MPI_UINT64_T, all, (int)n, MPI_UINT64_T, comm);
    for (int64_t r = 0; r < size; r++)
        equal = equal && unit_equal(u, mine, all + r * n, me, r);
    free(mine);
    free(all);
    return equal;
}

bool replicas_equal(ndm_model *model, MPI_Comm comm)
{
    int64_t n_units;
    ndm_unit *const *units = ndm_model_units(model, &n_units);
    int equal = 1, all;

    for (int64_t u = 0; u < n_units; u++)
        equal &= unit_replicas_equal(units[u], comm);
    MPI_Allreduce(&equal, &all, 1, MPI_INT, MPI_MIN, comm);
    return all;
}
