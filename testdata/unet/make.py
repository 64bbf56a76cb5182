"""Computes the reference values of this folder with PyTorch and diffusers.

Usage: python make.py [folder]    (default: the folder of this script)

README.md describes every file that it writes.
"""

import json
import os
import sys

import torch
from diffusers import UNet2DModel
from safetensors.torch import save_file

HERE = os.path.dirname(os.path.abspath(__file__))

DOWN, ATTN_DOWN = "DownBlock2D", "AttnDownBlock2D"
UP, ATTN_UP = "UpBlock2D", "AttnUpBlock2D"

# Small models: one folder each. "image" is [batch, height, width].
MODELS = {
    # The library's defaults wherever small channel counts allow them.
    "attention": dict(
        image=(2, 12, 12),
        config=dict(
            sample_size=12,
            in_channels=1,
            out_channels=1,
            block_out_channels=(8, 16),
            layers_per_block=1,
            down_block_types=(DOWN, ATTN_DOWN),
            up_block_types=(ATTN_UP, UP),
            norm_num_groups=4,
            attention_head_dim=8,
        ),
    ),
    # The settings of Google's CIFAR-10 DDPM; heads as wide as the level; not square.
    "cifar_style": dict(
        image=(2, 8, 12),
        config=dict(
            sample_size=(8, 12),
            in_channels=3,
            out_channels=3,
            block_out_channels=(8, 8, 16),
            layers_per_block=2,
            down_block_types=(DOWN, DOWN, DOWN),
            up_block_types=(UP, UP, UP),
            norm_num_groups=4,
            norm_eps=1e-6,
            attention_head_dim=None,
            downsample_padding=0,
            freq_shift=1,
            flip_sin_to_cos=False,
        ),
    ),
    # Time embedding as scale and shift, no attention anywhere, more channels out than in.
    "scale_shift": dict(
        image=(2, 8, 8),
        config=dict(
            sample_size=8,
            in_channels=1,
            out_channels=2,
            block_out_channels=(4, 8),
            layers_per_block=1,
            down_block_types=(DOWN, DOWN),
            up_block_types=(UP, UP),
            norm_num_groups=2,
            resnet_time_scale_shift="scale_shift",
            add_attention=False,
        ),
    ),
    # 13x9 goes down to 7x5 and 4x3, so every upsampler has to follow its skip's size.
    "odd_size": dict(
        image=(3, 13, 9),
        config=dict(
            sample_size=(13, 9),
            in_channels=2,
            out_channels=2,
            block_out_channels=(4, 4, 8),
            layers_per_block=1,
            down_block_types=(DOWN, ATTN_DOWN, DOWN),
            up_block_types=(UP, ATTN_UP, UP),
            norm_num_groups=2,
            attention_head_dim=2,
        ),
    ),
}

OPTIMIZER = dict(lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=1e-2, max_grad_norm=1.0)
STEPS = 10


def follow_skip_sizes(model):
    """Lets images of any size through: UNet2DModel does not tell its upsamplers
    the size of the next skip, though they can follow one."""
    sizes = []

    def remember(block, args, kwargs):
        sizes.append(tuple(kwargs["hidden_states"].shape[-2:]))

    for block in model.down_blocks:
        block.register_forward_pre_hook(remember, with_kwargs=True)

    def hand_over(level):
        return lambda upsampler, args: (args[0], sizes[level])

    last = len(model.up_blocks) - 1
    for i, block in enumerate(model.up_blocks):
        for upsampler in block.upsamplers or []:
            upsampler.register_forward_pre_hook(hand_over(last - i - 1))
    model.register_forward_pre_hook(lambda *_: sizes.clear())


def build(config):
    model = UNet2DModel(**config)
    with torch.no_grad():
        # The library starts norms at 1 and 0, where a forgotten scale or bias would not show.
        for name, p in model.named_parameters():
            if "norm" in name:
                base = 1.0 if name.endswith("weight") else 0.0
                p.copy_(base + 0.1 * torch.randn_like(p))
    follow_skip_sizes(model)
    return model


def draw(config, image, steps=None):
    n, h, w = image
    lead = (n,) if steps is None else (steps, n)
    return (
        torch.randn(*lead, config["in_channels"], h, w),
        torch.randint(0, 1000, lead),
        torch.randn(*lead, config["out_channels"], h, w),
    )


def loss_of(model, sample, timesteps, target):
    dtype = next(model.parameters()).dtype
    out = model(sample.to(dtype), timesteps).sample
    return out, torch.nn.functional.mse_loss(out, target.to(dtype))


def train(model, batches, fixed):
    opt = torch.optim.AdamW(
        model.parameters(),
        lr=OPTIMIZER["lr"],
        betas=(OPTIMIZER["beta1"], OPTIMIZER["beta2"]),
        eps=OPTIMIZER["eps"],
        weight_decay=OPTIMIZER["weight_decay"],
        foreach=False,
    )
    losses, norms = [], []
    for sample, timesteps, target in zip(*batches):
        opt.zero_grad()
        _, loss = loss_of(model, sample, timesteps, target)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), OPTIMIZER["max_grad_norm"], foreach=False)
        opt.step()
        losses.append(loss.item())
        norms.append(norm.item())
    with torch.no_grad():
        final = loss_of(model, *fixed)[1].item()
    return losses, norms, final


def write_json(path, value):
    with open(path, "w") as f:
        json.dump(value, f, indent=1)
        f.write("\n")


def write_model(folder, seed, config, image):
    os.makedirs(folder, exist_ok=True)
    torch.manual_seed(seed)
    model = build(config)
    model.save_pretrained(folder, safe_serialization=True)
    weights = {k: v.clone() for k, v in model.state_dict().items()}
    fixed, batches = draw(config, image), draw(config, image, STEPS)

    # Output, loss and gradients in float64: the reference then has no rounding of its own to speak of.
    exact = model.double()
    out, loss = loss_of(exact, *fixed)
    loss.backward()
    tensors = {
        "sample": fixed[0],
        "timesteps": fixed[1],
        "target": fixed[2],
        "output": out.detach().float(),
        "train.sample": batches[0],
        "train.timesteps": batches[1],
        "train.target": batches[2],
    }
    for name, p in exact.named_parameters():
        tensors["grad." + name] = p.grad.float()
    save_file({k: v.contiguous() for k, v in tensors.items()}, os.path.join(folder, "reference.safetensors"))

    runs = {}
    for key, dtype in (("float32", torch.float32), ("float64", torch.float64)):
        model.load_state_dict(weights)
        model.to(dtype)
        model.load_state_dict(weights)
        losses, norms, final = train(model, batches, fixed)
        runs[key] = dict(losses=losses, grad_norms=norms, final_loss=final)
    write_json(
        os.path.join(folder, "training.json"),
        dict(loss=loss.item(), optimizer=OPTIMIZER, runs=runs),
    )


def levels(n, attention):
    """Block types of n levels with attention at the given ones (0 = full resolution)."""
    down = tuple(ATTN_DOWN if i in attention else DOWN for i in range(n))
    up = tuple(ATTN_UP if n - 1 - i in attention else UP for i in range(n))
    return dict(down_block_types=down, up_block_types=up)


def table():
    """Configurations whose names and counts are recorded; the third entry asks for the names."""

    def config(channels, attention, **other):
        return dict(block_out_channels=channels, **levels(len(channels), attention), **other)

    cifar = dict(
        attention_head_dim=None, norm_eps=1e-6, downsample_padding=0, freq_shift=1, flip_sin_to_cos=False
    )
    mnist = dict(in_channels=1, out_channels=1, norm_num_groups=8)
    six = (1, 1, 2, 2, 4, 4)
    return [
        ("mnist-16-32-32", config((16, 32, 32), {2}, sample_size=32, **mnist), True),
        ("32-64-64-none", config((32, 64, 64), set(), sample_size=32), False),
        ("32-64-64-lowest", config((32, 64, 64), {2}, sample_size=32), False),
        ("32-64-64-two-lowest", config((32, 64, 64), {1, 2}, sample_size=32), True),
        ("32-64-64-one-layer", config((32, 64, 64), {2}, sample_size=32, layers_per_block=1), False),
        ("64-128-128-lowest", config((64, 128, 128), {2}, sample_size=32), False),
        ("cifar10-ddpm", config((128, 256, 256, 256), {1}, sample_size=32, **cifar), True),
        ("64px-113m", config(tuple(128 * k for k in six), {4}, sample_size=64), False),
        ("64px-454m", config(tuple(256 * k for k in six), {4}, sample_size=64), False),
        ("64px-600m-three-layers", config(tuple(256 * k for k in six), {4}, sample_size=64, layers_per_block=3), False),
        ("64px-591m", config((448, 448, 896, 896, 896, 896), {4}, sample_size=64), False),
        ("64px-772m", config((512, 512, 1024, 1024, 1024, 1024), {4}, sample_size=64), False),
        ("defaults", dict(), False),
    ]


def write_names(path):
    entries = []
    for name, config, with_names in table():
        with torch.device("meta"):
            model = UNet2DModel(**config)
        params = [(k, list(p.shape)) for k, p in model.named_parameters()]
        entry = dict(
            name=name,
            config=config,
            parameters=sum(p.numel() for p in model.parameters()),
            tensors=len(params),
        )
        if with_names:
            entry["names"] = [f"{k} {'x'.join(map(str, s))}" for k, s in params]
        entries.append(entry)
    write_json(path, entries)


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else HERE
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    for seed, (name, m) in enumerate(MODELS.items(), start=1):
        write_model(os.path.join(root, name), seed, m["config"], m["image"])
    write_names(os.path.join(root, "names.json"))


if __name__ == "__main__":
    main()
