#!/usr/bin/env python3
"""Golden models of the families mistral, qwen2, qwen3, gpt2 and gpt_neox: tiny ones with random weights saved by
transformers, and the logits that transformers computes for them in float32. Needs torch, transformers, safetensors; the
versions used are in families/versions.json. Usage: make_families.py [OUT]   (default: families/ beside this script)

Norm gains and biases are random too, so that none can be left out unseen. `effect` in versions.json: the largest change
of a logit when what is special to the case (see `without`) is left out, which is far more than the tolerance.
"""
import json
import pathlib
import shutil
import sys

import safetensors
import safetensors.torch
import torch
import transformers
from transformers import AutoModelForCausalLM, GPT2Config, GPTNeoXConfig, MistralConfig, Qwen2Config, Qwen3Config

here = pathlib.Path(__file__).resolve().parent
BATCH, TOKENS = 2, 24

llama = dict(vocab_size=24, hidden_size=16, intermediate_size=20, num_hidden_layers=2, num_attention_heads=2,
             num_key_value_heads=1, max_position_embeddings=32, rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2,
             rope_parameters=dict(rope_type="default", rope_theta=50.0))
gpt2 = dict(vocab_size=24, n_embd=16, n_layer=2, n_head=2, n_positions=32, bos_token_id=1, eos_token_id=2)
neox = dict(vocab_size=24, hidden_size=16, intermediate_size=20, num_hidden_layers=2, num_attention_heads=2,
            max_position_embeddings=32, bos_token_id=1, eos_token_id=2)
# name: class, settings, the settings that `effect` is measured against
cases = {
    "mistral": (MistralConfig, {**llama, "sliding_window": 7, "head_dim": 12}, dict(sliding_window=None)),
    "qwen2": (Qwen2Config, {**llama, "tie_word_embeddings": True}, dict(rope_parameters=dict(rope_type="default", rope_theta=9.0))),
    "qwen2-window": (Qwen2Config, {**llama, "num_hidden_layers": 3, "use_sliding_window": True, "sliding_window": 6,
                                   "max_window_layers": 1}, dict(use_sliding_window=False)),
    "qwen3": (Qwen3Config, {**llama, "head_dim": 12, "tie_word_embeddings": True}, dict(rms_norm_eps=0.1)),
    "qwen3-mixed": (Qwen3Config, {**llama, "num_hidden_layers": 3, "head_dim": 8, "attention_bias": True,
                                  "use_sliding_window": True, "sliding_window": 5,
                                  "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
                    dict(layer_types=["full_attention"] * 3)),
    "gpt2": (GPT2Config, gpt2, dict(activation_function="relu")),
    "gpt2-wide": (GPT2Config, {**gpt2, "n_inner": 20, "n_layer": 1, "activation_function": "gelu", "layer_norm_epsilon": 1e-3,
                               "tie_word_embeddings": False}, dict(activation_function="gelu_new")),
    "gpt_neox": (GPTNeoXConfig, {**neox, "rope_parameters": dict(rope_type="default", rope_theta=50.0, partial_rotary_factor=0.5)},
                 dict(use_parallel_residual=False)),
    "gpt_neox-serial": (GPTNeoXConfig, {**neox, "num_hidden_layers": 1, "use_parallel_residual": False, "attention_bias": False,
                                        "hidden_act": "gelu_new", "tie_word_embeddings": True,
                                        "rope_parameters": dict(rope_type="default", rope_theta=50.0, partial_rotary_factor=1.0)},
                        dict(use_parallel_residual=True)),
}


def randomise(model, seed):
    g = torch.Generator().manual_seed(seed)
    for name, p in sorted(model.named_parameters()):
        if "norm" in name or ".ln_" in name:
            p.data = 0.3 * torch.randn(p.shape, generator=g) + (0 if name.endswith("bias") else 1)
        elif name.endswith("bias"):
            p.data = 0.5 * torch.randn(p.shape, generator=g)
        else:
            p.data = 0.4 * torch.randn(p.shape, generator=g)
    model.tie_weights()


def main():
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here / "families"
    torch.set_num_threads(1)
    report = {}
    for seed, (name, (kind, settings, without)) in enumerate(cases.items()):
        where = out / name
        shutil.rmtree(where, ignore_errors=True)
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(kind(**settings), dtype=torch.float32).eval()
        randomise(model, seed)
        model.save_pretrained(where)
        model = AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32).eval()
        ids = torch.randint(0, model.config.vocab_size, (BATCH, TOKENS), generator=torch.Generator().manual_seed(100 + seed))
        bare = AutoModelForCausalLM.from_config(kind(**{**settings, **without}), dtype=torch.float32).eval()
        bare.load_state_dict(model.state_dict())
        with torch.no_grad():
            logits = model(input_ids=ids).logits.float()
            effect = (bare(input_ids=ids).logits - logits).abs().max().item()
        safetensors.torch.save_file({"input_ids": ids, "logits": logits.contiguous()}, where / "golden.safetensors")
        report[name] = {"max_logit": round(logits.abs().max().item(), 4), "effect": round(effect, 4)}
        print(name, report[name], sum(f.stat().st_size for f in where.iterdir()), "bytes")
    versions = {"python": sys.version.split()[0], "torch": torch.__version__, "transformers": transformers.__version__,
                "safetensors": safetensors.__version__, "models": report}
    (out / "versions.json").write_text(json.dumps(versions, indent=2) + "\n")


main()
