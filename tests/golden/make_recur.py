#!/usr/bin/env python3
"""Golden results of ops/recur.h's recurrence by the naive files of flash-linear-attention, for every rule: outputs, final
states and autograd's gradients. The files are loaded by path, with float64 for their float32. One sequence of T rows for
each rule, as the op reads it: of products of householders a token is several rows, of which the first alone decays and the
last alone is read; results that the naive file does not define are NaN. Inputs are rounded to float32.
Usage: make_recur.py FLA   FLA: the folder `fla` of an installed fla-core 0.6.0; torch 2.15.0
"""
import importlib.util
import pathlib
import sys
import tempfile

import numpy as np
import safetensors.numpy
import torch

here, fla = pathlib.Path(__file__).resolve().parent, pathlib.Path(sys.argv[1])
T, K, V = 75, 5, 4
# rule: (folder, function, H, HV, decay: 0 none, 1 per head, K per channel; beta, erase keys, history)
rules = {
    "kda": ("kda", "naive_recurrent_kda", 1, 2, K, True, False, True),
    "gdn2": ("gdn2", "naive_recurrent_gdn2", 2, 2, K, False, True, True),
    "comba": ("comba", "naive_recurrent_comba", 1, 2, 1, True, True, True),
    "gated_delta_rule": ("gated_delta_rule", "naive_recurrent_gated_delta_rule", 1, 2, 1, True, False, True),
    "delta_rule": ("delta_rule", "delta_rule_recurrence", 2, 2, 0, True, False, True),
    "gated_delta_product": ("gated_delta_product", "naive_recurrent_gated_delta_product", 2, 2, 1, True, False, True),
    "gla": ("gla", "naive_recurrent_gla", 2, 2, K, False, False, True),
    "simple_gla": ("simple_gla", "naive_recurrent_simple_gla", 1, 2, 1, False, False, True),
    "retention": ("retention", "naive_retention", 2, 2, 1, False, False, False),
    "linear_attn": ("linear_attn", "naive_recurrent_linear_attn", 2, 2, 0, False, False, True),
}


def load(folder):
    text = (fla / "ops" / folder / "naive.py").read_text()
    for old, new in ((".float()", ".double()"), ("torch.float32", "torch.float64"), ("torch.float)", "torch.float64)"),
                     ("torch.float,", "torch.float64,")):
        text = text.replace(old, new)
    with tempfile.TemporaryDirectory() as folder_of_text:
        path = pathlib.Path(folder_of_text) / "naive.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location("naive_" + folder, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


def run(name, module, f, x, scale):
    """o (T,HV,V) and the final state or None; x: as the op reads them, with a leading dimension of 1."""
    up = x["v"].shape[2] // x["q"].shape[2]
    q, k = x["q"].repeat_interleave(up, 2), x["k"].repeat_interleave(up, 2)
    e = x["e"].repeat_interleave(up, 2) if "e" in x else None
    v, start, g = x["v"], x.get("start"), x["g"][..., 0] if "g" in x and x["g"].shape[-1] == 1 else x.get("g")
    f = getattr(module, f)
    ends = dict(initial_state=start, output_final_state=True)
    swap = lambda a: a.transpose(1, 2)
    if name == "kda":
        return f(x["q"], x["k"], v, g, x["beta"], scale, **ends)
    if name == "gdn2":  # its erase key is b k and its value w v; b = e / k, and w = 1 leaves v as it is
        return f(q, k, v, g, e / k, torch.ones_like(v), scale, **ends)
    if name == "comba":
        return f(q, k, v, e, x["beta"], g, scale, **ends)
    if name == "gated_delta_rule":
        return f(q, k, v, x["beta"], g, scale, **ends)
    if name == "delta_rule":
        o, end = f(swap(q), swap(k), swap(v), swap(x["beta"]), start)
        return swap(o), end
    if name == "gated_delta_product":
        o, end = f(q[:, 1::2], k, v, g[:, ::2], x["beta"], scale, num_householder=2, **ends)
        return torch.stack((torch.zeros_like(o), o), 2).flatten(1, 2), end
    if name == "retention":
        return swap(f(swap(q), swap(k), swap(v))), None
    if name == "linear_attn":
        return f(q, k, v, scale, start, True)
    return f(q, k, v, g, **ends)


def main():
    torch.set_num_threads(1)
    (here / "recur").mkdir(exist_ok=True)
    for seed, (name, (folder, f, H, HV, G, beta, erase, history)) in enumerate(rules.items()):
        r, N = np.random.default_rng(seed), T + (name == "gated_delta_product")
        draw = lambda *shape: r.standard_normal((1, *shape))
        x = dict(q=draw(N, H, K), k=draw(N, H, K), v=draw(N, HV, V))
        x["k"] /= np.sqrt((x["k"] ** 2).sum(-1, keepdims=True))
        if G:
            x["g"] = -0.3 * abs(draw(N, HV, G))
        if name == "gated_delta_product":
            x["g"][:, 1::2], x["q"][:, ::2] = 0, 0
        if name == "retention":
            x["g"][:] = np.log1p(-np.exp2(-5.0 - np.arange(HV)))[:, None]
        if beta:
            x["beta"] = 1 / (1 + np.exp(-draw(N, HV)))
        if erase:
            x["e"] = x["k"] / (1 + np.exp(-draw(N, H, K)))
        if history:
            x["start"] = draw(HV, K, V)
        same = {n: a if name == "retention" and n == "g" else a.astype(np.float32).astype(np.float64) for n, a in x.items()}
        t = {n: torch.from_numpy(a).requires_grad_() for n, a in same.items()}
        o, end = run(name, load(folder), f, t, K**-0.5)
        dout, dend = draw(N, HV, V), draw(HV, K, V)
        if name == "gated_delta_product":
            dout[:, ::2] = 0
        loss = (o * torch.from_numpy(dout)).sum() + (0 if end is None else (end * torch.from_numpy(dend)).sum())
        grads = torch.autograd.grad(loss, list(t.values()), allow_unused=True)
        out = {n: a[0] for n, a in same.items()}
        out |= {"d" + n: (d if d is not None else torch.full_like(t[n], torch.nan))[0].numpy() for n, d in zip(t, grads)}
        if name == "gated_delta_product":
            out["dg"][1::2] = np.nan  # the decay of a token's second row is no input there
        out |= dict(o=o[0].detach().numpy(), dout=dout[0])
        if end is not None:
            out |= dict(end=end[0].detach().numpy(), dend=dend[0])
        path = here / "recur" / f"{name}.safetensors"
        safetensors.numpy.save_file({n: np.ascontiguousarray(a, dtype=np.float64) for n, a in out.items()}, path)
        print(name, {n: a.shape for n, a in out.items()}, path.stat().st_size, "bytes")


main()
