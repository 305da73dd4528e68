#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Saves and loads checkpoints, and loads a folder of bf16 weights, against plain sequential writes and reads of as many
bytes, on one disk, in one run.

    run.py --engine build/cli/ndmesh [--ranks 1,2] [--hidden 512] [--rounds 3] [--folder DIR]

Rounds alternate between the two, since disks and neighbours change; medians are printed. Reads are cold: pages are dropped by
posix_fadvise first. The pause of a save behind the training stands against a copy of the state by one core.
Python's standard library only; nothing is judged: the ratios are for the reader.
"""
import argparse
import ctypes
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

CHUNK = 8 << 20


def plain_write(path, total):
    data = os.urandom(CHUNK)
    begin = time.perf_counter()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    left = total
    while left > 0:
        left -= os.write(fd, data[:min(CHUNK, left)])
    os.fsync(fd)
    os.close(fd)
    return time.perf_counter() - begin


def drop(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def plain_read(path):
    buffer = bytearray(CHUNK)
    begin = time.perf_counter()
    with open(path, "rb", buffering=0) as f:
        while f.readinto(buffer):
            pass
    return time.perf_counter() - begin


def plain_copy(total):
    source, target = ctypes.create_string_buffer(total), ctypes.create_string_buffer(total)
    ctypes.memset(source, 1, total)
    ctypes.memset(target, 2, total)
    begin = time.perf_counter()
    ctypes.memmove(target, source, total)
    return time.perf_counter() - begin


class Runs:
    def __init__(self, options, folder, ranks):
        self.options, self.folder, self.ranks = options, folder, ranks

    def train(self, *args, model="config.json"):
        head = [self.options.mpiexec, "-n", str(self.ranks)] if self.ranks > 1 else []
        metrics = self.folder / "m.jsonl"
        metrics.unlink(missing_ok=True)
        subprocess.run([*head, self.options.engine, "train", f"--model={model}", "--data=data.txt", "--seq-len=8",
                        "--quiet", f"--metrics={metrics}", *args], cwd=self.folder, check=True)
        return [json.loads(line) for line in metrics.read_text().splitlines()]

    def save(self):
        lines = self.train("--init=random", "--steps=1", "--save-dir=s")
        return next(line["save"] for line in lines if "save" in line)

    def load(self):
        for path in (self.folder / "s/step-00000001").iterdir():
            drop(path)
        return self.train("--steps=1", "--resume=s/step-00000001")[0]["run"]["load_ms"] / 1e3

    def weights(self):
        """Seconds, bytes of a folder as Hugging Face's are."""
        self.train("--init=random", "--steps=1", "--export-hf=hf", "--export-dtype=bf16")
        files = list((self.folder / "hf").iterdir())
        for path in files:
            drop(path)
        seconds = self.train("--steps=1", model="hf")[0]["run"]["load_ms"] / 1e3
        total = sum(path.stat().st_size for path in files)
        shutil.rmtree(self.folder / "hf")
        return seconds, total

    def pause(self):
        lines = self.train("--init=random", "--steps=4", "--save-every=2", "--save-dir=p")
        shutil.rmtree(self.folder / "p")
        return next(line["save"] for line in lines if "save" in line)


def prepare(folder, hidden):
    config = {"model_type": "llama", "hidden_size": hidden, "num_hidden_layers": 8, "num_attention_heads": 8,
              "num_key_value_heads": 4, "intermediate_size": 4 * hidden, "vocab_size": 8192, "hidden_act": "silu",
              "rms_norm_eps": 1e-5, "max_position_embeddings": 64, "tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "data.txt").write_text("abcdefgh" * 1000)


def measure(options, folder, ranks):
    runs, times = Runs(options, folder, ranks), {name: [] for name in ("save", "write", "load", "read", "weights", "half", "pause", "copy")}
    for _ in range(options.rounds):
        save = runs.save()
        total = save["bytes"]
        times["save"].append(save["total_ms"] / 1e3)
        times["write"].append(plain_write(folder / "plain", total))
        times["load"].append(runs.load())
        drop(folder / "plain")
        times["read"].append(plain_read(folder / "plain"))
        seconds, half = runs.weights()
        times["weights"].append(seconds)
        os.truncate(folder / "plain", half)
        drop(folder / "plain")
        times["half"].append(plain_read(folder / "plain"))
        times["pause"].append(runs.pause()["pause_ms"] / 1e3)
        times["copy"].append(plain_copy(total // ranks))
        shutil.rmtree(folder / "s")
    return total, half, {name: statistics.median(values) for name, values in times.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", required=True, type=lambda p: str(pathlib.Path(p).resolve()))
    parser.add_argument("--mpiexec", default="mpiexec.mpich")
    parser.add_argument("--ranks", default="1,2")
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", help="on the disk to measure; default: the temporary folder")
    options = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ndm-bench-", dir=options.folder))
    try:
        prepare(folder, options.hidden)
        print(f"{'ranks':>5} {'MiB':>8}  {'save':>7} {'write':>7} {'ratio':>6}  {'load':>7} {'read':>7} {'ratio':>6}  "
              f"{'weights':>7} {'read':>7} {'ratio':>6}  {'pause':>7} {'copy':>7} {'ratio':>6}   (MiB/s; pause and copy in ms)")
        for ranks in map(int, options.ranks.split(",")):
            total, half, t = measure(options, folder, ranks)
            mib, weights = total / 2 ** 20, half / 2 ** 20
            print(f"{ranks:5} {mib:8.1f}  {mib / t['save']:7.0f} {mib / t['write']:7.0f} {t['write'] / t['save']:6.2f}  "
                  f"{mib / t['load']:7.0f} {mib / t['read']:7.0f} {t['read'] / t['load']:6.2f}  "
                  f"{weights / t['weights']:7.0f} {weights / t['half']:7.0f} {t['half'] / t['weights']:6.2f}  "
                  f"{1e3 * t['pause']:7.1f} {1e3 * t['copy']:7.1f} {t['pause'] / t['copy']:6.2f}", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
