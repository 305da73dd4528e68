/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * Checkpoints: everything that a run needs to go on, in a layout that no mesh shows in.
 *
 * FOLDER/step-00000100/ is a Hugging Face folder of the fp32 weights (config.json,
 * model*.safetensors), with the two moments of AdamW in optimizer-*.safetensors (global shapes),
 * trainer.json and checksums.json besides. Every rank writes the ranges it owns and reads those it
 * needs, so any mesh loads what any mesh saved. A checkpoint appears complete, by a rename, or not
 * at all. All ranks must see one file system.
 */
#ifndef NDMESH_CHECKPOINT_H
#define NDMESH_CHECKPOINT_H

#include <ndmesh/trainer.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ndm_checkpoint_options {
    size_t size;              /**< sizeof(ndm_checkpoint_options) */
    int64_t keep;             /**< newest complete ones that stay; 0 (default): all */
    int64_t shard_bytes;      /**< largest file, tensors stay whole; 0 = one file; default 5 GiB */
    int64_t block_bytes;      /**< a checksum covers this many bytes of a file; default 1 MiB */
    bool background;          /**< write from a copy while training goes on; default true */
    uint64_t seed;            /**< kept for the run that goes on; default 0 */
    const char *options_json; /**< NULL, or a JSON object that trainer.json keeps as "options" */
    bool local; /**< the folder is on each host's own disk: every host that has a whole replica
                   writes a whole checkpoint; an old one stays until the next save; default false */
} ndm_checkpoint_options;

#define NDM_CHECKPOINT_OPTIONS_INIT                                                           \
    {                                                                                         \
        sizeof(ndm_checkpoint_options), 0, (int64_t)5 << 30, (int64_t)1 << 20, true, 0, NULL, \
            false                                                                             \
    }

/** What a checkpoint says about its run. */
typedef struct ndm_checkpoint_state {
    int64_t step;         /**< optimizer steps done */
    int64_t tokens_total; /**< valid tokens seen */
    int64_t samples;      /**< samples used: where the data goes on, on any mesh */
    uint64_t seed;
} ndm_checkpoint_state;

/** How a save ended, the same on all ranks but for times. */
typedef struct ndm_save_result {
    int64_t step;
    ndm_status status;   /**< NDM_OK: the checkpoint is there */
    const char *message; /**< why not, "" if it is */
    const char *path;    /**< of the checkpoint */
    int64_t bytes;       /**< of its files */
    double pause_ms;     /**< that ndm_saver_begin() took: training stood still */
    double copy_ms;      /**< of that, copying the slices */
    double total_ms;     /**< from begin to complete */
} ndm_save_result;

typedef struct ndm_saver ndm_saver;

/**
 * Makes what saves a trainer into a folder, again and again. The trainer must outlive it. With
 * background, memory for a copy of this rank's weights and optimizer state is taken here. Makes the
 * folder, and removes what unfinished saves of an earlier run left.
 * @param options  NULL = defaults; copied, options_json too. Collective over: world.
 * @retval NDM_ERR_IO  the folder cannot be made, or another run has a saver of it
 */
NDM_API NDM_MUST_USE ndm_status ndm_saver_create(ndm_trainer *trainer, const char *folder,
                                                 const ndm_checkpoint_options *options,
                                                 ndm_saver **saver);
/** Waits for the thread of a save in flight, which is then lost; call ndm_saver_wait() first. NULL
 * is fine. */
NDM_API void ndm_saver_destroy(ndm_saver *saver);

/**
 * Starts a save of the trainer as it is now; the one before must be finished. What fails later
 * comes with the result of ndm_saver_poll() or ndm_saver_wait().
 * @param samples  samples used so far, not negative, the same on all ranks. Collective over: world.
 */
NDM_API NDM_MUST_USE ndm_status ndm_saver_begin(ndm_saver *saver, int64_t samples);

/** Whether a save is in flight; the same on all ranks. */
NDM_API bool ndm_saver_busy(const ndm_saver *saver);

/**
 * Moves a save in flight on, between steps: one small message. *finished is its result when it has
 * ended, valid until the next begin, else NULL. Collective over: world.
 */
NDM_API NDM_MUST_USE ndm_status ndm_saver_poll(ndm_saver *saver, const ndm_save_result **finished);

/** As ndm_saver_poll() until it has ended; *finished is NULL if there was none.
 * @retval NDM_ERR_TIMEOUT  no rank wrote anything within the deadline */
NDM_API NDM_MUST_USE ndm_status ndm_saver_wait(ndm_saver *saver, const ndm_save_result **finished);

/** One save, from begin to end, without a copy. A checkpoint of the same step is replaced.
 * Collective over: world.
 * @retval NDM_ERR_USAGE  samples are negative, or options_json is no JSON object: nothing was done
 * @retval NDM_ERR_IO     no room, or a file could not be written: nothing is there */
NDM_API NDM_MUST_USE ndm_status ndm_checkpoint_save(ndm_trainer *trainer, const char *folder,
                                                    const ndm_checkpoint_options *options,
                                                    int64_t samples);

/**
 * Puts weights, optimizer state, step and token count back, whatever mesh saved them. Every block
 * that is read is verified.
 * @param path   one checkpoint: FOLDER/step-...
 * @param state  receives what trainer.json says. Collective over: world.
 * @retval NDM_ERR_CHECK   bytes do not match their checksum: names file and tensor
 * @retval NDM_ERR_IO      not there, or a file of it is missing or cannot be read
 * @retval NDM_ERR_FORMAT  not a checkpoint, or not of this model
 */
NDM_API NDM_MUST_USE ndm_status ndm_checkpoint_load(ndm_trainer *trainer, const char *path,
                                                    ndm_checkpoint_state *state);

/**
 * The complete checkpoint with the highest step in a folder; "" in path if there is none.
 * @param path  [path_bytes]. Collective over: world.
 */
NDM_API NDM_MUST_USE ndm_status ndm_checkpoint_latest(ndm_context *context, const char *folder,
                                                      char *path, size_t path_bytes);
/** As that, of folders on each host's own disk: the newest that all hosts have. NDM_ERR_IO also
 * where one host has some and another none. */
NDM_API NDM_MUST_USE ndm_status ndm_checkpoint_latest_local(ndm_context *context,
                                                            const char *folder, char *path,
                                                            size_t path_bytes);

#ifdef __cplusplus
}
#endif
#endif
