#!/usr/bin/env python3
"""Golden mixtures of experts: the feed-forward blocks of DeepSeek-V3, DeepSeek-V2, Mixtral and Qwen3-MoE as transformers
computes them in f32, with gradients by torch. Needs torch, transformers and safetensors; made with torch 2.15.0 and
transformers 5.23.0.
Usage: make_moe.py [OUT]   (default: beside this script)

Each file: x (N,d), y (N,d), dy (N,d), dx (N,d); w.NAME, every weight under the name it has in published files below
`mlp.`; g.NAME, the derivative of sum(y dy) by it (not of the balancing bias). Settings are in tests/layers/test_moe.c.
Inputs are drawn until no choice of a group or an expert is closer than 0.005.
"""
import pathlib
import sys

import torch
from safetensors.torch import save_file
from transformers import DeepseekV2Config, DeepseekV3Config, MixtralConfig, Qwen3MoeConfig
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2Moe
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

N, D, F = 21, 16, 12
here = pathlib.Path(__file__).resolve().parent


def gap(scores, k):
    """Distance between the k-th and the next highest, over rows; infinite where all are taken."""
    if k >= scores.shape[-1]:
        return torch.full(scores.shape[:1], float("inf"))
    top = scores.topk(k + 1, dim=-1).values
    return top[:, k - 1] - top[:, k]


def margins(x, block, kind, k, groups, top_groups):
    logits = x @ block.gate.weight.T
    if kind == "v3":
        s = logits.sigmoid() + block.gate.e_score_correction_bias
        g = s.view(len(x), groups, -1).topk(2, dim=-1).values.sum(-1)
    else:
        s = logits.softmax(-1)
        g = s.view(len(x), groups, -1).max(-1).values
    keep = torch.zeros_like(g).scatter_(1, g.topk(top_groups, dim=-1).indices, 1).bool()
    s = s.view(len(x), groups, -1).masked_fill(~keep[..., None], -9.0).flatten(1)
    return torch.minimum(gap(g, top_groups), gap(s, k))


def weights(block):
    """Published name -> (tensor, its gradient)."""
    out = {}
    for name, p in list(block.named_parameters()) + list(block.named_buffers()):
        g = p.grad if p.grad is not None else None
        if name == "experts.gate_up_proj":
            for e in range(p.shape[0]):
                for half, part in ((slice(0, F), "gate_proj"), (slice(F, 2 * F), "up_proj")):
                    out[f"experts.{e}.{part}.weight"] = (p[e, half], g[e, half])
        elif name == "experts.down_proj":
            for e in range(p.shape[0]):
                out[f"experts.{e}.down_proj.weight"] = (p[e], g[e])
        else:
            out[name] = (p, g)
    return out


def make(path, block, kind, k, groups=1, top_groups=1):
    g = torch.Generator().manual_seed(3)

    def fill(t, std):
        with torch.no_grad():
            t.copy_(torch.randn(t.shape, generator=g) * std)

    for _, p in block.named_parameters():
        fill(p, 0.4)
    if kind == "v3":
        fill(block.gate.e_score_correction_bias, 0.2)
    rows = []
    while len(rows) < N:
        x = torch.randn(1, D, generator=g)
        if margins(x, block, kind, k, groups, top_groups).item() > 0.005:
            rows.append(x)
    x = torch.cat(rows).requires_grad_()
    dy = torch.randn(N, D, generator=g)
    y = block(x[None])[0]
    y.backward(dy)
    t = {"x": x, "y": y, "dy": dy, "dx": x.grad}
    for name, (w, d) in weights(block).items():
        t[f"w.{name}"] = w
        if d is not None:
            t[f"g.{name}"] = d
    save_file({n: v.detach().contiguous().clone() for n, v in t.items()}, path, {"format": "pt"})


def main():
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here
    sizes = dict(hidden_size=D, moe_intermediate_size=F, hidden_act="silu")
    deep = dict(sizes, n_shared_experts=2, num_attention_heads=2, num_key_value_heads=2)
    c = DeepseekV3Config(**deep, n_routed_experts=8, num_local_experts=8, num_experts_per_tok=3, n_group=4, topk_group=2,
                         norm_topk_prob=True, routed_scaling_factor=2.5)
    make(out / "deepseek-v3.safetensors", DeepseekV3MoE(c), "v3", 3, 4, 2)
    c = DeepseekV2Config(**deep, n_routed_experts=6, num_local_experts=6, num_experts_per_tok=2, n_group=3, topk_group=2,
                         topk_method="group_limited_greedy", norm_topk_prob=False, routed_scaling_factor=1.5)
    make(out / "deepseek-v2.safetensors", DeepseekV2Moe(c), "softmax", 2, 3, 2)
    c = MixtralConfig(hidden_size=D, intermediate_size=F, num_local_experts=5, num_experts_per_tok=2)
    make(out / "mixtral.safetensors", MixtralSparseMoeBlock(c), "softmax", 2)
    c = Qwen3MoeConfig(**sizes, num_experts=6, num_experts_per_tok=3, norm_topk_prob=False)
    make(out / "qwen3.safetensors", Qwen3MoeSparseMoeBlock(c), "softmax", 3)


main()
