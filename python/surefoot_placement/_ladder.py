"""How one plain tensor gets to a device: one rung after the other, until it is there intact."""

import collections
import itertools
import warnings

import torch

from ._checksum import arrived_intact, plain
from ._report import PlacementError, first_line, raise_if_lost

SAMPLE_EVERY = 8
CHUNK_BYTES = 64 << 20
SMALL_BYTES = 1 << 20

# How many tensors of batches went to each device.
arrivals = collections.defaultdict(itertools.count)


class Ladder:
    """The way to a device for the tensors of one call."""

    def __init__(self, device, verify, report, stay_on_cpu):
        self.device, self.verify, self.report, self.stay_on_cpu = device, verify, report, stay_on_cpu
        # What belongs to a module is verified in every mode but `off`.
        self.lasting = False

    def fetch(self, tensor, path):
        """From a device to the CPU, looked at as arrivals on a device are."""
        steps = []
        for _ in range(3):
            try:
                arrived = tensor.to("cpu")
                if self.verify == "off" or arrived_intact(tensor, arrived):
                    self.count(tensor, self.verify != "off", steps, path)
                    return arrived
                steps.append("copy to the CPU: arrived damaged")
            except RuntimeError as problem:
                raise_if_lost(problem, path)
                steps.append(f"copy to the CPU: {first_line(problem)}")
        self.report.troubles.append((path, steps))
        raise PlacementError(f"{path} did not arrive on the CPU: {'; '.join(steps)}")

    def climb(self, tensor, dtype, path):
        """Tries one rung after the other, and keeps what each said."""
        source = readable(tensor)
        wanted = self.wants_verification()
        steps, trimmed = [], False
        rungs = collections.deque(_RUNGS if dtype == tensor.dtype else (*_RUNGS, ("cast on the host", None)))
        while rungs:
            name, rung = rungs.popleft()
            try:
                if rung is None:
                    source, rung = source.to(dtype), _direct
                arrived = rung(source, self.device)
                synchronize(self.device)
                if not wanted or arrived_intact(source, arrived):
                    self.count(source, wanted, steps, path)
                    return arrived.to(dtype)
                steps.append(f"{name}: arrived damaged")
            except torch.OutOfMemoryError as problem:
                # No way needs less memory than another, but what nobody uses can go.
                if trimmed:
                    raise
                trimmed = True
                steps.append(f"{name}: {first_line(problem)}")
                _trim(self.device)
                rungs.appendleft((name, rung))
            except RuntimeError as problem:
                raise_if_lost(problem, path)
                steps.append(f"{name}: {first_line(problem)}")
            wanted = wanted or self.verify != "off"
        self.report.troubles.append((path, steps))
        cost = f"{path} ({tensor.numel() * tensor.element_size()} bytes) did not arrive on {self.device}"
        if not self.stay_on_cpu:
            raise PlacementError(f"{cost}: {'; '.join(steps)}")
        warnings.warn(f"{cost} and stays on the CPU, where every use of it is slow: {'; '.join(steps)}", stacklevel=4)
        return tensor.to(dtype)

    def wants_verification(self):
        if self.verify == "off":
            return False
        if self.verify == "always" or self.lasting:
            return True
        number = next(arrivals[self.device])
        return number == 0 or (self.verify == "sample" and number % SAMPLE_EVERY == 0)

    def count(self, tensor, verified, steps, path):
        self.report.tensors += 1
        self.report.bytes += tensor.numel() * tensor.element_size()
        self.report.verified += verified
        if steps:
            self.report.troubles.append((path, steps))


def _direct(source, device):
    return source.to(device)


def _pinned(source, device):
    staging = torch.empty_like(source, pin_memory=True)
    staging.copy_(source)
    return staging.to(device)


def _in_chunks(source, device):
    arrived = torch.empty_like(source, device=device)
    flat, target = source.view(-1), arrived.view(-1)
    step = max(CHUNK_BYTES // source.element_size(), 1)
    for start in range(0, flat.numel(), step):
        target[start : start + step].copy_(flat[start : start + step])
        synchronize(device)
    return arrived


_RUNGS = (("direct copy", _direct), ("once more", _direct), ("through pinned memory", _pinned), ("in chunks", _in_chunks))


def readable(tensor):
    """The tensor in contiguous memory of the process's own: copies straight from mapped files hang on some APUs."""
    source = plain(tensor)
    return source if source.data_ptr() != tensor.data_ptr() else _unmapped(source)


def _unmapped(source):
    if source.numel() * source.element_size() < SMALL_BYTES:
        return source.clone()  # cheaper than finding out
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


def synchronize(device):
    if device.type != "cpu":
        getattr(torch, device.type).synchronize(device)


def _trim(device):
    if device.type != "cpu":
        getattr(torch, device.type).empty_cache()
