/* SPDX-License-Identifier: Apache-2.0 */
/* `ndmesh bench profile`: measures this machine and writes what `ndmesh plan` wants to know of it,
 * a file as those of share/clusters. */
#include "cli/bench_profile.h"

#include <string.h>
#include <unistd.h>

#include "cli/bench.h"
#include "cli/bench_others.h"
#include "core/file.h"
#include "core/log.h"
#include "kernels/kernels.h"

static const double GIB = 1073741824.0, MUCH = 0.03;

static void write_numbers(const ndm_sim_machine *m, ndm_buffer *out)
{
    ndm_buffer_printf(out,
                      "peak_tflops: %.5g       # fp32 fused multiply-adds of a core\n"
                      "clock: 1\n"
                      "memory_gib: %.4g        # of the host\n"
                      "memory_gbps: %.4g       # copies of a core: read and written\n"
                      "memory_share: 1\n"
                      "host_gbps: %.4g\n"
                      "attention_share: 1\n"
                      "attention_backward: %.4g\n"
                      "kernel_us: %.4g\n"
                      "launch_us: %.4g\n",
                      m->peak_flops * 1e-12, m->memory_bytes / GIB, m->memory_bw * 1e-9,
                      m->host_bw * 1e-9, m->attention_backward, m->kernel_ns * 1e-3,
                      m->launch_ns * 1e-3);
    ndm_buffer_printf(out,
                      "contention: 1000000     # ranks move their data themselves: no kernel runs "
                      "beside a collective\n"
                      "activation_bytes: 4\n"
                      "reserved_share: 1\n"
                      "reserved_gib: 0\n"
                      "context_gib: 0.05\n"
                      "cores_per_host: %.0f\n"
                      "ranks_per_host: %.0f\n"
                      "ranks_per_domain: %.0f\n"
                      "link_gbps: %.4g\n"
                      "network_gbps: 1\n"
                      "network_share: 0.8\n"
                      "hop_us: 30\n"
                      "step_us: 2\n"
                      "link_us: 2\n"
                      "windows: true\n",
                      m->cores_per_host, m->cores_per_host, m->cores_per_host,
                      m->memory_bw * 0.5e-9);
}

static void write_kernels(const ndm_sim_machine *m, ndm_buffer *out)
{
    ndm_buffer_puts(out, "# GB/s of a core, bytes as the cost model counts them\nkernels:\n");
    for (int op = 0; op < NDM_OP_COUNT; op++)
        if (m->op_bw[op] > 0.0)
            ndm_buffer_printf(out, "  %s: %.4g\n", ndm_op_name((ndm_op)op), m->op_bw[op] * 1e-9);
}

static void write_line(const double *line, const char *name, ndm_buffer *out)
{
    static const char *const terms[NDM_SIM_LINE_TERMS] = {"", "_m", "_n", "_k"};

    for (int i = 0; i < NDM_SIM_LINE_TERMS; i++)
        ndm_buffer_printf(out, "%s%s: %.4g\n", name, terms[i], line[i]);
}

static void write_tables(const ndm_sim_machine *m, ndm_buffer *out)
{
    ndm_buffer_puts(out, "# matrix products: time over that at the peak, by 1, 1/m, 1/n and 1/k\n");
    write_line(m->gemm_line, "gemm_time", out);
    write_line(m->gemm_grad_line, "gemm_grad_time", out);
    ndm_buffer_puts(out,
                    "# causal attention: batch * heads, tokens, share of the peak\nattention:\n");
    for (int i = 0; i < m->n_attentions; i++)
        ndm_buffer_printf(out, "- [%.0f, %.0f, %.4f]\n", m->attentions[i].batch_heads,
                          m->attentions[i].seq, m->attentions[i].share);
}

static void write_curve(const ndm_sim_curve *c, ndm_buffer *out)
{
    ndm_buffer_printf(out, "    %lld: [", (long long)c->ranks);
    for (int i = 0; i < c->n; i++)
        ndm_buffer_printf(out, "%s[%.0f, %.4g]", i ? ", " : "", c->bytes[i], c->ns[i] * 1e-3);
    ndm_buffer_puts(out, "]\n");
}

static void write_curves(const ndm_sim_machine *m, ndm_buffer *out)
{
    ndm_buffer_puts(out, "# bytes, us\ncollectives:\n");
    for (int op = 0; op < NDM_COLLECTIVE_COUNT; op++) {
        bool first = true;
        for (int i = 0; i < m->n_curves; i++) {
            if (m->curves[i].op != op)
                continue;
            if (first)
                ndm_buffer_printf(out, "  %s:\n", ndm_collective_name((ndm_collective)op));
            first = false;
            write_curve(&m->curves[i], out);
        }
    }
}

static ndm_status write_profile(const ndm_sim_machine *m, const char *path)
{
    ndm_buffer out = {0};

    ndm_buffer_printf(&out,
                      "# SPDX-License-Identifier: Apache-2.0\n"
                      "# Written by `ndmesh bench profile`.\n"
                      "name: this-machine\n"
                      "summary: %.0f cores as ndmesh bench profile measured them, fp32\n"
                      "unit: rank\n",
                      m->cores_per_host);
    write_numbers(m, &out);
    write_kernels(m, &out);
    write_tables(m, &out);
    if (m->n_curves > 0)
        write_curves(m, &out);
    ndm_status status = ndm_buffer_status(&out);
    if (status == NDM_OK && path)
        status = ndm_file_write_atomic(path, out.data, out.length);
    else if (status == NDM_OK)
        fwrite(out.data, 1, out.length, stdout);
    ndm_buffer_finish(&out);
    return status;
}

ndm_status ndm_bench_profile(const ndm_options *options)
{
    static ndm_sim_machine machine; /* tables and all: large; one benchmark a process */
    ndm_profile_effort effort = {.rounds = (int)ndm_option_int64(options, "rounds"),
                                 .min_ms = ndm_option_double(options, "min-ms"),
                                 .collective = ndm_option_int64(options, "iters"),
                                 .ranks_max = ndm_option_int64(options, "profile-ranks")};
    int cores = (int)ndm_bench_cores();
    ndm_bench_others others;

    machine.cores_per_host = cores;
    machine.memory_bytes = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    ndm_bench_others_start(&others);
    NDM_TRY(ndm_profile_collectives(&effort, &machine));
    NDM_TRY(ndm_profile_kernels(&effort, cores, &machine));
    double share = ndm_bench_others_share(&others);
    if (share > MUCH)
        ndm_log(NDM_LOG_WARNING, "bench",
                "other programs took %.0f %% of the processors: measure the profile again without "
                "them",
                share * 100.0);
    return write_profile(&machine, ndm_option_string(options, "out"));
}
