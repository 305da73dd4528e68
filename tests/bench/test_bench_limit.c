/* SPDX-License-Identifier: Apache-2.0 */
/* Which bytes the limit of a collective touches: those that the calls beside it touch. */
#include <string.h>

#include "cli/bench_limit.h"
#include "strategies/internal.h"
#include "tests/mpi/harness.h"

enum { BYTES = 1024, MESSAGE = 128 };

/* Whether `turns` of an all-gather among 2, which copies half of a message, copied just that at
 * each of `places`. */
static void check_walk(ndm_context *context, int64_t room, int64_t turns, int64_t places)
{
    char want[BYTES] = {0};
    ndm_limit limit;
    double us;

    ok_all(ndm_limit_init(&limit, BYTES));
    for (int i = 0; i < BYTES; i++)
        limit.from[i] = (char)(1 + i % 100);
    ndm_limit_work work = {&limit, NDM_ALL_GATHER, 2, MESSAGE, false, MESSAGE, room};
    ok_all(ndm_limit_time(&work, context, turns, &us));
    for (int64_t p = 0; p < places; p++)
        memcpy(want + p * MESSAGE, limit.from + p * MESSAGE, MESSAGE / 2);
    check_all(us > 0.0);
    check_all(memcmp(limit.to, want, BYTES) == 0);
    ndm_limit_finish(&limit);
}

static void the_limit_walks_as_calls_do(void **state)
{
    ndm_parallelism_config p = NDM_PARALLELISM_CONFIG_INIT;
    ndm_context *context;

    (void)state;
    ok_all(ndm_context_create(&p, NULL, &context));
    check_walk(context, MESSAGE, 5, 1);
    check_walk(context, 4 * MESSAGE, 3, 3);
    check_walk(context, 4 * MESSAGE, 9, 4);
    check_walk(context, 4 * MESSAGE + 1, 9, 4);
    check_walk(context, 2 * BYTES, 9, BYTES / MESSAGE); /* no further than the buffers are */
    ndm_context_destroy(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_limit_walks_as_calls_do)};

    return harness_run("limit", tests);
}
