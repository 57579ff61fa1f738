"""`surefoot probe` with real PyTorch on the simulated device: each fault gives its own result.

First the checks one by one, then the command that starts them. Kernels compute nothing
here, so only copies and memory can be shown to be right. Ways to end that need no torch
are tested in `crates/cli/tests/tools/probe.rs`.
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
    """Runs a check; returns its result, or how its process exited."""

    def run_check(name, timeout=120, **settings):
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("HIP_ALLOC", "DEVICE_SIM"))}
        environment |= simulator | settings
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
    ("setting", "verdict"),
    [
        ({"DEVICE_SIM_COPY": "h2d@2:zeros"}, "zeros"),
        ({"DEVICE_SIM_COPY": "h2d@3:nan"}, "nan"),
        ({"DEVICE_SIM_COPY": "d2h:flip"}, "wrong"),
        ({"DEVICE_SIM_LOSE": "cudaMemcpyAsync@2:illegal_address"}, "error"),
        ({"DEVICE_SIM_FAIL": "cudaMalloc:out_of_memory"}, "oom"),
        ({"DEVICE_SIM_CRASH": "cudaMemcpyAsync@3"}, "crash"),
    ],
)
def test_every_fault_has_an_answer_of_its_own(check, setting, verdict):
    assert check("copy_small", **setting) == verdict


def test_a_hang_is_a_result(check):
    assert check("copy_small", timeout=30, DEVICE_SIM_HANG="cudaMemcpyAsync@2") == "hang"


def test_a_fault_in_one_copy_of_a_large_tensor_is_found(check):
    assert check("copy_large", DEVICE_SIM_COPY="h2d@17:nan") == "nan"


def test_memory_that_cannot_be_had_is_told(check):
    assert check("memory", DEVICE_SIM_FAIL="cudaMalloc@2+:out_of_memory") == "oom"


# The command itself: it starts each check, waits for it, and reports the result.


@pytest.fixture
def probe(simulator, tmp_path):
    """Runs `surefoot probe` on the simulated device; returns exit code, result and the written report."""
    program = under_device_sim.find_library("surefoot", "SUREFOOT_PROGRAM")

    def run_probe(*arguments, device=simulator, **settings):
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("HIP_ALLOC", "DEVICE_SIM"))}
        # The results for this "GPU" must not be stored in the user's cache.
        environment |= device | settings | {"SUREFOOT_CACHE": str(tmp_path / "cache")}
        report = tmp_path / "report.json"
        command = [str(program), "probe", "--json", "--python", sys.executable, "--report", str(report), *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout), json.loads(report.read_text())

    return run_probe


@pytest.mark.parametrize(
    ("setting", "outcome"),
    [
        ({"DEVICE_SIM_COPY": "h2d@2:zeros"}, "zeros"),
        ({"DEVICE_SIM_COPY": "h2d@3:nan"}, "nan"),
        ({"DEVICE_SIM_COPY": "d2h:flip"}, "wrong"),
        ({"DEVICE_SIM_LOSE": "cudaMemcpyAsync@2:illegal_address"}, "error"),
        ({"DEVICE_SIM_FAIL": "cudaMalloc:out_of_memory"}, "out-of-memory"),
        ({"DEVICE_SIM_CRASH": "cudaMemcpyAsync@3"}, "crash"),
    ],
)
def test_the_command_tells_the_kinds_of_failure_apart(probe, setting, outcome):
    code, result, report = probe("--only", "copy-small", **setting)
    imported, copied = result["checks"]
    assert (code, imported["outcome"], copied["outcome"]) == (3, "ok", outcome), copied
    assert copied["advice"], "what to do about it"
    assert report["checks"] == result["checks"]


def test_the_command_survives_a_hang_and_names_it(probe):
    code, result, _ = probe("--only", "copy-small", "--patience", "0.5", DEVICE_SIM_HANG="cudaMemcpyAsync@2")
    assert (code, result["checks"][1]["outcome"]) == (3, "hang")


def test_one_check_that_fails_is_told_among_those_that_pass(probe):
    code, result, _ = probe("--only", "copy", DEVICE_SIM_COPY="h2d>=10M:nan")
    outcomes = {check["name"]: check["outcome"] for check in result["checks"]}
    assert outcomes.pop("copy-large") == "nan"
    assert code == 3 and len(outcomes) == 5 and set(outcomes.values()) == {"ok"}, outcomes
    assert result["not_tested"] == []


def test_a_device_that_computes_nothing_is_no_device_to_train_on(probe):
    code, result, _ = probe("--only", "matmul-fp32")
    assert code == 3 and result["checks"][1]["outcome"] in ("zeros", "wrong", "nan"), result["checks"]


def test_without_a_device_the_command_says_what_it_could_not_test(probe):
    code, result, report = probe(device={})
    assert code == 1 and [check["outcome"] for check in result["checks"]] == ["error"], result["checks"]
    assert "copy-large" in result["not_tested"] and len(result["not_tested"]) == 17
    assert report["not_tested"] == result["not_tested"]
