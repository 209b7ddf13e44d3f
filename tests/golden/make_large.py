#!/usr/bin/env python3
"""Shapes of Mixtral-8x7B, DeepSeek-V3 and Qwen3-Next-80B, which are the defaults of their classes in transformers, and of
gpt-oss-20b, which differs from them in layers and experts (openai/gpt-oss-20b, config.json): config.json, and in shape.json the number of parameters of the model on the meta device, how many numbers of buffers a checkpoint holds in
addition, how many tensors, and the FNV-1a hash (64 bits) of a line "NAME N[,N]" for each, sorted by name. Experts are
named as published files name them, which make_experts.py shows in small. Usage: make_large.py [OUT]
"""
import json
import pathlib
import sys

import torch
from transformers import AutoModelForCausalLM, DeepseekV3Config, GptOssConfig, MixtralConfig, Qwen3NextConfig

here = pathlib.Path(__file__).resolve().parent


def stored(kind, name, shape):
    """The tensors of a checkpoint that a tensor of the model is."""
    if kind == "gpt_oss" or not (name.endswith("experts.gate_up_proj") or name.endswith("experts.down_proj")):
        yield (name.replace(".mlp.", ".block_sparse_moe.") if kind == "mixtral" else name), shape
        return
    base, what = name.rsplit(".", 1)
    mixtral = kind == "mixtral"
    parts = dict(gate_up_proj=["w1", "w3"] if mixtral else ["gate_proj", "up_proj"],
                 down_proj=["w2"] if mixtral else ["down_proj"])[what]
    for e in range(shape[0]):
        for part in parts:
            yield f"{base.replace('.mlp.', '.block_sparse_moe.') if mixtral else base}.{e}.{part}.weight", (
                shape[1] // len(parts), shape[2])


def main():
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here / "large"
    for config in (MixtralConfig(), DeepseekV3Config(), Qwen3NextConfig(), GptOssConfig(num_hidden_layers=24, num_local_experts=32)):
        kind = config.model_type
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        lines = sorted(f"{n} {','.join(map(str, s))}\n" for name, t in model.state_dict().items()
                       for n, s in stored(kind, name, tuple(t.shape)))
        hash = 0xCBF29CE484222325
        for byte in "".join(lines).encode():
            hash = (hash ^ byte) * 0x100000001B3 % 2**64
        params = sum(p.numel() for p in model.parameters())
        where = out / kind
        where.mkdir(parents=True, exist_ok=True)
        config.architectures = [type(model).__name__]
        (where / "config.json").write_text(config.to_json_string(use_diff=False))
        shape = dict(params=params, buffers=sum(t.numel() for t in model.state_dict().values()) - params,
                     tensors=len(lines), hash=f"{hash:016x}")
        (where / "shape.json").write_text(json.dumps(shape) + "\n")
        print(kind, shape)


main()
