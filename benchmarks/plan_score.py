#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Scores `ndmesh plan` against published runs.

    benchmarks/plan_score.py --engine build/cli/ndmesh [--rows] [--set KEY=NUMBER,...] [--only GROUP]

Each row of benchmarks/data/runs_fit.csv is planned by the command itself, with the profile of its
cluster and the stack that its source says it ran; nothing is set per row beyond what the row states.
Rows that the axes cannot express, and those tagged uncertain or outlier, are listed with the reason.
"""
import argparse
import concurrent.futures
import copy
import csv
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
GIB = 1024.0**3

# Cluster, and stack without and with compilation, of each group of rows.
GROUPS = {
    "titan-2412": ("h100x8-500w", "eager", "compiled"),
    "titan-2506": ("h100x8-500w", "eager", "compiled"),
    "titan-commits": ("h100x8-500w", "eager", "compiled"),
    "titan-qwen3-32b": ("h100x8-500w", "eager", "compiled"),
    "titan-llama7b": ("h100x8-500w", "eager", "compiled"),
    "titan-a100": ("a100x8", "eager", "eager"),
    "dgxc-llama": ("h100x8-vboost", "megatron", "megatron"),
    "maxtext-70b": ("h100x8-vboost", "xla", "xla"),
    "bridge": ("h100x8-vboost", "megatron", "megatron"),
    "megatron-2104": ("a100x8", "megatron-2021", "megatron-2021"),
    "megatron-2205": ("a100x8", "megatron-2021", "megatron-2021"),
    "mcore-r08": ("h100x8", "megatron-2024", "megatron-2024"),
    "llm.c": ("a100x8", "llm.c", "llm.c"),
    "mosaic-a10080": ("a100x8", "foundry", "foundry"),
    "mosaic-a10040": ("a100x8-40gb", "foundry", "foundry"),
}

# Sources for leaving one out: groups of one origin stand together.
SOURCES = {
    "titan-2412": "titan", "titan-2506": "titan", "titan-commits": "titan",
    "mosaic-a10080": "mosaic", "mosaic-a10040": "mosaic",
}


def number(row, key, default=0):
    return int(float(row[key])) if row[key] else default


def left_out(row):
    """Why a row is not scored, or None."""
    tags = row["tags"].split(";")
    if number(row, "pp", 1) > 1:
        return "pipeline stages: no such axis yet"
    for tag in ("uncertain", "outlier"):
        if tag in tags:
            return "tagged " + tag
    return None


def config(row):
    hidden, heads, layers = number(row, "hidden"), number(row, "heads"), number(row, "layers")
    seq, vocab = number(row, "seq"), number(row, "vocab")
    tied = row["tied"] == "1"
    if row["gated_ffn"] == "0":
        return {
            "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": hidden,
            "n_layer": layers, "n_head": heads, "n_inner": number(row, "ffn"), "vocab_size": vocab,
            "n_positions": seq, "tie_word_embeddings": tied, "activation_function": "gelu_new",
        }
    kind = "qwen3" if row["model"].startswith("qwen3") else "llama"
    return {
        "model_type": kind,
        "architectures": ["Qwen3ForCausalLM" if kind == "qwen3" else "LlamaForCausalLM"],
        "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": number(row, "kv_heads"), "head_dim": number(row, "head_dim"),
        "intermediate_size": number(row, "ffn"), "vocab_size": vocab,
        "max_position_embeddings": seq, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
        "tie_word_embeddings": tied, "hidden_act": "silu",
    }


def again_share(row):
    """Products that a per-op policy makes again, every second one: k, o and up, of all."""
    q = number(row, "heads") * number(row, "head_dim")
    kv = number(row, "kv_heads") * number(row, "head_dim")
    h, f = number(row, "hidden"), number(row, "ffn")
    return h * (kv + q + f) / (h * (q + 2 * kv) + q * h + 3 * h * f)


def kept_less(row):
    """Bytes a token and layer: a per-op policy makes one of gate and up again, and keys."""
    kv = number(row, "kv_heads") * number(row, "head_dim")
    return (2 * number(row, "ffn") + 2 * kv) // number(row, "tp")


def qkv_share(row):
    q = number(row, "heads") * number(row, "head_dim")
    kv = number(row, "kv_heads") * number(row, "head_dim")
    h, f = number(row, "hidden"), number(row, "ffn")
    return h * (q + 2 * kv) / (h * (q + 2 * kv) + q * h + 3 * h * f)


class Job:
    """The arguments of a row's plan; several recomputes are averaged."""

    def __init__(self, row, path, extra):
        cluster, eager, compiled = GROUPS[row["group"]]
        self.row = row
        stack = eager if row["compile"] == "0" else compiled
        dp = number(row, "dp_replicate") * number(row, "dp_shard")
        self.dp = dp
        self.sets = list(extra)
        self.recomputes = ["none"]
        shard, replicate = number(row, "dp_shard"), number(row, "dp_replicate")
        zero = number(row, "zero_stage", -1)
        if zero == -1:  # sharding not stated: the optimizer's, as Megatron's benchmarks have it
            shard, replicate, zero = shard * replicate, 1, 1
        self.args = [
            "--model", path, "--cluster", cluster, "--stack", stack,
            "--ranks", str(number(row, "n_gpus")), "--seq-len", str(number(row, "seq")),
            "--dp-replicate", str(replicate), "--dp-shard", str(shard),
            "--cp", str(number(row, "cp")), "--tp", str(number(row, "tp")),
            "--zero", str(max(zero, 1)), "--cp-method", "ring",
        ]
        if number(row, "tp") > 1 and row["sp"] == "0":
            self.args += ["--no-sequence-parallel"]
        if row["fp8"] == "1":
            self.args += ["--fp8"]
        self.recompute()
        self.stack_facts()

    def recompute(self):
        kind = self.row["recompute"]
        if kind == "full":
            self.recomputes = ["full"]
        elif kind in ("selective:op", "selective"):
            self.recomputes = ["selective"]
            self.sets.append("stack.again_gemms=%.4f" % again_share(self.row))
            self.sets.append("stack.keep_bytes=-%d" % kept_less(self.row))
        elif kind == "selective:layer":
            self.recomputes = ["none", "full"]
        elif kind == "selective:qkv":
            self.recomputes = ["full"]
            self.sets.append("stack.again_gemms=-%.4f" % qkv_share(self.row))
        elif kind == "selective:attention":
            self.sets.append("stack.score_backward_bytes=24")

    def stack_facts(self):
        row, tags = self.row, self.row["tags"].split(";")
        if row["group"].startswith("mosaic"):
            self.sets.append("stack.attention_share=0.78")  # FlashAttention 1 on A100
        if row["group"] in ("mosaic-a10040", "dgxc-llama", "bridge", "maxtext-70b"):
            self.args += ["--reduce-dtype", "bf16"]
            self.sets += ["stack.accum_bytes=4", "stack.gradient_bytes=2"]
        if row["fp8"] == "1" and row["group"].startswith("titan"):
            self.sets.append("stack.fp8_gather=1")
        if "async_tp" in tags or row["group"] == "mcore-r08":  # its page states --tp-comm-overlap
            self.sets.append("stack.overlap=%g" % OVERLAP)

    def open(self):
        """What the source does not state."""
        return [what for what in OPEN if not self.row[what]]

    def choices(self):
        """The same for every recompute where none is stated: what the row may have been."""
        other = copy.copy(self)
        if not self.row["recompute"]:
            other.recomputes = ["none", "selective", "full"]
        return other.commands()

    def commands(self):
        """(micro-batch, recompute, arguments) of each plan."""
        stated = number(self.row, "micro_batch")
        batch = number(self.row, "global_batch")
        for micro in [stated] if stated else [1, 2, 4, 8]:
            if batch % (self.dp * micro):
                continue
            accum = batch // (self.dp * micro)
            tokens = micro * number(self.row, "seq") // number(self.row, "cp")
            for recompute in self.recomputes:
                yield micro, recompute, self.args + [
                    "--micro-batch", str(micro), "--grad-accum", str(min(accum, 4)),
                    "--recompute", recompute, "--head-chunk", str(tokens),
                ] + (["--set", ",".join(self.sets)] if self.sets else []), accum


OVERLAP = 0.21
OPEN = ("micro_batch", "recompute")


def run(engine, args):
    done = subprocess.run([engine, "plan", "--json"] + args, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(" ".join(args) + ": " + done.stderr.strip())
    return json.loads(done.stdout)


def step_seconds(engine, args, accum):
    """Many micro-batches are all alike after the first few: two plans give the rest."""
    plan = run(engine, args)
    seconds = plan["step_ms"] * 1e-3
    if accum <= 4:
        return plan, seconds
    fewer = list(args)
    fewer[fewer.index("--grad-accum") + 1] = "3"
    return plan, seconds + (accum - 4) * (seconds - run(engine, fewer)["step_ms"] * 1e-3)


def predict(engine, job):
    """The fastest of what fits, where the micro-batch is not stated."""
    row, best = job.row, None
    for micro in {m for m, _, _, _ in job.commands()}:
        plans = [step_seconds(engine, a, n) for m, _, a, n in job.commands() if m == micro]
        seconds = statistics.mean(s for _, s in plans)
        plan = plans[0][0]
        tokens = number(row, "global_batch") * number(row, "seq")
        rate = tokens / seconds / number(row, "n_gpus")
        fits = all(p["memory_bytes"]["fits"] for p, _ in plans)
        key = (fits, rate)
        if best is None or key > best[0]:
            best = (key, plan)
    (fits, rate), plan = best
    return {
        "rate": rate, "fits": fits,
        "reserved": plan["memory_bytes"]["reserved"] / GIB,
        "needed": plan["memory_bytes"]["needed"] / GIB, "plan": plan,
        "range": range_over_choices(engine, job),
    }


def range_over_choices(engine, job):
    """(ways, that fit, slowest, fastest) over what the row leaves open; None where that is nothing."""
    tokens = number(job.row, "global_batch") * number(job.row, "seq") / number(job.row, "n_gpus")
    if not job.open():
        return None
    plans = [step_seconds(engine, a, n) for _, _, a, n in job.choices()]
    rates = [tokens / s for q, s in plans if q["memory_bytes"]["fits"]]
    return len(plans), len(rates), min(rates, default=0), max(rates, default=0)


def show_open(timed):
    for row, p in timed:
        if p["range"]:
            print("  open: %-28s %-22s %2d ways, %2d fit: %8.1f to %8.1f tokens/s; published %.1f" % (
                row["id"], ", ".join(what for what in OPEN if not row[what]), *p["range"],
                float(row["measured_tokens_per_s_per_gpu"])))


def textbook(row):
    """Half of the peak on executed products, as a rule of thumb has it."""
    peak = {"a100": 312e12, "h100": 989e12}["a100" if "a100" in GROUPS[row["group"]][0] else "h100"]
    n = float(row["params_b"]) * 1e9
    h, layers, seq = number(row, "hidden"), number(row, "layers"), number(row, "seq")
    q = number(row, "heads") * number(row, "head_dim")
    flops = 6 * n + 6 * layers * q * seq
    if row["recompute"] == "full":
        flops *= 4 / 3
    return 0.5 * peak / flops


def pairs(rows):
    """Rows of one source and model whose speeds differ by more than 3 %: right, all."""
    right = total = 0
    for i, (a, pa) in enumerate(rows):
        for b, pb in rows[i + 1:]:
            if a["group"] != b["group"] or a["model"] != b["model"]:
                continue
            x, y = (float(r["measured_tokens_per_s_per_gpu"]) for r in (a, b))
            if abs(x / y - 1) <= 0.03:
                continue
            total += 1
            right += (x > y) == (pa["rate"] > pb["rate"])
            if (x > y) != (pa["rate"] > pb["rate"]):
                print("  order: %s and %s are the other way round" % (a["id"], b["id"]))
    return right, total


def error(row, predicted):
    return predicted / float(row["measured_tokens_per_s_per_gpu"]) - 1


def plan_all(engine, rows, sets, workers=2):
    with tempfile.TemporaryDirectory() as folder:
        jobs = []
        for row in rows:
            path = os.path.join(folder, row["id"] + ".json")
            with open(path, "w") as out:
                json.dump(config(row), out)
            jobs.append(Job(row, path, sets))
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            return list(pool.map(lambda j: predict(engine, j), jobs))


def score_times(timed, show):
    errors = {}
    for row, p in timed:
        e = error(row, p["rate"])
        errors.setdefault(row["group"], []).append(abs(e))
        if show:
            print("  %-48s %9.1f %9.1f %+6.1f %%" % (
                row["id"], float(row["measured_tokens_per_s_per_gpu"]), p["rate"], 100 * e))
    every = [e for v in errors.values() for e in v]
    print("tokens/s: %d rows, mean %.1f %%, median %.1f %%, worst %.1f %%" % (
        len(every), 100 * statistics.mean(every), 100 * statistics.median(every), 100 * max(every)))
    for group, v in sorted(errors.items()):
        print("  %-18s %3d  mean %5.1f %%  worst %5.1f %%" % (
            group, len(v), 100 * statistics.mean(v), 100 * max(v)))
    groups = statistics.mean(statistics.mean(v) for v in errors.values())
    print("  mean of groups %.1f %%" % (100 * groups))
    right, total = pairs(timed)
    print("  order of pairs: %d of %d right" % (right, total))
    book = [abs(error(r, textbook(r))) for r, _ in timed]
    print("  textbook (half of the peak): mean %.1f %%, median %.1f %%" % (
        100 * statistics.mean(book), 100 * statistics.median(book)))
    return {"tokens/s, mean error": statistics.mean(every), "tokens/s, mean of groups": groups,
            "pairs in the wrong order": total - right}


def score_memory(planned, show):
    errors, seen, ooms, refused, ran = [], 0, 0, 0, 0
    for row, p in planned:
        if "oom" in row["tags"].split(";"):
            ooms += 1
            seen += not p["fits"]
            continue
        ran += 1
        refused += not p["fits"]
        if show and not p["fits"]:
            print("  ran, but is said not to fit: %s needs %.1f GiB" % (row["id"], p["needed"]))
        if row["measured_mem_gib"]:
            e = p["reserved"] / float(row["measured_mem_gib"]) - 1
            errors.append(abs(e))
            if show:
                print("  %-48s %9.1f %9.1f %+6.1f %%" % (
                    row["id"], float(row["measured_mem_gib"]), p["reserved"], 100 * e))
    if errors:
        print("memory: %d rows, mean %.1f %%, median %.1f %%, worst %.1f %%" % (
            len(errors), 100 * statistics.mean(errors), 100 * statistics.median(errors),
            100 * max(errors)))
    print("  out of memory seen: %d of %d; said not to fit: %d of %d that ran" % (
        seen, ooms, refused, ran))
    return {"memory, mean error": statistics.mean(errors) if errors else 0.0,
            "out-of-memory rows not seen": ooms - seen, "rows that ran, refused": refused / ran}


# ---- leaving sources out ------------------------------------------------------------------------

PRIOR = 0.87  # of a clock that no row is left to fit
CLOCKS = {"a100x8": 0.92, "a100x8-40gb": 0.92, "h100x8": 0.82, "h100x8-vboost": 1.00,
          "h100x8-500w": 0.72}
MEMORY_SHARE = 0.65


def clock_of(row):
    return GROUPS[row["group"]][0].replace("-40gb", "")


def source_of(row):
    return SOURCES.get(row["group"], row["group"])


def sensitivities(engine, rows, base):
    """Each row's time as a / clock + b / memory share + c, from three plans of it."""
    clocks = [CLOCKS[GROUPS[r["group"]][0]] for r in rows]
    by_clock = {}
    for cluster in set(GROUPS[r["group"]][0] for r in rows):
        mine = [i for i, r in enumerate(rows) if GROUPS[r["group"]][0] == cluster]
        changed = plan_all(engine, [rows[i] for i in mine], ["clock=%g" % (CLOCKS[cluster] * 0.9)])
        by_clock.update(zip(mine, changed))
    by_memory = plan_all(engine, rows, ["memory_share=%g" % (MEMORY_SHARE * 0.9)])
    models = []
    for i, (row, p) in enumerate(zip(rows, base)):
        t, tc, tm = 1 / p["rate"], 1 / by_clock[i]["rate"], 1 / by_memory[i]["rate"]
        a = (tc - t) / (1 / (clocks[i] * 0.9) - 1 / clocks[i])
        b = (tm - t) / (1 / (MEMORY_SHARE * 0.9) - 1 / MEMORY_SHARE)
        models.append((a, b, t - a / clocks[i] - b / MEMORY_SHARE))
    return models


def fit_constants(rows, models):
    """Clocks and memory share with the least mean error; clocks without rows take the prior."""
    best = None
    for share in [s / 100 for s in range(50, 85, 5)]:
        clocks, total = {}, 0.0
        for name in set(clock_of(r) for r in rows):
            mine = [(r, m) for r, m in zip(rows, models) if clock_of(r) == name]
            costs = []
            for clock in [c / 100 for c in range(65, 105)]:
                e = sum(abs(error(r, 1 / (m[0] / clock + m[1] / share + m[2]))) for r, m in mine)
                costs.append((e, clock))
            e, clocks[name] = min(costs)
            total += e
        if best is None or total < best[0]:
            best = (total, share, clocks)
    return best[1], best[2]


def leave_out(engine, timed):
    rows, base = [r for r, _ in timed], [p for _, p in timed]
    models = sensitivities(engine, rows, base)
    errors = {}
    for source in sorted(set(map(source_of, rows))):
        keep = [(r, m) for r, m in zip(rows, models) if source_of(r) != source]
        share, clocks = fit_constants(*zip(*keep))
        for r, m in zip(rows, models):
            if source_of(r) == source:
                rate = 1 / (m[0] / clocks.get(clock_of(r), PRIOR) + m[1] / share + m[2])
                errors.setdefault(source, []).append(abs(error(r, rate)))
    for source, e in errors.items():
        print("  without %-18s %5.1f %%" % (source, 100 * statistics.mean(e)))
    print("leave one source out: rows %.1f %%, mean of sources %.1f %%" % (
        100 * statistics.mean(e for v in errors.values() for e in v),
        100 * statistics.mean(statistics.mean(v) for v in errors.values())))


LIMITS = {"tokens/s, mean error": 0.045, "tokens/s, mean of groups": 0.055, "pairs in the wrong order": 0,
          "memory, mean error": 0.08, "out-of-memory rows not seen": 0, "rows that ran, refused": 0.05}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", default="build/cli/ndmesh")
    parser.add_argument("--rows", action="store_true", help="print every row")
    parser.add_argument("--set", default="", help="KEY=NUMBER,... for all rows")
    parser.add_argument("--leave-one-out", action="store_true",
                        help="fit clocks and the memory share again without each source")
    parser.add_argument("--check", action="store_true", help="fail above the limits in this file")
    parser.add_argument("--only", default="", help="groups that start with this")
    options = parser.parse_args()
    with open(os.path.join(HERE, "data", "runs_fit.csv")) as file:
        rows = [r for r in csv.DictReader(file) if r["group"].startswith(options.only)]
    scored = [r for r in rows if not left_out(r)]
    for row in rows:
        if left_out(row):
            print("left out: %s: %s" % (row["id"], left_out(row)))
    predicted = plan_all(options.engine, scored, [s for s in options.set.split(",") if s])
    planned = list(zip(scored, predicted))
    found = score_times([(r, p) for r, p in planned if r["measured_tokens_per_s_per_gpu"]],
                        options.rows)
    if not options.check:
        show_open([(r, p) for r, p in planned if r["measured_tokens_per_s_per_gpu"]])
    found.update(score_memory(planned, options.rows))
    if options.leave_one_out:
        leave_out(options.engine, [(r, p) for r, p in planned if r["measured_tokens_per_s_per_gpu"]])
    if not options.check:
        return 0
    for name, value in found.items():
        if value > LIMITS[name]:
            print("above its limit: %s is %.4f, %.4f is allowed" % (name, value, LIMITS[name]))
    return int(any(value > LIMITS[name] for name, value in found.items()))


if __name__ == "__main__":
    sys.exit(main())
