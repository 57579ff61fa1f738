"""The native trainer, built against a libtorch for the CPU, on the simulated device: from each layout in which ROCm comes.

The environments are made up. In PyTorch's place for HIP stands its build for CUDA of the same release, whose runtime
is the simulator: it lies where the layout has HIP's, and nowhere else, so a trainer that is not given the
layout's folders sees no GPU.
"""

import os
import subprocess
from pathlib import Path

import pytest
import torch

import under_device_sim

BUILT_FOR = "2.13."
CONFIG = """\
name: tiny
device: gpu
threads: 1
output_dir: runs
model: {hidden_size: 16, intermediate_size: 24, num_hidden_layers: 1, num_attention_heads: 2}
data: {path: text.txt, block_size: 16}
sample: {max_new_tokens: 0}
train: {bf16: false, max_steps: 3, per_device_train_batch_size: 2, logging_steps: 1, eval_steps: 0, save_steps: 0}
"""
# Where each layout has the runtime; `opt` stands for a folder that ROCM_PATH names, since /opt is not ours.
LAYOUTS = {
    "in torch": ("site/torch/lib", "ROCm inside of PyTorch"),
    "packages": ("site/_rocm_sdk_core/lib", "ROCm of the rocm-sdk packages"),
    "program": ("sdk/lib", "ROCm of `rocm-sdk path`"),
    "named": ("opt/rocm-7.1.0/lib", "ROCm of ROCM_PATH"),
}


def link_all(source, target, without=()):
    target.mkdir(parents=True)
    for file in source.iterdir():
        if file.name not in without:
            (target / file.name).symlink_to(file.resolve())


@pytest.fixture
def environment(tmp_path, libraries):
    """Makes an environment of a layout; returns its prefix."""
    if not torch.__version__.startswith(BUILT_FOR):
        pytest.skip(f"the trainer is built for libtorch {BUILT_FOR}*, and this is {torch.__version__}")

    def make(place):
        prefix, real = tmp_path / "env", Path(torch.__file__).parent
        site = prefix / "lib" / "python3.12" / "site-packages"
        link_all(real / "lib", site / "torch" / "lib")
        (site / "torch/lib/libtorch_hip.so").symlink_to(real / "lib/libtorch_cuda.so")
        (site / "torch/version.py").write_text("__version__ = '2.13.0+rocm7.1'\nhip = '7.1'\ncuda = None\n")
        (prefix / "pyvenv.cfg").write_text("")
        for folder in (real.parent / "nvidia").glob("*/lib"):
            link_all(folder, site / "nvidia" / folder.parent.name / "lib", without=("libcudart.so.13",))
        runtime = (site / place.removeprefix("site/")) if place.startswith("site/") else prefix / place
        runtime.mkdir(parents=True, exist_ok=True)
        simulator = Path(libraries["--device-sim"]).resolve()
        for name in ("libamdhip64.so.7", "libcudart.so.13", *under_device_sim.LINKS):
            (runtime / name).symlink_to(simulator)
        if place == "sdk/lib":
            program = prefix / "bin" / "rocm-sdk"
            program.parent.mkdir()
            program.write_text(f"#!/bin/sh\necho {prefix / 'sdk'}\n")
            program.chmod(0o755)
        return prefix

    return make


@pytest.fixture
def surefoot(tmp_path):
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "text.txt").write_text("".join(f"{number} bottles of ale\n" for number in range(400)))
    program = under_device_sim.find_library("surefoot", "SUREFOOT_PROGRAM")

    def run(prefix, *arguments, **variables):
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("HIP", "ROCM", "LD_", "DEVICE_SIM", "CONDA"))}
        clean.update(VIRTUAL_ENV=str(prefix), HIP_ALLOC="0", SUREFOOT_CACHE=str(tmp_path / "cache"), **variables)
        return subprocess.run([program, *arguments], env=clean, cwd=tmp_path, capture_output=True, text=True, timeout=300)

    return run


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_trainer_trains_on_the_device_of_each_layout(layout, environment, surefoot):
    place, words = LAYOUTS[layout]
    prefix = environment(place)
    variables = {"ROCM_PATH": str(prefix / "opt/rocm-7.1.0")} if layout == "named" else {}
    process = surefoot(prefix, "train", "config.yaml", **variables)
    assert process.returncode == 0, process.stderr
    assert words in process.stderr
    assert "device     GPU 0" in process.stderr
    assert process.stdout.startswith("done: 3 steps\n")


def test_another_release_is_told_in_one_message_and_not_used(environment, surefoot):
    prefix = environment("site/_rocm_sdk_core/lib")
    (prefix / "lib/python3.12/site-packages/torch/version.py").write_text("__version__ = '2.12.0+rocm7.0'\nhip = '7.0'\n")
    process = surefoot(prefix, "train", "config.yaml")
    assert process.returncode != 0
    assert process.stderr.count("2.12.0+rocm7.0") == 1 and "was built for PyTorch 2.13.0" in process.stderr
    assert "sees no GPU" in process.stderr
