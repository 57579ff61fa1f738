import dataclasses
from typing import Any, Literal, TypeVar

import torch

__all__ = ["DeviceLost", "PlacementError", "PlacementReport", "safe_prepare", "to_device"]

_T = TypeVar("_T")
_Verify = Literal["off", "first", "sample", "always"]

class PlacementError(RuntimeError): ...
class DeviceLost(RuntimeError): ...

@dataclasses.dataclass
class PlacementReport:
    tensors: int = 0
    bytes: int = 0
    verified: int = 0
    failures: list[tuple[str, list[str]]] = ...
    unknown: list[str] = ...
    left: list[str] = ...

def to_device(
    obj: _T,
    device: str | int | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    verify: _Verify = "first",
    report: PlacementReport | None = None,
    stay_on_cpu: bool = False,
) -> _T: ...
def safe_prepare(
    accelerator: Any,
    *objects: Any,
    dtype: str | torch.dtype | None = None,
    verify: _Verify = "first",
    report: PlacementReport | None = None,
) -> Any: ...
