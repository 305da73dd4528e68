#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles every header on its own: public ones as strict C11 and C++, internal ones as gnu11.

usage: check_headers.py public|internal LANGUAGE COMPILER ROOT [CFLAGS...]
Exits 77 where the compiler is missing. Headers that need a foreign SDK that is not installed are
counted as left out. Two planted headers (one good, one that needs another) prove the check can fail.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

FOLDERS = ["core", "device", "mesh", "collectives", "kernels", "strategies", "model", "train", "cli",
           "tests", "benchmarks"]
PART = re.compile(r"Include (\S+?),? not this", re.IGNORECASE)  # a header's own words
NEEDS_SDK = [("interop_cuda.h", "cuda_runtime_api.h"), ("interop_mpi.h", "mpi.h"),
             ("cuda/", "cuda_runtime_api.h"),
             ("nccl_comm.h", "nccl.h")]
FOR_CUDA_SOURCES = ["tests/cuda_emulator/cuemu.h"]  # C++, before a .cu
STRICT = ["-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Wno-sign-conversion", "-Werror"]
FLAGS = {
    "c11": ["-x", "c", "-std=c11", "-pedantic-errors", "-Wstrict-prototypes"] + STRICT,
    "c++": ["-x", "c++", "-std=c++11", "-pedantic-errors"] + STRICT,
    "gnu11": ["-x", "c", "-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror",
              "-Wno-unused-function", "-DNDM_ISA=portable", "-DNDM_ISA_PORTABLE",
              '-DNDM_GOLDEN=""'],
}


def compiles(compiler, language, flags, text):
    """None if text compiles, else the compiler's words."""
    done = subprocess.run([compiler] + FLAGS[language] + flags + ["-fsyntax-only", "-"], input=text,
                          capture_output=True, text=True, timeout=60, check=False)
    return None if done.returncode == 0 else done.stderr


def headers(kind, root):
    if kind == "public":
        folder = os.path.join(root, "include", "ndmesh")
        return ["ndmesh/" + n for n in sorted(os.listdir(folder)) if n.endswith(".h")]
    found = []
    for folder in FOLDERS:
        for path, _, names in os.walk(os.path.join(root, folder)):
            found += [os.path.relpath(os.path.join(path, n), root) for n in names if n.endswith(".h")]
    return sorted(found)


def include_twice(header, public):
    line = f"#include <{header}>" if public else f'#include "{header}"'
    return f"{line}\n{line}\ntypedef int ndm_not_empty;\n"


def self_test(compiler, language):
    """The check sees a header that leans on another's include."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in (("good.h", "struct good;\n"), ("leans.h", "size_t leans(void);\n")):
            with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                file.write(text)
        flags = ["-I" + folder]
        good = compiles(compiler, language, flags, include_twice("good.h", False))
        leans = compiles(compiler, language, flags, include_twice("leans.h", False))
    return good is None and leans is not None


def whole_of(root, header):
    """The header that this one says it is a part of, if that one does include it; else None."""
    with open(os.path.join(root, header), encoding="utf-8") as file:
        match = PART.search(re.sub(r"\s*\n \*\s*", " ", file.read(2000)))
    if not match or not os.path.exists(os.path.join(root, match.group(1))):
        return None
    with open(os.path.join(root, match.group(1)), encoding="utf-8") as file:
        return match.group(1) if f'#include "{header}"' in file.read() else None


def has_header(compiler, language, flags, name):
    return compiles(compiler, language, flags, f"#include <{name}>\ntypedef int ndm_not_empty;\n") is None


def main():
    kind, language, compiler, root = sys.argv[1:5]
    if not shutil.which(compiler):
        print(f"{compiler} is not installed")
        return 77
    if not self_test(compiler, language):
        print("self-test failed: the check does not see a header that leans on another's include")
        return 1
    flags = ["-I" + os.path.join(root, "include")] + sys.argv[5:]
    if kind == "internal":
        flags.insert(0, "-I" + root)
    bad = left_out = 0
    found = headers(kind, root)
    for header in found:
        sdk = next((needs for part, needs in NEEDS_SDK if part in header), None)
        if sdk and not has_header(compiler, language, flags, sdk):
            print(f"left out: {header} needs {sdk}")
            left_out += 1
            continue
        if header in FOR_CUDA_SOURCES:
            print(f"left out: {header} is for .cu files")
            left_out += 1
            continue
        whole = whole_of(root, header) if kind == "internal" else None
        if whole:
            print(f"left out: {header} is a part of {whole}")
            left_out += 1
            continue
        words = compiles(compiler, language, flags, include_twice(header, kind == "public"))
        if words:
            print(f"{header} does not compile alone as {language} with {compiler}:\n{words}")
            bad += 1
    print(f"{len(found)} {kind} headers, {bad} fail, {left_out} left out")
    return 1 if bad or not found else 0


if __name__ == "__main__":
    sys.exit(main())
