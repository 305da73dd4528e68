#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plans of this machine against this machine: every mesh of some ranks, for three models.

    plan_here.py --engine build/cli/ndmesh                          measures a profile, then 2, 4 and 8 ranks
    plan_here.py --engine ... --profile here.yaml --ranks 4         with a profile that is there already
    plan_here.py --engine ... --model llama-s --shapes 3            fewer: a model, the first shapes
    plan_here.py --engine ... --measured here.jsonl                 keeps what it measures, and measures what is not there

Each mesh is trained for a few steps and planned; a line each, then over all: rank correlation of predicted and measured time of a
step, median and worst error, error of memory. Wants a quiet machine: whatever else runs is in the measured times, not in the
plans, so a run beside which others took more than OTHERS of the processors is repeated. Exit status: 0 all targets met, 1 not,
2 usage. Python's standard library only.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

TARGETS = {"rank correlation": 0.9, "median error": 0.15, "memory": 0.03}
WIDE = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 384, "num_hidden_layers": 6,
        "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 48, "intermediate_size": 1024, "vocab_size": 2048,
        "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False}
SKIP_STEPS = 2
OTHERS, TRIES = 0.03, 4


def meshes_of(ranks):
    divisors = [d for d in range(1, ranks + 1) if ranks % d == 0]
    return [(r, s, c, ranks // (r * s * c)) for r in divisors for s in divisors for c in divisors
            if ranks % (r * s * c) == 0]


def axes(mesh):
    return [text for name, size in zip(("dp-replicate", "dp-shard", "cp", "tp"), mesh) for text in ("--" + name, str(size))]


def run(command, timeout):
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=timeout)


def common(options, model, mesh):
    return ["--model", model, *axes(mesh), "--seq-len", options.seq_len, "--micro-batch", "1", "--recompute", "none"]


def measure(options, model, mesh, ranks, scratch):
    """(milliseconds of a step, peak bytes of the worst rank), or the reason that there are none."""
    metrics = scratch / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    done = run([options.engine, "train", "--ranks", ranks, *common(options, model, mesh), "--init", "random", "--data",
                scratch / "text.txt", "--steps", options.steps, "--metrics", metrics, "--quiet"], options.timeout)
    if done.returncode:
        return None, (done.stderr.splitlines() or ["no message"])[0][:90]
    steps = [json.loads(line) for line in metrics.read_text().splitlines()]
    steps = [s for s in steps if "step" in s]
    return (statistics.median(s["step_ms"] for s in steps[SKIP_STEPS:]), max(s["mem_peak_bytes"] for s in steps)), ""


def busy_seconds():
    """(processor time of the whole machine, of the runs that have ended); the first is 0 where /proc/stat does not tell."""
    used = os.times()
    try:
        fields = [int(n) for n in pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    except OSError:
        return 0.0, 0.0
    return (fields[0] + fields[1] + fields[2] + fields[5] + fields[6]) / os.sysconf("SC_CLK_TCK"), sum(used[:4])


def measure_alone(options, model, mesh, ranks, scratch):
    """As measure(), again while others were at work; the last time counts."""
    for _ in range(1 if options.memory_only else TRIES):
        start, (all_before, own_before) = time.monotonic(), busy_seconds()
        got, why = measure(options, model, mesh, ranks, scratch)
        seconds, (all_after, own_after) = time.monotonic() - start, busy_seconds()
        others = all_after - all_before - (own_after - own_before)
        if others <= OTHERS * seconds * os.cpu_count():
            break
        print(f"others took {others:.2f} s of processor time in {seconds:.2f} s", file=sys.stderr, flush=True)
    return got, why


def measured(options, model, mesh, ranks, scratch):
    """As measure(); what the file of --measured holds is taken from there."""
    key = (pathlib.Path(model).name, *mesh, options.seq_len)
    if key in options.known:
        return options.known[key], ""
    got, why = measure_alone(options, model, mesh, ranks, scratch)
    if got and options.measured:
        with options.measured.open("a") as file:
            file.write(json.dumps({"mesh": key, "got": got}) + "\n")
    return got, why


def plan(options, model, mesh, ranks, profile):
    done = run([options.engine, "plan", *common(options, model, mesh), "--cluster", profile, "--ranks", ranks, "--json"],
               options.timeout)
    if done.returncode:
        sys.exit(f"plan_here: {done.stderr}")
    p = json.loads(done.stdout)
    return p["step_ms"], p["memory_bytes"]["live"]


def places(values):
    """Place of each value in ascending order; equal ones share the mean."""
    order = sorted(range(len(values)), key=values.__getitem__)
    place = [0.0] * len(values)
    i = 0
    while i < len(order):
        j = i
        while j + 1 < len(order) and values[order[j + 1]] == values[order[i]]:
            j += 1
        for k in range(i, j + 1):
            place[order[k]] = (i + j) / 2
        i = j + 1
    return place


def rank_correlation(x, y):
    a, b = places(x), places(y)
    ma, mb = statistics.fmean(a), statistics.fmean(b)
    cov = sum((p - ma) * (q - mb) for p, q in zip(a, b))
    norm = (sum((p - ma) ** 2 for p in a) * sum((q - mb) ** 2 for q in b)) ** 0.5
    return cov / norm if norm else float("nan")


def report(name, rows):
    """Prints what holds over rows of (predicted ms, measured ms, predicted bytes, measured bytes); the three targets' numbers."""
    errors = [abs(p / m - 1) for p, m, _, _ in rows]
    memory = [abs(p / m - 1) for _, _, p, m in rows]
    found = {"rank correlation": rank_correlation([r[0] for r in rows], [r[1] for r in rows]),
             "median error": statistics.median(errors), "memory": max(memory)}
    print(f"{name:10} {len(rows):3} meshes: rank correlation {found['rank correlation']:.3f}, error of a step: median "
          f"{found['median error']:.1%}, worst {max(errors):.1%}; memory: worst {found['memory']:.2%}")
    return found


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--engine", type=pathlib.Path, required=True, help="the ndmesh program")
    p.add_argument("--profile", type=pathlib.Path, help="measured before; default: measure one now")
    p.add_argument("--ranks", default="2,4,8", help="sizes of meshes")
    p.add_argument("--model", action="append", help="preset or folder; repeatable; default: llama-s, llama-m and one between")
    p.add_argument("--shapes", type=int, default=0, help="only the first so many meshes of each size; 0 = all")
    p.add_argument("--seq-len", type=int, default=128)
    p.add_argument("--steps", type=int, default=9)
    p.add_argument("--timeout", type=float, default=600, help="seconds a run may take")
    p.add_argument("--measured", type=pathlib.Path, help="JSON Lines of meshes and what they took: read first, then added to")
    p.add_argument("--memory-only", action="store_true", help="judge memory alone: times mean nothing on a busy machine")
    options = p.parse_args()
    there = options.measured and options.measured.exists()
    rows = map(json.loads, options.measured.read_text().splitlines() if there else [])
    options.known = {tuple(row["mesh"]): row["got"] for row in rows}
    return options


def sweep(options, model, profile, scratch):
    rows = []
    for ranks in map(int, options.ranks.split(",")):
        for mesh in meshes_of(ranks)[:options.shapes or None]:
            got, why = measured(options, model, mesh, ranks, scratch)
            label = f"{pathlib.Path(model).name:10} {'.'.join(map(str, mesh)):8}"
            if got is None:
                print(f"{label} not run: {why}", flush=True)
                continue
            ms, live = plan(options, model, mesh, ranks, profile)
            rows.append((ms, got[0], live, got[1]))
            print(f"{label} planned {ms:8.1f} ms, measured {got[0]:8.1f} ms ({ms / got[0] - 1:+6.1%}); memory {live / 2**20:7.1f} "
                  f"of {got[1] / 2**20:7.1f} MiB ({live / got[1] - 1:+.2%})", flush=True)
    return rows


def main():
    options = parse()
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        (scratch / "text.txt").write_text("It was the best of times, it was the worst of times. " * 4000)
        (scratch / "between").mkdir()
        (scratch / "between" / "config.json").write_text(json.dumps(WIDE))
        profile = options.profile or scratch / "here.yaml"
        if not options.profile:
            done = run([options.engine, "bench", "profile", "--out", profile], 1800)
            if done.returncode:
                sys.exit(f"plan_here: {done.stderr}")
        rows = []
        for model in options.model or ["llama-s", "llama-m", str(scratch / "between")]:
            one = sweep(options, model, profile, scratch)
            rows += one
            if one:
                report(pathlib.Path(model).name, one)
    if not rows:
        return 1
    found = report("all", rows)
    good = {"rank correlation": found["rank correlation"] >= TARGETS["rank correlation"],
            "median error": found["median error"] <= TARGETS["median error"], "memory": found["memory"] <= TARGETS["memory"]}
    judged = ["memory"] if options.memory_only else list(TARGETS)
    for name in judged:
        print(f"{name}: {found[name]:.3f}, wanted {'at least' if name == 'rank correlation' else 'at most'} {TARGETS[name]}:"
              f" {'met' if good[name] else 'NOT MET'}")
    return 0 if all(good[name] for name in judged) else 1


if __name__ == "__main__":
    sys.exit(main())
