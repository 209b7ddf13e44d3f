#!/usr/bin/env python3
"""Golden models of mamba2, as make_families.py makes them, and logits64 as in make_experts.py. Versions used and effects
are in families/versions-mamba2.json. Usage: make_mamba2.py [OUT]
"""
from make_families import main
from transformers import Mamba2Config

base = dict(vocab_size=24, hidden_size=12, num_hidden_layers=3, num_heads=4, head_dim=6, state_size=5, n_groups=2, expand=2,
            conv_kernel=3, chunk_size=4, bos_token_id=1, eos_token_id=2, pad_token_id=0, layer_norm_epsilon=1e-3)
cases = {
    "mamba2": (Mamba2Config, base, dict(layer_norm_epsilon=0.1)),
    "mamba2-biases": (Mamba2Config, {**base, "num_hidden_layers": 2, "hidden_size": 10, "num_heads": 3, "head_dim": 10,
                                     "expand": 3, "n_groups": 1, "conv_kernel": 4, "use_bias": True,
                                     "use_conv_bias": False, "tie_word_embeddings": True}, dict(layer_norm_epsilon=0.1)),
}
main(cases, "versions-mamba2.json", doubles=True, first=400)
