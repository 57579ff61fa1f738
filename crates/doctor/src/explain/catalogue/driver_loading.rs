//! The kernel driver while it starts: what keeps it from it, and what it says that matters little.

use super::Scope::BareMetal;
use super::{BASE, Entry};
use crate::explain::Confidence::{Low, Medium};
use crate::explain::Severity::{Info, Warning};

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        id: "driver-switched-off",
        patterns: &[
            r"(?i)booted with nomodeset",
            r"(?i)nomodeset (?:passed|parameter|set)|VGACON disables? amdgpu kernel modesetting|amdgpu kernel modesetting disabled",
            r"(?i)could not insert .?amdgpu.?: Invalid argument",
        ],
        scope: BareMetal,
        covers: &["amdgpu-not-signed"],
        cause: "The kernel was started with `nomodeset` (a safe graphics mode, or left from the installation of the system), which switches the amdgpu driver off: neither HIP nor rocm-smi sees a GPU then.",
        fix: &[
            "take nomodeset (and amdgpu.modeset=0) out of GRUB_CMDLINE_LINUX in /etc/default/grub, sudo update-grub (Fedora: sudo grubby --update-kernel=ALL --remove-args=nomodeset), then restart",
        ],
        ask: &["cat /proc/cmdline; ls /etc/modprobe.d"],
        source: "https://docs.kernel.org/gpu/amdgpu/module-parameters.html",
        ..BASE
    },
    Entry {
        id: "chip-newer-than-kernel",
        patterns: &[
            r"(?i)amdgpu.{0,80}Failed to add \w+ (?:\w+ )?ip block ?\(",
            r"(?i)amdgpu.{0,40}unknown asic|unknown asic.{0,40}amdgpu|Unsupported asic type",
        ],
        scope: BareMetal,
        covers: &["gpu-init-failed", "kernel-driver-error-other"],
        cause: "The kernel's amdgpu driver{kernel} is older than this GPU: it does not know one of its blocks, and leaves the card alone.",
        fix: &[
            "a newer kernel with a linux-firmware of the same age (RX 9000: 6.12 or newer; Strix Halo: 6.14 or newer)",
            "or the amdgpu-dkms of a ROCm release that supports the card, where its kernel cannot be changed",
        ],
        ask: &["uname -r; lspci -nn -d 1002:"],
        source: "https://docs.kernel.org/gpu/amdgpu/amd-hardware-list-info.html",
        ..BASE
    },
    Entry {
        id: "radeon-driver-in-use",
        patterns: &[
            r"(?i)DRM version is 2\.\d+\.\d+ but this driver is only compatible with 3",
            r"(?i)amdgpu: (?:SI|CIK) support (?:provided by radeon|disabled by module param)",
        ],
        scope: BareMetal,
        cause: "The card is driven by the kernel's old driver radeon and not by amdgpu: it is one of the first GCN generations (HD 7000 to R9 290), which ROCm does not support even with amdgpu.",
        fix: &[
            "Vulkan or OpenCL of Mesa need amdgpu: radeon.si_support=0 radeon.cik_support=0 amdgpu.si_support=1 amdgpu.cik_support=1 on the kernel command line",
            "for ROCm a newer card",
        ],
        ask: &["lspci -nnk -d 1002:; uname -r"],
        source: "https://docs.kernel.org/gpu/amdgpu/module-parameters.html",
        ..BASE
    },
    Entry {
        id: "render-node-missing",
        confidence: Medium,
        patterns: &[
            r"(?i)/dev/dri/(?:renderD|card)\d+\W{1,4}(?:open failed: )?No such (?:file|device)",
        ],
        scope: BareMetal,
        cause: "There is no graphics device of that number: its driver is not loaded, or the numbers changed with a restart (another card, an integrated GPU that was switched on or off), or a container or service was given one fixed number.",
        fix: &[
            "ls -l /dev/dri/by-path shows which number belongs to which card now; pass all of /dev/dri to a container",
            "lsmod | grep amdgpu: nothing means that the driver is not loaded (dmesg | grep -i amdgpu says why)",
        ],
        ask: &["ls -ln /dev/dri /dev/dri/by-path; lsmod | grep amdgpu"],
        source: "https://docs.kernel.org/gpu/drm-uapi.html",
        ..BASE
    },
    Entry {
        id: "module-in-use",
        severity: Warning,
        patterns: &[r"(?i)Module amdgpu is in use"],
        scope: BareMetal,
        cause: "The amdgpu module cannot be unloaded while a desktop, a console or a program uses it.",
        fix: &[
            "restart the machine instead, or end the desktop first (sudo systemctl isolate multi-user.target)",
        ],
        source: "https://docs.kernel.org/gpu/amdgpu/driver-core.html",
        ..BASE
    },
    Entry {
        id: "swiotlb-full",
        confidence: Medium,
        patterns: &[r"(?i)swiotlb buffer is full"],
        scope: BareMetal,
        cause: "The kernel copies what the GPU reads and writes through a small buffer (swiotlb), since it cannot reach all of the RAM by itself: the IOMMU is off, and the buffer is full.",
        fix: &[
            "the IOMMU (AMD-Vi, VT-d) on in the BIOS, no amd_iommu=off on the kernel command line",
            "or a larger buffer: swiotlb=262144 on the kernel command line",
        ],
        ask: &["cat /proc/cmdline; dmesg | grep -iE 'swiotlb|AMD-Vi|DMAR' | head -n 10"],
        source: "https://docs.kernel.org/core-api/swiotlb.html",
        ..BASE
    },
    Entry {
        id: "firmware-refused",
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"(?i)failed to load ucode (?:id|\w+ ?\()",
            r"(?i)psp (?:gfx )?(?:command|cmd) (?:\S+ ?)?failed",
        ],
        scope: BareMetal,
        covers: &["firmware-missing", "kernel-driver-error-other"],
        cause: "The security processor of the card (PSP) refused a piece of firmware or a command. If the driver goes on (later lines say that the GPU was added), that part is optional and nothing is wrong; if an error ends its start, or it comes after a reset or from sleep, the card is in a bad state or firmware and kernel are not of one age.",
        fix: &[
            "nothing, if rocminfo shows the GPU",
            "otherwise power the machine off (not restart) and on again; kernel and linux-firmware of one age",
        ],
        ask: &["dmesg | grep -iE 'amdgpu|psp|kfd' | tail -n 60"],
        source: "https://github.com/ROCm/legacy-rocm-build/issues/1690",
        ..BASE
    },
    Entry {
        id: "kernel-warning",
        severity: Info,
        confidence: Medium,
        patterns: &[
            r"WARNING: (?:CPU: \d+ )?(?:PID: \d+ )?(?:at )?\S*drivers/gpu/drm/(?:amd|ttm|scheduler)",
            r"UBSAN: .{0,60} in \S*drivers/gpu/drm/(?:amd|ttm)",
        ],
        scope: BareMetal,
        cause: "The kernel's GPU driver met a state that it did not expect, wrote a trace and went on (a WARNING, no crash). In its display part (amd/display) it does not concern computing; elsewhere it is mostly a consequence of a hang or of a bug that a newer kernel has fixed.",
        fix: &["a newer kernel, if the GPU fails as well; look for the first error before it"],
        source: "https://docs.kernel.org/admin-guide/bug-hunting.html",
        ..BASE
    },
    Entry {
        id: "display-remarks-harmless",
        severity: Info,
        patterns: &[
            r"REG_WAIT timeout \d+us",
            r"(?i)EDID (?:has corrupt header|block|checksum).{0,40}(?:invalid|corrupt|header)|\bNo EDID read",
            r"(?i)enabling link \d+ failed",
            r"HDCP_FAILURE|(?i:Secure ?display: (?:Generic Failure|query securedisplay TA failed))",
            r"(?i)dce_i2c_hw.{0,60}(?:timeout|failed)|dpia.{0,40}(?:failed|timeout)",
        ],
        scope: BareMetal,
        covers: &["kernel-driver-error-other"],
        cause: "A message of the display part of the driver, about a monitor, its cable or content protection. Computing on the GPU does not need any of it.",
        fix: &[],
        source: "https://docs.kernel.org/gpu/amdgpu/display/index.html",
        ..BASE
    },
    Entry {
        id: "mesa-not-found-harmless",
        severity: Info,
        patterns: &[r"(?i)MESA-LOADER: failed to open|libGL error: failed to load driver"],
        scope: BareMetal,
        cause: "OpenGL (Mesa) could not be loaded, mostly because an environment of conda has an older libstdc++ than the system's Mesa needs. It concerns windows and pictures on the screen; computing on the GPU does not use it.",
        fix: &[
            "if the program needs OpenGL: conda install -c conda-forge libstdcxx-ng, or run it without conda",
        ],
        source: "https://docs.mesa3d.org/envvars.html",
        ..BASE
    },
    Entry {
        id: "driver-remarks-harmless",
        severity: Info,
        patterns: &[
            r"(?i)SMU driver if version not matched",
            r"(?i)Runlist is getting oversubscribed",
            r"(?i)Overdrive is enabled, please disable it before reporting",
            r"(?i)module verification failed: signature and/or required key missing - tainting kernel",
            r"(?i)amdgpu.{0,60}PSP runtime database doesn't exist",
            r"(?i)Configuring gttsize via module parameter is deprecated",
            r"(?i)available PCIe bandwidth, limited by",
        ],
        scope: BareMetal,
        cause: "A remark of the driver, not an error: versions of its parts that differ slightly, more queues than the hardware has (slower, not wrong), a slot that is slower than the card (models load slower), overclocking that is allowed, a parameter with a newer name (amdgpu.gttsize is now ttm.pages_limit), or a module without the kernel's own signature. The GPU works with all of them.",
        fix: &[],
        source: "https://docs.kernel.org/gpu/amdgpu/index.html",
        ..BASE
    },
    Entry {
        id: "processor-stuck",
        severity: Warning,
        confidence: Low,
        patterns: &[
            r"(?i)soft lockup - CPU#\d+ stuck",
            r"(?i)rcu\w*: (?:INFO: )?rcu_\w+ .{0,30}detected .{0,20}stalls?",
            r"(?i)NMI watchdog: .{0,40}hard LOCKUP|INFO: task (?:kworker|kfd|Xorg|kwin|gnome|ollama|llama)\S* blocked for more than \d+ seconds",
        ],
        also: &[r"(?i)amdgpu|\[amdttm\]|kfd"],
        scope: BareMetal,
        cause: "A process or processor core waited in the kernel for too long. With amdgpu or kfd in the trace below, it waits for a GPU that hangs; memory that is full or a slow disk do the same.",
        fix: &[
            "restart; a newer kernel and linux-firmware",
            "lines before it with `ring … timeout`, `page fault` or `reset` name the cause",
        ],
        ask: &["dmesg | grep -iE 'amdgpu|kfd|ring|reset' | tail -n 60; uname -r"],
        source: "https://docs.kernel.org/admin-guide/lockup-watchdogs.html",
        ..BASE
    },
];
