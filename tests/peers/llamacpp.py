#!/usr/bin/env python3
"""Decoding and prompts of one model in kvsmith and in llama.cpp, taken in turn on the same machine.

    PEER_LLAMACPP=FOLDER python3 tests/peers/llamacpp.py build/kvsmith [CONFIG.yaml] [--batch 1] [--prompt 128] [--rounds 5] [--seconds 2]
                                                         [--threads 2] [--weights bf16,f16] [--cache f16] [--dtype bf16] [--json]

FOLDER (or its bin/) holds llama-bench and, for --batch over 1, llama-batched-bench, as llama.cpp's build makes them:
    cmake -B build -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON && cmake --build build --target llama-bench llama-batched-bench
The model is the one that `kvsmith bench decode CONFIG` measures (one gqa kind, swiglu, RMSNorm, tied head; by default its standard
model): written as a GGUF file of architecture llama with random weights, in every type of --weights; kvsmith has its own
random ones in --dtype. llama.cpp keeps its cache in --cache (f16 is its default), kvsmith in --dtype. llama.cpp splits a
prompt into 512 rows a pass, kvsmith into 256: the defaults of both.

Decoding: --batch sequences behind --prompt tokens each. kvsmith's figure is its median step within --seconds; llama.cpp then generates as
many tokens, in five parts that each begin behind the prompt (in one, where --batch is over 1), and the median part counts.
Prompts: --batch times --prompt tokens, the last one's logits wanted alone. No sampling, no text on either side. Needs Python, and
PyYAML where CONFIG is given.
"""
import argparse
import json
import os
import statistics
import struct

import peer

PARTS = 5
TYPES = {"f32": (0, 0), "f16": (1, 1), "bf16": (30, 32)}  # of a tensor (ggml_type), of a file (general.file_type)
U32, F32, STRING = 4, 6, 8                                # types of values


def text(s):
    return struct.pack("<Q", len(s)) + s.encode()


def value(key, kind, x):
    return text(key) + struct.pack("<I", kind) + (text(x) if kind == STRING else struct.pack("<I" if kind == U32 else "<f", x))


def write_gguf(path, model, kind, ffn, dtype):
    """GGUF version 3 (ggml's docs/gguf.md); returns the number of parameters."""
    d, layers, vocab, hidden = model["d_model"], model["layers"], model.get("vocab") or 257, ffn["hidden"]
    heads = kind["heads"]
    kv = kind.get("kv_heads") or heads
    dh = kind.get("head_dim") or d // heads
    rope = kind.get("rope") or {}
    values = [("general.architecture", STRING, "llama"), ("general.name", STRING, "random"), ("general.file_type", U32, TYPES[dtype][1]),
              ("llama.block_count", U32, layers), ("llama.context_length", U32, 1 << 17), ("llama.embedding_length", U32, d),
              ("llama.feed_forward_length", U32, hidden), ("llama.attention.head_count", U32, heads),
              ("llama.attention.head_count_kv", U32, kv), ("llama.attention.key_length", U32, dh),
              ("llama.attention.value_length", U32, dh), ("llama.rope.dimension_count", U32, dh),
              ("llama.rope.freq_base", F32, float(rope.get("theta", 10000))),
              ("llama.attention.layer_norm_rms_epsilon", F32, float(model.get("norm_eps", 1e-5))), ("llama.vocab_size", U32, vocab),
              ("tokenizer.ggml.model", STRING, "no_vocab")]
    tensors = [("token_embd", (d, vocab)), ("output_norm", (d,))]  # numbers of a row first; no output.weight: it is tied
    for i in range(layers):
        tensors += [(f"blk.{i}.{name}", dims) for name, dims in (
            ("attn_norm", (d,)), ("attn_q", (d, heads * dh)), ("attn_k", (d, kv * dh)), ("attn_v", (d, kv * dh)),
            ("attn_output", (heads * dh, d)), ("ffn_norm", (d,)), ("ffn_gate", (d, hidden)), ("ffn_up", (d, hidden)),
            ("ffn_down", (hidden, d)))]
    noise, ones = peer.Noise(dtype), struct.pack("<f", 1.0)
    head, at, params = b"", 0, 0
    for name, dims in tensors:
        count = dims[0] * (dims[1] if len(dims) == 2 else 1)
        head += text(name + ".weight") + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, TYPES[dtype if len(dims) == 2 else "f32"][0], at)
        at += -(-count * (noise.bytes if len(dims) == 2 else 4) // 32) * 32
        params += count
    with open(path, "wb") as f:
        f.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values)) + b"".join(value(*v) for v in values) + head)
        for name, dims in tensors:
            f.write(b"\0" * (-f.tell() % 32))
            if len(dims) == 1:
                f.write(ones * dims[0])
            else:
                noise.write(f, dims[0] * dims[1])
        f.write(b"\0" * (-f.tell() % 32))
    return params


def llama_bench(path, *words):
    """The one test that the words ask for."""
    out = peer.output([bench, "-m", path, "-t", str(args.threads), "-ctk", args.cache, "-ctv", args.cache, "-o", "json", *map(str, words)])
    tests = json.loads(out)
    if len(tests) != 1:
        peer.stop(f"llama-bench: expected one result, got {len(tests)}")
    if tests[0]["model_n_params"] != params:
        peer.stop(f"llama.cpp's model has {tests[0]['model_n_params']} parameters, the file {params}")
    return tests[0]


def theirs(path, steps):
    """tokens/s of decoding and of prompts, and llama-bench's own description of what it ran."""
    if args.batch > 1:
        out = peer.output([batched, "-m", path, "-t", str(args.threads), "-tb", str(args.threads), "-ctk", args.cache, "-ctv", args.cache,
                           "-npp", str(args.prompt), "-ntg", str(steps), "-npl", str(args.batch),
                           "-c", str(args.batch * (args.prompt + steps)), "-b", "2048", "-ub", "512", "--output-format", "jsonl"])
        tests = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        if len(tests) != 1 or tests[0]["pl"] != args.batch:
            peer.stop(f"llama-batched-bench: expected one result of batch {args.batch}, got {len(tests)}")
        return tests[0]["speed_tg"], tests[0]["speed_pp"], tests[0]
    gen = llama_bench(path, "-p", 0, "-n", max(1, steps // PARTS), "-d", args.prompt, "-r", PARTS)
    fill = llama_bench(path, "-p", args.prompt, "-n", 0, "-r", PARTS)
    return statistics.median(gen["samples_ts"]), statistics.median(fill["samples_ts"]), gen


def ours():
    words = [args.config] if args.config else []
    words += ["--dtype", args.dtype, "--batch", args.batch, "--prompt", args.prompt]
    gen = peer.kvsmith(args, "decode", *words)["decode"][0]
    fill = peer.kvsmith(args, "prefill", *words)["prefill"][0]
    return gen["tok_s"], fill["tok_s"], gen["runs"]


ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
ap.add_argument("kvsmith")
ap.add_argument("config", nargs="?")
ap.add_argument("--batch", type=int, default=1)
ap.add_argument("--prompt", type=int, default=128)
ap.add_argument("--rounds", type=int, default=5)
ap.add_argument("--seconds", type=float, default=2)
ap.add_argument("--threads", type=int, default=os.cpu_count())
ap.add_argument("--weights", default="bf16,f16", help="llama.cpp's, comma-separated: bf16, f16, f32")
ap.add_argument("--cache", choices=["f32", "f16", "bf16"], default="f16", help="llama.cpp's")
ap.add_argument("--dtype", choices=["f32", "bf16"], default="bf16", help="kvsmith's weights and cache")
ap.add_argument("--json", action="store_true")
args = ap.parse_args()
weights = args.weights.split(",")
if not set(weights) <= set(TYPES):
    peer.stop(f"--weights: expected some of bf16, f16, f32, got '{args.weights}'", 2)
if args.batch < 1 or args.prompt < 1:
    peer.stop(f"--batch, --prompt: expected at least 1, got {args.batch}, {args.prompt}", 2)
peer.check_rounds(args)
if args.batch == 1:
    bench = peer.program("PEER_LLAMACPP", "llama-bench")
else:
    batched = peer.program("PEER_LLAMACPP", "llama-batched-bench")
model, kind, ffn = peer.llama_shape(args.config)
names = ["llama.cpp-" + w for w in weights]
decode, prefill, ran = ({name: [] for name in ["kvsmith", *names]} for _ in range(3))
with peer.folder() as tmp:
    for w in weights:
        params = write_gguf(os.path.join(tmp, w + ".gguf"), model, kind, ffn, w)
    for _ in range(args.rounds):
        gen, fill, steps = ours()
        decode["kvsmith"].append(gen), prefill["kvsmith"].append(fill)
        for w in weights:
            gen, fill, ran["llama.cpp-" + w] = theirs(os.path.join(tmp, w + ".gguf"), steps)
            decode["llama.cpp-" + w].append(gen), prefill["llama.cpp-" + w].append(fill)

result = {"threads": args.threads, "params": params, "batch": args.batch, "prompt": args.prompt, "dtype": args.dtype, "cache": args.cache,
          "rounds": args.rounds, "decode": decode, "prefill": prefill, "last_run": {n: ran[n] for n in names},
          "decode_ratio": {n: peer.ratios(decode["kvsmith"], decode[n]) for n in names},
          "prefill_ratio": {n: peer.ratios(prefill["kvsmith"], prefill[n]) for n in names}}
if args.json:
    print(json.dumps(result))
else:
    commit = ran[names[0]].get("build_commit", "of a commit that it does not tell")
    print(f"{params} parameters, batch {args.batch}, prompt {args.prompt}, {args.threads} threads, {args.rounds} rounds; kvsmith {args.dtype}; "
          f"llama.cpp {commit}, cache {args.cache}; tokens/s")
    for name in decode:
        print(f"{name:14} decode {peer.spread(decode[name])}, prompt {peer.spread(prefill[name], 0)}")
    for name in names:
        print(f"kvsmith beside {name}, round by round: decode {peer.spread(result['decode_ratio'][name], 2)}, "
              f"prompt {peer.spread(result['prefill_ratio'][name], 2)}")
