#!/usr/bin/env python3
"""Golden models of Kimi Delta Attention. `kimi`: logits of transformers' KimiLinearForCausalLM (all layers linear
attention, dense feed-forward parts) in float64 on its own weights, renamed: its packed conv1d is the three convolutions one
after the other. The others: plain NumPy loops in float64 over the recurrence of arXiv:2510.26692, with what that class does
not have (lower-bound gate, more value heads than key heads, K != V, no convolution, full-rank output gate with bias, beta up to
2), and `gdn2` that of arXiv:2605.22791, with gates that erase and write by channel. Needs torch, transformers, safetensors; versions used: torch 2.15.0, transformers 5.23.0.
Usage: make_kda.py [OUT]   (default: kda/ beside this script)
"""
import json
import math
import pathlib
import shutil
import sys

import numpy as np
import safetensors.numpy
import torch
from transformers import KimiLinearConfig, KimiLinearForCausalLM

here = pathlib.Path(__file__).resolve().parent
D, V, F, T, B, EPS = 12, 17, 10, 75, 2, 1e-5
base = dict(d_model=D, vocab=V, max_positions=128, norm_eps=EPS, tied=False, ffn=[dict(kind="swiglu", hidden=F)],
            pattern=["kda"])
cases = {
    "kimi": dict(base, layers=2, kinds=dict(kda=dict(mixer="kda", heads=2, head_dim=6, gate="standard"))),
    "bound": dict(base, layers=2, kinds=dict(kda=dict(
        mixer="kda", heads=2, v_heads=4, head_dim=5, v_dim=3, conv=3, gate_rank=4, out_rank=2, gate="lower_bound", bound=-5))),
    "bare": dict(base, layers=2, kinds=dict(kda=dict(
        mixer="kda", heads=1, v_heads=2, head_dim=4, v_dim=7, conv=0, gate="standard", out_gate="full", out_bias=True,
        beta_max=2))),
    "gdn2": dict(base, layers=2, kinds=dict(kda=dict(
        mixer="kda", heads=2, v_heads=4, head_dim=5, v_dim=3, gate="standard", erase="channel", beta_max=2))),
}


def shape_of(k):
    H, K = k["heads"], k["head_dim"]
    HV, U = k.get("v_heads", H), k.get("v_dim", K)
    return H, HV, K, U, k.get("conv", 4), k.get("gate_rank", U), k.get("out_rank", U)


def weights(c, seed):
    r, w = np.random.default_rng(seed), {}

    def put(name, *shape):
        a = 0.4 * r.standard_normal(shape)
        if "norm" in name:
            a = 1 + a
        if "A_log" in name:
            a = 1.5 * r.standard_normal(shape) - 0.5
        if "dt_bias" in name:
            a = 1.5 * r.standard_normal(shape) - 1
        w[name] = a.astype(np.float32)

    put("model.embed_tokens.weight", V, D)
    H, HV, K, U, W, R, Q = shape_of(c["kinds"]["kda"])
    full = c["kinds"]["kda"].get("out_gate") == "full"
    for l in range(c["layers"]):
        p = f"model.layers.{l}."
        put(p + "input_layernorm.weight", D)
        for name, n in (("q", H * K), ("k", H * K), ("v", HV * U)):
            put(p + f"self_attn.{name}_proj.weight", n, D)
            if W:
                put(p + f"self_attn.{name}_conv1d.weight", n, 1, W)
        put(p + "self_attn.f_a_proj.weight", R, D)
        put(p + "self_attn.f_b_proj.weight", HV * K, R)
        put(p + "self_attn.dt_bias", HV * K)
        put(p + "self_attn.A_log", HV)
        by_channel = c["kinds"]["kda"].get("erase") == "channel"
        put(p + "self_attn.b_proj.weight", H * K if by_channel else HV, D)
        if by_channel:
            put(p + "self_attn.w_proj.weight", HV * U, D)
        if full:
            put(p + "self_attn.g_proj.weight", HV * U, D)
            put(p + "self_attn.g_proj.bias", HV * U)
        else:
            put(p + "self_attn.g_a_proj.weight", Q, D)
            put(p + "self_attn.g_b_proj.weight", HV * U, Q)
        put(p + "self_attn.o_norm.weight", U)
        put(p + "self_attn.o_proj.weight", D, HV * U)
        put(p + "post_attention_layernorm.weight", D)
        put(p + "mlp.gate_proj.weight", F, D)
        put(p + "mlp.up_proj.weight", F, D)
        put(p + "mlp.down_proj.weight", D, F)
    put("model.norm.weight", D)
    put("lm_head.weight", V, D)
    return w


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def norm(x, w):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * w


def unit(x):
    return x / math.sqrt(x @ x + 1e-6)


def kda(w, p, x, k):
    H, HV, K, U, W, _, _ = shape_of(k)
    S = [np.zeros((K, U)) for _ in range(HV)]
    raw = {n: [w[p + n + "_proj.weight"] @ v for v in x] for n in "qkv"}
    out = []
    for t in range(len(x)):
        f = {}
        for n in "qkv":
            y = raw[n][t]
            if W:
                c = w[p + n + "_conv1d.weight"][:, 0]
                y = sum(c[:, W - 1 - back] * raw[n][t - back] for back in range(min(W, t + 1)))
            f[n] = y * sigmoid(y)
        q, key, val = f["q"].reshape(H, K), f["k"].reshape(H, K), f["v"].reshape(HV, U)
        z = (w[p + "f_b_proj.weight"] @ (w[p + "f_a_proj.weight"] @ x[t]) + w[p + "dt_bias"]).reshape(HV, K)
        beta = k.get("beta_max", 1) * sigmoid(w[p + "b_proj.weight"] @ x[t])
        if k.get("out_gate") == "full":
            gate = w[p + "g_proj.weight"] @ x[t] + w[p + "g_proj.bias"]
        else:
            gate = w[p + "g_b_proj.weight"] @ (w[p + "g_a_proj.weight"] @ x[t])
        o = []
        for h in range(HV):
            a = math.exp(w[p + "A_log"][h])
            g = k.get("bound", -5) * sigmoid(a * z[h]) if k["gate"] == "lower_bound" else -a * np.logaddexp(0, z[h])
            qh, kh = unit(q[h // (HV // H)]), unit(key[h // (HV // H)])
            S[h] = np.exp(g)[:, None] * S[h]
            if k.get("erase") == "channel":
                written = sigmoid(w[p + "w_proj.weight"] @ x[t]).reshape(HV, U)[h] * val[h]
                S[h] = S[h] + np.outer(kh, written - S[h].T @ (beta.reshape(H, K)[h // (HV // H)] * kh))
            else:
                S[h] = S[h] + np.outer(kh, beta[h] * (val[h] - S[h].T @ kh))
            o.append(norm(S[h].T @ qh / math.sqrt(K), w[p + "o_norm.weight"]) * sigmoid(gate.reshape(HV, U)[h]))
        out.append(w[p + "o_proj.weight"] @ np.concatenate(o))
    return out


def forward(w, c, tokens):
    x = [w["model.embed_tokens.weight"][t] for t in tokens]
    for l in range(c["layers"]):
        p = f"model.layers.{l}."
        y = kda(w, p + "self_attn.", [norm(v, w[p + "input_layernorm.weight"]) for v in x], c["kinds"]["kda"])
        x = [a + b for a, b in zip(x, y)]
        for t in range(len(x)):
            h = norm(x[t], w[p + "post_attention_layernorm.weight"])
            g = w[p + "mlp.gate_proj.weight"] @ h
            x[t] = x[t] + w[p + "mlp.down_proj.weight"] @ (g * sigmoid(g) * (w[p + "mlp.up_proj.weight"] @ h))
    return np.array([w["lm_head.weight"] @ norm(v, w["model.norm.weight"]) for v in x])


def kimi(w, c, ids):
    k, L = c["kinds"]["kda"], c["layers"]
    config = KimiLinearConfig(
        vocab_size=V, hidden_size=D, intermediate_size=F, num_hidden_layers=L, num_attention_heads=2, num_key_value_heads=2,
        rms_norm_eps=EPS, tie_word_embeddings=False, layer_types=["linear_attention"] * L, mlp_layer_types=["dense"] * L,
        linear_attn_config=dict(num_heads=k["heads"], head_dim=k["head_dim"], short_conv_kernel_size=4), bos_token_id=0,
        eos_token_id=1, pad_token_id=2)
    model = KimiLinearForCausalLM(config).eval().double()
    state = {}
    for name, a in w.items():
        a = torch.from_numpy(a).double()
        q = name.replace("f_a_proj", "forget_gate.f_a_proj").replace("f_b_proj", "forget_gate.f_b_proj")
        q = q.replace("dt_bias", "forget_gate.dt_bias").replace("A_log", "forget_gate.A_log")
        if "_conv1d" in name:
            if "q_conv1d" in name:
                p = name[: -len("q_conv1d.weight")]
                state[p + "conv1d.weight"] = torch.cat([torch.from_numpy(w[p + n + "_conv1d.weight"]).double() for n in "qkv"])
            continue
        state[q] = a.reshape(1, 1, -1, 1) if "A_log" in name else a
    missing, extra = model.load_state_dict(state, strict=False)
    assert not extra and not missing, (missing, extra)
    with torch.no_grad():
        return model(input_ids=torch.from_numpy(ids), use_cache=False).logits.numpy()


def main():
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here / "kda"
    torch.set_num_threads(1)
    for seed, (name, c) in enumerate(cases.items()):
        where = out / name
        shutil.rmtree(where, ignore_errors=True)
        where.mkdir(parents=True)
        w = weights(c, seed)
        ids = np.random.default_rng(100 + seed).integers(0, V, (B, T))
        wide = {k: v.astype(np.float64) for k, v in w.items()}
        logits = np.stack([forward(wide, c, row) for row in ids])
        if name == "kimi":
            theirs = kimi(w, c, ids)
            print("transformers and NumPy differ by", abs(theirs - logits).max())
            logits = theirs
        (where / "config.json").write_text(json.dumps(dict(model_type="kvsmith", kvsmith=c), indent=1) + "\n")
        safetensors.numpy.save_file(w, where / "model.safetensors")
        safetensors.numpy.save_file({"input_ids": ids, "logits": logits.astype(np.float32)}, where / "golden.safetensors")
        print(name, "largest logit", abs(logits).max(), sum(f.stat().st_size for f in where.iterdir()), "bytes")


main()
