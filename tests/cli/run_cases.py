#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the command line on the cases of a JSON file: arguments in; exit code, stdout, stderr and files out.

A case: {"name", "args": [...], "code": 0, "env": {}, "input": {FILE: text}, "stdin": text, "stdout": [regex], "stderr": [regex],
"not_stdout": [regex], "not_stderr": [regex], "json": {"a.b.0": value}, "files": {FILE: [regex]}, "mpiexec": N, "closed": [FD]}. It runs in an empty
folder, on N ranks of mpiexec if that is set. What must hold
of every case: exit 0 says no error; a failure says exactly one, on stderr, and prints no result unless "partial" is set.
usage: run_cases.py NDMESH CASES.json [NAME...]
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

ERROR = re.compile(r"^ndmesh: error: ", re.M)
TIMEOUT_S = 120
MPIEXEC = shutil.which("mpiexec.mpich") or shutil.which("mpiexec.hydra") or "mpiexec"


def at(document, path):
    for key in path.split("."):
        document = document[int(key)] if isinstance(document, list) else document[key]
    return document


def environment(case):
    env = {k: v for k, v in os.environ.items() if not k.startswith("NDM_")}
    env.update(case.get("env", {}))
    return env


def check_text(what, text, patterns, wanted=True):
    for pattern in patterns:
        if bool(re.search(pattern, text, re.M)) != wanted:
            yield f"{what} {'lacks' if wanted else 'has'} /{pattern}/"


def check_json(text, expected):
    try:
        document = json.loads(text)
    except ValueError as e:
        yield f"stdout is not one JSON document: {e}"
        return
    for path, value in expected.items():
        try:
            found = at(document, path)
        except (KeyError, IndexError, TypeError, ValueError):
            yield f"json has no {path}"
            continue
        if found != value:
            yield f"json {path} is {found!r}, not {value!r}"


def check_files(folder, files):
    for name, patterns in files.items():
        path = os.path.join(folder, name)
        if not os.path.exists(path):
            yield f"no file {name}"
            continue
        with open(path, encoding="utf-8") as f:
            yield from check_text(name, f.read(), patterns)


def check(case, run, folder):
    code = case.get("code", 0)
    if run.returncode != code:
        yield f"exit code {run.returncode}, not {code}"
    errors = len(ERROR.findall(run.stderr))
    if errors != (0 if code == 0 else 1) and not case.get("own_errors"):
        yield f"{errors} error lines on stderr"
    if code != 0 and run.stdout and not case.get("partial"):
        yield "a result was printed in spite of the failure"
    yield from check_text("stdout", run.stdout, case.get("stdout", []))
    yield from check_text("stdout", run.stdout, case.get("not_stdout", []), False)
    yield from check_text("stderr", run.stderr, case.get("not_stderr", []), False)
    yield from check_text("stderr", run.stderr, case.get("stderr", []))
    if "json" in case:
        yield from check_json(run.stdout, case["json"])
    yield from check_files(folder, case.get("files", {}))


def run_case(program, case):
    with tempfile.TemporaryDirectory() as folder:
        for name, text in case.get("input", {}).items():
            with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
                f.write(text)
        launch = [MPIEXEC, "-n", str(case["mpiexec"])] if "mpiexec" in case else []
        run = subprocess.run(launch + [program] + case["args"], cwd=folder, env=environment(case), text=True,
                             input=case.get("stdin", ""), capture_output=True, timeout=TIMEOUT_S,
                             preexec_fn=lambda: [os.close(fd) for fd in case.get("closed", [])])
        faults = list(check(case, run, folder))
    if faults:
        print(f"FAILED {case['name']}: ndmesh {' '.join(case['args'])}")
        for fault in faults:
            print(f"  {fault}")
        print("  stdout: " + "\n          ".join(run.stdout.splitlines()[:40]))
        print("  stderr: " + "\n          ".join(run.stderr.splitlines()[:20]))
    return not faults


def main():
    program, path, names = os.path.abspath(sys.argv[1]), sys.argv[2], sys.argv[3:]
    with open(path, encoding="utf-8") as f:
        cases = [c for c in json.load(f) if not names or c["name"] in names]
    failed = sum(not run_case(program, case) for case in cases)
    print(f"{len(cases) - failed} of {len(cases)} cases hold")
    return 1 if failed or not cases else 0


if __name__ == "__main__":
    sys.exit(main())
