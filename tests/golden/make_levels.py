#!/usr/bin/env python3
"""Golden results of log-linear attention (layers/linear/levels.h): outputs and autograd's gradients of recurrences whose
reads are weighed by levels of distance.

`fla` is naive_log_linear_attn of flash-linear-attention, loaded by path, with as many levels as its documents need. The
others are typed here in the quadratic form: the weight of a source for a target, through all transitions between them, is
multiplied by the factor of their level, min(bit length of t xor s, n - 1). A file has three documents of LENGTHS tokens.
Inputs are rounded to float32, results are float64.
Usage: make_levels.py FLA   FLA: the folder `fla` of an unpacked fla-core 0.6.0; torch 2.15.0
"""
import importlib.util
import pathlib
import sys

import numpy as np
import safetensors.numpy
import torch
import torch.nn.functional as F

here = pathlib.Path(__file__).resolve().parent
LENGTHS, K, V = (67, 9, 5), 5, 4
N = sum(LENGTHS)
# name: (levels, H, HV, decay: 0 none, 1 per head, K per channel; beta, erase keys)
rules = {
    "fla": (8, 1, 2, 1, False, False),
    "gated_delta_rule": (6, 1, 2, 1, True, False),
    "comba": (5, 1, 2, 1, True, True),
    "delta_rule": (4, 2, 2, 0, True, False),
    "gla": (3, 2, 2, K, False, False),
    "linear_attn": (2, 2, 2, 0, False, False),
    "one": (1, 1, 2, 1, True, False),
    "kda": (7, 1, 2, K, True, False),
    "gdn2": (5, 2, 2, K, False, True),
}


def naive(fla):
    spec = importlib.util.spec_from_file_location("naive", pathlib.Path(fla) / "ops" / "log_linear_attn" / "naive.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.naive_log_linear_attn


def quadratic(x, weigh, scale):
    """o (T,HV,V) of one document; x without a leading dimension, weigh (T,HV,n)."""
    T, HV, up, n = len(x["q"]), x["v"].shape[1], x["v"].shape[1] // x["q"].shape[1], weigh.shape[2]
    out = []
    for t in range(T):
        for h in range(HV):
            row, o = scale * x["q"][t, h // up], 0
            for s in range(t, -1, -1):
                k, beta = x["k"][s, h // up], x["beta"][s, h] if "beta" in x else 1
                o = o + weigh[t, h, min((t ^ s).bit_length(), n - 1)] * (row @ k) * beta * x["v"][s, h]
                if "beta" in x or "e" in x:
                    row = row - (row @ k) * beta * (x["e"][s, h // up] if "e" in x else k)
                if "g" in x:
                    row = row * x["g"][s, h].exp()
            out.append(o)
    return torch.stack(out).view(T, HV, V)


def main():
    torch.set_num_threads(1)
    log_linear = naive(sys.argv[1])
    (here / "levels").mkdir(exist_ok=True)
    for seed, (name, (n, H, HV, G, beta, erase)) in enumerate(rules.items()):
        r = np.random.default_rng(seed)
        draw = lambda *shape: r.standard_normal(shape)
        x = dict(q=draw(N, H, K), k=draw(N, H, K), v=draw(N, HV, V), delta=draw(N, HV * n), L=1 + 0.5 * draw(HV, n))
        x["k"] /= np.sqrt((x["k"] ** 2).sum(-1, keepdims=True))
        if G:
            x["g"] = -0.1 * abs(draw(N, HV, G))
        if beta:
            x["beta"] = 1 / (1 + np.exp(-draw(N, HV)))
        if erase:
            x["e"] = x["k"] / (1 + np.exp(-draw(N, H, K)))
        same = {m: a.astype(np.float32).astype(np.float64) for m, a in x.items()}
        t = {m: torch.from_numpy(a).requires_grad_() for m, a in same.items()}
        weigh, o, at = F.softplus(t["L"] * t["delta"].view(N, HV, n)), [], 0
        for length in LENGTHS:
            part = {m: a[at : at + length] for m, a in t.items() if m not in ("delta", "L")}
            if name == "fla":
                one = {m: a[None] for m, a in part.items()}
                o += [log_linear(one["q"], one["k"], one["v"], one["g"][..., 0], weigh[None, at : at + length], None)[0]]
            else:
                o += [quadratic(part, weigh[at : at + length], K**-0.5)]
            at += length
        o, dout = torch.cat(o), draw(N, HV, V)
        grads = torch.autograd.grad((o * torch.from_numpy(dout)).sum(), list(t.values()))
        out = same | {"d" + m: d.numpy() for m, d in zip(t, grads)} | dict(o=o.detach().numpy(), dout=dout)
        path = here / "levels" / f"{name}.safetensors"
        safetensors.numpy.save_file({m: np.ascontiguousarray(a, dtype=np.float64) for m, a in out.items()}, path)
        print(name, {m: a.shape for m, a in out.items()}, path.stat().st_size, "bytes")


main()
