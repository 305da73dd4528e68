/* SPDX-License-Identifier: Apache-2.0 */
/* A function of a library that is loaded at run time and may be missing. */
#ifndef NDM_KERNELS_GEMM_LIBRARY_H
#define NDM_KERNELS_GEMM_LIBRARY_H

#include <stddef.h>

typedef void (*ndm_library_function)(void); /* cast to the function's own type */

/* The function `symbol` in the first of `files` (NULL-terminated) that loads and has it, or NULL;
 * why: which file, or the loader's last complaint. The library stays loaded, with its symbols to
 * itself. */
ndm_library_function ndm_library_symbol(const char *const *files, const char *symbol, char *why,
                                        size_t why_bytes);

#endif
