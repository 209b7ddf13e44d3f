#!/usr/bin/env python3
"""Golden models that share keys and values between layers, computed by plain NumPy loops in float64 from the equations of
YOCO (arXiv:2405.05254, section 2, and the conventions of its published code: interleaved rotation with frequencies from 1
to 1/theta inclusive, a window that counts the query itself, embeddings times sqrt(d), a norm of its own before the shared
keys and values), of cross-layer attention (arXiv:2405.12981) and of sharing among the last layers (as Gemma 3n). Needs numpy and
safetensors. Usage: make_yoco.py [OUT]   (default: yoco/ beside this script)
"""
import json
import math
import pathlib
import shutil
import sys

import numpy as np
import safetensors.numpy

here = pathlib.Path(__file__).resolve().parent
D, V, F, T, B, EPS = 16, 23, 20, 21, 2, 1e-5


def norm(x, w):
    return x / math.sqrt((x * x).mean() + EPS) * w


def rotate(x, pos, rope):
    """x: one head. Pairs are neighbours (interleaved) or half a head apart."""
    n, y = len(x), x.copy()
    for i in range(n // 2):
        f = rope["theta"] ** -(i / (n // 2 - 1) if rope["inclusive"] else 2 * i / n)
        a, b = (2 * i, 2 * i + 1) if rope["interleaved"] else (i, i + n // 2)
        c, s = math.cos(pos * f), math.sin(pos * f)
        y[a], y[b] = x[a] * c - x[b] * s, x[b] * c + x[a] * s
    return y


def keys_values(w, p, x, k):
    G, H = k["kv_heads"], k["head_dim"]
    K, U = [], []
    for t in range(len(x)):
        kt, vt = (w[p + "k_proj.weight"] @ x[t]).reshape(G, H), (w[p + "v_proj.weight"] @ x[t]).reshape(G, H)
        K.append([rotate(kt[g], t, k["rope"]) for g in range(G)])
        U.append(vt)
    return K, U


def attention(w, p, x, K, U, k):
    H, G, Dh = k["heads"], k["kv_heads"], k["head_dim"]
    out = []
    for t in range(len(x)):
        q = (w[p + "q_proj.weight"] @ x[t]).reshape(H, Dh)
        o = []
        for h in range(H):
            g, qh = h // (H // G), rotate(q[h], t, k["rope"])
            seen = [j for j in range(t + 1) if not k.get("window") or t - j < k["window"]]
            s = np.array([qh @ K[j][g] for j in seen]) / math.sqrt(Dh)
            a = np.exp(s - s.max())
            o.append(sum(ai * U[j][g] for ai, j in zip(a / a.sum(), seen)))
        out.append(w[p + "o_proj.weight"] @ np.concatenate(o))
    return out


def forward(w, c, tokens):
    scale = c.get("embed_scale", 1)
    x = [scale * w["model.embed_tokens.weight"][t] for t in tokens]
    rows = {}
    for l in range(c["layers"]):
        k, p = c["kinds"][c["pattern"][l % len(c["pattern"])]], f"model.layers.{l}."
        src = c.get("kv_from", {}).get(str(l), l)
        xn = [norm(v, w[p + "input_layernorm.weight"]) for v in x]
        if src == l:
            rows[l] = keys_values(w, p + "self_attn.", xn, k)
        if not k["heads"]:
            continue
        y = attention(w, p + "self_attn.", xn, *rows[src], k)
        x = [a + b for a, b in zip(x, y)]
        for t in range(len(x)):
            h = norm(x[t], w[p + "post_attention_layernorm.weight"])
            g = w[p + "mlp.gate_proj.weight"] @ h
            x[t] = x[t] + w[p + "mlp.down_proj.weight"] @ (g / (1 + np.exp(-g)) * (w[p + "mlp.up_proj.weight"] @ h))
    head = w["model.embed_tokens.weight"] if c["tied"] else w["lm_head.weight"]
    return np.array([head @ norm(v, w["model.norm.weight"]) for v in x])


def weights(c, seed):
    r, w = np.random.default_rng(seed), {}

    def put(name, *shape):
        a = 1 + 0.3 * r.standard_normal(shape) if "norm" in name else 0.25 * r.standard_normal(shape)
        w[name] = a.astype(np.float32)

    put("model.embed_tokens.weight", V, D)
    for l in range(c["layers"]):
        k, p = c["kinds"][c["pattern"][l % len(c["pattern"])]], f"model.layers.{l}."
        H, G = k["heads"] * k["head_dim"], k["kv_heads"] * k["head_dim"]
        put(p + "input_layernorm.weight", D)
        if H:
            put(p + "self_attn.q_proj.weight", H, D)
        if c.get("kv_from", {}).get(str(l), l) == l:
            put(p + "self_attn.k_proj.weight", G, D)
            put(p + "self_attn.v_proj.weight", G, D)
        if not H:
            continue
        put(p + "self_attn.o_proj.weight", D, H)
        put(p + "post_attention_layernorm.weight", D)
        put(p + "mlp.gate_proj.weight", F, D)
        put(p + "mlp.up_proj.weight", F, D)
        put(p + "mlp.down_proj.weight", D, F)
    put("model.norm.weight", D)
    if not c["tied"]:
        put("lm_head.weight", V, D)
    return w


rope = dict(type="default", theta=50.0, interleaved=True, inclusive=True)
usual = dict(rope, interleaved=False, inclusive=False)
full = dict(mixer="gqa", heads=4, kv_heads=2, head_dim=6, rope=usual)
base = dict(d_model=D, vocab=V, max_positions=64, norm_eps=EPS, ffn=[dict(kind="swiglu", hidden=F)])
cases = {
    # Two layers of window 5, the publisher, two readers; self and cross parts have other heads.
    "yoco": dict(base, layers=5, tied=False, embed_scale=math.sqrt(D), kinds={
        "self": dict(mixer="gqa", heads=2, kv_heads=1, head_dim=8, window=5, rope=rope),
        "publish": dict(mixer="gqa", heads=0, kv_heads=2, head_dim=6, rope=rope),
        "cross": dict(mixer="gqa", heads=4, kv_heads=2, head_dim=6, rope=rope)},
        pattern=["self", "self", "publish", "cross", "cross"], kv_from={"3": 2, "4": 2}),
    "cla": dict(base, layers=4, tied=True, kinds={"full": full}, pattern=["full"], kv_from={"1": 0, "3": 2}),
    # The last two layers read the last layer of their own kind that stores: the window's rows must reach the full reader's age.
    "trailing": dict(base, layers=4, tied=True, kinds={"local": dict(full, window=4), "full": full},
                     pattern=["local", "full", "local", "full"], kv_from={"2": 0, "3": 1}),
}


def main():
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here / "yoco"
    for seed, (name, c) in enumerate(cases.items()):
        where = out / name
        shutil.rmtree(where, ignore_errors=True)
        where.mkdir(parents=True)
        w = weights(c, seed)
        ids = np.random.default_rng(100 + seed).integers(0, V, (B, T))
        wide = {k: v.astype(np.float64) for k, v in w.items()}
        logits = np.stack([forward(wide, c, row) for row in ids])
        (where / "config.json").write_text(json.dumps(dict(model_type="kvsmith", kvsmith=c), indent=1) + "\n")
        safetensors.numpy.save_file(w, where / "model.safetensors")
        safetensors.numpy.save_file({"input_ids": ids, "logits": logits.astype(np.float32)}, where / "golden.safetensors")
        print(name, "largest logit", abs(logits).max(), sum(f.stat().st_size for f in where.iterdir()), "bytes")


main()
