/* SPDX-License-Identifier: Apache-2.0 */
/* One run at a time writes checkpoints into a folder: another would sweep away what the first has
 * not finished, and each would remove the other's old ones. */
#ifndef NDM_TRAIN_CHECKPOINT_LOCK_H
#define NDM_TRAIN_CHECKPOINT_LOCK_H

#include <stdbool.h>

#include <ndmesh/checkpoint.h>

typedef struct ndm_checkpoint_lock {
    int fd;      /* of the open file, if there is a path */
    char *path;  /* NULL: nothing is held */
    bool shared; /* nothing, since this program holds it already */
} ndm_checkpoint_lock;

/* Makes the folder. NDM_ERR_IO that names the holder, if another process still holds the lock after
 * some seconds: a run that was just killed may take that long to end. Where the file system has no
 * locks, or none can be made, nothing is held and all is well: a save will tell. Zero is a lock
 * that holds nothing. */
NDM_MUST_USE ndm_status ndm_checkpoint_lock_take(const char *folder, ndm_checkpoint_lock *lock);
void ndm_checkpoint_lock_give(ndm_checkpoint_lock *lock);

/* Before a save: takes it again, likewise, if the folder was removed since then, or if the saver of
 * this program that held it has gone. */
NDM_MUST_USE ndm_status ndm_checkpoint_lock_keep(const char *folder, ndm_checkpoint_lock *lock);

/* Of a saver that is not destroyed, since its run has failed (checkpoint.c). false: a thread of it
 * still writes, and the lock goes with the process. NULL is fine. */
bool ndm_saver_give_lock(ndm_saver *saver);

#endif
