/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of measurements: a growing array of cells, and the four ways to write them. */
#include "cli/bench_table.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CELL_TEXT = 64 };

void ndm_table_init(ndm_table *table, const ndm_column *columns, int n_columns)
{
    *table = (ndm_table){.columns = columns, .n_columns = n_columns};
}

void ndm_table_finish(ndm_table *table)
{
    for (int64_t i = 0; i < table->n_cells; i++)
        free(table->cells[i].text);
    free(table->cells);
    *table = (ndm_table){0};
}

static void add(ndm_table *t, ndm_cell cell)
{
    if (t->n_cells == t->capacity && !t->failed) {
        int64_t capacity = t->capacity > 0 ? 2 * t->capacity : 64;
        ndm_cell *cells = realloc(t->cells, (size_t)capacity * sizeof *cells);
        t->failed = cells == NULL;
        if (cells != NULL) {
            t->cells = cells;
            t->capacity = capacity;
        }
    }
    if (t->failed) {
        free(cell.text);
        return;
    }
    t->cells[t->n_cells++] = cell;
}

void ndm_table_text(ndm_table *table, const char *text)
{
    char *copy = text != NULL ? ndm_text_duplicate(text) : NULL;

    table->failed = table->failed || (text != NULL && copy == NULL);
    add(table, (ndm_cell){.none = text == NULL, .text = copy});
}

void ndm_table_int(ndm_table *table, int64_t value)
{
    add(table, (ndm_cell){.number = (double)value});
}

void ndm_table_number(ndm_table *table, double value)
{
    add(table, (ndm_cell){.none = !isfinite(value), .number = value});
}

int64_t ndm_table_rows(const ndm_table *table)
{
    return table->n_cells / table->n_columns;
}

ndm_status ndm_table_status(const ndm_table *table)
{
    if (table->failed)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for a table of %" PRId64 " cells", table->n_cells);
    return NDM_OK;
}

static const ndm_cell *cell_at(const ndm_table *t, int64_t row, int column)
{
    return &t->cells[row * t->n_columns + column];
}

/* For people: numbers are rounded to the column's digits, without an exponent where it can be. */
static const char *shown(const ndm_column *column, const ndm_cell *cell, char *buffer)
{
    if (cell->none)
        return "-";
    if (column->kind == NDM_COLUMN_TEXT)
        return cell->text;
    if (column->kind == NDM_COLUMN_INT) {
        snprintf(buffer, CELL_TEXT, "%.0f", cell->number);
        return buffer;
    }
    double size = fabs(cell->number);
    int whole = size >= 1e-3 ? (int)floor(log10(size)) + 1 : 1; /* 0.04: -1, for two more places */
    int decimals = column->digits > whole ? column->digits - whole : 0;
    if (size != 0.0 && size < 1e-3)
        snprintf(buffer, CELL_TEXT, "%.*e", column->digits > 2 ? 1 : 0, cell->number);
    else
        snprintf(buffer, CELL_TEXT, "%.*f", decimals, cell->number);
    return buffer;
}

/* For programs: every digit. */
static const char *exact(const ndm_column *column, const ndm_cell *cell, char *buffer)
{
    if (cell->none)
        return "";
    if (column->kind == NDM_COLUMN_TEXT)
        return cell->text;
    if (column->kind == NDM_COLUMN_INT)
        snprintf(buffer, CELL_TEXT, "%.0f", cell->number);
    else
        ndm_text_of_double(cell->number, buffer);
    return buffer;
}

static void print_padded(const ndm_column *column, const char *text, bool first, FILE *out)
{
    int width = column->kind == NDM_COLUMN_TEXT ? -column->width : column->width;

    fprintf(out, "%s%*s", first ? "" : "  ", width, text);
}

void ndm_table_print_heading(const ndm_table *table, FILE *out)
{
    bool first = true;

    for (int i = 0; i < table->n_columns; i++) {
        if (table->columns[i].file_only)
            continue;
        print_padded(&table->columns[i], table->columns[i].title, first, out);
        first = false;
    }
    fputc('\n', out);
}

void ndm_table_print_row(const ndm_table *table, int64_t row, FILE *out)
{
    char buffer[CELL_TEXT];
    bool first = true;

    for (int i = 0; i < table->n_columns; i++) {
        if (table->columns[i].file_only)
            continue;
        print_padded(&table->columns[i], shown(&table->columns[i], cell_at(table, row, i), buffer),
                     first, out);
        first = false;
    }
    fputc('\n', out);
    fflush(out);
}

/* Quoted where it must be (RFC 4180). */
static void write_field(ndm_buffer *out, const char *text)
{
    if (strpbrk(text, ",\"\n\r") == NULL) {
        ndm_buffer_puts(out, text);
        return;
    }
    ndm_buffer_puts(out, "\"");
    for (; *text != '\0'; text++)
        ndm_buffer_printf(out, "%s%c", *text == '"' ? "\"" : "", *text);
    ndm_buffer_puts(out, "\"");
}

void ndm_table_write_csv(const ndm_table *table, ndm_buffer *out)
{
    char buffer[CELL_TEXT];

    for (int i = 0; i < table->n_columns; i++)
        ndm_buffer_printf(out, "%s%s", i > 0 ? "," : "", table->columns[i].key);
    ndm_buffer_puts(out, "\n");
    for (int64_t r = 0; r < ndm_table_rows(table); r++) {
        for (int i = 0; i < table->n_columns; i++) {
            ndm_buffer_puts(out, i > 0 ? "," : "");
            write_field(out, exact(&table->columns[i], cell_at(table, r, i), buffer));
        }
        ndm_buffer_puts(out, "\n");
    }
}

static void write_markdown_row(const ndm_table *table, int64_t row, ndm_buffer *out)
{
    char buffer[CELL_TEXT];

    for (int i = 0; i < table->n_columns; i++) {
        const ndm_column *c = &table->columns[i];
        if (c->file_only)
            continue;
        ndm_buffer_puts(out, "| ");
        for (const char *t = shown(c, cell_at(table, row, i), buffer); *t != '\0'; t++)
            ndm_buffer_printf(out, "%s%c", *t == '|' ? "\\" : "", *t == '\n' ? ' ' : *t);
        ndm_buffer_puts(out, " ");
    }
    ndm_buffer_puts(out, "|\n");
}

void ndm_table_write_markdown(const ndm_table *table, ndm_buffer *out)
{
    for (int i = 0; i < table->n_columns; i++)
        if (!table->columns[i].file_only)
            ndm_buffer_printf(out, "| %s ", table->columns[i].title);
    ndm_buffer_puts(out, "|\n");
    for (int i = 0; i < table->n_columns; i++)
        if (!table->columns[i].file_only)
            ndm_buffer_puts(out, table->columns[i].kind == NDM_COLUMN_TEXT ? "|---" : "|--:");
    ndm_buffer_puts(out, "|\n");
    for (int64_t r = 0; r < ndm_table_rows(table); r++)
        write_markdown_row(table, r, out);
}

static void write_json_cell(const ndm_column *column, const ndm_cell *cell, ndm_json *json)
{
    ndm_json_key(json, column->key);
    if (cell->none)
        ndm_json_null(json);
    else if (column->kind == NDM_COLUMN_TEXT)
        ndm_json_string(json, cell->text);
    else if (column->kind == NDM_COLUMN_INT)
        ndm_json_int(json, (int64_t)cell->number);
    else
        ndm_json_double(json, cell->number);
}

void ndm_table_write_json(const ndm_table *table, ndm_json *json)
{
    ndm_json_begin_array(json);
    for (int64_t r = 0; r < ndm_table_rows(table); r++) {
        ndm_json_begin_object(json);
        for (int i = 0; i < table->n_columns; i++)
            write_json_cell(&table->columns[i], cell_at(table, r, i), json);
        ndm_json_end_object(json);
    }
    ndm_json_end_array(json);
}
