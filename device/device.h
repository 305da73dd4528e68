/* SPDX-License-Identifier: Apache-2.0 */
/* What a world provides below streams and kernels. One const struct a world; see device/README.md
 * to add one. */
#ifndef NDM_DEVICE_DEVICE_H
#define NDM_DEVICE_DEVICE_H

#include <ndmesh/device.h>

#include "core/module.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A kernel call on its way to a stream. `body` is what the device's kernel table holds for the op;
 * the device that owns the table knows its true type (cpu: ndm_host_body). Arguments are copied
 * when the call is queued. */
typedef struct ndm_launch {
    const char *name;   /* op, for traces and messages */
    void (*body)(void); /* cast of the world's function type */
    const void *args;   /* [args_bytes] */
    size_t args_bytes;  /* <= NDM_LAUNCH_ARGS_MAX */
    int op;             /* index in the kernel list; the simulated world prices it */
} ndm_launch;

enum { NDM_LAUNCH_ARGS_MAX = 512 };

typedef ndm_status (*ndm_host_body)(
    const void *args); /* function type of kernel bodies in the cpu world */

typedef struct ndm_device_options {
    int64_t timeout_ns;                /* deadline of every wait; 0 = 600 s */
    int local_rank;                    /* which device of the node to take */
    int threads;                       /* OpenMP threads of kernels on cpu; 0 = leave as it is */
    int64_t memory_limit_bytes;        /* allocations beyond fail with NDM_ERR_MEMORY; 0 = none */
    const struct ndm_sim_options *sim; /* of the simulated world (device/sim.h), else NULL */
    /* What an embedding program hands in, of worlds that have stream_native; else all zero. */
    struct {
        bool device; /* take the device of this index, not one by local_rank */
        int index;
        void *compute_stream; /* native; the first compute stream runs on it. NULL = none */
    } given;
} ndm_device_options;

/* Memory that a world keeps for reuse: what lies idle in it cannot be had by others, and a request
 * larger than the largest free block cannot be met from it. */
typedef struct ndm_memory_pool {
    int64_t reserved_bytes, peak_reserved_bytes; /* of the device */
    int64_t used_bytes, peak_used_bytes;         /* handed out, rounded up */
    int64_t largest_free_bytes;
} ndm_memory_pool;

typedef struct ndm_graph ndm_graph;

typedef struct ndm_device_ops {
    const char *name;
    const char *summary;
    int priority;         /* the highest whose probe says yes is `auto` */
    bool host_accessible; /* collectives may touch device memory from the host process */
    bool in_place; /* so may files: whoever has synchronized its stream reads and writes it as it is
                    */
    bool computes_bf16; /* activations follow the type of the weights; else they are fp32 */
    bool (*probe)(char *why, size_t why_bytes); /* why: the reason, for `ndmesh info` */
    ndm_status (*create)(const ndm_device_options *options, ndm_device **device);
    void (*destroy)(ndm_device *device);
    ndm_status (*alloc)(ndm_device *device, int64_t bytes, void **memory);
    void (*free)(ndm_device *device, void *memory, int64_t bytes);
    ndm_status (*copy)(ndm_stream *stream, void *dst, const void *src, int64_t bytes,
                       ndm_copy_kind kind);
    ndm_status (*zero)(ndm_stream *stream, void *memory, int64_t bytes);
    ndm_status (*stream_create)(ndm_device *device, ndm_stream_kind kind, ndm_stream **stream);
    void (*stream_destroy)(ndm_stream *stream);
    void *(*stream_native)(const ndm_stream *stream); /* NULL: it has none */
    ndm_status (*stream_wait)(ndm_stream *stream, ndm_event *event);
    ndm_status (*stream_synchronize)(ndm_stream *stream);
    ndm_status (*event_create)(ndm_device *device, ndm_event **event);
    void (*event_destroy)(ndm_event *event);
    ndm_status (*event_record)(ndm_event *event, ndm_stream *stream);
    ndm_status (*event_query)(ndm_event *event, bool *done);
    ndm_status (*launch)(ndm_stream *stream, const ndm_launch *launch);
    /* n elements of a 16-bit type to fp32, on the stream; NULL where the host can do it. */
    ndm_status (*widen)(ndm_stream *stream, float *dst, const void *src, ndm_dtype dtype,
                        int64_t n);
    void (*version)(char *text, size_t bytes); /* of its libraries; NULL = it has none */
    void (*pool)(const ndm_device *device, ndm_memory_pool *pool); /* NULL = it keeps none */
    /* ndm_graph_begin() and its kin; NULL where work is launched piece by piece only. */
    ndm_status (*graph_begin)(ndm_stream *stream);
    ndm_status (*graph_end)(ndm_stream *stream, ndm_graph **graph);
    ndm_status (*graph_launch)(ndm_graph *graph, ndm_stream *stream);
    void (*graph_destroy)(ndm_graph *graph);
} ndm_device_ops;

/* Told of every kernel, copy and zero that a host world has run: op is -1 for the last two, and a
 * stream of NDM_STREAM_COMM runs its kernels while others wait for it. */
typedef void (*ndm_device_observer)(void *user, const ndm_stream *stream, const char *name, int op,
                                    int64_t begin_ns, int64_t end_ns);

struct ndm_device {
    const ndm_device_ops *ops;
    ndm_device_options options;
    const struct ndm_kernel_table *kernels; /* bound by ndm_kernels_bind(); freed with the device */
    ndm_memory_stats memory;
    struct ndm_allocation *allocations; /* live ones, for accounting and leak reports */
    ndm_device_observer observer;       /* NULL = none: then a launch costs one test more */
    void *observer_user;
    /* The engine counts an element of activations as a float. Where the world computes with
     * narrower ones, allocations of activations and of workspaces shrink by this over 4. */
    int activation_bytes;       /* 0 = 4 */
    int gradient_bytes;         /* likewise, of gradients */
    bool others_schedule;       /* simulated: a stack without the engine's own schedule */
    bool keeps_inputs;          /* of products, where the engine's backward makes them again */
    ndm_memory_kind allocating; /* for ops->alloc: the kind that is asked for */
};

struct ndm_stream {
    ndm_device *device;
    ndm_stream_kind kind;
    char name[24];
    int64_t waited_ns;
};

struct ndm_event {
    ndm_device *device;
};

/* By name ("cpu", "cuda", "sim", "auto"). NDM_ERR_UNSUPPORTED gives the probe's reason. Iterate
 * with ndm_device_list(). */
NDM_MUST_USE ndm_status ndm_device_create(const char *name, const ndm_device_options *options,
                                          ndm_device **device);
void ndm_device_destroy(ndm_device *device);

/* A device of a world that is not in the list: what tests derive from cpu. */
NDM_MUST_USE ndm_status ndm_device_adopt(const ndm_device_ops *ops,
                                         const ndm_device_options *options, ndm_device **device);

/* Makes a world that is not in the list known by its name, in this process, for good; `auto` never
 * takes it. So a whole run can be put on a device that a test derives from cpu. */
NDM_MUST_USE ndm_status ndm_device_register(const ndm_device_ops *ops);

/* What the world keeps for reuse; false if it keeps nothing. */
bool ndm_device_pool(const ndm_device *device, ndm_memory_pool *pool);

/* Counts memory that was not made by ndm_device_alloc(), such as shared windows; negative bytes
 * give it back. */
NDM_MODULE_API void ndm_device_account(ndm_device *device, ndm_memory_kind kind, int64_t bytes);
/* NULL-terminated: those of device/devices.def, and the cuda world's, whose module is loaded for
 * it; where that cannot be, an entry whose probe says why. */
const ndm_device_ops *const *ndm_device_list(void);

NDM_MUST_USE ndm_status ndm_stream_launch(ndm_stream *stream, const ndm_launch *launch);

/* From begin to end all streams of the device note what they are given instead of doing it;
 * `stream` then launches it whole, as often as wanted, with the same arguments and memory. The host
 * may not wait, nor copy from or to its own memory in between. The device is idle on begin.
 * @retval NDM_ERR_UNSUPPORTED  begin: the device launches piece by piece; end: what was noted
 * cannot be launched whole, the message says why; nothing of it was done */
bool ndm_device_has_graphs(const ndm_device *device);
NDM_MUST_USE ndm_status ndm_graph_begin(ndm_stream *stream);
NDM_MUST_USE ndm_status ndm_graph_end(ndm_stream *stream, ndm_graph **graph);
NDM_MUST_USE ndm_status ndm_graph_launch(ndm_graph *graph, ndm_stream *stream);
void ndm_graph_destroy(ndm_device *device, ndm_graph *graph); /* NULL is fine */

/* Host worlds: who is told of kernels from now on; NULL = nobody. */
void ndm_device_observe(ndm_device *device, ndm_device_observer observer, void *user);

/* ---- host worlds only (cpu and the devices that tests derive from it): device/host.c ------ */

/* A step of a queued stream: a collective, or a kernel that follows one. Started in order; polled
 * until done. */
typedef struct ndm_task {
    struct ndm_task *next;
    bool (*ready)(struct ndm_task *task);       /* NULL = ready once it heads its queue */
    ndm_status (*start)(struct ndm_task *task); /* NULL = nothing to start */
    ndm_status (*poll)(struct ndm_task *task, bool *done); /* NULL = done when started */
    void (*describe)(const struct ndm_task *task, char *text,
                     size_t text_bytes);    /* whom it waits for; may be NULL */
    void (*release)(struct ndm_task *task); /* frees it */
    bool started;
} ndm_task;

/* Takes ownership of the task, also on failure. On an idle stream it starts at once. */
NDM_MUST_USE ndm_status ndm_host_submit(ndm_stream *stream, ndm_task *task);

/* Advances every queue of the device once; cheap when all are empty. `busy` (may be NULL):
 * something is still queued. */
NDM_MUST_USE ndm_status ndm_host_progress(ndm_device *device, bool *busy);

#ifdef __cplusplus
}
#endif
#endif
