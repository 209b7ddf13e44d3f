#!/usr/bin/env python3
"""Golden models of bailing_hybrid, as make_families.py makes them, and logits64 as in make_experts.py. Versions used and
effects are in families/versions-bailing.json. Usage: make_bailing.py [OUT]
"""
from make_families import main
from transformers import BailingHybridConfig

FULL, DELTA = "full_attention", "linear_attention"
base = dict(vocab_size=24, hidden_size=15, intermediate_size=9, moe_intermediate_size=5, num_attention_heads=3,
            num_key_value_heads=3, kv_lora_rank=6, qk_nope_head_dim=4, qk_rope_head_dim=2, v_head_dim=3, n_group=1,
            topk_group=1, num_experts_per_tok=2, num_local_experts=5, max_position_embeddings=32, head_dim=4,
            short_conv_kernel_size=3, bos_token_id=1, eos_token_id=2, pad_token_id=0, rms_norm_eps=1e-4,
            num_mtp_layers=0)
cases = {
    "bailing_hybrid": (BailingHybridConfig, {**base, "num_hidden_layers": 4, "layer_group_size": 2,
                                             "first_k_dense_replace": 1},
                       dict(norm_topk_prob=False)),
    "bailing_hybrid-groups": (BailingHybridConfig, {**base, "num_hidden_layers": 3, "layer_types": [FULL, DELTA, FULL],
                                                    "mlp_layer_types": ["sparse", "dense", "sparse"], "q_lora_rank": 5,
                                                    "num_local_experts": 6, "n_group": 3, "topk_group": 2,
                                                    "routed_scaling_factor": 1.5, "attention_bias": True,
                                                    "short_conv_kernel_size": 4, "kda_safe_gate": False,
                                                    "rope_theta": 100.0, "head_dim": 5, "n_shared_experts": 2},
                              dict(topk_group=3)),
}
main(cases, "versions-bailing.json", doubles=True, first=2, experts_implementation="eager")
