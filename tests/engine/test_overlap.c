/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions that run beside the backward: a unit's gradients do not take the memory of those that
 * are being reduced, and yet two arrays are enough. */
#include "strategies/internal.h"
#include "tests/mpi/harness.h"

enum { UNITS = 4, NUMEL = 640, HELD_POLLS = 5000 };

/* Arrays of the units' gradients, in the order of a backward. */
static void walk_back(ndm_context *context, ndm_unit *const *units, const float **arrays)
{
    ndm_stream *stream = ndm_context_stream(context);

    for (int i = UNITS - 1; i >= 0; i--) {
        must(ndm_unit_grads_begin(units[i], stream));
        arrays[i] = ndm_unit_grad(units[i], 0);
        must(ndm_unit_reduce_grads(units[i], stream));
    }
}

static void two_arrays_take_turns(void **state)
{
    const ndm_param_spec spec = {.name = "p", .ndim = 1, .shape = {NUMEL}};
    ndm_parallelism_config p = NDM_PARALLELISM_CONFIG_INIT;
    ndm_context_options o = NDM_CONTEXT_OPTIONS_INIT;
    const float *first[UNITS], *second[UNITS];
    ndm_unit *units[UNITS];
    ndm_context *context;

    (void)state;
    p.dp_shard = ndm_world_size(world);
    o.threads = 1;
    must(ndm_context_create(&p, &o, &context));
    ndm_comms_delay(context->comms, HELD_POLLS, 1);
    for (int i = 0; i < UNITS; i++)
        must(ndm_unit_create(context, "unit", &spec, 1, NULL, &units[i]));
    ndm_context_micro_batch(context, 0, 2);
    walk_back(context, units, first);
    ndm_context_micro_batch(context, 1, 2);
    walk_back(context, units, second);
    check_all(first[3] != first[2] && second[3] != second[2]);
    if (ndm_world_size(world) > 1) /* alone, a unit's slice is the whole */
        check_all(first[1] == first[3] && first[0] == first[2]);
    for (int i = 0; i < UNITS; i++)
        ndm_unit_destroy(units[i]);
    ndm_context_destroy(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(two_arrays_take_turns)};

    return harness_run("overlap", tests);
}
