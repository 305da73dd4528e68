/* SPDX-License-Identifier: Apache-2.0 */
/* Finds and loads modules. Each is tried once; what came of it is kept, and so is the reason. */
#include "core/module.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MODULES_MAX = 4, WHY_BYTES = 512 };

typedef struct module {
    char name[32];
    void *handle;
    char why[WHY_BYTES]; /* why there is no handle */
} module;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static module modules[MODULES_MAX];
static int n_modules;

#define NDM_PLACE_INSTALLED ("../" NDM_LIBDIR "/ndmesh")

/* Folders seen from the folder of the executable or library that holds this code: of an
 * installation (bin, lib, lib/ARCH), of a build (the root, cli/, tests/SUITE/). */
static const char *const places[] = {
    ".",         "ndmesh",      NDM_PLACE_INSTALLED, "../lib/ndmesh",     "../lib64/ndmesh",
    "../ndmesh", "device/cuda", "../device/cuda",    "../../device/cuda", "../../../device/cuda"};

/* Folder of this code; false if the system does not know. */
static bool own_folder(char *folder)
{
    Dl_info info;
    char *slash;

    if (!dladdr((void *)&modules, &info) || !info.dli_fname)
        return false;
    if (!realpath(strchr(info.dli_fname, '/') ? info.dli_fname : "/proc/self/exe", folder))
        return false;
    slash = strrchr(folder, '/');
    if (slash)
        *slash = '\0';
    return slash != NULL;
}

static bool find(const char *name, char *path, size_t path_bytes, char *why)
{
    const char *chosen = getenv("NDM_MODULE_PATH");
    char own[PATH_MAX];

    if (chosen) {
        snprintf(path, path_bytes, "%s/libndm_%s.so", chosen, name);
        if (access(path, R_OK) == 0)
            return true;
        snprintf(why, WHY_BYTES, "there is no %.400s (NDM_MODULE_PATH)", path);
        return false;
    }
    for (size_t i = 0; own_folder(own) && i < sizeof places / sizeof places[0]; i++) {
        snprintf(path, path_bytes, "%s/%s/libndm_%s.so", own, places[i], name);
        if (access(path, R_OK) == 0)
            return true;
    }
    snprintf(why, WHY_BYTES, "not built");
    return false;
}

/* The module finds the engine's symbols among the global ones. An engine that was itself loaded by
 * dlopen() is made global here; for an executable this is nothing. */
static void make_global(void)
{
    Dl_info info;
    void *handle;

    if (!dladdr((void *)&modules, &info) || !info.dli_fname)
        return;
    handle = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_GLOBAL);
    if (handle)
        dlclose(handle);
}

/* A module of another version has other structs, and would be misread. */
static void check_version(module *m)
{
    const char *version = dlsym(m->handle, "ndm_module_version");

    if (version && strcmp(version, NDM_VERSION) == 0)
        return;
    snprintf(m->why, sizeof m->why, "is of version %.60s, and this is %s",
             version ? version : "unknown", NDM_VERSION);
    dlclose(m->handle);
    m->handle = NULL;
}

static void load(module *m)
{
    char path[PATH_MAX + 128];

    if (!find(m->name, path, sizeof path, m->why))
        return;
    make_global();
    m->handle = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
    if (m->handle) {
        check_version(m);
        return;
    }
    const char *error = dlerror();
    snprintf(m->why, sizeof m->why, "does not load: %.480s", error ? error : "no reason given");
}

/* The module by its name; NULL if it was not asked for before and may not be now. */
static module *get(const char *name, bool may_load)
{
    for (int i = 0; i < n_modules; i++)
        if (strcmp(modules[i].name, name) == 0)
            return &modules[i];
    if (!may_load || n_modules == MODULES_MAX)
        return NULL;
    module *m = &modules[n_modules++];
    snprintf(m->name, sizeof m->name, "%s", name);
    load(m);
    return m;
}

static const void *look_up(const char *name, bool may_load, const char *symbol, char *why,
                           size_t why_bytes)
{
    const void *address = NULL;

    pthread_mutex_lock(&lock);
    const module *m = get(name, may_load);
    if (m && m->handle)
        address = dlsym(m->handle, symbol);
    if (!m)
        snprintf(why, why_bytes, "not asked for");
    else if (!m->handle)
        snprintf(why, why_bytes, "%s", m->why);
    else if (!address)
        snprintf(why, why_bytes, "module %s has no %s", name, symbol);
    pthread_mutex_unlock(&lock);
    return address;
}

const void *ndm_module_symbol(const char *module_name, const char *symbol, char *why,
                              size_t why_bytes)
{
    return look_up(module_name, true, symbol, why, why_bytes);
}

/* Files that the drivers make: of Linux, and of Linux under Windows. */
static bool expected(void)
{
    return getenv("NDM_MODULE_PATH") || access("/dev/nvidiactl", F_OK) == 0 ||
           access("/dev/dxg", F_OK) == 0;
}

const void *ndm_module_offer(const char *module_name, const char *symbol)
{
    char why[WHY_BYTES];

    return look_up(module_name, expected(), symbol, why, sizeof why);
}
