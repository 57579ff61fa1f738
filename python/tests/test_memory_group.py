"""In a real control group, requests of a program fail with out of memory, and it is not killed."""

import os
import time
from pathlib import Path

import pytest
import torch
from test_activation import MIB

pytestmark = pytest.mark.alone

LIMIT = 3 << 30


class Group:
    """A memory group below that of this process, version 1 or 2."""

    def __init__(self, folder, limit, kills):
        self.folder, self.kills_file = folder, folder / kills
        folder.mkdir()
        try:
            # Without the memory controller the file is not there.
            with open(folder / limit, "r+") as file:
                file.write(str(LIMIT))
        except OSError:
            folder.rmdir()
            raise

    def leave(self):
        """Removes the group; its last process may still be exiting."""
        for _ in range(100):
            try:
                return self.folder.rmdir()
            except OSError:
                time.sleep(0.02)
        raise TimeoutError(f"{self.folder} does not become empty")

    def kills(self):
        return int(dict(line.split() for line in self.kills_file.read_text().splitlines())["oom_kill"])


@pytest.fixture
def group():
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    root, name = Path("/sys/fs/cgroup"), f"surefoot-test-{os.getpid()}"
    for _, controllers, path in lines:
        own = path.lstrip("/")
        try:
            if controllers == "memory":
                made = Group(root / "memory" / own / name, "memory.limit_in_bytes", "memory.oom_control")
            elif not controllers:
                made = Group(root / own / name, "memory.max", "memory.events")
            else:
                continue
        except OSError:
            continue
        yield made
        made.leave()
        return
    pytest.skip("this user may not make a memory group here (in version 2, only below a group without processes)")


def fill():
    """Allocates memory that the device shares with the host, and writes to all of it, until it runs out."""
    piece, kept = torch.ones(64 * MIB, dtype=torch.uint8), []
    try:
        while len(kept) * 64 * MIB < 2 * LIMIT:
            kept.append(torch.empty(64 * MIB, dtype=torch.uint8, device="cuda").copy_(piece))
    except torch.OutOfMemoryError as problem:
        return [len(kept) * 64 * MIB, str(problem)]


def test_unified_memory_is_refused_before_the_kernel_kills(run, group):
    got, message = run(
        fill, hip_alloc=True, group=group.folder, DEVICE_SIM_UNIFIED="20G", HIP_ALLOC_CONF="warmup_mb:256,reserve_mb:64",
    )
    assert LIMIT // 2 < got < LIMIT
    assert "The control group of this process" in message
    assert group.kills() == 0
