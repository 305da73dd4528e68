/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of measurements and their forms: text under a heading, CSV, Markdown, JSON. */
#ifndef NDM_CLI_BENCH_TABLE_H
#define NDM_CLI_BENCH_TABLE_H

#include <stdint.h>
#include <stdio.h>

#include "core/json.h"

typedef enum ndm_column_kind { NDM_COLUMN_TEXT, NDM_COLUMN_INT, NDM_COLUMN_NUMBER } ndm_column_kind;

typedef struct ndm_column {
    const char *key;   /* in CSV and JSON: "step_p50_ms" */
    const char *title; /* over the column in text and Markdown */
    ndm_column_kind kind;
    int width;      /* of text; longer values push the row */
    int digits;     /* significant ones of numbers in text and Markdown */
    bool file_only; /* in CSV and JSON alone */
} ndm_column;

typedef struct ndm_cell {
    bool none; /* "-" in text, empty in CSV, null in JSON */
    char *text;
    double number;
} ndm_cell;

typedef struct ndm_table {
    const ndm_column *columns;
    int n_columns;
    ndm_cell *cells; /* [n_rows, n_columns], row-major */
    int64_t n_cells, capacity;
    bool failed;
} ndm_table;

void ndm_table_init(ndm_table *table, const ndm_column *columns, int n_columns);
void ndm_table_finish(ndm_table *table);

/* The next cell of the row; a row is complete after n_columns of them. A NaN, NULL: no value. */
void ndm_table_text(ndm_table *table, const char *text);
void ndm_table_int(ndm_table *table, int64_t value);
void ndm_table_number(ndm_table *table, double value);

int64_t ndm_table_rows(const ndm_table *table);                   /* complete ones */
NDM_MUST_USE ndm_status ndm_table_status(const ndm_table *table); /* NDM_ERR_MEMORY once failed */

void ndm_table_print_heading(const ndm_table *table, FILE *out);
void ndm_table_print_row(const ndm_table *table, int64_t row, FILE *out);
void ndm_table_write_csv(const ndm_table *table, ndm_buffer *out);
void ndm_table_write_markdown(const ndm_table *table, ndm_buffer *out);
void ndm_table_write_json(const ndm_table *table, ndm_json *json); /* an array of objects */

#endif
