"""Draws the pictures of a trained network with diffusers, and compares them with ours.

    python3 -m venv /tmp/reference && /tmp/reference/bin/pip install -r testdata/requirements.txt pillow
    /tmp/reference/bin/python scripts/check_diffusers.py RUN [-n 16] [-steps 50] [-out same.png]

RUN is the output folder of a training, or a checkpoint. The script

1. exports it with "train export" and opens the folder as a pipeline of diffusers;
2. draws n pictures with "train sample" and with the pipeline's network and scheduler,
   from the same noise, and compares them pixel by pixel, once with DDIM and once with
   DDPM;
3. saves the network with diffusers, and has "train sample" draw from that folder.

It exits with 1 if a pixel differs by more than one of 255 levels. The sampler of
diffusers computes in float32 and ours in float64, so a few pixels on the border between
two levels may fall on either side.
"""

import argparse
import os
import subprocess
import sys
import tempfile

import numpy as np
import torch
from diffusers import DDIMPipeline, DDPMPipeline
from PIL import Image
from safetensors.torch import load_file

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def train(*args):
    subprocess.run(["go", "run", "./cmd/train", *args], cwd=ROOT, check=True)


def ours(files, n):
    return [np.asarray(Image.open(os.path.join(files, f"{i:05d}.png")).convert("RGB")).astype(int) for i in range(n)]


def theirs(pipe, noise, steps, eta):
    """The pipeline's loop, with noise that is given."""
    pipe.scheduler.set_timesteps(steps)
    x = noise["start"]
    for i, t in enumerate(pipe.scheduler.timesteps):
        with torch.no_grad():
            out = pipe.unet(x, t).sample
        z = noise.get(f"step.{i}")
        if eta is None:  # DDPM draws inside step: give it what it will ask for
            before = type(pipe.scheduler).step.__globals__["randn_tensor"]
            type(pipe.scheduler).step.__globals__["randn_tensor"] = lambda *a, **k: z
            x = pipe.scheduler.step(out, t, x).prev_sample
            type(pipe.scheduler).step.__globals__["randn_tensor"] = before
        else:
            x = pipe.scheduler.step(out, t, x, eta=eta, variance_noise=z if eta > 0 else None).prev_sample
    pixels = ((x / 2 + 0.5).clamp(0, 1) * 255).round().permute(0, 2, 3, 1).numpy().astype(int)
    return [np.broadcast_to(p, (*p.shape[:2], 3)) for p in pixels]


def report(what, a, b):
    d = np.abs(np.stack(a) - np.stack(b))
    print(f"{what}: {(d > 0).mean():.3%} of the pixels differ, by {d.max()} of 255 levels at most")
    return d.max() <= 1


def grid(rows, path, scale=3):
    tiles = [np.concatenate([np.pad(t, ((1, 1), (1, 1), (0, 0)), constant_values=90) for t in row], axis=1) for row in rows]
    image = Image.fromarray(np.concatenate(tiles).astype(np.uint8))
    image.resize((image.width * scale, image.height * scale), Image.NEAREST).save(path)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("run")
    p.add_argument("-n", type=int, default=16)
    p.add_argument("-steps", type=int, default=50)
    p.add_argument("-out", default="")
    a = p.parse_args()
    torch.set_num_threads(2)
    run, good, rows = os.path.abspath(a.run), True, []
    with tempfile.TemporaryDirectory() as tmp:
        for sampler, kind, eta in (("ddim", DDIMPipeline, 0.0), ("ddpm", DDPMPipeline, None)):
            at = lambda name: os.path.join(tmp, f"{sampler}-{name}")  # noqa: E731
            draw = ["-n", str(a.n), "-steps", str(a.steps), "-sampler", sampler]
            train("export", "-checkpoint", run, "-out", at("pipeline"), "-set", f"diffusion.sampler={sampler}")
            # In fp32, as diffusers computes; the exported weights are the unrounded ones.
            train("sample", "-model", at("pipeline"), *draw, "-files", at("files"), "-out", at("grid.png"), "-noise", at("noise.safetensors"))
            pipe = kind.from_pretrained(at("pipeline"))
            mine, other = ours(at("files"), a.n), theirs(pipe, load_file(at("noise.safetensors")), a.steps, eta)
            good &= report(f"{sampler}, {a.steps} steps, drawn by zerogap and by diffusers", mine, other)
            rows += [mine[:8], other[:8]]
            pipe.unet.save_pretrained(at("back"))
            train("sample", "-model", at("back"), *draw, "-files", at("back-files"), "-out", at("back.png"),
                  "-set", f"diffusion.prediction_type={pipe.scheduler.config.prediction_type}")
            good &= report(f"{sampler}, network saved by diffusers and drawn by zerogap", mine, ours(at("back-files"), a.n))
    if a.out:
        grid(rows, a.out)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
