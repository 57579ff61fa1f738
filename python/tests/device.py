"""For programs on the simulated device: its settings and counters, and a model to train."""

import ctypes
import json

import torch
import torch.nn.functional as F
from torch import nn

# The tests import this module outside the simulator too, so symbols are looked up later.
_simulator = ctypes.CDLL(None)


def configure(text):
    """Changes settings of the simulator while the program runs."""
    assert _simulator.device_sim_control(text.encode()) == 0, text


def report():
    """The statistics of the simulator: calls by function, bytes held."""
    buffer = ctypes.create_string_buffer(1 << 20)
    assert _simulator.device_sim_report(buffer, ctypes.c_size_t(len(buffer))) <= len(buffer)
    return json.loads(buffer.value)


def calls(*names):
    """The total number of calls of these functions."""
    return sum(count for name, count in report()["calls"].items() if name in names)


class Gpt(nn.Module):
    """A small GPT: embeddings, causal attention, no tied weights; enough to use every kind of operation."""

    def __init__(self, width=128, heads=4, layers=2, vocabulary=500, length=64):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True, norm_first=True) for _ in range(layers)
        )
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        return self.head(x)


def train(model, steps, batch=4, length=64, vocabulary=500, autocast=True):
    """Trains for some steps; yields memory_allocated between steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(steps):
        tokens = torch.randint(vocabulary, (batch, length + 1)).to("cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=autocast):
            logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        del tokens, logits, loss
        yield torch.cuda.memory_allocated()
