/* SPDX-License-Identifier: Apache-2.0 */
/* `ndmesh info`: what this binary is and what this machine has, each choice with the reason its
 * probe gives. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/info_speed.h"
#include "collectives/comm.h"
#include "core/log.h"
#include "device/device.h"
#include "kernels/kernels.h"
#include "mesh/machine.h"
#include "model/config.h"
#include "train/versions.h"
#include <ndmesh/strategy.h>

static const ndm_option options[] = {
    {.name = "json",
     .type = NDM_OPTION_BOOL,
     .initial = "false",
     .help = "print one JSON document"},
};

static const ndm_option_table table = {
    .command = "info",
    .usage = "[options]",
    .summary = "version, machine, and the worlds, kernels, backends and presets there are",
    .options = options,
    .n_options = sizeof options / sizeof options[0],
};

/* Where a fact goes: text or JSON. */
typedef struct report {
    bool as_json;
    ndm_json json;
} report;

static void tell(report *r, const char *key, const char *value)
{
    if (r->as_json)
        ndm_json_key_string(&r->json, key, value);
    else
        printf("%-12s %s\n", key, value);
}

static void begin_list(report *r, const char *key)
{
    if (r->as_json) {
        ndm_json_key(&r->json, key);
        ndm_json_begin_array(&r->json);
    } else {
        printf("\n%s\n", key);
    }
}

static void end_list(report *r)
{
    if (r->as_json)
        ndm_json_end_array(&r->json);
}

static void tell_choice(report *r, const char *name, const char *summary, bool available,
                        const char *why)
{
    if (!r->as_json) {
        printf("  %-14s %-4s %s%s%s%s\n", name, available ? "yes" : "no", summary,
               why[0] != '\0' ? " (" : "", why, why[0] != '\0' ? ")" : "");
        return;
    }
    ndm_json_begin_object(&r->json);
    ndm_json_key_string(&r->json, "name", name);
    ndm_json_key_bool(&r->json, "available", available);
    ndm_json_key_string(&r->json, "summary", summary);
    ndm_json_key_string(&r->json, "reason", why);
    ndm_json_end_object(&r->json);
}

static void tell_build(report *r)
{
    char text[NDM_VERSION_BYTES];

    tell(r, "compiler", NDM_COMPILER);
    ndm_world_mpi_version(text, sizeof text);
    tell(r, "mpi", text);
}

/* What this build can use, with its version or the reason why it cannot. */
static void tell_features(report *r)
{
    ndm_version versions[NDM_VERSIONS_MAX];
    int64_t n = ndm_versions_read(versions);

    begin_list(r, "features");
    for (int64_t i = 0; i < n; i++)
        tell_choice(r, versions[i].name, versions[i].summary, versions[i].there, versions[i].text);
    end_list(r);
}

static void tell_strategies(report *r)
{
    begin_list(r, "strategies");
    for (int64_t i = 0; ndm_strategy_at(i) != NULL; i++) {
        const ndm_strategy *s = ndm_strategy_at(i);
        char axes[64];
        ndm_axis_set_name(s->axes, axes, sizeof axes);
        tell_choice(r, s->name, s->summary, true, axes);
    }
    end_list(r);
}

/* Models that --model takes by name. */
static void tell_presets(report *r)
{
    const char *const *names = ndm_model_preset_names();

    begin_list(r, "presets");
    for (size_t i = 0; names[i] != NULL; i++) {
        ndm_model_config c;
        char size[48];
        if (ndm_model_config_preset(names[i], &c) != NDM_OK)
            continue;
        snprintf(size, sizeof size, "%lld parameters", (long long)ndm_model_config_parameters(&c));
        tell_choice(r, names[i], ndm_model_preset_summary(names[i]), true, size);
    }
    end_list(r);
}

static void tell_machine(report *r)
{
    ndm_machine *machine = NULL;
    char text[256];
    if (ndm_machine_open(NULL, &machine) != NDM_OK) {
        tell(r, "machine", ndm_error_message());
        return;
    }
    tell(r, "processor", ndm_machine_processor(machine));
    tell(r, "machine", ndm_machine_summary(machine, text, sizeof text));
    ndm_machine_close(machine);
}

static void tell_devices(report *r)
{
    begin_list(r, "devices");
    for (const ndm_device_ops *const *d = ndm_device_list(); *d != NULL; d++) {
        char why[256] = "";
        bool available = (*d)->probe == NULL || (*d)->probe(why, sizeof why);
        tell_choice(r, (*d)->name, (*d)->summary, available, why);
    }
    end_list(r);
}

static void tell_kernels(report *r)
{
    begin_list(r, "kernels");
    for (const ndm_kernel_table *const *k = ndm_kernel_table_list(); *k != NULL; k++) {
        char why[256] = "";
        bool available = (*k)->probe == NULL || (*k)->probe(why, sizeof why);
        tell_choice(r, (*k)->name, (*k)->summary, available, why);
    }
    end_list(r);
}

/* Backends are asked about the world this process is in: one rank, or those that mpiexec started.
 */
static void tell_collectives(report *r, ndm_world *world)
{
    ndm_device *device = NULL;
    begin_list(r, "collectives");
    ndm_status status = ndm_device_create("auto", &(ndm_device_options){0}, &device);
    for (const ndm_comm_backend *const *b = ndm_comm_backend_list(); *b != NULL; b++) {
        char why[256] = "";
        bool available = false;
        if (status != NDM_OK)
            snprintf(why, sizeof why, "%s", ndm_error_message());
        else
            available = (*b)->probe == NULL || (*b)->probe(world, device, why, sizeof why);
        tell_choice(r, (*b)->name, (*b)->summary, available, why);
    }
    end_list(r);
    ndm_device_destroy(device);
}

/* A library that does not know the processor may fall back to kernels many times slower. */
static void tell_speed(report *r)
{
    char text[160];
    ndm_speed s;
    if (ndm_speed_measure(&s) != NDM_OK) {
        tell(r, "gemm", ndm_error_message());
        return;
    }
    snprintf(
        text, sizeof text,
        "%s: %.0f GFLOP/s of the %.0f that %d thread(s) reach in registers, %lld x %lld x %lld",
        s.table, s.gflops, s.peak, s.threads, (long long)s.size, (long long)s.size,
        (long long)s.size);
    tell(r, "gemm", text);
    if (s.gflops < s.peak / 2)
        ndm_log(NDM_LOG_WARNING, "info",
                "the matrix product of %s reaches %.0f GFLOP/s, less than half of the %.0f that "
                "this processor can do: the machine is busy, or the library does not know it "
                "(--kernels)",
                s.table, s.gflops, s.peak);
}

static void tell_world(report *r, ndm_world *world)
{
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)ndm_world_size(world));
    tell(r, "ranks", text);
}

static void tell_all(report *r, ndm_world *world)
{
    tell(r, "version", NDM_VERSION);
    tell_build(r);
    tell_machine(r);
    tell_speed(r);
    tell_world(r, world);
    tell_features(r);
    tell_strategies(r);
    tell_devices(r);
    tell_kernels(r);
    tell_collectives(r, world);
    tell_presets(r);
}

static ndm_status print(bool as_json, ndm_world *world)
{
    report r = {.as_json = as_json};
    if (!as_json) {
        tell_all(&r, world);
        return NDM_OK;
    }
    ndm_json_init_file(&r.json, stdout, true);
    ndm_json_begin_object(&r.json);
    tell_all(&r, world);
    ndm_json_end_object(&r.json);
    return ndm_json_finish(&r.json);
}

static ndm_status info(int argc, const char *const *argv)
{
    ndm_options *o = NULL;
    NDM_TRY(ndm_cli_options(&table, argc, argv, NULL, NULL, &o));
    bool as_json = ndm_option_bool(o, "json");
    ndm_options_destroy(o);
    ndm_world *world = NULL;
    NDM_TRY(ndm_world_join(&(ndm_world_options){.bootstrap = "auto"}, &world));
    ndm_status status = ndm_world_rank(world) == 0 ? print(as_json, world) : NDM_OK;
    ndm_world_leave(world);
    return status;
}

static int run(int argc, const char *const *argv)
{
    return ndm_cli_report(info(argc, argv));
}

const ndm_verb ndm_verb_info = {&table, run, false};
