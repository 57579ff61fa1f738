"""Writes golden/sdxl: a tiny random SDXL, and what diffusers, transformers and PEFT make of it.

`model` is a whole folder as the pipeline's `save_pretrained` writes it, with weights in fewer bits, which are exact in
fp32, in which everything is computed. `original.json` has the names of a single checkpoint, each with those in diffusers.
`prompts.json` has the texts and their tokens, `runs.json` the sampling runs, `expected.safetensors` inputs and results,
`training.safetensors` five steps of a LoRA for noise and for velocities, and `adapter` that LoRA before the first one.
"""

import copy
import json
import re
import shutil
import sys
from pathlib import Path

import torch
from diffusers import (
    AutoencoderKL, DDPMScheduler, EulerDiscreteScheduler, StableDiffusionXLPipeline, UNet2DConditionModel,
)
from diffusers.loaders.single_file_utils import (
    convert_ldm_unet_checkpoint, convert_ldm_vae_checkpoint, convert_open_clip_checkpoint,
)
from peft import LoraConfig, get_peft_model
from peft.utils import get_peft_model_state_dict
from safetensors.torch import save_file
from tiny import after, kinds, steps
from tokenizers import pre_tokenizers
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

from z_image import original_autoencoder_name, pictures

# A folder as the first argument takes the place of `golden`.
GOLDEN = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "golden") / "sdxl"
WIDTHS, POOLED, CHANNELS, PIXELS = (32, 48), 24, 4, 4
BETAS = dict(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear")

PROMPTS = [
    "a grey cat", "", "  Two  SPACES \n and a line ", "“curly” — café, NAÏVE … İstanbul ẞ", "一只猫在草地上 「引号」 😀👩‍👩‍👧",
    "<|endoftext|> a <|startoftext|>", "wow! it's!! we'll they've don't", "a\u0301 é \u200b\ufeff\x00\x1b[m \u00a0x",
    "0123456789 " * 30, "(masterpiece:1.2), [best|worst] quality, _under_score_, C++ & C#", "ﬁ Ⅷ ½ ² ①", "x" * 200,
]


def randomise(model, seed):
    """Norms, biases and zeros would hide mistakes. All is rounded to the type in the file."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name and name.endswith("weight"):
                parameter.uniform_(0.5, 1.5, generator=generator)
            elif name.endswith("bias"):
                parameter.normal_(0.0, 0.1, generator=generator)
            elif "embedding" in name and parameter.dim() == 2 and not name.startswith(("time_", "add_")):
                parameter.normal_(0.0, 0.5, generator=generator)
            elif isinstance(model, (CLIPTextModel, CLIPTextModelWithProjection)):
                parameter.normal_(0.0, 0.2, generator=generator)
            parameter.copy_(parameter.to(torch.float8_e4m3fn).float())
    return model.eval()


def tokenizer(folder, pad):
    """Bytes, each also as the end of a word, and a few merges, as CLIP's; in the files of the published folders."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("c", "a"), ("ca", "t</w>"), ("g", "r"), ("gr", "e"), ("gre", "y</w>"), ("l", "l</w>"), ("o", "w</w>"),
              ("1", "2"), ("!", "!</w>")]
    # As in the published vocabulary, `!` is the first.
    letters.remove("!")
    letters.insert(0, "!")
    words = [*letters, *(letter + "</w>" for letter in letters), *("".join(merge) for merge in merges)]
    words += ["<|startoftext|>", "<|endoftext|>"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps({word: number for number, word in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(" ".join(merge) + "\n" for merge in merges))
    special = dict(bos_token="<|startoftext|>", eos_token="<|endoftext|>", unk_token="<|endoftext|>", pad_token=pad)
    (folder / "special_tokens_map.json").write_text(json.dumps(special))
    config = special | dict(model_max_length=77, tokenizer_class="CLIPTokenizer", do_lower_case=True,
                            add_prefix_space=False, errors="replace")
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return CLIPTokenizer.from_pretrained(folder)


def text_config(cut, width, heads, layers, activation, projection):
    return CLIPTextConfig(
        vocab_size=len(cut.get_vocab()), hidden_size=width, intermediate_size=2 * width, num_hidden_layers=layers,
        num_attention_heads=heads, max_position_embeddings=77, hidden_act=activation, projection_dim=projection,
        bos_token_id=0, eos_token_id=2, pad_token_id=1)


def scheduler(v=False, spacing="leading", offset=1):
    return EulerDiscreteScheduler(
        **BETAS, timestep_spacing=spacing, steps_offset=offset, prediction_type="v_prediction" if v else "epsilon",
        rescale_betas_zero_snr=v)


def pipeline():
    torch.manual_seed(0)
    cuts = [tokenizer(GOLDEN / "tokenizers" / str(number), pad) for number, pad in enumerate(["<|endoftext|>", "!"])]
    first = CLIPTextModel(text_config(cuts[0], WIDTHS[0], 2, 3, "quick_gelu", WIDTHS[0]))
    second = CLIPTextModelWithProjection(text_config(cuts[1], WIDTHS[1], 3, 4, "gelu", POOLED))
    vae = AutoencoderKL(
        block_out_channels=(8, 8, 16), down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3, layers_per_block=1, latent_channels=CHANNELS, norm_num_groups=4,
        scaling_factor=0.13025, force_upcast=True, sample_size=32)
    unet = UNet2DConditionModel(
        in_channels=CHANNELS, out_channels=CHANNELS, block_out_channels=(32, 32, 64), layers_per_block=2,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"), attention_head_dim=(1, 2, 4),
        transformer_layers_per_block=(1, 1, 2), cross_attention_dim=sum(WIDTHS), use_linear_projection=True,
        addition_embed_type="text_time", addition_time_embed_dim=8, projection_class_embeddings_input_dim=POOLED + 48,
        norm_num_groups=8, sample_size=16)
    made = StableDiffusionXLPipeline(
        vae=randomise(vae, 1), text_encoder=randomise(first, 2), text_encoder_2=randomise(second, 3), tokenizer=cuts[0],
        tokenizer_2=cuts[1], unet=randomise(unet, 4), scheduler=scheduler(), force_zeros_for_empty_prompt=True,
        add_watermarker=False)
    made.set_progress_bar_config(disable=True)
    return made


PARTS = {"unet": "diffusion_pytorch_model", "vae": "diffusion_pytorch_model", "text_encoder": "model",
         "text_encoder_2": "model"}


def save(pipe, folder):
    pipe.save_pretrained(folder)
    for part, stem in PARTS.items():
        # In a quarter of the room: the weights were rounded before.
        for file in (folder / part).glob("*.safetensors"):
            file.unlink()
        model = getattr(pipe, part)
        tensors = {name: tensor.to(torch.float8_e4m3fn).contiguous() for name, tensor in model.state_dict().items()
                   if not name.endswith("position_ids")}
        save_file(tensors, folder / part / f"{stem}.safetensors", metadata={"format": "pt"})
    # One tokenizer as the published folders have it, the other as transformers writes it now.
    shutil.rmtree(folder / "tokenizer_2")
    shutil.copytree(GOLDEN / "tokenizers" / "1", folder / "tokenizer_2")
    shutil.rmtree(GOLDEN / "tokenizers")


RESNET = {"norm1": "in_layers.0", "conv1": "in_layers.2", "time_emb_proj": "emb_layers.1", "norm2": "out_layers.0",
          "conv2": "out_layers.3", "conv_shortcut": "skip_connection"}


def original_unet_name(name):
    for theirs, original in {
        "conv_in.": "input_blocks.0.0.", "conv_norm_out.": "out.0.", "conv_out.": "out.2.",
        "time_embedding.linear_1.": "time_embed.0.", "time_embedding.linear_2.": "time_embed.2.",
        "add_embedding.linear_1.": "label_emb.0.0.", "add_embedding.linear_2.": "label_emb.0.2.",
        "mid_block.attentions.0.": "middle_block.1.",
    }.items():
        if name.startswith(theirs):
            return original + name.removeprefix(theirs)
    parts = name.split(".")
    if parts[0] == "mid_block":
        return ".".join([f"middle_block.{2 * int(parts[2])}", RESNET[parts[3]], parts[4]])
    stage, kind, number, rest = int(parts[1]), parts[2], int(parts[3]), parts[4:]
    down = parts[0] == "down_blocks"
    block = f"input_blocks.{3 * stage + number + 1}" if down else f"output_blocks.{3 * stage + number}"
    if kind == "resnets":
        return ".".join([block, "0", RESNET[rest[0]], rest[1]])
    if kind == "attentions":
        return ".".join([block, "1", *rest])
    return f"input_blocks.{3 * stage + 3}.0.op.{rest[1]}" if down else f"output_blocks.{3 * stage + 2}.2.conv.{rest[1]}"


def open_clip_name(name):
    for theirs, original in {
        "text_model.": "", "embeddings.token_embedding.": "token_embedding.",
        "embeddings.position_embedding.weight": "positional_embedding", "encoder.layers.": "transformer.resblocks.",
        "layer_norm1.": "ln_1.", "layer_norm2.": "ln_2.", "self_attn.out_proj.": "attn.out_proj.", "mlp.fc1.": "mlp.c_fc.",
        "mlp.fc2.": "mlp.c_proj.", "final_layer_norm.": "ln_final.", "text_projection.weight": "text_projection",
    }.items():
        name = name.replace(theirs, original)
    return re.sub(r"self_attn\.[qkv]_proj\.", "attn.in_proj_", name)


def originals(pipe):
    """Names in the checkpoints that people have, which diffusers' readers take for the same weights."""
    names, checkpoint = {}, {}
    renamed = {
        "unet": lambda name: "model.diffusion_model." + original_unet_name(name),
        "vae": lambda name: "first_stage_model." + original_autoencoder_name(name, len(pipe.vae.config.block_out_channels)),
        "text_encoder": lambda name: "conditioner.embedders.0.transformer.text_model." + name.removeprefix("text_model."),
        "text_encoder_2": lambda name: "conditioner.embedders.1.model." + open_clip_name(name),
    }
    for part, rename in renamed.items():
        names[part] = {}
        weights = getattr(pipe, part).state_dict()
        # Queries, keys, values: in this order in the stacked matrices of OpenCLIP.
        order = sorted(weights, key=lambda name: (name.endswith("k_proj.weight") or name.endswith("k_proj.bias"))
                       + 2 * ("v_proj" in name))
        for key in order:
            names[part].setdefault(rename(key), []).append(key)
        for original, keys in names[part].items():
            tensor = torch.cat([weights[key] for key in keys])
            if original.endswith("model.text_projection"):
                tensor = tensor.T.contiguous()
            if ".attn_1." in original and tensor.dim() == 2:
                tensor = tensor[:, :, None, None]
            checkpoint[original] = tensor
    unet = convert_ldm_unet_checkpoint(dict(checkpoint), dict(pipe.unet.config))
    vae = convert_ldm_vae_checkpoint(dict(checkpoint), pipe.vae.config)
    clip = convert_open_clip_checkpoint(
        pipe.text_encoder_2, dict(checkpoint), prefix="conditioner.embedders.1.model.")
    for part, found in {"unet": unet, "vae": vae, "text_encoder_2": clip}.items():
        weights = getattr(pipe, part).state_dict()
        plain = {key.removeprefix("text_model."): tensor for key, tensor in found.items()}
        for key, tensor in weights.items():
            theirs = plain[key.removeprefix("text_model.")]
            assert torch.equal(theirs.reshape(tensor.shape), tensor), (part, key)
    (GOLDEN / "original.json").write_text(json.dumps(names) + "\n")


def texts(pipe, expected):
    rows = []
    for number, prompt in enumerate(PROMPTS):
        tokens = [cut(prompt, padding="max_length", max_length=77, truncation=True).input_ids
                  for cut in (pipe.tokenizer, pipe.tokenizer_2)]
        states, _, pooled, _ = pipe.encode_prompt(prompt, do_classifier_free_guidance=False)
        assert 0.1 < states.std() < 100 and 0.1 < pooled.std() < 100, (prompt, states.std(), pooled.std())
        whole = max(len(cut(prompt).input_ids) for cut in (pipe.tokenizer, pipe.tokenizer_2))
        rows.append(dict(text=prompt, tokens=tokens, length=whole))
        expected |= {f"text.{number}": states[0], f"pooled.{number}": pooled[0]}
    assert max(row["length"] for row in rows) > 77
    (GOLDEN / "prompts.json").write_text(json.dumps(rows, indent=1) + "\n")


def predictions(model, expected):
    """Sizes that halve evenly, and one that does not; several noise levels."""
    for label, size, steps in (("even", (8, 12), (999, 21)), ("odd", (7, 10), (500, 0)), ("one", (4, 4), (310, 650))):
        given = {"latents": torch.randn(2, CHANNELS, *size), "times": torch.tensor(steps, dtype=torch.float32),
                 "text": torch.randn(2, 77, sum(WIDTHS)), "pooled": torch.randn(2, POOLED),
                 "time_ids": torch.randint(0, 2000, (2, 6)).float()}
        made = model(given["latents"], given["times"], given["text"],
                     added_cond_kwargs={"text_embeds": given["pooled"], "time_ids": given["time_ids"]}).sample
        assert 0.02 < made.std() < 100, made.std()
        expected |= {f"unet.{label}.{name}": tensor for name, tensor in (given | {"made": made}).items()}


RUNS = [
    # name, guidance scale, velocities, spacing, offset, steps, prompt, negative prompt
    ("plain", 1.0, False, "leading", 1, 5, 0, None),
    ("guided", 5.0, False, "leading", 1, 4, 3, 6),
    ("zeros", 4.0, False, "trailing", 0, 3, 6, None),
    ("velocities", 4.0, True, "trailing", 1, 6, 4, 1),
    ("even", 1.0, True, "linspace", 0, 4, 8, None),
    ("one-step", 1.0, False, "leading", 1, 1, 2, None),
]


def runs(pipe, expected):
    made = []
    for seed, (name, guidance, v, spacing, offset, steps, prompt, negative) in enumerate(RUNS):
        pipe.scheduler = scheduler(v, spacing, offset)
        start = torch.randn(1, CHANNELS, 6, 10, generator=torch.Generator().manual_seed(seed))
        result = pipe(
            PROMPTS[prompt], negative_prompt=None if negative is None else PROMPTS[negative], height=6 * PIXELS,
            width=10 * PIXELS, num_inference_steps=steps, guidance_scale=guidance, latents=start.clone(),
            output_type="latent").images
        assert 0.05 < result.std() < 50 and result.isfinite().all(), (name, result.std())
        expected |= {f"run.{name}.start": start, f"run.{name}.latents": result}
        made.append(dict(name=name, guidance=guidance, steps=steps, prompt=prompt, negative=negative,
                         scheduler=json.loads(pipe.scheduler.to_json_string())))
    (GOLDEN / "runs.json").write_text(json.dumps(made, indent=1) + "\n")


STEPS, ROWS = 5, 2


def training(pipe):
    """The losses of five steps that predict noise, and of five that predict velocities; the LoRA after the last."""
    base = copy.deepcopy(pipe.unet)
    config = LoraConfig(r=2, lora_alpha=4, target_modules=["to_q", "to_k", "to_v", "to_out.0", "ff.net.0.proj", "ff.net.2"])
    model = get_peft_model(pipe.unet, config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0.0, 0.05)
    model.save_pretrained(GOLDEN / "adapter")
    (GOLDEN / "adapter" / "README.md").unlink(missing_ok=True)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items() if "lora_" in name}
    shape = (STEPS, ROWS, CHANNELS, 6, 8)
    given = {
        "latents": torch.randn(shape), "noise": torch.randn(shape), "times": torch.randint(0, 1000, (STEPS, ROWS)),
        "text": torch.randn(ROWS, 77, sum(WIDTHS)).half().float().expand(STEPS, -1, -1, -1), "pooled": torch.randn(STEPS, ROWS, POOLED),
        "time_ids": torch.tensor([[32., 48., 0., 0., 24., 32.], [800., 600., 4., 9., 24., 32.]]).expand(STEPS, -1, -1),
    }
    given["times"][2, 0] = 999
    results = {}

    def loss_of(model, kind="epsilon"):
        noises = DDPMScheduler(**BETAS, prediction_type=kind, rescale_betas_zero_snr=kind != "epsilon")

        def loss(step):
            latents, noise, times, text, pooled, time_ids = (given[name][step] for name in given)
            noisy = noises.add_noise(latents, noise, times)
            made = model(noisy, times, text, added_cond_kwargs={"text_embeds": pooled, "time_ids": time_ids}).sample
            target = noise if kind == "epsilon" else noises.get_velocity(latents, noise, times)
            return torch.nn.functional.mse_loss(made, target)
        return loss

    for kind in ("epsilon", "v_prediction"):
        model.load_state_dict(before, strict=False)
        results[f"losses.{kind}"] = steps(model, loss_of(model, kind))
        if kind == "epsilon":
            results |= after(model)
    kinds(base, ["attn1.to_q", "attn2.to_v", "to_out.0", "ff.net.2"], GOLDEN / "kinds", loss_of)
    text_training(pipe, base, given)
    given["times"] = given["times"].float()
    given["text"] = given["text"][0].half()
    write("training", given | results)


def text_training(pipe, base, given):
    """Writes five steps of a LoRA on the UNet and on both text encoders, whose learning rate is another. The last layer of the
    first one changes nothing, and is left out."""
    with torch.random.fork_rng():
        torch.manual_seed(60)
        layers = ["self_attn.q_proj", "self_attn.v_proj", "mlp.fc2"]
        config = LoraConfig(r=2, lora_alpha=4, target_modules=["attn2.to_k"])
        unet = get_peft_model(copy.deepcopy(base), config)
        text = [get_peft_model(copy.deepcopy(encoder), LoraConfig(
            r=2, lora_alpha=4, target_modules=layers, layers_to_transform=list(range(used)), layers_pattern="layers"))
            for encoder, used in ((pipe.text_encoder, 2), (pipe.text_encoder_2, 4))]
        models = {"": unet, "text_encoder.": text[0], "text_encoder_2.": text[1]}
        with torch.no_grad():
            for model in models.values():
                for name, parameter in model.named_parameters():
                    if "lora_B" in name:
                        parameter.normal_(0.0, 0.05)

        def state():
            found = {}
            for prefix, model in models.items():
                for name, tensor in get_peft_model_state_dict(model).items():
                    own = name.removeprefix("base_model.model.").removeprefix("text_model.")
                    found[f"base_model.model.{prefix}{own}"] = tensor.clone().contiguous()
            return found

        folder = GOLDEN / "kinds" / "text"
        unet.save_pretrained(folder)
        (folder / "README.md").unlink(missing_ok=True)
        save_file(state(), folder / "adapter_model.safetensors")
        keys = json.loads((folder / "adapter_config.json").read_text())
        keys["target_modules"] = ["attn2.to_k", *layers]
        (folder / "adapter_config.json").write_text(json.dumps(keys, indent=2) + "\n")
        tokens = [cut(["a grey cat", "0123456789 red"], padding="max_length", max_length=77, truncation=True,
                      return_tensors="pt").input_ids for cut in (pipe.tokenizer, pipe.tokenizer_2)]
        noises = DDPMScheduler(**BETAS, prediction_type="epsilon")
        groups = [[parameter for parameter in model.parameters() if parameter.requires_grad] for model in models.values()]
        optimizer = torch.optim.AdamW(
            [dict(params=groups[0], lr=0.01), dict(params=groups[1] + groups[2], lr=0.004)], weight_decay=0.05)
        losses = []
        for step in range(STEPS):
            latents, noise, times, _, _, time_ids = (given[name][step] for name in given)
            outputs = [model(ids, output_hidden_states=True) for model, ids in zip(text, tokens)]
            states = torch.cat([output.hidden_states[-2] for output in outputs], dim=-1)
            told = {"text_embeds": outputs[1].text_embeds, "time_ids": time_ids}
            made = unet(noises.add_noise(latents, noise, times), times, states, added_cond_kwargs=told).sample
            loss = torch.nn.functional.mse_loss(made, noise)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(sum(groups, []), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        print("text", losses)
        results = {f"after.{name}": tensor for name, tensor in state().items()}
        results |= {"losses": torch.tensor(losses, dtype=torch.float64)}
        results |= {name: ids.float() for name, ids in zip(("tokens", "tokens_2"), tokens)}
        save_file(results, folder / "steps.safetensors")


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
        predictions(pipe.unet, expected)
        runs(pipe, expected)
    write("expected", expected)
    training(pipe)


if __name__ == "__main__":
    main()
