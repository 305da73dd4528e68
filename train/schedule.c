/* SPDX-License-Identifier: Apache-2.0 */
/* Learning-rate schedules.
 *
 *   step <= warmup:  lr * step / warmup
 *   after it:        lr * (1 - (1 - min_lr_ratio) * d(x)),  x = (step - warmup) / (steps - warmup)
 *   (a run of fewer steps than warmup ends before it)
 *                    d = 0 (constant), x (linear), (1 - cos(pi x)) / 2 (cosine) */
#include "train/schedule.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>

#include "core/text.h"

static const char *const names[] = {"constant", "linear", "cosine"};

ndm_status ndm_schedule_parse(const char *name, ndm_schedule_kind *kind)
{
    const char *near;

    for (size_t i = 0; i < 3; i++) {
        if (ndm_text_name_equal(names[i], name)) {
            *kind = (ndm_schedule_kind)i;
            return NDM_OK;
        }
    }
    near = ndm_text_nearest(name, names, 3);
    NDM_FAIL(NDM_ERR_USAGE, "lr schedule '%s' is not constant, linear or cosine%s%s%s", name,
             near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}

ndm_status ndm_schedule_check(const ndm_schedule *s)
{
    if ((unsigned)s->kind > NDM_SCHEDULE_COSINE)
        NDM_FAIL(NDM_ERR_CONFIG, "lr_schedule=%d; constant, linear and cosine are known", s->kind);
    if (!(s->lr >= 0) || !isfinite(s->lr))
        NDM_FAIL(NDM_ERR_CONFIG, "lr is %g, must be a finite number and not negative",
                 ndm_text_unsigned_nan(s->lr));
    if (!(s->min_lr_ratio >= 0) || s->min_lr_ratio > 1)
        NDM_FAIL(NDM_ERR_CONFIG, "min_lr_ratio is %g, must be 0 to 1", s->min_lr_ratio);
    if (s->warmup < 0)
        NDM_FAIL(NDM_ERR_CONFIG, "warmup is %" PRId64 " steps, must not be negative", s->warmup);
    return NDM_OK;
}

static double decline(ndm_schedule_kind kind, double x)
{
    switch (kind) {
    case NDM_SCHEDULE_LINEAR:
        return x;
    case NDM_SCHEDULE_COSINE:
        return 0.5 - 0.5 * cos(M_PI * x);
    default:
        return 0;
    }
}

double ndm_schedule_lr(const ndm_schedule *s, int64_t step)
{
    double x;

    if (step <= s->warmup)
        return s->lr * ((double)step / (double)s->warmup);
    if (step > s->steps)
        step = s->steps;
    x = s->steps > s->warmup ? (double)(step - s->warmup) / (double)(s->steps - s->warmup) : 1;
    return s->lr * (1 - (1 - s->min_lr_ratio) * decline(s->kind, x));
}
