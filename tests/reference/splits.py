"""Which files of a data set are its splits, by Python's `datasets` 4.8.5 (`pip install datasets==4.8.5`).

    python splits.py OUT.json

Each case is a folder of empty files, with a card or without; what `datasets` makes of it is read by the tests of
`crates/trainer/src/hub/data_files.rs`.
"""

import json
import sys
import tempfile
from pathlib import Path

from datasets.data_files import DataFilesDict, get_data_patterns, sanitize_patterns
from datasets.utils.metadata import MetadataConfigs
from huggingface_hub import DatasetCard

LISTINGS = {
    "one file": ["data.jsonl"],
    "shards": ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet", "data/test-00000-of-00001.parquet", "extra/train.csv"],
    "shards of splits with names of their own": ["data/train_sft-00000-of-00001-0123456789abcdef.parquet", "data/test_sft-00000-of-00001.parquet"],
    "names": ["train.jsonl", "valid.jsonl", "test.jsonl", "notes.md"],
    "names with more in them": ["my-train-file.csv", "my_dev_file.csv", "eval 2024.csv", "latest.csv"],
    "words within words": ["training.json", "contest.json", "trainer.json", "untrain.json"],
    "capital letters": ["Train.jsonl", "TEST.jsonl"],
    "numbers": ["train1.jsonl", "train2.jsonl", "1test.jsonl"],
    "folders": ["train/a.csv", "train/b.csv", "validation/c.csv", "other/d.csv"],
    "folders with more in them": ["en-train/a.csv", "data.train.v1/b.csv", "x/test_2/c.csv", "test.csv"],
    "folders before names": ["train/test.csv", "valid.csv"],
    "folders deep": ["a/b/train/c/d.jsonl", "a/b/dev/c/e.jsonl", "a/train.jsonl"],
    "a word alone": ["train", "test"],
    "nothing that says": ["b.csv", "a.csv", "deep/c.csv", "README.md", "config.json"],
    "special folders": ["__pycache__/train.csv", "train.csv", "__x/y/a.csv"],
    "hidden": [".train.csv", ".hidden/train.csv", "test.csv"],
    "words that mean a split": ["evaluation/a.csv", "testing/b.csv", "dev/c.csv", "val/d.csv", "valid/e.csv", "training/f.csv"],
}
CARDED = {
    "patterns": (
        ["en/train-1.csv", "en/train-2.csv", "en/test.csv", "de/train.csv"],
        "- config_name: en\n  data_files:\n  - split: train\n    path: en/train-*.csv\n  - split: test\n    path: en/test.csv\n"
        "- config_name: de\n  data_files: de/*.csv\n",
    ),
    "a folder whose names tell": (["en/train.csv", "en/test.csv", "de/train/x.csv"], "- config_name: en\n  data_dir: en\n- config_name: de\n  data_dir: de\n"),
    "a folder and patterns in it": (["en/a.csv", "en/deep/b.csv", "a.csv"], "- config_name: en\n  data_dir: en\n  data_files: '*.csv'\n"),
    "stars": (["a/x/1.csv", "a/2.csv", "a/b/c/3.csv"], "- config_name: one\n  data_files: a/*.csv\n- config_name: all\n  data_files: a/**\n- config_name: below\n  data_files: a/*/*.csv\n"),
    "classes": (["p1.csv", "p2.csv", "p3.csv", "px.csv"], "- config_name: c\n  data_files: p[12].csv\n- config_name: q\n  data_files: 'p?.csv'\n"),
    "a list in its order": (["a.csv", "b.csv", "c.csv"], "- config_name: l\n  data_files: [c.csv, a.csv]\n"),
    "special folders by name": (["__x/a.csv", "b.csv"], "- config_name: s\n  data_files: __x/*.csv\n- config_name: t\n  data_files: '**/*.csv'\n"),
}


def found(root, patterns):
    files = DataFilesDict.from_patterns(patterns, base_path=str(root))
    relative = lambda path: str(Path(path).relative_to(root.resolve()))
    return {str(split): [relative(path) for path in paths] for split, paths in files.items()}


def folder(files):
    root = Path(tempfile.mkdtemp()).resolve()
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).touch()
    return root


def main(out):
    cases = []
    for name, files in LISTINGS.items():
        root = folder(files)
        cases.append({"name": name, "files": files, "splits": found(root, get_data_patterns(str(root)))})
    for name, (files, configs) in CARDED.items():
        root = folder(files)
        card = f"---\nconfigs:\n{configs}---\n"
        for config, options in MetadataConfigs.from_dataset_card_data(DatasetCard(card).data).items():
            base = root / options.get("data_dir", "")
            patterns = sanitize_patterns(options["data_files"]) if "data_files" in options else get_data_patterns(str(base))
            splits = found(base, patterns)
            inside = lambda file: str((base / file).relative_to(root))
            splits = {split: [inside(file) for file in paths] for split, paths in splits.items()}
            cases.append({"name": f"{name}: {config}", "files": files, "card": card, "subset": config, "splits": splits})
    Path(out).write_text(json.dumps(cases, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
