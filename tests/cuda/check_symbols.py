#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the cuda module takes of the engine is exported by those who load it: calls are bound late, so
that a missing one would be found in the middle of a run.

usage: check_symbols.py MODULE LOADER...
"""
import subprocess
import sys

EMULATORS = {"ndm_smem"}  # shared memory of blocks, in a library that the emulated module links


def symbols(path, which):
    out = subprocess.run(["nm", "-D", which, path], capture_output=True, text=True, timeout=60, check=True).stdout
    return {line.split()[-1].split("@")[0] for line in out.splitlines() if line.strip()}


def main():
    needed = {s for s in symbols(sys.argv[1], "--undefined-only") if s.startswith("ndm_")} - EMULATORS
    missing = [f"{loader}: {name}" for loader in sys.argv[2:] for name in sorted(needed - symbols(loader, "--defined-only"))]
    print(f"{len(needed)} needed;", "missing: " + ", ".join(missing) if missing else "all are there")
    return 1 if missing or not needed else 0


if __name__ == "__main__":
    sys.exit(main())
