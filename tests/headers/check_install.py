#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `meson install` leaves is enough for an embedder: builds and runs a program against it.

usage: check_install.py MESON BUILD_DIR PREFIX
Installs into a temporary folder, asks pkg-config for the flags, compiles as C and, where g++ is, C++.
"""
import glob
import os
import shutil
import subprocess
import sys
import tempfile

PROGRAM = """
#include <ndmesh/mesh.h>
#include <stdio.h>
int main(void)
{
    ndm_parallelism_config config = NDM_PARALLELISM_CONFIG_INIT;
    ndm_mesh *mesh = NULL;
    config.dp_shard = 2, config.tp = 3;
    if (ndm_mesh_create(&config, 6, &mesh) != NDM_OK)
        return 1;
    printf("%d\\n", (int)ndm_mesh_coord(mesh, 4, NDM_TP));
    ndm_mesh_destroy(mesh);
    config.dp_shard = 4; /* 4 x 3 ranks are not 6: refused, and the message crosses the library's edge */
    if (ndm_mesh_create(&config, 6, &mesh) != NDM_ERR_CONFIG || ndm_error_message()[0] == 0)
        return 2;
    return 0;
}
"""


def run(command, env=None):
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=env)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def main():
    meson, build, prefix = sys.argv[1:4]
    with tempfile.TemporaryDirectory(prefix="ndm install ") as root:  # a path with a space
        run([meson, "install", "-C", build, "--no-rebuild", "--quiet", "--destdir", root])
        found = glob.glob(os.path.join(root, "**", "ndmesh.pc"), recursive=True)
        if len(found) != 1:
            sys.exit(f"{len(found)} files ndmesh.pc in the installation")
        libdir = os.path.dirname(os.path.dirname(found[0]))
        env = dict(os.environ, PKG_CONFIG_PATH=os.path.dirname(found[0]), LD_LIBRARY_PATH=libdir)
        names = run(["pkg-config", "--libs-only-l", "ndmesh"], env).split()
        if names[:1] != ["-lndmesh"]:
            sys.exit(f"ndmesh.pc names the libraries {names}")
        include = root + prefix + "/include"
        source = os.path.join(root, "program.c")
        with open(source, "w", encoding="utf-8") as file:
            file.write(PROGRAM)
        sanitized = ["-fsanitize=address,undefined"] if b"__asan_init" in open(
            glob.glob(os.path.join(libdir, "libndmesh.so.*"))[0], "rb").read() else []
        for compiler, flags in (("gcc", ["-std=c11"]), ("g++", ["-x", "c++", "-std=c++11"])):
            if not shutil.which(compiler):
                continue
            program = os.path.join(root, "program")
            run([compiler, *flags, "-Wall", "-Wextra", "-Werror", "-I" + include, source, *sanitized,
                 "-o", program, "-x", "none", "-L" + libdir, *names], env)
            said = run([program], env).strip()
            if said != "1":
                sys.exit(f"the program built by {compiler} says {said!r}, not '1'")
    print("installed, compiled and ran")
    return 0


if __name__ == "__main__":
    sys.exit(main())
