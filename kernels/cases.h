/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of every op: arguments, buffers and contents that a check or a benchmark runs a kernel on.
 *
 * A case lays its buffers out with guards around them and between rows, all bytes 0xff (NaN as a
 * float): a kernel that reads padding spoils its result, and one that writes there is seen. The
 * reference run of the same data says what is right. */
#ifndef NDM_KERNELS_CASES_H
#define NDM_KERNELS_CASES_H

#include "kernels/kernels.h"

enum { NDM_CASE_BUFFERS = 16, NDM_CASE_SLOTS = 3, NDM_CASE_LABEL = 192 };

typedef enum ndm_case_fill {
    NDM_FILL_NORMAL,  /* high * a bell of variance 1 */
    NDM_FILL_UNIFORM, /* low .. high; whole numbers for int32 and uint8 */
} ndm_case_fill;

typedef struct ndm_case_buffer {
    const char *name;
    ndm_dtype dtype;
    int64_t rows, width, stride; /* elements */
    bool output;                 /* the kernel writes it; others must stay as they are */
    bool exact;   /* no rounded intermediate goes into it, whatever the type of activations */
    bool scratch; /* contents after the run mean nothing; only its guards are compared */
    ndm_case_fill fill;
    double low, high;
    double scale; /* size of the terms that an element is the sum of: errors are relative to it */
    size_t slot[NDM_CASE_SLOTS]; /* offsets of the pointers in the arguments: more than one is in
                                    place */
    int slots;
} ndm_case_buffer;

typedef union ndm_case_args {
#define NDM_CASE_ARGS(name, doc) ndm_##name##_args name;
    NDM_KERNEL_LIST(NDM_CASE_ARGS)
#undef NDM_CASE_ARGS
} ndm_case_args;

typedef struct ndm_case {
    ndm_op op;
    ndm_dtype activations; /* type of inputs and outputs that are activations or their gradients */
    char label[NDM_CASE_LABEL]; /* op, shape and options */
    ndm_case_args args;         /* pointers are NULL until they are bound to memory */
    ndm_case_buffer buffer[NDM_CASE_BUFFERS];
    int buffers;
    int variant;                               /* of the generator, for prepare */
    ndm_status (*prepare)(struct ndm_case *c); /* contents that random numbers do not give; args
                                                  point to host memory */
    double flop;                               /* of one call; 0 = bound by memory */
} ndm_case;

/* Images of the buffers, guards included, on the host. */
typedef struct ndm_case_data {
    int64_t misalign; /* elements that data start behind a 64-byte boundary */
    unsigned char *image[NDM_CASE_BUFFERS];
} ndm_case_data;

/* Memory of a device that a case runs on. */
typedef struct ndm_case_memory {
    ndm_device *device;
    void *image[NDM_CASE_BUFFERS];
} ndm_case_memory;

/* Case i of the list that checks an op: odd sizes, strides, every option, activations in fp32 and
 * in bf16. False when i is past the end. */
bool ndm_case_get(ndm_op op, int64_t i, ndm_case *c);

/* Fills images by (seed, buffer, element) and prepares them. Freed with ndm_case_data_finish(). */
NDM_MUST_USE ndm_status ndm_case_data_init(const ndm_case *c, uint64_t seed, int64_t misalign,
                                           ndm_case_data *data);
NDM_MUST_USE ndm_status ndm_case_data_copy(const ndm_case *c, const ndm_case_data *from,
                                           ndm_case_data *data);
void ndm_case_data_finish(ndm_case_data *data);

/* An element of a buffer's image. */
double ndm_case_value(const ndm_case *c, const ndm_case_data *data, int buffer, int64_t row,
                      int64_t col);
void ndm_case_set_value(const ndm_case *c, ndm_case_data *data, int buffer, int64_t row,
                        int64_t col, double value);

/* To run: upload (binds the arguments to device memory), launch as often as wanted, download,
 * release. */
NDM_MUST_USE ndm_status ndm_case_upload(ndm_case *c, const ndm_case_data *data, ndm_stream *stream,
                                        ndm_case_memory *memory);
NDM_MUST_USE ndm_status ndm_case_launch(const ndm_case *c, ndm_stream *stream);
NDM_MUST_USE ndm_status ndm_case_download(const ndm_case *c, const ndm_case_memory *memory,
                                          ndm_stream *stream, ndm_case_data *data);
void ndm_case_release(ndm_case_memory *memory);

/* All of these once: data before, data after. */
NDM_MUST_USE ndm_status ndm_case_run(const ndm_case *c, const ndm_case_data *before,
                                     ndm_stream *stream, ndm_case_data *after);

/* Compares a run with the reference's: outputs to the tolerance of the op, everything else to the
 * bit.
 * @retval NDM_ERR_CHECK  the message names buffer, place and numbers
 * error (may be NULL): the largest |difference| / (|reference| + scale) of all outputs. */
NDM_MUST_USE ndm_status ndm_case_compare(const ndm_case *c, const ndm_case_data *before,
                                         const ndm_case_data *reference, const ndm_case_data *after,
                                         double *error);
bool ndm_case_same_bits(const ndm_case *c, const ndm_case_data *a, const ndm_case_data *b);

double ndm_case_tolerance(ndm_op op); /* of fp32 outputs of fp32 inputs */
int64_t
ndm_case_bytes(const ndm_case *c); /* of all buffers, outputs that are read as well counted once */

/* For generators, and for benchmarks that make cases of their own shapes. */
ndm_case_buffer *ndm_case_add(ndm_case *c, const char *name, size_t slot, ndm_dtype dtype,
                              int64_t rows, int64_t width, int64_t stride);
void ndm_case_alias(ndm_case_buffer *buffer,
                    size_t slot); /* another argument that points to the same memory */

/* Generators: `pad` is added to every stride. */
void ndm_case_gemm(ndm_case *c, const ndm_gemm_args *shape, bool bias, int64_t pad);
void ndm_case_attention(ndm_case *c, const ndm_attention_args *shape, int mask, int64_t pad);
void ndm_case_attention_backward(ndm_case *c, const ndm_attention_args *shape, int mask,
                                 int accumulate, int64_t pad, ndm_dtype d_dtype);

#endif
