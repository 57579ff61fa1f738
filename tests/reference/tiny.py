"""What the scripts of models of pictures share: five steps of a LoRA."""

import torch
from peft import LoraConfig, get_peft_model
from peft.utils import get_peft_model_state_dict

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


def trained(model, given, velocity):
    """What is written of the steps: what they were `given`, their losses, and the LoRA after the last. `velocity` is what
    the model predicts for noisy latents and levels."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.05)
    losses = []
    for step in range(STEPS):
        latents, noise, sigma = (given[name][step] for name in ("latents", "noise", "sigma"))
        level = sigma.view(-1, 1, 1, 1, 1)
        noisy = (1.0 - level) * latents + level * noise
        loss = torch.nn.functional.mse_loss(velocity(noisy, sigma), noise - latents)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    print(losses)
    assert losses[-1] != losses[0]
    after = {f"after.{name}": tensor for name, tensor in get_peft_model_state_dict(model).items()}
    return {**given, "losses": torch.tensor(losses, dtype=torch.float64), **after}
