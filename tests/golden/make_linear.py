#!/usr/bin/env python3
"""Golden layers of the linear recurrences: settings, weights under their public names, inputs x and outputs y.

Gated DeltaNet and Mamba-2 are the modules of transformers in double (their norms and the delta rule compute in float32). The others are
typed here in NumPy, one token at a time (DeltaNet, GLA) or in the quadratic parallel form (retention, gated retention,
linear attention, and all layers with levels), which share nothing with a chunked recurrence. Every case holds two documents of LENGTHS tokens, the
second shorter than a convolution; the first is longer than a chunk of 64. Weights and x are stored as float32 and were
used as stored, y is float64. Versions: linear/versions.json. Usage: make_linear.py [OUT]  (default: linear/)
"""
import json
import pathlib
import sys

import numpy as np
import safetensors
import safetensors.numpy
import torch
import transformers
from transformers.models.mamba2.modeling_mamba2 import Mamba2Config, Mamba2Mixer
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextConfig, Qwen3NextGatedDeltaNet

here = pathlib.Path(__file__).resolve().parent
out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here / "linear"
LENGTHS = (67, 3)
D = 16
EPS = 1e-5

silu = lambda a: a / (1 + np.exp(-a))
sigmoid = lambda a: 1 / (1 + np.exp(-a))
logsigmoid = lambda a: -np.logaddexp(0, -a)
softplus = lambda a: np.logaddexp(0, a)
rms = lambda a, eps=EPS: a / np.sqrt((a * a).mean(-1, keepdims=True) + eps)
unit = lambda a: a / np.sqrt((a * a).sum(-1, keepdims=True) + 1e-6)


class Case:
    """Weights drawn in the order they are asked for, rounded to float32."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.w = {}

    def __call__(self, name, *shape, std=0.35, mean=0.0):
        a = (mean + std * self.rng.standard_normal(shape)).astype(np.float32)
        self.w[name] = a
        return a.astype(np.float64)


def documents(x, layer):
    at, ys = 0, []
    for n in LENGTHS:
        ys.append(layer(x[at:at + n]))
        at += n
    return np.concatenate(ys)


def conv(a, w):
    """Causal, per channel, then SiLU: w (C,1,W), the last tap on the current token."""
    W = w.shape[2]
    padded = np.concatenate([np.zeros((W - 1, a.shape[1])), a])
    return silu(sum(padded[j:j + len(a)] * w[:, 0, j] for j in range(W)))


def rotate(a, theta, yoco):
    """a (T,H,K) turned by position; YOCO interleaves pairs and lets the frequencies end at 1/theta."""
    T, H, K = a.shape
    angle = np.arange(T)[:, None] * theta ** -(np.linspace(0, 1, K // 2) if yoco else np.arange(K // 2) * 2.0 / K)
    z = np.exp(1j * angle)[:, None, :]
    if yoco:
        c = (a[..., 0::2] + 1j * a[..., 1::2]) * z
        r = np.empty_like(a)
        r[..., 0::2], r[..., 1::2] = c.real, c.imag
        return r
    c = (a[..., :K // 2] + 1j * a[..., K // 2:]) * z
    return np.concatenate([c.real, c.imag], -1)


def heads(a, H):
    return a.reshape(len(a), H, -1)


def gdn_public(seed):
    H, HV, K, V, W = 2, 4, 6, 5, 4
    cfg = Qwen3NextConfig(hidden_size=D, linear_num_value_heads=HV, linear_num_key_heads=H, linear_key_head_dim=K,
                          linear_value_head_dim=V, linear_conv_kernel_dim=W, rms_norm_eps=EPS, hidden_act="silu",
                          num_hidden_layers=1, layer_types=["linear_attention"])
    m = Qwen3NextGatedDeltaNet(cfg, 0).double().eval()
    c = Case(seed)
    r = HV // H
    q, k, v, z = c("q_proj.weight", H * K, D), c("k_proj.weight", H * K, D), c("v_proj.weight", HV * V, D), c(
        "g_proj.weight", HV * V, D)
    a, b = c("a_proj.weight", HV, D), c("b_proj.weight", HV, D)
    cw = [c(f"{n}_conv1d.weight", ch, 1, W, std=0.5) for n, ch in (("q", H * K), ("k", H * K), ("v", HV * V))]
    # The module packs its projections by key head: [q k v.. z..] and [b.. a..].
    qkvz, ba = [], []
    for h in range(H):
        qkvz += [q[h * K:(h + 1) * K], k[h * K:(h + 1) * K], v[h * r * V:(h + 1) * r * V], z[h * r * V:(h + 1) * r * V]]
        ba += [b[h * r:(h + 1) * r], a[h * r:(h + 1) * r]]
    set_ = lambda p, value: p.data.copy_(torch.from_numpy(np.ascontiguousarray(value)))
    set_(m.in_proj_qkvz.weight, np.concatenate(qkvz))
    set_(m.in_proj_ba.weight, np.concatenate(ba))
    set_(m.conv1d.weight, np.concatenate(cw))
    set_(m.A_log, c("A_log", HV, std=0.7))
    set_(m.dt_bias, c("dt_bias", HV, std=0.5))
    set_(m.norm.weight, c("o_norm.weight", V, std=0.3, mean=1))
    set_(m.out_proj.weight, c("o_proj.weight", D, HV * V))
    with torch.no_grad():
        layer = lambda x: m(torch.from_numpy(x)[None])[0].numpy()
        return c, dict(mixer="gdn", heads=H, v_heads=HV, head_dim=K, v_dim=V, conv=W), layer


def delta(H, HV, K, V, q, k, v, alpha, beta):
    """S <- alpha S; S += k (x) beta (v - S^T k); o = K^-1/2 S^T q, token by token."""
    o = np.zeros((len(q), HV, V))
    for h in range(HV):
        S = np.zeros((K, V))
        g = h // (HV // H)
        for t in range(len(q)):
            S = alpha[t, h] * S
            S = S + np.outer(k[t, g], beta[t, h] * (v[t, h] - S.T @ k[t, g]))
            o[t, h] = S.T @ q[t, g] / np.sqrt(K)
    return o


def gdn_plain(seed):
    """No convolution, no output gate, beta up to 2."""
    H, HV, K, V = 2, 2, 5, 6
    c = Case(seed)
    q, k, v = c("q_proj.weight", H * K, D), c("k_proj.weight", H * K, D), c("v_proj.weight", HV * V, D)
    a, b = c("a_proj.weight", HV, D), c("b_proj.weight", HV, D)
    A, bias, norm = c("A_log", HV, std=0.7), c("dt_bias", HV, std=0.5), c("o_norm.weight", V, std=0.3, mean=1)
    o = c("o_proj.weight", D, HV * V)

    def layer(x):
        Q, K_, V_ = (heads(silu(x @ w.T), n) for w, n in ((q, H), (k, H), (v, HV)))
        alpha = np.exp(-np.exp(A) * softplus(x @ a.T + bias))
        y = delta(H, HV, K, V, unit(Q), unit(K_), V_, alpha, 2 * sigmoid(x @ b.T))
        return (rms(y) * norm).reshape(len(x), -1) @ o.T

    return c, dict(mixer="gdn", heads=H, head_dim=K, v_dim=V, conv=0, gate=False, beta_max=2), layer


def comba(seed):
    """arXiv:2506.02475: erase by sigmoid(decay) k, read by q - D sigmoid(decay) k; more value heads than key heads."""
    H, HV, K, V, W = 2, 4, 5, 3, 3
    c = Case(seed)
    q, k, v = c("q_proj.weight", H * K, D), c("k_proj.weight", H * K, D), c("v_proj.weight", HV * V, D)
    cq, ck, cv = (c(f"{n}_conv1d.weight", ch, 1, W, std=0.5) for n, ch in (("q", H * K), ("k", H * K), ("v", HV * V)))
    a, b, z = c("a_proj.weight", HV, D), c("b_proj.weight", HV, D), c("g_proj.weight", HV * V, D)
    A, bias, norm = c("A_log", HV, std=0.7), c("dt_bias", HV, std=0.5), c("o_norm.weight", V, std=0.3, mean=1)
    inner, part, o = c("decay", H, std=1.0), c("D", H, std=0.5, mean=1), c("o_proj.weight", D, HV * V)

    def layer(x):
        Q, K_, V_ = heads(conv(x @ q.T, cq), H), heads(conv(x @ k.T, ck), H), heads(conv(x @ v.T, cv), HV)
        factor = sigmoid(inner)[:, None]
        Q = unit(Q - part[:, None] * factor * K_)
        K_, y = unit(K_), np.zeros((len(x), HV, V))
        alpha, beta = np.exp(-np.exp(A) * softplus(x @ a.T + bias)), sigmoid(x @ b.T)
        for h in range(HV):
            S, g = np.zeros((K, V)), h // (HV // H)
            for t in range(len(x)):
                S = alpha[t, h] * S
                S = S + np.outer(K_[t, g], beta[t, h] * (V_[t, h] - S.T @ (factor[g] * K_[t, g])))
                y[t, h] = S.T @ Q[t, g] / np.sqrt(K)
        return ((rms(y) * norm).reshape(len(x), -1) * sigmoid(x @ z.T)) @ o.T

    return c, dict(mixer="gdn", heads=H, v_heads=HV, head_dim=K, v_dim=V, conv=W, gate="sigmoid", inner_decay=True,
                   output_correction=True), layer


def deltanet(seed):
    H, K, V, W = 3, 4, 6, 3
    c = Case(seed)
    q, k, v = c("q_proj.weight", H * K, D), c("k_proj.weight", H * K, D), c("v_proj.weight", H * V, D)
    b = c("b_proj.weight", H, D)
    cq, ck, cv = (c(f"{n}_conv1d.weight", ch, 1, W, std=0.5) for n, ch in (("q", H * K), ("k", H * K), ("v", H * V)))
    norm, o = c("o_norm.weight", V, std=0.3, mean=1), c("o_proj.weight", D, H * V)

    def layer(x):
        Q, K_, V_ = heads(conv(x @ q.T, cq), H), heads(conv(x @ k.T, ck), H), heads(conv(x @ v.T, cv), H)
        y = delta(H, H, K, V, unit(Q), unit(K_), V_, np.ones((len(x), H)), sigmoid(x @ b.T))
        return (rms(y) * norm).reshape(len(x), -1) @ o.T

    return c, dict(mixer="deltanet", heads=H, head_dim=K, v_dim=V, conv=W), layer


def gla(seed):
    H, K, V, R = 2, 6, 4, 3
    c = Case(seed)
    q, k, v, g = (c(f"{n}_proj.weight", H * e, D) for n, e in (("q", K), ("k", K), ("v", V), ("g", V)))
    g0, g1, gb = c("gk_proj.0.weight", R, D), c("gk_proj.1.weight", H * K, R), c("gk_proj.1.bias", H * K, std=1.0)
    norm, o = c("g_norm_swish_gate.weight", V, std=0.3, mean=1), c("o_proj.weight", D, H * V)

    def layer(x):
        Q, K_, V_ = (heads(x @ w.T, H) for w in (q, k, v))
        alpha = heads(np.exp(logsigmoid(x @ g0.T @ g1.T + gb) / 4), H)
        y = np.zeros((len(x), H, V))
        for h in range(H):
            S = np.zeros((K, V))
            for t in range(len(x)):
                S = alpha[t, h][:, None] * S + np.outer(K_[t, h], V_[t, h])
                y[t, h] = S.T @ Q[t, h] / np.sqrt(K)
        return ((rms(y) * norm).reshape(len(x), -1) * silu(x @ g.T)) @ o.T

    return c, dict(mixer="gla", heads=H, head_dim=K, v_dim=V, gate_rank=R, gate_divisor=4.0), layer


def quadratic(q, k, v, c):
    """o_n = sum over m <= n of exp(c_n - c_m) (q_n k_m) v_m; q, k (T,H,K), v (T,H,V), c (T,H)."""
    score = np.einsum("nhk,mhk->hnm", q, k)
    diff = c.T[:, :, None] - c.T[:, None, :]
    score *= np.exp(np.where(np.tril(np.ones(diff.shape[1:], bool)), diff, -np.inf))
    return np.einsum("hnm,mhv->nhv", score, v)


def retention(seed):
    H, K, V = 3, 4, 8
    c = Case(seed)
    q, k, v, g = (c(f"{n}_proj.weight", H * e, D) for n, e in (("q", K), ("k", K), ("v", V), ("g", V)))
    norm, o = c("g_norm_swish_gate.weight", V, std=0.3, mean=1), c("o_proj.weight", D, H * V)

    def layer(x):
        Q, K_, V_ = (heads(x @ w.T, H) for w in (q, k, v))
        decay = np.log(1 - 2.0 ** (-5 - np.arange(H)))
        Q, K_ = rotate(Q, 100.0, False), rotate(K_, 100.0, False)
        y = quadratic(Q / np.sqrt(K), K_, V_, np.cumsum(np.tile(decay, (len(x), 1)), 0))
        return ((rms(y) * norm).reshape(len(x), -1) * silu(x @ g.T)) @ o.T

    return c, dict(mixer="retention", heads=H, head_dim=K, v_dim=V, rope=dict(type="default", theta=100.0)), layer


def gated_retention(seed):
    H, K = 2, 8
    c = Case(seed)
    q, k, v, g = (c(f"{n}_proj.weight", H * K, D) for n in "qkvg")
    gt, o = c("gt_proj.weight", H, D, std=2.0), c("out_proj.weight", D, H * K)

    def layer(x):
        Q, K_, V_ = (heads(x @ w.T, H) for w in (q, k, v))
        Q, K_ = rotate(Q, 100.0, True), rotate(K_, 100.0, True) / np.sqrt(K)
        y = quadratic(Q, K_, V_, np.cumsum(logsigmoid(x @ gt.T) / 16, 0))
        return (rms(y).reshape(len(x), -1) * silu(x @ g.T)) @ o.T

    return c, dict(mixer="gated_retention", heads=H,
                   rope=dict(type="default", theta=100.0, interleaved=True, inclusive=True)), layer


def linear(seed):
    H, K, V, eps = 2, 5, 6, 1e-6
    c = Case(seed)
    q, k, v = (c(f"{n}_proj.weight", H * e, D) for n, e in (("q", K), ("k", K), ("v", V)))
    o = c("o_proj.weight", D, H * V)

    def layer(x):
        Q, K_, V_ = (heads(x @ w.T, H) for w in (q, k, v))
        Q, K_ = (np.where(a > 0, a + 1, np.exp(np.minimum(a, 0))) for a in (Q, K_))
        score = np.tril(np.einsum("nhk,mhk->hnm", Q, K_))
        y = np.einsum("hnm,mhv->nhv", score, V_) / (score.sum(-1).T[..., None] + eps)
        return y.reshape(len(x), -1) @ o.T

    return c, dict(mixer="linear", heads=H, head_dim=K, v_dim=V, eps=eps), layer


def mamba2(seed, bias):
    H, P, N, G, W = 4, 8, 6, 2, 4
    d = H * P
    cfg = Mamba2Config(num_heads=H, head_dim=P, hidden_size=D, state_size=N, n_groups=G, expand=d // D, conv_kernel=W,
                       use_bias=bias, use_conv_bias=True, layer_norm_epsilon=EPS, chunk_size=16, num_hidden_layers=1)
    m = Mamba2Mixer(cfg, 0).double().eval()
    c = Case(seed)
    C = d + 2 * G * N
    set_ = lambda p, value: p.data.copy_(torch.from_numpy(value))
    set_(m.in_proj.weight, c("in_proj.weight", d + C + H, D))
    set_(m.conv1d.weight, c("conv1d.weight", C, 1, W, std=0.5))
    set_(m.conv1d.bias, c("conv1d.bias", C, std=0.3))
    set_(m.A_log, c("A_log", H, std=0.7))
    set_(m.D, c("D", H, std=0.7))
    set_(m.dt_bias, c("dt_bias", H, std=0.7))
    set_(m.norm.weight, c("norm.weight", d, std=0.3, mean=1))
    set_(m.out_proj.weight, c("out_proj.weight", D, d))
    if bias:
        set_(m.in_proj.bias, c("in_proj.bias", d + C + H, std=0.3))
        set_(m.out_proj.bias, c("out_proj.bias", D, std=0.3))
    layer = lambda x: m(torch.from_numpy(x)[None]).detach().numpy()[0]
    return c, dict(mixer="mamba2", heads=H, head_dim=P, state_size=N, groups=G, conv=W, bias=bias), layer


def optional(seed, mixer, gate, W, biased=False):
    """A layer with `gate` none, silu or sigmoid and convolutions of W taps with biases (0: none); one token at a time.
    biased: gated_retention with a bias of its decay. kda: projections of the decay and of the gate at full width, and the standard gate."""
    H, K, V, R = 2, 4, 5, 3
    c = Case(seed)
    delta_rule = mixer in ("kda", "gdn", "deltanet")
    out_name = "out_proj.weight" if mixer == "gated_retention" else "o_proj.weight"
    w = {n: c(f"{n}_proj.weight", H * e, D) for n, e in (("q", K), ("k", K), ("v", V))}
    taps = {n: (c(f"{n}_conv1d.weight", H * e, 1, W, std=0.5), c(f"{n}_conv1d.bias", H * e, std=0.5))
            for n, e in (("q", K), ("k", K), ("v", V)) if W}
    if mixer == "kda":
        f, A, dt = c("f_proj.weight", H * K, D), c("A_log", H, std=0.7), c("dt_bias", H * K, std=0.5)
    if mixer == "gdn":
        a, A, dt = c("a_proj.weight", H, D), c("A_log", H, std=0.7), c("dt_bias", H, std=0.5)
    if mixer == "gla":
        g0, g1, gb = c("gk_proj.0.weight", R, D), c("gk_proj.1.weight", H * K, R), c("gk_proj.1.bias", H * K)
    if mixer == "gated_retention":
        gt = c("gt_proj.weight", H, D, std=2.0)
        gt_bias = c("gt_proj.bias", H, std=2.0) if biased else 0
    b = c("b_proj.weight", H, D) if delta_rule else None
    g = c("g_proj.weight", H * V, D) if gate != "none" else None
    names = {"gla": "g_norm.weight", "retention": "g_norm.weight", "gated_retention": None, "linear": None}
    norm_name = names.get(mixer, "o_norm.weight")
    norm = c(norm_name, V, std=0.3, mean=1) if norm_name else 1
    o = c(out_name, D, H * V)

    def through(x, n):
        y = x @ w[n].T
        if W:
            taps_n, bias = taps[n]
            past = np.concatenate([np.zeros((W - 1, y.shape[1])), y])
            y = silu(sum(past[j:j + len(y)] * taps_n[:, 0, j] for j in range(W)) + bias)
        elif delta_rule:
            y = silu(y)
        return heads(y, H)

    def layer(x):
        T = len(x)
        Q, K_, V_ = (through(x, n) for n in "qkv")
        if mixer == "linear":
            Q, K_ = (np.where(t > 0, t + 1, np.exp(np.minimum(t, 0))) for t in (Q, K_))
        if delta_rule:
            Q, K_ = unit(Q), unit(K_)
        if mixer in ("retention", "gated_retention"):
            Q, K_ = rotate(Q, 100.0, False), rotate(K_, 100.0, False)
        alpha = np.ones((T, H, K))
        if mixer == "kda":
            alpha = np.exp(-np.exp(A)[:, None] * softplus(heads(x @ f.T + dt, H)))
        if mixer == "gdn":
            alpha = alpha * np.exp(-np.exp(A) * softplus(x @ a.T + dt))[..., None]
        if mixer == "gla":
            alpha = heads(np.exp(logsigmoid(x @ g0.T @ g1.T + gb) / 4), H)
        if mixer == "retention":
            alpha = alpha * (1 - 2.0 ** (-5 - np.arange(H)))[None, :, None]
        if mixer == "gated_retention":
            alpha = alpha * np.exp(logsigmoid(x @ gt.T + gt_bias) / 16)[..., None]
        y = np.zeros((T, H, V))
        for h in range(H):
            S, z = np.zeros((K, V)), np.zeros(K)
            for t in range(T):
                S, z = alpha[t, h][:, None] * S, z + K_[t, h]
                u = sigmoid(x[t] @ b[h]) * (V_[t, h] - S.T @ K_[t, h]) if delta_rule else V_[t, h]
                S = S + np.outer(K_[t, h], u)
                y[t, h] = S.T @ Q[t, h] / (Q[t, h] @ z + 1e-6 if mixer == "linear" else np.sqrt(K))
        if mixer != "linear":
            y = rms(y) * norm
        y = y.reshape(T, -1)
        if g is not None:
            y = y * dict(silu=silu, sigmoid=sigmoid)[gate](x @ g.T)
        return y @ o.T

    more = dict(conv=W, conv_bias=W > 0)
    if mixer == "kda":
        more.update(gate="standard", gate_proj="full", out_gate="none" if gate == "none" else "full")
        more.update({} if gate == "none" else dict(out_act=gate))
    elif mixer != "linear":
        more.update(gate=gate)
    if mixer == "gla":
        more.update(gate_rank=R, gate_divisor=4.0)
    if mixer in ("retention", "gated_retention"):
        more.update(rope=dict(type="default", theta=100.0))
    if biased:
        more.update(rates="spread")
    return c, dict(mixer=mixer, heads=H, head_dim=K, v_dim=V, **more), layer


def grouped(seed, mixer, H, KV, HV, n, W):
    """Every output head with all its own: q head o // (HV/H), whose key head is q's // (H/KV). The delta rule is applied
    n times a token after one decay (arXiv:2502.10297). No gate; convolutions of W taps (0: none)."""
    K, V, R = 4, 5, 3
    r, G = HV // H, H // KV
    states = KV * r
    c = Case(seed)
    delta_rule = mixer in ("gdn", "deltanet")
    sizes = dict(q=H * K, k=n * KV * K, v=n * states * V)
    w = {name: c(f"{name}_proj.weight", size, D) for name, size in sizes.items()}
    taps = {name: c(f"{name}_conv1d.weight", size, 1, W, std=0.5) for name, size in sizes.items() if W}
    if mixer == "gdn":
        a, A, dt = c("a_proj.weight", states, D), c("A_log", states, std=0.7), c("dt_bias", states, std=0.5)
    if mixer == "gla":
        g0, g1, gb = c("gk_proj.0.weight", R, D), c("gk_proj.1.weight", KV * K, R), c("gk_proj.1.bias", KV * K)
    b = c("b_proj.weight", n * states, D) if delta_rule else None
    norm = c({"gla": "g_norm.weight"}.get(mixer, "o_norm.weight"), V, std=0.3, mean=1) if mixer != "linear" else 1
    out_proj = c("o_proj.weight", D, HV * V)

    def layer(x):
        T = len(x)
        p = {name: x @ w[name].T for name in sizes}
        p = {name: conv(y, taps[name]) if W else silu(y) if delta_rule else y for name, y in p.items()}
        q, k, v = p["q"].reshape(T, H, K), p["k"].reshape(T, n, KV, K), p["v"].reshape(T, n, states, V)
        if delta_rule:
            q, k, beta = unit(q), unit(k), 2 * sigmoid(x @ b.T).reshape(T, n, states)
        if mixer == "linear":
            q, k = (np.where(t > 0, t + 1, np.exp(np.minimum(t, 0))) for t in (q, k))
        y = np.zeros((T, HV, V))
        for o in range(HV):
            mine = o // r
            key = mine // G
            of = key * r + o % r
            S, z = np.zeros((K, V)), np.zeros(K)
            for t in range(T):
                if mixer == "gdn":
                    S = np.exp(-np.exp(A[of]) * softplus(x[t] @ a[of] + dt[of])) * S
                if mixer == "gla":
                    mixed = x[t] @ g0.T @ g1.T + gb
                    S = np.exp(logsigmoid(mixed[key * K:(key + 1) * K]) / 4)[:, None] * S
                for j in range(n):
                    u = v[t, j, of]
                    if delta_rule:
                        u = beta[t, j, of] * (u - S.T @ k[t, j, key])
                    S, z = S + np.outer(k[t, j, key], u), z + k[t, j, key]
                y[t, o] = S.T @ q[t, mine] / (q[t, mine] @ z + 1e-6 if mixer == "linear" else np.sqrt(K))
        if mixer != "linear":
            y = rms(y) * norm
        return y.reshape(T, -1) @ out_proj.T

    more = dict(conv=W, kv_heads=KV)
    if delta_rule:
        more.update(gate="none", beta_max=2, householders=n)
    if mixer == "gdn":
        more.update(v_heads=HV)
    if mixer == "gla":
        more.update(gate="none", gate_rank=R, gate_divisor=4.0)
    return c, dict(mixer=mixer, heads=H, head_dim=K, v_dim=V, **more), layer


def far(T, n):
    """(T,T): the level of source s for target t, min(bit length of t xor s, n - 1)."""
    return np.array([[min((t ^ s).bit_length(), n - 1) for s in range(T)] for t in range(T)])


def leveled(seed, mixer, n, H, HV, W):
    """Log-linear attention with n levels in the quadratic form: the weight of source s for target t, by all transitions
    between them, is times softplus(L_l delta_tl), l their level. Value head o has the query head o // (HV/H)."""
    K, V, R = 4, 5, 3
    c = Case(seed)
    gated = mixer in ("kda", "gdn2")  # gdn2: kda with gates per channel to erase and to write
    delta_rule, ssd = mixer in ("gdn", "deltanet") or gated, mixer == "mamba2"
    keys = H * K
    if ssd:  # [z x B C dt levels]
        d = HV * V
        w_in, bias = c("in_proj.weight", 2 * d + 2 * keys + HV * (1 + n), D), c("conv1d.bias", d + 2 * keys, std=0.3)
        taps = c("conv1d.weight", d + 2 * keys, 1, W, std=0.5)
        A, skip, dt, norm = c("A_log", HV, std=0.7), c("D", HV, std=0.7), c("dt_bias", HV, std=0.7), c("norm.weight", d, mean=1)
        out_proj, L = c("out_proj.weight", D, d), c("L", HV, n, mean=1)
    else:
        q, k, v = c("q_proj.weight", keys, D), c("k_proj.weight", keys, D), c("v_proj.weight", HV * V, D)
        taps = [c(f"{name}_conv1d.weight", ch, 1, W, std=0.5) for name, ch in (("q", keys), ("k", keys), ("v", HV * V)) if W]
        if mixer == "gdn":
            a, A, dt = c("a_proj.weight", HV, D), c("A_log", HV, std=0.7), c("dt_bias", HV, std=0.5)
        if mixer == "gla":
            g0, g1, gb = c("gk_proj.0.weight", R, D), c("gk_proj.1.weight", keys, R), c("gk_proj.1.bias", keys)
        if gated:
            f0, f1, A = c("f_a_proj.weight", R, D), c("f_b_proj.weight", HV * K, R), c("A_log", HV, std=0.3)
            dt = c("dt_bias", HV * K, std=1.0, mean=-4)
        b = c("b_proj.weight", keys if mixer == "gdn2" else HV, D) if delta_rule else None
        w = c("w_proj.weight", HV * V, D) if mixer == "gdn2" else None
        norm = c("o_norm.weight" if delta_rule else "g_norm.weight", V, std=0.3, mean=1)
        l_proj, L = c("l_proj.weight", HV * n, D, std=0.7), c("L", HV, n, mean=1)
        out_proj = c("o_proj.weight", D, HV * V)

    def layer(x):
        T = len(x)
        level, beta, alpha, scale = far(T, n), np.ones((T, HV)), np.ones((T, HV, K)), 1
        if ssd:
            z, xbc, step, delta = np.split(x @ w_in.T, np.cumsum([d, d + 2 * keys, HV]), 1)
            past = np.concatenate([np.zeros((W - 1, xbc.shape[1])), xbc])
            xbc = silu(sum(past[j:j + T] * taps[:, 0, j] for j in range(W)) + bias)
            inner, K_, Q = heads(xbc[:, :d], HV), heads(xbc[:, d:d + keys], H), heads(xbc[:, d + keys:], H)
            step = softplus(step + dt)
            V_, alpha = step[..., None] * inner, alpha * np.exp(-np.exp(A) * step)[..., None]
        else:
            through = lambda i, w: conv(x @ w.T, taps[i]) if W else silu(x @ w.T) if delta_rule else x @ w.T
            Q, K_, V_ = heads(through(0, q), H), heads(through(1, k), H), heads(through(2, v), HV)
            delta, scale = x @ l_proj.T, K**-0.5
            if delta_rule:
                Q, K_, beta = unit(Q), unit(K_), sigmoid(x @ b.T)
            if gated:
                z, rate = heads(x @ f0.T @ f1.T + dt, HV), np.exp(A)[:, None]
                alpha = np.exp(-5 * sigmoid(rate * z) if mixer == "kda" else -rate * softplus(z))
            if mixer == "gdn":
                alpha = alpha * np.exp(-np.exp(A) * softplus(x @ a.T + dt))[..., None]
            if mixer == "gla":
                alpha = heads(np.exp(logsigmoid(x @ g0.T @ g1.T + gb) / 4), H)
            if mixer == "retention":
                Q, K_ = rotate(Q, 100.0, False), rotate(K_, 100.0, False)
                alpha = alpha * (1 - 2.0 ** (-5 - np.arange(HV)))[None, :, None]
        erase = K_
        if mixer == "gdn2":
            erase, V_, beta = 2 * heads(beta, H) * K_, heads(sigmoid(x @ w.T), HV) * V_, np.ones((T, HV))
        weigh = softplus(L * heads(delta, HV))
        y = np.zeros((T, HV, V))
        for o in range(HV):
            h = o // (HV // H)
            for t in range(T):
                row = scale * Q[t, h]  # q_t times the transitions of t, t-1, .. s+1
                for s in range(t, -1, -1):
                    y[t, o] += weigh[t, o, level[t, s]] * (row @ K_[s, h]) * beta[s, o] * V_[s, o]
                    if delta_rule:
                        row = row - (row @ K_[s, h]) * beta[s, o] * erase[s, h]
                    row = row * alpha[s, o]
        if ssd:
            y = (y + skip[:, None] * inner).reshape(T, d) * silu(z)
            return (rms(y.reshape(T, H, -1)).reshape(T, d) * norm) @ out_proj.T
        return (rms(y) * norm).reshape(T, -1) @ out_proj.T

    if ssd:
        return c, dict(mixer=mixer, heads=HV, head_dim=V, state_size=K, groups=H, conv=W, levels=n), layer
    more = dict(conv=W, gate="none", levels=n)
    if mixer == "gdn":
        more.update(v_heads=HV)
    if mixer == "gla":
        more.update(gate_rank=R, gate_divisor=4.0)
    if mixer == "retention":
        more.update(rope=dict(type="default", theta=100.0))
    if gated:
        del more["gate"]
        more.update(v_heads=HV, gate_rank=R, out_gate="none")
    if mixer == "gdn2":
        more.update(gate="standard", erase="channel", beta_max=2)
    return c, dict(mixer="kda" if gated else mixer, heads=H, head_dim=K, v_dim=V, **more), layer


cases = {
    "gdn": lambda: gdn_public(1),
    "gdn-plain": lambda: gdn_plain(2),
    "deltanet": lambda: deltanet(3),
    "gla": lambda: gla(4),
    "retention": lambda: retention(5),
    "gated_retention": lambda: gated_retention(6),
    "linear": lambda: linear(7),
    "mamba2": lambda: mamba2(8, False),
    "mamba2-bias": lambda: mamba2(9, True),
    "kda-silu": lambda: optional(10, "kda", "silu", 3),
    "kda-none": lambda: optional(11, "kda", "none", 0),
    "gdn-sigmoid": lambda: optional(12, "gdn", "sigmoid", 2),
    "deltanet-sigmoid": lambda: optional(13, "deltanet", "sigmoid", 4),
    "gla-conv": lambda: optional(14, "gla", "sigmoid", 3),
    "gla-none": lambda: optional(15, "gla", "none", 0),
    "retention-conv": lambda: optional(16, "retention", "none", 2),
    "gated_retention-conv": lambda: optional(17, "gated_retention", "none", 3),
    "linear-conv": lambda: optional(18, "linear", "none", 3),
    "gdn-comba": lambda: comba(26),
    "gdn-product": lambda: grouped(20, "gdn", 2, 2, 4, 2, 3),
    "deltanet-product": lambda: grouped(21, "deltanet", 2, 2, 2, 3, 0),
    "gdn-grouped": lambda: grouped(22, "gdn", 4, 2, 8, 1, 3),
    "gdn-grouped-product": lambda: grouped(23, "gdn", 4, 2, 4, 2, 2),
    "gla-grouped": lambda: grouped(24, "gla", 6, 2, 6, 1, 0),
    "linear-grouped": lambda: grouped(25, "linear", 3, 1, 3, 1, 2),
    "gdn-levels": lambda: leveled(27, "gdn", 8, 2, 4, 3),
    "deltanet-levels": lambda: leveled(28, "deltanet", 4, 2, 2, 0),
    "gla-levels": lambda: leveled(29, "gla", 5, 2, 2, 0),
    "retention-levels": lambda: leveled(30, "retention", 2, 3, 3, 2),
    "mamba2-levels": lambda: leveled(31, "mamba2", 6, 2, 4, 3),
    "kda-levels": lambda: leveled(32, "kda", 8, 2, 4, 3),
    "gdn2-levels": lambda: leveled(33, "gdn2", 5, 2, 4, 0),
    "gated_retention-bias": lambda: optional(19, "gated_retention", "silu", 0, True),
}
out.mkdir(parents=True, exist_ok=True)
for name, make in cases.items():
    with torch.no_grad():
        c, settings, layer = make()
        x = np.random.default_rng(100).standard_normal((sum(LENGTHS), D)).astype(np.float32)
        y = documents(x.astype(np.float64), layer)
    assert np.isfinite(y).all() and y.dtype == np.float64, name
    tensors = {**c.w, "x": x, "y": y}
    model = dict(d_model=D, vocab=2, max_positions=128, layers=1, norm_eps=EPS, kinds=dict(a=settings), pattern=["a"],
                 ffn=[dict(kind="swiglu", hidden=1)])
    safetensors.numpy.save_file({k: np.ascontiguousarray(v) for k, v in tensors.items()}, out / f"{name}.safetensors",
                                metadata={"model": json.dumps(model)})
    print(f"{name}: |y| to {abs(y).max():.3g}, rms {np.sqrt((y * y).mean()):.3g}")
(out / "versions.json").write_text(
    json.dumps({"numpy": np.__version__, "safetensors": safetensors.__version__, "torch": torch.__version__,
                "transformers": transformers.__version__}, indent=1) + "\n")
