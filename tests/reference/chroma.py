"""Writes golden/chroma: a tiny random Chroma, and what diffusers, transformers and PEFT make of it.

The files are those of `flux1.py`; `beta.json` has the levels of a scheduler with `use_beta_sigmas` by numbers of steps. Of a text's states, `expected.safetensors` has those of the text and of the one token
behind it that the transformer sees; texts of the other results have different lengths in a batch. diffusers adds its mask to
the scores, where it hides nothing; here it is one of truth values, which hides what it is meant to.
"""

import inspect
import json
import shutil

import flux1
import numpy
import torch
import z_image
from diffusers import AutoencoderKL, ChromaPipeline, ChromaTransformer2DModel, FlowMatchEulerDiscreteScheduler
from diffusers.loaders import single_file_utils
from flux1 import LATENTS, PIXELS, PROMPTS, TARGETS, TEXT, unpacked
from safetensors.torch import save_file
from tiny import ROWS, adapted, flow, trained, written_for_others
from transformers import AutoTokenizer, T5Config, T5EncoderModel
from z_image import original_autoencoder_name, pictures, randomise

GOLDEN = z_image.GOLDEN.with_name("chroma")
z_image.GOLDEN = GOLDEN
WIDTH, SHIFT = flux1.WIDTH, 3.0


def pipeline():
    torch.manual_seed(0)
    tokens = AutoTokenizer.from_pretrained(GOLDEN.with_name("wan") / "text")
    t5 = T5EncoderModel(T5Config(
        vocab_size=len(tokens) + 3, d_model=TEXT, d_kv=8, d_ff=40, num_layers=3, num_heads=3,
        feed_forward_proj="gated-gelu"))
    with torch.no_grad():
        t5.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight.normal_(0.0, 1.0)
    vae = AutoencoderKL(
        block_out_channels=(8, 8, 16), down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3, layers_per_block=1, latent_channels=LATENTS, norm_num_groups=4,
        scaling_factor=0.3611, shift_factor=0.1159, use_quant_conv=False, use_post_quant_conv=False, sample_size=32)
    transformer = ChromaTransformer2DModel(
        in_channels=4 * LATENTS, num_layers=2, num_single_layers=2, attention_head_dim=flux1.HEAD,
        num_attention_heads=flux1.HEADS, joint_attention_dim=TEXT, axes_dims_rope=(4, 6, 6), approximator_num_channels=16,
        approximator_hidden_dim=20, approximator_layers=3)
    with torch.no_grad():
        # So that blocks change something, and each in another way.
        for layer in transformer.distilled_guidance_layer.layers:
            layer.linear_2.weight *= 3.0
        transformer.distilled_guidance_layer.out_proj.weight *= 2.0
    made = ChromaPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=SHIFT), vae=randomise(vae, 1), text_encoder=randomise(t5, 3),
        tokenizer=tokens, transformer=randomise(transformer, 4))
    made._prepare_attention_mask = truth
    made.set_progress_bar_config(disable=True)
    return made


def truth(batch_size, sequence_length, dtype, attention_mask):
    """In place of the pipeline's mask of numbers."""
    pictured = torch.ones(batch_size, sequence_length)
    return None if attention_mask is None else torch.cat([attention_mask, pictured], 1).bool()


def save(pipe, folder):
    pipe.save_pretrained(folder)
    for part in ("transformer", "vae", "text_encoder"):
        # In half the room: the weights were rounded before.
        for file in (folder / part).glob("*.safetensors"):
            file.unlink()
        stem = "model" if part.startswith("text") else "diffusion_pytorch_model"
        tensors = {name: tensor.bfloat16().contiguous() for name, tensor in getattr(pipe, part).state_dict().items()
                   if name != "encoder.embed_tokens.weight"}
        save_file(tensors, folder / part / f"{stem}.safetensors", metadata={"format": "pt"})


def original_name(name):
    name = flux1.original_transformer_name(name)
    return name.replace(".weight", ".scale") if ".norms." in name else name


def originals(pipe):
    """As in `flux1.py`."""
    names = {"transformer": {}, "vae": {}}
    weights = pipe.transformer.state_dict()
    for key in weights:
        names["transformer"].setdefault(original_name(key), []).append(key)
    for keys in names["transformer"].values():
        keys.sort(key=lambda key: ".proj_mlp." in key)
    stages = len(pipe.vae.config.block_out_channels)
    for key in pipe.vae.state_dict():
        names["vae"][original_autoencoder_name(key, stages)] = [key]
    checkpoint = {original: torch.cat([weights[key] for key in keys]) for original, keys in names["transformer"].items()}
    name = "convert_chroma_transformer_checkpoint_to_diffusers"
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
        cut = pipe.tokenizer(prompt, padding="max_length", max_length=512, truncation=True)
        states, _, mask, *_ = pipe.encode_prompt(prompt, do_classifier_free_guidance=False)
        seen = int(mask.sum())
        assert seen == min(sum(cut.attention_mask) + 1, 512) and 0.1 < states.std() < 100, prompt
        # Padding that was not masked would be seen.
        whole = pipe.text_encoder(torch.tensor([cut.input_ids]))[0]
        assert seen == 512 or (whole - states)[0, :seen].abs().max() > 0.01, prompt
        rows.append(dict(text=prompt, tokens=cut.input_ids[:seen], length=len(pipe.tokenizer(prompt).input_ids)))
        expected[f"text.{number}"] = states[0, :seen]
    assert rows[-1]["length"] > 512
    (GOLDEN / "prompts.json").write_text(json.dumps(rows) + "\n")


def velocity(model, latents, levels, states, lengths):
    """As the pipeline asks for it; of each row of `states` as many count as `lengths` says."""
    batch, channels, _, rows, columns = latents.shape
    seen = torch.arange(states.shape[1]) < torch.tensor(lengths)[:, None]
    seen = torch.cat([seen, torch.ones(batch, rows * columns // 4, dtype=torch.bool)], 1)
    made = model(
        hidden_states=ChromaPipeline._pack_latents(latents, batch, channels, rows, columns), timestep=levels,
        encoder_hidden_states=states, txt_ids=torch.zeros(states.shape[1], 3),
        img_ids=ChromaPipeline._prepare_latent_image_ids(batch, rows // 2, columns // 2, "cpu", torch.float32),
        attention_mask=seen, return_dict=False)[0]
    return unpacked(made, rows, columns)


def velocities(model, expected):
    """Sizes, lengths of texts and noise levels."""
    for label, (rows, columns), lengths, levels in (
        ("small", (6, 10), (7, 3), (0.93, 0.21)), ("wide", (4, 32), (12, 40), (1.0, 0.004)),
        ("high", (18, 2), (1, 1), (0.5, 0.75)),
    ):
        latents, states = torch.randn(2, LATENTS, 1, rows, columns), torch.randn(2, max(lengths) + 3, TEXT)
        levels = torch.tensor(levels)
        made = velocity(model, latents, levels, states, lengths)
        key = f"velocity.{label}"
        expected |= {f"{key}.latents": latents, f"{key}.levels": levels, f"{key}.made": made}
        for row, length in enumerate(lengths):
            expected[f"{key}.text.{row}"] = states[row, :length].clone()
        assert 0.02 < made.std() < 100 and made.isfinite().all(), made.std()
        unmasked = velocity(model, latents, levels, states, [states.shape[1]] * 2)
        assert (unmasked - made).abs().max() > 0.01


RUNS = [
    # name, guidance, steps, prompt, negative, size in latents
    ("plain", 1.0, 4, 0, None, (6, 10)), ("guided", 3.5, 3, 3, 1, (8, 4)), ("away", 5.0, 2, len(PROMPTS) - 1, 0, (6, 6)),
]


def runs(pipe, expected):
    made = []
    for seed, (name, guidance, steps, prompt, negative, (rows, columns)) in enumerate(RUNS):
        start = torch.randn(1, LATENTS, 1, rows, columns, generator=torch.Generator().manual_seed(seed))
        assert pipe.vae_scale_factor == PIXELS
        result = pipe(
            PROMPTS[prompt], negative_prompt=None if negative is None else PROMPTS[negative], height=rows * PIXELS,
            width=columns * PIXELS, num_inference_steps=steps, guidance_scale=guidance,
            latents=ChromaPipeline._pack_latents(start, 1, LATENTS, rows, columns), output_type="latent").images
        result = unpacked(result, rows, columns)
        assert 0.05 < result.std() < 50 and result.isfinite().all(), (name, result.std())
        expected |= {f"run.{name}.start": start, f"run.{name}.latents": result}
        made.append(dict(name=name, guidance=guidance, shift=None, steps=steps, prompt=prompt, negative=negative))
    (GOLDEN / "runs.json").write_text(json.dumps(made, indent=1) + "\n")
    shifts = []
    for tokens in (15, 4096):
        for steps in (1, 4, 28):
            pipe.scheduler.set_timesteps(sigmas=numpy.linspace(1.0, 1 / steps, steps), mu=1.0)
            shifts.append(dict(tokens=tokens, steps=steps, sigmas=pipe.scheduler.sigmas.tolist()))
    beta = FlowMatchEulerDiscreteScheduler(shift=SHIFT, use_beta_sigmas=True)
    levels = {}
    for steps in (1, 2, 5, 26):
        beta.set_timesteps(sigmas=numpy.linspace(1.0, 1 / steps, steps), mu=1.0)
        levels[steps] = beta.sigmas.tolist()
    (GOLDEN / "beta.json").write_text(json.dumps(levels) + "\n")
    (GOLDEN / "shifts.json").write_text(json.dumps(shifts) + "\n")


def training(pipe, expected):
    """The losses of five steps, and the LoRA after the last."""
    model = adapted(pipe.transformer, TARGETS, GOLDEN / "adapter")
    given, lengths = flow((LATENTS, 1, 6, 8)), (9, 4)
    states = torch.randn(ROWS, 11, TEXT)
    made = trained(model, given, lambda noisy, sigma: velocity(model, noisy, sigma, states, lengths))
    z_image.write("training", {**made, **{f"text.{row}": states[row, :length] for row, length in enumerate(lengths)}})
    latents, levels = (expected[f"velocity.small.{name}"] for name in ("latents", "levels"))
    rows = [expected[f"velocity.small.text.{row}"] for row in range(ROWS)]
    states = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    lengths = [len(row) for row in rows]
    written_for_others(
        pipe, model, made, GOLDEN, expected, lambda model: velocity(model, latents, levels, states, lengths))


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
