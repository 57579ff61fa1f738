"""Checks the arguments of callers before anything moves."""

import difflib

import torch

from ._report import PlacementError
from ._verify import MODES


def checked(device, dtype, verify: str) -> tuple[torch.device, torch.dtype | None]:
    """The device and the dtype as PyTorch objects; a ValueError lists the allowed values."""
    if verify not in MODES:
        raise ValueError(f"verify={verify!r}: expected one of {', '.join(MODES)}")
    return _device(device), _dtype(dtype)


def _device(wanted):
    """`cuda` means the current device of that type; None means the GPU, if there is one."""
    if wanted is None:
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(wanted)
    except (RuntimeError, TypeError):
        raise ValueError(f"device={wanted!r}: expected a device such as cpu, cuda or cuda:1{_meant(wanted, ('cpu', 'cuda'))}") from None
    if device.type == "meta":
        raise ValueError("device='meta': nothing can be moved there, as it has no memory")
    if device.type == "hip":
        raise ValueError(f"device={wanted!r}: PyTorch uses the name cuda for AMD devices too")
    if device.type == "cpu":
        return device
    backend = getattr(torch, device.type, None)
    if backend is None or not getattr(backend, "is_available", lambda: True)():
        raise PlacementError(f"this machine has no device {device}: PyTorch {torch.__version__} sees none of that type")
    count = getattr(backend, "device_count", lambda: None)()
    if count is not None and (device.index or 0) >= count:
        raise PlacementError(f"this machine has no device {device}: PyTorch sees {count} of that type")
    return torch.device(device.type, backend.current_device()) if device.index is None else device


def _dtype(wanted):
    dtype = getattr(torch, wanted.removeprefix("torch."), None) if isinstance(wanted, str) else wanted
    if dtype is None and wanted is None:
        return None
    known = [name for name in vars(torch) if isinstance(getattr(torch, name), torch.dtype)]
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"dtype={wanted!r}: expected a type such as float32, bfloat16 or float16{_meant(wanted, known)}")
    if not dtype.is_floating_point:
        raise ValueError(f"dtype={wanted!r}: only floating-point tensors are cast, to a type such as float32, bfloat16 or float16")
    return dtype


def _meant(written, names):
    close = difflib.get_close_matches(str(written), names, 1)
    return f"; did you mean {close[0]}?" if close else ""
