"""Whether what arrived is what was sent."""

import torch

from ._report import raise_if_lost


def arrived_intact(source, arrived):
    if all(_computes(side.device) for side in (source, arrived)):
        return checksum(source) == checksum(arrived)
    return torch.equal(_bytes(source.cpu()), _bytes(arrived.cpu()))


_WORDS = 1 << 20


def checksum(tensor):
    """A sum of all bytes, each word weighed by an odd number that is its place's own.

    Integer arithmetic wraps alike everywhere, so both sides agree to the bit; an odd
    weight loses no change of a word, and different weights notice words that moved.
    """
    data = _bytes(tensor)
    whole = data.numel() // 8 * 8
    words = data[:whole]
    words = (words if words.data_ptr() % 8 == 0 else words.clone()).view(torch.int64)
    weights = torch.arange(1, 2 * min(_WORDS, max(words.numel(), 8)), 2, device=data.device)
    total = (data[whole:].to(torch.int64) * weights[: data.numel() - whole]).sum()
    for number, chunk in enumerate(words.split(_WORDS)):
        total = total + (chunk * weights[: chunk.numel()]).sum() * (2 * number + 3)
    return total.item()


def _bytes(tensor):
    return plain(tensor).view(-1).view(torch.uint8)


def plain(tensor):
    """The values as they lie in contiguous memory: a conjugate or a negative that was only noted is computed."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


_computing = {}


def _computes(device):
    """Whether the device's own sums can be believed: found out once, by a sum whose result is known."""
    if device not in _computing:
        known = torch.arange(4099, dtype=torch.int32)
        try:
            _computing[device] = checksum(known.to(device)) == checksum(known)
        except RuntimeError as problem:
            raise_if_lost(problem, "a first sum")
            _computing[device] = False
    return _computing[device]
