"""A training program on simulated device memory, with PyTorch's caching allocator and with hip-alloc; prints a table and JSON.

    python bench/alloc/steps.py [--layers 24] [--mib 64] [--steps 30] [--rounds 5] [--out steps.json]

It runs real PyTorch on the simulated device. Device memory is host pages that are really taken from the machine and
given back (`DEVICE_SIM_POPULATE=on`), as on an APU, and every copy moves its bytes. A step copies its input through
`layers` activations of `mib` MiB each and frees them in the other order. A step time is the mean of the second half of a run, so
that steps in which memory is returned count. Each setting is compared with PyTorch's run of the same round; the table has
medians over the rounds.
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
from peers import DRIVER_CALLS
from peers import SETTINGS as PEERS

# PyTorch's allocator has settings of its own, ours has `HIP_ALLOC_CONF`.
SETTINGS = {
    "PyTorch": PEERS["default"],
    "PyTorch, expandable_segments": PEERS["expandable_segments"],
    "PyTorch, no caching": PEERS["no caching"],
    "keep:auto": {"HIP_ALLOC_CONF": "keep:auto"},
    "keep:auto,guard:on": {"HIP_ALLOC_CONF": "keep:auto,guard:on"},
    "keep:off": {"HIP_ALLOC_CONF": "keep:off"},
}
MIB = 1 << 20


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--mib", type=int, default=64, help="size of an activation")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=5, help="runs per setting")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--here", action="store_true", help="run in this process, with the environment as it is")
    arguments = parser.parse_args()
    if arguments.here:
        print(json.dumps(train(arguments.layers, arguments.mib, arguments.steps)))
        return
    # Interleaved in each round, so that other load on the machine affects all of them.
    runs = {name: [] for name in SETTINGS}
    for _ in range(arguments.rounds):
        for name, variables in SETTINGS.items():
            runs[name].append(run(variables, arguments))
    results = {name: min(of, key=lambda one: abs(one["step_ms"] - statistics.median(run["step_ms"] for run in of)))
               for name, of in runs.items()}
    heads = ("step ms", "× PyTorch", "peak/live", "MiB/step", "calls/step", "driver ms/step", "idle MiB")
    print(f"{'':32}" + "".join(f"{head:>16}" for head in heads))
    for name, one in results.items():
        pairs = zip(runs[name], runs["PyTorch"], strict=True)
        one["of_native_by_round"] = [ours["step_ms"] / native["step_ms"] for ours, native in pairs]
        one["of_native"] = statistics.median(one["of_native_by_round"])
        columns = (one["step_ms"], one["of_native"], one["peak_ratio"], one["driver_bytes_per_step"] / MIB,
                   one["driver_calls_per_step"], one["driver_ms_per_step"], one["idle_excess_bytes"] / MIB)
        print(f"{name:32}" + "".join(f"{'-' if number is None else format(number, '.3f'):>16}" for number in columns))
    text = json.dumps(results, indent=1)
    arguments.out.write_text(text + "\n") if arguments.out else print(text)


def run(variables, arguments):
    with tempfile.TemporaryDirectory() as folder:
        library = under_device_sim.find_library("libdevice_sim.so", "SUREFOOT_DEVICE_SIM")
        ours = ("PYTORCH_", "HIP_ALLOC", "DEVICE_SIM_")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        environment.update(under_device_sim.environment(library, folder), DEVICE_SIM_POPULATE="on", PYTHONPATH=str(PYTHON))
        environment.update(variables, DEVICE_SIM_CAPACITY="12G")
        if "HIP_ALLOC_CONF" in variables:
            allocator = under_device_sim.find_library("libhip_alloc.so", "HIP_ALLOC_LIB")
            environment.update(HIP_ALLOC="1", HIP_ALLOC_LIB=str(allocator))
        numbers = [str(number) for number in (arguments.layers, arguments.mib, arguments.steps)]
        process = subprocess.run(
            [sys.executable, __file__, "--here", "--layers", numbers[0], "--mib", numbers[1], "--steps", numbers[2]],
            env=environment, stdout=subprocess.PIPE, text=True, check=True,
        )
    return json.loads(process.stdout.splitlines()[-1])


def train(layers, mib, steps):
    """Step times in this process, and statistics of the device."""
    import torch

    from device import report

    torch.cuda.init()
    size = mib * MIB
    weights = [torch.zeros(size // 4, dtype=torch.uint8, device="cuda") for _ in range(layers)]
    batch = torch.ones(size, dtype=torch.uint8).to("cuda")

    def look():
        device = report()
        return device["devices"][0], sum(device["calls"].get(name, 0) for name in DRIVER_CALLS)

    ours = "HIP_ALLOC" in os.environ
    times, in_driver, calls, moved = [], [], [], []

    def driver_time():
        return torch.cuda.memory_stats()["hip_alloc.driver_nanoseconds"] if ours else 0

    # The program's own, since without caching PyTorch counts nothing: weights and batch, and at the last layer all activations
    # with both temporaries.
    live = layers * (size // 4) + size
    peak_live = live + (layers + 2) * size
    idle = 0
    for _ in range(steps):
        nanoseconds, (device, calls_before) = driver_time(), look()
        bytes_before = device["moved_bytes"]
        began = time.perf_counter()
        kept = [batch]
        for layer in range(layers):
            # Two temporaries per activation, one of them larger.
            wide = torch.cat([kept[-1], kept[-1]])
            kept.append(wide[:size].clone())
            del wide
        while len(kept) > 1:
            gradient = kept.pop().clone()
            del gradient
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
        device, after = look()
        calls.append(after - calls_before)
        moved.append(device["moved_bytes"] - bytes_before)
        in_driver.append(driver_time() - nanoseconds)
        idle = max(idle, device["held_bytes"] - live)
    half = steps // 2
    return {
        "torch": torch.__version__,
        "step_ms": statistics.mean(times[half:]) * 1e3,
        "peak_ratio": look()[0]["peak_bytes"] / peak_live,
        "peak_live_bytes": peak_live,
        "driver_bytes_per_step": statistics.mean(moved[half:]),
        "driver_calls_per_step": statistics.mean(calls[half:]),
        "driver_ms_per_step": statistics.mean(in_driver[half:]) / 1e6 if ours else None,
        "idle_excess_bytes": idle,
    }


if __name__ == "__main__":
    main()
