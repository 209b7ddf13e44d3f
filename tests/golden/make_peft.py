#!/usr/bin/env python3
"""Golden adapters: random LoRA matrices that peft saved for tiny models of families/, and the logits that transformers
computes with them in float32. Needs torch, transformers, peft, safetensors; the versions used are in peft/versions.json.
Usage: make_peft.py [OUT]   (default: peft/ beside this script)

golden.safetensors of a case: input_ids, logits. `effect` in versions.json: the largest change of a logit by the adapter.
"""
import json
import pathlib
import shutil
import sys

import peft
import safetensors
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

here = pathlib.Path(__file__).resolve().parent
every = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
# name: base, settings of the adapter
cases = {
    "mistral": ("mistral", dict(r=3, lora_alpha=7, target_modules=every)),
    "patterns": ("mistral", dict(r=4, lora_alpha=6, use_rslora=True, target_modules=["q_proj", "v_proj", "down_proj"],
                                 rank_pattern={"model.layers.1.self_attn.q_proj": 2}, alpha_pattern={"down_proj": 5})),
    "gpt2": ("gpt2", dict(r=2, lora_alpha=3, fan_in_fan_out=True, target_modules=["c_attn", "c_proj", "c_fc"])),
    "gpt_neox": ("gpt_neox", dict(r=2, lora_alpha=4, target_modules=["query_key_value", "dense_h_to_4h"])),
}


def settings_of(where):
    """What transformers 4 does not read of a config.json that transformers 5 wrote."""
    rope = json.loads((where / "config.json").read_text()).get("rope_parameters")
    if not rope:
        return {}
    return dict(rope_theta=rope["rope_theta"], rotary_emb_base=rope["rope_theta"],
                rotary_pct=rope.get("partial_rotary_factor", 1.0),
                partial_rotary_factor=rope.get("partial_rotary_factor", 1.0))


def main():
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here / "peft"
    torch.set_num_threads(1)
    report = {}
    for seed, (name, (family, settings)) in enumerate(cases.items()):
        base, where = here / "families" / family, out / name
        shutil.rmtree(where, ignore_errors=True)
        config = AutoConfig.from_pretrained(base, **settings_of(base))
        model = AutoModelForCausalLM.from_pretrained(base, config=config, torch_dtype=torch.float32,
                                                     attn_implementation="eager").eval()
        golden = load_file(base / "golden.safetensors")
        ids = golden["input_ids"]
        with torch.no_grad():
            plain = model(input_ids=ids).logits
        off = (plain - golden["logits"]).abs().max().item()
        assert off < 1e-4, f"{family}: the base itself is {off} from its own golden logits"
        model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **settings)).eval()
        g = torch.Generator().manual_seed(seed)
        for key, p in sorted(model.named_parameters()):
            if ".lora_" in key:
                p.data = 0.3 * torch.randn(p.shape, generator=g)
        model.save_pretrained(where)
        (where / "README.md").unlink(missing_ok=True)
        saved = json.loads((where / "adapter_config.json").read_text())
        saved["base_model_name_or_path"] = f"tests/golden/families/{family}"
        saved["target_modules"] = sorted(saved["target_modules"])
        (where / "adapter_config.json").write_text(json.dumps(saved, indent=2) + "\n")
        with torch.no_grad():
            logits = model(input_ids=ids).logits.float()
        save_file({"input_ids": ids, "logits": logits.contiguous()}, where / "golden.safetensors")
        report[name] = {"max_logit": round(logits.abs().max().item(), 4),
                        "effect": round((logits - plain).abs().max().item(), 4)}
        print(name, report[name], sum(f.stat().st_size for f in where.iterdir()), "bytes")
    versions = {"python": sys.version.split()[0], "torch": torch.__version__, "transformers": transformers.__version__,
                "peft": peft.__version__, "safetensors": safetensors.__version__, "adapters": report}
    (out / "versions.json").write_text(json.dumps(versions, indent=2) + "\n")


main()
