#!/usr/bin/env python3
"""What PyTorch makes of modeling_kvsmith.py and the zoo's models: golden/modeling.txt.

    make build/tests-f64 && python3 tests/golden/make_modeling.py > tests/golden/modeling.txt

The models are written in double by the test modeling/is_written_with_every_model_of_our_own. A line is a model's
name, a tab, and the logits after the last token of each document. Versions: torch 2.15.0, transformers 5.24.0."""
import os
import pathlib
import subprocess
import sys
import tempfile
import zlib

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging

logging.disable_progress_bar()

with tempfile.TemporaryDirectory() as tmp:
    os.environ["HF_MODULES_CACHE"] = tmp + "/modules"
    test = ["build/tests-f64", "--filter", "modeling/is_written*"]
    subprocess.run(test, check=True, stdout=sys.stderr, env={**os.environ, "MODELING_OUT": tmp})
    ids = torch.tensor([[int(t) for t in line.split()] for line in open(tmp + "/tokens.txt")])
    names = open(tmp + "/names.txt").read().splitlines()
    print("crc32 %08x" % zlib.crc32(pathlib.Path("model/files/modeling_kvsmith.py").read_bytes()))
    for where in sorted((p for p in pathlib.Path(tmp).iterdir() if p.name.isdigit()), key=lambda p: int(p.name)):
        if not (where / "modeling_kvsmith.py").exists():
            continue
        model, report = AutoModelForCausalLM.from_pretrained(
            where, trust_remote_code=True, dtype=torch.float64, output_loading_info=True
        )
        left = {k: v for k, v in report.items() if v}
        if left:
            sys.exit(f"model {where.name}: transformers loaded it with remarks: {left}")
        with torch.no_grad():
            last = model.eval()(input_ids=ids).logits[:, -1].flatten()
        print(names[int(where.name)] + "\t" + " ".join("%.14g" % x for x in last.tolist()))
