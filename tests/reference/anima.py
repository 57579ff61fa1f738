"""Writes golden/anima: a tiny random Anima, and what diffusers, transformers and PEFT make of it.

`model` is a whole folder as the modular pipeline saves it, with weights in bfloat16, which are exact in fp32, in which
everything is computed. `original.json` has of each name in the original single files the name in diffusers.
`prompts.json` has the texts and their tokens, `expected.safetensors` inputs and results; `training.safetensors` five steps
of a LoRA on transformer and conditioner, and `adapter` that LoRA before the first one.

T5's tokenizer is that of golden/wan/text, which must be there. In one thing diffusers is not followed: of an empty text it
masks everything; here, as in ComfyUI, its one token is the one that ends texts.
"""

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from diffusers import (
    AnimaAutoBlocks, AnimaTextConditioner, AutoencoderKLQwenImage, ClassifierFreeGuidance, CosmosTransformer3DModel,
    FlowMatchEulerDiscreteScheduler,
)
from diffusers.loaders.single_file_utils import (
    convert_cosmos_transformer_checkpoint_to_diffusers, convert_wan_vae_to_diffusers,
)
from diffusers.models.transformers import transformer_cosmos
from diffusers.modular_pipelines.anima.encoders import AnimaTextEncoderStep
from safetensors.torch import save_file
from transformers import AutoTokenizer, Qwen3Config, Qwen3Model

from tiny import adapted, flow, trained
from wan import original_autoencoder_name
from z_image import PROMPTS, tokenizer

# A folder as the first argument takes the place of `golden`.
ROOT = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "golden")
GOLDEN = ROOT / "anima"
SOURCE, TEXT, CHANNELS, PIXELS, END = 24, 16, 16, 4, "<|endoftext|>"

TARGETS = [
    "attn1.to_q", "attn1.to_k", "attn1.to_v", "attn1.to_out.0", "attn2.to_q", "attn2.to_k", "attn2.to_v",
    "attn2.to_out.0", "ff.net.0.proj", "ff.net.2", "self_attn.q_proj", "cross_attn.v_proj", "mlp.2"]

# Of torchvision it needs this alone, for a mask of zeros.
transformer_cosmos.transforms = SimpleNamespace(
    InterpolationMode=SimpleNamespace(NEAREST=None),
    functional=SimpleNamespace(resize=lambda mask, size, interpolation: torch.nn.functional.interpolate(mask, size)))

encode_prompt = AnimaTextEncoderStep._get_qwen_prompt_embeds
AnimaTextEncoderStep._get_qwen_prompt_embeds = staticmethod(lambda components, prompt, **others: encode_prompt(
    components, [text or END for text in ([prompt] if isinstance(prompt, str) else prompt)], **others))


def randomise(model, seed):
    """Norms and biases start as ones and zeros, which would hide mistakes. All is rounded to the type in the file."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("gamma") or "norm" in name and parameter.dim() == 1:
                parameter.uniform_(0.5, 1.5, generator=generator)
            elif name.endswith("bias"):
                parameter.normal_(0.0, 0.1, generator=generator)
            elif "linear_2" in name:
                parameter.normal_(0.0, 0.3, generator=generator)
            parameter.copy_(parameter.bfloat16().float())
    return model.eval()


def pipeline():
    torch.manual_seed(0)
    own = tokenizer()
    own.chat_template = None
    text = Qwen3Model(Qwen3Config(
        vocab_size=len(own) + 5, hidden_size=SOURCE, intermediate_size=40, num_hidden_layers=3, num_attention_heads=3,
        num_key_value_heads=1, head_dim=10, max_position_embeddings=40960, rope_theta=1e6, initializer_range=0.2))
    vae = AutoencoderKLQwenImage(
        base_dim=4, z_dim=CHANNELS, dim_mult=[1, 2, 2], num_res_blocks=2, temperal_downsample=[True, True])
    t5 = AutoTokenizer.from_pretrained(ROOT / "wan" / "text")
    conditioner = AnimaTextConditioner(
        source_dim=SOURCE, target_dim=TEXT, model_dim=TEXT, num_layers=2, num_attention_heads=2, mlp_ratio=2.0,
        target_vocab_size=len(t5) + 3)
    transformer = CosmosTransformer3DModel(
        in_channels=CHANNELS, out_channels=CHANNELS, num_attention_heads=2, attention_head_dim=18, num_layers=3,
        mlp_ratio=2.0, text_embed_dim=TEXT, adaln_lora_dim=8, max_size=(4, 40, 32), rope_scale=(1.0, 4.0, 4.0),
        extra_pos_embed_type=None)
    made = AnimaAutoBlocks().init_pipeline()
    made.update_components(
        text_encoder=randomise(text, 1), tokenizer=own, t5_tokenizer=t5, text_conditioner=randomise(conditioner, 2),
        transformer=randomise(transformer, 3), vae=randomise(vae, 4), scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0))
    made.set_progress_bar_config(disable=True)
    return made


def save(pipe, folder):
    pipe.save_pretrained(str(folder), overwrite_modular_index=True)
    for part in ("transformer", "text_conditioner", "vae", "text_encoder"):
        # In half the room: the weights were rounded before.
        for file in (folder / part).glob("*.safetensors"):
            file.unlink()
        names = {"text_encoder": "model"}.get(part, "diffusion_pytorch_model")
        weights = getattr(pipe, part).state_dict()
        tensors = {name: tensor.bfloat16().contiguous() for name, tensor in weights.items()}
        save_file(tensors, folder / part / f"{names}.safetensors", metadata={"format": "pt"})
    # Where it was saved is another place each time.
    index = folder / "modular_model_index.json"
    keys = json.loads(index.read_text())
    for value in keys.values():
        if isinstance(value, list):
            value[2]["pretrained_model_name_or_path"] = "anima"
    index.write_text(json.dumps(keys, indent=2) + "\n")


def original_name(name):
    for theirs, original in [
        ("patch_embed.proj", "x_embedder.proj.1"), ("time_embed.t_embedder", "t_embedder.1"),
        ("time_embed.norm", "t_embedding_norm"), ("norm_out.linear_", "final_layer.adaln_modulation."),
        ("proj_out", "final_layer.linear"), ("transformer_blocks", "blocks"),
        ("norm1.linear_", "adaln_modulation_self_attn."), ("norm2.linear_", "adaln_modulation_cross_attn."),
        ("norm3.linear_", "adaln_modulation_mlp."), ("attn1", "self_attn"), ("attn2", "cross_attn"), ("to_q", "q_proj"),
        ("to_k", "k_proj"), ("to_v", "v_proj"), ("to_out.0", "output_proj"), ("norm_q", "q_norm"), ("norm_k", "k_norm"),
        ("ff.net.0.proj", "mlp.layer1"), ("ff.net.2", "mlp.layer2"),
    ]:
        name = name.replace(theirs, original)
    return name


def originals(pipe):
    """Names in the files that ComfyUI's users have, which diffusers' readers take for the same weights; those of the
    transformer follow a prefix."""
    names = {"transformer": {original_name(key): [key] for key in pipe.transformer.state_dict()},
             "vae": {original_autoencoder_name(key, False): [key] for key in pipe.vae.state_dict()}}
    readers = {"transformer": (convert_cosmos_transformer_checkpoint_to_diffusers, "net."),
               "vae": (convert_wan_vae_to_diffusers, "")}
    for part, (read, prefix) in readers.items():
        weights = getattr(pipe, part).state_dict()
        found = read({f"{prefix}{original}": weights[key] for original, [key] in names[part].items()})
        if part == "vae":
            # It presumes four stages, the first of which halves no frames; the other names are shared.
            known = [key for key in found if "upsamplers" not in key and "up_blocks" not in key]
        else:
            known = list(found)
            assert found.keys() == weights.keys(), found.keys() ^ weights.keys()
        assert known and all(torch.equal(found[key], weights[key]) for key in known), part
    inside = {f"llm_adapter.{key}": [f"text_conditioner.{key}"] for key in pipe.text_conditioner.state_dict()}
    names["transformer"] |= inside
    (GOLDEN / "original.json").write_text(json.dumps(names, indent=1) + "\n")


def conditioned(pipe, states, ids):
    """The text of a batch, padded as the pipeline pads it."""
    def padded(rows):
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    ones = [torch.ones(len(row)) for row in states], [torch.ones(len(row)) for row in ids]
    return pipe.text_conditioner(
        source_hidden_states=padded(states), target_input_ids=padded(ids), source_attention_mask=padded(ones[0]),
        target_attention_mask=padded(ones[1]))


def texts(pipe, expected):
    rows = []
    for number, prompt in enumerate(PROMPTS):
        own = pipe.tokenizer(prompt or END).input_ids
        t5 = pipe.t5_tokenizer(prompt).input_ids
        encoded = AnimaTextEncoderStep.encode_prompt(
            pipe, prompt, prepare_unconditional_embeds=False, device=torch.device("cpu"), dtype=torch.float32)
        states, ids = encoded["qwen_prompt_embeds"][0], encoded["t5_input_ids"][0]
        assert len(states) == min(len(own), 512) and 0.1 < states.std() < 100, (prompt, states.std())
        rows.append(dict(text=prompt, tokens=own, t5=t5, t5_read=ids.tolist()))
        expected[f"text.{number}"] = states
        # Behind the text it is zero.
        expected[f"conditioned.{number}"] = conditioned(pipe, [states], [ids])[0][:len(ids)]
    assert len(rows[-1]["tokens"]) > 512 and len(rows[-1]["t5"]) > 512
    (GOLDEN / "prompts.json").write_text(json.dumps(rows) + "\n")


def pictures(vae, expected):
    mean, deviation = (torch.tensor(numbers).view(1, -1, 1, 1, 1) for numbers in (
        vae.config.latents_mean, vae.config.latents_std))
    for label, (rows, columns) in {"low": (6, 4), "wide": (5, 9)}.items():
        pixels = torch.rand(1, 3, 1, rows * PIXELS, columns * PIXELS) * 2 - 1
        noise = torch.randn(1, CHANNELS, 1, rows, columns)
        key = f"vae.{label}"
        expected[f"{key}.pixels"] = pixels[:, :, 0]
        expected[f"{key}.latents"] = ((vae.encode(pixels).latent_dist.mode() - mean) / deviation)[0, :, 0]
        expected[f"{key}.noise"] = noise[0, :, 0]
        expected[f"{key}.decoded"] = vae.decode(noise * deviation + mean).sample[:, :, 0]
        for part in ("latents", "decoded"):
            assert 0.02 < expected[f"{key}.{part}"].std() < 100, (key, part)
        assert (expected[f"{key}.decoded"].abs() < 1).float().mean() > 0.5, key


def predicted(model, latents, levels, text):
    mask = torch.zeros(1, 1, *latents.shape[-2:])
    return model(latents, levels, text, padding_mask=mask, return_dict=False)[0]


def velocities(pipe, expected):
    """Two sizes; texts of different lengths, the longer one of T5 is the shorter one of the language model."""
    for label, (rows, columns), levels in (("low", (6, 8), (0.93, 0.21)), ("wide", (8, 22), (1.0, 0.04))):
        latents = torch.randn(2, CHANNELS, 1, rows, columns)
        levels = torch.tensor(levels)
        states = [torch.randn(length, SOURCE) for length in (7, 12)]
        ids = [torch.randint(0, 300, (length,)) for length in (15, 4)]
        made = predicted(pipe.transformer, latents, levels, conditioned(pipe, states, ids))
        expected |= {f"velocity.{label}.latents": latents, f"velocity.{label}.levels": levels,
                     f"velocity.{label}.made": made}
        for number in (0, 1):
            expected |= {f"velocity.{label}.text.{number}": states[number],
                         f"velocity.{label}.t5.{number}": ids[number].float()}
        assert 0.02 < made.std() < 100, (label, made.std())


RUNS = [
    # name, guidance scale, shift, steps, prompt, negative prompt
    ("plain", 1.0, 3.0, 4, 0, None),
    ("guided", 4.0, 2.0, 5, 3, 0),
    ("without-negative", 3.0, 3.0, 3, 4, 1),
    ("one-step", 1.0, 3.0, 1, 8, None),
]


def runs(pipe, expected):
    made = []
    for seed, (name, guidance, shift, steps, prompt, negative) in enumerate(RUNS):
        pipe.update_components(
            scheduler=FlowMatchEulerDiscreteScheduler(shift=shift), guider=ClassifierFreeGuidance(guidance_scale=guidance))
        start = torch.randn(1, CHANNELS, 1, 6, 10, generator=torch.Generator().manual_seed(seed))
        result = pipe(
            prompt=PROMPTS[prompt], negative_prompt=None if negative is None else PROMPTS[negative], height=6 * PIXELS,
            width=10 * PIXELS, num_inference_steps=steps, latents=start.clone(), output="latents")
        assert 0.05 < result.std() < 50 and result.isfinite().all(), (name, result.std())
        expected |= {f"run.{name}.start": start, f"run.{name}.latents": result}
        made.append(dict(name=name, guidance=guidance, shift=shift, steps=steps, prompt=prompt, negative=negative))
    (GOLDEN / "runs.json").write_text(json.dumps(made, indent=1) + "\n")


def training(pipe):
    """The losses of five steps, and the LoRA after the last: on the transformer, and on some of the conditioner."""
    # So that its layers are named as a part of the same model.
    pipe.transformer.text_conditioner = pipe.text_conditioner
    model = adapted(pipe.transformer, TARGETS, GOLDEN / "adapter")
    given = flow((CHANNELS, 1, 6, 8))
    states = [torch.randn(length, SOURCE) for length in (9, 5)]
    ids = [torch.randint(0, 300, (length,)) for length in (6, 11)]
    made = trained(model, given, lambda noisy, sigma: predicted(model, noisy, sigma, conditioned(pipe, states, ids)))
    for number in (0, 1):
        made |= {f"text.{number}": states[number], f"t5.{number}": ids[number].float()}
    write("training", made)


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
        pictures(pipe.vae, expected)
        velocities(pipe, expected)
        runs(pipe, expected)
    write("expected", expected)
    training(pipe)


if __name__ == "__main__":
    main()
