"""Workloads recorded after the step predictor was finished, to test it on unseen data.

As with `held_out.py`, `POLICIES.md` has the numbers of that look. Nothing was changed for them.
"""

import random

import torch
import torch.nn.functional as F
from torch import nn

from blocks import Attention, Checkpointed, GatedMlp, RMSNorm, Rotary, add_lora, sinusoidal

DEVICE = "cuda"


def grpo_rollouts():
    """A 0.5B model that answers prompts, its cache growing token by token, and learns from its answers (LoRA)."""
    width, heads, layers, vocabulary, group = 896, 14, 24, 151936, 8
    lengths = random.Random(5)

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.mlp = Attention(width, heads, kv_heads=2), GatedMlp(width, 4864)
            self.before, self.after = RMSNorm(width), RMSNorm(width)

        def forward(self, x, rotate, cache=None):
            inner = self.before(x)
            if cache is None:
                mixed = self.attention(inner, causal=True, rotate=rotate)
            else:
                mine = [self.attention._split(layer(inner)) for layer in (self.attention.k, self.attention.v)]
                cache[:] = mine if not cache else [torch.cat(pair, 2) for pair in zip(cache, mine)]
                q = self.attention._split(self.attention.q(inner))
                k, v = (t.repeat_interleave(heads // 2, dim=1) for t in cache)
                mixed = F.scaled_dot_product_attention(q, k, v)
                mixed = self.attention.o(mixed.transpose(1, 2).flatten(2))
            x = x + mixed
            return x + self.mlp(self.after(x))

    with torch.device(DEVICE):
        embedding = nn.Embedding(vocabulary, width).bfloat16().requires_grad_(False)
        blocks = Checkpointed([Layer() for _ in range(layers)], recompute=True).bfloat16()
        blocks, norm = add_lora(blocks, {"q", "k", "v", "o"}, rank=32), RMSNorm(width).bfloat16()
    trained = [p for p in blocks.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5)

    def logits(x):
        return F.linear(norm(x), embedding.weight)

    while True:
        prompt, answer = lengths.randrange(80, 400), lengths.randrange(60, 140)
        with torch.no_grad():
            caches = [[] for _ in blocks]
            tokens = torch.randint(vocabulary, (group, prompt)).to(DEVICE)
            x = embedding(tokens)
            for _ in range(answer):
                for layer, cache in zip(blocks, caches):
                    x = layer(x, None, cache)
                chosen = logits(x[:, -1:]).float().softmax(-1).argmax(-1)
                tokens, x = torch.cat((tokens, chosen), 1), embedding(chosen)
            del caches, x, chosen
        rotate = Rotary(prompt + answer, width // heads, DEVICE)
        for part in tokens.split(2):
            x = blocks(embedding(part).requires_grad_(), rotate)
            scores = logits(x[:, prompt - 1:-1]).float().log_softmax(-1)
            loss = -scores.gather(-1, part[:, prompt:, None]).mean()
            loss.backward()
            del x, scores
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield loss


def flux_buckets():
    """Rectified flow with joint attention of text and image (2.6B, LoRA), buckets of aspect ratios, images encoded each step."""
    width, heads, text, double, single = 2048, 16, 256, 8, 20
    buckets, order = [(64, 64), (48, 80), (80, 48), (56, 72), (72, 56)], random.Random(9)

    class Double(nn.Module):
        def __init__(self):
            super().__init__()
            self.adapt = nn.Linear(width, 12 * width)
            self.q, self.k, self.v, self.o = (nn.ModuleList(nn.Linear(width, width) for _ in range(2)) for _ in range(4))
            self.mlps = nn.ModuleList(nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width)) for _ in range(2))

        def forward(self, image, words, time):
            parts = self.adapt(F.silu(time))[:, None].chunk(12, -1)
            streams = [words, image]
            normed = [F.layer_norm(x, (width,)) * (1 + parts[6 * n]) + parts[6 * n + 1] for n, x in enumerate(streams)]
            q, k, v = (torch.cat([part(x) for part, x in zip(layer, normed)], 1) for layer in (self.q, self.k, self.v))
            q, k, v = (t.view(*t.shape[:2], heads, -1).transpose(1, 2) for t in (q, k, v))
            mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
            mixed = mixed.split([words.shape[1], image.shape[1]], 1)
            streams = [x + parts[6 * n + 2] * layer(y) for n, (x, layer, y) in enumerate(zip(streams, self.o, mixed))]
            streams = [x + parts[6 * n + 5] * mlp(F.layer_norm(x, (width,)) * (1 + parts[6 * n + 3]) + parts[6 * n + 4])
                       for n, (x, mlp) in enumerate(zip(streams, self.mlps))]
            return streams[1], streams[0]

    class Single(nn.Module):
        def __init__(self):
            super().__init__()
            self.adapt, self.enter, self.leave = nn.Linear(width, 3 * width), nn.Linear(width, 7 * width), nn.Linear(5 * width, width)

        def forward(self, x, time):
            shift, scale, gate = self.adapt(F.silu(time))[:, None].chunk(3, -1)
            entered = self.enter(F.layer_norm(x, (width,)) * (1 + scale) + shift)
            qkv, inner = entered.split([3 * width, 4 * width], -1)
            q, k, v = (t.view(*t.shape[:2], heads, -1).transpose(1, 2) for t in qkv.chunk(3, -1))
            mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
            return x + gate * self.leave(torch.cat((mixed, F.gelu(inner, approximate="tanh")), -1))

    class Encoder(nn.Sequential):
        def __init__(self):
            sizes = [3, 128, 128, 256, 256, 512, 512, 32]
            super().__init__(*(nn.Sequential(nn.GroupNorm(1, i), nn.SiLU(), nn.Conv2d(i, o, 3, 2 if n in (1, 3, 5) else 1, 1))
                               for n, (i, o) in enumerate(zip(sizes, sizes[1:]))))

    with torch.device(DEVICE):
        encoder = Encoder().bfloat16().requires_grad_(False)
        enter, leave, time_in = nn.Linear(64, width).bfloat16(), nn.Linear(width, 64).bfloat16(), nn.Linear(256, width).bfloat16()
        doubles = Checkpointed([Double() for _ in range(double)], recompute=False).bfloat16()
        singles = Checkpointed([Single() for _ in range(single)], recompute=True).bfloat16()
        add_lora(doubles, {"0", "1"}, rank=16)
        add_lora(singles, {"enter", "leave"}, rank=16)
    for part in (enter, leave, time_in):
        part.requires_grad_(False)
    trained = [p for part in (doubles, singles) for p in part.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4)
    while True:
        for _ in range(2):
            height, across = order.choice(buckets)
            with torch.no_grad():
                pixels = torch.empty(1, 3, 16 * height, 16 * across).bfloat16().to(DEVICE)
                latents = F.pixel_unshuffle(encoder(pixels), 2)[:, :64].flatten(2).transpose(1, 2)
            words = torch.empty(1, text, width).bfloat16().to(DEVICE)
            time = time_in(sinusoidal(torch.rand(1).to(DEVICE), 256).bfloat16())
            image = enter(torch.lerp(latents, torch.randn_like(latents), 0.5)).requires_grad_()
            for layer in doubles:
                image, words = layer(image, words, time)
            x = singles(torch.cat((words, image), 1), time)[:, text:]
            loss = F.mse_loss(leave(x).float(), latents.float())
            loss.backward()
            del image, words, x, latents, pixels
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield loss


def bert_accumulating():
    """A large BERT trained whole on sentences of all lengths, four small batches to a step, gradients kept, evaluated at times."""
    width, heads, layers, vocabulary = 1024, 16, 24, 30522
    lengths = random.Random(77)

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = Attention(width, heads, bias=True)
            self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
            self.mlp = nn.Sequential(nn.Linear(width, 4096), nn.GELU(), nn.Linear(4096, width), nn.Dropout(0.1))

        def forward(self, x, mask):
            x = self.norms[0](x + F.dropout(self.attention(x, bias=mask), 0.1, self.training))
            return self.norms[1](x + self.mlp(x))

    with torch.device(DEVICE):
        words, places = nn.Embedding(vocabulary, width), nn.Embedding(512, width)
        blocks, head = Checkpointed([Layer() for _ in range(layers)], recompute=False), nn.Linear(width, vocabulary)
    parameters = [p for part in (words, places, blocks, head) for p in part.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-5)

    def loss_of(batch):
        length = lengths.randrange(40, 512)
        tokens = torch.randint(vocabulary, (batch, length)).to(DEVICE)
        mask = torch.zeros(batch, 1, 1, length).to(DEVICE)
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            x = blocks(words(tokens) + places.weight[:length], mask)
            chosen = x.flatten(0, 1)[: max(8, batch * length // 7)]
            return F.cross_entropy(head(chosen).float(), tokens.flatten()[: chosen.shape[0]])

    number = 0
    while True:
        for _ in range(4):
            (loss_of(8) / 4).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        number += 1
        if number % 4 == 0:
            with torch.no_grad():
                for _ in range(3):
                    loss = loss_of(32)
        yield number


UNSEEN = {workload.__name__: workload for workload in (grpo_rollouts, flux_buckets, bert_accumulating)}
