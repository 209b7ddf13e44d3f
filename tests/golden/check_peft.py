#!/usr/bin/env python3
"""Load adapters that kvsmith wrote with peft and compare their logits with those of kvsmith.

Usage: check_peft.py KVSMITH ADAPTER... Needs torch, transformers, peft, safetensors. For each adapter directory the base
that it names is loaded by transformers and the adapter by peft; both `kvsmith logits ADAPTER` and the merged model in
the folder above must give the same logits. Prints "ok peft-NAME" or "not ok ...", NAME being that of the run.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

BOUND, BATCH, TOKENS = 1e-4, 2, 40


def logits_of(kvsmith, where, ids):
    with tempfile.TemporaryDirectory() as tmp:
        text, out = pathlib.Path(tmp) / "ids.txt", pathlib.Path(tmp) / "logits.safetensors"
        text.write_text("".join(" ".join(map(str, row)) + "\n" for row in ids.tolist()))
        subprocess.run([kvsmith, "logits", where, "--tokens", text, "--out", out], check=True, stdout=subprocess.DEVNULL)
        return load_file(out)["logits"]


def check(kvsmith, where):
    base = json.loads((where / "adapter_config.json").read_text())["base_model_name_or_path"]
    model = AutoModelForCausalLM.from_pretrained(base, torch_dtype=torch.float32)
    ids = torch.randint(0, model.config.vocab_size, (BATCH, min(TOKENS, model.config.max_position_embeddings)), generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        plain = model.eval()(input_ids=ids).logits.float()
        model = PeftModel.from_pretrained(model, where).eval()
        want = model(input_ids=ids).logits.float()
    worst = max((logits_of(kvsmith, d, ids) - want).abs().max().item() for d in (where, where.parent))
    effect = (want - plain).abs().max().item()
    remark = f"worst difference {worst:.3g}, the adapter changes {effect:.3g}"
    return worst <= BOUND and effect > 10 * BOUND, remark


def main():
    torch.set_num_threads(1)
    failed = False
    for where in map(pathlib.Path, sys.argv[2:]):
        name = where.parent.parent.name
        try:
            good, remark = check(sys.argv[1], where)
        except Exception as e:  # whatever peft says is a finding
            good, remark = False, f"{type(e).__name__}: {e}"
        print(f"{'ok' if good else 'not ok'} peft-{name}{'' if good else ':'} {remark}".replace("\n", " ") if not good
              else f"ok peft-{name}")
        failed |= not good
    sys.exit(failed)


main()
