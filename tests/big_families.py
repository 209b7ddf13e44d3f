#!/usr/bin/env python3
"""Outside CI: a file of 1e9 parameters of each model type is converted, and the peak of anonymous memory printed.

Usage: big_families.py KVSMITH [TYPE...]. Needs torch and transformers, which give names and shapes, and 7 GB below TMPDIR.
The models have the widths of a published one of about that size; the values of bf16 files are holes (zeros), those of
quantised files random codes and scales: `qwen3-fp8` in blocks of 128 x 128, `gpt_oss-mxfp4`. Each becomes a directory of
f16 in shards of 500 MB (quantised: bf16). Exit status 1 if one needs 1 GiB or more. flash-linear-attention's types
run if they are named and it can be imported, as in tests/golden/check_families.py.
"""
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time

import torch
import transformers
from transformers import AutoModelForCausalLM
from transformers.core_model_loading import revert_weight_conversion

LEAST, LIMIT = 10**9, 2**30
FULL, STATE = "full_attention", "linear_attention"
rope = dict(rope_type="default", rope_theta=1e6)
base = dict(vocab_size=32768, hidden_size=2048, intermediate_size=5632, num_attention_heads=16, num_key_value_heads=4,
            head_dim=128, max_position_embeddings=4096, rope_parameters=rope, bos_token_id=1, eos_token_id=2, pad_token_id=0,
            tie_word_embeddings=False)
plain = {k: v for k, v in base.items() if k != "head_dim"}
experts = dict(num_experts=16, num_experts_per_tok=4, moe_intermediate_size=704)
routed = dict(n_routed_experts=16, num_experts_per_tok=4, moe_intermediate_size=704, n_shared_experts=1, n_group=4, topk_group=2)
latent = dict({k: v for k, v in plain.items()}, num_key_value_heads=16, q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128,
              qk_rope_head_dim=64, v_head_dim=128, **routed)
linear = dict(linear_num_key_heads=16, linear_num_value_heads=32, linear_key_head_dim=128, linear_value_head_dim=128,
              linear_conv_kernel_dim=4)
kimi = dict({k: v for k, v in latent.items() if k not in ("rope_parameters", "n_routed_experts", "q_lora_rank")}, num_local_experts=16,
            linear_head_dim=128, linear_num_heads=16, linear_conv_kernel_dim=4)
mamba = dict(mamba_n_heads=32, mamba_expand=2, mamba_n_groups=1, mamba_d_state=128, mamba_d_conv=4)


def mixed(layers):
    return [STATE, STATE, STATE, FULL] * (layers // 4)


def parts(layers):
    return [STATE, "mlp", FULL, "moe"] * (layers // 4)


flash = {k: v for k, v in plain.items() if k not in ("rope_parameters", "num_attention_heads", "num_key_value_heads", "pad_token_id")}
# type: class, settings, those of them that depend on the number of layers
TYPES = {
    "llama": ("LlamaConfig", base, {}), "mistral": ("MistralConfig", base, {}), "qwen2": ("Qwen2Config", plain, {}),
    "qwen3": ("Qwen3Config", base, {}), "gpt_neox": ("GPTNeoXConfig", dict(
        {k: v for k, v in plain.items() if k not in ("num_key_value_heads", "rope_parameters")}, intermediate_size=8192), {}),
    "phi3": ("Phi3Config", dict(plain, sliding_window=2047), {}), "smollm3": ("SmolLM3Config", plain, {}),
    "granite": ("GraniteConfig", dict(plain, embedding_multiplier=12.0), {}), "olmo2": ("Olmo2Config", plain, {}),
    "gemma2": ("Gemma2Config", base, {}),
    "gemma3_text": ("Gemma3TextConfig", dict(base, rope_parameters=dict(sliding_attention=rope, full_attention=rope)), {}),
    "mixtral": ("MixtralConfig", dict(base, intermediate_size=1792, num_local_experts=8), {}),
    "qwen3_moe": ("Qwen3MoeConfig", dict(base, **experts), {}),
    "qwen2_moe": ("Qwen2MoeConfig", dict(plain, **experts, shared_expert_intermediate_size=5632), {}),
    "olmoe": ("OlmoeConfig", dict(plain, num_experts=16, num_experts_per_tok=4, intermediate_size=704), {}),
    "deepseek_v3": ("DeepseekV3Config", dict(latent, first_k_dense_replace=1), {}),
    "deepseek_v2": ("DeepseekV2Config", dict(latent, first_k_dense_replace=1, topk_method="group_limited_greedy"), {}),
    "glm4_moe": ("Glm4MoeConfig", dict(base, **routed, first_k_dense_replace=1), {}),
    "glm4_moe_lite": ("Glm4MoeLiteConfig", latent, {}),
    "qwen3_next": ("Qwen3NextConfig", dict(base, **experts, **linear, shared_expert_intermediate_size=704), dict(layer_types=mixed)),
    "qwen3_5_text": ("Qwen3_5TextConfig", dict(base, **linear), dict(layer_types=mixed)),
    "qwen3_5_moe_text": ("Qwen3_5MoeTextConfig", dict({k: v for k, v in base.items() if k != "intermediate_size"}, **experts, **linear,
                                                      shared_expert_intermediate_size=704), dict(layer_types=mixed)),
    "kimi_linear": ("KimiLinearConfig", kimi, dict(layer_types=mixed)),
    "bailing_hybrid": ("BailingHybridConfig", dict({k: v for k, v in kimi.items() if not k.startswith("linear")}, head_dim=128,
                                                   short_conv_kernel_size=4, num_mtp_layers=0), dict(layer_types=mixed)),
    "mamba2": ("Mamba2Config", dict(vocab_size=32768, hidden_size=2048, num_heads=64, head_dim=64, state_size=128, n_groups=1,
                                    tie_word_embeddings=False, bos_token_id=1, eos_token_id=2, pad_token_id=0), {}),
    "granitemoehybrid": ("GraniteMoeHybridConfig", dict(plain, intermediate_size=704, shared_intermediate_size=1408, num_local_experts=16,
                                                        num_experts_per_tok=4, **mamba), dict(layer_types=mixed)),
    "gpt_oss": ("GptOssConfig", dict(base, intermediate_size=704, num_local_experts=16, head_dim=64, num_attention_heads=32,
                                     num_key_value_heads=8), {}),
    "nemotron_h": ("NemotronHConfig", dict(
        {k: v for k, v in base.items() if k not in ("rope_parameters",)}, **{k: v for k, v in routed.items() if k != "n_shared_experts"},
        moe_shared_expert_intermediate_size=704, ssm_state_size=128, n_groups=8, mamba_num_heads=64, mamba_head_dim=64,
        time_step_min=1e-30), dict(layers_block_type=parts)),
    "gpt2": ("GPT2Config", dict(vocab_size=32768, n_embd=2048, n_head=16, n_positions=1024, bos_token_id=1, eos_token_id=2), {}),
    "qwen3-fp8": ("Qwen3Config", base, {}),
    "gpt_oss-mxfp4": ("GptOssConfig", dict(base, hidden_size=2880, intermediate_size=2880, num_local_experts=8, head_dim=64,
                                           num_attention_heads=64, num_key_value_heads=8), {}),
}
FLA = {
    "kda": ("KDAConfig", dict(flash, num_heads=16, head_dim=128), {}),
    "gated_deltanet": ("GatedDeltaNetConfig", dict(flash, num_heads=8, head_dim=192), {}),
    "delta_net": ("DeltaNetConfig", dict(flash, num_heads=16), {}),
    "gla": ("GLAConfig", dict(flash, num_heads=4), {}),
    "retnet": ("RetNetConfig", dict(flash, num_heads=8), {}),
}


def model_of(name, layers, where):
    kind, settings, by_layers = (TYPES | FLA)[name]
    number = {"gpt2": "n_layer"}.get(name, "num_hidden_layers")
    settings = dict(settings, **{k: f(layers) for k, f in by_layers.items()})
    if name != "nemotron_h":
        settings[number] = layers
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(getattr(where, kind)(**settings), dtype=torch.bfloat16)


def published(name, model):
    """Names and shapes of the tensors of its files."""
    tensors = dict(model.state_dict())
    if model.config.tie_word_embeddings:
        del tensors["lm_head.weight"]
    with torch.device("meta"):
        tensors = revert_weight_conversion(model, tensors)
    if name == "kimi_linear":
        tensors = {re.sub(r"block_sparse_moe\.((gate|up|down)_proj\.)", r"mlp.\1", k): t for k, t in tensors.items()}
    return {k: tuple(t.shape) for k, t in tensors.items()}


SIZE = dict(BF16=2, F8_E4M3=1, U8=1)


def stored(name, shapes):
    """dtype and shape of what the file holds."""
    for key, shape in shapes.items():
        if name == "qwen3-fp8" and len(shape) == 2 and "proj" in key:
            yield key, "F8_E4M3", shape
            yield key + "_scale_inv", "BF16", tuple(-(-n // 128) for n in shape)
        elif name == "gpt_oss-mxfp4" and len(shape) == 3:
            yield key + "_blocks", "U8", (shape[0], shape[2], shape[1] // 32, 16)
            yield key + "_scales", "U8", (shape[0], shape[2], shape[1] // 32)
        else:
            yield key, "BF16", shape


def content(key, dtype, n):
    """Codes that are numbers, and scales near 1/100 for them; n bytes. None: a hole."""
    if dtype == "F8_E4M3":
        return os.urandom(n).translate(bytes(b & 0x7F != 0x7F and b or 0 for b in range(256)))
    if key.endswith("_blocks"):
        return os.urandom(n)
    if key.endswith("_scales"):
        return bytes([120]) * n
    if key.endswith("_scale_inv"):
        return struct.pack("<H", 0x3C24) * (n // 2)  # 0.01 in bf16
    return None


def write(path, tensors):
    header, at = {}, 0
    for key, dtype, shape in tensors:
        n = SIZE[dtype]
        for d in shape:
            n *= d
        header[key] = dict(dtype=dtype, shape=shape, data_offsets=[at, at + n])
        at += n
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        begin = f.tell()
        for key, entry in header.items():
            first, last = entry["data_offsets"]
            data = content(key, entry["dtype"], last - first)
            if data is not None:
                f.seek(begin + first)
                f.write(data)
        f.truncate(begin + at)


def convert(kvsmith, here, there, dtype):
    """Seconds, and the peak of anonymous memory in bytes."""
    start, most = time.time(), 0
    p = subprocess.Popen([kvsmith, "convert", here, there, "--to", "same", "dtype=" + dtype, "shard=500MB", "-q"], stdout=subprocess.DEVNULL)
    while p.poll() is None:
        try:
            text = pathlib.Path(f"/proc/{p.pid}/status").read_text()
            most = max(most, 1024 * int(re.search(r"RssAnon:\s*(\d+)", text)[1]))
        except (OSError, TypeError):
            pass
        time.sleep(0.02)
    if p.returncode:
        raise SystemExit(f"convert ended with status {p.returncode}")
    return time.time() - start, most


def main():
    kvsmith, failed = sys.argv[1], 0
    for name in sys.argv[2:] or TYPES:
        where = __import__("fla.models", fromlist=["x"]) if name in FLA else transformers
        layers = 4
        model = model_of(name, layers, where)
        while sum(p.numel() for p in model.parameters()) < LEAST:
            layers += 4
            model = model_of(name, layers, where)
        with tempfile.TemporaryDirectory() as tmp:
            here, there = pathlib.Path(tmp) / "here", pathlib.Path(tmp) / "there"
            here.mkdir()
            config = json.loads(model.config.to_json_string(use_diff=False))
            config["architectures"] = [type(model).__name__]
            if name == "qwen3-fp8":
                config["quantization_config"] = dict(quant_method="fp8", activation_scheme="dynamic", fmt="e4m3",
                                                     weight_block_size=[128, 128])
            if name == "gpt_oss-mxfp4":
                config["quantization_config"] = dict(quant_method="mxfp4")
            (here / "config.json").write_text(json.dumps(config))
            write(here / "model.safetensors", list(stored(name, published(name, model))))
            seconds, most = convert(kvsmith, here, there, "bf16" if "-" in name else "f16")
            shutil.rmtree(here)
        params = sum(p.numel() for p in model.parameters())
        print(f"{'not ' * (most >= LIMIT)}ok {name}: {params / 1e9:.2f}e9 parameters in {layers} layers, at most {most / 2**20:.0f} MiB "
              f"of anonymous memory, {seconds:.0f} s", flush=True)
        failed += most >= LIMIT
    sys.exit(failed > 0)


main()
