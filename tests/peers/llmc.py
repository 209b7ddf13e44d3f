#!/usr/bin/env python3
"""A training step of GPT-2's smallest model in kvsmith and in llm.c's trainer for processors, taken in turn on the same machine.

    PEER_LLMC=FOLDER python3 tests/peers/llmc.py build/kvsmith [--rounds 3] [--steps 2] [--skip 1] [--seconds 2] [--threads 2]
                                                 [--modes f32,bf16] [--json]

FOLDER holds train_gpt2, built by llm.c's Makefile with OpenMP: `make train_gpt2`, or `make train_gpt2 CC=gcc`. Rows of a step are
fixed in its source, 4 x 64 as it comes; for another shape change them there before building, as in
    sed -i -E '/^int main/,$ s/int B = [0-9]+;/int B = 4;/; /^int main/,$ s/int T = [0-9]+;/int T = 1024;/' train_gpt2.c
What was built is read off its output, and kvsmith takes the same shape. 4 x 1,024 takes 19 GiB in llm.c (it keeps what attention
makes of every pair), 1 x 1,024 takes 7; `s/val_num_batches = 5/val_num_batches = 1/` spares it forward passes that nobody times.

The model: 12 layers, d 768, 12 heads of 64, LayerNorm, biases, GELU (tanh) 3072, learned positions 1,024, 50,304 tokens, tied head; the
numbers of parameters must agree. llm.c computes all in f32; it clips no gradient and measures no norm, and its AdamW has no
weight decay; kvsmith does both (f32 weights and moments in either of its modes). Weights and tokens are random in both.
Each round starts llm.c anew, reads the times that it prints of the steps after the first --skip, and ends it; loading and
its validation are not timed. Needs Python alone.
"""
import argparse
import array
import json
import math
import os
import pty
import random
import re
import signal
import statistics
import struct

import peer

LAYERS, D, HEADS, VOCAB, PADDED, POSITIONS = 12, 768, 12, 50257, 50304, 1024
TOKENS = 1 << 20
# train_gpt2.c: fill_in_parameter_sizes; True: a weight that is random here, 1.0, 0.0: all the same
PARAMS = [(PADDED * D, True), (POSITIONS * D, True), (LAYERS * D, 1.0), (LAYERS * D, 0.0), (LAYERS * 3 * D * D, True),
          (LAYERS * 3 * D, 0.0), (LAYERS * D * D, True), (LAYERS * D, 0.0), (LAYERS * D, 1.0), (LAYERS * D, 0.0),
          (LAYERS * 4 * D * D, True), (LAYERS * 4 * D, 0.0), (LAYERS * 4 * D * D, True), (LAYERS * D, 0.0), (D, 1.0), (D, 0.0)]
ROW = LAYERS * (18 * D + 4) + 2 * D + 2 + 2 * PADDED + 1  # numbers it keeps of a row, but for its attention:
PAIR = 2 * LAYERS * HEADS                                  # scores and weights of every pair of rows

CONFIG = """model:
  d_model: 768
  layers: 12
  vocab: 50304
  norm: layer
  positions: learned
  max_positions: 1024
  kinds:
    full: {mixer: gqa, heads: 12, rope: none, qkv_bias: true, o_bias: true}
  ffn: {kind: gelu, act: tanh, hidden: 3072}
data: {seq_len: %d}
train: {batch: %d, micro_batch: %d}
"""


def write_inputs(folder):
    """What train_gpt2 opens: a checkpoint (magic 20240326, version 3) and two files of ids (20240520, 1)."""
    def header(*first):
        return struct.pack("<256i", *first, *[0] * (256 - len(first)))
    noise = peer.Noise("f32")
    with open(os.path.join(folder, "gpt2_124M.bin"), "wb") as f:
        f.write(header(20240326, 3, POSITIONS, VOCAB, LAYERS, HEADS, D, PADDED))
        for count, value in PARAMS:
            if value is True:
                noise.write(f, count)
            else:
                f.write(struct.pack("<f", value) * count)
    where = os.path.join(folder, "dev", "data", "tinyshakespeare")
    os.makedirs(where)
    pick = random.Random(2)
    ids = array.array("H", (pick.randrange(VOCAB) for _ in range(TOKENS)))
    for part in ("train", "val"):
        with open(os.path.join(where, f"tiny_shakespeare_{part}.bin"), "wb") as f:
            f.write(header(20240520, 1, TOKENS))
            f.write(struct.pack(f"<{TOKENS}H", *ids))


def lines(fd):
    """Lines of a terminal's other end, as they come (into a pipe a program would print them at its end)."""
    rest = b""
    while True:
        try:
            got = os.read(fd, 1 << 16)
        except OSError:  # EIO: nobody has it open any more
            got = b""
        if not got:
            if rest:
                yield rest.decode(errors="replace")
            return
        *whole, rest = (rest + got).split(b"\n")
        for line in whole:
            yield line.decode(errors="replace").rstrip("\r")


def shape_of(activations, batches):
    """B and T of a build that keeps so many numbers and finds so many batches in TOKENS tokens."""
    found = []
    for t in range(1, POSITIONS + 1):
        rows, left = divmod(activations, ROW + PAIR * t)
        if not left and rows and rows % t == 0 and TOKENS // rows == batches:
            found.append((rows // t, t))
    if len(found) != 1:
        peer.stop(f"train_gpt2 keeps {activations} numbers of a step in {batches} batches: expected those of one B x T, got {found}")
    return found[0]


def available():
    """Bytes of memory that are free for programs, or None where the system does not say."""
    try:
        return int(re.search(r"MemAvailable:\s*(\d+) kB", open("/proc/meminfo").read()).group(1)) * 1024
    except (OSError, AttributeError):
        return None


def needs_terminal():
    """Before anything large is written."""
    try:
        for fd in pty.openpty():
            os.close(fd)
    except OSError as e:
        peer.stop(f"llm.c's trainer writes whole lines to a terminal only, and none can be had here: {e.strerror or e}")


def theirs(program, folder):
    """(B, T), seconds of each timed step, number of parameters."""
    free = available()
    pid, fd = pty.fork()
    if pid == 0:
        os.environ["OMP_NUM_THREADS"] = str(args.threads)
        try:
            os.chdir(folder)
            os.execv(program, [program])
        finally:
            os._exit(127)
    seen, took, last = {}, [], "nothing"
    try:
        for line in lines(fd):
            last = line or last
            number = re.match(r"(num_parameters|num_activations|train dataset num_batches): (\d+)$", line)
            if number:
                seen[number.group(1)] = int(number.group(2))
            if number and number.group(1) == "num_activations":
                shape = shape_of(seen["num_activations"], seen.get("train dataset num_batches"))
                need = 4 * (2 * seen["num_activations"] + 4 * seen.get("num_parameters", 0))
                if free and need > free:
                    peer.stop(f"train_gpt2 needs {need / 2**30:.1f} GiB for steps of {shape[0]} x {shape[1]}, {free / 2**30:.1f} are free; "
                              f"build it with a smaller B (see --help)")
            step = re.match(r"step (\d+): train loss (\S+) \(took (\S+) ms\)", line)
            if step:
                if not math.isfinite(float(step.group(2))):
                    peer.stop(f"train_gpt2: expected a finite loss, got '{line}'")
                if int(step.group(1)) >= args.skip:
                    took.append(float(step.group(3)) / 1e3)
                if len(took) == args.steps:
                    return shape, took, seen.get("num_parameters")
        peer.stop(f"train_gpt2 ended before step {args.skip + args.steps - 1}; its last line: {last[:200]}")
    finally:
        os.kill(pid, signal.SIGKILL)
        os.close(fd)
        os.waitpid(pid, 0)


ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
ap.add_argument("kvsmith")
ap.add_argument("--rounds", type=int, default=3)
ap.add_argument("--steps", type=int, default=2, help="timed steps of a round of llm.c")
ap.add_argument("--skip", type=int, default=1, help="its first steps, which touch new memory")
ap.add_argument("--seconds", type=float, default=2, help="of one measurement of kvsmith, and three steps at least")
ap.add_argument("--threads", type=int, default=os.cpu_count())
ap.add_argument("--modes", default="f32,bf16", help="kvsmith's, comma-separated")
ap.add_argument("--json", action="store_true")
args = ap.parse_args()
modes = args.modes.split(",")
if not set(modes) <= {"f32", "bf16"}:
    peer.stop(f"--modes: expected f32, bf16 or both, got '{args.modes}'", 2)
if args.steps < 1 or args.skip < 0 or args.steps + args.skip > 40:
    peer.stop(f"--steps, --skip: expected at least 1, at least 0 and at most 40 together, got {args.steps}, {args.skip}", 2)
peer.check_rounds(args)
train_gpt2 = peer.program("PEER_LLMC", "train_gpt2")
rates = {name: [] for name in ["llm.c", *("kvsmith-" + m for m in modes)]}
percent = {"kvsmith-" + m: [] for m in modes}
needs_terminal()
with peer.folder() as tmp:
    write_inputs(tmp)
    for _ in range(args.rounds):
        (B, T), took, params = theirs(train_gpt2, tmp)
        rates["llm.c"].append(B * T / statistics.median(took))
        config = os.path.join(tmp, "gpt2.yaml")
        with open(config, "w") as f:
            f.write(CONFIG % (T, B, B))
        for m in modes:
            got = peer.kvsmith(args, "train", config, "--dtype", m)["train"]
            if got["params"] != params or got["rows"] != B * T:
                peer.stop(f"kvsmith's model has {got['params']} parameters and {got['rows']} rows, llm.c's {params} and {B * T}")
            rates["kvsmith-" + m].append(got["tok_s"])
            percent["kvsmith-" + m].append(got["percent_of_peak"])

result = {"threads": args.threads, "params": params, "batch": B, "seq_len": T, "rounds": args.rounds, "rates": rates,
          "percent_of_peak": percent, "ratio": {m: peer.ratios(rates["kvsmith-" + m], rates["llm.c"]) for m in modes}}
if args.json:
    print(json.dumps(result))
else:
    print(f"{params} parameters, {B} x {T} rows, {args.threads} threads, {args.rounds} rounds; tokens/s")
    for name, r in rates.items():
        share = f"  {statistics.median(percent[name]):.1f} % of its GEMM peak" if name in percent else ""
        print(f"{name:14} {peer.spread(r)}{share}")
    for m, q in result["ratio"].items():
        print(f"kvsmith in {m} beside llm.c in f32, round by round: {peer.spread(q)}")
