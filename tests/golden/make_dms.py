#!/usr/bin/env python3
"""Golden models with delayed eviction (DMS) in the forms in which they are published: dms/*.

    make_dms.py MODEL_OPTIMIZER [OUT]

MODEL_OPTIMIZER is a checkout of github.com/NVIDIA/Model-Optimizer (made with 913f5e224); OUT is dms/ next to this
script. The Qwen models are run by its experimental/dms on the CPU, from config.json to logits, but for dms_attention:
its kernels need a GPU, so the mask is typed here from the rule. Key j is hidden from queries more than dms_window_size
positions later if token j + 1 decided so. FastDMS has no CPU code: there transformers' Llama has the attention below,
typed from its fastdms/models/llama.py. Token j itself decides; its channel is 0 before the rotation and not after it.

Decisions are hard, so a logit near 0 could turn over: `nearest` is the smallest absolute one. `effect`: the largest
change of a logit of the model when nothing is evicted; `evicted`: the part of rows decided so."""
import json
import os
import pathlib
import shutil
import sys

os.environ["TORCHDYNAMO_DISABLE"] = "1"
import safetensors.torch
import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from make_families import Doubles

here = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, sys.argv[1] + "/experimental/dms")
import models.qwen3.modeling_qwen3_dms as nvidia
from models.qwen3.configuration_qwen3_dms import Qwen3ConfigDMS

BATCH, TOKENS = 2, 24
seen = dict(nearest=9e9, evicted=0, of=0, keep=False)


def masked(q, k, v, evict, window, scale):
    """q (B,H,T,D), k and v (B,G,T,D), evict (B,G,T): key j is gone more than `window` positions later."""
    T, group = q.shape[2], q.shape[1] // k.shape[1]
    i, j = torch.arange(T)[:, None], torch.arange(T)[None]
    gone = evict.bool()[:, :, None, :] & (i - j > window) & torch.tensor(not seen["keep"])
    seen["evicted"] += (gone & (j <= i)).any(2).sum().item()
    seen["of"] += gone.shape[0] * gone.shape[1] * T
    hidden = (gone | (j > i)).repeat_interleave(group, 1)
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    return (q @ k.transpose(2, 3) * scale).masked_fill(hidden, -torch.inf).softmax(-1) @ v


def note(logits):
    seen["nearest"] = min(seen["nearest"], logits.abs().min().item())


def dms_attention(new_q_flash, new_k, new_v, decisions, decision_logits, attn_scaling, window_size, **_):
    B, G, T, D = new_k.shape
    note(decision_logits)
    q = new_q_flash.transpose(1, 2).reshape(B, -1, T, D)
    evict = torch.nn.functional.pad(decisions[..., 1:], (0, 1))
    return masked(q, new_k, new_v, evict, window_size, attn_scaling).reshape(B, G, -1, T, D).transpose(2, 3)


nvidia.dms_attention = dms_attention
nvidia.Qwen3ForCausalLMDMS._tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # as version 5 asks
nvidia.create_causal_mask = lambda **_: None
nvidia.Qwen3ForCausalLMDMS.get_cache = lambda *_: None


def fast_forward(self, hidden_states, position_embeddings, **_):
    B, T, _ = hidden_states.shape
    heads = lambda x: x.view(B, T, -1, self.head_dim).transpose(1, 2)
    q, k, v = heads(self.q_proj(hidden_states)), heads(self.k_proj(hidden_states)), heads(self.v_proj(hidden_states))
    c, first = self.config, slice(None, None, self.num_key_value_groups)
    logits = q[:, first, :, -1] * c.dms_alpha_scale - c.dms_initial_alpha_offset
    note(logits)
    q = q.clone()
    q[:, first, :, -1] = 0
    q, k = apply_rotary_pos_emb(q, k, *position_embeddings)
    o = masked(q, k, v, logits > 0, c.dms_window_size, self.scaling)
    return self.o_proj(o.transpose(1, 2).reshape(B, T, -1)), None


class FastDms(LlamaForCausalLM):
    def __init__(self, config):
        super().__init__(config)
        for layer in self.model.layers:
            layer.self_attn.forward = fast_forward.__get__(layer.self_attn)


some = dict(vocab_size=24, hidden_size=16, intermediate_size=20, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2, head_dim=6, max_position_embeddings=32, rms_norm_eps=1e-5, bos_token_id=1,
            eos_token_id=2, rope_parameters=dict(rope_type="default", rope_theta=50.0))
short = dict(dms_window_size=3, dms_paged_attention_block_size=2)
published = ("dms_alpha_scale", "dms_initial_alpha_offset", "dms_window_size", "dms_cr")
adapter = dict(dms_separate_alpha=True, dms_alpha_scale=10.0)
# name: class, config, settings, keys of DMS that config.json keeps (None: all), further files, seed
cases = {
    "channel": (nvidia.Qwen3ForCausalLMDMS, Qwen3ConfigDMS, {**some, **short}, published, {}, 1),
    "adapter": (nvidia.Qwen3ForCausalLMDMS, Qwen3ConfigDMS,
                    {**some, **short, **adapter, "attention_bias": True, "dms_initial_alpha_offset": 2.0,
                     "tie_word_embeddings": True}, None, {}, 2),
    "layer": (nvidia.Qwen3ForCausalLMDMS, Qwen3ConfigDMS,
                  {**some, **short, **adapter, "dms_window_size": 4, "dms_alpha_per": "layer"}, None, {}, 3),
    "fast": (FastDms, LlamaConfig,
                 {**some, "dms_window_size": 3, "dms_alpha_scale": 100.0, "dms_initial_alpha_offset": 5.0, "dms_cr": 8},
                 published, {"dms_metadata.json": dict(window_size=3, alpha_scale=100.0, alpha_offset=5.0, target_cr=8)}, 4),
}


def randomise(model, seed):
    g = torch.Generator().manual_seed(seed)
    for name, p in sorted(model.named_parameters()):
        drawn = torch.randn(p.shape, generator=g)
        p.data = 0.3 * drawn + 1 if "norm" in name else 0.4 * drawn
    model.tie_weights()


def config_json(where, model_class, keep):
    path = where / "config.json"
    config = json.loads(path.read_text())
    for key in [k for k in config if k.startswith("dms_") and keep and k not in keep]:
        del config[key]
    if model_class is not FastDms:  # as its train.py does
        config.pop("architectures", None)
        config["auto_map"] = {"AutoConfig": "configuration_qwen3_dms.Qwen3ConfigDMS",
                              "AutoModelForCausalLM": "modeling_qwen3_dms.Qwen3ForCausalLMDMS"}
    else:
        config["architectures"] = ["LlamaForCausalLM"]
    path.write_text(json.dumps(config, indent=2) + "\n")


out = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else here / "dms"
torch.set_num_threads(1)
report = {}
for name, (model_class, config_class, settings, keep, files, seed) in cases.items():
    where = out / name
    shutil.rmtree(where, ignore_errors=True)
    model = model_class(config_class(**settings)).eval()
    randomise(model, seed)
    model.save_pretrained(where)
    config_json(where, model_class, keep)
    for file, content in files.items():
        (where / file).write_text(json.dumps(content, indent=2) + "\n")
    ids = torch.randint(0, settings["vocab_size"], (BATCH, TOKENS), generator=torch.Generator().manual_seed(100 + seed))
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits
        seen.update(keep=True)
        whole = model(input_ids=ids, use_cache=False).logits
        seen.update(keep=False, nearest=9e9, evicted=0, of=0)
        with Doubles():
            torch.set_default_dtype(torch.float64)
            double = model_class(config_class(**settings)).eval()
            double.load_state_dict(model.state_dict())
            exact = double(input_ids=ids, use_cache=False).logits
        torch.set_default_dtype(torch.float32)
    safetensors.torch.save_file({"input_ids": ids, "logits": logits.contiguous(), "logits64": exact.contiguous()},
                                where / "golden.safetensors")
    report[name] = {"max_logit": round(logits.abs().max().item(), 4), "nearest": round(seen["nearest"], 4),
                    "evicted": round(seen["evicted"] / seen["of"], 3),
                    "effect": round((whole - logits).abs().max().item(), 4),
                    "rounding": float("%.2g" % (exact - logits).abs().max().item())}
    print(name, report[name], sum(f.stat().st_size for f in where.iterdir()), "bytes")
versions = {"python": sys.version.split()[0], "torch": torch.__version__, "transformers": transformers.__version__,
            "safetensors": safetensors.__version__, "models": report}
(out / "versions.json").write_text(json.dumps(versions, indent=2) + "\n")
