"""Makes and checks the files of this folder with the Python library.

Usage: python make.py               writes python.safetensors beside this script
       python make.py check FILE    checks a file that Go wrote (see README.md)
"""

import os
import sys

import torch
from safetensors import safe_open
from safetensors.torch import save_file

HERE = os.path.dirname(os.path.abspath(__file__))


def tensors():
    base = torch.tensor([0.0, -0.0, 1.0, -1.5, 0.15625, 65504.0])
    return {
        "f64": torch.tensor([[1 / 3, -2.0e300], [5e-324, 0.0]], dtype=torch.float64),
        "f32": torch.tensor([[1 / 3, -2.0e30, 1e-45], [float("inf"), float("nan"), 7.0]]),
        "f16": base.to(torch.float16),
        "bf16": base.to(torch.bfloat16).reshape(1, 2, 3),
        "u8": torch.tensor([0, 1, 255], dtype=torch.uint8),
        "i64": torch.tensor([-(2**63), -1, 2**63 - 1]),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 3),
    }


METADATA = {"format": "pt", "note": 'a "quoted" \u00fc\n'}


def check(path):
    want = tensors()
    with safe_open(path, framework="pt") as f:
        assert f.metadata() == METADATA, f.metadata()
        assert set(f.keys()) == set(want), set(f.keys()) ^ set(want)
        for name, w in want.items():
            got = f.get_tensor(name)
            assert got.dtype == w.dtype and got.shape == w.shape, name
            assert torch.equal(got.reshape(-1).view(torch.uint8), w.reshape(-1).view(torch.uint8)), name
    print("ok:", len(want), "tensors")


if __name__ == "__main__":
    if len(sys.argv) > 2 and sys.argv[1] == "check":
        check(sys.argv[2])
    else:
        save_file(tensors(), os.path.join(HERE, "python.safetensors"), metadata=METADATA)
