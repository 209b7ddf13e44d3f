#!/usr/bin/env python3
"""Shapes of published models: config.json, and in shape.json the number of parameters of the model on the meta device,
how many numbers of buffers a checkpoint holds in addition, how many tensors, and the FNV-1a hash (64 bits) of a line
"NAME N[,N]" for each, sorted by name, as transformers saves them. Usage: make_large.py [OUT]

Mixtral-8x7B, DeepSeek-V3, Qwen3-Next-80B and Ling 3 are the defaults of their classes. gpt-oss-20b differs from its own
in layers and experts (openai/gpt-oss-20b, config.json), Kimi-Linear-48B in which layers attend
(moonshotai/Kimi-Linear-48B-A3B-Base), Qwen 3.5 in sizes (Qwen/Qwen3.5-0.8B, -4B and -27B, of which this is the text
model).
"""
import json
import pathlib
import re
import sys

import torch
from transformers import (AutoModelForCausalLM, BailingHybridConfig, DeepseekV3Config, GptOssConfig, KimiLinearConfig,
                          MixtralConfig, Qwen3_5TextConfig, Qwen3NextConfig)
from transformers.core_model_loading import revert_weight_conversion

here = pathlib.Path(__file__).resolve().parent


def qwen(hidden, layers, inner, heads, groups, values, tied):
    return Qwen3_5TextConfig(hidden_size=hidden, num_hidden_layers=layers, intermediate_size=inner, num_attention_heads=heads,
                             num_key_value_heads=groups, linear_num_value_heads=values, tie_word_embeddings=tied,
                             rope_parameters=dict(rope_type="default", rope_theta=1e7, partial_rotary_factor=0.25),
                             max_position_embeddings=262144)


attend = 3, 7, 11, 15, 19, 23, 26
configs = {
    "mixtral": MixtralConfig(),
    "deepseek_v3": DeepseekV3Config(),
    "qwen3_next": Qwen3NextConfig(),
    "gpt_oss": GptOssConfig(num_hidden_layers=24, num_local_experts=32),
    "kimi_linear": KimiLinearConfig(layer_types=[("full" if n in attend else "linear") + "_attention" for n in range(27)]),
    "bailing_hybrid": BailingHybridConfig(num_mtp_layers=0),
    "qwen3_5-0.8b": qwen(1024, 24, 3584, 8, 2, 16, True),
    "qwen3_5-4b": qwen(2560, 32, 9216, 16, 4, 32, True),
    "qwen3_5-27b": qwen(5120, 64, 17408, 24, 4, 48, False),
}


def main():
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here / "large"
    for kind, config in configs.items():
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        tensors = dict(model.state_dict())
        params = sum(p.numel() for p in model.parameters())
        buffers = sum(t.numel() for name, t in tensors.items() if name not in dict(model.named_parameters(remove_duplicate=False)))
        if config.tie_word_embeddings:
            del tensors["lm_head.weight"]
        with torch.device("meta"):
            tensors = revert_weight_conversion(model, tensors)
        if kind == "kimi_linear":  # dense parts have their published name in the files
            tensors = {re.sub(r"block_sparse_moe\.((gate|up|down)_proj\.)", r"mlp.\1", k): t for k, t in tensors.items()}
        lines = sorted(f"{n} {','.join(map(str, t.shape))}\n" for n, t in tensors.items())
        hash = 0xCBF29CE484222325
        for byte in "".join(lines).encode():
            hash = (hash ^ byte) * 0x100000001B3 % 2**64
        where = out / kind
        where.mkdir(parents=True, exist_ok=True)
        config.architectures = [type(model).__name__]
        (where / "config.json").write_text(config.to_json_string(use_diff=False))
        shape = dict(params=params, buffers=buffers, tensors=len(lines), hash=f"{hash:016x}")
        (where / "shape.json").write_text(json.dumps(shape) + "\n")
        print(kind, shape)


main()
