"""How tests run programs on the simulated device."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import under_device_sim

TESTS = Path(__file__).resolve().parent
PYTHON = TESTS.parent
sys.path.insert(0, str(PYTHON))  # for tests of what needs no device

# Runs `module:function` of this folder and prints its result as the last line.
# The wait at the end: if a thread of PyTorch still releases Python objects while the
# interpreter exits, CPython terminates the thread in a way that aborts the process ("terminate called
# without an active exception"); this was seen once.
RUNNER = (
    "import importlib, json, sys, time\n"
    f"sys.path.insert(0, {str(TESTS)!r})\n"
    "module, function = sys.argv[1].split(':')\n"
    "result = getattr(importlib.import_module(module), function)()\n"
    "print('\\n' + json.dumps(result))\n"
    "time.sleep(0.1)\n"
)


def pytest_addoption(parser):
    parser.addoption("--device-sim", help="libdevice_sim.so to test with")
    parser.addoption("--hip-alloc", help="libhip_alloc.so to test with")
    parser.addoption("--wheel", help="the finished wheel to test")
    parser.addoption("--trainer-wheel", help="the trainer's finished wheel, to test")
    parser.addoption("--windows-program", help="surefoot.exe, to test under wine")
    parser.addoption("--windows-python", help="the folder of a Python for Windows with PyTorch")
    parser.addoption("--windows-packages", help="the folder of the wheel and the zip for Windows")
    parser.addoption("--hosted-launcher", help="the program surefoot, to test with the trainer as a library")
    parser.addoption("--hosted-trainer", help="that library")
    parser.addoption("--windows-libraries", help="the folder of hip_alloc.dll and device_sim.dll")
    parser.addoption("--uv", help="the program uv, which installs it as well")


def pytest_configure(config):
    config.addinivalue_line("markers", "alone: watches the memory or the time of this machine; run with no other test beside it")


@pytest.fixture(scope="session")
def libraries(request):
    """Paths of the two libraries under test."""
    chosen = {}
    for option, name, variable in (
        ("--device-sim", "libdevice_sim.so", "SUREFOOT_DEVICE_SIM"),
        ("--hip-alloc", "libhip_alloc.so", "HIP_ALLOC_LIB"),
    ):
        named = request.config.getoption(option)
        chosen[option] = Path(named) if named else under_device_sim.find_library(name, variable)
    return chosen


@pytest.fixture(scope="session")
def simulator(libraries, tmp_path_factory):
    """The environment of a program that uses the simulated device."""
    return under_device_sim.environment(libraries["--device-sim"], tmp_path_factory.mktemp("links"))


@pytest.fixture
def run(simulator, libraries):
    """Runs a program (a function of a test module) on the device; returns its result, or what `expect` names.

    Keyword arguments are environment variables. `hip_alloc=True` switches hip-alloc on.
    `fails=True` gives the finished process instead of insisting on its result. `group` is
    the folder of a control group to run in. `timeout` is in seconds.
    """

    def run_program(program, hip_alloc=False, fails=False, group=None, timeout=300, **variables):
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("HIP_ALLOC", "DEVICE_SIM"))}
        environment.update(simulator, PYTHONPATH=str(PYTHON))
        if hip_alloc:
            environment.update(HIP_ALLOC="1", HIP_ALLOC_LIB=str(libraries["--hip-alloc"]))
        environment.update(variables)
        name = f"{program.__module__}:{program.__name__}"
        command = [sys.executable, "-c", RUNNER, name]
        if group:
            command = ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(group), *command]
        process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout)
        if fails:
            assert process.returncode != 0, f"{name} was to fail, and printed\n{process.stdout}{process.stderr}"
            return process
        assert process.returncode == 0, f"{name} ended with {process.returncode}\n{process.stdout}{process.stderr}"
        return json.loads(process.stdout.splitlines()[-1])

    return run_program
