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
    graph += ": leave out torch.cuda.graph and make_graphed_callables, compile with a mode other than reduce-overhead, or run with HIP_ALLOC=0"
    # The class in C++ too, for those who go past the one in Python.
    for owner in (torch.cuda.CUDAGraph, torch._C._CUDAGraph):
        _raise_from(owner, "capture_begin", graph)
    pool = (
        "torch.cuda.MemPool does not work under HIP_ALLOC=1 (hip-alloc gives what is freed to whoever asks next): "
        "leave the pool out, or run with HIP_ALLOC=0"
    )
    for owner in (torch.cuda.memory.MemPool, torch._C._MemPool):
        _raise_from(owner, "__init__", pool)
    sharing = (
        "tensors on the device cannot be shared with other processes under HIP_ALLOC=1 (their memory has neighbours): "
        "send a copy on the CPU (tensor.cpu()), or run with HIP_ALLOC=0"
    )
    _raise_from(torch.UntypedStorage, "_share_cuda_", sharing)

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
