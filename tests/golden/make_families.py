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
    centred = model.config.model_type.startswith(("qwen3_next", "qwen3_5"))  # norms of 1 + weight, but for the state's
    for name, p in sorted(model.named_parameters()):
        if "norm" in name or ".ln_" in name:
            p.data = 0.3 * torch.randn(p.shape, generator=g) + (0 if name.endswith("bias") or (centred and "linear_attn" not in name) else 1)
        elif name.endswith("bias"):
            p.data = 0.5 * torch.randn(p.shape, generator=g)
        else:
            p.data = 0.4 * torch.randn(p.shape, generator=g)
    for name, p in sorted(model.named_buffers()):
        if name.endswith("correction_bias"):
            p.copy_(0.3 * torch.randn(p.shape, generator=g))
    model.tie_weights()


class Doubles:
    """While it lasts, modelling code that asks for float32 gets float64, so that a model in float64 stays in it."""
    names = ("float32", "float")

    def __enter__(self):
        self.was = {name: getattr(torch, name) for name in self.names}
        self.cast = torch.Tensor.float
        for name in self.names:
            setattr(torch, name, torch.float64)
        torch.Tensor.float = torch.Tensor.double

    def __exit__(self, *_):
        for name, value in self.was.items():
            setattr(torch, name, value)
        torch.Tensor.float = self.cast


def in_double(kind, settings, weights, ids):
    with Doubles():
        model = AutoModelForCausalLM.from_config(kind(**settings), dtype=torch.float64, experts_implementation="eager").eval()
        model.load_state_dict(weights)
        with torch.no_grad():
            return model(input_ids=ids).logits


def main(cases=cases, report_name="versions.json", doubles=False, first=0, **how):
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here / "families"
    torch.set_num_threads(1)
    report = {}
    for seed, (name, (kind, settings, without)) in enumerate(cases.items(), first):
        where = out / name
        shutil.rmtree(where, ignore_errors=True)
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(kind(**settings), dtype=torch.float32, **how).eval()
        randomise(model, seed)
        model.save_pretrained(where)
        model = AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32, **how).eval()
        ids = torch.randint(0, model.config.vocab_size, (BATCH, TOKENS), generator=torch.Generator().manual_seed(100 + seed))
        bare = AutoModelForCausalLM.from_config(kind(**{**settings, **without}), dtype=torch.float32, **how).eval()
        bare.load_state_dict(model.state_dict())
        with torch.no_grad():
            logits = model(input_ids=ids).logits.float()
            effect = (bare(input_ids=ids).logits - logits).abs().max().item()
        golden = {"input_ids": ids, "logits": logits.contiguous()}
        if doubles:
            golden["logits64"] = in_double(kind, settings, model.state_dict(), ids).contiguous()
        safetensors.torch.save_file(golden, where / "golden.safetensors")
        report[name] = {"max_logit": round(logits.abs().max().item(), 4), "effect": round(effect, 4)}
        print(name, report[name], sum(f.stat().st_size for f in where.iterdir()), "bytes")
    versions = {"python": sys.version.split()[0], "torch": torch.__version__, "transformers": transformers.__version__,
                "safetensors": safetensors.__version__, "models": report}
    (out / report_name).write_text(json.dumps(versions, indent=2) + "\n")


if __name__ == "__main__":
    main()
