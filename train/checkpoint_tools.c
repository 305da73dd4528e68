/* SPDX-License-Identifier: Apache-2.0 */
/* Verifying and exporting checkpoints. */
#include "train/checkpoint_tools.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/dtype.h"
#include "core/file.h"
#include "model/config.h"
#include "model/model.h"
#include "model/safetensors_reader.h"

/* ---- verify ------------------------------------------------------------------------------- */

enum { THREADS_MAX = 8 };

typedef struct check {
    const char *path;
    const ndm_sums *sums;
    int *fds;                                       /* [n_files], -1 = not to be read */
    ndm_safetensors *readers[NDM_CHECKPOINT_STEMS]; /* name tensors; NULL where the header is bad */
    atomic_llong next;                              /* block of all files, one after another */
    pthread_mutex_t lock;                           /* of what follows */
    ndm_checkpoint_fault_fn fault;
    void *user;
    int64_t faults;
} check;

static void tell(check *c, const char *message)
{
    pthread_mutex_lock(&c->lock);
    c->faults++;
    c->fault(c->user, message);
    pthread_mutex_unlock(&c->lock);
}

/* The reader that has the file, to name its tensors. */
static const ndm_safetensors *reader_of(const check *c, const char *path)
{
    for (int i = 0; i < NDM_CHECKPOINT_STEMS; i++)
        for (int64_t f = 0; c->readers[i] && f < ndm_safetensors_files(c->readers[i]); f++)
            if (strcmp(ndm_safetensors_path(c->readers[i], f), path) == 0)
                return c->readers[i];
    return NULL;
}

static ndm_status check_block(const check *c, int64_t file, int64_t block, void *data)
{
    char *path = ndm_text_printf("%s/%s", c->path, c->sums->files[file].name);

    if (!path)
        NDM_FAIL(NDM_ERR_MEMORY, "%s: no memory for a path", c->path);
    ndm_status status = ndm_safetensors_pread(c->fds[file], path, data,
                                              ndm_sums_block_bytes(c->sums, file, block),
                                              block * c->sums->block_bytes);
    if (status == NDM_OK)
        status = ndm_sums_compare(c->sums, file, block, data, path, reader_of(c, path));
    free(path);
    return status;
}

static bool locate(const check *c, int64_t i, int64_t *file, int64_t *block)
{
    for (*file = 0; *file < c->sums->n_files; ++*file) {
        *block = i;
        if (i < c->sums->files[*file].n_blocks)
            return true;
        i -= c->sums->files[*file].n_blocks;
    }
    return false;
}

static void *check_blocks(void *user)
{
    check *c = user;
    void *data = malloc((size_t)c->sums->block_bytes);
    int64_t file, block;

    if (!data)
        tell(c, "no memory for a block");
    while (data && locate(c, atomic_fetch_add(&c->next, 1), &file, &block))
        if (c->fds[file] >= 0 && check_block(c, file, block, data) != NDM_OK)
            tell(c, ndm_error_message());
    free(data);
    return NULL;
}

static void run_threads(check *c)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    pthread_t threads[THREADS_MAX];
    int started = 0;

    while (started + 1 < n && started < THREADS_MAX &&
           pthread_create(&threads[started], NULL, check_blocks, c) == 0)
        started++;
    check_blocks(c);
    for (int i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
}

/* Missing files and other sizes are faults of their own; such files are not read. */
static ndm_status open_files(check *c)
{
    for (int64_t i = 0; i < c->sums->n_files; i++) {
        const ndm_sums_file *f = &c->sums->files[i];
        char *path = ndm_text_printf("%s/%s", c->path, f->name), message[8192];
        int64_t bytes;

        if (!path)
            NDM_FAIL(NDM_ERR_MEMORY, "%s: no memory for a path", c->path);
        if (ndm_file_size(path, &bytes) != NDM_OK) {
            tell(c, ndm_error_message());
        } else if (bytes != f->bytes) {
            snprintf(message, sizeof message, "%s: has %lld bytes, %lld were saved", path,
                     (long long)bytes, (long long)f->bytes);
            tell(c, message);
        } else if ((c->fds[i] = open(path, O_RDONLY | O_CLOEXEC)) < 0) {
            snprintf(message, sizeof message, "%s: %s", path, strerror(errno));
            tell(c, message);
        }
        free(path);
    }
    return NDM_OK;
}

static ndm_status check_all(check *c)
{
    c->fds = malloc((size_t)(c->sums->n_files + 1) * sizeof *c->fds);
    if (!c->fds)
        NDM_FAIL(NDM_ERR_MEMORY, "%s: no memory for its files", c->path);
    for (int64_t i = 0; i < c->sums->n_files; i++)
        c->fds[i] = -1;
    for (int i = 0; i < NDM_CHECKPOINT_STEMS; i++)
        if (ndm_safetensors_open_stem(c->path, ndm_checkpoint_stems[i].stem, &c->readers[i]) !=
            NDM_OK)
            c->readers[i] = NULL;
    ndm_status status = open_files(c);
    if (status == NDM_OK)
        run_threads(c);
    for (int64_t i = 0; i < c->sums->n_files; i++)
        if (c->fds[i] >= 0)
            close(c->fds[i]);
    for (int i = 0; i < NDM_CHECKPOINT_STEMS; i++)
        ndm_safetensors_close(c->readers[i]);
    free(c->fds);
    return status;
}

static ndm_status read_sums(const char *path, ndm_sums *sums)
{
    ndm_checkpoint_facts facts;

    NDM_TRY(ndm_checkpoint_facts_read(path, &facts));
    return ndm_checkpoint_sums_read(path, &facts, sums);
}

ndm_status ndm_checkpoint_verify(const char *path, ndm_checkpoint_fault_fn fault, void *user,
                                 int64_t *faults)
{
    check c = {.path = path, .fault = fault, .user = user};
    ndm_sums sums;
    ndm_status read = read_sums(path, &sums);

    if (read == NDM_ERR_MEMORY)
        return read;
    if (read != NDM_OK) { /* nothing else can be judged */
        fault(user, ndm_error_message());
        *faults = 1;
        return NDM_OK;
    }
    c.sums = &sums;
    pthread_mutex_init(&c.lock, NULL);
    ndm_status status = check_all(&c);
    pthread_mutex_destroy(&c.lock);
    ndm_sums_finish(&sums);
    *faults = c.faults;
    return status;
}

/* ---- export ------------------------------------------------------------------------------- */

enum { ELEMENTS_AT_A_TIME = 1 << 20 };

static ndm_status plan(const ndm_safetensors *in, const char *folder, ndm_dtype dtype,
                       int64_t shard_bytes, ndm_safetensors_writer **writer)
{
    int64_t n = ndm_safetensors_count(in);
    ndm_tensor_spec *specs = calloc((size_t)n + 1, sizeof *specs);

    if (!specs)
        NDM_FAIL(NDM_ERR_MEMORY, "%s: no memory to plan %lld tensors", folder, (long long)n);
    for (int64_t i = 0; i < n; i++) {
        const ndm_tensor_info *info = ndm_safetensors_at(in, i);
        specs[i] = (ndm_tensor_spec){.name = info->name, .dtype = dtype, .ndim = info->ndim};
        memcpy(specs[i].shape, info->shape, sizeof specs[i].shape);
    }
    ndm_status status = ndm_safetensors_writer_create(folder, "model", specs, n, shard_bytes, NULL,
                                                      writer);
    free(specs);
    return status;
}

static ndm_status copy_tensor(const ndm_safetensors *in, const ndm_tensor_info *info,
                              ndm_safetensors_writer *out, float *values)
{
    for (int64_t n, first = 0; first < info->count; first += n) {
        n = info->count - first < ELEMENTS_AT_A_TIME ? info->count - first : ELEMENTS_AT_A_TIME;
        NDM_TRY(ndm_safetensors_read(in, info->name, first, n, values, NDM_F32));
        NDM_TRY(ndm_safetensors_write(out, info->name, first, n, values, NDM_F32));
    }
    return NDM_OK;
}

static ndm_status copy_tensors(const ndm_safetensors *in, ndm_safetensors_writer *out)
{
    float *values = malloc(ELEMENTS_AT_A_TIME * sizeof *values);
    ndm_status status = ndm_safetensors_writer_begin(out);

    if (!values)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory to stage %d elements", ELEMENTS_AT_A_TIME);
    for (int64_t i = 0; i < ndm_safetensors_count(in) && status == NDM_OK; i++)
        status = copy_tensor(in, ndm_safetensors_at(in, i), out, values);
    free(values);
    return status == NDM_OK ? ndm_safetensors_writer_sync(out) : status;
}

static ndm_status write_config(const char *path, const char *folder, ndm_dtype dtype)
{
    char *to = ndm_text_printf("%s/config.json", folder);
    ndm_model_config config = {0};
    ndm_status status;

    if (!to)
        NDM_FAIL(NDM_ERR_MEMORY, "%s: no memory for a path", folder);
    NDM_TRY_OR(status, ndm_model_config_load(path, &config), done);
    config.dtype = dtype;
    NDM_TRY_OR(status, ndm_model_config_write(&config, to), done);
    status = ndm_model_write_companions(path, folder);
done:
    ndm_model_config_finish(&config);
    free(to);
    return status;
}

static ndm_status export_weights(const char *path, const ndm_sums *sums, const char *folder,
                                 ndm_dtype dtype, int64_t shard_bytes)
{
    ndm_safetensors_writer *writer = NULL;
    ndm_checkpoint_input in;
    ndm_status status;

    NDM_TRY(ndm_checkpoint_input_open(path, sums, 0, &in));
    NDM_TRY_OR(status, ndm_file_make_dirs(folder), done);
    NDM_TRY_OR(status, plan(in.reader, folder, dtype, shard_bytes, &writer), done);
    NDM_TRY_OR(status, ndm_safetensors_writer_stage(writer), done);
    NDM_TRY_OR(status, copy_tensors(in.reader, writer), done);
    NDM_TRY_OR(status, ndm_safetensors_writer_commit(writer), done);
    status = write_config(path, folder, dtype);
done:
    ndm_safetensors_writer_destroy(writer);
    ndm_checkpoint_input_close(&in);
    return status;
}

ndm_status ndm_checkpoint_export(const char *path, const char *folder, ndm_dtype dtype,
                                 int64_t shard_bytes)
{
    ndm_checkpoint_facts facts;
    ndm_sums sums;

    NDM_TRY(ndm_checkpoint_facts_read(path, &facts));
    NDM_TRY(ndm_checkpoint_sums_read(path, &facts, &sums));
    ndm_status status = export_weights(
        path, &sums, folder, dtype == NDM_DTYPE_COUNT ? facts.model_dtype : dtype, shard_bytes);
    ndm_sums_finish(&sums);
    return status;
}
