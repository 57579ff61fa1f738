//! Messages of the NPU, containers, virtual machines, servers, and of tools of other versions.

/// An entry of the catalogue, and what the log says.
pub(super) const MESSAGES: &[(&str, &str)] = &[
    (
        "npu-firmware",
        "amdxdna 0000:c6:00.1: [drm] *ERROR* aie2_hw_start: firmware is not alive",
    ),
    (
        "npu-firmware",
        "amdxdna 0000:c5:00.1: Direct firmware load for amdnpu/1502_00/npu.sbin failed with error -2",
    ),
    (
        "npu-iommu",
        "amdxdna 0000:c5:00.1: [drm] *ERROR* amdxdna_drm_open: SVA bind device failed, ret -19",
    ),
    (
        "npu-memlock",
        "[xrt-smi] ERROR: mmap(addr=0x793258000000, len=67108864, prot=3, flags=8209, offset=4362100736) failed (err=-11): Resource temporarily unavailable",
    ),
    (
        "npu-permission",
        "[xrt-smi] ERROR: DRM_IOCTL_AMDXDNA_SET_STATE IOCTL failed (err=13): Permission denied",
    ),
    (
        "npu-driver-differs",
        "[xbutil] ERROR: DRM_IOCTL_AMDXDNA_GET_INFO IOCTL failed (err=95): Operation not supported",
    ),
    ("npu-not-found", "[ERROR]  No NPU device found."),
    (
        "docker-device-missing",
        "docker: Error response from daemon: error gathering device information while adding custom device \"/dev/kfd\": no such file or directory",
    ),
    (
        "docker-device-wsl",
        "Linux host 5.15.167.4-microsoft-standard-WSL2\nError: stat /dev/kfd: no such file or directory",
    ),
    (
        "docker-device-windows",
        "PS C:\\ai> docker compose up\nError response from daemon: error gathering device information while adding custom device \"/dev/kfd\": no such file or directory",
    ),
    (
        "container-one-render-node",
        "podman run --device /dev/kfd --device /dev/dri/renderD129 rocm/dev rocminfo\nCall returned HSA_STATUS_ERROR_OUT_OF_RESOURCES",
    ),
    (
        "kubernetes-no-gpu",
        "Warning  FailedScheduling  5s  default-scheduler  0/1 nodes are available: 1 Insufficient amd.com/gpu.",
    ),
    (
        "kubernetes-nvidia-asked",
        "0/2 nodes are available: 2 Insufficient nvidia.com/gpu. preemption: 0/2 nodes are available",
    ),
    (
        "virtual-machine-reset",
        "vfio-pci 0000:84:00.0: not ready 65535ms after bus reset; giving up",
    ),
    (
        "virtual-machine-group",
        "qemu-system-x86_64: vfio 0000:0a:00.0: group 15 is not viable",
    ),
    (
        "amdgpu-install-distribution",
        "Unsupported OS: /etc/os-release ID 'pop'",
    ),
    (
        "hip-with-other-compiler",
        "Only LLVM is supported for HIP, hint: CC=/opt/rocm/llvm/bin/clang",
    ),
    (
        "cmake-rocm-root",
        "CMake Error at CMakeDetermineHIPCompiler.cmake:197 (message):\n  Failed to find ROCm root directory.",
    ),
    (
        "hipcc-takes-nvidia",
        "Can't exec \"/usr/local/cuda/bin/nvcc\": No such file or directory at /usr/bin/hipcc.pl line 634.",
    ),
    (
        "tensorflow-other-rocm",
        "ROCm Configuration Error: Cannot find rocm library hip_hcc",
    ),
    (
        "amd-smi-versions",
        "AttributeError: /opt/rocm-7.0.1/lib/libamd_smi.so: undefined symbol: amdsmi_get_gpu_partition_metrics_info",
    ),
    (
        "amd-smi-versions",
        "AttributeError: module 'amdsmi.amdsmi_interface' has no attribute 'amdsmi_get_node_handle'",
    ),
    (
        "amd-smi-python-module",
        "$ amd-smi\nModuleNotFoundError: No module named 'yaml'",
    ),
    (
        "rocm-package-incomplete",
        "FileNotFoundError: Could not find rocm library 'hipblaslt' at path 'C:\\x\\hipblaslt*.dll', no match found",
    ),
    (
        "rocm-smi-no-answer",
        "ERROR:root:ROCm SMI returned 8 (the expected value is 0)",
    ),
    (
        "lapack-missing",
        "ImportError: /venv/lib/libtorch_cpu.so: undefined symbol: zgetrs_",
    ),
    (
        "iommu-not-passed",
        "host:402:402 [0] init.cc:179 RCCL WARN Missing \"iommu=pt\" from kernel command line which can lead to system instablity or hang!",
    ),
    (
        "directml-memory",
        "RuntimeError: Could not allocate tensor with 4915840 bytes. There is not enough GPU video memory available!",
    ),
    (
        "directml-device",
        "RuntimeError: tensor.device().type() == at::DeviceType::PrivateUse1 INTERNAL ASSERT FAILED. unbox expects Dml at::Tensor as inputs",
    ),
    (
        "directml-limits",
        "RuntimeError: new(): expected key in DispatchKeySet(CPU, CUDA, HIP, XLA, MPS) but got: PrivateUse1",
    ),
    (
        "directml-not-on-linux",
        "/home/user/venv/lib/torch_directml/libdirectml.so\nterminated by signal SIGSEGV (Address boundary error)",
    ),
    (
        "server-shared-memory",
        "ERROR shard-manager: text_generation_launcher: Shard process was signaled to shutdown with signal 7 rank=1",
    ),
    (
        "server-out-of-ram",
        "ERROR shard-manager: text_generation_launcher: Shard process was signaled to shutdown with signal 9 rank=0",
    ),
    (
        "tgi-no-flash-attention",
        "NotImplementedError: Sharded Llama requires Flash Attention enabled models.",
    ),
    ("server-shard-failed", "Error: ShardCannotStart"),
    (
        "sglang-architecture",
        "Warning: Unsupported GPU architecture detected 'gfx1101'. Expected 'gfx942' or 'gfx950'.",
    ),
    (
        "ggml-runtime-call",
        "ggml-cuda.cu:2641: GGML_ASSERT(stat == cudaSuccess) failed",
    ),
    ("ggml-without-gpu", "whisper_backend_init_gpu: no GPU found"),
    (
        "ggml-without-gpu",
        "warning: no usable GPU found, --gpu-layers option will be ignored",
    ),
    (
        "lmstudio-survey",
        "Error trying to query ROCm GPUs: Failed to get memory info for hip device id \"0\".",
    ),
    (
        "zluda-files-missing",
        "function 'zluda_get_nightly_flag' not found, but nccl.dll is missing.",
    ),
    (
        "zluda-cublas",
        "CUDA error: the function requires an architectural feature absent from the device\n  in function ggml_cuda_op_mul_mat_cublas at C:\\llamaZLUDA\\llama.cpp\\ggml-cuda.cu:1333",
    ),
    (
        "wsl-package-missing",
        "E: Unable to locate package hsa-runtime-rocr4wsl-amdgpu",
    ),
    (
        "hip-runtime-assertion",
        "llamafile: /usr/src/debug/hip-runtime-amd/clr-rocm-5.7.1/rocclr/os/os_posix.cpp:310: static void amd::Os::currentStackInfo(unsigned char**, size_t*): Assertion `Os::currentStackPtr() >= *base - *size' failed.",
    ),
    (
        "hip-sources-differ",
        "q4_matmul.hip:82:45: error: no viable conversion from '__half' to '__fp16'",
    ),
    (
        "compiler-option-unknown",
        "error: unknown warning option '-Wnrvo' [-Werror,-Wunknown-warning-option]",
    ),
    (
        "compiler-option-unknown",
        "clang++: error: unknown argument: '-lineinfo'",
    ),
    (
        "migraphx-failed",
        "terminate called after throwing an instance of 'migraphx::version_2_8_0::exception'",
    ),
    (
        "package-manager-busy",
        "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 1234 (unattended-upgr)",
    ),
    (
        "package-files-conflict",
        "error: failed to commit transaction (conflicting files)\nrocm-core: /opt/rocm/.info/version exists in filesystem",
    ),
    (
        "package-files-conflict",
        ":: installing rocm-core (6.4.0-1) breaks dependency 'rocm-core=6.2.4' required by rocm-llvm",
    ),
    (
        "package-signature",
        "error: rocm-hip-sdk: signature from \"arch4edu\" is unknown trust",
    ),
    (
        "dkms-leftover",
        "Error! Could not locate dkms.conf file.\nFile: /usr/src/amdgpu-6.3.6/dkms.conf does not exist.",
    ),
    (
        "container-program-missing",
        "docker: Error response from daemon: OCI runtime create failed: exec: \"rocminfo\": executable file not found in $PATH",
    ),
    (
        "container-image-unknown",
        "docker: Error response from daemon: manifest for rocm/pytorch:rocm7.0 not found: manifest unknown",
    ),
    (
        "docker-daemon-refused",
        "docker: permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock",
    ),
    (
        "bus-errors-corrected",
        "pcieport 0000:00:01.1: AER: Corrected error received: 0000:03:00.0",
    ),
    (
        "machine-check",
        "mce: [Hardware Error]: Machine check events logged",
    ),
    (
        "vulkan-feature-missing",
        "error loading model: vk::PhysicalDevice::createDevice: ErrorExtensionNotPresent",
    ),
    (
        "hsa-out-of-resources",
        "hsa api call failure at line 900, file: /src/rocminfo/rocminfo.cc. Call returned 4104",
    ),
    (
        "virtual-machine-group",
        "TASK ERROR: cannot prepare PCI pass-through, IOMMU not present",
    ),
];
