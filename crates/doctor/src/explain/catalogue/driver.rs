//! The kernel driver: its installation, its device, hangs, and the tools that ask it.

use super::Scope::{BareMetal, NotWindows};
use super::{BASE, Entry};
use crate::explain::Confidence::{Low, Medium};
use crate::explain::Severity::{Info, Warning};

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        id: "amdgpu-dkms-build",
        patterns: &[
            r"(?i)ERROR \(dkms apport\): kernel package .* is not supported",
            r"(?i)%post\w*\(amdgpu-dkms\S*\) scriptlet failed",
            r"(?i)dkms.*amdgpu.*BUILD_EXCLUSIVE|BUILD_EXCLUSIVE.*does not match this kernel",
            r"(?i)/(?:var/lib/dkms|usr/src)/amdgpu\S*: ?.*\berror:",
            r"(?i)make\[\d\]: \*\*\* \[.*(?:/tmp/amd\.|dkms/amdgpu|usr/src/amdgpu)",
            r"(?i)\bamdgpu-dkms\b.*(?:is not configured yet|unable to correct|dependency problems|not going to be installed)",
            r"(?i)(?:building|build of|build) .{0,30}amdgpu.{0,40}\bfailed\b",
            r"(?i)Bad return status for module build on kernel",
            r"dpkg: error processing package amdgpu-dkms",
            r"dkms autoinstall .*failed for .*amdgpu",
            r"/var/lib/dkms/amdgpu/\S+/build/make\.log",
            r"(?i)amdgpu-dkms.*(?:subprocess returned error|exit status)",
            r"(?i)DKMS make\.log for (?:amdgpu|rock)",
            r"(?i)amdgpu dkms failed",
            r"(?i)/tmp/amd\.\w+/.{0,160}\berror: ",
            r"(?i)dpkg: .{0,60}(?:rock|amdgpu)-dkms",
        ],
        also: &[r"(?i)amdgpu|rock-dkms|rocm-dkms"],
        scope: NotWindows,
        cause: "AMD's DKMS driver (amdgpu-dkms) does not build on this kernel{kernel}: the kernel is newer than that release of the driver knows, or is one of a distribution it was not made for. The kernel's own amdgpu driver needs no such package.",
        fix: &[
            "without DKMS: sudo apt purge amdgpu-dkms, then sudo amdgpu-install --usecase=rocm --no-dkms; the kernel's own amdgpu driver is enough for ROCm",
            "or a newer ROCm release, whose amdgpu-dkms supports this kernel",
            "Linux: or boot an older kernel that the release supports, with its headers installed",
        ],
        ask: &[
            "uname -r; dkms status",
            "tail -n 40 /var/lib/dkms/amdgpu/*/build/make.log",
        ],
        source: "https://github.com/ROCm/amdgpu/issues/192",
        ..BASE
    },
    Entry {
        id: "amdgpu-dkms-headers",
        patterns: &[
            r"(?i)Your kernel headers for kernel \S+ cannot be found",
            r"(?i)kernel headers? .*(?:cannot be found|not installed|missing)",
        ],
        also: &[r"(?i)dkms"],
        scope: NotWindows,
        cause: "DKMS cannot build the amdgpu driver because the headers of the running kernel{kernel} are not installed.",
        fix: &[
            "sudo apt install linux-headers-$(uname -r)",
            "or do without amdgpu-dkms: amdgpu-install --usecase=rocm --no-dkms; the kernel's own amdgpu driver is enough",
        ],
        source: "https://rocm.docs.amd.com/projects/install-on-linux/en/latest/install/prerequisites.html",
        ..BASE
    },
    Entry {
        id: "amdgpu-not-signed",
        patterns: &[
            r"(?i)(?:modprobe|insmod): ERROR: could not insert (?:module )?\S*amdgpu\S*:? (?:Key|Required|Exec|Unknown|Operation|Invalid|Permission)",
            r"(?i)amdgpu.*(?:Key was rejected by service|Required key not available)",
            r"(?i)amdgpu: (?:disagrees about version of symbol|Unknown symbol)",
        ],
        scope: BareMetal,
        cause: "The amdgpu module of DKMS cannot be loaded: Secure Boot does not accept its signature, or it was built for another kernel.",
        fix: &[
            "enrol the key of DKMS (sudo mokutil --import /var/lib/shim-signed/mok/MOK.der, then restart), or switch Secure Boot off",
            "or remove amdgpu-dkms: the kernel's own amdgpu driver is signed and enough for ROCm",
        ],
        source: "https://rocm.docs.amd.com/projects/install-on-linux/en/latest/how-to/native-install/index.html",
        ..BASE
    },
    Entry {
        id: "card-bios-stuck",
        patterns: &[
            r"(?i)atombios stuck (?:in loop|executing)",
            r"(?i)\bgpu post error\b",
        ],
        scope: BareMetal,
        covers: &["gpu-init-failed", "kernel-driver-error-other"],
        confidence: Medium,
        cause: "The program in the card's own BIOS (VBIOS) does not finish, so the driver cannot start the card: it answers wrongly over its slot or riser, its power is not right, a reset (of a virtual machine) left it in a bad state, its VBIOS is damaged, or the card is defective. ROCm has no part in it.",
        fix: &[
            "power the machine off (not restart) and on again",
            "another slot, no riser, all power cables; then another machine: a card that fails there too is defective",
            "virtual machine: hand the card over with its VBIOS as a file, and no host driver that touched it before",
            "a VBIOS that was flashed: the original one again",
        ],
        ask: &["dmesg | grep -iE 'amdgpu|atom' | tail -n 40", "lspci -vv"],
        source: "https://github.com/ROCm/legacy-rocm-build/issues/1320",
        ..BASE
    },
    Entry {
        id: "gpu-init-failed",
        patterns: &[
            r"(?i)Fatal error during GPU init",
            r"(?i)invalid ip discovery binary (?:signature|checksum)",
            r"(?i)PSP create ring failed",
            r"(?i)PSP load \w+ failed|psp_hw_start.*ERROR",
            r"(?i)hw_init of IP block <\w+> failed",
            r"(?i)amdgpu: probe of \S+ failed with error",
            r"(?i)amdgpu \S+: probe with driver amdgpu failed with error",
            r"(?i)amdgpu.*Unable to locate a BIOS ROM",
            r"(?i)trn=2 ACK should not assert",
        ],
        unless: &[r"(?i)Direct firmware load for amdgpu/\S+ failed"],
        confidence: Medium,
        cause: "The GPU could not be initialised, so the driver gave it up: the card does not answer or refuses its firmware. Reasons are its power supply, its slot, riser or bridge, a state left by a reset or a virtual machine, or a defect.",
        fix: &[
            "power the machine off (not restart) and on again",
            "Linux: linux-firmware and kernel of the same age; a newer BIOS of the board",
            "reseat the card; another slot and power cable; no riser, no bridge between cards",
        ],
        ask: &[
            "Linux: dmesg | grep -iE 'amdgpu|psp|firmware'",
            "Linux: lspci -nnk -d 1002:",
        ],
        source: "https://github.com/ROCm/legacy-rocm-build/issues/2747",
        ..BASE
    },
    Entry {
        id: "firmware-not-needed",
        severity: Info,
        patterns: &[
            r"(?i)(?:Direct firmware load for|Failed to load firmware) \W?amdgpu/\w+_(?:ta|cap|sjt_mec2?|kicker|isp)\.bin",
            r"(?i)Possible missing firmware /lib/firmware/amdgpu/",
        ],
        cause: "An optional firmware file is missing (trusted applications for content protection and the like): the GPU starts and ROCm does not need it.",
        fix: &["nothing; a newer linux-firmware brings the file and ends the message"],
        source: "https://github.com/ROCm/legacy-rocm-build/issues/912",
        scope: BareMetal,
        ..BASE
    },
    Entry {
        id: "firmware-missing",
        patterns: &[
            r"(?i)Direct firmware load for amdgpu/\w+ ?_(?:pfp|me|ce|mec2?|rlc|sdma1?|sos|asd|smc|vcn|dmcub|toc|mes\w*|uni_mes|imu|gpu_info)\w*\.bin failed",
            r"(?i)early_init of IP block <\w+> failed",
            r"(?i)amdgpu.*failed to load (?:\w+ )?firmware",
        ],
        cause: "The firmware of this GPU is not installed, so the driver cannot start it: the linux-firmware package is older than the card.",
        fix: &[
            "a newer linux-firmware (Debian: firmware-amd-graphics from backports), then sudo update-initramfs -u and restart",
        ],
        scope: BareMetal,
        ask: &[
            "ls /lib/firmware/amdgpu | head; dpkg -l linux-firmware firmware-amd-graphics",
            "uname -r",
        ],
        source: "https://git.kernel.org/pub/scm/linux/kernel/git/firmware/linux-firmware.git",
        ..BASE
    },
    Entry {
        id: "drm-permission",
        patterns: &[
            r"(?i)amdgpu_query_info\(\w+\) failed \(-13\)",
            r"(?i)(?:failed to open|cannot open|could not open) \S*/dev/dri/\S+.{0,10}Permission denied",
        ],
        scope: BareMetal,
        cause: "The process may not use the GPU's device file in /dev/dri (error 13, permission denied): its user is not in the group that owns it (render, video), or it runs outside of the session or container that may.",
        fix: &[
            "sudo usermod -aG render,video $USER, and log in again",
            "container: --device /dev/dri --device /dev/kfd, and the number of the render group with --group-add",
        ],
        ask: &["ls -ln /dev/dri /dev/kfd; id"],
        source: "https://rocm.docs.amd.com/projects/install-on-linux/en/latest/install/prerequisites.html",
        ..BASE
    },
    Entry {
        id: "kfd-permission",
        patterns: &[
            r"(?i)Radeon card detected, but permissions not set up|permissions not set up properly\. +Either run ollama as root",
            r"(?i)/dev/dri/\w+.*(?:Permission denied|Operation not permitted)",
            r"(?i)/dev/kfd.*Operation not permitted",
            r"(?i)SELinux is preventing .*(?:/dev/(?:kfd|dri)|renderD\d+|hsa_device_t|dri_device_t)",
            r"(?i)avc: +denied .*(?:kfd|renderD\d+|dri_device_t|hsa_device_t)",
            r"(?i)apparmor=.DENIED. .*(?:/dev/kfd|/dev/dri)",
            r"(?i)(?:could not|failed to|unable to|cannot) open /dev/kfd\W*$",
            r"/dev/kfd.*Permission denied",
            r"(?i)(?:permission denied|not accessible).*/dev/kfd",
            r"/dev/kfd.*\bEACCES\b",
            r"(?i)amdgpu devices detected but permission problems block access",
            r#"is not member of "\w+" group, the default DRM access group"#,
        ],
        scope: BareMetal,
        covers: &["no-hip-device", "hsa-out-of-resources"],
        cause: "The process may not open /dev/kfd: the user is not in the group that owns it, the login session is older than the membership, no udev rule gives the device to a group, or a container has not the groups of the host.",
        fix: &[
            "sudo usermod -aG $(stat -c %G /dev/kfd) $USER, then log out and in again",
            "container: --device /dev/kfd --device /dev/dri --group-add $(stat -c %g /dev/kfd)",
            "rootless podman or docker: --group-add keep-groups; with SELinux: --security-opt label=disable, or sudo setsebool -P container_use_devices 1",
            "/dev/kfd that belongs to root alone: a udev rule, KERNEL==\"kfd\", GROUP=\"render\", MODE=\"0660\"",
        ],
        ask: &["ls -ln /dev/kfd /dev/dri", "id"],
        source: "https://github.com/ROCm/rocminfo/issues/41",
        ..BASE
    },
    Entry {
        id: "kfd-invalid-argument",
        patterns: &[
            r"/dev/kfd.*(?:Invalid argument|Bad address|Input/output error)",
            r"/dev/kfd.*\bEINVAL\b",
        ],
        covers: &["hsa-out-of-resources"],
        scope: BareMetal,
        confidence: Medium,
        cause: "The device is there but the KFD driver refuses the process; it is not a matter of groups: the kernel does not support one of the GPUs (old APUs beside a card), or the driver is broken. Seen after a card was given back by a virtual machine, and in containers that were given only a part of the GPUs.",
        fix: &[
            "restart the host (not only the virtual machine or the container)",
            "a newer kernel; without amdgpu-dkms",
            "container: pass /dev/kfd and all of /dev/dri",
        ],
        ask: &[
            "dmesg | grep -iE 'kfd|amdgpu' | tail -n 30",
            "ls -ln /dev/kfd /dev/dri",
        ],
        source: "https://github.com/ROCm/ROCm/issues/5379",
        ..BASE
    },
    Entry {
        id: "kfd-no-memory",
        patterns: &[r"/dev/kfd.*(?:Cannot allocate memory|\bENOMEM\b)"],
        scope: BareMetal,
        covers: &["hsa-out-of-resources"],
        cause: "KFD could not create the process: an old driver, PCIe atomics or the IOMMU. It is not a matter of permissions.",
        fix: &[
            "sudo dmesg | grep -iE 'kfd|atomics|amdgpu'",
            "a newer kernel; a slot with PCIe atomics",
        ],
        source: "https://github.com/ROCm/ROCm/issues/1185",
        ..BASE
    },
    Entry {
        id: "kfd-missing",
        patterns: &[
            r"(?i)/dev/kfd.*no such (?:file(?: or directory)?|device)\b",
            r"(?i)ROCk module is NOT (?:loaded|live)",
            r"/dev/kfd.*\bENOENT\b",
            r"(?i)/dev/kfd\W{0,3} does not exist",
        ],
        scope: BareMetal,
        cause: "There is no /dev/kfd: amdgpu is not loaded, or a container was started without the device.",
        fix: &[
            "sudo modprobe amdgpu",
            "container: --device /dev/kfd --device /dev/dri",
        ],
        ask: &[
            "lsmod | grep amdgpu; ls -l /dev/kfd",
            "dmesg | grep -i amdgpu | tail -n 30",
        ],
        source: "https://rocm.docs.amd.com/projects/install-on-linux/en/latest/how-to/docker.html",
        ..BASE
    },
    Entry {
        id: "pcie-atomics",
        patterns: &[
            r"(?i)PCI rejects atomics",
            r"(?i)skipped device .*PCIe? atomics",
            r"(?i)Pcie atomics not enabled",
        ],
        scope: BareMetal,
        cause: "The GPU needs PCIe atomics and the slot, riser or bridge does not pass them on: KFD skips the card, or kernels that print or ask the host for something hang.",
        fix: &["put the card into a slot of the CPU; no riser, no chipset slot"],
        ask: &[
            "dmesg | grep -i atomics",
            "lspci -vvv -d 1002: | grep -i AtomicOps (as root)",
        ],
        covers: &["kernel-statistics-harmless"],
        source: "https://github.com/ROCm/ROCm/issues/2232",
        ..BASE
    },
    Entry {
        id: "mes-hang",
        confidence: Medium,
        patterns: &[
            r"(?i)SMU: I'?m not done with your|SMU is in hanged state",
            r"(?i)(?:cp|HIQ).{0,30}(?:hung|unrecoverable state due to)",
            r"(?i)The CS has (?:been )?(?:rejected|cancelled)",
            r"(?i)amdgpu.*(?:wait for \w+ fence|GPU recovery (?:disabled|failed))",
            r"(?i)amdgpu.*ring \S+ test failed",
            r"HW Exception by GPU node-\d+.*GPU Hang",
            r"(?i)\bMES(?:\(\d+\))? failed to (?:respond|re)|MES ring buffer is full",
            r"(?i)amdgpu.*failed to (?:suspend|resume) (?:all )?gangs|failed to (?:un)?map legacy queue|failed to reg_write_reg_wait",
            r"(?i)IB test failed on \S+|\bib ring test failed",
            r"(?i)Failed to initialize parser -125\b",
            r"(?i)\bdevice wedged\b",
            r"(?i)(?:GPU|psp) mode[12] reset failed|ASIC reset failed|Failed to (?:enter|exit) BACO",
            r"(?i)\bring \S+ reset (?:succeeded|failed)|Queue reset failed",
            r"(?i)queue_doorbell_id\d+ is not 0",
            r"(?i)MES might be in unrecoverable state",
            r"(?i)\bGPU reset(?: begin|\(\d+\) succeeded| succeeded)",
            r"(?i)amdgpu.*GPU reset\b",
            r"(?i)ring \S+ timeout\b",
            r"(?i)amdgpu_job_timedout",
            r"(?i)Waiting for fences timed out",
            r"(?i)device lost from bus|VRAM is lost due to GPU reset",
            r"(?i)failed to (?:remove|add) hardware queue (?:from|to) MES",
            r"(?i)qcm fence wait loop timeout|Queue preemption failed|failed to evict (?:process )?queues",
            r"(?i)Pasid 0x\w+ destroy queue \d+ failed|Cp queue preemption time ?out|Trying to push to a killed entity",
            r"(?i)\[?LiveKernelEvent\]?.{0,20}\b141\b|atikmdag stopped responding|amdkmdag stopped responding",
        ],
        cause: "The GPU hung: a ring did not finish its work in time, and the kernel reset it. Programs that used it are lost. Known causes: bugs of kernel, firmware or ROCm of that time (saving wave state, fixed at the end of 2025), an index out of range in a kernel, too little voltage or an overclock, a gfx1103 under an override, a carve-out too small on a 780M.",
        fix: &[
            "Linux: a newer kernel, linux-firmware and ROCm",
            "WSL: a newer Adrenalin driver on Windows, and a newer ROCm",
            "Windows: a newer Adrenalin driver, and a newer ROCm",
            "unset HSA_OVERRIDE_GFX_VERSION and use a wheel with native code",
            "take back undervolting and overclocking; check the power cables",
            "the same step on the CPU shows an index out of range",
            "780M: carve-out of 4 GB in the BIOS",
        ],
        ask: &[
            "Linux: dmesg | grep -iE 'amdgpu|kfd|ring|reset' | tail -n 60",
            "Linux: uname -r; dpkg -l linux-firmware",
        ],
        source: "https://github.com/ROCm/TheRock/issues/2151",
        ..BASE
    },
    Entry {
        id: "dkms-driver-in-use",
        severity: Warning,
        confidence: Low,
        patterns: &[
            r"(?i)\[amdkcl\]|\[amdttm\]|\bamdkcl\b.*amdgpu|amdgpu.*\bamdkcl\b",
            r"(?i)amdgpu: loading out-of-tree module taints kernel",
        ],
        also: &[
            r"(?i)page fault|timeout|GPU reset|Memory access fault|BUG:|general protection|Oops|hung|ERROR",
        ],
        cause: "The kernel runs AMD's amdgpu-dkms driver and not its own. On consumer cards that driver is often older than the kernel's own, and faults and hangs end without it.",
        fix: &[
            "sudo apt purge amdgpu-dkms, restart: the kernel's own amdgpu driver takes over, ROCm stays as it is",
            "or the amdgpu-dkms of the newest ROCm release",
        ],
        scope: BareMetal,
        ask: &["dkms status; modinfo -F filename amdgpu; uname -r"],
        source: "https://rocm.docs.amd.com/projects/install-on-linux/en/latest/reference/user-kernel-space-compat-matrix.html",
        ..BASE
    },
    Entry {
        id: "kernel-older-than-runtime",
        patterns: &[
            r"(?i)Incompatible kernel and userspace",
            r"(?i)HSA Error:.*Upgrade amdgpu",
            r"(?i)\bKFD (?:ioctl )?(?:interface )?version.{0,40}(?:too old|mismatch|not supported)|kernel ioctl (?:interface )?version.{0,40}(?:too old|mismatch)",
        ],
        scope: BareMetal,
        covers: &["no-hip-device", "hsa-init-failed"],
        cause: "The kernel driver (amdgpu, KFD) is older than this ROCm: the runtime refuses the GPU, since the two do not fit together.",
        fix: &[
            "a newer kernel, or the amdgpu-dkms of this ROCm release (one that builds for the kernel)",
            "or an older ROCm, of the age of the kernel",
        ],
        ask: &[
            "uname -r; modinfo -F filename amdgpu",
            "cat /opt/rocm/.info/version",
        ],
        source: "https://rocm.docs.amd.com/projects/install-on-linux/en/latest/reference/user-kernel-space-compat-matrix.html",
        ..BASE
    },
    Entry {
        id: "hsa-out-of-resources",
        confidence: Medium,
        patterns: &[
            r"HSA_STATUS_ERROR_OUT_OF_RESOURCES",
            r"(?i)(?:hsa api call failure|rocminfo).{0,200}Call returned 4104\b",
        ],
        scope: BareMetal,
        cause: "ROCr could not start: /dev/kfd cannot be used, the slot has no PCIe atomics, or the driver in the kernel does not support the GPU.",
        fix: &[
            "`surefoot doctor` tells which",
            "sudo dmesg | grep -iE 'kfd|atomics'",
        ],
        ask: &[
            "dmesg | grep -iE 'kfd|atomics|amdgpu' | tail -n 30",
            "ls -ln /dev/kfd /dev/dri; id",
            "uname -r",
        ],
        source: "https://github.com/ROCm/ROCm/issues/1148",
        ..BASE
    },
    Entry {
        id: "hsa-init-failed",
        confidence: Low,
        patterns: &[
            r"returned HSA_STATUS_ERROR: A generic error",
            r"(?i)(?:hsa api call failure|rocminfo).{0,200}Call returned 4096\b",
            r"(?i)hsa_init (?:failed|returned)",
            r"rocminfo\.cc:\d+.*(?:\bHSA_STATUS_ERROR\b|generic error)",
            r"HSA_STATUS_ERROR_NOT_INITIALIZED",
            r"props\.EngineId\.ui32\.Major",
        ],
        scope: BareMetal,
        cause: "The ROCm runtime (ROCr, HSA) could not start on what the kernel driver shows of this GPU: the two are too far apart in age, or this release does not know the chip yet.",
        fix: &[
            "a newer kernel and linux-firmware (for a new APU: the newest that there is)",
            "the newest ROCm, or another release of it; one ROCm only on the machine",
        ],
        ask: &[
            "uname -r",
            "dmesg | grep -iE 'kfd|amdgpu' | tail -n 40",
            "cat /opt/rocm/.info/version; ls /opt",
        ],
        source: "https://github.com/ROCm/TheRock/issues/7952",
        ..BASE
    },
    Entry {
        id: "no-hip-device",
        confidence: Medium,
        patterns: &[
            r"(?i)hipGetDeviceCount\S* (?:returned|=|:) ?0\b|found 0 (?:ROCm|HIP) devices",
            r"(?i)Unable to initialize backend '(?:rocm|gpu)'",
            r"hipErrorInsufficientDriver|hipErrorInitializationError",
            r"(?i)\bHIP (?:runtime |API )?error(?: code)?[ :=#(]{1,3}0?(?:100|35)\b",
            r"(?i)HIP counts 0 devices|No ROCm devices? (?:found|detected|available)|No HIP devices? (?:found|detected|available)",
            r"(?i)No HIP GPUs are available",
            r"(?i)no ROCm-capable device",
            r"(?i)Could not initialize Tensile host: No devices found|^Failed to get device count\s*$|amdgpu-arch: Failed to get device count",
            r"hipErrorNoDevice|hipErrorInvalidDevice\b",
            r"(?i)HIP (?:error|initiali[sz]ation).{0,40}(?:no device|code 100\b)",
            r"(?i)ggml_cuda_init: (?:failed to initialize|no) ROCm",
            r"(?i)HIP initialization: Unexpected error from hipGetDeviceCount",
            r"(?i)ROCm error: (?:driver version is insufficient|initialization error)",
            r"HSAKMT_STATUS_KERNEL_IO_CHANNEL_NOT_OPENED",
            r"(?i)no (?:AMD|ROCm|HIP) (?:GPU|device)s? (?:found|detected|available)",
        ],
        scope: BareMetal,
        covers: &["tensile-library-missing", "torch-cpu-only"],
        cause: "HIP finds no GPU that it can use: the user is not in the group that owns the device (render, video) so that it may not be opened, a container was started without the devices, a variable hides the GPU (HIP_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES), the driver is missing, or this ROCm does not support the card.",
        fix: &[
            "`surefoot doctor` tells which of them it is",
            "rocminfo as root: if that works, it is the group; your user belongs into render and video (`groups` shows yours), then log out and in",
            "container: pass the devices and --group-add the number of the group that owns them",
            "unset HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES CUDA_VISIBLE_DEVICES",
            "a card that current releases no longer support (RX 400 and 500; Vega in most of them): an older ROCm, or Vulkan",
        ],
        ask: &[
            "rocminfo | grep -E 'gfx|Unable|not member'",
            "ls -ln /dev/kfd /dev/dri; id",
            "env | grep -E 'VISIBLE_DEVICES|HSA_|HIP_'",
        ],
        source: "https://github.com/ROCm/ROCm/issues/2354",
        ..BASE
    },
    Entry {
        id: "amdsmi-harmless",
        severity: Info,
        patterns: &[r"(?i)Can'?t initialize amdsmi"],
        cause: "torch could not start amd-smi, which only gives it statistics (use, temperature). Under WSL and in some containers it never works; computing on the GPU does not need it. The warning is harmless.",
        fix: &[],
        source: "https://github.com/ROCm/legacy-rocm-build/issues/5000",
        ..BASE
    },
    Entry {
        id: "amdsmi-library-missing",
        patterns: &[
            r"(?i)Unable to find libamd_smi\.so",
            r"KeyError: 'libamd_smi\.so'",
            r"libamd_smi\.so\S*: cannot open shared object file",
        ],
        covers: &["rocm-library-mismatch", "missing-library"],
        cause: "The Python package amdsmi is installed without the library it needs (libamd_smi.so); torch tries to import it and fails.",
        fix: &[
            "pip uninstall amdsmi: torch works without it",
            "or install amd-smi-lib of the same ROCm: sudo apt install amd-smi-lib",
        ],
        scope: NotWindows,
        source: "https://github.com/pytorch/pytorch/pull/188724",
        ..BASE
    },
    Entry {
        id: "amdsmi-no-driver",
        severity: Warning,
        patterns: &[
            r"AMDSMI_STATUS_DRIVER_NOT_LOADED",
            r"(?i)ESMI Not initialized, drivers not found",
            r"(?i)Unable to detect any GPU devices, check amdgpu version|/sys/module/amdgpu/initstate: No such file",
            r"(?i)WARNING: No AMD GPUs specified|Unable to get devices, driver not initialized|AMDSMI_STATUS_FAIL_LOAD_\w+",
            r"(?i)Failed to initialize AMD SMI|AMDSMI_STATUS_(?:INIT_ERROR|NOT_INIT|DRM_ERROR)",
            r"(?i)rsmi_init\(?\)? (?:failed|returned)|RSMI_STATUS_INIT_ERROR|Drivers? not (?:initialized|loaded) \(amdgpu\b.{0,24}not found in modules\)",
            r"/sys/module/amdgpu/initstate: No such file",
        ],
        scope: BareMetal,
        cause: "amd-smi (or rocm-smi) finds no driver: amdgpu is not loaded, is built into the kernel and not a module (which older releases do not see), or cannot be reached from here, or it is about amd_hsmp for the CPU's side. It only reads statistics; whether the GPU can compute, rocminfo tells.",
        fix: &[
            "lsmod | grep amdgpu: if nothing is shown, sudo modprobe amdgpu",
            "the line about ESMI alone is about the CPU and needs the module amd_hsmp; GPUs do not need it",
            "container: --device /dev/kfd --device /dev/dri",
        ],
        ask: &[
            "lsmod | grep -E 'amdgpu|amd_hsmp'",
            "ls -l /dev/dri /dev/kfd",
        ],
        source: "https://github.com/ROCm/amdsmi/issues/84",
        ..BASE
    },
    Entry {
        id: "smi-no-gpu",
        patterns: &[
            r"(?i)\bNo AMD GPUs specified",
            r"(?i)Unable to detect any GPU devices, check amdgpu",
            r"(?i)\bNo DRM devices available\. Exiting",
        ],
        confidence: Medium,
        scope: BareMetal,
        covers: &["amdsmi-no-driver"],
        cause: "rocm-smi (or amd-smi) finds no GPU that amdgpu runs: the module is not loaded or gave up on the card (a kernel or firmware older than the card), another driver has it, or this is a container or virtual machine without the devices.",
        fix: &[
            "lspci -nnk -d 1002:  # \"Kernel driver in use\" must be amdgpu",
            "sudo dmesg | grep -i amdgpu  # why it gave up on the card",
            "a newer kernel and linux-firmware for a card that is newer than them",
            "container: --device /dev/kfd --device /dev/dri",
        ],
        ask: &["lspci -nnk -d 1002:", "sudo dmesg | grep -iE 'amdgpu|kfd'"],
        source: "https://github.com/ROCm/ROCm/issues/1742",
        ..BASE
    },
    Entry {
        id: "nomodeset",
        patterns: &[
            r"(?i)\b(?:BOOT_IMAGE=|GRUB_CMDLINE_LINUX\w*=|Kernel command line:|/proc/cmdline\W).{0,400}\bnomodeset\b",
            r"(?i)booted with nomodeset\b|VGACON disables? amdgpu kernel modesetting",
        ],
        scope: BareMetal,
        cause: "The kernel was started with nomodeset, which keeps amdgpu from running the card: without it there is neither /dev/kfd nor a render node.",
        fix: &[
            "remove nomodeset from GRUB_CMDLINE_LINUX_DEFAULT in /etc/default/grub",
            "sudo update-grub && sudo reboot",
        ],
        source: "https://docs.kernel.org/admin-guide/kernel-parameters.html",
        ..BASE
    },
    Entry {
        id: "smi-value-missing",
        severity: Info,
        patterns: &[
            r"RSMI_STATUS_(?:FILE_ERROR|NOT_SUPPORTED|PERMISSION|INSUFFICIENT_SIZE|BUSY|NO_DATA|UNEXPECTED_DATA)",
            r"AMDSMI_STATUS_(?:NO_PERM|NOT_SUPPORTED|NO_DATA|NOT_YET_IMPLEMENTED|UNEXPECTED_DATA|NO_HSMP_DRV|BUSY|API_FAILED)",
            r"(?i)ERROR: GPU\[\d+\]\s*: ?(?:Unable to|Failed to|Not able to)|Unable to write to sysfs file",
        ],
        covers: &["smi-error-other"],
        cause: "rocm-smi or amd-smi could not read or set one value of the card: the card or driver has not got it, or it takes root. Computing does not need it.",
        fix: &[],
        source: "https://rocm.docs.amd.com/projects/rocm_smi_lib/en/latest/",
        ..BASE
    },
    Entry {
        id: "low-power-state",
        severity: Info,
        patterns: &[r"(?i)AMD GPU device\(s\) is/are in a low-power state"],
        cause: "The GPU is idle, and the driver let it sleep to save power: it wakes by itself at the first use. rocm-smi's warning is harmless and not an error.",
        fix: &[],
        source: "https://github.com/ROCm/legacy-rocm-build/issues/5849",
        ..BASE
    },
    Entry {
        id: "pci-window-too-small",
        confidence: Medium,
        patterns: &[
            r"(?i)amdgpu.*BAR \d+.*(?:no space|can't (?:assign|resize)|failed to (?:assign|resize)|not enough)",
            r"(?i)BAR [02]: (?:no space for|failed to assign) \[mem size 0x[0-9a-f]{8,} 64bit pref\]|BAR [02] \[mem size 0x[0-9a-f]{8,} 64bit pref\]: (?:can't assign|failed)",
            r"(?i)amdgpu.*(?:Unable to map|BAR.{0,20}(?:too small|disabled)|Failed to (?:allocate|map) (?:PCI|BAR))",
        ],
        also: &[r"(?i)Fatal error during GPU init|probe of \S+ failed|no space for"],
        scope: BareMetal,
        cause: "The board gives the card too little address space: its memory cannot be mapped, so the driver gives it up.",
        fix: &[
            "BIOS: switch \"Above 4G decoding\" (and Resizable BAR) on, CSM off",
            "an external or added card: pci=realloc on the kernel command line",
        ],
        ask: &[
            "dmesg | grep -E 'BAR|amdgpu' | head -n 40",
            "lspci -vv -d 1002: | grep -i 'region\\|resizable'",
        ],
        source: "https://docs.kernel.org/gpu/amdgpu/driver-core.html",
        ..BASE
    },
    Entry {
        id: "docker-gpus-flag",
        patterns: &[
            r"(?i)unknown or invalid runtime name: nvidia",
            r#"could not select device driver "\w*" with capabilities: \[\[\w*gpu"#,
            r"(?i)nvidia-container-cli: (?:initialization error|requirement error)",
        ],
        cause: "docker's `--gpus`, and a compose file that reserves devices with a driver and the capability gpu, ask for NVIDIA's container runtime. A container gets an AMD GPU as devices.",
        fix: &[
            "Linux: docker run --device /dev/kfd --device /dev/dri --group-add video --group-add $(stat -c %g /dev/kfd) --security-opt seccomp=unconfined --ipc=host …, with an image for ROCm",
            "WSL: docker run --device /dev/dxg -v /usr/lib/wsl:/usr/lib/wsl …",
        ],
        scope: NotWindows,
        source: "https://rocm.docs.amd.com/projects/install-on-linux/en/latest/how-to/docker.html",
        ..BASE
    },
];
