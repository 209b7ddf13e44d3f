"""Models whose layers have states, for check_gguf.py: random settings, and what the GGUF file must hold.

Names, orders and keys are computed here again, from config.json and model.safetensors of transformers."""
import numpy as np
import transformers

TYPES = ["mamba2", "granitemoehybrid", "nemotron_h", "nemotron_h_moe", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text",
         "kimi_linear", "bailing_hybrid"]
ARCHES = {"granitemoehybrid": "granitehybrid", "qwen3_next": "qwen3next", "qwen3_5_text": "qwen35",
          "qwen3_5_moe_text": "qwen35moe", "kimi_linear": "kimi-linear", "bailing_hybrid": "bailingmoe3"}
OTHERS = {"nemotron_h_moe"}  # architectures that have their model_type's name with an ending
STATE, FULL, MLP, MOE = "linear_attention", "full_attention", "mlp", "moe"


def arch_of(c):
    if c["model_type"] == "nemotron_h":
        return "nemotron_h_moe" if MOE in c["layers_block_type"] else "nemotron_h"
    return ARCHES.get(c["model_type"], c["model_type"])


# ---- random settings --------------------------------------------------------------------------------------------


def layers_of(rng, first, second, n):
    """Both kinds of layers, in any order."""
    kinds = [first, second] + [rng.choice([first, second]) for _ in range(n - 2)]
    rng.shuffle(kinds)
    return kinds


def rope_of(rng, **more):
    theta = rng.choice([50.0, 1e4, 1e6])
    scaled = rng.choice([None, None, {"rope_type": "linear", "factor": 2.5},
                         {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}])
    return dict(scaled or {"rope_type": "default"}, rope_theta=theta, **more)


def random_config(kind, rng):
    T = transformers
    heads, n = rng.choice([2, 4]), rng.randint(2, 5)
    kv = rng.choice([h for h in (1, 2) if heads % h == 0])
    base = dict(vocab_size=rng.randint(40, 300), bos_token_id=1, eos_token_id=2, pad_token_id=0)
    d = heads * rng.choice([16, 24, 32])
    inner = 2 * d
    mamba_heads = rng.choice([m for m in (2, 4, 8) if inner % m == 0])
    groups, state = rng.choice([g for g in (1, 2, 4) if mamba_heads % g == 0]), rng.choice([8, 16, 32])
    experts = rng.choice([4, 6, 8])
    top = rng.randint(1, 3)
    tied = rng.random() < 0.4
    conv = rng.choice([2, 3, 4])
    if kind == "mamba2":
        return T.Mamba2Config(**base, hidden_size=d, num_hidden_layers=n, num_heads=mamba_heads, head_dim=inner // mamba_heads,
                              n_groups=groups, state_size=state, conv_kernel=conv, expand=2, tie_word_embeddings=tied,
                              layer_norm_epsilon=1e-5, chunk_size=16)
    if kind == "granitemoehybrid":
        return T.GraniteMoeHybridConfig(
            **base, hidden_size=d, num_hidden_layers=n, layer_types=layers_of(rng, STATE, FULL, n),
            num_attention_heads=heads, num_key_value_heads=kv, attention_bias=rng.random() < 0.4,
            shared_intermediate_size=rng.choice([32, 100]), num_local_experts=rng.choice([0, experts]),
            num_experts_per_tok=top, intermediate_size=rng.choice([32, 48]), embedding_multiplier=rng.choice([1.0, 3.5]),
            residual_multiplier=0.6, attention_multiplier=rng.choice([0.3, 0.2]), logits_scaling=1.7,
            position_embedding_type=rng.choice(["rope", "nope"]), rope_parameters=rope_of(rng), mamba_n_heads=mamba_heads,
            mamba_d_head=inner // mamba_heads, mamba_n_groups=groups, mamba_d_state=state, mamba_d_conv=conv,
            mamba_expand=2, tie_word_embeddings=tied, max_position_embeddings=64, rms_norm_eps=1e-5)
    if kind in ("nemotron_h", "nemotron_h_moe"):
        feed = MOE if kind == "nemotron_h_moe" else MLP
        parts = [STATE, FULL, feed] + [rng.choice([STATE, FULL, feed]) for _ in range(n)]
        rng.shuffle(parts)
        more = dict(n_routed_experts=experts, num_experts_per_tok=top, moe_intermediate_size=rng.choice([32, 48]),
                    moe_shared_expert_intermediate_size=rng.choice([32, 100]), routed_scaling_factor=rng.choice([1.0, 2.5]),
                    norm_topk_prob=rng.random() < 0.7, moe_latent_size=rng.choice([None, 32]), n_group=rng.choice([1, 2]),
                    topk_group=1) if feed == MOE else dict(mlp_bias=rng.random() < 0.4)
        return T.NemotronHConfig(**base, hidden_size=d, intermediate_size=rng.choice([64, 100]), layers_block_type=parts,
                                 num_attention_heads=heads, num_key_value_heads=kv, head_dim=rng.choice([16, 24]),
                                 max_position_embeddings=64, ssm_state_size=state, mamba_num_heads=mamba_heads,
                                 mamba_head_dim=rng.choice([8, 12]), n_groups=groups, conv_kernel=conv, chunk_size=16,
                                 layer_norm_epsilon=1e-5, time_step_min=1e-30, **more)
    if kind.startswith("qwen3"):
        K = rng.choice([16, 32])
        keys = rng.choice([1, 2, 3])
        some = dict(base, hidden_size=d, num_hidden_layers=n, layer_types=layers_of(rng, STATE, FULL, n),
                    num_attention_heads=heads, num_key_value_heads=kv, head_dim=rng.choice([16, 24, 32]),
                    max_position_embeddings=64, rms_norm_eps=1e-6, tie_word_embeddings=tied,
                    linear_num_key_heads=keys, linear_num_value_heads=keys * rng.choice([1, 2, 3]), linear_key_head_dim=K,
                    linear_value_head_dim=K, linear_conv_kernel_dim=conv,
                    rope_parameters=rope_of(rng, partial_rotary_factor=rng.choice([0.25, 0.5, 1.0])))
        sparse = dict(moe_intermediate_size=rng.choice([32, 48]), num_experts=experts, num_experts_per_tok=top,
                      shared_expert_intermediate_size=rng.choice([32, 100]))
        if kind == "qwen3_next":
            return T.Qwen3NextConfig(**some, **sparse, norm_topk_prob=True, intermediate_size=64)
        if kind == "qwen3_5_text":
            return T.Qwen3_5TextConfig(**some, intermediate_size=rng.choice([64, 100]))
        return T.Qwen3_5MoeTextConfig(**some, **sparse)
    types, dense = layers_of(rng, STATE, FULL, n), rng.randint(0, n - 1)
    some = dict(base, hidden_size=d, intermediate_size=rng.choice([64, 100]), num_hidden_layers=n, layer_types=types,
                mlp_layer_types=["dense"] * dense + ["sparse"] * (n - dense), num_attention_heads=heads,
                num_key_value_heads=heads, kv_lora_rank=min(32, d), qk_nope_head_dim=rng.choice([16, 24]),
                qk_rope_head_dim=8, v_head_dim=rng.choice([16, 32]), num_local_experts=8, num_experts_per_tok=rng.randint(1, 2),
                n_group=rng.choice([1, 2]), topk_group=1, moe_intermediate_size=rng.choice([32, 48]),
                n_shared_experts=rng.randint(1, 2), routed_scaling_factor=rng.choice([1.0, 2.5]), max_position_embeddings=64,
                rms_norm_eps=1e-6)
    K = rng.choice([16, 32])
    if kind == "kimi_linear":
        return T.KimiLinearConfig(**some, linear_head_dim=K, linear_num_heads=heads, linear_conv_kernel_dim=conv,
                                  norm_topk_prob=True)
    return T.BailingHybridConfig(**some, head_dim=K, short_conv_kernel_size=conv, num_mtp_layers=0, kda_lower_bound=-4.0,
                                 q_lora_rank=rng.choice([None, 24]), norm_topk_prob=rng.random() < 0.7,
                                 rope_theta=rng.choice([50.0, 1e6]))


# ---- tensors ----------------------------------------------------------------------------------------------------


def rate(x, sign=-1):
    return (sign * np.exp(x.astype(np.float64).reshape(-1))).astype(np.float32)


def interleave(x, heads):
    n = x.shape[0] // heads
    y = x.reshape(heads, 2, n // 2, -1).swapaxes(1, 2)
    return y.reshape(x.shape)


def mamba_tensors(t, a, b, groups, out):
    for ours, theirs in [("in_proj.weight", "ssm_in.weight"), ("conv1d.bias", "ssm_conv1d.bias"), ("dt_bias", "ssm_dt.bias"),
                         ("out_proj.weight", "ssm_out.weight")]:
        out[b + theirs] = t[a + ours]
    out[b + "ssm_conv1d.weight"] = t[a + "conv1d.weight"][:, 0]
    out[b + "ssm_a"], out[b + "ssm_d"] = rate(t[a + "A_log"])[:, None], t[a + "D"][:, None]
    out[b + "ssm_norm.weight"] = t[a + "norm.weight"].reshape(groups, -1)


def attention_tensors(t, a, b, out, turn=None):
    for end in (".weight", ".bias"):
        for p in "qkvo":
            if f"{a}{p}_proj{end}" in t:
                x = t[f"{a}{p}_proj{end}"]
                if turn and p in "qk":
                    x = interleave(x, turn[p == "k"])
                out[b + ("attn_output" if p == "o" else "attn_" + p) + end] = x


def tile(x, c, axis=0):
    """Value heads: the first of each key head, then the second of each, and so on."""
    H, HV = c["linear_num_key_heads"], c["linear_num_value_heads"]
    x = np.moveaxis(x, axis, 0)
    y = x.reshape(H, HV // H, -1, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape)
    return np.ascontiguousarray(np.moveaxis(y, 0, axis))


def gdn_tensors(t, a, b, c, arch, out):
    H, HV, K = c["linear_num_key_heads"], c["linear_num_value_heads"], c["linear_key_head_dim"]
    conv, A, dt, o = t[a + "conv1d.weight"][:, 0], rate(t[a + "A_log"]), t[a + "dt_bias"], t[a + "out_proj.weight"]
    if arch == "qwen3next":
        x = t[a + "in_proj_qkvz.weight"].reshape(H, -1, c["hidden_size"])
        r = HV // H * K
        q, k, v, z = (y.reshape(-1, c["hidden_size"]) for y in np.split(x, np.cumsum([K, K, r]), 1))
        out[b + "attn_qkv.weight"], out[b + "attn_gate.weight"] = np.concatenate([q, k, v]), z
        out[b + "ssm_ba.weight"] = t[a + "in_proj_ba.weight"]
    else:
        qkv = t[a + "in_proj_qkv.weight"]
        out[b + "attn_qkv.weight"] = np.concatenate([qkv[:2 * H * K], tile(qkv[2 * H * K:], c)])
        out[b + "attn_gate.weight"] = tile(t[a + "in_proj_z.weight"], c)
        out[b + "ssm_beta.weight"], out[b + "ssm_alpha.weight"] = (tile(t[a + f"in_proj_{p}.weight"], c) for p in "ba")
        conv = np.concatenate([conv[:2 * H * K], tile(conv[2 * H * K:], c)])
        A, dt, o = tile(A, c), tile(dt, c), tile(o, c, 1)
    out |= {b + "ssm_conv1d.weight": conv, b + "ssm_a": A, b + "ssm_dt.bias": dt, b + "ssm_out.weight": o,
            b + "ssm_norm.weight": t[a + "norm.weight"]}


def kda_tensors(t, a, b, arch, out):
    for p in "qkv":
        out[f"{b}attn_{p}.weight"] = t[f"{a}{p}_proj.weight"]
        out[f"{b}ssm_conv1d_{p}.weight"] = t[f"{a}{p}_conv1d.weight"]
    out[b + "ssm_beta.weight"], out[b + "ssm_dt.bias"] = t[a + "b_proj.weight"], t[a + "dt_bias"]
    out[b + "ssm_norm.weight"] = t[a + "o_norm.weight"]
    out[b + "attn_output.weight"] = t[a + ("o_proj.weight" if arch == "kimi-linear" else "dense.weight")]
    if arch == "kimi-linear":
        for p in ("f_a", "f_b", "g_a", "g_b"):
            out[f"{b}ssm_{p}.weight"] = t[f"{a}{p}_proj.weight"]
    else:
        out[b + "ssm_f_a.weight"], out[b + "ssm_g_a.weight"] = t[a + "f_proj.weight"], t[a + "g_proj.weight"]
    out[b + "ssm_a"] = rate(t[a + "A_log"], -1 if arch == "kimi-linear" else 1)[:, None]


def mla_tensors(t, a, b, c, out):
    for ours, theirs in [("q_proj", "attn_q"), ("q_a_proj", "attn_q_a"), ("q_a_layernorm", "attn_q_a_norm"),
                         ("q_b_proj", "attn_q_b"), ("kv_a_proj_with_mqa", "attn_kv_a_mqa"),
                         ("kv_a_layernorm", "attn_kv_a_norm"), ("g_proj", "attn_gate"), ("o_proj", "attn_output"),
                         ("dense", "attn_output")]:
        if a + ours + ".weight" in t:
            out[b + theirs + ".weight"] = t[a + ours + ".weight"]
    H, dn, dv, r = c["num_attention_heads"], c["qk_nope_head_dim"], c["v_head_dim"], c["kv_lora_rank"]
    kv = t[a + "kv_b_proj.weight"].reshape(H, dn + dv, r)
    out[b + "attn_k_b.weight"], out[b + "attn_v_b.weight"] = kv[:, :dn].transpose(0, 2, 1), kv[:, dn:]


def feed_tensors(t, a, b, out):
    """Of one layer: dense parts, experts one by one, shared ones, under any of the prefixes."""
    names = [("gate_proj", "ffn_gate"), ("up_proj", "ffn_up"), ("down_proj", "ffn_down"), ("w1", "ffn_gate"),
             ("w3", "ffn_up"), ("w2", "ffn_down")]
    for mlp in ("mlp.", "block_sparse_moe.", "mixer."):
        for ours, theirs in names:
            for end in (".weight", ".bias"):
                if a + mlp + ours + end in t:
                    out[b + theirs + end] = t[a + mlp + ours + end]
            for shared in ("shared_expert.", "shared_experts."):
                if a + mlp + shared + ours + ".weight" in t:
                    out[b + theirs + "_shexp.weight"] = t[a + mlp + shared + ours + ".weight"]
            e = 0
            while f"{a}{mlp}experts.{e}.{ours}.weight" in t:
                e += 1
            if e:
                out[b + theirs + "_exps.weight"] = np.stack([t[f"{a}{mlp}experts.{i}.{ours}.weight"] for i in range(e)])
        for ours, theirs in [("gate.weight", "ffn_gate_inp.weight"), ("gate.e_score_correction_bias", "exp_probs_b.bias"),
                             ("gate.expert_bias", "exp_probs_b.bias"), ("fc1_latent_proj.weight", "ffn_latent_down.weight"),
                             ("fc2_latent_proj.weight", "ffn_latent_up.weight")]:
            if a + mlp + ours in t:
                out[b + theirs] = t[a + mlp + ours]
        if a + mlp + "shared_expert_gate.weight" in t:
            out[b + "ffn_gate_inp_shexp.weight"] = t[a + mlp + "shared_expert_gate.weight"][0]


def granite_feed(t, a, b, out):
    moe = a + "block_sparse_moe.router.layer.weight" in t
    gate, up = np.split(t[a + "shared_mlp.input_linear.weight"], 2)
    end = "_shexp.weight" if moe else ".weight"
    out |= {b + "ffn_gate" + end: gate, b + "ffn_up" + end: up, b + "ffn_down" + end: t[a + "shared_mlp.output_linear.weight"]}
    if moe:
        gate, up = np.split(t[a + "block_sparse_moe.input_linear.weight"], 2, 1)
        out |= {b + "ffn_gate_exps.weight": gate, b + "ffn_up_exps.weight": up,
                b + "ffn_down_exps.weight": t[a + "block_sparse_moe.output_linear.weight"],
                b + "ffn_gate_inp.weight": t[a + "block_sparse_moe.router.layer.weight"]}


def tensors(t, c, arch):
    """Every tensor of the file."""
    single = arch == "mamba2" or arch.startswith("nemotron")
    root = "backbone." if single else "model."
    plus = 1 if arch.startswith("qwen3") else 0
    embed = {"mamba2": "embeddings", "nemotron_h": "embeddings", "nemotron_h_moe": "embeddings",
             "bailingmoe3": "word_embeddings"}.get(arch, "embed_tokens")
    out = {"token_embd.weight": t[f"{root}{embed}.weight"],
           "output_norm.weight": t[root + ("norm_f.weight" if single else "norm.weight")] + np.float32(plus)}
    if not c.get("tie_word_embeddings"):
        out["output.weight"] = t["lm_head.weight"]
    kinds = c.get("layers_block_type") or c.get("layer_types") or [STATE] * c["num_hidden_layers"]
    for l, kind in enumerate(kinds):
        a, b = f"{root}layers.{l}.", f"blk.{l}."
        if single:
            out[b + "attn_norm.weight"] = t[a + "norm.weight"]
        else:
            out[b + "attn_norm.weight"] = t[a + "input_layernorm.weight"] + np.float32(plus)
            out[b + ("post_attention_norm.weight" if plus else "ffn_norm.weight")] = \
                t[a + "post_attention_layernorm.weight"] + np.float32(plus)
        if arch == "granitehybrid":
            granite_feed(t, a, b, out)
        else:
            feed_tensors(t, a, b, out)
        if kind == STATE and (single or arch == "granitehybrid"):
            mamba_tensors(t, a + ("mixer." if single else "mamba."), b, c.get("n_groups") or c.get("mamba_n_groups"), out)
        elif kind == STATE and plus:
            gdn_tensors(t, a + "linear_attn.", b, c, arch, out)
        elif kind == STATE:
            kda_tensors(t, a + ("self_attn." if arch == "kimi-linear" else "attention."), b, arch, out)
        elif kind == FULL and arch in ("kimi-linear", "bailingmoe3"):
            mla_tensors(t, a + ("self_attn." if arch == "kimi-linear" else "attention."), b, c, out)
        elif kind == FULL:
            turn = (c["num_attention_heads"], c["num_key_value_heads"]) if c.get("position_embedding_type") == "rope" else None
            attention_tensors(t, a + ("mixer." if single else "self_attn."), b, out, turn)
            for p in ("q_norm", "k_norm"):
                if f"{a}self_attn.{p}.weight" in t:
                    out[f"{b}attn_{p}.weight"] = t[f"{a}self_attn.{p}.weight"] + np.float32(plus)
    return out


# ---- keys -------------------------------------------------------------------------------------------------------


def mamba_keys(c, prefix, heads, dim, groups, state, conv):
    return {"ssm.conv_kernel": c[conv], "ssm.inner_size": c[heads] * c[dim], "ssm.state_size": c[state],
            "ssm.time_step_rank": c[heads], "ssm.group_count": c[groups]}


def expert_keys(c, arch):
    n = c.get("num_experts") or c.get("n_routed_experts") or c.get("num_local_experts")
    top = c.get("num_experts_per_tok") or c.get("num_experts_per_token")
    hidden = c["intermediate_size" if arch == "granitehybrid" else "moe_intermediate_size"]
    shared = c.get("shared_expert_intermediate_size") or c.get("moe_shared_expert_intermediate_size") or \
        c.get("shared_intermediate_size") or hidden * (c.get("num_shared_experts") or c.get("n_shared_experts") or 1)
    want = {"expert_count": n, "expert_used_count": top, "expert_feed_forward_length": hidden,
            "expert_shared_feed_forward_length": shared}
    if arch in ("nemotron_h_moe", "kimi-linear", "bailingmoe3"):
        norm = c["moe_renormalize"] if "moe_renormalize" in c else c["norm_topk_prob"]
        groups, most = c.get("n_group") or c.get("num_expert_group"), c["topk_group"]
        want |= {"expert_weights_scale": float(c["routed_scaling_factor"]), "expert_weights_norm": norm,
                 "expert_gating_func": 2, "expert_shared_count": c.get("n_shared_experts") or c.get("num_shared_experts")}
        if most < groups:
            want |= {"expert_group_count": groups, "expert_group_used_count": most}
        if c.get("moe_latent_size"):
            want["moe_latent_size"] = c["moe_latent_size"]
    return want


def keys(c, arch):
    kinds = c.get("layers_block_type") or c.get("layer_types") or []
    want = {"embedding_length": c["hidden_size"], "block_count": len(kinds) or c["num_hidden_layers"],
            "vocab_size": c["vocab_size"],
            "attention.layer_norm_rms_epsilon": c.get("rms_norm_eps") or c.get("layer_norm_epsilon")}
    rope = c.get("rope_parameters") or {}
    if arch == "mamba2":
        return want | mamba_keys(c, "", "num_heads", "head_dim", "n_groups", "state_size", "conv_kernel") | {
            "attention.head_count": 0, "feed_forward_length": 0}
    want["context_length"] = c.get("max_position_embeddings") or c.get("model_max_length")
    want["attention.head_count"] = c["num_attention_heads"]
    turns = False
    if arch in ("kimi-linear", "bailingmoe3"):
        own = c.get("linear_attn_config") or {"head_dim": c.get("linear_head_dim"), "short_conv_kernel_size":
                                              c.get("linear_conv_kernel_dim")}
        sparse = c.get("mlp_layer_types")
        dense = sparse.count("dense")
        want |= {"kda.head_dim": own["head_dim"], "ssm.conv_kernel": own["short_conv_kernel_size"],
                 "attention.head_count_kv": [int(k == FULL) for k in kinds], "attention.kv_lora_rank": c["kv_lora_rank"],
                 "attention.key_length": c["kv_lora_rank"] + c["qk_rope_head_dim"],
                 "attention.value_length": c["kv_lora_rank"],
                 "attention.key_length_mla": c["qk_nope_head_dim"] + c["qk_rope_head_dim"],
                 "attention.value_length_mla": c["v_head_dim"], "rope.dimension_count": c["qk_rope_head_dim"],
                 "leading_dense_block_count": dense,
                 "feed_forward_length": c["intermediate_size"] if dense else c["moe_intermediate_size"]}
        if arch == "bailingmoe3":
            want |= {"kda.gate_lower_bound": c["kda_lower_bound"], "kda.safe_gate": True, "rope.freq_base": rope["rope_theta"],
                     "attention.q_lora_rank": c["q_lora_rank"] or None}
        return want | expert_keys(c, arch)
    dim = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    want |= {"attention.key_length": dim, "attention.value_length": dim}
    kv = c["num_key_value_heads"]
    if arch == "granitehybrid":
        turns = c.get("position_embedding_type") == "rope"
        want |= mamba_keys(c, "", "mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state", "mamba_d_conv") | {
            "attention.head_count_kv": [kv if k == FULL else 0 for k in kinds], "rope.scaling.finetuned": turns,
            "embedding_scale": c["embedding_multiplier"], "residual_scale": c["residual_multiplier"],
            "logit_scale": c["logits_scaling"], "attention.scale": c["attention_multiplier"],
            "feed_forward_length": c["intermediate_size"] if c["num_local_experts"] else c["shared_intermediate_size"]}
        if c["num_local_experts"]:
            want |= expert_keys(c, arch)
    elif arch.startswith("nemotron"):
        wide = c["moe_intermediate_size"] if MOE in kinds else c["intermediate_size"]
        want |= mamba_keys(c, "", "mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel") | {
            "attention.head_count_kv": [kv if k == FULL else 0 for k in kinds],
            "feed_forward_length": [wide if k in (MOE, MLP) else 0 for k in kinds],
            "attention.layer_norm_epsilon": c["layer_norm_epsilon"]}
        if MOE in kinds:
            want |= expert_keys(c, arch)
    else:
        turns = True
        V, HV = c["linear_value_head_dim"], c["linear_num_value_heads"]
        want |= {"attention.head_count_kv": kv, "ssm.conv_kernel": c["linear_conv_kernel_dim"], "ssm.inner_size": V * HV,
                 "ssm.state_size": c["linear_key_head_dim"], "ssm.time_step_rank": HV,
                 "ssm.group_count": c["linear_num_key_heads"],
                 "attention.recurrent_layers": [k == STATE for k in kinds],
                 "feed_forward_length": c["intermediate_size"] if arch == "qwen35" else c["moe_intermediate_size"]}
        if arch != "qwen3next":
            pairs = list(range(int(dim * rope["partial_rotary_factor"]) // 2))
            want["rope.dimension_sections"] = [len(pairs[i::3]) for i in range(3)] + [0]
        if arch != "qwen35":
            want |= expert_keys(c, arch)
    if turns:
        want |= {"rope.dimension_count": int(dim * rope.get("partial_rotary_factor", 1.0)),
                 "rope.freq_base": rope["rope_theta"]}
        if rope["rope_type"] != "default":
            want |= {"rope.scaling.type": rope["rope_type"], "rope.scaling.factor": rope["factor"]}
    return want
