/* SPDX-License-Identifier: Apache-2.0 */
/* Stream capture and graphs. A capture keeps the records of each stream (a lane) in order and, for
 * each wait, the node it waits for. A launch puts the nodes on one stream: in the order of issue,
 * or, with a seed, in another order that the lanes and waits allow, so that a missing wait shows.
 */
#include "cuemu_host.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    int lane, after; /* after: a node that comes first, or -1 */
    cuemu_record record;
} node;

struct CUgraph_st {
    node *nodes;
    int n, cap, lanes;
    int priority[CUEMU_STREAMS]; /* of each lane */
    struct CUgraph_st *next;     /* in the list of all, also of those inside a CUgraphExec_st */
};

struct CUgraphExec_st {
    struct CUgraph_st graph; /* first */
    uint32_t launches;
    bool by_priority;
    cuemu_mark last;
    struct CUgraphExec_st *next; /* in the list of those */
};

struct cuemu_capture {
    struct CUgraph_st *graph;
    cudaStream_t origin;
    enum cudaStreamCaptureMode mode;
    bool invalid;
    int last[CUEMU_STREAMS]; /* node of each lane, or -1 */
    cudaStream_t lane[CUEMU_STREAMS];
};

static atomic_int strict_captures;
static cuemu_capture over; /* of events that were recorded in a capture which has ended */
static struct CUgraph_st *graphs;
static struct CUgraphExec_st *dropped;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of both lists */

static bool is_call(const node *x)
{
    return x->record.kind >= CUEMU_COLLECTIVE && x->record.kind <= CUEMU_DRAIN;
}

static void list_add(struct CUgraph_st *g)
{
    pthread_mutex_lock(&lock);
    g->next = graphs;
    graphs = g;
    pthread_mutex_unlock(&lock);
}

static void list_remove(struct CUgraph_st *g) /* lock held */
{
    struct CUgraph_st **link = &graphs;
    while (*link != g)
        link = &(*link)->next;
    *link = g->next;
    free(g->nodes);
}

static void reap(void) /* lock held */
{
    for (struct CUgraphExec_st **p = &dropped; *p;) {
        struct CUgraphExec_st *x = *p;
        if (x->launches && !cuemu_mark_passed(&x->last)) {
            p = &x->next;
            continue;
        }
        *p = x->next;
        list_remove(&x->graph);
        free(x);
    }
}

bool cuemu_graphs_hold(int comm)
{
    bool held = false;
    pthread_mutex_lock(&lock);
    reap();
    for (const struct CUgraph_st *g = graphs; g && !held; g = g->next)
        for (int i = 0; i < g->n && !held; i++)
            held = is_call(&g->nodes[i]) && g->nodes[i].record.u.call.comm == comm;
    pthread_mutex_unlock(&lock);
    return held;
}

static cudaError_t append(cuemu_capture *c, int lane, int after, const cuemu_record *record)
{
    struct CUgraph_st *g = c->graph;
    if (c->invalid)
        return cudaErrorStreamCaptureInvalidated;
    pthread_mutex_lock(&lock);
    if (g->n == g->cap) {
        g->cap = g->cap ? 2 * g->cap : 256;
        g->nodes = realloc(g->nodes, sizeof *g->nodes * (size_t)g->cap);
        if (!g->nodes)
            abort();
    }
    g->nodes[g->n] = (node){lane, after, *record};
    c->last[lane] = g->n++;
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

cudaError_t cuemu_capture_append(cudaStream_t s, const cuemu_record *record)
{
    return append(s->capture, s->lane, -1, record);
}

cudaError_t cuemu_capture_forbid(cudaStream_t s)
{
    s->capture->invalid = true;
    return cudaErrorStreamCaptureUnsupported;
}

bool cuemu_capture_strict(void)
{
    return strict_captures > 0;
}

cudaError_t cuemu_capture_record(cudaStream_t s, cudaEvent_t e)
{
    cuemu_record mark = {.kind = CUEMU_MARK};
    cudaError_t error = append(s->capture, s->lane, -1, &mark);
    e->capture = s->capture;
    e->node = s->capture->last[s->lane];
    return error;
}

cudaError_t cuemu_capture_wait(cudaStream_t s, cudaEvent_t e)
{
    cuemu_record mark = {.kind = CUEMU_MARK};
    cuemu_capture *c = e->capture;
    if (!c) { /* the stream captures, the event is of work outside */
        if (!e->recorded)
            return cudaSuccess;
        s->capture->invalid = true;
        return cudaErrorStreamCaptureIsolation;
    }
    if (c == &over)
        return cudaErrorCapturedEvent;
    if (s->capture && s->capture != c) {
        s->capture->invalid = c->invalid = true;
        return cudaErrorStreamCaptureMerge;
    }
    if (!s->capture) { /* joins */
        s->capture = c;
        s->lane = c->graph->lanes++;
        c->graph->priority[s->lane] = s->priority;
        c->lane[s->lane] = s;
    }
    return append(c, s->lane, e->node, &mark);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode)
{
    if (!cuemu_stream_valid(s) || s->capture)
        return cuemu_result(cudaErrorIllegalState);
    cuemu_capture *c = calloc(1, sizeof *c);
    if (!c || !(c->graph = calloc(1, sizeof *c->graph)))
        abort();
    for (int i = 0; i < CUEMU_STREAMS; i++)
        c->last[i] = -1;
    list_add(c->graph);
    c->origin = c->lane[0] = s;
    c->graph->lanes = 1;
    c->graph->priority[0] = s->priority;
    c->mode = mode;
    if (mode != cudaStreamCaptureModeRelaxed)
        strict_captures++;
    pthread_mutex_lock(&s->lock);
    s->lane = 0;
    s->capture = c;
    pthread_mutex_unlock(&s->lock);
    return cudaSuccess;
}

/* Whether the origin has waited, directly or through others, for the last work of every lane. */
static bool joined(const cuemu_capture *c)
{
    const struct CUgraph_st *g = c->graph;
    int covered[CUEMU_STREAMS];
    for (int lane = 0; lane < g->lanes; lane++)
        covered[lane] = lane ? -1 : g->n;
    for (int i = g->n - 1; i >= 0; i--) {
        const node *x = &g->nodes[i];
        if (x->after < 0 || i > covered[x->lane])
            continue;
        int other = g->nodes[x->after].lane;
        covered[other] = x->after > covered[other] ? x->after : covered[other];
    }
    for (int i = 0; i < g->n; i++)
        if (g->nodes[i].record.kind != CUEMU_MARK && i > covered[g->nodes[i].lane])
            return false;
    return true;
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *graph)
{
    *graph = NULL;
    if (!cuemu_stream_valid(s) || !s->capture)
        return cuemu_result(cudaErrorIllegalState);
    cuemu_capture *c = s->capture;
    if (c->origin != s)
        return cuemu_result(cudaErrorStreamCaptureUnmatched);
    cudaError_t error = c->invalid ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
    if (!error && !joined(c))
        error = cudaErrorStreamCaptureUnjoined;
    for (int i = 0; i < c->graph->lanes; i++) {
        pthread_mutex_lock(&c->lane[i]->lock);
        c->lane[i]->capture = NULL;
        pthread_mutex_unlock(&c->lane[i]->lock);
    }
    if (c->mode != cudaStreamCaptureModeRelaxed)
        strict_captures--;
    if (error)
        cudaGraphDestroy(c->graph);
    else
        *graph = c->graph;
    cuemu_events_move(c, &over);
    free(c);
    return cuemu_result(error);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *status)
{
    if (!cuemu_stream_valid(s))
        return cuemu_result(cudaErrorInvalidResourceHandle);
    *status = !s->capture           ? cudaStreamCaptureStatusNone
              : s->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                    : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}

static void copy_graph(struct CUgraph_st *to, const struct CUgraph_st *from)
{
    size_t bytes = sizeof *to->nodes * (size_t)from->n;
    *to = *from;
    to->nodes = malloc(bytes ? bytes : 1);
    to->cap = from->n;
    if (!to->nodes)
        abort();
    if (bytes)
        memcpy(to->nodes, from->nodes, bytes);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags)
{
    if (!graph || flags & ~(unsigned long long)cudaGraphInstantiateFlagUseNodePriority)
        return cuemu_result(cudaErrorInvalidValue);
    struct CUgraphExec_st *x = calloc(1, sizeof *x);
    if (!x)
        abort();
    copy_graph(&x->graph, graph);
    list_add(&x->graph);
    x->by_priority = flags & cudaGraphInstantiateFlagUseNodePriority;
    *exec = x;
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t s)
{
    (void)exec;
    return cuemu_stream_valid(s) ? cudaSuccess : cuemu_result(cudaErrorInvalidResourceHandle);
}

typedef struct {
    const struct CUgraph_st *graph;
    int at[CUEMU_STREAMS]; /* next node of each lane */
    bool by_priority;
    int call; /* next NCCL call: these keep their order, on all ranks alike */
    bool *done;
} launch_state;

static bool may_run(const launch_state *l, int i)
{
    const node *x = &l->graph->nodes[i];
    return (x->after < 0 || l->done[x->after]) && (!is_call(x) || i == l->call);
}

static bool precedes(const launch_state *l, int lane, int other)
{
    const int *priority = l->graph->priority;
    if (l->by_priority && priority[lane] != priority[other])
        return priority[lane] < priority[other];
    return l->at[lane] < l->at[other];
}

/* The lane of the next node: of the highest priority where the graph has them, the first in order
 * of issue, or by the seed any whose node may run. */
static int choose(const launch_state *l, uint32_t random)
{
    int ready[CUEMU_STREAMS], n = 0, first = -1;
    for (int lane = 0; lane < l->graph->lanes; lane++) {
        if (l->at[lane] == l->graph->n || !may_run(l, l->at[lane]))
            continue;
        ready[n++] = lane;
        if (first < 0 || precedes(l, lane, first))
            first = lane;
    }
    return CUEMU_CONTROL->seed && n ? ready[random % (uint32_t)n] : first;
}

static int next_of_lane(const struct CUgraph_st *g, int lane, int from)
{
    while (from < g->n && g->nodes[from].lane != lane)
        from++;
    return from;
}

static int next_call(const struct CUgraph_st *g, int from)
{
    while (from < g->n && !is_call(&g->nodes[from]))
        from++;
    return from;
}

static cudaError_t put_nodes(launch_state *l, cudaStream_t s, uint32_t random)
{
    const struct CUgraph_st *g = l->graph;
    cudaError_t error = cudaSuccess;
    l->call = next_call(g, 0);
    for (int lane = 0; lane < g->lanes; lane++)
        l->at[lane] = next_of_lane(g, lane, 0);
    for (int i = 0; i < g->n && !error; i++) {
        random = random * 1664525u + 1013904223u;
        int lane = choose(l, random >> 8), chosen = l->at[lane];
        error = cuemu_put(s, &g->nodes[chosen].record);
        l->done[chosen] = true;
        l->at[lane] = next_of_lane(g, lane, chosen + 1);
        if (chosen == l->call)
            l->call = next_call(g, chosen + 1);
    }
    return error;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s)
{
    if (!exec || !cuemu_stream_valid(s) || s->capture)
        return cuemu_result(cudaErrorInvalidResourceHandle);
    launch_state l = {.graph = &exec->graph, .by_priority = exec->by_priority};
    l.done = calloc((size_t)exec->graph.n + 1, sizeof *l.done);
    if (!l.done)
        abort();
    cudaError_t error = put_nodes(&l, s, CUEMU_CONTROL->seed + exec->launches++);
    cuemu_mark_take(&exec->last, s);
    free(l.done);
    return cuemu_result(error);
}

/* New parameters for the same nodes in the same lanes. */
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph,
                                cudaGraphExecUpdateResultInfo *info)
{
    memset(info, 0, sizeof *info);
    bool same = exec->graph.n == graph->n;
    for (int i = 0; same && i < graph->n; i++) {
        const node *a = &exec->graph.nodes[i], *b = &graph->nodes[i];
        same = a->lane == b->lane && a->after == b->after && a->record.kind == b->record.kind;
    }
    if (!same) {
        info->result = cudaGraphExecUpdateErrorTopologyChanged;
        return cuemu_result(cudaErrorGraphExecUpdateFailure);
    }
    if (graph->n)
        memcpy(exec->graph.nodes, graph->nodes, sizeof *graph->nodes * (size_t)graph->n);
    return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *n)
{
    if (nodes)
        return cuemu_result(cudaErrorNotSupported);
    *n = 0;
    for (int i = 0; i < graph->n; i++)
        *n += graph->nodes[i].record.kind != CUEMU_MARK;
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    if (!graph)
        return cudaSuccess;
    pthread_mutex_lock(&lock);
    list_remove(graph);
    pthread_mutex_unlock(&lock);
    free(graph);
    return cudaSuccess;
}

/* One in flight is gone when its launch is over. */
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    if (!exec)
        return cudaSuccess;
    pthread_mutex_lock(&lock);
    exec->next = dropped;
    dropped = exec;
    reap();
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}
