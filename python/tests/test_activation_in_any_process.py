"""HIP_ALLOC=1 in processes of every kind: it may be set for a whole session, and must not break any of them."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

PYTHON = Path(__file__).resolve().parents[1]


@pytest.fixture
def python(libraries):
    """Runs a program with HIP_ALLOC=1 and no device, not even a simulated one; returns its output."""

    def run(program, *folders, folder=None, **variables):
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("HIP_ALLOC", "LD_"))}
        path = os.pathsep.join(str(folder) for folder in (PYTHON, *folders))
        environment.update(PYTHONPATH=path, HIP_ALLOC="1", HIP_ALLOC_LIB=str(libraries["--hip-alloc"]))
        environment.update(variables)
        command = [sys.executable, "-c", textwrap.dedent(program)]
        return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=300)

    return run


def test_a_program_without_torch_runs_as_ever(python):
    process = python("import json, sys; print('torch' in sys.modules)")
    assert (process.returncode, process.stdout, process.stderr) == (0, "False\n", "")


def test_a_program_without_a_gpu_computes_on_the_cpu(python):
    process = python("""
        import torch
        print(torch.cuda.is_available(), torch.ones(1000).sum().item())
    """)
    assert (process.returncode, process.stdout, process.stderr) == (0, "False 1000.0\n", "")


def test_a_torch_for_the_cpu_only_is_left_alone(python, tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("__version__ = '2.13.0+cpu'\nclass _C: pass\n")
    process = python("import torch; print(torch.__version__)", tmp_path)
    assert (process.returncode, process.stdout) == (0, "2.13.0+cpu\n")
    assert process.stderr == "surefoot: HIP_ALLOC=1 has no effect: PyTorch 2.13.0+cpu was built for the CPU only\n"


def test_a_torch_that_cannot_be_imported_says_so_itself(python, tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('libnothing.so is missing')\n")
    process = python("""
        for attempt in range(2):
            try:
                import torch
            except ImportError as problem:
                print(problem)
    """, tmp_path)
    assert (process.returncode, process.stdout) == (0, "libnothing.so is missing\n" * 2), process.stderr


def test_no_torch_at_all_is_the_usual_error(python):
    process = python("""
        import importlib.util, sys
        sys.path = [folder for folder in sys.path if "site-packages" not in folder]
        print(importlib.util.find_spec("torch"))
        import torch
    """)
    assert process.stdout == "None\n"
    assert "ModuleNotFoundError: No module named 'torch'" in process.stderr


UNKNOWN_KEY = "HIP_ALLOC_CONF: unknown key `max_split_mb`"


def test_a_wrong_setting_is_raised_where_torch_is_imported(python):
    process = python("""
        for attempt in range(2):
            try:
                import torch
            except RuntimeError as problem:
                print(type(problem).__name__, problem)
            finally:
                print("finally")
    """, HIP_ALLOC_CONF="max_split_mb:1")
    assert process.returncode == 0, process.stderr
    first, after, second, again = process.stdout.splitlines()
    assert first.startswith(f"ActivationError {UNKNOWN_KEY}") and second == first
    assert (after, again) == ("finally", "finally")
    [said] = process.stderr.splitlines()
    assert said.startswith(f"surefoot: {UNKNOWN_KEY}")


def test_an_error_that_a_library_swallows_is_told_all_the_same(python):
    pytest.importorskip("transformers")
    process = python("from transformers import AutoModel", HIP_ALLOC_CONF="max_split_mb:1")
    assert process.returncode == 1
    assert f"surefoot: {UNKNOWN_KEY}" in process.stderr


def test_a_setting_that_is_no_text_is_refused(python):
    process = python("import torch", HIP_ALLOC_CONF=os.fsdecode(b"warmup_mb:\xff"))
    assert process.returncode == 1
    assert "ActivationError: HIP_ALLOC_CONF: `warmup_mb:\ufffd` is not UTF-8" in process.stderr


def test_settings_of_pytorchs_own_allocator_are_named(python):
    process = python("import torch", PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:128", PYTORCH_NO_CUDA_MEMORY_CACHING="1")
    assert process.returncode == 0
    [said] = process.stderr.splitlines()
    assert said.startswith("surefoot: PYTORCH_CUDA_ALLOC_CONF, PYTORCH_NO_CUDA_MEMORY_CACHING have no effect on device memory")


def test_a_library_that_is_cut_off_is_an_error_and_no_signal(python, libraries, tmp_path):
    whole = libraries["--hip-alloc"].read_bytes()
    for size in (50, 5000, len(whole) // 2, len(whole) - 100):
        cut = tmp_path / "libhip_alloc.so"
        cut.write_bytes(whole[:size])
        process = python("import torch", HIP_ALLOC_LIB=str(cut))
        assert process.returncode == 1
        assert f"surefoot: {cut} is truncated: it has {size} of at least " in process.stderr


def test_a_relative_library_is_meant_from_where_the_program_starts(python, libraries, tmp_path):
    (tmp_path / "libhip_alloc.so").symlink_to(libraries["--hip-alloc"].resolve())
    process = python("""
        import os, subprocess, sys
        os.chdir("/")
        import torch
        print(torch.cuda.memory.get_allocator_backend(), os.environ["HIP_ALLOC_LIB"])
    """, HIP_ALLOC_LIB="libhip_alloc.so", folder=tmp_path)
    assert process.stdout == f"pluggable {tmp_path}/libhip_alloc.so\n", process.stderr


def asked_for_torch_first():
    return torch.cuda.memory.get_allocator_backend()


def test_asking_whether_torch_is_there_does_not_switch_it_off(run, tmp_path):
    """As transformers does before it imports torch."""
    (tmp_path / "sitecustomize.py").write_text("import importlib.util\nassert importlib.util.find_spec('torch')\n")
    assert run(asked_for_torch_first, hip_alloc=True, PYTHONPATH=f"{PYTHON}:{tmp_path}") == "pluggable"


def spawned():
    import torch.multiprocessing as multiprocessing

    kept = torch.arange(1000.0).to("cuda")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return [pool.apply(in_a_process_of_its_own), kept.cpu().sum().item()]


def in_a_process_of_its_own():
    tensor = torch.arange(100.0).to("cuda")
    return [torch.cuda.memory.get_allocator_backend(), torch.cuda.memory_allocated(), tensor.cpu().sum().item()]


def test_a_spawned_process_has_an_allocator_of_its_own(run):
    # 100 floats, the requested size.
    assert run(spawned, hip_alloc=True) == [["pluggable", 400, sum(range(100))], sum(range(1000))]


def forked():
    import ctypes
    import json

    from device import calls

    library = ctypes.CDLL(os.environ["HIP_ALLOC_LIB"])
    kept = [torch.arange(1000.0).to("cuda") for _ in range(3)]
    large = torch.empty(300 << 20, dtype=torch.uint8, device="cuda")  # straight from the driver
    reader, writer = os.pipe()
    before = calls("cudaFree")
    child = os.fork()
    if child == 0:
        del large
        kept.clear()
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        said = {
            "frees": calls("cudaFree") - before,
            "info": library.hip_alloc_mem_info(0, ctypes.byref(free), ctypes.byref(total)),
            "host": torch.ones(1000).sum().item(),
        }
        try:
            torch.empty(10, device="cuda")
        except RuntimeError as problem:
            said["new"] = str(problem)
        os.write(writer, json.dumps(said).encode())
        os._exit(0)
    _, status = os.waitpid(child, 0)
    again = torch.arange(50.0).to("cuda").cpu().sum().item()
    return [status, json.loads(os.read(reader, 1 << 16)), kept[0].cpu().sum().item(), again]


def test_a_forked_child_leaves_the_device_to_its_parent(run):
    status, child, kept, again = run(forked, hip_alloc=True)
    assert status == 0
    assert child["frees"] == 0, "the memory is the parent's"
    assert child["info"] == 3
    assert child["host"] == 1000
    assert "forked" in child["new"]
    assert (kept, again) == (sum(range(1000)), sum(range(50)))
