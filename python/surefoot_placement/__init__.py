"""Moves tensors to a device and verifies them.

    from surefoot_placement import to_device, safe_prepare

    model = to_device(model, "cuda")                       # one tensor at a time, each verified
    batch = to_device(batch, "cuda", verify="always")      # dicts, lists, tuples, dataclasses
    model, optimizer, loader = safe_prepare(accelerator, model, optimizer, loader)

On some AMD GPUs copies are reported to arrive as zeros or NaN, and one large
`.to(device)` fails for the whole model. Here each tensor is moved by the first strategy that works:

    direct copy -> direct copy again -> through pinned memory -> in chunks -> cast on the host first

The copy is compared with the source by a checksum of its bytes, which detects
changed, missing and swapped bytes; on a device that computes wrong results it is
read back and compared instead. Errors after which the device is unusable end the
move at once, since continuing would corrupt training.

Needs only PyTorch; works with any device type. Verification modes:

    off      trust every copy
    first    verify all tensors of a module, and each field of a batch the first time it is moved by a strategy
    sample   verify all tensors of a module, and of each field of a batch the first and then one in 64
    always   verify every tensor

After one damaged copy, `first` and `sample` verify everything that is moved to that device. `docs/transfer.md` of the
repository specifies all of this, for this package and for the Rust crate `surefoot-placement` alike.

`_mover` traverses objects, `_parts` splits composite tensors, `_transfer` moves one tensor
with the strategies of `_strategy`, `_verify` decides what is verified, `_checksum` compares, `_prepare` is for
Accelerate.
"""

from ._mover import Mover
from ._options import checked
from ._prepare import safe_prepare
from ._report import DeviceLost, PlacementError, PlacementReport

__all__ = ["DeviceLost", "PlacementError", "PlacementReport", "safe_prepare", "to_device"]


def to_device(obj, device=None, dtype=None, verify: str = "first", report: PlacementReport | None = None, stay_on_cpu: bool = False):
    """Moves a tensor, a module (in place) or anything nested of tensors, and returns it.

    Containers keep their types, and tensors their memory format (`channels_last`). A
    tensor that occurs twice is moved once; so are tied weights, including separate
    parameters that share memory. Other views that share memory become independent tensors. A
    leaf that requires a gradient stays a leaf and keeps its gradient;
    for other tensors, gradients flow back to the source. The items of a generator
    are moved when they are requested.

    `dtype` (`torch.bfloat16` or its name) casts floating-point tensors only, as
    `Module.to` does. With `stay_on_cpu` a tensor for which all strategies fail is left on the CPU,
    with a warning; otherwise PlacementError is raised.
    """
    device, dtype = checked(device, dtype, verify)
    report = PlacementReport() if report is None else report
    return Mover(device, dtype, verify, report, stay_on_cpu).nested(obj, "")
