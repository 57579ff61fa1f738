"""Trains a block of a transformer and a small GPT, and fills the device, under whatever allocator PyTorch has; prints what happened as JSON.

It is a program of a user: the only things of the simulation that it knows are that the GPU's memory is that of CPU
tensors, and how much there is.
"""

import ctypes
import gc
import json
import sys
import threading
import warnings

warnings.simplefilter("ignore")
import torch

F = torch.nn.functional
MORE_THAN_THERE_IS = 8 << 30


class Block(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm, self.attention, self.out = torch.nn.LayerNorm(width), torch.nn.Linear(width, width), torch.nn.Linear(width, width)

    def forward(self, x):
        y = self.attention(self.norm(x)).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return self.out(F.scaled_dot_product_attention(y, y, y, is_causal=True).transpose(1, 2).flatten(-2))


def train(steps):
    """Trains a block of a transformer by gradient descent; returns the losses."""
    torch.manual_seed(0)
    words, block = torch.nn.Embedding(16, 64), Block(64, 4)
    x, wanted = words(torch.randint(16, (8, 32))).detach(), torch.randn(8, 32, 64)
    losses = []
    for _ in range(steps):
        loss = (block(x) - wanted).pow(2).sum() / wanted.numel()
        loss.backward()
        with torch.no_grad():
            for weight in block.parameters():
                weight.sub_(weight.grad, alpha=0.5)
                weight.grad = None
        losses.append(loss.item())
    return losses


class Gpt(torch.nn.Module):
    def __init__(self, width=64, vocabulary=300, length=32):
        super().__init__()
        self.tokens, self.positions = torch.nn.Embedding(vocabulary, width), torch.nn.Embedding(length, width)
        layer = torch.nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, norm_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = torch.nn.Linear(width, vocabulary)

    def forward(self, tokens):
        mask = torch.nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        return self.head(self.layers(x, mask=mask, is_causal=True))


def train_gpt(steps):
    """Trains it with dropout, AdamW and gradient clipping; returns the losses."""
    torch.manual_seed(0)
    model = Gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(steps):
        tokens = torch.randint(300, (4, 33))
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def fill():
    """What a request for more than there is raises: the type and the message."""
    try:
        torch.empty(MORE_THAN_THERE_IS, dtype=torch.uint8)
    except Exception as problem:
        return [type(problem).__name__, str(problem)]
    return ["nothing", ""]


def in_another_thread(act):
    said = []
    thread = threading.Thread(target=lambda: said.append(act()))
    thread.start()
    thread.join()
    return said[0]


class Greedy(torch.autograd.Function):
    """Asks for more than there is in the backward pass."""

    @staticmethod
    def forward(context, x):
        return x * 2

    @staticmethod
    def backward(context, gradient):
        return torch.empty(MORE_THAN_THERE_IS, dtype=torch.uint8)


def in_the_backward_pass():
    try:
        Greedy.apply(torch.ones(3, requires_grad=True)).sum().backward()
    except torch.OutOfMemoryError as problem:
        return str(problem)


@torch.jit.script
def ask(size: int):
    return torch.empty(size, dtype=torch.uint8)


@torch.jit.script
def ask_elsewhere(size: int):
    return torch.jit.wait(torch.jit.fork(ask, size))


def in_a_thread_of_pytorch():
    """Another thread keeps the exception and throws a copy of it here (`std::exception_ptr`)."""
    try:
        ask_elsewhere(MORE_THAN_THERE_IS)
    except RuntimeError as problem:
        return str(problem)


def private_bytes():
    """What this process has committed."""
    counters = (ctypes.c_size_t * 9)()
    read = ctypes.WinDLL("kernel32").K32GetProcessMemoryInfo
    read.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32]
    assert read(ctypes.c_void_p(-1), counters, ctypes.sizeof(counters))
    return counters[8]


def growth(times):
    """How many bytes this process grows by running out of memory that often, after a tenth of it."""
    for _ in range(times // 10):
        fill()
    gc.collect()
    before = private_bytes()
    for _ in range(times):
        kind, _ = fill()
        assert kind == "OutOfMemoryError", kind
    gc.collect()
    return private_bytes() - before


def main(with_hip_alloc, times):
    done = {}

    def do(name, act, *arguments):
        print(f"train.py: {name}", file=sys.stderr, flush=True)
        done[name] = act(*arguments)
        gc.collect()

    do("losses", train, 30)
    do("gpt", train_gpt, 30)
    if with_hip_alloc:
        do("oom", fill)
        do("oom_in_thread", in_another_thread, fill)
        do("oom_in_backward", in_the_backward_pass)
        do("oom_in_pytorchs_thread", in_a_thread_of_pytorch)
        do("growth", growth, times)
    print(json.dumps(done))


main(sys.argv[1] == "hip-alloc", int(sys.argv[2]))
