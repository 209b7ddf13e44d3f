#!/usr/bin/env python3
"""Kimi Delta Attention's recurrence, forward and backward, in kvsmith and in PyTorch, taken in turn on the same machine.

    python3 tests/peers/recur.py build/kvsmith [--fla NAIVE.py] [--rounds 5] [--seconds 1] [--threads 2] [--shapes 0,1,2] [--peers NAME,...] [--json]

Peers: transformers' chunk_kimi_delta_attention, eager and under torch.compile, and, where --fla names the file
fla/ops/kda/naive.py of flash-linear-attention, its naive_chunk_kda (eager; its loops over rows make a graph of
thousands of parts for a compiler: --compile-fla tries it all the same). All compute in f32 what `kvsmith bench recur` does:
the same shapes, gradients by q, k, v, g and beta. Every round measures all of them one after the other; the ratio is
taken round by round and its median printed. Versions used: PyTorch 2.15.0, transformers 5.23.0, fla-core 0.6.0.
"""
import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import time

ap = argparse.ArgumentParser()
ap.add_argument("kvsmith")
ap.add_argument("--fla")
ap.add_argument("--compile-fla", action="store_true")
ap.add_argument("--rounds", type=int, default=5)
ap.add_argument("--seconds", type=float, default=1)
ap.add_argument("--threads", type=int, default=os.cpu_count())
ap.add_argument("--shapes", default="0,1,2")
ap.add_argument("--peers", help="only these, by name, comma-separated")
ap.add_argument("--json", action="store_true")
args = ap.parse_args()
os.environ["OMP_NUM_THREADS"] = str(args.threads)

import torch  # noqa: E402  (reads OMP_NUM_THREADS)
from transformers.models.kimi_linear.modeling_kimi_linear import chunk_kimi_delta_attention  # noqa: E402

torch.set_num_threads(args.threads)
SHAPES = [(4, 1024, 4, 64), (1, 4096, 4, 64), (1, 4096, 8, 128)]  # as train/bench/cmd_bench.c has them
peers = {"transformers": chunk_kimi_delta_attention,
         "transformers-compiled": torch.compile(chunk_kimi_delta_attention, dynamic=False)}
if args.fla:
    spec = importlib.util.spec_from_file_location("naive", args.fla)
    naive = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(naive)
    peers["fla-naive"] = naive.naive_chunk_kda
    if args.compile_fla:
        peers["fla-naive-compiled"] = torch.compile(naive.naive_chunk_kda, dynamic=False)
if args.peers:
    peers = {name: peers[name] for name in args.peers.split(",")}


def data(B, T, H, D):
    torch.manual_seed(1)
    unit = (D / 3) ** -0.5
    q, k, v = ((2 * torch.rand(B, T, H, D) - 1) * s for s in (unit, unit, 1))
    g, beta = -0.1 * torch.rand(B, T, H, D), torch.rand(B, T, H)
    return [x.requires_grad_() for x in (q, k, v, g, beta)], 2 * torch.rand(B, T, H, D) - 1


def step(f, x, dout):
    for t in x:
        t.grad = None
    f(*x)[0].backward(dout)


def seconds(f, x, dout):
    step(f, x, dout)
    times, start = [], time.perf_counter()
    while len(times) < 3 or time.perf_counter() - start < args.seconds:
        t = time.perf_counter()
        step(f, x, dout)
        times.append(time.perf_counter() - t)
    return statistics.median(times)


def ours():
    out = subprocess.run([args.kvsmith, "bench", "recur", "--json", "--threads", str(args.threads), "--seconds",
                          str(args.seconds)], check=True, capture_output=True).stdout
    return {(r["batch"], r["rows"], r["heads"], r["dim"]): r["forward_backward_s"]
            for r in json.loads(out)["recur"] if r["rule"] == "kda"}


shapes = [SHAPES[int(i)] for i in args.shapes.split(",")]
got = {s: {name: [] for name in ["kvsmith", *peers]} for s in shapes}
for s in shapes:  # compiled before anything is timed
    x, dout = data(*s)
    out = {name: f(*x)[0] for name, f in peers.items()}
    worst = max(float((o - next(iter(out.values()))).detach().abs().max()) for o in out.values())
    assert worst < 1e-3, f"the peers disagree by {worst}"
    for f in peers.values():
        step(f, x, dout)
for _ in range(args.rounds):
    mine = ours()
    for s in shapes:
        got[s]["kvsmith"].append(mine[s])
        x, dout = data(*s)
        for name, f in peers.items():
            got[s][name].append(seconds(f, x, dout))
rows = []
for s in shapes:
    for name, t in got[s].items():
        ratio = statistics.median(a / b for a, b in zip(t, got[s]["kvsmith"]))
        rows.append({"shape": s, "what": name, "ms": 1e3 * statistics.median(t), "times_ours": ratio})
if args.json:
    print(json.dumps({"rounds": args.rounds, "threads": args.threads, "torch": torch.__version__, "rows": rows}))
else:
    for r in rows:
        print(f"{'x'.join(map(str, r['shape'])):14} {r['what']:24} {r['ms']:9.2f} ms  {r['times_ours']:6.2f} x ours")
