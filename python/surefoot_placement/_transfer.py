"""Moves one plain tensor to a device or back, by the first strategy that delivers it intact."""

import warnings

import torch

from ._checksum import arrived_intact, plain
from ._report import PlacementError, PlacementReport, first_line, raise_if_lost
from ._strategy import Facts, is_open
from ._verify import VerificationTracker

CHUNK_BYTES = 16 << 20
SMALL_BYTES = 1 << 20
ATTEMPTS_TO_HOST = 3

# Which fields of batches were verified on each device, for the whole process.
trackers: dict[tuple[torch.device, str], VerificationTracker] = {}

_LABELS = {
    "direct": "direct copy",
    "retry": "once more",
    "staged": "through pinned memory",
    "chunked": "in chunks",
    "cast_on_host": "cast on the host",
}
_DAMAGE = {"wrong_bytes": "arrived damaged", "wrong_cast": "arrived, but the cast on the device is wrong"}


class TransferEngine:
    """Moves the tensors of one call to a device, or from one to the CPU."""

    def __init__(self, device: torch.device, verify: str, report: PlacementReport, stay_on_cpu: bool):
        self.device, self.verify, self.report, self.stay_on_cpu = device, verify, report, stay_on_cpu
        # Whether the tensors belong to a module, not to a batch.
        self.lasting = False
        self.weights = VerificationTracker(verify)

    def expect_new_names(self) -> None:
        """Starts a new module, whose weights may have the same names as those of an earlier one."""
        self.weights = VerificationTracker(self.verify)

    def to_host(self, tensor: torch.Tensor, path: str) -> torch.Tensor:
        """From a device to the CPU, verified in every mode but `off`."""
        steps = []
        for _ in range(ATTEMPTS_TO_HOST):
            try:
                arrived = tensor.to("cpu")
                if self.verify == "off" or arrived_intact(tensor, arrived):
                    self._count(tensor, self.verify != "off", steps, path)
                    return arrived
                steps.append("copy to the CPU: arrived damaged")
            except RuntimeError as problem:
                raise_if_lost(problem, path)
                steps.append(f"copy to the CPU: {first_line(problem)}")
        self.report.failures.append((path, steps))
        raise PlacementError(f"{path} did not arrive on the CPU: {'; '.join(steps)}")

    def to_device(self, tensor: torch.Tensor, dtype: torch.dtype, path: str) -> torch.Tensor:
        """From the CPU to the device, as `dtype`. Tries one strategy after the other, and records the result of each."""
        source = readable(tensor)
        role, tracker = ("weight", self.weights) if self.lasting else ("batch", self._batches())
        sampled = tracker.begin(path, role)
        facts = Facts(
            pinned_memory=self.device.type != "cpu",
            cast=dtype != tensor.dtype,
            may_stay_on_host=self.stay_on_cpu,
        )
        steps, last_failure, out_of_memory, cast = [], None, None, None
        for strategy, copy in _COPIES:
            # If the device was out of memory, tries again after emptying the caches; for `direct`, `retry` does that.
            for may_repeat in (strategy != "direct", False):
                if not is_open(strategy, facts, last_failure):
                    break
                wanted = tracker.wants(sampled, path, role, strategy)
                try:
                    if strategy == "cast_on_host" and cast is None:
                        cast = source.to(dtype)
                    sent = cast if strategy == "cast_on_host" else source
                    there, last_failure = self._attempt(copy, sent, dtype, wanted)
                    if last_failure is None:
                        if wanted:
                            tracker.passed(path, role, strategy)
                        self._count(source, wanted, steps, path)
                        return there
                    self._batches().distrust()
                    tracker.distrust()
                    steps.append(f"{_LABELS[strategy]}: {_DAMAGE[last_failure]}")
                except torch.OutOfMemoryError as problem:
                    last_failure, out_of_memory = "out_of_memory_device", problem
                    steps.append(f"{_LABELS[strategy]}: {first_line(problem)}")
                    _trim(self.device)
                    if may_repeat:
                        continue
                except RuntimeError as problem:
                    raise_if_lost(problem, path)
                    last_failure = "refused"
                    steps.append(f"{_LABELS[strategy]}: {first_line(problem)}")
                break
        self.report.failures.append((path, steps))
        cost = f"{path} ({tensor.numel() * tensor.element_size()} bytes) did not arrive on {self.device}"
        if not is_open("stay_on_host", facts, last_failure):
            if last_failure == "out_of_memory_device":
                raise out_of_memory
            raise PlacementError(f"{cost}: {'; '.join(steps)}")
        warnings.warn(f"{cost} and stays on the CPU, where every use of it is slow: {'; '.join(steps)}", stacklevel=4)
        return tensor.to(dtype)

    def _attempt(self, copy, source, dtype, wanted):
        """Makes one copy and one cast; returns the result and the kind of failure, if any."""
        arrived = copy(source, self.device)
        synchronize(self.device)
        if wanted and not arrived_intact(source, arrived):
            return None, "wrong_bytes"
        there = arrived.to(dtype)
        if wanted and dtype != source.dtype and not arrived_intact(source.to(dtype), there):
            return None, "wrong_cast"
        return there, None

    def _batches(self):
        key = (self.device, self.verify)
        if key not in trackers:
            trackers[key] = VerificationTracker(self.verify)
        return trackers[key]

    def _count(self, tensor, verified, steps, path):
        self.report.tensors += 1
        self.report.bytes += tensor.numel() * tensor.element_size()
        self.report.verified += verified
        if steps:
            self.report.failures.append((path, steps))


def _direct(source, device):
    return source.to(device)


def _staged(source, device):
    staging = torch.empty_like(source, pin_memory=True)
    staging.copy_(source)
    return staging.to(device)


def _chunked(source, device):
    arrived = torch.empty_like(source, device=device)
    flat, target = source.view(-1), arrived.view(-1)
    step = max(CHUNK_BYTES // source.element_size(), 1)
    for start in range(0, flat.numel(), step):
        target[start : start + step].copy_(flat[start : start + step])
        synchronize(device)
    return arrived


# In the order in which they are tried; the strategies of `docs/transfer.md` that PyTorch offers on every device.
_COPIES = (
    ("direct", _direct),
    ("retry", _direct),
    ("staged", _staged),
    ("chunked", _chunked),
    ("cast_on_host", _direct),
    ("cast_on_host", _chunked),
)


def readable(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in contiguous anonymous memory: copies directly from mapped files hang on some APUs."""
    source = plain(tensor)
    return source if source.data_ptr() != tensor.data_ptr() else _unmapped(source)


def _unmapped(source):
    if source.numel() * source.element_size() < SMALL_BYTES:
        return source.clone()  # cheaper than checking
    address = source.data_ptr()
    try:
        with open("/proc/self/maps") as maps:
            for line in maps:
                bounds, _, _, _, inode, *_ = line.split(maxsplit=5)
                start, end = (int(bound, 16) for bound in bounds.split("-"))
                if start <= address < end:
                    return source.clone() if inode != "0" else source
    except OSError:
        pass
    return source


def synchronize(device: torch.device) -> None:
    """Waits for all work on the device."""
    if device.type != "cpu":
        getattr(torch, device.type).synchronize(device)


def _trim(device):
    if device.type != "cpu":
        getattr(torch, device.type).empty_cache()
