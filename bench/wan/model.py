"""Writes a folder with a Wan model and clips for `cargo xtask bench wan`.

    python model.py OUT --layers 6 --heads 3 --width 256 --height 160 --frames 17
    python model.py OUT --real a14b --width 832 --height 480 --frames 81

The first form has a transformer with random weights whose layers are those of Wan 2.1 1.3B, and fewer and narrower;
the second one of a published size, whose weights are holes in files: they read as zeros and take no room. Encoders
are small in both.
"""

import argparse
import json
import shutil
import struct
from pathlib import Path

import torch
from diffusers import AutoencoderKLWan, WanTransformer3DModel
from transformers import UMT5Config, UMT5EncoderModel

REAL = {
    "1.3b": dict(num_attention_heads=12, ffn_dim=8960, num_layers=30),
    "a14b": dict(num_attention_heads=40, ffn_dim=13824, num_layers=40),
    "i2v-a14b": dict(num_attention_heads=40, ffn_dim=13824, num_layers=40, in_channels=36),
    # Two experts with 1.3B parameters each, unlike any published model.
    "pair": dict(num_attention_heads=12, ffn_dim=8960, num_layers=30),
}
BOUNDARIES = {"a14b": 0.875, "i2v-a14b": 0.9, "pair": 0.875}
TOKENIZER = Path(__file__).parents[2] / "tests/reference/golden/wan/text"
CHANNELS = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--real", choices=REAL)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--heads", type=int, default=3)
    parser.add_argument("--encoder-channels", type=int, default=4, help="channels of the autoencoder's first layer; 96 in Wan")
    parser.add_argument("--width", type=int, required=True)
    parser.add_argument("--height", type=int, required=True)
    parser.add_argument("--frames", type=int, required=True)
    arguments = parser.parse_args()
    model = arguments.out / "model"
    torch.manual_seed(0)
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
        if real:
            transformer.save_config(model / part)
            holes(transformer, model / part / "diffusion_pytorch_model.safetensors")
        else:
            transformer.save_pretrained(model / part)
    zeros, ones = [0.0] * CHANNELS, [1.0] * CHANNELS
    AutoencoderKLWan(base_dim=arguments.encoder_channels, z_dim=CHANNELS, latents_mean=zeros, latents_std=ones
                     ).save_pretrained(model / "vae")
    UMT5EncoderModel(UMT5Config(vocab_size=704, d_model=text, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
                     ).save_pretrained(model / "text_encoder")
    (model / "tokenizer").mkdir()
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TOKENIZER / file, model / "tokenizer" / file)
    image = (real or "").startswith("i2v")
    index = {"_class_name": "WanImageToVideoPipeline" if image else "WanPipeline"}
    if real in BOUNDARIES:
        index["boundary_ratio"] = BOUNDARIES[real]
    (model / "model_index.json").write_text(json.dumps(index))
    clips = arguments.out / "clips"
    frames = clips / "clip"
    frames.mkdir(parents=True)
    for number in range(arguments.frames):
        picture(frames / f"{number:03}.bmp", arguments.width, arguments.height, number)
    (clips / "clip.txt").write_text("a cat walks on the grass")


def holes(model: torch.nn.Module, path: Path) -> None:
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
