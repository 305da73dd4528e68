/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL in the device processes: ranks meet in a communicator's shared memory and copy from each
 * other's device memory, mapped through /proc/PID/fd. Sums go in rank order, so they are the same
 * everywhere. */
#include "cuemu_device.h"

#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <nccl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { CHUNK = 1024, PEERS = 256 };

typedef struct {
    cuemu_comm *shared;
    int rank;
    char *peer[CUEMU_RANKS];
} local_comm;

static local_comm comms[CUEMU_COMMS];
static struct {
    pid_t pid;
    char *at;
} peers[PEERS];
static int n_peers;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static char *map_peer(pid_t pid)
{
    char path[64];
    if (pid == getpid())
        return (char *)CUEMU_DEVICE_BASE;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)pid, CUEMU_DEVICE_FD);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    off_t bytes = lseek(fd, 0, SEEK_END);
    void *p = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return p == MAP_FAILED ? NULL : p;
}

static char *peer_memory(pid_t pid)
{
    char *found = NULL;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < n_peers; i++)
        if (peers[i].pid == pid)
            found = peers[i].at;
    if (!found && n_peers < PEERS && (found = map_peer(pid))) {
        peers[n_peers].pid = pid;
        peers[n_peers++].at = found;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

static void comm_open(const cuemu_record *r)
{
    local_comm *m = &comms[r->u.open.comm];
    m->rank = r->u.open.rank;
    m->shared = cuemu_comm_map(r->u.open.pid, r->u.open.fd);
    for (int i = 0; m->shared && i < m->shared->ranks; i++)
        if (!(m->peer[i] = peer_memory(m->shared->rank[i].device_process))) {
            perror("cuemu: memory of another rank's device process");
            m->shared->bad = ncclSystemError;
        }
    if (!m->shared) {
        perror("cuemu: memory of a communicator");
        cuemu_device_fail(cudaErrorPeerAccessUnsupported);
    }
}

static void comm_close(const cuemu_record *r)
{
    local_comm *m = &comms[r->u.open.comm];
    if (m->shared)
        munmap(m->shared, sizeof *m->shared);
    m->shared = NULL;
}

static bool barrier(const local_comm *m)
{
    return cuemu_comm_barrier(m->shared, CUEMU_CONTROL->nccl_timeout_ms);
}

static const char *sent(const local_comm *m, int rank)
{
    return m->peer[rank] + (m->shared->rank[rank].send - CUEMU_DEVICE_BASE);
}

static const char *received(const local_comm *m, int rank)
{
    return m->peer[rank] + (m->shared->rank[rank].recv - CUEMU_DEVICE_BASE);
}

/* ---- reductions ---- */

#define COMBINE(sum, x, reduction)                           \
    do {                                                     \
        if ((reduction) == ncclMax)                          \
            (sum) = (x) > (sum) || (x) != (x) ? (x) : (sum); \
        else if ((reduction) == ncclMin)                     \
            (sum) = (x) < (sum) || (x) != (x) ? (x) : (sum); \
        else if ((reduction) == ncclProd)                    \
            (sum) *= (x);                                    \
        else                                                 \
            (sum) += (x);                                    \
    } while (0)

static int64_t integer_get(const void *p, size_t i, cuemu_type type)
{
    switch (type) {
    case CUEMU_I8:
        return ((const int8_t *)p)[i];
    case CUEMU_U8:
        return ((const uint8_t *)p)[i];
    case CUEMU_I32:
        return ((const int32_t *)p)[i];
    case CUEMU_U32:
        return ((const uint32_t *)p)[i];
    default:
        return ((const int64_t *)p)[i];
    }
}

static void integer_put(void *p, size_t i, cuemu_type type, int64_t v)
{
    switch (cuemu_type_bytes(type)) {
    case 1:
        ((int8_t *)p)[i] = (int8_t)v;
        break;
    case 4:
        ((int32_t *)p)[i] = (int32_t)v;
        break;
    default:
        ((int64_t *)p)[i] = v;
    }
}

static void reduce_integers(const local_comm *m, cuemu_type type, int reduction, size_t from,
                            size_t n, void *to)
{
    for (size_t i = 0; i < n; i++) {
        int64_t sum = integer_get(sent(m, 0), from + i, type);
        for (int r = 1; r < m->shared->ranks; r++) {
            int64_t x = integer_get(sent(m, r), from + i, type);
            COMBINE(sum, x, reduction);
        }
        integer_put(to, i, type, reduction == ncclAvg ? sum / m->shared->ranks : sum);
    }
}

static void reduce_doubles(const local_comm *m, int reduction, size_t from, size_t n, double *to)
{
    for (size_t i = 0; i < n; i++) {
        double sum = ((const double *)sent(m, 0))[from + i];
        for (int r = 1; r < m->shared->ranks; r++) {
            double x = ((const double *)sent(m, r))[from + i];
            COMBINE(sum, x, reduction);
        }
        to[i] = reduction == ncclAvg ? sum / m->shared->ranks : sum;
    }
}

/* In fp32 whatever the type, rounded once; beginning with rank `first`. */
static void reduce_floats(const local_comm *m, cuemu_type type, int reduction, int first,
                          size_t from, size_t n, void *to)
{
    int ranks = m->shared->ranks;
    float sum[CHUNK];
    for (size_t done = 0; done < n; done += CHUNK) {
        size_t chunk = n - done < CHUNK ? n - done : CHUNK;
        for (size_t i = 0; i < chunk; i++)
            sum[i] = cuemu_number_get(sent(m, first), from + done + i, type);
        for (int r = 1; r < ranks; r++)
            for (size_t i = 0; i < chunk; i++) {
                float x = cuemu_number_get(sent(m, (first + r) % ranks), from + done + i, type);
                COMBINE(sum[i], x, reduction);
            }
        for (size_t i = 0; i < chunk; i++)
            cuemu_number_put(to, done + i, type,
                             reduction == ncclAvg ? sum[i] / (float)ranks : sum[i]);
    }
}

static void reduce(const local_comm *m, cuemu_type type, int reduction, int first, size_t from,
                   size_t n, void *to)
{
    if (type == CUEMU_F64)
        reduce_doubles(m, reduction, from, n, to);
    else if (type >= CUEMU_I8)
        reduce_integers(m, type, reduction, from, n, to);
    else
        reduce_floats(m, type, reduction, first, from, n, to);
}

/* Each rank reduces its slice, then all copy the others' slices: safe in place, since a rank writes
 * only what no other rank still reads. */
static void all_reduce(const local_comm *m, cuemu_type type, int reduction, int first, size_t n,
                       char *to)
{
    size_t ranks = (size_t)m->shared->ranks, size = cuemu_type_bytes(type), me = (size_t)m->rank;
    size_t begin = n * me / ranks, end = n * (me + 1) / ranks;
    reduce(m, type, reduction, first, begin, end - begin, to + begin * size);
    if (!barrier(m))
        return;
    for (size_t r = 0; r < ranks; r++) {
        begin = n * r / ranks;
        end = n * (r + 1) / ranks;
        if (r != me)
            memcpy(to + begin * size, received(m, (int)r) + begin * size, (end - begin) * size);
    }
}

/* ---- collectives ---- */

static void move(char *to, const char *from, size_t bytes, const char *mine)
{
    if (from != mine || to != mine) /* in place there is nothing to do, and others may be reading */
        memmove(to, from, bytes);
}

static void perform(const local_comm *m, const cuemu_record *r)
{
    cuemu_type type = (cuemu_type)r->u.call.type;
    size_t n = r->u.call.count, bytes = n * cuemu_type_bytes(type), me = (size_t)m->rank;
    char *to = (char *)r->u.call.recv;
    const char *mine = (const char *)r->u.call.send;
    switch (r->u.call.operation) {
    case CUEMU_ALL_GATHER:
        for (int i = 0; i < m->shared->ranks; i++)
            move(to + (size_t)i * bytes, sent(m, i), bytes, mine);
        break;
    case CUEMU_REDUCE_SCATTER:
        reduce(m, type, r->u.call.reduction, 0, n * me, n, to);
        break;
    case CUEMU_ALL_REDUCE:
        all_reduce(m, type, r->u.call.reduction,
                   r->u.call.nvls ? (int)(r->u.call.order % (uint32_t)m->shared->ranks) : 0, n, to);
        break;
    case CUEMU_BROADCAST:
        move(to, sent(m, r->u.call.peer), bytes, mine);
        break;
    default:
        for (int i = 0; i < m->shared->ranks; i++)
            memcpy(to + (size_t)i * bytes, sent(m, i) + me * bytes, bytes);
    }
}

static const char *operation_name(int operation)
{
    static const char *names[] = {"all_gather", "reduce_scatter", "all_reduce", "broadcast",
                                  "all_to_all"};
    return names[operation];
}

static bool differ(const cuemu_comm *c, int a, int b)
{
    return c->rank[a].operation != c->rank[b].operation || c->rank[a].count != c->rank[b].count ||
           c->rank[a].type != c->rank[b].type || c->rank[a].reduction != c->rank[b].reduction ||
           c->rank[a].root != c->rank[b].root;
}

/* NCCL would hang or return rubbish; here every rank learns that the calls do not fit. */
static bool calls_match(const local_comm *m)
{
    cuemu_comm *c = m->shared;
    int other = 1;
    uint32_t none = 0;
    while (other < c->ranks && !differ(c, 0, other))
        other++;
    if (other == c->ranks)
        return !c->bad;
    if (atomic_compare_exchange_strong(&c->bad, &none,
                                       ncclInvalidUsage)) /* the first to see it says so */
        fprintf(stderr,
                "cuemu: NCCL calls differ: rank 0 %s of %zu (type %d, op %d, root %d), rank %d %s "
                "of %zu "
                "(type %d, op %d, root %d)\n",
                operation_name(c->rank[0].operation), c->rank[0].count, c->rank[0].type,
                c->rank[0].reduction, c->rank[0].root, other,
                operation_name(c->rank[other].operation), c->rank[other].count, c->rank[other].type,
                c->rank[other].reduction, c->rank[other].root);
    return false;
}

static void collective(const local_comm *m, const cuemu_record *r)
{
    __typeof__(&m->shared->rank[0]) mine = &m->shared->rank[m->rank];
    mine->operation = r->u.call.operation;
    mine->type = r->u.call.type;
    mine->reduction = r->u.call.reduction;
    mine->root = r->u.call.peer;
    mine->count = r->u.call.count;
    mine->send = r->u.call.send;
    mine->recv = r->u.call.recv;
    if (barrier(m) && calls_match(m)) {
        perform(m, r);
        barrier(m);
    }
}

/* ---- messages ---- */

static bool wait_above(const local_comm *m, _Atomic uint32_t *counter, uint32_t seen)
{
    return cuemu_comm_wait(m->shared, counter, seen, CUEMU_CONTROL->nccl_timeout_ms);
}

static void post(const local_comm *m, const cuemu_record *r)
{
    cuemu_box *box = &m->shared->box[m->rank][r->u.call.peer];
    uint32_t taken;
    while (taken = box->taken, box->posted - taken == CUEMU_BOX)
        if (!wait_above(m, &box->taken, taken))
            return;
    __typeof__(&box->message[0]) message = &box->message[box->posted % CUEMU_BOX];
    message->at = r->u.call.send;
    message->count = r->u.call.count;
    message->type = r->u.call.type;
    box->posted++;
    cuemu_futex_wake(&box->posted);
}

static void take(const local_comm *m, const cuemu_record *r)
{
    int peer = r->u.call.peer;
    cuemu_box *box = &m->shared->box[peer][m->rank];
    if (box->posted == box->taken && !wait_above(m, &box->posted, box->taken))
        return;
    __typeof__(&box->message[0]) message = &box->message[box->taken % CUEMU_BOX];
    if (message->count != r->u.call.count || message->type != r->u.call.type) {
        fprintf(stderr,
                "cuemu: NCCL: rank %d sends %zu (type %d), rank %d receives %zu (type %d)\n", peer,
                message->count, message->type, m->rank, r->u.call.count, r->u.call.type);
        m->shared->bad = ncclInvalidUsage;
    } else
        memcpy((void *)r->u.call.recv, m->peer[peer] + (message->at - CUEMU_DEVICE_BASE),
               message->count * cuemu_type_bytes((cuemu_type)message->type));
    box->taken++;
    cuemu_futex_wake(&box->taken);
}

static void drain(const local_comm *m, const cuemu_record *r)
{
    cuemu_box *box = &m->shared->box[m->rank][r->u.call.peer];
    uint32_t taken;
    while (taken = box->taken, taken != box->posted)
        if (!wait_above(m, &box->taken, taken))
            return;
}

/* Calls of a communicator run one after another in the order of issue, also from several streams.
 */
static bool my_turn(const local_comm *m, _Atomic uint32_t *over, uint32_t order)
{
    uint32_t done;
    while (done = *over, done != order - 1)
        if (!wait_above(m, over, done))
            return false;
    return true;
}

void cuemu_comm_execute(const cuemu_record *r)
{
    if (r->kind == CUEMU_COMM_OPEN || r->kind == CUEMU_COMM_CLOSE) {
        (r->kind == CUEMU_COMM_OPEN ? comm_open : comm_close)(r);
        return;
    }
    const local_comm *m = &comms[r->u.call.comm];
    _Atomic uint32_t *over = &CUEMU_CONTROL->comm_done[r->u.call.queue];
    if (m->shared && my_turn(m, over, r->u.call.order) && !m->shared->bad)
        switch (r->kind) {
        case CUEMU_POST:
            post(m, r);
            break;
        case CUEMU_TAKE:
            take(m, r);
            break;
        case CUEMU_DRAIN:
            drain(m, r);
            break;
        default:
            collective(m, r);
        }
    /* After a failure none waits for its turn: a later one may have been here. */
    for (uint32_t seen = *over; (int32_t)(r->u.call.order - seen) > 0;)
        if (atomic_compare_exchange_weak(over, &seen, r->u.call.order))
            break;
    cuemu_futex_wake(over);
}
