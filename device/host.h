/* SPDX-License-Identifier: Apache-2.0 */
/* Streams and events of worlds whose kernels run in the host process: cpu, and the devices that
 * tests derive from it.
 *
 * A compute stream runs inline. A communication stream is a queue of tasks that advances whenever
 * the host launches, waits or polls, and in a helper thread where there is one: each call here
 * takes the turn (turn.h). */
#ifndef NDM_DEVICE_HOST_H
#define NDM_DEVICE_HOST_H

#include "device/device.h"

typedef struct ndm_host_stream ndm_host_stream;
typedef struct ndm_host_helper ndm_host_helper; /* turn.c */

/* The device that host streams need: make it the first member of a derived one. */
typedef struct ndm_host_device {
    ndm_device base;
    ndm_host_stream *streams;          /* all of them, for progress */
    int64_t queued;                    /* tasks in all queues */
    void (*enter)(ndm_device *device); /* around everything that may touch device memory; NULL =
                                          nothing to do */
    void (*leave)(ndm_device *device);
    ndm_host_helper *helper; /* NULL = none */
} ndm_host_device;

/* turn.c: a queue has work. */
void ndm_host_helper_wake(ndm_host_device *device);

/* The stream and event operations of ndm_device_ops for these worlds. */
ndm_status ndm_host_stream_create(ndm_device *device, ndm_stream_kind kind, ndm_stream **stream);
void ndm_host_stream_destroy(ndm_stream *stream);
ndm_status ndm_host_stream_wait(ndm_stream *stream, ndm_event *event);
ndm_status ndm_host_stream_synchronize(ndm_stream *stream);
ndm_status ndm_host_event_create(ndm_device *device, ndm_event **event);
void ndm_host_event_destroy(ndm_event *event);
ndm_status ndm_host_event_record(ndm_event *event, ndm_stream *stream);
ndm_status ndm_host_event_query(ndm_event *event, bool *done);
ndm_status ndm_host_launch(ndm_stream *stream, const ndm_launch *launch);
ndm_status ndm_host_copy(ndm_stream *stream, void *dst, const void *src, int64_t bytes,
                         ndm_copy_kind kind);
ndm_status ndm_host_zero(ndm_stream *stream, void *memory, int64_t bytes);

#endif
