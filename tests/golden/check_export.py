#!/usr/bin/env python3
"""Load a model directory that kvsmith wrote in transformers and compare its logits with those of `kvsmith logits`.

Usage: check_export.py KVSMITH DIR [GOLDEN]. Needs torch, transformers, safetensors. Prints the largest difference; exit
status 1 when it exceeds 1e-4. With GOLDEN the input and the logits of transformers are written to that file, as
golden.safetensors in the directories of llama/ has them.
"""
import pathlib
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

BOUND, BATCH, TOKENS = 1e-4, 2, 56


def main():
    kvsmith, where = sys.argv[1], pathlib.Path(sys.argv[2])
    torch.set_num_threads(1)
    config = AutoConfig.from_pretrained(where)
    model, report = AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32, output_loading_info=True)
    left = {k: v for k, v in report.items() if v}
    if left:
        sys.exit(f"check_export: transformers loaded {where} with remarks: {left}")
    tokens = min(TOKENS, config.max_position_embeddings)
    ids = torch.randint(0, config.vocab_size, (BATCH, tokens), generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        want = model.eval()(input_ids=ids).logits.float()
    with tempfile.TemporaryDirectory() as tmp:
        text, out = pathlib.Path(tmp) / "ids.txt", pathlib.Path(tmp) / "logits.safetensors"
        text.write_text("".join(" ".join(map(str, row)) + "\n" for row in ids.tolist()))
        subprocess.run([kvsmith, "logits", where, "--tokens", text, "--out", out], check=True, stdout=subprocess.DEVNULL)
        got = load_file(out)["logits"]
    if got.shape != want.shape or got.dtype != torch.float32:
        sys.exit(f"check_export: kvsmith wrote {tuple(got.shape)} {got.dtype}, expected {tuple(want.shape)} float32")
    worst = (got - want).abs().max().item()
    print(f"{type(model).__name__}: worst difference {worst:.3g} of logits up to {want.abs().max().item():.3g}")
    if len(sys.argv) > 3:
        save_file({"input_ids": ids, "logits": want.contiguous()}, sys.argv[3])
    if not worst <= BOUND:  # also when it is not a number
        sys.exit(f"check_export: {worst:.3g} is more than {BOUND}")


main()
