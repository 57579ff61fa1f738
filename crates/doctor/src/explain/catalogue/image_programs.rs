//! ComfyUI, Forge, the web UI, SD.Next and Gradio: files, workflows, custom nodes and settings.

use super::{BASE, Entry};
use crate::explain::Confidence::{Low, Medium};
use crate::explain::Severity::{Info, Warning};

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        id: "nunchaku-cuda",
        severity: Warning,
        patterns: &[
            r"(?i)No module named '?nunchaku",
            r"(?i)\bNunchaku\w*`? import failed|custom_nodes\W+ComfyUI-nunchaku\W.*\bline \d",
            r#"(?i)File "\S*site-packages[/\\]nunchaku[/\\]"#,
        ],
        covers: &[
            "python-package-missing",
            "windows-dll-missing",
            "comfyui-node-import",
        ],
        cause: "Nunchaku (SVDQuant, int4 and fp4 models) has kernels for NVIDIA's cards alone: its package cannot be built or loaded for an AMD GPU.",
        fix: &[
            "the same model as GGUF (ComfyUI-GGUF), in fp8 or in bf16, with the loader for that",
            "remove the custom node, so that it does not try at each start",
        ],
        source: "https://github.com/nunchaku-tech/nunchaku",
        ..BASE
    },
    Entry {
        id: "vae-tiled-fallback",
        severity: Warning,
        patterns: &[
            r"(?i)Ran out of memory when regular VAE (?:de|en)coding, retrying with tiled VAE",
        ],
        covers: &["vae-out-of-memory"],
        cause: "The VAE in one piece needed more memory than the GPU had free, and ComfyUI goes on with a tiled VAE: slower, and nothing is lost, unless an error follows. On AMD the convolutions of the VAE ask MIOpen for workspaces of many gigabytes.",
        fix: &[
            "the node VAE Decode (Tiled) from the start; a smaller tile (256) where it fails as well",
            "--reserve-vram 1 or --lowvram; MIOPEN_FIND_MODE=FAST; --bf16-vae or --fp16-vae",
        ],
        source: "https://github.com/comfyanonymous/ComfyUI/issues/5759",
        ..BASE
    },
    Entry {
        id: "comfyui-nvidia-helper",
        severity: Info,
        patterns: &[
            r"(?i)comfy-aimdo failed to load: |comfy-aimdo is currently only support",
            r"(?i)You need pytorch with cu\d+ or higher to use optimized CUDA operations",
        ],
        cause: "Harmless: a helper of ComfyUI, made for NVIDIA's cards first, does not load here; ComfyUI works without it.",
        fix: &["nothing is needed; newer versions have one for AMD cards, too"],
        source: "https://github.com/Comfy-Org/ComfyUI/issues/13241",
        ..BASE
    },
    Entry {
        id: "comfyui-dynamic-memory",
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"(?i)No working comfy-aimdo install detected|DynamicVRAM (?:support disabled|failed to initialize)",
            r"(?i)\baimdo\b.*(?:ERROR|failed)|aimdo_setup_hooks|VBAR allocation fail",
        ],
        covers: &["host-out-of-memory"],
        cause: "ComfyUI's dynamic memory (comfy-aimdo, which loads parts of a model as they are needed) could not start here: its library does not fit this ROCm or GPU, or a container forbids what it does. ComfyUI goes on with its older way of loading models, unless it was asked for explicitly.",
        fix: &[
            "--disable-dynamic-vram, and --lowvram or --reserve-vram 1 where memory is short",
            "a newer ComfyUI and comfy-aimdo with ROCm 7.14 or newer, where it is meant to work on AMD GPUs; RX 5000 and older are not among those tested",
            "Linux: container: --security-opt seccomp=unconfined",
        ],
        source: "https://github.com/Comfy-Org/comfy-aimdo/issues/74",
        ..BASE
    },
    Entry {
        id: "model-lacks-part",
        severity: Warning,
        patterns: &[
            r"(?i)ERROR: (?:clip input|clip_vision input|VAE|controlnet|model) is invalid: None",
            r"(?i)checkpoint does not contain a valid (?:clip|vae|text encoder)",
            r"(?i)You do not have (?:\w+ )?(?:CLIP|T5|VAE|UNet|Qwen\w*|text encoder)\w* state dict",
            r"(?i)The CLIP input is missing or invalid",
        ],
        cause: "The file that was loaded contains no text encoder (CLIP, T5) or no VAE: many models (Flux, Wan, Qwen, GGUF files) are the diffusion model alone, or the file is of another kind than the loader expects. It has nothing to do with the GPU.",
        fix: &[
            "load what is missing from its own file: ComfyUI: the nodes Load CLIP (DualCLIPLoader) and Load VAE; Forge: choose them under VAE / Text Encoder",
            "the checkpoint that contains all parts, where there is one; for a file that should have them: download it again",
        ],
        source: "https://github.com/Comfy-Org/ComfyUI/issues/9877",
        ..BASE
    },
    Entry {
        id: "comfyui-workflow-invalid",
        severity: Warning,
        patterns: &[
            r"(?i)Failed to convert an input value to an? \w+ value",
            r"(?i)Value not in list: \w+:",
            r"(?i)prompt_outputs_failed_validation|Failed to validate prompt for output",
            r"(?i)Required input is missing: \w|Return type mismatch between linked nodes|Custom validation failed for node",
            r"(?i)missing_node_type|The custom node may not be installed|a node is missing the class_type property",
            r"(?i)Cannot execute because (?:a )?node \S+ (?:does not exist|is missing)|prompt_no_outputs",
        ],
        cause: "ComfyUI refuses the workflow before it runs: a node names a file or setting that is not here (`Value not in list`), an input is not connected, or a custom node is not installed. It has nothing to do with the GPU.",
        fix: &[
            "put the file that the line names into the folder of its kind under models (checkpoints, diffusion_models, text_encoders, vae, loras), press R, and choose it in the node anew",
            "a node that is missing: ComfyUI-Manager, Install Missing Custom Nodes, then restart; look at the start for IMPORT FAILED",
            "update ComfyUI, where a node of its own is missing",
        ],
        source: "https://github.com/Comfy-Org/ComfyUI/issues/8314",
        ..BASE
    },
    Entry {
        id: "model-not-recognised",
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"(?i)init model loader from file failed",
            r"(?i)controlnet file is invalid and does not contain",
            r"KeyError: 'general\.architecture'",
            r"(?i)Could not detect model type of|ERROR UNSUPPORTED UNET|Failed to recognize model type",
            r"(?i)Unexpected (?:text model )?architecture type in GGUF file",
            r"(?i)This gguf file is incompatible with llama\.cpp",
            r"(?i)Unable to determine model type|InvalidModelConfigException",
            r"(?i)get sd version from file failed|failed to get sd version",
            r"(?i)Load \w+: file=\S+ is not a complete model",
            r"(?i)invalid model file or (?:unsupported|unknown) (?:format|version)",
        ],
        cause: "The program does not recognise the model in the file: it (or its node for GGUF) is older than the model, the file is of another kind than the loader or folder is for (a text encoder, LoRA or VAE in the place of a diffusion model), or its download is incomplete. It has nothing to do with the GPU.",
        fix: &[
            "update the program and the custom node that loads the file (ComfyUI-GGUF)",
            "the loader for that kind: Load Diffusion Model or Unet Loader (GGUF) for the model alone, Load Checkpoint for all in one",
            "compare size and checksum with the page of the model, and download it again",
        ],
        source: "https://github.com/city96/ComfyUI-GGUF/issues",
        ..BASE
    },
    Entry {
        id: "webui-repository-gone",
        severity: Warning,
        patterns: &[
            r"(?i)repository '?\W?https://github\.com/Stability-AI/stablediffusion\S* not found",
            r"(?i)git\S* (?:clone|-C|fetch) .*Stability-AI/stablediffusion",
            r"(?i)Couldn't (?:clone|fetch|checkout) Stable Diffusion\b",
        ],
        cause: "The web UI clones a repository of Stability AI (stablediffusion) at its first start, and that repository was taken off GitHub in December 2025: git asks for a login and fails with code 128. It has nothing to do with the GPU.",
        fix: &[
            "a copy of it: set STABLE_DIFFUSION_REPO=https://github.com/w-e-w/stablediffusion.git in webui-user (.bat or .sh), then start again",
            "an updated web UI (its dev branch names the copy), or a program that is still maintained: Forge, SD.Next, ComfyUI",
        ],
        source: "https://github.com/CS1o/Stable-Diffusion-Info/issues/62",
        ..BASE
    },
    Entry {
        id: "program-repository-changed",
        severity: Warning,
        patterns: &[
            r"(?i)local changes to the following files would be overwritten by (?:merge|checkout)",
            r"(?i)detected dubious ownership in repository",
        ],
        cause: "git refuses to update the program: files of it were changed here, or its folder belongs to another user than the one who runs git. It has nothing to do with the GPU.",
        fix: &[
            "changes: git stash (or git checkout -- <file>, which discards them), then git pull",
            "ownership: git config --global --add safe.directory <folder>, or the right owner for the folder",
        ],
        source: "https://git-scm.com/docs/git-config#Documentation/git-config.txt-safedirectory",
        ..BASE
    },
    Entry {
        id: "gradio-not-reachable",
        severity: Warning,
        confidence: Medium,
        patterns: &[r"(?i)Could not create share link"],
        cause: "The page of the program (Gradio) could not be opened for use: the server for shared links or its helper program (frpc) could not be reached or was blocked by a virus scanner. The program itself works.",
        fix: &[
            "localhost: set no_proxy=localhost,127.0.0.1 (unset http_proxy); an error above this one is the cause, where there is one",
            "gradio, gradio_client, pydantic and huggingface_hub as the program's requirements pin them",
            "without a share link: open the local address; from other machines: --listen (server_name 0.0.0.0)",
        ],
        source: "https://www.gradio.app/guides/sharing-your-app",
        ..BASE
    },
    Entry {
        id: "integrated-gpu-taken",
        severity: Warning,
        confidence: Medium,
        patterns: &[r"(?i)AMD arch: gfx103[67]\b|using agent gfx103[67]\b"],
        unless: &[r"(?i)AMD arch: gfx(?:103[0-5]|9|1[12])"],
        cause: "The program computes on the small integrated GPU of the processor ({gpu}, with two compute units), which is there for the display: programs crash on it, or are slower than on the CPU. A card beside it is hidden, has a higher number, or this build has no code for it.",
        fix: &[
            "leave the card alone visible: HIP_VISIBLE_DEVICES=<index of the card>; ComfyUI: --cuda-device 1",
            "a build for the architecture of the card, not for that of the processor",
            "or the integrated GPU off in the BIOS",
        ],
        ask: &[
            "Windows: hipInfo",
            "Linux, WSL: rocminfo | grep -E 'gfx|Marketing'",
        ],
        source: "https://github.com/Comfy-Org/ComfyUI/issues/11059",
        ..BASE
    },
    Entry {
        id: "port-taken",
        severity: Warning,
        patterns: &[
            r"(?i)listen EADDRINUSE",
            r"(?i)error while attempting to bind on address",
            r"(?i)(?:Cannot find empty port in range|couldn't bind (?:HTTP )?server socket|bind(?:ing)?\S* .*(?:address already in use|Only one usage of each socket address))",
            r"\[(?:Errno (?:98|48|10048)|WinError 10048)\]",
            r"(?i)Failed to bind (?:IPv[46] )?(?:HTTP )?server to|Port \d+ is (?:already )?in use",
        ],
        covers: &["launcher-reports"],
        cause: "The port of the program's server is taken: it runs already (an earlier start that did not end), or another program uses that port. It has nothing to do with the GPU.",
        fix: &[
            "end the other one (it may also hold memory of the GPU), or choose another port (--port)",
            "Linux, WSL: ss -ltnp | grep <port> names it",
            "Windows: netstat -ano | findstr <port> names its process",
        ],
        source: "https://docs.python.org/3/library/asyncio-eventloop.html#creating-network-servers",
        ..BASE
    },
    Entry {
        id: "tokenizer-missing",
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"(?i)Can't load (?:tokenizer|feature extractor|image processor|the configuration|config|the model) (?:of|for) '",
            r"(?i)Couldn't instantiate the backend tokenizer",
            r"(?i)requires the (?:SentencePiece|protobuf|tiktoken) library",
            r"(?i)make sure sentencepiece and protobuf are installed",
        ],
        covers: &["hub-file-missing"],
        cause: "The tokenizer (or configuration) of the model could not be loaded: its files could not be downloaded from the Hugging Face hub, are missing beside the weights, or a package that reads them (sentencepiece, tiktoken, protobuf) is not installed. It has nothing to do with the GPU.",
        fix: &[
            "pip install sentencepiece tiktoken protobuf, and a transformers as new as the model",
            "a network that reaches huggingface.co at the first start (HF_ENDPOINT for a mirror); no local folder with the name of the model",
            "all files of the model's repository, and not the weights alone",
        ],
        source: "https://huggingface.co/docs/transformers/main/en/fast_tokenizers",
        ..BASE
    },
    Entry {
        id: "forge-low-memory",
        severity: Warning,
        confidence: Medium,
        patterns: &[r"(?i)\[Low (?:GPU )?VRAM Warning\]"],
        cause: "Forge finds less free memory on the GPU than it wants for this step, which becomes slow or fails. The line names the step and how much is free.",
        fix: &[
            "GPU Weights (MB) lower in the interface, so that more stays free for computing; Swap Location: Shared only if the driver supports it",
            "a smaller image or a tiled VAE; a smaller quantisation; close other programs on the GPU",
        ],
        source: "https://github.com/lllyasviel/stable-diffusion-webui-forge/discussions/981",
        ..BASE
    },
    Entry {
        id: "lora-not-applied",
        severity: Info,
        patterns: &[
            r"(?i)lora key not loaded: |(?:lora|NOT LOADED) .*keys? (?:were )?not (?:loaded|matched)",
        ],
        cause: "Parts of the LoRA have no counterpart in the model: it is for another model family, or in a format that this version does not know. The program goes on without them.",
        fix: &["a LoRA for this model; a newer version of the program"],
        source: "https://github.com/comfyanonymous/ComfyUI/discussions",
        ..BASE
    },
    Entry {
        id: "zluda-hip-path",
        patterns: &[r"KeyError: 'HIP_PATH\w*'"],
        covers: &["torch-cpu-only"],
        cause: "The program looks for the HIP SDK through the variable HIP_PATH, and it is not set: the HIP SDK is not installed, or the terminal is older than its installation.",
        fix: &[
            "install the HIP SDK of the version that the program names, then open a new terminal (or restart)",
            "echo %HIP_PATH% must show its folder, and %HIP_PATH%bin must be on PATH",
        ],
        source: "https://rocm.docs.amd.com/projects/install-on-windows/en/latest/",
        ..BASE
    },
    Entry {
        id: "model-checkpoint-none",
        severity: Warning,
        patterns: &[
            r"(?i)failed to open \S+\.gguf|NO_SUCHFILE|Load model from \S+ failed\. File doesn.t exist",
            r"(?i)Error no file named .+ found in directory",
            r"(?i)No checkpoints found\. When searching for checkpoints",
            r"(?i)failed to open GGUF file|whisper_init\w*: failed to open '",
            r"(?i)gguf_init_from_file\w*: failed to open '",
            r"(?i)FileNotFoundError: .*\.(?:safetensors|gguf|ckpt|pth|onnx|sft)\b",
            r"(?i)(?:Files for model .+|model (?:file|path)\S* \S+) not found at|(?:model|checkpoint) (?:file )?\S+\.(?:gguf|safetensors|ckpt) (?:does not exist|not found)",
        ],
        covers: &["hub-file-missing"],
        cause: "The model's file is not where the program looks for it, or may not be read by this user: it was not downloaded, is in another folder or under another name, or the path is one of another system (a container sees only the folders that are mounted into it). It has nothing to do with the GPU.",
        fix: &[
            "put the file into the folder that the line names, or give the right path (-m, --ckpt-dir, extra_model_paths.yaml)",
            "container: mount the folder (-v), and name the path inside of the container",
        ],
        source: "https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md",
        ..BASE
    },
    Entry {
        id: "comfyui-requirements",
        last_resort: true,
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"(?i)comfyui-(?:frontend-package|workflow-templates|embedded-docs) is not installed",
            r"(?i)Please install the updated requirements\.txt",
            r"(?i)Failed to initialize database\. Please ensure you have installed the latest requirements",
            r"(?i)(?:WARNING|Installed).*comfyui\S* (?:package )?(?:version )?.*is (?:lower|older) than",
        ],
        cause: "ComfyUI was updated, and the packages that it requires were not: its page, its database or its nodes can be missing. It has nothing to do with the GPU.",
        fix: &[
            "with the Python of ComfyUI: python -m pip install -r requirements.txt (portable: ..\\python_embeded\\python.exe -m pip …), then look whether torch is still the ROCm build",
        ],
        source: "https://docs.comfy.org/installation/update_comfyui",
        ..BASE
    },
    Entry {
        id: "comfyui-node-import",
        last_resort: true,
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"\(IMPORT FAILED\)",
            r"(?i)Cannot import \S.* module for custom nodes",
            r"(?i)(?:Error|Failed) (?:while )?(?:loading|importing) custom node",
        ],
        cause: "A custom node of ComfyUI could not be imported, and ComfyUI goes on without it: a Python package that it needs is not installed, it does not fit this version of ComfyUI, or it needs CUDA. The traceback above it names the reason.",
        fix: &[
            "install the node's requirements with the Python of ComfyUI: python -m pip install -r custom_nodes/<node>/requirements.txt, then look whether torch is still the ROCm build",
            "update the node and ComfyUI, or disable the node in ComfyUI-Manager",
        ],
        ask: &["the traceback above `Cannot import`"],
        source: "https://docs.comfy.org/troubleshooting/custom-node-issues",
        ..BASE
    },
    Entry {
        id: "argument-not-known",
        last_resort: true,
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"(?i)TypeError: .*(?:got an unexpected keyword argument '|missing \d+ required positional argument|takes \d+ positional arguments? but)",
            r"(?i)\w+\(\) (?:got an unexpected keyword argument '|got multiple values for|missing \d+ required keyword-only)",
        ],
        cause: "A function was called with arguments that it does not have (any more): two packages, or the program and a package or custom node, are of versions that do not belong together. It has nothing to do with the GPU.",
        fix: &[
            "the versions that the program's requirements name: pip install -r requirements.txt in its environment, then look whether torch is still the ROCm build",
            "update the program and the extension or node that the traceback names, or go back to the last version that worked",
        ],
        ask: &["the traceback; pip list"],
        source: "https://packaging.python.org/en/latest/tutorials/installing-packages/",
        ..BASE
    },
    Entry {
        id: "backend-not-started",
        last_resort: true,
        severity: Warning,
        confidence: Low,
        patterns: &[
            r"(?i)Self-Start ComfyUI-\d+ on port \d+ (?:failed|exited)",
            r"(?i)All available backends failed to load the model|No backends match the settings of the request",
        ],
        cause: "SwarmUI reports that its backend (ComfyUI) did not start or could not load the model. Why, the log of the backend says.",
        fix: &[
            "Server, Logs: choose the backend's log (ComfyUI-0) and look for the first error; most often the wrong build of torch for an AMD GPU, or a model file that is broken",
            "start ComfyUI by hand in its folder (dlbackend/comfy) to see it",
        ],
        source: "https://github.com/mcmonkeyprojects/SwarmUI/blob/master/docs/Troubleshooting.md",
        ..BASE
    },
];
