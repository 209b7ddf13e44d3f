#!/usr/bin/env python3
"""Golden conversions: a tiny Llama with random weights, and what its attention weights become under every way of pooling
and under the joint decomposition, by NumPy in double precision from the formulas of convert/align.h and convert/mla.c, in
another arrangement: activations instead of sums, singular values instead of eigenvectors. Needs numpy, safetensors,
torch, transformers (these only to check this script's forward pass). Usage: make_convert.py [OUT]
"""
import itertools
import json
import pathlib
import shutil
import sys

import numpy as np
import safetensors.numpy
import torch
import transformers

here = pathlib.Path(__file__).resolve().parent
d, L, H, D, F, V, P, eps, theta, std = 20, 2, 4, 6, 16, 260, 64, 1e-5, 50.0, 0.02
WINDOW, CALIB = 32, 6  # windows of the text that calibrate: those before the last two
TEXT = ("A key that many heads share is read once. The first cat saw the second cat; the second cat saw a third, and so "
        "on until the row of cats, all of them grey, ended at a wall with a door in it: 3, 5, 8, 13. Nobody knew who had "
        "painted it green, or why the green door stayed shut.")
rng = np.random.default_rng(7)


def weights(G):
    w = {"model.embed_tokens.weight": 0.5 * rng.standard_normal((V, d)),
         "model.norm.weight": 1 + 0.3 * rng.standard_normal(d), "lm_head.weight": 0.3 * rng.standard_normal((V, d))}
    for l in range(L):
        p = f"model.layers.{l}."
        for name, shape in {"self_attn.q_proj": (H * D, d), "self_attn.k_proj": (G * D, d), "self_attn.v_proj": (G * D, d),
                            "self_attn.o_proj": (d, H * D), "mlp.gate_proj": (F, d), "mlp.up_proj": (F, d),
                            "mlp.down_proj": (d, F)}.items():
            w[p + name + ".weight"] = 0.35 * rng.standard_normal(shape)
        for name in ("q", "k", "v"):
            w[p + f"self_attn.{name}_proj.bias"] = 0.3 * rng.standard_normal((H if name == "q" else G) * D)
        w[p + "self_attn.o_proj.bias"] = 0.3 * rng.standard_normal(d)
        for name in ("input_layernorm", "post_attention_layernorm"):
            w[p + name + ".weight"] = 1 + 0.3 * rng.standard_normal(d)
        # two pairs of related heads, so that there is something to find: 0 with 2 and 1 with 3
        if G == H:
            for kind in ("k", "v"):
                x = w[p + f"self_attn.{kind}_proj.weight"].reshape(G, D, d)
                for a, b in ((0, 2), (1, 3)):
                    turn = np.linalg.qr(rng.standard_normal((D, D)))[0] if kind == "v" else pairs(rng.uniform(0, 6, D // 2))
                    x[b] = turn @ x[a] + 0.1 * rng.standard_normal((D, d))
    return {k: v.astype(np.float32) for k, v in w.items()}


def pairs(angles):
    """A head's rotation by one angle per pair, half-split."""
    c, s = np.diag(np.cos(angles)), np.diag(np.sin(angles))
    return np.block([[c, -s], [s, c]])


def norm(x, g):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * g


def forward(w, ids, G):
    """Logits of one window, the normed input of every layer's attention, and the stream behind it."""
    w = {k: v.astype(np.float64) for k, v in w.items()}
    x, T, seen, behind = w["model.embed_tokens.weight"][ids], len(ids), [], []
    turns = [pairs(t * theta ** (-2 * np.arange(D // 2) / D)) for t in range(T)]
    for l in range(L):
        p, a = f"model.layers.{l}.", f"model.layers.{l}.self_attn."
        n = norm(x, w[p + "input_layernorm.weight"])
        seen.append(n)
        q, k, v = (n @ w[a + f"{c}_proj.weight"].T + w[a + f"{c}_proj.bias"] for c in "qkv")
        q, k, v = q.reshape(T, H, D), k.reshape(T, G, D), v.reshape(T, G, D)
        q, k = (np.stack([z[t] @ turns[t].T for t in range(T)]) for z in (q, k))
        out = np.zeros((T, H, D))
        for h in range(H):
            s = q[:, h] @ k[:, h * G // H].T / np.sqrt(D)
            s[np.triu_indices(T, 1)] = -np.inf
            e = np.exp(s - s.max(1, keepdims=True))
            out[:, h] = e / e.sum(1, keepdims=True) @ v[:, h * G // H]
        x = x + out.reshape(T, H * D) @ w[a + "o_proj.weight"].T + w[a + "o_proj.bias"]
        behind.append(x)
        n = norm(x, w[p + "post_attention_layernorm.weight"])
        g = n @ w[p + "mlp.gate_proj.weight"].T
        x = x + (g / (1 + np.exp(-g)) * (n @ w[p + "mlp.up_proj.weight"].T)) @ w[p + "mlp.down_proj.weight"].T
    return norm(x, w["model.norm.weight"]) @ w["lm_head.weight"].T, seen, behind


def orthogonal(m, x):
    """R that brings the rows x (N,D) nearest to m (N,D): x -> x R^T."""
    u, _, vt = np.linalg.svd(m.T @ x)
    return u @ vt


def angles(m, x):
    """The same by one angle per pair, from complex numbers."""
    h = D // 2
    zm, zx = m[:, :h] + 1j * m[:, h:], x[:, :h] + 1j * x[:, h:]
    return pairs(np.angle((zm * zx.conj()).sum(0)))


def likeness(a, b, fit):
    R = fit(a, b)
    return (a * (b @ R.T)).sum() / np.sqrt((a * a).sum() * (b * b).sum())


def align(heads, fit, rounds=20):
    R = [np.eye(D)] + [fit(heads[0], x) for x in heads[1:]]
    for _ in range(rounds if len(heads) > 1 else 0):
        mean = sum(x @ r.T for x, r in zip(heads, R)) / len(heads)
        R = [fit(mean, x) for x in heads]
    mean = sum(x @ r.T for x, r in zip(heads, R)) / len(heads)
    keep = np.mean([np.linalg.norm(x) for x in heads]) / np.linalg.norm(mean)
    return R, keep


def groups_of(k, v, n):
    """All partitions of the heads into groups of n: the one whose members are most alike."""
    K = len(k)
    s = {(a, b): likeness(k[a], k[b], angles) + likeness(v[a], v[b], orthogonal) for a, b in itertools.combinations(range(K), 2)}
    def split(rest):
        if not rest:
            yield []
            return
        for others in itertools.combinations(rest[1:], n - 1):
            group = (rest[0],) + others
            for more in split([x for x in rest if x not in group]):
                yield [group] + more
    return max(split(list(range(K))), key=lambda p: sum(s[c] for g in p for c in itertools.combinations(g, 2)))


def aligned(w, xs, G):
    """Attention weights for G key/value heads, and the same without pooling."""
    pooled, turned = {}, {}
    for l in range(L):
        a = f"model.layers.{l}.self_attn."
        W = {c: w[a + f"{c}_proj.weight"].astype(np.float64) for c in "qkvo"}
        b = {c: w[a + f"{c}_proj.bias"].astype(np.float64) for c in "qkv"}
        rows = {c: (xs[l] @ W[c].T + b[c]).reshape(-1, H, D).transpose(1, 0, 2) for c in "kv"}
        part = groups_of(rows["k"], rows["v"], H // G)
        order = [h for g in part for h in g]
        R = {}
        for c, fit in (("k", angles), ("v", orthogonal)):
            R[c], new, bias, full, fbias = {}, [], [], [], []
            for g in part:
                turns, keep = align([rows[c][h] for h in g], fit)
                blocks = [r @ W[c].reshape(H, D, d)[h] for r, h in zip(turns, g)]
                offsets = [r @ b[c].reshape(H, D)[h] for r, h in zip(turns, g)]
                R[c].update(zip(g, turns))
                new.append(keep * np.mean(blocks, 0)), bias.append(keep * np.mean(offsets, 0))
                full += blocks
                fbias += offsets
            pooled[a + f"{c}_proj.weight"], pooled[a + f"{c}_proj.bias"] = np.concatenate(new), np.concatenate(bias)
            turned[a + f"{c}_proj.weight"], turned[a + f"{c}_proj.bias"] = np.concatenate(full), np.concatenate(fbias)
        for out in (pooled, turned):
            out[a + "q_proj.weight"] = np.concatenate([R["k"][h] @ W["q"].reshape(H, D, d)[h] for h in order])
            out[a + "q_proj.bias"] = np.concatenate([R["k"][h] @ b["q"].reshape(H, D)[h] for h in order])
            out[a + "o_proj.weight"] = np.concatenate([W["o"].reshape(d, H, D)[:, h] @ R["v"][h].T for h in order], 1)
    return pooled, turned


def root(s):
    """A with A^T A = s, symmetric; a little of the mean diagonal is added, as the program does."""
    s = s + (1e-6 * np.trace(s) / len(s) + 1e-30) * np.eye(len(s))
    val, vec = np.linalg.eigh(s)
    return vec * np.sqrt(val) @ vec.T


def latent(w, xs, G, rank, rope):
    """Every head's [key without rotation; value] as a function of [x; 1], after the decomposition."""
    out, Dn, half, c = {}, D - rope, D // 2, D // rope
    nope = [i for i in range(D) if i % half % c]
    for l in range(L):
        a = f"model.layers.{l}.self_attn."
        full = {n: np.concatenate([w[a + f"{n}_proj.weight"], w[a + f"{n}_proj.bias"][:, None]], 1).astype(np.float64) for n in "qkv"}
        x = np.concatenate([xs[l], np.ones((len(xs[l]), 1))], 1)
        Wo = w[a + "o_proj.weight"].astype(np.float64).reshape(d, H, D)
        rows, A = [], []
        for g in range(G):
            members = range(g * H // G, (g + 1) * H // G)
            v = x @ full["v"].reshape(G, D, -1)[g].T
            gain = sum(Wo[:, h].T @ Wo[:, h] for h in members)
            energy = np.mean([((v @ Wo[:, h].T) ** 2).sum(1).mean() for h in members])
            q = sum((lambda z: z.T @ z / len(z))(x @ full["q"].reshape(H, D, -1)[h][nope].T) for h in members)
            rows += [full["k"].reshape(G, D, -1)[g][nope], full["v"].reshape(G, D, -1)[g]]
            A += [root(q * energy / D) if Dn else np.zeros((0, 0)), root(gain)]
        n = sum(len(r) for r in rows)
        big, at = np.zeros((n, n)), 0
        for m in A:
            big[at:at + len(m), at:at + len(m)] = m
            at += len(m)
        W = np.concatenate(rows)
        # rows of samples: the singular vectors of A W X^T are those that the program finds as eigenvectors
        u, _, _ = np.linalg.svd(big @ W @ x.T, full_matrices=False)
        u = u[:, :rank]
        out[f"layer.{l}.map"] = np.linalg.solve(big, u @ (u.T @ big @ W))
    return out


def shared(w, xs, mids, ridge=1e-3):
    """Keys and values of layer 0 for both layers, by convert/share.c's formulas with a row per token in place of sums:
    the weighted least squares, and what is left of every layer's own keys and values at the best common rank."""
    full, A, energy, V, out = [], [], [], [], {}
    X = [np.concatenate([x, np.ones((len(x), 1))], 1) for x in xs]
    r = ridge * (X[0] ** 2).sum() / X[0].shape[1]
    for l in range(L):
        a = f"model.layers.{l}.self_attn."
        full.append({n: np.concatenate([w[a + f"{n}_proj.weight"], w[a + f"{n}_proj.bias"][:, None]], 1).astype(np.float64).reshape(H, D, -1) for n in "qkv"})
        Wo = w[a + "o_proj.weight"].astype(np.float64).reshape(d, H, D)
        stream = (mids[l] ** 2).sum()
        A.append([Wo[:, h].T @ Wo[:, h] / stream for h in range(H)])
        e = []
        for h in range(H):
            values = ((X[l] @ full[l]["v"][h].T @ Wo[:, h].T) ** 2).sum()
            q = ((X[l] @ full[l]["q"][h].T) ** 2).sum(0) * values / stream
            e.append((q[:D // 2] + q[D // 2:]) / 2)  # of a pair
        energy.append(e)
        more = np.concatenate([X[0], np.sqrt(r) * np.eye(d + 1)])
        V.append({n: np.stack([np.linalg.lstsq(more, np.concatenate([X[l] @ full[l][n][h].T, np.sqrt(r) * full[l][n][h].T]), rcond=None)[0].T for h in range(H)]) for n in "kv"})
    best = {n: [] for n in "kv"}
    left = {(n, l): [] for n in "kv" for l in range(L)}
    for h in range(H):
        for n in "kv":
            roots = [sqrt_of(A[l][h]) if n == "v" else np.diag(np.sqrt(np.tile(energy[l][h], 2))) for l in range(L)]
            # min sum_l |root_l (W - V_l) x|^2 as one system in the numbers of W
            lhs = np.concatenate([np.kron(X[0], roots[l]) for l in range(L)])
            rhs = np.concatenate([(roots[l] @ V[l][n][h] @ X[0].T).T.ravel() for l in range(L)])
            best[n].append(np.linalg.lstsq(lhs, rhs, rcond=None)[0].reshape(d + 1, D).T)
            if n == "v":
                S = np.concatenate([roots[l] @ V[l][n][h] for l in range(L)])
                u = np.linalg.svd(S @ X[0].T, full_matrices=False)[0][:, :D]
                T = u @ (u.T @ S)
                for l in range(L):
                    left[n, l].append(np.linalg.solve(roots[l], T[l * D:(l + 1) * D]))
                continue
            rows = [np.zeros((D, d + 1)) for _ in range(L)]
            for i in range(D // 2):
                S = np.stack([np.sqrt(energy[l][h][i]) * (V[l][n][h][i] + 1j * V[l][n][h][i + D // 2]) for l in range(L)])
                u = np.linalg.svd(S @ X[0].T, full_matrices=False)[0][:, :1]
                T = u @ (u.conj().T @ S)
                for l in range(L):
                    rows[l][i] = T[l].real / np.sqrt(energy[l][h][i])
                    rows[l][i + D // 2] = T[l].imag / np.sqrt(energy[l][h][i])
            for l in range(L):
                left[n, l].append(rows[l])
    for n in "kv":
        rows = np.concatenate(best[n])
        out[f"model.layers.0.self_attn.{n}_proj.weight"], out[f"model.layers.0.self_attn.{n}_proj.bias"] = rows[:, :d], rows[:, d]
        for l in range(L):
            out[f"left.{l}.{n}"] = np.concatenate(left[n, l])
    return out


def sqrt_of(s):
    val, vec = np.linalg.eigh(s)
    return vec * np.sqrt(val) @ vec.T


def save(where, w, G, text=True):
    shutil.rmtree(where, ignore_errors=True)
    where.mkdir(parents=True)
    safetensors.numpy.save_file(w, where / "model.safetensors", metadata={"format": "pt"})
    config = dict(architectures=["LlamaForCausalLM"], model_type="llama", vocab_size=V, hidden_size=d, intermediate_size=F,
                  num_hidden_layers=L, num_attention_heads=H, num_key_value_heads=G, head_dim=D, hidden_act="silu",
                  max_position_embeddings=P, initializer_range=std, rms_norm_eps=eps, rope_theta=theta, attention_bias=True,
                  mlp_bias=False, tie_word_embeddings=False, torch_dtype="float32", bos_token_id=256, eos_token_id=256)
    (where / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    if text:
        shutil.copy(here / "tokenizer.json", where)


def main():
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here / "convert"
    w = weights(H)
    save(out, w, H)
    (out / "calib.txt").write_text(TEXT)
    ids = [256] + list(TEXT.encode())
    assert len(ids) // WINDOW == CALIB + 2, len(ids)
    runs = [forward(w, ids[i * WINDOW:(i + 1) * WINDOW], H) for i in range(CALIB)]
    model = transformers.LlamaForCausalLM.from_pretrained(out, dtype=torch.float64, attn_implementation="eager").eval()
    with torch.no_grad():
        want = model(torch.tensor([ids[:WINDOW]])).logits[0].numpy()
    gap = np.abs(want - runs[0][0]).max()
    assert gap < 1e-4, gap  # transformers keeps float32 angles
    xs = [np.concatenate([r[1][l] for r in runs]) for l in range(L)]
    golden = {}
    for G in (2, 1):
        for name, part in zip(("aligned", "turned"), aligned(w, xs, G)):
            if name == "aligned" or G == 2:
                golden.update({f"{name}{G}.{k}": v for k, v in part.items()})
    for rank, rope in ((10, 2), (14, 6)):
        golden.update({f"mla{rank}.{k}": v for k, v in latent(w, xs, H, rank, rope).items()})
    mids = [np.concatenate([r[2][l] for r in runs]) for l in range(L)]
    golden.update({f"shared.{k}": v for k, v in shared(w, xs, mids).items()})
    safetensors.numpy.save_file({k: np.ascontiguousarray(v, dtype=np.float32) for k, v in golden.items()}, out / "golden.safetensors")
    versions = dict(numpy=np.__version__, safetensors=safetensors.__version__, torch=torch.__version__,
                    transformers=transformers.__version__, forward_gap=float(gap))
    (out / "versions.json").write_text(json.dumps(versions, indent=1) + "\n")
    print(versions, sum(f.stat().st_size for f in out.iterdir()), "bytes")


main()
