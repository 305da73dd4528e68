/* SPDX-License-Identifier: Apache-2.0 */
/* Inside the host process: what the entry points of the CUDA runtime, cuBLAS and NCCL share. */
#pragma once

#include "cuemu_shared.h"

#include <cuda_runtime_api.h>

typedef struct cuemu_capture cuemu_capture;

struct CUstream_st {
    pthread_mutex_t lock;
    bool live;
    int slot, priority, device;
    cuemu_capture *capture; /* that it is part of, or NULL */
    int lane;               /* its number there */
};

struct CUevent_st {
    bool live, timed;
    uint32_t id, recorded;  /* sequence of the last record */
    cuemu_capture *capture; /* the record was captured, as node `node` */
    int node;
};

/* cuemu_host.c */
long cuemu_env(const char *name, long otherwise);
int cuemu_shared_optin(void);     /* bytes of shared memory that a block may ask for */
void cuemu_init(void);            /* starts the device process, once */
void cuemu_reseed(uint32_t seed); /* from now on; for tests, which find it by its name */
pid_t cuemu_device_pid(void);
int cuemu_device_fd(void);
cudaError_t cuemu_health(void); /* the sticky error, or that the device process has died */
cudaError_t cuemu_result(cudaError_t error); /* for cudaGetLastError() */
void cuemu_new_ring(int slot);               /* a thread for it */

/* cuemu_stream.c */
cudaStream_t cuemu_own_stream(void); /* for synchronous work */
bool cuemu_stream_valid(cudaStream_t stream);
cudaError_t cuemu_push(cudaStream_t stream, const cuemu_record *record); /* or captures it */
cudaError_t cuemu_put(cudaStream_t stream, const cuemu_record *record);  /* never captures */
typedef struct cuemu_mark { /* a place in a stream: what it held then */
    int slot;
    uint32_t upto;
} cuemu_mark;
void cuemu_mark_take(cuemu_mark *mark, cudaStream_t stream);
bool cuemu_mark_passed(const cuemu_mark *mark);
cudaError_t cuemu_drain(cudaStream_t stream); /* waits for all that it holds */
cudaError_t cuemu_drain_all(void);
bool cuemu_event_valid(cudaEvent_t event);
void cuemu_events_move(const cuemu_capture *from,
                       cuemu_capture *to); /* of all events recorded in `from` */

/* cuemu_memory.c */
bool cuemu_is_device(const void *at, size_t bytes);

/* cuemu_graph.c; the stream's lock is held */
cudaError_t cuemu_capture_append(cudaStream_t stream, const cuemu_record *record);
cudaError_t cuemu_capture_record(cudaStream_t stream, cudaEvent_t event);
cudaError_t cuemu_capture_wait(cudaStream_t stream, cudaEvent_t event);
cudaError_t
cuemu_capture_forbid(cudaStream_t stream); /* a call that breaks a capture: error, or success */
bool cuemu_capture_strict(void);           /* a capture forbids calls such as cudaMalloc() now */

bool cuemu_graphs_hold(int comm); /* is there one with a call on the communicator? */

/* cuemu_nccl.c */
uint32_t cuemu_comm_order(int queue); /* of the next call on it */
