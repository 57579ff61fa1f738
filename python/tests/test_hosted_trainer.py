"""The trainer as a library in the Python that has PyTorch: on Windows, with Windows' Python under Wine
(`cargo xtask windows --torch`), and on Linux (`cargo xtask test --heavy --all`).

The losses are those of the trainer with C++ on Linux.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import wine

MODEL = Path(__file__).resolve().parents[2] / "tests/reference/golden/models/llama-grouped.gguf"

LORA = """
name: lora
device: cpu
threads: 1
seed: 7
model: {name_or_path: model.gguf}
adapter: {r: 2, target_modules: all-linear}
data: {path: data.jsonl, block_size: 16, validation_fraction: 0.1}
sample: {max_new_tokens: 0}
train:
  bf16: false
  gradient_checkpointing: true
  max_steps: 6
  per_device_train_batch_size: 3
  gradient_accumulation_steps: 2
  learning_rate: 0.01
  lr_scheduler_type: constant
  logging_steps: 1
  eval_steps: 0
  save_steps: 2
"""
LORA_LOSSES = [4.554620265960693, 4.186248779296875, 3.794888734817505, 3.540389060974121, 3.1937499046325684, 3.1493810415267944]

SCRATCH = """
name: scratch
device: cpu
threads: 1
model: {hidden_size: 64, intermediate_size: 96, num_hidden_layers: 2, num_attention_heads: 4}
data: {path: text.txt, block_size: 32}
sample: {max_new_tokens: 8}
train:
  max_steps: 20
  per_device_train_batch_size: 4
  learning_rate: 3e-3
  logging_steps: 4
  eval_steps: 10
  save_steps: 0
"""
SCRATCH_LOSSES = [5.029194712638855, 4.072294056415558, 3.453202545642853, 3.1555086374282837, 3.0562838315963745]


class Place:
    """A folder with `surefoot` and the library, configs and data."""

    def __init__(self, folder, run):
        self.folder, self.run = folder, run
        (folder / "lora.yaml").write_text(LORA)
        (folder / "scratch.yaml").write_text(SCRATCH)
        shutil.copy(MODEL, folder / "model.gguf")
        rows = ({"prompt": f"on {n % 10}", "completion": " " + "the 42. " * (n % 5 + 1)} for n in range(200))
        (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        sums = (f"{n} and {n % 7} are {n + n % 7}.\n" for n in range(2000))
        (folder / "text.txt").write_text("".join(sums))

    def losses(self, run):
        lines = (self.folder / f"runs/{run}/metrics.jsonl").read_text().splitlines()
        return [row["loss"] for row in map(json.loads, lines) if row["kind"] == "train"]

    def state(self, run, step):
        return json.loads((self.folder / f"runs/{run}/checkpoints/step-{step:06}/state.json").read_text())


@pytest.fixture(scope="module")
def place(request, tmp_path_factory):
    launcher, library, python = map(request.config.getoption, ("--hosted-launcher", "--hosted-trainer", "--windows-python"))
    if not launcher or not library:
        pytest.skip("`cargo xtask windows --torch` and `cargo xtask test --heavy --all` build what this needs")
    if python:
        system = wine.with_python(tmp_path_factory.mktemp("windows"), Path(python))
        folder, words, variables = system.place, system.command("surefoot.exe"), system.variables
    else:
        system, folder = None, tmp_path_factory.mktemp("linux")
        words, variables = [str(folder / "surefoot")], {**os.environ, "VIRTUAL_ENV": sys.prefix}
    for file in map(Path, (launcher, library)):
        shutil.copy(file, folder)

    def run(*arguments):
        # Its streams are pipes: Python for Windows does not start on others of Wine.
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        return subprocess.Popen([*words, *arguments], env=variables, cwd=folder, text=True, **pipes)

    yield Place(folder, run)
    if system:
        system.remove()


def train(place, *arguments):
    process = place.run("train", *arguments)
    printed, told = process.communicate()
    assert process.returncode == 0, printed + told
    return told


def test_a_lora_has_the_losses_of_the_trainer_with_cpp(place):
    train(place, "lora.yaml")
    assert place.losses("lora") == pytest.approx(LORA_LOSSES, rel=1e-6)


def test_a_new_model_has_the_losses_of_the_trainer_with_cpp(place):
    train(place, "scratch.yaml")
    assert place.losses("scratch") == pytest.approx(SCRATCH_LOSSES, rel=1e-6)


def test_a_killed_run_goes_on_bit_for_bit(place):
    process = place.run("train", "lora.yaml", "--set", "name=killed", "--set", "train.max_steps=1000000")
    saved = (line for line in process.stderr if line.endswith("step-000004\n"))
    assert next(saved, None), "it ended before"
    process.kill()
    process.communicate()
    last = max(int(folder.name[5:]) for folder in (place.folder / "runs/killed/checkpoints").glob("step-*")) + 4
    steps = ("--set", f"train.max_steps={last}")
    told = train(place, "lora.yaml", "--set", "name=killed", *steps, "--resume")
    assert f"resumed    after step {last - 4}\n" in told
    train(place, "lora.yaml", "--set", "name=whole", *steps)
    killed, whole = (place.state(run, last) for run in ("killed", "whole"))
    for key in ("step", "units", "data", "checksums"):
        assert killed[key] == whole[key], key


def test_a_mistake_in_a_config_is_told_with_its_line(place):
    (place.folder / "wrong.yaml").write_text("train:\n  max_stepz: 3\n")
    process = place.run("train", "wrong.yaml")
    _, told = process.communicate()
    assert process.returncode == 2
    assert "max_stepz" in told and "max_steps" in told, told


def test_several_processes_are_refused(place):
    process = place.run("train", "lora.yaml", "--nproc", "2")
    _, told = process.communicate()
    assert process.returncode != 0
    assert "several processes" in told, told
