#!/usr/bin/env python3
"""Golden models of flash-linear-attention's kda, gated_deltanet, delta_net, gla, retnet and mamba2, as make_families.py makes
them and fla_eager.py computes them, and logits64 as in make_experts.py. Versions used and effects are in
families/versions-fla.json. Needs also einops, flash-linear-attention and fla-core 0.6.0. Usage: make_fla.py [OUT]
"""
import fla_eager  # noqa: F401  (replaces and registers)
from fla.models import DeltaNetConfig, GatedDeltaNetConfig, GLAConfig, KDAConfig, Mamba2Config, RetNetConfig
from make_families import main

base = dict(vocab_size=24, hidden_size=12, intermediate_size=7, num_hidden_layers=2, max_position_embeddings=32, norm_eps=1e-3,
            bos_token_id=1, eos_token_id=2)
three = {**base, "num_hidden_layers": 3, "tie_word_embeddings": True}


def attn(*layers, **other):
    return dict(layers=list(layers), num_heads=3, num_kv_heads=1, qkv_bias=True, window_size=5, rope_theta=50.0, **other)


cases = {
    "kda": (KDAConfig, {**base, "num_heads": 2, "head_dim": 5, "conv_size": 3}, dict(norm_eps=0.1)),
    "kda-hybrid": (KDAConfig, {**three, "num_heads": 2, "num_v_heads": 4, "head_dim": 3, "expand_v": 4 / 3, "lower_bound": -3.0,
                               "safe_gate": True, "allow_neg_eigval": True, "use_short_conv": False, "norm_eps": 0.02, "attn": attn(1)},
                   dict(lower_bound=-2.0)),
    "gated_deltanet": (GatedDeltaNetConfig, {**base, "num_heads": 2, "num_v_heads": 4, "head_dim": 6, "expand_v": 0.5},
                       dict(output_gate_activation="sigmoid")),
    "gated_deltanet-hybrid": (GatedDeltaNetConfig, {
        **three, "num_heads": 3, "head_dim": 2, "output_gate_activation": "sigmoid", "allow_neg_eigval": True, "conv_size": 2,
        "attn": [attn(2), dict(layers=[0], num_heads=2)]}, dict(output_gate_activation="swish")),
    "delta_net": (DeltaNetConfig, {**base, "num_heads": 3, "expand_k": 0.5, "expand_v": 1.25}, dict(allow_neg_eigval=True)),
    "delta_net-hybrid": (DeltaNetConfig, {**three, "num_heads": 2, "use_gate": True, "use_short_conv": False,
                                          "allow_neg_eigval": True, "attn": attn(0)}, dict(allow_neg_eigval=False)),
    "gla": (GLAConfig, {**base, "num_heads": 2, "use_short_conv": True, "conv_size": 3}, dict(norm_eps=0.1)),
    "gla-hybrid": (GLAConfig, {**three, "num_heads": 6, "num_kv_heads": 2, "expand_k": 1, "use_output_gate": False,
                               "attn": attn(1, 2)}, dict(attn=attn(1, 2) | dict(window_size=None))),
    "retnet": (RetNetConfig, {**base, "num_heads": 2, "expand_k": 1 / 3}, dict(norm_eps=0.1)),
    "retnet-hybrid": (RetNetConfig, {**three, "num_heads": 3, "expand_v": 0.5, "use_output_gate": False, "attn": attn(0)},
                      dict(attn=attn(0) | dict(rope_theta=9.0))),
    "mamba2-fla": (Mamba2Config, {**{k: v for k, v in base.items() if k not in ("intermediate_size", "max_position_embeddings")},
                                  "head_dim": 6, "expand": 2, "state_size": 5, "conv_kernel": 3, "chunk_size": 4},
                   dict(norm_eps=0.1)),
}
main(cases, "versions-fla.json", doubles=True, first=500)
