/* SPDX-License-Identifier: Apache-2.0 */
/* The harness of tests over several ranks. */
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/dtype.h"

ndm_world *world;
ndm_device *device;

static const int64_t TIMEOUT_NS = 60ll * 1000000000;

void must_at(ndm_status status, const char *text, const char *file, int line)
{
    if (status == NDM_OK)
        return;
    fprintf(stderr, "%s:%d: %s: %s\n", file, line, text, ndm_error_message());
    _exit(1);
}

void check_all_at(bool condition, const char *text, const char *file, int line)
{
    int64_t size = ndm_world_size(world), failed = 0;
    unsigned char mine = condition, *all = calloc((size_t)size, 1);

    must(ndm_world_exchange(world, &mine, 1, all));
    for (int64_t r = 0; r < size; r++) {
        failed += !all[r];
        if (!all[r] && ndm_world_rank(world) == 0)
            fprintf(stderr, "%s:%d: rank %lld: not so: %s\n", file, line, (long long)r, text);
    }
    free(all);
    if (failed)
        _fail(file, line);
}

void ok_all_at(ndm_status status, const char *text, const char *file, int line)
{
    if (status != NDM_OK)
        fprintf(stderr, "%s:%d: rank %lld: %s: %s: %s\n", file, line,
                (long long)ndm_world_rank(world), text, ndm_status_name(status),
                ndm_error_message());
    check_all_at(status == NDM_OK, text, file, line);
}

int harness_main(const char *name, const struct CMUnitTest *tests, size_t n_tests)
{
    ndm_world_options options = {.bootstrap = "mpi", .timeout_ns = TIMEOUT_NS};
    ndm_device_options device_options = {.timeout_ns = TIMEOUT_NS, .threads = 1};
    int failed;

    must(ndm_world_join(&options, &world));
    must(ndm_device_create("cpu", &device_options, &device));
    if (ndm_world_rank(world) != 0 && !freopen("/dev/null", "w", stdout))
        return 1;
    failed = _cmocka_run_group_tests(name, tests, n_tests, NULL, NULL);
    ndm_device_destroy(device);
    fflush(stdout);
    if (failed)
        _exit(1);
    ndm_world_leave(world);
    return 0;
}

ndm_parallelism_config *harness_meshes(int64_t max, int64_t *n)
{
    ndm_parallelism_config *list = calloc((size_t)max, sizeof *list);
    int64_t size = ndm_world_size(world);

    *n = 0;
    for (int64_t r = 1; r <= size; r++)
        for (int64_t s = 1; size % r == 0 && s <= size / r; s++)
            for (int64_t c = 1; size / r % s == 0 && c <= size / r / s && *n < max; c++) {
                if (size / r / s % c != 0)
                    continue;
                ndm_parallelism_config config = NDM_PARALLELISM_CONFIG_INIT;
                config.dp_replicate = r;
                config.dp_shard = s;
                config.cp = c;
                config.tp = size / r / s / c;
                list[(*n)++] = config;
            }
    return list;
}

const char *const *harness_backends(void)
{
    static const char *names[16];
    const ndm_comm_backend *const *list = ndm_comm_backend_list();
    int n = 0;

    for (; *list && n < 14; list++)
        names[n++] = (*list)->name;
    if (world->nodes > 1)
        names[n++] = "auto";
    names[n] = NULL;
    return names;
}

static bool takes_all_groups(ndm_comms *comms)
{
    ndm_status status = NDM_OK;
    ndm_comm *comm;

    for (ndm_axis_set axes = 0; axes <= NDM_AXES_ALL && status == NDM_OK; axes++)
        status = ndm_comms_get(comms, axes, &comm);
    check_all(status == NDM_OK || status == NDM_ERR_UNSUPPORTED);
    return ndm_world_agree(world, status) == NDM_OK;
}

bool fixture_init(fixture *f, const ndm_parallelism_config *config, const char *backend)
{
    ndm_status status;

    *f = (fixture){0};
    must(ndm_mesh_create(config, ndm_world_size(world), &f->mesh));
    status = ndm_comms_create(world, f->mesh, device, backend, &f->comms);
    check_all(status == NDM_OK || status == NDM_ERR_UNSUPPORTED);
    if (status == NDM_OK && !takes_all_groups(f->comms)) {
        ndm_comms_destroy(f->comms);
        status = NDM_ERR_UNSUPPORTED;
    }
    if (status != NDM_OK) {
        ndm_mesh_destroy(f->mesh);
        return false;
    }
    must(ndm_stream_create(device, NDM_STREAM_COMPUTE, "compute", &f->compute));
    must(ndm_stream_create(device, NDM_STREAM_COMM, "comm", &f->comm_stream));
    return true;
}

void fixture_finish(fixture *f)
{
    ndm_stream_destroy(f->compute);
    ndm_stream_destroy(f->comm_stream);
    ndm_comms_destroy(f->comms);
    ndm_mesh_destroy(f->mesh);
}

void element_set(void *array, int64_t i, ndm_dtype dtype, double value)
{
    char *at = (char *)array + i * (int64_t)ndm_dtype_bytes(dtype);
    int32_t i32 = (int32_t)value;
    int64_t i64 = (int64_t)value;
    uint8_t u8 = (uint8_t)i32;
    uint16_t u16 = (uint16_t)i32;

    if (dtype == NDM_I32)
        memcpy(at, &i32, sizeof i32);
    else if (dtype == NDM_I64)
        memcpy(at, &i64, sizeof i64);
    else if (dtype == NDM_U8)
        memcpy(at, &u8, sizeof u8);
    else if (dtype == NDM_U16)
        memcpy(at, &u16, sizeof u16);
    else
        ndm_convert(&value, NDM_F64, at, dtype, 1);
}

double element_get(const void *array, int64_t i, ndm_dtype dtype)
{
    const char *at = (const char *)array + i * (int64_t)ndm_dtype_bytes(dtype);
    int32_t i32;
    int64_t i64;
    uint16_t u16;
    double value = 0;

    if (dtype == NDM_I32)
        value = (memcpy(&i32, at, sizeof i32), (double)i32);
    else if (dtype == NDM_I64)
        value = (memcpy(&i64, at, sizeof i64), (double)i64);
    else if (dtype == NDM_U8)
        value = (double)*(const unsigned char *)at;
    else if (dtype == NDM_U16)
        value = (memcpy(&u16, at, sizeof u16), (double)u16);
    else
        ndm_convert(at, dtype, &value, NDM_F64, 1);
    return value;
}
