"""While programs run with hip-alloc, another process gets the memory that it would get if nothing were kept."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from test_activation import MIB
from test_memory_group import LIMIT, group  # noqa: F401 (a fixture)

pytestmark = pytest.mark.alone

STEP = 256 * MIB
# What is taken between two looks at the group. The trainings look and then take in turn, but this process
# takes no turns: this much and one request, `LAYER`, can be under way at once, and `MARGIN` is more than that.
SLICE = 8 * MIB
# Of the group, for what is not counted at once and for Python itself. Trainings leave a 32nd of it: 96 MiB.
MARGIN = 192 * MIB
# Within this time, memory that another process waits for must become available.
PATIENCE = 0.1
LAYER = 64 * MIB
TRAININGS = {1: 16, 2: 8}  # how many there are, and how many layers each has
assert SLICE + LAYER < MARGIN

# Allocates all memory of the group in steps, and waits a moment for each; prints how many succeeded.
TAKE = f"""
import mmap, sys, time
from pathlib import Path
folder = Path(sys.argv[1])
two = (folder / "memory.max").exists()
limit = int((folder / ("memory.max" if two else "memory.limit_in_bytes")).read_text())
usage = folder / ("memory.current" if two else "memory.usage_in_bytes")
def is_there():
    return limit - int(usage.read_text()) >= {SLICE + MARGIN}
kept = []
def take_a_step():
    kept.append(mmap.mmap(-1, {STEP}))
    waited = 0.0
    for start in range(0, {STEP}, {SLICE}):
        began = time.monotonic()
        while not is_there():
            if waited + time.monotonic() - began > {PATIENCE}:
                return False
            time.sleep(0.002)
        waited += time.monotonic() - began
        for at in range(start, start + {SLICE}, 4096):
            kept[-1][at] = 1
    return True
steps = 0
while take_a_step():
    steps += 1
print(steps)
"""


def train():
    """Steps of activations that are freed again, until a file tells it to stop."""
    folder = Path(os.environ["NEIGHBOUR"])
    steps = refused = 0
    while not (folder / "stop").exists():
        try:
            kept = [torch.zeros(LAYER, dtype=torch.uint8, device="cuda") for _ in range(int(os.environ["LAYERS"]))]
            kept[-1].copy_(kept[0])
        except torch.OutOfMemoryError:
            refused += 1
        kept = None
        torch.cuda.synchronize()
        steps += 1
        (folder / "steps").write_text(str(steps))
        # The host part of a step.
        time.sleep(0.02)
    return {"steps": steps, "refused": refused, "kept": torch.cuda.memory_stats()["reserved_bytes.all.current"]}


def beside(run, group, folder, keep, trainings):  # noqa: F811
    """The number of memory steps that another process gets while others train, and the results of these."""
    folders = [folder / str(number) for number in range(trainings)]
    results = []

    def program(own):
        results.append(run(
            train, hip_alloc=True, group=group.folder, DEVICE_SIM_UNIFIED="20G", DEVICE_SIM_POPULATE="on",
            HIP_ALLOC_CONF=f"keep:{keep},warmup_mb:64,reserve_mb:512", NEIGHBOUR=str(own), LAYERS=str(TRAININGS[trainings]),
        ))

    threads = [threading.Thread(target=program, args=[own]) for own in folders]
    for own, thread in zip(folders, threads):
        own.mkdir(parents=True)
        thread.start()
    try:
        until = time.monotonic() + 120
        for own in folders:
            while not (own / "steps").exists() or int((own / "steps").read_text() or 0) < 12:
                assert time.monotonic() < until and all(thread.is_alive() for thread in threads), "a training does not train"
                time.sleep(0.02)
        command = ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(group.folder), sys.executable, "-c", TAKE]
        taken = subprocess.run([*command, str(group.folder)], capture_output=True, text=True, timeout=120)
        assert taken.returncode == 0, taken.stderr
    finally:
        for own, thread in zip(folders, threads):
            (own / "stop").touch()
            thread.join()
    return json.loads(taken.stdout), results


@pytest.mark.parametrize("trainings", TRAININGS)
def test_another_process_gets_what_is_kept(run, group, tmp_path, trainings):  # noqa: F811
    # With two competing processes the result varies, so the maximum of several attempts counts.
    attempts = range(2 * trainings - 1)
    strict = max(beside(run, group, tmp_path / f"off-{attempt}", "off", trainings)[0] for attempt in attempts)
    of_kept = [beside(run, group, tmp_path / f"auto-{attempt}", "auto", trainings) for attempt in attempts]
    kept = max(steps for steps, _ in of_kept)
    results = [result for _, of_one in of_kept for result in of_one]
    print(strict, kept, results, LIMIT)
    assert strict > 2
    assert kept >= strict - 1
    assert len(results) == trainings * len(attempts) and all(training["steps"] > 12 for training in results)
    assert group.kills() == 0
