//! Messages as people post them: of installers, kernels, servers and Windows. Lines that show
//! the system stand beside those that mean nothing without it.

/// The entry, and what the log says.
pub(crate) const MESSAGES: &[(&str, &str)] = &[
    (
        "kubernetes-no-gpu",
        "  Warning  FailedScheduling  29m  default-scheduler  0/1 nodes are available: 1 Insufficient amd.com/gpu. preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod..",
    ),
    (
        "kubernetes-no-gpu",
        "status.capacity.amd.com/gpu: 0\nstatus.allocatable.amd.com/gpu: 0",
    ),
    ("kubernetes-no-gpu", "Allocatable:\n  amd.com/gpu:        0"),
    (
        "launcher-no-agent",
        "13:25:40-858962 WARNING  ROCm: no agent was found",
    ),
    (
        "wsl-rocdxg-mismatch",
        "WSL environment detected.\nGetExportAddress failed: /lib/librocdxg.so: undefined symbol: hsaKmtCreateQueueV2",
    ),
    (
        "wsl-rocdxg-missing",
        "WSL environment detected.\nImportError: librocdxg.so: cannot open shared object file: No such file or directory",
    ),
    (
        "rccl-iommu",
        "host:204802:204836 [1] rccl/build/release/hipify/src/transport/p2p.cc:220 NCCL WARN hipIpcGetMemHandle failed : invalid argument",
    ),
    (
        "bf16-without-hardware",
        "LLVM ERROR: Cannot select: intrinsic %llvm.amdgcn.fdot2.bf16.bf16",
    ),
    (
        "rocm-compiler-missing",
        "Can't exec \"/opt/rocm/llvm/bin/clang++\": No such file or directory at /opt/rocm-3.9.1/hip/bin/hipconfig line 141.",
    ),
    (
        "apt-unmet-dependencies",
        "The following packages have unmet dependencies:\n hipsolver : Depends: libcholmod3 but it is not installable",
    ),
    (
        "xformers-composable-kernels",
        "RuntimeError: HIP Function Failed (/__w/xformers/xformers/third_party/composable_kernel_tiled/include/ck_tile/host/kernel_launch_hip.hpp,77) invalid device function",
    ),
    (
        "ggml-no-code",
        "ggml_cuda_compute_forward: RMS_NORM failed\nROCm error: invalid device function\n  current device: 0, in function ggml_cuda_compute_forward at llama/ggml-cuda/ggml-cuda.cu:2218",
    ),
    (
        "no-binary-for-gpu",
        ":1:hip_fatbin.cpp           :687 : 114369963532 us:  No compatible code objects found for: gfx1152, value of HIP_FORCE_SPIRV_CODEOBJECT: 0",
    ),
    (
        "no-binary-for-gpu",
        ":1:hip_code_object.cpp      :624 : 1234us: [pid:3821] Cannot find CO in the bundle for ISA: amdgcn-amd-amdhsa--gfx1102",
    ),
    (
        "invalid-image",
        "RuntimeError: HIP error: shared object initialization failed",
    ),
    (
        "tensile-capabilities",
        "Tensile::FATAL: Cached asm caps differ from derived asm caps for (11, 0, 0)",
    ),
    (
        "tensile-broken-library",
        "rocBLAS error: Tensile solution found, but exception thrown for { a_type: \"f16_r\", b_type: \"f16_r\" }",
    ),
    (
        "tensile-library-missing",
        "rocBLAS error: Could not load C:\\Program Files\\AMD\\ROCm\\6.1\\bin\\/rocblas/library/TensileLibrary_lazy_gfx1103.dat",
    ),
    (
        "no-wheel-for-old-gpu",
        "NVIDIA GeForce with CUDA capability sm_120 is not compatible with the current PyTorch installation.",
    ),
    (
        "compiler-too-old-for-gpu",
        "clang: error: invalid target ID 'gfx1151'; format is a processor name followed by an optional colon-delimited list of features",
    ),
    (
        "hip-malloc-async",
        "what():  hipMallocAsync( &ptr, size, 0 ) error( hipErrorOutOfMemory): out of memory /builds/core/src/HIP/Kokkos_HIP_Space.cpp:68",
    ),
    (
        "ggml-out-of-memory",
        "CUDA error: out of memory\n  current device: 0, in function alloc at /go/src/github.com/ollama/ollama/llm/llama.cpp/ggml-cuda.cu:233",
    ),
    (
        "pinned-memory-refused",
        "RuntimeError: hipHostMalloc failed: out of memory",
    ),
    (
        "out-of-memory-without-numbers",
        "torch.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of memory)",
    ),
    (
        "amdgpu-dkms-build",
        "Building for 6.14.0-24-generic\nError! Bad return status for module build on kernel: 6.14.0-24-generic (x86_64)\nConsult /var/lib/dkms/amdgpu/6.12.12-2164967.24.04/build/make.log for more information.",
    ),
    (
        "amdgpu-dkms-headers",
        "Error! Your kernel headers for kernel 6.8.0-45-generic cannot be found at /lib/modules/6.8.0-45-generic/build or /lib/modules/6.8.0-45-generic/source. dkms",
    ),
    (
        "amdgpu-not-signed",
        "modprobe: ERROR: could not insert 'amdgpu': Key was rejected by service",
    ),
    (
        "gpu-init-failed",
        "[   12.1] amdgpu 0000:c7:00.0: amdgpu: Fatal error during GPU init",
    ),
    (
        "firmware-not-needed",
        "[    3.353884] amdgpu 0000:19:00.0: Direct firmware load for amdgpu/vega20_ta.bin failed with error -2",
    ),
    (
        "firmware-missing",
        "[    3.1] amdgpu 0000:03:00.0: Direct firmware load for amdgpu/gc_11_0_0_pfp.bin failed with error -2",
    ),
    (
        "pci-window-too-small",
        "[    2.1] amdgpu 0000:05:00.0: BAR 0: no space for [mem size 0x10000000 64bit pref]",
    ),
    (
        "docker-gpus-flag",
        "docker: Error response from daemon: could not select device driver \"\" with capabilities: [[gpu]].",
    ),
    (
        "kfd-permission",
        "openat(AT_FDCWD, \"/dev/kfd\", O_RDWR|O_CLOEXEC) = -1 EACCES (Keine Berechtigung)",
    ),
    (
        "kfd-no-memory",
        "openat(AT_FDCWD, \"/dev/kfd\", O_RDWR|O_CLOEXEC) = -1 ENOMEM (无法分配内存)",
    ),
    (
        "docker-device-missing",
        "docker: Error response from daemon: error gathering device information while adding custom device \"/dev/kfd\": no such file or directory.",
    ),
    (
        "mes-hang",
        "Apr 12 00:54:42 host kernel: [drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx_0.0.0 timeout, signaled seq=159760, emitted seq=159762",
    ),
    (
        "dkms-driver-in-use",
        "[    5.1] amdgpu: loading out-of-tree module taints kernel.\n[  301.4] [amdgpu] *ERROR* ring sdma0 timeout",
    ),
    (
        "hsa-init-failed",
        "Call returned HSA_STATUS_ERROR: A generic error has occurred.",
    ),
    ("no-hip-device", "RuntimeError: No HIP GPUs are available"),
    (
        "no-hip-device",
        "rocBLAS error: Could not initialize Tensile host: No devices found",
    ),
    (
        "amdsmi-harmless",
        "UserWarning: Can't initialize amdsmi - Error code: 34",
    ),
    (
        "amdsmi-library-missing",
        "Unable to find libamd_smi.so library try installing amd-smi-lib from your package manager",
    ),
    (
        "amdsmi-no-driver",
        "        34 | AMDSMI_STATUS_DRIVER_NOT_LOADED",
    ),
    (
        "smi-no-gpu",
        "======================= ROCm System Management Interface =======================\nWARNING: No AMD GPUs specified",
    ),
    (
        "smi-no-gpu",
        "ERROR: Unable to detect any GPU devices, check amdgpu version and module status (sudo modprobe amdgpu)",
    ),
    (
        "nomodeset",
        "BOOT_IMAGE=/boot/vmlinuz-6.8.0-45-generic root=UUID=x ro quiet splash nomodeset",
    ),
    (
        "ollama-igpu-dropped",
        "level=INFO source=runner.go:405 msg=\"dropping integrated GPU; to enable, set OLLAMA_IGPU_ENABLE=1\" id=0 library=Vulkan compute=0.0 name=Vulkan0 description=\"AMD Radeon(TM) 780M Graphics\" pci_id=0000:c6:00.0",
    ),
    (
        "low-power-state",
        "WARNING: AMD GPU device(s) is/are in a low-power state. Check power control/runtime_status",
    ),
    (
        "wsl-gpu-not-usable",
        "WSL environment detected.\nhsa api call failure at: ./rocminfo.cc:1324\nCall returned HSA_STATUS_ERROR_OUT_OF_RESOURCES: The runtime failed to allocate the necessary resources.",
    ),
    (
        "wsl-runtime-only",
        "6.6.87.2-microsoft-standard-WSL2\nImportError: libroctx64.so.4: cannot open shared object file: No such file or directory",
    ),
    (
        "windows-no-hip-device",
        "C:\\Users\\user> python main.py\nRuntimeError: No HIP GPUs are available",
    ),
    (
        "zluda-other-sdk",
        "Failed to load ZLUDA: Could not find module 'C:\\Program Files\\AMD\\ROCm\\6.1\\bin\\hiprtc0507.dll' (or one of its dependencies).",
    ),
    (
        "windows-openmp-missing",
        "OSError: [WinError 126] 找不到指定的模块。 Error loading \"D:\\envs\\llama_factory\\Lib\\site-packages\\torch\\lib\\fbgemm.dll\" or one of its dependencies",
    ),
    (
        "windows-hip-sdk-missing",
        "OSError: [WinError 126] No se puede encontrar el módulo especificado. Error loading \"C:\\ComfyUI-Zluda\\venv\\lib\\site-packages\\torch\\lib\\caffe2_nvrtc.dll\" or one of its dependencies.",
    ),
    (
        "windows-rocm-dll",
        "OSError: [WinError 1114] A dynamic link library (DLL) initialization routine failed. Error loading \"D:\\projects\\.venv\\Lib\\site-packages\\torch\\lib\\c10_hip.dll\" or one of its dependencies.",
    ),
    (
        "windows-dll-missing",
        "ImportError: DLL load failed while importing onnxruntime_pybind11_state: Das angegebene Modul wurde nicht gefunden.",
    ),
    (
        "windows-driver-timeout",
        "AMD Bug Report Tool: a driver timeout has occurred",
    ),
    (
        "tensile-memory-fault",
        "Memory access fault by GPU node-1 (Agent handle: 0x3c1f6a0) on address 0x7f0d9c000000.\nShaderName : Cijk_Ailk_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT64x64x64_MI16x16x1_ISA1201",
    ),
    (
        "heap-corruption",
        "double free or corruption (!prev)\nAborted (core dumped)",
    ),
    (
        "segfault-in-library",
        "python[3494041]: segfault at 34 ip 00007f3d56e45970 sp 00007ffd241f9130 error 4 in libhsa-runtime64.so[45970,7f3d56e1d000+117000] likely on CPU 0",
    ),
    (
        "segmentation-fault",
        "./run.sh: Zeile 3: 4711 Speicherzugriffsfehler (Speicherabzug geschrieben) python train.py",
    ),
    (
        "device-assert",
        "RuntimeError: HIP error: device-side assert triggered",
    ),
    (
        "hsa-exception",
        "Queue at 0x7f1 inactivated due to async error: HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION: The agent attempted to access memory beyond the largest legal address. code: 0x29",
    ),
    (
        "hip-unknown-error",
        "RuntimeError: HIP error: unknown error",
    ),
    (
        "cpp-headers-missing-windows",
        "%%% Triton is using the compiler 'C:\\Program Files\\AMD\\ROCm\\6.4\\bin\\clang.exe'\nC:\\Python311\\Include\\pyconfig.h:59:10: fatal error: 'io.h' file not found",
    ),
    (
        "cpp-headers-missing",
        "/opt/rocm-6.1.3/lib/llvm/lib/clang/17/include/cuda_wrappers/cmath:27:15: fatal error: 'cmath' file not found",
    ),
    (
        "hip-headers-missing",
        "bitsandbytes-rocm/csrc/ops.hiph:15:10: fatal error: hip/hip_runtime_api.h: 没有那个文件或目录",
    ),
    (
        "flash-attention-composable-kernels",
        "/home/user/flash-attention/csrc/flash_attn_ck/mha_bwd.cpp:7:10: fatal error: 'fmha_bwd.hpp' file not found",
    ),
    (
        "flash-attention-for-cuda",
        "UserWarning: flash_attn was requested, but nvcc was not found.  Are you sure your environment has nvcc available?",
    ),
    (
        "deepspeed-cuda-home",
        "op_builder.builder.MissingCUDAException: CUDA_HOME does not exist, unable to compile CUDA op(s)",
    ),
    (
        "cuda-home-missing",
        "OSError: CUDA_HOME environment variable is not set. Please set it to your CUDA install root.",
    ),
    (
        "cuda-sources-not-hipified",
        "/opt/conda/lib/python3.8/site-packages/torch/include/ATen/cuda/CUDAContext.h:5:10: fatal error: 'cuda_runtime_api.h' file not found",
    ),
    (
        "triton-lld-missing",
        "Exception: ROCm linker /opt/rocm/llvm/bin/ld.lld not found. Set 'TRITON_HIP_LLD_PATH' to its path.",
    ),
    (
        "lld-missing",
        "jaxlib.xla_extension.XlaRuntimeError: INTERNAL: ld.lld execution failed: Unable to find lld in PATH",
    ),
    (
        "triton-stale",
        "ImportError: cannot import name 'triton_key' from 'triton.compiler.compiler' (/venv/lib/python3.12/site-packages/triton/compiler/compiler.py)",
    ),
    (
        "bitsandbytes-triton-ops",
        "ModuleNotFoundError: No module named 'triton.ops'",
    ),
    (
        "triton-compile-failed",
        "    stages[\"llir\"] = lambda src, metadata: self.make_llir(src, metadata, options)\nRuntimeError: PassManager::run failed",
    ),
    (
        "torch-compile-failed",
        "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:",
    ),
    (
        "comgr-other-version",
        "MIOpen(HIP): Error [SetIsaName] 'amd_comgr_action_info_set_isa_name(handle, isa.c_str())' amdgcn-amd-amdhsa--gfx900:sramecc-:xnack-: INVALID_ARGUMENT (2)",
    ),
    (
        "hiprtc-compilation",
        "MIOpen(HIP): Error [BuildHip] HIPRTC status = HIPRTC_ERROR_COMPILATION (6), source file: naive_conv.cpp",
    ),
    (
        "rocm-device-library-missing",
        "clang: error: cannot find ROCm device library; provide its path via '--rocm-path' or '--rocm-device-lib-path'",
    ),
    (
        "rocm-tools-missing",
        "FileNotFoundError: [Errno 2] No such file or directory: '/opt/rocm/bin/rocm_agent_enumerator'",
    ),
    (
        "triton-no-compiler",
        "RuntimeError: Failed to find C compiler. Please specify via CC environment variable.",
    ),
    (
        "triton-no-driver",
        "RuntimeError: 0 active drivers ([]). There should only be one.",
    ),
    (
        "miopen-kernel-search-failed",
        "MIOpen(HIP): Info [EvaluateInvokers] ConvHipImplicitGemmGroupFwdXdlops\nRuntimeError: HIP error: unspecified launch failure",
    ),
    (
        "miopen-database-not-writable",
        "MIOpen(HIP): Warning [FindWinogradSolutions] /root/driver/MLOpen/src/sqlite_db.cpp:212: Internal error while accessing SQLite database: disk I/O error",
    ),
    (
        "cublas-internal-error",
        "CUDA error: CUBLAS_STATUS_INTERNAL_ERROR when calling cublasGemmEx",
    ),
    (
        "cuda-library-missing",
        "OSError: libtorch_cuda.so: cannot open shared object file: No such file or directory",
    ),
    (
        "torch-hip-library-missing",
        "OSError: libc10_hip.so: cannot open shared object file: No such file or directory",
    ),
    (
        "rocm-major-version",
        "ImportError: libhip_hcc.so.3: cannot open shared object file: No such file or directory",
    ),
    (
        "rocprofiler-library-missing",
        "ImportError: librocprofiler-sdk.so.1: cannot open shared object file: No such file or directory",
    ),
    (
        "rocm-library-mismatch",
        "OSError: libhsa-runtime64.so.1: Kann die Shared-Object-Datei nicht öffnen: Datei oder Verzeichnis nicht gefunden",
    ),
    (
        "rocm-library-mismatch",
        "OSError: /opt/rocm-7.1.1/lib/libamdhip64.so.7: undefined symbol: hsa_amd_memory_get_preferred_copy_engine, version ROCR_1",
    ),
    (
        "two-hsa-runtimes",
        "/usr/bin/ld: /opt/rocm/lib/libamdhip64.so: undefined reference to `hsa_amd_queue_get_info@ROCR_1'",
    ),
    (
        "undefined-symbol-torch",
        "ImportError: /venv/lib/python3.12/site-packages/torch_scatter/_scatter_cuda.so: undefined symbol: _ZN3c106detail14torchCheckFailEPKcS2_jRKSs",
    ),
    (
        "undefined-symbol",
        "ImportError: /usr/lib/libfoo.so.2: undefined symbol: foo_begin",
    ),
    (
        "libstdcxx-too-old",
        "ImportError: /opt/conda/lib/libstdc++.so.6: version `GLIBCXX_3.4.32' not found (required by /venv/lib/libtorch_hip.so)",
    ),
    (
        "glibc-too-old",
        "OSError: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.38' not found (required by libamdhip64.so.7)",
    ),
    (
        "missing-library",
        "ImportError: libnuma.so.1: cannot open shared object file: No such file or directory",
    ),
    (
        "apt-unmet-dependencies",
        "The following packages have unmet dependencies:\n rocm-dev : Depends: rocm-cmake (= 0.8.0.50300-63~20.04) but 5.0.0-1 is to be installed",
    ),
    (
        "apt-repository-refused",
        "E: Unable to locate package rocm-hip-sdk",
    ),
    (
        "pip-other-platform",
        "hint: Wheels are available for `torch` (v2.13.0a0+rocm7.14.0a20260519) on the following platform: `win_amd64`",
    ),
    (
        "pip-no-version",
        "ERROR: Could not find a version that satisfies the requirement torch (from versions: none)",
    ),
    (
        "torchvision-other-build",
        "RuntimeError: operator torchvision::nms does not exist",
    ),
    (
        "numpy-two",
        "A module that was compiled using NumPy 1.x cannot be run in NumPy 2.1.0 as it may crash.",
    ),
    (
        "override-quoted",
        "level=INFO msg=\"skipping rocm gfx compatibility check\" HSA_OVERRIDE_GFX_VERSION=\"\\\"11.0.3\\\"\"",
    ),
    (
        "ollama-rocm-missing",
        "level=WARN msg=\"amdgpu is not supported (supported types:[])\" gpu_type=gfx1100 gpu=0 library=/usr/lib/ollama/rocm",
    ),
    (
        "ollama-unsupported-gpu",
        "level=WARN msg=\"amdgpu is not supported\" gpu=0 gpu_type=gfx1031 library=/usr/lib/ollama supported_types=[gfx1030]",
    ),
    (
        "vllm-no-device",
        "RuntimeError: Failed to infer device type, please set the environment variable `VLLM_LOGGING_LEVEL=DEBUG`",
    ),
    (
        "vllm-cuda-build",
        "ModuleNotFoundError: No module named 'vllm._C'",
    ),
    (
        "torch-cuda-build",
        "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed a driver",
    ),
    (
        "torch-cpu-only",
        "RuntimeError: \"LayerNormKernelImpl\" not implemented for 'Half'",
    ),
    (
        "bitsandbytes-fallback",
        "WARNING: ROCm 6.1 binary not found; falling back to libbitsandbytes_rocm64.so\nFatal Python error: Segmentation fault",
    ),
    (
        "nan-in-half-precision",
        "modules.devices.NansException: A tensor with all NaNs was produced in VAE.",
    ),
    (
        "hip-headers-missing",
        "  Could not find a package configuration file provided by \"rocwmma\" with any of the following names:",
    ),
    (
        "hip-headers-missing",
        "/usr/bin/ld: cannot find -lamdhip64: No such file or directory",
    ),
    ("hip-headers-missing", "/bin/sh: 1: hipcc: not found"),
    (
        "kfd-permission",
        "level=ERROR source=amd_linux.go:364 msg=\"amdgpu devices detected but permission problems block access\"",
    ),
    (
        "rccl-error",
        "RuntimeError: unhandled cuda error, NCCL version 2.18.6",
    ),
    (
        "torchvision-other-build",
        "NotImplementedError: Could not run 'torchvision::nms' with arguments from the 'CUDA' backend.",
    ),
    (
        "wave-error",
        "[Tue Sep 10 09:37:12 2024] amdgpu: sq_intr: error, se 1, data 0x0, sh 0, priv 1, wave_id 1, simd_id 1, cu_id 11, err_type 2",
    ),
    (
        "kernel-older-than-runtime",
        "HSA Error:  Incompatible kernel and userspace, Vega 20 disabled. Upgrade amdgpu.",
    ),
    (
        "bitsandbytes-symbol",
        "OSError: /venv/lib/python3.12/site-packages/bitsandbytes/libbitsandbytes_rocm63.so: undefined symbol: _Z36__device_stub__kOptimizer32bit1StateI12hip_bfloat16Li2EEvPT_S2_PfS3_ffffffiffbi",
    ),
    (
        "killed",
        "./train.sh: line 12: 4242 Killed                  python train.py",
    ),
    ("killed", "Killed"),
    (
        "assembly-of-nvidia",
        "error: couldn't allocate input reg for constraint 'l'",
    ),
    (
        "hipblaslt-refused",
        "RuntimeError: Attempting to use hipBLASLt on a unsupported architecture!",
    ),
    (
        "hub-unreachable",
        "huggingface_hub.errors.LocalEntryNotFoundError: An error happened while trying to locate the file on the Hub",
    ),
    (
        "types-differ",
        "RuntimeError: expected scalar type Half but found Float",
    ),
    (
        "host-out-of-memory",
        "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 2.00 GiB for an array with shape (1, 2)",
    ),
    ("too-many-threads", "RuntimeError: can't start new thread"),
    (
        "dataloader-worker-died",
        "RuntimeError: DataLoader worker (pid(s) 123, 124) exited unexpectedly",
    ),
    (
        "smi-value-missing",
        "rocm_smi exception: RSMI_STATUS_FILE_ERROR",
    ),
    (
        "cmake-finds-no-hip",
        "By not providing \"Findhip.cmake\" in CMAKE_MODULE_PATH this project has",
    ),
    (
        "device-libraries-differ",
        "lld: error: undefined hidden symbol: __ockl_steadyctr_u64",
    ),
    (
        "triton-type-unsupported",
        "error: Unsupported conversion from f8E4M3FNUZ to f16",
    ),
    (
        "extension-build-failed",
        "RuntimeError: Error compiling objects for extension",
    ),
    (
        "python-package-missing",
        "ModuleNotFoundError: No module named 'kornia'",
    ),
    (
        "launcher-reports",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
    ),
    (
        "native-abort",
        "terminate called after throwing an instance of 'c10::Error'",
    ),
];
