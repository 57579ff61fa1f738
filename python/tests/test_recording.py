"""HIP_ALLOC_TRACE in a program that is killed: its requests until then are in the file, compressed or not."""

import os
import signal
import subprocess

import pytest
import torch
import under_device_sim


def ask_and_be_killed():
    kept = []
    for number in range(20_000):
        kept.append(torch.empty(1000 + number, dtype=torch.uint8, device="cuda"))
        if number % 3:
            kept.pop(0)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("name", ["run.trace", "run.trace.zst"])
def test_a_killed_program_leaves_a_recording_that_replays(run, tmp_path, name):
    trace = tmp_path / name
    process = run(ask_and_be_killed, hip_alloc=True, fails=True, HIP_ALLOC_TRACE=str(trace))
    assert process.returncode == -signal.SIGKILL
    surefoot = under_device_sim.find_library("surefoot", "SUREFOOT_PROGRAM")
    replay = subprocess.run([surefoot, "replay", trace, "--json"], capture_output=True, text=True)
    assert replay.returncode == 0, replay.stderr
    assert "ends in the middle, as when its program was killed: " in replay.stderr
    events = int(replay.stderr.split("killed: ")[1].split()[0])
    # 20,000 requests and 13,333 frees; at most 32 KiB of lines of at least 8 bytes are lost.
    assert 33_000 - (32 << 10) / 8 < events < 33_400
