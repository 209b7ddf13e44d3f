#!/usr/bin/env python3
"""Golden models of mamba2 and granitemoehybrid, as make_families.py makes them, and logits64 as in make_experts.py. Versions used and effects
are in families/versions-mamba2.json. Usage: make_mamba2.py [OUT]
"""
from make_families import main
from transformers import GraniteMoeHybridConfig, Mamba2Config

base = dict(vocab_size=24, hidden_size=12, num_hidden_layers=3, num_heads=4, head_dim=6, state_size=5, n_groups=2, expand=2,
            conv_kernel=3, chunk_size=4, bos_token_id=1, eos_token_id=2, pad_token_id=0, layer_norm_epsilon=1e-3)
MAMBA, FULL = "linear_attention", "full_attention"
granite = dict(vocab_size=24, hidden_size=12, intermediate_size=5, shared_intermediate_size=7, num_hidden_layers=3,
               num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=32, num_local_experts=5,
               num_experts_per_tok=2, layer_types=[MAMBA, FULL, MAMBA], mamba_n_heads=4, mamba_n_groups=2, mamba_d_state=5,
               mamba_d_conv=3, mamba_chunk_size=4, embedding_multiplier=2.0, residual_multiplier=0.6, logits_scaling=3.0,
               attention_multiplier=0.3, bos_token_id=1, eos_token_id=2, rms_norm_eps=1e-3)
cases = {
    "mamba2": (Mamba2Config, base, dict(layer_norm_epsilon=0.1)),
    "mamba2-biases": (Mamba2Config, {**base, "num_hidden_layers": 2, "hidden_size": 10, "num_heads": 3, "head_dim": 10,
                                     "expand": 3, "n_groups": 1, "conv_kernel": 4, "use_bias": True,
                                     "use_conv_bias": False, "tie_word_embeddings": True}, dict(layer_norm_epsilon=0.1)),
    "granitemoehybrid": (GraniteMoeHybridConfig, granite, dict(num_experts_per_tok=1)),
    "granitemoehybrid-dense": (GraniteMoeHybridConfig, {**granite, "num_local_experts": 0, "num_key_value_heads": 2,
                                                        "layer_types": [FULL, MAMBA, FULL], "attention_bias": True,
                                                        "position_embedding_type": "rope", "tie_word_embeddings": True,
                                                        "mamba_proj_bias": True, "mamba_conv_bias": False,
                                                        "rope_parameters": dict(rope_type="default", rope_theta=50.0)},
                               dict(position_embedding_type=None)),
}
main(cases, "versions-mamba2.json", doubles=True, first=400, experts_implementation="eager")
