/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks tell each other on the host: exchange, agree, verify. */
#include "collectives/world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/schedule.h"
#include "core/error.h"
#include "core/hash.h"
#include "core/text.h"
#include "device/turn.h"

ndm_status ndm_comm_host_run(ndm_comm *comm, const ndm_collective_args *args)
{
    if (comm->size == 1)
        return NDM_OK;
    ndm_turn_take();
    comm->sequence++;
    ndm_status status = ndm_schedule_execute(comm, args);
    ndm_turn_give();
    return status;
}

ndm_status ndm_world_exchange(ndm_world *world, const void *mine, int64_t bytes, void *all)
{
    ndm_collective_args args = {.kind = NDM_ALL_GATHER,
                                .send = mine,
                                .recv = all,
                                .count = bytes,
                                .dtype = NDM_U8,
                                .recv_dtype = NDM_U8};

    if (bytes <= 0)
        return NDM_OK;
    if (world->size == 1 || world->simulated) {
        memmove((char *)all + world->rank * bytes, mine, (size_t)bytes);
        for (int64_t r = 0; r < world->size; r++)
            if (r != world->rank)
                memcpy((char *)all + r * bytes, (char *)all + world->rank * bytes, (size_t)bytes);
        return NDM_OK;
    }
    return ndm_comm_host_run(world->comm, &args);
}

static ndm_status broadcast(ndm_world *world, void *buffer, int64_t bytes, int64_t root)
{
    ndm_collective_args args = {.kind = NDM_BROADCAST,
                                .send = buffer,
                                .recv = buffer,
                                .count = bytes,
                                .dtype = NDM_U8,
                                .recv_dtype = NDM_U8,
                                .peer_src = root};

    return ndm_comm_host_run(world->comm, &args);
}

/* ---- agree ----------------------------------------------------------------------------------- */

/* The lowest rank that failed gives its error to all. One that was agreed on before names its rank
 * already. */
static ndm_status fail_together(ndm_world *world, int64_t rank, ndm_status status)
{
    ndm_error theirs, named;

    ndm_error_keep(&theirs);
    NDM_TRY(broadcast(world, &theirs, sizeof theirs, rank));
    if (!theirs.agreed) {
        (void)ndm_error_set(status, "", 0, "rank %lld: %s", (long long)rank, theirs.message);
        ndm_error_keep(&named);
        memcpy(theirs.message, named.message, sizeof theirs.message);
        theirs.agreed = true;
    }
    ndm_error_restore(&theirs);
    return status;
}

/* A rank whose communication failed cannot count on reaching the others: it keeps its own error. */
static bool is_communication(ndm_status status)
{
    return status == NDM_ERR_COMM || status == NDM_ERR_TIMEOUT || status == NDM_ERR_MISMATCH;
}

ndm_status ndm_world_agree(ndm_world *world, ndm_status mine)
{
    ndm_status status = NDM_OK;
    int32_t own = mine, *all;
    int64_t rank = 0;

    if (world->size == 1 || world->simulated || is_communication(mine))
        return mine;
    all = calloc((size_t)world->size, sizeof *all);
    if (!all)
        NDM_FAIL(NDM_ERR_MEMORY, "comm: no memory to agree over %lld ranks",
                 (long long)world->size);
    NDM_TRY_OR(status, ndm_world_exchange(world, &own, sizeof own, all), out);
    while (rank < world->size && all[rank] == NDM_OK)
        rank++;
    if (rank < world->size)
        status = fail_together(world, rank, (ndm_status)all[rank]);
out:
    free(all);
    return status;
}

/* ---- verify ---------------------------------------------------------------------------------- */

/* "name\0value\0" for each fact. */
static ndm_status pack(const ndm_fact *facts, int64_t n_facts, ndm_buffer *buffer)
{
    for (int64_t i = 0; i < n_facts; i++) {
        ndm_buffer_append(buffer, facts[i].name, strlen(facts[i].name) + 1);
        ndm_buffer_append(buffer, facts[i].value, strlen(facts[i].value) + 1);
    }
    return ndm_buffer_status(buffer);
}

/* One fact of a packed text; at the end, "" = none. */
typedef struct cursor {
    const char *at, *end;
} cursor;

static const char *next_text(cursor *c)
{
    const char *text = c->at;

    if (text >= c->end)
        return "";
    c->at += strlen(text) + 1;
    return text;
}

/* Finds the first field in which a rank differs from rank 0. */
static ndm_status compare(const char *theirs, int64_t their_bytes, const char *first,
                          int64_t first_bytes, int64_t rank)
{
    cursor a = {first, first + first_bytes}, b = {theirs, theirs + their_bytes};

    while (a.at < a.end || b.at < b.end) {
        const char *name_a = next_text(&a), *value_a = next_text(&a);
        const char *name_b = next_text(&b), *value_b = next_text(&b);
        if (strcmp(name_a, name_b) != 0)
            NDM_FAIL(NDM_ERR_MISMATCH, "rank %lld differs from rank 0: it has %s%s%s, not %s",
                     (long long)rank, *name_b ? name_b : "nothing", *name_b ? " = " : "", value_b,
                     *name_a ? name_a : "nothing more");
        if (strcmp(value_a, value_b) != 0)
            NDM_FAIL(NDM_ERR_MISMATCH, "rank %lld differs from rank 0: %s is %s, not %s",
                     (long long)rank, name_a, *value_b ? value_b : "empty",
                     *value_a ? value_a : "empty");
    }
    return NDM_OK;
}

typedef struct digest {
    uint64_t hash;
    int64_t bytes;
} digest;

/* The texts differ somewhere: all ranks get all of them, and find the same difference. */
static ndm_status explain(ndm_world *world, const ndm_buffer *mine, const digest *digests)
{
    ndm_status status = NDM_OK;
    int64_t longest = 1, rank = 1;

    for (int64_t r = 0; r < world->size; r++)
        longest = digests[r].bytes > longest ? digests[r].bytes : longest;
    char *all = calloc((size_t)world->size + 1, (size_t)longest);
    if (!all)
        NDM_FAIL(NDM_ERR_MEMORY, "comm: no memory to compare %lld ranks", (long long)world->size);
    char *own = all + world->size * longest;
    if (mine->length)
        memcpy(own, mine->data, mine->length);
    NDM_TRY_OR(status, ndm_world_exchange(world, own, longest, all), out);
    for (; rank < world->size && status == NDM_OK; rank++)
        status = compare(all + rank * longest, digests[rank].bytes, all, digests[0].bytes, rank);
out:
    free(all);
    return status;
}

ndm_status ndm_world_verify(ndm_world *world, const ndm_fact *facts, int64_t n_facts)
{
    ndm_buffer mine = {0};
    ndm_status status = NDM_OK;
    digest own = {0}, *all;
    bool equal = true;

    if (world->size == 1 || world->simulated)
        return NDM_OK;
    all = calloc((size_t)world->size, sizeof *all);
    if (!all)
        NDM_FAIL(NDM_ERR_MEMORY, "comm: no memory to compare %lld ranks", (long long)world->size);
    NDM_TRY_OR(status, pack(facts, n_facts, &mine), out);
    own = (digest){ndm_hash_64(ndm_buffer_text(&mine), mine.length), (int64_t)mine.length};
    NDM_TRY_OR(status, ndm_world_exchange(world, &own, sizeof own, all), out);
    for (int64_t r = 1; r < world->size; r++)
        equal = equal && all[r].hash == all[0].hash && all[r].bytes == all[0].bytes;
    if (!equal)
        status = explain(world, &mine, all);
out:
    ndm_buffer_finish(&mine);
    free(all);
    return status;
}
