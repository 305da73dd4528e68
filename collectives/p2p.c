/* SPDX-License-Identifier: Apache-2.0 */
/* Messages over MPI, and tags. */
#include "collectives/p2p.h"

#include <stdlib.h>
#include <string.h>

#include "collectives/world.h"

enum { HASH_BITS = 9, KIND_BITS = 3, SEQUENCE_BITS = 5 };
enum { KIND_SHIFT = HASH_BITS, SEQUENCE_SHIFT = KIND_SHIFT + KIND_BITS };
enum { COMM_SHIFT = SEQUENCE_SHIFT + SEQUENCE_BITS };

static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * 0x9e3779b97f4a7c15ull;
    return hash ^ hash >> 29;
}

/* All that members must agree on, besides what has bits of its own. */
static uint64_t hash_signature(const ndm_signature *s)
{
    uint64_t h = mix(0x243f6a8885a308d3ull, s->generation);

    h = mix(h, s->sequence >> SEQUENCE_BITS);
    h = mix(h, (uint64_t)s->count);
    h = mix(h, (uint64_t)s->root);
    h = mix(h, (uint64_t)(s->dtype | s->recv_dtype << 8 | s->op << 16));
    return h >> 33;
}

int ndm_p2p_tag(const ndm_signature *s)
{
    uint64_t sequence = s->sequence & ((1u << SEQUENCE_BITS) - 1);
    uint64_t hash = hash_signature(s) & ((1u << HASH_BITS) - 1);

    return (int)((uint64_t)s->comm_id << COMM_SHIFT | sequence << SEQUENCE_SHIFT |
                 (uint64_t)s->kind << KIND_SHIFT | hash);
}

bool ndm_p2p_tag_same_collective(int tag, int other)
{
    return tag >> SEQUENCE_SHIFT == other >> SEQUENCE_SHIFT;
}

ndm_collective ndm_p2p_tag_kind(int tag)
{
    return (ndm_collective)(tag >> KIND_SHIFT & ((1 << KIND_BITS) - 1));
}

static ndm_status failed(const char *call, int code)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;

    MPI_Error_string(code, text, &length);
    NDM_FAIL(NDM_ERR_COMM, "comm: %s: %s", call, text);
}

ndm_status ndm_p2p_send(ndm_p2p *p2p, const void *data, int64_t bytes, int64_t rank, int tag,
                        MPI_Request *request)
{
    int code = MPI_Isend(data, (int)bytes, MPI_BYTE, (int)rank, tag, p2p->comm, request);
    return code == MPI_SUCCESS ? NDM_OK : failed("MPI_Isend", code);
}

ndm_status ndm_p2p_recv(ndm_p2p *p2p, void *data, int64_t bytes, int64_t rank, int tag,
                        MPI_Request *request)
{
    int code = MPI_Irecv(data, (int)bytes, MPI_BYTE, (int)rank, tag, p2p->comm, request);
    return code == MPI_SUCCESS ? NDM_OK : failed("MPI_Irecv", code);
}

ndm_status ndm_p2p_test(MPI_Request *request, bool *done, int64_t *bytes)
{
    MPI_Status status;
    int flag = 0, count = 0;
    int code = MPI_Test(request, &flag, &status);

    if (code != MPI_SUCCESS)
        return failed("MPI_Test", code);
    *done = flag != 0;
    if (flag && bytes) {
        MPI_Get_count(&status, MPI_BYTE, &count);
        *bytes = count;
    }
    return NDM_OK;
}

void ndm_p2p_cancel(MPI_Request *request, bool receive)
{
    if (*request == MPI_REQUEST_NULL)
        return;
    if (receive)
        MPI_Cancel(request);
    MPI_Request_free(request);
}

ndm_status ndm_p2p_probe(ndm_p2p *p2p, int64_t rank, int tag, bool *found, MPI_Status *status)
{
    int flag = 0;
    int code = MPI_Iprobe((int)rank, tag, p2p->comm, &flag, status);

    if (code != MPI_SUCCESS)
        return failed("MPI_Iprobe", code);
    *found = flag != 0;
    return NDM_OK;
}

void ndm_p2p_drain(ndm_p2p *p2p)
{
    MPI_Status status;
    bool found = true;
    int bytes = 0;

    while (ndm_p2p_probe(p2p, MPI_ANY_SOURCE, MPI_ANY_TAG, &found, &status) == NDM_OK && found) {
        MPI_Get_count(&status, MPI_BYTE, &bytes);
        void *buffer = malloc(bytes > 0 ? (size_t)bytes : 1);
        if (!buffer)
            return;
        MPI_Recv(buffer, bytes, MPI_BYTE, status.MPI_SOURCE, status.MPI_TAG, p2p->comm, &status);
        free(buffer);
    }
}

void ndm_p2p_set_message_limit(ndm_world *world, int64_t bytes)
{
    if (world->p2p)
        world->p2p->message_limit = bytes;
}
