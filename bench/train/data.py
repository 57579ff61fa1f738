"""Batches of text in exactly the order of `surefoot train`.

The order is part of the trainer's checkpoint format, so it is documented and fixed:
SplitMix64 seeded with the run's seed and the pass over the text gives an offset and
shuffles the blocks. Only the byte tokenizer is here: token 0 stands before each
document, byte `b` is token `b + 1`.
"""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

VOCABULARY = 257
END_OF_TEXT = 0
MASK = (1 << 64) - 1


class SplitMix64:
    """Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014."""

    def __init__(self, *words: int):
        self.state = 0
        for word in words:
            self.state ^= word
            self.state = self.next()

    def next(self) -> int:
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        word = self.state
        word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
        return word ^ (word >> 31)

    def below(self, bound: int) -> int:
        """Without bias: Lemire, "Fast random integer generation in an interval", 2019."""
        while True:
            product = self.next() * bound
            low = product & MASK
            if low >= bound or low >= (-bound & MASK) % bound:
                return product >> 64


def training_tokens(path: Path, held_out: float) -> list[int]:
    """The tokens of the text at `path`, without the held-out share at its end."""
    files = [path] if path.is_file() else sorted(path.rglob("*.txt"))
    documents = [file.read_bytes() for file in files]
    keep = round(sum(len(document) for document in documents) * (1.0 - held_out))
    tokens: list[int] = []
    for document in documents:
        if keep < len(document):
            line_end = document.find(b"\n", keep)
            near = 0 <= line_end - keep < 1000
            document = document[: line_end + 1 if near else keep]
            keep = 0
            if not document:
                break
        else:
            keep -= len(document)
        tokens.append(END_OF_TEXT)
        tokens.extend(byte + 1 for byte in document)
        if keep == 0:
            break
    return tokens


def block_starts(seed: int, tokens: int, block_size: int) -> Iterator[int]:
    """Yields the start of each block, epoch after epoch, endlessly."""
    last = tokens - block_size - 1
    epoch = 0
    while True:
        random = SplitMix64(seed, epoch)
        offset = random.below(min(last, block_size - 1) + 1)
        starts = list(range(offset, last + 1, block_size))
        for end in range(len(starts) - 1, 0, -1):
            other = random.below(end + 1)
            starts[end], starts[other] = starts[other], starts[end]
        yield from starts
        epoch += 1


def batches(
    tokens: list[int], seed: int, block_size: int, batch_size: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and targets, each `[batch_size, block_size]`, endlessly."""
    text = torch.tensor(tokens, dtype=torch.int64)
    starts = block_starts(seed, len(tokens), block_size)
    while True:
        blocks = [text[start : start + block_size + 1] for _, start in zip(range(batch_size), starts)]
        stacked = torch.stack(blocks)
        yield stacked[:, :-1].contiguous(), stacked[:, 1:].contiguous()
