#!/usr/bin/env python3
"""Golden models of gpt_oss, in float32 and in MXFP4, and models in FP8 by blocks: qwen3 and deepseek_v3. As those of
make_experts.py, with logits64. Versions used and effects are in families/versions-quantised.json. Usage: make_quantised.py [OUT] [CASE...]

Codes and scales are random. What they stand for is computed here in PyTorch, in float32: torch.float8_e4m3fn times its
scale; of MXFP4 by transformers' own convert_moe_packed_tensors.
"""
import json
import pathlib
import shutil
import sys

import safetensors.torch
import torch
import transformers
from make_families import BATCH, TOKENS, Doubles, here, randomise
from transformers import AutoModelForCausalLM, DeepseekV3Config, GptOssConfig, Qwen3Config
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

rope = dict(rope_type="default", rope_theta=50.0)
yarn = dict(rope_type="yarn", rope_theta=50.0, factor=4.0, original_max_position_embeddings=8, truncate=False)
some = dict(vocab_size=24, hidden_size=15, intermediate_size=9, num_hidden_layers=2, num_attention_heads=3,
            num_key_value_heads=1, head_dim=6, max_position_embeddings=32, rms_norm_eps=1e-5, bos_token_id=1,
            eos_token_id=2, rope_parameters=rope)
oss = {**some, "num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 5, "swiglu_limit": 0.9,
       "rope_parameters": yarn}
latent = dict(vocab_size=24, hidden_size=15, intermediate_size=11, num_hidden_layers=2, num_attention_heads=3,
              num_key_value_heads=3, q_lora_rank=6, kv_lora_rank=5, qk_nope_head_dim=3, qk_rope_head_dim=4, v_head_dim=7,
              max_position_embeddings=32, bos_token_id=1, eos_token_id=2, moe_intermediate_size=5, n_shared_experts=1,
              rope_parameters=rope, first_k_dense_replace=1, n_routed_experts=4, num_experts_per_tok=2, n_group=2,
              topk_group=1)
# name: class, settings, dtype of what is not quantised, quantization_config
cases = {
    "gpt_oss": (GptOssConfig, {**oss, "hidden_size": 9, "intermediate_size": 5, "num_local_experts": 4, "head_dim": 4},
                torch.float32, None),
    "gpt_oss-plain": (GptOssConfig, {**oss, "num_hidden_layers": 3, "attention_bias": False, "tie_word_embeddings": True,
                                     "swiglu_alpha": 1.1, "swiglu_limit": 7.0, "num_experts_per_tok": 3, "rope_parameters": rope,
                                     "layer_types": ["full_attention", "sliding_attention", "sliding_attention"]},
                      torch.float32, None),
    "gpt_oss-mxfp4": (GptOssConfig, {**oss, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
                                     "num_local_experts": 3, "swiglu_limit": 7.0}, torch.bfloat16,
                      dict(quant_method="mxfp4", modules_to_not_convert=["model.layers.*.self_attn", "lm_head"])),
    "qwen3-fp8": (Qwen3Config, {**some, "hidden_size": 130, "intermediate_size": 30, "num_hidden_layers": 1,
                                "tie_word_embeddings": True}, torch.bfloat16,
                  dict(quant_method="fp8", activation_scheme="dynamic", fmt="e4m3", weight_block_size=[128, 128])),
    "deepseek_v3-fp8": (DeepseekV3Config, latent, torch.float32,
                        dict(quant_method="fp8", activation_scheme="dynamic", weight_block_size=[4, 7], scale_fmt="ue8m0")),
}


def fp8(name, p, block, scales, g):
    """Random codes with scales that keep the values near those of p; what is stored, and what it stands for."""
    bare = torch.randn(p.shape, generator=g).clamp(-3, 3) * 100
    code = bare.to(torch.float8_e4m3fn)
    grid = [-(-n // b) for n, b in zip(p.shape, block)]
    scale = (0.003 + 0.004 * torch.rand(grid, generator=g)).to(scales)
    whole = scale.float().repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)[: p.shape[0], : p.shape[1]]
    return {name: code, name + "_scale_inv": scale}, code.float() * whole


def mxfp4(name, p, g):
    experts, inputs, outputs = p.shape
    shape = (experts, outputs, inputs // 32)
    blocks = torch.randint(0, 256, (*shape, 16), generator=g, dtype=torch.uint8)
    scales = torch.randint(122, 126, shape, generator=g, dtype=torch.uint8)
    return {name + "_blocks": blocks, name + "_scales": scales}, convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)


def quantised(state, how, dtype, seed):
    """The tensors of the file, and the values that they stand for."""
    g = torch.Generator().manual_seed(seed)
    stored, values = {}, {}
    for name, p in sorted(state.items()):
        if how and how["quant_method"] == "fp8" and p.dim() == 2 and "proj" in name:
            own, values[name] = fp8(name, p, how["weight_block_size"], dtype, g)
        elif how and how["quant_method"] == "mxfp4" and p.dim() == 3:
            own, values[name] = mxfp4(name, p, g)
        else:
            own = {name: p.to(dtype).contiguous()}
            values[name] = own[name].float()
        stored.update(own)
    return stored, values


def apart(state):
    """With each expert's matrices by themselves, as deepseek_v3 is published."""
    out = {}
    for name, p in state.items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")) or p.dim() != 3 or name.startswith("gpt"):
            out[name] = p
            continue
        base, kind = name.rsplit(".", 1)
        for e, w in enumerate(p):
            parts = zip(("gate_proj", "up_proj"), w.chunk(2)) if kind == "gate_up_proj" else [("down_proj", w)]
            out.update({f"{base}.{e}.{part}.weight": x for part, x in parts})
    return out


def joined(values, state):
    """The reverse."""
    out = {}
    for name, p in state.items():
        base, kind = name.rsplit(".", 1)
        if name in values:
            out[name] = values[name]
        elif kind == "down_proj":
            out[name] = torch.stack([values[f"{base}.{e}.down_proj.weight"] for e in range(len(p))])
        else:
            out[name] = torch.stack([torch.cat([values[f"{base}.{e}.{k}.weight"] for k in ("gate_proj", "up_proj")])
                                     for e in range(len(p))])
    return out


def main():
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here / "families"
    torch.set_num_threads(1)
    report = {}
    for seed, (name, (kind, settings, dtype, how)) in enumerate(cases.items(), 200):
        if len(sys.argv) > 2 and name not in sys.argv[2:]:
            continue
        where = out / name
        shutil.rmtree(where, ignore_errors=True)
        model = AutoModelForCausalLM.from_config(kind(**settings), dtype=torch.float32, experts_implementation="eager").eval()
        randomise(model, seed)
        ids = torch.randint(0, model.config.vocab_size, (BATCH, TOKENS), generator=torch.Generator().manual_seed(100 + seed))
        model.save_pretrained(where)
        if how:
            state = {k: v for k, v in model.state_dict().items() if not (model.config.tie_word_embeddings and k == "lm_head.weight")}
            stored, values = quantised(apart(state) if kind is DeepseekV3Config else state, how, dtype, seed)
            model.load_state_dict(joined(values, state), strict=False)
            model.tie_weights()
            safetensors.torch.save_file(stored, where / "model.safetensors", {"format": "pt"})
            config = json.loads((where / "config.json").read_text())
            config["quantization_config"] = how
            config["dtype"] = str(dtype).removeprefix("torch.")
            (where / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        if name == "gpt_oss-mxfp4":  # transformers reads the file itself, too
            again = AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32, experts_implementation="eager")
            for (key, a), b in zip(model.state_dict().items(), again.state_dict().values()):
                assert torch.equal(a, b), key
        with torch.no_grad():
            logits = model(input_ids=ids).logits.float()
        with Doubles():
            exact = AutoModelForCausalLM.from_config(kind(**settings), dtype=torch.float64, experts_implementation="eager").eval()
            exact.load_state_dict(model.state_dict())
            with torch.no_grad():
                logits64 = exact(input_ids=ids).logits
        golden = {"input_ids": ids, "logits": logits.contiguous(), "logits64": logits64.contiguous()}
        safetensors.torch.save_file(golden, where / "golden.safetensors")
        report[name] = {"max_logit": round(logits.abs().max().item(), 4)}
        print(name, report[name], sum(f.stat().st_size for f in where.iterdir()), "bytes")
    versions = {"python": sys.version.split()[0], "torch": torch.__version__, "transformers": transformers.__version__,
                "safetensors": safetensors.__version__, "models": report}
    if len(sys.argv) < 3:
        (out / "versions-quantised.json").write_text(json.dumps(versions, indent=2) + "\n")


if __name__ == "__main__":
    main()
