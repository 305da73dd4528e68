/* SPDX-License-Identifier: Apache-2.0 */
/* A simulated world: this process plays one rank of many, numbered host by host. */
#include <stdlib.h>

#include "collectives/world.h"
#include "device/sim.h"

ndm_status ndm_world_join_sim(ndm_world *world, const ndm_world_options *options)
{
    const ndm_sim_options *sim = options->sim;
    int64_t per_host = sim->machine->ranks_per_host;

    if (sim->ranks < 1 || sim->rank < 0 || sim->rank >= sim->ranks)
        NDM_FAIL(NDM_ERR_USAGE, "comm: rank %lld of a simulated world of %lld",
                 (long long)sim->rank, (long long)sim->ranks);
    world->rank = sim->rank;
    world->size = sim->ranks;
    world->simulated = true;
    world->ranks = calloc((size_t)world->size, sizeof *world->ranks);
    if (!world->ranks)
        NDM_FAIL(NDM_ERR_MEMORY, "comm: no memory for a world of %lld ranks",
                 (long long)world->size);
    for (int64_t r = 0; r < world->size; r++)
        world->ranks[r].node = r / per_host;
    world->nodes = world->ranks[world->size - 1].node + 1;
    world->local_rank = world->rank % per_host;
    int64_t rest = world->size - world->ranks[world->rank].node * per_host;
    world->local_size = rest < per_host ? rest : per_host;
    return NDM_OK;
}
