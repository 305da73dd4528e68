/* SPDX-License-Identifier: Apache-2.0 */
/* A world of one rank, without MPI: starts at once, under no launcher. */
#include "collectives/world.h"

ndm_status ndm_world_join_self(ndm_world *world)
{
    world->rank = 0;
    world->size = 1;
    return NDM_OK;
}
