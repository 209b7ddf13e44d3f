#!/usr/bin/env python3
"""make_kvpress.py: which rows kvpress keeps of the drawn tensors of make_policies.py, where it has the same rule.

kvpress 0.5.5 on torch 2.15 and transformers 5.23, on a CPU: its presses score one attention layer whose q_proj is the
identity, on the drawn queries before their rotation. tests/layers/test_policy_golden.c feeds the same tensors to the
program's cache. Where they differ this script follows the program: rows of `window` and `sinks` always stay, and a
budget in rows becomes a ratio. Not here: pyramidkv and simlayerkv, whose presses count the window differently, h2o
(ObservedAttention takes means), and KVzip, which needs a whole model.

    python3 tests/golden/make_kvpress.py > tests/golden/kvpress.txt
"""
import importlib.machinery
import sys
import types

for name in ("datasets", "fire", "pandas", "requests", "peft", "accelerate"):  # imported by kvpress, unused here
    try:
        __import__(name)
    except ImportError:
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__spec__ = importlib.machinery.ModuleSpec(name, None)
        sys.modules[name].load_dataset = None

import kvpress
import numpy as np
import torch
from make_policies import DIM, HEADS, K, LANES, PROMPT, Q, SLOTS, TOKENS, TURN, V, rotation


def turns(positions):
    angle = torch.tensor(np.outer(positions, np.concatenate([TURN, TURN])))[None]
    return angle.cos(), angle.sin()


class Layer:
    """What presses ask of an attention layer."""
    head_dim = DIM
    config = types.SimpleNamespace(num_attention_heads=HEADS, num_key_value_heads=LANES, num_hidden_layers=SLOTS,
                                   _attn_implementation="sdpa")

    def q_proj(self, x):
        return x

    def rotary_emb(self, x, positions):
        return turns(positions[0].numpy())


def kept(press, slot, o):
    """The rows of each lane that stay where the prompt ends."""
    layer = Layer()
    hidden = torch.tensor(np.array([[rotation(-t) @ Q[slot, t, h] for h in range(HEADS)] for t in range(PROMPT)]))
    keys, values = (torch.tensor(x[slot, :PROMPT].transpose(1, 0, 2))[None] for x in (K, V))
    inner = getattr(press, "press", press)
    score = inner.score

    def pinned(*args):
        s = score(*args).clone()
        s[..., :o["sinks"]] = s[..., PROMPT - o["window"]:] = torch.inf
        return s

    inner.score = pinned
    args = (layer, hidden.reshape(1, PROMPT, -1), keys, values, None,
            {"position_embeddings": turns(np.arange(PROMPT))})
    if inner is press:
        rows = int(PROMPT * (1 - press.compression_ratio))
        return [sorted(lane.tolist()) for lane in press.score(*args)[0].topk(rows).indices]
    press.compress(*args)
    _, lanes, gone = layer.masked_key_indices
    masked = set(zip(lanes.tolist(), gone.tolist()))
    return [[j for j in range(PROMPT) if (lane, j) not in masked] for lane in range(LANES)]


def settings(part):
    name, _, words = part.partition(":")
    return name, {k: float(v) if "." in v else int(v) for k, v in (w.split("=") for w in words.split(",") if w)}


for spec in (
        "window:window=11,sinks=4,every=0",
        "knorm:budget=20,window=3,sinks=2,every=0",
        "tova:budget=15,window=1,sinks=0,every=0,queries=1",
        "snapkv:budget=20,window=6,sinks=0,every=0,pool=5",
        "snapkv:budget=13,window=8,sinks=0,every=0,pool=3",
        "expected:budget=19,window=1,sinks=4,every=0,queries=512,ahead=512",
        "expected:budget=9,window=2,sinks=1,every=0,queries=64,ahead=7",
        "adakv:budget=20,window=6,sinks=0,every=0,pool=5,share=0.0",
        "knorm:budget=20,window=3,sinks=2,every=0+adakv:share=0.0",
        "expected:budget=19,window=1,sinks=4,every=0,queries=512,ahead=512+adakv:share=0.0",
):
    parts = dict(settings(part) for part in spec.split("+"))
    name = next(iter(parts))
    o = parts[name]
    ratio = 1 - (o.get("budget", o["window"] + o["sinks"]) + 0.5) / PROMPT
    press = {
        "window": lambda: kvpress.StreamingLLMPress(ratio, n_sink=o["sinks"]),
        "knorm": lambda: kvpress.KnormPress(ratio),
        "tova": lambda: kvpress.TOVAPress(ratio),
        "expected": lambda: kvpress.ExpectedAttentionPress(ratio, n_future_positions=o["ahead"], n_sink=o["sinks"]),
    }.get(name, lambda: kvpress.SnapKVPress(ratio, window_size=o["window"], kernel_size=o["pool"]))()
    if "adakv" in parts:
        press = kvpress.AdaKVPress(press, alpha_safeguard=0)
    print(spec)
    for s in range(SLOTS):
        for lane, rows in enumerate(kept(press, s, o)):
            rows = rows + list(range(PROMPT, TOKENS))
            print(s, lane, len(rows), *rows)
