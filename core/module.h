/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of the engine that lie in a shared object of their own, because what they link is not on
 * every machine: loaded when somebody asks for them, and kept until the process ends.
 *
 * Module NAME is the file libndm_NAME.so. It is looked for in the folder NDM_MODULE_PATH of the
 * environment, if that is set, and else beside the code that asks (and where the build and the
 * installation put it from there). It uses the engine's functions that are declared
 * NDM_MODULE_API, of the process that loads it, and has `const char ndm_module_version[]`, which
 * must be the engine's NDM_VERSION. */
#ifndef NDM_CORE_MODULE_H
#define NDM_CORE_MODULE_H

#include <stdbool.h>
#include <stddef.h>

#include <ndmesh/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Of functions that modules call: seen from outside of the executable. */
#define NDM_MODULE_API NDM_API

/* Address of an object or function of a module, which is loaded if need be; or NULL and the reason:
 * "not built: ...", what the loader says, or that there is no such symbol. */
const void *ndm_module_symbol(const char *module, const char *symbol, char *why, size_t why_bytes);

/* As above without loading a module that nobody has asked for yet, unless one is to be expected:
 * NDM_MODULE_PATH is set, or the machine has a driver that the module is for. */
const void *ndm_module_offer(const char *module, const char *symbol);

#ifdef __cplusplus
}
#endif
#endif
