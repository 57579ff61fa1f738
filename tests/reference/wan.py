"""Writes golden/wan: tiny random parts of Wan as diffusers and transformers save and compute them.

One folder for each model: the parts as `save_pretrained` writes them, `original.json` with the names
of the weights in the original single files, and `expected.safetensors` with inputs and results in
fp32.
"""

import json
import shutil
import sys
from pathlib import Path

import torch
from diffusers import (
    AutoencoderKLWan, FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler, WanTransformer3DModel,
)
from safetensors.torch import save_file
from transformers import UMT5Config, UMT5EncoderModel

# A folder as the first argument takes the place of `golden`.
GOLDEN = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "golden") / "wan"


def randomise(model, seed):
    """Norms, biases and tables start as ones and zeros, which would hide mistakes."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("gamma") or ("norm" in name and name.endswith("weight")):
                parameter.uniform_(0.5, 1.5, generator=generator)
            elif name.endswith("bias"):
                parameter.normal_(0.0, 0.1, generator=generator)
            elif "scale_shift_table" in name:
                parameter.normal_(0.0, 0.3, generator=generator)
    return model.eval()


def contiguous(tensors):
    return {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}


# ------------------------------------------------------------------ autoencoders

def original_autoencoder_name(name, is_residual, blocks=2):
    """diffusers' name of a weight to that of the original file."""
    parts = name.split(".")
    half = {"quant_conv": "conv1", "post_quant_conv": "conv2"}
    if parts[0] in half:
        return ".".join([half[parts[0]], *parts[1:]])
    side, rest = parts[0], parts[1:]
    inner = {"norm1": "residual.0", "conv1": "residual.2", "norm2": "residual.3", "conv2": "residual.6",
             "conv_shortcut": "shortcut"}
    tail = lambda parts: [inner.get(part, part) for part in parts]
    if rest[0] == "conv_in":
        return ".".join([side, "conv1", *rest[1:]])
    if rest[0] == "norm_out":
        return ".".join([side, "head.0", *rest[1:]])
    if rest[0] == "conv_out":
        return ".".join([side, "head.2", *rest[1:]])
    if rest[0] == "mid_block":
        place = {("resnets", "0"): "0", ("attentions", "0"): "1", ("resnets", "1"): "2"}[tuple(rest[1:3])]
        return ".".join([side, "middle", place, *tail(rest[3:])])
    if rest[0] == "down_blocks" and not is_residual:
        return ".".join([side, "downsamples", rest[1], *tail(rest[2:])])
    group = "downsamples" if rest[0] == "down_blocks" else "upsamples"
    stage, kind = rest[1], rest[2]
    count = blocks if rest[0] == "down_blocks" else blocks + 1
    if kind == "resnets":
        number, after = int(rest[3]), rest[4:]
    else:  # downsampler, upsampler, upsamplers.0
        number, after = count, rest[4:] if kind == "upsamplers" else rest[3:]
    if is_residual:
        return ".".join([side, group, stage, group, str(number), *tail(after)])
    return ".".join([side, group, str(int(stage) * (count + 1) + number), *tail(after)])


AUTOENCODERS = {
    "autoencoder-2.1": dict(base_dim=4, z_dim=4, latents_mean=[0.1, -0.2, 0.3, 0.05],
                            latents_std=[1.5, 0.7, 2.0, 0.9]),
    "autoencoder-2.2": dict(base_dim=4, decoder_base_dim=6, z_dim=6, is_residual=True, in_channels=12,
                            out_channels=12, patch_size=2, scale_factor_spatial=16,
                            temperal_downsample=[False, True, True],
                            latents_mean=[0.1, -0.2, 0.3, 0.05, 0.0, -0.4],
                            latents_std=[1.5, 0.7, 2.0, 0.9, 1.1, 0.6]),
}


def normalised(model, mode):
    mean = torch.tensor(model.config.latents_mean).view(1, -1, 1, 1, 1)
    inverse = 1.0 / torch.tensor(model.config.latents_std).view(1, -1, 1, 1, 1)
    return (mode - mean) * inverse


def raw(model, latents):
    mean = torch.tensor(model.config.latents_mean).view(1, -1, 1, 1, 1)
    inverse = 1.0 / torch.tensor(model.config.latents_std).view(1, -1, 1, 1, 1)
    return latents / inverse + mean


def autoencoder(name, settings, seed):
    torch.manual_seed(seed)
    model = randomise(AutoencoderKLWan(**settings), seed)
    folder = GOLDEN / name
    model.save_pretrained(folder)
    residual = settings.get("is_residual", False)
    names = {original_autoencoder_name(key, residual): key for key in model.state_dict()}
    (folder / "original.json").write_text(json.dumps(names, indent=1) + "\n")
    expected = {}
    step = model.config.scale_factor_spatial

    def pixels(frames, height, width):
        return torch.rand(1, 3, frames, height, width) * 2 - 1

    def case(label, video):
        mode = model.encode(video).latent_dist.mode()
        latents = normalised(model, mode)
        expected[f"{label}.pixels"] = video[0]
        expected[f"{label}.latents"] = latents[0]
        # Decoded from noise as well as from what was encoded: numbers of a usual size.
        noise = torch.randn_like(latents)
        expected[f"{label}.noise"] = noise[0]
        expected[f"{label}.decoded"] = model.decode(raw(model, noise)).sample[0]

    with torch.no_grad():
        case("image", pixels(1, 2 * step, 3 * step))
        case("video", pixels(9, 3 * step, 2 * step))
        # Tiles in both directions, with narrow ones at the ends.
        model.enable_tiling(3 * step, 3 * step, 2 * step, 2 * step)
        case("tiled", pixels(5, 7 * step, 5 * step))
    save_file(contiguous(expected), folder / "expected.safetensors")
    for label in ("image", "video", "tiled"):
        spread = expected[f"{label}.decoded"].std().item(), expected[f"{label}.latents"].std().item()
        assert all(0.02 < value < 100 for value in spread), (name, label, spread)


# ------------------------------------------------------------------ transformers

ORIGINAL_TRANSFORMER = [
    ("condition_embedder.time_embedder.linear_1", "time_embedding.0"),
    ("condition_embedder.time_embedder.linear_2", "time_embedding.2"),
    ("condition_embedder.time_proj", "time_projection.1"),
    ("condition_embedder.text_embedder.linear_1", "text_embedding.0"),
    ("condition_embedder.text_embedder.linear_2", "text_embedding.2"),
    ("attn1.", "self_attn."), ("attn2.", "cross_attn."),
    (".to_q.", ".q."), (".to_k.", ".k."), (".to_v.", ".v."), (".to_out.0.", ".o."),
    (".norm2.", ".norm3."), (".ffn.net.0.proj.", ".ffn.0."), (".ffn.net.2.", ".ffn.2."),
    ("proj_out.", "head.head."),
]


def original_transformer_name(name):
    """diffusers' name of a weight to that of the original file."""
    if name == "scale_shift_table":
        return "head.modulation"
    for theirs, original in ORIGINAL_TRANSFORMER:
        name = name.replace(theirs, original)
    return name.replace("scale_shift_table", "modulation")


SHAPE = dict(num_attention_heads=2, attention_head_dim=16, text_dim=20, freq_dim=12, ffn_dim=40, num_layers=2)
TRANSFORMERS = {
    "transformer-t2v": dict(**SHAPE, in_channels=4, out_channels=4),
    "transformer-i2v": dict(**SHAPE, in_channels=12, out_channels=4),
    "transformer-ti2v": dict(**{**SHAPE, "attention_head_dim": 18}, in_channels=6, out_channels=6),
}


def transformer(name, settings, seed):
    torch.manual_seed(seed)
    model = randomise(WanTransformer3DModel(**settings), seed)
    folder = GOLDEN / name
    model.save_pretrained(folder)
    names = {original_transformer_name(key): key for key in model.state_dict()}
    (folder / "original.json").write_text(json.dumps(names, indent=1) + "\n")
    latents = torch.randn(2, settings["in_channels"], 3, 6, 8)
    text = torch.randn(2, 512, settings["text_dim"])
    text[0, 7:] = 0
    text[1, 300:] = 0
    times = torch.tensor([999.0, 411.0])
    expected = {"latents": latents, "times": times, "text": text[:, :301]}
    with torch.no_grad():
        expected["velocity"] = model(latents, times, text).sample
        expected["image"] = model(latents[:, :, :1], times, text).sample
        if name.endswith("ti2v"):
            # As the pipeline has it: the tokens of the first frame are clean.
            tokens = times[:, None].repeat(1, 3 * 3 * 4)
            tokens[:, : 3 * 4] = 0
            expected["first_frame"] = model(latents, tokens, text).sample
    assert 0.02 < expected["velocity"].std() < 100, name
    save_file(contiguous(expected), folder / "expected.safetensors")
    if name.endswith("t2v") and not name.endswith("ti2v"):
        kept = WanTransformer3DModel.from_pretrained(folder, torch_dtype=torch.bfloat16)
        exact = sorted(key for key, value in kept.state_dict().items() if value.dtype == torch.float32)
        (folder / "kept_in_fp32.json").write_text(json.dumps(exact, indent=1) + "\n")


# ------------------------------------------------------------------ text encoder

def original_text_encoder_name(name):
    """transformers' name of a weight to that of the original file."""
    whole = {"shared.weight": "token_embedding.weight", "encoder.final_layer_norm.weight": "norm.weight"}
    if name in whole:
        return whole[name]
    _, _, number, _, part = name.split(".", 4)
    for theirs, original in [
        ("0.layer_norm", "norm1"), ("1.layer_norm", "norm2"),
        ("0.SelfAttention.relative_attention_bias", "pos_embedding.embedding"),
        ("0.SelfAttention", "attn"), ("1.DenseReluDense.wi_0", "ffn.gate.0"),
        ("1.DenseReluDense.wi_1", "ffn.fc1"), ("1.DenseReluDense.wo", "ffn.fc2"),
    ]:
        part = part.replace(theirs, original)
    return f"blocks.{number}.{part}"


def text_encoder():
    torch.manual_seed(0)
    config = UMT5Config(
        vocab_size=64, d_model=24, d_kv=10, d_ff=40, num_layers=3, num_heads=3,
        relative_attention_num_buckets=32, relative_attention_max_distance=128, initializer_factor=1.0)
    model = UMT5EncoderModel(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "layer_norm" in name:
                parameter.uniform_(0.5, 1.5)
            elif "relative_attention_bias" in name:
                parameter.normal_(0.0, 1.0)
    folder = GOLDEN / "text-encoder"
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    names = [key for key in model.state_dict() if key != "encoder.embed_tokens.weight"]
    names = {original_text_encoder_name(key): key for key in names}
    (folder / "original.json").write_text(json.dumps(names, indent=1) + "\n")
    expected = {}
    for index, length in enumerate((1, 5, 200, 512)):
        tokens = torch.randint(2, 64, (1, 512))
        mask = torch.zeros(1, 512, dtype=torch.int64)
        mask[:, :length] = 1
        tokens[:, length:] = 0
        with torch.no_grad():
            rows = model(tokens, mask).last_hidden_state
        expected[f"{index}.tokens"] = tokens[0, :length]
        expected[f"{index}.rows"] = rows[0, :length]
        assert 0.1 < rows[0, :length].std() < 100
    save_file(contiguous(expected), folder / "expected.safetensors")


# ------------------------------------------------------------------ schedulers

def schedulers():
    """Tables and trajectories under a velocity that depends on the sample."""
    tables, trajectories = [], {}
    start = torch.randn(1, 3, 2, 2, generator=torch.Generator().manual_seed(5))
    for steps in (1, 2, 3, 4, 20, 50):
        for shift in (1.0, 3.0, 5.0, 12.0):
            for name in ("unipc", "euler"):
                if name == "unipc":
                    scheduler = UniPCMultistepScheduler(
                        prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=shift)
                else:
                    scheduler = FlowMatchEulerDiscreteScheduler(shift=shift)
                scheduler.set_timesteps(steps)
                label = f"{name}-{steps}-{shift:g}"
                tables.append(dict(scheduler=name, steps=steps, shift=shift,
                                   timesteps=[float(t) for t in scheduler.timesteps],
                                   sigmas=[float(s) for s in scheduler.sigmas]))
                sample = start.clone()
                for t in scheduler.timesteps:
                    velocity = torch.tanh(sample * 1.7) + 0.3 * torch.cos(sample * 3 + t / 200)
                    sample = scheduler.step(velocity, t, sample).prev_sample
                trajectories[label] = sample
    folder = GOLDEN / "schedulers"
    folder.mkdir(parents=True)
    (folder / "tables.json").write_text(json.dumps(tables) + "\n")
    save_file(contiguous({"start": start, **trajectories}), folder / "expected.safetensors")


def main():
    shutil.rmtree(GOLDEN, ignore_errors=True)
    for seed, (name, settings) in enumerate(AUTOENCODERS.items()):
        autoencoder(name, settings, seed)
    for seed, (name, settings) in enumerate(TRANSFORMERS.items()):
        transformer(name, settings, seed)
    text_encoder()
    schedulers()


if __name__ == "__main__":
    main()
