"""Writes golden/flux2/edit.json, edit.safetensors and kinds/edit: control pictures beside what golden/flux2 has, which must be
there, as diffusers and PEFT take them.

`edit.json` has of each picture its sizes and checksums, as it is encoded at its own size and at a smaller area, and the runs;
`edit.safetensors` pictures, latents, velocities and runs; `kinds/edit` five steps of a LoRA.
"""

import json
import shutil

import flux2
import numpy
import torch
from diffusers import Flux2KleinPipeline
from flux2 import CHANNELS, GOLDEN, PIXELS, PROMPTS, TARGETS, WIDTH, normalised
from PIL import Image
from qwen_image_edit import crc32c
from safetensors.torch import load_file, save_file
from tiny import ROWS, adapted, after, flow_loss, steps

AREA = 40 * 40


def pictures():
    """Noise over colours, of several forms."""
    made = []
    for seed, (width, height) in enumerate(((82, 66), (64, 77), (70, 71))):
        random = numpy.random.RandomState(seed)
        rows, columns = numpy.mgrid[:height, :width]
        colours = numpy.stack([columns * 255 / width, rows * 255 / height, 128 + 90 * numpy.sin(columns / 5)], -1)
        made.append(Image.fromarray(numpy.clip(
            colours + random.normal(0, 40, (height, width, 3)), 0, 255).astype(numpy.uint8)))
    return made


def clean(pipe, image):
    width, height = (side // PIXELS * PIXELS for side in image.size)
    return pipe.image_processor.preprocess(image, height=height, width=width, resize_mode="crop")


def encoded(pipe, images, expected):
    rows = []
    for number, image in enumerate(images):
        whole, small = clean(pipe, image), clean(pipe, pipe.image_processor._resize_to_target_area(image, AREA))
        latents = normalised(pipe.vae.encode(whole).latent_dist.mode(), pipe.vae)
        assert torch.allclose(latents, pipe._encode_vae_image(whole, None), atol=1e-6)
        expected |= {f"picture.{number}": torch.from_numpy(numpy.array(image)), f"control.{number}": latents[0]}
        rows.append([dict(size=[made.shape[3], made.shape[2]], clean=crc32c(made.contiguous().numpy().tobytes()))
                     for made in (whole, small)])
    return rows


def velocity(model, latents, levels, states, controls):
    """As the pipeline asks for it; each row has the same sizes."""
    parts = [Flux2KleinPipeline._pack_latents(part) for part in (latents, *controls)]
    ids = [Flux2KleinPipeline._prepare_latent_ids(latents)]
    if controls:
        ids.append(Flux2KleinPipeline._prepare_image_ids([part[:1] for part in controls]).expand(len(latents), -1, -1))
    made = model(
        hidden_states=torch.cat(parts, 1), timestep=levels, encoder_hidden_states=states,
        txt_ids=Flux2KleinPipeline._prepare_text_ids(states), img_ids=torch.cat(ids, 1), return_dict=False)[0]
    return made[:, :parts[0].shape[1]].permute(0, 2, 1).reshape(latents.shape)


def velocities(model, expected):
    for label, (rows, columns), sizes, length, levels in (
        ("one", (3, 5), [(4, 3)], 7, (0.93, 0.21)), ("two", (2, 4), [(3, 2), (1, 9)], 12, (1.0, 0.004)),
    ):
        latents, states = torch.randn(2, CHANNELS, rows, columns), torch.randn(2, length, WIDTH)
        controls = [torch.randn(2, CHANNELS, *size) for size in sizes]
        levels = torch.tensor(levels)
        made = velocity(model, latents, levels, states, controls)
        assert 0.02 < made.std() < 100, made.std()
        assert (made - velocity(model, latents, levels, states, [])).abs().max() > 0.01
        assert (made - velocity(model, latents, levels, states, controls[::-1])).abs().max() > 0.001 or len(sizes) == 1
        key = f"velocity.{label}"
        expected |= {f"{key}.latents": latents.unsqueeze(2), f"{key}.levels": levels, f"{key}.made": made.unsqueeze(2),
                     f"{key}.text": states}
        expected |= {f"{key}.control.{number}": part for number, part in enumerate(controls)}


RUNS = [
    # name, guidance scale, steps, prompt, pictures, size in latents; the first has that of its picture
    ("one", 1.0, 3, 0, [0], None), ("guided", 4.0, 2, 3, [2, 1], (3, 5)),
]


def runs(pipe, images, expected):
    made = []
    for seed, (name, guidance, count, prompt, which, size) in enumerate(RUNS):
        chosen = [images[index] for index in which]
        rows, columns = size or (chosen[0].height // PIXELS, chosen[0].width // PIXELS)
        start = torch.randn(1, CHANNELS, rows, columns, generator=torch.Generator().manual_seed(seed))
        sides = dict(height=rows * PIXELS, width=columns * PIXELS) if size else {}
        result = pipe(
            image=chosen, prompt=PROMPTS[prompt], num_inference_steps=count, guidance_scale=guidance,
            latents=start.clone(), output_type="latent", **sides).images
        result = normalised(result, pipe.vae)
        assert result.shape == start.shape and 0.05 < result.std() < 50, (name, result.shape, result.std())
        expected |= {f"run.{name}.start": start.unsqueeze(2), f"run.{name}.latents": result.unsqueeze(2)}
        made.append(dict(name=name, guidance=guidance, steps=count, prompt=PROMPTS[prompt], pictures=which))
    return made


def training(model):
    """Five steps on the batches of `training.safetensors`, with two control pictures."""
    given, folder = load_file(GOLDEN / "training.safetensors"), GOLDEN / "kinds" / "edit"
    shutil.rmtree(folder, ignore_errors=True)
    controls = [torch.randn(ROWS, CHANNELS, *size) for size in ((3, 2), (2, 4))]
    model = adapted(model, TARGETS, folder)
    loss = flow_loss(given, lambda noisy, sigma: velocity(
        model, noisy.squeeze(2), sigma, given["text"], controls).unsqueeze(2))
    made = {"losses": steps(model, loss), **after(model)}
    made |= {f"control.{number}": part for number, part in enumerate(controls)}
    save_file({name: tensor.contiguous() for name, tensor in made.items()}, folder / "steps.safetensors")


def main():
    pipe, expected = Flux2KleinPipeline.from_pretrained(GOLDEN / "model", torch_dtype=torch.float32), {}
    pipe.set_progress_bar_config(disable=True)
    torch.manual_seed(2)
    images = pictures()
    with torch.no_grad():
        rows = encoded(pipe, images, expected)
        velocities(pipe.transformer, expected)
        told = runs(pipe, images, expected)
    (GOLDEN / "edit.json").write_text(json.dumps(dict(area=AREA, pictures=rows, runs=told)) + "\n")
    save_file({name: tensor.contiguous() for name, tensor in expected.items()}, GOLDEN / "edit.safetensors")
    training(pipe.transformer)


if __name__ == "__main__":
    main()
