/* SPDX-License-Identifier: Apache-2.0 */
/* Gathering ranges of tensors. A range is cut where its file is a multiple of PIECE_BYTES; sorted,
 * the pieces that lie between two such places and near each other are one task: read whole,
 * checked, and put where they are wanted. */
#include "model/safetensors_gather.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"
#include "core/tasks.h"
#include "model/safetensors_gather_internal.h"
#include "model/safetensors_reader.h"

enum {
    PIECE_BYTES = 2 << 20,
    HOLE_BYTES = 256 << 10, /* read along: less than a request costs */
    PIECES_MAX = 1 << 18,   /* then they are read, to bound the memory for them */
};

typedef struct piece {
    int64_t offset; /* in the file */
    float *values;
    int32_t n, file; /* elements */
    ndm_dtype dtype;
} piece;

/* Pieces [first, first + n). */
typedef struct group {
    int64_t first, n;
} group;

struct ndm_gather {
    const ndm_safetensors *reader;
    ndm_gather_options options;
    ndm_gather_file *files;
    int64_t n_files;
    piece *pieces;
    int64_t n_pieces, room;
    group *groups;
    int64_t n_groups;
    struct {
        char *data;
        int64_t bytes;
    } buffers[NDM_TASK_THREADS];
};

/* ---- making ------------------------------------------------------------------------------- */

static ndm_status open_files(ndm_gather *g)
{
    const ndm_safetensors *r = g->reader;

    g->files = calloc((size_t)r->file_count + 1, sizeof *g->files);
    if (!g->files)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for %lld files", (long long)r->file_count);
    for (; g->n_files < r->file_count; g->n_files++)
        NDM_TRY(ndm_gather_file_open(r->files[g->n_files].fd, r->files[g->n_files].path,
                                     g->options.shared, &g->files[g->n_files]));
    return NDM_OK;
}

ndm_status ndm_gather_create(const ndm_safetensors *reader, const ndm_gather_options *options,
                             ndm_gather **gather)
{
    ndm_gather *g = calloc(1, sizeof *g);

    if (!g)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory to read tensors");
    g->reader = reader, g->options = *options;
    ndm_status status = open_files(g);
    if (status == NDM_OK)
        *gather = g;
    else
        ndm_gather_destroy(g);
    return status;
}

static void drop_buffers(ndm_gather *g)
{
    for (int i = 0; i < NDM_TASK_THREADS; i++) {
        free(g->buffers[i].data);
        g->buffers[i].data = NULL;
        g->buffers[i].bytes = 0;
    }
}

void ndm_gather_destroy(ndm_gather *g)
{
    if (!g)
        return;
    for (int64_t i = 0; i < g->n_files; i++)
        ndm_gather_file_close(&g->files[i]);
    drop_buffers(g);
    free(g->files);
    free(g->pieces);
    free(g->groups);
    free(g);
}

/* ---- asking ------------------------------------------------------------------------------- */

static ndm_status make_room(ndm_gather *g)
{
    int64_t room = g->room > 0 ? 2 * g->room : 1024;

    if (g->n_pieces < g->room)
        return NDM_OK;
    if (g->n_pieces >= PIECES_MAX)
        return ndm_gather_run(g);
    piece *pieces = realloc(g->pieces, (size_t)room * sizeof *pieces);
    if (!pieces)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for %lld ranges of tensors", (long long)room);
    g->pieces = pieces, g->room = room;
    return NDM_OK;
}

ndm_status ndm_gather_add(ndm_gather *g, const char *name, int64_t first, int64_t n, float *values)
{
    const ndm_tensor_info *info;

    NDM_TRY(ndm_safetensors_lookup(g->reader, name, &info));
    NDM_TRY(ndm_tensor_check_range(info, g->files[info->file].path, first, n, NDM_F32));
    int64_t width = (int64_t)ndm_dtype_bytes(info->dtype), offset = info->offset + first * width;
    while (n > 0) {
        int64_t left = PIECE_BYTES - offset % PIECE_BYTES, most = (left + width - 1) / width;
        int64_t take = n < most ? n : most;
        NDM_TRY(make_room(g));
        g->pieces[g->n_pieces++] = (piece){offset, values, (int32_t)take, (int32_t)info->file,
                                           info->dtype};
        offset += take * width, values += take, n -= take;
    }
    return NDM_OK;
}

/* ---- groups ------------------------------------------------------------------------------- */

static int64_t end_of(const piece *p)
{
    return p->offset + p->n * (int64_t)ndm_dtype_bytes(p->dtype);
}

static int64_t down(int64_t n, int64_t unit)
{
    return n / unit * unit;
}

static int64_t up(int64_t n, int64_t unit)
{
    return down(n + unit - 1, unit);
}

static int64_t unit_of(const ndm_gather *g)
{
    return g->options.check ? g->options.block_bytes : NDM_GATHER_ALIGN;
}

static int compare_places(const void *a, const void *b)
{
    const piece *x = a, *y = b;

    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* Blocks between two pieces that need not be read are not. */
static bool together(const ndm_gather *g, const piece *a, const piece *b)
{
    int64_t unit = unit_of(g);

    return a->file == b->file && a->offset / PIECE_BYTES == b->offset / PIECE_BYTES &&
           down(b->offset, unit) - up(end_of(a), unit) < HOLE_BYTES;
}

static ndm_status make_groups(ndm_gather *g)
{
    qsort(g->pieces, (size_t)g->n_pieces, sizeof *g->pieces, compare_places);
    free(g->groups);
    g->n_groups = 0;
    g->groups = malloc((size_t)g->n_pieces * sizeof *g->groups);
    if (!g->groups)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for %lld ranges of tensors", (long long)g->n_pieces);
    for (int64_t i = 0; i < g->n_pieces; i++)
        if (i > 0 && together(g, &g->pieces[i - 1], &g->pieces[i]))
            g->groups[g->n_groups - 1].n++;
        else
            g->groups[g->n_groups++] = (group){i, 1};
    return NDM_OK;
}

/* ---- a group ------------------------------------------------------------------------------ */

static ndm_status need_buffer(ndm_gather *g, int thread, int64_t bytes, char **data)
{
    void *made;

    if (g->buffers[thread].bytes < bytes) {
        free(g->buffers[thread].data);
        g->buffers[thread].data = NULL, g->buffers[thread].bytes = 0;
        if (posix_memalign(&made, NDM_GATHER_ALIGN, (size_t)bytes) != 0)
            NDM_FAIL(NDM_ERR_MEMORY, "no memory to read %lld bytes at a time", (long long)bytes);
        g->buffers[thread].data = made, g->buffers[thread].bytes = bytes;
    }
    *data = g->buffers[thread].data;
    return NDM_OK;
}

/* data: the file from `at` on. */
static ndm_status check_blocks(const ndm_gather *g, int64_t file, const char *data, int64_t at,
                               int64_t begin, int64_t end)
{
    int64_t unit = g->options.block_bytes;

    for (; g->options.check && begin < end; begin += unit)
        NDM_TRY(g->options.check(g->options.user, file, begin, data + (begin - at),
                                 end - begin < unit ? end - begin : unit));
    return NDM_OK;
}

/* Headers of any length may leave elements where their type is not aligned. */
static void place(const piece *p, const char *data)
{
    _Alignas(16) char aligned[4096];
    int64_t width = (int64_t)ndm_dtype_bytes(p->dtype), step = (int64_t)sizeof aligned / width;

    if ((uintptr_t)data % (uintptr_t)width == 0) {
        ndm_tensor_convert(data, p->dtype, p->values, NDM_F32, p->n);
        return;
    }
    for (int64_t i = 0; i < p->n; i += step) {
        int64_t n = p->n - i < step ? p->n - i : step;
        memcpy(aligned, data + i * width, (size_t)(n * width));
        ndm_tensor_convert(aligned, p->dtype, p->values + i, NDM_F32, n);
    }
}

static int64_t wanted_bytes(const piece *pieces, int64_t n)
{
    int64_t bytes = 0;

    for (int64_t i = 0; i < n; i++)
        bytes += end_of(&pieces[i]) - pieces[i].offset;
    return bytes;
}

/* Whole blocks around [begin, end), within the file; a file that has become shorter fails to be
 * read. */
static int64_t whole_end(const ndm_gather *g, const ndm_gather_file *f, int64_t end)
{
    int64_t whole = up(end, unit_of(g)), last = f->bytes > end ? f->bytes : end;

    return whole < last ? whole : last;
}

static int64_t first_group(const ndm_gather *g)
{
    const ndm_gather_options *o = &g->options;

    return o->ranks > 0 ? (int64_t)((double)g->n_groups * (double)o->rank / (double)o->ranks) : 0;
}

/* Where most of a stretch is wanted, no other rank reads it; what ranks have columns of, they share
 * by the page cache. */
static ndm_status read_group(void *user, int64_t i, int thread)
{
    ndm_gather *g = user;
    const group *own = &g->groups[(i + first_group(g)) % g->n_groups];
    const piece *pieces = &g->pieces[own->first];
    int64_t n = own->n, file = pieces[0].file;
    const ndm_gather_file *f = &g->files[file];
    int64_t begin = down(pieces[0].offset, unit_of(g)), end = end_of(&pieces[0]);
    char *data;

    for (int64_t k = 1; k < n; k++)
        end = end_of(&pieces[k]) > end ? end_of(&pieces[k]) : end;
    end = whole_end(g, f, end);
    int64_t at = down(begin, NDM_GATHER_ALIGN);
    bool alone = !g->options.shared && wanted_bytes(pieces, n) > (end - begin) / 8 * 5;
    NDM_TRY(need_buffer(g, thread, up(end - at, NDM_GATHER_ALIGN), &data));
    NDM_TRY(ndm_gather_file_read(f, data, at, end, alone));
    NDM_TRY(check_blocks(g, file, data, at, begin, end));
    for (int64_t k = 0; k < n; k++)
        place(&pieces[k], data + (pieces[k].offset - at));
    return NDM_OK;
}

ndm_status ndm_gather_run(ndm_gather *g)
{
    if (g->n_pieces == 0)
        return NDM_OK;
    NDM_TRY(make_groups(g));
    g->n_pieces = 0;
    return ndm_tasks_run(g->n_groups, g->options.threads, read_group, g);
}
