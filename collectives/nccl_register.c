/* SPDX-License-Identifier: Apache-2.0 */
/* Registration of device memory with communicators, so that NCCL moves data from and to it without
 * buffers of its own where the links allow it. Whole segments of the device's pool are registered,
 * when a collective first uses them; before a segment goes back to the device it is taken out. A
 * registration that NCCL declines costs nothing: the collective goes its usual way.
 *
 * Off unless NDM_NCCL_REGISTER=1: it has not been tried on a device. */
#include <stdlib.h>
#include <string.h>

#include "collectives/nccl_comm.h"

struct ndm_nccl_segment {
    void *base;
    void *handle; /* NULL: declined */
};

bool ndm_nccl_registers(void)
{
    const char *text = getenv("NDM_NCCL_REGISTER");

    return text && strcmp(text, "1") == 0;
}

static bool known(const ndm_nccl_comm *n, const void *base)
{
    for (int i = 0; i < n->n_segments; i++)
        if (n->segments[i].base == base)
            return true;
    return false;
}

void ndm_nccl_register(ndm_nccl_comm *n, const ndm_device *device, const void *memory)
{
    void *base;
    int64_t bytes;

    if (!n->registers || !ndm_cuda_segment_of(device, memory, &base, &bytes) || known(n, base))
        return;
    ndm_nccl_segment *grown = realloc(n->segments,
                                      (size_t)(n->n_segments + 1) * sizeof *n->segments);
    if (!grown)
        return;
    n->segments = grown;
    grown[n->n_segments] = (ndm_nccl_segment){.base = base};
    if (ncclCommRegister(n->handle, base, (size_t)bytes, &grown[n->n_segments].handle) !=
        ncclSuccess)
        grown[n->n_segments].handle = NULL;
    n->n_segments++;
}

static void take_out(ndm_nccl_comm *n, int i)
{
    if (n->handle && n->segments[i].handle)
        (void)ncclCommDeregister(n->handle, n->segments[i].handle);
    n->segments[i] = n->segments[--n->n_segments];
}

void ndm_nccl_forget(ndm_nccl_comm *n, const void *base)
{
    for (int i = 0; i < n->n_segments; i++)
        if (n->segments[i].base == base) {
            take_out(n, i);
            return;
        }
}

void ndm_nccl_forget_all(ndm_nccl_comm *n)
{
    while (n->n_segments > 0)
        take_out(n, n->n_segments - 1);
    free(n->segments);
    n->segments = NULL;
}
