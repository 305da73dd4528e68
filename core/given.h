/* SPDX-License-Identifier: Apache-2.0 */
/* What callers hand to the public calls. */
#ifndef NDM_CORE_GIVEN_H
#define NDM_CORE_GIVEN_H

#include <ndmesh/status.h>

/* In a public call: an argument that may not be NULL. */
#define NDM_NEED(pointer)                                                  \
    do {                                                                   \
        if (!(pointer))                                                    \
            NDM_FAIL(NDM_ERR_USAGE, "%s: %s is NULL", __func__, #pointer); \
    } while (0)

#endif
