/* SPDX-License-Identifier: Apache-2.0 */
/* Prices of kernels in the simulated world, from their arguments, a machine and a stack. */
#ifndef NDM_KERNELS_COST_H
#define NDM_KERNELS_COST_H

#include "device/sim.h"

/* An ndm_sim_price_fn. */
void ndm_cost_price(const ndm_sim_options *options, ndm_sim_state *state, const ndm_launch *launch,
                    ndm_sim_charge *charge);

/* Shares of the peak (cost_table.c): nearest measured shapes, or the line through them; `grad`: of
 * a weight. */
double ndm_cost_gemm_share(const ndm_sim_machine *machine, double m, double n, double k, bool grad);
double ndm_cost_attention_share(const ndm_sim_machine *machine, double batch_heads, double seq);

/* Stacks by name, from kernels/stacks.def; NDM_ERR_USAGE names the nearest. */
NDM_MUST_USE ndm_status ndm_cost_stack(const char *name, ndm_sim_stack *stack);
const ndm_sim_stack *ndm_cost_stack_at(int i); /* NULL after the last */

#endif
