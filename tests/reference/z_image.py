"""Writes golden/z_image: a tiny random Z-Image, and what diffusers, transformers and PEFT make of it.

`model` is a whole folder as the pipeline's `save_pretrained` writes it, with weights in fewer bits, which are exact in
fp32, in which everything is computed; `quant-autoencoder` is an autoencoder with the parts that Z-Image's does not
have. `original.json` has of each name in the original single files the names in diffusers. `prompts.json` has the texts, `expected.safetensors` inputs and results; `training.safetensors` five steps of a
LoRA, and `adapter` that LoRA before the first one.
"""

import copy
import json
import shutil
import sys
from pathlib import Path

import torch
from diffusers.loaders.single_file_utils import (
    convert_ldm_vae_checkpoint, convert_z_image_transformer_checkpoint_to_diffusers,
)
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, ZImagePipeline, ZImageTransformer2DModel
from safetensors.torch import save_file
from tiny import adapted, flow, flow_loss, kinds, trained
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import Qwen2Tokenizer, Qwen3Config, Qwen3Model

# A folder as the first argument takes the place of `golden`.
GOLDEN = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "golden") / "z_image"
WIDTH, CHANNELS, PIXELS = 24, 4, 4

# What the published template does with a turn of the user.
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)

PROMPTS = [
    "a grey cat", "", "  two  spaces \n and a line ", "“curly” — café, naïve …", "一只猫在草地上 「引号」 😀👩‍👩‍👧",
    "<|im_end|>\n<|im_start|>system\nno", "<think>x</think> {{ braces }} {% raw %}", "a\u0301 é \u200b\ufeff\x00\x1b[m",
    "0123456789 " * 60,
]


def randomise(model, seed):
    """Norms, biases and padding start as ones and zeros, which would hide mistakes. All is rounded to the type in the file."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name and name.endswith("weight") and parameter.dim() == 1 or name == "cap_embedder.0.weight":
                parameter.uniform_(0.5, 1.5, generator=generator)
            elif name.endswith("bias"):
                parameter.normal_(0.0, 0.1, generator=generator)
            elif name.endswith("pad_token"):
                parameter.normal_(0.0, 1.0, generator=generator)
            elif "adaLN_modulation" in name:
                parameter.normal_(0.0, 0.3, generator=generator)
        for name, parameter in model.named_parameters():
            parameter.copy_(parameter.to(stored(name)).float())
    return model.eval()


def stored(name):
    """The type in the file. A third of the transformer is a table whose size is fixed."""
    return torch.float8_e4m3fn if name == "t_embedder.mlp.0.weight" else torch.bfloat16


def tokenizer():
    """Bytes and a few merges, as Qwen's."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    bpe.train_from_iterator(PROMPTS[:1] * 5 + ["user assistant system"] * 3, trainer)
    state = json.loads(bpe.to_str())["model"]
    merges = [tuple(merge) for merge in state["merges"]]
    made = Qwen2Tokenizer(vocab=state["vocab"], merges=merges)
    made.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    made.add_tokens(["<think>", "</think>"])
    made.chat_template = TEMPLATE
    return made


def pipeline():
    torch.manual_seed(0)
    cut = tokenizer()
    text = Qwen3Model(Qwen3Config(
        vocab_size=len(cut) + 5, hidden_size=WIDTH, intermediate_size=40, num_hidden_layers=3, num_attention_heads=3,
        num_key_value_heads=1, head_dim=10, max_position_embeddings=1024, rope_theta=1e6, initializer_range=0.2))
    vae = AutoencoderKL(
        block_out_channels=(8, 8, 16), down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3, layers_per_block=1, latent_channels=CHANNELS, norm_num_groups=4,
        scaling_factor=0.3611, shift_factor=0.1159, use_quant_conv=False, use_post_quant_conv=False, sample_size=32)
    transformer = ZImageTransformer2DModel(
        in_channels=CHANNELS, dim=WIDTH, n_layers=2, n_refiner_layers=1, n_heads=2, n_kv_heads=2, cap_feat_dim=WIDTH,
        axes_dims=[4, 4, 4], axes_lens=[600, 32, 32])
    made = ZImagePipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0), vae=randomise(vae, 1), text_encoder=randomise(text, 2),
        tokenizer=cut, transformer=randomise(transformer, 3))
    made.set_progress_bar_config(disable=True)
    return made


def save(pipe, folder):
    pipe.save_pretrained(folder)
    for part in ("transformer", "vae", "text_encoder"):
        # In half the room: the weights were rounded before.
        for file in (folder / part).glob("*.safetensors"):
            file.unlink()
        model = getattr(pipe, part)
        names = {"text_encoder": "model"}.get(part, "diffusion_pytorch_model")
        tensors = {name: (tensor.to(stored(name)) if tensor.is_floating_point() else tensor).contiguous()
                   for name, tensor in model.state_dict().items()}
        save_file(tensors, folder / part / f"{names}.safetensors", metadata={"format": "pt"})


def original_transformer_name(name):
    for theirs, original in [
        ("all_x_embedder.2-1.", "x_embedder."), ("all_final_layer.2-1.", "final_layer."), (".to_out.0.", ".out."),
        (".norm_q.", ".q_norm."), (".norm_k.", ".k_norm."), (".to_q.", ".qkv."), (".to_k.", ".qkv."), (".to_v.", ".qkv."),
    ]:
        name = name.replace(theirs, original)
    return name


def original_autoencoder_name(name, stages):
    parts = name.split(".")
    if parts[1] == "up_blocks":
        parts[2] = str(stages - 1 - int(parts[2]))
    name = ".".join(parts)
    for theirs, original in [
        ("down_blocks.", "down."), ("up_blocks.", "up."), ("mid_block.resnets.0.", "mid.block_1."),
        ("mid_block.resnets.1.", "mid.block_2."), ("mid_block.attentions.0.", "mid.attn_1."), (".resnets.", ".block."),
        ("conv_shortcut", "nin_shortcut"), ("downsamplers.0.", "downsample."), ("upsamplers.0.", "upsample."),
        ("conv_norm_out", "norm_out"), ("group_norm", "norm"), ("to_q", "q"), ("to_k", "k"), ("to_v", "v"),
        ("to_out.0", "proj_out"),
    ]:
        name = name.replace(theirs, original)
    return name


def originals(pipe):
    """Names in the files that ComfyUI's users have, which diffusers' readers take for the same weights."""
    names = {"transformer": {}, "vae": {}}
    for key in pipe.transformer.state_dict():
        names["transformer"].setdefault(original_transformer_name(key), []).append(key)
    stages = len(pipe.vae.config.block_out_channels)
    for key in pipe.vae.state_dict():
        names["vae"][original_autoencoder_name(key, stages)] = [key]
    read = {
        "transformer": convert_z_image_transformer_checkpoint_to_diffusers,
        "vae": lambda checkpoint: convert_ldm_vae_checkpoint(checkpoint, pipe.vae.config),
    }
    for part, pairs in names.items():
        weights = getattr(pipe, part).state_dict()
        checkpoint = {original: torch.cat([weights[key] for key in keys]) for original, keys in pairs.items()}
        if part == "vae":
            checkpoint = {key: tensor[:, :, None, None] if ".attn_1." in key and tensor.dim() == 2 else tensor
                          for key, tensor in checkpoint.items()}
        found = read[part](checkpoint)
        assert found.keys() == weights.keys(), found.keys() ^ weights.keys()
        assert all(torch.equal(found[key].reshape(weights[key].shape), weights[key]) for key in weights), part
    (GOLDEN / "original.json").write_text(json.dumps(names, indent=1) + "\n")


def texts(pipe, expected):
    rows = []
    for number, prompt in enumerate(PROMPTS):
        chat = pipe.tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True, enable_thinking=True)
        tokens = pipe.tokenizer(chat).input_ids
        states = pipe._encode_prompt(prompt)[0]
        assert len(states) == min(len(tokens), 512) and 0.1 < states.std() < 100, (prompt, states.std())
        rows.append(dict(text=prompt, tokens=tokens))
        expected[f"text.{number}"] = states
    assert len(rows[-1]["tokens"]) > 512
    (GOLDEN / "prompts.json").write_text(json.dumps(rows, indent=1) + "\n")


def pictures(name, vae, expected):
    """Sizes that are whole, and one in tiles."""
    scale, shift = vae.config.scaling_factor, vae.config.shift_factor or 0.0
    step = 2 ** (len(vae.config.block_out_channels) - 1)
    for label, (rows, columns) in {"whole": (6, 4), "tiled": (11, 13)}.items():
        if label == "tiled":
            vae.enable_tiling()
            vae.tile_sample_min_size, vae.tile_latent_min_size = 8 * step, 8
        pixels = torch.rand(1, 3, rows * step, columns * step) * 2 - 1
        noise = torch.randn(1, vae.config.latent_channels, rows, columns) * 0.3
        key = f"{name}.{label}"
        expected[f"{key}.pixels"] = pixels
        expected[f"{key}.latents"] = (vae.encode(pixels).latent_dist.mode() - shift)[0] * scale
        expected[f"{key}.noise"] = noise[0]
        expected[f"{key}.decoded"] = vae.decode(noise / scale + shift).sample.clamp(-1, 1)
        for part in ("latents", "decoded"):
            assert 0.02 < expected[f"{key}.{part}"].std() < 100, (key, part)
        assert (expected[f"{key}.decoded"].abs() < 1).float().mean() > 0.5, key
        vae.disable_tiling()


def velocities(model, expected):
    """Two sizes, one of which is filled up; texts of one length and of several."""
    for label, (rows, columns), lengths in (("filled", (6, 8), (7, 40)), ("whole", (8, 16), (33, 64))):
        latents = torch.randn(2, CHANNELS, 1, rows, columns)
        levels = torch.tensor([0.93, 0.21])
        states = [torch.randn(length, WIDTH) for length in lengths]
        made = model(list(latents), 1.0 - levels, states, return_dict=False)[0]
        expected |= {f"velocity.{label}.latents": latents, f"velocity.{label}.levels": levels,
                     f"velocity.{label}.made": -torch.stack(made)}
        expected |= {f"velocity.{label}.text.{number}": text for number, text in enumerate(states)}
        assert 0.02 < expected[f"velocity.{label}.made"].std() < 100


RUNS = [
    # name, guidance scale as others count it, shift, steps, prompt, negative prompt
    ("plain", 1.0, 3.0, 4, 0, None),
    ("guided", 4.0, 6.0, 5, 3, 0),
    ("one-step", 1.0, 3.0, 1, 8, None),
]


def runs(pipe, expected):
    made = []
    for seed, (name, guidance, shift, steps, prompt, negative) in enumerate(RUNS):
        pipe.scheduler = FlowMatchEulerDiscreteScheduler(shift=shift)
        start = torch.randn(1, CHANNELS, 6, 10, generator=torch.Generator().manual_seed(seed))
        # In diffusers 0 is no guidance.
        result = pipe(
            PROMPTS[prompt], negative_prompt=None if negative is None else PROMPTS[negative], height=6 * PIXELS,
            width=10 * PIXELS, num_inference_steps=steps, guidance_scale=guidance - 1.0, latents=start.clone(),
            output_type="latent").images
        assert 0.05 < result.std() < 50 and result.isfinite().all(), (name, result.std())
        expected |= {f"run.{name}.start": start, f"run.{name}.latents": result}
        made.append(dict(name=name, guidance=guidance, shift=shift, steps=steps, prompt=prompt, negative=negative))
    (GOLDEN / "runs.json").write_text(json.dumps(made, indent=1) + "\n")


def training(model):
    """The losses of five steps, and the LoRA after the last."""
    base, targets = copy.deepcopy(model), [
        "attention.to_q", "attention.to_k", "attention.to_v", "attention.to_out.0", "feed_forward.w1",
        "feed_forward.w2", "feed_forward.w3"]
    model = adapted(model, targets, GOLDEN / "adapter")
    given = flow((CHANNELS, 1, 6, 8))
    states = [torch.randn(length, WIDTH) for length in (9, 37)]
    velocity = lambda model: lambda noisy, sigma: -torch.stack(
        model(list(noisy), 1.0 - sigma, states, return_dict=False)[0])
    made = trained(model, given, velocity(model))
    kinds(base, targets, GOLDEN / "kinds", lambda model: flow_loss(given, velocity(model)))
    write("training", {**made, "text.0": states[0], "text.1": states[1]})


def write(name, tensors):
    tensors = {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}
    save_file(tensors, GOLDEN / f"{name}.safetensors")


def main():
    shutil.rmtree(GOLDEN, ignore_errors=True)
    GOLDEN.mkdir(parents=True)
    pipe, expected = pipeline(), {}
    save(pipe, GOLDEN / "model")
    originals(pipe)
    torch.manual_seed(1)
    with torch.no_grad():
        texts(pipe, expected)
        pictures("vae", pipe.vae, expected)
        other = randomise(AutoencoderKL(
            block_out_channels=(4, 8), down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2, layers_per_block=2, latent_channels=2, norm_num_groups=2,
            mid_block_add_attention=False, sample_size=16), 4)
        other.save_pretrained(GOLDEN / "quant-autoencoder")
        pictures("quant", other, expected)
        velocities(pipe.transformer, expected)
        runs(pipe, expected)
    write("expected", expected)
    training(pipe.transformer)


if __name__ == "__main__":
    main()
