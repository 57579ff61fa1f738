"""Makes hip-alloc PyTorch's device allocator."""

import ctypes

from . import _answers, _library, _refusals
from ._errors import ActivationError, say

OLDEST = (2, 8)  # up to 2.7, ROCm builds declare the functions with the wrong stream type
TESTED = ((2, 13), (2, 15))

# PyTorch keeps bare addresses of these; they must outlive it.
_kept = []


def install(torch):
    """Installs hip-alloc into an imported `torch` whose device was not used yet."""
    version = _version(torch)
    if not hasattr(torch._C, "_cuda_customAllocator"):
        say(f"HIP_ALLOC=1 has no effect: PyTorch {torch.__version__} was built for the CPU only")
        return
    if version < OLDEST:
        say(f"HIP_ALLOC=1 has no effect: hip-alloc needs PyTorch 2.8 or newer, this is {torch.__version__}")
        return
    if torch.cuda.is_initialized():
        raise ActivationError(
            "the device was used before hip-alloc could be installed: "
            "activate it before the first use of torch.cuda"
        )
    library = _library.Library(_library.find())
    allocator = torch.cuda.memory.CUDAPluggableAllocator(library.path, "hip_alloc_malloc", "hip_alloc_free")
    _connect(torch, allocator, library)
    torch.cuda.memory.change_current_allocator(allocator)
    _kept.append(allocator)
    _answers.answer(torch, library)
    _refusals.refuse(torch)
    if not TESTED[0] <= version <= TESTED[1]:
        say(f"hip-alloc was not tested with PyTorch {torch.__version__}")


def _connect(torch, allocator, library):
    """Sets what the constructor has no arguments for."""
    native = allocator.allocator()
    if not hasattr(native, "set_record_stream_fn"):
        raise ActivationError(
            f"PyTorch {torch.__version__} does not let an allocator hear of record_stream, "
            "without which memory would be reused too early: set HIP_ALLOC=0"
        )
    native.set_record_stream_fn(library.address("hip_alloc_record_stream"))

    def empty_cache():
        for device in range(torch.cuda.device_count()):
            library.trim(device)

    reset = ctypes.CFUNCTYPE(None)(empty_cache)
    _kept.append(reset)
    native.set_reset_fn(ctypes.cast(reset, ctypes.c_void_p).value)


def _version(torch):
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)
