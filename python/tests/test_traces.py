"""Recording a trace from real PyTorch, and replaying it through PyTorch's own allocator."""

import json
import os
import subprocess
import sys

from under_device_sim import REPOSITORY

BENCH = REPOSITORY / "bench"


def live_bytes(trace):
    """Highest and last sum of live requests, by the format's own rules."""
    sizes, live, peak, steps = {}, 0, 0, 0
    for line in trace.read_text().splitlines():
        match line.split():
            case ["a", identity, size, *_]:
                sizes[identity] = int(size)
                live += int(size)
                peak = max(peak, live)
            case ["f", identity]:
                live -= sizes.pop(identity)
            case ["s"]:
                steps += 1
    return peak, live, steps


def test_a_recorded_trace_replays_to_the_same_live_memory(simulator, libraries, tmp_path):
    trace = tmp_path / "mlp.trace"
    recording = {**os.environ, **simulator, "DEVICE_SIM_DATA": "none", "DEVICE_SIM_CAPACITY": "32G"}
    record = [sys.executable, BENCH / "traces/record.py", "mlp_large_batch", trace, "--steps", "3"]
    subprocess.run(record, env=recording, check=True, capture_output=True, timeout=300)
    peak, live, steps = live_bytes(trace)
    assert (steps, live > 0) == (3, True)

    replay = [
        sys.executable, BENCH / "alloc/peers.py", trace, "--setting", "default", "--setting", "no caching",
        "--device-sim", libraries["--device-sim"],
    ]
    results = json.loads(subprocess.run(replay, check=True, capture_output=True, timeout=300).stdout)
    caching, uncached = results["default"], results["no caching"]
    assert caching["peak_live"] == uncached["peak_live"] == peak
    assert peak <= uncached["peak_held"] < 1.01 * peak, "without caching, held is live and its rounding to pages"
    assert caching["peak_held"] > peak
    assert caching["calls_per_step"] < uncached["calls_per_step"]
    assert uncached["driver_calls"] >= uncached["allocations"]
