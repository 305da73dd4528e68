#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Starts training runs that must fail, and looks at how they end: all ranks within TIME_S, with one message and the documented code.

usage: run_faults.py NDMESH [--mpiexec PROGRAM] [NAME...]

A fault is a function that is given a folder with a model and data, and returns runs to check; see FAULTS at the end. Whatever happens,
no process of a run may be left. Python's standard library only.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import uuid

TIME_S = 10          # from the fault to the end of the last rank
START_S = 60         # for a run to get going on a busy machine
ERROR = re.compile(r"^(?:\[\d+\] )?ndmesh: error: (.*)$", re.M)
MODEL = {"model_type": "llama", "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "intermediate_size": 24, "vocab_size": 256, "hidden_act": "silu", "rms_norm_eps": 1e-5, "max_position_embeddings": 32,
         "tie_word_embeddings": False, "initializer_range": 0.1}


class Wrong(Exception):
    pass


class Job:
    """A run of several ranks, in a folder, all of whose processes can be found by a mark in their environment."""

    def __init__(self, folder, sections, env=None, launcher=None):
        self.mark = uuid.uuid4().hex
        command = launcher or []
        for i, (ranks, arguments) in enumerate(sections):
            command = command + ([":"] if i else []) + (["-n", str(ranks)] if launcher else []) + arguments
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("NDM_", "OMPI_", "PMI"))}
        environment.update(env or {}, FAULT_MARK=self.mark, OMP_NUM_THREADS="1")
        self.out, self.err = (tempfile.TemporaryFile("w+") for _ in range(2))
        self.process = subprocess.Popen(command, cwd=folder, env=environment, text=True, stdin=subprocess.DEVNULL,
                                        stdout=self.out, stderr=self.err, start_new_session=True)

    def members(self):
        """Processes of the job: {pid: name}."""
        found = {}
        for entry in pathlib.Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and self.mark.encode() in (entry / "environ").read_bytes():
                    state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
                    if state != "Z":
                        found[int(entry.name)] = (entry / "comm").read_text().strip()
            except OSError:
                continue  # it went, or is another's
        return found

    def ranks(self):
        return sorted(pid for pid, name in self.members().items() if name == "ndmesh")

    def wait(self, seconds):
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Wrong(f"not over after {seconds} s; still there: {self.members()}") from None
        end = time.monotonic() + 2
        while self.members() and time.monotonic() < end:
            time.sleep(0.05)
        if self.members():
            raise Wrong(f"processes are left: {self.members()}")

    def close(self):
        for pid in self.members():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()

    def text(self, file):
        file.seek(0)
        return file.read()

    def check(self, code, message):
        """Exit code, and one message: ranks that say it as well may not say another."""
        stderr, stdout = self.text(self.err), self.text(self.out)
        messages = set(ERROR.findall(stderr))
        codes = code if isinstance(code, tuple) else (code,)
        if self.process.returncode not in codes:
            raise Wrong(f"exit code {self.process.returncode}, not {code}: {stderr[-600:]}")
        if len(messages) != 1:
            raise Wrong(f"{len(messages)} messages, not one: {stderr[-900:]}")
        if not re.search(message, next(iter(messages))):
            raise Wrong(f"the message lacks /{message}/: {messages}")
        if stdout.strip():
            raise Wrong(f"a result was printed: {stdout[:200]}")


class Place:
    """A fresh folder with a model, data and a way to start runs."""

    def __init__(self, folder, program, mpiexec):
        self.folder, self.program, self.mpiexec = folder, program, mpiexec
        (folder / "model").mkdir()
        self.write_model("model", MODEL)
        (folder / "text").write_bytes(bytes(i * 7 % 251 for i in range(4000)))

    def write_model(self, name, members):
        (self.folder / name).mkdir(exist_ok=True)
        (self.folder / name / "config.json").write_text(json.dumps(members))

    def train(self, **options):
        """The command line of a short run, with options changed; None leaves one out."""
        given = {"model": "model", "init": "random", "data": "text", "seq_len": 16, "steps": 3, "quiet": "true"}
        given.update(options)
        flags = [f"--{k.replace('_', '-')}={v}" for k, v in given.items() if v is not None]
        return [str(self.program), "train"] + flags

    def start(self, ranks, arguments=None, extra=(), launcher=(), env=None, sections=None, **options):
        sections = sections or [(ranks, (arguments or self.train(**options)) + list(extra))]
        return Job(self.folder, sections, env, [self.mpiexec, *launcher] if ranks else None)

    def fails(self, ranks, code, message, **how):
        job = self.start(ranks, **how)
        try:
            job.wait(TIME_S)
            job.check(code, message)
        finally:
            job.close()

    def running(self, ranks, launcher=(), wrap=None, **options):
        """A long run that has done some steps, and the pids of its ranks."""
        arguments = self.train(steps=1000000, metrics="metrics.jsonl", **options)
        job = self.start(ranks, arguments=(wrap or []) + arguments, launcher=launcher)
        metrics, end = self.folder / "metrics.jsonl", time.monotonic() + START_S
        while time.monotonic() < end and job.process.poll() is None:
            if metrics.exists() and metrics.read_text().count("\n") > 3 and len(job.ranks()) == ranks:
                return job, job.ranks()
            time.sleep(0.05)
        said = job.text(job.err)
        job.close()
        raise Wrong(f"the run did not start: {said[-600:]}")


# ---- what is asked for is wrong ----

def unknown_flag(p):
    p.fails(2, 2, r"stepz.*steps", extra=["--stepz=3"])


def unknown_key(p):
    (p.folder / "run.yaml").write_text("micro_batch: 1\nmicro_bach_size: 2\n")
    p.fails(2, (2, 3), r"run\.yaml:2.*micro_bach_size.*micro_batch", extra=["run.yaml"])


def mesh_is_not_the_world(p):
    p.fails(4, 3, r"dp_replicate.*3.*4", dp_replicate=3)


def mesh_against_the_model(p):
    p.fails(3, 3, r"tp.*3.*heads.*4|heads.*4.*tp.*3", tp=3)


def reshard_does_not_divide(p):
    p.fails(4, 3, r"reshard_after_forward=3.*4", reshard_after_forward=3, collectives="mpi")


def model_is_not_there(p):
    p.fails(2, (1, 3), r"nowhere", model="nowhere")


def model_is_not_json(p):
    (p.folder / "model" / "config.json").write_text('{"model_type": "llama",')
    p.fails(2, 3, r"config\.json")


def model_has_an_unknown_field(p):
    p.write_model("model", dict(MODEL, logit_soft_clipping_factor=3.0))
    p.fails(2, 3, r"config\.json.*logit_soft_clipping_factor")


# ---- files ----

def data_is_not_there(p):
    p.fails(2, (1, 3), r"nothing\.txt", data="nothing.txt")


def data_is_empty(p):
    (p.folder / "empty").write_bytes(b"")
    p.fails(2, (1, 3), r"empty", data="empty")


def data_has_half_a_token(p):
    (p.folder / "odd.bin").write_bytes(bytes(1001))
    p.fails(2, 3, r"odd\.bin.*1001", data="odd.bin")


def data_is_outside_the_vocabulary(p):
    ids = [i % 256 for i in range(2000)]
    ids[40] = 60000
    (p.folder / "big.bin").write_bytes(struct.pack("<2000H", *ids))
    p.fails(2, 3, r"60000.*256", data="big.bin")


def labels_are_too_few(p):
    (p.folder / "labels.bin").write_bytes(bytes(4 * 17))
    p.fails(2, 3, r"labels\.bin", labels="labels.bin")


def a_label_is_outside_the_vocabulary(p):
    labels = [300 if i == 30 else i % 256 for i in range(4000)]
    (p.folder / "labels.bin").write_bytes(struct.pack("<4000i", *labels))
    p.fails(2, 3, r"300.*256", labels="labels.bin")


def metrics_cannot_be_written(p):
    p.fails(2, 1, r"text/metrics", metrics="text/metrics.jsonl")


def metrics_fill_the_disk(p):
    p.fails(2, 1, r"/dev/full", metrics="/dev/full")


def export_cannot_be_written(p):
    p.fails(2, 1, r"cannot make folder text", export_hf="text/out")


# ---- ranks that differ ----

def one_rank_has_another_option(p):
    p.fails(3, 4, r"rank 2.*lr.*0\.5", sections=[(2, p.train(lr="0.001")), (1, p.train(lr="0.5"))])


def one_rank_has_another_mesh(p):
    p.fails(4, 4, r"rank 3.*(tp|dp_shard)", sections=[(3, p.train(tp=1)), (1, p.train(tp=2))])


def one_rank_has_no_data(p):
    here = ["sh", "-c", 'mkdir d$PMI_RANK && cd d$PMI_RANK && ln -s ../model model; '
                        '[ $PMI_RANK = 1 ] || ln -s ../text text; exec "$@"', "sh"]
    p.fails(3, (1, 3), r"rank 1.*text", sections=[(3, here + p.train())])


def another_mpi_started_it(p):
    p.fails(0, 4, r"Open MPI.*2 ranks.*mpiexec\.mpich", env={"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"})


# ---- numbers that are not finite: no weight is changed, and nobody exports ----

def ends_whole(p, code, message):
    """The metrics have a last line, and the time line is JSON: both say why."""
    end = json.loads((p.folder / "m.jsonl").read_text().splitlines()[-1]).get("end", {})
    trace = json.loads((p.folder / "t.json").read_text())
    for found in end, trace.get("otherData", {}):
        if (found.get("status"), found.get("code")) != ("failed", code) or not re.search(message, found.get("reason", "")):
            raise Wrong(f"a file of a failed run ends with {found}")
    if "tokens_total" not in end or len(trace["traceEvents"]) < 5:
        raise Wrong(f"no totals or no time line: {end}, {len(trace['traceEvents'])} events")


def loss_explodes(p):
    p.fails(4, 1, r"(norm|loss) is (nan|inf); no weight was changed", lr="1e30", steps=20, grad_clip=0, export_hf="out", metrics="m.jsonl",
            trace="t.json")
    ends_whole(p, 1, r"no weight was changed")
    if any((p.folder / "out").iterdir()):
        raise Wrong("weights were exported after all")


def a_weight_is_nan(p):
    job = p.start(2, export_hf="saved", export_dtype="fp32")
    try:
        job.wait(START_S)
    finally:
        job.close()
    weights = p.folder / "saved" / "model.safetensors"
    raw = bytearray(weights.read_bytes())
    raw[-4:] = struct.pack("<f", float("nan"))
    weights.write_bytes(raw)
    p.fails(4, 1, r"no weight was changed", model="saved", init="weights")


# ---- ranks that go ----

def worker_is_killed(p):
    job, ranks = p.running(4)
    try:
        os.kill(ranks[2], signal.SIGKILL)
        job.wait(TIME_S)
        if job.process.returncode == 0:
            raise Wrong("a lost rank looks like success")
    finally:
        job.close()


def worker_is_killed_and_the_launcher_does_nothing(p):
    """The survivors find out by themselves and name the rank. The first to end makes the launcher end the other."""
    shell = 'trap "" USR1; "$@" 2>err.$PMI_RANK; echo $? >code.$PMI_RANK; exit 0'
    job, ranks = p.running(3, launcher=["-disable-auto-cleanup"], wrap=["sh", "-c", shell, "sh"])
    try:
        rank_of = {pid: int(re.search(rb"PMI_RANK=(\d+)", pathlib.Path(f"/proc/{pid}/environ").read_bytes())[1]) for pid in ranks}
        os.kill(next(pid for pid in ranks if rank_of[pid] == 1), signal.SIGKILL)
        job.wait(TIME_S)
        said = {rank: (p.folder / f"err.{rank}").read_text() for rank in (0, 2)}
        codes = [path.read_text().strip() for path in (p.folder / "code.0", p.folder / "code.2") if path.exists()]
        if job.process.returncode == 0 or set(codes) - {"4"}:
            raise Wrong(f"exit code {job.process.returncode}, of survivors {codes}")
        if not any(said.values()) or not all(re.search(r"error: .*rank 1 .*is gone", text) for text in said.values() if text):
            raise Wrong(f"survivors said {said}")
    finally:
        job.close()


def worker_stands_still(p):
    job, ranks = p.running(3, timeout=3, trace="t.json")
    try:
        os.kill(ranks[1], signal.SIGSTOP)
        job.wait(TIME_S)
        job.check((4, 137), r"rank \d.*")
        (p.folder / "metrics.jsonl").rename(p.folder / "m.jsonl")
        ends_whole(p, 4, r"rank \d")
    finally:
        job.close()


def one_rank_is_told_to_stop(p):
    """All stop after the same step, with the signal's code."""
    job, ranks = p.running(3)
    try:
        os.kill(ranks[1], signal.SIGINT)
        job.wait(TIME_S)
        last = json.loads((p.folder / "metrics.jsonl").read_text().splitlines()[-1])
        if job.process.returncode != 130 or last.get("end", {}).get("status") != "stopped":
            raise Wrong(f"exit code {job.process.returncode}, last line of metrics {last}: {job.text(job.err)[-300:]}")
    finally:
        job.close()


def one_rank_is_told_to_stop_before_the_first_step(p):
    """MPI has started, and all wait for a configuration that nobody writes."""
    (p.folder / "model" / "config.json").unlink()
    os.mkfifo(p.folder / "model" / "config.json")
    job, end, writer = p.start(3), time.monotonic() + START_S, None
    try:
        while writer is None and time.monotonic() < end:
            try:
                writer = os.open(p.folder / "model" / "config.json", os.O_WRONLY | os.O_NONBLOCK)  # fails until a rank reads
            except OSError:
                time.sleep(0.02)
        os.kill(job.ranks()[1], signal.SIGINT)
        job.wait(TIME_S)
        job.check(130, r"stopped by a signal while no step was running")
    finally:
        job.close()
        if writer is not None:
            os.close(writer)


def a_benchmark_is_told_to_stop(p):
    job, end = p.start(2, arguments=[str(p.program), "bench", "collectives", "--iters=1000000000", "--check=0"]), time.monotonic() + START_S
    try:
        while time.monotonic() < end and (len(job.ranks()) < 2 or not all(caught(pid, signal.SIGTERM) for pid in job.ranks())):
            time.sleep(0.05)
        os.kill(job.ranks()[1], signal.SIGTERM)
        job.wait(TIME_S)
        job.check(143, r"stopped by a signal$")
    finally:
        job.close()


def caught(pid, number):
    """The process has a handler for the signal."""
    mask = re.search(r"SigCgt:\s*(\w+)", pathlib.Path(f"/proc/{pid}/status").read_text())[1]
    return int(mask, 16) >> (number - 1) & 1


def one_rank_never_comes(p):
    """MPI's own start has no deadline: the command's holds all the same."""
    stops = ["sh", "-c", '[ $PMI_RANK != 1 ] || kill -STOP $$; exec "$@"', "sh"]
    p.fails(3, 4, r"not all ranks have come to the start of MPI within 1 s", sections=[(3, stops + p.train(timeout=1))])


FAULTS = [unknown_flag, unknown_key, mesh_is_not_the_world, mesh_against_the_model, reshard_does_not_divide, model_is_not_there,
          model_is_not_json, model_has_an_unknown_field, data_is_not_there, data_is_empty, data_has_half_a_token,
          data_is_outside_the_vocabulary, labels_are_too_few, a_label_is_outside_the_vocabulary, metrics_cannot_be_written, metrics_fill_the_disk,
          export_cannot_be_written, one_rank_has_another_option, one_rank_has_another_mesh, one_rank_has_no_data,
          another_mpi_started_it, loss_explodes, a_weight_is_nan, worker_is_killed, worker_is_killed_and_the_launcher_does_nothing,
          worker_stands_still, one_rank_is_told_to_stop, one_rank_is_told_to_stop_before_the_first_step, a_benchmark_is_told_to_stop,
          one_rank_never_comes]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("program", type=pathlib.Path)
    p.add_argument("--mpiexec", default=shutil.which("mpiexec.mpich") or shutil.which("mpiexec.hydra") or "mpiexec")
    p.add_argument("names", nargs="*")
    options, failed, ran = p.parse_args(), 0, 0
    for fault in FAULTS:
        if options.names and fault.__name__ not in options.names:
            continue
        begin, verdict, ran = time.monotonic(), "ok", ran + 1
        with tempfile.TemporaryDirectory() as folder:
            try:
                fault(Place(pathlib.Path(folder), options.program.resolve(), options.mpiexec))
            except (Wrong, OSError, StopIteration) as e:
                failed, verdict = failed + 1, f"FAILED: {e}"
        print(f"{fault.__name__:48} {time.monotonic() - begin:5.1f} s  {verdict}", flush=True)
    print(f"{ran - failed} of {ran} faults end as they should")
    return 1 if failed or not ran else 0


if __name__ == "__main__":
    sys.exit(main())
