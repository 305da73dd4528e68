#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds an example against the installed library, with the flags of pkg-config alone, and runs it.

usage: check_installed.py MESON BUILD_DIR LAUNCHER SOURCE RANKS WORDS...
Installs into a temporary folder; the example must print every one of WORDS.
"""
import glob
import os
import shlex
import subprocess
import sys
import tempfile


def run(command, env=None, **options):
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=env, **options)
    if done.returncode != 0:
        sys.exit(f"{shlex.join(command)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def install(meson, build, root):
    """Returns the environment in which pkg-config and the loader find the library under root."""
    run([meson, "install", "-C", build, "--no-rebuild", "--quiet", "--destdir", root])
    found = glob.glob(os.path.join(root, "**", "ndmesh.pc"), recursive=True)
    if len(found) != 1:
        sys.exit(f"{len(found)} files ndmesh.pc in the installation")
    folder = os.path.dirname(found[0])
    return dict(os.environ, PKG_CONFIG_PATH=folder, PKG_CONFIG_SYSROOT_DIR=root,
                PKG_CONFIG_ALLOW_SYSTEM_CFLAGS="1", LD_LIBRARY_PATH=os.path.dirname(folder))


def flags_of(env):
    """--cflags and --libs, as a user's Makefile has them. The library's own sources are not among them."""
    flags = shlex.split(run(["pkg-config", "--cflags", "--libs", "ndmesh"], env))
    root = env["PKG_CONFIG_SYSROOT_DIR"]
    if not any(f.startswith("-I" + root) for f in flags) or "-lndmesh" not in flags:
        sys.exit(f"pkg-config says {flags}")
    return flags


def sanitizers(env):
    """What the library was built with, if anything: a program must be built with the same."""
    library = glob.glob(os.path.join(env["LD_LIBRARY_PATH"], "libndmesh.so.*"))[0]
    with open(library, "rb") as file:
        return ["-fsanitize=address,undefined"] if b"__asan_init" in file.read() else []


def main():
    meson, build, launcher, source, ranks, *words = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="ndm-install-") as root:
        env = install(meson, build, root)
        program = os.path.join(root, "program")
        run([os.environ.get("CC", "cc"), "-std=c11", "-Wall", "-Wextra", "-Werror", source, "-o", program,
             *sanitizers(env), *flags_of(env), "-lm"], env, cwd=root)
        said = run([launcher, "-n", ranks, program], env, cwd=root)
    missing = [w for w in words if w not in said]
    if missing:
        sys.exit(f"{source} does not print {missing}:\n{said}")
    print(said, end="")


main()
