/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines on stderr: "ndmesh: warning: area: text", with rank and mesh coordinates when they are
 * known. */
#ifndef NDM_CORE_LOG_H
#define NDM_CORE_LOG_H

#include <ndmesh/status.h>

typedef enum ndm_log_level {
    NDM_LOG_ERROR,
    NDM_LOG_WARNING,
    NDM_LOG_INFO,
    NDM_LOG_DEBUG
} ndm_log_level;

/* Lines above this level are dropped; the default is NDM_LOG_WARNING, or NDM_LOG of the
 * environment. */
void ndm_log_set_level(ndm_log_level level);
/* NDM_ERR_USAGE where NDM_LOG is no level, which those below pass over. */
NDM_MUST_USE ndm_status ndm_log_check_environment(void);
ndm_log_level ndm_log_get_level(void);

/* Prefix that names this rank, e.g. "[3 dp_shard 1 tp 1]"; "" = none. Copied. Rank 0 alone logs
 * info unless debug is on. */
void ndm_log_set_rank(long long rank, const char *coordinates);

/* area is a folder's word: config, mesh, comm, strategy, op, kernel, train, checkpoint, data. */
void ndm_log(ndm_log_level level, const char *area, const char *format, ...) NDM_PRINTF(3, 4);

#endif
