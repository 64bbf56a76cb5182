"""Writes learning rates of DeepSpeed's schedules as JSON.

    pip download deepspeed==0.19.8 --no-deps && tar xzf deepspeed-0.19.8.tar.gz
    python3 schedules.py deepspeed-0.19.8 > schedules.json

DeepSpeed's own file computes the values; torch is not needed, so the names that
the file imports from it are stand-ins.
"""
import importlib.util
import json
import logging
import pathlib
import platform
import sys
import types


class Optimizer:
    def __init__(self, lr):
        self.param_groups = [{"lr": lr}]


def load(root):
    quiet = logging.getLogger("quiet")
    quiet.addHandler(logging.NullHandler())
    quiet.propagate = False
    for name, names in {
        "torch": {"is_tensor": lambda x: False},
        "torch.optim": {"Optimizer": Optimizer},
        "deepspeed": {},
        "deepspeed.utils": {"logger": quiet},
    }.items():
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(names)
    spec = importlib.util.spec_from_file_location("lr_schedules", root / "deepspeed/runtime/lr_schedules.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main():
    root = pathlib.Path(sys.argv[1])
    schedules = load(root)
    lr = 2e-3
    cases = [
        ("WarmupLR", dict(warmup_min_lr=0.0, warmup_max_lr=0.1, warmup_num_steps=4, warmup_type="linear")),
        ("WarmupLR", dict(warmup_min_lr=1e-5, warmup_max_lr=1e-3, warmup_num_steps=10, warmup_type="log")),
        ("WarmupLR", dict(warmup_max_lr=1e-3)),
        ("WarmupLR", dict(warmup_max_lr=1e-3, warmup_num_steps=1)),
        ("WarmupDecayLR", dict(total_num_steps=40, warmup_min_lr=1e-4, warmup_max_lr=3e-3, warmup_num_steps=7, warmup_type="linear")),
        ("WarmupDecayLR", dict(total_num_steps=30, warmup_num_steps=12)),
        ("WarmupDecayLR", dict(total_num_steps=5, warmup_num_steps=9)),
        ("WarmupCosineLR", dict(total_num_steps=50, warmup_num_steps=6, warmup_type="linear")),
        ("WarmupCosineLR", dict(total_num_steps=45, warmup_num_steps=10, warmup_min_ratio=0.1, cos_min_ratio=0.05)),
        ("WarmupCosineLR", dict(total_num_steps=8, warmup_num_steps=8)),
    ]
    steps = list(range(0, 61)) + [999, 1000, 1001, 5000]
    out = []
    for name, params in cases:
        schedule = getattr(schedules, name)(Optimizer(lr), **params)
        rates = []
        for n in steps:
            schedule.last_batch_iteration = n
            rates.append(schedule.get_lr()[0])
        out.append({"type": name, "lr": lr, "params": params, "rates": rates})
    json.dump({
        "source": root.resolve().name,
        "python": platform.python_version(),
        "steps": steps,
        "schedules": out,
    }, sys.stdout, indent=None)
    print()


main()
