#!/usr/bin/env python3
"""Prefill and decoding of one model in kvsmith and in PyTorch (transformers), taken in turn on the same machine.

    python3 tests/peers/decode.py build/kvsmith [CONFIG.yaml] [--batch 1] [--prompt 128] [--rounds 5] [--seconds 2] [--threads 2]
                                  [--dtype bf16] [--isa avx2] [--compile] [--json]

The model is the one that `kvsmith bench decode CONFIG` measures (one gqa kind, swiglu, RMSNorm, tied head; by default its standard
model), random in both. PyTorch runs transformers' LlamaForCausalLM with a static cache, weights and cache in --dtype as in
kvsmith, greedy steps without a sampler; --compile compiles the forward; --isa avx2 holds both to that instruction set.
Every round measures both one after the other; the ratio is taken round by round and its median printed. Needs PyTorch, transformers and PyYAML; kvsmith needs none of them.
"""
import argparse
import json
import os
import statistics
import subprocess
import time

import peer

ap = argparse.ArgumentParser()
ap.add_argument("kvsmith")
ap.add_argument("config", nargs="?")
ap.add_argument("--batch", type=int, default=1)
ap.add_argument("--prompt", type=int, default=128)
ap.add_argument("--rounds", type=int, default=5)
ap.add_argument("--seconds", type=float, default=2)
ap.add_argument("--threads", type=int, default=os.cpu_count())
ap.add_argument("--dtype", choices=["f32", "bf16"], default="bf16")
ap.add_argument("--isa", choices=["auto", "avx2"], default="auto")
ap.add_argument("--compile", action="store_true")
ap.add_argument("--json", action="store_true")
args = ap.parse_args()
os.environ["OMP_NUM_THREADS"] = str(args.threads)
if args.isa == "avx2":  # PyTorch's own kernels, and its products
    os.environ.update(ATEN_CPU_CAPABILITY="avx2", ONEDNN_MAX_CPU_ISA="AVX2", MKL_ENABLE_INSTRUCTIONS="AVX2")

import torch  # noqa: E402  (reads OMP_NUM_THREADS)
import transformers  # noqa: E402

torch.set_num_threads(args.threads)
model, kind, ffn = peer.llama_shape(args.config)
ROOM = max(64, min(1000, 4096 // args.batch)) + 1
config = transformers.LlamaConfig(
    vocab_size=model.get("vocab") or 257, hidden_size=model["d_model"], intermediate_size=ffn["hidden"],
    num_hidden_layers=model["layers"], num_attention_heads=kind["heads"], num_key_value_heads=kind.get("kv_heads") or kind["heads"],
    head_dim=kind.get("head_dim") or model["d_model"] // kind["heads"], max_position_embeddings=args.prompt + ROOM,
    tie_word_embeddings=True)
net = transformers.LlamaForCausalLM(config).to(torch.bfloat16 if args.dtype == "bf16" else torch.float32).eval()
run = torch.compile(net) if args.compile else net


@torch.inference_mode()
def theirs(seconds):
    """Tokens/s of a prompt and of decoding."""
    cache = transformers.StaticCache(config=config, max_cache_len=args.prompt + ROOM)
    tok = torch.randint(config.vocab_size, (args.batch, args.prompt))
    start = time.perf_counter()
    out = run(tok, past_key_values=cache, use_cache=True, logits_to_keep=1)
    prefill = args.batch * args.prompt / (time.perf_counter() - start)
    times, end = [], time.perf_counter() + seconds
    while len(times) < ROOM - 1 and (len(times) < 3 or time.perf_counter() < end):
        start = time.perf_counter()
        out = run(out.logits[:, -1:].argmax(-1), past_key_values=cache, use_cache=True, logits_to_keep=1)
        times.append(time.perf_counter() - start)
    return prefill, args.batch / statistics.median(times)


def ours():
    cmd = [args.kvsmith, "bench", "decode"] + ([args.config] if args.config else []) + [
        "--json", "--dtype", args.dtype, "--batch", str(args.batch), "--prompt", str(args.prompt), "--seconds", str(args.seconds),
        "--threads", str(args.threads), "--isa", args.isa]
    r = json.loads(subprocess.run(cmd, check=True, capture_output=True, text=True).stdout)["decode"][0]
    return r["prefill_tok_s"], r["tok_s"], r["percent_of_bandwidth"]


theirs(0)  # compiles, and touches all memory
result = {"torch": torch.__version__, "transformers": transformers.__version__, "threads": args.threads, "dtype": args.dtype,
          "batch": args.batch, "prompt": args.prompt, "isa": args.isa, "compiled": args.compile, "params": sum(p.numel() for p in net.parameters()),
          "kvsmith": [], "pytorch": []}
for _ in range(args.rounds):
    result["kvsmith"].append(ours())
    result["pytorch"].append(theirs(args.seconds))
result["decode_ratio"] = [a[1] / b[1] for a, b in zip(result["kvsmith"], result["pytorch"])]
result["prefill_ratio"] = [a[0] / b[0] for a, b in zip(result["kvsmith"], result["pytorch"])]
if args.json:
    print(json.dumps(result))
else:
    print(f"{result['params']} parameters, batch {args.batch}, prompt {args.prompt}, {args.dtype}, {args.isa}, {args.threads} threads, "
          f"PyTorch {torch.__version__}, transformers {transformers.__version__}")
    for name in ("kvsmith", "pytorch"):
        rate = [r[1] for r in result[name]]
        fill = [r[0] for r in result[name]]
        print(f"{name:8} decode {statistics.median(rate):8.1f} tokens/s ({min(rate):.1f} to {max(rate):.1f}), "
              f"prefill {statistics.median(fill):8.0f} ({min(fill):.0f} to {max(fill):.0f})")
    for what in ("decode", "prefill"):
        q = result[what + "_ratio"]
        print(f"{what}: kvsmith beside PyTorch, round by round: {statistics.median(q):.2f} ({min(q):.2f} to {max(q):.2f})")
