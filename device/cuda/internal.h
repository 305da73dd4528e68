/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of device/cuda share. */
#ifndef NDM_DEVICE_CUDA_INTERNAL_H
#define NDM_DEVICE_CUDA_INTERNAL_H

#include "device/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { NDM_CUDA_STREAMS_MAX = 16, NDM_CUDA_BUS_ID_BYTES = 32, NDM_CUDA_SPANS = 1024 };

typedef struct ndm_cuda_span ndm_cuda_span;

typedef struct ndm_cuda_stream {
    ndm_stream base; /* first */
    cudaStream_t handle;
    bool given; /* the handle is an embedding program's */
    cublasHandle_t blas;
    cublasLtHandle_t blas_lt;
    void *workspace, *scratch; /* from the pool; NULL until asked for */
    int64_t scratch_bytes;
    ndm_cuda_span *spans; /* [NDM_CUDA_SPANS], waits whose times have not been read */
    int n_spans;
    cudaEvent_t joined; /* where graphs begin and end on another stream; NULL until then */
    struct ndm_cuda_stream *next;
} ndm_cuda_stream;

typedef struct ndm_cuda_event {
    ndm_event base; /* first */
    cudaEvent_t handle;
    int64_t capture; /* that the last record was part of, or 0 */
} ndm_cuda_event;

/* ---- device memory: pool.c ----------------------------------------------------------------- */

typedef struct ndm_cuda_block ndm_cuda_block;
typedef struct ndm_cuda_segment ndm_cuda_segment;

typedef struct ndm_cuda_pool {
    ndm_cuda_segment *segments;
    int64_t pending;    /* blocks that the device may still use */
    int64_t retired;    /* blocks given back that a graph uses */
    cudaEvent_t *spare; /* [n_spare], events to mark such blocks with */
    int64_t n_spare, spare_capacity;
    int64_t reserved_bytes, peak_reserved_bytes; /* of the device */
    int64_t used_bytes, peak_used_bytes;         /* handed out, rounded up */
} ndm_cuda_pool;

/* ---- pinned memory on the way to and from the host: ring.c ---------------------------------- */

/* A piece of the ring in use. Pieces are taken and given back in order. */
typedef struct ndm_cuda_piece {
    int64_t begin, end; /* bytes in the ring's endless numbering */
    cudaEvent_t done;
    void *target;  /* of a download that has not been delivered, else NULL */
    int64_t bytes; /* of the download */
} ndm_cuda_piece;

enum { NDM_CUDA_PIECES = 256 };

typedef struct ndm_cuda_ring {
    char *memory;
    ndm_cuda_piece pieces[NDM_CUDA_PIECES]; /* circular */
    int64_t first, count;                   /* pieces in use */
    int64_t end;                            /* where the next piece may begin */
} ndm_cuda_ring;

typedef struct ndm_cuda_dev {
    ndm_device base; /* first */
    int ordinal, sm_count, capability;
    int64_t shared_bytes;
    char bus_id[NDM_CUDA_BUS_ID_BYTES];
    ndm_cuda_stream *streams;
    ndm_cuda_pool pool;
    ndm_cuda_ring ring;
    ndm_cuda_watch *watches;
    ndm_status failed; /* sticky: so is CUDA's own error */
    int64_t host_waits;
    bool blocking;                /* wait after every launch: finds the kernel that fails */
    int64_t capture, captures;    /* number of the one under way (0 = none), and of the last one */
    const char *spoiled;          /* what its streams were given that no graph holds, or NULL */
    ndm_graph *graphs;            /* that there are */
    cudaEvent_t fork, graph_done; /* the latter: after the last launch of a graph */
} ndm_cuda_dev;

static inline ndm_cuda_dev *ndm_cuda_of(const ndm_device *device)
{
    return (ndm_cuda_dev *)device;
}

/* choose.c: which device of the machine a rank takes, and the rank's processors near it. */
NDM_MUST_USE ndm_status ndm_cuda_choose(const ndm_device_options *options, int *ordinal);
void ndm_cuda_move_near(const char *bus_id);

ndm_status ndm_cuda_alloc(ndm_device *device, int64_t bytes, void **memory);
void ndm_cuda_free(ndm_device *device, void *memory, int64_t bytes);
void ndm_cuda_pool_finish(ndm_cuda_dev *device);
void ndm_cuda_pool_stats(const ndm_device *device, ndm_memory_pool *stats);
/* What lies in the pool now stays as it is until it is released: a graph's launches use it. */
void ndm_cuda_pool_hold(ndm_cuda_dev *device);
void ndm_cuda_pool_release(ndm_cuda_dev *device);

ndm_status ndm_cuda_copy(ndm_stream *stream, void *dst, const void *src, int64_t bytes,
                         ndm_copy_kind kind);
void ndm_cuda_deliver(ndm_cuda_dev *device); /* downloads whose copies are done, to their targets */
void ndm_cuda_ring_finish(ndm_cuda_dev *device);

/* wait.c: blocks the host until an event has happened or a stream is idle. */
NDM_MUST_USE ndm_status ndm_cuda_wait_event(ndm_cuda_dev *device, cudaEvent_t event,
                                            const char *what);
NDM_MUST_USE ndm_status ndm_cuda_wait_stream(ndm_cuda_dev *device, cudaStream_t stream,
                                             const char *what);

/* exposed.c: around a wait of a stream for an event. */
NDM_MUST_USE ndm_status ndm_cuda_exposed_begin(ndm_cuda_stream *stream, cudaEvent_t event,
                                               bool *timed);
NDM_MUST_USE ndm_status ndm_cuda_exposed_end(ndm_cuda_stream *stream); /* if it is timed */
void ndm_cuda_exposed_read(ndm_cuda_stream *stream); /* adds up; the stream is idle */
void ndm_cuda_exposed_finish(ndm_cuda_stream *stream);

/* graph.c: whether a capture is under way; then it is spoiled by `what`. */
bool ndm_cuda_spoil(ndm_cuda_dev *device, const char *what);
void ndm_cuda_graph_finish(ndm_cuda_dev *device);

void ndm_cuda_blas_finish(ndm_cuda_stream *stream); /* blas.c: handles, workspace and scratch */

#ifdef __cplusplus
}
#endif
#endif
