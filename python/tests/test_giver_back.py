"""Memory kept between steps is released when the program is idle; also with forks, exits and a second training."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from test_activation import MIB
from test_memory_group import group  # noqa: F401 (a fixture)

pytestmark = pytest.mark.alone

LAYERS, LAYER = 8, 64 * MIB
KEEP = {"HIP_ALLOC_CONF": "keep:auto,warmup_mb:32,reserve_mb:64", "DEVICE_SIM_UNIFIED": "20G"}
# The memory that the floor and blocks for small requests may hold (`FLOOR_PART_OF_USED` in the pool).
FLOOR = LAYERS * LAYER // 4


def step(layers=LAYERS):
    """The device part of a training step: activations are allocated and freed."""
    kept = [torch.zeros(LAYER, dtype=torch.uint8, device="cuda") for _ in range(layers)]
    kept[-1].copy_(kept[0])
    del kept
    torch.cuda.synchronize()


def held():
    """Bytes that the allocator holds."""
    return torch.cuda.memory_stats()["reserved_bytes.all.current"]


def train_until_kept():
    """Runs steps until their memory is kept for the next one."""
    for _ in range(1000):
        step()
        if held() > LAYERS * LAYER // 2:
            return held()
        time.sleep(0.005)
    raise AssertionError(f"nothing is kept: {held()} bytes are held")


def wait_for_floor():
    """Waits until no more than the floor is held; returns the memory held."""
    until = time.monotonic() + 60
    while held() > FLOOR and time.monotonic() < until:
        time.sleep(0.05)
    return held()


def pausing():
    before = train_until_kept()
    at_rest = wait_for_floor()
    step()
    return [before, at_rest]


def test_a_program_that_pauses_is_at_its_floor(run):
    before, at_rest = run(pausing, hip_alloc=True, **KEEP)
    assert before > LAYERS * LAYER // 2
    assert at_rest <= FLOOR


def forking():
    """Forks like a data loader while memory is kept, and while a thread releases it."""
    train_until_kept()
    ended = []
    for turn in range(20):
        child = os.fork()
        if child == 0:
            # The child has the parent's objects, but does not use the device.
            os._exit(0 if torch.arange(10).sum().item() == 45 else 1)
        step()
        ended.append(os.waitpid(child, 0)[1])
        time.sleep(0.003 * turn)
    train_until_kept()
    child = os.fork()
    if child == 0:
        # While the thread of the parent is active.
        time.sleep(2)
        os._exit(0)
    at_rest = wait_for_floor()
    ended.append(os.waitpid(child, 0)[1])
    step()
    return [ended, at_rest]


def test_forks_neither_stop_nor_disturb_it(run):
    ended, at_rest = run(forking, hip_alloc=True, **KEEP)
    assert set(ended) == {0}
    assert at_rest <= FLOOR


def ending():
    """Trains, and exits at some moment in some way."""
    way, after = os.environ["ENDING"].split(":")
    train_until_kept()
    until = time.monotonic() + float(after)
    while time.monotonic() < until:
        step(2)
    if way == "exception":
        raise ValueError("the program's own")
    if way == "signal":
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    if way == "os_exit":
        os._exit(3)
    sys.exit(4)


@pytest.mark.parametrize(("way", "code"), [("exception", 1), ("signal", -signal.SIGTERM), ("os_exit", 3), ("exit", 4)])
def test_a_program_may_end_at_any_moment(run, way, code):
    """While its memory is used, kept, or being released (a second after the last step)."""
    for after in ("0", "0.11"):
        process = run(ending, hip_alloc=True, fails=True, ENDING=f"{way}:{after}", **KEEP)
        assert process.returncode == code, process.stderr
        assert "own" in process.stderr if way == "exception" else "Traceback" not in process.stderr


def training():
    """Runs a number of steps that need more than half of the group; returns how many were refused."""
    layers, wanted = int(os.environ["LAYERS"]), int(os.environ["WANTED"])
    Path(os.environ["READY"]).touch()
    done = refused = 0
    while done < wanted:
        try:
            step(layers)
            done += 1
        except torch.OutOfMemoryError:
            refused += 1
        time.sleep(0.01)
    return [done, refused]


def test_two_trainings_share_what_one_of_them_alone_could_fill(run, group, tmp_path):  # noqa: F811
    """The sum of their peaks exceeds the group: each completes its steps, and none is killed."""
    variables = {
        "DEVICE_SIM_UNIFIED": "20G", "DEVICE_SIM_POPULATE": "on", "LAYERS": "18", "WANTED": "30",
        "HIP_ALLOC_CONF": "keep:auto,warmup_mb:32,reserve_mb:512",
    }
    results = {}

    def program(name):
        results[name] = run(training, hip_alloc=True, group=group.folder, READY=str(tmp_path / name), **variables)

    threads = [threading.Thread(target=program, args=[name]) for name in ("one", "other")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {name: done for name, (done, _) in results.items()} == {"one": 30, "other": 30}
    assert group.kills() == 0
