#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs benchmarks and sweeps small, and checks what they write and how they end. No time is asserted.

usage: check_bench.py NDMESH NAME...
"""
import collections
import csv
import fcntl
import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree

TIMEOUT_S = 200
MODEL = ["--model", "llama-tiny", "--seq-len", "32"]
POINTS_OF_2 = 4  # shapes of two ranks
program = None
HERE = os.path.dirname(os.path.abspath(__file__))


def environment():
    kept = {k: v for k, v in os.environ.items() if not k.startswith("NDM_")}
    return {**kept, "TMPDIR": os.getcwd()}  # what a killed sweep leaves goes with the folder


def ndmesh(*args, code=0):
    run = subprocess.run([program, *args], text=True, stdin=subprocess.DEVNULL, capture_output=True,
                         env=environment(), timeout=TIMEOUT_S)
    errors = len(re.findall(r"^ndmesh: error: ", run.stderr, re.M))
    assert run.returncode == code, f"{args}: exit code {run.returncode}, not {code}: {run.stderr}"
    assert errors == (1 if code else 0), f"{args}: {errors} error lines: {run.stderr}"
    return run


def document(*args, code=0):
    return json.loads(ndmesh(*args, "--json", code=code).stdout)


def check_context(context):
    for key in ("version", "git", "compiler", "mpi", "hwloc", "cpu", "cores", "load_1m", "ranks",
                "threads", "oversubscribed"):
        assert context.get(key) is not None, f"the context lacks {key}"


# ---- bench ------------------------------------------------------------------------------------------

BUS = {"all_gather": 0.5, "reduce_scatter": 0.5, "all_reduce": 1.0, "all_to_all": 0.5, "broadcast": 1.0,
       "send_recv": 1.0}
QUICK = ["-b", "4K", "-e", "16K", "-n", "2", "-w", "0"]


def check_collective_rows():
    d = document("bench", "collectives", "--ranks", "2", *QUICK, "--apart", "40K")
    check_context(d["context"])
    assert d["wrong"] == 0 and d["context"]["ranks"] == 2
    seen = collections.Counter(r["op"] for r in d["rows"])
    assert seen == {**dict.fromkeys(BUS, 2), "barrier": 1}, seen
    for r in d["rows"]:
        assert r["time_us"] > 0
        if r["op"] == "barrier":
            continue
        assert r["wrong"] == 0 and r["limit_us"] > 0
        assert abs(r["busbw_gbs"] / r["algbw_gbs"] - BUS[r["op"]]) < 1e-9, r
        assert abs(r["algbw_gbs"] - r["size_bytes"] / r["time_us"] * 1e-3) < 1e-9
        assert abs(r["of_limit"] - r["limit_us"] / r["time_us"]) < 1e-9
        whole = r["op"] not in ("all_reduce", "broadcast", "send_recv")
        assert r["size_bytes"] == r["count"] * 4 * (2 if whole else 1)


def check_collective_axis():
    for args in (["--memory", "plain", "-d", "bf16", "-o", "all_reduce,max"],
                 ["--in-place", "-o", "all_gather,reduce_scatter", "--collectives", "mpi"],
                 ["--in-place", "-o", "all_gather,reduce_scatter"],
                 ["-d", "int64", "-c", "3", "-o", "all_to_all"]):
        d = document("bench", "collectives", "--ranks", "4", "--tp", "2", "--axis", "tp", *QUICK, *args)
        assert d["mesh"] == {"dp_replicate": 1, "dp_shard": 2, "cp": 1, "tp": 2}
        assert (d["group_size"], d["groups"], d["wrong"]) == (2, 2, 0)


def collectives():
    check_collective_rows()
    check_collective_axis()
    d = document("bench", "collectives", "--ranks", "2", "-o", "all_gather", "--spoil", *QUICK, code=6)
    assert [r["wrong"] for r in d["rows"]] == [1, 1] and d["wrong"] == 2
    text = ndmesh("bench", "collectives", "-o", "all_reduce", *QUICK).stdout
    assert re.search(r"^op +size\(B\) +count +type +redop +time\(us\) +algbw +busbw +#wrong", text, re.M)
    rows = list(csv.DictReader(io.StringIO(
        ndmesh("bench", "collectives", "-o", "all_reduce", "--csv", *QUICK).stdout)))
    assert [r["size_bytes"] for r in rows] == ["4096", "16384"]
    d = document("bench", "collectives", "--ranks", "4", "-o", "all_reduce", "--work-us", "1000", *QUICK)
    assert d["wrong"] == 0 and all(0 < r["time_us"] for r in d["rows"]), d["rows"]


def kernels():
    quick = ["--model", "llama-tiny", "--tokens", "16", "--rounds", "1", "--min-ms", "0"]
    d = document("bench", "kernels", *quick)
    check_context(d["context"])
    assert d["wrong"] == 0
    assert len({r["op"] for r in d["rows"]}) == 22, {r["op"] for r in d["rows"]}
    assert len({r["case"] for r in d["rows"] if r["op"] == "gemm"}) == 15
    for r in d["rows"]:
        assert r["time_us"] > 0 and r["gbs"] > 0 and r["fma_peak_gflops"] > 0 and r["copy_peak_gbs"] > 0
        assert r["max_error"] <= max(r["tolerance"], 2 ** -7 if r["op"] == "cast" else 0), r
        assert (r["gflops"] is not None) == (r["op"] in ("gemm", "attention", "attention_backward")), r
    d = document("bench", "kernels", "--filter", "rope", "--spoil", *quick, code=6)
    assert d["wrong"] == len(d["rows"]) > 0 and all(r["wrong"] == 1 for r in d["rows"])
    ndmesh("bench", "kernels", "--filter", "nothing", *quick, code=2)


def step():
    for ranks, mesh in ((1, []), (2, ["--tp", "2"]), (2, ["--dp-replicate", "2", "--grad-accum", "2"])):
        launch = ["--ranks", str(ranks)] if ranks > 1 else []
        d = document("bench", "step", *MODEL, "--steps", "2", *launch, *mesh)
        check_context(d["context"])
        parts = {r["part"]: r["ms"] for r in d["rows"]}
        whole = parts.pop("step")
        assert abs(sum(parts.values()) - whole) < 1e-6 * whole, (parts, whole)
        assert parts["gemm"] > 0 and parts["attention"] > 0 and parts["optimizer"] > 0
        assert parts["exposed communication"] > 0 or ranks == 1
        assert d["checked"] and d["wrong"] == 0
        assert d["loss"] > 0 and d["tokens_per_s"] > 0 and d["gflops"] > 0
        assert 0 < d["program_bytes"] < d["pss_bytes"]
        assert abs(d["of_fma_peak"] - d["gflops"] / d["fma_peak_gflops"]) < 1e-9
    d = document("bench", "step", *MODEL, "--steps", "1", "--ranks", "2", "--spoil", code=6)
    assert d["checked"] and d["wrong"] == 1
    assert not document("bench", "step", *MODEL, "--steps", "1", "--no-check")["checked"]


def profile():
    ndmesh("bench", "profile", "--rounds", "1", "--min-ms", "0", "--iters", "1", "--profile-ranks", "2",
           "--out", "here.yaml")
    text = open("here.yaml").read()
    for part in ("cores_per_host: ", "kernels:\n", "  norm: ", "\ngemm_time: ", "\ngemm_grad_time_k: ", "attention:\n- [2, 32, ",
                 "  all_reduce:\n    2: [[1024, "):
        assert part in text, f"the profile lacks {part!r}"
    p = document("plan", "--model", "llama-tiny", "--cluster", "./here.yaml", "--ranks", "4", "--tp", "2",
                 "--micro-batch", "1", "--recompute", "none", "--seq-len", "32")
    assert p["step_ms"] > 0 and p["cluster"] == "this-machine", p
    ranks = ndmesh("train", "--ranks", "2", *MODEL, "--data", "here.yaml", "--steps", "1", "--mesh", "auto",
                   "--cluster", "./here.yaml").stderr
    assert "is the fastest plan on this-machine" in ranks, ranks


def plan_here():
    ndmesh("bench", "profile", "--rounds", "1", "--min-ms", "0", "--profile-ranks", "1", "--out", "here.yaml")
    script = os.path.join(HERE, "..", "..", "benchmarks", "plan_here.py")
    command = [script, "--engine", program, "--profile", "here.yaml", "--ranks", "4", "--model", "llama-tiny", "--seq-len",
               "32", "--memory-only", "--measured", "measured.jsonl"]
    done = subprocess.run([*command, "--steps", "3"], text=True, capture_output=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "10 meshes: rank correlation" in done.stdout and "memory: 0.000" in done.stdout, done.stdout
    again = subprocess.run([*command, "--steps", "0"], text=True, capture_output=True, timeout=TIMEOUT_S)  # measures nothing
    assert again.stdout == done.stdout, again.stdout + again.stderr


def usage():
    assert "collectives" in ndmesh("bench", code=2).stderr
    assert "did you mean kernels" in ndmesh("bench", "kernel", code=2).stderr
    assert "all_reduce" in ndmesh("bench", "collectives", "-o", "all_reduc", code=2).stderr
    assert "bench kernels" in ndmesh("bench", "collectives", "--tokens", "16", code=2).stderr
    assert "above" in ndmesh("bench", "collectives", "-b", "2M", "-e", "1M", code=2).stderr
    assert "exclude" in ndmesh("bench", "kernels", "--json", "--csv", code=2).stderr
    assert "--data" in ndmesh("bench", "step", *MODEL, "--data", "x", code=2).stderr
    assert "axis" in ndmesh("bench", "collectives", "--axis", "pq", code=2).stderr
    ndmesh("bench", "step", *MODEL, "--tp", "3", "--ranks", "3", code=3)
    assert "--ranks" in ndmesh("sweep", *MODEL, code=2).stderr
    for flags in (["--filter", "tp<="], ["--filter", "tp>9"], ["--axes", "pp"], ["--micro-batch", "0"],
                  ["--recompute", "some"]):
        ndmesh("sweep", "--ranks", "2", *MODEL, *flags, code=2)
    ndmesh("sweep", "--ranks", "2", *MODEL, "--", "--stps", "3", code=2)
    assert not os.path.exists("sweep.jsonl")
    ndmesh("sweep", "--ranks", "2", "--model", "llama-teny", code=3)


# ---- sweep ------------------------------------------------------------------------------------------

def lines(path="sweep.jsonl"):
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f.read().splitlines(True) if line.endswith("\n")]


def runs(path="sweep.jsonl"):
    return [line["run"] for line in lines(path) if "run" in line]


def small(*args):
    return ["sweep", "--ranks", "2", *MODEL, "--steps", "2", "--warmup-steps", "1", *args]


def check_svg(folder, names):
    assert set(os.listdir(folder)) == set(names), os.listdir(folder)
    for name in names:
        root = xml.etree.ElementTree.parse(os.path.join(folder, name)).getroot()
        assert root.tag.endswith("svg")


def sweep():
    files = ["--csv", "s.csv", "--markdown", "s.md", "--svg", "pictures"]
    d = document(*small("--rounds", "2", *files))
    check_context(d["context"])
    assert d["points"] == POINTS_OF_2 + 1 and d["invalid"] == 0 and d["filtered"] == 0
    assert len(d["rows"]) == POINTS_OF_2 + 1
    for r in d["rows"]:
        assert r["status"] == "ok" and r["runs"] == 2 and r["loss_difference"] < 1e-4, r
        assert r["step_p95_ms"] >= r["step_p50_ms"] > 0 and r["tflops"] > 0 and r["of_peak"] > 0
        assert r["grad_accum"] * r["micro_batch"] * r["dp_replicate"] * r["dp_shard"] == 2
        assert abs(r["tokens_per_s"] - 64 / r["step_p50_ms"] * 1e3) < 1e-6 * r["tokens_per_s"]
    speeds = [r["tokens_per_s"] for r in d["rows"]]
    assert speeds == sorted(speeds, reverse=True)
    assert len(runs()) == 2 * (POINTS_OF_2 + 1)
    orders = [[r["id"] for r in runs() if r["round"] == i] for i in range(2)]
    assert sorted(orders[0]) == sorted(orders[1])
    with open("s.csv", encoding="utf-8") as f:
        assert [float(r["tokens_per_s"]) for r in csv.DictReader(f)] == speeds
    with open("s.md", encoding="utf-8") as f:
        assert len(f.readlines()) == 2 + len(d["rows"])
    check_svg("pictures", ["heatmap-2.svg", "scaling.svg", "time.svg"])


def sweep_invalid():
    d = document("sweep", "--ranks", "3", *MODEL, "--steps", "1", "--rounds", "2")
    assert d["rules"] == [{"rule": "mesh: tp # does not divide heads #", "count": 1}], d["rules"]
    assert d["invalid"] == 1 and len(d["rows"]) == 4 and all(r["status"] == "ok" for r in d["rows"])
    assert sum(r["status"] == "invalid" for r in runs()) == 1  # it is not tried again
    d = document(*small("--rounds", "1", "--global-batch", "3", "--out", "batch.jsonl", "--axes", "dp_shard"))
    assert d["rules"][0]["rule"].startswith("sweep: global batch # is no multiple of dp #"), d["rules"]
    assert [r["reference"] for r in d["rows"]] == ["yes"]


def start(*args):
    return subprocess.Popen([program, *args], env=environment(), stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_until(condition, what):
    for _ in range(TIMEOUT_S * 20):
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"waited in vain for {what}")


def parents():
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as f:
                found[int(pid)] = int(f.read().rsplit(")", 1)[1].split()[1])
        except OSError:
            pass
    return found


def descendants(root):
    tree, found = parents(), [root]
    for pid in found:
        found += [child for child, parent in tree.items() if parent == pid]
    return found[1:]


def ranks_of(root):
    """Processes below root that train on several ranks: those have a launcher between."""
    found = []
    for pid in descendants(root):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                words = f.read().split(b"\0")
            if words[1] == b"train" and parents().get(pid) != root:
                found.append(pid)
        except (OSError, IndexError):
            pass
    return found


def alive(pids):
    tree = parents()
    return [pid for pid in pids if pid in tree]


def sweep_resume():
    args = small("--rounds", "3")
    first = start(*args)
    wait_until(lambda: len(runs()) >= 2, "two runs")
    left = descendants(first.pid)
    first.kill()
    first.communicate()
    wait_until(lambda: not alive(left), "the ranks of a killed sweep to end")
    kept = runs()
    with open("sweep.jsonl", "a", encoding="utf-8") as f:
        f.write('{"run": {"id": "torn')
    ndmesh(*args, code=2)  # the file is there
    assert "another sweep" in ndmesh(*args, "--seed", "9", "--resume", code=3).stderr
    with open("sweep.jsonl", encoding="utf-8") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        assert "another sweep writes it" in ndmesh(*args, "--resume", code=1).stderr
    for text in "notes, and no sweep", '{"steps": 3}', '{"run"':
        with open("other", "w", encoding="utf-8") as f:
            f.write(text)
        assert "no head of a sweep" in ndmesh(*small("--out", "other"), "--resume", code=3).stderr
        with open("other", encoding="utf-8") as f:
            assert f.read() == text, "another's file was written over"
    d = document(*args, "--resume", "--retry-failed")
    assert runs()[:len(kept)] == kept
    count = collections.Counter((r["id"], r["round"]) for r in runs())
    assert len(count) == 3 * (POINTS_OF_2 + 1) and set(count.values()) == {1}, count
    assert all(r["status"] == "ok" and r["runs"] == 3 for r in d["rows"])


def sweep_crash():
    s = start(*small("--rounds", "1", "--no-reference", "--axes", "tp,dp_shard", "--json", "--steps", "400"))
    victim = wait_until(lambda: ranks_of(s.pid), "ranks")[0]
    os.kill(victim, signal.SIGKILL)
    out, err = s.communicate(timeout=TIMEOUT_S)
    assert s.returncode == 0, err
    status = sorted(r["status"] for r in json.loads(out)["rows"])
    assert status == ["crashed", "ok"], status


def sweep_timeout():
    d = document(*small("--rounds", "2", "--filter", "tp==2", "--steps", "10000000", "--timeout", "1"), code=1)
    assert [r["status"] for r in d["rows"]] == ["timeout"] * 2 and len(runs()) == 2
    assert all("1 s" in r["message"] for r in runs())


def sweep_signal():
    s = start(*small("--rounds", "1", "--filter", "tp==2", "--steps", "10000000", "--no-reference"))
    ranks = wait_until(lambda: ranks_of(s.pid), "ranks")
    s.send_signal(signal.SIGINT)
    _, err = s.communicate(timeout=TIMEOUT_S)
    assert s.returncode == 130, (s.returncode, err)
    assert "--resume goes on" in err and not alive(ranks) and not runs()


def main():
    global program
    program = os.path.abspath(sys.argv[1])
    names = ("collectives", "kernels", "step", "profile", "plan_here", "usage", "sweep", "sweep_invalid", "sweep_resume",
             "sweep_crash", "sweep_timeout", "sweep_signal")
    for name in sys.argv[2:] or names:
        assert name in names, f"there is no {name}"
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            globals()[name]()
            os.chdir("/")
        print(f"{name}: holds")


if __name__ == "__main__":
    main()
