"""Times a whole training step of the UNet: zerogap against PyTorch on the CPU.

    python3 -m venv /tmp/reference && /tmp/reference/bin/pip install -r testdata/requirements.txt
    /tmp/reference/bin/python scripts/compare_pytorch.py

Needs Go and the packages of testdata/requirements.txt (torch, diffusers). Run it on
a machine that does nothing else.

The step is the same on both sides: forward, mean squared error, backward, clipping
of the global gradient norm at 1, AdamW. zerogap's is BenchmarkWholeStep of
zero/engine; PyTorch's is diffusers' UNet2DModel in eager mode with the fused AdamW.
Both are the same network (the numbers of parameters are compared) at the same batch
and with the same number of threads.

They take turns, round by round, so that what else the machine does falls on both.
A round gives the median of its steps, in wall time and in CPU time of all threads;
the table has the medians over the rounds, and of the rounds' own ratios the median,
the lowest and the highest.

PyTorch's threads wait for each other by spinning, unless OMP_WAIT_POLICY is passive.
Where other programs want the cores too, spinning threads hold up the ones they wait
for, and a step takes ten times as long: that would compare nothing. So the policy is
passive here if the environment does not say otherwise. On an idle machine set
OMP_WAIT_POLICY=default: PyTorch then spins for a moment and sleeps after, which is
its fastest way that leaves the cores to the other side's turn.
A line whose PyTorch needed far more CPU time than it does with one thread ends in
"waits": it measured the waiting, and its ratios say nothing about the work.

bf16 of zerogap is bf16 weights, activations and gradients with fp32 master weights.
PyTorch has two ways to train in bf16, and both are in the table: "autocast", which
keeps fp32 weights and casts around operations, and "weights", the whole model and
optimizer in bf16 (cheaper, and not the same training: it has no master weights).
"""

import argparse
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time

WAIT_POLICY = os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when torch is loaded
if WAIT_POLICY == "default":
    del os.environ["OMP_WAIT_POLICY"]

import torch  # noqa: E402
from diffusers import UNet2DModel  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# The sub-benchmarks of BenchmarkWholeStep without their format.
NETWORKS = {
    "unet=16-32-32/image=1x32x32/batch=32": dict(channels=(16, 32, 32), image=1, batch=32, groups=8),
    "unet=32-64-64/image=3x32x32/batch=16": dict(channels=(32, 64, 64), image=3, batch=16, groups=32),
}
# PyTorch with several threads may need this much more CPU time than with one.
WAITING = 1.5
# Ours, and what of PyTorch it is compared with.
FORMATS = [("fp32", "fp32"), ("bf16", "autocast"), ("bf16", "weights")]


class PyTorch:
    """The training step of one network in one format."""

    def __init__(self, channels, image, batch, groups, kind, channels_last):
        torch.manual_seed(1)
        self.model = UNet2DModel(
            sample_size=32,
            in_channels=image,
            out_channels=image,
            block_out_channels=channels,
            down_block_types=("DownBlock2D", "DownBlock2D", "AttnDownBlock2D"),
            up_block_types=("AttnUpBlock2D", "UpBlock2D", "UpBlock2D"),
            norm_num_groups=groups,
        )
        self.params = sum(p.numel() for p in self.model.parameters())
        dtype = torch.bfloat16 if kind == "weights" else torch.float32
        layout = torch.channels_last if channels_last else torch.contiguous_format
        self.model = self.model.to(dtype).to(memory_format=layout).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
        self.x = torch.randn(batch, image, 32, 32).to(dtype).to(memory_format=layout)
        self.noise = torch.randn(batch, image, 32, 32)
        self.t = torch.arange(batch) * 1000 // batch
        self.autocast = kind == "autocast"

    def step(self):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            predicted = self.model(self.x, self.t).sample
        loss = torch.nn.functional.mse_loss(predicted.float(), self.noise)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()

    def round(self, steps):
        """Returns the medians of a step's wall and CPU milliseconds, after one to warm up."""
        self.step()
        wall, cpu = [], []
        for _ in range(steps):
            began, used = time.perf_counter(), cpu_time()
            self.step()
            wall.append(1e3 * (time.perf_counter() - began))
            cpu.append(1e3 * (cpu_time() - used))
        return statistics.median(wall), statistics.median(cpu)


def cpu_time():
    """Returns what this process has had of the CPUs, in seconds."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def build(folder):
    """Compiles the Go benchmarks once."""
    binary = os.path.join(folder, "engine.test")
    subprocess.run(["go", "test", "-c", "-o", binary, "./zero/engine"], cwd=ROOT, check=True)
    return binary


def zerogap(binary, name, threads, steps):
    """Runs one sub-benchmark; returns the medians of wall and CPU milliseconds, and
    the number of parameters."""
    pattern = "/".join(f"^{part}$" for part in f"BenchmarkWholeStep/{name}".split("/"))
    command = [binary, "-test.run=^$", f"-test.bench={pattern}", f"-test.benchtime={steps}x", f"-test.cpu={threads}"]
    done = subprocess.run(command, cwd=os.path.join(ROOT, "zero", "engine"), capture_output=True, text=True)
    found = [re.search(rf"\s([\d.e+]+) {unit}\s", done.stdout) for unit in ("ms", "cpu-ms", "params")]
    if done.returncode or None in found:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    wall, cpu, params = (float(match[1]) for match in found)
    return (wall, cpu), int(params)


def compare(binary, args, network, ours, theirs):
    """Runs the rounds of one line of the table; returns the line."""
    pytorch = PyTorch(**NETWORKS[network], kind=theirs, channels_last=args.channels_last)
    torch.set_num_threads(1)
    _, alone = pytorch.round(args.steps)
    torch.set_num_threads(args.threads)
    go, py = [], []
    for _ in range(args.rounds):
        times, params = zerogap(binary, f"{network}/{ours}", args.threads, args.steps)
        if params != pytorch.params:
            sys.exit(f"{network}: {params} parameters in Go, {pytorch.params} in PyTorch")
        go.append(times)
        py.append(pytorch.round(args.steps))
    line = f"| {network} | {'fp32' if theirs == 'fp32' else f'bf16 / {theirs}'} |"
    for ours, theirs in zip(zip(*go), zip(*py)):  # wall, then CPU
        ratios = [a / b for a, b in zip(ours, theirs)]
        a, b, ratio = (statistics.median(x) for x in (ours, theirs, ratios))
        line += f" {a:.0f} | {b:.0f} | {ratio:.2f} ({min(ratios):.2f} ... {max(ratios):.2f}) |"
    return line + (" waits |" if b > WAITING * alone else " |")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads of both sides")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each side, for each line of the table")
    parser.add_argument("--steps", type=int, default=5, help="timed steps of a turn")
    parser.add_argument("--channels-last", action="store_true", help="PyTorch's tensors in NHWC")
    args = parser.parse_args()
    if min(args.threads, args.rounds, args.steps) < 1:
        parser.error("threads, rounds and steps must be at least 1")

    layout = "channels last" if args.channels_last else "contiguous"
    print(f"PyTorch {torch.__version__} ({layout}, OMP_WAIT_POLICY={WAIT_POLICY}), {args.threads} threads, {args.rounds} rounds of {args.steps} steps\n")
    print("| network | zerogap / PyTorch | zerogap ms | PyTorch ms | ratio | zerogap CPU ms | PyTorch CPU ms | ratio | |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        binary = build(folder)
        for network in NETWORKS:
            for ours, theirs in FORMATS:
                print(compare(binary, args, network, ours, theirs), flush=True)


if __name__ == "__main__":
    main()
