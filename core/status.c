/* SPDX-License-Identifier: Apache-2.0 */
/* The last failure's message and place, one per thread. */
#include "core/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local ndm_error last;

const char *ndm_status_name(ndm_status status)
{
    switch (status) {
    case NDM_OK:
        return "NDM_OK";
    case NDM_ERR_USAGE:
        return "NDM_ERR_USAGE";
    case NDM_ERR_CONFIG:
        return "NDM_ERR_CONFIG";
    case NDM_ERR_STATE:
        return "NDM_ERR_STATE";
    case NDM_ERR_UNSUPPORTED:
        return "NDM_ERR_UNSUPPORTED";
    case NDM_ERR_MEMORY:
        return "NDM_ERR_MEMORY";
    case NDM_ERR_IO:
        return "NDM_ERR_IO";
    case NDM_ERR_FORMAT:
        return "NDM_ERR_FORMAT";
    case NDM_ERR_COMM:
        return "NDM_ERR_COMM";
    case NDM_ERR_TIMEOUT:
        return "NDM_ERR_TIMEOUT";
    case NDM_ERR_MISMATCH:
        return "NDM_ERR_MISMATCH";
    case NDM_ERR_DEVICE:
        return "NDM_ERR_DEVICE";
    case NDM_ERR_NONFINITE:
        return "NDM_ERR_NONFINITE";
    case NDM_ERR_CHECK:
        return "NDM_ERR_CHECK";
    case NDM_ERR_INTERRUPTED:
        return "NDM_ERR_INTERRUPTED";
    case NDM_ERR_INTERNAL:
        return "NDM_ERR_INTERNAL";
    }
    return "NDM_ERR_UNKNOWN";
}

int ndm_status_exit_code(ndm_status status)
{
    switch (status) {
    case NDM_OK:
        return 0;
    case NDM_ERR_USAGE:
        return 2;
    case NDM_ERR_CONFIG:
    case NDM_ERR_UNSUPPORTED:
    case NDM_ERR_FORMAT:
        return 3;
    case NDM_ERR_COMM:
    case NDM_ERR_TIMEOUT:
    case NDM_ERR_MISMATCH:
        return 4;
    case NDM_ERR_MEMORY:
    case NDM_ERR_DEVICE:
        return 5;
    case NDM_ERR_CHECK:
        return 6;
    case NDM_ERR_INTERRUPTED:
        return 130; /* the command line turns this into 143 for SIGTERM */
    case NDM_ERR_STATE:
    case NDM_ERR_IO:
    case NDM_ERR_NONFINITE:
    case NDM_ERR_INTERNAL:
        return 1;
    }
    return 1;
}

const char *ndm_error_message(void)
{
    return last.message;
}

const char *ndm_error_where(void)
{
    return last.where;
}

/* Folder and file alone: the compiler's path depends on the build directory. */
static const char *short_path(const char *file)
{
    const char *slash = strrchr(file, '/');
    const char *p = slash;
    while (p && p > file && p[-1] != '/')
        p--;
    return p ? p : file;
}

ndm_status ndm_error_set(ndm_status status, const char *file, int line, const char *format, ...)
{
    char text[NDM_ERROR_MESSAGE_BYTES]; /* an argument may be the previous message */
    va_list args;
    va_start(args, format);
    int length = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (length < 0)
        text[0] = '\0';
    for (char *c = text; *c; c++) {
        if (*c == '\n' || *c == '\r')
            *c = ' ';
    }
    memcpy(last.message, text, strlen(text) + 1);
    snprintf(last.where, sizeof last.where, "%s:%d", short_path(file), line);
    last.agreed = false;
    return status;
}

void ndm_error_keep(ndm_error *error)
{
    *error = last;
}

void ndm_error_restore(const ndm_error *error)
{
    last = *error;
}
