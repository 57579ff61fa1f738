//! Messages of Python environments, containers, toolchains and what programs for models miss.

/// The entry, and what the log says.
pub(crate) const MESSAGES: &[(&str, &str)] = &[
    (
        "torch-without-distributed",
        "AttributeError: module 'torch.distributed' has no attribute 'is_initialized'",
    ),
    (
        "torch-without-distributed",
        "ModuleNotFoundError: No module named 'torch._C._distributed_c10d'; 'torch._C' is not a package",
    ),
    (
        "rocm-sdk-devel-missing",
        "ERROR: rocm_sdk_devel module for the ROCm SDK development package is not installed. This can typically be obtained by installing `rocm[devel]` from your package manager",
    ),
    (
        "rocm-sdk-missing",
        "'rocm-sdk' is not recognized as an internal or external command,",
    ),
    (
        "environment-moved",
        "Fatal error in launcher: Unable to create process using '\"D:\\old\\python.exe\"  \"D:\\new\\Scripts\\pip.exe\" list': The system cannot find the file specified.",
    ),
    (
        "long-path",
        "HINT: This error might have occurred since this system does not have Windows Long Path support enabled. You can find information on how to enable this at https://pip.pypa.io/warnings/enable-long-paths",
    ),
    (
        "space-in-path",
        "clang: error: no such file or directory: 'Files\\AMD\\ROCm\\7.2'",
    ),
    (
        "space-in-path",
        "clang: error: no such file or directory: 'Diffusion/venv/lib/python3.12/site-packages/torch/include'",
    ),
    ("space-in-path", "Doe: binary 'Doe' not prefixed by 'amd'."),
    (
        "console-encoding",
        "  File \"rocm_sdk/tests/core_test.py\", line 106\nUnicodeDecodeError: 'utf-8' codec can't decode byte 0x82 in position 1222: invalid start byte",
    ),
    (
        "file-in-use",
        "ERROR: Could not install packages due to an OSError: [WinError 5] Access is denied: 'C:\\\\venv\\\\Lib\\\\site-packages\\\\~orch\\\\lib\\\\asmjit.dll'\nC:\\venv>",
    ),
    (
        "windows-compiler-missing",
        "torch._inductor.exc.InductorError: RuntimeError: Compiler: cl is not found.",
    ),
    (
        "torchcodec",
        "RuntimeError: Could not load libtorchcodec. Likely causes:",
    ),
    (
        "container-group-unknown",
        "Error response from daemon: Unable to find group render: no matching entries in group file",
    ),
    (
        "service-group-unknown",
        "ollama.service: Failed at step GROUP spawning /usr/local/bin/ollama: No such process",
    ),
    (
        "container-device-unresolved",
        "Error: setting up CDI devices: unresolvable CDI devices amd.com/gpu=all",
    ),
    (
        "host-cpp-library-missing",
        "ld.lld: error: unable to find library -lstdc++",
    ),
    (
        "compiler-test-failed",
        "-- Check for working HIP compiler: /opt/rocm-6.3.0/lib/llvm/bin/clang - broken",
    ),
    (
        "rocwmma-mismatch",
        "fattn-wmma-f16.cu:193:21: error: no matching function for call to 'mma_sync'\n/opt/rocm/include/rocwmma/rocwmma_impl.hpp:331:9: note: candidate template ignored",
    ),
    (
        "bitcode-of-other-llvm",
        "opencl.amdgcn.bc: error: Unknown attribute kind (60) (Producer: 'LLVM4.0.0' Reader: 'LLVM 4.0.0')",
    ),
    (
        "triton-target-unsupported",
        "loc(\"triton_flash_attention.py\":309:0): error: unsupported target: 'gfx906'",
    ),
    (
        "triton-of-cuda",
        "AMD Radeon RX 7900 XTX\nRuntimeError: Internal Triton PTX codegen error:",
    ),
    (
        "graph-capture",
        "HIP error: operation not permitted when stream is capturing",
    ),
    (
        "bitsandbytes-block-size",
        "bitsandbytes/backends/cuda/ops.py\nRuntimeError: Expected cond to be True, but got False.",
    ),
    (
        "bitsandbytes-int8",
        "Exception: cublasLt ran into an error!",
    ),
    (
        "vllm-kernel-missing",
        "AttributeError: '_OpNamespace' '_C' object has no attribute 'silu_and_mul'",
    ),
    (
        "ollama-discovery-failed",
        "level=INFO source=runner.go:463 msg=\"failure during GPU discovery\" OLLAMA_LIBRARY_PATH=\"[/usr/lib/ollama /usr/lib/ollama/rocm]\" error=\"runner crashed\"",
    ),
    (
        "lmstudio-engine",
        "Failed to load LLM engine from path: C:\\llm_engine_rocm.node. The specified module could not be found.",
    ),
    (
        "magma-missing",
        "RuntimeError: Calling torch.linalg.cholesky on a CUDA tensor requires compiling PyTorch with MAGMA. Please use PyTorch built with MAGMA support.",
    ),
    (
        "float8-arithmetic",
        "RuntimeError: Promotion for Float8 Types is not supported, attempted to promote Float8_e4m3fn and BFloat16",
    ),
    (
        "amdgpu-module-missing",
        "modprobe: FATAL: Module amdgpu not found in directory /lib/modules/6.8.0-45-generic",
    ),
    (
        "windows-aborted",
        "subprocess.CalledProcessError: Command '['python.exe', 'train.py']' returned non-zero exit status 3221226505.",
    ),
    (
        "executable-stack",
        "ImportError: libamdhip64.so: cannot enable executable stack as shared object requires: Invalid argument",
    ),
    (
        "static-tls-full",
        "OSError: /lib/x86_64-linux-gnu/libgomp.so.1: cannot allocate memory in static TLS block",
    ),
    (
        "runner-crash",
        "Error: 500 Internal Server Error: do load request: Post \"http://127.0.0.1:40065/load\": EOF",
    ),
    (
        "ollama-not-running",
        "Error: could not connect to ollama app, is it running?",
    ),
    (
        "distributed-unreachable",
        "[W socket.cpp:601] [c10d] The client socket has failed to connect to [host]:29500 (errno: 113 - No route to host).",
    ),
    (
        "distributed-peer-lost",
        "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed.",
    ),
    (
        "loss-scale-minimum",
        "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",
    ),
    (
        "flash-attention-composable-kernels",
        "building 'flash_attn_2_cuda' extension\nflash-attention/csrc/composable_kernel/include/ck_tile/core/arch/generic_memory_space_atomic_hip.hpp:66:19: error: static assertion failed",
    ),
    (
        "extension-not-built",
        "ModuleNotFoundError: No module named 'mmcv._ext'",
    ),
    ("killed", "make: *** [Makefile:15: run] Error 137"),
];
