"""What is installed on Windows: the wheel, by pip of Windows' Python, and the zip, with PyTorch for Windows under Wine (`cargo xtask windows --torch`)."""

import functools
import json
import os
import shutil
import subprocess
import urllib.request
import zipfile
from pathlib import Path

import pytest

import wine
from test_hosted_trainer import LORA, LORA_LOSSES, SCRATCH_LOSSES, Place, train

PROGRAMS = Path(__file__).resolve().parent / "windows"
# Here pip installs into, as into the Python of ComfyUI's portable version.
PYTHON = r"C:\surefoot\python"
# PyTorch alone takes a minute to import under Wine.
wait_until = functools.partial(wine.wait_until, seconds=600)
LIBRARIES = {"surefoot_trainer.dll", "hip_alloc.dll"}


@pytest.fixture(scope="module")
def packages(request):
    folder = request.config.getoption("--windows-packages")
    if not folder:
        pytest.skip("`cargo xtask windows --torch` builds and downloads what this needs")
    return {suffix: next(Path(folder).glob(f"*{suffix}")) for suffix in (".whl", ".zip")}


def link(source, target):
    try:
        os.link(source, target)
    except OSError:  # on another disk
        shutil.copy2(source, target)


@pytest.fixture(scope="module")
def windows(request, packages, tmp_path_factory):
    """A Python of its own, with PyTorch and the wheel, and nothing else of ours."""
    python, libraries = (Path(request.config.getoption(name)) for name in ("--windows-python", "--windows-libraries"))
    system = wine.with_python(tmp_path_factory.mktemp("windows"), python, DEVICE_SIM_CAPACITY="1G")
    shutil.copytree(python, system.place / "python", copy_function=link)
    # None is active.
    system.variables["WINEPATH"] = ""
    system.python = rf"{PYTHON}\python.exe"
    installed = system.run(system.python, "-m", "pip", "install", "--no-index", "--no-deps", wine.on_drive(packages[".whl"]), timeout=900)
    assert installed.returncode == 0, installed.stdout + installed.stderr
    shutil.copy(libraries / "device_sim.dll", system.place / "amdhip64_7.dll")
    for name in ("sitecustomize.py", "train.py"):
        shutil.copy(PROGRAMS / name, system.place)
    system.compile(PROGRAMS / "tensors.c", system.place / "tensors.dll", "-shared")
    yield system
    system.remove()


@pytest.fixture(scope="module")
def place(windows):
    """Where the installed program trains."""
    return Place(windows.place, lambda *arguments: start(windows, rf"{PYTHON}\Scripts\surefoot.exe", *arguments))


def start(windows, *words, **variables):
    # Its streams are pipes: Python for Windows does not start on others of Wine.
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(windows.command(*words), env={**windows.variables, **variables}, cwd=windows.place, text=True, **pipes)


def surefoot(windows, *words, **variables):
    process = windows.run(rf"{PYTHON}\Scripts\surefoot.exe", *words, timeout=900, **variables)
    assert process.returncode in (0, 3), process.stdout + process.stderr
    return process


def test_each_has_the_program_and_the_libraries(packages):
    assert packages[".whl"].name.endswith("-py3-none-win_amd64.whl")
    wheel, archive = (zipfile.ZipFile(packages[suffix]).namelist() for suffix in (".whl", ".zip"))
    folder = packages[".zip"].stem
    assert {f"{folder}/{name}" for name in LIBRARIES | {"surefoot.exe", "MINGW-W64-LICENSES.txt"}} <= set(archive)
    assert {f"surefoot_activate/{name}" for name in LIBRARIES} <= set(wheel)
    assert {f"{package}/__init__.py" for package in ("surefoot", "surefoot_activate", "surefoot_placement")} <= set(wheel)
    assert len([name for name in wheel if name.endswith(".data/scripts/surefoot.exe")]) == 1
    assert [name for name in wheel if name.endswith((".pth", "entry_points.txt"))] == []


def test_the_doctor_sees_the_python_that_it_was_installed_into(windows):
    report = json.loads(surefoot(windows, "--json", "doctor", VIRTUAL_ENV=PYTHON).stdout)
    assert report["machine"]["system"] == "windows"
    assert report["machine"]["python"]["prefix"].replace("/", "\\") == PYTHON
    version = windows.run(windows.python, "-m", "surefoot", "--version", timeout=300)
    assert version.stdout == surefoot(windows, "--version").stdout != ""


def test_it_trains_in_the_python_that_it_was_installed_into(place):
    train(place, "scratch.yaml")
    assert place.losses("scratch") == pytest.approx(SCRATCH_LOSSES, rel=1e-6)


def test_the_trainer_looks_for_the_allocator_beside_itself(windows, place):
    process = start(windows, rf"{PYTHON}\Scripts\surefoot.exe", "train", "lora.yaml", "--set", "name=alone", HIP_ALLOC="1")
    _, told = process.communicate()
    # It has found it: the C interface of PyTorch puts no other allocator under CPU tensors.
    assert process.returncode != 0 and "an allocator for the CPU needs a build with C++" in told, told
    library = windows.place / "python/Lib/site-packages/surefoot_activate/hip_alloc.dll"
    hidden = library.rename(library.with_suffix(".hidden"))
    try:
        _, told = start(windows, rf"{PYTHON}\Scripts\surefoot.exe", "train", "lora.yaml", "--set", "name=alone", HIP_ALLOC="1").communicate()
    finally:
        hidden.rename(library)
    assert r"Lib\site-packages\surefoot_activate\hip_alloc.dll does not exist" in told.replace("/", "\\"), told


def test_the_zip_trains_in_the_active_environment(windows, packages, place):
    with zipfile.ZipFile(packages[".zip"]) as archive:
        archive.extractall(windows.place)
    unpacked = rf"C:\surefoot\{packages['.zip'].stem}\surefoot.exe"
    process = start(windows, unpacked, "train", "lora.yaml", VIRTUAL_ENV=PYTHON)
    printed, told = process.communicate()
    assert process.returncode == 0, printed + told
    assert place.losses("lora") == pytest.approx(LORA_LOSSES, rel=1e-6)


class Page:
    """`surefoot ui` of the installed program."""

    def __init__(self, windows):
        command = windows.command(rf"{PYTHON}\Scripts\surefoot.exe", "--json", "ui", "--port", "0")
        # What it starts keeps other streams open under Wine.
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, env=windows.variables, cwd=windows.place, **streams)
        self.address, self.token = json.loads(self.process.stdout.readline())["url"].split("/#token=")

    def ask(self, path, body=None):
        headers = {"authorization": f"Bearer {self.token}", "origin": self.address, "content-type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(self.address + path, data, headers), timeout=60) as answer:
            return json.loads(answer.read() or "null")

    def run(self, name):
        return next((run for run in self.ask("/api/runs")["runs"] if run["name"] == name), {"state": None})

    def job(self, number):
        return next(job for job in self.ask("/api/queue")["jobs"] if job["id"] == number)

    def end(self):
        """As the Task Manager does."""
        self.process.kill()
        self.process.wait(timeout=60)


def test_the_page_starts_saves_and_stops_a_run_which_outlives_it(windows, place):
    folder = windows.place / "runs/queued"
    config = LORA.replace("max_steps: 6", "max_steps: 1000000").replace("save_steps: 2", "save_steps: 0")
    page = Page(windows)
    try:
        first = page.ask("/api/queue", {"config": config, "name": "queued"})["id"]
        second = page.ask("/api/queue", {"config": config, "name": "waiting"})["id"]
        wait_until(lambda: page.run("queued")["state"] == "running" and page.run("queued")["latest"]["step"] > 0)
        assert page.job(second)["state"] == "waiting"
        page.end()
        page = Page(windows)
        page.ask("/api/runs/queued/save", {})
        wait_until(lambda: list(folder.glob("checkpoints/step-*/state.json")))
        assert page.run("queued")["state"] == "running"
        page.ask("/api/runs/queued/stop", {})
        wait_until(lambda: page.run("queued")["state"] == "stopped")
        steps = [row["step"] for row in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines()) if row["kind"] == "train"]
        assert place.state("queued", steps[-1])["step"] == steps[-1]
        wait_until(lambda: page.job(first)["state"] == "ended")
        assert page.job(first)["how"] == "stopped"
        # The next one is checked; that ends without a run.
        wait_until(lambda: page.job(second)["state"] == "checking" and page.job(second)["process"])
        page.ask(f"/api/queue/{second}/stop", {})
        wait_until(lambda: page.job(second)["state"] == "ended")
        assert page.job(second)["how"] == "stopped", page.job(second)
        assert not (windows.place / "runs/waiting").exists()
    finally:
        page.end()


# The simulated runtime, and what makes CPU tensors its memory.
SIMULATED = {
    "PYTHONPATH": r"C:\surefoot",
    "SIMULATED_RUNTIMES": r"C:\surefoot\amdhip64_7.dll",
    "LIBTORCH": rf"{PYTHON}\Lib\site-packages\torch",
}


def trained_and_ran_out(process):
    assert process.returncode == 0, process.stdout + process.stderr
    done = json.loads(process.stdout.splitlines()[-1])
    assert done["losses"][-1] < done["losses"][0]
    assert done["oom"][0] == "OutOfMemoryError" and "Of the memory held by hip-alloc" in done["oom"][1], done["oom"]


def test_run_needs_no_activation(windows):
    words = ("run", "--alloc", "--", windows.python, "train.py", "hip-alloc", "10")
    trained_and_ran_out(surefoot(windows, *words, **SIMULATED))


def test_activated_a_variable_switches_the_allocator_on(windows):
    surefoot(windows, "activate", "--python", PYTHON)
    words = (windows.python, "train.py", "hip-alloc", "10")
    trained_and_ran_out(windows.run(*words, timeout=900, HIP_ALLOC="1", **SIMULATED))
    removed = windows.run(windows.python, "-m", "pip", "uninstall", "--yes", "surefoot", timeout=300)
    assert removed.returncode == 0, removed.stdout + removed.stderr
    assert not [path for path in (windows.place / "python").rglob("surefoot*") if path.is_file()]
