"""Makes hip-alloc PyTorch's device allocator."""

import ctypes
import functools
import os
import re

from . import _answers, _features, _library, _pools, _refusals
from ._errors import ActivationError, say

OLDEST = (2, 8)  # up to 2.7, ROCm builds declare the functions with the wrong stream type
TESTED = ((2, 8), (2, 15))

OF_PYTORCHS_ALLOCATOR = (
    "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_NO_HIP_MEMORY_CACHING",
)

# PyTorch keeps bare addresses of these; they must outlive it.
_kept = []


def install(torch):
    """Installs hip-alloc into an imported `torch` whose device has not been used yet."""
    version, tested = _version(torch), " to ".join(f"{major}.{minor}" for major, minor in TESTED)
    if not _for_a_gpu(torch):
        say(f"HIP_ALLOC=1 has no effect: PyTorch {torch.__version__} was built for the CPU only")
        return
    if version < OLDEST:
        say(f"HIP_ALLOC=1 has no effect: hip-alloc needs PyTorch 2.8 or newer, this is {torch.__version__}")
        return
    _features.check(torch, tested)
    if torch.cuda.is_initialized():
        raise ActivationError(
            "the device was used before hip-alloc could be installed: "
            "activate it before the first use of torch.cuda"
        )
    library = _library.Library(_library.find())
    library.check_settings()
    try:
        _put_under(torch, library)
    except (AttributeError, TypeError, RuntimeError) as problem:
        raise ActivationError(
            f"PyTorch {torch.__version__} does not accept hip-alloc as its allocator ({type(problem).__name__}: {problem}): "
            f"use PyTorch {tested}, or set HIP_ALLOC=0"
        ) from problem
    _name_settings_without_effect()
    if not TESTED[0] <= version <= TESTED[1]:
        say(f"hip-alloc was not tested with PyTorch {torch.__version__}, but with {tested}")


def _name_settings_without_effect():
    """PyTorch reads them only for its own allocator, which is replaced."""
    if found := [name for name in OF_PYTORCHS_ALLOCATOR if os.environ.get(name)]:
        have = "have" if len(found) > 1 else "has"
        say(f"{', '.join(found)} {have} no effect on device memory under HIP_ALLOC=1: hip-alloc is configured with HIP_ALLOC_CONF")


def _for_a_gpu(torch):
    """Whether it was built for ROCm or CUDA, which does not depend on names that may move."""
    built = getattr(torch, "version", None)
    return any(getattr(built, runtime, None) for runtime in ("hip", "cuda"))


def _put_under(torch, library):
    allocator = torch.cuda.memory.CUDAPluggableAllocator(library.path, "hip_alloc_malloc", "hip_alloc_free")
    _kept.append(allocator)
    _connect(torch, allocator, library)
    torch.cuda.memory.change_current_allocator(allocator)
    backend = torch.cuda.memory.get_allocator_backend()
    if backend != "pluggable":
        raise RuntimeError(f"its allocator is still the {backend} one")
    _answers.answer(torch, library)
    _refusals.refuse(torch)
    if _pools.are_known(torch):
        _pools.replace(torch, library)


def _connect(torch, allocator, library):
    """Sets the callbacks for which the constructor has no arguments."""
    native = allocator.allocator()
    native.set_record_stream_fn(library.address("hip_alloc_record_stream"))

    problems = []

    def empty_cache():
        """C code calls this, which no exception can pass: Python would print it, and the program would not notice."""
        for device in range(torch.cuda.device_count()):
            try:
                library.trim(device)
            except Exception as problem:
                problems.append(problem)

    def raising(original):
        @functools.wraps(original)
        def answer():
            problems.clear()
            original()
            if problems:
                raise problems[0]

        return answer

    for name in ("_cuda_emptyCache", "_accelerator_emptyCache"):
        if original := getattr(torch._C, name, None):
            setattr(torch._C, name, raising(original))
    reset = ctypes.CFUNCTYPE(None)(empty_cache)
    _kept.append(reset)
    native.set_reset_fn(ctypes.cast(reset, ctypes.c_void_p).value)
    if _pools.are_known(torch):
        _pools.connect(native, library)


def _version(torch):
    """Major and minor version; zeros if it is not numeric (a custom build may have any version string)."""
    numbers = re.match(r"(\d+)\.(\d+)", torch.__version__)
    return tuple(map(int, numbers.groups())) if numbers else (0, 0)
