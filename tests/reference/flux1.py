"""Writes golden/flux1: a tiny random FLUX.1, and what diffusers, transformers and PEFT make of it.

The files are those of `z_image.py`. Of the 512 states of a text, `expected.safetensors` has every seventh. `schnell` is what
the transformer makes without its guidance, as that of FLUX.1-schnell has none. `lora.safetensors` is the LoRA after the last
step as it is written for others, and `lora.made` the velocity that diffusers makes with it. `shifts.json` has the noise
levels of the pipeline for sizes and steps. T5's tokenizer is that of golden/wan/text, which must be there.
"""

import inspect
import json
import shutil

import numpy
import torch
import z_image
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel
from diffusers.loaders import single_file_utils
from diffusers.pipelines.flux.pipeline_flux import calculate_shift
from safetensors.torch import save_file
from sdxl import text_config, tokenizer
from tiny import ROWS, adapted, flow, trained, written_for_others
from transformers import AutoTokenizer, CLIPTextModel, T5Config, T5EncoderModel
from z_image import original_autoencoder_name, pictures, randomise

GOLDEN = z_image.GOLDEN.with_name("flux1")
z_image.GOLDEN = GOLDEN
TEXT, POOLED, HEADS, HEAD, LATENTS, PIXELS = 24, 16, 2, 16, 4, 4
WIDTH = HEADS * HEAD

TARGETS = (
    r"transformer_blocks\.\d+\.(attn\.(to_[qkv]|add_[qkv]_proj|to_out\.0|to_add_out)|ff(_context)?\.net\.(0\.proj|2))"
    r"|single_transformer_blocks\.\d+\.(attn\.to_[qkv]|proj_mlp|proj_out)"
)
PROMPTS = [*z_image.PROMPTS[:-1], "<|endoftext|> a </s> b <pad> <extra_id_3>", "a grey cat " * 20, z_image.PROMPTS[-1]]


def pipeline():
    torch.manual_seed(0)
    clip_tokens = tokenizer(GOLDEN / "clip", "<|endoftext|>")
    clip = CLIPTextModel(text_config(clip_tokens, POOLED, 2, 3, "quick_gelu", POOLED))
    with torch.no_grad():
        for parameter in clip.parameters():
            parameter.normal_(0.0, 0.2)
    t5_tokens = AutoTokenizer.from_pretrained(GOLDEN.with_name("wan") / "text")
    t5 = T5EncoderModel(T5Config(
        vocab_size=len(t5_tokens) + 3, d_model=TEXT, d_kv=8, d_ff=40, num_layers=3, num_heads=3,
        feed_forward_proj="gated-gelu"))
    with torch.no_grad():
        t5.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight.normal_(0.0, 1.0)
    vae = AutoencoderKL(
        block_out_channels=(8, 8, 16), down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3, layers_per_block=1, latent_channels=LATENTS, norm_num_groups=4,
        scaling_factor=0.3611, shift_factor=0.1159, use_quant_conv=False, use_post_quant_conv=False, sample_size=32)
    transformer = FluxTransformer2DModel(
        in_channels=4 * LATENTS, num_layers=2, num_single_layers=2, attention_head_dim=HEAD, num_attention_heads=HEADS,
        joint_attention_dim=TEXT, pooled_projection_dim=POOLED, guidance_embeds=True, axes_dims_rope=(4, 6, 6))
    made = FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(
            shift=3.0, use_dynamic_shifting=True, base_shift=0.5, max_shift=1.15, base_image_seq_len=256,
            max_image_seq_len=4096),
        vae=randomise(vae, 1), text_encoder=randomise(clip, 2), tokenizer=clip_tokens, text_encoder_2=randomise(t5, 3),
        tokenizer_2=t5_tokens, transformer=randomise(transformer, 4))
    made.set_progress_bar_config(disable=True)
    return made


def save(pipe, folder):
    pipe.save_pretrained(folder)
    for part in ("transformer", "vae", "text_encoder", "text_encoder_2"):
        # In half the room: the weights were rounded before.
        for file in (folder / part).glob("*.safetensors"):
            file.unlink()
        stem = "model" if part.startswith("text") else "diffusion_pytorch_model"
        tensors = {name: tensor.bfloat16().contiguous() for name, tensor in getattr(pipe, part).state_dict().items()
                   if name != "encoder.embed_tokens.weight" and not name.endswith("position_ids")}
        save_file(tensors, folder / part / f"{stem}.safetensors", metadata={"format": "pt"})
    # As the published folders have it.
    shutil.rmtree(folder / "tokenizer")
    shutil.move(GOLDEN / "clip", folder / "tokenizer")


def original_transformer_name(name):
    for theirs, original in [
        ("single_transformer_blocks.", "single_blocks."), ("transformer_blocks.", "double_blocks."),
        ("time_text_embed.timestep_embedder.", "time_in."), ("time_text_embed.guidance_embedder.", "guidance_in."),
        ("time_text_embed.text_embedder.", "vector_in."), ("x_embedder.", "img_in."), ("context_embedder.", "txt_in."),
        ("linear_1.", "in_layer."), ("linear_2.", "out_layer."), ("norm_out.linear.", "final_layer.adaLN_modulation.1."),
        ("norm1.linear.", "img_mod.lin."), ("norm1_context.linear.", "txt_mod.lin."), (".norm.linear.", ".modulation.lin."),
        ("ff.net.0.proj", "img_mlp.0"), ("ff.net.2", "img_mlp.2"), ("ff_context.net.0.proj", "txt_mlp.0"),
        ("ff_context.net.2", "txt_mlp.2"), ("attn.to_out.0", "img_attn.proj"), ("attn.to_add_out", "txt_attn.proj"),
        ("attn.norm_added_q.weight", "txt_attn.norm.query_norm.scale"),
        ("attn.norm_added_k.weight", "txt_attn.norm.key_norm.scale"), (".proj_mlp.", ".linear1."),
        (".proj_out.", ".linear2."), ("proj_out.", "final_layer.linear."),
    ]:
        name = name.replace(theirs, original)
    is_double = name.startswith("double")
    for part, other in (("q", "query"), ("k", "key")):
        norm = "img_attn.norm." if is_double else "norm."
        name = name.replace(f"attn.norm_{part}.weight", f"{norm}{other}_norm.scale")
    for part in "qkv":
        name = name.replace(f"attn.to_{part}.", "img_attn.qkv." if is_double else "linear1.")
        name = name.replace(f"attn.add_{part}_proj.", "txt_attn.qkv.")
    return name


def originals(pipe):
    """Names in the files that ComfyUI's users have, of which diffusers' reader takes those of the transformer for the same
    weights; it has the published width written in."""
    names = {"transformer": {}, "vae": {}}
    weights = pipe.transformer.state_dict()
    for key in weights:
        names["transformer"].setdefault(original_transformer_name(key), []).append(key)
    for keys in names["transformer"].values():
        # The state has it before queries, keys and values.
        keys.sort(key=lambda key: ".proj_mlp." in key)
    stages = len(pipe.vae.config.block_out_channels)
    for key in pipe.vae.state_dict():
        names["vae"][original_autoencoder_name(key, stages)] = [key]
    checkpoint = {original: torch.cat([weights[key] for key in keys]) for original, keys in names["transformer"].items()}
    for role in ("weight", "bias"):
        last = f"final_layer.adaLN_modulation.1.{role}"
        checkpoint[last] = torch.cat(checkpoint[last].chunk(2)[::-1])
    name = "convert_flux_transformer_checkpoint_to_diffusers"
    source = inspect.getsource(getattr(single_file_utils, name))
    assert "3072" in source
    scope = dict(vars(single_file_utils))
    exec(source.replace("3072", str(WIDTH)), scope)
    found = scope[name](checkpoint)
    assert found.keys() == weights.keys(), found.keys() ^ weights.keys()
    assert all(torch.equal(found[key], weights[key]) for key in weights)
    (GOLDEN / "original.json").write_text(json.dumps(names) + "\n")


def texts(pipe, expected):
    rows = []
    for number, prompt in enumerate(PROMPTS):
        clip = pipe.tokenizer(prompt, padding="max_length", max_length=77, truncation=True).input_ids
        t5 = pipe.tokenizer_2(prompt, padding="max_length", max_length=512, truncation=True).input_ids
        length = len(pipe.tokenizer_2(prompt).input_ids)
        states, pooled, _ = pipe.encode_prompt(prompt)
        assert states.shape == (1, 512, TEXT) and 0.1 < states.std() < 100 and 0.1 < pooled.std() < 100, prompt
        rows.append(dict(text=prompt, tokens=[clip, t5], length=length))
        expected |= {f"text.{number}": states[0, ::7], f"pooled.{number}": pooled[0]}
    assert rows[-1]["length"] > 512
    (GOLDEN / "prompts.json").write_text(json.dumps(rows) + "\n")


def velocity(model, latents, levels, states, pooled, guidance):
    """As the pipeline asks for it."""
    batch, channels, _, rows, columns = latents.shape
    made = model(
        hidden_states=FluxPipeline._pack_latents(latents, batch, channels, rows, columns), timestep=levels,
        guidance=guidance, pooled_projections=pooled, encoder_hidden_states=states, txt_ids=torch.zeros(states.shape[1], 3),
        img_ids=FluxPipeline._prepare_latent_image_ids(batch, rows // 2, columns // 2, "cpu", torch.float32),
        return_dict=False)[0]
    return unpacked(made, rows, columns)


def unpacked(tokens, rows, columns):
    return FluxPipeline._unpack_latents(tokens, rows * PIXELS, columns * PIXELS, PIXELS).unsqueeze(2)


def without_guidance(model):
    """The same transformer as one of FLUX.1-schnell."""
    made = FluxTransformer2DModel.from_config({**model.config, "guidance_embeds": False})
    made.load_state_dict({name: tensor for name, tensor in model.state_dict().items() if "guidance" not in name})
    return made.eval()


def velocities(model, expected):
    """Sizes, lengths of texts, noise levels and guidance."""
    for label, (rows, columns), length, levels, guidance in (
        ("small", (6, 10), 7, (0.93, 0.21), (3.5, 1.0)), ("wide", (4, 32), 40, (1.0, 0.004), (1.0, 30.0)),
        ("high", (18, 2), 1, (0.5, 0.75), (0.0, 2.25)),
    ):
        latents, states = torch.randn(2, LATENTS, 1, rows, columns), torch.randn(2, length, TEXT)
        levels, pooled, guidance = torch.tensor(levels), torch.randn(2, POOLED), torch.tensor(guidance)
        made = velocity(model, latents, levels, states, pooled, guidance)
        key = f"velocity.{label}"
        expected |= {f"{key}.latents": latents, f"{key}.levels": levels, f"{key}.made": made}
        for row in range(2):
            expected |= {f"{key}.text.{row}": states[row].clone(), f"{key}.pooled.{row}": pooled[row].clone(),
                         f"{key}.guidance.{row}": guidance[row].clone()}
        assert 0.02 < made.std() < 100, made.std()
        if label == "small":
            expected["schnell"] = velocity(without_guidance(model), latents, levels, states, pooled, None)
            assert (expected["schnell"] - made).abs().max() > 0.01


RUNS = [
    # name, guidance, steps, prompt, size in latents
    ("plain", 3.5, 4, 0, (6, 10)), ("weak", 1.0, 3, 3, (8, 4)), ("long", 7.0, 1, len(PROMPTS) - 1, (6, 6)),
]


def runs(pipe, expected):
    made = []
    for seed, (name, guidance, steps, prompt, (rows, columns)) in enumerate(RUNS):
        start = torch.randn(1, LATENTS, 1, rows, columns, generator=torch.Generator().manual_seed(seed))
        # The pipeline counts eight pixels for a latent, if the autoencoder does not say another number.
        assert pipe.vae_scale_factor == PIXELS
        result = pipe(
            PROMPTS[prompt], height=rows * PIXELS, width=columns * PIXELS, num_inference_steps=steps, guidance_scale=guidance,
            latents=FluxPipeline._pack_latents(start, 1, LATENTS, rows, columns), output_type="latent").images
        result = unpacked(result, rows, columns)
        assert 0.05 < result.std() < 50 and result.isfinite().all(), (name, result.std())
        expected |= {f"run.{name}.start": start, f"run.{name}.latents": result}
        made.append(dict(name=name, guidance=guidance, shift=None, steps=steps, prompt=prompt, negative=None))
    (GOLDEN / "runs.json").write_text(json.dumps(made, indent=1) + "\n")
    shifts = []
    for tokens in (15, 256, 4096, 8192):
        for steps in (1, 4, 28):
            keys = pipe.scheduler.config
            mu = calculate_shift(
                tokens, keys.base_image_seq_len, keys.max_image_seq_len, keys.base_shift, keys.max_shift)
            pipe.scheduler.set_timesteps(sigmas=numpy.linspace(1.0, 1 / steps, steps), mu=mu)
            shifts.append(dict(tokens=tokens, steps=steps, sigmas=pipe.scheduler.sigmas.tolist()))
    (GOLDEN / "shifts.json").write_text(json.dumps(shifts) + "\n")


def training(pipe, expected):
    """The losses of five steps with a guidance of 1, and the LoRA after the last."""
    model = adapted(pipe.transformer, TARGETS, GOLDEN / "adapter")
    given = flow((LATENTS, 1, 6, 8))
    states, pooled, one = torch.randn(ROWS, 9, TEXT), torch.randn(ROWS, POOLED), torch.ones(ROWS)
    made = trained(model, given, lambda noisy, sigma: velocity(model, noisy, sigma, states, pooled, one))
    z_image.write("training", {**made, "text": states, "pooled": pooled})
    latents, levels, guidance = (expected[f"velocity.small.{name}"] if name != "guidance" else torch.stack(
        [expected[f"velocity.small.guidance.{row}"] for row in range(ROWS)]) for name in ("latents", "levels", "guidance"))
    states, pooled = (torch.stack([expected[f"velocity.small.{name}.{row}"] for row in range(ROWS)])
                      for name in ("text", "pooled"))
    written_for_others(
        pipe, model, made, GOLDEN, expected,
        lambda model: velocity(model, latents, levels, states, pooled, guidance))


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
        velocities(pipe.transformer, expected)
        runs(pipe, expected)
    training(pipe, expected)
    z_image.write("expected", expected)


if __name__ == "__main__":
    main()
