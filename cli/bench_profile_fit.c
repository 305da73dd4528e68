/* SPDX-License-Identifier: Apache-2.0 */
/* The line that a profile draws through its matrix products: the time of one over that of its
 * multiply-adds at the peak is a + b / m + c / n + d / k, where b, c and d are for the passes over
 * the second operand, the first and the result. Least squares of the relative error, no term below
 * 0 (Lawson and Hanson, "Solving Least Squares Problems", 1974, chapter 23). */
#include "cli/bench_profile.h"

#include <math.h>
#include <string.h>

enum { TERMS = NDM_SIM_LINE_TERMS };

static void terms_of(const ndm_sim_gemm *g, double *x)
{
    x[0] = 1.0;
    x[1] = 1.0 / g->m;
    x[2] = 1.0 / g->n;
    x[3] = 1.0 / g->k;
}

/* Sums of the normal equations; a term that is not in use has an equation of its own: it is 0. */
static void normal_equations(const ndm_sim_gemm *gemms, int n, const bool *used,
                             double a[TERMS][TERMS + 1])
{
    double x[TERMS];

    memset(a, 0, sizeof(double[TERMS][TERMS + 1]));
    for (int i = 0; i < n; i++) {
        terms_of(&gemms[i], x);
        for (int r = 0; r < TERMS; r++)
            for (int c = 0; c < TERMS && used[r]; c++)
                a[r][c] += used[c] ? x[r] * x[c] * gemms[i].share * gemms[i].share : 0.0;
        for (int r = 0; r < TERMS; r++)
            a[r][TERMS] += used[r] ? x[r] * gemms[i].share : 0.0;
    }
    for (int r = 0; r < TERMS; r++)
        if (!used[r])
            a[r][r] = 1.0;
}

/* Gauss and Jordan; what the points do not tell apart is 0. */
static void solve(double a[TERMS][TERMS + 1], double *line)
{
    for (int i = 0; i < TERMS; i++) {
        double pivot = a[i][i];
        for (int c = 0; c <= TERMS; c++)
            a[i][c] = fabs(pivot) > 1e-12 ? a[i][c] / pivot : 0.0;
        for (int r = 0; r < TERMS; r++) {
            double times = r == i ? 0.0 : a[r][i];
            for (int c = 0; c <= TERMS && times != 0.0; c++)
                a[r][c] -= times * a[i][c];
        }
    }
    for (int i = 0; i < TERMS; i++)
        line[i] = a[i][TERMS];
}

void ndm_profile_fit(const ndm_sim_gemm *gemms, int n, double *line)
{
    bool used[TERMS] = {true, true, true, true};
    double a[TERMS][TERMS + 1];
    int worst = 0;

    while (worst >= 0) {
        normal_equations(gemms, n, used, a);
        solve(a, line);
        worst = -1;
        for (int i = 0; i < TERMS; i++)
            if (line[i] < 0.0 && (worst < 0 || line[i] < line[worst]))
                worst = i;
        if (worst >= 0)
            used[worst] = false;
    }
}
