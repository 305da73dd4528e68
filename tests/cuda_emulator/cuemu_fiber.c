/* SPDX-License-Identifier: Apache-2.0 */
/* One thread block on one OS thread: each CUDA thread is a fibre, made only when the one before it
 * blocks. A kernel without barriers therefore runs as a plain loop on a single stack. A fibre that
 * waits is out of the ring until whoever comes last lets it go on: a barrier costs a switch a
 * thread. */
#include "cuemu_device.h"
#include "cuemu_threads.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define INITIAL_EXEC \
    __attribute__((tls_model("initial-exec"))) /* legal in a dlopened library while small */
__thread cuemu_dim threadIdx INITIAL_EXEC, blockIdx INITIAL_EXEC, blockDim INITIAL_EXEC,
    gridDim INITIAL_EXEC;
__thread int warpSize INITIAL_EXEC = 32;
__thread int cuemu_thread INITIAL_EXEC;

enum { STACK_BYTES = 256 << 10, THREADS = 1024, LANES = 32, WARPS = THREADS / LANES };

typedef struct {
    void *dst;
    const void *src;
    size_t bytes;
    unsigned group;
} async_copy;

typedef struct fiber {
    void *sp;
    int thread;                /* which CUDA thread it runs */
    cuemu_dim index;           /* likewise */
    struct fiber *next, *prev; /* ring of those that can run, or of those that wait together */
    async_copy *copies;        /* issued and not yet waited for */
    int n_copies, copies_cap;
    unsigned group; /* that is being filled */
} fiber;

typedef struct {
    unsigned arrived, generation;
    fiber *waiting; /* one of a ring, or NULL */
    char value[2][LANES][CUEMU_LANE_BYTES];
} meeting; /* of the lanes of a mask */

typedef struct {
    fiber pool[THREADS], main, *idle, *current;
    int made, next, threads, done, seed;
    unsigned arrived;
    fiber *waiting;            /* at the barrier: one of a ring, or NULL */
    int blocked;               /* fibres that wait anywhere */
    int votes, voters, result; /* of __syncthreads_count() and its kin */
    bool dead, unwaited;       /* unwaited: a thread ended with copies under way */
    void (*thunk)(void *, void *);
    void *kernel, *args;
    meeting warp[WARPS][LANES]; /* [warp][lowest lane of the mask] */
} block_state;

static __thread block_state *S INITIAL_EXEC;

/* Saves the callee-saved registers and swaps stacks: 13 times faster than swapcontext. x86-64. */
void cuemu_switch(void **save, void *load);
__asm__(".text\n.globl cuemu_switch\n.hidden cuemu_switch\n.type "
        "cuemu_switch,@function\ncuemu_switch:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");

static void place(const fiber *f)
{
    threadIdx = f->index;
    cuemu_thread = f->thread;
}

static void run_thread(fiber *f, int thread)
{
    f->thread = thread;
    f->index = (cuemu_dim){(unsigned)thread % blockDim.x,
                           (unsigned)thread / blockDim.x % blockDim.y,
                           (unsigned)thread / (blockDim.x * blockDim.y)};
    f->n_copies = 0;
    f->group = 0;
    place(f);
}

/* ---- rings of fibres: those that can run, and those that wait for the same ---- */

static void join(fiber *f, fiber *ring)
{
    f->prev = ring;
    f->next = ring->next;
    ring->next->prev = f;
    ring->next = f;
}

static void leave(fiber *f)
{
    f->next->prev = f->prev;
    f->prev->next = f->next;
}

/* All that wait may run, after the current one. */
static void release(fiber **waiting, unsigned n)
{
    fiber *first = *waiting, *me = S->current;
    if (!first)
        return;
    fiber *last = first->prev;
    last->next = me->next;
    me->next->prev = last;
    me->next = first;
    first->prev = me;
    *waiting = NULL;
    S->blocked -= (int)n;
}

/* Threads that have ended count as arrived, as on hardware. */
static void release_barrier(unsigned waiting)
{
    if (S->arrived && S->arrived + (unsigned)S->done == (unsigned)S->threads) {
        S->voters = (int)S->arrived;
        S->result = S->votes;
        S->votes = 0;
        S->arrived = 0;
        release(&S->waiting, waiting);
    }
}

/* Another order for each seed: by exclusive or where that permutes, backwards otherwise. */
static int nth_thread(int i)
{
    int n = S->threads;
    if (!(n & (n - 1)))
        return i ^ (S->seed & (n - 1));
    return S->seed & 1 ? n - 1 - i : i;
}

static void retire(fiber *me)
{
    fiber *to = me->next == me ? &S->main : me->next;
    if (to == &S->main)
        S->dead = S->blocked > 0; /* nobody is left to wait for */
    leave(me);
    me->next = S->idle;
    S->idle = me;
    S->current = to;
    cuemu_switch(&me->sp, to->sp);
}

static void fiber_main(void)
{
    for (;;) {
        fiber *me = S->current;
        while (S->next < S->threads) {
            run_thread(me, nth_thread(S->next++));
            S->thunk(S->kernel, S->args);
            S->unwaited |= me->n_copies > 0;
            S->done++;
            release_barrier(S->arrived);
        }
        retire(me);
    }
}

static fiber *fresh_fiber(void)
{
    fiber *f = S->idle;
    if (f) {
        S->idle = f->next;
        return f;
    }
    f = &S->pool[S->made++];
    char *stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED)
        abort();
    mprotect(stack, 4096, PROT_NONE); /* an overflow faults */
    void **sp = (void **)(stack + STACK_BYTES - 64 * (S->made % 61) -
                          64); /* not all in one cache set */
    *--sp = NULL;
    *--sp = (void *)(uintptr_t)fiber_main;
    f->sp = sp - 6;
    return f;
}

/* Runs others until somebody releases those that wait. Without others the block is dead: it is
 * abandoned, with its stacks. */
static void wait_among(fiber **waiting)
{
    fiber *me = S->current, *to = me->next;
    if (S->next < S->threads) {
        to = fresh_fiber();
        join(to, me);
    } else if (to == me) {
        S->dead = true;
        to = &S->main;
    }
    leave(me);
    if (*waiting)
        join(me, (*waiting)->prev);
    else
        *waiting = me->next = me->prev = me;
    S->blocked++;
    S->current = to;
    cuemu_switch(&me->sp, to->sp);
    place(me);
}

void cuemu_syncthreads(void)
{
    if (++S->arrived + (unsigned)S->done == (unsigned)S->threads)
        release_barrier(S->arrived - 1);
    else
        wait_among(&S->waiting);
}

int cuemu_syncthreads_vote(int predicate, int *voters)
{
    S->votes += predicate ? 1 : 0;
    cuemu_syncthreads();
    *voters = S->voters;
    return S->result;
}

const char *cuemu_exchange(unsigned mask, const void *value, size_t bytes)
{
    return cuemu_exchange_changed(mask, value, bytes, NULL);
}

/* Most give a word. */
static void put(char *to, const void *value, size_t bytes)
{
    if (bytes == 4)
        memcpy(to, value, 4);
    else
        memcpy(to, value, bytes);
}

const char *cuemu_exchange_changed(unsigned mask, const void *value, size_t bytes,
                                   cuemu_change *change)
{
    int warp = cuemu_thread / LANES, lane = cuemu_thread % LANES, left = S->threads - warp * LANES;
    if (left < LANES)
        mask &= (1u << left) - 1;
    unsigned lanes = mask == 0xffffffffu ? LANES : (unsigned)__builtin_popcount(mask);
    meeting *w = &S->warp[warp][__builtin_ctz(mask)];
    char(*slot)[CUEMU_LANE_BYTES] = w->value[w->generation & 1];
    put(slot[lane], value, bytes);
    if (++w->arrived < lanes) {
        wait_among(&w->waiting);
        return (const char *)slot;
    }
    if (change)
        change(slot);
    w->arrived = 0;
    w->generation++;
    release(&w->waiting, lanes - 1);
    return (const char *)slot;
}

void cuemu_cp_async(void *dst, const void *src, size_t bytes)
{
    fiber *f = S->current;
    if (f->n_copies == f->copies_cap) {
        f->copies_cap = f->copies_cap ? 2 * f->copies_cap : 64;
        f->copies = realloc(f->copies, sizeof *f->copies * (size_t)f->copies_cap);
        if (!f->copies)
            abort();
    }
    f->copies[f->n_copies++] = (async_copy){dst, src, bytes, f->group};
}

void cuemu_cp_async_commit(void)
{
    S->current->group++;
}

/* The data arrives here and not before, so that a missing wait shows. */
void cuemu_cp_async_wait(unsigned groups_left)
{
    fiber *f = S->current;
    int kept = 0;
    for (int i = 0; i < f->n_copies; i++) {
        async_copy *c = &f->copies[i];
        if (c->group + groups_left < f->group) {
            memset(c->dst, 0, 16);
            memcpy(c->dst, c->src, c->bytes);
        } else
            f->copies[kept++] = *c;
    }
    f->n_copies = kept;
}

static void reset(uint32_t seed, const unsigned block[3], int threads)
{
    blockDim = (cuemu_dim){block[0], block[1], block[2]};
    S->seed = (int)(seed & 0x7fffffff);
    S->threads = threads;
    S->next = S->done = 0;
    S->arrived = 0;
    S->blocked = 0;
    S->votes = 0;
    S->unwaited = false;
    for (int w = 0; w < (threads + LANES - 1) / LANES; w++)
        for (int lane = 0; lane < LANES; lane++)
            S->warp[w][lane].arrived = 0;
}

const char *cuemu_block_run(void (*thunk)(void *, void *), void *kernel, void *args,
                            const unsigned block[3], uint32_t seed)
{
    if (!S || S->dead)
        S = calloc(1, sizeof *S);
    if (!S)
        abort();
    reset(seed, block, (int)(block[0] * block[1] * block[2]));
    S->thunk = thunk;
    S->kernel = kernel;
    S->args = args;
    fiber *f = fresh_fiber();
    f->next = f->prev = f;
    S->current = f;
    cuemu_switch(&S->main.sp, f->sp);
    return S->dead       ? "a barrier that not all its threads reach"
           : S->unwaited ? "a thread ends before its copies have arrived"
                         : NULL;
}
