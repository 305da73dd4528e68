/* SPDX-License-Identifier: Apache-2.0 */
/* Reads what is known of a cluster: share/clusters/NAME.yaml. Numbers by key, and tables of
 * measured matrix products, attentions and collectives, which a file may take from another. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/yaml_read.h"
#include "kernels/kernels.h"
#include "train/plan.h"

typedef enum kind { REAL, WHOLE, SMALL, YES } kind;

/* A number of a profile: where it goes, the unit that the file gives it in, and its range
 * there. */
typedef struct field {
    const char *key;
    kind kind;
    size_t offset;
    double unit;
    bool required;
    double least, most;
} field;

#define LARGEST 1e9
#define ANY 0, LARGEST
#define SIGNED -LARGEST, LARGEST /* against the engine's own */
#define RATE 1e-6, LARGEST       /* what times are divided by */
#define SHARE 0.01, 1

static const double ROW_LEAST = 1e-9, ROW_MOST = 1e15; /* of a table */

#define MACHINE(member) offsetof(ndm_sim_machine, member)

static const field machine_fields[] = {
    {"peak_tflops", REAL, MACHINE(peak_flops), 1e12, true, RATE},
    {"clock", REAL, MACHINE(clock), 1, true, SHARE},
    {"spread", REAL, MACHINE(spread), 1, false, 0, 0.5},
    {"gemm_share", REAL, MACHINE(gemm_share), 1, false, 0, 1},
    {"gemm_time", REAL, MACHINE(gemm_line[0]), 1, false, ANY},
    {"gemm_time_m", REAL, MACHINE(gemm_line[1]), 1, false, ANY},
    {"gemm_time_n", REAL, MACHINE(gemm_line[2]), 1, false, ANY},
    {"gemm_time_k", REAL, MACHINE(gemm_line[3]), 1, false, ANY},
    {"gemm_grad_time", REAL, MACHINE(gemm_grad_line[0]), 1, false, ANY},
    {"gemm_grad_time_m", REAL, MACHINE(gemm_grad_line[1]), 1, false, ANY},
    {"gemm_grad_time_n", REAL, MACHINE(gemm_grad_line[2]), 1, false, ANY},
    {"gemm_grad_time_k", REAL, MACHINE(gemm_grad_line[3]), 1, false, ANY},
    {"fp8_speedup", REAL, MACHINE(fp8_speedup), 1, false, ANY},
    {"memory_gib", REAL, MACHINE(memory_bytes), 1073741824.0, true, RATE},
    {"memory_gbps", REAL, MACHINE(memory_bw), 1e9, true, RATE},
    {"memory_share", REAL, MACHINE(memory_share), 1, true, SHARE},
    {"host_gbps", REAL, MACHINE(host_bw), 1e9, true, RATE},
    {"attention_share", REAL, MACHINE(attention_share), 1, true, 0.01, 10},
    {"attention_backward", REAL, MACHINE(attention_backward), 1, false, ANY},
    {"cores_per_host", REAL, MACHINE(cores_per_host), 1, false, ANY},
    {"kernel_us", REAL, MACHINE(kernel_ns), 1e3, true, ANY},
    {"launch_us", REAL, MACHINE(launch_ns), 1e3, true, ANY},
    {"contention", REAL, MACHINE(contention), 1, true, ANY},
    {"activation_bytes", SMALL, MACHINE(activation_bytes), 1, true, 1, 8},
    {"alloc_small", WHOLE, MACHINE(alloc_small), 1, false, ANY},
    {"alloc_large", WHOLE, MACHINE(alloc_large), 1, false, ANY},
    {"reserved_share", REAL, MACHINE(reserved_share), 1, true, 0.01, 100},
    {"reserved_gib", REAL, MACHINE(reserved_bytes), 1073741824.0, true, ANY},
    {"context_gib", REAL, MACHINE(context_bytes), 1073741824.0, true, ANY},
    {"ranks_per_host", WHOLE, MACHINE(ranks_per_host), 1, true, 1, LARGEST},
    {"ranks_per_domain", WHOLE, MACHINE(ranks_per_domain), 1, true, 1, LARGEST},
    {"link_gbps", REAL, MACHINE(link_bw), 1e9, true, RATE},
    {"network_gbps", REAL, MACHINE(network_bw), 1e9, true, RATE},
    {"network_share", REAL, MACHINE(network_share), 1, true, SHARE},
    {"hop_us", REAL, MACHINE(hop_ns), 1e3, true, ANY},
    {"step_us", REAL, MACHINE(step_ns), 1e3, true, ANY},
    {"link_us", REAL, MACHINE(link_ns), 1e3, true, ANY},
    {"link_scale", REAL, MACHINE(link_scale), 1, false, RATE},
    {"latency_scale", REAL, MACHINE(latency_scale), 1, false, ANY},
    {"windows", YES, MACHINE(windows), 1, false, ANY},
};

#define STACK(member) offsetof(ndm_sim_stack, member)
static const field stack_fields[] = {
    {"stack.attention_share", REAL, STACK(attention_share), 1, false, ANY},
    {"stack.again_gemms", REAL, STACK(again_gemms), 1, false, SIGNED},
    {"stack.score_backward_bytes", REAL, STACK(score_bytes[1]), 1, false, SIGNED},
    {"stack.overlap", REAL, STACK(overlap), 1, false, 0, 1},
    {"stack.keeps_inputs", YES, STACK(keeps_inputs), 1, false, SIGNED},
    {"stack.fp8", YES, STACK(fp8), 1, false, SIGNED},
    {"stack.fp8_gather", YES, STACK(fp8_gather), 1, false, SIGNED},
    {"stack.tp_copy_bytes", REAL, STACK(tp_copy_bytes), 1, false, SIGNED},
    {"stack.join_bytes", REAL, STACK(join_bytes), 1, false, SIGNED},
    {"stack.expand_bytes", REAL, STACK(expand_bytes), 1, false, SIGNED},
    {"stack.accum_bytes", REAL, STACK(accum_bytes), 1, false, SIGNED},
    {"stack.gradient_bytes", REAL, STACK(gradient_bytes), 1, false, SIGNED},
    {"stack.keep_bytes", REAL, STACK(keep_bytes), 1, false, SIGNED},
    {"stack.grad_bytes", REAL, STACK(grad_bytes), 1, false, SIGNED},
    {"stack.gather_copy_bytes", REAL, STACK(gather_copy_bytes), 1, false, SIGNED},
    {"stack.launches", REAL, STACK(launches), 1, false, ANY},
};

enum { MACHINE_FIELDS = sizeof machine_fields / sizeof *machine_fields };
enum { STACK_FIELDS = sizeof stack_fields / sizeof *stack_fields };

static void store(void *base, const field *f, double value)
{
    char *at = (char *)base + f->offset;

    switch (f->kind) {
    case REAL:
        *(double *)(void *)at = value * f->unit;
        break;
    case WHOLE:
        *(int64_t *)(void *)at = (int64_t)value;
        break;
    case SMALL:
        *(int *)(void *)at = (int)value;
        break;
    case YES:
        *(bool *)(void *)at = value != 0.0;
        break;
    }
}

static bool read_number(const char *text, double *value)
{
    char *end;
    bool yes;

    if (!text || !*text)
        return false;
    if (ndm_text_to_bool(text, &yes)) {
        *value = yes;
        return true;
    }
    *value = ndm_text_to_double(text, &end);
    return *end == '\0' && isfinite(*value);
}

/* Writes "0.01 to 1" where the value is outside of that. */
static bool in_range(const field *f, double value, char text[64])
{
    snprintf(text, 64, "%g to %g", f->least, f->most);
    return value >= f->least && value <= f->most;
}

static const field *find_field(const field *fields, int n, const char *key)
{
    for (int i = 0; i < n; i++)
        if (strcmp(fields[i].key, key) == 0)
            return &fields[i];
    return NULL;
}

static ndm_status refuse_key(const char *key, size_t length)
{
    const char *names[MACHINE_FIELDS + STACK_FIELDS];
    char text[64];

    for (int i = 0; i < MACHINE_FIELDS; i++)
        names[i] = machine_fields[i].key;
    for (int i = 0; i < STACK_FIELDS; i++)
        names[MACHINE_FIELDS + i] = stack_fields[i].key;
    snprintf(text, sizeof text, "%.*s", (int)length, key);
    const char *near = ndm_text_nearest(text, names, MACHINE_FIELDS + STACK_FIELDS);
    NDM_FAIL(NDM_ERR_USAGE, "plan: a profile has no number '%s'%s%s%s", text,
             near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}

ndm_status ndm_plan_set(ndm_sim_machine *machine, ndm_sim_stack *stack, const char *assignment)
{
    const char *equal = strchr(assignment, '=');
    char key[64], range[64];
    double value;

    if (!equal || equal - assignment >= (int)sizeof key || !read_number(equal + 1, &value))
        NDM_FAIL(NDM_ERR_USAGE, "plan: '%s' is not KEY=NUMBER", assignment);
    snprintf(key, sizeof key, "%.*s", (int)(equal - assignment), assignment);
    const field *of_machine = find_field(machine_fields, MACHINE_FIELDS, key);
    const field *f = of_machine ? of_machine : find_field(stack_fields, STACK_FIELDS, key);
    if (!f)
        return refuse_key(assignment, (size_t)(equal - assignment));
    if (!in_range(f, value, range))
        NDM_FAIL(NDM_ERR_USAGE, "plan: '%s': %s is %s", assignment, key, range);
    store(of_machine ? (void *)machine : (void *)stack, f, value);
    return NDM_OK;
}

/* ---- a file ------------------------------------------------------------------------------- */

typedef struct reader {
    yaml_document_t document;
    const char *path;
    ndm_sim_machine *machine;
    bool seen[MACHINE_FIELDS];
    bool tables_only; /* of a file that another takes its tables from */
} reader;

static ndm_status load_file(const char *path, ndm_sim_machine *machine, bool tables_only);

static ndm_status read_entry(const reader *r, const yaml_node_t *node, const char *text,
                             double *value)
{
    if (!read_number(text, value) || *value < ROW_LEAST || *value > ROW_MOST)
        NDM_FAIL(NDM_ERR_FORMAT, "%s:%d: a number of %g to %g is expected", r->path,
                 ndm_yaml_line(node), ROW_LEAST, ROW_MOST);
    return NDM_OK;
}

/* A row of n numbers. */
static ndm_status read_row(reader *r, yaml_node_t *node, double *row, int n)
{
    int i = 0;

    if (node->type != YAML_SEQUENCE_NODE ||
        node->data.sequence.items.top - node->data.sequence.items.start != n)
        NDM_FAIL(NDM_ERR_FORMAT, "%s:%d: a row of %d numbers is expected", r->path,
                 ndm_yaml_line(node), n);
    for (yaml_node_item_t *at = node->data.sequence.items.start; i < n; at++, i++)
        NDM_TRY(
            read_entry(r, node, ndm_yaml_text(yaml_document_get_node(&r->document, *at)), &row[i]));
    return NDM_OK;
}

static int row_count(const yaml_node_t *node)
{
    return node->type == YAML_SEQUENCE_NODE
               ? (int)(node->data.sequence.items.top - node->data.sequence.items.start)
               : -1;
}

static ndm_status check_rows(const reader *r, const yaml_node_t *node, int most)
{
    int n = row_count(node);

    if (n < 1 || n > most)
        NDM_FAIL(NDM_ERR_FORMAT, "%s:%d: a list of 1 to %d rows is expected", r->path,
                 ndm_yaml_line(node), most);
    return NDM_OK;
}

static yaml_node_t *row_at(reader *r, const yaml_node_t *node, int i)
{
    return yaml_document_get_node(&r->document, node->data.sequence.items.start[i]);
}

static ndm_status read_gemms(reader *r, yaml_node_t *node)
{
    NDM_TRY(check_rows(r, node, NDM_SIM_GEMMS_MAX));
    for (int i = 0; i < row_count(node); i++) {
        double row[4];
        NDM_TRY(read_row(r, row_at(r, node, i), row, 4));
        r->machine->gemms[i] = (ndm_sim_gemm){row[0], row[1], row[2], row[3]};
    }
    r->machine->n_gemms = row_count(node);
    return NDM_OK;
}

static ndm_status read_attentions(reader *r, yaml_node_t *node)
{
    NDM_TRY(check_rows(r, node, NDM_SIM_ATTENTIONS_MAX));
    for (int i = 0; i < row_count(node); i++) {
        double row[3];
        NDM_TRY(read_row(r, row_at(r, node, i), row, 3));
        r->machine->attentions[i] = (ndm_sim_attention){row[0], row[1], row[2]};
    }
    r->machine->n_attentions = row_count(node);
    return NDM_OK;
}

static ndm_status read_curve(reader *r, int op, int64_t ranks, yaml_node_t *node)
{
    ndm_sim_machine *m = r->machine;

    NDM_TRY(check_rows(r, node, NDM_SIM_CURVE_POINTS_MAX));
    if (m->n_curves == NDM_SIM_CURVES_MAX)
        NDM_FAIL(NDM_ERR_FORMAT, "%s:%d: more than %d curves", r->path, ndm_yaml_line(node),
                 NDM_SIM_CURVES_MAX);
    ndm_sim_curve *c = &m->curves[m->n_curves++];
    *c = (ndm_sim_curve){.op = op, .ranks = ranks, .n = row_count(node)};
    for (int i = 0; i < c->n; i++) {
        double row[2];
        NDM_TRY(read_row(r, row_at(r, node, i), row, 2));
        c->bytes[i] = row[0];
        c->ns[i] = row[1] * 1e3;
        if (i > 0 && c->bytes[i] <= c->bytes[i - 1])
            NDM_FAIL(NDM_ERR_FORMAT, "%s:%d: bytes do not ascend", r->path,
                     ndm_yaml_line(row_at(r, node, i)));
        if (i > 0 && c->ns[i] < c->ns[i - 1])
            c->ns[i] = c->ns[i - 1]; /* noise: more bytes take no less time */
    }
    return NDM_OK;
}

typedef ndm_status (*pair_fn)(reader *r, const char *key, yaml_node_t *value, int64_t context);

/* A key counts once: the later one would hide the earlier. */
static ndm_status refuse_repeat(reader *r, const yaml_node_t *node, const yaml_node_pair_t *pair)
{
    const yaml_node_t *key = yaml_document_get_node(&r->document, pair->key);
    for (const yaml_node_pair_t *q = node->data.mapping.pairs.start; q < pair; q++) {
        const yaml_node_t *other = yaml_document_get_node(&r->document, q->key);
        if (strcmp(ndm_yaml_text(other), ndm_yaml_text(key)) == 0)
            NDM_FAIL(NDM_ERR_FORMAT, "%s:%d: key '%.100s' is already given at line %d", r->path,
                     ndm_yaml_line(key), ndm_yaml_text(key), ndm_yaml_line(other));
    }
    return NDM_OK;
}

static ndm_status each_pair(reader *r, const yaml_node_t *node, pair_fn visit, int64_t context)
{
    if (!node || node->type != YAML_MAPPING_NODE)
        NDM_FAIL(NDM_ERR_FORMAT, "%s:%d: a mapping is expected", r->path,
                 node ? ndm_yaml_line(node) : 1);
    for (yaml_node_pair_t *p = node->data.mapping.pairs.start; p < node->data.mapping.pairs.top;
         p++) {
        const char *key = ndm_yaml_text(yaml_document_get_node(&r->document, p->key));
        if (!key)
            NDM_FAIL(NDM_ERR_FORMAT, "%s:%d: a key is expected", r->path, ndm_yaml_line(node));
        NDM_TRY(refuse_repeat(r, node, p));
        NDM_TRY(visit(r, key, yaml_document_get_node(&r->document, p->value), context));
    }
    return NDM_OK;
}

static ndm_status visit_ranks(reader *r, const char *key, yaml_node_t *value, int64_t op)
{
    double ranks;

    if (!read_number(key, &ranks) || ranks < 2 || ranks > LARGEST)
        NDM_FAIL(NDM_ERR_FORMAT, "%s:%d: '%s' is no number of ranks", r->path, ndm_yaml_line(value),
                 key);
    return read_curve(r, (int)op, (int64_t)ranks, value);
}

static ndm_status visit_operation(reader *r, const char *key, yaml_node_t *value, int64_t context)
{
    (void)context;
    for (int op = 0; op < NDM_COLLECTIVE_COUNT; op++)
        if (strcmp(key, ndm_collective_name((ndm_collective)op)) == 0)
            return each_pair(r, value, visit_ranks, op);
    NDM_FAIL(NDM_ERR_FORMAT, "%s:%d: there is no collective '%s'", r->path, ndm_yaml_line(value),
             key);
}

/* Bytes/s of an op's kernel, GB/s in the file. */
static ndm_status visit_kernel(reader *r, const char *key, yaml_node_t *value, int64_t context)
{
    double number;

    (void)context;
    for (int op = 0; op < NDM_OP_COUNT; op++) {
        if (strcmp(key, ndm_op_name((ndm_op)op)) != 0)
            continue;
        NDM_TRY(read_entry(r, value, ndm_yaml_text(value), &number));
        r->machine->op_bw[op] = number * 1e9;
        return NDM_OK;
    }
    NDM_FAIL(NDM_ERR_FORMAT, "%s:%d: there is no kernel '%s'", r->path, ndm_yaml_line(value), key);
}

/* Where profiles are: NDM_SHARE, where they were installed, or the sources that built this. */
static bool find_named(const char *name, char *path, size_t bytes)
{
    const char *folders[] = {getenv("NDM_SHARE"), NDM_SHARE_INSTALLED, NDM_SHARE_SOURCES};

    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        if (!folders[i] || !*folders[i])
            continue;
        snprintf(path, bytes, "%s/clusters/%s.yaml", folders[i], name);
        if (ndm_file_exists(path))
            return true;
    }
    return false;
}

/* Tables of another file, beside this one or, of a profile that was copied, where profiles are. */
static ndm_status read_tables(reader *r, yaml_node_t *value)
{
    const char *name = ndm_yaml_text(value), *slash = strrchr(r->path, '/');
    char path[1024];

    if (!name || r->tables_only)
        NDM_FAIL(NDM_ERR_FORMAT, "%s:%d: the name of a file of tables is expected", r->path,
                 ndm_yaml_line(value));
    snprintf(path, sizeof path, "%.*s%s.yaml", slash ? (int)(slash - r->path) + 1 : 0, r->path,
             name);
    if (!ndm_file_exists(path) && !find_named(name, path, sizeof path))
        NDM_FAIL(NDM_ERR_FORMAT,
                 "%s:%d: there is no %s.yaml, beside this file or where profiles are", r->path,
                 ndm_yaml_line(value), name);
    return load_file(path, r->machine, true);
}

static ndm_status read_text(const reader *r, const yaml_node_t *value, char *to, size_t bytes)
{
    const char *text = ndm_yaml_text(value);

    if (!text || strlen(text) >= bytes)
        NDM_FAIL(NDM_ERR_FORMAT, "%s:%d: a text of up to %zu characters is expected", r->path,
                 ndm_yaml_line(value), bytes - 1);
    memcpy(to, text, strlen(text) + 1);
    return NDM_OK;
}

static ndm_status visit_top(reader *r, const char *key, yaml_node_t *value, int64_t context)
{
    ndm_sim_machine *m = r->machine;
    char range[64];
    double number;

    (void)context;
    if (strcmp(key, "gemm") == 0)
        return read_gemms(r, value);
    if (strcmp(key, "attention") == 0)
        return read_attentions(r, value);
    if (strcmp(key, "collectives") == 0)
        return each_pair(r, value, visit_operation, 0);
    if (strcmp(key, "kernels") == 0)
        return each_pair(r, value, visit_kernel, 0);
    if (strcmp(key, "tables") == 0)
        return read_tables(r, value);
    if (strcmp(key, "name") == 0)
        return read_text(r, value, m->name, sizeof m->name);
    if (strcmp(key, "summary") == 0)
        return read_text(r, value, m->summary, sizeof m->summary);
    if (strcmp(key, "unit") == 0)
        return read_text(r, value, m->unit, sizeof m->unit);
    const field *f = find_field(machine_fields, MACHINE_FIELDS, key);
    if (!f)
        NDM_FAIL(NDM_ERR_FORMAT, "%s:%d: unknown key '%s'", r->path, ndm_yaml_line(value), key);
    if (!read_number(ndm_yaml_text(value), &number))
        NDM_FAIL(NDM_ERR_FORMAT, "%s:%d: %s is not a number", r->path, ndm_yaml_line(value), key);
    if (!in_range(f, number, range))
        NDM_FAIL(NDM_ERR_FORMAT, "%s:%d: %s is %g; it is %s", r->path, ndm_yaml_line(value), key,
                 number, range);
    r->seen[f - machine_fields] = true;
    store(m, f, number);
    return NDM_OK;
}

static ndm_status check_complete(const reader *r)
{
    const ndm_sim_machine *m = r->machine;

    if (r->tables_only)
        return NDM_OK;
    for (int i = 0; i < MACHINE_FIELDS; i++)
        if (machine_fields[i].required && !r->seen[i])
            NDM_FAIL(NDM_ERR_FORMAT, "%s: %s is missing", r->path, machine_fields[i].key);
    if (m->n_gemms == 0 && m->gemm_share <= 0.0 && m->gemm_line[0] <= 0.0)
        NDM_FAIL(NDM_ERR_FORMAT, "%s: no gemm, gemm_share or gemm_time", r->path);
    return NDM_OK;
}

static ndm_status load_file(const char *path, ndm_sim_machine *machine, bool tables_only)
{
    ndm_buffer text = {0};
    reader r = {.path = path, .machine = machine, .tables_only = tables_only};

    NDM_TRY(ndm_file_read(path, &text));
    ndm_status status = ndm_yaml_load(ndm_buffer_text(&text), text.length, path, &r.document);
    ndm_buffer_finish(&text);
    NDM_TRY(status);
    status = each_pair(&r, yaml_document_get_root_node(&r.document), visit_top, 0);
    yaml_document_delete(&r.document);
    NDM_TRY(status);
    return check_complete(&r);
}

/* ---- names -------------------------------------------------------------------------------- */

static const char *const known[] = {"a100x8",        "a100x8-40gb", "h100x8",
                                    "h100x8-vboost", "h100x8-500w", "h200x8",
                                    "b200x8",        "gb200x4",     "cpu-cluster"};

ndm_status ndm_plan_load_cluster(const char *name, ndm_sim_machine *machine)
{
    char path[1024];

    *machine = (ndm_sim_machine){.link_scale = 1, .latency_scale = 1, .unit = "rank"};
    if (strchr(name, '/') || strstr(name, ".yaml"))
        return load_file(name, machine, false);
    if (find_named(name, path, sizeof path))
        return load_file(path, machine, false);
    const char *near = ndm_text_nearest(name, known, sizeof known / sizeof *known);
    NDM_FAIL(NDM_ERR_CONFIG, "cluster '%s' is neither a YAML file nor known%s%s%s", name,
             near ? "; the nearest is '" : " (such as h100x8 or a100x8)", near ? near : "",
             near ? "'" : "");
}
