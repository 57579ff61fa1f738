"""What is told about a move, and what ends it."""

import dataclasses

# Runtime errors after which the device still works: invalid argument, out of
# memory, unmapped or refused memory, not supported. CUDA and HIP number them alike.
RECOVERABLE = {1, 2, 205, 304, 712, 713, 801}


class PlacementError(RuntimeError):
    """A tensor did not arrive on any way; names it and says what each way did."""


class DeviceLost(RuntimeError):
    """The device failed in a way that leaves it unusable in this process."""


@dataclasses.dataclass
class PlacementReport:
    """What happened to each tensor that did not arrive at once, and totals.

    `unknown` names what has a method `to` of its own and was moved by that, unseen.
    `left` names objects of unknown types that have tensors in them and no such method:
    they are as they were.
    """

    tensors: int = 0
    bytes: int = 0
    verified: int = 0
    failures: list = dataclasses.field(default_factory=list)
    unknown: list = dataclasses.field(default_factory=list)
    left: list = dataclasses.field(default_factory=list)

    def __str__(self):
        lines = [f"{self.tensors} tensors, {self.bytes / 2**20:.1f} MiB, {self.verified} verified"]
        if self.unknown:
            lines.append(f"moved by their own means, not verified: {', '.join(self.unknown)}")
        if self.left:
            lines.append(f"left where they were, with tensors in them: {', '.join(self.left)}")
        return "\n".join(lines + [f"{name}: {'; '.join(steps)}" for name, steps in self.failures])


def raise_if_lost(problem, path):
    """Only errors of the runtime's own that leave the device usable are worth another try."""
    code = getattr(problem, "error_code", None)
    text = str(problem)
    if code is None and "CUDA error" not in text and "HIP error" not in text:
        return
    if code not in RECOVERABLE:
        raise DeviceLost(
            f"the device failed while {path} was moved and cannot be used any more in this process: {first_line(problem)}"
        ) from problem


def first_line(problem):
    return str(problem).strip().split("\n")[0]
