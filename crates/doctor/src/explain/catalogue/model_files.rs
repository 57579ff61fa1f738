//! Models and checkpoints as files: fetched from a hub, found, read and written.

use super::{BASE, Entry};
use crate::explain::Confidence::{Low, Medium};
use crate::explain::Severity::Warning;

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        id: "hub-rate-limit",
        severity: Warning,
        patterns: &[
            r"(?i)\b429 (?:Client Error|Too Many Requests)|Too Many Requests for url",
            r"(?i)We had to rate limit (?:your IP|you)|You have been rate limited",
        ],
        covers: &["hub-unreachable", "pip-download-broken"],
        cause: "The server (mostly the Hugging Face hub) answers no more for a while: too many requests came from this account or address in a short time (HTTP 429, a rate limit). Without a token the limit is lower. It has nothing to do with the GPU.",
        fix: &[
            "wait some minutes, and log in: hf auth login (HF_TOKEN)",
            "download once (hf download <name>), then name the folder, or HF_HUB_OFFLINE=1; fewer processes and workers that ask at once",
        ],
        source: "https://huggingface.co/docs/hub/rate-limits",
        ..BASE
    },
    Entry {
        id: "hub-download-broken",
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"(?i)\bCAS (?:service|client) ?error",
            r"(?i)Error while downloading from https://\S*(?:\bhf\.co|huggingface)",
            r"(?i)(?:\bhf\.co|huggingface\.co|xethub)\b.*(?:Read timed out|IncompleteRead|Connection (?:broken|reset|aborted))",
            r"(?i)Consistency check failed: file should be of size",
            r"(?i)An error occurred while downloading using .?hf_transfer",
        ],
        covers: &["hub-unreachable", "pip-download-broken"],
        cause: "A download from the Hugging Face hub broke off: the connection is slow or was interrupted, a proxy or firewall is in between, the disk is full, or the file arrived incomplete. It has nothing to do with the GPU.",
        fix: &[
            "again: hf download <name> goes on where it stopped; HF_HUB_DOWNLOAD_TIMEOUT=60 on a slow connection",
            "the message names CAS or Xet: HF_HUB_DISABLE_XET=1; hf_transfer: HF_HUB_ENABLE_HF_TRANSFER=0",
            "a wrong size: delete the file (and *.incomplete) in ~/.cache/huggingface/hub; free space on that disk",
        ],
        source: "https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables",
        ..BASE
    },
    Entry {
        id: "hf-transfer-missing",
        severity: Warning,
        patterns: &[r"(?i)Fast download using .?hf_transfer.? is enabled.*not available"],
        cause: "HF_HUB_ENABLE_HF_TRANSFER=1 asks for fast downloads, and the package for them (hf_transfer) is not installed.",
        fix: &["pip install hf_transfer, or HF_HUB_ENABLE_HF_TRANSFER=0"],
        source: "https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables",
        ..BASE
    },
    Entry {
        id: "symlinks-refused",
        severity: Warning,
        patterns: &[r"\[WinError 1314\]"],
        cause: "The program makes a symbolic link (as the cache of the Hugging Face hub does), which Windows lets only administrators do, or everybody in developer mode.",
        fix: &[
            "switch on developer mode (Settings, For developers), or run it once as administrator",
            "a newer huggingface_hub (pip install -U huggingface_hub), which copies files where links are refused; or the model in a folder: hf download <name> --local-dir <folder>",
        ],
        source: "https://huggingface.co/docs/huggingface_hub/guides/manage-cache",
        ..BASE
    },
    Entry {
        id: "hub-name-invalid",
        severity: Warning,
        confidence: Medium,
        patterns: &[r"(?i)HFValidationError|Repo id must (?:be in the form|use alphanumeric)"],
        covers: &["repository-gated"],
        cause: "The program was given a path, found no such file or folder, and took it for the name of a repository on the Hugging Face hub, where names look different. The path is wrong or incomplete, or that program cannot load a model from there. It has nothing to do with the GPU.",
        fix: &[
            "check the path that the line quotes: the folder with config.json (diffusers: model_index.json), or the file, as the program expects it; in a container: the path inside of it",
            "Windows: forward slashes, or quotes around it",
        ],
        source: "https://huggingface.co/docs/huggingface_hub/guides/download",
        ..BASE
    },
    Entry {
        id: "hub-file-missing",
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"(?i)(?:Remote|Local)?EntryNotFoundError|Entry Not Found for url",
            r"(?i)does not appear to have (?:a file|files) named",
            r"(?i)Error no file named \S+|IncompleteSnapshotError|The cached snapshot for .* is incomplete",
            r"(?i)Can't load (?:the )?(?:tokenizer|\w+ ?processor|feature extractor|config(?:uration)?|model) (?:of|for) '",
        ],
        unless: &[r"LocalEntryNotFoundError"],
        cause: "The repository or folder does not have the file that the program looks for: it is not a whole model in this format (an adapter, a GGUF, a single file for another program), the download is incomplete, or a local folder has the name of the repository and is taken in its place. It has nothing to do with the GPU.",
        fix: &[
            "compare the files with those that the line names: a folder with config.json, the tokenizer and the weights in the format of transformers or diffusers",
            "a folder of that name in the working directory: rename it; no network: hf download <name> first",
            "an adapter (LoRA) is loaded on top of its base model",
        ],
        source: "https://huggingface.co/docs/transformers/main/en/main_classes/model",
        ..BASE
    },
    Entry {
        id: "remote-code-asked",
        severity: Warning,
        patterns: &[
            r"(?i)Please pass the argument `?trust_remote_code=True",
            r"(?i)requires you to execute the \w+ file in that repo",
            r"(?i)contains custom code which must be executed",
        ],
        cause: "The model or data set brings Python code of its own, and the program runs that only if it is told to. It has nothing to do with the GPU.",
        fix: &[
            "if you trust the author: trust_remote_code=True (--trust-remote-code, trust_remote_code: true)",
            "or a newer transformers, which may know the model without its code",
        ],
        source: "https://huggingface.co/docs/transformers/main/en/models#custom-models",
        ..BASE
    },
    Entry {
        id: "dataset-script",
        severity: Warning,
        patterns: &[
            r"(?i)Dataset scripts are no longer supported",
            r"(?i)Loading a dataset cached in a LocalFileSystem is not supported",
        ],
        cause: "The installed package datasets does not fit what is loaded: from version 4 on it no longer runs the scripts of older data sets, and very old versions cannot read a cache with a newer fsspec. It has nothing to do with the GPU.",
        fix: &[
            "a script: pip install \"datasets<4\", or the data set as Parquet (its branch refs/convert/parquet)",
            "LocalFileSystem: pip install -U datasets",
        ],
        ask: &["pip list | grep -iE 'datasets|fsspec'"],
        source: "https://github.com/huggingface/datasets/releases/tag/4.0.0",
        ..BASE
    },
    Entry {
        id: "dataset-missing",
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"DatasetNotFoundError",
            r"(?i)Couldn't find (?:a dataset script|any data file) at",
        ],
        covers: &["repository-gated"],
        cause: "There is no data set of that name or at that path: the path is wrong (seen from the folder in which the program runs), the folder has no file in a known format, or the data set on the hub is private or gated. It has nothing to do with the GPU.",
        fix: &[
            "a file: load_dataset(\"json\", data_files=\"<path>\"); an absolute path",
            "a gated data set: accept its terms on its page, then hf auth login",
        ],
        source: "https://huggingface.co/docs/datasets/loading",
        ..BASE
    },
    Entry {
        id: "checkpoint-not-written",
        confidence: Medium,
        patterns: &[
            r"(?i)inline_container\.cc.{0,40}unexpected pos",
            r"PytorchStreamWriter failed",
            r"(?i)RuntimeError: write\(\): fd \d+ failed",
            r"(?i)SafetensorError: Error while serializing",
        ],
        covers: &["launcher-reports"],
        cause: "A checkpoint could not be written to its end: the disk (or a quota) is full, or the file system refuses the file (a network or cloud drive that went away, the limit of 4 GiB of FAT32). The training itself did not fail.",
        fix: &[
            "df -h <the output folder>: an optimizer's state is two to four times as large as the weights; keep fewer checkpoints (save_total_limit)",
            "an output folder on a local disk; delete the incomplete file before resuming",
        ],
        ask: &["Linux, WSL: df -hT <the output folder>"],
        source: "https://github.com/pytorch/pytorch/blob/main/caffe2/serialize/inline_container.cc",
        ..BASE
    },
    Entry {
        id: "file-still-mapped",
        patterns: &[
            r"(?i)file with a user-mapped section open|WinError 1224|code: 1224|os error 1224",
        ],
        covers: &["checkpoint-not-written"],
        cause: "Windows does not overwrite a file that a program has mapped into its memory: the model was loaded from the very file that is to be written (safetensors maps it), by this program or another.",
        fix: &[
            "another name or folder for the output",
            "end the other program that has the model loaded",
        ],
        source: "https://github.com/bmaltais/kohya_ss/issues/2466",
        ..BASE
    },
    Entry {
        id: "pickle-cut-short",
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"^\W*(?:\w+: )?EOFError: Ran out of input",
            r"(?i)pickle data was truncated",
        ],
        unless: &[
            r"(?i)Can't (?:pickle|get) (?:local )?|cannot pickle|\bPicklingError|spawn_main|freeze_support",
        ],
        cause: "A file of Python objects (a checkpoint, a cache, an optimizer's state) is empty or incomplete: writing or downloading it was interrupted. It has nothing to do with the GPU.",
        fix: &[
            "delete the file that the traceback names (a cache is made anew), or take the checkpoint before it",
            "a downloaded file: compare its size with the source's, and download it again",
        ],
        source: "https://docs.python.org/3/library/pickle.html",
        ..BASE
    },
    Entry {
        id: "tensors-share-memory",
        severity: Warning,
        patterns: &[
            r"(?i)Some tensors share memory, this will lead to duplicate|trying to be saved contained shared tensors",
            r"(?i)trying to save a non.contiguous tensor",
        ],
        cause: "safetensors does not save tensors that share their memory (tied embeddings), or that are views with gaps. The training itself did not fail, and neither did the GPU.",
        fix: &[
            "safetensors.torch.save_model(model, …) in place of save_file; tensor.contiguous() before saving",
            "transformers: save_safetensors=False in the settings of the trainer, or a newer version",
        ],
        source: "https://huggingface.co/docs/safetensors/torch_shared_tensors",
        ..BASE
    },
    Entry {
        id: "training-state-missing",
        severity: Warning,
        patterns: &[
            r"(?i)No valid checkpoint found in output directory|Can't find a valid checkpoint at",
            r"(?i)Can't find .?adapter_config\.json.? at",
        ],
        covers: &["hub-file-missing", "hub-name-invalid"],
        cause: "The folder from which the training is to go on, or the adapter to be loaded, has no checkpoint: the path is wrong, or nothing was saved there yet. It has nothing to do with the GPU.",
        fix: &[
            "name the folder of one checkpoint (checkpoint-<step>), or start without resuming",
            "an adapter: the folder with adapter_config.json and adapter_model.safetensors; a whole model is loaded without peft",
        ],
        source: "https://huggingface.co/docs/transformers/main/en/trainer",
        ..BASE
    },
    Entry {
        id: "cache-permission",
        severity: Warning,
        patterns: &[
            r"(?i)PermissionError: \[Errno 13\] [\w ]+: '[^']*(?:\.cache|huggingface|[\\/]models|[\\/]outputs?|[\\/]datasets?|checkpoints?|[\\/]logs?)\b",
        ],
        cause: "The program may not write there: the folder belongs to another user (root made it, mostly from a container or with more rights than yours), or it is mounted read-only. It is not a permission of the GPU.",
        fix: &[
            "Linux, WSL: sudo chown -R $USER <the folder of the line>; no sudo for pip or the program",
            "HF_HOME=<a folder of your own>; container: the user's number (--user $(id -u)) that owns the volume",
            "Windows: a folder outside of Program Files; end other programs that use the file",
        ],
        source: "https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables",
        ..BASE
    },
    Entry {
        id: "extension-cache-empty",
        confidence: Medium,
        patterns: &[r"torch_extensions[\\/]\S+\.(?:so|pyd): cannot open shared object"],
        covers: &["missing-library"],
        cause: "torch compiles an extension at run time and keeps it in its cache (torch_extensions), and the compiled file is not there: an earlier compilation failed, or was interrupted. The error of the compiler stands above, or in the first run.",
        fix: &[
            "delete ~/.cache/torch_extensions, run it again, and look for the first `error:`",
            "a compiler and the development part of ROCm (hipcc), if the extension has code for the GPU",
        ],
        source: "https://docs.pytorch.org/docs/stable/cpp_extension.html",
        ..BASE
    },
    Entry {
        id: "upload-or-web-refused",
        last_resort: true,
        severity: Warning,
        confidence: Low,
        patterns: &[
            r"(?i)HfHubHTTPError: [45]\d\d|HTTPError: (?:HTTP Error )?[45]\d\d\b",
            r"(?i)requests\.exceptions\.(?:ConnectionError|ConnectTimeout|SSLError|ProxyError)",
            r"\b(?:ConnectionResetError|ConnectionRefusedError|RemoteDisconnected|NameResolutionError|socket\.gaierror)\b",
            r"(?i)Temporary failure in name resolution|getaddrinfo failed|Name or service not known",
        ],
        cause: "A server refused the connection, did not answer, or its name is not known: there is no network, a proxy or firewall is in between, or it does not run. With a number: 401 and 403 are not allowed, 404 is not there, 5xx is its own fault. It has nothing to do with the GPU.",
        fix: &[
            "open the address of the line in a browser; log in (hf auth login) where it needs an account",
            "a proxy or firewall: HTTPS_PROXY, or download the file elsewhere",
        ],
        source: "https://huggingface.co/docs/huggingface_hub/guides/download",
        ..BASE
    },
    Entry {
        id: "file-system-without-mapping",
        patterns: &[
            r"No such device \(os error 19\)|\[Errno 19\] No such device: '[^']*\.(?:safetensors|gguf|bin)",
        ],
        cause: "The model's file is to be mapped into memory (mmap), and the file system on which it lies does not allow that: mergerfs, some network and cloud drives, and shared folders of virtual machines. It has nothing to do with the GPU.",
        fix: &[
            "the model in a folder on a local disk",
            "mergerfs: mount it with cache.files=partial (or auto-full), which allows mmap",
            "a program that can load without it (--disable-mmap, --no-mmap)",
        ],
        source: "https://github.com/safetensors/safetensors/issues/195",
        ..BASE
    },
    Entry {
        id: "weights-only-refused",
        severity: Warning,
        patterns: &[r"(?i)Weights only load failed|WeightsUnpickler error: Unsupported global"],
        covers: &["program-not-gpu"],
        cause: "From torch 2.6 on torch.load reads tensors alone (weights_only=True), and the file has Python objects as well (an old checkpoint, an optimizer's state, a training in Lightning). It has nothing to do with the GPU.",
        fix: &[
            "the same weights as safetensors, or a newer version of the program",
            "a file whose author you trust: torch.load(…, weights_only=False), or TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1; such a file can run code",
        ],
        source: "https://docs.pytorch.org/docs/stable/notes/serialization.html#weights-only",
        ..BASE
    },
    Entry {
        id: "disk-or-share-failed",
        last_resort: true,
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"OSError: \[Errno (?:5|30|116)\]|Stale file handle",
            r"(?i)OSError: .*Read-only file system",
        ],
        cause: "The disk or network share on which the program reads or writes failed: it is mounted read-only (also after an error of the file system), went away, or is defective.",
        fix: &[
            "Linux: dmesg | grep -iE 'I/O error|EXT4|BTRFS|nvme' | tail tells whether the disk reports errors",
            "a folder on another disk; a container: the volume without :ro",
        ],
        ask: &["Linux, WSL: mount | grep <the folder>; df -hT"],
        source: "https://man7.org/linux/man-pages/man3/errno.3.html",
        ..BASE
    },
    Entry {
        id: "model-lacks-feature",
        patterns: &[
            r"(?i)\w+ does not support (?:Flash Attention|an attention implementation|gradient checkpointing|`?device_map)",
            r"(?i)Specified `?attn_implementation=.* is not supported",
        ],
        cause: "The class of this model has no code for what the settings ask for (flash attention, sdpa, gradient checkpointing, device_map='auto') in the installed transformers or diffusers. It is a matter of the model's code, not of the GPU.",
        fix: &[
            "attention: attn_implementation=\"sdpa\", or \"eager\", which every model has",
            "a newer transformers or diffusers, where the model may have it",
            "device_map: one device ({\"\": 0}) in place of \"auto\"; or the setting switched off",
        ],
        source: "https://github.com/huggingface/transformers/issues/28005",
        ..BASE
    },
    Entry {
        id: "model-of-another-kind",
        confidence: Medium,
        patterns: &[r"(?i)Unrecognized configuration class .* for this kind of \w+"],
        covers: &["model-too-new"],
        cause: "The program loads the model with a class for another kind of model (AutoModelForCausalLM for one with pictures or an encoder), or the installed transformers does not know it in this role yet. It has nothing to do with the GPU.",
        fix: &[
            "the class that the page of the model names (for example AutoModelForImageTextToText)",
            "a newer transformers; a model that the program lists",
        ],
        source: "https://huggingface.co/docs/transformers/model_doc/auto",
        ..BASE
    },
    Entry {
        id: "hub-kernel-without-build",
        patterns: &[
            r"(?i)does not have (?:one of )?(?:the )?build variants?",
            r"(?i)No matching build variant for",
        ],
        covers: &["file-not-found"],
        cause: "The kernels package downloads ready-made kernels from the Hub, and this one has no build for the torch, the ROCm or the system of this machine: many are built for CUDA only, or for the newest releases of torch.",
        fix: &[
            "without it: attn_implementation=\"sdpa\" in place of a kernel of the Hub; USE_HUB_KERNELS=NO (transformers) or DISABLE_KERNEL_MAPPING=1 where it is only a faster way",
            "a release of torch for which the page of the kernel has a build (build/torch…-rocm…)",
        ],
        ask: &["python -c 'import torch; print(torch.__version__, torch.version.hip)'"],
        source: "https://huggingface.co/docs/kernels/env",
        ..BASE
    },
];
