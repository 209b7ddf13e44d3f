#!/usr/bin/env python3
"""Golden logits at several lengths of the models llama/longrope and llama/dynamic, whose rotation depends on the length of
the input. Needs torch, transformers and safetensors; their versions are in lengths/versions.json.
Usage: make_lengths.py [OUT]   (default: lengths/ beside this script)

OUT/MODEL.safetensors: input_ids (1,T of the longest) and logits_T (T,V) of the first T of them, each by a model that was
just loaded: the module of transformers keeps the frequencies of the longest input that it has seen. Lengths lie below, at
and above the length before scaling (longrope: 32 of 128 positions) and the model's positions (128).
"""
import json
import pathlib
import sys

import safetensors
import torch
import transformers
from safetensors.torch import save_file
from transformers import LlamaForCausalLM

here = pathlib.Path(__file__).resolve().parent
out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here / "lengths"
out.mkdir(exist_ok=True)
torch.set_num_threads(1)
report = {}
for seed, (name, lengths) in enumerate({"longrope": [1, 31, 32, 33, 100], "dynamic": [1, 127, 128, 129, 200]}.items()):
    ids = torch.randint(0, 48, (1, lengths[-1]), generator=torch.Generator().manual_seed(7 + seed))
    tensors, rows = {"input_ids": ids}, {}
    for T in lengths:
        model = LlamaForCausalLM.from_pretrained(here / "llama" / name, dtype=torch.float32).eval()
        with torch.no_grad():
            logits = model(input_ids=ids[:, :T]).logits[0]
        rows[T] = logits
        # Every fourth row keeps the file small; the last one is among them.
        tensors[f"logits_{T}"] = logits[(T - 1) % 4 :: 4].float().contiguous()
    a, b = lengths[2], lengths[3]
    report[name] = {"lengths": lengths, "effect": round((rows[b][:a] - rows[a]).abs().max().item(), 4)}
    save_file(tensors, out / f"{name}.safetensors")
    print(name, report[name], (out / f"{name}.safetensors").stat().st_size, "bytes")
versions = {"python": sys.version.split()[0], "torch": torch.__version__, "transformers": transformers.__version__,
            "safetensors": safetensors.__version__, "models": report}
(out / "versions.json").write_text(json.dumps(versions, indent=2) + "\n")
