"""The model of the training benchmark in plain PyTorch: a decoder of the Llama family.

Written from the published description (pre-norm RMSNorm, rotary positions in the
half-rotation layout, causal attention, SwiGLU) with PyTorch's own modules, as somebody
would write it who trains in Python. Parameter names are those of Hugging Face's
`LlamaForCausalLM`, and that is all it has in common with the Rust implementation: the
parity tests compare two programs, not one program with itself.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class ModelConfig:
    """The keys of Hugging Face's `config.json` that the model uses."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rope_theta: float
    rms_norm_eps: float
    tie_word_embeddings: bool
    initializer_range: float


class Attention(nn.Module):
    def __init__(self, config: ModelConfig):
        super().__init__()
        self.heads = config.num_attention_heads
        self.key_value_heads = config.num_key_value_heads
        self.width = config.head_dim
        hidden, width = config.hidden_size, config.head_dim
        self.q_proj = nn.Linear(hidden, self.heads * width, bias=False)
        self.k_proj = nn.Linear(hidden, self.key_value_heads * width, bias=False)
        self.v_proj = nn.Linear(hidden, self.key_value_heads * width, bias=False)
        self.o_proj = nn.Linear(self.heads * width, hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, _ = x.shape
        query = self.q_proj(x).view(batch, length, self.heads, self.width).transpose(1, 2)
        key = self.k_proj(x).view(batch, length, self.key_value_heads, self.width).transpose(1, 2)
        value = self.v_proj(x).view(batch, length, self.key_value_heads, self.width).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(
            rotate(query, cos, sin),
            rotate(key, cos, sin),
            value,
            is_causal=True,
            enable_gqa=self.heads != self.key_value_heads,
        )
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1))


class FeedForward(nn.Module):
    def __init__(self, config: ModelConfig):
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, config: ModelConfig):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = FeedForward(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    def __init__(self, config: ModelConfig):
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)


class CausalLm(nn.Module):
    """`forward` gives the mean loss in nats per token."""

    def __init__(self, config: ModelConfig, positions: int):
        super().__init__()
        self.model = Decoder(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight
        cos, sin = rotary_tables(config.rope_theta, config.head_dim, positions)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        length = tokens.shape[1]
        x = self.model.embed_tokens(tokens)
        for layer in self.model.layers:
            x = layer(x, self.cos[:length], self.sin[:length])
        logits = self.lm_head(self.model.norm(x)).float()
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    @torch.no_grad()
    def draw(self, seed: int, deviation: float) -> None:
        """Initial weights: normal around zero, norms at one, drawn in the order of the model."""
        torch.manual_seed(seed)
        for name, parameter in self.named_parameters():
            if "norm" in name:
                parameter.fill_(1.0)
            else:
                parameter.copy_(torch.randn(parameter.shape) * deviation)

    def groups(self, weight_decay: float) -> list[dict]:
        """Weight decay applies to matrices, not to norms and embeddings."""
        decayed, others = [], []
        for name, parameter in self.named_parameters():
            plain = "norm" in name or "embed_tokens" in name
            (others if plain else decayed).append(parameter)
        return [
            {"params": decayed, "weight_decay": weight_decay},
            {"params": others, "weight_decay": 0.0},
        ]


def rotary_tables(theta: float, width: int, positions: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines, each `[positions, width]`, the two halves alike."""
    frequencies = 1.0 / theta ** (torch.arange(0, width, 2, dtype=torch.float32) / width)
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), frequencies)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates each pair (i, i + width/2) of the last dimension by the angle of its position."""
    low, high = x.chunk(2, dim=-1)
    return x * cos.to(x.dtype) + torch.cat((-high, low), dim=-1) * sin.to(x.dtype)
