//! Messages of the system below the programs: repositories, the driver's start, runtimes, builds, Windows itself.

/// An entry of the catalogue, and what the log says.
pub(super) const MESSAGES: &[(&str, &str)] = &[
    (
        "repository-key",
        "E: Conflicting values set for option Signed-By regarding source https://repo.radeon.com/amdgpu/6.4/ubuntu/ noble: /etc/apt/keyrings/rocm.gpg != ",
    ),
    (
        "repository-key",
        "  The following signatures couldn't be verified because the public key is not available: NO_PUBKEY 9386B48A1A693C5C",
    ),
    (
        "apt-download-broken",
        "E: Failed to fetch https://repo.radeon.com/rocm/apt/6.4/pool/main/r/rocblas/rocblas_4.4.0_amd64.deb  Hash Sum mismatch",
    ),
    (
        "installer-address-wrong",
        "wget https://repo.radeon.com/amdgpu-install/6.4.9/ubuntu/noble/amdgpu-install_6.4.60409-1_all.deb\n2025-10-01 11:22:33 ERROR 404: Not Found.",
    ),
    (
        "kernel-headers-unavailable",
        "E: Unable to locate package linux-headers-6.12.43+deb13-amd64",
    ),
    (
        "apt-unsandboxed-harmless",
        "N: Download is performed unsandboxed as root as file '/home/user/amdgpu-install_6.4.60401-1_all.deb' couldn't be accessed by user '_apt'. - pkgAcquire::Run (13: Permission denied)",
    ),
    ("group-missing", "usermod: group 'render' does not exist"),
    (
        "nix-package-refused",
        "error: Package 'rocmPackages.composable_kernel' in /nix/store/x/default.nix:1 is marked as broken, refusing to evaluate.",
    ),
    (
        "gentoo-masked",
        "!!! All ebuilds that could satisfy \"dev-util/hip\" have been masked.",
    ),
    (
        "peer-access-refused",
        "RuntimeError: HIP error: peer access is not supported between these two devices",
    ),
    (
        "memory-pointer-invalid",
        "RuntimeError: HIP error: invalid device pointer",
    ),
    (
        "runtime-shutting-down",
        "RuntimeError: HIP error: driver shutting down",
    ),
    (
        "queue-out-of-resources",
        ":0:rocdevice.cpp            :2984: 14367285637 us: [pid:2834  tid:0x7f2a3c9ff6c0] Callback: Queue 0x7f27f8c00000 aborting with error : HSA_STATUS_ERROR_OUT_OF_RESOURCES: The runtime failed to allocate the necessary resources. Code: 0x1008 Available Free mem : 2048 MB",
    ),
    (
        "profiler-threads-harmless",
        "ERROR: External init callback must run in same thread as registerClient (1190401600 != -1184950464)",
    ),
    (
        "profiler-failed",
        "aqlprofile API table load failed: HSA_STATUS_ERROR: A generic error has occurred.",
    ),
    (
        "debugger-refused",
        "amd-dbgapi: warning: unable to enable GPU debugging due to a restriction error",
    ),
    (
        "hip-architectures-empty",
        "CMake Error in CMakeLists.txt:\n  HIP_ARCHITECTURES is empty for target \"ggml-hip\".",
    ),
    (
        "triton-runtime-missing",
        "RuntimeError: cannot locate libamdhip64.so after attempted paths ['/x/libamdhip64.so']",
    ),
    (
        "cmake-hipcc-wrapper",
        "  CMAKE_HIP_COMPILER is set to the hipcc wrapper:",
    ),
    (
        "compiler-killed",
        "c++: fatal error: Killed signal terminated program cc1plus",
    ),
    (
        "hip-platform-undefined",
        "#error (\"Must define exactly one of __HIP_PLATFORM_AMD__ or __HIP_PLATFORM_NVIDIA__\");",
    ),
    (
        "perl-module-missing",
        "Can't locate URI/Escape.pm in @INC (you may need to install the URI::Escape module) (@INC contains: /etc/perl) at /opt/rocm/bin/hipconfig line 25.",
    ),
    (
        "msvc-libraries-missing",
        "lld-link: error: could not open 'msvcrt.lib': no such file or directory",
    ),
    (
        "wave-size-no-constant",
        "error: use of undeclared identifier '__AMDGCN_WAVEFRONT_SIZE'",
    ),
    (
        "driver-switched-off",
        "modprobe: ERROR: could not insert 'amdgpu': Invalid argument",
    ),
    (
        "firmware-refused",
        "amdgpu 0000:04:00.0: amdgpu: failed to load ucode RLC_RESTORE_LIST_CNTL(0x28)",
    ),
    (
        "kernel-warning",
        "WARNING: CPU: 3 PID: 3112 at drivers/gpu/drm/amd/amdgpu/amdgpu_object.c:1234 amdgpu_bo_release_notify+0x1d2/0x1f0 [amdgpu]",
    ),
    (
        "display-remarks-harmless",
        "[drm] REG_WAIT timeout 1us * 100 tries - optc31_disable_crtc line:145",
    ),
    (
        "driver-remarks-harmless",
        "amdgpu: Runlist is getting oversubscribed. Expect reduced ROCm performance.",
    ),
    (
        "processor-stuck",
        "watchdog: BUG: soft lockup - CPU#7 stuck for 26s! [kworker/7:1:123]\nWorkqueue: events amdgpu_irq_handle_ih_soft [amdgpu]",
    ),
    (
        "container-numa-harmless",
        "set_mempolicy: Operation not permitted",
    ),
    (
        "container-runtime-unknown",
        "docker: Error response from daemon: unknown or invalid runtime name: amd.",
    ),
    (
        "apptainer-without-rocm",
        "INFO:    Could not find any rocm files on this host!",
    ),
    (
        "lxc-group-map",
        "newgidmap: gid range [104-105) -> [104-105) not allowed",
    ),
    (
        "virtual-machine-map",
        "kvm: vfio_container_dma_map(0x5555, 0x380000000000, 0x10000000, 0x7f) = -22 (Invalid argument)",
    ),
    (
        "wsl-needs-no-driver",
        "modprobe: FATAL: Module amdgpu not found in directory /lib/modules/6.6.87.2-microsoft-standard-WSL2",
    ),
    (
        "wsl-no-amdsmi",
        "Linux host 6.6.87.2-microsoft-standard-WSL2 x86_64\nERROR:root:Driver not initialized (amdgpu not found in modules)",
    ),
    (
        "wsl-start-failed",
        "Error code: Wsl/Service/CreateInstance/CreateVm/HCS/E_INVALIDARG",
    ),
    (
        "windows-policy-blocked",
        "ImportError: DLL load failed while importing _C: An Application Control policy has blocked this file.",
    ),
    (
        "windows-device-problem",
        "Windows has stopped this device because it has reported problems. (Code 43)",
    ),
    (
        "adrenalin-installer",
        "Error 182 - AMD Software Installer Detected AMD Graphics Hardware in Your System Configuration That Is Not Supported With This Software Configuration",
    ),
    (
        "chip-newer-than-kernel",
        "amdgpu 0000:03:00.0: amdgpu: Failed to add psp ip block(MP0_HWIP:0xe0003)",
    ),
    ("module-in-use", "rmmod: ERROR: Module amdgpu is in use"),
    (
        "swiotlb-full",
        "amdgpu 0000:03:00.0: swiotlb buffer is full (sz: 1048576 bytes), total 32768 (slots), used 0 (slots)",
    ),
    (
        "mesa-not-found-harmless",
        "MESA-LOADER: failed to open radeonsi: /usr/lib/dri/radeonsi_dri.so: cannot open shared object file",
    ),
    (
        "windows-hardware-error",
        "WHEA-Logger Event 17: A corrected hardware error has occurred.",
    ),
    (
        "npu-driver-old",
        "NPU driver version too old. Please update to 32.0.203.304 or later",
    ),
    (
        "msvc-newer-than-clang",
        "yvals_core.h:908:1: error: static_assert failed \"error STL1000: Unexpected compiler version, expected Clang 19.0.0 or newer.\"",
    ),
    (
        "hip-not-linked",
        "main.cpp:(.text+0x1f): undefined reference to `hipLaunchKernel'",
    ),
    (
        "cmake-too-old",
        "  CMake 3.21 or higher is required.  You are running version 3.16.3",
    ),
    (
        "cmake-version-refused",
        "  Could not find a configuration file for package \"HIP\" that is compatible\n  with requested version \"1.0\".",
    ),
    (
        "device-code-refused",
        "error: '__builtin_amdgcn_mfma_f32_32x32x8f16' needs target feature mai-insts",
    ),
    (
        "smi-error-other",
        "ERROR:root:AMDSMI Error: AMDSMI_STATUS_INVAL: Invalid parameters.",
    ),
    (
        "smi-crashed",
        "python3: /usr/src/rocm_smi_lib/src/rocm_smi.cc:133: uint64_t get_multiplier_from_str(char): Assertion `false' failed.",
    ),
    (
        "build-file-missing",
        "ninja: error: '/src/TheRock/base/half/CMakeLists.txt', needed by 'compile_commands_fragment_rocm-half.json', missing and no known rule to make it",
    ),
    (
        "linker-failed-other",
        "/usr/bin/ld: error: Stub is too far away\ncollect2: error: ld returned 1 exit status",
    ),
    (
        "cmake-failed-other",
        "CMake Error at CMakeLists.txt:51 (message):\n  Please pass the folder using -DSOMETHING",
    ),
    (
        "container-failed-other",
        "docker: Error response from daemon: something new went wrong.",
    ),
    (
        "package-manager-other",
        "E: Something new with rocm-core happened.",
    ),
    (
        "windows-crash-other",
        "Faulting module name: ntdll.dll, version: 10.0.26100.1",
    ),
    (
        "wsl-torch-sees-no-gpu",
        "Linux host 6.6.87.2-microsoft-standard-WSL2 x86_64\n>>> torch.cuda.is_available()\nFalse",
    ),
    (
        "library-damaged",
        "OSError: /opt/rocm/lib/libamdhip64.so.7: file too short",
    ),
    (
        "two-llvms",
        ": CommandLine Error: Option 'disable-symbolication' registered more than once!\nLLVM ERROR: inconsistency in registered CommandLine options",
    ),
    (
        "mapping-refused",
        "ImportError: /tmp/_MEI123/libamdhip64.so: failed to map segment from shared object: Operation not permitted",
    ),
    (
        "library-version-info",
        "./llama-server: /usr/lib/libamdhip64.so.6: no version information available (required by ./llama-server)",
    ),
    (
        "radeon-driver-in-use",
        "amdgpu_device_initialize: DRM version is 2.50.0 but this driver is only compatible with 3.x.x.",
    ),
    (
        "render-node-missing",
        "Failed to open /dev/dri/renderD129: No such device",
    ),
    (
        "sandbox-without-device",
        "F: Not sharing \"/dev/kfd\" with sandbox",
    ),
    (
        "cache-not-writable",
        "  what():  filesystem error: cannot create directories: Permission denied [/root/.cache/comgr]",
    ),
    (
        "program-out-of-memory",
        "GPUassert: out of memory saxpy.hip 30",
    ),
    (
        "program-out-of-memory",
        "error: 'out of memory'(2) at saxpy.hip:41",
    ),
    (
        "device-number",
        "error: 'invalid device ordinal'(101) at main.cpp:14",
    ),
    ("no-kernel-image", "HIP error 209 at line 30"),
    ("illegal-address", "HIP error: 700"),
    ("unspecified-launch-failure", "HIP error code = 719"),
    ("no-hip-device", "HIP runtime error 100 in main.cpp"),
    ("hip-error-other", "HIP error 1000 of the batch"),
];
