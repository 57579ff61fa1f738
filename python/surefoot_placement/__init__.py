"""Every tensor arrives on the device, or you know why.

    from surefoot_placement import to_device, safe_prepare

    model = to_device(model, "cuda")                       # one tensor at a time, each verified
    batch = to_device(batch, "cuda", verify="always")      # dicts, lists, tuples, dataclasses
    model, optimizer, loader = safe_prepare(accelerator, model, optimizer, loader)

On some AMD GPUs copies are reported to arrive as zeros or NaN, and one large
`.to(device)` dies as a whole. Here each tensor is moved by the first strategy that works:

    direct copy -> once more -> through pinned memory -> in chunks -> cast on the host first

What arrives is compared with what was sent, by a checksum of its bytes that every
changed, missing or swapped byte changes; on a device that computes nonsense it is
read back and compared instead. Errors after which the device is unusable end the
move at once, since carrying on corrupts training.

Needs PyTorch only; works with any device type. Verification modes:

    off      trust every copy
    first    verify what belongs to a module, and each field of a batch the first time it takes a strategy
    sample   what belongs to a module, and of each field of a batch the first and then one in 64
    always   verify every tensor

After one wrong arrival, `first` and `sample` verify all that goes to that device. `docs/transfer.md` of the
repository specifies all of this, for this package and for the Rust crate `surefoot-placement` alike.

`_mover` traverses what it is given, `_parts` takes apart what is no plain tensor, `_transfer` brings one tensor
over by the strategies of `_strategy`, `_verify` decides what is verified, `_checksum` compares, `_prepare` is for
Accelerate.
"""

from ._mover import Mover
from ._options import checked
from ._prepare import safe_prepare
from ._report import DeviceLost, PlacementError, PlacementReport

__all__ = ["DeviceLost", "PlacementError", "PlacementReport", "safe_prepare", "to_device"]


def to_device(obj, device=None, dtype=None, verify: str = "first", report: PlacementReport | None = None, stay_on_cpu: bool = False):
    """Moves a tensor, a module (in place) or anything nested of tensors, and returns it.

    Containers keep their types, dimensions their order in memory (`channels_last`). A
    tensor that occurs twice is moved once, as tied weights are, also those that are two
    parameters of one memory; other views of one memory become tensors of their own. A
    leaf that requires a gradient arrives as a leaf that does, with the gradient that it
    has; through anything else gradients flow back to where it came from. A generator
    moves what it yields when it yields it.

    `dtype` (`torch.bfloat16` or its name) casts floating-point tensors only, as
    `Module.to` does. With `stay_on_cpu` a tensor that arrives on no way is left where it
    is, with a warning; otherwise PlacementError is raised.
    """
    device, dtype = checked(device, dtype, verify)
    report = PlacementReport() if report is None else report
    return Mover(device, dtype, verify, report, stay_on_cpu).nested(obj, "")
