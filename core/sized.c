/* SPDX-License-Identifier: Apache-2.0 */
/* Options structs of callers over defaults, whatever version the callers were built with. */
#include "core/sized.h"

#include <ctype.h>
#include <string.h>

#include "core/error.h"

/* ndm_step_options begins with NDM_STEP_OPTIONS_INIT. */
static ndm_status refuse_uninitialised(const char *type, size_t size)
{
    char macro[64] = "";

    for (size_t i = 0; type[i] && i + 1 < sizeof macro; i++)
        macro[i] = (char)toupper((unsigned char)type[i]);
    NDM_FAIL(NDM_ERR_USAGE, "%s: its size is %zu; start from %s_INIT", type, size, macro);
}

ndm_status ndm_sized_take(void *mine, size_t bytes, const void *defaults, const void *given,
                          const char *type)
{
    size_t size = bytes;

    memcpy(mine, defaults, bytes);
    if (!given)
        return NDM_OK;
    memcpy(&size, given, sizeof size);
    if (size <= sizeof size)
        return refuse_uninitialised(type, size);
    if (size > bytes)
        NDM_FAIL(NDM_ERR_USAGE,
                 "%s: its size is %zu, and %zu is known here: the program was built for a later "
                 "ndmesh than it runs with",
                 type, size, bytes);
    memcpy(mine, given, size);
    memcpy(mine, &bytes, sizeof bytes);
    return NDM_OK;
}
