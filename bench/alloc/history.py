"""A training with and without the memory history, under PyTorch's allocator and under hip-alloc; prints a table and JSON.

    python bench/alloc/history.py [--steps 30] [--rounds 5] [--out history.json]

Real PyTorch on the simulated device, whose kernels do nothing: so what is measured is the program's own side, of which naming
a stack at each request, in the backward pass on autograd's threads, is as much as it can ever be. A step time is the median of
the second half of a run; the settings are interleaved, and each ratio is of two runs of the same round.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PYTHON = Path(__file__).resolve().parents[2] / "python"
sys.path[:0] = [str(PYTHON / "tests"), str(PYTHON)]

import under_device_sim

SETTINGS = [(ours, history) for history in (False, True) for ours in (False, True)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=5, help="runs per setting")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--here", choices=("on", "off"), help="run in this process, with the history on or off")
    arguments = parser.parse_args()
    if arguments.here:
        print(json.dumps(step_ms(arguments.steps, arguments.here == "on")))
        return
    runs = {setting: [] for setting in SETTINGS}
    for _ in range(arguments.rounds):
        for setting in SETTINGS:
            runs[setting].append(run(*setting, arguments.steps))
    results = {}
    for history in (False, True):
        theirs, ours = runs[False, history], runs[True, history]
        results["with history" if history else "without"] = {
            "pytorch_ms": statistics.median(theirs), "hip_alloc_ms": statistics.median(ours),
            "of_native": statistics.median(our / their for our, their in zip(ours, theirs, strict=True)),
        }
    for name, one in results.items():
        print(f"{name:14} PyTorch {one['pytorch_ms']:8.1f} ms   hip-alloc {one['hip_alloc_ms']:8.1f} ms   {one['of_native']:.3f} ×")
    text = json.dumps(results, indent=1)
    arguments.out.write_text(text + "\n") if arguments.out else print(text)


def run(ours, history, steps):
    with tempfile.TemporaryDirectory() as folder:
        library = under_device_sim.find_library("libdevice_sim.so", "SUREFOOT_DEVICE_SIM")
        other = ("PYTORCH_", "HIP_ALLOC", "DEVICE_SIM_")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(other)}
        environment.update(under_device_sim.environment(library, folder), PYTHONPATH=str(PYTHON))
        if ours:
            allocator = under_device_sim.find_library("libhip_alloc.so", "HIP_ALLOC_LIB")
            environment.update(HIP_ALLOC="1", HIP_ALLOC_LIB=str(allocator))
        command = [sys.executable, __file__, "--here", "on" if history else "off", "--steps", str(steps)]
        process = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(process.stdout.splitlines()[-1])


def step_ms(steps, history):
    """The step time in this process."""
    import torch

    from device import Gpt, train

    if history:
        torch.cuda.memory._record_memory_history(stacks="python", max_entries=1_000_000)
    model, times = Gpt(layers=6).cuda(), []
    began = time.perf_counter()
    for _ in train(model, steps):
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
        began = time.perf_counter()
    return statistics.median(times[steps // 2:]) * 1e3


if __name__ == "__main__":
    main()
