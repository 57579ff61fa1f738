"""The recorded workloads: each is a generator that trains one step per `next`.

Sizes are those of real fine-tuning runs. Kernels do nothing on the simulated
device, so a 5B model costs addresses, not memory or time.
"""

import random

import torch
import torch.nn.functional as F
from torch import nn

from blocks import Attention, Checkpointed, GatedMlp, RMSNorm, Rotary, add_lora, sinusoidal

DEVICE = "cuda"


def llama_lora():
    """1.5B Llama-like model in bfloat16, LoRA, gradient checkpointing, 2048 tokens, accumulation over 2."""
    width, heads, layers, vocabulary, length = 2048, 16, 28, 32000, 2048

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.mlp = Attention(width, heads, kv_heads=8), GatedMlp(width, 6144)
            self.before, self.after = RMSNorm(width), RMSNorm(width)

        def forward(self, x, rotate):
            x = x + self.attention(self.before(x), causal=True, rotate=rotate)
            return x + self.mlp(self.after(x))

    class Llama(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(vocabulary, width)
            self.layers = Checkpointed([Layer() for _ in range(layers)], recompute=True)
            self.norm, self.head = RMSNorm(width), nn.Linear(width, vocabulary, bias=False)

        def forward(self, tokens):
            x = self.embedding(tokens).requires_grad_()
            rotate = Rotary(tokens.shape[1], width // heads, tokens.device)
            return self.head(self.norm(self.layers(x, rotate)))

    with torch.device(DEVICE):
        model = add_lora(Llama().bfloat16(), {"q", "k", "v", "o", "gate", "up", "down"})
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4)
    while True:
        for _ in range(2):
            tokens = torch.randint(vocabulary, (2, length + 1)).to(DEVICE)
            logits = model(tokens[:, :-1])
            loss = F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
            (loss / 2).backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield loss


def t5_varying():
    """250M encoder-decoder, full fine-tuning under autocast, a new length in every batch."""
    width, heads, layers, vocabulary = 768, 12, 12, 32128
    lengths = random.Random(7)

    class Layer(nn.Module):
        def __init__(self, cross):
            super().__init__()
            self.attention = Attention(width, heads)
            self.cross = Attention(width, heads) if cross else None
            self.mlp = GatedMlp(width, 2048)
            self.norms = nn.ModuleList(RMSNorm(width) for _ in range(3))
            self.dropout = nn.Dropout(0.1)

        def forward(self, x, bias, memory=None):
            x = x + self.dropout(self.attention(self.norms[0](x), bias=bias))
            if self.cross is not None:
                x = x + self.dropout(self.cross(self.norms[1](x), context=memory))
            return x + self.dropout(self.mlp(self.norms[2](x)))

    class T5(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(vocabulary, width)
            self.positions = nn.Embedding(32, heads)
            self.encoder = Checkpointed([Layer(False) for _ in range(layers)], recompute=False)
            self.decoder = Checkpointed([Layer(True) for _ in range(layers)], recompute=False)
            self.norm, self.head = RMSNorm(width), nn.Linear(width, vocabulary, bias=False)

        def bias(self, length, device):
            steps = torch.arange(length, device=device)
            buckets = (steps[None] - steps[:, None]).clamp(-16, 15) + 16
            return self.positions(buckets).permute(2, 0, 1)[None]

        def forward(self, source, target):
            memory = self.encoder(self.embedding(source), self.bias(source.shape[1], source.device))
            x = self.decoder(self.embedding(target), self.bias(target.shape[1], target.device), memory)
            return self.head(self.norm(x))

    with torch.device(DEVICE):
        model = T5()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    while True:
        source = torch.randint(vocabulary, (16, lengths.randrange(64, 512))).to(DEVICE)
        target = torch.randint(vocabulary, (16, lengths.randrange(32, 256))).to(DEVICE)
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            logits = model(source, target)
        loss = F.cross_entropy(logits.float().flatten(0, 1), target.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield loss


def mlp_large_batch():
    """A wide tabular network: few, large tensors; SGD with momentum; evaluation every fourth step."""
    widths = [1024, 8192, 8192, 4096, 4096, 512]
    with torch.device(DEVICE):
        layers = []
        for before, after in zip(widths, widths[1:]):
            layers += [nn.Linear(before, after), nn.BatchNorm1d(after), nn.GELU(), nn.Dropout(0.1)]
        model = nn.Sequential(*layers, nn.Linear(widths[-1], 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    step = 0
    while True:
        features = torch.empty(16384, widths[0]).to(DEVICE)
        labels = torch.empty(16384, 1).to(DEVICE)
        loss = F.binary_cross_entropy_with_logits(model(features), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 4 == 0:
            model.eval()
            with torch.no_grad():
                for _ in range(2):
                    scores = model(torch.empty(32768, widths[0]).to(DEVICE)).sigmoid()
                    F.binary_cross_entropy(scores, torch.zeros_like(scores))
            model.train()
        yield loss


def video_dit():
    """5B video diffusion transformer in bfloat16, LoRA, checkpointing, 480p clips of two lengths."""
    width, heads, layers, text = 3072, 24, 30, 4096
    clips = random.Random(3)

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.cross = Attention(width, heads, bias=True), Attention(width, heads, bias=True)
            self.norms = nn.ModuleList(nn.LayerNorm(width, elementwise_affine=False) for _ in range(3))
            self.mlp = nn.Sequential(nn.Linear(width, 14336), nn.GELU(approximate="tanh"), nn.Linear(14336, width))
            self.modulation = nn.Parameter(torch.zeros(6, width))

        def forward(self, x, context, time, rotate):
            shift, scale, gate, shift_mlp, scale_mlp, gate_mlp = (self.modulation + time).to(x.dtype).unbind(1)
            y = self.norms[0](x) * (1 + scale[:, None]) + shift[:, None]
            x = x + gate[:, None] * self.attention(y, rotate=rotate)
            x = x + self.cross(self.norms[1](x), context=context)
            y = self.norms[2](x) * (1 + scale_mlp[:, None]) + shift_mlp[:, None]
            return x + gate_mlp[:, None] * self.mlp(y)

    class Dit(nn.Module):
        def __init__(self):
            super().__init__()
            self.patches = nn.Linear(48 * 4, width)
            self.context, self.time = nn.Linear(text, width), nn.Linear(256, 6 * width)
            self.layers = Checkpointed([Layer() for _ in range(layers)], recompute=True)
            self.head = nn.Linear(width, 48 * 4)

        def forward(self, latents, context, steps):
            x = self.patches(latents).requires_grad_()
            time = self.time(sinusoidal(steps, 256).to(x.dtype)).view(-1, 6, width).float()
            rotate = Rotary(x.shape[1], width // heads, x.device)
            return self.head(self.layers(x, self.context(context), time, rotate))

    with torch.device(DEVICE):
        model = add_lora(Dit().bfloat16(), {"q", "k", "v", "o", "0", "2"}, rank=32)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4)
    while True:
        tokens = clips.choice([13, 21]) * 15 * 26
        latents = torch.empty(1, tokens, 48 * 4, dtype=torch.bfloat16).to(DEVICE)
        context = torch.empty(1, 512, text, dtype=torch.bfloat16).to(DEVICE)
        noise = torch.randn_like(latents)
        sigma = torch.rand(1, device=DEVICE)
        noisy = (1 - sigma) * latents + sigma * noise
        predicted = model(noisy.bfloat16(), context, sigma * 1000)
        loss = F.mse_loss(predicted.float(), (noise - latents).float())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield loss


def vit_ema():
    """ViT-L/16 from scratch under autocast with a moving average of the weights and a short last batch."""
    width, heads, layers = 1024, 16, 24

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = Attention(width, heads, bias=True)
            self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x):
            x = x + self.attention(self.norms[0](x))
            return x + self.mlp(self.norms[1](x))

    class Vit(nn.Module):
        def __init__(self):
            super().__init__()
            self.patches = nn.Linear(3 * 16 * 16, width)
            self.positions = nn.Parameter(torch.zeros(1, 196, width))
            self.layers = Checkpointed([Layer() for _ in range(layers)], recompute=False)
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

        def forward(self, images):
            patches = F.unfold(images, 16, stride=16).transpose(1, 2)
            return self.head(self.norm(self.layers(self.patches(patches) + self.positions)).mean(1))

    with torch.device(DEVICE):
        model = Vit()
        average = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    step = 0
    while True:
        step += 1
        size = 24 if step % 5 == 0 else 64
        images = torch.empty(size, 3, 224, 224).to(DEVICE)
        labels = torch.zeros(size, dtype=torch.long).to(DEVICE)
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            loss = F.cross_entropy(model(images), labels, label_smoothing=0.1)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        torch._foreach_lerp_(average, list(model.parameters()), 0.001)
        yield loss


def resnet_multiscale():
    """ResNet-50 in channels-last under autocast, image size changing every other step, validation at the end."""

    class Bottleneck(nn.Module):
        def __init__(self, before, width, stride):
            super().__init__()
            after = 4 * width
            shapes = [(before, width, 1, 1), (width, width, 3, stride), (width, after, 1, 1)]
            self.convolutions = nn.ModuleList(nn.Conv2d(i, o, k, s, k // 2, bias=False) for i, o, k, s in shapes)
            self.norms = nn.ModuleList(nn.BatchNorm2d(o) for _, o, _, _ in shapes)
            self.shortcut = None
            if stride != 1 or before != after:
                self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

        def forward(self, x):
            y = x
            for number, (convolution, norm) in enumerate(zip(self.convolutions, self.norms)):
                y = norm(convolution(y))
                y = F.relu(y, inplace=True) if number < 2 else y
            return F.relu(y + (x if self.shortcut is None else self.shortcut(x)), inplace=True)

    def stages():
        yield from (nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
        before = 64
        for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for number in range(count):
                yield Bottleneck(before, width, stride if number == 0 else 1)
                before = 4 * width
        yield from (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 1000))

    with torch.device(DEVICE):
        model = nn.Sequential(*stages()).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    sizes = random.Random(5)
    step = size = 0
    while True:
        size = sizes.choice([192, 224, 256, 288]) if step % 2 == 0 else size
        step += 1
        images = torch.empty(64, 3, size, size).to(DEVICE, memory_format=torch.channels_last)
        labels = torch.zeros(64, dtype=torch.long).to(DEVICE)
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 6 == 0:
            model.eval()
            with torch.no_grad(), torch.autocast(DEVICE, dtype=torch.bfloat16):
                for _ in range(2):
                    model(torch.empty(100, 3, 256, 256).to(DEVICE, memory_format=torch.channels_last)).argmax(1)
            model.train()
        yield loss


def unet_full():
    """An 860M latent-diffusion U-Net, fully fine-tuned under autocast, latents in three aspect ratios."""
    width, text = 320, 768
    levels = (1, 2, 4, 4)

    class Residual(nn.Module):
        def __init__(self, before, after):
            super().__init__()
            self.norms = nn.ModuleList([nn.GroupNorm(32, before), nn.GroupNorm(32, after)])
            self.convolutions = nn.ModuleList([nn.Conv2d(before, after, 3, 1, 1), nn.Conv2d(after, after, 3, 1, 1)])
            self.time = nn.Linear(4 * width, after)
            self.shortcut = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

        def forward(self, x, time):
            y = self.convolutions[0](F.silu(self.norms[0](x))) + self.time(F.silu(time))[:, :, None, None]
            return self.shortcut(x) + self.convolutions[1](F.silu(self.norms[1](y)))

    class Transformer(nn.Module):
        def __init__(self, channels):
            super().__init__()
            self.entry, self.exit = nn.Conv2d(channels, channels, 1), nn.Conv2d(channels, channels, 1)
            self.attention, self.cross = Attention(channels, 8), Attention(channels, 8)
            self.context = nn.Linear(text, channels)
            self.norms = nn.ModuleList(nn.LayerNorm(channels) for _ in range(3))
            self.up, self.down = nn.Linear(channels, 8 * channels), nn.Linear(4 * channels, channels)

        def forward(self, x, context):
            y = self.entry(x).flatten(2).transpose(1, 2)
            y = y + self.attention(self.norms[0](y))
            y = y + self.cross(self.norms[1](y), context=self.context(context))
            value, gate = self.up(self.norms[2](y)).chunk(2, dim=-1)
            y = y + self.down(value * F.gelu(gate))
            return x + self.exit(y.transpose(1, 2).reshape(x.shape))

    class UNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.time = nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, 4 * width))
            self.entry, self.exit = nn.Conv2d(4, width, 3, 1, 1), nn.Conv2d(width, 4, 3, 1, 1)
            self.norm = nn.GroupNorm(32, width)
            self.down, self.up = nn.ModuleList(), nn.ModuleList()
            skips, before = [width], width
            for number, factor in enumerate(levels):
                after = factor * width
                for _ in range(2):
                    self.down.append(nn.ModuleList([Residual(before, after), Transformer(after) if number < 3 else None]))
                    before = after
                    skips.append(after)
                if number < 3:
                    self.down.append(nn.ModuleList([nn.Conv2d(after, after, 3, 2, 1)]))
                    skips.append(after)
            self.middle = nn.ModuleList([Residual(before, before), Transformer(before), Residual(before, before)])
            for number, factor in reversed(list(enumerate(levels))):
                after = factor * width
                for part in range(3):
                    layers = [Residual(before + skips.pop(), after), Transformer(after) if number < 3 else None]
                    if part == 2 and number > 0:
                        layers.append(nn.Conv2d(after, after, 3, 1, 1))
                    self.up.append(nn.ModuleList(layers))
                    before = after

        def forward(self, x, steps, context):
            time = self.time(sinusoidal(steps, width))
            x = self.entry(x)
            skips = [x]
            for layers in self.down:
                x = layers[0](x) if len(layers) == 1 else layers[0](x, time)
                x = layers[1](x, context) if len(layers) == 2 and layers[1] is not None else x
                skips.append(x)
            x = self.middle[2](self.middle[1](self.middle[0](x, time), context), time)
            for layers in self.up:
                x = layers[0](torch.cat((x, skips.pop()), dim=1), time)
                x = layers[1](x, context) if layers[1] is not None else x
                if len(layers) == 3:
                    x = layers[2](F.interpolate(x, scale_factor=2.0))
            return self.exit(F.silu(self.norm(x)))

    with torch.device(DEVICE):
        model = UNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    shapes = random.Random(11)
    while True:
        height, breadth = shapes.choice([(64, 64), (48, 80), (80, 48), (56, 72)])
        latents = torch.empty(4, 4, height, breadth).to(DEVICE)
        context = torch.empty(4, 77, text).to(DEVICE)
        steps = torch.zeros(4).to(DEVICE)
        noise = torch.randn_like(latents)
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            loss = F.mse_loss(model(latents + noise, steps, context).float(), noise)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield loss


WORKLOADS = {
    workload.__name__: workload
    for workload in (llama_lora, t5_varying, mlp_large_batch, video_dit, vit_ema, resnet_multiscale, unet_full)
}
