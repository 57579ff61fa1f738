"""Writes golden/wan/pipelines: whole sampling runs of diffusers on the tiny models of golden/wan.

With a second folder as argument, whole models are written there, too, as `save_pretrained` does.
"""

import json
import shutil
import sys
from pathlib import Path

import numpy
import torch
from diffusers import (
    AutoencoderKLWan, FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler, WanImageToVideoPipeline,
    WanPipeline, WanTransformer3DModel,
)
from safetensors.torch import save_file
from transformers import AutoTokenizer, UMT5Config, UMT5EncoderModel

# A folder as the first argument takes the place of `golden`.
ROOT = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "golden") / "wan"
GOLDEN = ROOT / "pipelines"
PROMPT, NEGATIVE = "A cat walks on the “grass”, realistic style.", "blurry, static"


def scheduler(kind, shift):
    if kind == "unipc":
        return UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=shift)
    return FlowMatchEulerDiscreteScheduler(shift=shift)


def text_encoder(width):
    """Every table as small as the test's tokenizer allows."""
    torch.manual_seed(width)
    config = UMT5Config(vocab_size=704, d_model=width, d_kv=6, d_ff=24, num_layers=2, num_heads=2)
    return UMT5EncoderModel(config).eval()


def pipeline(name):
    kind = {"t2v": "t2v", "a14b": "t2v", "i2v": "i2v", "ti2v": "ti2v", "ti2v-image": "ti2v"}[name]
    first = WanTransformer3DModel.from_pretrained(ROOT / f"transformer-{kind}").eval()
    vae = AutoencoderKLWan.from_pretrained(ROOT / ("autoencoder-2.2" if kind == "ti2v" else "autoencoder-2.1")).eval()
    second, settings = None, {}
    if name in ("a14b", "i2v"):
        # The same weights, backwards: another expert without another file.
        second = WanTransformer3DModel.from_config(first.config).eval()
        second.load_state_dict({key: value.flip(0) for key, value in first.state_dict().items()})
        settings["boundary_ratio"] = 0.875 if name == "a14b" else 0.9
    if kind == "ti2v":
        settings["expand_timesteps"] = True
    image = name in ("i2v", "ti2v-image")
    if image:
        settings |= dict(image_encoder=None, image_processor=None)
    made = (WanImageToVideoPipeline if image else WanPipeline)(
        tokenizer=AutoTokenizer.from_pretrained(ROOT / "text"), text_encoder=text_encoder(first.config.text_dim),
        vae=vae, scheduler=scheduler("unipc", 3.0), transformer=first, transformer_2=second, **settings)
    made.set_progress_bar_config(disable=True)
    return made


RUNS = [
    # name, model, frames, guidance, second guidance, scheduler, shift, steps
    ("text", "t2v", 5, 1.0, None, "unipc", 3.0, 4),
    ("guided", "t2v", 5, 5.0, None, "unipc", 5.0, 4),
    ("euler", "t2v", 5, 3.0, None, "euler", 3.0, 4),
    ("one-frame", "t2v", 1, 4.0, None, "unipc", 3.0, 3),
    ("experts", "a14b", 5, 4.0, 3.0, "unipc", 12.0, 6),
    ("experts-same", "a14b", 5, 4.0, None, "euler", 5.0, 5),
    ("image", "i2v", 5, 3.5, 2.0, "unipc", 5.0, 5),
    ("5b", "ti2v", 5, 5.0, None, "unipc", 5.0, 4),
    ("5b-image", "ti2v-image", 5, 5.0, None, "unipc", 5.0, 4),
]


def main():
    shutil.rmtree(GOLDEN, ignore_errors=True)
    GOLDEN.mkdir(parents=True)
    runs, tensors = [], {}
    for seed, (label, name, frames, guidance, second, kind, shift, steps) in enumerate(RUNS):
        pipe = pipeline(name)
        pipe.scheduler = scheduler(kind, shift)
        step = pipe.vae.config.scale_factor_spatial
        height, width = 4 * step, 6 * step
        generator = torch.Generator().manual_seed(seed)
        shape = (1, pipe.vae.config.z_dim, (frames - 1) // 4 + 1, 4, 6)
        start = torch.randn(shape, generator=generator)
        arguments = dict(prompt=PROMPT, negative_prompt=NEGATIVE, height=height, width=width, num_frames=frames,
                         num_inference_steps=steps, guidance_scale=guidance, guidance_scale_2=second,
                         latents=start.clone(), output_type="latent")
        if name in ("i2v", "ti2v-image"):
            pixels = torch.rand(1, 3, height, width, generator=generator)
            # In eight bits, as a picture has it.
            pixels = (pixels * 255).round() / 255
            arguments["image"] = pixels
            tensors[f"{label}.image"] = pixels[0]
        with torch.no_grad():
            result = pipe(**arguments).frames
            text, negative = pipe.encode_prompt(PROMPT, NEGATIVE, True, max_sequence_length=512)
        count = lambda rows: int((rows.abs().sum(1) > 0).sum())
        runs.append(dict(label=label, model=name, frames=frames, guidance=guidance, second=second, scheduler=kind,
                         shift=shift, steps=steps, boundary=pipe.config.boundary_ratio, height=height, width=width))
        tensors |= {f"{label}.start": start, f"{label}.latents": result, f"{label}.text": text[0, :count(text[0])],
                    f"{label}.negative": negative[0, :count(negative[0])]}
        assert 0.05 < result.std() < 50 and result.isfinite().all(), (label, result.std())
    tensors = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    save_file(tensors, GOLDEN / "expected.safetensors")
    (GOLDEN / "runs.json").write_text(json.dumps(runs, indent=1) + "\n")
    if len(sys.argv) > 2:
        for name in ("t2v", "a14b", "i2v", "ti2v"):
            pipeline(name).save_pretrained(Path(sys.argv[2]) / name)


if __name__ == "__main__":
    main()
