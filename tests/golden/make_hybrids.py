#!/usr/bin/env python3
"""Golden hybrids of Qwen, as make_families.py makes them: qwen3_next and qwen3_5 with experts and without, and a model
that sees pictures, too, of which kvsmith reads the text model. Each also has logits64, those of the same weights with all
arithmetic in float64. Versions used and effects are in families/versions-hybrids.json. Usage: make_hybrids.py [OUT]
"""
import sys

from make_families import main
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig
from transformers.models.qwen3_5_moe.configuration_qwen3_5_moe import Qwen3_5MoeTextConfig
from transformers.models.qwen3_next.configuration_qwen3_next import Qwen3NextConfig

rope = dict(rope_type="default", rope_theta=50.0, partial_rotary_factor=0.5)
some = dict(vocab_size=24, hidden_size=15, intermediate_size=9, num_hidden_layers=2, num_attention_heads=3,
            num_key_value_heads=1, head_dim=8, max_position_embeddings=32, rms_norm_eps=1e-5, bos_token_id=1,
            eos_token_id=2, rope_parameters=rope, layer_types=["linear_attention", "full_attention"],
            linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=5, linear_value_head_dim=3,
            linear_conv_kernel_dim=4)
experts = dict(moe_intermediate_size=5, num_experts=5, num_experts_per_tok=2, shared_expert_intermediate_size=7)
mixed = ["full_attention", "linear_attention", "linear_attention"]
square = dict(linear_num_key_heads=2, linear_num_value_heads=2, linear_key_head_dim=3, linear_value_head_dim=3)
plain = dict(rope_parameters=dict(rope, partial_rotary_factor=1.0))
moe = {k: v for k, v in {**some, **experts}.items() if k != "intermediate_size"}
cases = {
    "qwen3_next": (Qwen3NextConfig, {**some, **experts}, plain),
    "qwen3_next-some": (Qwen3NextConfig, {**some, **experts, **square, "num_hidden_layers": 3, "layer_types": mixed,
                                          "mlp_only_layers": [1], "attention_bias": True, "norm_topk_prob": False,
                                          "tie_word_embeddings": True, "linear_conv_kernel_dim": 2,
                                          "shared_expert_intermediate_size": 5},
                        dict(norm_topk_prob=True)),
    "qwen3_5_text": (Qwen3_5TextConfig, {**some, "linear_num_key_heads": 1, "linear_num_value_heads": 3,
                                         "rope_parameters": dict(rope_type="linear", factor=2.0, rope_theta=50.0)},
                     dict(rope_parameters=dict(rope, partial_rotary_factor=0.25))),
    "qwen3_5_text-square": (Qwen3_5TextConfig, {**some, **square, "num_hidden_layers": 3, "layer_types": mixed,
                                                "attention_bias": True, "tie_word_embeddings": True}, plain),
    "qwen3_5_moe_text": (Qwen3_5MoeTextConfig, moe, plain),
}

main(cases, "versions-hybrids.json", doubles=True, experts_implementation="eager")
