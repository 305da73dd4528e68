/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines: formatted whole and written in one call, so that lines of several ranks do not mix. */
#include <core/log.h>

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { LEVEL_UNSET = -1, LINE_BYTES = 4096 };

static const char *const level_names[] = {"error", "warning", "info", "debug"};

/* Process-wide on purpose: whoever reports a failure has no context at hand. */
static atomic_int current_level = LEVEL_UNSET;
static long long own_rank;
static char rank_prefix[128];

/* False: the variable says something else. */
static bool level_of_environment(ndm_log_level *level)
{
    const char *text = getenv("NDM_LOG");
    for (int i = 0; text && i <= NDM_LOG_DEBUG; i++)
        if (strcasecmp(text, level_names[i]) == 0) {
            *level = (ndm_log_level)i;
            return true;
        }
    *level = NDM_LOG_WARNING;
    return !text || !*text;
}

ndm_status ndm_log_check_environment(void)
{
    ndm_log_level level;
    if (!level_of_environment(&level))
        NDM_FAIL(NDM_ERR_USAGE, "NDM_LOG: '%.64s'; error, warning, info and debug are known",
                 getenv("NDM_LOG"));
    return NDM_OK;
}

void ndm_log_set_level(ndm_log_level level)
{
    atomic_store(&current_level, (int)level);
}

ndm_log_level ndm_log_get_level(void)
{
    int level = atomic_load(&current_level);
    ndm_log_level asked;
    if (level != LEVEL_UNSET)
        return (ndm_log_level)level;
    (void)level_of_environment(&asked);
    atomic_store(&current_level, (int)asked);
    return asked;
}

void ndm_log_set_rank(long long rank, const char *coordinates)
{
    own_rank = rank;
    snprintf(rank_prefix, sizeof rank_prefix, "%s", coordinates ? coordinates : "");
}

static bool is_dropped(ndm_log_level level)
{
    ndm_log_level limit = ndm_log_get_level();
    return level > limit || (level == NDM_LOG_INFO && own_rank != 0 && limit < NDM_LOG_DEBUG);
}

void ndm_log(ndm_log_level level, const char *area, const char *format, ...)
{
    if (is_dropped(level))
        return;
    char text[LINE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    char line[LINE_BYTES + 256];
    int length = snprintf(line, sizeof line, "ndmesh: %s%s%s: %s: %s\n", rank_prefix,
                          rank_prefix[0] ? " " : "", level_names[level], area, text);
    if (length > 0)
        fputs(line, stderr);
}
