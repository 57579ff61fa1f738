//! Data: samples, data sets, the processes that load them, and files of settings.

use super::{BASE, Entry};
use crate::explain::Confidence::{Low, Medium};
use crate::explain::Severity::Warning;

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        id: "dataloader-shared-mapping",
        confidence: Medium,
        patterns: &[r"(?i)Couldn't open shared (?:file mapping|event)"],
        covers: &["paging-file-too-small", "dataloader-worker-died"],
        cause: "Windows gave the data loader's processes no shared memory: the paging file is too small for what they ask (error code 1455), or the process at the other end has already ended (code 2). It is memory of the host, not of the GPU.",
        fix: &[
            "num_workers=0 (kohya: max_data_loader_n_workers 0), or fewer",
            "a larger paging file",
        ],
        source: "https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/MapAllocator.cpp",
        ..BASE
    },
    Entry {
        id: "main-guard-missing",
        patterns: &[
            r"(?i)attempt has been made to start a new process before the",
            r"current process has finished its bootstrapping phase",
        ],
        covers: &["pickle-cut-short", "vllm-engine-failed"],
        cause: "Child processes (data loaders, compile workers) import the script anew where they are not forked (Windows, spawn; Python 3.14 also on Linux), and the script starts its work without the guard `if __name__ == \"__main__\":`. It is an error of the script, not of the GPU.",
        fix: &[
            "put what the script does under `if __name__ == \"__main__\":`",
            "or num_workers=0 (and num_proc=1 for datasets), so that there are no child processes",
        ],
        source: "https://docs.python.org/3/library/multiprocessing.html#the-spawn-and-forkserver-start-methods",
        ..BASE
    },
    Entry {
        id: "worker-not-picklable",
        confidence: Medium,
        patterns: &[
            r"Can't (?:pickle|get) (?:local object|attribute) '",
            r"PicklingError: Can't pickle",
            r"TypeError: cannot pickle '",
        ],
        covers: &["pickle-cut-short"],
        cause: "What a child process needs (a data set, a function, a model) is sent to it in pickled form where it is not forked (Windows, spawn; Python 3.14 also on Linux), and functions within functions, lambdas, open files, modules and the like cannot be pickled. An EOFError beside it is that child's. It has nothing to do with the GPU.",
        fix: &[
            "num_workers=0 (kohya: max_data_loader_n_workers 0; datasets: num_proc=None)",
            "or define the function or class at the top level of the module",
            "a newer version of the program, if it is not yours",
        ],
        source: "https://docs.pytorch.org/docs/stable/data.html#platform-specific-behaviors",
        ..BASE
    },
    Entry {
        id: "dataloader-timeout",
        confidence: Medium,
        patterns: &[r"(?i)DataLoader timed out after \d+ seconds"],
        cause: "The processes that prepare data delivered no batch in the time allowed: reading is slow (a network disk, large files), or a worker hangs.",
        fix: &[
            "num_workers=0 once: it shows whether reading works, and how long it takes",
            "a longer timeout, data on a local disk",
        ],
        source: "https://docs.pytorch.org/docs/stable/data.html",
        ..BASE
    },
    Entry {
        id: "no-training-data",
        severity: Warning,
        patterns: &[
            r"(?i)num_samples should be a positive integer value, but got num_samples=0",
            r"(?i)No training items found|No (?:latent )?cache files? found|No data found\. Please verify",
            r"(?i)No valid examples|buckets? (?:is|are) empty|train(?:ing)? data ?set is empty|\bFound 0 (?:images|videos|samples|files)\b",
            r"(?i)no (?:images|data|samples|videos) (?:were |was )?found in\b|(?:data ?set|folder) .*(?:has no images|contains no images)",
        ],
        covers: &["program-not-gpu"],
        cause: "The program found nothing to train on: the path to the data is wrong, the files are not where it looks for them (kohya wants folders such as 10_name within the folder that is given), lack captions or have other endings, or a cache has to be made first. It has nothing to do with the GPU.",
        fix: &[
            "check the folder in the settings, from where the program runs (a container sees other paths), and its structure and file endings as the program's instructions have them",
            "musubi-tuner: cache latents and text encoder outputs first, with the same data set file",
            "language models: the names of the columns, and whether filters (length) leave anything",
        ],
        source: "https://github.com/kohya-ss/sd-scripts/blob/main/docs/train_README-ja.md",
        ..BASE
    },
    Entry {
        id: "samples-differ",
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"(?i)stack expects each tensor to be equal size",
            r"(?i)Trying to resize storage that is not resizable",
            r"(?i)each element in list of batch should be of equal size",
            r"(?i)batch must contain tensors, numpy arrays, numbers",
            r"(?i)Unable to create tensor, you should probably activate (?:truncation|padding)",
        ],
        cause: "The samples of a batch cannot be put together: they are of different sizes or lengths, or one is not a tensor (a sample that could not be read). It is a matter of the data or its settings, not of the GPU.",
        fix: &[
            "images: one resolution, buckets, or a batch of 1; delete caches that were made with other settings",
            "texts: padding and truncation in the tokenizer, and a collator that pads",
        ],
        source: "https://docs.pytorch.org/docs/stable/data.html#working-with-collate-fn",
        ..BASE
    },
    Entry {
        id: "image-unreadable",
        severity: Warning,
        patterns: &[
            r"UnidentifiedImageError|cannot identify image file",
            r"(?i)image file is truncated|broken data stream when reading image file",
            r"(?i)cv2\.error: .*(?:!_?s(?:rc|size)\.empty|\(-215:Assertion failed\).{0,40}empty)",
        ],
        cause: "An image of the data set cannot be read: it is damaged, incomplete, of a format that is not supported (HEIC, AVIF), or no image at all. It has nothing to do with the GPU.",
        fix: &[
            "remove or convert the file that the line or the traceback names (pictures again as PNG or JPEG)",
            "find all of them: python -c \"import sys; from PIL import Image; [Image.open(f).load() for f in sys.argv[1:]]\" <files>",
        ],
        source: "https://pillow.readthedocs.io/en/stable/reference/Image.html",
        ..BASE
    },
    Entry {
        id: "map-worker-died",
        confidence: Medium,
        patterns: &[r"(?i)One of the subprocesses has abruptly died during map operation"],
        cause: "A process that prepares a data set (datasets.map with num_proc) was ended, mostly because RAM ran out. It is not the memory of the GPU, but on an APU both are one.",
        fix: &[
            "a smaller num_proc (or none), smaller batches in map; close other programs",
            "num_proc=None shows the error itself, if it is another",
        ],
        ask: &[
            "Linux, WSL: free -h",
            "Linux: dmesg | grep -i 'killed process' | tail -n 3",
        ],
        source: "https://huggingface.co/docs/datasets/process#multiprocessing",
        ..BASE
    },
    Entry {
        id: "dataset-format",
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"DatasetGenerationError|datasets\.table\.CastError|DatasetGenerationCastError",
            r"(?i)Couldn't cast\b",
            r"(?i)No columns in the dataset match the model's forward method",
            r"ArrowInvalid: (?:JSON parse error|Could not convert|cannot mix |Parquet |Schema at index)",
            r"(?i)The features can't be aligned because",
        ],
        unless: &[r"(?i)No space left on device"],
        cause: "The data set cannot be read as it is: its rows differ in their columns or types, a file is damaged, or the columns have other names than the program expects. It has nothing to do with the GPU.",
        fix: &[
            "look at the error above this one: it names the file, column and types",
            "every line of a JSON file with the same keys, and each key with one type; the names of the columns in the settings; remove_unused_columns=False where the collator needs the others",
        ],
        source: "https://huggingface.co/docs/datasets/loading",
        ..BASE
    },
    Entry {
        id: "dataloader-worker-reports",
        last_resort: true,
        severity: Warning,
        confidence: Low,
        patterns: &[r"(?i)Caught \w+ in DataLoader worker process \d+"],
        covers: &["python-error-other"],
        cause: "A process that prepares data met an error and handed it on: the cause is in the lines below `Original Traceback`, mostly a sample or a path of the data set.",
        fix: &[
            "look at the last line of the traceback",
            "num_workers=0 shows it without the wrapping",
        ],
        ask: &["the traceback to its last line"],
        source: "https://docs.pytorch.org/docs/stable/data.html",
        ..BASE
    },
    Entry {
        id: "settings-unreadable",
        last_resort: true,
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"(?i)TomlDecodeError|tomllib\.TOMLDecodeError|toml\.decoder\.\w+Error",
            r"yaml\.(?:scanner|parser|composer|constructor|reader)\.\w+Error",
            r"JSONDecodeError: |json5?\.decoder\.\w+Error",
        ],
        cause: "A file of settings or data is not valid TOML, YAML or JSON; the message has the line. In TOML and JSON a backslash begins an escape, so that Windows paths need another notation. It has nothing to do with the GPU.",
        fix: &[
            "paths with forward slashes (C:/data), or doubled backslashes; in TOML single quotes",
            "YAML: spaces and no tabs, the same depth for one level; JSON: no comma after the last value, no comments",
            "`Expecting value: line 1 column 1` is an empty file, or a page of a server in place of an answer",
        ],
        source: "https://toml.io/en/v1.0.0",
        ..BASE
    },
    Entry {
        id: "arguments-unknown",
        last_resort: true,
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"(?i)error: the argument \S+ is not recognized|unknown (?:option|argument): [\x27\x22]?-",
            r"error: unrecognized arguments: ",
            r"error: the following arguments are required: ",
            r"error: argument \S+: (?:invalid|expected)",
            r"(?i)arguments are not used by the HfArgumentParser|either --sdpa, .*must be specified",
        ],
        cause: "The program does not know an option, or misses one: the command is for another version of it, or was cut at a line end (the continuation is `\\` in bash, `^` in cmd and a backtick in PowerShell). It has nothing to do with the GPU.",
        fix: &[
            "<program> --help lists the options of this version",
            "the whole command on one line, without quotes of a text editor",
            "--local-rank that is not recognised: start with torchrun, or read LOCAL_RANK from the environment",
        ],
        source: "https://docs.python.org/3/library/argparse.html",
        ..BASE
    },
    Entry {
        id: "text-encoding",
        last_resort: true,
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"UnicodeDecodeError: '[\w-]+' codec can't decode",
            r"UnicodeEncodeError: '[\w-]+' codec can't encode",
        ],
        cause: "A text is in another encoding than Python assumes: a caption or settings file that is not UTF-8, or a console of Windows that cannot show a character. It has nothing to do with the GPU.",
        fix: &[
            "PYTHONUTF8=1 in the environment",
            "save the file of the traceback as UTF-8, without special characters in its path",
        ],
        source: "https://docs.python.org/3/using/windows.html#utf-8-mode",
        ..BASE
    },
    Entry {
        id: "file-not-found",
        last_resort: true,
        severity: Warning,
        confidence: Low,
        patterns: &[
            r"FileNotFoundError: (?:\[(?:Errno 2|WinError [23])\]|\S)",
            r"(?i)can't open file '[^']+': \[Errno 2\]",
        ],
        cause: "A file, folder or program that is needed is not there: the line names it, unless Windows leaves it out ([WinError 2] is mostly a program that should be started: git, ffmpeg, a compiler). A relative path begins at the folder in which the program was started.",
        fix: &[
            "check the path for its spelling, and from where the program runs (in a container: the path inside of it)",
            "[WinError 2]: the traceback shows the command; install that program and put it on PATH",
        ],
        ask: &["the traceback above the line"],
        source: "https://docs.python.org/3/library/exceptions.html#FileNotFoundError",
        ..BASE
    },
    Entry {
        id: "dataset-column-too-large",
        confidence: Medium,
        patterns: &[
            r"(?i)ArrowInvalid: offset overflow while concatenating",
            r"(?i)ArrowCapacityError: array cannot contain more than",
            r"(?i)Nested data conversions not implemented for chunked array",
        ],
        covers: &["dataset-format"],
        cause: "One column of the data set is larger than Arrow can hold in one piece (2 GiB, as its offsets have 32 bits): very many rows in one file, or pictures and long lists that are written in large batches. It has nothing to do with the GPU or its memory.",
        fix: &[
            "split the file into several smaller ones in one folder",
            "smaller batches where the data set is prepared: map(…, batch_size=100, writer_batch_size=100)",
            "a newer version of datasets; the paths of pictures in place of the pictures themselves",
        ],
        source: "https://github.com/huggingface/datasets/issues/6206",
        ..BASE
    },
    Entry {
        id: "dataset-columns-of-different-length",
        patterns: &[r"(?i)Column \d+ named '?\w+'? expected length \d+ but got length \d+"],
        covers: &["dataset-format"],
        cause: "The function that prepares the data set returned columns of different lengths: where it makes more or fewer rows of a batch (packing, splitting), the old columns still have the old number.",
        fix: &[
            "map(…, batched=True, remove_columns=dataset.column_names), so that only the new columns are kept",
            "the function must return lists of one length for all columns",
        ],
        source: "https://huggingface.co/docs/datasets/about_map_batch",
        ..BASE
    },
];
