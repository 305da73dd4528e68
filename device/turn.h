/* SPDX-License-Identifier: Apache-2.0 */
/* Whose turn it is: queues, communicators and MPI belong to one thread at a time.
 *
 * A rank is one thread, and then a turn costs a test. Between nodes nothing moves on a socket while
 * that thread computes, so a host device may have a helper thread that advances its queues
 * meanwhile (ndm_host_help()). Whoever touches queues takes the turn; a kernel that runs inline,
 * and a wait that yields, give it up. */
#ifndef NDM_DEVICE_TURN_H
#define NDM_DEVICE_TURN_H

#include <ndmesh/device.h>

/* Turns nest. */
void ndm_turn_take(void);
void ndm_turn_give(void);

/* Gives up all of this thread's turn, and takes it again. */
int ndm_turn_suspend(void);
void ndm_turn_resume(int suspended);

void ndm_turn_yield(void); /* lets others run, and have the turn */
bool ndm_turn_has_helper(void);

/* Starts a thread that advances the queues of a host device until ndm_host_unhelp(); what fails
 * there is reported by the stream. Nothing happens if it runs already. NDM_ERR_UNSUPPORTED if the
 * system gives no thread. */
NDM_MUST_USE ndm_status ndm_host_help(ndm_device *device);
void ndm_host_unhelp(ndm_device *device);

#endif
