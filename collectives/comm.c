/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators of a mesh: canonical names, interning, and the choice of a backend. */
#include "collectives/comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/comms.h"
#include "collectives/p2p.h"
#include "collectives/world.h"
#include "core/rng.h"

/* ---- canonical names ------------------------------------------------------------------------- */

static ndm_axis_set without_axes_of_one(const ndm_mesh *mesh, ndm_axis_set axes)
{
    for (int a = 0; a < NDM_AXIS_COUNT; a++)
        if (ndm_mesh_axis_size(mesh, (ndm_axis)a) == 1)
            axes &= ~(1u << a);
    return axes;
}

/* Blocks of k consecutive members do not cross the blocks of inner axes if k divides their size:
 * the outer axes then do not matter. A block as large as the whole is the whole. */
static void canonicalise(const ndm_mesh *mesh, ndm_axis_set *axes, int64_t *block)
{
    *axes = without_axes_of_one(mesh, *axes);
    for (int a = 0; a<NDM_AXIS_COUNT && * block> 0; a++) {
        ndm_axis_set inner = *axes & ~(1u << a);
        if (!(*axes & 1u << a))
            continue;
        if (ndm_mesh_size(mesh, inner) % *block != 0)
            break;
        *axes = inner;
    }
    if (*block > 0 && ndm_mesh_size(mesh, *axes) == *block)
        *block = 0;
}

static bool is_canonical(const ndm_mesh *mesh, ndm_axis_set axes, int64_t block)
{
    ndm_axis_set a = axes;
    int64_t b = block;

    canonicalise(mesh, &a, &b);
    return a == axes && b == block;
}

static ndm_status add_slot(ndm_comms *comms, ndm_axis_set axes, int64_t block)
{
    ndm_comm_slot *slots = comms->slots;

    if (!is_canonical(comms->mesh, axes, block))
        return NDM_OK;
    if (comms->n_slots == NDM_P2P_MAX_COMMS)
        NDM_FAIL(NDM_ERR_UNSUPPORTED, "comm: this mesh has more than %d groups of ranks",
                 NDM_P2P_MAX_COMMS);
    slots = realloc(slots, (size_t)(comms->n_slots + 1) * sizeof *slots);
    if (!slots)
        NDM_FAIL(NDM_ERR_MEMORY, "comm: no memory for communicators");
    slots[comms->n_slots++] = (ndm_comm_slot){axes, block, NULL};
    comms->slots = slots;
    return NDM_OK;
}

/* All names in one order that is the same on every rank: whole groups, then blocks. */
static ndm_status enumerate(ndm_comms *comms)
{
    for (ndm_axis_set axes = 0; axes <= NDM_AXES_ALL; axes++)
        NDM_TRY(add_slot(comms, axes, 0));
    for (ndm_axis_set axes = 1; axes <= NDM_AXES_ALL; axes++) {
        int64_t size = ndm_mesh_size(comms->mesh, axes);
        for (int64_t k = 1; k * k <= size; k++) {
            if (size % k != 0)
                continue;
            if (k > 1)
                NDM_TRY(add_slot(comms, axes, k));
            if (k > 1 && k * k < size)
                NDM_TRY(add_slot(comms, axes, size / k));
        }
    }
    return NDM_OK;
}

static ndm_comm_slot *find_slot(ndm_comms *comms, ndm_axis_set axes, int64_t block)
{
    canonicalise(comms->mesh, &axes, &block);
    for (int64_t i = 0; i < comms->n_slots; i++)
        if (comms->slots[i].axes == axes && comms->slots[i].block == block)
            return &comms->slots[i];
    return NULL;
}

/* ---- backends -------------------------------------------------------------------------------- */

static int64_t count_backends(void)
{
    int64_t n = 1; /* self is always there */

    while (ndm_comm_backend_list()[n])
        n++;
    return n;
}

static int64_t backend_index(const ndm_comm_backend *backend)
{
    int64_t i = 0;

    while (ndm_comm_backend_list()[i] != backend)
        i++;
    return i;
}

void *ndm_comms_backend_state(const ndm_comm *comm)
{
    return comm->owner->backend_state[backend_index(comm->backend)];
}

static ndm_status find_backend(const char *name, const ndm_comm_backend **backend)
{
    const ndm_comm_backend *const *list = ndm_comm_backend_list();
    char known[128] = "auto";
    size_t used = strlen(known);

    *backend = NULL;
    if (!name || strcmp(name, "auto") == 0)
        return NDM_OK;
    for (; *list; list++) {
        if (strcmp((*list)->name, name) == 0) {
            *backend = *list;
            return NDM_OK;
        }
        used += (size_t)snprintf(known + used, sizeof known - used, ", %s", (*list)->name);
    }
    NDM_FAIL(NDM_ERR_UNSUPPORTED, "comm: no collectives '%s' in this build: there are %s", name,
             known);
}

/* Makes those backends ready that may be asked for: the forced one, or all whose probe says yes. */
static ndm_status prepare_backends(ndm_comms *comms)
{
    const ndm_comm_backend *const *list = ndm_comm_backend_list();
    char why[256] = "";

    for (int64_t i = 0; i < comms->n_backends; i++) {
        ndm_status status = NDM_OK;
        if (comms->forced && comms->forced != list[i])
            continue;
        if (!list[i]->probe(comms->world, comms->device, why, sizeof why)) {
            if (comms->forced)
                NDM_FAIL(NDM_ERR_UNSUPPORTED, "comm: collectives %s: %s", list[i]->name, why);
            continue;
        }
        if (list[i]->comms_init)
            status = list[i]->comms_init(comms, &comms->backend_state[i]);
        if (status != NDM_OK && (comms->forced || status != NDM_ERR_UNSUPPORTED))
            return status;
        comms->backend_ready[i] = status == NDM_OK;
    }
    return NDM_OK;
}

/* The self backend needs no preparation, and takes every group of one. */
static const ndm_comm_backend *self_backend(void)
{
    const ndm_comm_backend *self = NULL;

    (void)!find_backend("self", &self);
    return self;
}

/* The ready backend of the highest priority below `below`, or NULL. */
static const ndm_comm_backend *next_backend(const ndm_comms *comms, int below)
{
    const ndm_comm_backend *const *list = ndm_comm_backend_list(), *best = NULL;

    for (int64_t i = 0; i < comms->n_backends; i++)
        if (comms->backend_ready[i] && list[i]->priority < below &&
            (!best || list[i]->priority > best->priority))
            best = list[i];
    return best;
}

/* Groups of one are the self backend's, unless another was asked for that takes them. */
static bool takes_one(const ndm_comms *comms)
{
    const ndm_comm_backend *forced = comms->forced;

    return forced && (forced->any_world || (forced->takes_one && comms->world->size == 1));
}

/* The best that takes the group. Whether one does depends on the group alone, so all members choose
 * alike. */
static ndm_status choose_backend(ndm_comm *comm)
{
    ndm_status status = NDM_ERR_UNSUPPORTED;
    int below = INT32_MAX;

    if (comm->size == 1 && !takes_one(comm->owner)) {
        comm->backend = self_backend();
        return comm->backend->comm_init(comm);
    }
    while (status == NDM_ERR_UNSUPPORTED) {
        comm->backend = next_backend(comm->owner, below);
        if (!comm->backend)
            break;
        below = comm->backend->priority;
        status = comm->backend->comm_init(comm);
    }
    if (!comm->backend && below == INT32_MAX)
        NDM_FAIL(NDM_ERR_UNSUPPORTED, "comm: no collectives of this build serve device %s",
                 comm->owner->device->ops->name);
    return status;
}

/* ---- creation -------------------------------------------------------------------------------- */

static void name_comm(const ndm_comms *comms, const ndm_comm_slot *slot, ndm_comm *comm)
{
    char axes[48];

    ndm_axis_set_name(slot->axes, axes, sizeof axes);
    if (slot->block)
        snprintf(comm->name, sizeof comm->name, "%s/%lld", axes, (long long)slot->block);
    else
        snprintf(comm->name, sizeof comm->name, "%s", axes);
    comm->id = (uint32_t)(slot - comms->slots);
}

static ndm_status fill_members(const ndm_comms *comms, const ndm_comm_slot *slot, ndm_comm *comm)
{
    int64_t rank = comms->world->rank;
    ndm_group group = ndm_mesh_group(comms->mesh, slot->axes, rank);
    int64_t first = slot->block ? group.index / slot->block * slot->block : 0;

    comm->size = slot->block ? slot->block : group.size;
    comm->index = group.index - first;
    comm->ranks = calloc((size_t)comm->size, sizeof *comm->ranks);
    if (!comm->ranks)
        NDM_FAIL(NDM_ERR_MEMORY, "comm: no memory for a communicator of %lld ranks",
                 (long long)comm->size);
    for (int64_t i = 0; i < comm->size; i++)
        comm->ranks[i] = ndm_mesh_member(comms->mesh, slot->axes, rank, first + i);
    return NDM_OK;
}

static void free_comm(ndm_comm *comm)
{
    free(comm->ranks);
    free(comm);
}

static ndm_status make_comm(ndm_comms *comms, ndm_comm_slot *slot)
{
    ndm_comm *comm = calloc(1, sizeof *comm);
    ndm_comm **made = realloc(comms->made, (size_t)(comms->n_made + 1) * sizeof(void *));
    ndm_status status = NDM_ERR_MEMORY;

    comms->made = made ? made : comms->made;
    if (!comm || !made) {
        free(comm);
        NDM_FAIL(NDM_ERR_MEMORY, "comm: no memory for a communicator");
    }
    comm->owner = comms;
    comm->world = comms->world;
    name_comm(comms, slot, comm);
    NDM_TRY_OR(status, fill_members(comms, slot, comm), fail);
    NDM_TRY_OR(status, choose_backend(comm), fail);
    slot->comm = comm;
    made[comms->n_made++] = comm;
    return NDM_OK;
fail:
    free_comm(comm);
    return status;
}

ndm_status ndm_comms_get(ndm_comms *comms, ndm_axis_set axes, ndm_comm **comm)
{
    ndm_comm_slot *slot = find_slot(comms, axes, 0);

    if (!slot)
        NDM_FAIL(NDM_ERR_USAGE, "comm: there is no axis set 0x%x", axes);
    if (!slot->comm)
        NDM_TRY(make_comm(comms, slot));
    *comm = slot->comm;
    return NDM_OK;
}

ndm_status ndm_comms_get_block(ndm_comms *comms, ndm_axis_set axes, int64_t k, ndm_comm **comm)
{
    int64_t size = ndm_mesh_size(comms->mesh, axes);
    char name[48];
    ndm_comm_slot *slot;

    if (k < 1 || size % k != 0)
        NDM_FAIL(NDM_ERR_USAGE, "comm: blocks of %lld do not divide the %lld ranks of %s",
                 (long long)k, (long long)size, ndm_axis_set_name(axes, name, sizeof name));
    if (k == 1)
        return ndm_comms_get(comms, 0, comm);
    slot = find_slot(comms, axes, k);
    if (!slot)
        NDM_FAIL(NDM_ERR_INTERNAL, "comm: blocks of %lld of %s have no number", (long long)k,
                 ndm_axis_set_name(axes, name, sizeof name));
    if (!slot->comm)
        NDM_TRY(make_comm(comms, slot));
    *comm = slot->comm;
    return NDM_OK;
}

ndm_comm *ndm_comms_at(ndm_comms *comms, int64_t i)
{
    return i >= 0 && i < comms->n_made ? comms->made[i] : NULL;
}

void ndm_comms_observe(ndm_comms *comms, ndm_comms_observer observer, void *user)
{
    comms->observer = observer;
    comms->observer_user = user;
}

/* ---- fault injection ------------------------------------------------------------------------- */

void ndm_comms_delay(ndm_comms *comms, int64_t max_polls, uint64_t seed)
{
    comms->delay_polls = max_polls;
    comms->delay_seed = seed;
}

static void delay_from_environment(ndm_comms *comms)
{
    const char *text = getenv("NDM_COMM_DELAY");
    char *end = NULL;

    if (!text)
        return;
    comms->delay_polls = strtoll(text, &end, 10);
    comms->delay_seed = *end == ':' ? strtoull(end + 1, NULL, 10) : 1;
}

int64_t ndm_comms_draw_delay(ndm_comms *comms)
{
    if (comms->delay_polls <= 0)
        return 0;
    return (
        int64_t)(ndm_rng_u64(comms->delay_seed, (uint64_t)comms->world->rank, comms->delayed++) %
                 (uint64_t)(comms->delay_polls + 1));
}

/* ---- the set --------------------------------------------------------------------------------- */

static ndm_status init(ndm_comms *comms, const char *backend)
{
    int64_t n = count_backends();

    NDM_TRY(find_backend(backend, &comms->forced));
    if (ndm_mesh_world(comms->mesh) != comms->world->size &&
        !(comms->forced && comms->forced->any_world))
        NDM_FAIL(NDM_ERR_CONFIG, "comm: the mesh has %lld ranks, the world has %lld",
                 (long long)ndm_mesh_world(comms->mesh), (long long)comms->world->size);
    comms->n_backends = n;
    comms->backend_state = calloc((size_t)n, sizeof *comms->backend_state);
    comms->backend_ready = calloc((size_t)n, sizeof *comms->backend_ready);
    if (!comms->backend_state || !comms->backend_ready)
        NDM_FAIL(NDM_ERR_MEMORY, "comm: no memory for communicators");
    NDM_TRY(enumerate(comms));
    delay_from_environment(comms);
    return prepare_backends(comms);
}

ndm_status ndm_comms_create(ndm_world *world, const ndm_mesh *mesh, ndm_device *device,
                            const char *backend, ndm_comms **comms)
{
    ndm_comms *c = calloc(1, sizeof *c);

    if (!c)
        NDM_FAIL(NDM_ERR_MEMORY, "comm: no memory for communicators");
    c->world = world;
    c->mesh = mesh;
    c->device = device;
    c->generation = ++world->generations;
    c->next = world->comms;
    world->comms = c;
    ndm_status status = init(c, backend);
    if (status != NDM_OK) {
        ndm_comms_destroy(c);
        return status;
    }
    *comms = c;
    return NDM_OK;
}

void ndm_comms_destroy(ndm_comms *comms)
{
    const ndm_comm_backend *const *list = ndm_comm_backend_list();
    ndm_comms **link;

    if (!comms)
        return;
    for (int64_t i = 0; i < comms->n_made; i++)
        comms->made[i]->backend->comm_finish(comms->made[i]);
    for (int64_t i = 0; comms->backend_ready && i < comms->n_backends; i++)
        if (comms->backend_ready[i] && list[i]->comms_finish)
            list[i]->comms_finish(comms, comms->backend_state[i]);
    for (int64_t i = 0; i < comms->n_made; i++)
        free_comm(comms->made[i]);
    for (link = &comms->world->comms; *link != comms; link = &(*link)->next)
        continue;
    *link = comms->next;
    free(comms->backend_state);
    free(comms->backend_ready);
    free(comms->made);
    free(comms->slots);
    free(comms);
}
