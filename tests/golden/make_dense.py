#!/usr/bin/env python3
"""Golden models of the families phi3, smollm3, granite, olmo2, gemma2 and gemma3_text: tiny ones with random weights
saved by transformers, and the logits that transformers computes for them in float32, as make_families.py makes them,
and in double (logits_f64): its norms, rotations and softmax, which it computes in float32 whatever the model is, are
put in double here, the frequencies typed again.
Needs torch, transformers, safetensors; the versions used are in families/versions-dense.json.
Usage: make_dense.py [OUT]   (default: families/ beside this script)

Norm gains and biases are random too, so that none can be left out unseen. `effect` in versions-dense.json: the largest
change of a logit when what is special to the case (see `without`) is left out, which is far more than the tolerance.
"""
import json
import math
import pathlib
import shutil
import sys

import safetensors
import safetensors.torch
import torch
import transformers
from transformers import (AutoModelForCausalLM, Gemma2Config, Gemma3TextConfig, GraniteConfig, Olmo2Config, Phi3Config,
                          SmolLM3Config)

here = pathlib.Path(__file__).resolve().parent
BATCH, TOKENS = 2, 24


def rope(**more):
    return dict(rope_type="default", rope_theta=50.0) | more


base = dict(vocab_size=23, hidden_size=18, intermediate_size=22, num_hidden_layers=2, num_attention_heads=3,
            num_key_value_heads=1, max_position_embeddings=32, rms_norm_eps=1e-5, pad_token_id=None, bos_token_id=1,
            eos_token_id=2)
llama = {**base, "rope_parameters": rope()}
long = rope(rope_type="longrope", short_factor=[1.0, 1.3], long_factor=[1.2, 3.5], partial_rotary_factor=0.75,
            original_max_position_embeddings=16)
gemma = {**base, "num_attention_heads": 2, "head_dim": 12, "query_pre_attn_scalar": 20, "sliding_window": 6}
mixed = ["sliding_attention", "full_attention", "sliding_attention"]
# name: class, settings, the settings that `effect` is measured against
cases = {
    "phi3": (Phi3Config, {**llama, "rope_parameters": rope(partial_rotary_factor=0.75), "sliding_window": 7},
             dict(sliding_window=None)),
    "phi3-long": (Phi3Config, {**llama, "rope_parameters": long, "original_max_position_embeddings": 16,
                               "tie_word_embeddings": True}, dict(rope_parameters=rope(partial_rotary_factor=0.75))),
    "smollm3": (SmolLM3Config, {**llama, "num_hidden_layers": 3, "no_rope_layers": [1, 0, 1]},
                dict(no_rope_layers=[1, 1, 1])),
    "smollm3-window": (SmolLM3Config, {**llama, "num_hidden_layers": 3, "no_rope_layer_interval": 2,
                                       "attention_bias": True, "use_sliding_window": True, "sliding_window": 5,
                                       "tie_word_embeddings": False}, dict(use_sliding_window=False)),
    "granite": (GraniteConfig, {**llama, "embedding_multiplier": 3.5, "logits_scaling": 1.7, "residual_multiplier": 0.6,
                                "attention_multiplier": 0.3, "tie_word_embeddings": True},
                dict(residual_multiplier=1.0)),
    "granite-bias": (GraniteConfig, {**llama, "attention_bias": True}, dict(attention_multiplier=0.4)),
    "olmo2": (Olmo2Config, llama, dict(rms_norm_eps=0.1)),
    "olmo2-bias": (Olmo2Config, {**llama, "num_key_value_heads": 3, "attention_bias": True,
                                 "tie_word_embeddings": True}, dict(rms_norm_eps=0.1)),
    "gemma2": (Gemma2Config, {**gemma, "num_hidden_layers": 3, "layer_types": mixed, "rope_parameters": rope(),
                              "final_logit_softcapping": 6.0, "attn_logit_softcapping": 3.0},
               dict(attn_logit_softcapping=None)),
    "gemma2-plain": (Gemma2Config, {**gemma, "rope_parameters": rope(), "final_logit_softcapping": None,
                                    "attn_logit_softcapping": None, "attention_bias": True},
                     dict(query_pre_attn_scalar=12)),
    "gemma3_text": (Gemma3TextConfig, {**gemma, "num_hidden_layers": 3, "layer_types": mixed,
                                       "rope_parameters": {"sliding_attention": rope(rope_theta=9.0),
                                                           "full_attention": rope(rope_type="linear", factor=4.0)}},
                    dict(layer_types=["full_attention"] * 3)),
    "gemma3_text-cap": (Gemma3TextConfig, {**gemma, "layer_types": ["full_attention"] * 2, "attention_bias": True,
                                           "final_logit_softcapping": 5.0, "tie_word_embeddings": False},
                        dict(final_logit_softcapping=None)),
}


def randomise(model, seed):
    g = torch.Generator().manual_seed(seed)
    around = 0 if model.config.model_type.startswith("gemma") else 1
    for name, p in sorted(model.named_parameters()):
        if "norm" in name:
            p.data = 0.3 * torch.randn(p.shape, generator=g) + around
        else:
            p.data = (0.5 if name.endswith("bias") else 0.4) * torch.randn(p.shape, generator=g)
    model.tie_weights()


class Rotation(torch.nn.Module):
    """cos and sin in double, by the settings alone."""

    def __init__(self, config):
        super().__init__()
        self.config = config

    def forward(self, x, position_ids, layer_type=None):
        c = self.config
        p = c.rope_parameters[layer_type] if layer_type else c.rope_parameters
        head = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
        n = int(head * p.get("partial_rotary_factor", 1.0))
        f, size = p["rope_theta"] ** (-torch.arange(0, n, 2, dtype=torch.float64) / n), 1.0
        if p["rope_type"] == "linear":
            f = f / p["factor"]
        elif p["rope_type"] == "longrope":
            old = p["original_max_position_embeddings"]
            f = f / torch.tensor(p["long_factor" if x.shape[1] > old else "short_factor"], dtype=torch.float64)
            size = math.sqrt(1 + math.log(c.max_position_embeddings / old) / math.log(old))
        else:
            assert p["rope_type"] == "default"
        angles = position_ids[..., None].double() * f
        angles = torch.cat([angles, angles], -1)
        return angles.cos() * size, angles.sin() * size


def double_logits(where, ids):
    model = AutoModelForCausalLM.from_pretrained(where, dtype=torch.float64, attn_implementation="eager").eval()
    model.model.rotary_emb = Rotation(model.config)
    if hasattr(model.model.embed_tokens, "embed_scale"):
        model.model.embed_tokens.embed_scale = torch.tensor(model.config.hidden_size**0.5, dtype=torch.float64)
    kept = torch.Tensor.float, torch.Tensor.to, torch.nn.functional.softmax

    def to(self, *args, **kwargs):
        return kept[1](self, *[torch.float64 if a is torch.float32 else a for a in args], **kwargs)

    torch.Tensor.float, torch.Tensor.to = torch.Tensor.double, to
    torch.nn.functional.softmax = lambda x, dim, dtype=None: kept[2](x, dim=dim)
    with torch.no_grad():
        logits = model(input_ids=ids).logits
    torch.Tensor.float, torch.Tensor.to, torch.nn.functional.softmax = kept
    assert logits.dtype == torch.float64
    return logits.contiguous()


def main():
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here / "families"
    torch.set_num_threads(1)
    report = {}
    for seed, (name, (kind, settings, without)) in enumerate(cases.items()):
        where = out / name
        shutil.rmtree(where, ignore_errors=True)
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(kind(**settings), dtype=torch.float32, attn_implementation="eager").eval()
        randomise(model, seed)
        model.save_pretrained(where)
        model = AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32, attn_implementation="eager").eval()
        ids = torch.randint(0, model.config.vocab_size, (BATCH, TOKENS), generator=torch.Generator().manual_seed(100 + seed))
        bare = AutoModelForCausalLM.from_config(kind(**{**settings, **without}), dtype=torch.float32,
                                                attn_implementation="eager").eval()
        bare.load_state_dict(model.state_dict())
        with torch.no_grad():
            logits = model(input_ids=ids).logits.float()
            effect = (bare(input_ids=ids).logits - logits).abs().max().item()
        wide = double_logits(where, ids)
        safetensors.torch.save_file({"input_ids": ids, "logits": logits.contiguous(), "logits_f64": wide},
                                    where / "golden.safetensors")
        report[name] = {"max_logit": round(logits.abs().max().item(), 4), "effect": round(effect, 4),
                        "float32_error": float("%.2g" % (wide - logits).abs().max().item())}
        print(name, report[name], sum(f.stat().st_size for f in where.iterdir()), "bytes")
    versions = {"python": sys.version.split()[0], "torch": torch.__version__, "transformers": transformers.__version__,
                "safetensors": safetensors.__version__, "models": report}
    (out / "versions-dense.json").write_text(json.dumps(versions, indent=2) + "\n")


main()
