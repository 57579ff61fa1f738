//! Programs and libraries that train: DeepSpeed, Unsloth, trl, and what they compile or ask for.

use super::{BASE, Entry};
use crate::explain::Confidence::Medium;
use crate::explain::Severity::Warning;

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        id: "deepspeed-asks-for-cuda",
        confidence: Medium,
        patterns: &[
            r"deepspeed\S*[\\/]op_builder[\\/]\w+\.py\W{1,4}line \d+, in (?:cxx_args|is_cuda_enable|get_cuda_\w+|is_compatible|installed_cuda_version|assert_no_cuda_mismatch|compute_capability_args|nvcc_args|extra_ldflags|libraries_args|cuda_\w+|include_paths)",
            r#"CUDA_LIB64 = os\.path\.join\(torch\.utils\.cpp_extension\.CUDA_HOME"#,
        ],
        also: &[
            r"TypeError: (?:expected str, bytes or os\.PathLike|unsupported operand|expected string or bytes)|AttributeError: 'NoneType' object has no attribute|FileNotFoundError: .*nvcc|TypeError: argument of type 'NoneType'|TypeError: 'NoneType' object",
        ],
        covers: &["cuda-version-asked"],
        cause: "DeepSpeed asks for the CUDA toolkit or for torch.version.cuda where it compiles an op, and a ROCm build of torch has neither: this version of DeepSpeed forgets ROCm in that place.",
        fix: &[
            "pip install -U deepspeed --no-build-isolation: newer versions (0.16.3 and later) ask torch.version.hip first",
            "Linux, WSL: hipcc and the development packages of ROCm, and export ROCM_HOME=/opt/rocm, for the ops that are compiled",
            "without the op: an optimizer of torch instead of DeepSpeedCPUAdam (\"zero_force_ds_cpu_optimizer\": false), no offloading to the CPU",
        ],
        ask: &["ds_report"],
        source: "https://github.com/deepspeedai/DeepSpeed/pull/6909",
        ..BASE
    },
    Entry {
        id: "cuda-versions-differ",
        patterns: &[
            r"(?i)CUDAMismatchException",
            r"(?i)Installed CUDA version \S+ does not match the version torch was compiled with",
            r"(?i)The detected CUDA version \(\S+\) mismatches the version",
            r"(?i)Cuda extensions are being compiled with a version of Cuda that does not match",
        ],
        covers: &[
            "deepspeed-cuda-home",
            "cuda-home-missing",
            "wheel-build-failed",
        ],
        cause: "An extension is to be compiled, and the CUDA toolkit on this machine (nvcc) is of another major version than the one that torch was compiled with; DeepSpeed and torch refuse that. On a machine with an AMD card neither belongs there: a CUDA build of torch and a CUDA toolkit were installed instead of the ROCm build.",
        fix: &[
            "AMD card: the ROCm build of torch instead of the CUDA build, then the extension with --no-build-isolation; no CUDA toolkit",
            "NVIDIA card: a torch that was compiled with the same major version of CUDA as `nvcc --version` says, or another toolkit that CUDA_HOME names",
            "DeepSpeed without compiled ops: DS_BUILD_OPS=0; DS_SKIP_CUDA_CHECK=1 skips the check",
        ],
        ask: &[
            "python -c 'import torch; print(torch.__version__, torch.version.hip, torch.version.cuda)'",
            "nvcc --version; echo $CUDA_HOME",
        ],
        source: "https://www.deepspeed.ai/tutorials/advanced-install/",
        ..BASE
    },
    Entry {
        id: "cuda-version-asked",
        confidence: Medium,
        patterns: &[
            r"torch\.version\.cuda\b.{0,40}\.(?:split|replace|startswith|strip)\(",
            r"\b(?:[vV]ersion|parse|float|int)\(torch\.version\.cuda",
        ],
        also: &[
            r"AttributeError: 'NoneType' object has no attribute|TypeError: .*NoneType|TypeError: expected string",
        ],
        cause: "The program reads the CUDA version of torch (torch.version.cuda), which is None in a ROCm build and in one for the CPU: this version of it was written for CUDA alone.",
        fix: &[
            "a newer version of the package that the traceback names, or its branch for ROCm",
            "without the feature that asks (an extension that is compiled, an attention of its own)",
            "python -c \"import torch; print(torch.version.hip)\": None means that torch is the build for the CPU",
        ],
        source: "https://docs.pytorch.org/docs/stable/notes/hip.html",
        ..BASE
    },
    Entry {
        id: "torch-hip-version-none",
        confidence: Medium,
        patterns: &[r"(?i)torch\.version\.hip\W{1,10}None\b"],
        also: &[
            r"(?i)(?:cuda|gpu|rocm|hip\)?)(?: is)?[ _]?available(?:\(\))?\W{1,8}False|torch device: CPU|device_count\(\)\W{1,8}0\b|No HIP GPUs|Found no NVIDIA driver",
        ],
        covers: &["torch-cpu-only", "torch-cuda-build"],
        cause: "torch.version.hip is None: this torch (PyTorch) is not a ROCm build but the one for CUDA (`+cu…` in its version) or for the CPU, so that it cannot use an AMD card.",
        fix: &[
            "pip uninstall torch torchvision torchaudio, then install the ROCm build from its index in the same environment:",
            "{install}",
            "container: another image, or build it with the ROCm index; a tag with `rocm` does not prove it",
        ],
        ask: &["pip list | grep -iE 'torch|nvidia|rocm'"],
        source: "https://docs.pytorch.org/docs/stable/notes/hip.html",
        ..BASE
    },
    Entry {
        id: "triton-helper-failed",
        confidence: Medium,
        patterns: &[
            r"(?i)Failed to compile\. cc_cmd",
            r"(?i)\b(?:__triton_launcher|hip_utils|cuda_utils)\.c(?::\d+)+:? (?:fatal )?error",
            r"(?i)Command '\[.*(?:hip_utils|cuda_utils|__triton_launcher).*returned non-zero exit status",
            r"(?i)Triton test failed: Command '\[",
        ],
        covers: &[
            "torch-compile-failed",
            "triton-no-compiler",
            "launcher-reports",
            "flash-attention-for-cuda",
        ],
        cause: "Triton compiles a small helper in C when it starts (hip_utils, __triton_launcher), and the compiler or linker that it took failed: its bundled tcc cannot read ROCm's headers, clang finds no C headers of its own, or Python's headers or import library (python3xx.lib, in the folder `libs`) are not there. Programs that only try Triton go on without it.",
        fix: &[
            "Windows: Build Tools for Visual Studio with the C++ workload (MSVC and the Windows SDK); start from its `x64 Native Tools` prompt, or name the compiler in the variable CC",
            "Windows: exit status 1104 is a file that the linker cannot open: copy the folders `libs` and `Include` of the Python installation into the environment",
            "Linux, WSL: sudo apt install gcc python3-dev (of the Python version that runs)",
            "an older or newer triton-windows, or run without Triton: TORCHDYNAMO_DISABLE=1, another attention",
        ],
        ask: &[
            "the first line with `error:` above",
            "Windows: where cl clang; echo %CC%",
            "pip list | grep -iE 'triton|torch'",
        ],
        source: "https://github.com/triton-lang/triton-windows/issues/31",
        ..BASE
    },
    Entry {
        id: "triton-compiler-not-found",
        confidence: Medium,
        patterns: &[r"(?i)Triton is using the compiler '"],
        also: &[r"\[WinError 2\]|FileNotFoundError|No such file or directory"],
        covers: &["triton-helper-failed"],
        cause: "Triton compiles a small helper in C and cannot start the compiler: the variable CC names a file that does not exist (the line names it), or no compiler is installed.",
        fix: &[
            "Windows: Build Tools for Visual Studio with the C++ workload; set CC to the path of cl.exe or clang.exe, or remove the variable",
            "Linux, WSL: sudo apt install gcc, and unset CC",
        ],
        ask: &[
            "Windows: echo %CC%",
            "Linux, WSL: echo $CC; which gcc clang",
        ],
        source: "https://github.com/patientx/ComfyUI-Zluda/issues/316",
        ..BASE
    },
    Entry {
        id: "extension-for-other-torch",
        confidence: Medium,
        patterns: &[
            r"error: no member named '\w+' in namespace '(?:at|c10|torch)(?:::\w+)*'",
            r"error: no (?:type|template) named '\w+' in namespace '(?:at|c10|torch)(?:::\w+)*'",
            r"error: .?\w+.? is not a member of .?(?:at|c10|torch)(?:::\w+)*\b",
            r"error: .?class (?:at|c10|torch)::\w+.? has no member",
        ],
        covers: &[
            "extension-build-failed",
            "wheel-build-failed",
            "flash-attention-composable-kernels",
        ],
        cause: "The sources of the extension call a function of torch (PyTorch) that this torch does not have under that name: extension and torch are of different ages, or its translation from CUDA to HIP (hipify) does not fit this version of torch.",
        fix: &[
            "a newer version of the extension, or the one that was made for this torch; delete its build folder and the translated files (*.hip, *_hip.*) first",
            "or an older torch for which the extension is known to build",
        ],
        ask: &["pip list | grep -iE 'torch|rocm'"],
        source: "https://github.com/Dao-AILab/flash-attention/issues/707",
        ..BASE
    },
    Entry {
        id: "unsloth-no-gpu",
        confidence: Medium,
        patterns: &[
            r"(?i)Unsloth\S{0,2} (?:currently )?only (?:works on|supports) (?:NVIDIA[, \w]* )?GPUs",
            r"(?i)Unsloth: No NVIDIA GPU found",
            r"(?i)Unsloth: Your (?:device|GPU) is not supported",
        ],
        covers: &["torch-cpu-only"],
        cause: "This Unsloth found no GPU that it knows: torch sees none (it is the build for the CPU or for CUDA, not a ROCm build), or this version of Unsloth is older than its support for AMD.",
        fix: &[
            "python -c \"import torch; print(torch.version.hip, torch.cuda.is_available())\" must print a version and True; else install torch from its ROCm index:",
            "{install}",
            "pip install -U unsloth unsloth_zoo (the extra unsloth[amd]), without letting it replace torch (--no-deps)",
        ],
        ask: &["pip list | grep -iE 'unsloth|torch'"],
        source: "https://github.com/unslothai/unsloth/pull/3279",
        ..BASE
    },
    Entry {
        id: "terminal-closed",
        confidence: Medium,
        patterns: &[
            r"(?i)SignalException: Process \d+ got signal: 1\b",
            r"\bSIGHUP\b",
        ],
        covers: &["launcher-reports"],
        cause: "The launcher was told that its terminal closed (SIGHUP): the session ended (an SSH connection, a window), and with it the training. GPU and program are fine.",
        fix: &[
            "run it where it outlives the session: tmux, screen, or systemd-run --user; nohup does not suffice for torchrun",
        ],
        source: "https://docs.pytorch.org/docs/stable/elastic/run.html",
        ..BASE
    },
    Entry {
        id: "apex-missing",
        confidence: Medium,
        patterns: &[
            r"(?i)Error: .*\bapex is not installed",
            r"(?i)Please install apex from https?://",
            r"(?i)APEX and CUDA required for fused optimizers",
            r"apex\.optimizers\.\w+ requires cuda extensions",
        ],
        cause: "The settings ask for an optimizer of apex, and apex is not installed, or without its compiled extensions. It is optional: nothing is wrong with torch or the GPU.",
        fix: &[
            "another optimizer in the settings: adamw_torch or adamw_torch_fused instead of adamw_apex_fused, momentum instead of fusedmomentum",
            "if it must be apex: the fork for ROCm (github.com/ROCm/apex), built against the installed torch; the package `apex` on PyPI is another program",
        ],
        source: "https://github.com/rwightman/efficientdet-pytorch/issues/241",
        ..BASE
    },
    Entry {
        id: "quantized-engine-missing",
        confidence: Medium,
        patterns: &[
            r"Didn't find engine for operation quantized::\w+",
            r"(?i)quantized engine \w+ is not supported",
        ],
        cause: "torch's own quantisation (int8) computes on the CPU with an engine such as FBGEMM or QNNPACK, and this build of torch has not the one that is asked for, or none is chosen.",
        fix: &[
            "python -c \"import torch; print(torch.backends.quantized.supported_engines)\", then set torch.backends.quantized.engine to one of those",
            "only `none` is listed: another build of torch, or do without this quantisation",
        ],
        source: "https://github.com/pytorch/pytorch/issues/123507",
        ..BASE
    },
    Entry {
        id: "matrix-not-positive-definite",
        confidence: Medium,
        patterns: &[
            r"cholesky: .{0,60}could not be completed because the input is not positive-definite",
        ],
        cause: "A Cholesky factorization got a matrix that is not positive-definite: a matter of the numbers, mostly in GPTQ quantisation with too little damping or too few samples for calibration, or with NaN in the activations. Usually no defect of the GPU.",
        fix: &[
            "GPTQ: more damping (damp_percent or dampening_frac 0.1 instead of 0.01), and more or longer samples for calibration",
            "the same step on the CPU or in fp32: if it passes there, the numbers that came from the GPU are wrong",
        ],
        source: "https://github.com/modelscope/ms-swift/issues/537",
        ..BASE
    },
    Entry {
        id: "checkpoint-device-missing",
        patterns: &[
            r"Attempting to deserialize object on CUDA device \d+ but torch\.cuda\.device_count\(\) is [1-9]",
        ],
        cause: "The checkpoint was saved on a GPU with a higher number than this process sees, and is loaded to that same number.",
        fix: &[
            "torch.load(…, map_location=\"cpu\") or map_location=\"cuda:0\"",
            "if the machine has that many GPUs: HIP_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES hide some",
        ],
        source: "https://github.com/pytorch/pytorch/issues/15541",
        ..BASE
    },
    Entry {
        id: "trainer-arguments-renamed",
        patterns: &[
            r"TypeError: (?:\w*Trainer|(?:SFT|DPO|ORPO|KTO|GRPO|CPO)Config|TrainingArguments|Accelerator)\.__init__\(\) got an unexpected keyword argument",
            r"TypeError: \S*(?:compute_loss|unwrap_model|training_step|_get_train_sampler)\(\) (?:got an unexpected keyword argument|takes .*positional argument)",
            r"AttributeError: '\w+Trainer' object has no attribute '",
            r"AttributeError: '(?:SFT|DPO|ORPO|KTO|GRPO|CPO|Reward|PPO)Config' object has no attribute '",
            r"AttributeError: '(?:AdamW?|SGD|Adafactor|\w*Optimizer)\w*' object has no attribute '(?:train|eval)'",
        ],
        cause: "The script and the installed trl, transformers or accelerate are of different ages: arguments of the trainers were renamed or moved (tokenizer became processing_class; max_seq_length moved to SFTConfig and became max_length). It is not an error of the GPU.",
        fix: &[
            "the version of trl and transformers that the script or program names",
            "or the new names in the script: processing_class=tokenizer; max_length and the fields of the data set in SFTConfig",
        ],
        ask: &["pip list | grep -iE 'trl|transformers|unsloth|peft'"],
        source: "https://github.com/huggingface/trl/issues/6168",
        ..BASE
    },
    Entry {
        id: "torch-too-old-to-load",
        patterns: &[
            r"(?i)serious vulnerability issue in `?torch\.load`?.{0,80}require (?:users )?to upgrade torch",
        ],
        cause: "transformers refuses to read pickled weights (.bin, .pt, optimizer states) with a torch older than 2.6, because of CVE-2025-32434. Weights in safetensors are not concerned.",
        fix: &[
            "torch 2.6 or newer, from a ROCm index (plain `pip install -U torch` installs the build for CUDA):",
            "{install}",
            "or the same weights as safetensors",
        ],
        source: "https://github.com/huggingface/transformers/pull/37785",
        ..BASE
    },
    Entry {
        id: "flash-attention-needs-16-bit",
        patterns: &[
            r"(?i)FlashAttention only supports? fp16 and bf16 data type",
            r"Error: Flash ?Attention.{0,12} only supports? .{0,40}torch\.b?float16.{0,40}but the current dype",
        ],
        cause: "FlashAttention computes in fp16 and bf16 only, and was given float32: the model was loaded without a data type, or a layer turned the values back to float32.",
        fix: &[
            "load the model in bf16 or fp16 (dtype=torch.bfloat16, formerly torch_dtype), and bf16=True in the settings of the trainer",
            "or another attention: attn_implementation=\"sdpa\"",
        ],
        source: "https://github.com/QwenLM/Qwen3/issues/406",
        ..BASE
    },
    Entry {
        id: "unsloth-outdated",
        confidence: Medium,
        patterns: &[
            r"(?i)Unsloth: Please update (?:your )?(?:Unsloth|transformers|trl|peft|xformers)",
            r"(?i)Unsloth: .*Error patching \w+Trainer",
            r"(?i)Direct module loading failed for Unsloth\w+Trainer",
            r"(?i)Invalid version format: <module '",
            r"^\W*(?:IndentationError|SyntaxError|TabError): ",
        ],
        also: &[r"(?i)unsloth"],
        cause: "The installed unsloth, unsloth_zoo, trl and transformers are of different ages: Unsloth writes trainers of its own from the sources of trl (unsloth_compiled_cache), which then do not fit. It is not an error of the GPU.",
        fix: &[
            "pip install -U unsloth unsloth_zoo --no-deps, and the versions of trl and transformers that they name",
            "delete the folder unsloth_compiled_cache and start Python anew",
            "look afterwards whether torch is still the ROCm build: python -c \"import torch; print(torch.version.hip)\"",
        ],
        ask: &["pip list | grep -iE 'unsloth|trl|transformers|peft|torch'"],
        source: "https://github.com/unslothai/unsloth/issues/3526",
        ..BASE
    },
    Entry {
        id: "unsloth-llama-cpp",
        confidence: Medium,
        patterns: &[
            r"(?i)Unsloth: .*(?:llama\.cpp|llama-quantize).*(?:fail|error|not)",
            r"(?i)Unsloth: Failed (?:compiling|to (?:install|build)) llama",
        ],
        covers: &["launcher-reports"],
        cause: "Unsloth builds llama.cpp to save a model as GGUF, and that build failed: a compiler, cmake or curl's headers are missing. The training itself is done; the GPU is not concerned.",
        fix: &[
            "Linux, WSL: sudo apt install build-essential cmake curl libcurl4-openssl-dev",
            "or save in 16 bits (save_pretrained_merged), and convert with convert_hf_to_gguf.py of a llama.cpp of your own",
        ],
        source: "https://docs.unsloth.ai/basics/inference-and-deployment/saving-to-gguf",
        ..BASE
    },
    Entry {
        id: "adapter-made-by-newer-peft",
        patterns: &[
            r"TypeError: (?:\w+Config)\.__init__\(\) got an unexpected keyword argument '(?:corda_config|eva_config|lora_bias|exclude_modules|trainable_token_indices|layer_replication|use_dora|use_rslora|alora_invocation_tokens|target_parameters|ensure_weight_tying|arrow_config|qalora_group_size|use_qalora|megatron_\w+|peft_version)'",
            r"(?i)TypeError: (?:Lora|Peft|AdaLora|IA3|LoHa|LoKr)Config\.__init__\(\) got an unexpected keyword",
        ],
        covers: &["argument-not-known"],
        cause: "The adapter (LoRA) was saved by a newer peft than the installed one: its adapter_config.json has settings that this version does not know. It is not an error of the GPU.",
        fix: &[
            "pip install -U peft",
            "or delete the setting that the line names from adapter_config.json",
        ],
        source: "https://huggingface.co/docs/peft/main/en/developer_guides/troubleshooting",
        ..BASE
    },
    Entry {
        id: "model-offloaded",
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"(?i)can't move a model that has some modules offloaded|trying to offload the whole model to the disk",
            r"(?i)had weights offloaded to the disk\. Please provide an .?offload_folder",
            r"(?i)can't train a model that has been loaded (?:with .?device_map|in \S+ precision on a different device)",
        ],
        covers: &["program-not-gpu"],
        cause: "device_map=\"auto\" found too little free memory on the GPU for the whole model and left parts on the CPU or the disk (or on another GPU); such a model can neither be moved nor trained.",
        fix: &[
            "device_map={\"\": 0} puts all on one GPU, and says so if it does not fit; then 4 bits, a smaller model, or nothing else on the GPU",
            "several processes: device_map={\"\": Accelerator().process_index}",
            "on an APU torch may report less memory than there is: `surefoot doctor` tells the limit",
        ],
        source: "https://huggingface.co/docs/accelerate/concept_guides/big_model_inference",
        ..BASE
    },
    Entry {
        id: "deepspeed-settings",
        severity: Warning,
        patterns: &[
            r"(?i)Check batch related parameters\. train_batch_size is not equal",
            r"(?i)Please correct the following DeepSpeed config values that mismatch",
            r"(?i)DeepSpeed Zero-?3 is not compatible with .?low_cpu_mem_usage",
            r"(?i)\bzero3?\b.*not compatible with .*device_map",
        ],
        covers: &["launcher-reports"],
        cause: "The settings of DeepSpeed contradict those of the trainer, or the number of processes: train_batch_size must be micro batch × gradient accumulation × processes, and ZeRO 3 distributes the model itself (no device_map). It is not an error of the GPU.",
        fix: &[
            "\"auto\" in the DeepSpeed file for what the trainer sets: train_batch_size, train_micro_batch_size_per_gpu, gradient_accumulation_steps",
            "ZeRO 3: without device_map and low_cpu_mem_usage",
        ],
        source: "https://huggingface.co/docs/transformers/main/en/deepspeed",
        ..BASE
    },
    Entry {
        id: "deepspeed-op-incompatible",
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"(?i)Unable to JIT load the \w+ op due to it not being compatible",
            r"(?i)cannot open input file 'aio\.lib'",
        ],
        covers: &["launcher-reports"],
        cause: "An op of DeepSpeed cannot be compiled here: what it needs is missing (async_io: libaio; others: a compiler, hipcc), or it exists for CUDA, or for Linux, alone.",
        fix: &[
            "Linux, WSL: async_io: sudo apt install libaio-dev (Fedora: libaio-devel); ds_report lists what each op misses",
            "settings without that op: no offloading to NVMe, an optimizer of torch",
            "Windows: DS_BUILD_OPS=0 (DS_BUILD_AIO=0), or WSL",
        ],
        ask: &["ds_report"],
        source: "https://www.deepspeed.ai/tutorials/advanced-install/",
        ..BASE
    },
    Entry {
        id: "compile-unsupported",
        patterns: &[
            r"(?i)(?:Dynamo|torch\.compile) is not supported (?:on|for|with) (?:Python|Windows)",
            r"(?i)(?:Python \S+|Windows) not yet supported for torch\.compile",
        ],
        covers: &["torch-compile-failed"],
        cause: "This torch has no torch.compile for this Python version or for Windows: each release of torch supports it up to a certain Python (2.4 up to 3.12, 2.6 up to 3.13), and on Windows newer ones only.",
        fix: &[
            "without it: TORCHDYNAMO_DISABLE=1, or the setting of the program (torch_compile: false)",
            "Python 3.12, or a newer torch from its ROCm index",
        ],
        ask: &["python --version; python -c 'import torch; print(torch.__version__)'"],
        source: "https://github.com/pytorch/pytorch/issues/120233",
        ..BASE
    },
    Entry {
        id: "compiled-graph-overwritten",
        confidence: Medium,
        patterns: &[r"(?i)accessing tensor output of CUDAGraphs that has been overwritten"],
        cause: "torch.compile with graphs (mode=\"reduce-overhead\") reuses the memory of its results in the next step, and the program still used a result of the step before. It is not an error of the GPU.",
        fix: &[
            "no mode=\"reduce-overhead\" (the default mode, or max-autotune-no-cudagraphs)",
            "or copy the result (tensor.clone()), or call torch.compiler.cudagraph_mark_step_begin() before each step",
        ],
        source: "https://docs.pytorch.org/docs/stable/torch.compiler_cudagraph_trees.html",
        ..BASE
    },
    Entry {
        id: "vocabulary-index",
        confidence: Medium,
        patterns: &[
            r"IndexError: index out of range in self",
            r"IndexError: Target -?\d+ is out of bounds",
        ],
        cause: "An index is beyond its table: a token number beyond the embedding (a tokenizer of another model, added tokens without resize_token_embeddings, a text longer than the positions), or a label beyond the classes. It is a matter of the data, not of the GPU.",
        fix: &[
            "compare len(tokenizer) with model.config.vocab_size, and the labels with num_labels",
            "truncate texts to the length that the model has positions for",
        ],
        source: "https://huggingface.co/docs/transformers/main/en/troubleshooting",
        ..BASE
    },
    Entry {
        id: "fp8-without-hardware",
        patterns: &[
            r"(?i)_scaled_(?:grouped_)?mm\S* is only supported on",
            r"(?i)(?:FP8|Float8)\w*\b.{0,60}(?:is|are) only supported (?:on|for)",
            r"(?i)Cannot convert ScalarType Float8\w* to hipDataType",
            r"(?i)(?:fp8|float8)\b.{0,60}requires? .{0,60}(?:compute capability|sm_?8\.?9|MI300)",
            r"(?i)Tried to train with .?fp8.? .{0,60}no backend was installed",
        ],
        covers: &["operator-not-in-build", "vllm-quantization"],
        cause: "8-bit floats (fp8) are multiplied by hardware, which among AMD GPUs only the RX 9000 (RDNA 4) and the Instinct MI300 and newer have; {gpu} does not, or this version of torch or of the program does not know that it does.",
        fix: &[
            "bf16 or fp16 instead of fp8 in the settings; as weights alone (stored in fp8, computed in bf16) where the program offers that",
            "RX 9000: a newer torch and ROCm (6.4 or newer)",
        ],
        source: "https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/native/cuda/Blas.cpp",
        ..BASE
    },
    Entry {
        id: "torchao-versions",
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"(?i)Float8Tensor dispatch: attempting to run unimplemented",
            r"(?i)(?:Int8Tensor|Int4Tensor|AffineQuantizedTensor|NVFP4Tensor|MXTensor)\S* dispatch: attempting to run unimplemented",
            r"(?i)Unable to import `?torchao`? Tensor objects",
        ],
        covers: &["torchao-extensions-skipped"],
        cause: "torchao, which quantises the weights, does not fit: it was made for another version of torch, or its quantised tensors lack an operation that the program uses. The layers that failed stay as they were, so that more memory is used; training goes on.",
        fix: &[
            "the version of torchao that belongs to this torch (its table of versions: github.com/pytorch/ao/issues/2919)",
            "another quantisation in the settings (quanto, bitsandbytes), or none",
        ],
        ask: &["pip list | grep -iE 'torch'"],
        source: "https://github.com/pytorch/ao/issues/4845",
        ..BASE
    },
    Entry {
        id: "bitsandbytes-optimizer-arguments",
        patterns: &[
            r"TypeError: (?:bitsandbytes\.\S*)?\w*(?:Adam|Lion|Lamb|LARS|RMSprop|Adagrad|SGD|AdEMAMix)\w*\.__init__\(\) got an unexpected keyword argument '(?:percentile_clipping|block_wise)'",
        ],
        covers: &["argument-not-known"],
        cause: "bitsandbytes 0.50 took arguments away from its optimizers (percentile_clipping, block_wise) that this version of the program still passes.",
        fix: &[
            "a bitsandbytes 0.49 for this ROCm, or a newer version of the program",
            "until then an optimizer of torch: AdamW in place of AdamW8bit",
        ],
        ask: &["pip list | grep -iE 'bitsandbytes|torch'"],
        source: "https://github.com/LykosAI/StabilityMatrix/issues/1708",
        ..BASE
    },
    Entry {
        id: "accelerate-settings",
        severity: Warning,
        patterns: &[
            r"(?i)Less than two GPU ids were configured|Specified distributed type .* but only using 1 GPU",
            r"(?i)You need to (?:use|set|manually pass in) .?--?(?:num_processes|num_machines|multi_gpu|main_process_port)",
            r"(?i)accelerate\S*\.yaml\b.*(?:could not be found|not found|invalid)|The config file at \S+ had unknown keys",
        ],
        covers: &["launcher-reports"],
        cause: "The settings of accelerate contradict themselves or do not fit its version: several GPUs (distributed_type: MULTI_GPU) with one that is named, a number of processes that is missing, or keys that it does not know. It is not an error of the GPU.",
        fix: &[
            "accelerate config anew; one GPU: distributed_type: 'NO' and num_processes: 1 (accelerate launch --num_processes 1)",
            "accelerate env shows the settings that are used (~/.cache/huggingface/accelerate/default_config.yaml)",
        ],
        source: "https://huggingface.co/docs/accelerate/package_reference/cli",
        ..BASE
    },
];
