/* SPDX-License-Identifier: Apache-2.0 */
/* Loading of optional libraries. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "kernels/gemm_library.h"

ndm_library_function ndm_library_symbol(const char *const *files, const char *symbol, char *why,
                                        size_t why_bytes)
{
    for (int i = 0; files[i]; i++) {
        void *library = dlopen(files[i], RTLD_LAZY | RTLD_LOCAL);
        void *address = library ? dlsym(library, symbol) : NULL;
        if (address) {
            (void)snprintf(why, why_bytes, "%s", files[i]);
            ndm_library_function function;
            memcpy(&function, &address, sizeof function); /* ISO C has no cast between these */
            return function;
        }
        const char *complaint = dlerror();
        (void)snprintf(why, why_bytes, "%s", complaint ? complaint : "symbol not found");
        if (library)
            (void)dlclose(library);
    }
    return NULL;
}
