"""The checksum of `docs/transfer.md`, which compares a copy with its source, in tensor operations."""

import dataclasses

import torch

from ._report import raise_if_lost

ROW_WORDS = 4096
ROW_BYTES = 4 * ROW_WORDS
# Rows that are summed at once: large on a device for few kernel launches, small on a CPU so that the data stay in the caches.
_SLAB_ROWS = {"cpu": 16}
_SLAB_ROWS_ON_DEVICES = 1024


@dataclasses.dataclass(frozen=True, eq=False)
class Checksum:
    """The two sums of each row of a tensor's bytes: `rows` is an int64 tensor `[2, rows]` on the CPU, plain sums above."""

    bytes: int
    rows: torch.Tensor

    def __eq__(self, other):
        return self.bytes == other.bytes and torch.equal(self.rows, other.rows)

    def digest(self):
        """One number of 128 bits, as 32 hexadecimal digits: the rows folded with their position."""
        mask = (1 << 128) - 1
        state = self.bytes ^ 0x243F_6A88_85A3_08D3_1319_8A2E_0370_7344
        for plain, weighted in self.rows.t().tolist():
            state ^= (plain & (1 << 64) - 1) << 64 | weighted & (1 << 64) - 1
            state = state * 0x2360_ED05_1FC6_5DA4_4385_DF64_9FCC_F645 & mask
            state = (state >> 47 | state << 81) & mask
        return f"{state ^ state >> 64:032x}"


def arrived_intact(source: torch.Tensor, arrived: torch.Tensor) -> bool:
    """Compares the bytes of two tensors, each on its own device, or on the CPU if the device computes wrong sums."""
    if all(_computes(side.device) for side in (source, arrived)):
        return checksum(source) == checksum(arrived)
    return torch.equal(_bytes(source.cpu()), _bytes(arrived.cpu()))


def checksum(tensor: torch.Tensor) -> Checksum:
    """The checksum of a tensor's bytes in row-major order, computed where the tensor is."""
    data = _bytes(tensor)
    size = data.numel()
    whole = size // ROW_BYTES * ROW_BYTES
    weights = _weights(data.device)
    slab = _SLAB_ROWS.get(data.device.type, _SLAB_ROWS_ON_DEVICES)
    plain, weighted = [], []
    rows = data[:whole] if data.data_ptr() % 4 == 0 else data[:whole].clone()
    parts = list(rows.view(torch.int32).view(-1, ROW_WORDS).split(slab)) if whole else []
    if whole < size:
        last = torch.zeros(ROW_BYTES, dtype=torch.uint8, device=data.device)
        last[: size - whole] = data[whole:]
        parts.append(last.view(torch.int32).view(1, ROW_WORDS))
    for words in parts:
        plain.append(words.sum(1, dtype=torch.int64))
        weighted.append((words * weights).sum(1))
    if not parts:
        return Checksum(size, torch.zeros(2, 0, dtype=torch.int64))
    return Checksum(size, torch.stack([torch.cat(plain), torch.cat(weighted)]).cpu())


def _weights(device):
    """The weight of each word of a row, odd and all different."""
    if device not in _weights_on:
        mask = (1 << 31) - 1
        value = (torch.arange(ROW_WORDS, dtype=torch.int64) * 0x5BD1_E995 + 0x3C6E_F372) & mask
        value ^= value >> 15
        value = (value * 0x2C1B_3C6D) & mask
        value ^= value >> 12
        value = (value * 0x297A_2D39) & mask
        value ^= value >> 15
        _weights_on[device] = (value << 1 | 1).to(device)
    return _weights_on[device]


_weights_on = {}


def _bytes(tensor):
    return plain(tensor).view(-1).view(torch.uint8)


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The values in contiguous memory: lazy conjugation and negation are resolved."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


_computing = {}


def _computes(device):
    """Whether the device computes correct sums: tested once, with a sum whose result is known."""
    if device not in _computing:
        known = torch.arange(4099 + ROW_WORDS, dtype=torch.int32)
        try:
            _computing[device] = checksum(known.to(device)) == checksum(known)
        except RuntimeError as problem:
            raise_if_lost(problem, "a first sum")
            _computing[device] = False
    return _computing[device]
