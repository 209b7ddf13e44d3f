#!/usr/bin/env python3
"""Check GGUF files that `kvsmith convert --to gguf` makes of Hugging Face directories.

Usage: check_gguf.py KVSMITH [DIR...] [--random N] [--seed S] [--only ARCH]

DIRs are directories of the TYPES below; --random N makes N models of each type, with
sizes and values from a seed. For each and each dtype, prints "ok gguf-NAME-DTYPE # remark" or "not ok ...":

- every key and tensor, read by PyPI's `gguf`, against config.json and model.safetensors: the names, the order of rows
  and the splits are computed here again, values are equal to the bit (F16 and BF16 as torch rounds, Q8_0 as `gguf`
  quantises);
- logits of transformers, which loads the GGUF file itself where it knows the architecture, against `kvsmith logits`;
- logits and greedy tokens of llama.cpp, where Python has llama_cpp, against `kvsmith logits`.

Needs torch, transformers, safetensors, gguf; exit status 1 when something differs.
"""
import argparse
import json
import math
import pathlib
import random
import subprocess
import sys
import tempfile

import gguf
import gguf_recurrent as recurrent
import numpy as np
import torch
import transformers
from safetensors.torch import load_file

try:
    import llama_cpp
except (ImportError, OSError, RuntimeError, FileNotFoundError):
    llama_cpp = None

TYPES = ["llama", "qwen2", "qwen3", "gpt2", "gpt_neox", "deepseek_v3", "mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "deepseek_moe",
         "granite", "olmo2", "gemma2", "gemma3_text", "phi3", "smollm3", "glm4_moe", "glm4_moe_lite", "gpt_oss"] + recurrent.TYPES
ARCHES = {"gpt_neox": "gptneox", "deepseek_v3": "deepseek2", "deepseek_v2": "deepseek2", "mistral": "llama", "mixtral": "llama",
          "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe", "gemma3_text": "gemma3", "glm4_moe": "glm4moe",
          "glm4_moe_lite": "deepseek2", "gpt_oss": "gpt-oss"}
DTYPES = ["f32", "f16", "bf16", "q8_0"]
TRANSFORMERS = {"llama", "qwen2", "qwen3", "gpt2", "qwen2moe", "qwen3moe"}  # architectures that its loader of GGUF files knows
BOUND = 1e-4  # of logits in f32, of the largest
GREEDY = 12


# ---- random models ----------------------------------------------------------------------------------------------


def random_model(kind, rng, where):
    if kind in recurrent.TYPES:
        fill(recurrent.random_config(kind, rng), rng, where)
        return
    heads = rng.choice([2, 4, 6])
    kv = rng.choice([h for h in (1, 2, 3, 6) if heads % h == 0])
    dim = rng.choice([8, 16, 32])
    d, layers, vocab, P = heads * dim, rng.randint(1, 3), rng.randint(40, 300), 64
    tied = rng.random() < 0.4
    own = rng.random() < 0.5  # settings that are not the usual ones
    rope = None
    if own and kind in ("llama", "qwen2", "qwen3", "gpt_neox"):
        rope = rng.choice([{"rope_type": "linear", "factor": 2.5},
                           {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
                           {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16,
                            "attention_factor": 1.3}] +
                          [{"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                            "original_max_position_embeddings": 16}] * 3 * (kind == "llama"))
    theta = rng.choice([50.0, 10000.0, 1e6])
    base = dict(vocab_size=vocab, tie_word_embeddings=tied, bos_token_id=1, eos_token_id=2)
    rope_parameters = dict(rope or {"rope_type": "default"}, rope_theta=theta)
    usual = dict(base, hidden_size=d, num_hidden_layers=layers, num_attention_heads=heads,
                 intermediate_size=rng.choice([32, 96, 100]), max_position_embeddings=P)
    if kind == "llama":
        wide = own and rng.random() < 0.5
        c = transformers.LlamaConfig(**usual, num_key_value_heads=kv, head_dim=dim + 8 * wide, attention_bias=own,
                                     rms_norm_eps=1e-5, rope_parameters=rope_parameters)
    elif kind == "qwen2":
        c = transformers.Qwen2Config(**usual, num_key_value_heads=kv, rms_norm_eps=1e-6,
                                     rope_parameters=rope_parameters)
    elif kind == "qwen3":
        c = transformers.Qwen3Config(**usual, num_key_value_heads=kv, head_dim=dim + 8 * own, rms_norm_eps=1e-6,
                                     rope_parameters=rope_parameters)
    elif kind == "gpt2":
        c = transformers.GPT2Config(**base, n_embd=d, n_layer=layers, n_head=heads, n_positions=P,
                                    n_inner=4 * d, activation_function="gelu_new")
    elif kind == "granite":
        c = transformers.GraniteConfig(**usual, num_key_value_heads=kv, attention_bias=own, rms_norm_eps=1e-5,
                                       embedding_multiplier=rng.choice([1.0, 3.5]), residual_multiplier=0.6,
                                       logits_scaling=1.7, attention_multiplier=rng.choice([0.3, 0.2]),
                                       rope_parameters=rope_parameters, pad_token_id=0)
    elif kind == "olmo2":
        c = transformers.Olmo2Config(**usual, num_key_value_heads=kv, rms_norm_eps=1e-5, rope_parameters=rope_parameters,
                                     pad_token_id=0)
    elif kind in ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe"):
        n = rng.randint(3, 9)
        wide = dict(num_experts_per_tok=rng.randint(1, n), rms_norm_eps=1e-6, rope_parameters=rope_parameters,
                    num_key_value_heads=heads if kind == "olmoe" else kv)
        if kind == "mixtral":
            c = transformers.MixtralConfig(**usual, **wide, num_local_experts=n, head_dim=dim + 8 * own)
        elif kind == "olmoe":
            c = transformers.OlmoeConfig(**usual, **wide, num_experts=n, norm_topk_prob=False)
        elif kind == "qwen3_moe":
            c = transformers.Qwen3MoeConfig(**usual, **wide, num_experts=n, head_dim=dim + 8 * own, norm_topk_prob=True,
                                            moe_intermediate_size=rng.choice([32, 48]))
        else:
            c = transformers.Qwen2MoeConfig(**usual, **wide, num_experts=n, norm_topk_prob=False, qkv_bias=True,
                                            moe_intermediate_size=rng.choice([32, 48]),
                                            shared_expert_intermediate_size=rng.choice([32, 100]))
    elif kind == "gpt_neox":
        c = transformers.GPTNeoXConfig(**usual, hidden_act="gelu_pytorch_tanh",
                                       use_parallel_residual=own, rope_parameters=dict(
                                           rope_parameters, partial_rotary_factor=rng.choice([0.25, 0.5, 1.0])))
    elif kind in ("gemma2", "gemma3_text", "phi3", "smollm3", "glm4_moe", "gpt_oss"):
        c = other_config(kind, rng, own, dict(usual, num_key_value_heads=kv, pad_token_id=0), dim, theta)
    elif kind == "glm4_moe_lite":
        dense = rng.randint(0, layers - 1)
        c = transformers.Glm4MoeLiteConfig(
            **usual, num_key_value_heads=heads, q_lora_rank=rng.choice([min(24, d), min(32, d)]), rms_norm_eps=1e-5, n_group=1,
            kv_lora_rank=min(32, d), qk_nope_head_dim=rng.choice([16, 32]), qk_rope_head_dim=8, v_head_dim=dim, topk_group=1,
            mlp_layer_types=["dense"] * dense + ["sparse"] * (layers - dense), n_routed_experts=8, n_shared_experts=1,
            num_experts_per_tok=rng.randint(1, 4), norm_topk_prob=True, routed_scaling_factor=1.8, moe_intermediate_size=32,
            attention_bias=False, rope_parameters=rope_parameters)
    else:
        yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "mscale": 0.7,
                "mscale_all_dim": 0.7}
        c = transformers.DeepseekV3Config(
            **usual, num_key_value_heads=heads, q_lora_rank=rng.choice([None, min(24, d), min(32, d)]), rms_norm_eps=1e-6,
            kv_lora_rank=min(rng.choice([32, 64]), d), qk_nope_head_dim=rng.choice([16, 32]), qk_rope_head_dim=8, v_head_dim=dim,
            **(dict(first_k_dense_replace=layers, n_routed_experts=1, n_shared_experts=1, num_experts_per_tok=1, n_group=1,
                    topk_group=1) if kind == "deepseek_v3" else
               dict(first_k_dense_replace=rng.randint(0, layers - 1), n_routed_experts=8, n_shared_experts=rng.randint(1, 2),
                    num_experts_per_tok=rng.randint(1, 2), n_group=rng.choice([2, 4]), topk_group=2 if own else 1,
                    norm_topk_prob=own, routed_scaling_factor=rng.choice([1.0, 2.5]))),
            moe_intermediate_size=32, attention_bias=False,
            rope_parameters=dict(yarn if own else {"rope_type": "default"}, rope_theta=theta))
    fill(c, rng, where)


def fill(c, rng, where):
    """A model of these settings with random values, saved."""
    torch.manual_seed(rng.randrange(1 << 30))
    m = transformers.AutoModelForCausalLM.from_config(c).float()
    with torch.no_grad():
        for name, p in m.named_parameters():
            norm = "norm" in name or ".ln_" in name
            p.normal_(0, 1 / math.sqrt(p.shape[-1]) if p.dim() > 1 else 0.3)
            zero = norm and recurrent.ARCHES.get(c.model_type, "").startswith("qwen3") and ".linear_attn." not in name
            zero = zero or c.model_type.startswith("gemma")  # gains are 1 more
            if (norm and name.endswith("weight") and not zero) or name.endswith(".D"):
                p.add_(1)
        for name, p in m.named_buffers():
            if name.endswith(("correction_bias", "expert_bias")):
                p.normal_(0, 0.3)
        head = m.get_output_embeddings().weight
        head.mul_(3)
    m.save_pretrained(where)


def other_config(kind, rng, own, usual, dim, theta):
    """Of types whose layers differ in windows or rotations, or that choose experts by sigmoid or with biases."""
    plain = {"rope_type": "default", "rope_theta": theta}
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 32.0, "beta_slow": 1.0,
            "truncate": rng.random() < 0.5, "rope_theta": theta}
    if kind == "gemma2":
        usual["num_hidden_layers"] += own
        return transformers.Gemma2Config(**dict(usual, tie_word_embeddings=True), head_dim=dim + 8 * own, rms_norm_eps=1e-6,
                                         query_pre_attn_scalar=dim + 8 * own, sliding_window=rng.choice([5, 20]),
                                         attn_logit_softcapping=rng.choice([3.0, 50.0]), rope_parameters=plain,
                                         final_logit_softcapping=rng.choice([4.0, 30.0]))
    if kind == "gemma3_text":
        layers = rng.choice([2, 6, 7])
        every = rng.choice([6, 3, 100]) if own else 6
        kinds = ["full_attention" if (l + 1) % every == 0 else "sliding_attention" for l in range(layers)]
        full = {"rope_type": "linear", "factor": 8.0, "rope_theta": theta} if own else plain
        return transformers.Gemma3TextConfig(
            **dict(usual, num_hidden_layers=layers), head_dim=dim + 8 * own, query_pre_attn_scalar=dim + 8 * own,
            rms_norm_eps=1e-6, sliding_window=rng.choice([5, 20]), layer_types=kinds,
            final_logit_softcapping=4.0 if own else None,
            rope_parameters={"full_attention": full, "sliding_attention": {"rope_type": "default", "rope_theta": 77.0}})
    if kind == "phi3":
        part = rng.choice([0.5, 0.75]) if dim > 8 or own else 0.5
        pairs = int(dim * part) // 2
        long = dict(rope_type="longrope", short_factor=[rng.uniform(1, 1.5) for _ in range(pairs)], rope_theta=theta,
                    long_factor=[rng.uniform(1, 8) for _ in range(pairs)], original_max_position_embeddings=256)
        if own:  # llama.cpp's contexts are multiples of 256
            usual["max_position_embeddings"] = 512
        return transformers.Phi3Config(**usual, rms_norm_eps=1e-5, partial_rotary_factor=part, sliding_window=None,
                                       original_max_position_embeddings=256,
                                       rope_parameters=dict(long if own else plain, partial_rotary_factor=part))
    if kind == "smollm3":
        return transformers.SmolLM3Config(**dict(usual, num_hidden_layers=rng.randint(4, 9)), rms_norm_eps=1e-6,
                                          no_rope_layer_interval=4, use_sliding_window=False, rope_parameters=plain)
    n = rng.randint(3, 9)
    moe = dict(rms_norm_eps=1e-5, num_experts_per_tok=rng.randint(1, n), head_dim=dim + 8 * own)
    if kind == "glm4_moe":
        return transformers.Glm4MoeConfig(
            **dict(usual, num_hidden_layers=3), **moe, n_routed_experts=n, n_shared_experts=rng.randint(1, 2), n_group=1,
            topk_group=1, first_k_dense_replace=rng.randint(0, 2), norm_topk_prob=own, use_qk_norm=own,
            attention_bias=rng.random() < 0.7, routed_scaling_factor=rng.choice([1.0, 2.5]), moe_intermediate_size=rng.choice([32, 48]),
            rope_parameters=dict(plain, partial_rotary_factor=0.5))
    return transformers.GptOssConfig(
        **dict(usual, num_hidden_layers=rng.randint(1, 4), tie_word_embeddings=False), **moe, num_local_experts=n,
        sliding_window=rng.choice([5, 20]), rope_parameters=yarn if own else plain)


# ---- what the file must hold ------------------------------------------------------------------------------------


def interleave(x, heads):
    """Rows of each head: i and i + n/2 become 2i and 2i + 1."""
    n = x.shape[0] // heads
    order = np.arange(n).reshape(2, n // 2).T.reshape(-1)
    return np.concatenate([x[h * n:(h + 1) * n][order] for h in range(heads)])


def llama_tensors(t, c, arch, out):
    for l in range(c["num_hidden_layers"]):
        a, b = f"model.layers.{l}.", f"blk.{l}."
        after = "post_attention_norm" if arch == "olmo2" else "ffn_norm"
        for ours, theirs in [("input_layernorm", "attn_norm"), ("post_attention_layernorm", after),
                             ("post_feedforward_layernorm", "post_ffw_norm"),
                             ("mlp.gate_proj", "ffn_gate"), ("mlp.up_proj", "ffn_up"), ("mlp.down_proj", "ffn_down"),
                             ("self_attn.o_proj", "attn_output"), ("self_attn.v_proj", "attn_v"),
                             ("self_attn.q_norm", "attn_q_norm"), ("self_attn.k_norm", "attn_k_norm"),
                             ("self_attn.q_proj", "attn_q"), ("self_attn.k_proj", "attn_k")]:
            for end in (".weight", ".bias"):
                if a + ours + end not in t:
                    continue
                x = t[a + ours + end]
                if arch in ("llama", "granite", "smollm3") and theirs in ("attn_q", "attn_k"):
                    x = interleave(x, c["num_attention_heads" if theirs == "attn_q" else "num_key_value_heads"])
                out[b + theirs + end] = x
    rope = c.get("rope_parameters") or c.get("rope_scaling") or {}
    if rope.get("rope_type") == "llama3":
        n, f, L = c["head_dim"], rope["factor"], rope["original_max_position_embeddings"]
        lo, hi = rope["low_freq_factor"], rope["high_freq_factor"]
        wave = 2 * np.pi * rope["rope_theta"] ** (np.arange(0, n, 2) / n)
        mix = np.clip((L / wave - lo) / (hi - lo), 0, 1)
        out["rope_freqs.weight"] = (1 / (mix + (1 - mix) / f)).astype(np.float32)


def other_tensors(t, c, arch, out):
    """What gemma, phi3, glm4moe and gpt-oss have instead of llama's."""
    for l in range(c["num_hidden_layers"]):
        a, b = f"model.layers.{l}.", f"blk.{l}."
        after = "ffn_norm" if arch == "phi3" else "post_attention_norm"
        out.pop(b + "ffn_norm.weight", None)
        out[b + after + ".weight"] = t[a + "post_attention_layernorm.weight"]
        if arch == "phi3":
            out[b + "attn_qkv.weight"] = t[a + "self_attn.qkv_proj.weight"]
            out[b + "ffn_up.weight"] = t[a + "mlp.gate_up_proj.weight"]
        if arch in ("gemma2", "gemma3"):
            out[b + "ffn_norm.weight"] = t[a + "pre_feedforward_layernorm.weight"]
        if arch == "gpt-oss":
            out[b + "attn_sinks.weight"] = t[a + "self_attn.sinks"]
            both = "mlp.experts.gate_up_proj"
            for end in ("weight", "bias"):
                out[b + "ffn_gate_inp." + end] = t[a + "mlp.router." + end]
            out[b + "ffn_down_exps.weight"] = t[a + "mlp.experts.down_proj"].transpose(0, 2, 1)
            out[b + "ffn_down_exps.bias"] = t[a + "mlp.experts.down_proj_bias"]
            for k, name in enumerate(("ffn_gate_exps", "ffn_up_exps")):
                out[b + name + ".weight"] = t[a + both][..., k::2].transpose(0, 2, 1)
                out[b + name + ".bias"] = t[a + both + "_bias"][..., k::2]
    if arch in ("gemma2", "gemma3"):
        for name in out:
            if name.endswith("norm.weight"):
                out[name] = np.float32(1) + out[name]
    rope = c["rope_parameters"]
    if rope.get("rope_type") == "longrope":
        for size in ("long", "short"):
            out[f"rope_factors_{size}.weight"] = np.array(rope[size + "_factor"], np.float32)


def expert_tensors(t, c, out):
    """Of the layers that have experts; the dense parts of the others are llama's."""
    for l in range(c["num_hidden_layers"]):
        a, b = f"model.layers.{l}.", f"blk.{l}."
        mixtral = a + "block_sparse_moe.gate.weight" in t
        mlp = a + ("block_sparse_moe." if mixtral else "mlp.")
        if mlp + "gate.weight" not in t:
            continue
        out[b + "ffn_gate_inp.weight"] = t[mlp + "gate.weight"]
        n = t[mlp + "gate.weight"].shape[0]
        for ours, theirs in [("w1" if mixtral else "gate_proj", "ffn_gate"), ("w3" if mixtral else "up_proj", "ffn_up"),
                             ("w2" if mixtral else "down_proj", "ffn_down")]:
            out[b + theirs + "_exps.weight"] = np.stack([t[f"{mlp}experts.{e}.{ours}.weight"] for e in range(n)])
            for shared in ("shared_expert.", "shared_experts."):
                if mlp + shared + ours + ".weight" in t:
                    out[b + theirs + "_shexp.weight"] = t[mlp + shared + ours + ".weight"]
        if mlp + "shared_expert_gate.weight" in t:
            out[b + "ffn_gate_inp_shexp.weight"] = t[mlp + "shared_expert_gate.weight"][0]
        if mlp + "gate.e_score_correction_bias" in t:
            out[b + "exp_probs_b.bias"] = t[mlp + "gate.e_score_correction_bias"]


def gpt2_tensors(t, c, out):
    out["position_embd.weight"] = t["transformer.wpe.weight"]
    for l in range(c["n_layer"]):
        a, b = f"transformer.h.{l}.", f"blk.{l}."
        for ours, theirs in [("ln_1", "attn_norm"), ("ln_2", "ffn_norm"), ("attn.c_attn", "attn_qkv"),
                             ("attn.c_proj", "attn_output"), ("mlp.c_fc", "ffn_up"), ("mlp.c_proj", "ffn_down")]:
            x = t[a + ours + ".weight"]
            out[b + theirs + ".weight"] = x.T if x.ndim > 1 else x
            out[b + theirs + ".bias"] = t[a + ours + ".bias"]


def neox_tensors(t, c, out):
    H = c["num_attention_heads"]
    for l in range(c["num_hidden_layers"]):
        a, b = f"gpt_neox.layers.{l}.", f"blk.{l}."
        for ours, theirs in [("input_layernorm", "attn_norm"), ("post_attention_layernorm", "ffn_norm"),
                             ("attention.query_key_value", "attn_qkv"), ("attention.dense", "attn_output"),
                             ("mlp.dense_h_to_4h", "ffn_up"), ("mlp.dense_4h_to_h", "ffn_down")]:
            for end in (".weight", ".bias"):
                x = t[a + ours + end]
                if theirs == "attn_qkv":  # by heads to one after the other
                    x = np.concatenate([x.reshape(H, 3, -1, *x.shape[1:])[:, k].reshape(-1, *x.shape[1:])
                                        for k in range(3)])
                out[b + theirs + end] = x


def deepseek_tensors(t, c, out):
    H, dn, dv, r = c["num_attention_heads"], c["qk_nope_head_dim"], c["v_head_dim"], c["kv_lora_rank"]
    for l in range(c["num_hidden_layers"]):
        a, b = f"model.layers.{l}.", f"blk.{l}."
        for ours, theirs in [("input_layernorm", "attn_norm"), ("post_attention_layernorm", "ffn_norm"),
                             ("mlp.gate_proj", "ffn_gate"), ("mlp.up_proj", "ffn_up"), ("mlp.down_proj", "ffn_down"),
                             ("self_attn.o_proj", "attn_output"), ("self_attn.q_proj", "attn_q"),
                             ("self_attn.q_a_proj", "attn_q_a"), ("self_attn.q_a_layernorm", "attn_q_a_norm"),
                             ("self_attn.q_b_proj", "attn_q_b"), ("self_attn.kv_a_layernorm", "attn_kv_a_norm"),
                             ("self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa")]:
            if a + ours + ".weight" in t:
                out[b + theirs + ".weight"] = t[a + ours + ".weight"]
        kv = t[a + "self_attn.kv_b_proj.weight"].reshape(H, dn + dv, r)
        out[b + "attn_k_b.weight"] = kv[:, :dn].transpose(0, 2, 1)
        out[b + "attn_v_b.weight"] = kv[:, dn:]


def expected(where, c, arch):
    t = {k: v.numpy() for k, v in load_file(where / "model.safetensors").items()}
    if c["model_type"] in recurrent.TYPES:
        return recurrent.tensors(t, c, arch)
    embed, norm = {"gpt2": ("transformer.wte", "transformer.ln_f"),
                   "gptneox": ("gpt_neox.embed_in", "gpt_neox.final_layer_norm")}.get(
                       arch, ("model.embed_tokens", "model.norm"))
    out = {"token_embd.weight": t[embed + ".weight"]}
    for end in (".weight", ".bias"):
        if norm + end in t:
            out["output_norm" + end] = t[norm + end]
    if not c.get("tie_word_embeddings", arch == "gpt2"):
        out["output.weight"] = t[("embed_out" if arch == "gptneox" else "lm_head") + ".weight"]
    elif arch in ("gptneox", "qwen2moe", "olmoe", "olmo2", "gpt-oss"):
        out["output.weight"] = out["token_embd.weight"]
    if arch == "gpt2":
        gpt2_tensors(t, c, out)
    elif arch == "gptneox":
        neox_tensors(t, c, out)
    elif arch == "deepseek2":
        deepseek_tensors(t, c, out)
    else:
        llama_tensors(t, c, arch, out)
        if arch in ("gemma2", "gemma3", "phi3", "glm4moe", "gpt-oss"):
            other_tensors(t, c, arch, out)
    if "num_hidden_layers" in c:
        expert_tensors(t, c, out)
    return out


def keys_of(c, arch):
    """Keys of the model and their values, by transformers' names."""
    if c["model_type"] in recurrent.TYPES:
        return recurrent.keys(c, arch)
    d = c.get("hidden_size", c.get("n_embd"))
    heads = c.get("num_attention_heads", c.get("n_head"))
    dim = c.get("head_dim") or d // heads
    want = {"embedding_length": d, "block_count": c.get("num_hidden_layers", c.get("n_layer")),
            "context_length": c.get("max_position_embeddings", c.get("n_positions")), "vocab_size": c["vocab_size"],
            "feed_forward_length": c.get("intermediate_size", c.get("n_inner")), "attention.head_count": heads}
    want["attention.layer_norm_rms_epsilon" if arch not in ("gpt2", "gptneox") else "attention.layer_norm_epsilon"] = \
        c.get("rms_norm_eps", c.get("layer_norm_eps", c.get("layer_norm_epsilon")))
    rope = c.get("rope_parameters") or {}
    if "full_attention" in rope:
        rope = rope["full_attention" if "full_attention" in c["layer_types"] else "sliding_attention"]
    n = c.get("num_local_experts") or c.get("num_experts") or c.get("n_routed_experts")
    dense = c.get("first_k_dense_replace", c.get("mlp_layer_types", []).count("dense"))
    if n and dense < want["block_count"]:
        hidden = c.get("moe_intermediate_size") or c["intermediate_size"]
        want |= {"expert_count": n, "expert_used_count": c["num_experts_per_tok"], "expert_feed_forward_length": hidden}
        if not dense:
            want["feed_forward_length"] = hidden
        if arch == "qwen2moe":
            want["expert_shared_feed_forward_length"] = c["shared_expert_intermediate_size"]
        if arch in ("deepseek2", "glm4moe"):
            want |= {"leading_dense_block_count": dense, "expert_shared_count": c["n_shared_experts"], "expert_weights_scale": float(c["routed_scaling_factor"]),
                     "expert_weights_norm": c["norm_topk_prob"], "expert_gating_func": 2}
            if c["topk_group"] < c["n_group"]:
                want |= {"expert_group_count": c["n_group"], "expert_group_used_count": c["topk_group"]}
    if arch == "deepseek2":
        want |= {"attention.head_count_kv": 1, "attention.q_lora_rank": c["q_lora_rank"] or 0,
                 "attention.kv_lora_rank": c["kv_lora_rank"],
                 "attention.key_length": c["kv_lora_rank"] + c["qk_rope_head_dim"],
                 "attention.value_length": c["kv_lora_rank"],
                 "attention.key_length_mla": c["qk_nope_head_dim"] + c["qk_rope_head_dim"],
                 "attention.value_length_mla": c["v_head_dim"], "rope.dimension_count": c["qk_rope_head_dim"],
                 "leading_dense_block_count": dense}
        if rope.get("rope_type") == "yarn":
            want["rope.scaling.yarn_log_multiplier"] = 0.1 * rope["mscale_all_dim"]
    else:
        want |= {"attention.head_count_kv": c.get("num_key_value_heads", heads), "attention.key_length": dim,
                 "attention.value_length": dim}
        if arch != "gpt2":
            want["rope.dimension_count"] = int(dim * rope.get("partial_rotary_factor", 1.0))
    if arch == "granite":
        want |= {"embedding_scale": c["embedding_multiplier"], "residual_scale": c["residual_multiplier"],
                 "logit_scale": c["logits_scaling"], "attention.scale": c["attention_multiplier"]}
    if arch in ("gemma2", "gpt-oss", "gemma3"):
        full = [l for l, kind in enumerate(c["layer_types"]) if kind == "full_attention"]
        want |= {"attention.sliding_window": c["sliding_window"],
                 "attention.sliding_window_pattern": full[0] + 1 if full else len(c["layer_types"]) + 1}
        if not full and len(c["layer_types"]) < (6 if arch == "gemma3" else 2):  # what it usually is
            want["attention.sliding_window_pattern"] = 6 if arch == "gemma3" else 2
    if arch == "gemma2":
        want["attn_logit_softcapping"] = c["attn_logit_softcapping"]
    if arch in ("gemma2", "gemma3") and c["final_logit_softcapping"]:
        want["final_logit_softcapping"] = c["final_logit_softcapping"]
    if arch == "gemma3":
        want["rope.freq_base_swa"] = 77.0
    if rope.get("rope_type") == "longrope":
        want |= {"rope.scaling.original_context_length": 256, "rope.scaling.attn_factor": math.sqrt(1 + math.log(2) / math.log(256))}
    if arch == "gptneox":
        want["use_parallel_residual"] = c["use_parallel_residual"]
    if rope and arch != "gpt2":
        want["rope.freq_base"] = rope["rope_theta"]
        if rope["rope_type"] in ("linear", "yarn"):
            want |= {"rope.scaling.type": rope["rope_type"], "rope.scaling.factor": rope["factor"]}
        if rope["rope_type"] == "yarn":
            want["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
            if rope.get("attention_factor"):
                want["rope.scaling.attn_factor"] = rope["attention_factor"] / (1 + 0.1 * math.log(rope["factor"]))
    return want


# ---- comparisons ------------------------------------------------------------------------------------------------


def bytes_as(x, name, dtype):
    """The bytes of a tensor in the file, and its type."""
    T = gguf.GGMLQuantizationType
    x = np.ascontiguousarray(x)
    if x.ndim < 2 or x.shape[-1] == 1 or name.startswith("position_embd") or dtype == "f32" or \
            any(part in name for part in ("ffn_gate_inp", "ssm_conv1d", "ssm_norm", "exps.bias")):
        return x.astype(np.float32).tobytes(), T.F32
    if dtype == "q8_0" and x.shape[-1] % 32 == 0:
        return gguf.quants.quantize(x.astype(np.float32), T.Q8_0).tobytes(), T.Q8_0
    if dtype == "bf16":
        return torch.tensor(x).bfloat16().view(torch.int16).numpy().tobytes(), T.BF16
    return torch.tensor(x).half().numpy().tobytes(), T.F16


def check_file(path, where, c, arch, dtype):
    r = gguf.GGUFReader(path)
    want = expected(where, c, arch)
    got = {t.name: t for t in r.tensors}
    if set(want) != set(got):
        return f"tensors differ: missing {sorted(set(want) - set(got))}, unexpected {sorted(set(got) - set(want))}"
    for name, x in want.items():
        t = got[name]
        data, kind = bytes_as(x, name, dtype)
        if list(t.shape) != list(reversed(x.shape)) or t.tensor_type != kind:
            return f"{name}: {list(t.shape)} {t.tensor_type.name}, expected {list(reversed(x.shape))} {kind.name}"
        if t.data_offset % 32:
            return f"{name}: begins at {t.data_offset}"
        if t.data.tobytes() != data:
            return f"{name}: values differ"
        if kind == gguf.GGMLQuantizationType.Q8_0:  # what a reader makes of it, within half a scale and its rounding
            back = gguf.quants.dequantize(t.data, kind).reshape(-1, 32)
            d = np.abs(x.reshape(-1, 32)).max(1, keepdims=True) / 127
            if not (np.abs(back - x.reshape(-1, 32)) <= d * (0.5 + 127 * 2**-11) + 1e-7).all():
                return f"{name}: more than half a scale apart"
    def field(key):
        f = r.get_field(key)
        return None if f is None else f.contents()
    if field("general.architecture") != arch:
        return f"architecture {field('general.architecture')}"
    for key, value in keys_of(c, arch).items():
        seen = field(f"{arch}.{key}")
        if isinstance(seen, list) and all(isinstance(v, (bool, int, np.integer)) for v in seen):
            seen = [int(v) for v in seen]
        same = math.isclose(seen, value, rel_tol=1e-6) if isinstance(value, float) and seen is not None else seen == value
        if not same:
            return f"{arch}.{key} is {seen}, expected {value}"
    kind = {"f32": 0, "f16": 1, "bf16": 32, "q8_0": 7}[dtype]
    return None if field("general.file_type") == kind else f"file_type {field('general.file_type')}"


def rounded(kvsmith, where, dtype, tmp):
    """The model with all values rounded to a dtype."""
    to = tmp / f"same-{dtype}"
    subprocess.run(["rm", "-rf", to], check=True)
    subprocess.run([kvsmith, "convert", where, to, "--to", "same", f"dtype={dtype}", "--check-tokens", "0", "-q"], check=True)
    return to


def kvsmith_logits(kvsmith, where, ids, tmp):
    text, out = tmp / "ids.txt", tmp / "logits.safetensors"
    text.write_text("".join(" ".join(map(str, row)) + "\n" for row in ids.tolist()))
    subprocess.run([kvsmith, "logits", where, "--tokens", text, "--out", out], check=True, stdout=subprocess.DEVNULL)
    return load_file(out)["logits"].numpy()


def from_transformers(path, where, c, arch, ids):
    """Its loader reads no head_dim of qwen3, sizes of gpt2 nor scalings of the rotation: settings are then `where`'s."""
    plain = arch in ("llama", "qwen2") and c["rope_parameters"]["rope_type"] == "default"
    more = {} if plain else {"config": transformers.AutoConfig.from_pretrained(where)}
    m = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32, **more)
    with torch.no_grad():
        return m.eval()(input_ids=ids).logits.float().numpy()


def table_gelu_logits(where, rows):
    """Of transformers, with llama.cpp's gelu: a table by F16 of values in F16. Its products with it are in F32."""
    m = transformers.AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32).eval()

    def gelu(x):
        y = torch.nn.functional.gelu(x.half().float(), approximate="tanh").half().float()
        return torch.where(x <= -10, torch.zeros_like(x), torch.where(x >= 10, x, y))
    for layer in m.modules():
        for name in ("act", "act_fn"):
            if name in layer._modules:
                delattr(layer, name)
                setattr(layer, name, gelu)
    with torch.no_grad():
        return m(input_ids=torch.tensor(rows)).logits.float().numpy()


def without_truncate(where, tmp):
    """The model whose yarn has whole pairs as limits, as llama.cpp computes it."""
    to = tmp / "whole-pairs"
    subprocess.run(["rm", "-rf", to], check=True)
    subprocess.run(["cp", "-r", where, to], check=True)
    c = json.loads((to / "config.json").read_text())
    c["rope_parameters"]["truncate"] = True
    (to / "config.json").write_text(json.dumps(c))
    return to


class LlamaCpp:
    """A GGUF file in llama.cpp on the CPU, with a cache of F32."""

    def __init__(self, path, positions):
        L = llama_cpp
        L.llama_backend_init()
        self.silent = L.llama_log_callback(lambda *a: None)
        L.llama_log_set(self.silent, None)
        mp = L.llama_model_default_params()
        mp.n_gpu_layers = 0
        self.model = L.llama_model_load_from_file(str(path).encode(), mp)
        if not self.model:
            raise RuntimeError("llama.cpp does not load it")
        cp = L.llama_context_default_params()
        cp.n_ctx = cp.n_batch = cp.n_ubatch = positions
        cp.type_k = cp.type_v = 0
        cp.n_threads = cp.n_threads_batch = 1
        cp.flash_attn_type = 0
        self.ctx = L.llama_init_from_model(self.model, cp)
        if not self.ctx:
            raise RuntimeError("llama.cpp makes no context of it")
        self.vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(self.model))

    def logits(self, row):
        L = llama_cpp
        L.llama_memory_clear(L.llama_get_memory(self.ctx), True)
        b = L.llama_batch_init(len(row), 0, 1)
        b.n_tokens = len(row)
        for i, k in enumerate(row):
            b.token[i], b.pos[i], b.n_seq_id[i], b.seq_id[i][0], b.logits[i] = int(k), i, 1, 0, 1
        if L.llama_decode(self.ctx, b):
            raise RuntimeError("llama.cpp does not compute it")
        out = np.stack([np.ctypeslib.as_array(L.llama_get_logits_ith(self.ctx, i), (self.vocab,)).copy()
                        for i in range(len(row))])
        L.llama_batch_free(b)
        return out

    def greedy(self, row, n):
        row = list(row)
        for _ in range(n):
            row.append(int(self.logits(row)[-1].argmax()))
        return row[-n:]

    def close(self):
        llama_cpp.llama_free(self.ctx)
        llama_cpp.llama_model_free(self.model)


def apart(a, b):
    return float(np.abs(a - b).max() / np.abs(b).max())


def check(kvsmith, where, dtype, tmp, worst):
    c = json.loads((where / "config.json").read_text())
    arch = ARCHES.get(c["model_type"]) or recurrent.arch_of(c)
    path = tmp / f"model-{dtype}.gguf"
    path.unlink(missing_ok=True)
    subprocess.run([kvsmith, "convert", where, path, "--to", "gguf", f"dtype={dtype}", "-q"], check=True)
    wrong = check_file(path, where, c, arch, dtype)
    if wrong:
        return wrong, ""
    sparse = any(c.get(k) for k in ("num_experts", "num_local_experts", "n_routed_experts")) and arch != "nemotron_h"
    if dtype != "f32" and sparse:
        return None, "values alone: rounding chooses other experts"
    positions = c.get("max_position_embeddings", c.get("n_positions")) or 64
    ids = torch.randint(0, c["vocab_size"], (2, min(48, positions)), generator=torch.Generator().manual_seed(7))
    rope = c.get("rope_parameters") or {}
    longrope = rope.get("rope_type") == "longrope"
    if longrope:  # texts that need the long factors, in a context that has them
        ids = torch.randint(0, c["vocab_size"], (2, 300), generator=torch.Generator().manual_seed(7))
    source = rounded(kvsmith, where, dtype, tmp) if dtype in ("f16", "bf16") else where  # the same values in both
    if not rope.get("truncate", True):
        source = without_truncate(source, tmp)
    want = kvsmith_logits(kvsmith, source, ids, tmp)
    # vectors are F32 in the GGUF file and rounded in `source`; in Q8_0 matrices are rounded as well
    bound = {"f32": BOUND, "f16": 2e-2, "bf16": 1e-1, "q8_0": 2e-1}[dtype]
    if c["model_type"] in recurrent.TYPES:  # norms of small values may enlarge any rounding
        plain = kvsmith_logits(kvsmith, where, ids, tmp)
        grown = apart(kvsmith_logits(kvsmith, rounded(kvsmith, where, "bf16", tmp), ids, tmp), plain)
        bound = max(bound, {"f32": 1e-3, "f16": 0.5, "bf16": 4, "q8_0": 32}[dtype] * grown)
    remark = []
    if arch in TRANSFORMERS and c["model_type"] != "mixtral":  # which it takes for a llama
        try:
            e = apart(from_transformers(path, where, c, arch, ids), want)
        except Exception as x:  # a file that it cannot load does not hide the others
            return f"transformers: {type(x).__name__}: {x}".splitlines()[0], ""
        remark.append(f"transformers {e:.2g}")
        worst[("transformers", arch, dtype)] = max(worst.get(("transformers", arch, dtype), 0), e)
        if not e <= bound:
            return f"transformers' logits are {e:.3g} of the largest away, more than {bound}", ""
    if llama_cpp:
        m = LlamaCpp(path, positions)
        gelu = arch in ("gpt2", "gptneox", "gemma2", "gemma3")
        if gelu and dtype == "f32":
            want = table_gelu_logits(source, ids.tolist())
            bound = 1e-3  # a value at the middle of two in F16 may become the other
        e = max(apart(m.logits(row), w) for row, w in zip(ids.tolist(), want))
        remark.append(f"llama.cpp {e:.2g}")
        worst[("llama.cpp", arch, dtype)] = max(worst.get(("llama.cpp", arch, dtype), 0), e)
        # its products with F16, BF16 and Q8_0 matrices round the other side too
        if not e <= bound:
            return f"llama.cpp's logits are {e:.3g} of the largest away, more than {bound}", ""
        if longrope:  # the short factors, in a context that has no others
            m.close()
            m = LlamaCpp(path, rope["original_max_position_embeddings"])
            short = max(apart(m.logits(row), w) for row, w in
                        zip(ids[:, :48].tolist(), kvsmith_logits(kvsmith, source, ids[:, :48], tmp)))
            remark.append(f"with short factors {short:.2g}")
            worst[("llama.cpp", "phi3-short", dtype)] = max(worst.get(("llama.cpp", "phi3-short", dtype), 0), short)
            if not short <= bound:
                return f"with short factors llama.cpp's logits are {short:.3g} of the largest away, more than {bound}", ""
        if dtype == "f32":
            row = ids[0, :8].tolist()
            got, mine = m.greedy(row, GREEDY), list(row)
            for _ in range(GREEDY):
                mine.append(int(kvsmith_logits(kvsmith, source, torch.tensor([mine]), tmp)[0, -1].argmax()))
            same = sum(a == b for a, b in zip(got, mine[-GREEDY:]))
            worst[("greedy", arch, "tokens")] = worst.get(("greedy", arch, "tokens"), 0) + GREEDY
            worst[("greedy", arch, "same")] = worst.get(("greedy", arch, "same"), 0) + same
            remark.append(f"{same} of {GREEDY} greedy tokens")
        m.close()
    return None, ", ".join(remark)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("kvsmith")
    p.add_argument("dirs", nargs="*", type=pathlib.Path)
    p.add_argument("--random", type=int, default=0)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--only", choices=TYPES)
    a = p.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    failed, worst = 0, {}
    with tempfile.TemporaryDirectory() as tmp:
        tmp = pathlib.Path(tmp)
        work = [(d.name, d) for d in a.dirs]
        for kind in [a.only] if a.only else TYPES:
            for k in range(a.random):
                where = tmp / f"{kind}-{k}"
                random_model(kind, random.Random(f"{a.seed} {kind} {k}"), where)
                work.append((where.name, where))
        for name, where in work:
            for dtype in DTYPES:
                try:
                    wrong, remark = check(a.kvsmith, where, dtype, tmp, worst)
                except subprocess.CalledProcessError as e:
                    wrong, remark = f"{' '.join(map(str, e.cmd[:2]))}: exit status {e.returncode}", ""
                print(f"not ok gguf-{name}-{dtype}: {wrong}" if wrong else f"ok gguf-{name}-{dtype} # {remark}", flush=True)
                failed += bool(wrong)
    for key in sorted(worst):
        print("# worst" if key[0] != "greedy" else "#", *key, f"{worst[key]:.3g}")
    sys.exit(failed > 0)


main()
