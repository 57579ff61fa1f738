"""The report about a move, and the errors that end it."""

import dataclasses

# Runtime errors after which the device still works: invalid argument, out of
# memory, unmapped or refused memory, not supported. CUDA and HIP number them alike.
RECOVERABLE = {1, 2, 205, 304, 712, 713, 801}


class PlacementError(RuntimeError):
    """A tensor could not be moved by any strategy; the message names it and the result of each strategy."""


class DeviceLost(RuntimeError):
    """The device failed in a way that leaves it unusable in this process."""


@dataclasses.dataclass
class PlacementReport:
    """What happened to each tensor that did not arrive at the first attempt, and totals.

    `unknown` lists objects that were moved by their own method `to`, without verification.
    `left` lists objects of unknown types that contain tensors but have no such method:
    they are not moved.
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
            lines.append(f"moved by their own `to` method, not verified: {', '.join(self.unknown)}")
        if self.left:
            lines.append(f"not moved, although they contain tensors: {', '.join(self.left)}")
        return "\n".join(lines + [f"{name}: {'; '.join(steps)}" for name, steps in self.failures])


def raise_if_lost(problem, path):
    """Raises DeviceLost unless the device is still usable after the error, so that another attempt makes sense."""
    code = getattr(problem, "error_code", None)
    text = str(problem)
    if code is None and "CUDA error" not in text and "HIP error" not in text:
        return
    if code not in RECOVERABLE:
        raise DeviceLost(
            f"the device failed while {path} was moved, and can no longer be used in this process: {first_line(problem)}"
        ) from problem


def first_line(problem):
    return str(problem).strip().split("\n")[0]
