"""Installs hip-alloc as PyTorch's allocator if `HIP_ALLOC=1` is set.

With this folder's parent in PYTHONPATH, `sitecustomize.py` calls :func:`activate`
when Python starts. In an environment in which it is installed (`python -m surefoot_activate install`), it is called by
`torch` at the end of its import, or by a `.pth` file when Python starts.
Nothing happens until the program imports `torch`: then the allocator is
installed, before the device is initialised, and the memory functions of `torch.cuda`
return its statistics.

    _hook      runs code after the import of `torch`
    _library   finds libhip_alloc.so and calls its C interface
    _install   makes it PyTorch's allocator
    _features  checks which functions of PyTorch are available
    _answers   implements torch.cuda.memory_allocated and related functions
    _history   the memory history: events and Python stacks
    _summary   torch.cuda.memory_summary, with the rows that apply
    _pools     memory pools and captured graphs
    _refusals  raises clear errors for unsupported features
    _installer installs all of this into an environment
    _startup   the code that calls it there

Pure Python without dependencies; works with PyTorch 2.8 and newer, for ROCm and CUDA.
"""

import os
import sys

from ._errors import ActivationError, say

__all__ = ["ActivationError", "activate", "activate_after_torch", "activate_at_startup"]

SWITCH = "HIP_ALLOC"

# Python may run the line of a `.pth` twice (where `lib64` is a link to `lib`), and the
# launcher's `sitecustomize` may come on top of it.
_switched_on = False


def activate():
    """Installs the allocator as soon as `torch` is imported, if `HIP_ALLOC=1`; returns whether it will be installed."""
    value = os.environ.get(SWITCH, "")
    if value in ("", "0"):
        return False
    if value != "1":
        raise ActivationError(f"{SWITCH}={value}: expected 1 (use hip-alloc) or 0 (use PyTorch's allocator)")
    global _switched_on
    if _switched_on:
        return True
    from . import _hook, _install, _library

    _library.make_variable_absolute()
    if "torch" in sys.modules:
        _install.install(sys.modules["torch"])
    else:
        _hook.after_import("torch", _install_after_import)
    _switched_on = True
    return True


def _install_after_import(torch):
    """Prints the error as well: libraries catch errors of an import and report something else."""
    from . import _install

    try:
        _install.install(torch)
    except Exception as problem:
        kind = "" if isinstance(problem, ActivationError) else f"hip-alloc cannot be installed: {type(problem).__name__}: "
        say(f"{kind}{problem}")
        raise


def activate_at_startup():
    """As :func:`activate`, from the code that Python runs when it starts: exits if that fails.

    Python would report a failed `site` module and continue, but a program that
    requested hip-alloc must not run without it.
    """
    try:
        activate()
    except ActivationError as problem:
        print(f"surefoot: {problem}", file=sys.stderr, flush=True)
        os._exit(2)


def activate_after_torch():
    """As :func:`activate`, from the entry point that `torch` calls at the end of its import.

    For errors raised here, PyTorch only advises to disable the plugin, after which the program would silently
    run without hip-alloc. So the reason is printed first, under Surefoot's name.
    """
    try:
        activate()
    except Exception as problem:
        say(problem if isinstance(problem, ActivationError) else f"hip-alloc cannot be installed: {type(problem).__name__}: {problem}")
        raise
