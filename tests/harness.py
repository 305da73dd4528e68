# SPDX-License-Identifier: Apache-2.0
"""What checks from outside share: an empty folder each, ndmesh run in it, one line a check.

A check is a function of a Bench. A file that has checks puts this folder on sys.path and ends with sys.exit(main(...)).
Python's standard library only.
"""
import argparse
import json
import os
import pathlib
import shutil
import struct
import subprocess
import tempfile

SKIP = 77
TIMEOUT_S = 120


class Wrong(Exception):
    """Something does not hold."""


class Skipped(Exception):
    """It cannot be checked here."""


def expect(condition, text):
    if not condition:
        raise Wrong(text)


class Bench:
    """An empty folder, and ways to run ndmesh in it."""

    def __init__(self, options):
        self.options = options
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="ndm-check-"))
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("NDM_")}

    def ranks(self, n):
        return [self.options.mpiexec, "-n", str(n)] if n > 1 else []

    def run(self, command, code=0, env=None, **more):
        done = subprocess.run(list(map(str, command)), cwd=self.folder, env=self.env | (env or {}), timeout=TIMEOUT_S,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)
        expect(done.returncode == code,
               f"exit {done.returncode}, not {code}: {' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
        return done

    def lines(self, name):
        return [json.loads(line) for line in (self.folder / name).read_text().splitlines()]

    def write_tokens(self, name, ids, labels, starts):
        """A folder of data as tools/prepare.py writes it."""
        folder = self.folder / name
        folder.mkdir(parents=True)
        (folder / "tokens.bin").write_bytes(struct.pack(f"<{len(ids)}H", *ids))
        (folder / "labels.bin").write_bytes(struct.pack(f"<{len(labels)}i", *labels))
        (folder / "documents.bin").write_bytes(struct.pack(f"<{len(starts)}q", *starts))

    def close(self):
        shutil.rmtree(self.folder, ignore_errors=True)


def parser(text):
    made = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--engine", required=True, type=lambda p: str(pathlib.Path(p).resolve()))
    made.add_argument("--mpiexec", default="mpiexec.mpich")
    return made


def run_checks(checks, options, bench=Bench, note=""):
    """Exit status: 0 all hold, 1 not, 77 all were skipped."""
    failed = skipped = 0
    for check in checks:
        b = bench(options)
        try:
            check(b)
            print(f"ok    {check.__name__}", flush=True)
        except Wrong as e:
            failed += 1
            print(f"WRONG {check.__name__}{note}: {e}", flush=True)
        except Skipped as e:
            skipped += 1
            print(f"skipped: {check.__name__}: {e}", flush=True)
        finally:
            b.close()
    return 1 if failed else SKIP if skipped == len(checks) else 0
