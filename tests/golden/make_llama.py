#!/usr/bin/env python3
"""Golden Llama models: tiny LlamaForCausalLM with random weights saved by transformers, and the logits that
transformers computes for them in float32. Needs torch, transformers, safetensors; the versions used are in
llama/versions.json. Usage: make_llama.py [OUT]   (default: llama/ beside this script)

Weights are an order of magnitude wider than a real initialisation and norm gains are not 1, so that every part of
the model (rope scaling above all) moves the logits by far more than the tolerance; `effect` in versions.json is the
largest change of a logit when the rope scaling of that model is left out.
"""
import json
import pathlib
import shutil
import sys

import safetensors
import safetensors.torch
import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

here = pathlib.Path(__file__).resolve().parent
BATCH, TOKENS = 2, 56

base = dict(vocab_size=48, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, head_dim=8, max_position_embeddings=128, rms_norm_eps=1e-5, bos_token_id=1,
            eos_token_id=2, tie_word_embeddings=False, initializer_range=0.25)
plain = dict(rope_type="default", rope_theta=50.0)
# Pairs of a head turn once in 6.3, 17, 44 and 118 positions: kept, blended, and twice divided.
llama3 = dict(rope_type="llama3", rope_theta=50.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=32)
cases = {
    "llama3-untied": dict(rope_parameters=llama3),
    "llama3-tied": dict(rope_parameters=llama3, tie_word_embeddings=True, num_hidden_layers=1),
    "bias": dict(rope_parameters=plain, attention_bias=True, num_hidden_layers=1),
    "bf16": dict(rope_parameters=llama3),
    # H*D != d, one K/V head, eos list, another eps.
    "mqa-wide": dict(rope_parameters=plain, num_key_value_heads=1, head_dim=12, num_hidden_layers=1,
                     eos_token_id=[2, 3], rms_norm_eps=1e-6),
    "linear": dict(rope_parameters=dict(rope_type="linear", rope_theta=50.0, factor=3.0), num_hidden_layers=1),
    "yarn": dict(rope_parameters=dict(rope_type="yarn", rope_theta=50.0, factor=4.0, beta_fast=4.0, beta_slow=1.0,
                                      original_max_position_embeddings=32), num_hidden_layers=1),
    "longrope": dict(rope_parameters=dict(rope_type="longrope", rope_theta=50.0, short_factor=[1.0, 1.1, 1.2, 1.3],
                                          long_factor=[1.0, 1.5, 2.5, 4.0], original_max_position_embeddings=32,
                                          factor=4.0), num_hidden_layers=1),
    "dynamic": dict(rope_parameters=dict(rope_type="dynamic", rope_theta=50.0, factor=2.0), num_hidden_layers=1),
    "sharded": dict(rope_parameters=llama3),
}


def randomise(model, seed):
    g = torch.Generator().manual_seed(seed)
    for name, p in sorted(model.named_parameters()):
        if "norm" in name:
            p.data = 1 + 0.3 * torch.randn(p.shape, generator=g)
        elif name.endswith("bias"):
            p.data = 0.5 * torch.randn(p.shape, generator=g)
        else:
            p.data = 0.25 * torch.randn(p.shape, generator=g)
    if model.config.tie_word_embeddings:
        model.tie_weights()


def main():
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here / "llama"
    torch.set_num_threads(1)
    report = {}
    for seed, (name, over) in enumerate(cases.items()):
        where = out / name
        shutil.rmtree(where, ignore_errors=True)
        config = LlamaConfig(**{**base, **over})
        model = LlamaForCausalLM(config).eval()
        randomise(model, seed)
        if name == "bf16":
            model = model.to(torch.bfloat16)
        model.save_pretrained(where, max_shard_size="40KB" if name == "sharded" else "5GB")
        # Read again, for bfloat16 would also have rounded the buffer of rotation frequencies.
        model = LlamaForCausalLM.from_pretrained(where, dtype=torch.float32).eval()
        ids = torch.randint(0, config.vocab_size, (BATCH, TOKENS), generator=torch.Generator().manual_seed(100 + seed))
        with torch.no_grad():
            logits = model(input_ids=ids).logits
            bare = LlamaForCausalLM(LlamaConfig(**{**base, **over, "rope_parameters": plain})).eval()
            bare.load_state_dict(model.state_dict())
            effect = (bare(input_ids=ids).logits - logits).abs().max().item()
        safetensors.torch.save_file({"input_ids": ids, "logits": logits.float().contiguous()}, where / "golden.safetensors")
        report[name] = {"max_logit": round(logits.abs().max().item(), 4), "effect": round(effect, 4)}
        print(name, report[name], sum(f.stat().st_size for f in where.iterdir()), "bytes")
    versions = {"python": sys.version.split()[0], "torch": torch.__version__, "transformers": transformers.__version__,
                "safetensors": safetensors.__version__, "models": report}
    (out / "versions.json").write_text(json.dumps(versions, indent=2) + "\n")


main()
