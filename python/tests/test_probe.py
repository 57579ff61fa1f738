"""`surefoot probe`'s checks with real PyTorch on the simulated device: each fault gives the answer of its own.

How a process ended (crash, hang, no answer) is judged by the command itself; its tests
are in `crates/cli/tests/tools/probe.rs`. Kernels compute nothing here, so only copies and
memory can be shown.
"""

import json
import os
import subprocess
import sys

import pytest

import under_device_sim

CHECKS = under_device_sim.REPOSITORY / "crates/cli/src/commands/probe/checks.py"


@pytest.fixture
def check(simulator):
    """Runs a check; returns its answer, or how its process ended."""

    def run_check(name, timeout=120, **orders):
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("HIP_ALLOC", "DEVICE_SIM"))}
        environment |= simulator | orders
        command = [sys.executable, str(CHECKS), name, "cuda"]
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout)
        except subprocess.TimeoutExpired:
            return "hang"
        if done.returncode < 0:
            return "crash"
        return json.loads(done.stdout.splitlines()[-1])["verdict"]

    return run_check


@pytest.mark.parametrize("name", ["import", "copy_small", "copy_image", "copy_mixed", "copy_loader", "copy_large"])
def test_a_device_without_faults_passes(check, name):
    assert check(name) == "ok"


@pytest.mark.parametrize(
    ("order", "verdict"),
    [
        ({"DEVICE_SIM_COPY": "h2d@2:zeros"}, "zeros"),
        ({"DEVICE_SIM_COPY": "h2d@3:nan"}, "nan"),
        ({"DEVICE_SIM_COPY": "d2h:flip"}, "wrong"),
        ({"DEVICE_SIM_LOSE": "cudaMemcpyAsync@2:illegal_address"}, "error"),
        ({"DEVICE_SIM_FAIL": "cudaMalloc:out_of_memory"}, "oom"),
        ({"DEVICE_SIM_CRASH": "cudaMemcpyAsync@3"}, "crash"),
    ],
)
def test_every_fault_has_an_answer_of_its_own(check, order, verdict):
    assert check("copy_small", **order) == verdict


def test_a_hang_is_a_result(check):
    assert check("copy_small", timeout=30, DEVICE_SIM_HANG="cudaMemcpyAsync@2") == "hang"


def test_a_fault_in_one_copy_of_a_large_tensor_is_found(check):
    assert check("copy_large", DEVICE_SIM_COPY="h2d@17:nan") == "nan"


def test_memory_that_cannot_be_had_is_told(check):
    assert check("memory", DEVICE_SIM_FAIL="cudaMalloc@2+:out_of_memory") == "oom"
