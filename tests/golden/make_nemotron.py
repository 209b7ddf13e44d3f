#!/usr/bin/env python3
"""Golden models of nemotron_h, as make_families.py makes them, and logits64 as in make_experts.py. Versions used and effects are in
families/versions-nemotron.json. Usage: make_nemotron.py [OUT]

time_step_min: transformers raises lower steps to it, which the published implementation does not; see hf_nemotron_h.c.
"""
from make_families import main
from transformers import NemotronHConfig

MAMBA, FULL, MLP, MOE = "linear_attention", "full_attention", "mlp", "moe"
base = dict(vocab_size=24, hidden_size=11, intermediate_size=13, layers_block_type=[MAMBA, MLP, FULL, MAMBA, MLP],
            num_attention_heads=4, num_key_value_heads=2, head_dim=5, max_position_embeddings=64, ssm_state_size=5,
            mamba_num_heads=4, mamba_head_dim=3, n_groups=2, conv_kernel=3, chunk_size=4, layer_norm_epsilon=1e-3,
            bos_token_id=1, eos_token_id=2, time_step_min=1e-30)
cases = {
    "nemotron_h": (NemotronHConfig, {**base, "use_bias": True, "mlp_bias": True, "use_conv_bias": False},
                   dict(layer_norm_epsilon=0.1)),
    "nemotron_h-experts": (NemotronHConfig, {**base, "layers_block_type": [MOE, MAMBA, MOE, FULL], "n_routed_experts": 6,
                                             "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "moe_latent_size": 7,
                                             "moe_intermediate_size": 5, "moe_shared_expert_intermediate_size": 9,
                                             "routed_scaling_factor": 2.5}, dict(norm_topk_prob=False)),
    "nemotron_h-plain": (NemotronHConfig, {**base, "layers_block_type": [FULL, MOE, MLP], "n_routed_experts": 4,
                                           "moe_intermediate_size": 6, "moe_shared_expert_intermediate_size": 6,
                                           "norm_topk_prob": False, "n_groups": 1}, dict(num_experts_per_tok=1)),
}
main(cases, "versions-nemotron.json", doubles=True, first=500, experts_implementation="eager")
