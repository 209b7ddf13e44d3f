#!/usr/bin/env python3
"""plot_codecs.py: what the codecs of the cache cost in quality: KL divergence from the logits of an f32 cache, and perplexity.

    python3 docs/plot_codecs.py KVSMITH TEXT MODEL...    prints the table and the plot of docs/codecs.md
    ONLY=palu python3 ...                                the rows of codecs with this in their name
    HEADS=2 ONLY=palu python3 ...                        those of palu, calibrated for groups of 2 heads

palu and aqua are calibrated by each model on CALIBRATION bytes of the text's beginning, which training saw; aqua for each
number of bits. Bits of aqua are those of residuals (in blocks); the rows of one layer that are held as f32 are not counted.

Every model (byte tokens) reads WINDOWS pieces of the text's last tenth, which training with val_fraction 0.1 did not
see. The logits are those of `kvsmith logits`, whose own rows are already what the codec leaves of them. Positions from FROM on
count: those before see rows of kivi as they were computed. numpy only.
"""
import json
import os
import subprocess
import sys
import tempfile

import numpy as np

WINDOWS, LENGTH, FROM, LAYERS = 24, 512, 64, 4
CODECS = ("f32", "bf16", "int8", "int8:rotate=yes", "fp8", "fp8:rotate=yes", "int4", "int4:rotate=yes", "int4:group=64",
          "int4:group=64,rotate=yes", "int3", "int3:rotate=yes", "int2", "int2:rotate=yes", "kivi4", "kivi4:group=64", "kivi4:rotate=yes", "kivi3",
          "kivi3:group=64", "kivi3:rotate=yes", "kivi2", "kivi2:group=64", "kivi2:rotate=yes", "kvquant4", "kvquant4:turned=no", "kvquant4:apart=no", "kvquant4:apart=no,turned=no", "kvquant3", "kvquant3:turned=no",
          "kvquant3:apart=no", "kvquant3:apart=no,turned=no", "kvquant2", "kvquant2:turned=no", "kvquant2:apart=no", "kvquant2:apart=no,turned=no",
          "zipcache", "zipcache:share=1", "zipcache:share=0.5", "zipcache:share=0.5,probes=64", "zipcache:share=0.25", "zipcache:share=0",
          *(f"palu:rank={r},bits={b}" for r in (1, 0.75, 0.5, 0.25) for b in (16, 8, 4)), "palu:rank=0.5,value_rank=1", "palu:rank=1,value_rank=0.5",
          *(f"minicache:{how}bits={b}" for how in ("", "apart=0,", "apart=0.25,", "from=0,") for b in (16, 8, 4)), "minicache:apart=1,bits=4", "minicache:t=0.4,bits=16", "minicache:t=0.5,bits=16", "minicache:t=0.8,bits=16",
          *(f"aqua:bits={b}{how}" for b in (4, 3, 2) for how in ("", ",recent=64", ",pairs=no,group=32", ",pairs=no,group=64")), "aqua:bits=2,recent=128")
CALIBRATION = 32768
HEADS = os.environ.get("HEADS", "1")
CODECS = tuple(c for c in CODECS if c == "f32" or os.environ.get("ONLY", "") in c)


def bits(codec, width=64):
    name, _, settings = codec.partition(":")
    if name in ("f32", "bf16"):
        return {"f32": 32, "bf16": 16}[name]
    if name in ("int8", "fp8"):
        return 8 + 32 / width
    if name == "zipcache":  # a block of 64 rows: which are salient, keys by element, scales of elements, values by row
        share = float(dict(word.split("=") for word in settings.split(",") if word).get("share", 0.6))
        kinds = [(4, int(share * 64 + 0.5)), (2, 64 - int(share * 64 + 0.5))]
        words = 2 + width / 2 + sum(width * (1 + -(-b * n // 32)) * (n > 0) + n * (1 + b * width / 32) for b, n in kinds)
        return round(words * 32 / (2 * 64 * width), 2)
    if name == "minicache":  # of layers in pairs, of which a block of both has norms and rows apart twice, and of the others
        given = {"from": 0.5, "apart": 0.1, "bits": 16, **dict((k, float(v)) for k, v in (word.split("=") for word in settings.split(",")))}
        row = {b: b * width / 8 + (4 if b == 8 else 4 * width / 32 if b == 4 else 0) for b in (4, 8, 16)}  # bytes of a piece, too: of 64 rows
        b, apart = given["bits"], int(given["apart"] * 64 + 0.5)
        pair = 16 + (64 - apart) * (8 + row[b]) + (width * row[b] if apart < 64 else 0) + 4 * apart * row[max(b, 8)]
        paired = 2 * int(LAYERS * (1 - given["from"]) / 2) / LAYERS
        alone = 2 * 64 * row[b]
        return round((paired * pair / 2 + (1 - paired) * alone) * 8 / (2 * 64 * width), 2)
    if name == "palu":
        given = dict(word.split("=") for word in settings.split(","))
        shares = [float(given["rank"]), float(given.get("value_rank", given["rank"]))]
        b = int(given.get("bits", 16))
        return sum(s * (b + (32 / (s * width) if b == 8 else 32 / min(32, s * width) if b == 4 else 0)) for s in shares) / 2
    if name == "aqua":
        given = dict(word.split("=") for word in settings.split(","))
        group = int(given.get("group", 32))
        words = width / group if given.get("pairs") == "no" else -(-width // (2 * group))  # of scales
        return int(given["bits"]) + 32 * words / width
    if name.startswith("kvquant"):
        return int(name[-1]) + (32 if "apart=no" in settings else 64) / 64
    return int(name[-1]) + 32 / (64 if "group=64" in settings else 32)


def logits(program, model, tokens, codec, tmp):
    subprocess.run([program, "logits", model, "--tokens", tokens, "--out", tmp, "--cache-dtype", codec, "-q"], check=True,
                   stdout=subprocess.DEVNULL)
    raw = open(tmp, "rb").read()
    n = int.from_bytes(raw[:8], "little")
    at = json.loads(raw[8:8 + n])["logits"]
    x = np.frombuffer(raw[8 + n:][at["data_offsets"][0]:at["data_offsets"][1]], np.float32).reshape(at["shape"])
    x = x.astype(np.float64)
    return x - np.log(np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True)) - x.max(-1, keepdims=True)


program, text, models = sys.argv[1], open(sys.argv[2], "rb").read(), sys.argv[3:]
held = text[len(text) - len(text) // 10:]
starts = np.linspace(0, len(held) - LENGTH - 1, WINDOWS).astype(int)
windows = np.array([list(held[s:s + LENGTH]) for s in starts])
rows = {c: [] for c in CODECS}
with tempfile.TemporaryDirectory() as tmp:
    tokens = tmp + "/tokens"
    open(tokens, "w").write("\n".join(" ".join(map(str, w)) for w in windows) + "\n")
    for model in models:
        dense = logits(program, model, tokens, "f32", tmp + "/out")
        open(tmp + "/text", "wb").write(text[:CALIBRATION + 1])
        calibrated = None
        for codec in CODECS:
            named = codec + ",basis=" + tmp + "/basis" if codec[:4] in ("palu", "aqua") else codec
            of = "palu" if "palu" in codec else codec if "aqua" in codec else None
            if of and of != calibrated:
                subprocess.run([program, "calibrate", model, tmp + "/text", "--for", of, "--out", tmp + "/basis", "--tokens",
                                str(CALIBRATION), "--context", str(LENGTH), "-q", *(["--heads", HEADS] if of == "palu" else [])], check=True)
                calibrated = of
            got = logits(program, model, tokens, named, tmp + "/out")
            kl = (np.exp(dense) * (dense - got)).sum(-1)[:, FROM:]
            nll = -np.take_along_axis(got[:, FROM:-1], windows[:, FROM + 1:, None], -1)[..., 0]
            for h in range(2):  # halves of the windows: pieces of text apart from one another
                part = slice(h * WINDOWS // 2, (h + 1) * WINDOWS // 2)
                rows[codec].append((kl[part].mean(), np.exp(nll[part].mean()), (dense.argmax(-1) == got.argmax(-1))[part, FROM:].mean()))
print("| codec | bits a number | KL, nats a token | spread | perplexity | same first choice |")
print("|---|---|---|---|---|---|")
dense_ppl = np.array([p for _, p, _ in rows["f32"]])
for c in CODECS:
    kl, ppl, same = map(np.array, zip(*rows[c]))
    print(f"| `{c}`{', ' + HEADS + ' heads' if 'palu' in c and HEADS != '1' else ''} | {bits(c):g} | {kl.mean():.2e} | {kl.min():.1e} to {kl.max():.1e} | "
          f"{ppl.mean():.3f} ({100 * (ppl / dense_ppl - 1).mean():+.2f} %) | {100 * same.mean():.1f} % |")
print("\nnats a token (log scale, each line a factor of 3.16), over bits a number;\nr: keys rotated; k, R: the same of kivi; q: kvquant with all it has; z: zipcache; p: palu; m: minicache; a: aqua\n")
points = [(bits(c), np.log10(max(np.mean([k for k, _, _ in rows[c]]), 1e-12)), ("R" if "kivi" in c else "r") if "rotate" in c else "z" if "zip" in c else "m" if "mini" in c else "a" if "aqua" in c else "p" if "palu" in c else "q" if "kvquant" in c else "k" if "kivi" in c else "o") for c in CODECS
          if c not in ("f32", "bf16") and "=no" not in c]
high = max(y for _, y, _ in points)
for line in range(int(np.ceil((high - min(y for _, y, _ in points)) * 2)) + 1):
    row = [" "] * 56
    for x, y, mark in points:
        if round((high - y) * 2) == line:
            at = round((x - 2) * 8)
            if not 0 <= at < len(row):
                continue
            row[at] = "*" if row[at] not in (" ", mark) else mark
    print(f"{10**(high - line / 2):8.1e} |" + "".join(row).rstrip())
print("         +" + "".join(f"{b:<8d}" for b in range(2, 9)) + " bits")
