#!/usr/bin/env python3
"""Golden rotary frequencies: what transformers' modeling_rope_utils makes of some settings. Needs torch and transformers;
their versions stand in the file. Usage: make_rope.py > rope.txt

A line a case:  name n max_positions length | key=value ... | attention_factor f_0 f_1 ...
Keys are kvsmith's (lists by commas); `length` is the sequence length that transformers is asked for, 0 for none.
"""
import random

import torch
import transformers
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

random.seed(7)
names = {"type": "rope_type", "theta": "rope_theta", "original_max_positions": "original_max_position_embeddings"}
short = [round(1 + random.random(), 3) for _ in range(24)]
long = [round(1 + 8 * random.random(), 3) for _ in range(24)]
llama3 = dict(type="llama3", low_freq_factor=1.0, high_freq_factor=4.0)
cases = [
    ("linear", 64, 4096, 0, dict(type="linear", theta=10000.0, factor=4.0)),
    ("linear-wide", 128, 32768, 0, dict(type="linear", theta=1e6, factor=2.5)),
    ("dynamic-short", 64, 2048, 1500, dict(type="dynamic", theta=10000.0, factor=4.0)),
    ("dynamic-long", 64, 2048, 7000, dict(type="dynamic", theta=10000.0, factor=4.0)),
    ("dynamic-none", 32, 512, 0, dict(type="dynamic", theta=500.0, factor=2.0)),
    ("llama3.1", 128, 131072, 0, dict(llama3, theta=500000.0, factor=8.0, original_max_positions=8192)),
    ("llama3.2", 64, 131072, 0, dict(llama3, theta=500000.0, factor=32.0, original_max_positions=8192)),
    ("llama3-small", 16, 128, 0, dict(llama3, theta=100.0, factor=4.0, original_max_positions=32, low_freq_factor=0.7,
                                      high_freq_factor=3.0)),
    ("yarn", 64, 163840, 0, dict(type="yarn", theta=10000.0, factor=40.0, original_max_positions=4096)),
    ("yarn-mscale", 64, 163840, 0, dict(type="yarn", theta=10000.0, factor=40.0, original_max_positions=4096,
                                        mscale=0.707, mscale_all_dim=1.2)),
    ("yarn-one-mscale", 64, 163840, 0, dict(type="yarn", theta=10000.0, factor=40.0, original_max_positions=4096,
                                            mscale=0.707)),
    ("yarn-given", 64, 32768, 0, dict(type="yarn", theta=1e6, factor=4.0, original_max_positions=8192,
                                      attention_factor=1.25)),
    ("yarn-exact", 128, 131072, 0, dict(type="yarn", theta=150000.0, factor=32.0, original_max_positions=4096,
                                        truncate=False)),
    ("yarn-betas", 48, 4096, 0, dict(type="yarn", theta=10000.0, factor=2.0, original_max_positions=2048,
                                     beta_fast=20.0, beta_slow=3.0)),
    ("yarn-short", 32, 256, 0, dict(type="yarn", theta=10000.0, factor=4.0, original_max_positions=64)),
    ("longrope-short", 48, 131072, 3000, dict(type="longrope", theta=10000.0, original_max_positions=4096,
                                              short_factor=short, long_factor=long)),
    ("longrope-long", 48, 131072, 5000, dict(type="longrope", theta=10000.0, original_max_positions=4096,
                                             short_factor=short, long_factor=long)),
    ("longrope-given", 48, 8192, 5000, dict(type="longrope", theta=10000.0, original_max_positions=4096,
                                            attention_factor=1.19, short_factor=short, long_factor=long)),
    ("longrope-factor", 48, 8192, 5000, dict(type="longrope", theta=10000.0, original_max_positions=4096, factor=16.0,
                                             short_factor=short, long_factor=long)),
]
print(f"# transformers {transformers.__version__}, torch {torch.__version__}; made by make_rope.py")
for name, n, positions, length, rope in cases:
    config = LlamaConfig(hidden_size=2 * n, num_attention_heads=2, head_dim=n, max_position_embeddings=positions,
                         rope_parameters={names.get(k, k): v for k, v in rope.items()})
    f, factor = ROPE_INIT_FUNCTIONS[rope["type"]](config, torch.device("cpu"), seq_len=length or None)
    keys = " ".join(f"{k}={','.join(map(str, v)) if isinstance(v, list) else str(v).lower()}" for k, v in rope.items())
    print(f"{name} {n} {positions} {length} | {keys} | {factor:.17g} " + " ".join(f"{x:.9g}" for x in f.tolist()))
