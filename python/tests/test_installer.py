"""`python -m surefoot_activate install`: HIP_ALLOC=1 permanently in an environment."""

import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

PYTHON = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """An empty virtual environment's Python."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    return folder / "bin" / "python"


@pytest.fixture
def call(environment):
    """Runs that Python; variables are keyword arguments."""

    def run(*arguments, **variables):
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("HIP_ALLOC", "PYTHON", "LD_"))}
        return subprocess.run([environment, *arguments], env={**clean, **variables}, capture_output=True, text=True)

    return run


@pytest.fixture
def installed(call, libraries):
    process = call("-m", "surefoot_activate", "install", "--library", libraries["--hip-alloc"], PYTHONPATH=str(PYTHON))
    assert process.returncode == 0, process.stderr
    return process.stdout


HOOKED = 'import sys; print("surefoot_activate" in sys.modules, [type(f).__module__ for f in sys.meta_path].count("surefoot_activate._hook"))'


def test_an_environment_has_it_only_when_it_is_switched_on(installed, call):
    assert "HIP_ALLOC=1" in installed
    assert call("-c", HOOKED, HIP_ALLOC="1").stdout == "True 1\n"
    assert call("-c", HOOKED, HIP_ALLOC="0").stdout == "False 0\n"
    assert call("-c", HOOKED).stdout == "False 0\n"


def test_it_brings_its_library(installed, call):
    process = call("-c", "from surefoot_activate._library import *; print(Library(find()).path)")
    assert process.stdout.endswith("site-packages/surefoot_activate/libhip_alloc.so\n"), process.stderr


def test_it_brings_the_verified_way_to_the_device(installed, call):
    # Without PyTorch in that environment the package is found but cannot be imported.
    found = call("-c", "import importlib.util; print(importlib.util.find_spec('surefoot_placement').origin)")
    assert found.stdout.strip().endswith("site-packages/surefoot_placement/__init__.py"), found.stderr
    assert "No module named 'torch'" in call("-c", "import surefoot_placement").stderr


def test_a_wrong_switch_stops_the_program_instead_of_leaving_it_without(installed, call):
    process = call("-c", "print('ran')", HIP_ALLOC="yes")
    assert (process.returncode, process.stdout) == (2, "")
    assert process.stderr == "surefoot: HIP_ALLOC=yes: expected 1 (use hip-alloc) or 0 (use PyTorch's allocator)\n"


def test_it_can_be_installed_again_and_leaves_nothing_when_it_is_removed(installed, call, environment, libraries):
    again = call("-m", "surefoot_activate", "install", "--library", libraries["--hip-alloc"], PYTHONPATH=str(PYTHON))
    assert again.returncode == 0, again.stderr
    for said in ("removed from", "was not installed in"):
        process = call("-m", "surefoot_activate", "remove", PYTHONPATH=str(PYTHON))
        assert process.returncode == 0 and process.stdout.startswith(said), process.stdout
    left = [path.name for path in environment.parents[1].rglob("*surefoot*")]
    assert left == []


def test_what_is_no_library_is_refused_before_anything_changes(call, environment, tmp_path):
    wrong = tmp_path / "libhip_alloc.so"
    wrong.write_text("no library")
    process = call("-m", "surefoot_activate", "install", "--library", wrong, PYTHONPATH=str(PYTHON))
    assert process.returncode == 1
    assert process.stderr.startswith(f"surefoot: cannot load {wrong}")
    assert [path for path in environment.parents[1].rglob("*surefoot*")] == []


def test_a_program_in_the_environment_runs_on_it(installed, environment, simulator):
    """With the real PyTorch of this test's own environment on the path."""
    program = "import torch; kept = torch.ones(1000, device='cuda'); print(torch.cuda.memory.get_allocator_backend(), torch.cuda.memory_allocated())"
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("HIP_ALLOC", "PYTHON"))}
    site_packages = Path(sys.modules["pytest"].__file__).parents[1]
    process = subprocess.run(
        [environment, "-c", program], env={**clean, **simulator, "HIP_ALLOC": "1", "PYTHONPATH": str(site_packages)},
        capture_output=True, text=True,
    )
    assert process.stdout == "pluggable 4000\n", process.stderr


def test_where_torch_calls_entry_points_nothing_runs_as_python_starts(environment, call, libraries):
    site_packages = next(environment.parents[1].glob("lib/python3*/site-packages"))
    torch = site_packages / "torch"
    torch.mkdir()
    # As PyTorch does at the end of its import.
    (torch / "__init__.py").write_text(
        "import importlib.metadata\n"
        'for point in importlib.metadata.entry_points(group="torch.backends"):\n'
        "    print(point.value)\n"
    )
    try:
        process = call("-m", "surefoot_activate", "--json", "install", "--library", libraries["--hip-alloc"], PYTHONPATH=str(PYTHON))
        assert process.returncode == 0, process.stderr
        assert json.loads(process.stdout)["called_by"].startswith("called by torch: surefoot_activate-")
        assert not (site_packages / "surefoot_activate.pth").exists()
        assert call("-c", HOOKED, HIP_ALLOC="1").stdout == "False 0\n"
        assert call("-I", "-c", "import torch").stdout == "surefoot_activate:activate_after_torch\n"
    finally:
        shutil.rmtree(torch)
        call("-m", "surefoot_activate", "remove", PYTHONPATH=str(PYTHON))
    assert [path.name for path in environment.parents[1].rglob("*surefoot*")] == []
