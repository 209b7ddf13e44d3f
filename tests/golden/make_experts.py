#!/usr/bin/env python3
"""Golden models with experts, as make_families.py makes them: mixtral, qwen3_moe, qwen2_moe, deepseek_v3,
deepseek_v2, olmoe, glm4_moe and glm4_moe_lite. Each also has logits64, those of the same weights with all arithmetic in float64. Versions used and effects
are in families/versions-experts.json. Usage: make_experts.py [OUT]
"""
from make_families import main
from transformers import (DeepseekV2Config, DeepseekV3Config, Glm4MoeConfig, Glm4MoeLiteConfig, MixtralConfig,
                          OlmoeConfig, Qwen2MoeConfig, Qwen3MoeConfig)

rope = dict(rope_type="default", rope_theta=50.0)
some = dict(vocab_size=24, hidden_size=15, intermediate_size=9, num_hidden_layers=2, num_attention_heads=3,
            num_key_value_heads=1, head_dim=6, max_position_embeddings=32, rms_norm_eps=1e-5, bos_token_id=1,
            eos_token_id=2, rope_parameters=rope)
qwen = {**some, "moe_intermediate_size": 7, "num_experts": 5, "num_experts_per_tok": 2}
olmoe = {k: v for k, v in some.items() if k != "head_dim"}
olmoe.update(hidden_size=12, num_attention_heads=2, num_experts=5, num_experts_per_tok=2, norm_topk_prob=False)
latent = dict(vocab_size=24, hidden_size=15, intermediate_size=11, num_hidden_layers=3, num_attention_heads=3,
              num_key_value_heads=3, q_lora_rank=None, kv_lora_rank=5, qk_nope_head_dim=3, qk_rope_head_dim=4,
              v_head_dim=7, max_position_embeddings=32, rms_norm_eps=1e-4, bos_token_id=1, eos_token_id=2,
              moe_intermediate_size=5, n_shared_experts=1, rope_parameters=rope)
v3 = {**latent, "first_k_dense_replace": 1, "n_routed_experts": 8, "num_experts_per_tok": 3, "n_group": 4,
      "topk_group": 2, "routed_scaling_factor": 2.5, "norm_topk_prob": True}
v2 = {**latent, "kv_lora_rank": 6, "qk_nope_head_dim": 2}  # its class turns pairs, which must not begin at odd places
yarn = dict(rope_type="yarn", rope_theta=50.0, factor=4.0, original_max_position_embeddings=8, mscale=0.7,
            mscale_all_dim=1.5, beta_fast=4.0, beta_slow=1.0)
glm = {**some, "num_hidden_layers": 3, "head_dim": 8, "moe_intermediate_size": 5, "n_routed_experts": 6,
       "num_experts_per_tok": 2, "routed_scaling_factor": 1.5, "rope_parameters": dict(rope)}  # its class adds to it
lite = {**latent, "n_routed_experts": 6, "num_experts_per_tok": 3, "q_lora_rank": 4, "routed_scaling_factor": 1.8}
cases = {
    "mixtral": (MixtralConfig, {**some, "num_local_experts": 4, "num_experts_per_tok": 2}, dict(num_experts_per_tok=1)),
    "mixtral-window": (MixtralConfig, {**some, "num_hidden_layers": 1, "num_local_experts": 3, "num_experts_per_tok": 1,
                                       "sliding_window": 5, "tie_word_embeddings": True}, dict(sliding_window=None)),
    "qwen3_moe": (Qwen3MoeConfig, {**qwen, "norm_topk_prob": True}, dict(norm_topk_prob=False)),
    "qwen3_moe-some": (Qwen3MoeConfig, {**qwen, "num_hidden_layers": 3, "mlp_only_layers": [1], "attention_bias": True,
                                        "use_sliding_window": True, "sliding_window": 4, "num_experts_per_tok": 3},
                       dict(use_sliding_window=False)),
    "qwen2_moe": (Qwen2MoeConfig, {**qwen, "shared_expert_intermediate_size": 11, "num_experts_per_tok": 3},
                  dict(norm_topk_prob=True)),
    "qwen2_moe-step": (Qwen2MoeConfig, {**qwen, "num_hidden_layers": 3, "decoder_sparse_step": 2, "norm_topk_prob": True,
                                        "shared_expert_intermediate_size": 7, "qkv_bias": False,
                                        "use_sliding_window": True, "sliding_window": 4, "tie_word_embeddings": True,
                                        "layer_types": ["full_attention", "sliding_attention", "full_attention"]},
                       dict(use_sliding_window=False, layer_types=["full_attention"] * 3)),
    "deepseek_v3": (DeepseekV3Config, v3, dict(topk_group=4)),
    "deepseek_v3-yarn": (DeepseekV3Config, {**v3, "num_hidden_layers": 2, "first_k_dense_replace": 0, "q_lora_rank": 6,
                                            "n_routed_experts": 5, "n_group": 1, "topk_group": 1, "n_shared_experts": 2,
                                            "norm_topk_prob": False, "attention_bias": True, "rope_parameters": yarn},
                         dict(routed_scaling_factor=1.0)),
    "deepseek_v2": (DeepseekV2Config, {**v2, "first_k_dense_replace": 1, "n_routed_experts": 6,
                                       "num_experts_per_tok": 2, "n_shared_experts": 2, "q_lora_rank": 4},
                    dict(num_experts_per_tok=1)),
    "deepseek_v2-groups": (DeepseekV2Config, {**v2, "num_hidden_layers": 2, "n_routed_experts": 6,
                                              "num_experts_per_tok": 3, "topk_method": "group_limited_greedy",
                                              "n_group": 3, "topk_group": 2, "routed_scaling_factor": 1.5,
                                              "tie_word_embeddings": True, "rope_parameters": yarn},
                           dict(topk_group=3)),
    "olmoe": (OlmoeConfig, olmoe, dict(norm_topk_prob=True)),
    "olmoe-biases": (OlmoeConfig, {**olmoe, "num_hidden_layers": 1, "attention_bias": True, "num_key_value_heads": 2,
                                   "norm_topk_prob": True, "tie_word_embeddings": True}, dict(norm_topk_prob=False)),
    "glm4_moe": (Glm4MoeConfig, {**glm, "attention_bias": True, "use_qk_norm": True}, dict(routed_scaling_factor=1.0)),
    "glm4_moe_lite": (Glm4MoeLiteConfig, {**lite, "mlp_layer_types": ["sparse", "dense", "sparse"]},
                      dict(norm_topk_prob=False)),
    "glm4_moe_lite-plain": (Glm4MoeLiteConfig, {**lite, "norm_topk_prob": False, "attention_bias": True,
                                                "n_shared_experts": 2}, dict(norm_topk_prob=True)),
    "glm4_moe-groups": (Glm4MoeConfig, {**glm, "num_hidden_layers": 2, "first_k_dense_replace": 0, "n_group": 3,
                                        "topk_group": 2, "n_shared_experts": 2, "norm_topk_prob": False,
                                        "num_key_value_heads": 3, "tie_word_embeddings": True,
                                        "rope_parameters": {**rope, "partial_rotary_factor": 0.25}},
                        dict(topk_group=3)),
}

# the grouped products of torch ask for strides that odd sizes do not have
main(cases, "versions-experts.json", doubles=True, experts_implementation="eager")
