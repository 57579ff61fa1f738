"""More workloads, recorded after the placement policy was designed, and different from those used to design it.

What a policy does on these at first sight says what it will do on yours; `POLICIES.md` has
the numbers of that first look.
"""

import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from blocks import Attention, Checkpointed, GatedMlp, RMSNorm, Rotary, add_lora, sinusoidal

DEVICE = "cuda"


class PackedLinear(nn.Module):
    """A frozen layer of four-bit weights, two per byte, unpacked whenever it is used."""

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(context, x, packed, scales, shape):
            context.save_for_backward(packed, scales)
            context.shape = shape
            return x @ unpack(packed, scales, shape).t()

        @staticmethod
        def backward(context, gradient):
            return gradient @ unpack(*context.saved_tensors, context.shape), None, None, None

    def __init__(self, inputs, outputs):
        super().__init__()
        self.in_features, self.out_features = inputs, outputs
        self.register_buffer("packed", torch.zeros(inputs * outputs // 2, dtype=torch.uint8))
        self.register_buffer("scales", torch.zeros(inputs * outputs // 64))

    def forward(self, x):
        return self.Product.apply(x, self.packed, self.scales, (self.out_features, self.in_features))


def unpack(packed, scales, shape):
    numbers = torch.stack((packed >> 4, packed & 15), dim=-1).view(-1, 64)
    return (numbers.to(torch.bfloat16) * scales.to(torch.bfloat16)[:, None]).view(shape)


class Low(nn.Module):
    """A low-rank update in bfloat16 beside a packed layer."""

    def __init__(self, inputs, outputs, rank=64):
        super().__init__()
        self.base = PackedLinear(inputs, outputs)
        self.down = nn.Linear(inputs, rank, bias=False, dtype=torch.bfloat16)
        self.up = nn.Linear(rank, outputs, bias=False, dtype=torch.bfloat16)

    def forward(self, x):
        return self.base(x) + self.up(self.down(F.dropout(x, 0.05)))


def qwen_qlora():
    """A 3B model in four bits with LoRA, chats of every length padded to the longest of two, accumulation over 4."""
    width, heads, kv_heads, inner, layers, vocabulary = 2048, 16, 2, 11008, 36, 151936
    size = width // heads
    lengths = random.Random(21)

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.o = Low(width, width), Low(width, width)
            self.k, self.v = Low(width, kv_heads * size), Low(width, kv_heads * size)
            self.gate, self.up, self.down = Low(width, inner), Low(width, inner), Low(inner, width)
            self.before, self.after = RMSNorm(width).bfloat16(), RMSNorm(width).bfloat16()

        def forward(self, x, rotate):
            y = self.before(x)
            q, k, v = (layer(y).view(*y.shape[:2], -1, size).transpose(1, 2) for layer in (self.q, self.k, self.v))
            q, k = rotate(q), rotate(k)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            x = x + self.o(y.transpose(1, 2).flatten(2))
            y = self.after(x)
            return x + self.down(F.silu(self.gate(y)) * self.up(y))

    with torch.device(DEVICE):
        embedding = nn.Embedding(vocabulary, width, dtype=torch.bfloat16).requires_grad_(False)
        blocks = Checkpointed([Layer() for _ in range(layers)], recompute=True)
        norm = RMSNorm(width).bfloat16().requires_grad_(False)
    trained = [p for name, p in blocks.named_parameters() if "down.weight" in name or "up.weight" in name]
    for parameter in set(blocks.parameters()) - set(trained):
        parameter.requires_grad_(False)
    optimizer = torch.optim.AdamW(trained, lr=2e-4)
    while True:
        for _ in range(4):
            length = max(lengths.randrange(60, 1400) for _ in range(2))
            tokens = torch.randint(vocabulary, (2, length)).to(DEVICE)
            rotate = Rotary(length, size, DEVICE)
            hidden = norm(blocks(embedding(tokens).requires_grad_(), rotate))
            logits = F.linear(hidden, embedding.weight).float()
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
            (loss / 4).backward()
            del logits, hidden
        torch.nn.utils.clip_grad_norm_(trained, 0.3)
        optimizer.step()
        optimizer.zero_grad()
        yield loss


def wan_swapped():
    """A 14B video transformer with 8 resident and 32 swapped blocks, after a text encoder that is loaded and unloaded."""
    width, heads, layers, resident, text = 5120, 40, 40, 8, 4096
    clips = random.Random(4)

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.cross = Attention(width, heads, bias=True), Attention(width, heads, bias=True)
            self.norms = nn.ModuleList(nn.LayerNorm(width, elementwise_affine=False) for _ in range(3))
            self.mlp = nn.Sequential(nn.Linear(width, 13824), nn.GELU(approximate="tanh"), nn.Linear(13824, width))
            self.modulation = nn.Parameter(torch.zeros(6, width))

        def forward(self, x, context, time, rotate):
            shift, scale, gate, shift_mlp, scale_mlp, gate_mlp = (self.modulation + time).to(x.dtype).unbind(1)
            y = self.norms[0](x) * (1 + scale[:, None]) + shift[:, None]
            x = x + gate[:, None] * self.attention(y, rotate=rotate)
            x = x + self.cross(self.norms[1](x), context=context)
            y = self.norms[2](x) * (1 + scale_mlp[:, None]) + shift_mlp[:, None]
            return x + gate_mlp[:, None] * self.mlp(y)

    with torch.device(DEVICE):
        encoder = nn.Sequential(*[nn.Linear(text, 2 * text, dtype=torch.bfloat16) for _ in range(120)])
        captions = [torch.empty(1, 512, text, dtype=torch.bfloat16) for _ in range(16)]
    for _ in captions:
        with torch.no_grad():
            y = torch.empty(1, 512, text, dtype=torch.bfloat16, device=DEVICE)
            for layer in encoder:
                y = F.gelu(layer(y))[..., :text]
    del encoder, y
    torch.cuda.empty_cache()

    with torch.device(DEVICE):
        patches, context_entry = nn.Linear(64, width).bfloat16(), nn.Linear(text, width).bfloat16()
        time_entry, head = nn.Linear(256, 6 * width).bfloat16(), nn.Linear(width, 64).bfloat16()
        blocks = []
        for number in range(layers):
            block = add_lora(Layer().bfloat16(), {"q", "k", "v", "o", "0", "2"}, rank=32)
            for parameter in block.parameters() if number >= resident else ():
                if not parameter.requires_grad:
                    parameter.data = torch.empty(0, dtype=parameter.dtype)
            blocks.append(block)
    shapes = [p.shape for p in blocks[0].parameters() if not p.requires_grad]

    def fetch(block):
        frozen = [p for p in block.parameters() if not p.requires_grad]
        for parameter, shape in zip(frozen, shapes):
            if parameter.numel() == 0:
                parameter.data = torch.empty(shape, dtype=parameter.dtype, device=DEVICE)

    def release(number):
        for parameter in blocks[number].parameters() if number >= resident else ():
            if not parameter.requires_grad:
                parameter.data = torch.empty(0, dtype=parameter.dtype, device=DEVICE)

    for part in (patches, context_entry, time_entry, head):
        part.requires_grad_(False)
    trained = [p for block in blocks for p in block.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4)

    class Block(torch.autograd.Function):
        """Computes without a graph, and again with one in the backward pass."""

        @staticmethod
        def forward(context, x, text, time, number, rotate):
            context.number, context.rotate = number, rotate
            context.save_for_backward(x, text, time)
            fetch(blocks[number])
            with torch.no_grad():
                y = blocks[number](x, text, time, rotate)
            release(number)
            return y

        @staticmethod
        def backward(context, gradient):
            x, text, time = context.saved_tensors
            fetch(blocks[context.number])
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                y = blocks[context.number](x, text, time, context.rotate)
            y.backward(gradient)
            release(context.number)
            return x.grad, None, None, None, None

    while True:
        tokens = clips.choice([5, 9, 13]) * 30 * 52
        latents = torch.empty(1, tokens, 64, dtype=torch.bfloat16).to(DEVICE)
        noise = torch.randn_like(latents)
        sigma = torch.rand(1, device=DEVICE)
        noisy = ((1 - sigma) * latents + sigma * noise).bfloat16()
        time = time_entry(sinusoidal(sigma * 1000, 256).bfloat16()).view(-1, 6, width).float()
        rotate = Rotary(tokens, width // heads, DEVICE)
        x, context = patches(noisy).requires_grad_(), context_entry(clips.choice(captions))
        for number in range(layers):
            x = Block.apply(x, context, time, number, rotate)
        loss = F.mse_loss(head(x).float(), (noise - latents).float())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss


def vocoder_gan():
    """A waveform generator against five discriminators: two optimizers, crops of three lengths, no autocast."""
    crops = random.Random(8)

    class Generator(nn.Module):
        def __init__(self):
            super().__init__()
            self.entry, width = nn.Conv1d(80, 1024, 7, padding=3), 1024
            self.up, self.mix = nn.ModuleList(), nn.ModuleList()
            for factor in (8, 8, 2, 2):
                self.up.append(nn.ConvTranspose1d(width, width // 2, 2 * factor, factor, factor // 2))
                width //= 2
                self.mix.append(nn.ModuleList(nn.Conv1d(width, width, k, padding=k // 2) for k in (3, 7, 11)))
            self.exit = nn.Conv1d(width, 1, 7, padding=3)

        def forward(self, mel):
            x = self.entry(mel)
            for up, mix in zip(self.up, self.mix):
                x = up(F.leaky_relu(x, 0.1))
                x = sum(x + layer(F.leaky_relu(layer(F.leaky_relu(x, 0.1)), 0.1)) for layer in mix) / 3
            return torch.tanh(self.exit(F.leaky_relu(x)))

    class Discriminator(nn.Module):
        def __init__(self, period):
            super().__init__()
            self.period = period
            widths = [1, 32, 128, 512, 1024, 1024]
            self.layers = nn.ModuleList(nn.Conv2d(i, o, (5, 1), (3, 1), (2, 0)) for i, o in zip(widths, widths[1:]))
            self.exit = nn.Conv2d(1024, 1, (3, 1), padding=(1, 0))

        def forward(self, x):
            x = F.pad(x, (0, -x.shape[-1] % self.period), "reflect").unflatten(-1, (-1, self.period))
            seen = []
            for layer in self.layers:
                x = F.leaky_relu(layer(x), 0.1)
                seen.append(x)
            return self.exit(x), seen

    with torch.device(DEVICE):
        generator = Generator()
        judges = nn.ModuleList(Discriminator(period) for period in (2, 3, 5, 7, 11))
    optimizers = [torch.optim.AdamW(model.parameters(), lr=2e-4) for model in (generator, judges)]
    while True:
        frames = crops.choice([32, 48, 64])
        mel, real = torch.empty(16, 80, frames).to(DEVICE), torch.empty(16, 1, frames * 256).to(DEVICE)
        made = generator(mel)
        optimizers[1].zero_grad()
        loss = sum(((1 - j(real)[0]) ** 2).mean() + (j(made.detach())[0] ** 2).mean() for j in judges)
        loss.backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        loss = 45 * F.l1_loss(F.avg_pool1d(made, 256), F.avg_pool1d(real, 256))
        for judge in judges:
            (_, theirs), (verdict, ours) = judge(real), judge(made)
            loss = loss + ((1 - verdict) ** 2).mean() + 2 * sum(F.l1_loss(a.detach(), b) for a, b in zip(theirs, ours))
        loss.backward()
        optimizers[0].step()
        yield loss


def gpt_medium_generating():
    """350M, gradients that stay allocated, accumulation over 3; every fourth step evaluates and writes 96 tokens."""
    width, heads, layers, vocabulary, length = 1024, 16, 24, 50257, 768

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.entry, self.exit = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))

        def forward(self, x, past=None):
            q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in self.entry(self.norms[0](x)).chunk(3, -1))
            if past is not None:
                k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=past is None)
            x = x + F.dropout(self.exit(y.transpose(1, 2).flatten(2)), 0.1, self.training)
            x = x + F.dropout(self.down(F.gelu(self.up(self.norms[1](x)))), 0.1, self.training)
            return x, (k, v)

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(1024, width)
            self.layers, self.norm = nn.ModuleList(Layer() for _ in range(layers)), nn.LayerNorm(width)

        def forward(self, tokens, past=None):
            before = 0 if past is None else past[0][0].shape[2]
            places = torch.arange(before, before + tokens.shape[1], device=tokens.device)
            x, kept = self.embedding(tokens) + self.positions(places), []
            for number, layer in enumerate(self.layers):
                x, pair = layer(x, None if past is None else past[number])
                kept.append(pair)
            return F.linear(self.norm(x), self.embedding.weight), kept

    with torch.device(DEVICE):
        model = Gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    step = 0
    while True:
        step += 1
        optimizer.zero_grad(set_to_none=False)
        for _ in range(3):
            tokens = torch.randint(vocabulary, (4, length + 1)).to(DEVICE)
            with torch.autocast(DEVICE, dtype=torch.bfloat16):
                logits = model(tokens[:, :-1])[0]
                loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 4 == 0:
            model.eval()
            with torch.no_grad(), torch.autocast(DEVICE, dtype=torch.bfloat16):
                for size in (8, 8, 3):
                    model(torch.randint(vocabulary, (size, 1024)).to(DEVICE))[0].float().log_softmax(-1)
                past, tokens = None, torch.zeros(8, 32, dtype=torch.long, device=DEVICE)
                for _ in range(96):
                    logits, past = model(tokens, past)
                    tokens = logits[:, -1:].argmax(-1)
            del past, logits, tokens
            model.train()
        yield loss


def speech_prefetched():
    """A 300M speech encoder with batches of varying lengths copied on a side stream, and an 8-bit optimizer."""
    width, heads, layers, vocabulary = 1024, 16, 24, 32
    lengths = random.Random(17)

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.norms = Attention(width, heads, bias=True), nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
            self.mlp = nn.Sequential(nn.Linear(width, 4096), nn.GELU(), nn.Dropout(0.1), nn.Linear(4096, width))

        def forward(self, x):
            x = x + self.attention(self.norms[0](x))
            return x + self.mlp(self.norms[1](x))

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            steps = [(1, 10, 5)] + [(512, 3, 2)] * 4 + [(512, 2, 2)] * 2
            self.front = nn.ModuleList(nn.Conv1d(i, 512, k, s) for i, k, s in steps)
            self.entry, self.exit = nn.Linear(512, width), nn.Linear(width, vocabulary)
            self.layers = nn.ModuleList(Layer() for _ in range(layers))

        def forward(self, wave, dropped):
            x = wave[:, None]
            for convolution in self.front:
                x = F.gelu(convolution(x))
            x = self.entry(x.transpose(1, 2))
            for number, layer in enumerate(self.layers):
                x = x if number in dropped else layer(x)
            return self.exit(x)

    with torch.device(DEVICE):
        model = Encoder()
        moments = [[torch.zeros(p.numel(), dtype=torch.uint8) for _ in range(2)] for p in model.parameters()]
        scales = [[torch.zeros(-(-p.numel() // 256)) for _ in range(2)] for p in model.parameters()]
    side = torch.cuda.Stream()

    def fetch():
        samples = lengths.randrange(40_000, 250_000)
        with torch.cuda.stream(side):
            return torch.empty(8, samples).pin_memory().to(DEVICE, non_blocking=True)

    ahead = fetch()
    while True:
        torch.cuda.current_stream().wait_stream(side)
        wave, ahead = ahead, None
        wave.record_stream(torch.cuda.current_stream())
        ahead = fetch()
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            logits = model(wave, {lengths.randrange(layers) for _ in range(2)})
        loss = F.log_softmax(logits.float(), -1).mean()
        loss.backward()
        for parameter, codes, factors in zip(model.parameters(), moments, scales):
            if parameter.grad is not None:
                update = parameter.grad * 0.1
                parameter.data.sub_(update, alpha=1e-4)
                for code, factor in zip(codes, factors):
                    code.copy_(update.flatten().to(torch.uint8))
                    factor.mul_(0.9)
                parameter.grad = None
        del update
        yield loss


def dpo_pairs():
    """Preference pairs: a 0.6B policy with LoRA and its frozen reference model, answers of all lengths, chunked logits."""
    width, heads, layers, vocabulary = 1024, 16, 28, 151936
    lengths = random.Random(31)

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.mlp = Attention(width, heads, kv_heads=8), GatedMlp(width, 3072)
            self.before, self.after = RMSNorm(width), RMSNorm(width)

        def forward(self, x, rotate):
            x = x + self.attention(self.before(x), causal=True, rotate=rotate)
            return x + self.mlp(self.after(x))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(vocabulary, width)
            self.layers, self.norm = Checkpointed([Layer() for _ in range(layers)], recompute=False), RMSNorm(width)

        def score(self, tokens):
            x = self.embedding(tokens)
            x = x.requires_grad_() if torch.is_grad_enabled() else x
            x = self.norm(self.layers(x, Rotary(tokens.shape[1], width // heads, tokens.device)))
            return sum(checkpoint(self.part, *pair, use_reentrant=False) if torch.is_grad_enabled() else self.part(*pair)
                       for pair in zip(x.split(256, 1), tokens.split(256, 1)))

        def part(self, x, tokens):
            logits = F.linear(x, self.embedding.weight).float()
            return logits.log_softmax(-1).gather(-1, tokens[..., None]).sum((1, 2))

    with torch.device(DEVICE):
        policy = add_lora(Model().bfloat16(), {"q", "k", "v", "o", "gate", "up", "down"}, rank=32)
        reference = Model().bfloat16().requires_grad_(False)
    trained = [p for p in policy.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=5e-6, fused=True)
    while True:
        for _ in range(2):
            pair = [torch.randint(vocabulary, (2, lengths.randrange(100, 1024))).to(DEVICE) for _ in range(2)]
            with torch.no_grad():
                theirs = [reference.score(tokens) for tokens in pair]
            ours = [policy.score(tokens) for tokens in pair]
            margin = (ours[0] - ours[1]) - (theirs[0] - theirs[1])
            loss = -F.logsigmoid(0.1 * margin).mean()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss


def experts():
    """A small mixture of experts fully trained: the number of tokens per expert varies with every layer and step."""
    width, heads, layers, count, inner, vocabulary, length = 768, 12, 12, 8, 2048, 32000, 512
    routes = random.Random(13)

    class Mixture(nn.Module):
        def __init__(self):
            super().__init__()
            self.router = nn.Linear(width, count)
            self.experts = nn.ModuleList(GatedMlp(width, inner) for _ in range(count))

        def forward(self, x):
            flat, weights = x.flatten(0, 1), self.router(x).softmax(-1).flatten(0, 1)
            total, tokens = torch.zeros_like(flat), flat.shape[0]
            shares = [routes.random() + 0.2 for _ in range(count)]
            for number, expert in enumerate(self.experts):
                chosen = torch.zeros(int(2 * tokens * shares[number] / sum(shares)), dtype=torch.long).to(x.device)
                made = expert(flat[chosen]) * weights[chosen, number, None]
                total = total.index_add(0, chosen, made.to(total.dtype))
            return total.view_as(x)

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.mixture = Attention(width, heads), Mixture()
            self.before, self.after = RMSNorm(width), RMSNorm(width)

        def forward(self, x, rotate):
            x = x + self.attention(self.before(x), causal=True, rotate=rotate)
            return x + self.mixture(self.after(x))

    with torch.device(DEVICE):
        embedding, head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary, bias=False)
        blocks = Checkpointed([Layer() for _ in range(layers)], recompute=False)
    parameters = [p for part in (embedding, blocks, head) for p in part.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=3e-4)
    while True:
        tokens = torch.randint(vocabulary, (8, length + 1)).to(DEVICE)
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            x = blocks(embedding(tokens[:, :-1]), Rotary(length, width // heads, DEVICE))
            loss = F.cross_entropy(head(x).float().flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield loss


HELD_OUT = {
    workload.__name__: workload
    for workload in (
        qwen_qlora, wan_swapped, vocoder_gan, gpt_medium_generating, speech_prefetched, dpo_pairs, experts,
    )
}
