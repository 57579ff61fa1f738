"""Loads adapters that Surefoot wrote, which it had read from golden/adapters, with PEFT: the logits must be those of the
originals, and no tensor may be missing or left over.

    python check_adapters.py GOLDEN FOLDER
"""

import json
import sys
import warnings
from pathlib import Path

import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText


def main():
    golden, written = (Path(argument) for argument in sys.argv[1:])
    folders = sorted(path for path in written.iterdir() if path.is_dir())
    for folder in folders:
        base = json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"]
        kind = AutoModelForImageTextToText if base.endswith("multimodal") else AutoModelForCausalLM
        model = kind.from_pretrained(golden / "models" / base, dtype=torch.float32)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            model = PeftModel.from_pretrained(model, folder).eval()
        told = [str(warning.message) for warning in told]
        told = [text for text in told if "adapter keys" in text or "no parameter was matched" in text]
        expected = load_file(golden / "adapters" / folder.name / "expected.safetensors")
        with torch.no_grad():
            logits = model(expected["tokens"][0]).logits
        difference = ((logits - expected["logits"]).abs().max() / expected["logits"].abs().max()).item()
        print(f"{folder.name}: {difference:.1e}", *told)
        if told or not difference < 1e-5:
            sys.exit(f"PEFT reads {folder.name} as another adapter")
    if not folders:
        sys.exit("no adapters were written")


main()
