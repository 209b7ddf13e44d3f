#!/usr/bin/env python3
"""Golden latent-attention models: tiny dense DeepseekV3ForCausalLM with random weights saved by transformers, the logits
that transformers computes for them, and the gradients of the summed cross-entropy. Needs torch, transformers,
safetensors; the versions used are in versions.json. Usage: make_mla.py [OUT]   (default: this directory)

Everything is computed in double: transformers casts norms, the softmax and the rotation to float32 in any model, so the
names torch.float32 and torch.float and the method Tensor.float stand for double here. `plain` in versions.json is the largest
difference of a logit to the unaltered float32 model. Weights are wide and gains are not 1, so that every part moves the
logits by far more than the tolerance; `effect` is the largest change of a logit when the part the case is about is
left out.
"""
import json
import pathlib
import shutil
import sys

import safetensors
import safetensors.torch
import torch
import transformers
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

here = pathlib.Path(__file__).resolve().parent
BATCH, TOKENS = 2, 24
single = torch.float32

base = dict(vocab_size=19, hidden_size=16, intermediate_size=12, num_hidden_layers=2, num_attention_heads=3,
            num_key_value_heads=3, q_lora_rank=None, kv_lora_rank=5, qk_nope_head_dim=4, qk_rope_head_dim=6, v_head_dim=7,
            max_position_embeddings=64, rms_norm_eps=1e-3, bos_token_id=1, eos_token_id=2, tie_word_embeddings=False,
            initializer_range=0.25, attention_bias=False, first_k_dense_replace=2, n_routed_experts=2, n_shared_experts=1,
            num_experts_per_tok=1, n_group=1, topk_group=1, moe_intermediate_size=4, num_mtp_layers=0)
plain = dict(rope_type="default", rope_theta=50.0)
yarn = dict(rope_type="yarn", rope_theta=50.0, factor=8.0, beta_fast=2.0, beta_slow=0.5, mscale=0.7, mscale_all_dim=1.5,
            original_max_position_embeddings=8)
cases = {
    # name: settings, and those of the same weights with the part left out. rms_norm_eps is far from the latents' 1e-6.
    "direct": (dict(rope_parameters=plain), dict(rope_interleave=False)),
    "query-latent": (dict(rope_parameters=plain, q_lora_rank=6, attention_bias=True), dict(rope_interleave=False)),
    # Positions run to three times the original length; mscale and mscale_all_dim differ, so that the factor on cos and sin
    # and the one on the softmax are told apart.
    "yarn": (dict(rope_parameters=yarn, q_lora_rank=4), dict(rope_parameters=dict(yarn, mscale_all_dim=0.7))),
    "half-split": (dict(rope_parameters=plain, rope_interleave=False, tie_word_embeddings=True, num_hidden_layers=1,
                        first_k_dense_replace=1), dict(rope_interleave=True)),
}


def randomise(model, seed):
    g = torch.Generator().manual_seed(seed)
    for name, p in sorted(model.named_parameters()):
        wide = 1 + 0.3 * torch.randn(p.shape, generator=g, dtype=single) if "norm" in name else (
            0.4 * torch.randn(p.shape, generator=g, dtype=single))
        p.data = wide
        if "_a_proj" in name:  # small latents, where their own eps is felt
            p.data[: model.config.q_lora_rank if "q_a" in name else model.config.kv_lora_rank] *= 0.003
    if model.config.tie_word_embeddings:
        model.tie_weights()


def run(where, over, ids, double):
    weights = safetensors.torch.load_file(where / "model.safetensors")
    config = DeepseekV3Config.from_pretrained(where, attn_implementation="eager", **over)
    for name in ("float32", "float"):
        setattr(torch, name, torch.float64 if double else single)
    torch.Tensor.float = (lambda t: t.to(torch.float64)) if double else (lambda t: t.to(single))
    model = DeepseekV3ForCausalLM(config).to(torch.float32).eval()
    missing, unknown = model.load_state_dict(weights, strict=False)
    assert not unknown and missing in ([], ["lm_head.weight"])
    model.tie_weights()
    logits = model(input_ids=ids).logits
    assert logits.dtype == torch.float32
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="sum")
    loss.backward()
    setattr(torch, "float32", single)
    return logits.detach(), {n: p.grad for n, p in model.named_parameters()}


def main():
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here
    torch.set_num_threads(1)
    report = {}
    for seed, (name, (over, without)) in enumerate(cases.items()):
        where = out / name
        shutil.rmtree(where, ignore_errors=True)
        model = DeepseekV3ForCausalLM(DeepseekV3Config(**{**base, **over})).eval()
        randomise(model, seed)
        model.save_pretrained(where)
        ids = torch.randint(0, base["vocab_size"], (BATCH, TOKENS), generator=torch.Generator().manual_seed(100 + seed))
        logits, grads = run(where, {}, ids, True)
        bare, _ = run(where, without, ids, True)
        narrow, _ = run(where, {}, ids, False)
        kept = {"input_ids": ids, "logits": logits, **{"d " + n: g.contiguous() for n, g in grads.items()}}
        safetensors.torch.save_file(kept, where / "golden.safetensors")
        report[name] = {"max_logit": round(logits.abs().max().item(), 4),
                        "effect": float(f"{(bare - logits).abs().max().item():.2g}"),
                        "plain": float(f"{(narrow - logits).abs().max().item():.2g}")}
        print(name, report[name], sum(f.stat().st_size for f in where.iterdir()), "bytes")
    versions = {"python": sys.version.split()[0], "torch": torch.__version__, "transformers": transformers.__version__,
                "safetensors": safetensors.__version__, "models": report}
    (out / "versions.json").write_text(json.dumps(versions, indent=2) + "\n")


main()
