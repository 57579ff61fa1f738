"""Writes golden/preferences: what TRL makes of preferences in five steps, for each loss.

`model` is a tiny random Llama with the tokenizer of golden/layouts, `adapter` a LoRA of PEFT on it with random weights.
`runs.json` has of each run its records and settings, and what TRL's trainer logs: of each step the loss and what it
measures, and the same of held-out records afterwards.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import torch
from datasets import Dataset
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer
from trl.experimental.cpo import CPOConfig, CPOTrainer
from trl.experimental.orpo import ORPOConfig, ORPOTrainer

# A folder as the first argument takes the place of `golden`.
GOLDEN = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "golden")
FOLDER = GOLDEN / "preferences"
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LEARNING_RATE = 5e-3
STEPS = 5
WORDS = "the river a stone red sea over under bed and one two blue green say why because so".split()


def said(seed, count):
    return " ".join(WORDS[(seed * 7 + 5 * i + i * i * seed) % len(WORDS)] for i in range(count))


def pairs(first, count):
    return [{
        "prompt": said(n, 3 + n % 4),
        "chosen": " " + said(n + 3, 2 + n % 5),
        "rejected": " " + said(n + 8, 4 + (n * 3) % 4),
    } for n in range(first, first + count)]


def turn(role, text):
    return {"role": role, "content": text}


def chats(first, count):
    return [{
        "chosen": [turn("user", said(n, 3 + n % 3)), turn("assistant", said(n + 2, 3 + n % 5))],
        "rejected": [turn("user", said(n, 3 + n % 3)), turn("assistant", said(n + 9, 6 - n % 3))],
    } for n in range(first, first + count)]


def judged(first, count):
    return [{
        "prompt": said(n, 3 + n % 4), "completion": " " + said(n + 4, 3 + n % 4), "label": n % 3 != 0,
    } for n in range(first, first + count)]


PAIRS, CHATS, JUDGED = (pairs(0, 4), pairs(20, 3)), (chats(0, 4), chats(30, 3)), (judged(0, 6), judged(40, 3))
# Records to learn and to measure, settings, samples in a batch, and what differs from the others.
RUNS = {
    "dpo": (PAIRS, dict(loss_type="sigmoid"), 4, {}),
    "dpo of chats": (CHATS, dict(loss_type="sigmoid", beta=0.3), 4, {}),
    "dpo in two batches a step": (PAIRS, dict(loss_type="sigmoid"), 2, dict(accumulate=2)),
    "dpo, truncated": (PAIRS, dict(loss_type="sigmoid"), 4, dict(max_length=26)),
    "dpo with an adapter": (CHATS, dict(loss_type="sigmoid"), 4, dict(adapter=True)),
    "hinge": (PAIRS, dict(loss_type="hinge", beta=0.02), 4, {}),
    "ipo": (PAIRS, dict(loss_type="ipo", beta=0.2), 4, {}),
    "robust": (PAIRS, dict(loss_type="robust", label_smoothing=0.2), 4, {}),
    "orpo": (PAIRS, dict(loss_type="orpo", beta=0.3), 4, {}),
    "orpo of chats": (CHATS, dict(loss_type="orpo"), 4, {}),
    "simpo": (PAIRS, dict(loss_type="simpo", beta=2.0, simpo_gamma=0.7, label_smoothing=0.1), 4, {}),
    "simpo with cross-entropy": (CHATS, dict(loss_type="simpo", beta=2.5, cpo_alpha=0.5), 4, {}),
    "kto": (JUDGED, dict(loss_type="kto", desirable_weight=1.5, undesirable_weight=0.75), 3, {}),
    "kto of pairs": (CHATS, dict(loss_type="kto", beta=0.5), 4, {}),
}
LOGGED = ("loss", "grad_norm", "rewards/", "logps/", "kl", "nll_loss", "log_odds")


def logged(entry, settings):
    # CPO's trainer logs a cross-entropy of 0 where it has no weight.
    left_out = "nll_loss" if settings.get("cpo_alpha") == 0.0 else "epoch"
    return {key: value for key, value in entry.items() if key.startswith(LOGGED) and key != left_out}


def model(adapter):
    base = AutoModelForCausalLM.from_pretrained(FOLDER / "model", dtype=torch.float32)
    return PeftModel.from_pretrained(base, FOLDER / "adapter", is_trainable=True) if adapter else base


def trained(name, tokenizer):
    (records, held_out), settings, batch, more = RUNS[name]
    settings = dict(settings)
    loss = settings["loss_type"]
    config, trainer = {
        "orpo": (ORPOConfig, ORPOTrainer), "simpo": (CPOConfig, CPOTrainer), "kto": (KTOConfig, KTOTrainer),
    }.get(loss, (DPOConfig, DPOTrainer))
    if loss == "orpo":
        del settings["loss_type"]
    if loss == "simpo":
        settings.setdefault("cpo_alpha", 0.0)
    with tempfile.TemporaryDirectory() as output:
        arguments = config(
            output_dir=output, max_steps=STEPS, per_device_train_batch_size=batch,
            per_device_eval_batch_size=3, gradient_accumulation_steps=more.get("accumulate", 1),
            learning_rate=LEARNING_RATE, lr_scheduler_type="constant", max_grad_norm=0.0, logging_steps=1, bf16=False,
            gradient_checkpointing=False, report_to="none", save_strategy="no", use_cpu=True, disable_tqdm=True,
            max_length=more.get("max_length", 128), **settings)
        run = trainer(
            model=model(more.get("adapter")), args=arguments, processing_class=tokenizer,
            train_dataset=Dataset.from_list(records), eval_dataset=Dataset.from_list(held_out))
        # As the trainer computes it, before it is rounded for people.
        losses = []
        compute = run.compute_loss
        run.compute_loss = lambda *a, **k: (losses.append(compute(*a, **k)), losses[-1])[1]
        run.train()
        seen = [float(value) for value in losses]
        steps = [entry for entry in run.state.log_history if "loss" in entry]
        measured = run.evaluate()
    each = more.get("accumulate", 1)
    log = []
    for index, entry in enumerate(steps):
        part = seen[index * each:(index + 1) * each]
        log.append({**logged(entry, settings), "loss": sum(part) / len(part)})
    plain = {key.removeprefix("eval_"): value for key, value in measured.items()}
    return log, logged(plain, settings)


def main():
    shutil.rmtree(FOLDER, ignore_errors=True)
    torch.manual_seed(7)
    shape = LlamaConfig(
        vocab_size=400, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, initializer_range=0.2, bos_token_id=0, eos_token_id=3,
        tie_word_embeddings=True)
    base = LlamaForCausalLM(shape)
    base.save_pretrained(FOLDER / "model")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(Path(__file__).parent / "golden" / "layouts" / "tokenizer.json"), eos_token="<|im_end|>", bos_token="<s>",
        pad_token="<|im_end|>", chat_template=CHATML)
    adapted = get_peft_model(base, LoraConfig(
        task_type="CAUSAL_LM", init_lora_weights=False, r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "up_proj"]))
    adapted.peft_config["default"].base_model_name_or_path = "model"
    adapted.save_pretrained(FOLDER / "adapter")
    (FOLDER / "adapter" / "README.md").unlink(missing_ok=True)
    runs = {}
    for name, ((records, held_out), settings, batch, more) in RUNS.items():
        log, measured = trained(name, tokenizer)
        runs[name] = {
            "records": records, "held_out": held_out, "preference": settings, "batch": batch, **more,
            "log": log, "eval": measured,
        }
        print(name, [round(step["loss"], 5) for step in log], measured, flush=True)
    about = {"template": CHATML, "learning_rate": LEARNING_RATE, "runs": runs}
    (FOLDER / "runs.json").write_text(json.dumps(about, indent=1) + "\n")


main()
