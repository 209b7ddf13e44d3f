#!/usr/bin/env python3
"""Load a model directory that kvsmith wrote in transformers and compare its logits with those of `kvsmith logits`.

Usage: check_export.py KVSMITH DIR... [--golden FILE]. Needs torch, transformers, safetensors. Prints a line for each
directory with the largest difference, "ok transformers-NAME" or "not ok ...", NAME being that of the folder (of the run
where it is RUN/last); exit status 1 when one exceeds 1e-4. With --golden the input and the logits of transformers for the
last directory are written to that file, as golden.safetensors in the directories of llama/ has them.
"""
import pathlib
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

BOUND, BATCH, TOKENS = 1e-4, 2, 56


def check(kvsmith, where, golden):
    """What is wrong with one directory, or None, and a remark."""
    config = AutoConfig.from_pretrained(where, trust_remote_code=True)
    model, report = AutoModelForCausalLM.from_pretrained(
        where, dtype=torch.float32, trust_remote_code=True, output_loading_info=True
    )
    left = {k: v for k, v in report.items() if v}
    if left:
        return f"transformers loaded it with remarks: {left}", ""
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
        return f"kvsmith wrote {tuple(got.shape)} {got.dtype}, expected {tuple(want.shape)} float32", ""
    if golden:
        save_file({"input_ids": ids, "logits": want.contiguous()}, golden)
    worst = (got - want).abs().max().item()
    remark = f"{type(model).__name__}: worst difference {worst:.3g} of logits up to {want.abs().max().item():.3g}"
    if not worst <= BOUND:  # also when it is not a number
        return f"{remark}, more than {BOUND}", ""
    return None, remark


def main():
    args = sys.argv[1:]
    golden = None
    if "--golden" in args:
        at = args.index("--golden")
        golden = args[at + 1]
        del args[at:at + 2]
    torch.set_num_threads(1)
    failed = False
    for k, where in enumerate(map(pathlib.Path, args[1:])):
        name = where.parent.name if where.name == "last" else where.name
        try:
            wrong, remark = check(args[0], where, golden if k == len(args) - 2 else None)
        except Exception as e:  # one directory that cannot be loaded does not hide the others
            wrong, remark = f"{type(e).__name__}: {e}".splitlines()[0], ""
        print(f"not ok transformers-{name}: {wrong}" if wrong else f"ok transformers-{name} # {remark}", flush=True)
        failed |= bool(wrong)
    sys.exit(failed)


main()
