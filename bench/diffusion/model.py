"""Writes a folder with a diffusion model and what it is trained on, for `cargo xtask bench wan` and `bench image`.

    python model.py OUT wan --layers 6 --heads 3 --width 256 --height 160 --frames 17
    python model.py OUT wan --real a14b --width 832 --height 480 --frames 81
    python model.py OUT z_image --layers 4 --heads 4 --width 128 --height 128

The transformer has random weights and layers like those of the published model, fewer and narrower; with `--real`, it has a
published size, and its weights are holes in files: they read as zeros and take no room. Encoders are small in all.
"""

import argparse
import json
import shutil
import struct
from pathlib import Path

import torch
from diffusers import (
    AutoencoderKLWan, Flux2Transformer2DModel, UNet2DConditionModel, WanTransformer3DModel, ZImageTransformer2DModel,
)
from transformers import UMT5Config, UMT5EncoderModel

GOLDEN = Path(__file__).parents[2] / "tests/reference/golden"
REAL = {
    "1.3b": dict(num_attention_heads=12, ffn_dim=8960, num_layers=30),
    "a14b": dict(num_attention_heads=40, ffn_dim=13824, num_layers=40),
    "i2v-a14b": dict(num_attention_heads=40, ffn_dim=13824, num_layers=40, in_channels=36),
    # Two experts with 1.3B parameters each, unlike any published model.
    "pair": dict(num_attention_heads=12, ffn_dim=8960, num_layers=30),
}
BOUNDARIES = {"a14b": 0.875, "i2v-a14b": 0.9, "pair": 0.875}
CHANNELS = 16


def z_image(layers, heads):
    """As published, 30 layers of 30 heads: refiners of a fifteenth of the layers, at least one."""
    return ZImageTransformer2DModel(
        in_channels=4, dim=128 * heads, n_layers=layers, n_refiner_layers=max(1, layers // 15), n_heads=heads,
        n_kv_heads=heads, cap_feat_dim=24, axes_dims=[32, 48, 48], axes_lens=[1536, 512, 512])


def klein(layers, heads):
    """As published (4B), 25 layers of 24 heads: four single layers for each double one."""
    double = max(1, layers // 5)
    return Flux2Transformer2DModel(
        in_channels=16, num_layers=double, num_single_layers=layers - double, attention_head_dim=128,
        num_attention_heads=heads, joint_attention_dim=48, axes_dims_rope=(32, 32, 32, 32), guidance_embeds=False)


def sdxl(layers, heads):
    """As published, where the last stage has 20 heads of 64 and transformers of 10 layers."""
    widths = tuple(64 * heads * share // 4 for share in (1, 2, 4))
    return UNet2DConditionModel(
        in_channels=4, out_channels=4, block_out_channels=widths, layers_per_block=2,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=tuple(width // 64 for width in widths),
        transformer_layers_per_block=(1, max(1, layers // 5), layers), cross_attention_dim=80, use_linear_projection=True,
        addition_embed_type="text_time", addition_time_embed_dim=8, projection_class_embeddings_input_dim=72,
        norm_num_groups=32)


# Of models of pictures, all parts but the denoiser are those of the tests, in folders of these names.
PICTURES = {"z_image": z_image, "flux2": klein, "sdxl": sdxl}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("kind", choices=["wan", *PICTURES])
    parser.add_argument("--real", choices=REAL)
    parser.add_argument("--holes", type=int, default=0, help="1: the denoiser's weights are holes, too")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--heads", type=int, default=3)
    parser.add_argument("--encoder-channels", type=int, default=4, help="channels of the autoencoder's first layer; 96 in Wan")
    parser.add_argument("--width", type=int, required=True)
    parser.add_argument("--height", type=int, required=True)
    parser.add_argument("--frames", type=int, default=1)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    if arguments.kind == "wan":
        wan(arguments, arguments.out / "model")
    else:
        pictures(arguments, arguments.out / "model")
    clips = arguments.out / "clips"
    clips.mkdir(parents=True)
    if arguments.kind == "wan":
        (clips / "clip").mkdir()
        for number in range(arguments.frames):
            picture(clips / "clip" / f"{number:03}.bmp", arguments.width, arguments.height, number)
    else:
        picture(clips / "clip.bmp", arguments.width, arguments.height, 0)
    (clips / "clip.txt").write_text("a cat walks on the grass")


def pictures(arguments, model: Path) -> None:
    """A folder of the tests with another denoiser."""
    shutil.copytree(GOLDEN / arguments.kind / "model", model)
    part = model / ("unet" if arguments.kind == "sdxl" else "transformer")
    shutil.rmtree(part)
    with torch.device("meta" if arguments.holes else "cpu"):
        denoiser = PICTURES[arguments.kind](arguments.layers, arguments.heads)
    save(denoiser, part, arguments.holes)


def save(denoiser, folder: Path, holes: bool) -> None:
    if holes:
        denoiser.save_config(folder)
        write_holes(denoiser, folder / "diffusion_pytorch_model.safetensors")
    else:
        denoiser.save_pretrained(folder)


def wan(arguments, model: Path) -> None:
    real = arguments.real
    if real is None:
        # The same ratio of feed-forward width to model width as in 1.3B.
        width = 128 * arguments.heads
        sizes = dict(num_attention_heads=arguments.heads, ffn_dim=width * 35 // 6, num_layers=arguments.layers)
        text = 256
    else:
        sizes, text = REAL[real], 4096
    sizes = dict(in_channels=CHANNELS, out_channels=CHANNELS) | sizes
    with torch.device("meta" if real else "cpu"):
        transformer = WanTransformer3DModel(attention_head_dim=128, freq_dim=256, text_dim=text, **sizes)
    for part in ["transformer", *(["transformer_2"] if real in BOUNDARIES else [])]:
        save(transformer, model / part, bool(real))
    zeros, ones = [0.0] * CHANNELS, [1.0] * CHANNELS
    AutoencoderKLWan(base_dim=arguments.encoder_channels, z_dim=CHANNELS, latents_mean=zeros, latents_std=ones
                     ).save_pretrained(model / "vae")
    UMT5EncoderModel(UMT5Config(vocab_size=704, d_model=text, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
                     ).save_pretrained(model / "text_encoder")
    (model / "tokenizer").mkdir()
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(GOLDEN / "wan/text" / file, model / "tokenizer" / file)
    image = (real or "").startswith("i2v")
    index = {"_class_name": "WanImageToVideoPipeline" if image else "WanPipeline"}
    if real in BOUNDARIES:
        index["boundary_ratio"] = BOUNDARIES[real]
    (model / "model_index.json").write_text(json.dumps(index))


def write_holes(model: torch.nn.Module, path: Path) -> None:
    """A bf16 weights file of which only the names and shapes are written."""
    header, end = {}, 0
    for name, tensor in model.state_dict().items():
        start, end = end, end + 2 * tensor.numel()
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)


def picture(path: Path, width: int, height: int, number: int) -> None:
    """Moving stripes, as a bitmap."""
    row = bytes((x * 3 + number * 8 + channel * 40) % 256 for x in range(width) for channel in range(3))
    row += b"\0" * (-len(row) % 4)
    size = len(row) * height
    header = struct.pack("<2sIIIIiiHHIIiiII", b"BM", 54 + size, 0, 54, 40, width, height, 1, 24, 0, size, 0, 0, 0, 0)
    path.write_bytes(header + row * height)


if __name__ == "__main__":
    main()
