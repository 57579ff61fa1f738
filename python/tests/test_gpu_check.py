"""The GPU check on the simulated device: it runs everything, and it can fail."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PYTHON = Path(__file__).resolve().parents[1]


# The files of `cargo xtask gpu-check --bundle`.
SOURCE = (PYTHON.parent / "xtask/src/gpu_check.rs").read_text()
PARTS, PACKAGES, REFERENCE = (
    re.findall(r'"([\w.]+)"', re.search(rf"const {name}: [^=]+ = \[([^]]+)\]", SOURCE)[1])
    for name in ("PARTS", "PACKAGES", "REFERENCE")
)
sys.path.insert(0, str(PYTHON))
import gpu_check  # noqa: E402
import gpu_check_trainer  # noqa: E402


@pytest.fixture
def check(simulator, libraries, tmp_path):
    """Runs the check from a separate folder, like a bundle; returns exit status, report and messages."""
    for part in PARTS:
        shutil.copy(PYTHON / part, tmp_path)
    for package in PACKAGES:
        shutil.copytree(PYTHON / package, tmp_path / package)
    shutil.copy(libraries["--hip-alloc"], tmp_path / "libhip_alloc.so")

    def run(*options, **variables):
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HIP_ALLOC", "DEVICE_SIM"))}
        process = subprocess.run(
            [sys.executable, str(tmp_path / "gpu_check.py"), *options, "--steps", "2", "--out", str(tmp_path / "report.json")],
            env={**kept, **simulator, "PATH": "/nowhere", **variables}, capture_output=True, text=True, timeout=600, cwd="/",
        )
        report = tmp_path / "report.json"
        return process.returncode, json.loads(report.read_text(), parse_constant=pytest.fail) if report.exists() else None, process.stderr

    return run


def test_the_bundled_check_runs_everything_and_claims_nothing_of_a_simulated_device(check):
    status, report, messages = check("--loop", "convolutions")
    assert status == 3, messages
    assert report["facts"]["simulated"] and not report["passed"]
    assert "the device is simulated" in messages
    [loop] = report["loops"].values()
    assert [len(result["losses"]) for result in loop.values()] == [2] * 6
    verdicts = {name: check["verdict"] for name, check in report["checks"].items()}
    trained = [f"trainer, {name}: the losses of {other}" for name, other, _ in gpu_check_trainer.PAIRS]
    assert verdicts == dict.fromkeys([
        "convolutions, hip-alloc: losses", "convolutions, hip-alloc, guard: losses", "streams", "out of memory", "transfers",
        "pinned copies", "graphs", "questions", *trained,
    ], "inconclusive"), report["checks"]
    assert all(report["checks"][name]["why"] == "there is no trainer in this folder" for name in trained)
    whys = [check["why"] for name, check in report["checks"].items() if "losses" not in name]
    assert all(why.startswith("the device is simulated (") for why in whys), whys
    assert all(result["passed"] for result in report["parts"].values())


def test_the_check_fails_where_the_device_does(check):
    status, report, messages = check("--loop", "lora", DEVICE_SIM_FAIL="cudaMemcpyAsync@10+:unknown")
    assert status == 1
    assert report["checks"]["lora, hip-alloc: losses"]["verdict"] == report["checks"]["transfers"]["verdict"] == "failed"
    assert "failed        transfers" in messages


def test_the_trainer_of_a_bundle_has_the_losses_of_pytorch(request, check, tmp_path):
    launcher, library = map(request.config.getoption, ("--hosted-launcher", "--hosted-trainer"))
    if not launcher or not library or request.config.getoption("--windows-python"):
        pytest.skip("`cargo xtask test --heavy --all` builds what this needs")
    shutil.copy(launcher, tmp_path / "surefoot")
    shutil.copy(library, tmp_path / "libsurefoot_trainer.so")
    trainer = tmp_path / "trainer"
    trainer.mkdir()
    for file in REFERENCE:
        shutil.copy(PYTHON.parent / "bench/train" / file, trainer)
    size = re.search(r"/wan (wan .+)\"", SOURCE)[1].split()
    subprocess.run([sys.executable, PYTHON.parent / "bench/diffusion/model.py", trainer / "wan", *size], check=True)
    status, report, messages = check("--cpu")
    assert status == 0, messages
    assert [check["verdict"] for check in report["checks"].values()] == ["passed"] * len(gpu_check_trainer.PAIRS), messages
    # What is compared with itself on the CPU is the same, and PyTorch's own loop nearly so.
    assert report["checks"]["trainer, lora, streamed: the losses of lora"]["why"] == "bit-identical"


@pytest.mark.parametrize(("ours", "theirs", "verdict"), [
    ((3.0, 2.0), (3.0, 2.0), "passed"),
    ((3.0, 2.0), (3.0, 2.0019), "passed"),
    ((3.0, 2.0), (3.0, 2.0021), "failed"),
    ((3.0, None), (3.0, 2.0), "failed"),
    ((3.0,), (3.0, 2.0), "failed"),
    (None, (3.0, 2.0), "failed"),
    ((3.0, 2.0), None, "inconclusive"),
    ((0.0, 0.0), (0.0, 0.0), "inconclusive"),
    ((3.0, 3.0), (3.0, 3.0), "inconclusive"),
])
def test_the_trainers_losses_may_differ_by_so_much(ours, theirs, verdict):
    results = {name: {"error": "ended with 1"} if one is None else {"losses": list(one)} for name, one in (("a", ours), ("b", theirs))}
    assert gpu_check.beside(results, "a", "b", 1e-3)[0] == verdict


def losses(ours, first=(3.0, 2.0), second=(3.0, 2.0)):
    results = {"pytorch": {"losses": list(first)}, "pytorch, again": {"losses": list(second)}, "hip-alloc": {"losses": list(ours)}}
    return gpu_check.compare(results, "hip-alloc")


@pytest.mark.parametrize(("arguments", "verdict"), [
    (dict(ours=(3.0, 2.0)), "passed"),
    (dict(ours=(3.0, 2.0000001)), "failed"),  # PyTorch's are bit-identical, so ours must be
    (dict(ours=(3.0, 2.002), second=(3.0, 2.001)), "passed"),  # within what a run differs by
    (dict(ours=(3.0, 2.1), second=(3.0, 2.001)), "failed"),
    (dict(ours=(3.0, None), second=(3.0, 2.001)), "failed"),
    (dict(ours=(3.0,)), "failed"),
    (dict(ours=(0.0, 0.0), first=(0.0, 0.0), second=(0.0, 0.0)), "inconclusive"),
    (dict(ours=(None, None), first=(None, None), second=(None, None)), "inconclusive"),
    (dict(ours=(3.0, 3.0), first=(3.0, 3.0), second=(3.0, 3.0)), "inconclusive"),
])
def test_losses_are_measured_by_how_far_pytorch_is_from_itself(arguments, verdict):
    assert losses(**arguments)[0] == verdict


def test_what_there_was_no_time_for_is_no_failure_and_no_success():
    runs = gpu_check.Runs(2)
    runs._began -= gpu_check.LONGEST_CHECK_S
    result = runs.run("streams", {})
    assert gpu_check.judge("streams", result)["verdict"] == "inconclusive" and "s was reached" in result["error"]
    results = {"pytorch": {"losses": [1.0]}, "pytorch, again": {"losses": [1.0]}, "hip-alloc": result}
    assert gpu_check.compare(results, "hip-alloc")[0] == "inconclusive"
    # But a failed run with hip-alloc is a failure.
    assert gpu_check.compare(results | {"hip-alloc": {"error": "ended with -11"}}, "hip-alloc")[0] == "failed"


def test_a_library_that_this_machine_cannot_load_is_told_of_before_anything_runs(check, tmp_path):
    library = bytearray((tmp_path / "libhip_alloc.so").read_bytes())
    library[18] = 183  # e_machine: AArch64
    (tmp_path / "libhip_alloc.so").write_bytes(library)
    status, report, messages = check()
    assert (status, report) == (2, None)
    assert "cannot load" in messages and "the file exists, and this machine is " in messages


def test_without_a_gpu_there_is_nothing_to_check(check):
    status, report, messages = check(DEVICE_SIM_DEVICES="0")
    assert (status, report) == (2, None)
    assert "sees no GPU: does nvidia-smi list one? (For an AMD GPU this is the wrong PyTorch" in messages
