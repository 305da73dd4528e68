/* SPDX-License-Identifier: Apache-2.0 */
/* Curves of collectives for a profile: `ndmesh bench collectives` on 2, 4, ... ranks of this
 * machine, whose JSON is read. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/bench_profile.h"
#include "cli/launch.h"
#include "core/json_read.h"
#include "core/text.h"
#include <ndmesh/collectives.h>

/* Between two collectives of a step lie some kernels: ranks arrive one after another, and those
 * that share a core find it in use. */
enum { PATH_BYTES = 4096, READ_BYTES = 65536, WORK_US = 100 };

/* What is small is an activation that has just been made; what is large is gradients or weights of
 * a unit, on which other units have followed. */
typedef struct sizes {
    const char *least, *most;
    int64_t apart_bytes;
} sizes;

static const sizes parts[] = {{"1K", "256K", 0}, {"1M", "4M", NDM_PROFILE_APART_BYTES}};

/* Operations that the engine uses; an all-gather in a window, and a barrier, are priced as the
 * smallest all-reduce. */
static const char operations[] = "all_gather,reduce_scatter,all_reduce,all_to_all,send_recv";

static ndm_status read_output(const char *command, ndm_buffer *text)
{
    char piece[READ_BYTES];
    size_t n;
    FILE *pipe = popen(command, "r");

    if (!pipe)
        NDM_FAIL(NDM_ERR_IO, "%s: could not be started", command);
    while ((n = fread(piece, 1, sizeof piece, pipe)) > 0)
        ndm_buffer_append(text, piece, n);
    int code = pclose(pipe);
    NDM_TRY(ndm_buffer_status(text));
    if (code != 0)
        NDM_FAIL(NDM_ERR_CHECK, "%s: ended with status %d", command, code);
    return NDM_OK;
}

static int operation_of(const char *name)
{
    for (int k = 0; k < NDM_COLLECTIVE_COUNT; k++)
        if (strcmp(name, ndm_collective_name((ndm_collective)k)) == 0)
            return k;
    return -1;
}

/* The curve of an operation among so many ranks, which may be a new one. */
static ndm_sim_curve *curve_of(ndm_sim_machine *m, int op, int64_t ranks)
{
    for (int i = 0; i < m->n_curves; i++)
        if (m->curves[i].op == op && m->curves[i].ranks == ranks)
            return m->curves[i].n < NDM_SIM_CURVE_POINTS_MAX ? &m->curves[i] : NULL;
    if (m->n_curves == NDM_SIM_CURVES_MAX)
        return NULL;
    m->curves[m->n_curves] = (ndm_sim_curve){.op = op, .ranks = ranks};
    return &m->curves[m->n_curves++];
}

static ndm_status read_row(ndm_sim_machine *m, int64_t ranks, const json_t *row)
{
    const char *name;
    double bytes, us;

    NDM_TRY(ndm_json_get_string(row, "op", true, NULL, &name, "bench collectives"));
    NDM_TRY(ndm_json_get_double(row, "size_bytes", true, 0.0, &bytes, "bench collectives"));
    NDM_TRY(ndm_json_get_double(row, "time_us", true, 0.0, &us, "bench collectives"));
    ndm_sim_curve *c = curve_of(m, operation_of(name), ranks);
    if (!c)
        return NDM_OK;
    c->bytes[c->n] = bytes;
    c->ns[c->n++] = us * 1e3;
    for (int i = c->n - 2; i >= 0 && c->ns[i] > c->ns[i + 1]; i--)
        c->ns[i] =
            c->ns[i + 1]; /* what others of the machine do only adds: fewer bytes take no more */
    return NDM_OK;
}

static ndm_status read_rows(ndm_sim_machine *m, int64_t ranks, const ndm_buffer *text)
{
    json_t *root;
    const json_t *rows;

    NDM_TRY(ndm_json_load_text(text->data, text->length, "bench collectives", &root));
    ndm_status status = ndm_json_get_array(root, "rows", true, &rows, "bench collectives");
    for (size_t i = 0; status == NDM_OK && i < json_array_size(rows); i++)
        status = read_row(m, ranks, json_array_get(rows, i));
    json_decref(root);
    return status;
}

static ndm_status measure_part(const ndm_profile_effort *effort, int64_t ranks, const sizes *part,
                               ndm_sim_machine *m)
{
    char self[PATH_BYTES];
    ndm_buffer text = {0};

    NDM_TRY(ndm_cli_self(self, sizeof self));
    char *command = ndm_text_printf(
        "'%s' bench collectives --ranks %lld --op %s --min-bytes %s --max-bytes %s --step-factor 4 "
        "--iters %lld --rounds %d --check 0 --threads 1 --work-us %d --apart %lld --json",
        self, (long long)ranks, operations, part->least, part->most, (long long)effort->collective,
        effort->rounds, WORK_US, (long long)part->apart_bytes);
    if (!command)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for a command");
    ndm_status status = read_output(command, &text);
    if (status == NDM_OK)
        status = read_rows(m, ranks, &text);
    ndm_buffer_finish(&text);
    free(command);
    return status;
}

ndm_status ndm_profile_collectives(const ndm_profile_effort *effort, ndm_sim_machine *machine)
{
    for (int64_t ranks = 2; ranks <= effort->ranks_max; ranks *= 2)
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
            NDM_TRY(measure_part(effort, ranks, &parts[i], machine));
    return NDM_OK;
}
