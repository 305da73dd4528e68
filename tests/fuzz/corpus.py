#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the corpus of the fuzz targets: inputs that must be accepted (ok-*) and hostile ones, each for one reason."""
import json
import pathlib
import struct

HERE = pathlib.Path(__file__).resolve().parent / "corpus"


def put(target, name, data):
    folder = HERE / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())


def tensor(begin, end, shape, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def file(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def safetensors():
    one, two = tensor(0, 16, [2, 2]), tensor(16, 22, [3], "BF16")
    cases = {
        "ok-two": file({"__metadata__": {"format": "pt"}, "a": one, "b": two}, bytes(22)),
        "ok-nothing": file({}),
        "ok-empty-and-scalar": file({"e": tensor(0, 0, [0, 5]), "s": tensor(0, 4, [])}, bytes(4)),
        "ok-padded-header": file(json.dumps({"a": one}).encode() + b"     ", bytes(16)),
        "ok-bool": file({"m": tensor(0, 2, [2], "BOOL")}, bytes(2)),
        "short": b"\x01\x02\x03",
        "zero-header": struct.pack("<Q", 0),
        "huge-length": file({}, length=2**63 + 5),
        "length-beyond-file": file({}, length=40),
        "length-100MB": file({}, length=10**8 + 1),
        "not-json": file(b"{\"a\": "),
        "array": file(b"[1, 2]"),
        "leading-space": file(b" {}"),
        "not-utf8": file(b"{\"\xff\xfe\": 1}"),
        "nul-in-name": file(b"{\"a\\u0000b\": " + json.dumps(one).encode() + b"}", bytes(16)),
        "deep": file(b"{\"a\": " + b"[" * 5000 + b"]" * 5000 + b"}"),
        "duplicate": file(b"{\"a\": %s, \"a\": %s}" % ((json.dumps(one).encode(),) * 2), bytes(16)),
        "overlap": file({"a": one, "b": tensor(8, 24, [4])}, bytes(24)),
        "same-bytes": file({"a": one, "b": one}, bytes(16)),
        "hole": file({"a": one, "b": tensor(20, 24, [1])}, bytes(24)),
        "trailing-bytes": file({"a": one}, bytes(20)),
        "offsets-beyond-data": file({"a": one}, bytes(8)),
        "offsets-reversed": file({"a": tensor(16, 0, [2, 2])}, bytes(16)),
        "offsets-negative": file({"a": tensor(-16, 0, [2, 2])}, bytes(16)),
        "offsets-three": file({"a": {**one, "data_offsets": [0, 16, 16]}}, bytes(16)),
        "offsets-text": file({"a": {**one, "data_offsets": ["0", "16"]}}, bytes(16)),
        "shape-mismatch": file({"a": tensor(0, 16, [2, 3])}, bytes(16)),
        "shape-negative": file({"a": tensor(0, 16, [-2, -2])}, bytes(16)),
        "shape-overflow": file({"a": tensor(0, 0, [2**32, 2**32])}),
        "shape-overflow-bytes": file({"a": tensor(0, 0, [2**62])}),
        "shape-overflow-beside-zero": file({"a": tensor(0, 0, [0, 2**40, 2**40])}),
        "shape-huge-integer": file(b"{\"a\": {\"dtype\": \"F32\", \"shape\": [99999999999999999999], \"data_offsets\": [0, 0]}}"),
        "shape-real": file({"a": tensor(0, 16, [4.0])}, bytes(16)),
        "dims-nine": file({"a": tensor(0, 4, [1] * 9)}, bytes(4)),
        "dtype-unknown": file({"a": tensor(0, 16, [16], "F8_E4M3")}, bytes(16)),
        "dtype-number": file({"a": {**one, "dtype": 32}}, bytes(16)),
        "dtype-missing": file({"a": {"shape": [4], "data_offsets": [0, 16]}}, bytes(16)),
        "metadata-number": file({"__metadata__": {"format": 1}, "a": one}, bytes(16)),
        "metadata-array": file({"__metadata__": [], "a": one}, bytes(16)),
        "tensor-null": file({"a": None}),
    }
    for name, data in cases.items():
        put("safetensors", name, data)


LLAMA = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "intermediate_size": 176, "vocab_size": 256}
QWEN = {**LLAMA, "model_type": "qwen2", "use_sliding_window": True, "sliding_window": 8}


def config():
    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
              "original_max_position_embeddings": 32}
    cases = {
        "ok-llama": LLAMA,
        "ok-llama3-rope": {**LLAMA, "rope_theta": 500000.0, "rope_scaling": llama3},
        "ok-rope-parameters": {**LLAMA, "rope_parameters": {"rope_type": "default", "rope_theta": 2e4}},
        "ok-qwen-layers": {**QWEN, "layer_types": ["sliding_attention", "full_attention"]},
        "ok-qwen-max-window-layers": {**QWEN, "max_window_layers": 1},
        "ok-pad-from-end": {**LLAMA, "pad_token_id": -1},
        "ok-gpt2": {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 40, "vocab_size": 97},
        "ok-nothings": {**LLAMA, "a": None, "b": False, "c": 0, "d": "", "e": [], "f": {}},
        "layers-negative": {**LLAMA, "num_hidden_layers": -1},
        "layers-huge": {**QWEN, "num_hidden_layers": 2**62},
        "heads-zero": {**LLAMA, "num_attention_heads": 0},
        "kv-zero": {**LLAMA, "num_key_value_heads": 0},
        "kv-negative": {**LLAMA, "num_key_value_heads": -2},
        "hidden-huge": {**LLAMA, "hidden_size": 2**63 - 1},
        "gpt2-hidden-huge": {"model_type": "gpt2", "n_embd": 2**62, "n_layer": 2, "n_head": 4, "vocab_size": 97},
        "sizes-product-huge": {**LLAMA, "hidden_size": 2**31, "vocab_size": 2**31, "intermediate_size": 2**31},
        "head-dim-odd": {**LLAMA, "head_dim": 15},
        "window-zero": {**QWEN, "sliding_window": 0},
        "layer-types-short": {**QWEN, "layer_types": ["full_attention"]},
        "layer-types-numbers": {**QWEN, "layer_types": [1, 2]},
        "rope-deep": {**LLAMA, "rope_scaling": {"full_attention": {"rope_type": "default"}}},
        "rope-array": {**LLAMA, "rope_scaling": [1]},
        "rope-factor-zero": {**LLAMA, "rope_scaling": {"rope_type": "linear", "factor": 0}},
        "rope-yarn": {**LLAMA, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
        "theta-negative": {**LLAMA, "rope_theta": -1.0},
        "eps-negative": {**LLAMA, "rms_norm_eps": -1e-5},
        "dropout": {**LLAMA, "attention_dropout": 0.1},
        "experts": {**LLAMA, "num_local_experts": 8},
        "quantized": {**LLAMA, "quantization_config": {"bits": 4}},
        "wrong-type": {**LLAMA, "hidden_size": "64"},
        "type-number": {**LLAMA, "model_type": 3},
        "no-type": {"hidden_size": 64},
        "array": [1, 2, 3],
    }
    for name, value in cases.items():
        put("config", name + ".json", json.dumps(value))
    put("config", "empty.json", "")
    put("config", "cut.json", json.dumps(LLAMA)[:-20])
    put("config", "duplicate.json", json.dumps(LLAMA)[:-1] + ', "vocab_size": 9}')
    put("config", "infinity.json", json.dumps(LLAMA)[:-1] + ', "rope_theta": 1e999}')
    put("config", "not-utf8.json", json.dumps(LLAMA).encode()[:-1] + b', "_\xff": 1}')


def options():
    cases = {
        "ok-flat": "model: llama-tiny\ndata: [a.txt]\nsteps: 10\ntp: 2\nlr: 1e-3\n",
        "ok-accelerate": "base_model: m\ndatasets:\n  - path: a.bin\nmax_steps: 3\nparallelism_config:\n  tp_size: 2\n"
                         "fsdp_config:\n  reshard_after_forward: true\n",
        "ok-empty": "",
        "ok-quoted": "model: \"a: b # c\"\nsave_dir: 'it''s'\n",
        "unknown-key": "modle: x\n",
        "wrong-type": "steps: many\n",
        "out-of-range": "tp: -7\n",
        "zero-as-real": "tp: 0.0\n",
        "twice": "tp: 2\ntp: 4\n",
        "alias": "model: &a x\nexport_hf: *a\n",
        "tabs": "model:\n\t- x\n",
        "open-quote": "model: \"x\n",
        "open-flow": "data: [a, [b, {c: d\n",
        "list-at-top": "- model\n- x\n",
        "scalar-at-top": "hello\n",
        "two-documents": "model: a\n---\nmodel: b\n",
        "mapping-for-scalar": "model: {a: b}\n",
        "list-for-scalar": "tp: [1, 2]\n",
        "huge-number": "steps: 99999999999999999999999999\n",
        "deep": "a: " + "[" * 3000 + "\n",
        "not-utf8": b"model: \xff\xfe\n",
        "nul": b"model: a\x00b\n",
        "tag": "steps: !!python/object:os.system 3\n",
    }
    for name, text in cases.items():
        put("options", name + ".yaml", text)


def documents():
    pack = lambda *v: struct.pack(f"<{len(v)}q", *v)
    cases = {
        "ok-one": pack(0),
        "ok-several": pack(0, 3, 4, 7, 14, 15, 63),
        "ok-every-token": pack(*range(64)),
        "empty": b"",
        "odd-bytes": pack(0, 5)[:-3],
        "first-not-zero": pack(1, 5),
        "negative": pack(0, -5),
        "equal": pack(0, 5, 5),
        "descending": pack(0, 9, 5),
        "beyond": pack(0, 64),
        "huge": pack(0, 2**63 - 1),
        "smallest": pack(0, -(2**63)),
    }
    for name, data in cases.items():
        put("documents", name + ".bin", data)


def megatron(lengths, documents, version=1, code=8, pointers=None, n=None, m=None, tail=b""):
    pointers = [2 * sum(lengths[:i]) for i in range(len(lengths))] if pointers is None else pointers
    head = b"MMIDIDX\0\0" + struct.pack("<qBqq", version, code, len(lengths) if n is None else n,
                                        len(documents) if m is None else m)
    return head + struct.pack(f"<{len(lengths)}i{len(pointers)}q{len(documents)}q", *lengths, *pointers, *documents) + tail


def index():
    cases = {
        "ok-one": megatron([64], [0, 1]),
        "ok-several": megatron([10, 20, 0, 34], [0, 1, 3, 4]),
        "ok-empty-documents": megatron([10, 54], [0, 0, 1, 1, 2, 2]),
        "ok-modes": megatron([10, 54], [0, 1, 2], tail=b"\0\1"),
        "empty": b"",
        "short": megatron([64], [0, 1])[:20],
        "cut": megatron([64], [0, 1])[:-1],
        "version": megatron([64], [0, 1], version=2),
        "sequences-huge": megatron([64], [0, 1], n=2**63 - 1),
        "sequences-negative": megatron([64], [0, 1], n=-1),
        "entries-huge": megatron([64], [0, 1], m=2**62),
        "no-documents": megatron([64], []),
        "length-negative": megatron([-1, 65], [0, 2]),
        "length-beyond": megatron([65], [0, 1]),
        "tokens-missing": megatron([63], [0, 1]),
        "pointer-wrong": megatron([32, 32], [0, 2], pointers=[0, 60]),
        "pointer-negative": megatron([32, 32], [0, 2], pointers=[-64, 0]),
        "documents-late": megatron([32, 32], [1, 2]),
        "documents-descending": megatron([32, 32], [0, 2, 1, 2]),
        "documents-beyond": megatron([32, 32], [0, 3, 2]),
        "documents-negative": megatron([32, 32], [0, -1, 2]),
    }
    for name, data in cases.items():
        put("index", name + ".idx", data)


if __name__ == "__main__":
    safetensors(), config(), options(), documents(), index()
