/* SPDX-License-Identifier: Apache-2.0 */
/* What the host process and the device process share: control block, records of streams,
 * communicators. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Fixed addresses that thread and address sanitizers leave free. Device memory is PROT_NONE in the
 * host process; control block and pinned memory are mapped in both, so a pointer means the same in
 * both. */
#define CUEMU_DEVICE_BASE 0x7e8000000000UL
#define CUEMU_SHARED_BASE 0x7e9000000000UL

enum {
    CUEMU_STREAMS = 64, /* slot 0 is the emulator's own, for synchronous work */
    CUEMU_SLOTS = 1024, /* records that a stream holds before a launch blocks */
    CUEMU_EVENTS = 32768,
    CUEMU_MODULES = 32,
    CUEMU_RANKS = 16,
    CUEMU_COMMS = 256,
    CUEMU_BOX = 64, /* messages posted from one rank to another and not yet taken */
    CUEMU_ARGS = 512,
    CUEMU_DEVICE_FD =
        200, /* of the device process: device memory, shared memory, pipe to the host */
    CUEMU_SHARED_FD = 201,
    CUEMU_LIFE_FD = 202,
};

typedef enum cuemu_type {
    CUEMU_F32,
    CUEMU_BF16,
    CUEMU_F16,
    CUEMU_E4M3,
    CUEMU_E5M2,
    CUEMU_F64,
    CUEMU_I8,
    CUEMU_U8,
    CUEMU_I32,
    CUEMU_U32,
    CUEMU_I64,
    CUEMU_U64,
} cuemu_type;

typedef enum cuemu_kind {
    CUEMU_KERNEL,
    CUEMU_COPY,
    CUEMU_FILL,
    CUEMU_POISON,
    CUEMU_RECORD,
    CUEMU_WAIT,
    CUEMU_GEMM,
    CUEMU_COMM_OPEN,
    CUEMU_COMM_CLOSE,
    CUEMU_COLLECTIVE,
    CUEMU_POST,  /* a send: publish the buffer */
    CUEMU_TAKE,  /* a receive: copy from the peer's buffer */
    CUEMU_DRAIN, /* the send's end: the peer has taken it */
    CUEMU_MARK,  /* in graphs only: an event recorded */
    CUEMU_KINDS,
} cuemu_kind;

typedef enum cuemu_operation {
    CUEMU_ALL_GATHER,
    CUEMU_REDUCE_SCATTER,
    CUEMU_ALL_REDUCE,
    CUEMU_BROADCAST,
    CUEMU_ALL_TO_ALL,
} cuemu_operation;

typedef struct cuemu_code { /* code, valid in any process that loads the module */
    int module;
    uint64_t offset;
} cuemu_code;

typedef struct cuemu_gemm { /* column-major: D = d_scale * (alpha a_scale b_scale op(A) op(B) + beta
                               C + bias) */
    bool trans_a, trans_b, tf32;
    bool reduced; /* long sums may be made of parts that are rounded to D's type */
    int m, n, k, batch;
    int64_t lda, ldb, ldc, ldd, stride_a, stride_b, stride_c, stride_d; /* in elements */
    cuemu_type type_a, type_b, type_c, type_d, type_bias;
    float alpha, beta;
    const void *a, *b, *c, *bias; /* bias[m] or NULL */
    void *d;
    const float *scale_a, *scale_b, *scale_d; /* on the device, or NULL */
    float *amax_d;
} cuemu_gemm;

typedef struct cuemu_record {
    cuemu_kind kind;
    union {
        struct {
            cuemu_code kernel, thunk;
            unsigned grid[3], block[3], dynamic_bytes, args_bytes;
            _Alignas(16) char args[CUEMU_ARGS];
        } launch;
        struct { /* rows of `width` bytes */
            uintptr_t dst, src;
            size_t dst_pitch, src_pitch, width, height;
        } copy;
        struct {
            uintptr_t dst;
            size_t bytes;
            int value; /* the byte; for POISON whether to forbid */
        } fill;
        struct {
            uint32_t id, sequence;
        } event;
        cuemu_gemm gemm;
        struct {
            int comm, rank, fd;
            pid_t pid; /* whose descriptor `fd` is the communicator's memory */
        } open;
        struct {
            int comm, operation, type, reduction, peer; /* peer: or the root */
            int queue;      /* index of the communicator that it keeps an order with */
            bool nvls;      /* an all-reduce that adds in an order of its own */
            uint32_t order; /* of this rank's calls on the queue, from 1 */
            uintptr_t send, recv;
            size_t count;
        } call;
    } u;
} cuemu_record;

typedef struct cuemu_ring { /* of one stream: the host writes at head, the device process takes at
                               tail */
    _Alignas(64) _Atomic uint32_t head;
    _Alignas(64) _Atomic uint32_t tail;
    cuemu_record slot[CUEMU_SLOTS];
} cuemu_ring;

typedef struct cuemu_event {
    _Atomic uint32_t done; /* sequence of the last record that has completed */
    int64_t time_ns;       /* and when */
} cuemu_event;

typedef struct cuemu_control {
    pid_t host;
    size_t device_bytes, shared_bytes;
    uint32_t seed, delay_us; /* thread order and random delays of stream operations */
    int64_t nccl_timeout_ms;
    _Atomic uint32_t error; /* cudaError_t, sticky as on a GPU */
    _Atomic uint32_t
        comm_done[CUEMU_COMMS]; /* of a queue: calls that are over, run in the order of issue */
    cuemu_event event[CUEMU_EVENTS];
    char module[CUEMU_MODULES][512];
    cuemu_ring ring[CUEMU_STREAMS];
} cuemu_control;

#define CUEMU_CONTROL ((cuemu_control *)CUEMU_SHARED_BASE)
#define CUEMU_CONTROL_BYTES ((sizeof(cuemu_control) + 0xfffff) & ~(size_t)0xfffff)

typedef struct cuemu_box { /* messages from one rank to another */
    _Atomic uint32_t posted, taken;
    struct {
        uintptr_t at;
        size_t count;
        int type;
    } message[CUEMU_BOX];
} cuemu_box;

typedef struct cuemu_comm { /* a communicator: mapped by the host and device processes of its ranks
                             */
    _Atomic uint32_t arrived, generation;
    _Atomic uint32_t bad; /* ncclResult_t, sticky */
    uint64_t cookie;
    int ranks;
    struct {
        pid_t device_process;
        int device, color, key, child_fd, child_pid;
        uint64_t child_cookie;
        cuemu_kind kind;
        int operation, type, reduction, root;
        size_t count;
        uintptr_t send, recv;
    } rank[CUEMU_RANKS];
    cuemu_box box[CUEMU_RANKS][CUEMU_RANKS]; /* [from][to] */
} cuemu_comm;

/* cuemu_sync.c */
int64_t cuemu_now_ns(void);
void cuemu_futex_wait(_Atomic uint32_t *word, uint32_t old, int timeout_ms);
void cuemu_futex_wake(_Atomic uint32_t *word);
cuemu_comm *cuemu_comm_map(pid_t pid, int fd); /* NULL on failure */
/* Waits until *word is not `seen`; false when the communicator is bad, or becomes so at the limit.
 */
bool cuemu_comm_wait(cuemu_comm *comm, _Atomic uint32_t *word, uint32_t seen, int64_t timeout_ms);
/* All ranks meet; false likewise. */
bool cuemu_comm_barrier(cuemu_comm *comm, int64_t timeout_ms);

/* cuemu_number.c */
size_t cuemu_type_bytes(cuemu_type type);
float cuemu_number_get(const void *from, size_t i, cuemu_type type);
void cuemu_number_put(void *to, size_t i, cuemu_type type, float value);
