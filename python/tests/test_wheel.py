"""The finished wheel, in separate environments: `--wheel` is its path."""

import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

# The packages of the environment of this test, including PyTorch.
TORCH = Path(sys.modules["pytest"].__file__).parents[1]
BACKEND = "import torch; kept = torch.ones(1000, device='cuda'); print(torch.cuda.memory.get_allocator_backend())"


@pytest.fixture(scope="module")
def wheel(request):
    named = request.config.getoption("--wheel")
    if not named:
        pytest.skip("no --wheel: `cargo xtask dist` builds it")
    return Path(named).resolve()


class Environment:
    """A virtual environment; `with_torch` makes the PyTorch of these tests available in it."""

    def __init__(self, folder, with_torch=False):
        venv.create(folder, with_pip=False, symlinks=True)
        self.prefix = Path(folder)
        self.site_packages = next(self.prefix.glob("lib/python3*/site-packages"))
        if with_torch:
            (self.site_packages / "torch-of-the-tests.pth").write_text(f"{TORCH}\n")
        self.before = self.files()

    def files(self):
        """Except compiled Python files, our cache, and the lock file of uv."""
        files = (path.relative_to(self.prefix) for path in self.prefix.rglob("*") if not path.is_dir())
        return {str(path) for path in files if "__pycache__" not in path.parts and path.parts[0] not in (".cache", ".lock")}

    def run(self, *command, fails=False, **variables):
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("HIP_ALLOC", "PYTHON", "LD_", "CONDA"))}
        path = f"{self.prefix / 'bin'}:{clean['PATH']}"
        clean.update(PATH=path, VIRTUAL_ENV=str(self.prefix), SUREFOOT_CACHE=str(self.prefix / ".cache"))
        command = [str(self.prefix / "bin" / command[0]), *command[1:]]
        process = subprocess.run(command, env={**clean, **variables}, capture_output=True, text=True, timeout=300)
        assert fails or process.returncode == 0, f"{command}\n{process.stdout}{process.stderr}"
        return process

    def pip(self, *arguments):
        """Uses the pip of these tests, so that the environments need none."""
        return self.run_pip([sys.executable, "-m", "pip", "--python", str(self.prefix / "bin/python")], *arguments)

    def run_pip(self, pip, *arguments):
        process = subprocess.run([*pip, *arguments], capture_output=True, text=True, timeout=300)
        assert process.returncode == 0, process.stderr

    def install(self, wheel):
        self.pip("install", "--quiet", "--no-deps", "--no-index", str(wheel))


@pytest.fixture(scope="module")
def with_torch(wheel, tmp_path_factory):
    environment = Environment(tmp_path_factory.mktemp("with-torch") / "env", with_torch=True)
    environment.install(wheel)
    return environment


def test_nothing_in_it_runs_as_python_starts(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert [name for name in names if name.endswith((".pth", ".start", "entry_points.txt"))] == []
    assert {"surefoot/py.typed", "surefoot_activate/py.typed", "surefoot_placement/py.typed"} <= set(names)
    assert "surefoot_activate/libhip_alloc.so" in names


def test_the_program_is_there_by_both_names(with_torch):
    release = with_torch.run("surefoot", "--version").stdout
    assert with_torch.run("python", "-m", "surefoot", "--version").stdout == release
    as_module = with_torch.run("python", "-m", "surefoot", "--json", "doctor", fails=True)
    assert as_module.returncode in (0, 3), as_module.stderr
    assert json.loads(as_module.stdout)["machine"]["python"]["prefix"] == str(with_torch.prefix)


def test_run_needs_no_activation(with_torch, simulator):
    process = with_torch.run("surefoot", "run", "--alloc", "--", "python", "-c", BACKEND, **simulator)
    assert process.stdout.splitlines()[-1] == "pluggable"
    assert with_torch.run("python", "-c", BACKEND, HIP_ALLOC="1", **simulator).stdout == "native\n"


def test_out_of_memory_reaches_the_program_as_pytorchs_own_error(with_torch, simulator):
    """The exception is thrown by the wheel's library, and caught by PyTorch's."""
    program = (
        "import torch\n"
        "try:\n"
        "    torch.empty(1 << 40, dtype=torch.uint8, device='cuda')\n"
        "except torch.OutOfMemoryError as problem:\n"
        "    print(type(problem).__name__, 'held by hip-alloc' in str(problem))\n"
        "print(torch.ones(3, device='cuda').numel())\n"
    )
    process = with_torch.run("surefoot", "run", "--alloc", "--", "python", "-c", program, DEVICE_SIM_CAPACITY="4G", **simulator)
    assert process.stdout.splitlines()[-2:] == ["OutOfMemoryError True", "3"]


def test_activated_it_is_called_by_torch_and_leaves_with_pip(wheel, tmp_path, simulator):
    environment = Environment(tmp_path / "env", with_torch=True)
    environment.install(wheel)
    report = json.loads(environment.run("surefoot", "--json", "activate").stdout)
    assert report["called_by"] == "called by torch: surefoot-0.1.0.dist-info/entry_points.txt"
    assert not list(environment.site_packages.glob("surefoot*.pth"))
    assert environment.run("python", "-I", "-c", BACKEND, HIP_ALLOC="1", **simulator).stdout == "pluggable\n"
    assert environment.run("python", "-c", BACKEND, **simulator).stdout == "native\n"
    environment.pip("uninstall", "--quiet", "--yes", "surefoot")
    assert environment.files() == environment.before


def test_without_a_torch_python_calls_it_and_it_leaves_with_pip(wheel, tmp_path):
    environment = Environment(tmp_path / "env")
    environment.install(wheel)
    environment.run("surefoot", "activate")
    pth = environment.site_packages / "surefoot_activate.pth"
    assert pth.read_text().count("\n") == 1
    has_start = (environment.site_packages / "surefoot_activate.start").is_file()
    assert has_start == (sys.version_info >= (3, 15))
    imported = "import sys; print('surefoot_activate' in sys.modules)"
    assert environment.run("python", "-I", "-c", imported, HIP_ALLOC="1").stdout == "True\n"
    assert environment.run("python", "-c", imported).stdout == "False\n"
    # Running it twice is the same as once, and it can be undone.
    environment.run("surefoot", "activate")
    environment.run("surefoot", "activate", "--remove")
    assert not pth.exists() and (environment.site_packages / "surefoot_activate").is_dir()
    environment.run("surefoot", "activate")
    environment.pip("uninstall", "--quiet", "--yes", "surefoot")
    assert environment.files() == environment.before


def test_uv_installs_and_removes_it_as_well(wheel, request, tmp_path):
    named = request.config.getoption("--uv") or shutil.which("uv")
    if not named:
        pytest.skip("no uv")
    environment = Environment(tmp_path / "env")
    pip = [named, "pip"]
    python = ["--python", str(environment.prefix / "bin/python")]
    environment.run_pip(pip, "install", "--quiet", "--offline", "--no-deps", *python, str(wheel))
    environment.run("surefoot", "activate")
    environment.run_pip(pip, "uninstall", "--quiet", *python, "surefoot")
    assert environment.files() == environment.before


def test_the_environment_that_conda_names_is_the_one_that_is_meant(wheel, tmp_path):
    environment = Environment(tmp_path / "env")
    environment.install(wheel)
    report = environment.run("surefoot", "--json", "activate", VIRTUAL_ENV="", CONDA_PREFIX=str(environment.prefix))
    assert Path(json.loads(report.stdout)["site_packages"]) == environment.site_packages.resolve()


# The trainer's wheel.


@pytest.fixture(scope="module")
def trainer_wheel(request):
    named = request.config.getoption("--trainer-wheel")
    if not named:
        pytest.skip("no --trainer-wheel: `cargo xtask dist` builds it")
    return Path(named).resolve()


@pytest.fixture
def trains(wheel, trainer_wheel, tmp_path):
    """An environment with both wheels and, as if installed by pip, the PyTorch of these tests."""
    environment = Environment(tmp_path / "trains")
    environment.install(wheel)
    environment.install(trainer_wheel)
    (environment.site_packages / "torch").symlink_to(TORCH / "torch")
    return environment


def tiny_config(folder):
    (folder / "text.txt").write_text("The quick brown fox jumps over the lazy dog.\n" * 400)
    config = folder / "tiny.yaml"
    config.write_text(
        "name: tiny\n"
        f"output_dir: {folder / 'runs'}\n"
        "model: {hidden_size: 32, intermediate_size: 64, num_hidden_layers: 1, num_attention_heads: 2}\n"
        f"data: {{path: {folder / 'text.txt'}, block_size: 32}}\n"
        "train: {max_steps: 20, per_device_train_batch_size: 4, learning_rate: 3e-3, logging_steps: 1, eval_steps: 20, save_steps: 20}\n"
    )
    return config


def losses(folder):
    rows = [json.loads(row) for row in (folder / "runs/tiny/metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows if "loss" in row]


RELEASES = ["2.13.0", "2.15.0"]


def test_the_trainers_wheel_says_which_torches_it_is_for(trainer_wheel):
    archive = zipfile.ZipFile(trainer_wheel)
    names = archive.namelist()
    programs = sorted(name.split("/")[-1] for name in names if "/scripts/" in name)
    assert programs == ["surefoot-trainer", *(f"surefoot-trainer-{release}" for release in RELEASES)]
    assert not [name for name in names if "libtorch" in name or "libc10" in name]
    metadata = archive.read(next(name for name in names if name.endswith("METADATA"))).decode()
    assert f'Requires-Dist: torch=={RELEASES[-1]}; extra == "torch"' in metadata
    # Only the extra requires PyTorch: otherwise pip could replace a ROCm build with a CUDA build.
    assert [line for line in metadata.splitlines() if line.startswith("Requires-Dist: torch") and "extra" not in line] == []


def test_it_trains_on_the_torch_of_the_active_environment(trains, tmp_path):
    trains.run("surefoot", "train", str(tiny_config(tmp_path)))
    curve = losses(tmp_path)
    assert len(curve) == 20 and curve[-1] < curve[0]


def test_it_finds_the_torch_beside_it_without_an_active_environment(trains, tmp_path):
    trains.run("surefoot", "train", str(tiny_config(tmp_path)), VIRTUAL_ENV="")
    assert len(losses(tmp_path)) == 20
    # Also by the name for torchrun, through a symbolic link from another folder.
    link = tmp_path / "trainer"
    link.symlink_to(trains.prefix / "bin/surefoot-trainer")
    trains.run(str(link), "train", str(tiny_config(tmp_path)), "--set", "name=again", VIRTUAL_ENV="", LD_LIBRARY_PATH="")
    assert (tmp_path / "runs/again/metrics.jsonl").is_file()


def test_it_is_the_trainer_for_the_torch_that_is_there(wheel, trainer_wheel, tmp_path):
    """Programs in place of the trainers that print their names, and simulated environments."""
    environment = Environment(tmp_path / "env")
    environment.install(wheel)
    environment.install(trainer_wheel)
    for release in RELEASES:
        program = environment.prefix / "bin" / f"surefoot-trainer-{release}"
        assert program.stat().st_mode & 0o111
        program.write_text(f'#!/bin/sh\necho {release} "$LD_LIBRARY_PATH"\n')
    torch = environment.site_packages / "torch"
    (torch / "lib").mkdir(parents=True)
    for release in RELEASES:
        (torch / "version.py").write_text(f"__version__ = '{release}+cpu'\n")
        process = environment.run("surefoot", "train", "x.yaml")
        assert process.stdout.split()[0] == release
        assert str(torch.resolve() / "lib") in process.stdout or str(torch / "lib") in process.stdout


def test_an_exception_of_libtorch_is_an_error_of_the_trainer(trains, tmp_path):
    """Thrown by the environment's libtorch, caught by the C++ in the wheel."""
    process = trains.run("surefoot", "train", str(tiny_config(tmp_path)), "--set", "device=gpu:7", fails=True)
    assert process.returncode in (1, 2), (process.returncode, process.stderr)
    assert "terminate called" not in process.stderr


def test_without_its_torch_it_names_the_one_that_it_needs(wheel, trainer_wheel, tmp_path):
    environment = Environment(tmp_path / "env")
    environment.install(wheel)
    config = str(tiny_config(tmp_path))
    process = environment.run("surefoot", "train", config, fails=True)
    assert process.returncode == 2 and "pip install surefoot-trainer" in process.stderr
    environment.install(trainer_wheel)
    process = environment.run("surefoot", "train", config, fails=True)
    assert process.returncode == 2 and "PyTorch 2.15.0 or 2.13.0" in process.stderr and "no PyTorch was found" in process.stderr
    torch = environment.site_packages / "torch"
    (torch / "lib").mkdir(parents=True)
    (torch / "version.py").write_text("__version__ = '2.14.1+rocm7.2'\n")
    process = environment.run("surefoot", "train", config, fails=True)
    assert process.returncode == 2 and "PyTorch 2.14.1+rocm7.2 is in" in process.stderr
