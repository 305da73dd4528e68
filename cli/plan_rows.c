/* SPDX-License-Identifier: Apache-2.0 */
/* The result of a search: what fits, the fastest first, and why the rest does not. */
#include <string.h>

#include "cli/plan_view.h"

enum { REASONS_MAX = 12 };

static const double GIB = 1073741824.0;

/* Reasons in the order they are met; "needs ..." ones count as one. */
typedef struct reasons {
    char text[REASONS_MAX][160];
    int64_t count[REASONS_MAX];
    int n;
} reasons;

static void count_reason(reasons *r, const char *why)
{
    const char *text = strncmp(why, "needs ", 6) == 0 ? "more memory than there is" : why;
    int i = 0;

    while (i < r->n && strcmp(r->text[i], text) != 0)
        i++;
    if (i == REASONS_MAX)
        return;
    if (i == r->n)
        snprintf(r->text[r->n++], sizeof r->text[0], "%s", text);
    r->count[i]++;
}

static void print_reasons(const ndm_plan_rows *rows, FILE *out)
{
    reasons r = {.n = 0};

    for (int64_t i = rows->fit; i < rows->n; i++)
        count_reason(&r, rows->items[i].why);
    for (int i = 0; i < r.n; i++)
        fprintf(out, "  %lld do not run: %s\n", (long long)r.count[i], r.text[i]);
}

void ndm_plan_print_rows(const ndm_plan_request *request, const ndm_plan_rows *rows, int64_t top,
                         FILE *out)
{
    double ranks = (double)request->ranks;

    fprintf(out, "search: %lld plans, %lld fit\n", (long long)rows->n, (long long)rows->fit);
    fprintf(out,
            "  dp_replicate dp_shard  cp  tp  micro  recompute    tokens/s a %-5s MFU %%   step ms "
            " GiB\n",
            request->machine->unit);
    for (int64_t i = 0; i < rows->fit && i < top; i++) {
        const ndm_plan_row *r = &rows->items[i];
        fprintf(out, "  %12lld %8lld %3lld %3lld %6lld  %-10s %18.1f %6.1f %9.1f %5.1f\n",
                (long long)r->mesh[0], (long long)r->mesh[1], (long long)r->mesh[2],
                (long long)r->mesh[3], (long long)r->micro_batch,
                ndm_plan_recompute_name(r->recompute), r->tokens_per_s / ranks, r->mfu * 100.0,
                r->step_ns * 1e-6, (double)r->needed / GIB);
    }
    print_reasons(rows, out);
    if (rows->fit == 0)
        fprintf(out, "  without --search: how much the mesh of one shard a rank needs\n");
}

ndm_status ndm_plan_print_rows_json(const ndm_plan_request *request, const ndm_plan_rows *rows,
                                    FILE *out)
{
    ndm_json j;

    ndm_json_init_file(&j, out, false);
    ndm_json_begin_array(&j);
    for (int64_t i = 0; i < rows->n; i++) {
        const ndm_plan_row *r = &rows->items[i];
        ndm_json_begin_object(&j);
        for (int a = 0; a < NDM_AXIS_COUNT; a++)
            ndm_json_key_int(&j, ndm_axis_table()[a].name, r->mesh[a]);
        ndm_json_key_int(&j, "micro_batch", r->micro_batch);
        ndm_json_key_string(&j, "recompute", ndm_plan_recompute_name(r->recompute));
        ndm_json_key_bool(&j, "fits", r->fits);
        ndm_json_key_double(&j, "tokens_per_s_per_rank", r->tokens_per_s / (double)request->ranks);
        ndm_json_key_double(&j, "mfu", r->mfu);
        ndm_json_key_double(&j, "step_ms", r->step_ns * 1e-6);
        ndm_json_key_int(&j, "needed_bytes", r->needed);
        ndm_json_key_string(&j, "why", r->fits ? NULL : r->why);
        ndm_json_end_object(&j);
    }
    ndm_json_end_array(&j);
    return ndm_json_finish(&j);
}
