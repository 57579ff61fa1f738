"""Writes a folder with a model of a real shape, few blocks and no numbers for `cargo xtask bench step`.

    python model.py OUT --model qwen3-8b --blocks full,full

Weights are holes in files: they read as zeros and take no room. Beside the model there is something to train on. Encoders
and autoencoders of diffusion models are small.
"""

import argparse
import json
import shutil
import struct
import sys
from pathlib import Path

import diffusers
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

sys.path.insert(0, str(Path(__file__).parents[1] / "diffusion"))
from model import picture  # noqa: E402

GOLDEN = Path(__file__).parents[2] / "tests/reference/golden"
KINDS = {"full": "full_attention", "local": "sliding_attention"}
CAPTION = "a cat walks on the grass"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--blocks", required=True, help="`full` or `local` for each")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    MODELS[arguments.model](arguments.out, arguments.blocks.split(","))


def qwen3_8b(out: Path, blocks: list[str]) -> None:
    language(out, blocks, transformers.Qwen3Config(
        vocab_size=151936, hidden_size=4096, intermediate_size=12288, num_attention_heads=32, num_key_value_heads=8,
        head_dim=128, max_position_embeddings=40960, rope_theta=1e6, tie_word_embeddings=False))


def gemma3_4b(out: Path, blocks: list[str]) -> None:
    language(out, blocks, transformers.Gemma3TextConfig(
        vocab_size=262208, hidden_size=2560, intermediate_size=10240, num_attention_heads=8, num_key_value_heads=4,
        head_dim=256, sliding_window=1024, max_position_embeddings=131072))


def language(out: Path, blocks: list[str], config) -> None:
    config.num_hidden_layers = len(blocks)
    config.layer_types = [KINDS[block] for block in blocks]
    config.dtype = torch.bfloat16
    folder = out / "model"
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    holes(model, folder / "model.safetensors", config.tie_word_embeddings)
    letters = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=letters | {"</s>": len(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>").save_pretrained(folder)
    (out / "text.txt").write_text("on the first of all days. " * 1000)


def z_image(out: Path, blocks: list[str]) -> None:
    with torch.device("meta"):
        transformer = diffusers.ZImageTransformer2DModel(n_layers=len(blocks))
    width = transformer.config.cap_feat_dim
    parts = {
        "vae": autoencoder(16, scaling_factor=0.3611, shift_factor=0.1159, use_quant_conv=False, use_post_quant_conv=False),
        "text_encoder": transformers.Qwen3Model(transformers.Qwen3Config(
            vocab_size=400, hidden_size=width, intermediate_size=16, num_hidden_layers=3, num_attention_heads=2,
            num_key_value_heads=1, head_dim=16, max_position_embeddings=1024)),
        "scheduler": diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0),
    }
    pipeline(out, GOLDEN / "z_image/model", ["tokenizer"], parts, ("transformer", transformer))
    pictures(out, 1024, 1024, 1)


def sdxl(out: Path, blocks: list[str]) -> None:
    with torch.device("meta"):
        unet = diffusers.UNet2DConditionModel(
            sample_size=128, block_out_channels=(320, 640, 1280), cross_attention_dim=2048, addition_embed_type="text_time",
            addition_time_embed_dim=256, projection_class_embeddings_input_dim=2816, attention_head_dim=(5, 10, 20),
            transformer_layers_per_block=(1, 2, 10), use_linear_projection=True,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"))

    def clip(width: int, kind):
        return kind(transformers.CLIPTextConfig(
            vocab_size=49408, hidden_size=width, intermediate_size=16, num_hidden_layers=3, num_attention_heads=2,
            projection_dim=1280, max_position_embeddings=77))

    parts = {
        "vae": autoencoder(4, scaling_factor=0.13025),
        "text_encoder": clip(768, transformers.CLIPTextModel),
        "text_encoder_2": clip(1280, transformers.CLIPTextModelWithProjection),
    }
    copied = ["tokenizer", "tokenizer_2", "scheduler"]
    pipeline(out, GOLDEN / "sdxl/model", copied, parts, ("unet", unet))
    pictures(out, 1024, 1024, 1)


def wan_5b(out: Path, blocks: list[str]) -> None:
    with torch.device("meta"):
        transformer = diffusers.WanTransformer3DModel(
            num_attention_heads=24, attention_head_dim=128, in_channels=48, out_channels=48, ffn_dim=14336, freq_dim=256,
            text_dim=4096, num_layers=len(blocks))
    numbers = [0.0] * 48, [1.0] * 48
    parts = {
        "vae": diffusers.AutoencoderKLWan(
            base_dim=4, decoder_base_dim=4, z_dim=48, is_residual=True, in_channels=12, out_channels=12, patch_size=2,
            scale_factor_spatial=16, temperal_downsample=[False, True, True], latents_mean=numbers[0],
            latents_std=numbers[1]),
        "text_encoder": transformers.UMT5EncoderModel(transformers.UMT5Config(
            vocab_size=704, d_model=4096, d_kv=8, d_ff=16, num_layers=1, num_heads=2)),
    }
    pipeline(out, None, [], parts, ("transformer", transformer))
    index = {"_class_name": "WanPipeline", "expand_timesteps": True}
    (out / "model/model_index.json").write_text(json.dumps(index))
    (out / "model/tokenizer").mkdir()
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(GOLDEN / "wan/text" / file, out / "model/tokenizer" / file)
    pictures(out, 832, 480, 17)


def autoencoder(channels: int, **settings) -> diffusers.AutoencoderKL:
    """One with an eighth of the pixels in each direction."""
    return diffusers.AutoencoderKL(
        block_out_channels=(8, 8, 8, 8), down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4, layers_per_block=1, latent_channels=channels, norm_num_groups=4,
        mid_block_add_attention=False, sample_size=1024, **settings)


def pipeline(out: Path, golden: Path | None, copied: list[str], parts: dict, denoiser: tuple) -> None:
    """A folder in diffusers' form."""
    folder = out / "model"
    folder.mkdir(parents=True)
    for name, part in parts.items():
        part.save_pretrained(folder / name)
    for name in copied:
        shutil.copytree(golden / name, folder / name)
    if golden is not None:
        shutil.copy(golden / "model_index.json", folder)
    name, model = denoiser
    model.save_config(folder / name)
    holes(model, folder / name / "diffusion_pytorch_model.safetensors")


def pictures(out: Path, width: int, height: int, frames: int) -> None:
    clip = out / "clips/clip" if frames > 1 else out / "clips"
    clip.mkdir(parents=True)
    for number in range(frames):
        picture(clip / f"{number:03}.bmp", width, height, number)
    name = "clip.txt" if frames > 1 else "000.txt"
    (out / "clips" / name).write_text(CAPTION)


def holes(model: torch.nn.Module, path: Path, tied: bool = False) -> None:
    """A bf16 weights file of which only the names and shapes are written."""
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, tensor in model.state_dict().items():
        if tied and name == "lm_head.weight":
            continue
        start, end = end, end + 2 * tensor.numel()
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)


MODELS = {"qwen3-8b": qwen3_8b, "gemma3-4b": gemma3_4b, "z-image": z_image, "sdxl": sdxl, "wan-5b": wan_5b}

if __name__ == "__main__":
    main()
