/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * Status codes and the message that goes with them.
 *
 * Whatever can fail returns ndm_status. A failing call stores one message for the calling thread;
 * outputs are set only on success. The library never prints to stdout, exits or aborts.
 */
#ifndef NDMESH_STATUS_H
#define NDMESH_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define NDM_API __attribute__((visibility("default")))
#define NDM_MUST_USE __attribute__((warn_unused_result))
#define NDM_PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define NDM_API
#define NDM_MUST_USE
#define NDM_PRINTF(f, a)
#endif

/** Outcome of a call. The groups map to exit codes of the command line: ndm_status_exit_code(). */
typedef enum ndm_status {
    NDM_OK = 0,
    /* request */
    NDM_ERR_USAGE = 1,   /**< the command line or a call's arguments are wrong (exit 2) */
    NDM_ERR_CONFIG,      /**< a configuration, model or mesh breaks a rule (exit 3) */
    NDM_ERR_STATE,       /**< the object is not in a state that allows the call (exit 1) */
    NDM_ERR_UNSUPPORTED, /**< a valid request that this build or world cannot honour (exit 3) */
    /* resource */
    NDM_ERR_MEMORY = 16, /**< out of memory, host or device (exit 5) */
    NDM_ERR_IO,          /**< a file could not be read or written (exit 1) */
    NDM_ERR_FORMAT,      /**< a file is not what it should be (exit 3) */
    /* communicator */
    NDM_ERR_COMM = 32, /**< a rank is lost, or the transport failed (exit 4) */
    NDM_ERR_TIMEOUT,   /**< a wait passed its deadline (exit 4) */
    NDM_ERR_MISMATCH,  /**< ranks differ in configuration, binary, or order of collectives (exit 4)
                        */
    /* device */
    NDM_ERR_DEVICE = 48, /**< the device failed (exit 5) */
    /* run */
    NDM_ERR_NONFINITE = 64, /**< loss or gradient norm is not finite (exit 1) */
    NDM_ERR_CHECK,          /**< a check did not hold (exit 6) */
    NDM_ERR_INTERRUPTED,    /**< stopped by a signal after saving (exit 130 or 143) */
    /* internal */
    NDM_ERR_INTERNAL = 80 /**< a defect of ndmesh (exit 1) */
} ndm_status;

/** Name of a status, e.g. "NDM_ERR_CONFIG". Static storage. */
NDM_API const char *ndm_status_name(ndm_status status);

/** Exit code of the command line for a status (see the codes above; 0 for NDM_OK). */
NDM_API int ndm_status_exit_code(ndm_status status);

/** Message of the last failure on this thread (also where another thread met it first): one line
 * without a newline, "" if none. Valid until the next failing call. */
NDM_API const char *ndm_error_message(void);

/** "file:line" of the source that detected the last failure on this thread. */
NDM_API const char *ndm_error_where(void);

/** Stores a message for this thread and returns status. Use NDM_FAIL. */
NDM_API ndm_status ndm_error_set(ndm_status status, const char *file, int line, const char *format,
                                 ...) NDM_PRINTF(4, 5);

/** Detects a failure: stores the message and leaves the function with the status. */
#define NDM_FAIL(status, ...)                                                         \
    do {                                                                              \
        (void)ndm_error_set((status), __FILE__, __LINE__, __VA_ARGS__);               \
        return (status); /* the constant tells the compiler that outputs are unset */ \
    } while (0)

/** Relays a failure. */
#define NDM_TRY(call)                        \
    do {                                     \
        ndm_status ndm_try_status_ = (call); \
        if (ndm_try_status_ != NDM_OK)       \
            return ndm_try_status_;          \
    } while (0)

/** Relays a failure through a label that undoes what was done; the variable `status` holds it. */
#define NDM_TRY_OR(status, call, label) \
    do {                                \
        (status) = (call);              \
        if ((status) != NDM_OK)         \
            goto label;                 \
    } while (0)

#ifdef __cplusplus
}
#endif
#endif
