"""The GPU check, on the simulated device: that it runs everything, and that it can fail."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PYTHON = Path(__file__).resolve().parents[1]


@pytest.fixture
def check(simulator, libraries, tmp_path):
    """Runs the check from a folder of its own, as a bundle does; returns exit status, report and messages."""
    for part in ("gpu_check.py", "surefoot_placement.py", "sitecustomize.py"):
        shutil.copy(PYTHON / part, tmp_path)
    shutil.copytree(PYTHON / "surefoot_activate", tmp_path / "surefoot_activate")
    shutil.copy(libraries["--hip-alloc"], tmp_path / "libhip_alloc.so")

    def run(*options, **variables):
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HIP_ALLOC", "DEVICE_SIM"))}
        process = subprocess.run(
            [sys.executable, str(tmp_path / "gpu_check.py"), *options, "--steps", "2", "--out", str(tmp_path / "report.json")],
            env={**kept, **simulator, **variables}, capture_output=True, text=True, timeout=600,
        )
        report = tmp_path / "report.json"
        return process.returncode, json.loads(report.read_text()) if report.exists() else None, process.stderr

    return run


def test_the_bundled_check_runs_everything(check):
    status, report, messages = check("--loop", "convolutions")
    assert status == 0, messages
    assert report["facts"]["simulated"]
    assert "the device is simulated" in messages
    [loop] = report["loops"].values()
    assert [len(result["losses"]) for result in loop.values()] == [2, 2, 2, 2]
    assert set(report["checks"]) == {"convolutions: losses equal", "streams", "out of memory", "transfers"}


def test_the_check_fails_where_the_device_does(check):
    status, report, messages = check("--loop", "lora", DEVICE_SIM_FAIL="cudaMemcpyAsync@10+:unknown")
    assert status == 1
    assert not report["checks"]["lora: losses equal"] and not report["checks"]["transfers"]
    assert "FAILED  transfers" in messages


def test_without_a_gpu_there_is_nothing_to_check(check):
    status, report, messages = check(DEVICE_SIM_DEVICES="0")
    assert (status, report) == (2, None)
    assert "sees no GPU: does nvidia-smi list one? (For an AMD GPU this is the wrong PyTorch" in messages
