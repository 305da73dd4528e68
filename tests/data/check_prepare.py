#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks tools/prepare.py from outside: its files against plain encoding, and ndmesh trained on them.

Exit status: 0 all hold, 1 not, 77 skipped: the packages tokenizers and jinja2 are not installed.
"""
import array
import gzip
import json
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness  # noqa: E402
from harness import expect  # noqa: E402

other = os.environ.pop("NDM_TEST_PYTHON", None)
if other:
    os.execv(other, [other, *sys.argv])
try:
    import jinja2  # noqa: F401 (prepare.py wants it)
    import tokenizers
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

IGNORE = -100
CHATML = ("{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
MARKED = ("{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' }}{% if m['role'] == 'assistant' %}"
          "{% generation %}{{ m['content'] + '<|im_end|>' }}{% endgeneration %}{{ '\\n' }}"
          "{% else %}{{ m['content'] + '<|im_end|>\\n' }}{% endif %}{% endfor %}")
FORGETFUL = ("{% for m in messages %}{{ m['role'] + ': ' }}{{ m['content'] if loop.last or m['role'] != 'assistant' else '(cut)' }}{{ '<|im_end|>' }}"
             "{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}")
CHAT = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "What is 2 + 2, naïve 🙂?"},
        {"role": "assistant", "content": "4, né 🙂."}, {"role": "user", "content": "And 3 + 3?"},
        {"role": "assistant", "content": "6."}]


def make_tokenizer(folder):
    """A byte-level BPE with 300 entries, chat tokens and a template."""
    folder.mkdir()
    t = tokenizers.Tokenizer(tokenizers.models.BPE())
    t.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, show_progress=False, special_tokens=["<s>", "</s>", "<|im_start|>", "<|im_end|>"],
                                             initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    t.train_from_iterator(["the quick brown fox jumps over the lazy dog, and what is two and two"] * 9, trainer)
    t.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", t.token_to_id("<s>"))])
    t.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": CHATML}))
    return t


def read(path, code):
    values = array.array(code)
    values.frombytes(path.read_bytes())
    return list(values)


class Bench(harness.Bench):
    def __init__(self, options):
        super().__init__(options)
        self.tokenizer = make_tokenizer(self.folder / "tok")

    def prepare(self, out, records, *args, code=0):
        lines = "".join(r if isinstance(r, str) else json.dumps(r) + "\n" for r in records)
        (self.folder / "in.jsonl").write_text(lines)
        done = self.run([sys.executable, self.options.prepare, "--tokenizer=tok", f"--out={out}", *args, "in.jsonl"], code)
        expect(code == 0 or not (self.folder / out).exists(), f"{out}: was made")
        expect(not list(self.folder.glob(".*")), f"{out}: something is left")
        return done

    def documents(self, out, tokens="tokens.bin", code="H"):
        """[(ids, labels)] of a folder."""
        ids = read(self.folder / out / tokens, code)
        labels = self.folder / out / "labels.bin"
        labels = read(labels, "i") if labels.exists() else ids
        starts = read(self.folder / out / "documents.bin", "q")
        expect(starts[0] == 0 and len(labels) == len(ids), f"{out}: {starts}")
        return [(ids[a:b], labels[a:b]) for a, b in zip(starts, starts[1:] + [len(ids)])]

    def ids(self, text, special=False):
        return self.tokenizer.encode(text, add_special_tokens=special).ids

    def id(self, token):
        return self.tokenizer.token_to_id(token)

    def train(self, *args):
        config = {"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
                  "intermediate_size": 64, "vocab_size": 304, "max_position_embeddings": 64}
        (self.folder / "config.json").write_text(json.dumps(config))
        (self.folder / "m.jsonl").unlink(missing_ok=True)
        self.run([*self.ranks(2), self.options.engine, "train", "--model=config.json", "--quiet", "--threads=1",
                  "--metrics=m.jsonl", "--timeout=60", *args])
        return [line for line in self.lines("m.jsonl") if "step" in line]


def text(b):
    """A text is its tokens as the tokenizer makes them, and the end; nothing is masked."""
    texts = ["the quick brown fox", "naïve 🙂 dog", "two and two"]
    b.prepare("text", [{"text": t} for t in texts])
    want = [b.ids(t, special=True) + [b.id("</s>")] for t in texts]
    expect(b.documents("text") == [(w, w) for w in want], f"{b.documents('text')} is not {want}")
    expect(not (b.folder / "text/labels.bin").exists(), "labels that mask nothing")
    facts = json.loads((b.folder / "text/prepare.json").read_text())
    expect(facts["tokens"] == sum(map(len, want)) and facts["documents"] == 3, f"{facts}")
    b.prepare("cut", [{"text": t} for t in texts], "--max-tokens=4", "--eos=<|im_end|>")
    ends = [b.ids(t, special=True) + [b.id("<|im_end|>")] for t in texts]
    expect([d[0] for d in b.documents("cut")] == [w[:4] for w in ends], "--max-tokens")


def alpaca(b):
    """The prompt is masked; the answer and the end are learned."""
    b.prepare("alpaca", [{"instruction": "Add.", "input": "2 and 2", "output": "4"}, {"instruction": "Say what.", "output": "what is"}])
    for (ids, labels), answer, prompt in zip(b.documents("alpaca"), ("4", "what is"), ("2 and 2", "Say what.")):
        learned = [label for label in labels if label != IGNORE]
        expect(learned == b.ids(answer) + [b.id("</s>")], f"{learned} is not {answer}")
        expect(labels[-len(learned):] == ids[-len(learned):] and labels[0] == IGNORE and ids[0] == b.id("<s>"), f"{labels}")
        expect(f"{prompt}\n\n### Response:\n" in b.tokenizer.decode(ids), b.tokenizer.decode(ids))
    b.prepare("inputs", [{"instruction": "Add.", "output": "4"}], "--train-on-inputs")
    expect(all(ids == labels for ids, labels in b.documents("inputs")), "--train-on-inputs")


def chat(b):
    """Each of the assistant's turns is learned with its end; marks in the template and comparing renderings agree."""
    share = {"conversations": [{"from": {"user": "human", "assistant": "gpt"}.get(m["role"], m["role"]), "value": m["content"]}
                               for m in CHAT]}
    (b.folder / "marked.jinja").write_text(MARKED)
    b.prepare("chat", [{"messages": CHAT}, share])
    b.prepare("marked", [{"messages": CHAT}, share], "--chat-template=marked.jinja")
    b.prepare("last", [{"messages": CHAT}, share], "--turns=last")
    documents = b.documents("chat")
    expect(documents[0] == documents[1] and documents == b.documents("marked"), f"{documents} {b.documents('marked')}")
    ids, labels = documents[0]
    rendered = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in CHAT)
    expect(ids == b.ids(rendered), "tokens of the chat")
    answers = [b.ids(m["content"] + "<|im_end|>") for m in CHAT if m["role"] == "assistant"]
    expect([label for label in labels if label != IGNORE] == sum(answers, []), f"{labels}")
    expect([label for label in b.documents("last")[0][1] if label != IGNORE] == answers[-1], "--turns last")


def pack(b):
    """Documents stay whole inside samples, and ndmesh counts as learned what the labels say."""
    records = [{"instruction": "a" * (i % 7), "output": "the dog " * (1 + i % 5)} for i in range(40)]
    b.prepare("plain", records)
    b.prepare("packed", records, "--pack=150")
    real = [d for d in b.documents("packed") if any(label != IGNORE for label in d[1])]
    expect(sorted(real) == sorted(b.documents("plain")), "packing changed a document")
    starts = read(b.folder / "packed/documents.bin", "q")
    tokens = len(read(b.folder / "packed/tokens.bin", "H"))
    expect(tokens % 150 == 1, f"{tokens} tokens")
    for first, end in zip(starts, starts[1:] + [tokens]):
        expect(first // 150 == (end - 1) // 150, f"document {first} to {end} crosses samples")
    samples, want = tokens // 150, sum(1 for _, labels in real for label in labels[1:] if label != IGNORE)
    lines = b.train("--data=packed", "--seq-len=150", f"--steps={samples // 2}", "--seed=3")
    left = sum(line["tokens"] for line in lines)
    expect(samples % 2 or left == want, f"ndmesh learned {left} tokens of {want}")
    expect(len(lines) == samples // 2 and 0 < left <= want, f"{lines}")


def wide(b):
    """A vocabulary beyond 16 bits gives 32-bit tokens; ndmesh takes them by name. Compressed input is read."""
    path = b.folder / "tok/tokenizer.json"
    before = path.read_text()
    document = json.loads(before)
    for i in range(len(document["model"]["vocab"]), 70000):
        document["model"]["vocab"][f"~{i}"] = i
    path.write_text(json.dumps(document))
    b.prepare("wide", [{"text": "the lazy dog " * 9}])
    (b.folder / "in.jsonl.gz").write_bytes(gzip.compress(json.dumps({"text": "the lazy dog " * 9}).encode()))
    subprocess.run([sys.executable, b.options.prepare, "--tokenizer=tok", "--out=gz", "in.jsonl.gz"], cwd=b.folder, check=True,
                   stdout=subprocess.DEVNULL, timeout=60)
    path.write_text(before)
    want = b.ids("the lazy dog " * 9, special=True) + [b.id("</s>")]
    for name in ("wide", "gz"):
        expect([d[0] for d in b.documents(name, "tokens.uint32.bin", "I")] == [want], f"{name}: {b.documents(name, 'tokens.uint32.bin', 'I')}")
    lines = b.train("--data=wide", "--seq-len=8", "--steps=1")
    expect(lines[0]["tokens"] == 16, f"{lines}")


def refusals(b):
    """What is wrong is named with its line, and nothing is left."""
    ok = {"text": "the dog"}
    (b.folder / "forgetful.jinja").write_text(FORGETFUL)
    (b.folder / "broken.jinja").write_text("{% for %}")
    (b.folder / "strict.jinja").write_text("{{ raise_exception('roles must alternate') }}")
    chat_record = {"messages": CHAT}
    for records, args, says in (
            ([ok, "{\n"], (), "in.jsonl:2: not JSON"), ([ok, "[1]\n"], (), "in.jsonl:2: not a JSON object"),
            ([{"title": "x"}], (), "in.jsonl:1: neither text"), ([ok, {"text": 3}], (), "in.jsonl:2: 'text' is not a text"),
            ([ok], ("--eos=<none>",), "has no token '<none>'"), ([], (), "no record"),
            ([{"messages": [{"role": "user"}]}], (), "in.jsonl:1: a message without role or content"),
            ([{"messages": []}], (), "no list of messages"),
            ([chat_record], ("--chat-template=forgetful.jinja",), "in.jsonl:1: the template writes message 3 differently"),
            ([chat_record], ("--chat-template=broken.jinja",), "the chat template"),
            ([chat_record], ("--chat-template=strict.jinja",), "in.jsonl:1: the chat template says: roles must alternate"),
            ([{"messages": CHAT[:2]}], (), "no token is left to learn")):
        done = b.prepare("bad", records, *args, code=1)
        expect(says in done.stderr and "Traceback" not in done.stderr, f"no '{says}' in: {done.stderr}")
    b.prepare("forgetful", [chat_record], "--chat-template=forgetful.jinja", "--turns=last")
    b.prepare("twice", [ok])
    again = b.run([sys.executable, b.options.prepare, "--tokenizer=tok", "--out=twice", "in.jsonl"], code=1)
    expect("is there already" in again.stderr, again.stderr)
    b.prepare("bad", [ok], "--pack=8", "--max-tokens=9", code=2)


CHECKS = (text, alpaca, chat, pack, wide, refusals)


def main():
    parser = harness.parser(__doc__)
    parser.add_argument("--prepare", required=True, type=lambda p: str(pathlib.Path(p).resolve()))
    return harness.run_checks(CHECKS, parser.parse_args(), Bench)


if __name__ == "__main__":
    sys.exit(main())
