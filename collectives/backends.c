/* SPDX-License-Identifier: Apache-2.0 */
/* The registry of backends. */
#include "collectives/comm.h"

#include <string.h>

#include "core/module.h"

#define NDM_COMM_BACKEND(symbol) extern const ndm_comm_backend symbol;
#include "collectives/backends.def"
#undef NDM_COMM_BACKEND

static const ndm_comm_backend *const backends[] = {
#define NDM_COMM_BACKEND(symbol) &symbol,
#include "collectives/backends.def"
#undef NDM_COMM_BACKEND
    NULL};

enum { BACKENDS = sizeof backends / sizeof backends[0] - 1 };

/* Those of a module come last, and not before it is loaded. */
const ndm_comm_backend *const *ndm_comm_backend_list(void)
{
    static const char *const symbols[] = {"ndm_cuda_nccl", "ndm_cuda_staged"};
    enum { SYMBOLS = sizeof symbols / sizeof symbols[0] };
    static const ndm_comm_backend *list[BACKENDS + SYMBOLS + 1];
    int n = BACKENDS;

    memcpy(list, backends, sizeof backends);
    for (int i = 0; i < SYMBOLS; i++) {
        const ndm_comm_backend *backend = ndm_module_offer("cuda", symbols[i]);
        if (backend)
            list[n++] = backend;
    }
    return list;
}
