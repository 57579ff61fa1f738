//! Messages of the kernel, of installers and of programs that run models, as people posted them.

/// An entry of the catalogue, and what the log says.
pub(super) const MESSAGES: &[(&str, &str)] = &[
    (
        "resume-failed",
        "amdgpu 0000:03:00.0: amdgpu: amdgpu_device_ip_resume failed (-5).",
    ),
    (
        "kernel-no-gpu-memory",
        "[drm:amdgpu_cs_ioctl [amdgpu]] *ERROR* Not enough memory for command submission!",
    ),
    (
        "kfd-unsupported",
        "kernel: kfd2kgd: kfd not supported on this ASIC",
    ),
    (
        "kfd-unsupported",
        "kfd kfd: amdgpu: OLAND  not supported in kfd",
    ),
    (
        "gpu-off-the-bus",
        "amdgpu 0000:03:00.0: amdgpu: device lost from bus!",
    ),
    (
        "iommu-fault",
        "amdgpu 0000:03:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x000e address=0x0 flags=0x0000]",
    ),
    (
        "hardware-error-memory",
        "amdgpu 0000:83:00.0: amdgpu: 1 uncorrectable hardware errors detected in umc block",
    ),
    (
        "too-hot",
        "amdgpu 0000:03:00.0: amdgpu: ERROR: GPU over temperature range(SW CTF) detected!",
    ),
    (
        "kfd-queue-evicted",
        "amdgpu: Freeing queue vital buffer 0x7f2b1c200000, queue evicted",
    ),
    (
        "smu-no-answer",
        "amdgpu 0000:03:00.0: amdgpu: SMC engine is not correctly up!",
    ),
    (
        "display-hang",
        "[drm:drm_atomic_helper_wait_for_flip_done [drm_kms_helper]] *ERROR* [CRTC:79:crtc-0] flip_done timed out",
    ),
    (
        "kernel-statistics-harmless",
        "amdgpu: VM memory stats for proc (0) task (0) is non-zero when fini",
    ),
    (
        "slot-without-atomics",
        "[    5.3] amdgpu 0000:07:00.0: PCIE atomic ops is not supported",
    ),
    (
        "wsl-dkms",
        "Linux host 6.6.36-microsoft-standard-WSL2\ndpkg: error processing package amdgpu-dkms (--configure):",
    ),
    (
        "zluda-call-unsupported",
        "ComfyUI-Zluda: RuntimeError: CUDA error: operation not supported",
    ),
    ("illegal-instruction", "Illegal instruction (core dumped)"),
    (
        "gpu-illegal-instruction",
        "RuntimeError: HIP error: an illegal instruction was encountered",
    ),
    (
        "launch-too-large",
        "RuntimeError: HIP error: invalid configuration argument",
    ),
    (
        "fft-failed",
        "RuntimeError: cuFFT error: CUFFT_INTERNAL_ERROR",
    ),
    (
        "crash-in-triton",
        "RuntimeError: Triton Error [HIP]:  Code: 719, Messsage: unspecified launch failure",
    ),
    (
        "windows-fatal-breakpoint",
        "Windows fatal exception: code 0x80000003\nC:\\venv\\python.exe",
    ),
    (
        "vulkan-device-lost",
        "  what():  vk::Queue::submit: ErrorDeviceLost",
    ),
    (
        "vulkan-buffer-limit",
        "ggml_vulkan: Device memory allocation of size 5368709120 failed.",
    ),
    ("vulkan-no-device", "ggml_vulkan: No devices found."),
    (
        "vulkan-sdk-missing",
        "Could NOT find Vulkan (missing: Vulkan_LIBRARY Vulkan_INCLUDE_DIR glslc)",
    ),
    (
        "ollama-system-memory",
        "Error: model requires more system memory (9.5 GiB) than is available (1.6 GiB)",
    ),
    (
        "ollama-rocm-library",
        "level=WARN source=amd_linux.go:384 msg=\"amdgpu detected, but no compatible rocm library found.\"",
    ),
    (
        "ollama-igpu-skipped",
        "level=INFO source=amd_linux.go:296 msg=\"unsupported Radeon iGPU detected skipping\" id=0",
    ),
    (
        "runner-illegal-instruction",
        "Error: llama runner process has terminated: exit status 0xc000001d",
    ),
    (
        "runner-missing-dll",
        "C:\\> ollama run llama3\nError: llama runner process has terminated: exit status 0xc0000135 C:\\ollama.exe",
    ),
    (
        "runner-crash",
        "Error: llama runner process has terminated: exit status 0xc0000409",
    ),
    (
        "runner-crash",
        "The model has crashed without additional information. (Exit code: 18446744072635812000)",
    ),
    (
        "runner-start-timeout",
        "Error: timed out waiting for llama runner to start - progress 0.00",
    ),
    (
        "model-too-new",
        "error loading model: error loading model architecture: unknown model architecture: 'qwen35'",
    ),
    (
        "model-file-damaged",
        "safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer",
    ),
    (
        "vllm-memory-share",
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`",
    ),
    (
        "vllm-quantization",
        "ValueError: fp8 quantization is currently not supported in ROCm.",
    ),
    (
        "vllm-engine-failed",
        "RuntimeError: Engine core initialization failed. See root cause above.",
    ),
    (
        "aiter-unsupported",
        "ModuleNotFoundError: No module named 'aiter'",
    ),
    (
        "ctranslate2-cuda",
        "ValueError: This CTranslate2 package was not compiled with CUDA support",
    ),
    (
        "onnxruntime-provider",
        "UserWarning: Specified provider 'ROCMExecutionProvider' is not in available provider names.",
    ),
    (
        "tensorflow-gpu-left-out",
        "Ignoring visible gpu device (device: 0, name: AMD Radeon RX 6700 XT, pci bus id: 0000:2f:00.0) with AMDGPU version : gfx1031. The supported AMDGPU versions are gfx1030, gfx900.",
    ),
    (
        "tensorflow-no-cuda",
        "I external/local_tsl/tsl/cuda/cudart_stub.cc:31] Could not find cuda drivers on your machine, GPU will not be used.",
    ),
    (
        "blender-hip",
        "Failed to load HIP kernel from \"/opt/blender/kernel_gfx1036.fatbin\"",
    ),
    ("opencl-no-platform", "ERROR: clGetPlatformIDs(-1001)"),
    (
        "directml-limits",
        "C:\\venv\\python.exe RuntimeError: The GPU device does not support Double (Float64) operations!",
    ),
    (
        "zluda-first-run",
        "Compilation is in progress. Please wait...",
    ),
    (
        "disk-full",
        "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
    ),
    (
        "externally-managed",
        "error: externally-managed-environment",
    ),
    (
        "pip-download-broken",
        "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.",
    ),
    (
        "pip-conflict",
        "ERROR: ResolutionImpossible: for help visit https://pip.pypa.io",
    ),
    (
        "wheel-build-failed",
        "ERROR: Failed building wheel for pyaudio",
    ),
    (
        "package-versions-differ",
        "ImportError: cannot import name 'cached_download' from 'huggingface_hub' (/venv/x.py)",
    ),
    ("nvidia-tools-asked", "/bin/sh: 1: nvidia-smi: not found"),
    (
        "half-precision-needs-gpu",
        "ValueError: fp16 mixed precision requires a GPU (not 'cpu').",
    ),
    (
        "bf16-unsupported",
        "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0.",
    ),
    (
        "sage-attention",
        "ModuleNotFoundError: No module named 'sageattention'",
    ),
    (
        "watchdog-timeout",
        "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12)",
    ),
    (
        "shapes-differ",
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (77x2048 and 768x320)",
    ),
    (
        "program-not-gpu",
        "RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn",
    ),
    (
        "repository-gated",
        "huggingface_hub.errors.GatedRepoError: 401 Client Error.",
    ),
    (
        "hip-error-other",
        "RuntimeError: HIP error: out of green cheese",
    ),
    ("hsa-error-other", "rocr: HSA_STATUS_ERROR_INVALID_AGENT"),
    (
        "rocm-math-error-other",
        "HIPSOLVER_STATUS_HANDLE_IS_NULLPTR",
    ),
    (
        "miopen-error-other",
        "MIOpen Error: /src/MIOpen/src/tensor.cpp:12: strides",
    ),
    (
        "kernel-driver-error-other",
        "[drm:dm_helpers_dp_read_dpcd [amdgpu]] *ERROR* Failed to find connector",
    ),
];
