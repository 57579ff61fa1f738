"""hip-alloc under the real PyTorch for Windows, in Windows' Python, under Wine: `cargo xtask windows --torch`.

The HIP runtime is `device-sim` as `amdhip64_7.dll`. A PyTorch with a `torch_hip.dll` is on no package index, so that one for
the CPU stands in (`windows/sitecustomize.py`): what calls hip-alloc here is its `c10.dll`, for the memory of CPU tensors.
"""

import json
import re
import shutil
import struct
from pathlib import Path

import pytest

from wine import on_drive, with_python

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE / "windows"
CAPACITY = 1 << 30
MIB = 1 << 20


def options(request, *names):
    """The paths after these options."""
    values = [request.config.getoption(name) for name in names]
    if not all(values):
        pytest.skip("`cargo xtask windows --torch` builds and downloads what this needs")
    return map(Path, values)


@pytest.fixture(scope="module")
def system(request, tmp_path_factory):
    """Wine with Microsoft's runtime and Windows' Python."""
    (python,) = options(request, "--windows-python")
    system = with_python(
        tmp_path_factory.mktemp("windows"),
        python,
        DEVICE_SIM_CAPACITY=str(CAPACITY),
        PYTHONPATH=r"C:\surefoot",
        SIMULATED_RUNTIMES=r"C:\surefoot\amdhip64_7.dll",
        LIBTORCH=on_drive(python / "Lib/site-packages/torch"),
    )
    yield system
    system.remove()


@pytest.fixture(scope="module")
def windows(request, system):
    program, libraries = options(request, "--windows-program", "--windows-libraries")
    shutil.copy(program, system.place / "surefoot.exe")
    shutil.copy(libraries / "hip_alloc.dll", system.place)
    (system.place / "other").mkdir()
    for name in ("amdhip64_7.dll", "other/amdhip64_7.dll"):
        shutil.copy(libraries / "device_sim.dll", system.place / name)
    for name in ("sitecustomize.py", "train.py", "memory.py"):
        shutil.copy(PROGRAMS / name, system.place)
    system.compile(PROGRAMS / "tensors.c", system.place / "tensors.dll", "-shared")
    return system


def printed(process):
    assert process.returncode == 0, process.stdout + process.stderr
    return json.loads(process.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def trained(windows):
    """What the program reports under `surefoot.exe run --alloc`, and how it ended."""
    words = ("surefoot.exe", "run", "--alloc", "--", windows.python, "train.py", "hip-alloc", "300")
    process = windows.run(*words, timeout=900)
    return printed(process), process.stderr


def test_a_block_is_trained_in_the_memory_of_hip_alloc(trained):
    done, _ = trained
    losses = done["losses"]
    assert losses[-1] < losses[0], losses


def test_a_small_gpt_has_the_losses_of_pytorchs_own_memory(windows, trained):
    done, _ = trained
    plain = printed(windows.run(windows.python, "train.py", "plain", "0", timeout=300))
    assert len(done["gpt"]) == 30 and done["gpt"] == plain["gpt"]


OUT_OF_MEMORY = r"^HIP out of memory. Tried to allocate 8.00 GiB. GPU 0 has a total capacity of 1.00 GiB of which [0-9.]+ [MG]iB is free\. Of the memory held"


def test_out_of_memory_is_pytorchs_exception_with_the_message(trained):
    done, _ = trained
    for kind, message in (done["oom"], done["oom_in_thread"]):
        assert kind == "OutOfMemoryError"
        assert re.match(OUT_OF_MEMORY, message), message
    assert re.match(OUT_OF_MEMORY, done["oom_in_backward"])


def test_a_copy_of_it_comes_from_a_thread_of_pytorch(trained):
    done, _ = trained
    assert "HIP out of memory. Tried to allocate 8.00 GiB." in done["oom_in_pytorchs_thread"]


def test_running_out_hundreds_of_times_costs_no_memory(trained):
    done, _ = trained
    # 300 times; what is thrown has 512 bytes, and its text as many again.
    assert done["growth"] < 256 << 10, done["growth"]


def memory(windows, *words, **variables):
    """What hip-alloc says of the device's memory, in a program without PyTorch."""
    return windows.run(windows.python, "memory.py", *words, timeout=300, **variables)


def test_a_program_of_tchs_functions_trains_as_on_linux(request, system):
    """`crates/torch-abi/examples/01-train.rs`, without Python; the losses are those that it prints on Linux."""
    (libraries,) = options(request, "--windows-libraries")
    shutil.copy(libraries / "examples/01-train.exe", system.place)
    process = system.run("01-train.exe", timeout=600)
    assert process.returncode == 0, process.stderr
    on_linux = [0.061376989, 0.057819989, 0.056626678, 0.055800185, 0.055036776]
    assert [float(line) for line in process.stdout.split()] == pytest.approx(on_linux, abs=1e-6)


def test_two_runtimes_in_one_process_are_refused_with_both_paths(windows):
    process = memory(windows, SIMULATED_RUNTIMES=r"C:\surefoot\amdhip64_7.dll;C:\surefoot\other\amdhip64_7.dll")
    assert printed(process)["code"] == 1
    assert "2 Hip runtimes are loaded in this process" in process.stderr, process.stderr
    assert r"C:\surefoot\amdhip64_7.dll and C:\surefoot\other\amdhip64_7.dll" in process.stderr, process.stderr


def test_a_runtime_that_is_not_loaded_is_not_looked_for(windows):
    # It is in the working directory, and beside the library.
    process = memory(windows, SIMULATED_RUNTIMES="", HIP_ALLOC_CONF="backend:hip")
    assert printed(process)["code"] == 1
    assert "no Hip runtime: none is loaded in this process" in process.stderr


def test_without_pytorch_a_process_that_runs_out_ends_with_the_message(windows):
    process = memory(windows, str(8 << 30))
    assert process.returncode != 0
    assert "hip-alloc: HIP out of memory. Tried to allocate 8.00 GiB." in process.stderr, process


@pytest.fixture
def dxgi(windows):
    """Windows' memory manager: a simulated `dxgi.dll` in the folder of the system."""
    place = windows.system / "dxgi.dll"
    own = place.read_bytes()
    place.unlink()
    windows.compile(PROGRAMS / "dxgi.c", place, "-shared")
    yield
    place.write_bytes(own)


def video(dedicated, shared, local, non_local):
    """In MiB; budget and usage of the GPU's own memory and of RAM."""
    return " ".join(map(str, (dedicated, shared, *local, *non_local)))


def test_free_memory_is_what_windows_gives_if_that_is_less(windows, dxgi):
    lies = printed(memory(windows, SIMULATED_VIDEO_MEMORY=video(1024, 4096, (900, 100), (4096, 0))))
    assert (lies["free"], lies["total"]) == (288 * MIB, CAPACITY)
    honest = printed(memory(windows, SIMULATED_VIDEO_MEMORY=video(4096, 4096, (4000, 0), (4096, 0))))
    assert (honest["free"], honest["total"]) == (CAPACITY, CAPACITY)


def test_a_runtime_that_does_not_know_is_stood_in_for(windows, dxgi):
    variables = {"DEVICE_SIM_FAIL": "hipMemGetInfo:invalid_value"}
    process = memory(windows, SIMULATED_VIDEO_MEMORY=video(2048, 4096, (2000, 100), (4096, 0)), **variables)
    told = printed(process)
    assert (told["free"], told["total"]) == (1388 * MIB, 2048 * MIB), process.stderr


def test_without_an_answer_of_windows_the_runtime_is_believed(windows):
    told = printed(memory(windows))
    assert (told["free"], told["total"]) == (CAPACITY, CAPACITY)


def test_only_libraries_of_windows_are_imported(windows):
    names = {name.lower() for name in Image(windows.place / "hip_alloc.dll").imports()}
    system = {"kernel32.dll", "ntdll.dll", "msvcrt.dll", "userenv.dll", "ws2_32.dll", "bcryptprimitives.dll", "api-ms-win-core-synch-l1-2-0.dll"}
    assert "kernel32.dll" in names
    assert names <= system, names - system


def test_the_frames_that_throw_have_no_handler(windows):
    image = Image(windows.place / "hip_alloc.dll")
    for name in ("hip_alloc_malloc", "hip_alloc_begin_allocate_to_pool"):
        assert image.handler_flags(name) == 0, name
    # Otherwise this would also pass on a misread file.
    assert image.handler_flags("hip_alloc_mem_info") != 0


class Image:
    """A library for Windows, read as the loader reads it."""

    def __init__(self, path):
        self.bytes = path.read_bytes()
        header = self.number(0x3C)
        count, optional = struct.unpack_from("<2xH12xH", self.bytes, header + 4)
        self.directories = header + 24 + 112
        sections = header + 24 + optional
        self.sections = [struct.unpack_from("<8x4I", self.bytes, sections + 40 * at) for at in range(count)]

    def number(self, at):
        return struct.unpack_from("<I", self.bytes, at)[0]

    def at(self, address):
        """The place in the file of an address relative to the image."""
        for size, start, raw_size, raw in self.sections:
            if start <= address < start + max(size, raw_size):
                return raw + address - start
        raise ValueError(hex(address))

    def text(self, address):
        start = self.at(address)
        return self.bytes[start : self.bytes.index(b"\0", start)].decode()

    def directory(self, number):
        return struct.unpack_from("<2I", self.bytes, self.directories + 8 * number)

    def imports(self):
        at = self.at(self.directory(1)[0])
        while name := self.number(at + 12):
            yield self.text(name)
            at += 20

    def export(self, wanted):
        at = self.at(self.directory(0)[0])
        count, functions, names, ordinals = struct.unpack_from("<4I", self.bytes, at + 24)
        for index in range(count):
            if self.text(self.number(self.at(names) + 4 * index)) == wanted:
                ordinal = struct.unpack_from("<H", self.bytes, self.at(ordinals) + 2 * index)[0]
                return self.number(self.at(functions) + 4 * ordinal)
        raise ValueError(wanted)

    def handler_flags(self, function):
        """Whether the frame of an exported function has a handler for exceptions (1) or for unwinding (2)."""
        address = self.export(function)
        start, size = self.directory(3)
        for at in range(self.at(start), self.at(start) + size, 12):
            begin, _, unwind = struct.unpack_from("<3I", self.bytes, at)
            if begin == address:
                return self.bytes[self.at(unwind)] >> 3
        raise ValueError(f"{function} has no frame")
