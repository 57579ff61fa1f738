//! The programs that run models: ollama, LM Studio, vLLM, ONNX Runtime, JAX, TensorFlow, Blender.

use super::Scope::{NotWindows, Windows};
use super::{BASE, Entry};
use crate::explain::Confidence::{Low, Medium};
use crate::explain::Severity::{Info, Warning};

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        id: "ollama-system-memory",
        patterns: &[
            r"(?i)model request too large for system",
            r"(?i)model requires more (?:system|gpu) memory",
        ],
        covers: &["ggml-out-of-memory"],
        cause: "Too little RAM is free for the part of the model that stays in system memory. On an APU ollama counts free RAM and not what the GPU may map, so that a large carve-out, other programs or the limit of a container leave it too little.",
        fix: &[
            "a smaller model or quantisation, a smaller context (num_ctx), q8_0 for the cache (OLLAMA_KV_CACHE_TYPE)",
            "free RAM: close other programs, end models that are loaded (ollama ps, ollama stop), raise the limit of the container",
            "APU: a small carve-out in the BIOS and a larger limit for GTT; `surefoot doctor` tells both",
            "a newer ollama, or its Vulkan backend (OLLAMA_VULKAN=1), which reckon APU memory better",
        ],
        ask: &[
            "free -h",
            "the lines of the server's log with `inference compute` and `offload`",
        ],
        source: "https://github.com/ollama/ollama/issues/16631",
        ..BASE
    },
    Entry {
        id: "ollama-little-vram",
        severity: Warning,
        patterns: &[
            r"(?i)not enough vram available, falling back to CPU",
            r"(?i)insufficient VRAM to load any model layers",
            r"(?i)gpu has too little memory to allocate any layers",
        ],
        cause: "ollama finds too little free memory (VRAM) on the GPU for even a part of the model, and runs it on the CPU. On an APU older versions count only the carve-out, not the RAM that the GPU may map.",
        fix: &[
            "a smaller model or context; end what else is on the GPU (ollama ps, other programs)",
            "APU: a newer ollama, which counts GTT, or its Vulkan backend (OLLAMA_VULKAN=1); else a larger carve-out (UMA frame buffer) in the BIOS",
        ],
        ask: &["the lines of the server's log with `inference compute` and `offload`"],
        source: "https://github.com/ollama/ollama/issues/2566",
        ..BASE
    },
    Entry {
        id: "ollama-rocm-library",
        patterns: &[
            r"(?i)no compatible rocm library",
            r"(?i)(?:unable to verify|failed to (?:load|find)) rocm (?:library|libraries)",
            r"(?i)amdgpu detected, but no .*rocm",
            r"(?i)rocm (?:v\d+ )?librar(?:y|ies) (?:not found|missing)",
        ],
        covers: &["ollama-unsupported-gpu"],
        cause: "ollama sees the AMD GPU but finds no ROCm libraries that it can use: its ROCm package is not unpacked beside it (Linux), or its libraries have no code for {gpu}. It runs on the CPU.",
        fix: &[
            "Linux: unpack the ROCm package of the same ollama version: curl -fsSL https://ollama.com/download/ollama-linux-amd64-rocm.tgz | sudo tar zx -C /usr",
            "Linux: container: the image ollama/ollama:rocm, with --device /dev/kfd --device /dev/dri",
            "Windows: reinstall ollama with its installer; a card that it does not support: ollama-for-amd, or OLLAMA_VULKAN=1",
            "Linux: HSA_OVERRIDE_GFX_VERSION={override} for the service: the code of a similar GPU runs on {gpu}",
        ],
        ask: &["ollama --version", "the list of files in lib/ollama/rocm"],
        source: "https://github.com/ollama/ollama/blob/main/docs/linux.mdx",
        ..BASE
    },
    Entry {
        id: "ollama-igpu-dropped",
        severity: Warning,
        patterns: &[r"(?i)dropping integrated GPU; to enable.{0,120}(?:library=ROCm|Radeon|AMD)"],
        covers: &["ollama-igpu-skipped"],
        cause: "ollama leaves out integrated GPUs unless it is told to use them. If this one is the only GPU, models run on the CPU.",
        fix: &[
            "set OLLAMA_IGPU_ENABLE=1 for the server (systemctl edit ollama, or -e for a container), then restart it",
            "nothing, if another GPU is to be used",
        ],
        source: "https://github.com/Crosstalk-Solutions/project-nomad/issues/1092",
        ..BASE
    },
    Entry {
        id: "ollama-igpu-skipped",
        severity: Warning,
        patterns: &[
            r"(?i)dropping integrated GPU; to enable",
            r"(?i)unsupported Radeon iGPU detected|skipping.*integrated (?:amd )?GPU",
        ],
        cause: "ollama leaves out the integrated GPU: it is not supported with ROCm, or has too little memory of its own (512 MiB of carve-out count as such in older versions). The model runs on the CPU.",
        fix: &[
            "OLLAMA_IGPU_ENABLE=1, where the line names it; else a newer ollama with its Vulkan backend (OLLAMA_VULKAN=1)",
            "a larger carve-out (UMA frame buffer) in the BIOS",
        ],
        source: "https://github.com/ollama/ollama/issues/2637",
        ..BASE
    },
    Entry {
        id: "runner-illegal-instruction",
        patterns: &[
            r"(?i)exit (?:status|code):? ?(?:0xc000001d|3221225501|-1073741795|132)\b|signal: illegal instruction",
            r"(?i)signaled to shutdown with signal 4\b",
        ],
        covers: &["runner-crash", "illegal-instruction", "server-shard-failed"],
        cause: "The program met an instruction that the processor does not know (an illegal instruction): it was built for CPUs with AVX or AVX2 and this one has none, or the variant for it was chosen wrongly.",
        fix: &[
            "a newer version, which picks its build by the processor",
            "a build without AVX, or one that you build on this CPU",
            "in a virtual machine: pass the host's CPU through (cpu type `host`)",
        ],
        ask: &["Linux, WSL: lscpu | grep -i -o 'avx[^ ]*'"],
        source: "https://github.com/ollama/ollama/issues/4795",
        ..BASE
    },
    Entry {
        id: "runner-missing-dll",
        patterns: &[
            r"(?i)exit (?:status|code):? ?(?:0xc0000(?:135|139)|3221225781|3221225785|-1073741515)\b",
        ],
        covers: &["runner-crash"],
        scope: Windows,
        cause: "A DLL is missing (0xc0000135) or of another version than the program was built with (0xc0000139): the HIP runtime comes with the Adrenalin driver (amdhip64_6.dll, amdhip64_7.dll), the rest with the program or the HIP SDK.",
        fix: &[
            "a current Adrenalin driver, then restart",
            "reinstall the program, with the ROCm libraries of its own version; no DLLs copied by hand from another",
            "the HIP SDK of the version that the program names; take other HIP SDKs off PATH",
        ],
        ask: &[
            "where amdhip64.dll amdhip64_6.dll amdhip64_7.dll",
            "ollama --version",
        ],
        source: "https://github.com/likelovewant/ollama-for-amd/issues/8",
        ..BASE
    },
    Entry {
        id: "program-check-failed",
        confidence: Medium,
        patterns: &[
            r"(?i)pre-allocated tensor .* that cannot run the operation",
            r"(?i)[\w-]+\.(?:cu|cuh|cpp|c):\d+: (?:fatal error\W*$|\w.* does not support K-shift)",
            r"(?i)does not support K-shift",
            r"\bGGML_ASSERT\b",
            r"\b(?:llama|ggml|whisper|sd|stable-diffusion)\S*: \S+:\d+: .*Assertion .* failed",
            r"/bits/(?:stl_|basic_)\w+\.h:\d+:.*Assertion .* failed",
        ],
        unless: &[
            r"(?i)out of memory|ROCm error|CUDA error|unable to allocate|failed to allocate|invalid device function|(?:cuda|hip)Success",
        ],
        covers: &[
            "segmentation-fault",
            "native-abort",
            "runner-crash",
            "ended-by-abort",
        ],
        cause: "The program checked something that must hold, and it did not (an assertion): it and this model, this setting or this GPU do not fit together. The line names the file of the program; GPU, driver and ROCm are not at fault.",
        fix: &[
            "a newer version of the program, or the last one that worked",
            "without what the failing file is about: fattn is flash attention (-fa off), mtmd and clip are images, cpy and rope the cache (-ctk f16 -ctv f16)",
            "another file of the model, which fits this version; or the Vulkan backend",
        ],
        ask: &["the version of the program and the 30 lines above the assertion"],
        source: "https://github.com/ggml-org/llama.cpp/issues/27674",
        ..BASE
    },
    Entry {
        id: "runner-crash",
        confidence: Low,
        patterns: &[
            r"(?i)model failed to load, this may be due to resource limitations",
            r"(?i)Failed to load model.*\(Exit code: null\)",
            r"(?i)model runner has unexpectedly stopped",
            r"(?i)llama-server process (?:has terminated|no longer running)",
            r"(?i)(?:runner process (?:has terminated|no longer running)|runner terminated|llama-server process.*(?:exit|died))",
            r"(?i)exit (?:status|code):? ?(?:0x)?c0000409\b",
            r"(?i)The model has crashed without additional information",
            r"(?i)(?:do load request|POST predict): Post .{0,200}(?:EOF|forcibly closed|connection reset)",
            r"(?i)an error was encountered while running the model: (?:unexpected EOF|read tcp|EOF)",
            r"(?i)llama-server (?:crashed|failed) (?:at startup|to start)",
            r"(?i)\(Exit code: (?:18446744072635812000|18446744072635810000|3221226505|-1073740791)\)",
            r"(?i)error loading model.*Exit code: \d+",
        ],
        unless: &[
            r"(?i)out of memory|ROCm error|CUDA error|rocBLAS error|ErrorDeviceLost|unable to allocate|failed to allocate|Memory access fault|invalid device function|TensileLibrary|unknown model architecture",
        ],
        covers: &["windows-aborted"],
        cause: "The process that runs the model ended without a reason of its own. On AMD GPUs mostly: its ROCm libraries (rocBLAS) have no code for this GPU and abort, the driver is older than they need, or the memory of the GPU ran out.",
        fix: &[
            "update the program and the driver; the lines of its log above this one name the reason",
            "a GPU that its ROCm build does not support: its Vulkan backend (ollama: OLLAMA_VULKAN=1; LM Studio: the Vulkan runtime), or ollama-for-amd with the ROCm libraries for it",
            "fewer layers on the GPU (num_gpu) or a smaller context tells whether it is memory",
        ],
        ask: &[
            "the server's log from its start, with OLLAMA_DEBUG=1",
            "Windows: hipInfo",
            "Linux: rocminfo | grep gfx",
        ],
        source: "https://github.com/ollama/ollama/issues/4442",
        ..BASE
    },
    Entry {
        id: "runner-start-timeout",
        confidence: Medium,
        patterns: &[
            r"(?i)(?:server|backend|runner) failed to start within (?:the )?(?:timeout|\d)|to be ready \(timeout: 0s\)",
            r"(?i)timed out waiting for llama (?:runner|server)",
        ],
        cause: "The server or model was not ready within the time that the program waits (its own time limit, which can be set too low): the disk is slow, the file is read through a network or a mapped file that is copied slowly to the GPU, or the GPU hung.",
        fix: &[
            "a longer limit: OLLAMA_LOAD_TIMEOUT=30m for the service; lemonade: global_timeout in its configuration (0 s gives up at once)",
            "the model on a local SSD; enough free RAM; use_mmap false for an APU with a large carve-out",
            "look for a hang in the kernel log",
        ],
        ask: &["Linux: dmesg | grep -iE 'amdgpu|ring|reset' | tail -n 30"],
        source: "https://github.com/ollama/ollama/issues/4350",
        ..BASE
    },
    Entry {
        id: "model-too-new",
        patterns: &[
            r"(?i)not supported by your version of Ollama|Unrecognized configuration class|Unrecognized model in \S+ Should have a",
            r"(?i)may be incompatible with your version of Ollama|requires a newer version of Ollama|no longer compatible with your version of Ollama",
            r#"(?i)unsupported architecture "\w+"|has no vLLM implementation|GGUF model with architecture \S+ is not supported"#,
            r"(?i)hf-to-gguf:Model \w+ is not supported|BPE pre-tokenizer was not recognized",
            r"(?i)unknown model architecture: ",
            r"(?i)unknown pre-tokenizer type|unsupported model architecture",
            r"(?i)The checkpoint you are trying to load has model type .* but Transformers does not recognize",
            r"(?i)Model architectures \[.*\] are not supported for now",
            r"(?i)GGUF model with architecture \S+ is not supported",
            r"configuration_auto\.py\W{1,4}line \d+, in __getitem__",
            r"(?i)did not match any variant of untagged enum (?:ModelWrapper|PyPreTokenizerTypeWrapper)",
            r"(?i)`?rope_scaling`? must be a dictionary with two fields",
            r"(?i)Tokenizer class \w+ does not exist or is not currently imported",
        ],
        covers: &["runner-crash", "model-not-loaded"],
        cause: "The program is older than the model: it does not know the model's architecture. It has nothing to do with the GPU.",
        fix: &[
            "update the program (llama.cpp, ollama, LM Studio's runtime, transformers, vLLM), or take a model that it knows",
        ],
        source: "https://github.com/ggml-org/llama.cpp/blob/master/docs/development/HOWTO-add-model.md",
        ..BASE
    },
    Entry {
        id: "model-file-damaged",
        patterns: &[
            r"(?i)Error: invalid file magic",
            r"(?i)invalid model data \(bad magic\)",
            r"(?i)SafetensorError: Error while deserializing header",
            r"(?i)invalid magic (?:characters|number)|failed to read magic|invalid load key",
            r"(?i)PytorchStreamReader failed (?:reading|finding|locating)",
            r"(?i)tensor '.*' data is not within the file bounds, model is corrupted",
            r"(?i)Unable to load weights from (?:pytorch )?checkpoint file|Exception: could not load model: ",
        ],
        cause: "The model's file is damaged or incomplete (a download that broke off, a page or a Git LFS pointer in its place), or of another format than the program expects. It has nothing to do with the GPU.",
        fix: &[
            "compare the size and the checksum with those of the source, delete the file and download it again",
            "ls -l: a file of some hundred bytes is a pointer of Git LFS (git lfs pull)",
        ],
        source: "https://huggingface.co/docs/safetensors/index",
        ..BASE
    },
    Entry {
        id: "vllm-memory-share",
        patterns: &[
            r"(?i)Free memory on device.{0,80}(?:is less than desired GPU memory utilization|on startup)",
            r"(?i)No available memory for the cache blocks",
            r"(?i)max seq len \(?\d+\)? is larger than the maximum number of tokens",
            r"(?i)larger than the available KV cache memory|KV cache is needed, which is larger",
        ],
        covers: &["out-of-memory-without-numbers", "vllm-engine-failed"],
        cause: "vLLM takes a fixed share of the GPU's memory (gpu-memory-utilization): another program uses a part of it already, or what is left after the weights is too small for the cache of this context.",
        fix: &[
            "a smaller --max-model-len, or --gpu-memory-utilization: higher where the cache is too small, lower where other programs use the GPU",
            "end what else is on the GPU (an earlier vLLM that did not end)",
            "a smaller model or quantisation; more GPUs with --tensor-parallel-size",
        ],
        ask: &["Linux: rocm-smi --showpids --showmeminfo vram"],
        source: "https://docs.vllm.ai/en/latest/configuration/conserving_memory.html",
        ..BASE
    },
    Entry {
        id: "vllm-quantization",
        patterns: &[
            r"(?i)Float8_\w+ is only supported for ROCm",
            r"(?i)No \S+ MoE backend supports|is not supported for quantization method",
            r"(?i)comfy_kitchen.*No backend available",
            r"(?i)\b\w+ quantization is currently not supported (?:in|on|for) rocm",
            r"(?i)quantization method .{0,40}(?:is not supported|not supported for the current GPU)",
            r"(?i)No .{0,6}FP8 MoE backend supports|supports_fp8|fp8.{0,60}not supported on (?:this|the current) (?:device|platform|GPU)",
            r"(?i)(?:fp8e\w+|fp8) not supported in this architecture",
            r"(?i)torch\._scaled_mm is only supported|_scaled_mm.{0,60}(?:MI300|compute capability|not supported)",
            r"(?i)not implemented for 'Float8_\w+'",
            r"(?i)\b(?:int8|int4|fp8|fp4|awq|gptq|w8a8) (?:is )?not supported (?:for|on|by) (?:this|the current|your) (?:architecture|gpu|device|platform)",
            r"(?i)(?:marlin|cutlass|nvfp4|FP4 gemm|machete).{0,60}(?:not supported|only supported|Failed to initialize)",
        ],
        covers: &[
            "triton-compile-failed",
            "triton-type-unsupported",
            "vllm-engine-failed",
        ],
        unless: &[r"No operator found for `?memory_efficient_attention"],
        cause: "The weights are in a format (fp8, int8, fp4 and the like) that this build has no kernels for on {gpu}: fp8 needs MI300 or RX 9000 (RDNA 4) hardware, and kernels such as Marlin, CUTLASS and NVFP4 are for NVIDIA's cards.",
        fix: &[
            "the same model in bf16 or fp16, or in a quantisation that ROCm has (GPTQ, AWQ through Triton, GGUF)",
            "a newer build of the program: support grows with each version",
            "no option for fp8 (--fp8_*, weight dtype fp8, kv-cache-dtype fp8)",
        ],
        ask: &[
            "Linux: rocminfo | grep gfx",
            "pip list | grep -iE 'vllm|torch|triton|aiter'",
        ],
        source: "https://docs.vllm.ai/en/latest/features/quantization/index.html",
        ..BASE
    },
    Entry {
        id: "vllm-engine-failed",
        severity: Warning,
        confidence: Low,
        patterns: &[
            r"(?i)Engine core initialization failed|EngineCore failed to start|Engine process failed to start",
        ],
        cause: "vLLM's worker ended before it was ready; this line only says so. The first error above it is the cause.",
        fix: &[
            "look for the first `ERROR` or traceback above this one, that of the worker (EngineCore, VllmWorker)",
            "VLLM_LOGGING_LEVEL=DEBUG, --enforce-eager, and VLLM_USE_TRITON_FLASH_ATTN=0 tell what part fails",
        ],
        ask: &["the lines of the log from the first `ERROR`"],
        source: "https://docs.vllm.ai/en/latest/usage/troubleshooting.html",
        ..BASE
    },
    Entry {
        id: "aiter-unsupported",
        patterns: &[
            r"(?i)One of GPU archs of \[.*is invalid or not supported|AssertionError: \w+ requires gfx\w+.*got gfx\w+",
            r"(?i)Get GPU arch from rocminfo failed|aiter\S*chip_info\.py",
            r"(?i)No module named '?aiter'?",
            r"(?i)\[aiter\].{0,40}(?:build|compile).{0,80}fail|No module named 'aiter\.jit\.",
            r"(?i)Unknown GPU architecture: gfx\w+\. Supported architectures: \['native'",
            r"(?i)aiter.{0,80}(?:not supported|unsupported|only supports|Unknown GPU architecture)",
            r"(?i)(?:Unsupported|unknown) (?:gpu )?arch\w*.{0,40}aiter|aiter.*(?:get_gfx|get_cu_num).*(?:Error|fail)",
        ],
        cause: "AITER, AMD's library of kernels for Instinct cards (MI200, MI300), is missing or does not support this architecture ({gpu}).",
        fix: &[
            "VLLM_ROCM_USE_AITER=0 (SGLang: SGLANG_USE_AITER=0): other kernels are used",
            "on an Instinct card: the container of vLLM or SGLang for ROCm, which brings it",
        ],
        scope: NotWindows,
        source: "https://github.com/ROCm/aiter",
        ..BASE
    },
    Entry {
        id: "ctranslate2-cuda",
        patterns: &[
            r"(?i)(?:do|does) not support efficient (?:float16|bfloat16|int8\w*) computation|ValueError: unsupported device (?:cuda|hip|rocm)",
            r"(?i)This CTranslate2 package was not compiled with CUDA support",
            r"(?i)CUDA driver version is insufficient for CUDA runtime version",
            r"(?i)CUDA failed with error|no CUDA-capable device is detected",
            r"(?i)Library (?:lib)?(?:cublas|cudnn|cudart)\S* is not found or cannot be loaded",
            r"(?i)Unable to load any of \{?libcudnn",
        ],
        covers: &["torch-cpu-only"],
        cause: "The library that runs the model (CTranslate2 in faster-whisper and WhisperX, or another) is built for CUDA, which an AMD GPU does not have: no CUDA library is missing that could be installed.",
        fix: &[
            "device=\"cpu\" with compute_type=\"int8\", or a program with ROCm or Vulkan: whisper.cpp (GGML_HIP or GGML_VULKAN), or Whisper in transformers with the ROCm build of torch",
            "CTranslate2 with ROCm: a build of your own (releases from 4.7 on have HIP), or a ROCm fork",
        ],
        ask: &["pip list | grep -iE 'torch|ctranslate2|whisper|onnx'"],
        source: "https://github.com/OpenNMT/CTranslate2/issues/1072",
        ..BASE
    },
    Entry {
        id: "onnxruntime-provider",
        severity: Warning,
        patterns: &[
            r"(?i)EP Error .*onnxruntime_pybind_state",
            r"(?i)Specified provider '(?:ROCM|CUDA|MIGraphX|Tensorrt)\w*' is not in available provider names",
            r"(?i)Failed to (?:create|load).{0,20}(?:ROCM|CUDA|MIGraphX|Tensorrt)ExecutionProvider",
            r"(?i)libonnxruntime_providers_(?:rocm|cuda|migraphx|shared)\S*(?:.*cannot open|.*with error|.*failed)",
            r"(?i)No matching distribution found for onnxruntime-rocm",
        ],
        covers: &["missing-library", "cuda-library-missing"],
        cause: "This build of ONNX Runtime has no provider for an AMD GPU, or cannot load it: the packages on PyPI are for the CPU, CUDA and DirectML. Or the package lacks a library of its own (a defect of some wheels: take a newer version). It goes on with the CPU.",
        fix: &[
            "Linux: onnxruntime-migraphx (or onnxruntime-rocm for older ROCm) from AMD's index (repo.radeon.com/rocm/manylinux), of the installed ROCm version",
            "Windows: onnxruntime-directml, or Windows ML",
            "pip uninstall the other onnxruntime packages first: only one may be installed",
        ],
        ask: &[
            "pip list | grep -i onnx",
            "python -c 'import onnxruntime as o; print(o.get_available_providers())'",
        ],
        source: "https://onnxruntime.ai/docs/execution-providers/MIGraphX-ExecutionProvider.html",
        ..BASE
    },
    Entry {
        id: "tensorflow-gpu-left-out",
        patterns: &[
            r"(?i)Ignoring visible gpu device .*AMDGPU version ?: ?gfx\w+",
            r"(?i)Ignoring visible gpu device .*(?:too slow|core count)",
        ],
        cause: "TensorFlow leaves out {gpu}: this build supports only the architectures that its line lists.",
        fix: &[
            "HSA_OVERRIDE_GFX_VERSION={override}: the code of a similar GPU runs on {gpu}",
            "a newer tensorflow-rocm from repo.radeon.com, or TF_ROCM_AMDGPU_TARGETS=<gfx> for a build of your own",
        ],
        source: "https://github.com/ROCm/tensorflow-upstream/issues/1602",
        ..BASE
    },
    Entry {
        id: "tensorflow-no-cuda",
        severity: Warning,
        patterns: &[
            r"(?i)Could not find cuda drivers on your machine, GPU will not be used",
            r"(?i)failed call to (?:cuInit|hipInit)",
            r"(?i)Could not load dynamic library 'lib(?:cudart|cuda|cublas|cudnn|hip|rocblas|MIOpen)\S*'",
            r"(?i)jax.*(?:No GPU/TPU found|An NVIDIA GPU may be present|falling back to cpu)",
            r"(?i)Cannot dlopen some GPU libraries",
        ],
        cause: "This TensorFlow or JAX is built for CUDA or the CPU, or cannot load the ROCm libraries of its version: it runs on the CPU.",
        fix: &[
            "tensorflow-rocm from repo.radeon.com/rocm/manylinux, of the installed ROCm version; JAX: pip install jax with jax-rocm7-plugin and jax-rocm7-pjrt (or …rocm60…)",
            "install the ROCm that it was built for (rocm-libs), of the same version",
        ],
        ask: &[
            "pip list | grep -iE 'tensorflow|jax|rocm'",
            "cat /opt/rocm/.info/version",
        ],
        scope: NotWindows,
        source: "https://rocm.docs.amd.com/projects/install-on-linux/en/latest/install/3rd-party/tensorflow-install.html",
        ..BASE
    },
    Entry {
        id: "blender-hip",
        confidence: Medium,
        patterns: &[
            r"(?i)Failed to load (?:CUDA|OptiX|oneAPI) kernel from",
            r"(?i)hipModuleLoad failed|Failed loading render kernel",
            r"(?i)No compatible GPUs found for Cycles|(?:Illegal address|Invalid (?:device|value)) in hip",
            r"(?i)Failed to load HIP kernel|HIP kernel compilation|no HIP kernel found|HIP binary kernel for this graphics card",
            r"(?i)HIPEW initialization failed|Failed to (?:create|initialize) HIP (?:context|device)",
            r"(?i)(?:Error|Unsupported)[: ].*\bhipEw\w*|\bHIP\b.*(?:Invalid device|Illegal address) in \w+",
        ],
        cause: "Blender's Cycles could not use HIP on this GPU: its kernels have no code for the card, the driver is older than this Blender asks for, or the HIP runtime is not installed.",
        fix: &[
            "Linux: the HIP runtime of ROCm 6 or newer (hip-runtime-amd), and the user in the groups render and video",
            "Windows: the Adrenalin driver that this Blender asks for, or newer",
            "a card before Vega (GCN) is not supported; a newer card needs a newer Blender",
            "Preferences > System > Cycles: HIP; CUDA and OptiX are for NVIDIA's cards (and ZLUDA)",
        ],
        source: "https://docs.blender.org/manual/en/latest/render/cycles/gpu_rendering.html",
        ..BASE
    },
    Entry {
        id: "opencl-no-platform",
        confidence: Medium,
        patterns: &[
            r"(?i)clGetPlatformIDs\(?(?:-1001\)?|.{0,40}-1001)|CL_PLATFORM_NOT_FOUND",
            r"(?i)Number of platforms:?\s+0\s*$",
            r"what\(\): +clGetPlatformIDs",
            r"(?i)clGetDeviceIDs\(-1\)|CL_DEVICE_NOT_FOUND",
            r"(?i)^\W*Number of devices:?\s+0\s*$",
        ],
        unless: &[r"(?i)Number of devices:?\s+[1-9]|Device Type:\s+GPU"],
        cause: "OpenCL finds no platform or no device: no driver for it (an ICD) is installed, or it does not know the card. It is separate from HIP, which PyTorch uses.",
        fix: &[
            "Linux: sudo apt install rocm-opencl-runtime (or mesa-opencl-icd with RUSTICL_ENABLE=radeonsi)",
            "Windows: a newer Adrenalin driver",
        ],
        ask: &["Linux: ls /etc/OpenCL/vendors"],
        source: "https://github.com/ROCm/legacy-rocm-build/issues/760",
        ..BASE
    },
    Entry {
        id: "directml-other-torch",
        patterns: &[r"(?i)DLL load failed while importing torch_directml_native"],
        covers: &[
            "undefined-symbol-torch",
            "windows-dll-missing",
            "directml-limits",
            "missing-library",
        ],
        cause: "torch-directml is compiled for one version of torch and does not load with another: something replaced torch. DirectML is not ROCm, and it is no longer developed.",
        fix: &[
            "with DirectML: pip install --force-reinstall torch-directml in a fresh environment (Python 3.10), which brings the torch version that it needs",
            "better: AMD's ROCm build of torch for Windows on RX 6000 and newer and Ryzen AI, without torch-directml",
        ],
        source: "https://learn.microsoft.com/windows/ai/directml/pytorch-windows",
        ..BASE
    },
    Entry {
        id: "directml-limits",
        patterns: &[
            r"(?i)DmlExecutionProvider.*(?:8007\w{4}|887A\w{4})|Non-zero status code returned while running Dml\w+ node",
            r"(?i)not currently (?:implemented|supported) for the DML",
            r"(?i)Cannot set version_counter for inference tensor|Device type privateuseone is not supported|The GPU will not respond to more commands",
            r"(?i)\b887A000[4]\b|D3D12: Removing Device",
            r"(?i)The GPU device does not support Double \(Float64\)",
            r"(?i)(?:aten::\S+' is not currently supported on the DML backend|not currently (?:implemented|supported) on the DML)",
            r"(?i)The GPU (?:device instance has been suspended|will not respond to more commands)|GetDeviceRemovedReason|887A000[567]",
            r"(?i)device privateuseone|torch_directml.*(?:Error|error)",
            r"(?i)expected key in DispatchKeySet.{0,120}got: PrivateUse1",
            r"(?i)'aten::\S+' with arguments from the 'PrivateUse1' backend",
        ],
        cause: "This runs through DirectML, which lacks operations and data types, reports memory wrongly, and loses the device when a step takes too long or memory is full. It is not ROCm.",
        fix: &[
            "AMD's ROCm build of torch on RX 6000 and newer and Ryzen AI; on Windows ZLUDA for older cards",
            "with DirectML: fp32, a smaller image and batch; what it lacks on the CPU (.to(\"cpu\") for that step)",
        ],
        source: "https://github.com/microsoft/DirectML/issues/449",
        ..BASE
    },
    Entry {
        id: "zluda-first-run",
        severity: Info,
        patterns: &[
            r"(?i)Compilation is in progress\. Please wait|ZLUDA.{0,40}compil(?:ing|ation).{0,40}(?:wait|minutes)",
        ],
        cause: "ZLUDA compiles the kernels at the first run, which takes 10 to 40 minutes and happens once: the program did not hang.",
        fix: &["wait; do not close it"],
        source: "https://github.com/vladmandic/sdnext/wiki/ZLUDA",
        ..BASE
    },
];
