/* SPDX-License-Identifier: Apache-2.0 */
/* The registry of backends. */
#include "collectives/comm.h"

#define NDM_COMM_BACKEND(symbol) extern const ndm_comm_backend symbol;
#include "collectives/backends.def"
#undef NDM_COMM_BACKEND

static const ndm_comm_backend *const backends[] = {
#define NDM_COMM_BACKEND(symbol) &symbol,
#include "collectives/backends.def"
#undef NDM_COMM_BACKEND
    NULL};

const ndm_comm_backend *const *ndm_comm_backend_list(void)
{
    return backends;
}
