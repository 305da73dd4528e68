/* SPDX-License-Identifier: Apache-2.0 */
/* What the simulated world knows of a machine and of the software on it: plain numbers, read from
 * share/clusters (train/plan_profile.c) and kernels/stacks.def. */
#ifndef NDM_DEVICE_SIM_MACHINE_H
#define NDM_DEVICE_SIM_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

enum {
    NDM_SIM_GEMMS_MAX = 128,
    NDM_SIM_ATTENTIONS_MAX = 128,
    NDM_SIM_LINE_TERMS = 4,
    NDM_SIM_CURVES_MAX = 24,
    NDM_SIM_CURVE_POINTS_MAX = 24,
    NDM_SIM_OPS_MAX = 40
};

typedef enum ndm_sim_link { NDM_SIM_LINK_NODE, NDM_SIM_LINK_NETWORK, NDM_SIM_LINKS } ndm_sim_link;

/* A measured matrix product: its share of the peak. */
typedef struct ndm_sim_gemm {
    double m, n, k, share;
} ndm_sim_gemm;

/* A measured causal attention, forward. */
typedef struct ndm_sim_attention {
    double batch_heads, seq, share;
} ndm_sim_attention;

/* Times of a collective among `ranks` of one domain, ascending in bytes; bytes are of the whole
 * buffer: gathered, or the input of a reduce-scatter. */
typedef struct ndm_sim_curve {
    int op; /* ndm_collective */
    int64_t ranks;
    int n;
    double bytes[NDM_SIM_CURVE_POINTS_MAX], ns[NDM_SIM_CURVE_POINTS_MAX];
} ndm_sim_curve;

typedef struct ndm_sim_machine {
    char name[48], summary[128], unit[16]; /* unit: "GPU" or "rank" */

    /* a rank's device */
    double peak_flops;  /* dense, of the type that training computes in */
    double clock;       /* sustained over burst clock under load */
    double spread;      /* standard deviation of chips' clocks over their mean: a step waits for the
                           slowest */
    double gemm_share;  /* of the peak, where there is no table */
    double fp8_speedup; /* of matrix products over 16 bit; 0 = none */
    double memory_bytes;           /* usable */
    double memory_bw;              /* bytes/s */
    double memory_share;           /* of memory_bw that kernels reach */
    double host_bw;                /* bytes/s between host and device */
    double attention_share;        /* speed of the attention kernel over the table's */
    double attention_backward;     /* FLOP/s of its backward over the forward's; 0 = 0.8 */
    double op_bw[NDM_SIM_OPS_MAX]; /* bytes/s of kernels that are counted in bytes, by ndm_op; 0 =
                                      memory_bw * memory_share */
    double kernel_ns;              /* shortest kernel */
    double launch_ns;              /* host time of a kernel's launch */
    double contention;             /* compute beside a collective is slower by this share */
    int activation_bytes;          /* of an element of activations and their gradients */
    int64_t alloc_small,
        alloc_large; /* allocations are rounded up to these, from 1 MiB to the second */
    double reserved_share, reserved_bytes; /* reserved = share * rounded + bytes */
    double context_bytes; /* that the driver and libraries take beside the allocator */

    /* ranks */
    int64_t ranks_per_host, ranks_per_domain; /* domain: joined by the fast links */
    double link_bw;                           /* bytes/s and direction of a rank inside a domain */
    double network_bw;                        /* bytes/s and direction of a rank between domains */
    double network_share;                     /* of network_bw that a ring reaches */
    double hop_ns, step_ns; /* latency of a ring per domain that it crosses, per rank inside */
    double link_ns;         /* latency inside a domain, where there is no curve */
    double link_scale;      /* 1; for what-if: speed of the links over the curves' */
    double latency_scale;   /* 1; for what-if */
    double cores_per_host;  /* 0; else the device's numbers are of a core, memory is a host's, and
                               ranks of a host share both: see ndm_plan_share_host() */
    bool windows;           /* ranks of a host share memory: gathering in place is a barrier */

    ndm_sim_gemm gemms[NDM_SIM_GEMMS_MAX];
    int n_gemms;
    /* Instead of rows: time of a product over that of its multiply-adds at the peak, as a line in
     * 1, 1/m, 1/n and 1/k; of gradients of weights apart. All 0 = none. */
    double gemm_line[NDM_SIM_LINE_TERMS], gemm_grad_line[NDM_SIM_LINE_TERMS];
    ndm_sim_attention attentions[NDM_SIM_ATTENTIONS_MAX];
    int n_attentions;
    double attention_peak; /* FLOP/s that the attention table's shares are of; 0 = peak_flops */
    ndm_sim_curve curves[NDM_SIM_CURVES_MAX];
    int n_curves;
} ndm_sim_machine;

/* How the software computes what the engine asks for, where that is not as the engine's own kernels
 * do. Bytes are per element of activations unless they say otherwise; 0 = as the engine. */
typedef struct ndm_sim_stack {
    const char *name, *summary;
    double norm_bytes[2], act_bytes[2], gelu_bytes[2], rope_bytes[2]; /* forward, backward */
    double residual_bytes[2]; /* beside norms: residuals and dropout of a branch */
    double expand_bytes; /* key-value heads repeated for kernels without GQA, per query element */
    double join_bytes; /* sum of input gradients of matrices that are not one, per input element */
    double loss_bytes[2];  /* per logit: before the statistics, with the gradient */
    double accum_bytes;    /* per parameter and micro-batch, of products that add to gradients */
    double gradient_bytes; /* of an element of whole gradients in memory; 0 = 4 */
    double keep_bytes;     /* kept activations beyond the engine's, per token and layer of a rank */
    double loss_held_bytes; /* per logit, while the loss is made, beyond the engine's */
    double grad_bytes;      /* per parameter and micro-batch, beside the matrix products */
    bool grads_apart; /* matrix products write their own gradients: nothing is zeroed or read */
    double gather_copy_bytes; /* per gathered parameter, on the compute stream */
    double update_bytes;      /* of the optimizer, per local parameter */
    double
        tp_copy_bytes; /* per element of the whole at each tp collective, with several sequences */
    double launches;   /* kernels that one of the engine's stands for */
    double launch_share;    /* of the machine's launch_ns: graphs and fused launches cost less */
    bool unfused_attention; /* scores go through memory */
    double score_bytes[3];  /* per score: forward, backward, made again */
    double attention_share; /* speed of its attention kernel over the table's; 0 = the machine's */
    double again_gemms;     /* share of the forward's matrix products that backward makes again
                               beyond what the engine does */
    double overlap;         /* tp collectives hide behind this share of a matrix product */
    bool keeps_inputs;      /* of products, where the engine's backward makes them again */
    bool fp8;               /* matrix products of layers in 8 bit */
    bool fp8_gather;        /* weights and activations are gathered in 8 bit */
    double cast_bytes;      /* fp8: per element of operands */
    bool own_schedule;      /* what only the engine does: gradients are measured as they come, and
                               the first gathers of a step start in the one before */
} ndm_sim_stack;

#endif
