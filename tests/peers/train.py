#!/usr/bin/env python3
"""A training step of one model in kvsmith and in PyTorch, taken in turn on the same machine.

    python3 tests/peers/train.py build/kvsmith [CONFIG.yaml] [--rounds 5] [--seconds 2] [--threads 2] [--modes ...] [--json]

The model is the one that `kvsmith bench train CONFIG` measures (one gqa kind, swiglu, RMSNorm, tied head; by default its standard
model): the same shapes, micro-batch, threads and work, that is forward, backward, the gradient's norm and AdamW on random tokens.
PyTorch runs as its users write it: scaled_dot_product_attention, fused AdamW, autocast for bf16; eager and torch.compile. Every
round measures all of them one after the other, so that a machine that is busy for a while is so for all; the ratio is
taken round by round and its median printed. Needs PyTorch and PyYAML; kvsmith needs neither.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

STANDARD = {"model": {"d_model": 384, "layers": 6, "kinds": {"full": {"mixer": "gqa", "heads": 6, "kv_heads": 2, "head_dim": 64}},
                      "ffn": {"kind": "swiglu", "hidden": 1024}}, "data": {"seq_len": 256}, "train": {"micro_batch": 8}}

ap = argparse.ArgumentParser()
ap.add_argument("kvsmith")
ap.add_argument("config", nargs="?")
ap.add_argument("--rounds", type=int, default=5)
ap.add_argument("--seconds", type=float, default=2)
ap.add_argument("--threads", type=int, default=os.cpu_count())
ap.add_argument("--modes", default="eager-f32,eager-bf16,compile-f32,compile-bf16")
ap.add_argument("--json", action="store_true")
args = ap.parse_args()
os.environ["OMP_NUM_THREADS"] = str(args.threads)

import torch  # noqa: E402  (reads OMP_NUM_THREADS)
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

torch.set_num_threads(args.threads)
torch.manual_seed(1)
cfg = STANDARD
if args.config:
    import yaml
    cfg = yaml.safe_load(open(args.config))
model = cfg["model"]
kinds = model["kinds"]
kind = next(iter(kinds.values()))
ffn = model["ffn"][0] if isinstance(model["ffn"], list) else model["ffn"]
if len(kinds) != 1 or kind["mixer"] != "gqa" or ffn["kind"] != "swiglu" or kind.get("window") or model.get("kv_from") or kind.get("qk_norm"):
    sys.exit("this peer writes models of one plain gqa kind and one swiglu only")
D, L, V = model["d_model"], model["layers"], model.get("vocab") or 257
H, G = kind["heads"], kind.get("kv_heads") or kind["heads"]
DH, HIDDEN = kind.get("head_dim") or D // H, ffn["hidden"]
T, B = cfg["data"]["seq_len"], cfg["train"]["micro_batch"]
THETA = (kind.get("rope") or {}).get("theta", 10000) if kind.get("rope") != "none" else None


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(D, eps=1e-5), nn.RMSNorm(D, eps=1e-5)
        self.qkv = nn.Linear(D, (H + 2 * G) * DH, bias=False)
        self.o = nn.Linear(H * DH, D, bias=False)
        self.gate_up, self.down = nn.Linear(D, 2 * HIDDEN, bias=False), nn.Linear(HIDDEN, D, bias=False)

    def forward(self, x, cos, sin):
        q, k, v = self.qkv(self.norm1(x)).split([H * DH, G * DH, G * DH], -1)
        q, k, v = (t.view(x.shape[0], T, -1, DH).transpose(1, 2) for t in (q, k, v))
        if cos is not None:
            q, k = turn(q, cos, sin), turn(k, cos, sin)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=G != H)
        x = x + self.o(a.transpose(1, 2).reshape(x.shape[0], T, H * DH))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


def turn(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(V, D)
        self.blocks = nn.ModuleList(Block() for _ in range(L))
        self.norm = nn.RMSNorm(D, eps=1e-5)
        self.tied = model.get("tied", True)
        if not self.tied:
            self.head = nn.Linear(D, V, bias=False)
        if THETA is not None:
            angle = torch.outer(torch.arange(T), THETA ** (-torch.arange(0, DH, 2) / DH))
            self.register_buffer("cos", torch.cat((angle, angle), -1).cos())
            self.register_buffer("sin", torch.cat((angle, angle), -1).sin())
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, tok, tgt):
        x = self.embed(tok)
        for b in self.blocks:
            x = b(x, self.cos if THETA is not None else None, self.sin if THETA is not None else None)
        logits = F.linear(self.norm(x), self.embed.weight if self.tied else self.head.weight)
        return F.cross_entropy(logits.view(-1, V).float(), tgt.view(-1))


class Torch:
    def __init__(self, mode):
        how, dtype = mode.split("-")
        self.net = Net()
        self.run = torch.compile(self.net) if how == "compile" else self.net
        self.bf16 = dtype == "bf16"
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=1e-5, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
        self.tok, self.tgt = torch.randint(V, (B, T)), torch.randint(V, (B, T))
        for _ in range(3):  # compiles
            self.step()

    def step(self):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
            loss = self.run(self.tok, self.tgt)
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 1.0, foreach=True)
        self.opt.step()
        self.opt.zero_grad(set_to_none=True)

    def measure(self, seconds):
        times, end = [], time.perf_counter() + seconds
        while len(times) < 3 or time.perf_counter() < end:
            start = time.perf_counter()
            self.step()
            times.append(time.perf_counter() - start)
        return B * T / statistics.median(times)


def ours(dtype):
    cmd = [args.kvsmith, "bench", "train"] + ([args.config] if args.config else []) + [
        "--json", "--dtype", dtype, "--seconds", str(args.seconds), "--threads", str(args.threads)]
    r = json.loads(subprocess.run(cmd, check=True, capture_output=True, text=True).stdout)
    return r["train"]["tok_s"], r["train"]["percent_of_peak"], r["train"]["params"]


peers = {m: Torch(m) for m in args.modes.split(",")}
rates = {name: [] for name in ["kvsmith-f32", "kvsmith-bf16", *peers]}
percent = {"kvsmith-f32": [], "kvsmith-bf16": []}
params = sum(p.numel() for p in Net().parameters())
for _ in range(args.rounds):
    for dtype in ("f32", "bf16"):
        tok_s, share, n = ours(dtype)
        if n != params:
            sys.exit(f"kvsmith's model has {n} parameters, PyTorch's {params}: not the same model")
        rates["kvsmith-" + dtype].append(tok_s)
        percent["kvsmith-" + dtype].append(share)
    for name, p in peers.items():
        rates[name].append(p.measure(args.seconds))

result = {"torch": torch.__version__, "threads": args.threads, "params": params, "rows": B * T, "seq_len": T, "rounds": args.rounds,
          "rates": rates, "percent_of_peak": percent}
best = [max(rates[n][i] for n in peers) for i in range(args.rounds)]
mine = [max(rates["kvsmith-f32"][i], rates["kvsmith-bf16"][i]) for i in range(args.rounds)]
result["ratio_to_best"] = [m / b for m, b in zip(mine, best)]
if args.json:
    print(json.dumps(result))
else:
    print(f"{params} parameters, {B} x {T} rows, {args.threads} threads, PyTorch {torch.__version__}, {args.rounds} rounds")
    for name, r in rates.items():
        share = f"  {statistics.median(percent[name]):.1f} % of its GEMM peak" if name in percent else ""
        print(f"{name:14} {statistics.median(r):10.0f} tokens/s  ({min(r):.0f} to {max(r):.0f}){share}")
    q = result["ratio_to_best"]
    print(f"kvsmith's best beside PyTorch's best, round by round: {statistics.median(q):.2f} ({min(q):.2f} to {max(q):.2f})")
