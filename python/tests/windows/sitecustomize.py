"""Makes a PyTorch for the CPU look like one for ROCm, as far as `surefoot_activate` looks: tests only.

The runtime is loaded before `torch`, by its path, as AMD's wheels do. What the functions of a pluggable allocator return
becomes the memory of CPU tensors (`tensors.c`).
"""

import ctypes
import os
import sys

# Not beside `__file__`: the `sitecustomize` of Surefoot runs this one in its own module.
HERE = r"C:\surefoot"
runtimes = [ctypes.CDLL(path) for path in os.environ["SIMULATED_RUNTIMES"].split(os.pathsep) if path]


class Allocator:
    """`torch._C._CUDAPluggableAllocator`."""

    def __init__(self, allocate, free):
        self.functions = allocate, free


for _name in (
    "set_init_fn", "set_reset_fn", "set_memory_fraction_fn", "set_base_alloc_fn", "set_record_stream_fn",
    "set_begin_allocate_to_pool", "set_end_allocate_to_pool_fn", "set_release_pool",
):
    setattr(Allocator, _name, lambda self, function: None)


def simulate(torch):
    """Adds what a PyTorch for the CPU lacks, once."""
    if torch.version.hip:
        return
    tensors = ctypes.CDLL(os.path.join(HERE, "tensors.dll"))
    installed = []

    def change(allocator):
        functions = [ctypes.c_void_p(address) for address in allocator.functions]
        assert tensors.install(*functions) == 1
        installed.append(allocator)

    torch.version.hip = "7.14.60850"
    torch._C._CUDAPluggableAllocator = Allocator
    torch._C._cuda_customAllocator = Allocator
    torch._C._cuda_changeCurrentAllocator = change
    # hip-alloc replaces these.
    for name in ("memorySnapshot", "record_memory_history", "setMemoryFraction", "memoryStats", "resetPeakMemoryStats"):
        if not hasattr(torch._C, f"_cuda_{name}"):
            setattr(torch._C, f"_cuda_{name}", lambda *_: None)
    torch._C._cuda_getAllocatorBackend = lambda: "pluggable" if installed else "native"


class _Finder:
    """Runs `simulate` at the end of the import of torch, before others who wait for it or are called there."""

    def find_spec(self, name, path=None, target=None):
        if name == "surefoot_activate._install" and "torch" in sys.modules:
            simulate(sys.modules["torch"])
        if name != "torch":
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            if spec := finder.find_spec(name, path, target):
                execute = spec.loader.exec_module

                def execute_and_simulate(module):
                    execute(module)
                    simulate(module)

                spec.loader.exec_module = execute_and_simulate
                return spec
        return None


# Behind the finder of `surefoot_activate`, which asks the others.
sys.meta_path.insert(1, _Finder())
