"""Building blocks of the recorded models: plain PyTorch, with common shapes."""

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


class RMSNorm(nn.Module):
    """The norm of Llama and T5, computed in float32 as they do."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


class LoraLinear(nn.Module):
    """A frozen linear layer with a trainable low-rank update."""

    def __init__(self, base, rank=16, dropout=0.05):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        update = self.up(self.down(self.dropout(x.to(self.down.weight.dtype))))
        return self.base(x) + 2.0 * update.to(x.dtype)


def add_lora(model, names, rank=16):
    """Freezes `model` and puts a LoRA on every linear layer with one of these names."""
    model.requires_grad_(False)
    targets = [(parent, name) for parent in model.modules() for name, child in parent.named_children()
               if name in names and isinstance(child, nn.Linear)]
    for parent, name in targets:
        setattr(parent, name, LoraLinear(getattr(parent, name), rank))
    return model


class Attention(nn.Module):
    """Multi-head attention, optionally cross-attention and with fewer heads for keys and values."""

    def __init__(self, width, heads, kv_heads=None, bias=False):
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads or heads, width // heads
        self.q = nn.Linear(width, width, bias=bias)
        self.k = nn.Linear(width, self.kv_heads * self.size, bias=bias)
        self.v = nn.Linear(width, self.kv_heads * self.size, bias=bias)
        self.o = nn.Linear(width, width, bias=bias)

    def forward(self, x, context=None, causal=False, bias=None, rotate=None):
        context = x if context is None else context
        q, k, v = (self._split(layer(source)) for layer, source in ((self.q, x), (self.k, context), (self.v, context)))
        if rotate is not None:
            q, k = rotate(q), rotate(k)
        if self.kv_heads != self.heads:
            k, v = (t.repeat_interleave(self.heads // self.kv_heads, dim=1) for t in (k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=causal)
        return self.o(mixed.transpose(1, 2).flatten(2))

    def _split(self, x):
        return x.view(*x.shape[:2], -1, self.size).transpose(1, 2)


class Rotary:
    """Rotary position embedding, built per forward pass as the Hugging Face models do."""

    def __init__(self, length, size, device):
        frequencies = 1.0 / (10000 ** (torch.arange(0, size, 2, device=device).float() / size))
        angles = torch.outer(torch.arange(length, device=device).float(), frequencies)
        angles = torch.cat((angles, angles), dim=-1)
        self.cos, self.sin = angles.cos(), angles.sin()

    def __call__(self, x):
        left, right = x.chunk(2, dim=-1)
        turned = torch.cat((-right, left), dim=-1)
        return x * self.cos.to(x.dtype) + turned * self.sin.to(x.dtype)


class GatedMlp(nn.Module):
    """The feed-forward block of Llama."""

    def __init__(self, width, inner):
        super().__init__()
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Checkpointed(nn.ModuleList):
    """Layers in a row, each recomputed in the backward pass if `recompute`."""

    def __init__(self, layers, recompute):
        super().__init__(layers)
        self.recompute = recompute

    def forward(self, x, *others):
        for layer in self:
            x = checkpoint(layer, x, *others, use_reentrant=False) if self.recompute else layer(x, *others)
        return x


def sinusoidal(steps, width):
    """The embedding of a diffusion time step."""
    half = width // 2
    frequencies = torch.exp(-math.log(10000) * torch.arange(half, device=steps.device) / half)
    angles = steps.float()[:, None] * frequencies
    return torch.cat((angles.cos(), angles.sin()), dim=-1)
