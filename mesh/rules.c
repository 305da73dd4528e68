/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of a model against a mesh: one function and one table row each. */
#include "mesh/rules.h"

#include <inttypes.h>
#include <stdio.h>

#include "mesh/shape.h"

typedef struct sink {
    char *text;
    size_t bytes;
} sink;

static bool divides(int64_t n, int64_t size)
{
    return n == 0 || n % size == 0;
}

/* "tp 3 does not divide heads 8; try 1, 2, 4, 8" */
static bool refuse(sink out, const char *axis, int64_t parts, int64_t n, const char *what)
{
    char tries[160];
    snprintf(out.text, out.bytes, "%s %" PRId64 " does not divide %s %" PRId64 "; try %s", axis,
             parts, what, n, ndm_shape_divisors(n, parts, tries, sizeof tries));
    return false;
}

/* The multiples of step around n: "56, 64". */
static const char *multiples(int64_t n, int64_t step, char *text, size_t text_bytes)
{
    int64_t down = n / step * step;
    if (down > 0)
        snprintf(text, text_bytes, "%" PRId64 ", %" PRId64, down, down + step);
    else
        snprintf(text, text_bytes, "%" PRId64, step);
    return text;
}

static bool heads(const ndm_mesh *mesh, const ndm_mesh_demands *d, sink out)
{
    int64_t tp = ndm_mesh_axis_size(mesh, NDM_TP);
    return divides(d->heads, tp) || refuse(out, "tp", tp, d->heads, "heads");
}

/* Fewer key-value heads than tp ranks are replicated, evenly. */
static bool kv_heads(const ndm_mesh *mesh, const ndm_mesh_demands *d, sink out)
{
    int64_t tp = ndm_mesh_axis_size(mesh, NDM_TP), kv = d->kv_heads;
    char tries[160];
    if (kv == 0 || kv % tp == 0 || tp % kv == 0)
        return true;
    snprintf(out.text, out.bytes,
             "tp %" PRId64 " does not divide kv_heads %" PRId64
             " and is no multiple of it; try %s, or a multiple of %" PRId64,
             tp, kv, ndm_shape_divisors(kv, tp, tries, sizeof tries), kv);
    return false;
}

static bool ffn(const ndm_mesh *mesh, const ndm_mesh_demands *d, sink out)
{
    int64_t tp = ndm_mesh_axis_size(mesh, NDM_TP);
    return (d->padded & NDM_PAD_FFN) != 0 || divides(d->ffn, tp) ||
           refuse(out, "tp", tp, d->ffn, "ffn");
}

static bool vocab(const ndm_mesh *mesh, const ndm_mesh_demands *d, sink out)
{
    int64_t tp = ndm_mesh_axis_size(mesh, NDM_TP);
    return (d->padded & NDM_PAD_VOCAB) != 0 || divides(d->vocab, tp) ||
           refuse(out, "tp", tp, d->vocab, "vocab");
}

/* Chunks a sequence is cut into: two a rank where causal work is balanced by pairing early with
 * late ones. */
static int64_t chunks(const ndm_mesh *mesh, const ndm_mesh_demands *d)
{
    int64_t cp = ndm_mesh_axis_size(mesh, NDM_CP);
    bool balanced = d->cp_method == NDM_CP_METHOD_AUTO || d->cp_method == NDM_CP_METHOD_RING;
    return cp > 1 && balanced ? 2 * cp : cp;
}

static bool seq_len(const ndm_mesh *mesh, const ndm_mesh_demands *d, sink out)
{
    int64_t n = chunks(mesh, d), cp = ndm_mesh_axis_size(mesh, NDM_CP);
    if ((d->padded & NDM_PAD_SEQ) != 0 || divides(d->seq_len, n))
        return true;
    char tries[64];
    snprintf(out.text, out.bytes,
             "seq_len %" PRId64 " is no multiple of %" PRId64 " (%scp %" PRId64 "); try %s",
             d->seq_len, n, n > cp ? "2 * " : "", cp,
             multiples(d->seq_len, n, tries, sizeof tries));
    return false;
}

/* Ulysses trades sequence for heads: each cp rank needs whole heads of its tp share. */
static bool ulysses(const ndm_mesh *mesh, const ndm_mesh_demands *d, sink out)
{
    int64_t tp = ndm_mesh_axis_size(mesh, NDM_TP), cp = ndm_mesh_axis_size(mesh, NDM_CP);
    if (d->cp_method != NDM_CP_METHOD_ULYSSES || d->heads == 0 || d->heads % tp != 0 ||
        d->heads / tp % cp == 0)
        return true;
    char tries[160];
    snprintf(out.text, out.bytes,
             "cp %" PRId64 " does not divide the %" PRId64 " heads left by tp %" PRId64
             ", as ulysses needs; try %s",
             cp, d->heads / tp, tp, ndm_shape_divisors(d->heads / tp, cp, tries, sizeof tries));
    return false;
}

static bool tokens(const ndm_mesh *mesh, const ndm_mesh_demands *d, sink out)
{
    int64_t tp = ndm_mesh_axis_size(mesh, NDM_TP), cp = ndm_mesh_axis_size(mesh, NDM_CP);
    int64_t n = d->seq_len / cp * (d->micro_batch > 0 ? d->micro_batch : 1);
    if (!d->sequence_parallel || (d->padded & NDM_PAD_TOKENS) != 0 || divides(n, tp))
        return true;
    snprintf(out.text, out.bytes,
             "tp %" PRId64 " does not divide the %" PRId64 " tokens of a rank (seq_len %" PRId64
             ", cp %" PRId64
             "), as sequence parallelism needs; set sequence_parallel false or another seq_len",
             tp, n, d->seq_len, cp);
    return false;
}

static bool batch(const ndm_mesh *mesh, const ndm_mesh_demands *d, sink out)
{
    int64_t dp = ndm_mesh_size(mesh, NDM_AXES_DP), micro = d->micro_batch > 0 ? d->micro_batch : 1;
    if (divides(d->global_batch, dp * micro))
        return true;
    char tries[64];
    snprintf(out.text, out.bytes,
             "global batch %" PRId64 " is no multiple of %" PRId64 " (dp %" PRId64
             " x micro_batch %" PRId64 "); try %s",
             d->global_batch, dp * micro, dp, micro,
             multiples(d->global_batch, dp * micro, tries, sizeof tries));
    return false;
}

static const struct {
    const char *name;
    bool (*holds)(const ndm_mesh *mesh, const ndm_mesh_demands *d, sink out);
} rules[] = {
    {"heads", heads},     {"kv_heads", kv_heads}, {"ffn", ffn},       {"vocab", vocab},
    {"seq_len", seq_len}, {"ulysses", ulysses},   {"tokens", tokens}, {"batch", batch},
};

int ndm_mesh_rule_count(void)
{
    return (int)(sizeof rules / sizeof rules[0]);
}

const char *ndm_mesh_rule_name(int i)
{
    return rules[i].name;
}

bool ndm_mesh_rule_holds(int i, const ndm_mesh *mesh, const ndm_mesh_demands *demands, char *text,
                         size_t text_bytes)
{
    return rules[i].holds(mesh, demands, (sink){text, text_bytes});
}

/* Appends ", name" to the list of further failing rules. */
static void append_name(char *list, size_t bytes, size_t *used, const char *name)
{
    if (*used < bytes)
        *used += (size_t)snprintf(list + *used, bytes - *used, "%s%s", *used ? ", " : "", name);
}

ndm_status ndm_mesh_check(const ndm_mesh *mesh, const ndm_mesh_demands *demands)
{
    char first[384] = "", text[384] = "", others[160] = "";
    size_t used = 0;
    int broken = 0;
    for (int i = 0; i < ndm_mesh_rule_count(); i++) {
        if (ndm_mesh_rule_holds(i, mesh, demands, broken == 0 ? first : text, sizeof text))
            continue;
        if (broken++ > 0)
            append_name(others, sizeof others, &used, rules[i].name);
    }
    if (broken == 0)
        return NDM_OK;
    if (broken == 1)
        NDM_FAIL(NDM_ERR_CONFIG, "mesh: %s", first);
    NDM_FAIL(NDM_ERR_CONFIG, "mesh: %s (%d more rule%s fail%s: %s)", first, broken - 1,
             broken > 2 ? "s" : "", broken > 2 ? "" : "s", others);
}
