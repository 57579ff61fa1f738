//! The NPU of Ryzen AI processors: its driver (amdxdna), its firmware, and XRT, which programs use.

use super::Scope::BareMetal;
use super::{BASE, Entry};
use crate::explain::Confidence::Medium;
use crate::explain::Severity::Warning;

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        id: "npu-firmware",
        patterns: &[
            r"(?i)Direct firmware load for amdnpu/\S+ failed",
            r"(?i)failed to request_firmware amdnpu/",
            r"(?i)loading \S*amdnpu/\S+ failed",
            r"(?i)amdxdna.*Incompatible firmware protocol",
            r"(?i)amdxdna.*(?:firmware is not alive|Invalid mbox magic|failed to validate fw|Check firmware alive|aie2_smu_init: (?:Access|Power))",
            r"(?i)(?:aie2|npu)\w*: failed to (?:load|request) (?:npu )?firmware",
            r"(?i)(?:aie2|npu)_\w+: (?:firmware is not alive|Invalid mbox magic|Incompatible firmware)",
        ],
        severity: Warning,
        scope: BareMetal,
        covers: &["npu-not-found", "npu-driver-differs"],
        cause: "The NPU (not the GPU) did not start: its firmware (amdnpu/…/npu.sbin) is not installed, or is of another age than its driver amdxdna, and the two do not understand each other.",
        fix: &[
            "firmware and driver from one source and of one age: a current kernel with a current linux-firmware, or the amdxdna driver that is built from source with the firmware that it brings",
            "power the machine off (not restart) and on again after a change of the firmware",
            "PyTorch on the GPU does not use the NPU: nothing of this has to work for training",
        ],
        ask: &[
            "ls -lR /lib/firmware/amdnpu; uname -r",
            "dmesg | grep -i xdna",
        ],
        source: "https://github.com/amd/xdna-driver/issues/1074",
        ..BASE
    },
    Entry {
        id: "npu-iommu",
        confidence: Medium,
        patterns: &[
            r"(?i)amdxdna.*SVA bind device failed",
            r"(?i)amdxdna_drm_open: SVA bind",
            r"(?i)(?:amdxdna|aie2_init).*Enable PASID failed",
            r"(?i)amdxdna.*(?:iommu|PASID).*(?:not supported|failed|disabled)",
        ],
        severity: Warning,
        scope: BareMetal,
        covers: &["npu-not-found", "npu-driver-differs"],
        cause: "The NPU (not the GPU) cannot be opened: its driver amdxdna shares the memory of the process through the IOMMU (SVA, PASID), and the IOMMU does not offer that here. It is switched off (BIOS, amd_iommu=off), set to pass-through with an older driver, or this is a virtual machine, whose IOMMU has no PASID.",
        fix: &[
            "the IOMMU (AMD-Vi) on in the BIOS, and no amd_iommu=off on the kernel command line; with an older driver no iommu=pt either",
            "a newer kernel or amdxdna driver: since the middle of 2026 it does without PASID",
            "in a virtual machine the NPU does not work: use it on the machine itself",
        ],
        ask: &[
            "cat /proc/cmdline; dmesg | grep -iE 'AMD-Vi|xdna'",
            "uname -r; modinfo -F version amdxdna",
        ],
        source: "https://github.com/amd/xdna-driver/issues/168",
        ..BASE
    },
    Entry {
        id: "npu-memlock",
        patterns: &[
            r"(?i)mmap\(.{0,160}failed \(err=-?11\)",
            r"(?i)\bxrt\S*.{0,120}Resource temporarily unavailable",
        ],
        also: &[r"(?i)\bxrt|xdna|\bnpu\b"],
        severity: Warning,
        scope: BareMetal,
        covers: &["native-abort", "npu-not-found"],
        cause: "The NPU's buffers are locked in memory, and this user may lock too little (the memlock limit, `ulimit -l`).",
        fix: &[
            "raise the limit: the line `* - memlock unlimited` in /etc/security/limits.conf, then log in again",
            "a container: --ulimit memlock=-1:-1; a service: LimitMEMLOCK=infinity in its unit",
        ],
        ask: &["ulimit -l"],
        source: "https://github.com/Xilinx/mlir-air/issues/566",
        ..BASE
    },
    Entry {
        id: "npu-permission",
        confidence: Medium,
        patterns: &[
            r"(?i)DRM_IOCTL_AMDXDNA_\w+.{0,40}(?:err=-?13\b|Permission denied)",
            r"(?i)/dev/accel/accel\d+.{0,60}(?:Permission denied|err=-?13\b)",
        ],
        severity: Warning,
        scope: BareMetal,
        covers: &["npu-driver-differs"],
        cause: "The NPU refuses this user: its device (/dev/accel/accel0) belongs to a group that the user is not in, or the call is for root alone, such as setting the power mode before a test.",
        fix: &[
            "the group that owns the device (mostly render): ls -l /dev/accel, sudo usermod -aG render $USER, then log in again",
            "xrt-smi validate and configure: as root (sudo), or a newer XRT, which goes on without",
        ],
        ask: &["ls -ln /dev/accel; id"],
        source: "https://github.com/amd/xdna-driver/issues/307",
        ..BASE
    },
    Entry {
        id: "npu-driver-differs",
        confidence: Medium,
        patterns: &[
            r"(?i)DRM_IOCTL_AMDXDNA_\w+.{0,60}(?:failed|err=)",
            r"(?i)amdxdna_\w+: (?:Heap BO is not supported|Invalid (?:arg|bo))",
            r"(?i)amdxdna: (?:disagrees about version of symbol|Unknown symbol)",
        ],
        severity: Warning,
        scope: BareMetal,
        cause: "The driver of the NPU (amdxdna, in the kernel or of DKMS) refuses a call of XRT, the library above it: the two are of different ages, the kernel is configured otherwise than the driver expects, or the model was made for another generation of NPU.",
        fix: &[
            "driver, XRT, its plugin (xrt-plugin-amdxdna, libxrt-npu2) and firmware of one release; a newer one of all",
            "dmesg names the reason: dmesg | grep -i xdna",
        ],
        ask: &[
            "dmesg | grep -i xdna | tail -n 20",
            "xrt-smi examine; uname -r",
        ],
        source: "https://github.com/amd/xdna-driver/issues/923",
        ..BASE
    },
    Entry {
        id: "npu-driver-old",
        confidence: Medium,
        patterns: &[
            r"(?i)\bNPU driver\b.{0,80}(?:too old|outdated|incompatible|not (?:supported|installed|found)|please update)",
            r"(?i)\bNPU\b.{0,40}driver version.{0,60}(?:too old|required|minimum)",
        ],
        severity: Warning,
        cause: "The program wants a newer driver of the NPU (not of the GPU) than is installed.",
        fix: &[
            "Windows: AMD's current NPU driver (32.0.203.… and newer), from its Ryzen AI page",
            "Linux: a current kernel with its amdxdna driver, linux-firmware of the same age, and XRT with its plugin",
        ],
        ask: &["the version of the NPU in the Device Manager"],
        source: "https://ryzenai.docs.amd.com/en/latest/inst.html",
        ..BASE
    },
    Entry {
        id: "npu-not-found",
        confidence: Medium,
        patterns: &[
            r"(?i)No NPU device found|no the XDNA NPU devices found",
            r"(?i)(?:xbutil|xrt-smi|xrt).{0,80}No such device with index",
            r"(?i)adding custom device .?/dev/accel",
            r"(?i)/dev/accel/accel\d+.{0,10}: no such file",
            r"(?i)\bxrt\b.{0,60}(?:0 devices found|No devices found)",
        ],
        severity: Warning,
        scope: BareMetal,
        cause: "No NPU is seen: its driver amdxdna is not loaded or did not start (the kernel log says why), the NPU is switched off in the BIOS (IPU), the plugin of XRT for it is missing, or a container was started without /dev/accel.",
        fix: &[
            "dmesg | grep -i xdna: a kernel from 6.14 on has the driver; look for errors of firmware and IOMMU there",
            "the plugin of XRT (xrt-plugin-amdxdna, libxrt-npu2) of the same version as XRT",
            "container: --device /dev/accel/accel0 and --ulimit memlock=-1:-1",
        ],
        ask: &[
            "dmesg | grep -i xdna; ls -l /dev/accel",
            "lspci -nn | grep -i 'signal processing'",
        ],
        source: "https://github.com/amd/xdna-driver/issues/168",
        ..BASE
    },
];
