"""Workloads of kinds that the others lack, recorded when the default had become `keep:auto`."""

import random

import torch
import torch.nn.functional as F
from torch import nn

from blocks import Attention, Checkpointed, GatedMlp, RMSNorm, Rotary, add_lora, sinusoidal

DEVICE = "cuda"


def qwen_lora():
    """A 0.6B model in bfloat16 with LoRA, no checkpointing, every sequence as long as it is, accumulation over 2."""
    width, heads, layers, vocabulary = 1024, 16, 28, 151936
    lengths = random.Random(3)

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.mlp = Attention(width, heads, kv_heads=8), GatedMlp(width, 3072)
            self.before, self.after = RMSNorm(width), RMSNorm(width)

        def forward(self, x, rotate):
            x = x + self.attention(self.before(x), causal=True, rotate=rotate)
            return x + self.mlp(self.after(x))

    with torch.device(DEVICE):
        embedding = nn.Embedding(vocabulary, width).bfloat16().requires_grad_(False)
        blocks = Checkpointed([Layer() for _ in range(layers)], recompute=False).bfloat16()
        blocks, norm = add_lora(blocks, {"q", "v"}, rank=8), RMSNorm(width).bfloat16()
    trained = [p for p in blocks.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=2e-4)
    while True:
        for _ in range(2):
            length = lengths.randrange(64, 1536)
            tokens = torch.randint(vocabulary, (2, length + 1)).to(DEVICE)
            rotate = Rotary(length, width // heads, DEVICE)
            logits = F.linear(norm(blocks(embedding(tokens[:, :-1]).requires_grad_(), rotate)), embedding.weight)
            loss = F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
            (loss / 2).backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield loss


def classifier(width, layers, classes):
    """A transformer over patches, its parameters, and what it takes for pictures of a size (in patches)."""

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = Attention(width, width // 64, bias=True)
            self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x):
            x = x + self.attention(self.norms[0](x))
            return x + self.mlp(self.norms[1](x))

    with torch.device(DEVICE):
        enter, head = nn.Conv2d(3, width, 16, 16), nn.Linear(width, classes)
        blocks = Checkpointed([Layer() for _ in range(layers)], recompute=False)

    def loss_of(pictures, side):
        pixels = torch.empty(pictures, 3, 16 * side, 16 * side).to(DEVICE)
        labels = torch.randint(classes, (pictures,)).to(DEVICE)
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            x = blocks(enter(pixels).flatten(2).transpose(1, 2))
            return F.cross_entropy(head(x.mean(1)).float(), labels)

    return [p for part in (enter, blocks, head) for p in part.parameters()], loss_of


def vit_evaluating():
    """A ViT-B, trained whole; after every third step it is evaluated on larger batches of larger pictures."""
    parameters, loss_of = classifier(768, 12, 1000)
    optimizer, number = torch.optim.AdamW(parameters, lr=1e-4), 0
    while True:
        loss_of(48, 14).backward()
        optimizer.step()
        optimizer.zero_grad()
        number += 1
        if number % 3 == 0:
            with torch.no_grad():
                losses = [loss_of(128, 16) for _ in range(3)]
            del losses
        yield number


def vit_short_last():
    """A ViT-S, five batches to a step; of the last one little is left, and gradients stay allocated."""
    parameters, loss_of = classifier(384, 12, 21843)
    optimizer = torch.optim.AdamW(parameters, lr=1e-4)
    while True:
        for pictures in (96, 96, 96, 96, 17):
            (loss_of(pictures, 14) / 5).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        yield pictures


def video_sampling():
    """A 0.5B video transformer with LoRA and checkpointing, which samples a longer clip and decodes it after every fourth step."""
    width, heads, layers, channels = 1536, 12, 16, 16

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.mlp = Attention(width, heads, bias=True), GatedMlp(width, 4096)
            self.adapt = nn.Linear(width, 4 * width)

        def forward(self, x, time):
            shift, scale, gate, other = self.adapt(F.silu(time))[:, None].chunk(4, -1)
            x = x + gate * self.attention(F.layer_norm(x, (width,)) * (1 + scale) + shift)
            return x + other * self.mlp(F.layer_norm(x, (width,)))

    sizes = [channels, 512, 512, 256, 128, 3]
    with torch.device(DEVICE):
        enter, leave, time_in = nn.Linear(4 * channels, width), nn.Linear(width, 4 * channels), nn.Linear(256, width)
        blocks = Checkpointed([Layer() for _ in range(layers)], recompute=True)
        decoder = nn.ModuleList(nn.Conv3d(i, o, 3, padding=1) for i, o in zip(sizes, sizes[1:]))
        add_lora(blocks.bfloat16(), {"q", "k", "v", "o", "gate", "up", "down"}, rank=32)
    for part in (enter, leave, time_in, decoder):
        part.bfloat16().requires_grad_(False)
    trained = [p for p in blocks.parameters() if p.requires_grad]
    optimizer, number = torch.optim.AdamW(trained, lr=1e-4), 0

    def velocity(patches):
        time = time_in(sinusoidal(torch.rand(1).to(DEVICE), 256).bfloat16())
        return leave(blocks(enter(patches).requires_grad_(torch.is_grad_enabled()), time))

    def sample(frames, side):
        patches = torch.randn(2, frames * side * side // 4, 4 * channels).bfloat16().to(DEVICE)
        for _ in range(6):
            guided, plain = velocity(patches).chunk(2)
            patches = patches - 0.1 * (plain + 5 * (guided - plain)).repeat(2, 1, 1)
        x = patches[:1].reshape(1, channels, frames, side, side)
        for at, layer in enumerate(decoder):
            x = F.silu(layer(x))
            if at in (0, 1, 2):
                x = F.interpolate(x, scale_factor=(1, 2, 2))
        return x

    while True:
        frames = 5 if number % 2 else 9
        patches = torch.empty(1, frames * 26 * 26, 4 * channels).bfloat16().to(DEVICE)
        F.mse_loss(velocity(patches).float(), patches.float()).backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        number += 1
        if number % 4 == 0:
            with torch.no_grad():
                video = sample(13, 52).float()
            del video
        yield number


KINDS = {workload.__name__: workload for workload in (qwen_lora, vit_evaluating, vit_short_last, video_sampling)}
