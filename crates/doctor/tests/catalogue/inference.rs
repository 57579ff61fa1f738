//! Messages of programs that generate images and run language models, about files, settings and workers.

/// An entry of the catalogue, and what the log says.
pub(super) const MESSAGES: &[(&str, &str)] = &[
    (
        "nunchaku-cuda",
        "Node `NunchakuFluxDiTLoader` import failed:\nModuleNotFoundError: No module named 'nunchaku'",
    ),
    (
        "ggml-stream-refused",
        "CUDA error: out of memory\n  current device: 1, in function stream at ggml-cuda/common.cuh:814\n  hipStreamCreateWithFlags(&streams[device][stream], 0x01)",
    ),
    (
        "vae-tiled-fallback",
        "Warning: Ran out of memory when regular VAE decoding, retrying with tiled VAE decoding.",
    ),
    (
        "model-lacks-part",
        "RuntimeError: ERROR: clip input is invalid: None",
    ),
    (
        "model-lacks-part",
        "AssertionError: You do not have CLIP state dict!",
    ),
    (
        "comfyui-workflow-invalid",
        "  - Value not in list: ckpt_name: 'sd_xl_base_1.0.safetensors' not in []",
    ),
    (
        "comfyui-workflow-invalid",
        "invalid prompt: {'type': 'missing_node_type', 'message': \"Node 'WanVideoModelLoader' not found. The custom node may not be installed.\"}",
    ),
    (
        "model-not-recognised",
        "RuntimeError: ERROR: Could not detect model type of: D:\\ComfyUI\\models\\diffusion_models\\qwen.safetensors",
    ),
    (
        "model-not-recognised",
        "ValueError: Unexpected architecture type in GGUF file: 'qwen3vl'",
    ),
    (
        "webui-repository-gone",
        "fatal: repository 'https://github.com/Stability-AI/stablediffusion.git/' not found",
    ),
    (
        "program-repository-changed",
        "fatal: detected dubious ownership in repository at '/workspace/ComfyUI'",
    ),
    (
        "python-version-refused",
        "This program is tested with 3.10.6 Python, but you have 3.12.4.",
    ),
    (
        "gradio-not-reachable",
        "Could not create share link. Please check your internet connection or our status page",
    ),
    (
        "port-taken",
        "OSError: [Errno 98] error while attempting to bind on address ('127.0.0.1', 8188): address already in use",
    ),
    (
        "port-taken",
        "OSError: Cannot find empty port in range: 7860-7860.",
    ),
    (
        "tokenizer-missing",
        "OSError: Can't load tokenizer for 'openai/clip-vit-large-patch14'. If you were trying to load it from 'https://huggingface.co/models', make sure you don't have a local directory with the same name.",
    ),
    (
        "forge-low-memory",
        "[Low GPU VRAM Warning] Your current GPU free memory is 614.82 MB for this VAE.",
    ),
    (
        "lora-not-applied",
        "lora key not loaded: lora_unet_double_blocks_0_img_attn_proj.alpha",
    ),
    ("zluda-hip-path", "KeyError: 'HIP_PATH'"),
    (
        "model-checkpoint-none",
        "gguf_init_from_file: failed to open GGUF file 'models/a.gguf' (No such file or directory)",
    ),
    (
        "comfyui-requirements",
        "comfyui-frontend-package is not installed.",
    ),
    (
        "comfyui-node-import",
        "   0.3 seconds (IMPORT FAILED): /home/user/ComfyUI/custom_nodes/ComfyUI-Impact-Pack",
    ),
    (
        "backend-not-started",
        "[Error] All available backends failed to load the model 'sd_xl_base_1.0.safetensors'.",
    ),
    (
        "cache-needs-flash-attention",
        "llama_init_from_model: V cache quantization requires flash_attn",
    ),
    (
        "model-other-version",
        "llama_model_load: error loading model: missing tensor 'blk.0.ffn_down_exps.weight'",
    ),
    (
        "model-other-version",
        "gguf_init_from_file_impl: tensor 'blk.0.ffn_gate_exps.weight' has invalid ggml type 39 (NONE)",
    ),
    (
        "vulkan-pipeline",
        "ggml_vulkan: Compute pipeline creation failed for mul_mat_vec_q4_k_f32_f32\nggml_vulkan: vk::Device::createComputePipeline: ErrorUnknown",
    ),
    (
        "ggml-device-name",
        "error while handling argument \"--device\": invalid device: ROCm0",
    ),
    (
        "ggml-rpc",
        "/llama.cpp/ggml/src/ggml-rpc/ggml-rpc.cpp:466: Remote RPC server crashed or returned malformed response",
    ),
    (
        "chat-template",
        "common_chat_templates_init: failed to parse chat template (defaulting to chatml): Unexpected filter",
    ),
    (
        "context-too-small",
        "srv    send_error: task id = 5, error: request (33120 tokens) exceeds the available context size (4096 tokens), try increasing it",
    ),
    (
        "projector-unfit",
        "clip_init: failed to load model 'mmproj-F16.gguf': load_hparams: unknown projector type: qwen3vl_merger",
    ),
    (
        "model-lacks-capability",
        "registry.ollama.ai/library/gemma3:12b does not support tools",
    ),
    (
        "ollama-model-missing",
        "Error: model \"llama3.5\" not found, try pulling it first",
    ),
    (
        "ollama-folder-permission",
        "Error: mkdir /usr/share/ollama/.ollama/models: permission denied",
    ),
    (
        "ollama-other-library",
        "level=WARN source=runner.go:99 msg=\"potentially incompatible library detected in PATH\" location=C:\\tools\\ggml-base.dll",
    ),
    (
        "ollama-driver-old",
        "level=WARN source=amd.go:412 msg=\"AMD driver is too old. Update your AMD driver to enable GPU inference.\"",
    ),
    (
        "lmstudio-guardrail",
        "Model loading was stopped due to insufficient system resources.",
    ),
    ("garbage-output", "> hello\nGGGGGGGGGGGGGGGGGGGGGGGGGGGG"),
    (
        "ollama-variables",
        "level=WARN source=runner.go:485 msg=\"user overrode visible devices\" HSA_OVERRIDE_GFX_VERSION=10.3.0",
    ),
    (
        "fit-not-needed",
        "llama_params_fit: failed to fit params to free device memory: n_gpu_layers already set by user to 99, abort",
    ),
    (
        "memory-not-locked",
        "warning: failed to mlock 4294967296-byte buffer (after previously locking 0 bytes): Cannot allocate memory",
    ),
    (
        "ollama-cpu-only",
        "level=INFO source=types.go:60 msg=\"inference compute\" id=cpu library=cpu compute=\"\" name=cpu description=cpu",
    ),
    (
        "graph-not-computed",
        "process_ubatch: failed to compute graph, compute status: -1",
    ),
    (
        "model-not-loaded",
        "llama_model_load_from_file_impl: failed to load model",
    ),
    (
        "engine-attention-backend",
        "ValueError: Selected backend AttentionBackendEnum.FLASHINFER is not valid for this configuration. Reason: ['compute capability not supported']",
    ),
    (
        "engine-max-length",
        "ValueError: User-specified max_model_len (131072) is greater than the derived max_model_len (max_position_embeddings=32768)",
    ),
    (
        "engine-memory-static",
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
    ),
    (
        "engine-tensor-parallel",
        "ValueError: Total number of attention heads (40) must be divisible by tensor parallel size (3).",
    ),
    (
        "engine-too-few-gpus",
        "ValueError: The number of required GPUs exceeds the total number of available GPUs in the placement group.",
    ),
    (
        "main-guard-missing",
        "        An attempt has been made to start a new process before the",
    ),
    (
        "engine-worker-hangs",
        "INFO [shm_broadcast.py:466] No available shared memory broadcast block found in 60 seconds.",
    ),
    (
        "arguments-unknown",
        "vllm serve: error: unrecognized arguments: --device rocm",
    ),
    (
        "engine-worker-died",
        "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.",
    ),
    (
        "comfyui-dynamic-memory",
        "[WARNING] No working comfy-aimdo install detected. DynamicVRAM support disabled. Falling back to legacy ModelPatcher.",
    ),
    (
        "ollama-runner-missing",
        "Error: fork/exec /tmp/ollama1234/runners/rocm_v60002/ollama_llama_server: no such file or directory",
    ),
    (
        "remote-code-asked",
        "ValueError: Loading /models/x requires you to execute the configuration file in that repo on your local machine.",
    ),
    (
        "visibility-differs",
        "ValueError: Inconsistent GPU visibility env vars: HIP_VISIBLE_DEVICES='0' vs CUDA_VISIBLE_DEVICES='1'. Please set only one, or ensure they match.",
    ),
    (
        "peer-access-refused",
        "ROCm error: peer access is not supported between these two devices",
    ),
    (
        "comfyui-nvidia-helper",
        "comfy-aimdo failed to load: libcuda.so.1: cannot open shared object file: No such file or directory\nNOTE: comfy-aimdo is currently only support for Nvidia GPUs",
    ),
    (
        "argument-not-known",
        "TypeError: load_checkpoint_and_dispatch() got an unexpected keyword argument 'force_hooks'",
    ),
    ("integrated-gpu-taken", "AMD arch: gfx1036"),
    (
        "onnxruntime-error-other",
        "[ONNXRuntimeError] : 11 : EP_FAIL : Failed to load library, error code: 126",
    ),
    (
        "hip-sdk-missing",
        "WARNING  ZLUDA failed to initialize: no HIP SDK found",
    ),
    (
        "vulkan-feature-missing",
        "Error: Fatal error: Unable to create Vulkan device, VkResult=-7",
    ),
    (
        "extension-not-built",
        "NameError: name 'exllamav2_ext' is not defined",
    ),
    (
        "blender-hip",
        "Failed to load CUDA kernel from 'kernel_compute_75.ptx' (Unknown error)",
    ),
    (
        "comfyui-nvidia-helper",
        r"comfy-aimdo failed to load: Could not find module 'C:\ComfyUI\comfy_aimdo\aimdo.dll' (or one of its dependencies).",
    ),
];
