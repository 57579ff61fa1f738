//! Messages of training programs.

/// The entry, and what the log says.
pub(crate) const MESSAGES: &[(&str, &str)] = &[
    (
        "override-invalid",
        "HSA_OVERRIDE_GFX_VERSION gfx1031 is invalid",
    ),
    (
        "no-binary-for-gpu",
        "\"hipErrorNoBinaryForGpu: Unable to find code object for all current devices!\"",
    ),
    (
        "invalid-isa",
        ":0:rocdevice.cpp            :2875: 2834761829 us:  Callback: Queue 0x7f1c00000000 aborting with error : HSA_STATUS_ERROR_INVALID_ISA: The instruction set architecture is invalid. code: 0x100f",
    ),
    (
        "invalid-device-function",
        "RuntimeError: HIP error: invalid device function\nHIP kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.",
    ),
    (
        "no-kernel-image",
        "torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device",
    ),
    (
        "invalid-image",
        "RuntimeError: HIP error: device kernel image is invalid",
    ),
    (
        "tensile-library-missing",
        "rocBLAS error: Cannot read /venv/lib/python3.12/site-packages/torch/lib/rocblas/library/TensileLibrary.dat: Illegal seek for GPU arch : gfx1103",
    ),
    (
        "two-architectures-crash",
        "kpack: failed to load code object for gfx1036: error 209",
    ),
    (
        "hip-graph-with-override",
        "HSA_OVERRIDE_GFX_VERSION=10.3.0\nRuntimeError: HIP error: hipErrorStreamCaptureInvalidated during CUDAGraph.capture_end",
    ),
    (
        "stream-create-out-of-memory",
        "hipStreamCreateWithFlags failed: out of memory",
    ),
    (
        "vae-out-of-memory",
        "  File \"/app/comfy/ldm/models/autoencoder.py\", line 209, in decode\ntorch.OutOfMemoryError: HIP out of memory. Tried to allocate 9.00 GiB.",
    ),
    (
        "ttm-smaller-than-gtt",
        "[    4.51] amdgpu: [drm] GTT size has been set as 128849018880 but TTM size has been set as 66818834432, this is unusual",
    ),
    (
        "gtt-size-typo",
        "[    3.01] amdgpu: unknown parameter 'gtt_size' ignored",
    ),
    (
        "killed-by-the-kernel",
        "[ 8841.2] Out of memory: Killed process 4711 (python3) total-vm:91234567kB, anon-rss:60123456kB",
    ),
    (
        "shared-memory-too-small",
        "RuntimeError: DataLoader worker (pid 812) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory.",
    ),
    (
        "too-many-open-files",
        "OSError: [Errno 24] Too many open files: '/dev/shm/torch_1_2'",
    ),
    (
        "paging-file-too-small",
        "OSError: [WinError 1455] The paging file is too small for this operation to complete.",
    ),
    ("wsl-no-memory", "rocminfo under WSL: pool 1: 0 bytes free"),
    (
        "expandable-segments-unsupported",
        "UserWarning: expandable_segments not supported on this platform (Triggered internally at HIPAllocatorConfig.h:40.)",
    ),
    (
        "kfd-permission",
        "Unable to open /dev/kfd read-write: Permission denied",
    ),
    (
        "kfd-invalid-argument",
        "Unable to open /dev/kfd read-write: Invalid argument",
    ),
    (
        "kfd-no-memory",
        "Unable to open /dev/kfd read-write: Cannot allocate memory",
    ),
    (
        "kfd-missing",
        "ROCk module is NOT loaded, possibly no GPU devices",
    ),
    (
        "pcie-atomics",
        "[    6.1] kfd kfd: amdgpu: skipped device 1002:73df, PCI rejects atomics 730<0",
    ),
    (
        "mes-hang",
        "HW Exception by GPU node-1 (Agent handle: 0x55d) reason :GPU Hang",
    ),
    (
        "mes-hang",
        "[ 901.3] amdgpu 0000:c5:00.0: amdgpu: MES failed to respond to msg=REMOVE_QUEUE",
    ),
    (
        "gfxhub-page-fault",
        "[ 777.1] amdgpu 0000:c5:00.0: amdgpu: [gfxhub] page fault (src_id:0 ring:153 vmid:8 pasid:32773)",
    ),
    (
        "memory-access-fault",
        "Memory access fault by GPU node-1 (Agent handle: 0x5581b0) on address 0x7f2e10000000. Reason: Page not present or supervisor privilege.",
    ),
    ("out-of-registers", "Kernel launch failed: OUT_OF_REGISTERS"),
    (
        "hsa-out-of-resources",
        "hsa api call failure at: ./src/rocminfo.cc:1306, status HSA_STATUS_ERROR_OUT_OF_RESOURCES",
    ),
    (
        "illegal-address",
        "torch.AcceleratorError: HIP error: an illegal memory access was encountered",
    ),
    (
        "invalid-argument",
        "RuntimeError: HIP error: invalid argument\nSearch for `hipErrorInvalidValue' in the documentation.",
    ),
    (
        "windows-access-violation",
        "Faulting module name: amdhip64_7.dll, exception code: 0xc0000005",
    ),
    (
        "unspecified-launch-failure",
        "RuntimeError: HIP error: unspecified launch failure",
    ),
    (
        "segmentation-fault",
        "Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f (most recent call first):",
    ),
    (
        "queue-error",
        "Callback: Queue 0x7f aborting with error : HSA_STATUS_ERROR: A generic error has occurred. code: 0x1000",
    ),
    (
        "nightly-crash",
        "torch 2.10.0a0+rocm7.11.0a20251118\nAborted (core dumped)",
    ),
    (
        "lost-interrupt",
        "#3 0x00007f in rocr::core::InterruptSignal::WaitRelaxed () from libhsa-runtime64.so.1",
    ),
    (
        "lost-interrupt",
        "[ 1022.1] amdgpu 0000:c5:00.0: amdgpu: Fence fallback timer expired on ring sdma0",
    ),
    (
        "hang-suspected",
        "[ 3021.4] INFO: task python:4711 blocked for more than 122 seconds.\n[ 3021.5]       Tainted: G  OE 6.14.0-33-generic amdgpu",
    ),
    (
        "nan-from-copy",
        "AssertionError: NaN in weight after model.to('cuda'), none before the copy",
    ),
    (
        "nan-from-copy",
        "x.cuda() of a 13000x384 tensor contains 3 NaN values",
    ),
    (
        "zeros-after-memset",
        "after graph replay the buffer of grad.zero_() holds stale values",
    ),
    (
        "zeros-from-gpu",
        "torch.ones(4, device='cuda') + 1: result on the GPU is all zeros on gfx1201",
    ),
    (
        "nan-expandable-segments",
        "PYTORCH_HIP_ALLOC_CONF=expandable_segments:True\nstep 12 loss: nan",
    ),
    (
        "nan-long-context",
        "AMD Radeon RX 7900 XTX, max_length: 16384\nstep 1: loss nan",
    ),
    (
        "slow-mmap-loading",
        "Linux version 7.0.0-3-generic\nLoading checkpoint shards:  25%|##        | 1/4 [12:31<37:33, 751.20s/it]",
    ),
    (
        "nan-loss",
        "{'loss': nan, 'grad_norm': nan, 'learning_rate': 0.0001}",
    ),
    (
        "negative-loss-gfx1033",
        "device: gfx1033\nepoch 3 mse: -0.7812",
    ),
    (
        "miopen-elapsed-time",
        "MIOpen(HIP): Error [EvaluateInvokers] Invalid elapsed time (elapsed <= 0)",
    ),
    (
        "miopen-unknown-error",
        "RuntimeError: miopenStatusUnknownError",
    ),
    (
        "miopen-unknown-error",
        "terminate called: MIOpen Error: stoul",
    ),
    (
        "miopen-no-database",
        "MIOpen(HIP): Warning [ParseAndLoadDb] File is unreadable: /opt/rocm/share/miopen/db/gfx1151_40.HIP.fdb.txt",
    ),
    (
        "miopen-workspace",
        "MIOpen(HIP): Warning [IsEnoughWorkspace] Solver <GemmFwdRest>, workspace required: 4246732800, provided ptr: 0 size: 0",
    ),
    (
        "handle-creation-crash",
        "RuntimeError: CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`",
    ),
    (
        "hipblaslt-unsupported",
        "UserWarning: Attempting to use hipBLASLt on an unsupported architecture! Overriding blas backend to hipblas",
    ),
    (
        "hipblaslt-crash",
        "RuntimeError: CUDA error: HIPBLAS_STATUS_INTERNAL_ERROR when calling `hipblasLtMatmul( ltHandle, ...)`",
    ),
    (
        "aotriton-no-kernel",
        "RuntimeError: No available kernel. Aborting execution.",
    ),
    (
        "aotriton-experimental",
        "UserWarning: Flash Efficient attention on Current AMD GPU is still experimental. Enable it with TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL=1.",
    ),
    (
        "rccl-error",
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, unhandled cuda error",
    ),
    (
        "deepspeed-bf16-nan",
        "deepspeed bf16: weights are nan after step 1",
    ),
    (
        "torch-cpu-only",
        "AssertionError: Torch not compiled with CUDA enabled",
    ),
    (
        "rocm-library-mismatch",
        "ImportError: libhipblas.so: cannot open shared object file: No such file or directory",
    ),
    (
        "bitsandbytes-cuda",
        "CUDA SETUP: Required library version not found: libbitsandbytes_cuda124.so",
    ),
    (
        "xformers-missing",
        "ModuleNotFoundError: No module named 'xformers'",
    ),
    (
        "windows-arch-tool-missing",
        "could not detect ROCm GPU architecture: [WinError 2] The system cannot find the file specified",
    ),
    (
        "bad-alloc-on-import",
        "import torchaudio\nterminate called after throwing an instance of 'std::bad_alloc'",
    ),
    (
        "bitsandbytes-rocm-version",
        "Could not load bitsandbytes native library: /venv/lib/python3.12/site-packages/bitsandbytes/libbitsandbytes_rocm72.so: cannot open shared object file",
    ),
    (
        "host-allocation-failed",
        "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc",
    ),
    (
        "tensors-on-two-devices",
        "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cpu and cuda:0!",
    ),
    (
        "visibility-contradicts",
        "RuntimeError: HIP_VISIBLE_DEVICES contains more devices than ROCR_VISIBLE_DEVICES",
    ),
    ("compile-time-switch", "$ export TORCH_USE_HIP_DSA=1"),
    (
        "triton-missing",
        "ModuleNotFoundError: No module named 'triton'",
    ),
    (
        "import-error-torch",
        "ModuleNotFoundError: No module named 'torch'",
    ),
];
