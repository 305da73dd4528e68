/* SPDX-License-Identifier: Apache-2.0 */
/* A rank that runs out of memory while a model is made: all ranks say so, and none is left waiting
 * in the making of a window. */
#include <ndmesh/trainer.h>

#include "tests/mpi/harness.h"

enum { SEQ_LEN = 32, LIMITS = 24, DEADLINE_S = 20 };

/* Makes llama-tiny where the last rank has a limit, 0 = none. Collective over: world. */
static ndm_status make(ndm_axis axis, int64_t limit, int64_t *peak)
{
    ndm_parallelism_config p = NDM_PARALLELISM_CONFIG_INIT;
    ndm_context_options o = NDM_CONTEXT_OPTIONS_INIT;
    ndm_model_options m = NDM_MODEL_OPTIONS_INIT;
    int64_t n = ndm_world_size(world);
    ndm_context *context;
    ndm_model *model = NULL;

    p.dp_shard = axis == NDM_DP_SHARD ? n : 1;
    p.tp = axis == NDM_TP ? n : 1;
    o.device = "cpu";
    o.threads = 1;
    o.timeout_s = DEADLINE_S;
    o.memory_limit_bytes = ndm_world_rank(world) == n - 1 ? limit : 0;
    m.seq_len = SEQ_LEN;
    must(ndm_context_create(&p, &o, &context));
    ndm_status status = ndm_model_create(context, "llama-tiny", NULL, &m, &model);
    *peak = ndm_device_memory(ndm_context_device(context)).peak_total_bytes;
    ndm_model_destroy(model);
    ndm_context_destroy(context);
    return status;
}

static void all_ranks_say_that_one_has_no_memory(void **state)
{
    const ndm_axis axes[] = {NDM_TP, NDM_DP_SHARD};

    (void)state;
    for (int a = 0; a < 2; a++) {
        int64_t whole, peak, failed = 0;
        ok_all(make(axes[a], 0, &whole));
        for (int64_t i = 1; i < LIMITS; i++) {
            ndm_status status = make(axes[a], whole * i / LIMITS, &peak);
            failed += status == NDM_ERR_MEMORY;
            check_all(status == NDM_ERR_MEMORY || status == NDM_OK); /* windows have no limit */
        }
        check_all(failed >= LIMITS / 2);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_ranks_say_that_one_has_no_memory),
    };

    return harness_run("engine_exhausted", tests);
}
