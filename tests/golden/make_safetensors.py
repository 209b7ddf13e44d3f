#!/usr/bin/env python3
"""Golden safetensors files as the reference implementation writes them. Needs safetensors and torch; versions in
safetensors/versions.json. Usage: make_safetensors.py [OUT]   (default: safetensors/ beside this script)

Every file carries the metadata {"format": "pt"}, and numbers that a test can make again: number i of a tensor is
(i - 3) * 0.37 computed in double and rounded to the dtype; rounding.safetensors holds F32 numbers, what F16 and BF16
make of them (round to nearest, ties to even), and those as F32 again.
"""
import json
import pathlib
import sys

import safetensors
import torch
from safetensors.torch import save_file

here = pathlib.Path(__file__).resolve().parent


def ramp(dtype, *shape):
    n = 1
    for s in shape:
        n *= s
    return (torch.arange(n, dtype=torch.float64) - 3).mul(0.37).to(dtype).reshape(shape)


def main():
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here / "safetensors"
    out.mkdir(exist_ok=True)
    meta = {"format": "pt"}
    save_file({}, out / "none.safetensors", meta)
    save_file({"attn.0": ramp(torch.float32, 1, 2, 3)}, out / "one.safetensors", meta)
    save_file({"b.weight": ramp(torch.float32, 3, 5), "a.weight": ramp(torch.bfloat16, 7), "é\"\\": ramp(torch.float32, 2),
               "a.bias": ramp(torch.float16, 2, 2), "z": ramp(torch.float64, 3), "B": ramp(torch.float32, 1),
               "empty": ramp(torch.float32, 0, 4)}, out / "mixed.safetensors", meta)
    # Numbers on both sides of every boundary: random bit patterns near the range of F16, ties, subnormals, overflow.
    g = torch.Generator().manual_seed(1)
    bits = torch.randint(0, 1 << 23, (400,), generator=g) | (torch.randint(96, 147, (400,), generator=g) << 23)
    ties = (torch.randint(0, 1 << 10, (100,), generator=g) << 13) | 0x1000 | (torch.randint(100, 140, (100,), generator=g) << 23)
    brain_ties = (torch.randint(0, 255 << 7, (100,), generator=g) << 16) | 0x8000
    x = torch.cat([bits, ties, brain_ties]).to(torch.int32).view(torch.float32)
    x = torch.cat([x, torch.tensor([0.0, float("inf"), 65504, 65519.996, 65520, 2.0**-24, 2.0**-25, 2.0**-25 * 1.0001,
                                    2.0**-14, 2.0**-149, 3.4028234e38, 3.3961775e38])])
    x = torch.cat([x, -x])
    half, brain = x.to(torch.float16), x.to(torch.bfloat16)
    save_file({"x": x, "f16": half, "bf16": brain, "f16.wide": half.float(), "bf16.wide": brain.float()},
              out / "rounding.safetensors", meta)
    versions = {"python": sys.version.split()[0], "torch": torch.__version__, "safetensors": safetensors.__version__}
    (out / "versions.json").write_text(json.dumps(versions, indent=2) + "\n")


main()
