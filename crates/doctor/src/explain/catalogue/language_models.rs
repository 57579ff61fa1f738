//! Programs that run language models: what they say of a model's file, context, template and projector.

use super::{BASE, Entry};
use crate::explain::Confidence::{Low, Medium};
use crate::explain::Severity::{Info, Warning};

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        id: "cache-needs-flash-attention",
        severity: Warning,
        patterns: &[
            r"(?i)V cache quantization requires flash_attn|quantized V cache .*requires Flash",
        ],
        cause: "A quantised V cache works only with flash attention, and flash attention is off (or was switched off because the model or the backend does not support it).",
        fix: &[
            "-fa on (ollama: OLLAMA_FLASH_ATTENTION=1), or -ctv f16 and only the K cache quantised",
            "a model whose heads flash attention does not support: no quantised cache",
        ],
        source: "https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md",
        ..BASE
    },
    Entry {
        id: "model-other-version",
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"(?i)Unsupported model IR version: \d+",
            r"(?i)failed to load GGUF split",
            r"(?i)create_tensor: tensor '\S+' not found|error loading model: tensor '\S+' not found",
            r"(?i)error loading model: (?:\w+: )?(?:missing tensor|wrong number of tensors|tensor '\S+' has wrong shape|invalid split file)",
            r"(?i)missing tensor '\S+'|wrong number of tensors; expected \d+, got \d+",
            r"(?i)error loading model hyperparameters: |key not found in model: ",
            r"(?i)has invalid ggml type \d+|GGUFv1 is no longer supported|unsupported file version|this model uses a deprecated",
            r"(?i)There is no module or parameter named '|KeyError: '(?:\w+\.)*layers\.\d+\.\S*(?:weight|scale|bias)",
            r"(?i)Protobuf parsing failed|official released onnx opset versions|could not load model due to invalid format",
            r"(?i)tensor '\S+' not in model (?:file|metadata)",
        ],
        covers: &["model-not-loaded", "runner-crash"],
        cause: "The file of the model and the program do not fit: the program is older (or much newer) than the file or the quantisation in it, the file was converted wrongly or for a fork (an ollama blob in llama.cpp, ik_llama types), or a part of a split model is missing. It has nothing to do with the GPU.",
        fix: &[
            "update the program; then another file of the same model, converted recently (download it again, all parts of a split one)",
            "no file made for one program in another: what ollama pulls is not always readable by llama.cpp",
        ],
        source: "https://github.com/ggml-org/llama.cpp/issues/15050",
        ..BASE
    },
    Entry {
        id: "vulkan-pipeline",
        confidence: Medium,
        patterns: &[
            r"(?i)ggml_vulkan: Compute pipeline creation failed",
            r"(?i)vk::Device::createComputePipeline: Error(?:Unknown|InitializationFailed|InvalidShader\w*)",
            r"(?i)vkCreate(?:Compute|Graphics)Pipelines failed",
        ],
        covers: &["native-abort", "vulkan-buffer-limit", "runner-crash"],
        cause: "The Vulkan driver could not compile a shader of the program: a defect of this driver (or an old one) with this shader, or no memory of the host is left for it.",
        fix: &[
            "Linux: a newer Mesa (RADV); RADV in place of AMDVLK, or the other way round, to compare (VK_DRIVER_FILES)",
            "Windows: a newer Adrenalin driver",
            "llama.cpp: GGML_VK_DISABLE_COOPMAT=1, or -fa off, where the name of the shader is about them; another version of the program",
        ],
        ask: &["vulkaninfo --summary"],
        source: "https://github.com/ggml-org/llama.cpp/pull/11436",
        ..BASE
    },
    Entry {
        id: "ggml-device-name",
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"(?i)invalid device: (?:ROCm|CUDA|Vulkan|HIP)\d",
            r"(?i)Invalid device index \d+ in GGML_VK_VISIBLE_DEVICES|what\(\): +Invalid Vulkan device index",
            r"(?i)error while handling argument .(?:-ot|--override-tensor)\b.*unknown buffer type|^\W*error: unknown buffer type",
        ],
        covers: &["native-abort"],
        cause: "A device was named that this build of llama.cpp does not have: the backend of that name is not in the build or could not be loaded, no GPU was found, or the number is too high (they are counted from 0).",
        fix: &[
            "llama-server --list-devices shows the names; they follow the backend: ROCm0 with HIP, Vulkan0 with Vulkan",
            "unset GGML_VK_VISIBLE_DEVICES (and HIP_VISIBLE_DEVICES), which hide devices",
            "no device in the list: a build with -DGGML_HIP=ON or -DGGML_VULKAN=ON; `surefoot doctor` tells what hides the GPU",
        ],
        source: "https://github.com/ggml-org/llama.cpp/blob/master/docs/build.md",
        ..BASE
    },
    Entry {
        id: "ggml-rpc",
        confidence: Medium,
        patterns: &[
            r"(?i)Remote RPC server crashed or returned malformed response",
            r"(?i)RPC server version mismatch|Failed to connect to (?:RPC )?(?:server )?[\w.-]+:50052",
        ],
        covers: &["program-check-failed", "native-abort"],
        cause: "The other machine of a llama.cpp that is spread over several (rpc-server) did not answer as expected: it crashed (its own output says why, mostly memory), runs another version, or cannot be reached.",
        fix: &[
            "the same build of llama.cpp on all machines; look at the output of rpc-server there",
            "the network: rpc-server must listen on more than localhost (-H 0.0.0.0, in a trusted network only), its port open",
            "less of the model on that machine (-ts)",
        ],
        source: "https://github.com/ggml-org/llama.cpp/blob/master/tools/rpc/README.md",
        ..BASE
    },
    Entry {
        id: "chat-template",
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"(?i)Unable to generate parser for this template|Automatic parser generation failed|what\(\):\s+Failed to parse input at pos \d",
            r"(?i)failed to parse chat template|failed to apply chat template|template error: ",
            r"(?i)(?:is not callable|Unexpected filter|Unknown (?:method|filter|function|statement)|Unable to generate parser|Expected \w+|raise_exception).*at row \d+, column \d+",
            r"(?i)tools param requires --jinja|(?:default )?chat template is no longer allowed, so you must provide",
            r"(?i)jinja2?\.exceptions\.TemplateError|Conversation roles must alternate",
            r"(?i)tool choice requires --enable-auto-tool-choice",
        ],
        covers: &["native-abort", "ended-by-abort"],
        cause: "The template that turns messages (and tools) into a prompt failed: the program does not understand it, the file of the model has a wrong one or none, the order of roles is one that it refuses, or an option for it is missing. It has nothing to do with the GPU.",
        fix: &[
            "a newer version of the program, and a newer file of the model (templates are often corrected)",
            "llama.cpp: --jinja, and --chat-template-file with a corrected one; vLLM: --chat-template, and for tools --enable-auto-tool-choice --tool-call-parser <name>",
        ],
        source: "https://github.com/ggml-org/llama.cpp/blob/master/docs/function-calling.md",
        ..BASE
    },
    Entry {
        id: "context-too-small",
        severity: Warning,
        patterns: &[
            r"(?i)exceeds? (?:the )?available context size|exceed_context_size_error|exceed context window of \d",
            r"(?i)maximum context length is \d+ tokens|input (?:after truncation )?exceeds (?:the )?maximum context length",
            r"(?i)input is too large to process\. increase the physical batch size",
            r"(?i)failed to find (?:a memory slot for batch|free space in the KV cache)",
        ],
        cause: "The prompt is longer than the context that the model was loaded with (or, for embeddings, than the physical batch). It is a setting, not a defect of the GPU.",
        fix: &[
            "a larger context: llama.cpp -c (divided by the number of slots: -np 1), ollama num_ctx or OLLAMA_CONTEXT_LENGTH, vLLM --max-model-len; it needs memory: -ctk q8_0 -ctv q8_0 halves the cache",
            "embeddings and reranking: -b and -ub at least as large as the input",
            "a shorter prompt or history",
        ],
        source: "https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md",
        ..BASE
    },
    Entry {
        id: "projector-unfit",
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"(?i)failed to load multimodal model|Failed to load CLIP model|unknown projector type",
            r"(?i)image input is not supported - hint|you may need to provide the mmproj|you may be using wrong mmproj",
            r"(?i)mismatch between text model \(n_embd|Can't find mmproj file for|no projector tensors found",
        ],
        covers: &["model-not-loaded"],
        cause: "The projector for images (mmproj) is missing, belongs to another model, or is of a kind that this version of the program does not know. It has nothing to do with the GPU.",
        fix: &[
            "--mmproj with the file from the same repository as the model, or -hf, which loads both",
            "a newer version of the program, where the type of projector is unknown",
        ],
        source: "https://github.com/ggml-org/llama.cpp/blob/master/docs/multimodal.md",
        ..BASE
    },
    Entry {
        id: "model-lacks-capability",
        severity: Warning,
        patterns: &[
            r#"(?i)"[\w./:-]+" does not support (?:tools|thinking|generate|chat|vision|embeddings|completion|insert|image input)"#,
            r#"(?i)\S+:\S+"? does not support (?:tools|thinking|generate|chat|vision|embeddings|completion|insert|image input)"#,
        ],
        cause: "The model (or the template in its file) has no support for what was asked of it, such as tools, images or embeddings. It has nothing to do with the GPU.",
        fix: &[
            "a model with that capability (ollama show lists them), or a client that does not ask for it",
        ],
        source: "https://github.com/ollama/ollama/blob/main/docs/capabilities",
        ..BASE
    },
    Entry {
        id: "ollama-model-missing",
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"(?i)pull model manifest: (?:file does not exist|Get |\d)",
            r#"(?i)model ["'][\w./:-]+["'] not found(?:, try pulling it first)?"#,
            r"(?i)digest mismatch, (?:file must be downloaded again|want)|max retries exceeded: ",
            r"(?i)lookup registry\.ollama\.ai|https://registry\.ollama\.ai/\S+.*(?:timeout|refused|no such host|reset by peer|certificate)",
        ],
        unless: &[r"(?i)requires a newer version of Ollama"],
        cause: "ollama does not have the model and could not get it: the name or tag does not exist, the network, a proxy or the name server keeps it from registry.ollama.ai, or the download broke off. It has nothing to do with the GPU.",
        fix: &[
            "ollama list shows what is here, ollama.com/library which names exist; models of another user or folder (OLLAMA_MODELS) are not seen",
            "ollama pull again, which goes on where it stopped; proxy: HTTPS_PROXY for the service, not HTTP_PROXY",
        ],
        source: "https://github.com/ollama/ollama/blob/main/docs/faq.mdx",
        ..BASE
    },
    Entry {
        id: "ollama-folder-permission",
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"(?i)(?:mkdir|open|stat|remove|rename|chmod) \S*ollama\S*: (?:permission denied|read-only file system)",
            r"(?i)couldn't (?:create|read|remove) \S*\.ollama.*permission denied",
        ],
        cause: "ollama may not write to its folder: the service runs as the user `ollama`, and the folder of the models (OLLAMA_MODELS) or a folder above it belongs to somebody else or is mounted read-only.",
        fix: &[
            "Linux: chown -R ollama:ollama <folder> as root, and every folder above it must be passable for that user (a home folder mostly is not)",
            "container: the volume must belong to the user in the container",
        ],
        source: "https://github.com/ollama/ollama/blob/main/docs/faq.mdx",
        ..BASE
    },
    Entry {
        id: "ollama-other-library",
        severity: Warning,
        confidence: Medium,
        patterns: &[r"(?i)potentially incompatible library detected in PATH"],
        cause: "Another program's copy of ggml is on PATH or beside the system's libraries, and Windows may load it in place of ollama's own: crashes and missing GPUs follow. The line names the folder.",
        fix: &[
            "take that folder off PATH, or remove the ggml*.dll files in it, then restart ollama",
        ],
        source: "https://github.com/ollama/ollama/blob/main/docs/troubleshooting.mdx",
        ..BASE
    },
    Entry {
        id: "ollama-driver-old",
        patterns: &[
            r"(?i)AMD driver is too old\. Update your AMD driver",
            r"(?i)no amdhip64 runtime DLL found",
        ],
        covers: &["ollama-discovery-failed", "ollama-cpu-only"],
        cause: "The graphics driver is older than ollama's ROCm libraries need (the HIP runtime, amdhip64, comes with the driver on Windows), so that ollama uses the CPU.",
        fix: &[
            "Windows: a current Adrenalin driver, then restart",
            "its Vulkan backend, which works with older drivers: OLLAMA_VULKAN=1",
        ],
        source: "https://github.com/ollama/ollama/blob/main/docs/gpu.mdx",
        ..BASE
    },
    Entry {
        id: "lmstudio-guardrail",
        severity: Warning,
        patterns: &[
            r"(?i)Model loading was stopped due to insufficient system resources",
            r"(?i)model loading guardrails|requires approximately [\d.]+ GB of memory",
        ],
        cause: "LM Studio refuses to load the model, since by its estimate the memory does not suffice. On an APU the estimate can count too little of it.",
        fix: &[
            "a smaller model, quantisation or context; fewer layers on the GPU",
            "Settings, Hardware: Model loading guardrails to relaxed or off, if you know that it fits",
        ],
        source: "https://lmstudio.ai/docs/app",
        ..BASE
    },
    Entry {
        id: "garbage-output",
        confidence: Medium,
        severity: Warning,
        patterns: &[
            r"\?\?\?\?\?\?\?\?\?\?\?\?\?\?\?\?\?\?\?\?\?\?\?\?\?\?\?\?\?\?\?\?\?\?\?\?",
            r"(?i)logits sum to NaN",
            r"\bGGGGGGGGGGGGGGGG",
            r"(?i)embedding contains NaN or Inf|unsupported value: NaN",
            r"(?i)image contains invalid NaN values|Decode: sample=\S.* invalid=\d+ .*failed to validate",
            r"(?i)latents=.*error=.contains NaN values",
        ],
        cause: "The model computed NaN (not a number): a kernel of this backend is wrong on {gpu}, or values overflowed in 16 bits. It appears as repeated characters (GGGG), empty embeddings or black images.",
        fix: &[
            "without flash attention, and with fewer layers on the GPU: if that helps, a kernel of the backend is at fault: a newer (or the last good) version of the program, or its Vulkan backend",
            "16 bits: bf16 or fp32 in place of fp16 for the part that fails (VAE, upcast); another quantisation",
            "several GPUs: one alone tells whether copies between them are wrong (HIP_VISIBLE_DEVICES=0; iommu=pt)",
        ],
        ask: &["the version of the program, and the last one that gave good results"],
        source: "https://github.com/ggml-org/llama.cpp/issues/13285",
        ..BASE
    },
    Entry {
        id: "ollama-runner-missing",
        confidence: Medium,
        patterns: &[
            r"(?i)fork/exec \S*(?:ollama|llama)\S*: (?:no such file or directory|permission denied|exec format error)",
            r"(?i)llama-server binary not found|unable to locate ollama app",
        ],
        covers: &["runner-crash"],
        cause: "ollama cannot start the program that runs models: its files are missing (another version was unpacked over it, or the temporary folder was cleaned) or may not be executed (a folder mounted with noexec).",
        fix: &[
            "remove the old files (lib/ollama beside the program), then install ollama anew with the same version of its ROCm package",
            "Linux: a folder without noexec for its temporary files: OLLAMA_TMPDIR; older versions: restart the service after /tmp was cleaned",
        ],
        source: "https://github.com/ollama/ollama/blob/main/docs/troubleshooting.mdx",
        ..BASE
    },
    Entry {
        id: "ollama-variables",
        severity: Info,
        patterns: &[r#"(?i)user overrode visible devices"#],
        cause: "ollama notes that a variable chooses or changes the GPU (the line names it, such as HSA_OVERRIDE_GFX_VERSION or HIP_VISIBLE_DEVICES). With a wrong value no GPU is found.",
        fix: &["if the GPU is not found, remove the variable from the service and try again"],
        source: "https://github.com/ollama/ollama/blob/main/docs/gpu.mdx",
        ..BASE
    },
    Entry {
        id: "fit-not-needed",
        severity: Info,
        patterns: &[r"(?i)failed to fit params to free device memory: .*already set by user"],
        cause: "Harmless: llama.cpp would choose the number of layers on the GPU by itself, and does not, since -ngl (or -ot, -ts) is given.",
        fix: &["without -ngl it chooses what fits"],
        source: "https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md",
        ..BASE
    },
    Entry {
        id: "memory-not-locked",
        severity: Info,
        patterns: &[r"(?i)warning: failed to (?:mlock|VirtualLock) \d+-byte buffer"],
        cause: "The model could not be locked in RAM (--mlock): the limit of locked memory is lower. The program goes on; parts of the model may be swapped out.",
        fix: &["Linux: ulimit -l unlimited (container: --ulimit memlock=-1), or without --mlock"],
        source: "https://man7.org/linux/man-pages/man2/mlock.2.html",
        ..BASE
    },
    Entry {
        id: "ollama-cpu-only",
        last_resort: true,
        severity: Warning,
        confidence: Low,
        patterns: &[
            r#"(?i)msg="inference compute" id=(?:cpu|0) library=cpu\b"#,
            r"(?i)no compatible GPUs were discovered|msg=.no GPU detected",
        ],
        unless: &[r"(?i)inference compute.*library=(?:ROCm|Vulkan|CUDA|Metal)"],
        cause: "ollama found no GPU that it can use, and computes on the CPU: its ROCm libraries are not installed beside it, have no code for {gpu}, the GPU may not be opened (by its user, or in a container), or the driver is missing or too old.",
        fix: &[
            "Linux: the ROCm package of ollama beside it (ollama-linux-amd64-rocm), and the user of the service in the groups of /dev/kfd and /dev/dri",
            "Linux: container: the image ollama/ollama:rocm with --device /dev/kfd --device /dev/dri",
            "a GPU that ROCm does not support, or an integrated one: its Vulkan backend (OLLAMA_VULKAN=1, in newer versions OLLAMA_IGPU_ENABLE=1 as well)",
            "Windows: a current Adrenalin driver",
        ],
        ask: &["the server's log from its start, with OLLAMA_DEBUG=1"],
        source: "https://github.com/ollama/ollama/blob/main/docs/troubleshooting.mdx",
        ..BASE
    },
    Entry {
        id: "graph-not-computed",
        last_resort: true,
        confidence: Low,
        patterns: &[
            r"(?i)failed to compute graph, compute status|graph_compute: \w+ failed with error|ggml_backend_sched_graph_compute\w* failed with error",
            r"(?i)decode\(\) failed: Compute error|llama_decode: failed to decode, ret = -[23]|failed to decode the batch.*ret = -[23]",
            r"(?i)(?:diffusion model|clip|vae|first_stage\w*)\S* compute failed",
        ],
        cause: "The backend failed while it computed (status -1: the GPU's driver reported an error; -2: no memory). The error of the backend above this line is the cause.",
        fix: &[
            "look above for ROCm error, ErrorDeviceLost or an allocation that failed",
            "a smaller -ub and context tell whether it is memory or a time limit; without flash attention (-fa off); another backend or version",
        ],
        ask: &[
            "the 30 lines above it",
            "Linux: dmesg | grep -iE 'amdgpu|ring|fault' | tail -n 20",
        ],
        source: "https://github.com/ggml-org/llama.cpp/blob/master/include/llama.h",
        ..BASE
    },
    Entry {
        id: "model-not-loaded",
        last_resort: true,
        severity: Warning,
        confidence: Low,
        patterns: &[
            r"(?i)failed to create context with model",
            r"(?i)llama_model_load(?:_from_file\w*)?: (?:error|failed) (?:to )?load(?:ing)? model",
            r"(?i)main: error: unable to load model|error: failed to load model '|unable to load model: \S*sha256-",
            r"(?i)Load Text Model OK: False|Could not load text model|new_sd_ctx_t failed|load tensors from model loader failed",
            r"(?i)ValueError: Failed to (?:load model from file|create llama_context)|error: failed to initialize whisper context",
            r"(?i)Error loading the model with llama\.cpp",
        ],
        cause: "The model was not loaded. These lines only report it: the one above them says why. Mostly the file is newer than the program (an architecture or quantisation that it does not know), is not there or incomplete, or memory does not suffice.",
        fix: &[
            "the first line with `error` above: a file that is missing, an unknown architecture (update the program), or an allocation that failed (fewer layers, a smaller context)",
            "llama-cpp-python: verbose=True shows those lines",
        ],
        ask: &["the whole output from the start of the program on"],
        source: "https://github.com/ggml-org/llama.cpp/issues",
        ..BASE
    },
];
