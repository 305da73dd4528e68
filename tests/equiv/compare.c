/* SPDX-License-Identifier: Apache-2.0 */
/* How far two runs are apart. */
#include <math.h>
#include <string.h>

#include "equiv.h"

static double relative(double got, double want)
{
    double difference = fabs(got - want);

    return difference == 0.0 ? 0.0 : isnan(difference) ? INFINITY : difference / fabs(want);
}

/* |got - want| / |want - start| of a tensor: the error as a part of how far training moved it. */
static double update_error(const record *got, const record *want, const tensor *t)
{
    double error = 0.0, moved = 0.0;

    for (int64_t i = t->first; i < t->first + t->count; i++) {
        double e = (double)got->end[i] - (double)want->end[i];
        double m = (double)want->end[i] - (double)want->start[i];
        error += e * e;
        moved += m * m;
    }
    return isnan(error) ? INFINITY : error == 0.0 ? 0.0 : sqrt(error / moved);
}

errors compare(const record *got, const record *want)
{
    errors e = {0};

    for (int s = 0; s < STEPS; s++) {
        e.loss = fmax(e.loss, relative(got->loss[s], want->loss[s]));
        e.norm = fmax(e.norm, relative(got->norm[s], want->norm[s]));
        if (got->tokens[s] != want->tokens[s])
            e.loss = INFINITY;
    }
    if (got->n_tensors != want->n_tensors || got->total != want->total ||
        memcmp(got->start, want->start, (size_t)got->total * sizeof *got->start) != 0) {
        e.update = INFINITY; /* initial weights are the same numbers on every mesh */
        e.tensor = "initial weights";
        return e;
    }
    for (int64_t i = 0; i < got->n_tensors; i++) {
        const tensor *t = &got->tensors[i];
        double error = update_error(got, want, t);
        if (error >= e.update) {
            e.update = error;
            e.tensor = t->name;
        }
        for (int64_t j = t->first; t->matrix && j < t->first + t->count; j++)
            e.unchanged += got->end[j] == got->start[j];
    }
    return e;
}

bool same_bits(const record *a, const record *b)
{
    return memcmp(a->loss, b->loss, sizeof a->loss) == 0 &&
           memcmp(a->norm, b->norm, sizeof a->norm) == 0 &&
           memcmp(a->end, b->end, (size_t)a->total * sizeof *a->end) == 0;
}
