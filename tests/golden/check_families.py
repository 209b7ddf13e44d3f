#!/usr/bin/env python3
"""Random tiny models of every type, written by transformers, read and written again by kvsmith.

Usage: check_families.py KVSMITH [TYPE...] [--models N] [--seed S]. Needs torch, transformers, safetensors. For each type
N models (default 6) of other sizes and settings, in turn float32 and bfloat16 files, in one file and in shards, on 1 to
300 tokens:
  logits    of `kvsmith logits`, all rows at once and token by token, within 1e-4 of those of transformers with all
            arithmetic in float64, of the same files. Where a state, a norm or a softmax magnifies rounding, at most
            three times what is the largest of: transformers' own error in float32, and what weights moved by a rounding
            of float32 do in float64, of five draws
  tensors   of what `kvsmith convert --to same` writes: same names, dtypes, shapes and bytes
  loading   that directory by from_pretrained: no missing, unexpected or mismatched key, and the same logits in float64
  greedy    100 tokens that transformers generates are those that kvsmith's logits choose (unless two are near to equal)
Prints a line for each model and the worst error of each type; exit status 1 if something differs.
Types of flash-linear-attention run if they are named; it must not be importable for others, because transformers would
call its kernels. fla_eager.py, which is imported for them, makes its classes those of their names, fla_mamba2's in the
place of transformers'.
"""
import argparse
import importlib
import json
import pathlib
import random
import re
import subprocess
import sys
import tempfile

import torch
import transformers
from make_families import Doubles, randomise
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

BOUND, NEAR, GREEDY = 1e-4, 1e-3, 100
TOKENS = 300, 1, 65, 130, 2, 200
EAGER = dict(experts_implementation="eager", attn_implementation="eager")


def plain(r):
    heads, groups = r.choice([(4, 2), (3, 1), (3, 3), (6, 2)])
    return dict(vocab_size=r.randrange(17, 40), hidden_size=heads * r.randrange(3, 7), intermediate_size=r.randrange(5, 20),
                num_hidden_layers=r.randrange(1, 5), num_attention_heads=heads, num_key_value_heads=groups,
                head_dim=2 * r.randrange(1, 6), max_position_embeddings=512, rms_norm_eps=r.choice([1e-6, 1e-4]),
                tie_word_embeddings=r.random() < 0.3, bos_token_id=1, eos_token_id=2, rope_parameters=rope(r))


def rope(r):
    return r.choice([dict(rope_type="default", rope_theta=r.choice([50.0, 1e4])),
                     dict(rope_type="linear", rope_theta=50.0, factor=2.0),
                     dict(rope_type="yarn", rope_theta=50.0, factor=4.0, original_max_position_embeddings=128)])


def bare(r, **more):
    """A dense model whose heads have no width of their own."""
    s = plain(r)
    del s["head_dim"]
    return dict(s, hidden_size=s["num_attention_heads"] * 2 * r.randrange(2, 5), **more)


def windowed(r):
    """Windows in some layers, as Qwen 2 and 3 have them."""
    if r.random() < 0.5:
        return {}
    return dict(use_sliding_window=True, sliding_window=r.choice([5, 64]), max_window_layers=r.randrange(0, 3))


def llama(r):
    s = plain(r)
    return dict(s, attention_bias=r.random() < 0.3, rope_parameters=r.choice([
        s["rope_parameters"], dict(rope_type="llama3", rope_theta=50.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                   original_max_position_embeddings=128)]))


def mistral(r):
    return dict(plain(r), sliding_window=r.choice([None, 5, 64]))


def qwen2(r):
    return bare(r, **windowed(r))


def qwen3(r):
    return dict(plain(r), **windowed(r), attention_bias=r.random() < 0.3)


def gpt2(r):
    heads = r.randrange(1, 5)
    return dict(vocab_size=r.randrange(17, 40), n_embd=heads * r.randrange(2, 7), n_layer=r.randrange(1, 5), n_head=heads,
                n_positions=512, n_inner=r.choice([None, 11]), bos_token_id=1, eos_token_id=2, layer_norm_epsilon=1e-4,
                activation_function=r.choice(["gelu_new", "gelu"]), tie_word_embeddings=r.random() < 0.6)


def gpt_neox(r):
    s = bare(r)
    part = dict(s.pop("rope_parameters"), partial_rotary_factor=1.0)
    s = {k: v for k, v in s.items() if k not in ("num_key_value_heads", "rms_norm_eps")}
    if part["rope_type"] == "default" and s["hidden_size"] // s["num_attention_heads"] % 4 == 0:
        part["partial_rotary_factor"] = 0.5
    return dict(s, rope_parameters=part, use_parallel_residual=r.random() < 0.6, attention_bias=r.random() < 0.7,
                hidden_act=r.choice(["gelu", "gelu_new"]))


def phi3(r):
    s = bare(r, sliding_window=r.choice([None, 5, 64]), pad_token_id=0)
    half = s["hidden_size"] // s["num_attention_heads"] // 2
    long = dict(rope_type="longrope", rope_theta=50.0, original_max_position_embeddings=128,
                short_factor=[r.uniform(1, 2) for _ in range(half)], long_factor=[r.uniform(1, 4) for _ in range(half)])
    if r.random() < 0.5:
        return dict(s, rope_parameters=long, original_max_position_embeddings=128)
    return dict(s, rope_parameters=dict(rope_type="default", rope_theta=50.0))


def smollm3(r):
    s = bare(r, attention_bias=r.random() < 0.4, pad_token_id=0)
    if r.random() < 0.5:
        s.update(use_sliding_window=True, sliding_window=r.choice([5, 64]))
    return dict(s, no_rope_layers=[r.randrange(2) for _ in range(s["num_hidden_layers"])])


def granite(r):
    return bare(r, attention_bias=r.random() < 0.4, embedding_multiplier=r.choice([1.0, 3.5]), logits_scaling=r.choice([1.0, 1.7]),
                residual_multiplier=r.choice([1.0, 0.6]), attention_multiplier=r.choice([1.0, 0.3]), pad_token_id=0)


def olmo2(r):
    return bare(r, attention_bias=r.random() < 0.4, pad_token_id=0)


def gemma(r, turns):
    s = plain(r)
    types = [r.choice(["full_attention", "sliding_attention"]) for _ in range(s["num_hidden_layers"])]
    return dict(s, layer_types=types, sliding_window=r.choice([6, 64]), query_pre_attn_scalar=r.choice([12, 20]),
                attention_bias=r.random() < 0.4, final_logit_softcapping=r.choice([None, 6.0]), rope_parameters=turns, pad_token_id=0)


def gemma2(r):
    return dict(gemma(r, dict(rope_type="default", rope_theta=50.0)), attn_logit_softcapping=r.choice([None, 3.0]))


def gemma3_text(r):
    return gemma(r, dict(sliding_attention=dict(rope_type="default", rope_theta=9.0), full_attention=rope(r)))


def experts(r):
    n = r.randrange(3, 9)
    return dict(num_experts=n, num_experts_per_tok=r.randrange(1, n + 1), moe_intermediate_size=r.randrange(3, 12),
                norm_topk_prob=r.random() < 0.5)


def mixtral(r):
    e = experts(r)
    return dict(**plain(r), num_local_experts=e["num_experts"], num_experts_per_tok=e["num_experts_per_tok"],
                sliding_window=r.choice([None, 5]))


def olmoe(r):
    e = experts(r)
    s = plain(r)
    del s["head_dim"], e["moe_intermediate_size"]
    return dict(s, hidden_size=s["num_attention_heads"] * 2 * r.randrange(2, 5), attention_bias=r.random() < 0.3, **e)


def sparse(r, s):
    if r.random() < 0.5:
        return dict(mlp_only_layers=[n for n in range(s["num_hidden_layers"] - 1) if r.random() < 0.5])
    return dict(decoder_sparse_step=r.randrange(1, s["num_hidden_layers"] + 1))


def qwen3_moe(r):
    s = plain(r)
    window = r.random() < 0.4
    return dict(**s, **experts(r), **sparse(r, s), attention_bias=r.random() < 0.3, use_sliding_window=window,
                sliding_window=5 if window else None)


def qwen2_moe(r):
    s = plain(r)
    s.update(qkv_bias=r.random() < 0.7, shared_expert_intermediate_size=r.randrange(3, 20))
    if r.random() < 0.4:
        s.update(use_sliding_window=True, sliding_window=5,
                 layer_types=[r.choice(["full_attention", "sliding_attention"]) for _ in range(s["num_hidden_layers"])])
    return dict(**s, **experts(r), **sparse(r, s))


def latent(r):
    s = plain(r)
    yarn = dict(rope_type="yarn", rope_theta=50.0, factor=4.0, original_max_position_embeddings=128, mscale=0.7,
                mscale_all_dim=r.choice([0.7, 1.3]))
    del s["head_dim"]
    s.update(num_key_value_heads=s["num_attention_heads"], q_lora_rank=r.choice([None, 4, 6]), kv_lora_rank=2 * r.randrange(1, 6),
             qk_nope_head_dim=2 * r.randrange(1, 5), qk_rope_head_dim=2 * r.randrange(1, 5), v_head_dim=r.randrange(2, 9),
             rope_parameters=r.choice([rope(r), yarn]), attention_bias=r.random() < 0.3,
             first_k_dense_replace=r.randrange(0, s["num_hidden_layers"]), n_shared_experts=r.randrange(1, 3),
             moe_intermediate_size=r.randrange(3, 12), routed_scaling_factor=r.choice([1.0, 2.5]))
    groups = r.choice([1, 2, 4])
    top = r.randrange(1, groups + 1)
    s.update(n_routed_experts=groups * r.randrange(2, 4), n_group=groups, topk_group=top)
    s.update(num_experts_per_tok=r.randrange(1, top * (s["n_routed_experts"] // groups) + 1))
    return s


def deepseek_v3(r):
    return dict(latent(r), norm_topk_prob=r.random() < 0.7)


def glm4_moe(r):
    s = plain(r)
    s.update({k: v for k, v in latent(r).items() if k.startswith(("n_", "topk", "moe", "routed", "num_experts"))})
    s.update(attention_bias=r.random() < 0.4, use_qk_norm=r.random() < 0.5, norm_topk_prob=r.random() < 0.7,
             first_k_dense_replace=r.randrange(0, s["num_hidden_layers"]), head_dim=8,
             rope_parameters={**s["rope_parameters"], "partial_rotary_factor": r.choice([0.25, 0.5, 1.0])})
    return s


def glm4_moe_lite(r):
    s = latent(r)
    layers = s["num_hidden_layers"]
    del s["first_k_dense_replace"]
    s["rope_parameters"] = dict(s["rope_parameters"])
    types = ["sparse"] + [r.choice(["dense", "sparse"]) for _ in range(layers)]
    return dict(s, norm_topk_prob=r.random() < 0.7, mlp_layer_types=types[:layers])


def mamba2(r):
    heads, groups, expand = r.choice([(4, 2, 2), (3, 1, 3), (6, 3, 1), (2, 2, 2)])
    return dict(vocab_size=r.randrange(17, 40), hidden_size=heads * 2, num_heads=heads, head_dim=2 * expand, expand=expand,
                num_hidden_layers=r.randrange(1, 5), state_size=r.randrange(1, 9), n_groups=groups,
                conv_kernel=r.randrange(1, 6), chunk_size=r.choice([3, 8, 64]), use_bias=r.random() < 0.4,
                use_conv_bias=r.random() < 0.6, tie_word_embeddings=r.random() < 0.5, layer_norm_epsilon=1e-4,
                bos_token_id=1, eos_token_id=2, pad_token_id=0)


def granitemoehybrid(r):
    s = plain(r)
    layers, heads = s["num_hidden_layers"] + 1, s["num_attention_heads"]
    s = {k: v for k, v in s.items() if k not in ("head_dim", "hidden_size", "num_hidden_layers")}
    groups = r.choice([1, 2])
    types = ["linear_attention", "full_attention"] + [r.choice(["linear_attention", "full_attention"]) for _ in range(layers)]
    s.update(hidden_size=heads * 4, num_hidden_layers=layers, layer_types=types[:layers], mamba_n_heads=4,
             mamba_expand=r.choice([1, 2, 3]), mamba_n_groups=groups, mamba_d_state=r.randrange(1, 8), mamba_d_conv=r.randrange(1, 5),
             mamba_chunk_size=r.choice([3, 64]), mamba_conv_bias=r.random() < 0.5, mamba_proj_bias=r.random() < 0.5,
             attention_bias=r.random() < 0.4, num_local_experts=r.choice([0, 4, 6]), num_experts_per_tok=2,
             shared_intermediate_size=r.randrange(3, 12), position_embedding_type=r.choice([None, "nope", "rope"]),
             embedding_multiplier=r.choice([1.0, 2.0]), residual_multiplier=0.7, logits_scaling=r.choice([1.0, 3.0]),
             attention_multiplier=0.4)
    return s


def gpt_oss(r):
    e, s = experts(r), plain(r)
    s["rope_parameters"] = r.choice([s["rope_parameters"], None, dict(rope_type="yarn", rope_theta=50.0, factor=4.0, truncate=False,
                                                                     original_max_position_embeddings=128)])
    if s["rope_parameters"] is None:  # the class's, which is meant for
        s["max_position_embeddings"] = 131072
    if r.random() < 0.5:
        s["layer_types"] = [r.choice(["full_attention", "sliding_attention"]) for _ in range(s["num_hidden_layers"])]
    return dict(s, num_local_experts=e["num_experts"], num_experts_per_tok=e["num_experts_per_tok"], sliding_window=r.choice([5, 16]),
                attention_bias=r.random() < 0.7, swiglu_limit=r.choice([7.0, 0.6]), swiglu_alpha=r.choice([1.702, 1.1]))


def nemotron_h(r):
    s, e = plain(r), latent(r)
    heads = r.choice([2, 4, 6])
    parts = [r.choice(["linear_attention", "full_attention", "mlp", "moe"]) for _ in range(r.randrange(1, 6))]
    parts.insert(r.randrange(len(parts) + 1), "full_attention")  # without one the class fails
    s = {k: s[k] for k in ("vocab_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim")}
    s.update({k: e[k] for k in ("n_routed_experts", "n_group", "topk_group", "num_experts_per_tok", "moe_intermediate_size",
                                "routed_scaling_factor")})
    return dict(s, hidden_size=r.randrange(5, 20), layers_block_type=parts, ssm_state_size=r.randrange(1, 9),
                n_groups=r.choice([1, 2]), mamba_num_heads=heads, mamba_head_dim=r.randrange(1, 7), bos_token_id=1, eos_token_id=2,
                conv_kernel=r.randrange(1, 6), chunk_size=r.choice([3, 8, 64]), use_bias=r.random() < 0.4,
                use_conv_bias=r.random() < 0.6, mlp_bias="moe" not in parts and r.random() < 0.5, layer_norm_epsilon=1e-4,
                moe_shared_expert_intermediate_size=r.choice([e["moe_intermediate_size"], r.randrange(3, 20)]),
                moe_latent_size=r.choice([None, r.randrange(3, 12)]), norm_topk_prob=r.random() < 0.7,
                max_position_embeddings=512, pad_token_id=0, time_step_min=1e-30)  # hf_nemotron_h.c says why


def deepseek_v2(r):
    s = latent(r)
    return dict(s, topk_method="group_limited_greedy" if s["n_group"] > 1 else "greedy")


def hybrid(r):
    s = plain(r)
    heads, dim = r.randrange(1, 4), 4 * r.randrange(1, 4)
    turned = dict(s["rope_parameters"], partial_rotary_factor=r.choice([0.5, 1.0]))
    layers = s["num_hidden_layers"] + 1
    s.update(head_dim=dim, rope_parameters=turned, num_hidden_layers=layers, attention_bias=r.random() < 0.3,
             linear_num_key_heads=heads, linear_num_value_heads=heads * r.randrange(1, 4), linear_key_head_dim=r.randrange(2, 9),
             linear_value_head_dim=r.randrange(2, 9), linear_conv_kernel_dim=r.randrange(1, 6))
    kinds = [r.choice(["linear_attention", "full_attention"]) for _ in range(layers)]
    kinds[r.randrange(layers - 1)], kinds[-1] = "linear_attention", "full_attention"
    return dict(s, layer_types=kinds)


def shared(r):
    e = experts(r)
    return dict(e, shared_expert_intermediate_size=r.choice([e["moe_intermediate_size"], r.randrange(3, 20)]))


def qwen3_next(r):
    s = hybrid(r)
    return dict(**s, **shared(r), **sparse(r, s))


def qwen3_5_moe_text(r):
    s, e = hybrid(r), shared(r)
    del s["intermediate_size"], e["norm_topk_prob"]
    return dict(**s, **e)


def kimi_linear(r):
    s = latent(r)
    for key in ("rope_parameters", "n_routed_experts", "first_k_dense_replace"):
        del s[key]
    layers = r.randrange(2, 6)
    kinds = ["full_attention" if r.random() < 0.4 else "linear_attention" for _ in range(layers)]
    kinds[r.randrange(layers)] = "full_attention"
    kinds[kinds.index("full_attention") - 1] = "linear_attention"
    feeds = [r.choice(["dense", "sparse"]) for _ in range(layers)]
    feeds[r.randrange(layers)] = "sparse"
    groups = s["n_group"]
    return dict(s, tie_word_embeddings=False, num_hidden_layers=layers, layer_types=kinds, mlp_layer_types=feeds, pad_token_id=0,
                num_local_experts=groups * r.randrange(2, 4), num_experts_per_tok=r.randrange(1, 2 * s["topk_group"] + 1),
                norm_topk_prob=r.random() < 0.7, linear_head_dim=r.randrange(2, 8), linear_num_heads=r.randrange(1, 4),
                linear_conv_kernel_dim=r.randrange(2, 6))


def bailing_hybrid(r):
    s = kimi_linear(r)
    K, taps = s.pop("linear_head_dim"), s.pop("linear_conv_kernel_dim")
    del s["linear_num_heads"]
    return dict(s, head_dim=K, short_conv_kernel_size=taps, kda_safe_gate=r.random() < 0.6, kda_lower_bound=-r.uniform(0.5, 6),
                rope_theta=r.choice([30.0, 6e6]), num_mtp_layers=0)


def fla(r, **s):
    """A decoder of flash-linear-attention; s: its mixer, without layers of attention where s says so."""
    layers, heads = r.randrange(1, 5), s["num_heads"]
    d = s.pop("hidden_size", 0) or 4 * heads * r.randrange(1, 4)
    s = dict(vocab_size=r.randrange(17, 40), hidden_size=d, num_hidden_layers=layers, intermediate_size=r.randrange(5, 20),
             max_position_embeddings=512, norm_eps=r.choice([1e-6, 1e-4]), tie_word_embeddings=r.random() < 0.3, bos_token_id=1,
             eos_token_id=2, **s)
    if r.random() < 0.2:
        s.update(intermediate_size=None, hidden_ratio=r.choice([1, 2]))
    left = list(range(layers))
    r.shuffle(left)
    specs = []
    while len(left) > 1 and r.random() < 0.5:
        n = r.randrange(1, len(left))
        wide = r.choice([n for n in range(1, d // 2 + 1) if d % (2 * n) == 0])
        specs.append(dict(layers=sorted(left[:n]), num_heads=wide, window_size=r.choice([None, 1, 7, 64]),
                          num_kv_heads=r.choice([n for n in range(1, wide + 1) if wide % n == 0]),
                          qkv_bias=r.random() < 0.5, rope_theta=r.choice([50.0, 1e4])))
        left = left[n:]
    return dict(s, attn=specs[0] if len(specs) == 1 else specs or None)


def delta(r):
    return dict(use_short_conv=r.random() < 0.8, conv_size=r.randrange(1, 6), allow_neg_eigval=r.random() < 0.4)


def fla_kda(r):
    heads, bound = r.randrange(1, 4), r.choice([None, -5.0, -0.7])
    return fla(r, num_heads=heads, num_v_heads=r.choice([None, heads, 3 * heads]), head_dim=r.choice([4, 6, 7]),
               expand_v=r.choice([1, 2.0]), lower_bound=bound, safe_gate=bound is not None and r.random() < 0.5, **delta(r))


def gated_deltanet(r):
    heads = r.randrange(1, 4)
    return fla(r, num_heads=heads, num_v_heads=r.choice([None, heads, 2 * heads]), head_dim=r.choice([4, 6, 10]),
               expand_v=r.choice([0.5, 1.5, 2.0]), use_gate=r.random() < 0.7,
               output_gate_activation=r.choice(["swish", "silu", "sigmoid"]), **delta(r))


def delta_net(r):
    return fla(r, num_heads=r.randrange(1, 5), expand_k=r.choice([0.25, 0.5, 1]), expand_v=r.choice([0.75, 1, 2]),
               use_gate=r.random() < 0.5, **delta(r))


def gla(r):
    heads, groups = r.choice([(4, 2), (3, 1), (3, 3), (6, 2), (1, 1)])
    return fla(r, num_heads=heads, num_kv_heads=groups, expand_k=r.choice([0.5, 1]), expand_v=r.choice([1, 2]),
               use_short_conv=r.random() < 0.5, conv_size=r.randrange(1, 5), use_output_gate=r.random() < 0.7,
               fuse_norm=r.random() < 0.7)


def retnet(r):
    heads = r.randrange(1, 5)
    return fla(r, num_heads=heads, hidden_size=8 * heads, expand_k=r.choice([0.25, 0.5, 1]), expand_v=r.choice([0.5, 2]),
               use_output_gate=r.random() < 0.7, fuse_norm=r.random() < 0.7)


def fla_mamba2(r):
    """One group, or one a head: with others fla on a CPU gives head h group h % groups, unlike its kernels."""
    s = mamba2(r)
    eps, heads = s.pop("layer_norm_epsilon"), s.pop("num_heads")
    s["n_groups"] = r.choice([1, heads])
    return dict(s, norm_eps=eps)


TYPES = dict(llama=("LlamaConfig", llama), mistral=("MistralConfig", mistral), qwen2=("Qwen2Config", qwen2),
             qwen3=("Qwen3Config", qwen3), gpt2=("GPT2Config", gpt2), gpt_neox=("GPTNeoXConfig", gpt_neox),
             phi3=("Phi3Config", phi3), smollm3=("SmolLM3Config", smollm3), granite=("GraniteConfig", granite),
             olmo2=("Olmo2Config", olmo2), gemma2=("Gemma2Config", gemma2), gemma3_text=("Gemma3TextConfig", gemma3_text),
             mixtral=("MixtralConfig", mixtral), qwen3_moe=("Qwen3MoeConfig", qwen3_moe),
             qwen2_moe=("Qwen2MoeConfig", qwen2_moe), deepseek_v3=("DeepseekV3Config", deepseek_v3),
             deepseek_v2=("DeepseekV2Config", deepseek_v2), olmoe=("OlmoeConfig", olmoe),
             qwen3_next=("Qwen3NextConfig", qwen3_next), qwen3_5_text=("Qwen3_5TextConfig", hybrid),
             qwen3_5_moe_text=("Qwen3_5MoeTextConfig", qwen3_5_moe_text), kimi_linear=("KimiLinearConfig", kimi_linear),
             bailing_hybrid=("BailingHybridConfig", bailing_hybrid),
             glm4_moe=("Glm4MoeConfig", glm4_moe), glm4_moe_lite=("Glm4MoeLiteConfig", glm4_moe_lite), mamba2=("Mamba2Config", mamba2), granitemoehybrid=("GraniteMoeHybridConfig", granitemoehybrid),
             gpt_oss=("GptOssConfig", gpt_oss), nemotron_h=("NemotronHConfig", nemotron_h))
FLA = dict(kda=("KDAConfig", fla_kda), gated_deltanet=("GatedDeltaNetConfig", gated_deltanet),
           delta_net=("DeltaNetConfig", delta_net), gla=("GLAConfig", gla), retnet=("RetNetConfig", retnet),
           fla_mamba2=("Mamba2Config", fla_mamba2))
# Written as these, which compute the same, where they can hold the model; with the same tensors but those of JOINED.
MAY = dict(glm4_moe_lite="deepseek_v3", mistral="llama", phi3="llama mistral", qwen3_5_moe_text="qwen3_next", mixtral="llama",
           smollm3="llama", granite="llama", qwen2="llama")
JOINED = "phi3", "qwen3_5_moe_text"


def logits_of(kvsmith, where, ids, tmp, *how):
    text, out = tmp / "ids.txt", tmp / "logits.safetensors"
    text.write_text("".join(" ".join(map(str, row)) + "\n" for row in ids.tolist()))
    subprocess.run([kvsmith, "logits", where, "--tokens", text, "--out", out, "--dtype", "f32", *how], check=True,
                   stdout=subprocess.DEVNULL)
    return load_file(out)["logits"]


def tensors_of(where):
    all = {}
    for path in sorted(where.glob("*.safetensors")):
        with safe_open(path, "pt") as f:
            for name in f.keys():
                all[name] = f.get_tensor(name)
    return all


def exact(where, ids, moved=None):
    """The logits of the files' values with all arithmetic in float64; moved: a seed for weights half a unit away."""
    was = AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32, **EAGER)
    with Doubles(), torch.no_grad():
        model = AutoModelForCausalLM.from_config(was.config, dtype=torch.float64, **EAGER).eval()
        g = torch.Generator().manual_seed(moved or 0)
        model.load_state_dict({k: v.double() * (1 + (moved is not None) * 2**-24 * torch.randn(v.shape, generator=g, dtype=torch.float64))
                               if v.is_floating_point() else v for k, v in was.state_dict().items()})
        return model(input_ids=ids).logits


def beyond(where, ids, own, *gots):
    """What is wrong with these logits of the model, or None; the largest difference of one. own: those of float32."""
    true = exact(where, ids)
    if not all(got.isfinite().all() for got in gots):
        return "logits are no numbers", float("nan")
    worst = max((got - true).abs().max().item() for got in gots)
    if worst > BOUND:
        bound = 3 * max((x - true).abs().max().item() for x in (own, *(exact(where, ids, seed) for seed in range(5))))
        if not worst <= bound:
            return f"logits differ by {worst:.3g}, bound {bound:.3g}", worst
    return None, worst


def greedy(model, ids, n):
    """As model.generate without a cache, which some classes have on a GPU alone."""
    for _ in range(n):
        ids = torch.cat((ids, model(input_ids=ids).logits[:, -1:].argmax(-1)), 1)
    return ids


def check(kvsmith, kind, make, seed, number, tmp, flash):
    """What is wrong, or None; the largest difference of a logit."""
    r = random.Random(seed)
    dtype = [torch.float32, torch.bfloat16][number % 2]
    shard = ["1GB", "6KB"][number // 2 % 2]
    torch.manual_seed(seed)
    where = importlib.import_module("fla_eager").fla.models if flash else transformers
    model = AutoModelForCausalLM.from_config(getattr(where, kind)(**make(r)), dtype=torch.float32, **EAGER).eval()
    randomise(model, seed)
    here, there = tmp / "here", tmp / "there"
    model.to(dtype)
    for name, p in model.named_buffers():
        if name.endswith("correction_bias"):  # float32 in published files, and in every model that transformers loads
            p.data = p.data.float()
    for name, p in model.named_parameters():
        if name.endswith(("A_log", "dt_bias")):  # float32 in published files
            p.data = p.data.float()
    model.save_pretrained(here, max_shard_size=shard)
    model = AutoModelForCausalLM.from_pretrained(here, dtype=torch.float32, **EAGER).eval()
    tokens = TOKENS[number % len(TOKENS)]
    ids = torch.randint(0, model.config.vocab_size, (2, tokens), generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        own = model(input_ids=ids).logits.float()
        start = torch.randint(0, model.config.vocab_size, (1, 7), generator=torch.Generator().manual_seed(seed))
        longer = greedy(model, start, GREEDY)
    wrong, worst = beyond(here, ids, own, *(logits_of(kvsmith, here, ids, tmp, *how) for how in ((), ("--chunk", "1"))))
    if wrong:
        return wrong, worst
    true = exact(here, ids)
    chosen = logits_of(kvsmith, here, longer, tmp)[0]
    for t in range(6, longer.shape[1] - 1):
        two = chosen[t].topk(2)
        if two.indices[0] != longer[0, t + 1] and two.values[0] - two.values[1] > NEAR:
            return f"token {t + 1}: {two.indices[0]}, transformers chose {longer[0, t + 1]}", worst
    subprocess.run([kvsmith, "convert", here, there, "--to", "same", *(["shard=6KB"] if shard == "6KB" else [])], check=True,
                   stdout=subprocess.DEVNULL)
    a, b = tensors_of(here), tensors_of(there)
    if model.config.model_type == "kimi_linear":  # dense parts are written under their published name
        a = {re.sub(r"block_sparse_moe\.((gate|up|down)_proj\.)", r"mlp.\1", k): v for k, v in a.items()}
    was, written = (json.loads((where / "config.json").read_text())["model_type"] for where in (here, there))
    if written != was and written not in MAY.get(was, "").split():
        return f"written as {written}", worst
    if written != was and was in JOINED:
        a = b = {}
    a = {k.replace(".g_norm.", ".g_norm_swish_gate.") if k not in b else k: v for k, v in a.items()}  # fuse_norm is not kept
    if a.keys() != b.keys():
        return f"other tensors: {sorted(a.keys() ^ b.keys())[:4]}", worst
    for name in a:
        wider = b[name].dtype if name.endswith((".A_log", ".dt_bias", ".D")) else a[name].dtype  # float32 here
        if a[name].dtype != b[name].dtype != wider or not torch.equal(a[name].to(wider), b[name]):
            return f"{name} is not the same", worst
    _, report = AutoModelForCausalLM.from_pretrained(there, dtype=torch.float32, output_loading_info=True, **EAGER)
    left = {k: v for k, v in report.items() if v}
    if left:
        return f"transformers loaded it with remarks: {left}", worst
    if not (exact(there, ids) - true).abs().max() <= 1e-12 * max(1, true.abs().max()):
        return "the model written computes something else", worst
    return None, worst


def main():
    a = argparse.ArgumentParser()
    a.add_argument("kvsmith")
    a.add_argument("types", nargs="*")
    a.add_argument("--models", type=int, default=6)
    a.add_argument("--seed", type=int, default=1)
    a = a.parse_args()
    torch.set_num_threads(1)
    failed = 0
    for name in a.types or TYPES:
        top = 0.0
        for n in range(a.models):
            with tempfile.TemporaryDirectory() as tmp:
                seed = 1000 * a.seed + n
                try:
                    wrong, worst = check(a.kvsmith, *(TYPES | FLA)[name], seed, n, pathlib.Path(tmp), name in FLA)
                except Exception as e:  # one model that cannot be read does not hide the others
                    wrong, worst = f"{type(e).__name__}: {e}".splitlines()[0], float("nan")
            print(f"not ok {name} {seed}: {wrong}" if wrong else f"ok {name} {seed} # {worst:.3g}", flush=True)
            failed += bool(wrong)
            top = max(top, worst)
        print(f"# {name}: worst difference of a logit {top:.3g} in {a.models} models", flush=True)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
