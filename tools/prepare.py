#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Turns JSONL of text, Alpaca records or chats into a folder that `ndmesh train --data` takes.

    prepare.py --tokenizer DIR --out FOLDER FILE.jsonl...

Records: {"text"}; {"instruction", "input", "output"}; {"messages": [{"role", "content"}]} or {"conversations": [{"from",
"value"}]}. The folder gets tokens.bin (uint16, or tokens.uint32.bin for larger vocabularies), documents.bin, labels.bin where
something is masked (-100), and prepare.json. docs/data.md has an example.

Wants the package `tokenizers`, and `jinja2` for chats. Exit status: 0 done, 1 a file or record is wrong, 2 usage.
"""
import argparse
import array
import datetime
import gzip
import hashlib
import json
import os
import pathlib
import shutil
import sys
import tempfile

IGNORE = -100
BATCH = 512
OPEN_BINS = 64
OPEN_MARK, CLOSE_MARK = "\ue0f1", "\ue0f2"  # around what {% generation %} holds, while a chat is rendered
ALPACA = ("Below is an instruction that describes a task, paired with an input that provides further context. "
          "Write a response that appropriately completes the request.\n\n"
          "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n")
ALPACA_WITHOUT_INPUT = ("Below is an instruction that describes a task. Write a response that appropriately completes the request."
                        "\n\n### Instruction:\n{instruction}\n\n### Response:\n")
ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bot": "assistant"}


class Wrong(Exception):
    """What is wrong with a file or a record."""


# ---- records ----

def read_records(paths):
    """(place, record) of every line that is not blank."""
    for path in paths:
        try:
            with (gzip.open(path, "rt", encoding="utf-8") if path.endswith(".gz") else open(path, encoding="utf-8")) as file:
                for number, line in enumerate(file, 1):
                    if line.strip():
                        yield f"{path}:{number}", parse_record(f"{path}:{number}", line)
        except (OSError, UnicodeDecodeError) as e:
            raise Wrong(f"{path}: {e}") from e


def parse_record(place, line):
    try:
        record = json.loads(line)
    except ValueError as e:
        raise Wrong(f"{place}: not JSON: {e}") from e
    if not isinstance(record, dict):
        raise Wrong(f"{place}: not a JSON object")
    return record


def format_of(place, record):
    for name, keys in (("chat", ("messages",)), ("chat", ("conversations",)), ("alpaca", ("instruction", "output")),
                       ("text", ("text",))):
        if all(key in record for key in keys):
            return name
    raise Wrong(f"{place}: neither text, nor instruction and output, nor messages, but {', '.join(sorted(record))}")


def text_of(place, record, key, default=None):
    value = record.get(key, default)
    if not isinstance(value, str):
        raise Wrong(f"{place}: '{key}' is not a text")
    return value


def messages_of(place, record):
    messages = record.get("messages", record.get("conversations"))
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        raise Wrong(f"{place}: no list of messages")
    result = []
    for m in messages:
        if "from" in m and "role" not in m:
            m = {"role": ROLES.get(m["from"], m["from"]), "content": m.get("value")}
        if not isinstance(m.get("role"), str) or ("content" not in m and "tool_calls" not in m):
            raise Wrong(f"{place}: a message without role or content")
        result.append(m)
    return result


# ---- chat templates ----

class Template:
    """A Hugging Face chat template. render() also says which characters are the assistant's, by {% generation %}."""

    def __init__(self, source, tokens):
        try:
            import jinja2
            import jinja2.ext
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        except ImportError as e:
            raise Wrong(f"chats need the package jinja2: {e}") from e

        class Generation(jinja2.ext.Extension):
            tags = {"generation"}

            def parse(self, parser):
                line = next(parser.stream).lineno
                body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
                return jinja2.nodes.CallBlock(self.call_method("mark"), [], [], body).set_lineno(line)

            def mark(self, caller):
                return OPEN_MARK + caller() + CLOSE_MARK

        def refuse(text):
            raise jinja2.TemplateError(text)

        env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                            extensions=[Generation, "jinja2.ext.loopcontrols"])
        env.filters["tojson"] = lambda x, **more: json.dumps(x, ensure_ascii=False, indent=more.get("indent"))
        env.globals.update(raise_exception=refuse, strftime_now=lambda form: datetime.datetime.now().strftime(form))
        self.error = jinja2.TemplateError
        try:
            self.template = env.from_string(source)
        except jinja2.TemplateError as e:
            raise Wrong(f"the chat template: {e}") from e
        self.tokens = tokens
        self.marks = "generation %}" in source or "generation -%}" in source

    def render(self, place, messages, prompt, tools):
        try:
            return self.template.render(messages=messages, tools=tools, add_generation_prompt=prompt, **self.tokens)
        except (self.error, TypeError, KeyError, ValueError) as e:
            raise Wrong(f"{place}: the chat template says: {e}") from e

    def marked(self, place, messages, tools):
        """Text and spans of the assistant, from the template's own marks."""
        text, spans, begin = "", [], None
        for c in self.render(place, messages, False, tools):
            if c == OPEN_MARK:
                begin = len(text)
            elif c == CLOSE_MARK:
                spans.append((begin, len(text)))
            else:
                text += c
        return text, spans

    def compared(self, place, messages, tools, turns):
        """Text and spans of the assistant: what each of its messages adds behind its prompt."""
        text, spans = self.render(place, messages, False, tools), []
        answers = [i for i, m in enumerate(messages) if m["role"] == "assistant"]
        for i in answers if turns == "all" else answers[-1:]:
            before = self.render(place, messages[:i], True, tools)
            until = self.render(place, messages[:i + 1], False, tools)
            if not until.startswith(before) or not text.startswith(until):
                raise Wrong(f"{place}: the template writes message {i + 1} differently when others follow, so its part of the "
                            "text is unknown: use --turns last, or a template with {% generation %}")
            spans.append((len(before), len(until.rstrip())))
        return text, spans

    def text(self, place, messages, tools, turns):
        """Text and the spans of it that are to be learned."""
        if not self.marks:
            return self.compared(place, messages, tools, turns)
        text, spans = self.marked(place, messages, tools)
        return text, spans if turns == "all" else spans[-1:]


# ---- tokenizer ----

class Tokenizer:
    def __init__(self, options):
        try:
            import tokenizers
        except ImportError as e:
            raise Wrong(f"the package tokenizers is needed: {e}") from e
        path = pathlib.Path(options.tokenizer)
        self.path = path / "tokenizer.json" if path.is_dir() else path
        try:
            self.encoder = tokenizers.Tokenizer.from_file(str(self.path))
        except Exception as e:  # the package raises plain Exception
            raise Wrong(f"{self.path}: {e}") from e
        self.encoder.no_padding()
        self.encoder.no_truncation()
        self.size = self.encoder.get_vocab_size(with_added_tokens=True)
        config = self.path.parent / "tokenizer_config.json"
        self.config = json.loads(config.read_text("utf-8")) if config.exists() else {}
        self.names = {key: self.name(key) for key in ("bos_token", "eos_token", "pad_token", "unk_token")}
        if options.eos:
            self.names["eos_token"] = options.eos

    def name(self, key):
        token = self.config.get(key) or ""
        return token.get("content", "") if isinstance(token, dict) else token

    def id_of(self, key):
        token = self.names[key]
        number = self.encoder.token_to_id(token) if token else None
        if token and number is None:
            raise Wrong(f"{self.path}: has no token '{token}' ({key})")
        return number

    def template(self, path):
        beside = self.path.parent / "chat_template.jinja"
        if path or beside.exists():
            try:
                return pathlib.Path(path or beside).read_text("utf-8")
            except OSError as e:
                raise Wrong(str(e)) from e
        source = self.config.get("chat_template")
        if isinstance(source, list):
            source = next((t["template"] for t in source if t.get("name") == "default"), None)
        if not source:
            raise Wrong(f"{self.path.parent}: neither chat_template.jinja nor a template in tokenizer_config.json: "
                        "give --chat-template")
        return source


# ---- records to documents ----

class Converter:
    """Records to (token ids, labels): a document each."""

    def __init__(self, options, tokenizer):
        self.options, self.tokenizer = options, tokenizer
        self.format, self.chat, self.eos = options.format, None, None
        self.skipped = self.cut = 0

    def start(self, place, record):
        """The first record says what the others are, unless an option does."""
        self.format = self.format or format_of(place, record)
        if self.format == "chat":
            self.chat = Template(self.tokenizer.template(self.options.chat_template), self.tokenizer.names)
            return
        self.eos = self.tokenizer.id_of("eos_token")
        if self.eos is None:
            raise Wrong("no token is known that ends a document: give --eos")

    def text(self, place, record):
        """(text, spans to learn, whether the tokenizer adds its special tokens)."""
        if self.format == "chat":
            text, spans = self.chat.text(place, messages_of(place, record), record.get("tools"), self.options.turns)
            return text, spans, False
        if self.format == "text":
            text = text_of(place, record, "text")
            return text, [(0, len(text) + 1)], True
        given = {key: text_of(place, record, key, "") for key in ("instruction", "input")}
        prompt = (ALPACA if given["input"] else ALPACA_WITHOUT_INPUT).format(**given)
        text = prompt + text_of(place, record, "output")
        return text, [(len(prompt), len(text) + 1)], True

    def label(self, encoding, text, spans):
        """Labels of the tokens that begin in a span: one across the end of a prompt is the prompt's."""
        ids = list(encoding.ids)
        offsets = list(encoding.offsets)
        if self.eos is not None and (not ids or ids[-1] != self.eos):
            ids.append(self.eos)
            offsets.append((len(text), len(text)))
        elif self.eos is not None:
            offsets[-1] = (len(text), len(text))
        if self.options.train_on_inputs or self.format == "text":
            return ids, ids
        labels, k = [], 0
        for token, (begin, _) in zip(ids, offsets):
            while k < len(spans) and begin >= spans[k][1]:
                k += 1
            labels.append(token if k < len(spans) and begin >= spans[k][0] else IGNORE)
        return ids, labels

    def limit(self, ids, labels):
        most = self.options.max_tokens or self.options.pack
        if most and len(ids) > most:
            self.cut += 1
            return ids[:most], labels[:most]
        return ids, labels

    def convert(self, batch):
        texts = [self.text(place, record) for place, record in batch]
        encodings = [None] * len(texts)
        for special in (False, True):
            chosen = [i for i, t in enumerate(texts) if t[2] is special]
            encoded = self.tokenizer.encoder.encode_batch([texts[i][0] for i in chosen], add_special_tokens=special)
            for i, e in zip(chosen, encoded):
                encodings[i] = e
        for (text, spans, _), encoding in zip(texts, encodings):
            ids, labels = self.limit(*self.label(encoding, text, spans))
            if all(label == IGNORE for label in labels[1:]):  # nothing predicts the first
                self.skipped += 1
            else:
                yield ids, labels


# ---- the folder ----

class Writer:
    """tokens, labels and documents, appended document by document."""

    def __init__(self, folder, wide, labels):
        self.name = "tokens.uint32.bin" if wide else "tokens.bin"
        self.code = "I" if wide else "H"
        self.files = {name: open(folder / name, "wb") for name in (self.name, "documents.bin")}
        if labels:
            self.files["labels.bin"] = open(folder / "labels.bin", "wb")
        self.tokens = self.documents = self.labelled = 0

    def put(self, name, code, values):
        data = array.array(code, values)
        if sys.byteorder == "big":
            data.byteswap()
        data.tofile(self.files[name])

    def add(self, ids, labels):
        self.put("documents.bin", "q", [self.tokens])
        self.put(self.name, self.code, ids)
        if "labels.bin" in self.files:
            self.put("labels.bin", "i", labels)
        self.tokens += len(ids)
        self.documents += 1
        self.labelled += sum(label != IGNORE for label in labels[1:])

    def close(self):
        for file in self.files.values():
            file.close()


class Packer:
    """Whole documents into bins of `size` tokens, each into the fullest open bin that has room; padding is never learned."""

    def __init__(self, writer, size, pad):
        self.writer, self.size, self.pad = writer, size, pad
        self.bins = []  # [used, documents]
        self.padding = 0

    def add(self, ids, labels):
        fitting = [b for b in self.bins if b[0] + len(ids) <= self.size]
        if fitting:
            target = max(fitting, key=lambda b: b[0])
        else:
            target = [0, []]
            self.bins.append(target)
        target[0] += len(ids)
        target[1].append((ids, labels))
        if target[0] == self.size or len(self.bins) > OPEN_BINS:
            self.flush(max(self.bins, key=lambda b: b[0]))

    def flush(self, chosen):
        self.bins.remove(chosen)
        for ids, labels in chosen[1]:
            self.writer.add(ids, labels)
        self.fill(self.size - chosen[0])

    def fill(self, n):
        if n:
            self.writer.add([self.pad] * n, [IGNORE] * n)
            self.writer.documents -= 1  # to ndmesh it is one; to people it is not
            self.padding += n

    def close(self):
        while self.bins:
            self.flush(self.bins[0])
        self.fill(1)  # the last sample's last target is one token further
        self.writer.close()


def describe(options, tokenizer, converter, writer, padding):
    return {"format": converter.format, "tokenizer": str(tokenizer.path), "vocab_size": tokenizer.size,
            "tokenizer_sha256": hashlib.sha256(tokenizer.path.read_bytes()).hexdigest(),
            "files": options.files, "tokens": writer.tokens, "labelled": writer.labelled, "documents": writer.documents,
            "skipped": converter.skipped, "cut": converter.cut, "pack": options.pack, "padding": padding}


def prepare(options, folder):
    """Writes the folder's files; returns what prepare.json says."""
    tokenizer = Tokenizer(options)
    converter = Converter(options, tokenizer)
    sink = writer = packer = None
    batch = []

    def flush():
        for ids, labels in converter.convert(batch):
            sink.add(ids, labels)
        batch.clear()

    for place, record in read_records(options.files):
        if sink is None:
            converter.start(place, record)
            writer = sink = Writer(folder, tokenizer.size > 65536, converter.format != "text" or options.pack > 0)
            if options.pack:
                pad = tokenizer.id_of("pad_token")
                packer = sink = Packer(writer, options.pack, converter.eos or 0 if pad is None else pad)
        batch.append((place, record))
        if len(batch) == BATCH:
            flush()
    if sink is None:
        raise Wrong(f"{options.files[0]}: no record")
    flush()
    sink.close()
    if writer.labelled == 0:
        raise Wrong("no token is left to learn")
    return describe(options, tokenizer, converter, writer, packer.padding if packer else 0)


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", required=True, help="folder with tokenizer.json and tokenizer_config.json, or that file")
    parser.add_argument("--out", required=True, help="folder to make; must not exist")
    parser.add_argument("--format", choices=("text", "alpaca", "chat"), help="default: as the first record shows")
    parser.add_argument("--chat-template", help="jinja file; default: the tokenizer's")
    parser.add_argument("--turns", choices=("all", "last"), default="all", help="the assistant's messages that are learned")
    parser.add_argument("--train-on-inputs", action="store_true", help="learn prompts too")
    parser.add_argument("--eos", help="token behind each text and each Alpaca answer; default: the tokenizer's eos_token")
    parser.add_argument("--max-tokens", type=int, default=0, help="longer documents are cut; default: --pack, or no limit")
    parser.add_argument("--pack", type=int, default=0, metavar="S",
                        help="put whole documents into samples of S tokens, for --seq-len S; the rest is padding")
    parser.add_argument("files", nargs="+", metavar="FILE.jsonl", help="also .jsonl.gz")
    options = parser.parse_args(arguments)
    if options.max_tokens < 0 or options.pack < 0 or (options.pack and options.max_tokens > options.pack):
        parser.error("--max-tokens and --pack are not negative, and documents of --max-tokens fit --pack")
    return options


def main(arguments=None):
    options = parse(arguments)
    out = pathlib.Path(options.out)
    temporary = None
    try:
        if out.exists():
            raise Wrong(f"{out}: is there already")
        out.parent.mkdir(parents=True, exist_ok=True)
        temporary = pathlib.Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
        facts = prepare(options, temporary)
        (temporary / "prepare.json").write_text(json.dumps(facts, indent=2) + "\n")
        temporary.chmod(0o755)
        os.rename(temporary, out)
    except (Wrong, OSError) as e:
        if temporary:
            shutil.rmtree(temporary, ignore_errors=True)
        print(f"prepare.py: error: {e}", file=sys.stderr)
        return 1
    print(json.dumps({key: facts[key] for key in ("format", "documents", "tokens", "labelled", "skipped", "cut", "padding")}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
