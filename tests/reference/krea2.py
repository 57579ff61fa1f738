"""Writes golden/krea2: a tiny random Krea 2, and what diffusers, transformers and PEFT make of it.

The files are those of `qwen_image.py`, but `lora.safetensors` has the original names. Of the states of a text, every fourth
is there. In `runs.json`, guidance is counted as elsewhere: 1 more than the pipeline's. The run `turbo` is that of a distilled
model.
"""

import json
import shutil

import anima
import torch
from anima import original_autoencoder_name, pictures
from diffusers import AutoencoderKLQwenImage, FlowMatchEulerDiscreteScheduler, Krea2Pipeline, Krea2Transformer2DModel
from diffusers.loaders.single_file_utils import convert_krea2_transformer_checkpoint_to_diffusers
from diffusers.pipelines.krea2.pipeline_krea2 import calculate_shift
from qwen_image import BEFORE, CHANNELS, PIXELS, packed, tokenizer, unpacked
from tiny import ROWS, adapted, flow, trained, written_for_others
from transformers import Qwen3VLConfig, Qwen3VLModel
from z_image import PROMPTS, save

GOLDEN = anima.GOLDEN.with_name("krea2")
anima.GOLDEN = GOLDEN
WIDTH, STATES, READ = 24, (1, 2, 4), 512
TARGETS = (
    r"(transformer_blocks|text_fusion\.(layerwise|refiner)_blocks)\.\d+\."
    r"(attn\.(to_[qkv]|to_gate|to_out\.0)|ff\.(gate|up|down))"
)


def randomise(model, seed):
    """As that of Anima; these norms add 1 to their weights, and tables start as zeros."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(-0.5, 0.5, generator=generator)
            elif name.endswith("bias"):
                parameter.normal_(0.0, 0.1, generator=generator)
            elif name.endswith("scale_shift_table"):
                parameter.normal_(0.0, 0.5, generator=generator)
            parameter.copy_(parameter.bfloat16().float())
    return model.eval()


def pipeline():
    torch.manual_seed(0)
    cut = tokenizer()
    text = Qwen3VLModel(Qwen3VLConfig(
        text_config=dict(
            vocab_size=len(cut) + 5, hidden_size=WIDTH, intermediate_size=40, num_hidden_layers=5, num_attention_heads=3,
            num_key_value_heads=1, head_dim=10, max_position_embeddings=2048, initializer_range=0.2,
            rope_parameters=dict(rope_type="default", rope_theta=5e6, mrope_section=[2, 2, 1], mrope_interleaved=True)),
        vision_config=dict(
            depth=1, hidden_size=16, intermediate_size=16, num_heads=2, out_hidden_size=WIDTH, patch_size=4,
            num_position_embeddings=16, deepstack_visual_indexes=[0])))
    vae = AutoencoderKLQwenImage(
        base_dim=4, z_dim=CHANNELS, dim_mult=[1, 2, 2], num_res_blocks=2, temperal_downsample=[True, True])
    transformer = Krea2Transformer2DModel(
        in_channels=4 * CHANNELS, num_layers=3, attention_head_dim=8, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=40, timestep_embed_dim=16, text_hidden_dim=WIDTH, num_text_layers=len(STATES),
        text_num_attention_heads=4, text_num_key_value_heads=2, text_intermediate_size=32, num_layerwise_text_blocks=2,
        num_refiner_text_blocks=1, axes_dims_rope=(2, 4, 2))
    scheduler = FlowMatchEulerDiscreteScheduler(
        base_image_seq_len=256, max_image_seq_len=6400, base_shift=0.5, max_shift=1.15, use_dynamic_shifting=True)
    made = Krea2Pipeline(
        scheduler=scheduler, vae=anima.randomise(vae, 1), text_encoder=anima.randomise(text, 2), tokenizer=cut,
        transformer=randomise(transformer, 3), text_encoder_select_layers=STATES)
    made.set_progress_bar_config(disable=True)
    return made


def original_name(name):
    for theirs, original in [
        ("img_in.", "first."), ("time_embed.linear_1.", "tmlp.0."), ("time_embed.linear_2.", "tmlp.2."),
        ("time_mod_proj.", "tproj.1."), ("txt_in.norm.weight", "txtmlp.0.scale"), ("txt_in.linear_1.", "txtmlp.1."),
        ("txt_in.linear_2.", "txtmlp.3."), ("text_fusion.", "txtfusion."), ("transformer_blocks.", "blocks."),
        ("final_layer.linear.", "last.linear."), ("final_layer.norm.weight", "last.norm.scale"),
        ("final_layer.scale_shift_table", "last.modulation.lin"), (".scale_shift_table", ".mod.lin"),
        (".to_q.", ".wq."), (".to_k.", ".wk."), (".to_v.", ".wv."), (".to_out.0.", ".wo."), (".to_gate.", ".gate."),
        (".norm_q.weight", ".qknorm.qnorm.scale"), (".norm_k.weight", ".qknorm.knorm.scale"),
        (".norm1.weight", ".prenorm.scale"), (".norm2.weight", ".postnorm.scale"), (".ff.", ".mlp."),
    ]:
        name = name.replace(theirs, original)
    return name


def originals(pipe):
    weights = pipe.transformer.state_dict()
    names = {"transformer": {original_name(key): [key] for key in weights},
             "vae": {original_autoencoder_name(key, False): [key] for key in pipe.vae.state_dict()}}
    stored = {original: weights[key].flatten() if original.endswith(".mod.lin") else weights[key]
              for original, [key] in names["transformer"].items()}
    found = convert_krea2_transformer_checkpoint_to_diffusers(stored)
    assert found.keys() == weights.keys() and all(torch.equal(found[key], weights[key]) for key in weights)
    (GOLDEN / "original.json").write_text(json.dumps(names) + "\n")


def texts(pipe, expected):
    rows = []
    behind = pipe.tokenizer(pipe.prompt_template_encode_suffix).input_ids
    assert len(behind) == pipe.prompt_template_encode_num_suffix_tokens
    for number, prompt in enumerate(PROMPTS):
        tokens = pipe.tokenizer(pipe.prompt_template_encode_prefix + prompt).input_ids
        length = len(tokens) + len(behind) - BEFORE
        tokens = tokens[:READ + BEFORE - len(behind)] + behind
        states, mask = pipe.encode_prompt(prompt, max_sequence_length=READ)
        states = states[0, mask[0]].flatten(1)
        assert len(states) == len(tokens) - BEFORE and 0.1 < states.std() < 100, (prompt, states.shape, states.std())
        rows.append(dict(text=prompt, tokens=tokens, length=length))
        expected[f"text.{number}"] = states[::4]
    assert length > READ
    (GOLDEN / "prompts.json").write_text(json.dumps(rows) + "\n")


def velocity(model, latents, levels, states):
    """As the pipeline asks for it."""
    rows, columns = latents.shape[-2:]
    text = torch.nn.utils.rnn.pad_sequence(states, batch_first=True)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones(len(row), dtype=torch.bool) for row in states], batch_first=True)
    made = model(
        hidden_states=packed(latents), timestep=levels, encoder_hidden_states=text.unflatten(2, (len(STATES), WIDTH)),
        encoder_attention_mask=mask, return_dict=False,
        position_ids=Krea2Pipeline.prepare_position_ids(text.shape[1], rows // 2, columns // 2, "cpu"))[0]
    return unpacked(made, rows, columns)


def velocities(model, expected):
    """Odd and even numbers of tokens, texts of one length and of several."""
    for label, (rows, columns), lengths, levels in (
        ("small", (6, 10), (7, 19), (0.93, 0.21)), ("wide", (4, 32), (40, 3), (1.0, 0.004)),
        ("high", (18, 2), (1, 1), (0.5, 0.75)),
    ):
        latents, levels = torch.randn(2, CHANNELS, 1, rows, columns), torch.tensor(levels)
        states = [torch.randn(length, len(STATES) * WIDTH) for length in lengths]
        made = velocity(model, latents, levels, states)
        expected |= {f"velocity.{label}.latents": latents, f"velocity.{label}.levels": levels,
                     f"velocity.{label}.made": made}
        expected |= {f"velocity.{label}.text.{number}": text for number, text in enumerate(states)}
        assert 0.02 < made.std() < 100, made.std()


RUNS = [
    # name, the pipeline's guidance scale, steps, prompt, negative prompt, size in latents
    ("plain", 0.0, 4, 0, None, (6, 10)),
    ("guided", 3.5, 5, 3, 4, (8, 4)),
    ("without-negative", 1.5, 3, 4, PROMPTS.index(""), (6, 10)),
    ("long", 0.0, 2, 8, None, (6, 6)),
    ("turbo", 0.0, 3, 5, None, (8, 8)),
]


def runs(pipe, expected):
    made = []
    for seed, (name, guidance, steps, prompt, negative, (rows, columns)) in enumerate(RUNS):
        pipe.register_to_config(is_distilled=name == "turbo")
        start = torch.randn(1, CHANNELS, 1, rows, columns, generator=torch.Generator().manual_seed(seed))
        result = pipe(
            prompt=PROMPTS[prompt], negative_prompt=None if not negative else PROMPTS[negative], height=rows * PIXELS,
            width=columns * PIXELS, num_inference_steps=steps, guidance_scale=guidance, latents=packed(start),
            output_type="latent").images
        result = unpacked(result, rows, columns)
        assert 0.05 < result.std() < 50 and result.isfinite().all(), (name, result.std())
        expected |= {f"run.{name}.start": start, f"run.{name}.latents": result}
        shift = 2.718281828459045 ** 1.15 if name == "turbo" else None
        made.append(dict(name=name, guidance=guidance + 1.0, shift=shift, steps=steps, prompt=prompt, negative=negative))
    (GOLDEN / "runs.json").write_text(json.dumps(made, indent=1) + "\n")
    shifts = []
    for tokens in (15, 256, 4096, 6400, 10000):
        for steps in (2, 4, 28):
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
    states = [torch.randn(length, len(STATES) * WIDTH) for length in (9, 17)]
    made = trained(model, given, lambda noisy, sigma: velocity(model, noisy, sigma, states))
    anima.write("training", {**made, "text.0": states[0], "text.1": states[1]})

    latents, levels = expected["velocity.small.latents"], expected["velocity.small.levels"]
    states = [expected[f"velocity.small.text.{number}"] for number in range(ROWS)]
    written_for_others(
        pipe, model, made, GOLDEN, expected, lambda model: velocity(model, latents, levels, states),
        lambda name: f"diffusion_model.{original_name(name)}")


def main():
    shutil.rmtree(GOLDEN, ignore_errors=True)
    GOLDEN.mkdir(parents=True)
    pipe, expected = pipeline(), {}
    save(pipe, GOLDEN / "model")
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
