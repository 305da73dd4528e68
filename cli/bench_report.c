/* SPDX-License-Identifier: Apache-2.0 */
/* Text as rows come, or one JSON or CSV document at the end. */
#include "cli/bench.h"

#include <errno.h>
#include <string.h>

void ndm_bench_report_begin(ndm_bench_report *report)
{
    if (!report->speaks || report->form != NDM_BENCH_TEXT)
        return;
    ndm_bench_facts_text(&report->facts, stdout);
    ndm_table_print_heading(&report->table, stdout);
    fflush(stdout);
}

ndm_status ndm_bench_report_row(ndm_bench_report *report)
{
    NDM_TRY(ndm_table_status(&report->table));
    for (; report->shown < ndm_table_rows(&report->table); report->shown++)
        if (report->speaks && report->form == NDM_BENCH_TEXT)
            ndm_table_print_row(&report->table, report->shown, stdout);
    return NDM_OK;
}

static ndm_status write_csv(const ndm_bench_report *report)
{
    ndm_buffer csv = {0};

    ndm_table_write_csv(&report->table, &csv);
    ndm_status status = ndm_buffer_status(&csv);
    if (status == NDM_OK && fputs(ndm_buffer_text(&csv), stdout) < 0)
        status = ndm_error_set(NDM_ERR_IO, __FILE__, __LINE__, "stdout: %s", strerror(errno));
    ndm_buffer_finish(&csv);
    return status;
}

static ndm_status write_json(const ndm_bench_report *report,
                             void (*more)(ndm_json *json, void *user), void *user)
{
    ndm_json json;

    ndm_json_init_file(&json, stdout, true);
    ndm_json_begin_object(&json);
    ndm_json_key_string(&json, "bench", report->bench);
    ndm_json_key(&json, "context");
    ndm_json_begin_object(&json);
    ndm_bench_facts_json(&report->facts, &json);
    ndm_json_end_object(&json);
    if (more != NULL)
        more(&json, user);
    ndm_json_key(&json, "rows");
    ndm_table_write_json(&report->table, &json);
    ndm_json_end_object(&json);
    return ndm_json_finish(&json);
}

ndm_status ndm_bench_report_end(ndm_bench_report *report, void (*more)(ndm_json *json, void *user),
                                void *user)
{
    NDM_TRY(ndm_bench_report_row(report));
    if (!report->speaks || report->form == NDM_BENCH_TEXT)
        return NDM_OK;
    return report->form == NDM_BENCH_CSV ? write_csv(report) : write_json(report, more, user);
}
