#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Examples of the documentation do what they show: commands in README.md and docs/ that need no files run, and the flags of
training are known (they run up to --print-config). Commands with "..." or a capital placeholder are left out.
usage: check_docs.py NDMESH ROOT
"""
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

COMMAND = re.compile(r"(?:^|`)(?:mpiexec\S* -n \d+ )?ndmesh ((?:mesh|plan|info|help|train)\b(?:[^`\n#|<>\\]|\\\n)*)", re.M)
PLACEHOLDER = re.compile(r"\.\.\.|(?:^|\s)[A-Z]+(?=\s|$)")
QUICK = ["--ranks", "8"]  # of a search: the last flag wins, so that it takes a moment
FEWEST = 6


def commands(root):
    for path in [root / "README.md", *sorted((root / "docs").glob("*.md"))]:
        for found in COMMAND.finditer(path.read_text(encoding="utf-8")):
            words = shlex.split(found.group(1).replace("\\\n", " "))
            alone = len(words) == 1 and words[0] not in ("info", "help")  # a verb by its name
            if not alone and not PLACEHOLDER.search(" ".join(words)):
                yield path.relative_to(root), words


def run(program, words, folder, root):
    for name in (w for w in words if w.endswith(".yaml")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes((root / name).read_bytes() if (root / name).exists() else b"")
    extra = ["--print-config"] if words[0] == "train" else QUICK if "--search" in words else []
    return subprocess.run([program, *words, *extra], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=100, env={k: v for k, v in os.environ.items() if not k.startswith("NDM_")})


def main():
    program, root = os.path.abspath(sys.argv[1]), pathlib.Path(sys.argv[2])
    ran = failed = 0
    for path, words in commands(root):
        with tempfile.TemporaryDirectory() as folder:
            done = run(program, words, pathlib.Path(folder), root)
        ran += 1
        failed += done.returncode != 0
        if done.returncode != 0:
            print(f"{path}: ndmesh {shlex.join(words)}: exit {done.returncode}\n{done.stderr}")
    print(f"{ran} commands, {failed} failed")
    return 1 if failed or ran < FEWEST else 0


if __name__ == "__main__":
    sys.exit(main())
