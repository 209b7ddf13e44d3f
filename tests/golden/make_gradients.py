#!/usr/bin/env python3
"""gradients.safetensors beside the golden models in families/: the derivative of the mean of -log p of every next token of
golden.safetensors' input_ids by each tensor of the model's files, under its name and in its shape, by PyTorch's autograd
with all arithmetic in float64, rounded to float32, but not those of gpt_oss. Quantised models (-fp8, -mxfp4) have none. Usage: make_gradients.py [--fla]
With --fla, the models of flash-linear-attention (fla_eager.py), which must be importable; without it, all others, and it
must not be, because transformers would call its kernels, which need a GPU.
"""
import pathlib
import sys
import tempfile

import torch
import torch.nn.functional as F
from make_families import Doubles, here
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

FLASH = ("kda", "gated_deltanet", "delta_net", "gla", "retnet", "mamba2-fla")
BALANCE = "correction_bias", "gate.expert_bias"  # have no gradient


def gradients(where):
    ids = load_file(where / "golden.safetensors")["input_ids"]
    how = {} if where.name.startswith(FLASH) else dict(experts_implementation="eager")
    was = AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32, **how)
    with Doubles():
        model = AutoModelForCausalLM.from_config(was.config, dtype=torch.float64, **how).eval()
        model.load_state_dict(was.state_dict())
        model.tie_weights()
        model.get_input_embeddings().padding_idx = None  # which leaves out the gradient of that token
        loss = F.cross_entropy(model(input_ids=ids[:, :-1]).logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        for p in model.parameters():
            p.data = torch.zeros_like(p) if p.grad is None else p.grad
        with tempfile.TemporaryDirectory() as tmp:  # saved as weights are, so under the names of the files
            model.save_pretrained(tmp)
            grads = load_file(pathlib.Path(tmp) / "model.safetensors")
    kept = torch.float64 if where.name == "gpt_oss" else torch.float32
    grads = {k: v.to(kept).contiguous() for k, v in grads.items() if not k.endswith(BALANCE)}
    names = {k for k in load_file(where / "model.safetensors") if not k.endswith(BALANCE)}
    # Kimi Linear's dense parts have their published name in the files, transformers saves them under another
    grads = {k if k in names else k.replace(".block_sparse_moe.", ".mlp."): v for k, v in grads.items()}
    assert names == set(grads), names ^ set(grads)
    save_file(grads, where / "gradients.safetensors")
    print(where.name, len(grads), "tensors, largest", max(v.abs().max().item() for v in grads.values()))


def main():
    flash = "--fla" in sys.argv[1:]
    torch.set_num_threads(1)
    if flash:
        import fla_eager  # noqa: F401  (replaces and registers)
    for where in sorted(p for p in (here / "families").iterdir() if p.is_dir()):
        if where.name.startswith(FLASH) == flash and not where.name.endswith(("-fp8", "-mxfp4")):
            gradients(where)


main()
