#!/usr/bin/env python3
"""Training, decoding and prompts of two kvsmith programs, such as those of two commits, taken in turn on the same machine.

    python3 tests/peers/commits.py OLD/build/kvsmith NEW/build/kvsmith [--rounds 7] [--seconds 1] [--threads 2] [--json]
                                   [--under "chrt -f 50 taskset -c 1"]

Every round runs each bench with both programs, in an order that alternates. The ratio of speeds (new over old) is taken round
by round; the median is printed with the quartiles. A busy machine disturbs this less when the programs run under words that keep
others off a processor, such as those of --under above (as root, with --threads 1). Needs Python alone.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

BENCHES = {
    "train 9.5M f32": ["train", "--dtype", "f32"],
    "train tiny f32": ["train", "configs/tiny-gqa.yaml"],
    "train kda f32": ["train", "configs/tiny-kda.yaml"],
    "decode 124M f32 batch 1": ["decode", "configs/124m.yaml", "--dtype", "f32", "--batch", "1", "--prompt", "128"],
    "decode 124M f32 batch 16": ["decode", "configs/124m.yaml", "--dtype", "f32", "--batch", "16", "--prompt", "128"],
    "decode 124M bf16 batch 1": ["decode", "configs/124m.yaml", "--dtype", "bf16", "--batch", "1", "--prompt", "128"],
    "prefill 124M f32": ["prefill", "configs/124m.yaml", "--dtype", "f32", "--batch", "1"],
}

ap = argparse.ArgumentParser()
ap.add_argument("old")
ap.add_argument("new")
ap.add_argument("--rounds", type=int, default=7)
ap.add_argument("--seconds", type=float, default=1)
ap.add_argument("--threads", type=int, default=os.cpu_count())
ap.add_argument("--only", help="benches whose name contains this")
ap.add_argument("--under", type=str.split, default=[], help="words to run the programs under")
ap.add_argument("--json", action="store_true")
args = ap.parse_args()
if args.rounds < 1 or args.seconds <= 0:
    ap.error("--rounds, --seconds: expected at least 1 round and more than 0 seconds")
for program in (args.old, args.new):
    if not os.access(program, os.X_OK):
        ap.error(f"{program}: expected a program, got none that can be executed; build it first")
if args.only and not any(args.only in name for name in BENCHES):
    ap.error(f"--only {args.only}: expected part of one of: {', '.join(BENCHES)}")


def rates(program, bench):
    """Tokens/s by the name of what was measured."""
    out = subprocess.run([*args.under, program, "bench", *bench, "--json", "--seconds", str(args.seconds), "--threads", str(args.threads)],
                         capture_output=True, text=True)
    if out.returncode:
        sys.exit(f"{program} bench {' '.join(bench)}: {out.stderr.strip()}")
    r = json.loads(out.stdout)
    if bench[0] == "train":
        return {"": r["train"]["tok_s"], " with a teacher": r["train"]["rows"] / r["distill"]["step_s"]}
    return {"": r[bench[0]][0]["tok_s"]}


results = {}
for name, bench in BENCHES.items():
    if args.only and args.only not in name:
        continue
    for i in range(args.rounds):
        pair = {}
        for which in (("old", "new"), ("new", "old"))[i % 2]:
            pair[which] = rates(getattr(args, which), bench)
        for what in pair["old"]:
            results.setdefault(name + what, []).append((pair["old"][what], pair["new"][what]))
    for what in pair["old"]:
        pairs = results[name + what]
        ratio = sorted(b / a for a, b in pairs)
        if not args.json:
            q = statistics.quantiles(ratio, n=4) if len(ratio) > 1 else [ratio[0]] * 3
            print(f"{name + what:32} old {statistics.median(a for a, _ in pairs):10.1f} new {statistics.median(b for _, b in pairs):10.1f}"
                  f" tokens/s; new over old {statistics.median(ratio):.3f} (quartiles {q[0]:.3f} to {q[2]:.3f})", flush=True)
if args.json:
    print(json.dumps(results))
