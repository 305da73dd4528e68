#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the configuration files of examples/ as they are, and with changes that must be refused.

    check_configs.py --engine build/cli/ndmesh --mpiexec mpiexec.mpich --examples examples accelerate|axolotl
"""
import json
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness  # noqa: E402
from harness import expect  # noqa: E402

CONFIG = {"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
          "intermediate_size": 64, "vocab_size": 256, "max_position_embeddings": 128, "torch_dtype": "float32"}


class Bench(harness.Bench):
    def __init__(self, options):
        super().__init__(options)
        self.rng = random.Random(7)
        (self.folder / "model").mkdir()
        (self.folder / "model/config.json").write_text(json.dumps(CONFIG))

    def tokens(self, name, n, masked):
        """Documents of 20 tokens of which the first `masked` have no label."""
        ids = [self.rng.randrange(256) for _ in range(n)]
        self.write_tokens(name, ids, [-100 if i % 20 < masked else t for i, t in enumerate(ids)], range(0, n, 20))

    def train(self, config, ranks, *args, code=0):
        (self.folder / "m.jsonl").unlink(missing_ok=True)
        done = self.run([*self.ranks(ranks), self.options.engine, "train", *config, "--threads=1", "--timeout=60",
                         "--metrics=m.jsonl", *args], code)
        return done.stderr, [] if code else self.lines("m.jsonl")

    def changed(self, name, old, new):
        text = (self.options.examples / name).read_text()
        expect(old in text, f"no '{old}' in {name}")
        (self.folder / "changed.yaml").write_text(text.replace(old, new))
        return "changed.yaml"


def steps(lines):
    return [(line["loss"], line["grad_norm"], line["tokens"]) for line in lines if "step" in line]


def same(a, b):
    return len(a) == len(b) and all(abs(x - y) <= 2e-5 * max(abs(x), 1) for p, q in zip(a, b) for x, y in zip(p, q))


def check_ignored(text, keys):
    lines = [line for line in text.splitlines() if "these keys change nothing here" in line]
    expect(len(lines) == 1, f"ignored keys are listed {len(lines)} times: {text}")
    expect(all(key in lines[0] for key in keys), f"not all of {keys} in: {lines[0]}")


def refuse(b, name, changes):
    for old, new, key in changes:
        text, _ = b.train([b.changed(name, old, new)], 1, "--model=model", "--data=text.txt", "--steps=1", code=3)
        expect(key in text and "refused" in text, f"{new.strip()} is not refused by name: {text}")


def accelerate(b):
    """The guide's mesh on 16 ranks gives one rank's numbers; its checkpoint goes on on one rank."""
    (b.folder / "text.txt").write_bytes(bytes(b.rng.randrange(97, 123) for _ in range(3000)))
    args = ("--model=model", "--data=text.txt", "--seq-len=32", "--steps=3", "--seed=1")
    config = str(b.options.examples / "accelerate.yaml")
    text, lines = b.train([config], 16, *args, "--save-dir=s", "--save-every=2")
    run = lines[0]["run"]
    expect(run["mesh"] == {"ranks": 16, "dp_replicate": 2, "dp_shard": 2, "cp": 2, "tp": 2}, f"{run['mesh']}")
    expect(run["config"]["wrap"] == "transformer_based_wrap" and run["config"]["wrap_classes"] == ["LlamaDecoderLayer"],
           f"{run['config']}")
    check_ignored(text, ("num_processes", "fsdp_version", "rdzv_backend"))
    _, one = b.train([], 1, *args, "--grad-accum=4")
    expect(same(steps(lines), steps(one)), f"{steps(lines)} is not {steps(one)}")
    _, rest = b.train([], 1, *args, "--grad-accum=4", "--resume=s/step-00000002")
    expect(same(steps(rest), steps(one)[2:]), f"resumed: {steps(rest)} is not {steps(one)[2:]}")
    refuse(b, "accelerate.yaml", (("fsdp_offload_params: false", "fsdp_offload_params: true", "offload_params"),
                                  ("mixed_precision: 'no'", "fp16: true", "fp16"),
                                  ("distributed_type: FSDP", "distributed_type: DEEPSPEED", "distributed_type")))


def axolotl(b):
    """As it is on 4 ranks: mixture, evaluation, checkpoints; one rank gives the same."""
    b.tokens("data/chats", 128 * 30 + 1, 9)
    b.tokens("data/articles", 128 * 8 + 1, 0)
    b.tokens("data/held-out", 128 * 5 + 1, 9)
    (b.folder / "text.txt").write_text("text " * 100)
    config = str(b.options.examples / "axolotl.yaml")
    text, lines = b.train([config], 4)
    expect(lines[0]["run"]["mesh"] == {"ranks": 4, "dp_replicate": 1, "dp_shard": 2, "cp": 1, "tp": 2}, f"{lines[0]}")
    check_ignored(text, ("sample_packing", "flash_attention", "tokenizer_type"))
    saved = sorted(p.name for p in (b.folder / "outputs/fft").iterdir())
    expect(saved == ["step-00000010", "step-00000020"], f"{saved}")
    _, one = b.train([config], 1, "--dp-shard=1", "--tp=1", "--grad-accum=4", "--save-dir=one")
    evals = [[(line["eval"]["step"], line["eval"]["loss"], line["eval"]["tokens"]) for line in run if "eval" in line]
             for run in (lines, one)]
    expect(same(steps(lines), steps(one)), f"{steps(lines)} is not {steps(one)}")
    expect([e[0] for e in evals[0]] == [10, 20] and same(*evals), f"{evals}")
    refuse(b, "axolotl.yaml", (("adapter:\n", "adapter: lora\n", "adapter"), ("load_in_8bit: false", "load_in_8bit: true", "load_in_8bit"),
                               ("val_set_size: 0.0", "val_set_size: 0.05", "val_set_size"),
                               ("train_on_inputs: false", "train_on_inputs: true", "train_on_inputs"),
                               ("adamw_torch_fused", "muon", "optimizer"), ("bf16: auto", "rl: dpo", "rl")))


CHECKS = {check.__name__: check for check in (accelerate, axolotl)}


def main():
    parser = harness.parser(__doc__)
    parser.add_argument("--examples", required=True, type=lambda p: pathlib.Path(p).resolve())
    parser.add_argument("check", choices=CHECKS)
    options = parser.parse_args()
    return harness.run_checks([CHECKS[options.check]], options, Bench)


if __name__ == "__main__":
    sys.exit(main())
