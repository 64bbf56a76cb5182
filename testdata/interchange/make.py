"""Makes expected.safetensors: what diffusers computes with a network trained here.

    go run ./cmd/train -config testdata/interchange/tiny.toml -out /tmp/interchange
    go run ./cmd/train export -checkpoint /tmp/interchange -out testdata/interchange/pipeline
    /tmp/reference/bin/python testdata/interchange/make.py
"""

import os

import torch
from diffusers import DDIMPipeline
from safetensors.torch import save_file

here = os.path.dirname(os.path.abspath(__file__))
torch.manual_seed(0)
torch.set_num_threads(1)
pipe = DDIMPipeline.from_pretrained(os.path.join(here, "pipeline"))
x, t = torch.randn(3, 3, 8, 8), torch.tensor([0, 421, 999])
pipe.scheduler.set_timesteps(10)
step, start = x, x
with torch.no_grad():
    out = pipe.unet(x, t).sample
    for at in pipe.scheduler.timesteps:
        step = pipe.scheduler.step(pipe.unet(step, at).sample, at, step).prev_sample
save_file({"x": x, "t": t, "output": out, "ddim10": step}, os.path.join(here, "expected.safetensors"))
