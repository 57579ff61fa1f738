//! Messages of programs that train or generate, as people posted them.

/// An entry of the catalogue, and what the log says.
pub(super) const MESSAGES: &[(&str, &str)] = &[
    (
        "hipblaslt-refused",
        "!!! Exception during processing !!! Attempting to use hipBLASLt on a unsupported architecture!\nTraceback (most recent call last):",
    ),
    (
        "hipblaslt-fallback",
        "rocBLAS warning: hipBlasLT failed, falling back to tensile. ",
    ),
    (
        "hipblaslt-library-missing",
        "rocblaslt error: Cannot read \"TensileLibrary_lazy_gfx1101.dat\": No error",
    ),
    (
        "hipblaslt-library-missing",
        "rocblaslt warning: No paths matched /opt/rocm/lib/hipblaslt/library/*gfx1100*co. Make sure that HIPBLASLT_TENSILE_LIBPATH is set correctly.",
    ),
    (
        "hipblaslt-crash",
        "RuntimeError: CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling `hipblasLtMatmulAlgoGetHeuristic( ltHandle, computeDesc.descriptor()",
    ),
    (
        "cublas-internal-error",
        "RuntimeError: CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling `cublasGemmEx( handle, opa, opb, m, n, k, &falpha, a)`",
    ),
    (
        "deepspeed-asks-for-cuda",
        "  File \"/venv/lib/python3.12/site-packages/deepspeed/ops/op_builder/builder.py\", line 736, in cxx_args\n    CUDA_LIB64 = os.path.join(torch.utils.cpp_extension.CUDA_HOME, \"lib64\")\nTypeError: expected str, bytes or os.PathLike object, not NoneType",
    ),
    (
        "cuda-versions-differ",
        "Exception: >- DeepSpeed Op Builder: Installed CUDA version 12.0 does not match the version torch was compiled with 11.8, unable to compile cuda/cpp extensions without a matching cuda version.",
    ),
    (
        "cuda-versions-differ",
        "RuntimeError: \nThe detected CUDA version (12.1) mismatches the version that was used to compile\nPyTorch (11.7). Please make sure to use the same CUDA versions.",
    ),
    (
        "cuda-version-asked",
        "    return torch.version.cuda.split(\".\")[0]\nAttributeError: 'NoneType' object has no attribute 'split'",
    ),
    (
        "torch-hip-version-none",
        "torch.version.hip: None\nCUDA available: False",
    ),
    (
        "triton-helper-failed",
        "__triton_launcher.c:89: error: ',' expected (got '*')\ncc_cmd: ['C:\\venv\\Lib\\site-packages\\triton\\runtime\\tcc\\tcc.exe']",
    ),
    (
        "triton-helper-failed",
        "clang: error: linker command failed with exit code 1104 (use -v to see invocation)\n  ::  Flash attention error: Command '['C:\\\\Program Files\\\\AMD\\\\ROCm\\\\6.2\\\\bin\\\\clang.exe', 'C:\\\\Temp\\\\main.c', '-O3', '-shared', '-o', 'C:\\\\Temp\\\\__triton_launcher.cp311-win_amd64.pyd', '-LC:\\\\venv\\\\libs']' returned non-zero exit status 1104.",
    ),
    (
        "triton-compiler-not-found",
        "%%% Triton is using the compiler '177'\nFileNotFoundError: [WinError 2] The system cannot find the file specified",
    ),
    (
        "extension-for-other-torch",
        "csrc/flash_attn_ck/mha_fwd.hip:277:33: error: no member named 'getCurrentHIPStream' in namespace 'at::cuda'",
    ),
    (
        "unsloth-no-gpu",
        "NotImplementedError: Unsloth currently only works on NVIDIA GPUs and Intel GPUs.",
    ),
    (
        "terminal-closed",
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 4242 got signal: 1",
    ),
    ("no-rocm-agent", "WARNING: no ROCm agent was found!"),
    (
        "attention-for-nvidia",
        "RuntimeError: cutlassF: no kernel found to launch!",
    ),
    (
        "operator-not-in-build",
        "NotImplementedError: Could not run 'aten::_scaled_mm' with arguments from the 'CUDA' backend.",
    ),
    (
        "zluda-not-starting",
        "C:\\ComfyUI-Zluda\\venv\\Lib\\site-packages\\torch\\cuda\\__init__.py\nRuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment",
    ),
    (
        "host-memory-registered",
        "torch.AcceleratorError: HIP error: part or all of the requested memory range is already mapped",
    ),
    (
        "model-exceeds-ram",
        "RuntimeError: unable to mmap 13421772800 bytes from file </models/x.safetensors>: Cannot allocate memory (12)",
    ),
    (
        "quantized-model-too-large",
        "ValueError: Some modules are dispatched on the CPU or the disk. Make sure you have enough GPU RAM to fit the quantized model.",
    ),
    (
        "operation-lacks-type",
        "RuntimeError: \"nll_loss_forward_reduce_cuda_kernel_2d_index\" not implemented for 'Int'",
    ),
    (
        "import-wrapped",
        "RuntimeError: Failed to import transformers.models.clip.modeling_clip because of the following error (look up to see its traceback):",
    ),
    (
        "cudnn-status",
        "RuntimeError: cuDNN Frontend error: [cudnn_frontend] Error: No execution plans support the graph.",
    ),
    (
        "torch-without-distributed",
        "AttributeError: '_OpNamespace' '_c10d_functional' object has no attribute 'all_gather_into_tensor'",
    ),
    (
        "types-differ",
        "RuntimeError: Input type (float) and bias type (struct c10::Half) should be the same",
    ),
    (
        "graph-capture",
        "RuntimeError: CUDA error: operation not permitted when stream is capturing",
    ),
    (
        "duplicate-gpu",
        "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 3000",
    ),
    (
        "runs-on-cpu",
        "[InvokeAI]::INFO --> Using torch device: CPU",
    ),
    (
        "runs-on-cpu",
        "16:22:11-123456 INFO     Torch: device=\"cpu\"",
    ),
    (
        "cuda-error-other",
        "AMD arch: gfx1100\nRuntimeError: CUDA error: invalid texture reference",
    ),
    (
        "aiter-unsupported",
        "ImportError: [aiter] build [module_mha_fwd] failed",
    ),
    (
        "shapes-differ",
        "RuntimeError: The expanded size of the tensor (768) must match the existing size (1024) at non-singleton dimension 1.",
    ),
    (
        "pip-other-platform",
        "error: Distribution `torch==2.4.1+rocm6.1` can't be installed because it doesn't have a source distribution or wheel for the current platform",
    ),
    (
        "ray-visible-devices",
        "RuntimeError: Please use HIP_VISIBLE_DEVICES instead of ROCR_VISIBLE_DEVICES",
    ),
    (
        "apex-missing",
        "ValueError: --optim adamw_apex_fused: Trainer tried to instantiate apex FusedAdam but apex is not installed!",
    ),
    (
        "apex-missing",
        "RuntimeError: apex.optimizers.FusedAdam requires cuda extensions",
    ),
    (
        "apex-missing",
        "AssertionError: APEX and CUDA required for fused optimizers",
    ),
    (
        "quantized-engine-missing",
        "RuntimeError: quantized engine FBGEMM is not supported",
    ),
    (
        "quantized-engine-missing",
        "RuntimeError: Didn't find engine for operation quantized::conv2d_prepack NoQEngine",
    ),
    (
        "matrix-not-positive-definite",
        "torch._C._LinAlgError: linalg.cholesky: The factorization could not be completed because the input is not positive-definite (the leading minor of order 24551 is not positive-definite).",
    ),
    (
        "checkpoint-device-missing",
        "RuntimeError: Attempting to deserialize object on CUDA device 3 but torch.cuda.device_count() is 2. Please use torch.load with map_location to map your storages to an existing device.",
    ),
    (
        "trainer-arguments-renamed",
        "TypeError: SFTTrainer.__init__() got an unexpected keyword argument 'tokenizer'",
    ),
    (
        "trainer-arguments-renamed",
        "TypeError: SFTConfig.__init__() got an unexpected keyword argument 'max_seq_length'. Did you mean 'max_length'?",
    ),
    (
        "torch-too-old-to-load",
        "ValueError: Due to a serious vulnerability issue in `torch.load`, even with `weights_only=True`, we now require users to upgrade torch to at least v2.6 in order to use the function.",
    ),
    (
        "flash-attention-needs-16-bit",
        "RuntimeError: FlashAttention only support fp16 and bf16 data type",
    ),
    (
        "flash-attention-needs-16-bit",
        "ValueError: Flash Attention 2.0 only supports torch.float16 and torch.bfloat16 dtypes, but the current dype in LlamaForCausalLM is torch.float32.",
    ),
];
