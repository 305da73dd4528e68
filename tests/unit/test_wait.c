/* SPDX-License-Identifier: Apache-2.0 */
/* Waits of ranks that share cores: whom they wake, when they sleep, and that no wake is lost. */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <time.h>

#include <cmocka.h>

#include "core/clock.h"
#include "device/wait.h"

enum { ME = 3, PEER = 70, ROUNDS = 4000, ENOUGH = 192 };

static int share(void **state)
{
    (void)state;
    ndm_wait_share_cores(true);
    return 0;
}

static int share_no_more(void **state)
{
    (void)state;
    ndm_wait_share_cores(false);
    return 0;
}

/* Looks that find `from` missing, and somebody else if `other`; nobody comes. */
static void wait_in_vain(ndm_wait *w, ndm_bell *bell, int64_t from, bool other)
{
    ndm_wait_begin(w);
    for (int i = 0; i < ENOUGH; i++) {
        ndm_wait_for(bell, from);
        if (other)
            ndm_wait_for_other();
        ndm_wait_pause(w);
    }
}

static void test_sleeps_where_cores_are_shared(void **state)
{
    ndm_bell bell = {0};
    ndm_wait w;

    (void)state;
    wait_in_vain(&w, &bell, PEER, false);
    assert_true(w.slept > ENOUGH / 8);
    assert_int_equal(w.alone, w.slept);
    assert_int_equal(bell.awaited, (uint64_t)1 << PEER % 64);
    ndm_wait_end(&w);
    assert_int_equal(bell.awaited, 0);
}

static void test_looks_where_every_rank_has_a_core(void **state)
{
    ndm_bell bell = {0};
    ndm_wait w;

    (void)state;
    ndm_wait_share_cores(false);
    wait_in_vain(&w, &bell, PEER, false);
    assert_int_equal(w.slept, 0);
    assert_false(ndm_wait_yields(&w));
    for (int i = 0; i < 4 * ENOUGH; i++)
        ndm_wait_pause(&w);
    assert_true(ndm_wait_yields(&w));
    ndm_wait_end(&w);
    ndm_wait_share_cores(true);
}

/* What rings no bell, as a message of MPI, is looked for all the time. */
static void test_does_not_sleep_for_others(void **state)
{
    ndm_bell bell = {0}, second = {0};
    ndm_wait w;

    (void)state;
    wait_in_vain(&w, &bell, PEER, true);
    ndm_wait_end(&w);
    assert_int_equal(w.slept, 0);

    ndm_wait_begin(&w);
    for (int i = 0; i < ENOUGH; i++) {
        ndm_wait_for(&bell, PEER);
        ndm_wait_for(&second, PEER);
        ndm_wait_pause(&w);
    }
    ndm_wait_end(&w);
    assert_int_equal(w.slept, 0);

    ndm_wait_begin(&w);
    for (int i = 0; i < ENOUGH; i++)
        ndm_wait_pause(&w); /* nobody is missing: a delay that passes by itself */
    ndm_wait_end(&w);
    assert_int_equal(w.slept, 0);
}

static void test_rings_for_those_awaited_only(void **state)
{
    ndm_bell bell = {.awaited = (uint64_t)1 << 6};

    (void)state;
    ndm_bell_ring(&bell, 5);
    assert_int_equal(bell.rings, 0);
    ndm_bell_ring(&bell, 6);
    ndm_bell_ring(&bell, PEER); /* 70 is 6 modulo 64: woken for nothing, not left asleep */
    assert_int_equal(bell.rings, 2);
}

/* ---- two that answer each other -------------------------------------------------------------- */

typedef struct player {
    ndm_bell bell;
    _Atomic int64_t posted;
    int64_t local;
    struct player *other;
    int64_t slept, lost;
} player;

/* The time is over and yet it was there: then whoever put it out is about to ring. */
static bool is_about_to_ring(const ndm_wait *w)
{
    int64_t begin = ndm_clock_ns();

    while (ndm_clock_ns() - begin < 10000000000)
        if (atomic_load(&w->bell->rings) != w->rings)
            return true;
    return false;
}

static void wait_for_turn(player *p, int64_t round)
{
    int64_t alone = 0;
    ndm_wait w;

    ndm_wait_begin(&w);
    while (atomic_load_explicit(&p->other->posted, memory_order_acquire) < round) {
        alone = w.alone;
        ndm_wait_for(&p->bell, p->other->local);
        ndm_wait_pause(&w);
    }
    if (w.alone > alone && !is_about_to_ring(&w))
        p->lost++;
    p->slept += w.slept;
    ndm_wait_end(&w);
}

static void post(player *p, int64_t round)
{
    atomic_store_explicit(&p->posted, round, memory_order_release);
    atomic_thread_fence(memory_order_seq_cst);
    ndm_bell_ring(&p->other->bell, p->local);
}

/* Keeps the thread to the n-th of the processors that this process may run on, modulo them. */
static void keep_to(int n)
{
    cpu_set_t all, one;
    int cpu = -1;

    if (sched_getaffinity(0, sizeof all, &all) != 0)
        return;
    CPU_ZERO(&one);
    for (n = n % CPU_COUNT(&all); n >= 0; n--)
        do
            cpu++;
        while (!CPU_ISSET(cpu, &all));
    CPU_SET(cpu, &one);
    (void)sched_setaffinity(0, sizeof one, &one);
}

static void *answer(void *argument)
{
    player *p = argument;

    keep_to(1);
    for (int64_t round = 1; round <= ROUNDS; round++) {
        wait_for_turn(p, round);
        post(p, round);
    }
    return NULL;
}

/* Late by up to 131 us: while the other yields, is about to sleep, and sleeps. */
static void linger(int64_t round)
{
    int64_t begin = ndm_clock_ns(), late = round * 8209 % 131072;

    if (round % 16 == 0)
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    else
        while (ndm_clock_ns() - begin < late)
            ;
}

static void test_loses_no_wake(void **state)
{
    static player a = {.local = ME, .other = NULL}, b = {.local = PEER, .other = &a};
    pthread_t thread;

    (void)state;
    a.other = &b;
    assert_int_equal(pthread_create(&thread, NULL, answer, &b), 0);
    keep_to(0); /* not before: a thread begins with its maker's */
    for (int64_t round = 1; round <= ROUNDS; round++) {
        linger(round);
        post(&a, round);
        wait_for_turn(&a, round);
    }
    pthread_join(thread, NULL);
    assert_int_equal(a.lost + b.lost, 0);
    assert_true(a.slept + b.slept > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sleeps_where_cores_are_shared),
        cmocka_unit_test(test_looks_where_every_rank_has_a_core),
        cmocka_unit_test(test_does_not_sleep_for_others),
        cmocka_unit_test(test_rings_for_those_awaited_only),
        cmocka_unit_test(test_loses_no_wake),
    };

    return cmocka_run_group_tests(tests, share, share_no_more);
}
