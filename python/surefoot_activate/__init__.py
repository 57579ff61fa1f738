"""Puts hip-alloc under PyTorch when the environment says `HIP_ALLOC=1`.

With this folder's parent on the path, `sitecustomize.py` calls :func:`activate`
as Python starts; in an environment that was given it (`python -m surefoot_activate install`), `torch` does at
the end of its import, or a `.pth` as Python starts.
Nothing happens until the program imports `torch`: then the allocator is
installed, before the device is initialised, and `torch.cuda`'s questions about
memory are answered from it.

    _hook      waits for `torch`
    _library   finds libhip_alloc.so and speaks its C interface
    _install   makes it PyTorch's allocator
    _features  what it needs of PyTorch, and whether that is there
    _answers   answers torch.cuda.memory_allocated and its sisters
    _history   the memory history: events and Python's stacks
    _summary   torch.cuda.memory_summary, of what is really known
    _pools     memory pools of the program's own, and captured graphs
    _refusals  says plainly what does not work under it
    _installer puts all of this into an environment
    _startup   what calls it there

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
    """Installs the allocator as soon as `torch` is there, if `HIP_ALLOC=1`; returns whether it will be."""
    value = os.environ.get(SWITCH, "")
    if value in ("", "0"):
        return False
    if value != "1":
        raise ActivationError(f"{SWITCH}={value}: expected 1 (use hip-alloc) or 0 (leave PyTorch's allocator)")
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
    """The error is told here too: libraries catch what an import raises and say something else."""
    from . import _install

    try:
        _install.install(torch)
    except Exception as problem:
        kind = "" if isinstance(problem, ActivationError) else f"hip-alloc cannot be installed: {type(problem).__name__}: "
        say(f"{kind}{problem}")
        raise


def activate_at_startup():
    """As :func:`activate`, from the code that Python runs as it starts: ends the process where that fails.

    Python would bury the error under its own trouble with a failed `site` and run on, but
    a program that asked for hip-alloc must not run without it.
    """
    try:
        activate()
    except ActivationError as problem:
        print(f"surefoot: {problem}", file=sys.stderr, flush=True)
        os._exit(2)


def activate_after_torch():
    """As :func:`activate`, from the entry point that `torch` calls at the end of its import.

    PyTorch says of what is raised here that its plugin can be switched off, which a program that asked for
    hip-alloc must not do in silence: the reason comes first, and under our name.
    """
    try:
        activate()
    except Exception as problem:
        say(problem if isinstance(problem, ActivationError) else f"hip-alloc cannot be installed: {type(problem).__name__}: {problem}")
        raise
