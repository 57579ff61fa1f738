"""Writes golden/qwen_image_edit: a tiny random Qwen-Image-Edit-2511, and what diffusers, transformers and PEFT make of it.

The files are those of `qwen_image.py`. `expected.safetensors` has pictures, `picture.N` [height, width, 3], and of each what
the tower makes of it; `pixels.json` has the sizes at which the two encoders see them, and checksums (CRC-32C) of their numbers.
`velocity.LABEL.made.2509` is the velocity without `zero_cond_t`, as in Edit-2509.

In one thing diffusers 0.42.1 is not followed: since transformers 5 it must hand on which tokens are those of pictures
(`mm_token_type_ids`), and does not, so that the language model counts them as words. They are handed on here, as the model was
trained and as other programs have it. Control pictures are encoded at an area of 64 × 64 in place of 1024 × 1024.
"""

import json
import shutil

import anima
import numpy
import qwen_image
import torch
from diffusers import QwenImageEditPlusPipeline
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit_plus as original
from PIL import Image
from qwen_image import CHANNELS, LAYERS, PIXELS, PROMPTS, TARGETS, TEXT, packed, published, unpacked
from tiny import adapted, flow, trained
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, Qwen2Tokenizer, Qwen2VLProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from z_image import save

GOLDEN = anima.GOLDEN.with_name("qwen_image_edit")
anima.GOLDEN = GOLDEN
AREA, BEFORE = 64 * 64, 64
original.VAE_IMAGE_SIZE = AREA
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]


def tokenizer(template):
    """Each word of the template is one token, as of the published tokenizer."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=900, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    words = template.replace("<|im_start|>", " \n").replace("<|im_end|>", " \n")
    bpe.train_from_iterator([words, "system", "user", "assistant", "Picture"], trainer)
    state = json.loads(bpe.to_str())["model"]
    made = Qwen2Tokenizer(vocab=state["vocab"], merges=[tuple(merge) for merge in state["merges"]])
    made.add_special_tokens({"additional_special_tokens": SPECIAL})
    return made


def pipeline():
    plain = qwen_image.pipeline()
    template = QwenImageEditPlusPipeline(
        plain.scheduler, None, None, None, None, None).prompt_template_encode
    cut = tokenizer(template)
    assert len(cut(template.split("{}")[0]).input_ids) == BEFORE
    torch.manual_seed(0)
    ids = {name: cut.convert_tokens_to_ids(f"<|{token}|>") for name, token in (
        ("image_token_id", "image_pad"), ("video_token_id", "video_pad"), ("vision_start_token_id", "vision_start"),
        ("vision_end_token_id", "vision_end"))}
    text = Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(
        text_config=dict(
            vocab_size=len(cut) + 5, hidden_size=TEXT, intermediate_size=40, num_hidden_layers=3, num_attention_heads=2,
            num_key_value_heads=1, max_position_embeddings=4096, initializer_range=0.2, tie_word_embeddings=False,
            rope_parameters=dict(rope_type="default", rope_theta=1e6, mrope_section=[1, 3, 2])),
        vision_config=dict(
            depth=3, hidden_size=16, out_hidden_size=TEXT, intermediate_size=20, num_heads=2, fullatt_block_indexes=[1],
            initializer_range=0.2),
        tie_word_embeddings=False, **ids))
    transformer = type(plain.transformer)(
        in_channels=4 * CHANNELS, out_channels=CHANNELS, num_layers=LAYERS, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=TEXT, axes_dims_rope=(4, 6, 6), zero_cond_t=True)
    # Of videos, which need torchvision, nothing is asked.
    Qwen2VLProcessor.check_argument_for_proper_class = lambda self, name, value: type(value)
    processor = Qwen2VLProcessor(
        image_processor=Qwen2VLImageProcessorPil(min_pixels=56 * 56, max_pixels=28 * 28 * 16384), tokenizer=cut)
    processor.save_pretrained = lambda folder, **_: processor.image_processor.save_pretrained(folder)
    made = QwenImageEditPlusPipeline(
        scheduler=plain.scheduler, vae=plain.vae, text_encoder=anima.randomise(text, 2), tokenizer=cut, processor=processor,
        transformer=anima.randomise(transformer, 3))
    made.set_progress_bar_config(disable=True)
    # See above.
    forward = text.forward
    text.forward = lambda input_ids, **others: forward(
        input_ids=input_ids, mm_token_type_ids=(input_ids == text.config.image_token_id).int(), **others)
    return made


def crc32c(data):
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ table[crc & 255 ^ byte]
    return f"{crc ^ 0xFFFFFFFF:08x}"


def pictures():
    """Noise over colours, of several forms; the last is larger than both encoders see it."""
    made = []
    for seed, (width, height) in enumerate(((50, 30), (19, 46), (64, 64))):
        random = numpy.random.RandomState(seed)
        rows, columns = numpy.mgrid[:height, :width]
        colours = numpy.stack([columns * 255 / width, rows * 255 / height, 128 + 90 * numpy.sin(columns / 5)], -1)
        made.append(Image.fromarray(numpy.clip(
            colours + random.normal(0, 40, (height, width, 3)), 0, 255).astype(numpy.uint8)))
    return made


def seen(pipe, images, expected):
    """What both encoders make of each picture."""
    rows = []
    for number, image in enumerate(images):
        ratio = image.width / image.height
        width, height = original.calculate_dimensions(original.CONDITION_IMAGE_SIZE, ratio)
        small = pipe.image_processor.resize(image, height, width)
        made = pipe.processor.image_processor(small, return_tensors="pt")
        pixels, grid = made["pixel_values"], made["image_grid_thw"]
        states = pipe.text_encoder.model.visual(pixels, grid_thw=grid).pooler_output
        assert 0.05 < states.std() < 100, states.std()
        size = original.calculate_dimensions(AREA, ratio)
        clean = pipe.image_processor.preprocess(image, size[1], size[0])
        latents = pipe._encode_vae_image(clean.unsqueeze(2), None)
        expected |= {f"picture.{number}": torch.from_numpy(numpy.array(image)), f"tower.{number}": states,
                     f"control.{number}": latents[0, :, 0]}
        rows.append(dict(
            size=[width, height], grid=grid[0, 1:].tolist(), pixels=crc32c(pixels.contiguous().numpy().tobytes()),
            control=size, clean=crc32c(clean.contiguous().numpy().tobytes())))
    (GOLDEN / "pixels.json").write_text(json.dumps(rows) + "\n")


PROMPTED = [(0, [0]), (1, [1]), (3, [2, 0]), (4, [0, 1, 2]), (5, [1])]


def texts(pipe, images, expected):
    rows, shown = [], pipe.processor
    for number, (prompt, which) in enumerate(PROMPTED):
        given = {}
        pipe.processor = lambda **all: given.setdefault("made", shown(**all))
        small = []
        for image in (images[index] for index in which):
            width, height = original.calculate_dimensions(original.CONDITION_IMAGE_SIZE, image.width / image.height)
            small.append(pipe.image_processor.resize(image, height, width))
        states, _ = pipe.encode_prompt(PROMPTS[prompt], small)
        tokens = given["made"]["input_ids"][0].tolist()
        assert len(tokens) - BEFORE == len(states[0]) and 0.1 < states.std() < 100, states.std()
        rows.append(dict(text=PROMPTS[prompt], pictures=which, tokens=tokens))
        expected[f"text.{number}"] = states[0]
    pipe.processor = shown
    (GOLDEN / "prompts.json").write_text(json.dumps(rows) + "\n")


def velocity(model, latents, levels, states, controls):
    """As the pipeline asks for it."""
    text = torch.nn.utils.rnn.pad_sequence(states, batch_first=True)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones(len(row), dtype=torch.bool) for row in states], batch_first=True)
    all = [latents, *controls]
    tokens = torch.cat([packed(part) for part in all], 1)
    made = model(
        hidden_states=tokens, timestep=levels, encoder_hidden_states=text, encoder_hidden_states_mask=mask,
        img_shapes=[[(1, part.shape[-2] // 2, part.shape[-1] // 2) for part in all]] * len(latents),
        return_dict=False)[0]
    rows, columns = latents.shape[-2:]
    return unpacked(made[:, :rows * columns // 4], rows, columns)


def set_zero(model, value):
    for module in model.modules():
        if hasattr(module, "zero_cond_t"):
            module.zero_cond_t = value


def velocities(model, expected):
    """Without a control picture, with one that is larger and with two."""
    for label, (rows, columns), controls, lengths, levels in (
        ("none", (6, 4), [], (5, 9), (0.3, 0.8)), ("one", (6, 10), [(8, 6)], (7, 19), (0.93, 0.21)),
        ("two", (4, 8), [(6, 4), (2, 18)], (12, 3), (1.0, 0.004)),
    ):
        latents, levels = torch.randn(2, CHANNELS, 1, rows, columns), torch.tensor(levels)
        controls = [torch.randn(2, CHANNELS, 1, *size) for size in controls]
        states = [torch.randn(length, TEXT) for length in lengths]
        expected |= {f"velocity.{label}.latents": latents, f"velocity.{label}.levels": levels}
        for ending, value in ((".2509", False), ("", True)):
            set_zero(model, value)
            made = velocity(model, latents, levels, states, controls)
            assert 0.02 < made.std() < 100, made.std()
            expected[f"velocity.{label}.made{ending}"] = made
        if controls:
            apart = (expected[f"velocity.{label}.made"] - expected[f"velocity.{label}.made.2509"]).abs().max()
            assert apart > 0.01, apart
        expected |= {f"velocity.{label}.text.{number}": text for number, text in enumerate(states)}
        expected |= {f"velocity.{label}.control.{number}": part[:, :, 0] for number, part in enumerate(controls)}


RUNS = [
    # name, guidance scale, steps, prompt, negative prompt, pictures, size in latents
    ("one", 1.0, 4, 0, None, [0], (8, 16)),
    ("guided", 4.0, 3, 3, 1, [2, 1], (8, 8)),
]


def runs(pipe, images, expected):
    made = []
    for seed, (name, guidance, steps, prompt, negative, which, (rows, columns)) in enumerate(RUNS):
        start = torch.randn(1, CHANNELS, 1, rows, columns, generator=torch.Generator().manual_seed(seed))
        result = pipe(
            image=[images[index] for index in which], prompt=PROMPTS[prompt],
            negative_prompt=None if negative is None else PROMPTS[negative], height=rows * PIXELS,
            width=columns * PIXELS, num_inference_steps=steps, true_cfg_scale=guidance, latents=packed(start),
            output_type="latent").images
        result = unpacked(result, rows, columns)
        assert 0.05 < result.std() < 50 and result.isfinite().all(), (name, result.std())
        expected |= {f"run.{name}.start": start, f"run.{name}.latents": result}
        made.append(dict(
            name=name, guidance=guidance, steps=steps, prompt=PROMPTS[prompt], pictures=which,
            negative=None if negative is None else PROMPTS[negative]))
    (GOLDEN / "runs.json").write_text(json.dumps(made, indent=1) + "\n")


def training(pipe):
    model = adapted(pipe.transformer, TARGETS, GOLDEN / "adapter")
    given = flow((CHANNELS, 1, 6, 8))
    states = [torch.randn(length, TEXT) for length in (9, 17)]
    controls = [torch.randn(2, CHANNELS, 1, *size) for size in ((4, 6), (8, 4))]
    made = trained(model, given, lambda noisy, sigma: velocity(model, noisy, sigma, states, controls))
    parts = {f"control.{number}": part[:, :, 0] for number, part in enumerate(controls)}
    anima.write("training", {**made, **parts, "text.0": states[0], "text.1": states[1]})


def main():
    shutil.rmtree(GOLDEN, ignore_errors=True)
    GOLDEN.mkdir(parents=True)
    pipe, expected = pipeline(), {}
    save(pipe, GOLDEN / "model")
    published(GOLDEN / "model" / "text_encoder")
    torch.manual_seed(1)
    images = pictures()
    with torch.no_grad():
        seen(pipe, images, expected)
        texts(pipe, images, expected)
        velocities(pipe.transformer, expected)
        runs(pipe, images, expected)
    training(pipe)
    anima.write("expected", expected)


if __name__ == "__main__":
    main()
