"""Finds the library and calls its C interface (`hip_alloc.h`, version 1)."""

import ctypes
import os
import pickle
import platform
import struct
import sys
import tempfile
from pathlib import Path

from ._errors import ActivationError

NAME = "hip_alloc.dll" if sys.platform == "win32" else "libhip_alloc.so"
VARIABLE = "HIP_ALLOC_LIB"
ABI_VERSION = 1
# The release of this package, which the library should match.
RELEASE = "0.1.0"


class Stats(ctypes.Structure):
    """`struct hip_alloc_stats`; bytes and counts of one device."""

    _fields_ = [(name, ctypes.c_uint64) for name in (
        "live_bytes", "live_peak_bytes", "held_bytes", "held_peak_bytes", "live_allocations", "allocations",
        "frees", "driver_allocs", "driver_frees", "out_of_memory", "pending_bytes", "capacity_bytes",
        "allocated_bytes", "driver_alloc_bytes", "live_allocations_peak", "driver_blocks_peak", "active_peak_bytes",
        "alloc_retries", "stream_syncs", "driver_free_bytes", "driver_nanoseconds", "give_backs",
    )]


class PoolId(ctypes.Structure):
    """`struct hip_alloc_pool_id`."""

    _fields_ = [("first", ctypes.c_uint64), ("second", ctypes.c_uint64)]


class PythonInterface(ctypes.Structure):
    """`struct hip_alloc_python`: the functions with which the library walks a stack."""

    NAMES = (
        "PyGILState_GetThisThreadState", "PyGILState_Ensure", "PyGILState_Release", "PyThreadState_GetFrame",
        "PyFrame_GetBack", "PyFrame_GetCode", "PyFrame_GetLasti" if sys.version_info >= (3, 11) else "PyFrame_GetLineNumber",
        "Py_IncRef", "Py_DecRef",
    )
    _fields_ = [(name, ctypes.c_void_p) for name in NAMES]


class Library:
    """The loaded library. Functions that fail raise an error with the library's code; the library prints the reason on standard error."""

    def __init__(self, path):
        self.path = os.path.abspath(path)
        _check_whole(self.path)
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
        """Free and total bytes: what can still be allocated, and the most that this process could hold."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("hip_alloc_mem_info", device, ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def trim(self, device, keep=0):
        self._call("hip_alloc_trim", device, keep)

    def reset_peaks(self, device):
        self._call("hip_alloc_reset_peaks", device)

    def set_memory_fraction(self, device, fraction):
        self._call("hip_alloc_set_memory_fraction", device, fraction)

    def retain_pool(self, device, pool, use_on_oom=False):
        """Increments the use count of a private pool, identified by two numbers; the first call creates it."""
        self._call("hip_alloc_retain_pool", device, PoolId(*pool), use_on_oom)

    def release_pool(self, device, pool):
        """Decrements the use count."""
        self._functions.hip_alloc_release_pool(device, PoolId(*pool))

    def pool_users(self, device, pool):
        """The use count."""
        return self._functions.hip_alloc_pool_users(device, PoolId(*pool))

    def record_stacks(self, walks, tag):
        """Records the Python stack at every request and free: its frames if `walks`, and the number `tag` (0: none)."""
        python = PythonInterface(*(
            ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value for name in PythonInterface.NAMES
        ))
        self._call("hip_alloc_record_python_stacks", ctypes.byref(python), ctypes.sizeof(python), walks, tag)

    def forget_stacks(self):
        """Stops recording stacks. Those recorded so far lose their frames."""
        self._call("hip_alloc_record_python_stacks", None, 0, 0, 0)

    def stack(self, number):
        """The tag of a stack and its frames, the innermost first: code objects, and the place in each."""
        tag, most = ctypes.c_uint64(), 0
        while True:
            codes, places = (ctypes.c_void_p * most)(), (ctypes.c_int * most)()
            count = self._functions.hip_alloc_python_stack(number, ctypes.byref(tag), codes, places, most)
            if count <= most:
                frames = zip(codes[:count], places[:count])
                return tag.value, [(ctypes.cast(code, ctypes.py_object).value, place) for code, place in frames]
            most = count

    def record_history(self, entries):
        self._call("hip_alloc_record_history", entries)

    def snapshot(self):
        """The data for PyTorch's memory_viz: segments, blocks, history."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "snapshot.pickle")
            self._call("hip_alloc_snapshot", os.fsencode(path))
            with path.open("rb") as file:
                return _PlainUnpickler(file).load()

    def check_settings(self):
        """Raises an error if HIP_ALLOC_CONF is invalid, instead of at every request."""
        message = ctypes.create_string_buffer(1024)
        if self._functions.hip_alloc_check_settings(message, len(message)) != 0:
            raise ActivationError(message.value.decode(errors="replace"))

    def _check_version(self):
        try:
            version = self._functions.hip_alloc_abi_version()
        except AttributeError:
            raise ActivationError(f"{self.path} is not hip-alloc: it has no hip_alloc_abi_version") from None
        if version != ABI_VERSION:
            raise ActivationError(
                f"{self.path} has interface version {version}, this activation needs {ABI_VERSION}: "
                "use both from the same release"
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
            "hip_alloc_record_python_stacks": [pointer, size, ctypes.c_int, ctypes.c_uint64],
            "hip_alloc_python_stack": [ctypes.c_uint64, pointer, pointer, pointer, size],
            "hip_alloc_snapshot": [ctypes.c_char_p],
            "hip_alloc_check_settings": [ctypes.c_char_p, size],
            "hip_alloc_begin_allocate_to_pool": [device, PoolId, pointer],
            "hip_alloc_end_allocate_to_pool": [device, PoolId],
            "hip_alloc_release_pool": [device, PoolId],
            "hip_alloc_retain_pool": [device, PoolId, device],
            "hip_alloc_pool_users": [device, PoolId],
        }.items():
            function = self._function(name)
            function.argtypes, function.restype = arguments, ctypes.c_int
        self._functions.hip_alloc_python_stack.restype = size
        self._functions.hip_alloc_begin_allocate_to_pool.restype = None
        self._functions.hip_alloc_end_allocate_to_pool.restype = None
        self._functions.hip_alloc_release_pool.restype = None

    def _function(self, name):
        try:
            return getattr(self._functions, name)
        except AttributeError:
            raise ActivationError(
                f"{self.path} ({self._release()}) has no {name}, which this activation (release {RELEASE}) needs: "
                "use both from the same release"
            ) from None

    def _release(self):
        release = getattr(self._functions, "hip_alloc_release", None)
        if release is None:
            return "of an older release"
        release.argtypes, release.restype = [], ctypes.c_char_p
        return f"release {release().decode()}"

    def _call(self, name, *arguments):
        code = getattr(self._functions, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name} failed with code {code}")


def _check_whole(path):
    """Raises an error for a truncated file (for example after a full disk): the loader would map missing pages, and the process would die of SIGBUS."""
    try:
        with open(path, "rb") as file:
            header = file.read(64)
            size = os.fstat(file.fileno()).st_size
    except OSError:
        return  # the loader reports the reason
    if header[:4] != b"\x7fELF":
        return
    needed = 64
    # ELF64, little endian (on every machine for which PyTorch has GPU builds): the section
    # header table is at the end of the file.
    if len(header) == 64 and header[4:6] == b"\2\1":
        sections, entry_size, count = struct.unpack_from("<Q10xHH", header, 0x28)
        needed = sections + entry_size * count
    if size < needed:
        raise ActivationError(f"{path} is truncated: it has {size} of at least {needed} bytes; copy or install it again")


def _advice(path, problem):
    """Explains errors of the loader that are misleading: for a library for another processor it reports that there is no such file."""
    if "GLIBC" in str(problem):
        libc = " ".join(platform.libc_ver())
        return f"; this machine has {libc}, and the library was built for a newer one: build it on this machine, or on one with the same or an older C library"
    if Path(path).is_file():
        return f"; the file exists, and this machine is {platform.machine()}: was the library built for it?"
    return ""


class _PlainUnpickler(pickle.Unpickler):
    """Unpickles only numbers, text, lists and dictionaries, so that no code can run."""

    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"a snapshot contains only plain data, not {module}.{name}")


def make_variable_absolute():
    """Makes HIP_ALLOC_LIB absolute: a relative path refers to the initial working directory, also for child processes and after a chdir."""
    if named := os.environ.get(VARIABLE):
        os.environ[VARIABLE] = os.path.abspath(named)


def find():
    """The path of the library: HIP_ALLOC_LIB, or else in this package (a wheel) or next to it (an archive)."""
    named = os.environ.get(VARIABLE)
    if named:
        if not Path(named).is_file():
            raise ActivationError(f"{VARIABLE}={named}: there is no such file")
        return Path(named)
    package = Path(__file__).resolve().parent
    folders = [package, package.parent]
    for folder in folders:
        if (folder / NAME).is_file():
            return folder / NAME
    looked = ", ".join(str(folder) for folder in folders)
    raise ActivationError(
        f"HIP_ALLOC=1, but {NAME} was not found in {looked}: "
        f"set {VARIABLE} to its path, or HIP_ALLOC=0 to run with PyTorch's own allocator"
    )
