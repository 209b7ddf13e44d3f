#!/usr/bin/env python3
"""Text to ids in kvsmith and in Hugging Face's tokenizers, one thread each, taken in turn on the same machine.

    python3 tests/peers/encode.py build/kvsmith TOKENIZER.json TEXT [--rounds 5]

kvsmith reads the file, encodes it and writes a set of ids (`data tokenize`); tokenizers encodes the text that is already in
memory. Both must give the same ids, which is checked. Needs tokenizers and numpy; kvsmith needs neither.
"""
import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

ap = argparse.ArgumentParser()
ap.add_argument("kvsmith")
ap.add_argument("tokenizer")
ap.add_argument("text")
ap.add_argument("--rounds", type=int, default=5)
args = ap.parse_args()
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

import numpy  # noqa: E402
import tokenizers  # noqa: E402

text = open(args.text, encoding="utf-8", newline="").read()
megabytes = os.path.getsize(args.text) / 1e6
hf = tokenizers.Tokenizer.from_file(args.tokenizer)
with tempfile.TemporaryDirectory() as tmp:
    ours, theirs = [], []
    for _ in range(args.rounds):
        start = time.perf_counter()
        subprocess.run([args.kvsmith, "data", "tokenize", args.text, "--tokenizer", args.tokenizer, "--out", f"{tmp}/set", "--eot", "none",
                        "--threads", "1", "-q"], check=True)
        ours.append(megabytes / (time.perf_counter() - start))
        start = time.perf_counter()
        ids = hf.encode(text, add_special_tokens=False).ids
        theirs.append(megabytes / (time.perf_counter() - start))
    got = numpy.fromfile(f"{tmp}/set.bin", dtype=numpy.uint16 if hf.get_vocab_size() <= 65500 else numpy.int32)
    if len(got) != len(ids) or (got != numpy.array(ids)).any():
        sys.exit(f"the ids differ: {len(got)} and {len(ids)}")
ratio = [a / b for a, b in zip(ours, theirs)]
print(f"{megabytes:.1f} MB, {len(ids)} ids, the same; tokenizers {tokenizers.__version__}; MB/s, medians of {args.rounds} rounds")
print(f"kvsmith    {statistics.median(ours):6.1f}  ({min(ours):.1f} to {max(ours):.1f})")
print(f"tokenizers {statistics.median(theirs):6.1f}  ({min(theirs):.1f} to {max(theirs):.1f})")
print(f"ratio      {statistics.median(ratio):6.2f}  ({min(ratio):.2f} to {max(ratio):.2f})")
