"""Writes golden/flux2: a tiny random FLUX.2 [klein], and what diffusers, transformers and PEFT make of it.

The files are those of `z_image.py`, which has what the two share. Texts have 512 states, of which `expected.safetensors`
has every seventh. `shifts.json` has the shifts of the pipeline for sizes and steps; latents are as the transformer sees
them, 2 x 2 of the autoencoder as one and normalised. `lora.safetensors` is the LoRA after the last step, in the names of
the original files, and `lora.made` the velocity that diffusers makes with it.
"""

import copy
import json
import shutil

import torch
import z_image
from diffusers import AutoencoderKLFlux2, FlowMatchEulerDiscreteScheduler, Flux2KleinPipeline, Flux2Transformer2DModel
from diffusers.loaders.single_file_utils import convert_flux2_transformer_checkpoint_to_diffusers
from diffusers.pipelines.flux2.pipeline_flux2_klein import compute_empirical_mu
from safetensors.torch import save_file
from tiny import ROWS, adapted, flow, flow_loss, kinds, trained
from transformers import Qwen3Config, Qwen3ForCausalLM
from z_image import PROMPTS, original_autoencoder_name, randomise, save, tokenizer

GOLDEN = z_image.GOLDEN.with_name("flux2")
z_image.GOLDEN = GOLDEN
TEXT, HEADS, HEAD, LATENTS, PIXELS = 16, 2, 16, 4, 8
WIDTH, CHANNELS = 3 * TEXT, 4 * LATENTS

TARGETS = (
    r"transformer_blocks\.\d+\.(attn\.(to_[qkv]|add_[qkv]_proj|to_out\.0|to_add_out)|ff(_context)?\.linear_(in|out))"
    r"|single_transformer_blocks\.\d+\.attn\.(to_qkv_mlp_proj|to_out)"
)


def autoencoder(seed, **other):
    model = randomise(AutoencoderKLFlux2(
        down_block_types=("DownEncoderBlock2D",) * 3, up_block_types=("UpDecoderBlock2D",) * 3, layers_per_block=1,
        latent_channels=LATENTS, norm_num_groups=4, sample_size=32, block_out_channels=(8, 8, 16), **other), seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        model.bn.running_mean.normal_(0.0, 0.5, generator=generator)
        model.bn.running_var.uniform_(0.3, 2.0, generator=generator)
        for statistics in (model.bn.running_mean, model.bn.running_var):
            statistics.copy_(statistics.to(torch.bfloat16).float())
    return model


def pipeline():
    torch.manual_seed(0)
    cut = tokenizer()
    text = Qwen3ForCausalLM(Qwen3Config(
        vocab_size=len(cut) + 5, hidden_size=TEXT, intermediate_size=24, num_hidden_layers=28, num_attention_heads=2,
        num_key_value_heads=1, head_dim=10, max_position_embeddings=1024, rope_theta=1e6, initializer_range=0.2,
        tie_word_embeddings=True))
    transformer = randomise(Flux2Transformer2DModel(
        in_channels=CHANNELS, num_layers=2, num_single_layers=2, attention_head_dim=HEAD, num_attention_heads=HEADS,
        joint_attention_dim=WIDTH, axes_dims_rope=(HEAD // 4,) * 4, guidance_embeds=False), 3)
    made = Flux2KleinPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=True), vae=autoencoder(1),
        text_encoder=randomise(text, 2), tokenizer=cut, transformer=transformer, is_distilled=False)
    made.set_progress_bar_config(disable=True)
    return made


def statistics(vae):
    deviation = torch.sqrt(vae.bn.running_var + vae.config.batch_norm_eps)
    return vae.bn.running_mean.view(1, -1, 1, 1), deviation.view(1, -1, 1, 1)


def normalised(latents, vae):
    """What the transformer sees of the autoencoder's latents."""
    mean, deviation = statistics(vae)
    return (Flux2KleinPipeline._patchify_latents(latents) - mean) / deviation


def original_transformer_name(name):
    for theirs, original in [
        ("single_transformer_blocks.", "single_blocks."), ("transformer_blocks.", "double_blocks."),
        ("attn.to_qkv_mlp_proj", "linear1"), ("x_embedder.", "img_in."), ("context_embedder.", "txt_in."),
        ("time_guidance_embed.timestep_embedder.linear_1", "time_in.in_layer"),
        ("time_guidance_embed.timestep_embedder.linear_2", "time_in.out_layer"), (".linear.", ".lin."),
        ("norm_out.lin.", "final_layer.adaLN_modulation.1."), ("proj_out.", "final_layer.linear."),
        ("attn.to_out.0", "img_attn.proj"), ("attn.to_add_out", "txt_attn.proj"), ("attn.to_out", "linear2"),
        ("ff.linear_in", "img_mlp.0"), ("ff.linear_out", "img_mlp.2"), ("ff_context.linear_in", "txt_mlp.0"),
        ("ff_context.linear_out", "txt_mlp.2"), ("attn.norm_added_q.weight", "txt_attn.norm.query_norm.scale"),
        ("attn.norm_added_k.weight", "txt_attn.norm.key_norm.scale"),
    ]:
        name = name.replace(theirs, original)
    norm = "img_attn.norm." if name.startswith("double") else "norm."
    for part, other in (("q", "query"), ("k", "key")):
        name = name.replace(f"attn.norm_{part}.weight", f"{norm}{other}_norm.scale")
    for part in "qkv":
        name = name.replace(f"attn.to_{part}.", "img_attn.qkv.").replace(f"attn.add_{part}_proj.", "txt_attn.qkv.")
    return name


def originals(pipe):
    """Names in the files that ComfyUI's users have, of which diffusers' reader takes those of the transformer for the
    same weights."""
    names = {"transformer": {}, "vae": {}}
    for key in pipe.transformer.state_dict():
        names["transformer"].setdefault(original_transformer_name(key), []).append(key)
    stages = len(pipe.vae.config.block_out_channels)
    for key in pipe.vae.state_dict():
        beside = {"quant_conv": "encoder.", "post_quant_conv": "decoder."}.get(key.split(".")[0])
        of_bn = key.startswith("bn.")
        original = key if of_bn else f"{beside}{key}" if beside else original_autoencoder_name(key, stages)
        names["vae"][original] = [key]
    weights = pipe.transformer.state_dict()
    checkpoint = {original: torch.cat([weights[key] for key in keys]) for original, keys in names["transformer"].items()}
    last = "final_layer.adaLN_modulation.1.weight"
    checkpoint[last] = torch.cat(checkpoint[last].chunk(2)[::-1])
    found = convert_flux2_transformer_checkpoint_to_diffusers(checkpoint)
    assert found.keys() == weights.keys(), found.keys() ^ weights.keys()
    assert all(torch.equal(found[key], weights[key]) for key in weights)
    (GOLDEN / "original.json").write_text(json.dumps(names, indent=1) + "\n")


def texts(pipe, expected):
    rows = []
    for number, prompt in enumerate(PROMPTS):
        chat = pipe.tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True, enable_thinking=False)
        tokens = pipe.tokenizer(chat).input_ids
        states = pipe.encode_prompt(prompt)[0][0]
        assert states.shape == (512, WIDTH) and 0.1 < states.std() < 100, (prompt, states.std())
        rows.append(dict(text=prompt, tokens=tokens))
        expected[f"text.{number}"] = states[::7]
    assert len(rows[-1]["tokens"]) > 512
    (GOLDEN / "prompts.json").write_text(json.dumps(rows, indent=1) + "\n")


def pictures(name, vae, expected):
    """Sizes that are whole, and one in tiles."""
    mean, deviation = statistics(vae)
    for label, (rows, columns) in {"whole": (3, 2), "tiled": (6, 7)}.items():
        if label == "tiled":
            vae.enable_tiling()
            vae.tile_sample_min_size, vae.tile_latent_min_size = 4 * PIXELS, 8
        pixels = torch.rand(1, 3, rows * PIXELS, columns * PIXELS) * 2 - 1
        noise = torch.randn(1, CHANNELS, rows, columns)
        key = f"{name}.{label}"
        expected[f"{key}.pixels"] = pixels
        expected[f"{key}.latents"] = normalised(vae.encode(pixels).latent_dist.mode(), vae)[0]
        expected[f"{key}.noise"] = noise[0]
        apart = Flux2KleinPipeline._unpatchify_latents(noise * deviation + mean)
        expected[f"{key}.decoded"] = vae.decode(apart).sample.clamp(-1, 1)
        for part in ("latents", "decoded"):
            assert 0.02 < expected[f"{key}.{part}"].std() < 100, (key, part)
        assert (expected[f"{key}.decoded"].abs() < 1).float().mean() > 0.5, key
        vae.disable_tiling()


def velocity(model, latents, levels, states):
    """As the pipeline asks for it."""
    made = model(
        hidden_states=Flux2KleinPipeline._pack_latents(latents), timestep=levels, encoder_hidden_states=states,
        txt_ids=Flux2KleinPipeline._prepare_text_ids(states), img_ids=Flux2KleinPipeline._prepare_latent_ids(latents),
        return_dict=False)[0]
    return made.permute(0, 2, 1).reshape(latents.shape)


def velocities(model, expected):
    """Sizes, lengths of texts and noise levels."""
    for label, (rows, columns), length, levels in (
        ("small", (3, 5), 7, (0.93, 0.21)), ("wide", (2, 16), 40, (1.0, 0.004)), ("high", (9, 1), 1, (0.5, 0.75)),
    ):
        latents, states = torch.randn(2, CHANNELS, rows, columns), torch.randn(2, length, WIDTH)
        made = velocity(model, latents, torch.tensor(levels), states)
        expected |= {f"velocity.{label}.latents": latents.unsqueeze(2), f"velocity.{label}.levels": torch.tensor(levels),
                     f"velocity.{label}.made": made.unsqueeze(2)}
        expected |= {f"velocity.{label}.text.{number}": text for number, text in enumerate(states)}
        assert 0.02 < made.std() < 100, made.std()


RUNS = [
    # name, guidance scale, steps, prompt, negative prompt (always the empty one), size in latents
    ("plain", 1.0, 4, 0, None, (3, 5)),
    ("guided", 4.0, 5, 3, PROMPTS.index(""), (4, 2)),
    ("one-step", 1.0, 1, 8, None, (3, 5)),
]


def runs(pipe, expected):
    made = []
    for seed, (name, guidance, steps, prompt, negative, (rows, columns)) in enumerate(RUNS):
        start = torch.randn(1, CHANNELS, rows, columns, generator=torch.Generator().manual_seed(seed))
        result = pipe(
            prompt=PROMPTS[prompt], height=rows * PIXELS, width=columns * PIXELS, num_inference_steps=steps,
            guidance_scale=guidance, latents=start.clone(), output_type="latent").images
        result = normalised(result, pipe.vae)
        assert 0.05 < result.std() < 50 and result.isfinite().all(), (name, result.std())
        expected |= {f"run.{name}.start": start, f"run.{name}.latents": result}
        made.append(dict(name=name, guidance=guidance, shift=None, steps=steps, prompt=prompt, negative=negative))
    (GOLDEN / "runs.json").write_text(json.dumps(made, indent=1) + "\n")
    shifts = []
    for tokens in (15, 1024, 4096, 4300, 4301, 8192):
        for steps in (1, 4, 28, 50, 200):
            scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
            scheduler.set_timesteps(sigmas=[1.0, 0.5], mu=compute_empirical_mu(tokens, steps))
            # At a half, shift / (1 + shift).
            half = scheduler.sigmas[1].item()
            shifts.append(dict(tokens=tokens, steps=steps, half=half))
    (GOLDEN / "shifts.json").write_text(json.dumps(shifts, indent=1) + "\n")


def training(pipe, expected):
    """The losses of five steps, and the LoRA after the last."""
    base = copy.deepcopy(pipe.transformer)
    model = adapted(pipe.transformer, TARGETS, GOLDEN / "adapter")
    given = flow((CHANNELS, 1, 3, 4))
    states = torch.randn(ROWS, 9, WIDTH)
    predict = lambda model: lambda noisy, sigma: velocity(model, noisy.squeeze(2), sigma, states).unsqueeze(2)
    made = trained(model, given, predict(model))
    kinds(base, TARGETS, GOLDEN / "kinds", lambda model: flow_loss(given, predict(model)), ["dora", "lokr"])
    z_image.write("training", {**made, "text": states})
    after = {name.removeprefix("after.base_model.model."): tensor for name, tensor in made.items() if "lora_" in name}
    with torch.no_grad():
        latents = expected["velocity.small.latents"].squeeze(2)
        states = torch.stack([expected[f"velocity.small.text.{number}"] for number in range(ROWS)])
        by_peft = velocity(model, latents, expected["velocity.small.levels"], states)
    model = model.unload()
    save_file(fused(after), GOLDEN / "lora.safetensors", metadata={"format": "pt"})
    pipe.load_lora_weights(GOLDEN / "lora.safetensors")
    with torch.no_grad():
        made = velocity(pipe.transformer, latents, expected["velocity.small.levels"], states)
    assert (made - by_peft).abs().max() < 1e-5, (made - by_peft).abs().max()
    assert (made - expected["velocity.small.made"].squeeze(2)).abs().max() > 0.01
    expected["lora.made"] = made.unsqueeze(2)


def fused(after):
    """The LoRA in the names of the original files, with its strength of 2 in the second matrices."""
    groups = {}
    for name in after:
        module, matrix = name.removesuffix(".weight").rsplit(".", 1)
        original = original_transformer_name(f"{module}.weight").removesuffix(".weight")
        if matrix == "lora_A":
            groups.setdefault(original, []).append(module)
    made = {}
    for original, modules in groups.items():
        matrices = [[after[f"{module}.lora_{part}.weight"] for module in modules] for part in "AB"]
        made[f"diffusion_model.{original}.lora_A.weight"] = torch.cat(matrices[0]).contiguous()
        made[f"diffusion_model.{original}.lora_B.weight"] = 2.0 * torch.block_diag(*matrices[1])
    return made


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
        other = autoencoder(
            4, decoder_block_out_channels=(4, 8, 8), use_quant_conv=False, use_post_quant_conv=False, batch_norm_eps=0.2)
        other.save_pretrained(GOLDEN / "small-decoder")
        pictures("small", other, expected)
        velocities(pipe.transformer, expected)
        runs(pipe, expected)
    training(pipe, expected)
    z_image.write("expected", expected)


if __name__ == "__main__":
    main()
