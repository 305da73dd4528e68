#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a Llama with PyTorch the way ndmesh does: same weights, samples, loss, clipping and optimizer.

FSDP2 over dp_shard x cp, HSDP over dp_replicate, DTensor tensor parallelism, and context parallelism
that gathers keys and values (PyTorch's own ring attention has no CPU kernel). One process, or one of
torchrun's. Prints a JSON line a step: {"step", "loss", "grad_norm", "tokens", "step_ms"}.
"""
import argparse
import contextlib
import json
import math
import os
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn
from torch.distributed._functional_collectives import all_gather_tensor_autograd, wait_tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput, RowwiseParallel,
                                               loss_parallel, parallelize_module)

AXES = ("dp_replicate", "dp_shard", "cp", "tp")


def parse_args():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--model", required=True, help="folder with config.json and model.safetensors")
    p.add_argument("--data", required=True, help="file of uint16 tokens")
    p.add_argument("--seq-len", type=int, required=True)
    p.add_argument("--micro-batch", type=int, default=1)
    p.add_argument("--grad-accum", type=int, default=1)
    p.add_argument("--steps", type=int, default=10)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--threads", type=int)
    p.add_argument("--compile", action="store_true")
    for axis in AXES:
        p.add_argument("--" + axis.replace("_", "-"), type=int, default=1)
    return p.parse_args()


# ---- the model, with Hugging Face's names ------------------------------------------------------------

class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.dim = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
        width, q = c["hidden_size"], c["num_attention_heads"] * self.dim
        kv = c["num_key_value_heads"] * self.dim
        self.q_proj = nn.Linear(width, q, bias=False)
        self.k_proj = nn.Linear(width, kv, bias=False)
        self.v_proj = nn.Linear(width, kv, bias=False)
        self.o_proj = nn.Linear(q, width, bias=False)
        self.across = None  # attention over a split sequence, where cp > 1

    def heads(self, x):  # [B, T, H*D] -> [B, H, T, D]
        return x.unflatten(-1, (-1, self.dim)).transpose(1, 2)

    def forward(self, x, cos, sin):
        def rotate(t):
            low, high = t.chunk(2, dim=-1)
            return t * cos + torch.cat((-high, low), dim=-1) * sin

        q, k = rotate(self.heads(self.q_proj(x))), rotate(self.heads(self.k_proj(x)))
        v = self.heads(self.v_proj(x))
        if self.across is None:
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        else:
            out = self.across(q, k, v)
        return self.o_proj(out.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        width, ffn = c["hidden_size"], c["intermediate_size"]
        self.gate_proj = nn.Linear(width, ffn, bias=False)
        self.up_proj = nn.Linear(width, ffn, bias=False)
        self.down_proj = nn.Linear(ffn, width, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(c["hidden_size"], eps=c["rms_norm_eps"])
        self.self_attn = Attention(c)
        self.post_attention_layernorm = nn.RMSNorm(c["hidden_size"], eps=c["rms_norm_eps"])
        self.mlp = MLP(c)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.model.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        self.model.norm = nn.RMSNorm(c["hidden_size"], eps=c["rms_norm_eps"])
        self.lm_head = nn.Linear(c["hidden_size"], c["vocab_size"], bias=False)

    def forward(self, ids, cos, sin):
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x, cos, sin)
        return self.lm_head(self.model.norm(x))


def load_model(folder):
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    config.setdefault("rms_norm_eps", 1e-5)
    model = Llama(config)
    model.load_state_dict(load_file(os.path.join(folder, "model.safetensors")))
    return config, model


# ---- parallelism -------------------------------------------------------------------------------------

class SplitSequence:
    """Rank r of cp has chunks r and 2*cp-1-r of 2*cp, so that the causal mask costs all the same."""

    def __init__(self, mesh, seq_len):
        n, rank = mesh.size(), mesh.get_local_rank()
        assert seq_len % (2 * n) == 0, f"2 * cp = {2 * n} does not divide the sequence of {seq_len}"
        self.mesh, self.mine = mesh, (rank, 2 * n - 1 - rank)
        self.length = seq_len // (2 * n)
        chunks = torch.arange(seq_len).split(self.length)
        self.places = torch.cat([chunks[i] for i in self.mine])
        gathered = torch.cat([chunks[i] for r in range(n) for i in (r, 2 * n - 1 - r)])
        self.order = gathered.argsort()

    def attention(self, q, k, v):
        kv = torch.cat((k, v), dim=-1).transpose(0, 2).contiguous()  # sequence first
        kv = wait_tensor(all_gather_tensor_autograd(kv, 0, self.mesh))[self.order]
        k, v = kv.transpose(0, 2).chunk(2, dim=-1)
        out = []
        for chunk, part in zip(self.mine, q.split(self.length, dim=2)):
            end = (chunk + 1) * self.length
            seen = torch.ones(self.length, end, dtype=torch.bool).tril(end - self.length)
            out.append(F.scaled_dot_product_attention(
                part, k[:, :, :end].contiguous(), v[:, :, :end].contiguous(), attn_mask=seen,
                enable_gqa=True))
        return torch.cat(out, dim=2)


def split_layers(model, mesh):
    """Column and row parallel linears, a split vocabulary at both ends."""
    def whole(n):  # the first of n inputs is made a replicated tensor once for all linears
        return PrepareModuleInput(input_layouts=(Replicate(),) + (None,) * (n - 1),
                                  desired_input_layouts=(Replicate(),) + (None,) * (n - 1))

    column, row = ColwiseParallel(), RowwiseParallel(output_layouts=Replicate())
    plan = {"self_attn": whole(3), "self_attn.q_proj": column, "self_attn.k_proj": column,
            "self_attn.v_proj": column, "self_attn.o_proj": row, "mlp": whole(1),
            "mlp.gate_proj": column, "mlp.up_proj": column, "mlp.down_proj": row}
    for layer in model.model.layers:
        parallelize_module(layer, mesh, plan)
    parallelize_module(model.model.embed_tokens, mesh,
                       RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate()))
    parallelize_module(model.lm_head, mesh, ColwiseParallel(
        input_layouts=Replicate(), output_layouts=Shard(-1), use_local_output=False))


def shard(model, mesh, a):
    """DDP where nothing else splits the model; else FSDP2, or HSDP."""
    if a.dp_replicate * a.dp_shard * a.cp == 1:
        return
    inner = mesh["dp_shard", "cp"]._flatten("dp_shard_cp") if a.cp > 1 else mesh["dp_shard"]
    if a.dp_replicate > 1:
        inner = mesh["dp_replicate", inner.mesh_dim_names[0]]
    for layer in model.model.layers:
        fully_shard(layer, mesh=inner)
    fully_shard(model, mesh=inner)


def parallelize(model, mesh, a):
    split = SplitSequence(mesh["cp"], a.seq_len) if a.cp > 1 else None
    for layer in model.model.layers:
        layer.self_attn.across = split.attention if split else None
    if a.tp > 1:
        split_layers(model, mesh["tp"])
    if a.compile:
        for layer in model.model.layers:
            layer.compile()
    if a.dp_replicate > 1 and a.dp_shard * a.cp * a.tp == 1:
        return nn.parallel.DistributedDataParallel(model), split
    shard(model, mesh, a)
    return model, split


# ---- steps -------------------------------------------------------------------------------------------

class Samples:
    """Sample i is tokens [i*S, i*S+S]: S inputs and, shifted, S targets."""

    def __init__(self, path, seq_len):
        self.tokens, self.seq_len = np.memmap(path, dtype=np.uint16, mode="r"), seq_len
        self.count = (len(self.tokens) - 1) // seq_len

    def read(self, first, n):
        starts = [i % self.count * self.seq_len for i in range(first, first + n)]
        rows = np.stack([self.tokens[s:s + self.seq_len + 1] for s in starts]).astype(np.int64)
        return torch.from_numpy(rows[:, :-1].copy()), torch.from_numpy(rows[:, 1:].copy())


def clip(parameters, limit):
    """One norm over parameters that live on different meshes; clips to the limit."""
    groups = {}
    for p in parameters:
        groups.setdefault(p.device_mesh if isinstance(p, DTensor) else None, []).append(p)
    norms = [torch.nn.utils.get_total_norm([p.grad for p in g]) for g in groups.values()]
    norms = [n.full_tensor() if isinstance(n, DTensor) else n for n in norms]
    norm = torch.stack(norms).square().sum().sqrt()
    scale = (limit / (norm + 1e-6)).clamp(max=1.0)
    if scale < 1:
        for p in parameters:
            (p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad).mul_(scale)
    return norm.item()


class Trainer:
    def __init__(self, a):
        self.a = a
        shape = tuple(getattr(a, axis) for axis in AXES)
        self.mesh = init_device_mesh("cpu", shape, mesh_dim_names=AXES)
        config, model = load_model(a.model)
        self.model, self.split = parallelize(model, self.mesh, a)
        self.parameters = list(self.model.parameters())
        self.optimizer = torch.optim.AdamW(
            [{"params": [p for p in self.parameters if p.ndim >= 2], "weight_decay": 0.1},
             {"params": [p for p in self.parameters if p.ndim < 2], "weight_decay": 0.0}],
            lr=a.lr, betas=(0.9, 0.95), eps=1e-8, fused=True)
        self.dp = a.dp_replicate * a.dp_shard
        self.dp_rank = self.mesh.get_coordinate()[0] * a.dp_shard + self.mesh.get_coordinate()[1]
        self.batch = self.dp * a.micro_batch * a.grad_accum
        self.samples = Samples(a.data, a.seq_len)
        dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        theta = config.get("rope_theta") or (config.get("rope_parameters") or {}).get("rope_theta", 1e4)
        angle = torch.outer(torch.arange(a.seq_len).float(),
                            theta ** (-torch.arange(0, dim, 2).float() / dim)).repeat(1, 2)
        self.cos, self.sin = angle.cos(), angle.sin()

    def micro_batch(self, step, micro):
        a = self.a
        first = step * self.batch + (micro * self.dp + self.dp_rank) * a.micro_batch
        ids, targets = self.samples.read(first, a.micro_batch)
        cos, sin = self.cos, self.sin
        if self.split:
            ids, targets = ids[:, self.split.places], targets[:, self.split.places]
            cos, sin = cos[self.split.places], sin[self.split.places]
        with contextlib.ExitStack() as stack:
            if a.tp > 1:
                stack.enter_context(loss_parallel())
            last = micro == a.grad_accum - 1
            if isinstance(self.model, nn.parallel.DistributedDataParallel) and not last:
                stack.enter_context(self.model.no_sync())
            elif hasattr(self.model, "set_requires_gradient_sync"):
                self.model.set_requires_gradient_sync(last)
            logits = self.model(ids, cos, sin)
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
            # FSDP and DDP take means over dp and cp
            (loss * (self.dp * a.cp / (self.batch * a.seq_len))).backward()
        loss = loss.detach()
        return loss.full_tensor() if isinstance(loss, DTensor) else loss

    def step(self, step):
        loss = sum(self.micro_batch(step, m) for m in range(self.a.grad_accum))
        for axis in AXES[:3]:
            if self.mesh[axis].size() > 1:
                dist.all_reduce(loss, group=self.mesh.get_group(axis))
        norm = clip(self.parameters, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item() / (self.batch * self.a.seq_len), norm


def main():
    a = parse_args()
    world, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    if math.prod(getattr(a, axis) for axis in AXES) != world:
        raise SystemExit(f"the mesh is not the {world} processes there are")
    if a.compile and a.tp > 1:
        raise SystemExit("--compile with tensor parallelism is not reliable in PyTorch")
    if a.threads:
        torch.set_num_threads(a.threads)
    alone = {} if world > 1 else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group("gloo", **alone)
    trainer = Trainer(a)
    for step in range(a.steps):
        start = time.perf_counter()
        loss, norm = trainer.step(step)
        ms = (time.perf_counter() - start) * 1e3
        if rank == 0:
            print(json.dumps({"step": step + 1, "loss": loss, "grad_norm": norm,
                              "tokens": trainer.batch * a.seq_len, "step_ms": ms}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
