"""What the scripts of models of pictures share: five steps of a LoRA, of other adapters, and of the whole model."""

import copy

import torch
from peft import LoHaConfig, LoKrConfig, LoraConfig, get_peft_model
from peft.utils import get_peft_model_state_dict
from safetensors.torch import save_file

STEPS, ROWS = 5, 2


def adapted(model, targets, folder):
    """The model with a LoRA that changes something from the first step on, which is also in `folder`."""
    model = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules=targets))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0.0, 0.05)
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    return model


def flow(shape):
    """Latents, noise and levels of all steps."""
    shape = (STEPS, ROWS, *shape)
    return {"latents": torch.randn(shape), "noise": torch.randn(shape), "sigma": torch.rand(STEPS, ROWS)}


def flow_loss(given, velocity):
    """The loss of a step, where `velocity` is what a model predicts for noisy latents and levels."""
    def loss(step):
        latents, noise, sigma = (given[name][step] for name in ("latents", "noise", "sigma"))
        level = sigma.view(-1, 1, 1, 1, 1)
        noisy = (1.0 - level) * latents + level * noise
        return torch.nn.functional.mse_loss(velocity(noisy, sigma), noise - latents)
    return loss


def steps(model, loss, rate=0.01, decay=0.05):
    """The losses of five steps."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=rate, weight_decay=decay)
    losses = []
    for step in range(STEPS):
        value = loss(step)
        value.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(value.item())
    print(losses)
    assert losses[-1] != losses[0]
    return torch.tensor(losses, dtype=torch.float64)


def after(model):
    return {f"after.{name}": tensor.clone() for name, tensor in get_peft_model_state_dict(model).items()}


def trained(model, given, velocity):
    """What is written of the steps: what they were `given`, their losses, and the LoRA after the last. `velocity` is what
    the model predicts for noisy latents and levels."""
    losses = steps(model, flow_loss(given, velocity))
    return {**given, "losses": losses, **after(model)}


def written_for_others(pipe, model, made, folder, expected, predicted, name_of=lambda name: f"transformer.{name}"):
    """Writes the LoRA after the last step, of which `made` has the numbers, with its strength of 2 in the second matrices and
    under the names that `name_of` gives. What `predicted(model)` is with it in diffusers, which is that of PEFT, becomes
    `lora.made`."""
    with torch.no_grad():
        by_peft = predicted(model)
    model.unload()
    after = {name.removeprefix("after.base_model.model."): tensor for name, tensor in made.items() if "lora_" in name}
    lora = {name_of(name): tensor.detach() * (2.0 if "lora_B" in name else 1.0) for name, tensor in after.items()}
    save_file(lora, folder / "lora.safetensors", metadata={"format": "pt"})
    pipe.load_lora_weights(folder / "lora.safetensors")
    with torch.no_grad():
        by_diffusers = predicted(pipe.transformer)
    assert (by_diffusers - by_peft).abs().max() < 1e-5, (by_diffusers - by_peft).abs().max()
    assert (by_diffusers - expected["velocity.small.made"]).abs().max() > 0.01
    expected["lora.made"] = by_diffusers


# A LoKr whose second factor is a product, both of whose factors are products, and none of whose are.
KINDS = {
    "dora": (LoraConfig, dict(r=2, lora_alpha=4, use_dora=True)),
    "loha": (LoHaConfig, dict(r=2, alpha=3)),
    "lokr": (LoKrConfig, dict(r=2, alpha=3, decompose_factor=3)),
    "lokr-both": (LoKrConfig, dict(r=1, alpha=2, decompose_both=True)),
    "lokr-whole": (LoKrConfig, dict(r=64, alpha=32, decompose_factor=4)),
}


def kinds(base, targets, folder, loss_of, which=KINDS):
    """Writes the steps of other adapters on `base`, and those in which all of it is trained; `loss_of(model)` gives the loss
    of a step."""
    with torch.random.fork_rng():
        for number, kind in enumerate(which):
            torch.manual_seed(50 + number)
            config, settings = KINDS[kind]
            config = config(**settings, target_modules=targets, **({} if kind == "dora" else {"init_weights": False}))
            model = get_peft_model(copy.deepcopy(base), config)
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    if "lora_B" in name:
                        parameter.normal_(0.0, 0.05)
                    if "magnitude" in name:
                        parameter.mul_(torch.empty_like(parameter).uniform_(0.8, 1.2))
            model.save_pretrained(folder / kind)
            (folder / kind / "README.md").unlink(missing_ok=True)
            made = {"losses": steps(model, loss_of(model)), **after(model)}
            save_file({name: tensor.contiguous() for name, tensor in made.items()}, folder / kind / "steps.safetensors")
        whole = copy.deepcopy(base).requires_grad_(True)
        losses = steps(whole, loss_of(whole), rate=0.001, decay=0.0)
        sums = {f"after.{name}": tensor.detach().norm().reshape(1) for name, tensor in whole.named_parameters()}
        save_file({"losses": losses, **sums}, folder / "whole.safetensors")
