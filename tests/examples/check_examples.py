#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs an example on several meshes and compares what it prints.

usage: check_examples.py LAUNCHER PROGRAM NAME RUN...
A run is RANKS or RANKS:ARG,ARG. All runs of an example must print the same losses and norms within 1e-5; those of
strategy_plugin must say after which steps the replicas are equal.
"""
import re
import subprocess
import sys

TOLERANCE = 1e-5
AVERAGED_EVERY = 3


def run(launcher, program, spec):
    ranks, _, rest = spec.partition(":")
    command = [launcher, "-n", ranks, program] + [a for a in rest.split(",") if a]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    steps = re.findall(r"^step \d+ .*$", done.stdout, re.MULTILINE)
    if not steps:
        sys.exit(f"{' '.join(command)} printed no step:\n{done.stdout}")
    return steps


def numbers(line):
    return [float(x) for x in re.findall(r"-?\d+\.\d+", line)]


def compare(name, first, other, spec):
    if len(first) != len(other):
        sys.exit(f"{name} {spec}: {len(other)} steps, {len(first)} on one rank")
    for a, b in zip(first, other):
        for x, y in zip(numbers(a), numbers(b)):
            if abs(x - y) > TOLERANCE * max(abs(x), 1.0):
                sys.exit(f"{name} {spec}: '{b}', on one rank '{a}'")


def check_replicas(steps):
    for i, line in enumerate(steps, 1):
        want = "equal" if i % AVERAGED_EVERY == 0 else "apart"
        if not line.endswith(want):
            sys.exit(f"strategy_plugin: '{line}'; replicas should be {want}")


def main():
    launcher, program, name, *specs = sys.argv[1:]
    outputs = [run(launcher, program, spec) for spec in specs]
    if name == "strategy_plugin":
        check_replicas(outputs[0])
    elif numbers(outputs[0][0])[0] <= numbers(outputs[0][-1])[0]:
        sys.exit(f"{name}: the loss does not fall")
    for spec, output in zip(specs[1:], outputs[1:]):
        compare(name, outputs[0], output, spec)


main()
