#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How much of FSDP's communication hides behind compute between two hosts on a slow link.

Two "hosts" on this machine (tests/hosts) are joined by links of a given rate. In turn, for some rounds:
steps as they are, the same steps without messages, and without kernels (`ndmesh bench step --only`).
Hidden is what the whole step is shorter than both alone would be: 1 - (step - compute) / communication.
Needs root and iproute2; says so and exits with 77 otherwise.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
HOSTS = os.path.join(HERE, "..", "..", "tests", "hosts", "hosts")
ALONE = ("all", "compute", "communication")


def parse_args():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--ndmesh", default="ndmesh", help="the program")
    p.add_argument("--rate", default="2gbit", help="of each link, as tc writes it")
    p.add_argument("--model", default="llama-m")
    p.add_argument("--seq-len", default="512")
    p.add_argument("--micro-batch", default="2")
    p.add_argument("--threads", default=str(max(1, len(os.sched_getaffinity(0)) // 2)),
                   help="of each host: they share this machine's cores (default: half of them)")
    p.add_argument("--steps", default="4", help="measured steps of a run")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--timeout", type=float, default=300, help="seconds of a run")
    p.add_argument("--progress-thread", default="auto,off", help="settings to compare")
    p.add_argument("--option", action="append", default=[], help="further option of train, e.g. --option=--dtype=bf16")
    return p.parse_args()


def hosts(*words, check=True, **more):
    return subprocess.run([HOSTS, *words], check=check, text=True, **more)


def step_ms(a, only, progress_thread):
    command = [os.path.abspath(a.ndmesh), "bench", "step", "--json", "--model", a.model, "--seq-len", a.seq_len,
               "--micro-batch", a.micro_batch, "--steps", a.steps, "--dp-shard", "2", "--threads", a.threads,
               "--only", only, "--progress-thread", progress_thread, *a.option]
    run = hosts("run", "2", "2", *command, check=False, capture_output=True, timeout=a.timeout)
    if run.returncode != 0:
        sys.exit(f"overlap: {' '.join(command)} ended with {run.returncode}\n{run.stderr[-2000:]}")
    return json.loads(run.stdout)["step_p50_ms"]


def main():
    a = parse_args()
    can = hosts("can", check=False, capture_output=True)
    if can.returncode != 0:
        print(can.stdout.strip())
        sys.exit(can.returncode)
    os.environ["NDM_HOSTS"] = f"no{os.getpid()}"
    times = {(t, only): [] for t in a.progress_thread.split(",") for only in ALONE}
    try:
        hosts("up", "2", a.rate)
        for _ in range(a.rounds):
            for thread, only in times:
                times[thread, only].append(step_ms(a, only, thread))
    finally:
        hosts("down", check=False)
    print(f"{a.model}, dp_shard 2 over two hosts at {a.rate}, {a.rounds} rounds, medians (ms)")
    print("progress thread      step   compute  communication  hidden  (by round)")
    for thread in a.progress_thread.split(","):
        rows = [times[thread, only] for only in ALONE]
        hidden = [1 - (whole - compute) / comm for whole, compute, comm in zip(*rows)]
        print(f"{thread:15} {statistics.median(rows[0]):9.1f} {statistics.median(rows[1]):9.1f} "
              f"{statistics.median(rows[2]):14.1f} {statistics.median(hidden):7.2f}  "
              f"({' '.join(f'{h:.2f}' for h in hidden)})")


if __name__ == "__main__":
    main()
