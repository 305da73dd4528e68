/* SPDX-License-Identifier: Apache-2.0 */
/* Times of collectives: measured curves inside a domain of fast links, a ring model between domains
 * (Hu et al., "Demystifying NCCL", 2025, on its protocols). */
#include "collectives/sim_cost.h"

#include <math.h>
#include <stddef.h>

/* NCCL's LL128 protocol against its simple one: less bandwidth, less latency. A tree sums in
 * twice the depth, at a little less than a ring's bandwidth. */
static const double LL128_BANDWIDTH = 0.765, LL128_LATENCY = 1.0 / 2.1, TREE_BANDWIDTH = 0.9;

/* ---- inside a domain ---------------------------------------------------------------------- */

/* Log-log between points; as the first below them; beyond the last at its bandwidth. */
static double curve_at(const ndm_sim_curve *c, double bytes)
{
    int i = 1;

    if (bytes <= c->bytes[0] || c->n == 1)
        return c->ns[0];
    if (bytes >= c->bytes[c->n - 1])
        return c->ns[c->n - 1] * bytes / c->bytes[c->n - 1];
    while (c->bytes[i] < bytes)
        i++;
    double t = log(bytes / c->bytes[i - 1]) / log(c->bytes[i] / c->bytes[i - 1]);
    return c->ns[i - 1] * pow(c->ns[i] / c->ns[i - 1], t);
}

/* Of latency and work, what-if factors change each apart. */
static double curve_scaled(const ndm_sim_machine *m, const ndm_sim_curve *c, double bytes)
{
    double all = curve_at(c, bytes), latency = c->ns[0];

    return latency * m->latency_scale + (all - latency) / m->link_scale;
}

/* Curves of an operation with the most ranks up to n, and the fewest from n on. */
static void find_curves(const ndm_sim_machine *m, ndm_collective kind, int64_t n,
                        const ndm_sim_curve **below, const ndm_sim_curve **above)
{
    *below = *above = NULL;
    for (int i = 0; i < m->n_curves; i++) {
        const ndm_sim_curve *c = &m->curves[i];
        if (c->op != (int)kind)
            continue;
        if (c->ranks <= n && (!*below || c->ranks > (*below)->ranks))
            *below = c;
        if (c->ranks >= n && (!*above || c->ranks < (*above)->ranks))
            *above = c;
    }
}

/* Bytes on the busiest link over bytes of the buffer. */
static double traffic(ndm_collective kind, int64_t n)
{
    double share = (double)(n - 1) / (double)n;

    switch (kind) {
    case NDM_ALL_REDUCE:
        return 2.0 * share;
    case NDM_SEND_RECV:
    case NDM_BROADCAST:
        return 1.0;
    default:
        return share;
    }
}

/* Curves are of one group alone; others of the host do the same at the same time, on its cores. */
static double crowd(const ndm_sim_machine *m, int64_t n)
{
    double alone = (double)n > m->cores_per_host ? (double)n : m->cores_per_host;
    double all = (double)m->ranks_per_host / alone;

    return m->cores_per_host > 0.0 && all > 1.0 ? all : 1.0;
}

static double group_ns(const ndm_sim_machine *m, ndm_collective kind, int64_t n, double bytes)
{
    const ndm_sim_curve *below, *above;

    find_curves(m, kind, n, &below, &above);
    if (!below && !above)
        return m->link_ns * m->latency_scale * (double)(kind == NDM_SEND_RECV ? 1 : n - 1) +
               traffic(kind, n) * bytes / (m->link_bw * m->link_scale) * 1e9;
    if (!below || below == above)
        return curve_scaled(m, above, bytes);
    double low = curve_scaled(m, below, bytes);
    if (!above)
        return low * traffic(kind, n) / traffic(kind, below->ranks) +
               m->step_ns * m->latency_scale * (double)(n - below->ranks);
    double high = curve_scaled(m, above, bytes);
    double t = log((double)n / (double)below->ranks) /
               log((double)above->ranks / (double)below->ranks);
    return low + t * (high - low);
}

/* With more ranks than cores, a rendezvous lasts until each rank of the group has had its turn,
 * which is as long as one of all ranks of the host takes, however few they are. */
static double turns_ns(const ndm_sim_machine *m, ndm_collective kind, int64_t n)
{
    if (m->cores_per_host <= 0.0 || (double)m->ranks_per_host <= m->cores_per_host ||
        n >= m->ranks_per_host)
        return 0.0;
    double more = group_ns(m, kind, m->ranks_per_host, 0.0) -
                  group_ns(m, kind, n, 0.0) * crowd(m, n);
    return more > 0.0 ? more : 0.0;
}

static double domain_ns(const ndm_sim_machine *m, ndm_collective kind, int64_t n, double bytes)
{
    return group_ns(m, kind, n, bytes) * crowd(m, n) + turns_ns(m, kind, n);
}

/* ---- between domains ---------------------------------------------------------------------- */

/* Bytes/s that the ranks of a domain pass on together: of the one that has the fewest. */
static double bandwidth(const ndm_sim_machine *m, const ndm_sim_group *g)
{
    const double large = (double)(1ll << 30);
    double network = (double)g->fewest * m->network_bw * m->network_share;

    if (g->members == 1)
        return network;
    double inside = traffic(NDM_ALL_GATHER, g->members) * large /
                    domain_ns(m, NDM_ALL_GATHER, g->members, large) * 1e9;
    return inside < network ? inside : network;
}

static double ring_ns(const ndm_sim_machine *m, const ndm_sim_group *g, ndm_collective kind,
                      double bytes)
{
    double rounds = kind == NDM_ALL_REDUCE ? 2.0 : 1.0;
    double work = traffic(kind, g->ranks) * bytes / bandwidth(m, g) * 1e9;
    double latency = rounds * m->latency_scale *
                     (m->hop_ns * (double)g->domains +
                      m->step_ns * (double)(g->ranks - g->domains));
    double simple = work + latency, ll128 = work / LL128_BANDWIDTH + latency * LL128_LATENCY;
    double best = simple < ll128 ? simple : ll128;

    if (kind != NDM_ALL_REDUCE)
        return best;
    double tree = work / TREE_BANDWIDTH + 2.0 * m->latency_scale *
                                              (m->hop_ns * ceil(log2((double)g->domains)) +
                                               m->step_ns * (double)g->members);
    return tree < best ? tree : best;
}

static double network_ns(const ndm_sim_machine *m, const ndm_sim_group *g, ndm_collective kind,
                         double bytes)
{
    double rank = m->network_bw * m->network_share;

    switch (kind) {
    case NDM_SEND_RECV:
        return bytes / rank * 1e9 + m->hop_ns * m->latency_scale;
    case NDM_ALL_TO_ALL:
        return bytes * (double)(g->ranks - g->fewest) / (double)g->ranks / rank * 1e9 +
               m->latency_scale * (m->hop_ns + m->step_ns * (double)(g->ranks - 1));
    default:
        return ring_ns(m, g, kind, bytes);
    }
}

double ndm_sim_collective_ns(const ndm_sim_machine *machine, const ndm_sim_group *group,
                             ndm_collective kind, double bytes)
{
    if (group->ranks == 1)
        return 0.0;
    if (kind == NDM_BARRIER) {
        kind = NDM_ALL_REDUCE;
        bytes = 8.0;
    }
    return group->domains == 1 ? domain_ns(machine, kind, group->ranks, bytes)
                               : network_ns(machine, group, kind, bytes);
}

ndm_sim_group ndm_sim_place(const int64_t *ranks, int64_t n, int64_t per_domain)
{
    ndm_sim_group g = {.ranks = n};
    int64_t last = -1, members = 0;

    for (int64_t i = 0; i < n; i++) {
        int64_t domain = ranks[i] / per_domain;
        if (domain != last && members > 0 && (g.fewest == 0 || members < g.fewest))
            g.fewest = members;
        members = domain == last ? members + 1 : 1;
        g.domains += domain != last;
        g.members = members > g.members ? members : g.members;
        last = domain;
    }
    if (g.fewest == 0 || members < g.fewest)
        g.fewest = members;
    return g;
}
