#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks checkpoints, resume, evaluation and dry runs from outside, by running ndmesh.

    check.py --engine build/cli/ndmesh --mpiexec mpiexec.mpich CHECK...      names of the functions below
    check.py ... kill --kills 50                                           kill -9 at 50 random moments

Exit status: 0 all hold, 1 not, 77 skipped. Python's standard library only; `transformers` wants that package.
"""
import ctypes
import fcntl
import json
import os
import pathlib
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness  # noqa: E402
from harness import TIMEOUT_S, Skipped, Wrong, expect  # noqa: E402

TENSORS = ("model.safetensors", "optimizer-exp_avg.safetensors", "optimizer-exp_avg_sq.safetensors")
COMPANIONS = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "tokenizer.model", "vocab.json",
              "merges.txt", "generation_config.json")


class Bench(harness.Bench):
    def __init__(self, options):
        super().__init__(options)
        rng = random.Random(5)
        (self.folder / "train.txt").write_bytes(bytes(rng.randrange(97, 123) for _ in range(20000)))
        (self.folder / "eval.txt").write_bytes(bytes(rng.randrange(97, 123) for _ in range(1100)))

    def command(self, mesh, *args):
        ranks = 1
        for size in mesh:
            ranks *= size
        axes = [f"--{name}={size}" for name, size in zip(("dp-replicate", "dp-shard", "cp", "tp"), mesh)]
        return [*self.ranks(ranks), self.options.engine, "train", "--model=llama-tiny", "--data=train.txt", "--seq-len=32",
                "--threads=1", "--quiet", "--timeout=60", *axes, *map(str, args)]

    def train(self, mesh, *args, code=0, **more):
        return self.run(self.command(mesh, *args), code, **more)

    def checkpoint(self, *args, code=0):
        return self.run([self.options.engine, "checkpoint", *args], code)

    def losses(self, name):
        return {line["step"]: line["loss"] for line in self.lines(name) if "step" in line}

    def same_tensors(self, a, b):
        for name in TENSORS:
            expect((self.folder / a / name).read_bytes() == (self.folder / b / name).read_bytes(),
                   f"{a}/{name} and {b}/{name} differ")


def near(a, b, limit):
    return abs(a - b) <= limit * max(abs(a), abs(b), 1e-30)


# ---- resume ----

def resume(b):
    """Stopped and resumed on the same mesh: the bits of never having stopped. Metrics are appended."""
    for mesh in ((1, 1, 1, 1), (1, 2, 1, 1), (1, 1, 1, 2), (1, 1, 2, 1), (2, 1, 1, 2)):
        name = ".".join(map(str, mesh))
        args = ("--grad-accum=2", "--lr-schedule=cosine", "--warmup=2", "--steps=5", "--save-every=3", "--shuffle", "--seed=3")
        b.train(mesh, *args, f"--save-dir={name}-whole", f"--metrics={name}.jsonl")
        whole = b.losses(f"{name}.jsonl")
        shutil.copytree(b.folder / f"{name}-whole/step-00000003", b.folder / f"{name}-part/step-00000003")
        b.train(mesh, *args, f"--save-dir={name}-part", "--resume=latest", f"--metrics={name}.jsonl")
        b.same_tensors(f"{name}-whole/step-00000005", f"{name}-part/step-00000005")
        lines = b.lines(f"{name}.jsonl")
        expect(b.losses(f"{name}.jsonl") == whole, f"{name}: losses after the resume differ")
        expect([line["step"] for line in lines if "step" in line] == [1, 2, 3, 4, 5, 4, 5], f"{name}: metrics are not appended")
        expect(lines[-1]["end"]["tokens_total"] == sum(line["tokens"] for line in lines[:6] if "step" in line),
               f"{name}: tokens_total does not go on")


def position(b):
    """The data goes on where it was, with fewer or more data-parallel ranks, and with another batch."""
    args = ("--shuffle", "--steps=5", "--lr=1e-3", "--eps=1e-3")
    b.train((1, 1, 1, 1), *args, "--grad-accum=4", "--save-dir=one", "--save-every=3", "--metrics=one.jsonl")
    want = b.losses("one.jsonl")
    for mesh, accum in (((1, 4, 1, 1), 1), ((2, 1, 1, 1), 2), ((1, 1, 1, 2), 4)):
        b.train(mesh, *args, f"--grad-accum={accum}", "--resume=one/step-00000003", "--metrics=other.jsonl")
        got = b.losses("other.jsonl")
        expect(sorted(got) == [4, 5], f"{mesh}: steps {sorted(got)}")
        expect(all(near(got[s], want[s], 1e-5) for s in got), f"{mesh}: {got} is not {want}")
        (b.folder / "other.jsonl").unlink()
    b.train((1, 2, 1, 1), *args, "--grad-accum=1", "--resume=one/step-00000003", "--save-dir=smaller")
    state = json.loads((b.folder / "smaller/step-00000005/trainer.json").read_text())
    expect(state["samples"] == 3 * 4 + 2 * 2, f"{state['samples']} samples are used, not 16")


def folder_of(b, name, tokens, masked, starts):
    """A folder as tools/prepare.py writes it, of random tokens; the first `masked` of each document have no label."""
    rng = random.Random(name)
    ids = [rng.randrange(97, 123) for _ in range(tokens)]
    begin = [max(s for s in starts if s <= i) for i in range(tokens)]
    b.write_tokens(name, ids, [-100 if i - begin[i] < masked else ids[i] for i in range(tokens)], starts)


def mixture(b):
    """Sources mixed by weight: the same samples on every mesh, and after a resume with other ranks; flags or YAML say it."""
    folder_of(b, "chat", 700, 5, range(0, 700, 23))
    folder_of(b, "code", 300, 0, [0, 150])
    (b.folder / "run.yaml").write_text("datasets:\n- path: chat\n  weight: 0.6\n- path: code\n  weight: 0.25\n"
                                       "- {path: train.txt, weight: 0.15}\n")
    args = ("--shuffle", "--steps=6", "--eps=1e-3")
    mixed = b.command((1, 1, 1, 1), *args, "--grad-accum=4", "--save-dir=one", "--save-every=3", "--metrics=one.jsonl")
    mixed[mixed.index("--data=train.txt")] = "--data=chat:0.6,code:0.25,train.txt:0.15"
    b.run(mixed)
    want = {line["step"]: (line["loss"], line["tokens"]) for line in b.lines("one.jsonl") if "step" in line}
    expect(len(set(w[1] for w in want.values())) > 1, "no step has masked labels")
    for mesh, accum, first in (((1, 4, 1, 1), 1, 1), ((2, 1, 1, 2), 2, 4), ((1, 2, 2, 1), 2, 4)):
        again = b.command(mesh, *args, f"--grad-accum={accum}", "--metrics=other.jsonl",
                          *(["--resume=one/step-00000003"] if first > 1 else []))
        again[again.index("--data=train.txt")] = "run.yaml"
        b.run(again)
        got = {line["step"]: (line["loss"], line["tokens"]) for line in b.lines("other.jsonl") if "step" in line}
        expect(sorted(got) == list(range(first, 7)), f"{mesh}: steps {sorted(got)}")
        expect(all(near(got[s][0], want[s][0], 1e-5) and got[s][1] == want[s][1] for s in got), f"{mesh}: {got} is not {want}")
        (b.folder / "other.jsonl").unlink()


def latest(b):
    """`latest` starts anew where there is nothing, and says what it needs."""
    b.train((1, 1, 1, 1), "--steps=1", "--save-dir=none-yet", "--resume=latest")
    expect((b.folder / "none-yet/step-00000001").is_dir(), "no checkpoint at the end")
    told = b.train((1, 1, 1, 1), "--steps=1", "--save-dir=none-yet", "--resume=latest", "--no-quiet").stderr
    expect("goes on from none-yet/step-00000001, after step 1: no step is left" in told, f"what is done is not said: {told}")
    expect("--save-dir" in b.train((1, 1, 1, 1), "--steps=1", "--resume=latest", code=2).stderr, "no word of --save-dir")
    b.train((1, 1, 1, 1), "--steps=1", "--resume=nowhere", code=1)
    b.train((1, 1, 1, 1), "--steps=2", "--resume=none-yet", "--save-dir=other")
    expect((b.folder / "other/step-00000002").is_dir(), "a folder of checkpoints was not taken")


def waited(b):
    """A run that starts while another still ends goes on from the last one that the other saves."""
    for mesh, more in (((1, 1, 1, 1), ()), ((1, 2, 1, 1), ("--save-local",))):
        shutil.rmtree(b.folder / "w", ignore_errors=True)
        b.train(mesh, "--steps=2", "--save-dir=w", "--save-every=1", "--no-save-async")
        (b.folder / "w/step-00000002").rename(b.folder / "last")
        with open(b.folder / "w/.lock", "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            process = start(b, mesh, "--steps=3", "--save-dir=w", "--resume=latest", "--metrics=m.jsonl", *more)
            time.sleep(1)
            expect(process.poll() is None, f"the run did not wait: {process.returncode}")
            (b.folder / "last").rename(b.folder / "w/step-00000002")
        error = process.communicate(timeout=TIMEOUT_S)[1]
        expect(process.returncode == 0, error)
        expect(sorted(b.losses("m.jsonl")) == [3], f"{mesh}: not the last one: {sorted(b.losses('m.jsonl'))}")
        expect(not (b.folder / "w/.lock").exists(), "the lock is still there")
        (b.folder / "m.jsonl").unlink()


def retain(b):
    b.train((1, 1, 1, 1), "--steps=7", "--save-every=2", "--save-dir=s", "--save-total-limit=2")
    names = sorted(p.name for p in (b.folder / "s").iterdir())
    expect(names == ["step-00000006", "step-00000007"], f"{names} are left")


# ---- disks of hosts ----

class Host:
    """A host of its own, as ndmesh sees it: another UTS namespace, and a folder that the others do not use."""

    def __init__(self, b, name):
        self.folder = b.folder / name
        self.folder.mkdir()
        shutil.copy(b.folder / "train.txt", self.folder)
        self.sleeper = subprocess.Popen(["unshare", "--uts", "sleep", "300"], stderr=subprocess.DEVNULL)
        self.enter = ["nsenter", "-t", str(self.sleeper.pid), "--uts"]

    def works(self):
        time.sleep(0.2)
        return self.sleeper.poll() is None and subprocess.run([*self.enter, "true"], stderr=subprocess.DEVNULL).returncode == 0


def on_hosts(b, hosts, mesh, *args, code=0):
    """Two ranks on each host."""
    command, line = b.command(mesh, *args)[3:], [b.options.mpiexec]
    for host in hosts:
        line += [":"] * (host is not hosts[0]) + ["-n", "2", "-wdir", host.folder, *host.enter, *command]
    return b.run(line, code)


def steps_of(host):
    return sorted(p.name for p in (host.folder / "s").iterdir())


def check_hosts(b, hosts):
    args, mesh = ("--save-dir=s", "--save-local", "--save-every=2", "--save-total-limit=1", "--metrics=m.jsonl"), (2, 2, 1, 1)
    on_hosts(b, hosts, mesh, "--steps=6", *args)
    for host in hosts:  # the one before stays until all are known to have the newest
        expect(steps_of(host) == ["step-00000004", "step-00000006"], f"{steps_of(host)}")
        b.checkpoint("verify", host.folder / "s/step-00000006")
        b.same_tensors(host.folder / "s/step-00000006", hosts[0].folder / "s/step-00000006")
    shutil.rmtree(hosts[1].folder / "s/step-00000006")  # as if killed between the two
    on_hosts(b, hosts, mesh, "--steps=6", *args, "--resume=latest")
    expect([line["step"] for line in b.lines(hosts[0].folder / "m.jsonl") if "step" in line] == [1, 2, 3, 4, 5, 6, 5, 6],
           "not the newest that both hosts have")
    shutil.rmtree(hosts[0].folder / "s")
    text = on_hosts(b, hosts, mesh, "--steps=7", *args, "--resume=latest", code=1).stderr
    expect("has none" in text, f"no word of the host without checkpoints: {text}")
    text = on_hosts(b, hosts, (1, 4, 1, 1), "--steps=1", *args, code=3).stderr
    expect("need a whole replica on each" in text and "2 of the 4 ranks of replica 0" in text, f"not refused: {text}")
    text = on_hosts(b, hosts, mesh, "--steps=2", "--save-dir=t", code=1).stderr
    expect("--save-local" in text, f"no word of --save-local: {text}")


def local(b):
    """With --save-local every host saves a whole checkpoint, and the newest that all have is gone on from."""
    for name, more in (("all", ()), ("own", ("--save-local",))):
        b.train((2, 2, 1, 1), "--steps=2", f"--save-dir={name}", *more)
    b.same_tensors("all/step-00000002", "own/step-00000002")
    hosts = [Host(b, "a"), Host(b, "b")]
    try:
        if all([host.works() for host in hosts]):
            check_hosts(b, hosts)
        else:
            print("      one host only: there are no UTS namespaces to be had", flush=True)
    finally:
        for host in hosts:
            host.sleeper.kill()
            host.sleeper.wait()


# ---- damage ----

def corrupt(b):
    """One wrong byte anywhere: verify and resume end with 6 and name the file; a file cut short is passed over."""
    b.train((1, 1, 1, 1), "--steps=2", "--save-every=1", "--save-dir=s")
    good, bad = b.folder / "s/step-00000002", b.folder / "bad"
    rng = random.Random(b.options.seed)
    for name in sorted(p.name for p in good.iterdir()):
        shutil.rmtree(bad, ignore_errors=True)
        shutil.copytree(good, bad)
        blob = bytearray((bad / name).read_bytes())
        at = rng.randrange(len(blob))
        if name == "trainer.json":  # white space does not count; a digit of the step does
            at = blob.index(b'"step": 2') + 8
        blob[at] ^= 1
        (bad / name).write_bytes(blob)
        text = f"{name}, byte {at}"
        done = subprocess.run([b.options.engine, "checkpoint", "verify", "--json", bad], capture_output=True, text=True, timeout=60)
        expect(done.returncode == 6, f"{text}: exit {done.returncode}")
        said = json.loads(done.stdout)
        expect(not said["holds"] and len(said["faults"]) == 1 and name in said["faults"][0], f"{text}: {said}")
        expect(name in done.stderr, f"{text}: not named in {done.stderr}")
        if name.endswith(".safetensors"):
            done = b.train((1, 1, 1, 2), "--steps=3", f"--resume={bad}", code=6)
            expect(name in done.stderr and "tensor '" in done.stderr, f"{text}: not named in {done.stderr}")
    shutil.rmtree(bad)
    shutil.copytree(good, bad)
    (bad / "checksums.json").unlink()
    for flags in (), ("--json",):
        done = subprocess.run([b.options.engine, "checkpoint", "verify", *flags, bad], capture_output=True, text=True, timeout=60)
        expect(done.returncode == 6 and "checksums.json: No such file" in done.stdout, f"no checksums: {done}")
    with open(good / "model.safetensors", "r+b") as f:
        f.truncate(1000)
    b.train((1, 1, 1, 1), "--steps=2", "--save-dir=s", "--resume=latest", "--metrics=m.jsonl")
    expect(sorted(b.losses("m.jsonl")) == [2], "the damaged checkpoint was taken for the newest")


def full(b):
    """A file-size limit stands for a full disk: told, the last one intact, training goes on; --save-strict ends it."""
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100000, 100000))

    b.train((1, 1, 1, 1), "--steps=2", "--save-dir=s")
    args = ("--steps=6", "--save-dir=s", "--save-every=2", "--resume=latest")
    done = b.train((1, 1, 1, 1), *args, "--metrics=m.jsonl", code=1, preexec_fn=limit)  # shared memory is a file too
    expect("step 4 is not saved" in done.stderr and "File too large" in done.stderr, done.stderr)
    saves = [line["save"] for line in b.lines("m.jsonl") if "save" in line]
    expect([(s["step"], s["status"]) for s in saves] == [(4, "failed"), (6, "failed")], f"{saves}")
    expect(sorted(b.losses("m.jsonl")) == [3, 4, 5, 6], "training did not go on")
    done = b.train((1, 1, 1, 1), *args, "--save-strict", "--no-save-async", "--metrics=n.jsonl", code=1, preexec_fn=limit)
    expect(sorted(b.losses("n.jsonl")) == [3, 4], "--save-strict did not end the run")
    expect([p.name for p in (b.folder / "s").iterdir()] == ["step-00000002"], "something is left of failed saves")
    b.checkpoint("verify", "s/step-00000002")


def mount_small(path, size):
    """A tmpfs that goes with this process."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x00020000) != 0:  # CLONE_NEWNS
        raise Skipped(f"no mount namespace: {os.strerror(ctypes.get_errno())}")
    for command in (["mount", "--make-rprivate", "/"], ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path]):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode:
            raise Skipped(f"{' '.join(map(str, command))}: {done.stdout.strip()}")


def full_disk(b):
    """A full file system, seen ahead or only when it is written to: one error, training goes on or ends, the last one
    loads; with room again, saves go on."""
    disk, mesh = b.folder / "disk", (1, 2, 1, 1)
    disk.mkdir()
    mount_small(disk, 16 << 20)
    b.train(mesh, "--steps=2", "--save-dir=disk/s", "--metrics=first.jsonl")
    bytes_ = next(line["save"]["bytes"] for line in b.lines("first.jsonl") if "save" in line)
    room = os.statvfs(disk)
    (disk / "other").write_bytes(bytes(room.f_bavail * room.f_frsize - bytes_ // 2))
    args = ("--save-dir=disk/s", "--save-every=2", "--resume=latest")
    unseen = {"LD_PRELOAD": b.options.roomy}
    for i, (more, says, env) in enumerate((((), "does not fit", {}), ((), "No space left on device", unseen),
                                           (("--save-strict",), "No space left on device", unseen))):
        done = b.train(mesh, *args, *more, "--steps=6", f"--metrics={i}.jsonl", code=1, env=env)
        saves = [(line["save"]["step"], line["save"]["status"]) for line in b.lines(f"{i}.jsonl") if "save" in line]
        expect(says in done.stderr and done.stderr.count("is not saved") == len(saves), done.stderr)
        expect(saves == [(4, "failed"), (6, "failed")][:1 if more else 2], f"{saves}")
        expect(max(b.losses(f"{i}.jsonl")) == 6 or more, "training did not go on")
        expect([p.name for p in (disk / "s").iterdir()] == ["step-00000002"], "something is left of failed saves")
        b.checkpoint("verify", "disk/s/step-00000002")
    (disk / "other").unlink()
    b.train(mesh, *args, "--steps=4", "--metrics=last.jsonl")
    expect(sorted(b.losses("last.jsonl")) == [3, 4], "the last one was not gone on from")
    b.checkpoint("verify", "disk/s/step-00000004")


# ---- processes that end ----

def children(pid):
    found = []
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and int((pathlib.Path("/proc") / entry / "stat").read_text().rsplit(")", 1)[1].split()[1]) == pid:
                found.append(int(entry))
        except (OSError, ValueError, IndexError):
            continue
    return found


def tree(pid):
    return [pid] + [p for child in children(pid) for p in tree(child)]


def start(b, mesh, *args):
    return subprocess.Popen(b.command(mesh, *args), cwd=b.folder, env=b.env, stdin=subprocess.DEVNULL,
                            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def wait_for(what, condition, process):
    until = time.monotonic() + TIMEOUT_S
    while not condition():
        if process.poll() is not None:
            raise Wrong(f"ended with {process.returncode} before {what}: {process.stderr.read()}")
        expect(time.monotonic() < until, f"no {what}")
        time.sleep(0.01)


def kill(b):
    """kill -9 at random moments of a run that saves all the time: whatever has a name verifies, the newest resumes."""
    rng, hits = random.Random(b.options.seed), 0
    for i in range(b.options.kills):
        mesh = ((1, 1, 1, 1), (1, 2, 1, 1))[i % 2]
        args = ("--steps=1000000", "--save-every=1", "--save-dir=k", "--save-total-limit=3", "--resume=latest")
        process = start(b, mesh, *args)
        before = newest(b.folder / "k")
        wait_for("a new checkpoint", lambda: newest(b.folder / "k") > before, process)
        time.sleep(rng.random() * 0.5)
        for pid in tree(process.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        process.communicate(timeout=TIMEOUT_S)
        time.sleep(0.05)
        hits += any(p.name.startswith(".step-") for p in (b.folder / "k").iterdir())
        for path in (b.folder / "k").glob("step-*"):
            b.checkpoint("verify", path)
        last = newest(b.folder / "k")
        expect(last > before, "the newest went away")
        b.train((1, 1, 1, 1), f"--steps={last + 1}", "--save-dir=k", "--resume=latest", "--metrics=m.jsonl")
        expect(max(b.losses("m.jsonl")) == last + 1 and newest(b.folder / "k") == last + 1, "the newest was not resumed")
        (b.folder / "m.jsonl").unlink()
    print(f"{b.options.kills} kills, {hits} of them in a save")


def newest(folder):
    return max((int(p.name[5:]) for p in folder.glob("step-*")), default=-1)


def signals(b):
    """The first signal finishes the step, saves, and ends with 130 or 143; the second ends at once."""
    for mesh in ((1, 1, 1, 1), (1, 2, 1, 1)):
        for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
            shutil.rmtree(b.folder / "s", ignore_errors=True)
            process = start(b, mesh, "--steps=1000000", "--save-dir=s", "--metrics=m.jsonl")
            metrics = b.folder / "m.jsonl"
            wait_for("a step", lambda: metrics.exists() and '{"step"' in metrics.read_text(), process)
            process.send_signal(number)
            error = process.communicate(timeout=TIMEOUT_S)[1]
            expect(process.returncode == code, f"{mesh}, signal {number}: exit {process.returncode}, not {code}: {error}")
            end = b.lines("m.jsonl")[-1]["end"]
            expect(end["status"] == "stopped" and newest(b.folder / "s") == end["steps"], f"{end}, {newest(b.folder / 's')}")
            b.checkpoint("verify", "s")
            metrics.unlink()
    process = start(b, (1, 1, 1, 1), "--steps=1", "--save-dir=t", "--grad-accum=200000", "--metrics=m.jsonl")
    wait_for("metrics", lambda: (b.folder / "m.jsonl").exists(), process)
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    expect(process.poll() is None, "the first signal did not wait for the step")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    expect(process.returncode == -signal.SIGTERM, f"after the second signal: {process.returncode}")


def early_signals(b):
    """A signal before the first step ends the run with 130 or 143 as well, and one line."""
    os.mkfifo(b.folder / "wait")  # a file of options that nobody writes
    for mesh in ((1, 1, 1, 1), (1, 2, 1, 1)):
        for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
            process = start(b, mesh, "--steps=1", "wait")
            time.sleep(0.7)
            expect(process.poll() is None, "the run did not wait")
            process.send_signal(number)
            error = process.communicate(timeout=TIMEOUT_S)[1]
            expect(process.returncode == code, f"{mesh}, signal {number}: exit {process.returncode}, not {code}: {error}")
            expect(error.count("ndmesh: error: ") == 1 and "BAD TERMINATION" not in error, error)


# ---- evaluation, dry run, export ----

def evaluate(b):
    """The same loss over the same tokens on every mesh, and training does not notice."""
    args = ("--steps=4", "--grad-accum=1", "--eps=1e-3")
    b.train((1, 1, 1, 1), *args, "--micro-batch=2", "--metrics=plain.jsonl")
    want = None
    for mesh, micro in (((1, 1, 1, 1), 2), ((1, 2, 1, 1), 1), ((1, 1, 1, 2), 2), ((1, 1, 2, 1), 2), ((2, 1, 1, 2), 1)):
        b.train(mesh, *args, f"--micro-batch={micro}", "--eval-data=eval.txt", "--eval-every=2", "--metrics=m.jsonl")
        evals = [line["eval"] for line in b.lines("m.jsonl") if "eval" in line]
        if want is None:
            want = evals
            expect(b.losses("m.jsonl") == b.losses("plain.jsonl"), "evaluation changes training")
        expect([(e["step"], e["tokens"]) for e in evals] == [(2, 1088), (4, 1088)], f"{mesh}: {evals}")
        expect(all(near(e["loss"], w["loss"], 1e-5) for e, w in zip(evals, want)), f"{mesh}: {evals} is not {want}")
        (b.folder / "m.jsonl").unlink()
    folder_of(b, "held-out", 330, 4, range(0, 330, 30))  # 10 samples of 32: labels at 26 of 30 places, but the first token's
    labelled = sum(1 for i in range(1, 321) if i % 30 >= 4)
    want = None
    files = ("--eval-data=held-out/tokens.bin", "--eval-labels=held-out/labels.bin", "--eval-documents=held-out/documents.bin")
    for mesh, micro, data in (((1, 1, 1, 1), 2, files), ((1, 2, 1, 2), 1, ("--eval-data=held-out",)),
                              ((2, 1, 2, 1), 1, files), ((1, 1, 1, 1), 2, ("--eval-data=held-out",))):
        b.train(mesh, *args, f"--micro-batch={micro}", *data, "--metrics=m.jsonl")
        evals = [line["eval"] for line in b.lines("m.jsonl") if "eval" in line]
        want = want or evals[0]
        expect(all(e["tokens"] == labelled and near(e["loss"], want["loss"], 1e-5) for e in evals), f"{mesh}: {evals}")
        (b.folder / "m.jsonl").unlink()


def dry(b):
    """Bytes of a dry run are those of the run, within 10 %; it writes nothing; it finds what is wrong."""
    cases = (((1, 1, 1, 1), ()), ((1, 1, 1, 2), ()), ((1, 2, 1, 2), ("--recompute=full",)), ((1, 1, 2, 1), ()),
             ((2, 2, 1, 1), ("--zero=1", "--grad-accum=2")), ((1, 2, 1, 1), ("--collectives=mpi",)))
    for mesh, more in cases:
        args = ("--steps=2", "--seq-len=128", "--micro-batch=2", *more)
        document = json.loads(b.train(mesh, *args, "--dry-run", "--json", "--save-dir=none", "--export-hf=none").stdout)
        b.train(mesh, *args, "--metrics=m.jsonl")
        peak = max(line.get("mem_peak_bytes", 0) for line in b.lines("m.jsonl"))
        expect(near(document["memory"]["peak"], peak, 0.1), f"{mesh}: {document['memory']['peak']} bytes, measured {peak}")
        expect(document["mesh"]["tp"] == mesh[3], f"{document['mesh']}")
        expect(document["memory"]["program"] > 1 << 20, f"{document['memory']}: no program")
    expect(not (b.folder / "none").exists(), "a dry run wrote something")
    text = b.train((1, 2, 1, 2), "--steps=2", "--dry-run").stdout
    for word in ("config ", "mesh ", "communicators ", "strategy ", "unit ", "op ", "kernel ", "  activations ", "  program "):
        expect(f"\n{word}" in "\n" + text, f"no {word}in\n{text}")
    b.train((1, 1, 1, 1), "--steps=1", "--export-hf=hf")
    blob = bytearray((b.folder / "hf/model.safetensors").read_bytes())
    at = blob.index(b"lm_head.weight")
    blob[at:at + 7] = b"xm_head"
    (b.folder / "hf/model.safetensors").write_bytes(blob)
    expect("lm_head.weight" in b.train((1, 1, 1, 1), "--model=hf", "--steps=1", "--dry-run", code=3).stderr, "not found")


def load(folder):
    """{name: (dtype, bytes)} of a folder's weights."""
    tensors = {}
    for path in folder.glob("model*.safetensors"):
        blob = path.read_bytes()
        length = int.from_bytes(blob[:8], "little")
        header = json.loads(blob[8:8 + length])
        header.pop("__metadata__", None)
        for name, e in header.items():
            tensors[name] = (e["dtype"], blob[8 + length + e["data_offsets"][0]:8 + length + e["data_offsets"][1]])
    return tensors


def export(b):
    """Companions of a model's folder come along; shards; a checkpoint's weights are the export's, in any type."""
    b.train((1, 1, 1, 1), "--steps=1", "--export-hf=hf")
    for name in COMPANIONS:
        (b.folder / "hf" / name).write_text(f"{{\"{name}\": 1}}")
    b.train((1, 2, 1, 1), "--model=hf", "--steps=2", "--save-dir=s", "--export-hf=out", "--export-shard-size=200K")
    b.checkpoint("export", "s", "--to", "again", "--dtype", "bf16")
    b.checkpoint("export", "s", "--to", "same", "--shard-size", "200K")
    for folder in ("out", "s/step-00000002", "again", "same"):
        for name in COMPANIONS:
            expect((b.folder / folder / name).read_text() == f"{{\"{name}\": 1}}", f"{folder}/{name}")
    shards = sorted(p.name for p in (b.folder / "out").glob("model-*"))
    expect(len(shards) > 1 and (b.folder / "out/model.safetensors.index.json").exists(), f"{shards}")
    whole, half = load(b.folder / "out"), load(b.folder / "again")
    for folder in ("same", "s/step-00000002"):
        expect(load(b.folder / folder) == whole, f"weights of out and {folder} differ")
        expect((b.folder / folder / "config.json").read_text() == (b.folder / "out/config.json").read_text(), f"{folder}/config.json")
    expect(set(whole) == set(half) and {t[0] for t in half.values()} == {"BF16"}, "not the tensors, or not bf16")
    for name, (_, raw) in whole.items():
        for (f,), (h,) in zip(struct.iter_unpack("<f", raw[:400]), struct.iter_unpack("<H", half[name][1][:200])):
            (back,) = struct.unpack("<f", struct.pack("<I", h << 16))
            expect(near(f, back, 2 ** -8), f"{name}: {f} became {back}")
    expect(json.loads((b.folder / "again/config.json").read_text())["torch_dtype"] == "bfloat16", "torch_dtype")
    document = json.loads(b.checkpoint("inspect", "s", "--json").stdout)
    expect(document["step"] == 2 and len(document["tensors"]) == 3 * len(whole), "inspect")
    expect("model.norm.weight" in b.checkpoint("inspect", "s").stdout, "inspect, as text")
    b.checkpoint("export", "s", code=2)
    b.checkpoint("inspect", "hf", code=3)


def transformers(b):
    """transformers loads exports and checkpoints, tied or not, fp32 or bf16: no missing keys, and our logits."""
    other = os.environ.pop("NDM_TEST_PYTHON", None)
    if other:
        b.close()
        os.execv(other, [other, *sys.argv])
    try:
        import torch
        from transformers import AutoModelForCausalLM
    except ImportError as e:
        raise Skipped(str(e)) from e
    import safetensors.torch

    tokens = torch.tensor(list((b.folder / "train.txt").read_bytes()))[None, :32]
    for tied in (False, True):
        config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 256,
                  "num_key_value_heads": 2, "intermediate_size": 176, "max_position_embeddings": 64, "tie_word_embeddings": tied}
        (b.folder / "config.json").write_text(json.dumps(config))
        b.train((1, 1, 1, 2), "--model=config.json", "--steps=3", f"--export-hf=fp32-{tied}", f"--save-dir=s-{tied}")
        b.train((1, 2, 1, 1), f"--model=fp32-{tied}", "--steps=0", f"--export-hf=bf16-{tied}", "--export-dtype=bf16")
        for folder, ours, theirs, limit in ((f"fp32-{tied}", "fp32", torch.float32, 1e-5),
                                            (f"s-{tied}/step-00000003", "fp32", torch.float32, 1e-5),
                                            (f"bf16-{tied}", "fp32", torch.float32, 1e-5),
                                            (f"bf16-{tied}", "bf16", torch.bfloat16, 2e-2)):
            b.train((1, 1, 1, 1), f"--model={folder}", "--steps=0", f"--dtype={ours}", "--dump-logits=logits.safetensors")
            got = safetensors.torch.load_file(b.folder / "logits.safetensors")["logits"]
            model, info = AutoModelForCausalLM.from_pretrained(b.folder / folder, dtype=theirs, output_loading_info=True)
            expect(not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], f"{folder}: {info}")
            expect(model.config.tie_word_embeddings is tied, f"{folder}: tied is {model.config.tie_word_embeddings}")
            with torch.no_grad():
                want = model(tokens).logits[0].float()
            error = ((got - want).abs().max() / want.abs().max()).item()
            expect(got.shape == want.shape and error < limit, f"{folder} in {ours}: logits differ by {error} of the largest")
            print(f"      {folder} in {ours}: logits differ by {error:.1e} of the largest", flush=True)


CHECKS = (resume, position, mixture, latest, waited, retain, local, corrupt, full, full_disk, kill, signals, early_signals, evaluate, dry, export, transformers)


def main():
    names = {check.__name__: check for check in CHECKS}
    parser = harness.parser(__doc__)
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--roomy", default="build/tests/checkpoint/libroomy.so", type=lambda p: str(pathlib.Path(p).resolve()))
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("checks", nargs="+", choices=names)
    options = parser.parse_args()
    return harness.run_checks([names[name] for name in options.checks], options, Bench, f" (seed {options.seed})")


if __name__ == "__main__":
    sys.exit(main())
