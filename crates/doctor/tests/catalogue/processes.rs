//! Messages of programs with several processes, of kernels and compilers, and remarks that stop nothing.

/// The entry, and what the log says.
pub(crate) const MESSAGES: &[(&str, &str)] = &[
    (
        "fork-after-gpu",
        "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start method",
    ),
    (
        "no-nccl",
        "RuntimeError: Distributed package doesn't have NCCL built in",
    ),
    (
        "no-libuv",
        "RuntimeError: use_libuv was requested but PyTorch was built without libuv support, run with USE_LIBUV=0 to disable it.",
    ),
    (
        "distributed-port-taken",
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
    ),
    (
        "distributed-timeout",
        "torch.distributed.DistStoreError: Timed out after 1801 seconds waiting for clients. 1/2 clients joined.",
    ),
    (
        "device-number",
        "ROCm error: invalid device ordinal\n  current device: 2, in function ggml_cuda_set_device at ggml-cuda.cu:98",
    ),
    (
        "ended-by-abort",
        "ERROR:composer.cli.launcher:Rank 2 crashed with exit code -6",
    ),
    (
        "ended-by-abort",
        "  exitcode  : -6 (pid: 3180)\n  traceback : Signal 6 (SIGABRT) received by PID 3180",
    ),
    (
        "amdgpu-ids-harmless",
        "/opt/amdgpu/share/libdrm/amdgpu.ids: No such file or directory",
    ),
    (
        "drm-descriptors-harmless",
        "amdgpu: os_same_file_description couldn't determine if two DRM fds reference the same file description.",
    ),
    (
        "drm-descriptors-harmless",
        "[    6.8] amdgpu 0000:03:00.0: [drm] Cannot find any crtc or sizes",
    ),
    (
        "xnack-harmless",
        "warning: xnack 'Off' was requested for a processor that does not support it! [-Wpass-failed]",
    ),
    (
        "flash-attention-not-built-in",
        "UserWarning: 1Torch was not compiled with flash attention. (Triggered internally at sdp_utils.cpp:555.)",
    ),
    (
        "amdgpu-arch-harmless",
        "[WARNING] failed to run amdgpu-arch: binary not found.",
    ),
    (
        "llvm-target-unknown",
        "Cannot find target for triple amdgcn-- Unable to find target for this triple (no targets are registered)",
    ),
    (
        "atomics-needed",
        "NCCL WARN HIP failure 'the operation cannot be performed in the present state'\n[    5.3] amdgpu 0000:07:00.0: PCIE atomic ops is not supported",
    ),
    (
        "host-memory-limit",
        "amdgpu: SVM mapping failed, exceeds resident system memory limit",
    ),
    (
        "gpu-off-the-bus",
        "snd_hda_intel 0000:03:00.1: Unable to change power state from D3cold to D0, device inaccessible",
    ),
    (
        "kernel-oops",
        "BUG: kernel NULL pointer dereference, address: 0000000000000010\nRIP: 0010:kfd_process_notifier_release+0x1d/0x50 [amdgpu]",
    ),
    (
        "card-bios-stuck",
        "[drm:amdgpu_atom_execute_table_locked [amdgpu]] *ERROR* atombios stuck executing 9300 (len 1031, WS 12, PS 8) @ 0x93A0",
    ),
    (
        "drm-permission",
        "_amdgpu_device_initialize: amdgpu_query_info(ACCEL_WORKING) failed (-13)",
    ),
    (
        "warp-functions-of-cuda",
        "common.cuh:450:14: error: use of undeclared identifier '__shfl_xor_sync'",
    ),
    (
        "warp-functions-of-cuda",
        "amd_warp_sync_functions.h:234:3: error: static assertion failed due to requirement 'sizeof(unsigned int) == 8': The mask must be a 64-bit integer.",
    ),
    (
        "hip-source-as-cuda",
        "clang++: error: unsupported CUDA gpu architecture: gfx1100",
    ),
    (
        "directml-other-torch",
        "C:\\ai> python main.py\nImportError: DLL load failed while importing torch_directml_native: The specified procedure could not be found.",
    ),
    (
        "ollama-little-vram",
        "time=2024-02-17T10:00:00Z level=INFO source=llm.go:111 msg=\"not enough vram available, falling back to CPU only\"",
    ),
    (
        "miopen-temporary-folder",
        "  what():  boost::filesystem::remove: Directory not empty [system:39]: \"/mnt/disk/TEMP/miopen-interim-hsaco-14f9-265d-b201-680e\"",
    ),
    (
        "program-check-failed",
        "ggml/src/ggml-cuda/fattn-common.cuh:919: GGML_ASSERT(max_blocks_per_sm > 0) failed",
    ),
    (
        "program-check-failed",
        "stl_vector.h: /usr/include/c++/16/bits/stl_vector.h:1263: reference std::vector<int>::operator[](size_type): Assertion '__n < this->size()' failed.",
    ),
    (
        "rpm-dependencies",
        "  - nothing provides libtinfo.so.5()(64bit) needed by comgr-2.4.0.50300-63.el7.x86_64",
    ),
    (
        "package-half-installed",
        "E: The package amdgpu-dkms needs to be reinstalled, but I can't find an archive for it.",
    ),
    (
        "cudnn-status",
        "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
    ),
    (
        "architecture-not-reported",
        "AttributeError: 'torch._C._CudaDeviceProperties' object has no attribute 'gcnArchName'",
    ),
    (
        "host-compiler-missing",
        "error: command 'x86_64-linux-gnu-g++' failed: No such file or directory",
    ),
    (
        "gpu-off-the-bus",
        "amdgpu 0000:03:00.0: not ready 65535ms after resume; giving up",
    ),
];
