#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Races ndmesh against PyTorch: same machine, model, weights, samples and mesh, in turn.

Every round runs both on every shape; a row's ratio is the median of its rounds' ratios, each of runs
that followed one another, so that a slow hour hits both. Losses are compared step by step. Without
PyTorch it says so and exits with 77.
"""
import argparse
import array
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
AXES = ("dp_replicate", "dp_shard", "cp", "tp")
SKIPPED = 77
LOSS_LIMIT = 1e-4  # relative; fp32 drifts apart by some 1e-6 in a few steps

# preset: model, tokens of a sample, samples of a data-parallel rank, measured steps
PRESETS = {
    "tiny": ("llama-tiny", 64, 2, 3),
    "S": ("llama-s", 256, 4, 12),
    "M": ("llama-m", 512, 2, 5),
    "L": ("llama-l", 512, 1, 3),
}
VOCABULARY = {"llama-tiny": 256, "llama-s": 256, "llama-m": 8192, "llama-l": 32000}

SHAPES = {
    "one": {},
    "dp_replicate_2": {"dp_replicate": 2},
    "dp_shard_2": {"dp_shard": 2},
    "tp_2": {"tp": 2},
    "cp_2": {"cp": 2},
    "dp_shard_2_tp_2": {"dp_shard": 2, "tp": 2},
    "hsdp_2_2": {"dp_replicate": 2, "dp_shard": 2},
}


def parse_args(argv=None):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--ndmesh", default="ndmesh", help="the program")
    p.add_argument("--python", default=sys.executable, help="interpreter that has torch")
    p.add_argument("--presets", default="S,M,L", help=", ".join(PRESETS))
    p.add_argument("--shapes", default=",".join(SHAPES), help=", ".join(SHAPES))
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--steps", type=int, help="measured steps of a run; default by preset")
    p.add_argument("--warmup-steps", type=int, default=3, help="steps before them: PyTorch's are slow")
    p.add_argument("--compile", action="store_true", help="also PyTorch compiled, where tp is 1")
    p.add_argument("--timeout", type=float, default=900, help="seconds of a run")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--json", metavar="FILE", help="write all runs")
    a = p.parse_args(argv)
    a.presets, a.shapes = a.presets.split(","), a.shapes.split(",")
    for names, known, what in ((a.presets, PRESETS, "preset"), (a.shapes, SHAPES, "shape")):
        for name in names:
            if name not in known:
                p.error(f"there is no {what} '{name}'; there are {', '.join(known)}")
    return a


# ---- what both get -----------------------------------------------------------------------------------

def ranks_of(shape):
    n = 1
    for size in shape.values():
        n *= size
    return n


def write_tokens(path, vocabulary, count, seed):
    draw = random.Random(seed)
    with open(path, "wb") as f:
        array.array("H", (draw.randrange(vocabulary) for _ in range(count))).tofile(f)


def prepare(a, preset, folder):
    """Tokens, and first weights as ndmesh draws them."""
    model, seq_len, micro_batch, steps = PRESETS[preset]
    steps = (a.steps or steps) + a.warmup_steps
    most = max(ranks_of(SHAPES[name]) for name in a.shapes)
    data, weights = os.path.join(folder, preset + ".bin"), os.path.join(folder, preset)
    write_tokens(data, VOCABULARY[model], most * micro_batch * steps * seq_len + 1, a.seed)
    subprocess.run([a.ndmesh, "train", "--model", model, "--data", data, "--seq-len", str(seq_len),
                    "--steps", "0", "--seed", str(a.seed), "--export-hf", weights, "--export-dtype",
                    "fp32", "--quiet"], check=True)
    return {"model": weights, "data": data, "seq-len": seq_len, "micro-batch": micro_batch, "steps": steps}


def flags(values):
    return [part for key, value in values.items() for part in ("--" + key.replace("_", "-"), str(value))]


def threads_of(shape):
    return max(1, len(os.sched_getaffinity(0)) // ranks_of(shape))


def torch_command(a, run, shape, compiled):
    n = ranks_of(shape)
    start = [a.python] if n == 1 else [a.python, "-m", "torch.distributed.run", "--nproc-per-node", str(n)]
    return (start + [os.path.join(HERE, "torch_llama.py")] + flags(run) + flags(shape) +
            ["--threads", str(threads_of(shape))] + (["--compile"] if compiled else []))


def ndmesh_command(a, run, shape, metrics):
    n = ranks_of(shape)
    mesh = {axis: shape.get(axis, 1) for axis in AXES}
    return ([a.ndmesh, "train"] + flags(run) + flags(mesh) + ["--metrics", metrics, "--quiet"] +
            (["--ranks", str(n)] if n > 1 else ["--threads", str(threads_of(shape))]))


def flop_of_a_token(weights, seq_len):
    """Of a step, forward and backward, without what is made again: 6 a parameter that multiplies, and causal attention."""
    with open(os.path.join(weights, "config.json"), encoding="utf-8") as f:
        c = json.load(f)
    width, layers, inner, vocabulary = (c[k] for k in ("hidden_size", "num_hidden_layers", "intermediate_size", "vocab_size"))
    head = c.get("head_dim") or width // c["num_attention_heads"]
    q, kv = c["num_attention_heads"] * head, c["num_key_value_heads"] * head
    layer = width * (2 * q + 2 * kv) + 3 * width * inner
    return 6 * (layers * layer + vocabulary * width) + 6 * layers * q * seq_len


def fma_peak(a):
    """GFLOP/s of fused multiply-adds by all cores, now."""
    command = [a.ndmesh, "bench", "step", "--model", "llama-tiny", "--seq-len", "8", "--steps", "1", "--json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["fma_peak_gflops"]


# ---- a run -------------------------------------------------------------------------------------------

def pss_mib(root):
    """Resident memory of a process and all below it; pages that several share count once."""
    parents, total = {}, 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as f:
                parents[int(pid)] = int(f.read().rsplit(")", 1)[1].split()[1])
        except OSError:
            pass
    tree = [root]
    for pid in tree:
        tree += [child for child, parent in parents.items() if parent == pid]
    for pid in tree:
        try:
            with open(f"/proc/{pid}/smaps_rollup", encoding="utf-8") as f:
                total += sum(int(line.split()[1]) for line in f if line.startswith("Pss:"))
        except OSError:
            pass
    return total / 1024


def steps_done(path):
    try:
        with open(path, encoding="utf-8") as f:
            return f.read().count('"step"')
    except FileNotFoundError:
        return 0


def watch(process, steps, until, memory):
    """The most while there are fewer than `until` steps: two at least, since a first one begins without an optimizer's state. Counting pages
    stops whoever owns them, for 20 ms of 4 GiB: not in steps that are measured."""
    while process.poll() is None and steps_done(steps) < until:
        memory[0] = max(memory[0], pss_mib(process.pid))
        time.sleep(0.2)


def run_child(command, timeout, steps, until, out):
    """Wall seconds, and the most memory in MiB before step `until` + 1; `steps`: the file that tells of steps, `out`: for what it prints."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("NDM_")}
    start, memory = time.monotonic(), [0.0]
    with open(out, "w", encoding="utf-8") as f:
        process = subprocess.Popen(command, stdout=f, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL, env=environment)
    watcher = threading.Thread(target=watch, args=(process, steps, until, memory))
    watcher.start()
    try:
        _, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired as e:
        process.terminate()
        process.communicate()
        raise RuntimeError(f"not done after {timeout} s") from e
    finally:
        watcher.join()
    if process.returncode != 0:
        last = (err.strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(f"exit code {process.returncode}: {last}")
    return time.monotonic() - start, memory[0]


def steps_of(text):
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return [line for line in lines if "step" in line]


def measure(a, runner, run, shape, folder):
    """One run as a record; "error" says why there is none."""
    metrics, out = os.path.join(folder, "metrics.jsonl"), os.path.join(folder, "out.txt")
    if runner == "ndmesh":
        command = ndmesh_command(a, run, shape, metrics)
    else:
        command = torch_command(a, run, shape, runner == "torch compiled")
    try:
        for old in (metrics, out):
            pathlib.Path(old).unlink(missing_ok=True)
        lines = metrics if runner == "ndmesh" else out
        seconds, memory = run_child(command, a.timeout, lines, max(2, a.warmup_steps), out)
        with open(lines, encoding="utf-8") as f:
            steps = steps_of(f.read())
    except (RuntimeError, OSError) as e:
        return {"error": str(e)}
    if len(steps) != run["steps"]:
        return {"error": f"{len(steps)} steps of {run['steps']}"}
    return {"ms": statistics.median(s["step_ms"] for s in steps[a.warmup_steps:]),
            "gflops_peak": fma_peak(a) if runner == "ndmesh" else None,
            "flop_of_a_token": flop_of_a_token(run["model"], run["seq-len"]),
            "losses": [s["loss"] for s in steps], "tokens": steps[0]["tokens"], "memory_mib": memory,
            "outside_s": seconds - sum(s["step_ms"] for s in steps) / 1e3}


# ---- results -----------------------------------------------------------------------------------------

def loss_difference(one, other):
    return max(abs(x - y) / abs(y) for x, y in zip(one["losses"], other["losses"]))


def best_peer(rounds, i):
    """The faster of PyTorch's runs of a round, None if none ended well."""
    good = [runs[i] for name, runs in rounds.items() if name != "ndmesh" and "error" not in runs[i]]
    return min(good, key=lambda run: run["ms"], default=None)


def summarize(rounds):
    """A row from {"ndmesh": [run of each round], "torch": [...], ...}."""
    whole = min(len(runs) for runs in rounds.values())  # a race may be stopped within a round
    pairs = [(best_peer(rounds, i), own) for i, own in enumerate(rounds["ndmesh"][:whole]) if "error" not in own]
    pairs = [(peer, own) for peer, own in pairs if peer]
    if not pairs:
        errors = [f"{name}: {run['error']}" for name, runs in rounds.items() for run in runs if "error" in run]
        return {"error": "; ".join(dict.fromkeys(errors))}
    ratios = [peer["ms"] / own["ms"] for peer, own in pairs]
    own_ms = statistics.median(own["ms"] for _, own in pairs)
    return {
        "torch_ms": statistics.median(peer["ms"] for peer, _ in pairs),
        "ndmesh_ms": own_ms,
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "tokens_per_s": pairs[0][1]["tokens"] / own_ms * 1e3,
        "of_peak": statistics.median(own["tokens"] / own["ms"] * own["flop_of_a_token"] / own["gflops_peak"] / 1e6
                                     for _, own in pairs),
        "memory_ratio": statistics.median(own["memory_mib"] / peer["memory_mib"] for peer, own in pairs),
        "loss_difference": max(loss_difference(own, peer) for peer, own in pairs),
    }


def print_row(preset, shape, row):
    if "error" in row:
        print(f"{preset:6} {shape:16} {row['error']}", flush=True)
        return
    rounds = " ".join(f"{r:.2f}" for r in row["ratios"])
    mark = "" if row["loss_difference"] < LOSS_LIMIT else "  LOSSES DIFFER"
    print(f"{preset:6} {shape:16} {row['torch_ms']:10.1f} {row['ndmesh_ms']:10.1f} {row['ratio']:6.2f} "
          f"({rounds}) {row['tokens_per_s']:10.1f} {row['of_peak']:7.2f} {row['memory_ratio']:7.2f} {row['loss_difference']:9.1e}"
          f"{mark}", flush=True)


def race(a, folder):
    prepared = {preset: prepare(a, preset, folder) for preset in a.presets}
    runners = ["torch", "ndmesh"] + (["torch compiled"] if a.compile else [])
    cells = [(preset, name) for preset in a.presets for name in a.shapes]
    results = {cell: {} for cell in cells}
    try:
        run_rounds(a, folder, prepared, runners, cells, results)
    except KeyboardInterrupt:
        print("stopped: what has been measured follows", file=sys.stderr)
    return {cell: rounds for cell, rounds in results.items() if "ndmesh" in rounds and "torch" in rounds}


def run_rounds(a, folder, prepared, runners, cells, results):
    for i in range(a.rounds):
        for preset, name in cells:
            for runner in runners if i % 2 == 0 else runners[::-1]:
                if runner == "torch compiled" and "tp" in SHAPES[name]:
                    continue
                run = measure(a, runner, prepared[preset], SHAPES[name], folder)
                results[preset, name].setdefault(runner, []).append(run)
                outcome = run.get("error") or f"{run['ms']:.1f} ms a step"
                print(f"round {i + 1} of {a.rounds}: {preset} {name} {runner}: {outcome}", file=sys.stderr, flush=True)


def torch_version(python):
    """None where the interpreter has no torch, or lacks what the peer needs besides."""
    check = subprocess.run([python, "-c", "import torch, numpy, safetensors; print(torch.__version__)"],
                           capture_output=True, text=True, check=False)
    return check.stdout.strip() if check.returncode == 0 else None


def report(a, results):
    """Prints the rows; returns whether all are there with equal losses."""
    print(f"{'preset':6} {'shape':16} {'torch ms':>10} {'ndmesh ms':>10} {'ratio':>6} (by round) "
          f"{'tokens/s':>10} {'of peak':>7} {'memory':>7} {'loss diff':>9}")
    rows = []
    for (preset, shape), rounds in results.items():
        row = summarize(rounds)
        print_row(preset, shape, row)
        rows.append({"preset": preset, "shape": shape, **row, "runs": rounds})
    if a.json:
        with open(a.json, "w", encoding="utf-8") as f:
            json.dump({"cores": len(os.sched_getaffinity(0)), "load": os.getloadavg(), "rows": rows}, f, indent=1)
    return all("error" not in r and r["loss_difference"] < LOSS_LIMIT for r in rows)


def main(argv=None):
    a = parse_args(argv)
    version = torch_version(a.python)
    if version is None:
        print(f"skipped: {a.python} has no torch, numpy and safetensors; to race: "
              f"python3 -m venv peers && peers/bin/pip install torch numpy safetensors, then --python "
              f"peers/bin/python", file=sys.stderr)
        return SKIPPED
    print(f"# torch {version}, {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}, "
          f"{a.rounds} rounds; memory: ndmesh / torch, all processes", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        return 0 if report(a, race(a, folder)) else 6


if __name__ == "__main__":
    sys.exit(main())
