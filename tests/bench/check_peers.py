#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The race against PyTorch without PyTorch: it skips, and a peer that is made of ndmesh itself has the same losses.

usage: check_peers.py RACE.py NDMESH
"""
import importlib.util
import json
import os
import subprocess
import sys
import tempfile

STAND_IN = """#!{python}
# Stands in for an interpreter with torch: trains with ndmesh what it is told to train.
import json, os, subprocess, sys
if sys.argv[1] == "-c":
    print("stand-in")
    sys.exit(0)
args = sys.argv[2:]
n = 1
if sys.argv[1] == "-m":
    n = sys.argv[4]
    args = sys.argv[6:]
i = args.index("--threads")
del args[i:i + 2]
path = os.environ["TMPDIR"] + "/peer.jsonl"
subprocess.run(["{ndmesh}", "train", *args, "--quiet", "--metrics", path] +
               (["--ranks", n] if n != 1 else []), check=True)
for line in open(path):
    d = json.loads(line)
    if "step" in d:
        d["loss"] += {shift}
        print(json.dumps(d))
"""


def load(path):
    spec = importlib.util.spec_from_file_location("race", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check_rows(race):
    def run(ms, loss=1.0, memory=10.0):
        return {"ms": ms, "losses": [loss, loss], "tokens": 64, "memory_mib": memory, "outside_s": 1.0,
                "gflops_peak": 100.0, "flop_of_a_token": 5e6}

    row = race.summarize({"torch": [run(20), run(30), run(50)], "torch compiled": [run(40), run(24), {"error": "x"}],
                          "ndmesh": [run(10, memory=5.0), run(10, 1.25), {"error": "lost"}]})
    assert row["ratios"] == [2.0, 2.4] and abs(row["ratio"] - 2.2) < 1e-12, row
    assert row["torch_ms"] == 22 and row["ndmesh_ms"] == 10 and row["tokens_per_s"] == 6400
    assert abs(row["of_peak"] - 6400 * 5e6 / 100e9) < 1e-12, row
    assert row["memory_ratio"] == 0.75 and row["loss_difference"] == 0.25
    row = race.summarize({"torch": [run(20), run(30)], "ndmesh": [run(10)]})  # stopped within the second round
    assert row["ratios"] == [2.0], row
    row = race.summarize({"torch": [{"error": "a"}], "ndmesh": [run(1)]})
    assert row == {"error": "torch: a"}


def check_skip(race_path, folder):
    bare = os.path.join(folder, "bare")
    with open(bare, "w", encoding="utf-8") as f:
        f.write("#!/bin/sh\necho no torch >&2\nexit 1\n")
    os.chmod(bare, 0o755)
    run = subprocess.run([sys.executable, race_path, "--python", bare], capture_output=True, text=True, check=False)
    assert run.returncode == 77 and run.stderr.startswith("skipped: ") and not run.stdout, run
    run = subprocess.run([sys.executable, race_path, "--presets", "XL"], capture_output=True, text=True, check=False)
    assert run.returncode == 2 and "XL" in run.stderr


def check_race(race_path, ndmesh, folder, shift, code):
    stand_in, out = os.path.join(folder, "stand-in"), os.path.join(folder, "race.json")
    with open(stand_in, "w", encoding="utf-8") as f:
        f.write(STAND_IN.format(python=sys.executable, ndmesh=ndmesh, shift=shift))
    os.chmod(stand_in, 0o755)
    run = subprocess.run([sys.executable, race_path, "--ndmesh", ndmesh, "--python", stand_in, "--presets", "tiny",
                          "--shapes", "one,dp_shard_2", "--rounds", "2", "--steps", "1", "--warmup-steps", "1",
                          "--json", out], capture_output=True, text=True, check=False,
                         env={**os.environ, "TMPDIR": folder})
    assert run.returncode == code, (run.returncode, run.stdout, run.stderr)
    with open(out, encoding="utf-8") as f:
        rows = json.load(f)["rows"]
    assert [r["shape"] for r in rows] == ["one", "dp_shard_2"]
    for r in rows:
        assert len(r["ratios"]) == 2 and r["ratio"] > 0
        assert (r["loss_difference"] < 1e-6) == (code == 0), r
    assert ("LOSSES DIFFER" in run.stdout) == (code != 0)


def main():
    race_path, ndmesh = sys.argv[1], os.path.abspath(sys.argv[2])
    check_rows(load(race_path))
    with tempfile.TemporaryDirectory() as folder:
        check_skip(race_path, folder)
        check_race(race_path, ndmesh, folder, 0.0, 0)
        check_race(race_path, ndmesh, folder, 0.01, 6)


if __name__ == "__main__":
    main()
