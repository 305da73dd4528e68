/* SPDX-License-Identifier: Apache-2.0 */
/* The registry of strategies: built-in ones from strategies.def, then those that applications
 * register. */
#include <string.h>

#include "strategies/internal.h"

#define NDM_STRATEGY(symbol) extern const ndm_strategy symbol;
#include "strategies/strategies.def"
#undef NDM_STRATEGY

static const ndm_strategy *registry[NDM_STRATEGIES_MAX] = {
#define NDM_STRATEGY(symbol) &symbol,
#include "strategies/strategies.def"
#undef NDM_STRATEGY
};

bool ndm_strategy_is_built_in(const ndm_strategy *strategy)
{
    static const ndm_strategy *const built_in[] = {
#define NDM_STRATEGY(symbol) &symbol,
#include "strategies/strategies.def"
#undef NDM_STRATEGY
    };

    for (size_t i = 0; i < sizeof built_in / sizeof built_in[0]; i++)
        if (built_in[i] == strategy)
            return true;
    return false;
}

bool ndm_context_reduces_alone(const ndm_context *context)
{
    bool alone = !context->device->others_schedule;

    for (int64_t i = 0; i < context->n_strategies; i++)
        alone = alone && ndm_strategy_is_built_in(context->strategies[i]);
    return alone;
}

const ndm_strategy *ndm_strategy_at(int64_t i)
{
    return i >= 0 && i < NDM_STRATEGIES_MAX ? registry[i] : NULL;
}

ndm_status ndm_strategy_register(const ndm_strategy *strategy)
{
    int i = 0;

    if (!strategy || !strategy->name)
        NDM_FAIL(NDM_ERR_USAGE, "a strategy needs a name");
    for (; i < NDM_STRATEGIES_MAX && registry[i]; i++)
        if (strcmp(registry[i]->name, strategy->name) == 0)
            NDM_FAIL(NDM_ERR_USAGE, "a strategy named %s is registered already", strategy->name);
    if (i == NDM_STRATEGIES_MAX)
        NDM_FAIL(NDM_ERR_USAGE, "strategy %s: the registry holds %d and is full", strategy->name,
                 i);
    registry[i] = strategy;
    return NDM_OK;
}
