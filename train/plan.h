/* SPDX-License-Identifier: Apache-2.0 */
/* Plans: a run on machines that are not there. The engine trains as it always does, on the
 * simulated device. */
#ifndef NDM_TRAIN_PLAN_H
#define NDM_TRAIN_PLAN_H

#include "core/text.h"
#include "device/sim.h"
#include <ndmesh/ndmesh.h>

/* ---- profiles of clusters (plan_profile.c) -------------------------------------------------- */

/* A YAML file, or a name in the folder of clusters. NDM_ERR_CONFIG names the nearest;
 * NDM_ERR_FORMAT names file, line and key. */
NDM_MUST_USE ndm_status ndm_plan_load_cluster(const char *name, ndm_sim_machine *machine);

/* "clock=0.9": a number of the profile, by its key in the file. NDM_ERR_USAGE names the nearest. */
NDM_MUST_USE ndm_status ndm_plan_set(ndm_sim_machine *machine, ndm_sim_stack *stack,
                                     const char *assignment);

/* ---- one run (plan.c) ----------------------------------------------------------------------- */

typedef struct ndm_plan_request {
    const char *model; /* as ndm_model_create() */
    const ndm_sim_machine *machine;
    const ndm_sim_stack *stack;
    int64_t ranks, rank;
    ndm_parallelism_config parallelism;
    ndm_fsdp_config fsdp;
    ndm_model_options options;
    int64_t grad_accum;
    int64_t logits_bytes; /* where options.head_chunk is 0, of those that exist at a time on a
                             device that computes in 16 bit; 0 = the engine's own */
    bool refuse_large;    /* what does not fit fails with NDM_ERR_MEMORY as soon as that is known */
    bool brief;           /* what does not fit is not made again: for searches */
    const char *trace;    /* NULL, or where the second step's time line goes */
    const char *svg;      /* NULL, or where a picture of memory and time line goes */
} ndm_plan_request;

/* A communicator as the run used it in one step. */
typedef struct ndm_plan_comm {
    char name[64];
    int64_t ranks, domains, members;
    int64_t calls[NDM_COLLECTIVE_COUNT];
    double received[NDM_COLLECTIVE_COUNT];
} ndm_plan_comm;

enum { NDM_PLAN_COMMS_MAX = 16 };

typedef struct ndm_plan_result {
    int64_t mesh[NDM_AXIS_COUNT];
    int64_t parameters, tokens; /* of the model; of a step over all ranks */
    ndm_memory_stats memory;
    int64_t live, reserved,
        needed; /* peak bytes: asked for, held by the allocator, with the context */
    bool fits;
    double step_ns;
    ndm_sim_totals totals;
    double phase_ns[NDM_SIM_PHASE_COUNT];
    double exposed_ns[NDM_SIM_CAUSES];
    double tokens_per_s;                /* of all ranks */
    double model_flops, executed_flops; /* FLOP/s of a rank */
    double mfu, hfu;                    /* shares of the machine's peak */
    ndm_plan_comm comms[NDM_PLAN_COMMS_MAX];
    int n_comms;
    char strategies[128];
} ndm_plan_result;

/* Where a profile has cores_per_host: the numbers of one of so many ranks on so many hosts, which
 * share cores and memory. Once for a profile that was loaded; elsewhere it does nothing. */
void ndm_plan_share_host(ndm_sim_machine *machine, int64_t ranks, int64_t hosts);

NDM_MUST_USE ndm_status ndm_plan_run(const ndm_plan_request *request, ndm_plan_result *result);

/* Chrome's trace format, which Perfetto reads as well (plan_trace.c). */
NDM_MUST_USE ndm_status ndm_plan_write_trace(const ndm_sim_span *spans, int64_t n, double from,
                                             const char *path);

/* Bars of memory and a lane for each stream (plan_svg.c). */
NDM_MUST_USE ndm_status ndm_plan_write_svg(const ndm_plan_request *request,
                                           const ndm_plan_result *result, const ndm_sim_span *spans,
                                           int64_t n, double from, const char *path);

/* ---- many runs (plan_search.c) -------------------------------------------------------------- */

typedef struct ndm_plan_row {
    int64_t mesh[NDM_AXIS_COUNT], micro_batch;
    ndm_recompute recompute;
    bool fits, refused; /* refused: by the mesh or the model, whatever the memory */
    double tokens_per_s, step_ns, mfu;
    int64_t needed;
    char why[160]; /* where it does not run */
} ndm_plan_row;

typedef struct ndm_plan_rows {
    ndm_plan_row *items; /* [n], those that fit first, the fastest first, then those that memory is
                            too small for, the one that splits most first; free() */
    int64_t n, fit;
} ndm_plan_rows;

/* What is searched; what is not is as the request has it. */
typedef struct ndm_plan_open {
    bool mesh, micro_batch, recompute;
    int64_t fixed[NDM_AXIS_COUNT]; /* with mesh: sizes that are given all the same, 0 = open */
    int64_t micro_batch_max;       /* powers of two up to it */
} ndm_plan_open;

/* Sets the sizes of a mesh to those of a row. */
void ndm_plan_row_mesh(const ndm_plan_row *row, ndm_parallelism_config *parallelism);

NDM_MUST_USE ndm_status ndm_plan_search(const ndm_plan_request *request, const ndm_plan_open *open,
                                        ndm_plan_rows *rows);

/* Where no plan fits: the least double, fourfold, ... of the ranks for which one does; 0 if the
 * mesh has no size that is left open, if ranks share a host's memory (cores_per_host), or if none
 * up to 65536 does. */
NDM_MUST_USE ndm_status ndm_plan_ranks_that_fit(const ndm_plan_request *request,
                                                const ndm_plan_open *open, int64_t *ranks);

#endif
