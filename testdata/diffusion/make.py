"""Computes the reference values of this folder with diffusers' schedulers.

Usage: python make.py [file]    (default: values.json beside this script)

README.md describes the file. The schedulers' own tables are float32, and
1 - alphas_cumprod[0] then has three correct digits. So every value except
"alphas_cumprod_float32" comes from the library's methods over float64 tables
that are built here from the same definitions.
"""

import json
import math
import os
import sys

import diffusers
import diffusers.schedulers.scheduling_ddpm as ddpm_module
import numpy as np
import torch
from diffusers import DDIMScheduler, DDPMScheduler

HERE = os.path.dirname(os.path.abspath(__file__))
T, START, END = 1000, 1e-4, 0.02
NAMES = ("linear", "scaled_linear", "squaredcos_cap_v2")  # those that both samplers know
FORWARD_NAMES = NAMES + ("sigmoid",)
PREDICTIONS = ("epsilon", "v_prediction", "sample")
TABLE_T = (0, 1, 2, 10, 100, 250, 500, 750, 900, 990, 998, 999)


def betas(name):
    if name == "linear":
        return np.linspace(START, END, T, dtype=np.float64)
    if name == "scaled_linear":
        return np.linspace(START**0.5, END**0.5, T, dtype=np.float64) ** 2
    if name == "sigmoid":
        return 1 / (1 + np.exp(-np.linspace(-6, 6, T, dtype=np.float64))) * (END - START) + START

    def bar(u):
        return math.cos((u + 0.008) / 1.008 * math.pi / 2) ** 2

    return np.array([min(1 - bar((i + 1) / T) / bar(i / T), 0.999) for i in range(T)])


def widen(scheduler, name):
    scheduler.betas = torch.from_numpy(betas(name))
    scheduler.alphas = 1.0 - scheduler.betas
    scheduler.alphas_cumprod = torch.cumprod(scheduler.alphas, dim=0)
    scheduler.one = torch.tensor(1.0, dtype=torch.float64)
    scheduler.final_alpha_cumprod = torch.tensor(1.0, dtype=torch.float64)
    return scheduler


def ddpm(name, **config):
    return widen(DDPMScheduler(beta_schedule=name, **config), name)


def ddim(name, **config):
    return widen(DDIMScheduler(beta_schedule=name, **config), name)


def table_entry(name):
    wide, stock = ddpm(name), DDPMScheduler(beta_schedule=name)
    # The library and this script must mean the same schedule.
    assert torch.allclose(wide.betas.float(), stock.betas, rtol=1e-5, atol=1e-8), name
    assert torch.allclose(wide.alphas_cumprod.float(), stock.alphas_cumprod, rtol=1e-4, atol=0), name
    pick = torch.tensor(TABLE_T)
    return dict(
        beta_schedule=name,
        t=list(TABLE_T),
        betas=wide.betas[pick].tolist(),
        alphas_cumprod=wide.alphas_cumprod[pick].tolist(),
        alphas_cumprod_float32=stock.alphas_cumprod[pick].double().tolist(),
    )


def forward_entry(name, t, x0, noise):
    s, when = ddpm(name), torch.tensor([t])
    return dict(
        beta_schedule=name,
        t=t,
        add_noise=s.add_noise(x0, noise, when)[0].tolist(),
        velocity=s.get_velocity(x0, noise, when)[0].tolist(),
    )


def ddpm_entry(name, prediction, clip, steps, t, x, output, z):
    s = ddpm(name, prediction_type=prediction, clip_sample=clip)
    s.set_timesteps(steps)
    ddpm_module.randn_tensor = lambda *args, **kwargs: z
    out = s.step(output, t, x)
    return dict(
        beta_schedule=name,
        prediction_type=prediction,
        clip_sample=clip,
        steps=steps,
        t=t,
        prev_sample=out.prev_sample[0].tolist(),
        pred_original_sample=out.pred_original_sample[0].tolist(),
    )


def ddim_entry(name, prediction, clip, eta, steps, t, x, output, z):
    s = ddim(name, prediction_type=prediction, clip_sample=clip)
    s.set_timesteps(steps)
    out = s.step(output, t, x, eta=eta, variance_noise=z if eta > 0 else None)
    return dict(
        beta_schedule=name,
        prediction_type=prediction,
        clip_sample=clip,
        eta=eta,
        steps=steps,
        t=t,
        prev_sample=out.prev_sample[0].tolist(),
        pred_original_sample=out.pred_original_sample[0].tolist(),
    )


def timesteps(steps):
    a, b = DDPMScheduler(), DDIMScheduler()
    a.set_timesteps(steps)
    b.set_timesteps(steps)
    assert a.timesteps.tolist() == b.timesteps.tolist()
    return dict(steps=steps, timesteps=a.timesteps.tolist())


def trajectory(kind, steps, x):
    """A whole descent with a fixed stand-in for the model: x sqrt(t / 1000) + 0.1 sin(t)."""
    if kind == "ddpm":
        s = ddpm("linear")
        ddpm_module.randn_tensor = lambda *args, **kwargs: torch.zeros_like(x)
    else:
        s = ddim("linear")
    s.set_timesteps(steps)
    for t in s.timesteps.tolist():
        output = x * math.sqrt(t / 1000) + 0.1 * math.sin(t)
        x = s.step(output, t, x).prev_sample
    return dict(kind=kind, steps=steps, sample=x[0].tolist())


def main():
    path = sys.argv[1] if len(sys.argv) > 1 else os.path.join(HERE, "values.json")
    torch.manual_seed(7)
    torch.set_num_threads(1)
    # Inputs are rounded to float32 so that a float32 reader starts from the very same numbers.
    x0, noise, x, output, z = (torch.randn(5, 1, 6).float().double()).unbind(0)
    x0 = x0.clamp(-1, 1)
    value = dict(
        versions=dict(torch=torch.__version__, diffusers=diffusers.__version__, numpy=np.__version__),
        num_train_timesteps=T,
        beta_start=START,
        beta_end=END,
        x0=x0[0].tolist(),
        noise=noise[0].tolist(),
        sample=x[0].tolist(),
        model_output=output[0].tolist(),
        step_noise=z[0].tolist(),
        tables=[table_entry(n) for n in FORWARD_NAMES],
        forward=[forward_entry(n, t, x0, noise) for n in FORWARD_NAMES for t in (0, 1, 37, 500, 999)],
        ddpm=[
            ddpm_entry(n, p, clip, steps, t, x, output, z)
            for n in NAMES
            for p in PREDICTIONS
            for clip in (True, False)
            for steps, ts in ((1000, (0, 1, 500, 999)), (50, (0, 20, 980)))
            for t in ts
        ],
        ddim=[
            ddim_entry(n, p, clip, eta, steps, t, x, output, z)
            for n in NAMES
            for p in PREDICTIONS
            for clip in (True, False)
            for eta in (0.0, 1.0)
            for steps, ts in ((1000, (0, 1, 999)), (50, (0, 500, 980)))
            for t in ts
        ],
        # 30 does not divide 1000: the list then starts well below 999.
        timesteps=[timesteps(n) for n in (1, 7, 30, 50, 250)],
        trajectories=[trajectory(k, n, x) for k in ("ddpm", "ddim") for n in (50, 1000)],
    )
    with open(path, "w") as f:
        # One entry a line keeps the file small and its diffs readable.
        lines = []
        for key, v in value.items():
            if isinstance(v, list) and isinstance(v[0], dict):
                body = ",\n  ".join(json.dumps(e) for e in v)
                lines.append(f' "{key}": [\n  {body}\n ]')
            else:
                lines.append(f' "{key}": {json.dumps(v)}')
        f.write("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
