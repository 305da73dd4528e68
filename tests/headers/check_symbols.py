#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every symbol that the shared library exports starts with ndm_, and what headers declare is there.

usage: check_symbols.py LIBRARY INCLUDE_DIR
"""
import os
import re
import subprocess
import sys

DECLARED = re.compile(r"^NDM_API\b[^;(]*?\b(ndm_\w+)\s*\(", re.MULTILINE)
LINKER_OWN = {"_init", "_fini", "__bss_start", "_edata", "_end"}


def exported(library):
    out = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True,
                         timeout=60, check=True).stdout
    return {line.split()[-1].split("@")[0] for line in out.splitlines() if line.strip()} - LINKER_OWN


def declared(folder):
    names = {}
    for header in sorted(os.listdir(folder)):
        if header.endswith(".h"):
            with open(os.path.join(folder, header), encoding="utf-8") as file:
                names.update({name: header for name in DECLARED.findall(file.read())})
    return names


def main():
    library, folder = sys.argv[1:3]
    symbols, names = exported(library), declared(folder)
    foreign = sorted(s for s in symbols if not s.startswith("ndm_"))
    missing = sorted(f"{name} ({header})" for name, header in names.items() if name not in symbols)
    for symbol in foreign:
        print(f"exported without the prefix: {symbol}")
    for name in missing:
        print(f"declared but not exported: {name}")
    print(f"{len(symbols)} exported, {len(names)} declared, {len(foreign)} foreign, {len(missing)} missing")
    return 1 if foreign or missing or not names else 0


if __name__ == "__main__":
    sys.exit(main())
