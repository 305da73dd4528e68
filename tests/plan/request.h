/* SPDX-License-Identifier: Apache-2.0 */
/* The plan that tests here vary: llama-1b on a machine that they load. */
#ifndef NDM_TESTS_PLAN_REQUEST_H
#define NDM_TESTS_PLAN_REQUEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/cost.h"
#include "train/plan.h"

static ndm_sim_machine machine;
static const ndm_sim_stack *stack;

typedef struct shape {
    int64_t replicate, shard, cp, tp;
} shape;

static inline ndm_plan_request request_of(const ndm_sim_machine *m, shape s)
{
    ndm_parallelism_config p = NDM_PARALLELISM_CONFIG_INIT;
    ndm_fsdp_config f = NDM_FSDP_CONFIG_INIT;
    ndm_model_options o = NDM_MODEL_OPTIONS_INIT;

    p.dp_replicate = s.replicate;
    p.dp_shard = s.shard;
    p.cp = s.cp;
    p.tp = s.tp;
    f.param_dtype = NDM_BF16;
    o.seq_len = 4096;
    o.micro_batch = 2;
    o.head_chunk = 2048;
    return (ndm_plan_request){
        .model = "llama-1b",
        .machine = m,
        .stack = stack,
        .ranks = s.replicate * s.shard * s.cp * s.tp,
        .parallelism = p,
        .fsdp = f,
        .options = o,
        .grad_accum = 2,
    };
}

static inline ndm_plan_result run(const ndm_plan_request *q)
{
    ndm_plan_result r;

    if (ndm_plan_run(q, &r) != NDM_OK)
        fail_msg("%s", ndm_error_message());
    return r;
}

#endif
