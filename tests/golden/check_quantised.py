#!/usr/bin/env python3
"""Random tiny models in FP8 by blocks and in MXFP4, read by kvsmith: their logits, and the values that it converts them to.

Usage: check_quantised.py KVSMITH [--models N] [--seed S]. Needs torch, transformers, safetensors. Of each kind N models
(default 6), in turn with scales of float32 and bfloat16:
  fp8    qwen3, llama and deepseek_v3 with blocks of random sizes, which rows and columns are no multiple of
  mxfp4  gpt_oss with groups of 32
What codes and scales stand for is computed in PyTorch as in make_quantised.py. Logits are judged as in check_families.py;
`convert --to same dtype=f32` (mxfp4: bf16, which holds its values) must write those values to the bit.
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

import torch
import transformers
from check_families import EAGER, TOKENS, beyond, deepseek_v3, gpt_oss, llama, logits_of, qwen3, tensors_of
from make_families import randomise
from make_quantised import apart, joined, quantised
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

KINDS = dict(fp8=[("Qwen3Config", qwen3), ("DeepseekV3Config", deepseek_v3), ("LlamaConfig", llama)], mxfp4=[("GptOssConfig", gpt_oss)])


def check(kvsmith, name, seed, number, tmp):
    r = random.Random(seed)
    kind, make = KINDS[name][number % len(KINDS[name])]
    settings = make(r)
    if name == "mxfp4":
        settings.update(hidden_size=32 * r.randrange(1, 4), intermediate_size=32 * r.randrange(1, 4))
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(getattr(transformers, kind)(**settings), dtype=torch.float32, **EAGER).eval()
    randomise(model, seed)
    here, there, scales = tmp / "here", tmp / "there", [torch.float32, torch.bfloat16][number % 2]
    how = dict(quant_method="mxfp4", modules_to_not_convert=["model.layers.*.self_attn", "lm_head"])
    if name == "fp8":
        how = dict(quant_method="fp8", activation_scheme="dynamic", weight_block_size=[r.randrange(1, 9), r.randrange(1, 9)])
    model.save_pretrained(here)
    state = {k: v for k, v in model.state_dict().items() if not (model.config.tie_word_embeddings and k == "lm_head.weight")}
    stored, values = quantised(apart(state) if kind == "DeepseekV3Config" else state, how, torch.bfloat16 if name == "mxfp4" else scales, seed)
    model.load_state_dict(joined(values, state), strict=False)
    model.tie_weights()
    save_file(stored, here / "model.safetensors", {"format": "pt"})
    config = json.loads((here / "config.json").read_text())
    (here / "config.json").write_text(json.dumps(dict(config, quantization_config=how)))
    plain = tmp / "plain"  # the same model in float32, for what needs to read it again
    model.save_pretrained(plain)
    ids = torch.randint(0, model.config.vocab_size, (2, TOKENS[number % len(TOKENS)]), generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        own = model(input_ids=ids).logits.float()
    wrong, worst = beyond(plain, ids, own, logits_of(kvsmith, here, ids, tmp))
    if wrong:
        return wrong, worst
    dtype = "bf16" if name == "mxfp4" else "f32"
    subprocess.run([kvsmith, "convert", here, there, "--to", "same", "dtype=" + dtype], check=True, stdout=subprocess.DEVNULL)
    got = tensors_of(there)
    if got.keys() != values.keys():
        return f"other tensors: {sorted(got.keys() ^ values.keys())[:4]}", worst
    for key in values:
        want = values[key].to(torch.bfloat16 if name == "mxfp4" else torch.float32)
        if not torch.equal(got[key].to(want.dtype), want):
            return f"{key} has other values", worst
    return None, worst


def main():
    a = argparse.ArgumentParser()
    a.add_argument("kvsmith")
    a.add_argument("--models", type=int, default=6)
    a.add_argument("--seed", type=int, default=1)
    a = a.parse_args()
    torch.set_num_threads(1)
    failed = 0
    for name in KINDS:
        top = 0.0
        for n in range(a.models):
            with tempfile.TemporaryDirectory() as tmp:
                seed = 1000 * a.seed + n
                wrong, worst = check(a.kvsmith, name, seed, n, pathlib.Path(tmp))
            print(f"not ok {name} {seed}: {wrong}" if wrong else f"ok {name} {seed} # {worst:.3g}", flush=True)
            failed += bool(wrong)
            top = max(top, worst)
        print(f"# {name}: worst difference of a logit {top:.3g} in {a.models} models", flush=True)
    sys.exit(failed > 0)


main()
