/* SPDX-License-Identifier: Apache-2.0 */
/* Facts about build and machine, told as JSON or as text. */
#include "cli/bench_facts.h"

#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "bench_git.h"
#include "cli/bench_peak.h"
#include "collectives/comm.h"
#include "mesh/machine.h"

/* Where a fact goes. */
typedef struct sink {
    ndm_json *json; /* NULL: text */
    FILE *out;
} sink;

static void tell(sink *s, const char *key, const char *value)
{
    if (s->json != NULL)
        ndm_json_key_string(s->json, key, value);
    else if (value != NULL)
        fprintf(s->out, "# %-14s %s\n", key, value);
}

static void tell_int(sink *s, const char *key, int64_t value)
{
    if (s->json != NULL)
        ndm_json_key_int(s->json, key, value);
    else
        fprintf(s->out, "# %-14s %" PRId64 "\n", key, value);
}

static void tell_double(sink *s, const char *key, double value)
{
    if (s->json != NULL)
        ndm_json_key_double(s->json, key, value);
    else
        fprintf(s->out, "# %-14s %.2f\n", key, value);
}

static void tell_bool(sink *s, const char *key, bool value)
{
    if (s->json != NULL)
        ndm_json_key_bool(s->json, key, value);
    else
        fprintf(s->out, "# %-14s %s\n", key, value ? "yes" : "no");
}

int64_t ndm_bench_cores(void)
{
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof set, &set) == 0)
        return CPU_COUNT(&set);
    return sysconf(_SC_NPROCESSORS_ONLN);
}

bool ndm_bench_oversubscribed(const ndm_bench_facts *facts)
{
    return facts->local_ranks * facts->threads > sysconf(_SC_NPROCESSORS_ONLN);
}

const char *ndm_bench_git(void)
{
    return NDM_GIT;
}

static void tell_libraries(sink *s)
{
    char text[256];

    ndm_world_mpi_version(text, sizeof text);
    tell(s, "mpi", text);
    tell(s, "hwloc", ndm_machine_library_version(text, sizeof text));
}

static void tell_machine(sink *s)
{
    ndm_machine *machine = NULL;
    char text[256];

    if (ndm_machine_open(NULL, &machine) != NDM_OK)
        return;
    tell(s, "cpu", ndm_machine_processor(machine));
    tell(s, "machine", ndm_machine_summary(machine, text, sizeof text));
    ndm_machine_close(machine);
}

static void tell_now(sink *s)
{
    char text[64] = "";
    struct utsname uts;
    struct tm tm;
    time_t now = time(NULL);
    double load[1] = {0.0};

    if (gmtime_r(&now, &tm) != NULL)
        strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &tm);
    tell(s, "date", text);
    if (uname(&uts) == 0)
        tell(s, "kernel", uts.release);
    if (getloadavg(load, 1) == 1)
        tell_double(s, "load_1m", load[0]); /* of others too: near 0 on a quiet machine */
}

static void tell_all(sink *s, const ndm_bench_facts *facts)
{
    tell(s, "version", NDM_VERSION);
    tell(s, "git", NDM_GIT);
    tell(s, "compiler", NDM_COMPILER);
    tell_libraries(s);
    tell_machine(s);
    tell(s, "vectors", ndm_burst_name());
    tell_int(s, "cores", ndm_bench_cores());
    tell_now(s);
    tell_int(s, "ranks", facts->ranks);
    tell_int(s, "threads", facts->threads);
    tell_bool(s, "oversubscribed", ndm_bench_oversubscribed(facts));
    if (facts->kernels != NULL)
        tell(s, "gemm", facts->kernels);
    if (facts->collectives != NULL)
        tell(s, "collectives", facts->collectives);
}

void ndm_bench_facts_json(const ndm_bench_facts *facts, ndm_json *json)
{
    tell_all(&(sink){.json = json}, facts);
}

void ndm_bench_facts_text(const ndm_bench_facts *facts, FILE *out)
{
    tell_all(&(sink){.out = out}, facts);
}
