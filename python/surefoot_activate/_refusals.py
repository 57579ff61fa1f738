"""Says plainly what does not work under hip-alloc, instead of failing somewhere inside PyTorch.

Pools of one's own and graph capture need memory that stays put until a graph is
gone; hip-alloc gives every freed range to whoever asks next.
"""

import functools
import warnings


class NotUnderHipAlloc(RuntimeError):
    """A feature of PyTorch's own allocator was used."""


def refuse(torch):
    """Puts clear messages in front of what hip-alloc cannot do."""
    graph = "graph capture does not work under HIP_ALLOC=1 (it needs private memory pools)"
    _raise_from(torch.cuda.CUDAGraph, "capture_begin", f"{graph}: run with HIP_ALLOC=0, or compile without CUDA graphs")
    pool = "torch.cuda.MemPool does not work under HIP_ALLOC=1: run with HIP_ALLOC=0"
    _raise_from(torch.cuda.memory.MemPool, "__init__", pool)
    _warn_instead(
        torch._C, "_cuda_record_memory_history",
        "PyTorch's memory history is not recorded under HIP_ALLOC=1: "
        "HIP_ALLOC_TRACE=file records a trace that `surefoot replay` reads",
    )

    if torch.version.hip is None:
        _leave_cudnn_benchmark_off(torch)


def _leave_cudnn_benchmark_off(torch):
    """Its trials ask how large a workspace may be (`cacheInfo`), which PyTorch's own allocator alone answers.

    MIOpen, which plays cuDNN in ROCm builds, does not ask.
    """
    original = torch._C._set_cudnn_benchmark

    def set_benchmark(value):
        if value:
            warnings.warn(
                "torch.backends.cudnn.benchmark stays off under HIP_ALLOC=1: "
                "its trials need PyTorch's own allocator (HIP_ALLOC=0)",
                stacklevel=3,
            )
        original(False)

    torch._C._set_cudnn_benchmark = set_benchmark
    vars(type(torch.backends.cudnn))["benchmark"].setter = set_benchmark


def _raise_from(owner, name, message):
    @functools.wraps(getattr(owner, name))
    def refused(*_arguments, **_options):
        raise NotUnderHipAlloc(message)

    setattr(owner, name, refused)


def _warn_instead(owner, name, message):
    if hasattr(owner, name):
        setattr(owner, name, lambda *_arguments, **_options: warnings.warn(message, stacklevel=3))
