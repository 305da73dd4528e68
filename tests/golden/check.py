#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the golden cases on many meshes and compares with what transformers and torch.optim computed.

    check.py --engine build/cli/ndmesh                      every case on every mesh of 1, 2, 4 and 8 ranks
    check.py --engine ... --ranks 1,2 --case llama_mqa      fewer
    check.py --engine ... --mesh 2.1.2.2 -- --zero 1        one mesh (dp_replicate.dp_shard.cp.tp), more options of train

Prints a line for each run: the largest relative errors of loss, gradient norm, learning rate, updates of weights, and (where the
engine can write them) first gradients and logits. A limit is ten times what PyTorch loses in float32, but not below LEAST.
Exit status: 0 all within, 1 not, 2 usage. Python's standard library only.
"""
import argparse
import array
import json
import math
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile

LEAST = {"loss": 5e-6, "grad_norm": 2e-5, "lr": 1e-6, "update": 2e-4, "grads": 1e-5, "logits": 1e-5}
MARGIN = 10
# In bf16 each number is off by up to 2^-9 of it; twice what the worst case shows. Updates are not judged: Adam's first steps have
# the size of the learning rate whatever the gradient, so that of a gradient that is nearly nothing the sign is chance.
BF16 = {"loss": 4e-3, "grad_norm": 3e-2, "lr": 1e-6, "update": math.inf, "grads": 0.1, "logits": 4e-2}
NOT_FLAGS = {"global_batch", "grad_accum", "optimizer", "weight_decay_on", "ignore_index", "data", "labels", "documents"}
CONFIG_REFUSED = 3
DUMPS = {"grads": "expected_grads.safetensors", "logits": "logits.safetensors"}


class Wrong(Exception):
    """The engine's output is not what was asked for, whatever the numbers."""


# ---- tensors: {name: (shape, array of float)} ----

def floats(raw, dtype, where):
    if dtype == "F32":
        values = array.array("f", raw)
        if sys.byteorder == "big":
            values.byteswap()
        return values
    if dtype == "BF16":
        return array.array("f", (struct.unpack("<f", b"\0\0" + raw[i:i + 2])[0] for i in range(0, len(raw), 2)))
    raise Wrong(f"{where} is {dtype}")


def load_file(path):
    blob = path.read_bytes()
    length = int.from_bytes(blob[:8], "little")
    header = json.loads(blob[8:8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + length + x for x in entry["data_offsets"])
        tensors[name] = (entry["shape"], floats(blob[begin:end], entry["dtype"], f"{path.name}: {name}"))
    return tensors


def load_folder(folder):
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return load_file(folder / "model.safetensors")
    files = set(json.loads(index.read_text())["weight_map"].values())
    return {name: tensor for file in files for name, tensor in load_file(folder / file).items()}


def distance(a, b):
    return math.sqrt(math.fsum((x - y) * (x - y) for x, y in zip(a, b)))


def same_tensors(got, want, what):
    if set(got) != set(want):
        raise Wrong(f"{what}: tensors {sorted(set(got) ^ set(want))[:3]} are only on one side")
    for name, (shape, _) in want.items():
        if got[name][0] != shape:
            raise Wrong(f"{what}: {name} has shape {got[name][0]}, not {shape}")


def worst_tensor(got, want, what, base=None):
    """Largest |got - want| / |want - base| over the tensors, and its name. A NaN is the worst."""
    same_tensors(got, want, what)
    worst = (0.0, "")
    for name, (_, w) in want.items():
        zero = base[name][1] if base else array.array("f", bytes(4 * len(w)))
        error = distance(got[name][1], w) / max(distance(w, zero), 1e-30)
        worst = max(worst, (math.inf if math.isnan(error) else error, name))
    return worst


# ---- cases and meshes ----

class Case:
    def __init__(self, folder):
        self.folder, self.name = folder, folder.name
        self.train = json.loads((folder / "train.json").read_text())
        self.expected = json.loads((folder / "expected.json").read_text())
        model = json.loads((folder / "config.json").read_text())
        self.heads = model.get("num_attention_heads") or model["n_head"]
        self.kv_heads = model.get("num_key_value_heads") or self.heads

    def fits(self, mesh):
        replicate, shard, cp, tp = mesh
        samples, rest = divmod(self.train["global_batch"], replicate * shard * self.train["micro_batch"])
        by_heads = self.heads % tp == 0 and (self.kv_heads % tp == 0 or tp % self.kv_heads == 0)
        return rest == 0 and samples > 0 and by_heads and (cp == 1 or self.train["seq_len"] % (2 * cp) == 0)

    def arguments(self, mesh, out, dumps):
        t = self.train
        options = {k: v for k, v in t.items() if k not in NOT_FLAGS and v is not None}
        options.update({k: self.folder / t[k] for k in ("data", "labels", "documents") if t[k]})
        options.update(zip(("dp_replicate", "dp_shard", "cp", "tp"), mesh))
        options.update(model=self.folder, metrics=out / "metrics.jsonl", export_hf=out / "hf", export_dtype="fp32",
                       grad_accum=t["global_batch"] // (mesh[0] * mesh[1] * t["micro_batch"]))
        options.update({f"dump_{what}": out / f"{what}.safetensors" for what in dumps})
        return [text for k, v in options.items() for text in ("--" + k.replace("_", "-"), str(v))]

    def limit(self, what, bf16):
        return BF16[what] if bf16 else max(LEAST[what], MARGIN * self.expected["fp32_error"].get(what, 0))

    def step_errors(self, out):
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        steps, want = [line for line in lines if "step" in line], self.expected["steps"]
        for key in ("step", "tokens"):
            if [s[key] for s in steps] != [w[key] for w in want]:
                raise Wrong(f"{key}: {[s[key] for s in steps]}, not {[w[key] for w in want]}")
        relative = lambda s, w: math.inf if s is None else abs(s - w) / max(abs(w), 1e-30)
        return {key: max(relative(s[key], w[key]) for s, w in zip(steps, want)) for key in ("loss", "grad_norm", "lr")}

    def errors(self, out, dumps):
        errors, at = self.step_errors(out), {}
        end = load_file(self.folder / "expected_weights.safetensors")
        errors["update"], at["update"] = worst_tensor(load_folder(out / "hf"), end, "export", load_folder(self.folder))
        for what in dumps:
            got, want = load_file(out / f"{what}.safetensors"), load_file(self.folder / DUMPS[what])
            errors[what], at[what] = worst_tensor(got, want, what)
        return errors, at


def meshes_of(ranks):
    divisors = [d for d in range(1, ranks + 1) if ranks % d == 0]
    return [(r, s, c, ranks // (r * s * c)) for r in divisors for s in divisors for c in divisors
            if ranks % (r * s * c) == 0]


def in_turn(meshes, place):
    """One of these meshes for each number of ranks."""
    sizes = sorted({math.prod(m) for m in meshes})
    same = [[m for m in meshes if math.prod(m) == size] for size in sizes]
    return [group[place % len(group)] for group in same]


# ---- running ----

def train(case, mesh, options, dumps, out):
    """(verdict, errors, note) of one run."""
    ranks = math.prod(mesh)
    launch = [options.mpiexec, "-n", str(ranks)] if ranks > 1 else []
    command = launch + [str(options.engine), "train"] + case.arguments(mesh, out, dumps) + options.more
    command += ["--dtype", "bf16"] if options.bf16 else []
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=options.timeout)
    except subprocess.TimeoutExpired:
        return "FAIL", {}, f"not done after {options.timeout} s"
    if done.returncode:
        said = ([s for s in done.stderr.splitlines() if "error" in s] or done.stderr.splitlines() or ["no message"])[0]
        verdict = "refused" if done.returncode == CONFIG_REFUSED and options.allow_refused else "FAIL"
        return verdict, {}, f"exit {done.returncode}: {said[:150]}"
    try:
        errors, at = case.errors(out, dumps)
    except (Wrong, OSError, KeyError, ValueError) as e:
        return "FAIL", {}, f"{type(e).__name__}: {e}"
    limits = {k: case.limit(k, options.bf16) for k in errors}
    above = [k for k, e in errors.items() if not e <= limits[k]]
    note = ", ".join(f"{k} {errors[k]:.1e} > {limits[k]:.1e} {at.get(k, '')}".rstrip() for k in above)
    return ("FAIL" if above else "ok"), errors, note


def can_dump(engine):
    """Which of its first gradients and logits train can write."""
    done = subprocess.run([str(engine), "help", "train"], capture_output=True, text=True, timeout=60)
    return [what for what in DUMPS if f"--dump-{what}" in done.stdout]


def parse():
    here = pathlib.Path(__file__).resolve().parent
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--engine", type=pathlib.Path, required=True, help="the ndmesh program")
    p.add_argument("--mpiexec", default=shutil.which("mpiexec.mpich") or shutil.which("mpiexec.hydra") or "mpiexec")
    p.add_argument("--cases", type=pathlib.Path, default=here, help="folder of cases")
    p.add_argument("--case", action="append", help="only this one; repeatable")
    p.add_argument("--ranks", default="1,2,4,8", help="sizes of meshes")
    p.add_argument("--mesh", action="append", help="only this one, as dp_replicate.dp_shard.cp.tp; repeatable")
    p.add_argument("--rotate", action="store_true", help="each case on one mesh of each size, the next case on the next mesh")
    p.add_argument("--bf16", action="store_true", help="train in bf16, with its limits")
    p.add_argument("--allow-refused", action="store_true", help="an engine that declines a mesh is not a failure")
    p.add_argument("--timeout", type=float, default=120, help="seconds a run may take")
    p.add_argument("--keep", type=pathlib.Path, help="keep what the runs write in this folder")
    p.add_argument("more", nargs="*", help="after --: more options of train")
    return p.parse_args()


def main():
    options = parse()
    cases = [Case(f.parent) for f in sorted(options.cases.glob("*/expected.json"))]
    cases = [c for c in cases if not options.case or c.name in options.case]
    meshes = [tuple(map(int, m.split("."))) for m in options.mesh or []]
    meshes = meshes or [m for n in options.ranks.split(",") for m in meshes_of(int(n))]
    dumps, count = can_dump(options.engine), {}
    columns = ["loss", "grad_norm", "update"] + dumps
    print(f"{'case':20} {'mesh':8}", *(f"{c:>9}" for c in columns), " verdict")
    for place, case in enumerate(cases):
        fitting = [m for m in meshes if case.fits(m)]
        for mesh in in_turn(fitting, place) if options.rotate else fitting:
            with tempfile.TemporaryDirectory() as scratch:
                label = ".".join(map(str, mesh))
                out = options.keep / case.name / label if options.keep else pathlib.Path(scratch)
                out.mkdir(parents=True, exist_ok=True)
                verdict, errors, note = train(case, mesh, options, dumps, out)
            count[verdict] = count.get(verdict, 0) + 1
            cells = (f"{errors[c]:9.1e}" if c in errors else f"{'-':>9}" for c in columns)
            print(f"{case.name:20} {label:8}", *cells, f" {verdict:7} {note}".rstrip(), flush=True)
    print(f"{len(cases)} cases:", ", ".join(f"{n} {v}" for v, n in sorted(count.items())) or "nothing ran")
    return 0 if count.get("ok") and not count.get("FAIL") else 1


if __name__ == "__main__":
    sys.exit(main())
