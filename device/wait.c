/* SPDX-License-Identifier: Apache-2.0 */
/* Looks, yields and sleep of a wait; bells. */
#include "device/wait.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "device/turn.h"

enum { LOOKS_BEFORE_YIELD = 200, YIELDS_BEFORE_SLEEP = 128 };

/* A wait looks at its deadline, and at whether ranks are still alive, this often at least. */
static const struct timespec LONGEST_SLEEP = {.tv_nsec = 1000000};

static _Atomic bool cores_shared;

/* What the looks since the last pause found missing. */
static _Thread_local struct {
    ndm_bell *bell;
    uint64_t ranks;
    bool other;
} missing;

void ndm_wait_share_cores(bool shared)
{
    atomic_store(&cores_shared, shared);
}

static bool shares_cores(void)
{
    return atomic_load_explicit(&cores_shared, memory_order_relaxed);
}

void ndm_bell_ring(ndm_bell *bell, int64_t from)
{
    if (!(atomic_load_explicit(&bell->awaited, memory_order_relaxed) >> (from % 64) & 1))
        return;
    atomic_fetch_add(&bell->rings, 1);
    syscall(SYS_futex, &bell->rings, FUTEX_WAKE, 1, NULL, NULL, 0);
}

void ndm_wait_for(ndm_bell *bell, int64_t from)
{
    missing.other |= missing.bell && missing.bell != bell;
    missing.bell = bell;
    missing.ranks |= (uint64_t)1 << (from % 64);
}

void ndm_wait_for_other(void)
{
    missing.other = true;
}

static void forget_missing(void)
{
    missing.bell = NULL;
    missing.ranks = 0;
    missing.other = false;
}

void ndm_wait_begin(ndm_wait *w)
{
    *w = (ndm_wait){0};
    forget_missing();
}

bool ndm_wait_yields(const ndm_wait *w)
{
    return w->looks > (shares_cores() ? 0 : LOOKS_BEFORE_YIELD);
}

/* A helper thread may bring what is missing, and rings no bell. */
static bool may_sleep(const ndm_wait *w)
{
    return shares_cores() && w->looks > YIELDS_BEFORE_SLEEP && missing.bell && !missing.other &&
           !ndm_turn_has_helper();
}

static void say_nothing(ndm_wait *w)
{
    if (w->bell)
        atomic_store_explicit(&w->bell->awaited, 0, memory_order_relaxed);
    w->bell = NULL;
}

/* Another look has to follow: what it says was not yet there when they put something out. */
static void say_missing(ndm_wait *w)
{
    if (w->bell != missing.bell)
        say_nothing(w);
    w->bell = missing.bell;
    w->awaited = missing.ranks;
    w->rings = atomic_load(&w->bell->rings);
    atomic_store(&w->bell->awaited, w->awaited);
    atomic_thread_fence(memory_order_seq_cst);
}

static void sleep_until_rung(ndm_wait *w)
{
    int had = ndm_turn_suspend();

    syscall(SYS_futex, &w->bell->rings, FUTEX_WAIT, w->rings, &LONGEST_SLEEP, NULL, 0);
    ndm_turn_resume(had);
    uint32_t rings = atomic_load(&w->bell->rings);
    w->slept++;
    w->alone += rings == w->rings;
    w->rings = rings;
}

void ndm_wait_pause(ndm_wait *w)
{
    w->looks++;
    if (may_sleep(w)) {
        if (w->bell == missing.bell && w->awaited == missing.ranks)
            sleep_until_rung(w);
        else
            say_missing(w);
    } else if (ndm_wait_yields(w)) {
        ndm_turn_yield();
    }
    forget_missing();
}

void ndm_wait_end(ndm_wait *w)
{
    say_nothing(w);
}
