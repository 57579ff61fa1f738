"""Puts hip-alloc under PyTorch when the environment says `HIP_ALLOC=1`.

With this folder's parent on the path, `sitecustomize.py` calls :func:`activate`
as Python starts; installed into an environment, `surefoot_activate.pth` does.
Nothing happens until the program imports `torch`: then the allocator is
installed, before the device is initialised, and `torch.cuda`'s questions about
memory are answered from it.

    _hook     waits for `torch`
    _library  finds libhip_alloc.so and speaks its C interface
    _install  makes it PyTorch's allocator
    _answers  answers torch.cuda.memory_allocated and its sisters
    _refusals says plainly what does not work under it

Pure Python without dependencies; works with PyTorch 2.8 and newer, for ROCm and CUDA.
"""

import os
import sys

from ._errors import ActivationError

__all__ = ["ActivationError", "activate"]

SWITCH = "HIP_ALLOC"


def activate():
    """Installs the allocator as soon as `torch` is there, if `HIP_ALLOC=1`; returns whether it will be."""
    value = os.environ.get(SWITCH, "")
    if value in ("", "0"):
        return False
    if value != "1":
        raise ActivationError(f"{SWITCH}={value}: expected 1 (use hip-alloc) or 0 (leave PyTorch's allocator)")
    from . import _hook, _install

    if "torch" in sys.modules:
        _install.install(sys.modules["torch"])
    else:
        _hook.after_import("torch", _install.install)
    return True
