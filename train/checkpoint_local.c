/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints on disks of hosts. A replica (one coordinate of dp_replicate) has all weights and
 * optimizer state among its ranks; a host that has a whole one can write, and later read, all that
 * its ranks need. */
#include "train/checkpoint_local.h"

#include "core/given.h"
#include <ndmesh/checkpoint.h>

#include <stdio.h>
#include <stdlib.h>

#include "train/checkpoint_files.h"

/* Ranks of a replica on this rank's host. */
static int64_t ranks_here(const ndm_context *c, int64_t replica)
{
    int64_t here = ndm_world_node(c->world, ndm_world_rank(c->world)), n = 0;

    for (int64_t r = 0; r < ndm_context_size(c); r++)
        n += ndm_world_node(c->world, r) == here &&
             ndm_mesh_coord(c->mesh, r, NDM_DP_REPLICATE) == replica;
    return n;
}

ndm_status ndm_save_group_find(const ndm_context *c, bool local, ndm_save_group *group)
{
    int64_t replicas = ndm_mesh_axis_size(c->mesh, NDM_DP_REPLICATE);
    int64_t whole = ndm_context_size(c) / replicas, mine = ndm_context_coord(c, NDM_DP_REPLICATE);

    *group = (ndm_save_group){ndm_context_rank(c), ndm_context_size(c), mine == 0};
    if (!local)
        return NDM_OK;
    for (int64_t replica = 0; replica < replicas; replica++) {
        if (ranks_here(c, replica) != whole)
            continue;
        *group = (ndm_save_group){ndm_world_local_rank(c->world), ndm_world_local_size(c->world),
                                  mine == replica};
        return NDM_OK;
    }
    NDM_FAIL(
        NDM_ERR_CONFIG,
        "checkpoints on each host's own disk need a whole replica on each: host %s has %lld "
        "of the %lld ranks of replica %lld; make dp_replicate a multiple of the hosts, or save "
        "to a folder that all hosts see",
        ndm_world_host(c->world, ndm_world_rank(c->world)), (long long)ranks_here(c, mine),
        (long long)whole, (long long)mine);
}

/* ---- the newest that all hosts have ------------------------------------------------------- */

/* Of the first rank of each host; others have step -1 and do not count. */
typedef struct found {
    int64_t step;
    int64_t node;
    bool first;
} found;

static ndm_status look(const ndm_context *c, const char *folder, found *mine)
{
    char name[NDM_CHECKPOINT_NAME_BYTES];

    *mine = (found){.step = -1,
                    .node = ndm_world_node(c->world, ndm_world_rank(c->world)),
                    .first = ndm_world_local_rank(c->world) == 0};
    return mine->first ? ndm_checkpoint_find_latest(folder, &mine->step, name) : NDM_OK;
}

/* The lowest of the hosts' newest: a save that ended between two hosts counts for none. */
static ndm_status choose(const ndm_context *c, const found *all, const char *folder, int64_t *step)
{
    int64_t without = -1, with = -1;

    *step = -1;
    for (int64_t r = 0; r < ndm_context_size(c); r++) {
        if (!all[r].first)
            continue;
        if (all[r].step < 0)
            without = r;
        else if (with < 0 || all[r].step < *step)
            with = r, *step = all[r].step;
    }
    if (with >= 0 && without >= 0)
        NDM_FAIL(NDM_ERR_IO,
                 "%s: host %s has a checkpoint and host %s has none; each is complete, so that it "
                 "can be copied",
                 folder, ndm_world_host(c->world, with), ndm_world_host(c->world, without));
    return NDM_OK;
}

static ndm_status ask_hosts(ndm_context *c, const char *folder, int64_t *step)
{
    found *all = calloc((size_t)ndm_context_size(c), sizeof *all), mine;
    ndm_status status;

    if (!all)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory to ask %lld ranks", (long long)ndm_context_size(c));
    NDM_TRY_OR(status, ndm_context_agree(c, look(c, folder, &mine)), done);
    NDM_TRY_OR(status, ndm_world_exchange(c->world, &mine, (int64_t)sizeof mine, all), done);
    status = choose(c, all, folder, step);
done:
    free(all);
    return status;
}

ndm_status ndm_checkpoint_latest_local(ndm_context *context, const char *folder, char *path,
                                       size_t path_bytes)
{
    char name[NDM_CHECKPOINT_NAME_BYTES];
    int64_t step;

    NDM_NEED(context);
    NDM_NEED(folder);
    NDM_NEED(path);
    NDM_TRY(ask_hosts(context, folder, &step));
    path[0] = '\0';
    if (step < 0)
        return NDM_OK;
    if (snprintf(path, path_bytes, "%s/%s", folder, ndm_checkpoint_name(step, name)) >=
        (int)path_bytes)
        NDM_FAIL(NDM_ERR_USAGE, "%s: the path is too long", folder);
    return ndm_context_agree(context, ndm_checkpoint_check_complete(path));
}
