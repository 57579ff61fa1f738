"""Writes golden/qwen_image: a tiny random Qwen-Image, and what diffusers, transformers and PEFT make of it.

The files are those of `z_image.py`. The text encoder has the names of published files, and its tower for pictures.
`lora.safetensors` is the LoRA after the last step as it is written for others, and `lora.made` the velocity that diffusers
makes with it. `shifts.json` has the noise levels of the pipeline for sizes and steps.
"""

import json
import shutil

import anima
import torch
from anima import original_autoencoder_name, pictures, randomise
from diffusers import (
    AutoencoderKLQwenImage, FlowMatchEulerDiscreteScheduler, QwenImagePipeline, QwenImageTransformer2DModel,
)
from diffusers.pipelines.qwenimage.pipeline_qwenimage import calculate_shift
from safetensors.torch import save_file
from tiny import ROWS, adapted, flow, trained, written_for_others
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, Qwen2Tokenizer
from z_image import PROMPTS, save

GOLDEN = anima.GOLDEN.with_name("qwen_image")
anima.GOLDEN = GOLDEN
TEXT, CHANNELS, PIXELS, BEFORE, LAYERS = 24, 16, 4, 34, 3

# Those whose results have no use are without one: of the last block's text, all but keys and values.
TARGETS = (
    r"transformer_blocks\.\d+\.(attn\.(to_[qkv]|to_out\.0|add_[kv]_proj)|img_mlp\.net\.(0\.proj|2))"
    rf"|transformer_blocks\.[0-{LAYERS - 2}]\.(attn\.(add_q_proj|to_add_out)|txt_mlp\.net\.(0\.proj|2))"
)

# Each word of the pipeline's template is one token, as of the published tokenizer.
TEMPLATE = (
    "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, spatial "
    "relationships of the objects and background:<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
)


def tokenizer():
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    words = TEMPLATE.replace("<|im_start|>", " \n").replace("<|im_end|>", " \n")
    bpe.train_from_iterator([words, "system", "user", "assistant"], trainer)
    state = json.loads(bpe.to_str())["model"]
    made = Qwen2Tokenizer(vocab=state["vocab"], merges=[tuple(merge) for merge in state["merges"]])
    made.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    assert len(made(TEMPLATE.split("{}")[0]).input_ids) == BEFORE
    return made


def pipeline():
    torch.manual_seed(0)
    cut = tokenizer()
    text = Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(
        text_config=dict(
            vocab_size=len(cut) + 5, hidden_size=TEXT, intermediate_size=40, num_hidden_layers=3, num_attention_heads=2,
            num_key_value_heads=1, max_position_embeddings=2048, initializer_range=0.2, tie_word_embeddings=False,
            rope_parameters=dict(rope_type="default", rope_theta=1e6, mrope_section=[2, 2, 2])),
        vision_config=dict(
            depth=1, hidden_size=16, out_hidden_size=TEXT, intermediate_size=16, num_heads=2, fullatt_block_indexes=[0]),
        tie_word_embeddings=False))
    vae = AutoencoderKLQwenImage(
        base_dim=4, z_dim=CHANNELS, dim_mult=[1, 2, 2], num_res_blocks=2, temperal_downsample=[True, True])
    transformer = QwenImageTransformer2DModel(
        in_channels=4 * CHANNELS, out_channels=CHANNELS, num_layers=LAYERS, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=TEXT, axes_dims_rope=(4, 6, 6))
    scheduler = FlowMatchEulerDiscreteScheduler(
        base_image_seq_len=256, max_image_seq_len=8192, base_shift=0.5, max_shift=0.9, shift_terminal=0.02,
        use_dynamic_shifting=True)
    made = QwenImagePipeline(
        scheduler=scheduler, vae=randomise(vae, 1), text_encoder=randomise(text, 2), tokenizer=cut,
        transformer=randomise(transformer, 3))
    made.set_progress_bar_config(disable=True)
    return made


def published(folder):
    """The text encoder's weights under the names of published files."""
    (file,) = folder.glob("*.safetensors")
    from safetensors.torch import load_file
    names = {"model.language_model.": "model.", "model.visual.": "visual."}
    tensors = {}
    for name, tensor in load_file(file).items():
        for ours, theirs in names.items():
            name = theirs + name.removeprefix(ours) if name.startswith(ours) else name
        tensors[name] = tensor
    save_file(tensors, file, metadata={"format": "pt"})


def originals(pipe):
    names = {"transformer": {key: [key] for key in pipe.transformer.state_dict()},
             "vae": {original_autoencoder_name(key, False): [key] for key in pipe.vae.state_dict()}}
    (GOLDEN / "original.json").write_text(json.dumps(names) + "\n")


def texts(pipe, expected):
    rows = []
    for number, prompt in enumerate(PROMPTS):
        tokens = pipe.tokenizer(TEMPLATE.format(prompt)).input_ids
        states, _ = pipe.encode_prompt(prompt, max_sequence_length=512)
        states = states[0]
        assert len(states) == min(len(tokens) - BEFORE, 512) and 0.1 < states.std() < 100, (prompt, states.shape)
        rows.append(dict(text=prompt, tokens=tokens))
        expected[f"text.{number}"] = states
    assert len(rows[-1]["tokens"]) > 512 + BEFORE
    (GOLDEN / "prompts.json").write_text(json.dumps(rows) + "\n")


def packed(latents):
    batch, channels, _, rows, columns = latents.shape
    return QwenImagePipeline._pack_latents(latents, batch, channels, rows, columns)


def unpacked(tokens, rows, columns):
    return QwenImagePipeline._unpack_latents(tokens, rows * PIXELS, columns * PIXELS, PIXELS)


def velocity(model, latents, levels, states):
    """As the pipeline asks for it."""
    rows, columns = latents.shape[-2:]
    text = torch.nn.utils.rnn.pad_sequence(states, batch_first=True)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones(len(row), dtype=torch.bool) for row in states], batch_first=True)
    made = model(
        hidden_states=packed(latents), timestep=levels, encoder_hidden_states=text, encoder_hidden_states_mask=mask,
        img_shapes=[[(1, rows // 2, columns // 2)]] * len(latents), return_dict=False)[0]
    return unpacked(made, rows, columns)


def velocities(model, expected):
    """Odd and even numbers of tokens, texts of one length and of several."""
    for label, (rows, columns), lengths, levels in (
        ("small", (6, 10), (7, 19), (0.93, 0.21)), ("wide", (4, 32), (40, 3), (1.0, 0.004)),
        ("high", (18, 2), (1, 1), (0.5, 0.75)),
    ):
        latents, levels = torch.randn(2, CHANNELS, 1, rows, columns), torch.tensor(levels)
        states = [torch.randn(length, TEXT) for length in lengths]
        made = velocity(model, latents, levels, states)
        expected |= {f"velocity.{label}.latents": latents, f"velocity.{label}.levels": levels,
                     f"velocity.{label}.made": made}
        expected |= {f"velocity.{label}.text.{number}": text for number, text in enumerate(states)}
        assert 0.02 < made.std() < 100, made.std()


RUNS = [
    # name, guidance scale, steps, prompt, negative prompt, size in latents
    ("plain", 1.0, 4, 0, None, (6, 10)),
    ("guided", 4.0, 5, 3, 0, (8, 4)),
    ("without-negative", 2.5, 3, 4, PROMPTS.index(""), (6, 10)),
    ("long", 1.0, 2, 8, None, (6, 6)),
]


def runs(pipe, expected):
    made = []
    for seed, (name, guidance, steps, prompt, negative, (rows, columns)) in enumerate(RUNS):
        start = torch.randn(1, CHANNELS, 1, rows, columns, generator=torch.Generator().manual_seed(seed))
        result = pipe(
            prompt=PROMPTS[prompt], negative_prompt=None if negative is None else PROMPTS[negative], height=rows * PIXELS,
            width=columns * PIXELS, num_inference_steps=steps, true_cfg_scale=guidance, latents=packed(start),
            output_type="latent").images
        result = unpacked(result, rows, columns)
        assert 0.05 < result.std() < 50 and result.isfinite().all(), (name, result.std())
        expected |= {f"run.{name}.start": start, f"run.{name}.latents": result}
        made.append(dict(name=name, guidance=guidance, shift=None, steps=steps, prompt=prompt, negative=negative))
    (GOLDEN / "runs.json").write_text(json.dumps(made, indent=1) + "\n")
    shifts = []
    for tokens in (15, 256, 4096, 8192, 10000):
        for steps in (2, 4, 50):
            scheduler = pipe.scheduler
            keys = scheduler.config
            mu = calculate_shift(
                tokens, keys.base_image_seq_len, keys.max_image_seq_len, keys.base_shift, keys.max_shift)
            scheduler.set_timesteps(sigmas=[1.0 - step / steps for step in range(steps)], mu=mu)
            shifts.append(dict(tokens=tokens, steps=steps, sigmas=scheduler.sigmas.tolist()))
    (GOLDEN / "shifts.json").write_text(json.dumps(shifts) + "\n")


def training(pipe, expected):
    model = adapted(pipe.transformer, TARGETS, GOLDEN / "adapter")
    given = flow((CHANNELS, 1, 6, 8))
    states = [torch.randn(length, TEXT) for length in (9, 17)]
    made = trained(model, given, lambda noisy, sigma: velocity(model, noisy, sigma, states))
    anima.write("training", {**made, "text.0": states[0], "text.1": states[1]})

    latents, levels = expected["velocity.small.latents"], expected["velocity.small.levels"]
    states = [expected[f"velocity.small.text.{number}"] for number in range(ROWS)]
    written_for_others(
        pipe, model, made, GOLDEN, expected, lambda model: velocity(model, latents, levels, states),
        lambda name: f"diffusion_model.{name}")


def main():
    shutil.rmtree(GOLDEN, ignore_errors=True)
    GOLDEN.mkdir(parents=True)
    pipe, expected = pipeline(), {}
    save(pipe, GOLDEN / "model")
    published(GOLDEN / "model" / "text_encoder")
    originals(pipe)
    torch.manual_seed(1)
    with torch.no_grad():
        texts(pipe, expected)
        pictures(pipe.vae, expected)
        velocities(pipe.transformer, expected)
        runs(pipe, expected)
    training(pipe, expected)
    anima.write("expected", expected)


if __name__ == "__main__":
    main()
