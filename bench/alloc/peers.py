"""Replays a trace through PyTorch's own allocator, with each setting, and prints the memory held as JSON.

    python bench/alloc/peers.py crates/alloc-lab/tests/traces/gpt2.trace.zst

The allocator is the real one of an installed PyTorch, on the simulated device:
every setting replays in a process of its own, since settings are read once. Held
bytes and driver calls are what the simulator saw, so allocators that keep no
statistics are measured alike. The numbers mean what `surefoot replay` means by
them:

    peak_live, peak_held     highest sum of live requests; highest sum taken from the driver
    marks                    [live, held] where each step begins
    calls_by_step            driver calls (allocations, frees, mappings) in each step
    nanoseconds_per_call     wall time of one request or free, through Python; for comparison only
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python" / "tests"))

import under_device_sim

SETTINGS = {
    "default": {},
    "expandable_segments": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    "max_split_size_mb:128": {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128"},
    "max_split_size_mb:512": {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:512"},
    "no caching": {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
}

# Driver calls that allocate and release memory. Reserving addresses and
# setting access are counted too, since they take time in a real driver.
DRIVER_CALLS = {
    "cudaMalloc", "cudaFree", "cudaMallocAsync", "cudaFreeAsync", "cuMemCreate", "cuMemRelease", "cuMemMap",
    "cuMemUnmap", "cuMemSetAccess", "cuMemAddressReserve", "cuMemAddressFree",
}


def main():
    arguments = parse_arguments()
    if arguments.here:
        print(json.dumps(replay(read(arguments.trace))))
        return
    with tempfile.TemporaryDirectory() as folder:
        library = arguments.device_sim or under_device_sim.find_library("libdevice_sim.so", "SUREFOOT_DEVICE_SIM")
        simulator = {
            **under_device_sim.environment(library, folder),
            "DEVICE_SIM_CAPACITY": arguments.capacity, "DEVICE_SIM_DATA": "none",
        }
        results = {name: run(arguments.trace, {**simulator, **SETTINGS[name]}) for name in arguments.setting or SETTINGS}
    print(json.dumps(results, indent=1))


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", help="text, or compressed with zstd if its name ends in .zst")
    parser.add_argument("--setting", action="append", choices=SETTINGS, help="only this one; may be repeated")
    parser.add_argument("--capacity", default="512G", help="memory of the device (default: %(default)s)")
    parser.add_argument("--device-sim", help="libdevice_sim.so; default: the newest build under target/")
    parser.add_argument("--here", action="store_true", help="replay in this process, with the environment as it is")
    return parser.parse_args()


def run(trace, variables):
    """Runs one setting in a separate process."""
    ours = ("PYTORCH_", "HIP_ALLOC", "DEVICE_SIM_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    process = subprocess.run(
        [sys.executable, __file__, trace, "--here"], env={**environment, **variables}, stdout=subprocess.PIPE, text=True,
    )
    if process.returncode != 0:
        sys.exit(f"replaying {trace} failed with {process.returncode}")
    return json.loads(process.stdout)


def read(path):
    """The events of a trace: ("a", id, bytes, stream), ("f", id), ("s",)."""
    if path.endswith(".zst"):
        import zstandard

        with open(path, "rb") as file:
            text = zstandard.ZstdDecompressor().stream_reader(file).read().decode()
    else:
        text = Path(path).read_text()
    events = []
    for number, line in enumerate(text.splitlines(), start=1):
        match line.split():
            case ["a", identity, size]:
                events.append(("a", int(identity), int(size), 0))
            case ["a", identity, size, stream]:
                events.append(("a", int(identity), int(size), int(stream)))
            case ["f", identity]:
                events.append(("f", int(identity)))
            case ["s"]:
                events.append(("s",))
            case []:
                pass
            case _:
                sys.exit(f"{path}:{number}: not an event: {line}")
    return events


def replay(events):
    """Replays every event with PyTorch's allocator in this process, and reads the device statistics at each step."""
    import torch

    from device import report

    torch.cuda.init()
    allocate, free = torch._C._cuda_cudaCachingAllocator_raw_alloc, torch._C._cuda_cudaCachingAllocator_raw_delete
    streams = {0: 0}
    for stream in {event[3] for event in events if event[0] == "a"} - {0}:
        streams[stream] = torch.cuda.Stream()
    handles = {name: stream.cuda_stream if name else 0 for name, stream in streams.items()}

    pointers, sizes = {}, {}
    live = peak_live = allocations = in_steps = 0
    marks, calls_at_marks, moved_at_marks = [], [], []

    def look():
        device = report()
        return device["devices"][0], sum(count for name, count in device["calls"].items() if name in DRIVER_CALLS)

    at_start, _ = look()
    began = time.perf_counter_ns()
    for event in events:
        if event[0] == "a":
            _, identity, size, stream = event
            pointers[identity], sizes[identity] = allocate(size, handles[stream]), size
            allocations += 1
            live += size
            peak_live = max(peak_live, live)
        elif event[0] == "f":
            free(pointers.pop(event[1]))
            live -= sizes.pop(event[1])
        else:
            device, calls = look()
            marks.append([live, device["held_bytes"] - at_start["held_bytes"]])
            calls_at_marks.append(calls)
            moved_at_marks.append(device["moved_bytes"])
            in_steps = in_steps or allocations
    took = time.perf_counter_ns() - began
    device, calls = look()
    calls_at_marks.append(calls)
    moved = device["moved_bytes"] - moved_at_marks[0] if marks else 0
    grown = device["held_bytes"] - at_start["held_bytes"] - marks[0][1] if marks else 0
    calls_by_step = [after - before for before, after in zip(calls_at_marks, calls_at_marks[1:])]
    return {
        "torch": torch.__version__,
        "peak_live": peak_live,
        "peak_held": device["peak_bytes"] - at_start["held_bytes"],
        "peak_ratio": (device["peak_bytes"] - at_start["held_bytes"]) / max(peak_live, 1),
        "marks": marks,
        "idle_excess": max((held - live for live, held in marks), default=0),
        "steps": len(marks),
        "allocations": allocations,
        "allocations_in_steps": allocations - in_steps,
        "driver_calls": calls,
        "calls_by_step": calls_by_step,
        "calls_per_step": sum(calls_by_step) / max(len(marks), 1),
        "driver_bytes_per_step": moved / max(len(marks), 1),
        "allocated_bytes_per_step": (moved + grown) / 2 / max(len(marks), 1),
        "nanoseconds_per_call": took / max(len(events), 1),
    }


if __name__ == "__main__":
    main()
