"""libhip_alloc.so: where it is, and its C interface (`hip_alloc.h`, version 1)."""

import ctypes
import os
import pickle
import platform
import tempfile
from pathlib import Path

from ._errors import ActivationError

NAME = "libhip_alloc.so"
VARIABLE = "HIP_ALLOC_LIB"
ABI_VERSION = 1


class Stats(ctypes.Structure):
    """`struct hip_alloc_stats`; bytes and counts of one device."""

    _fields_ = [(name, ctypes.c_uint64) for name in (
        "live_bytes", "live_peak_bytes", "held_bytes", "held_peak_bytes", "live_allocations", "allocations",
        "frees", "driver_allocs", "driver_frees", "out_of_memory", "pending_bytes", "capacity_bytes",
        "allocated_bytes", "driver_alloc_bytes", "live_allocations_peak", "driver_blocks_peak", "active_peak_bytes",
    )]


class Library:
    """The loaded library. Functions that fail raise with the library's code; it has said why on standard error."""

    def __init__(self, path):
        self.path = str(path)
        try:
            self._functions = ctypes.CDLL(self.path)
        except OSError as problem:
            raise ActivationError(f"cannot load {self.path}: {problem}{_advice(self.path, problem)}") from problem
        self._check_version()
        self._declare()

    def address(self, function):
        """The address of one of its functions, for PyTorch to call."""
        return ctypes.cast(getattr(self._functions, function), ctypes.c_void_p).value

    def stats(self, device):
        stats = Stats()
        self._call("hip_alloc_stats", device, ctypes.byref(stats), ctypes.sizeof(stats))
        return stats

    def memory_info(self, device):
        """Free and total bytes: what can still be allocated, and what this process could hold in all."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("hip_alloc_mem_info", device, ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def trim(self, device, keep=0):
        self._call("hip_alloc_trim", device, keep)

    def reset_peaks(self, device):
        self._call("hip_alloc_reset_peaks", device)

    def set_memory_fraction(self, device, fraction):
        self._call("hip_alloc_set_memory_fraction", device, fraction)

    def record_stacks(self, name_stack):
        """Has this function (uint64_t (*)(void)) called at every request and free; None ends that."""
        self._call("hip_alloc_record_stacks", ctypes.cast(name_stack, ctypes.c_void_p))

    def record_history(self, entries):
        self._call("hip_alloc_record_history", entries)

    def snapshot(self):
        """What PyTorch's memory_viz reads: segments, blocks, history."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "snapshot.pickle")
            self._call("hip_alloc_snapshot", os.fsencode(path))
            with path.open("rb") as file:
                return _PlainUnpickler(file).load()

    def _check_version(self):
        try:
            version = self._functions.hip_alloc_abi_version()
        except AttributeError:
            raise ActivationError(f"{self.path} is not hip-alloc: it has no hip_alloc_abi_version") from None
        if version != ABI_VERSION:
            raise ActivationError(
                f"{self.path} has interface version {version}, this activation needs {ABI_VERSION}: "
                "take both from the same release"
            )

    def _declare(self):
        pointer, size, device = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        for name, arguments in {
            "hip_alloc_stats": [device, pointer, size],
            "hip_alloc_mem_info": [device, pointer, pointer],
            "hip_alloc_trim": [device, size],
            "hip_alloc_reset_peaks": [device],
            "hip_alloc_set_memory_fraction": [device, ctypes.c_double],
            "hip_alloc_record_history": [size],
            "hip_alloc_record_stacks": [pointer],
            "hip_alloc_snapshot": [ctypes.c_char_p],
        }.items():
            function = getattr(self._functions, name)
            function.argtypes, function.restype = arguments, ctypes.c_int

    def _call(self, name, *arguments):
        code = getattr(self._functions, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name} failed with code {code}")


def _advice(path, problem):
    """What the loader's words do not say: for a library of another processor they are that there is no such file."""
    if "GLIBC" in str(problem):
        libc = " ".join(platform.libc_ver())
        return f"; this machine has {libc}, and the library was built on one with a newer C library: build it on one as old as this"
    if Path(path).is_file():
        return f"; the file is there, and this machine is a {platform.machine()}: is the library built for that?"
    return ""


class _PlainUnpickler(pickle.Unpickler):
    """Reads numbers, text, lists and dictionaries, and nothing that could run code."""

    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"a snapshot holds plain data only, not {module}.{name}")


def find():
    """The path of the library: what HIP_ALLOC_LIB says, else beside this package, else a build of the repository."""
    named = os.environ.get(VARIABLE)
    if named:
        if not Path(named).is_file():
            raise ActivationError(f"{VARIABLE}={named}: there is no such file")
        return Path(named)
    package = Path(__file__).resolve().parent
    folders = [package, package.parent, package.parent.parent / "target" / "release"]
    for folder in folders:
        if (folder / NAME).is_file():
            return folder / NAME
    looked = ", ".join(str(folder) for folder in folders)
    raise ActivationError(
        f"HIP_ALLOC=1, but {NAME} was not found in {looked}: "
        f"set {VARIABLE} to its path, or HIP_ALLOC=0 to run with PyTorch's own allocator"
    )
