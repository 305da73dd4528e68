/* SPDX-License-Identifier: Apache-2.0 */
/* The world of ranks: joining, who is on which node, leaving. */
#include "collectives/world.h"

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "collectives/comms.h"
#include "collectives/schedule.h"
#include "collectives/stall.h"
#include "core/error.h"
#include "core/hash.h"
#include "core/text.h"
#include "device/turn.h"
#include "device/wait.h"

static const int64_t DEFAULT_TIMEOUT_NS = 600ll * 1000 * 1000 * 1000;
static const int64_t PARTING_NS = 2000000000;

/* ---- nodes ----------------------------------------------------------------------------------- */

static void append_file(ndm_buffer *text, const char *path)
{
    char line[256];
    FILE *file = fopen(path, "r");

    if (!file)
        return;
    if (fgets(line, sizeof line, file))
        ndm_buffer_puts(text, line);
    fclose(file);
}

/* Processes are on one node if they have the same boot of the same host, and see the same
 * processes, memory segments and network: containers on one host are nodes of their own. */
static uint64_t make_node_key(const char *host)
{
    static const char *const spaces[] = {"pid", "ipc", "net", "uts"};
    ndm_buffer text = {0};
    char path[64];
    struct stat st;
    uint64_t key;

    ndm_buffer_puts(&text, host);
    append_file(&text, "/proc/sys/kernel/random/boot_id");
    for (size_t i = 0; i < sizeof spaces / sizeof spaces[0]; i++) {
        snprintf(path, sizeof path, "/proc/self/ns/%s", spaces[i]);
        if (stat(path, &st) == 0)
            ndm_buffer_printf(&text, "/%llu", (unsigned long long)st.st_ino);
    }
    key = ndm_hash_64(ndm_buffer_text(&text), text.length);
    ndm_buffer_finish(&text);
    return key;
}

static void find_cores(ndm_rank_facts *mine)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0) /* more cores than ranks are likely */
        return;
    mine->cores = CPU_COUNT(&set);
    mine->cores_key = ndm_hash_64(&set, sizeof set);
}

bool ndm_world_shares_cores(const ndm_world *world, int64_t rank)
{
    const ndm_rank_facts *its = &world->ranks[rank];
    int64_t n = 0;

    for (int64_t r = 0; r < world->size; r++)
        n += world->ranks[r].node == its->node && world->ranks[r].cores_key == its->cores_key;
    return its->cores > 0 && n > its->cores;
}

/* Numbers nodes by first appearance. Ranks come sorted by node in practice, so looking back for a
 * rank of the same node ends at the neighbour. */
static void number_nodes(ndm_world *world)
{
    for (int64_t r = 0; r < world->size; r++) {
        int64_t other = r - 1;
        while (other >= 0 && world->ranks[other].node_key != world->ranks[r].node_key)
            other--;
        world->ranks[r].node = other < 0 ? world->nodes++ : world->ranks[other].node;
    }
    for (int64_t r = 0; r < world->size; r++) {
        if (world->ranks[r].node != world->ranks[world->rank].node)
            continue;
        if (r == world->rank)
            world->local_rank = world->local_size;
        world->local_size++;
    }
}

static ndm_status learn_ranks(ndm_world *world)
{
    ndm_rank_facts mine = {.pid = getpid()};

    world->ranks = calloc((size_t)world->size, sizeof *world->ranks);
    if (!world->ranks)
        NDM_FAIL(NDM_ERR_MEMORY, "comm: no memory for a world of %lld ranks",
                 (long long)world->size);
    gethostname(mine.host, sizeof mine.host - 1);
    mine.node_key = make_node_key(mine.host);
    find_cores(&mine);
    world->ranks[world->rank] = mine; /* messages of the exchange itself name ranks */
    NDM_TRY(ndm_world_exchange(world, &mine, sizeof mine, world->ranks));
    number_nodes(world);
    ndm_wait_share_cores(ndm_world_shares_cores(world, world->rank));
    return NDM_OK;
}

/* ---- join and leave -------------------------------------------------------------------------- */

/* The communicator that carries the world's own exchanges. */
static ndm_status make_comm(ndm_world *world)
{
    ndm_comm *comm = calloc(1, sizeof *comm);

    if (comm)
        comm->ranks = calloc((size_t)world->size, sizeof *comm->ranks);
    if (!comm || !comm->ranks) {
        free(comm);
        NDM_FAIL(NDM_ERR_MEMORY, "comm: no memory for a world of %lld ranks",
                 (long long)world->size);
    }
    for (int64_t r = 0; r < world->size; r++)
        comm->ranks[r] = r;
    snprintf(comm->name, sizeof comm->name, "the world");
    comm->size = world->size;
    comm->index = world->rank;
    comm->world = world;
    world->comm = comm;
    return NDM_OK;
}

static void destroy(ndm_world *world)
{
    ndm_stall_destroy(world);
    if (world->comm)
        free(world->comm->ranks);
    free(world->comm);
    free(world->ranks);
    free(world->p2p);
    free(world);
}

static ndm_status bootstrap(ndm_world *world, const ndm_world_options *options)
{
    const char *how = options->bootstrap ? options->bootstrap : "auto";
    int initialised = 0;

    if (options->sim)
        return ndm_world_join_sim(world, options);
    if (strcmp(how, "self") == 0)
        return ndm_world_join_self(world);
    if (strcmp(how, "mpi") == 0)
        return ndm_world_join_mpi(world, options);
    if (strcmp(how, "auto") != 0)
        NDM_FAIL(NDM_ERR_USAGE, "comm: unknown bootstrap '%s': use auto, self or mpi", how);
    MPI_Initialized(&initialised);
    if (options->mpi_comm || initialised || ndm_launcher_present())
        return ndm_world_join_mpi(world, options);
    return ndm_world_join_self(world);
}

static ndm_status join(ndm_world *world, const ndm_world_options *options)
{
    NDM_TRY(bootstrap(world, options));
    NDM_TRY(make_comm(world));
    if (world->simulated)
        return NDM_OK;
    NDM_TRY(ndm_stall_create(world));
    return learn_ranks(world);
}

ndm_status ndm_world_join(const ndm_world_options *options, ndm_world **world)
{
    static const ndm_world_options defaults;
    ndm_world *w = calloc(1, sizeof *w);

    if (!w)
        NDM_FAIL(NDM_ERR_MEMORY, "comm: no memory for the world");
    options = options ? options : &defaults;
    w->timeout_ns = options->timeout_ns > 0 ? options->timeout_ns : DEFAULT_TIMEOUT_NS;
    ndm_status status = join(w, options);
    if (status != NDM_OK) {
        destroy(w);
        return status;
    }
    *world = w;
    return NDM_OK;
}

/* A rank that does not come is left behind: who leaves has no use for an error. After this barrier
 * nobody sends, so what is there belongs to collectives that failed, and notices. */
static void part(ndm_world *world)
{
    ndm_collective_args barrier = {.kind = NDM_BARRIER};

    if (!world->p2p || ndm_world_mpi_is_gone() ||
        ndm_comm_host_run(world->comm, &barrier) != NDM_OK)
        return;
    ndm_p2p_drain(world->p2p);
    ndm_world_leave_mpi(world);
}

void ndm_world_leave(ndm_world *world)
{
    if (!world)
        return;
    part(world);
    destroy(world);
}

/* A launcher kills the ranks that are left when one ends without having left MPI, and reports that
 * signal instead of the exit code. So ranks that failed alike leave it together. */
void ndm_world_abandon(ndm_world *world)
{
    ndm_error kept;

    if (!world)
        return;
    if (!world->failed) {
        ndm_error_keep(&kept);
        world->comms = NULL; /* what is queued may be about memory that is gone */
        if (world->timeout_ns > PARTING_NS)
            world->timeout_ns = PARTING_NS;
        part(world);
        ndm_error_restore(&kept);
    }
    destroy(world);
}

/* ---- facts ----------------------------------------------------------------------------------- */

int64_t ndm_world_rank(const ndm_world *world)
{
    return world->rank;
}

int64_t ndm_world_size(const ndm_world *world)
{
    return world->size;
}

int64_t ndm_world_local_rank(const ndm_world *world)
{
    return world->local_rank;
}

int64_t ndm_world_local_size(const ndm_world *world)
{
    return world->local_size;
}

int64_t ndm_world_timeout_ns(const ndm_world *world)
{
    return world->timeout_ns;
}

bool ndm_world_is_simulated(const ndm_world *world)
{
    return world->simulated;
}

bool ndm_world_takes_helper(const ndm_world *world)
{
    return world->p2p && world->p2p->any_thread;
}

bool ndm_world_wants_helper(const ndm_world *world)
{
    return world->nodes > 1 && ndm_world_takes_helper(world);
}

const char *ndm_world_host(const ndm_world *world, int64_t rank)
{
    return world->ranks[rank].host;
}

int64_t ndm_world_node(const ndm_world *world, int64_t rank)
{
    return world->ranks[rank].node;
}

const char *ndm_world_rank_text(const ndm_world *world, int64_t rank, char *text, size_t text_bytes)
{
    const ndm_rank_facts *facts = &world->ranks[rank];

    if (facts->host[0])
        snprintf(text, text_bytes, "rank %lld (node %s, pid %lld)", (long long)rank, facts->host,
                 (long long)facts->pid);
    else
        snprintf(text, text_bytes, "rank %lld", (long long)rank);
    return text;
}

void ndm_world_progress(ndm_world *world)
{
    for (ndm_comms *c = world->comms; c; c = c->next)
        if (c->device->ops->host_accessible)
            (void)!ndm_host_progress(c->device, NULL);
}
