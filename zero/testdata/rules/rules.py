"""Writes what PyTorch's optimizers do to twelve weights in eight steps, as JSON.

    pip install torch==2.15.0
    python3 rules.py > rules.json

Gradients are functions of step and element that the test computes too, exactly:
multiples of 1/64. Every case is run in float32 and in float64: the distance of the
two is the measure of how close another float32 implementation has to be. PyTorch
has no Lion; its three lines are written here in tensor operations, after the
paper's algorithm 2.
"""
import json
import platform
import sys

import torch

STEPS, SIZE, LR = 8, 12, 0.05


def weights():
    return [(7 * i % 13 - 6) / 4 for i in range(SIZE)]


def gradient(step):
    return [((5 * i + 3 * step * step + i * step) % 17 - 8) / 64 for i in range(SIZE)]


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                update = (m * b1 + p.grad * (1 - b1)).sign()
                p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(group["lr"] * update)
                m.mul_(b2).add_(p.grad, alpha=1 - b2)


RULES = {"SGD": torch.optim.SGD, "Adam": torch.optim.Adam, "AdamW": torch.optim.AdamW, "Lion": Lion}

CASES = [
    ("SGD", dict()),
    ("SGD", dict(weight_decay=0.1)),
    ("SGD", dict(momentum=0.9)),
    ("SGD", dict(momentum=0.9, dampening=0.25, weight_decay=0.1)),
    ("SGD", dict(momentum=0.8, nesterov=True)),
    ("SGD", dict(momentum=0.8, nesterov=True, weight_decay=0.3)),
    ("Adam", dict()),
    ("Adam", dict(betas=(0.8, 0.95), eps=1e-3, weight_decay=0.1)),
    ("AdamW", dict()),
    ("AdamW", dict(betas=(0.8, 0.95), eps=1e-3, weight_decay=0.1)),
    ("Lion", dict()),
    ("Lion", dict(betas=(0.95, 0.98), weight_decay=0.3)),
]


def run(name, params, dtype):
    w = torch.tensor(weights(), dtype=dtype, requires_grad=True)
    options = dict(params)
    if name != "Lion":
        options.update(foreach=False, fused=False)
    optimizer = RULES[name]([w], lr=LR, **options)
    trace = []
    for step in range(1, STEPS + 1):
        w.grad = torch.tensor(gradient(step), dtype=dtype)
        optimizer.step()
        trace.append(w.detach().double().tolist())
    states = {k: v.double().tolist() for k, v in optimizer.state[w].items() if torch.is_tensor(v) and v.dim()}
    return {"weights": trace, "states": states}


def main():
    cases = []
    for name, params in CASES:
        cases.append({
            "rule": name, "params": params,
            "float32": run(name, params, torch.float32),
            "float64": run(name, params, torch.float64),
        })
    json.dump({"torch": torch.__version__, "python": platform.python_version(),
               "steps": STEPS, "size": SIZE, "lr": LR, "cases": cases}, sys.stdout)
    print()


main()
