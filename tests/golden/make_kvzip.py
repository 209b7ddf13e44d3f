#!/usr/bin/env python3
"""make_kvzip.py: which rows KVzip of kvpress keeps in every layer and lane of small models, in f32 on a CPU.

kvpress 0.5.5 on torch 2.15 and transformers 5.23. Tokens of the context and of the request to repeat it are drawn;
kvpress asks its tokenizer for the latter. One chunk: of several, kvpress normalises attention over one chunk's keys
alone. tests/infer/test_replay.c feeds the same tokens to a session.

    python3 tests/golden/make_kvzip.py > tests/golden/kvzip.txt
"""
import importlib.machinery
import pathlib
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
import torch
import transformers
from kvpress.presses import kvzip_press

REQUEST, END = [5, 3, 7, 1, 6], [2]


class Asker:
    """What the press asks of a tokenizer."""
    chat_template = None

    def encode(self, text, **_):
        return torch.tensor([END if text == "\n" else REQUEST if text else []], dtype=torch.long)


def drawn(n, vocab):
    x, out = 12345, []
    for _ in range(n):
        x = (x * 1103515245 + 12345) % 2**31
        out.append(x // 65536 % vocab)
    return out


kvzip_press.AutoTokenizer = types.SimpleNamespace(from_pretrained=lambda _: Asker())
here = pathlib.Path(__file__).parent
for folder, n, rows, sinks in (("recall", 60, 20, 4), ("recall", 33, 9, 1), ("recall", 64, 50, 0),
                               ("llama/bias", 20, 7, 2), ("llama/llama3-untied", 40, 9, 0),
                               ("families/qwen2", 22, 11, 1)):
    model = transformers.AutoModelForCausalLM.from_pretrained(here / folder, dtype=torch.float32,
                                                             attn_implementation="sdpa").eval()
    lanes = model.config.num_hidden_layers * model.config.num_key_value_heads
    press = kvpress.KVzipPress((lanes * (n - rows) + 0.5) / (lanes * n), n_sink=sinks)
    with torch.no_grad(), press(model):
        model(torch.tensor([drawn(n, model.config.vocab_size)]), past_key_values=transformers.DynamicCache())
    print(folder, n, rows, sinks, lanes)
    for layer in model.model.layers:
        _, lane, gone = layer.self_attn.masked_key_indices
        gone = set(zip(lane.tolist(), gone.tolist()))
        for h in range(model.config.num_key_value_heads):
            print(format(sum(1 << j for j in range(n) if (h, j) not in gone), "x"))
