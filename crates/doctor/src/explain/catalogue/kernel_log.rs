//! Kernel messages about a running GPU: memory, sleep, the bus, hardware faults.

use super::Scope::BareMetal;
use super::{BASE, Entry};
use crate::explain::Confidence::{Low, Medium};
use crate::explain::Severity::{Info, Warning};

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        id: "resume-failed",
        patterns: &[
            r"(?i)amdgpu_device_ip_resume(?:_phase\d)? failed",
            r"(?i)resume of IP block <\w+> failed",
            r"(?i)amdgpu.*PM: (?:dpm_run_callback|failed to (?:resume|suspend|restore|thaw|freeze))",
            r"(?i)amdgpu_pmops_\w+(?:\+0x\w+/0x\w+)? .*returns -\d+",
            r"(?i)amdgpu.*(?:failed to resume (?:display|KFD)|Failed to resume IOMMU)",
            r"(?i)amdgpu.*suspend of IP block <\w+> failed",
        ],
        scope: BareMetal,
        covers: &["gpu-init-failed", "smu-no-answer"],
        cause: "The GPU does not come back from sleep: from suspend of the machine (or hibernation), or from runtime power management, which lets an idle card sleep. What used the GPU is lost, and HIP finds no usable device until it is started again.",
        fix: &[
            "restart the machine (power off and on if a restart is not enough)",
            "a newer kernel and linux-firmware; a newer BIOS",
            "without runtime power management: amdgpu.runpm=0 on the kernel command line",
            "end programs on the GPU before the machine sleeps, or do not let it sleep while one runs",
        ],
        ask: &[
            "dmesg | grep -iE 'PM: |resume|amdgpu' | tail -n 60",
            "uname -r; cat /proc/cmdline",
        ],
        source: "https://github.com/ROCm/amdgpu/issues/183",
        ..BASE
    },
    Entry {
        id: "kernel-no-gpu-memory",
        patterns: &[
            r"(?i)amdgpu.*Not enough memory for command submission",
            r"(?i)amdgpu_vm_validate\w*\(?\)? failed",
            r"(?i)\[TTM\] (?:Failed to find memory space|Buffer eviction failed|No space for|Failed moving buffer)",
            r"(?i)Failed to process the buffer list -12\b",
            r"(?i)amdgpu_cs_query_fence_status failed|amdgpu: The CS has been rejected .*\(-12\)",
            r"(?i)amdgpu: bo \S+ va .*conflict with",
        ],
        covers: &["mes-hang", "vulkan-device-lost"],
        cause: "The memory of the GPU is full: the kernel found no room in video memory or in GTT for what a program submitted, and refused it. All programs on the GPU count together, the desktop and the browser as well.",
        fix: &[
            "close other programs on the GPU, or use a smaller model, batch, context or image",
            "ComfyUI: --reserve-vram 2 leaves room for the desktop",
            "llama.cpp, ollama: fewer layers on the GPU (-ngl, num_gpu) or another version: from 0.32.10 on ollama loads more onto some APUs than fits, 0.32.9 does not; llama.cpp: --load-mode mmap",
            "APU: raise ttm.pages_limit (`surefoot doctor` tells the value), or a larger carve-out in the BIOS",
            "a newer kernel: older ones refused while memory was only busy",
        ],
        scope: BareMetal,
        ask: &[
            "rocm-smi --showmeminfo vram gtt",
            "dmesg | grep -iE 'VRAM memory ready|GTT memory ready'",
        ],
        source: "https://github.com/ollama/ollama/issues/17748",
        ..BASE
    },
    Entry {
        id: "kfd-unsupported",
        patterns: &[
            r"(?i)kfd not supported on this ASIC",
            r"(?i)\bkfd\b.*\b(?:is )?not supported in kfd",
            r"(?i)\bkfd\b.*is missing in supported_devices",
            r"(?i)kgd2kfd_(?:probe|device_init)\(?\)? failed",
            r"(?i)\bkfd\b.*GFX\w* (?:is|are)? ?(?:not|un)supported",
            r"(?i)\bkfd\b.*skipped device [0-9a-f]{4}:[0-9a-f]{4}\b(?:.*unsupported)?\W*$",
            r"(?i)amdgpu.*KFD is not supported|kfd: .*unsupported (?:ASIC|GPU|device)",
        ],
        scope: BareMetal,
        cause: "KFD, the part of the kernel driver that ROCm uses, does not support this GPU: it is too old (from before GCN 3, or a GFX7 or GFX8 chip without what KFD needs), or newer than this kernel.",
        fix: &[
            "a chip that is newer than the kernel: a newer kernel",
            "an old card: without ROCm, with OpenCL (Mesa's rusticl) or Vulkan; or a newer card",
        ],
        ask: &["lspci -nn -d 1002:", "uname -r", "dmesg | grep -i kfd"],
        source: "https://github.com/ROCm/legacy-rocm-build/issues/538",
        ..BASE
    },
    Entry {
        id: "bus-error-pcie",
        confidence: Medium,
        patterns: &[
            r"(?i)AER: (?:can't recover|device recovery failed)",
            r"(?i)(?:AER|pcieport).*(?:Uncorrected|Uncorrectable|Fatal) .*error",
            r"(?i)PCIe Bus Error: severity=Uncorrect",
            r"(?i)amdgpu.*device lost from bus",
            r"(?i)pciehp.*(?:Link Down|Surprise)",
            r"(?i)amdgpu.*(?:GPU (?:has )?fallen off the bus|not accessible, register reads? (?:return|are))",
        ],
        scope: BareMetal,
        cause: "The card was lost on the PCIe bus while it ran: its slot, riser, cable or enclosure (Thunderbolt, OCuLink) does not carry the signals, its power supply broke down, or the card crashed so that it no longer answers.",
        fix: &[
            "reseat the card; another slot, no riser, a shorter cable; all power cables of their own",
            "a lower PCIe generation for the slot in the BIOS (Gen 3 instead of Gen 4 or 5)",
            "pcie_aspm=off on the kernel command line; stock clocks and voltage",
        ],
        ask: &[
            "dmesg | grep -iE 'AER|pcie|amdgpu' | tail -n 60",
            "lspci -vv -d 1002: | grep -i lnk (as root)",
        ],
        source: "https://docs.kernel.org/PCI/pcieaer-howto.html",
        ..BASE
    },
    Entry {
        id: "iommu-fault",
        confidence: Medium,
        patterns: &[
            r"(?i)AMD-Vi: .*IO_PAGE_FAULT",
            r"(?i)DMAR: .*(?:fault|DMA (?:Read|Write))",
            r"(?i)error getting iommu info|amd_iommu_init_device failed|iommu_v2.*(?:failed|not supported)",
        ],
        also: &[r"(?i)amdgpu|kfd|rocm|hip|gfx"],
        scope: BareMetal,
        cause: "The IOMMU refused an access of the GPU: its mapping and the driver do not agree (a defect of the BIOS or kernel), or the IOMMU is switched off where an old APU needs it.",
        fix: &[
            "iommu=pt on the kernel command line",
            "a newer BIOS and kernel; the IOMMU on in the BIOS",
            "amd_iommu=off only to find out whether it is the cause: without it, old APUs and virtual machines do not work",
        ],
        ask: &[
            "cat /proc/cmdline",
            "dmesg | grep -iE 'AMD-Vi|iommu' | head -n 20",
        ],
        source: "https://rocm.docs.amd.com/en/latest/how-to/system-debugging.html",
        ..BASE
    },
    Entry {
        id: "wave-error",
        confidence: Medium,
        patterns: &[
            r"(?i)\bsq_intr: error",
            r"(?i)amdgpu.*\bSQ (?:interrupt|error).*(?:memory violation|illegal inst)",
        ],
        scope: BareMetal,
        covers: &["kernel-driver-error-other"],
        cause: "A kernel that runs on the GPU made an error there (err_type 1 is an illegal instruction, 2 a memory violation, 3 an EDC error): an index or pointer out of range in the program or a library, or code of another architecture.",
        fix: &[
            "find the kernel: AMD_SERIALIZE_KERNEL=3 and AMD_LOG_LEVEL=3 before the program; the last launch is the one that failed",
            "another version of the library whose kernel it is (attention, bitsandbytes, an extension of your own); unset HSA_OVERRIDE_GFX_VERSION",
        ],
        ask: &[
            "AMD_SERIALIZE_KERNEL=3 AMD_LOG_LEVEL=3 <your program> 2>&1 | grep -i ShaderName | tail -n 5",
            "dmesg | grep -iE 'sq_intr|page fault|amdgpu' | tail -n 40",
        ],
        source: "https://github.com/ROCm/legacy-rocm-build/issues/3696",
        ..BASE
    },
    Entry {
        id: "hardware-error-memory",
        patterns: &[
            r"(?i)amdgpu.*uncorrectable hardware errors? (?:detected|found)",
            r"(?i)amdgpu.*(?:RAS|UMC|HBM).*(?:uncorrectable|poison|bad page|exceeds? (?:the )?threshold)",
            r"(?i)amdgpu.*(?:Poison is (?:created|consumed)|Hardware error logged in block)",
            r"hipErrorECCNotCorrectable|uncorrectable ECC error",
        ],
        scope: BareMetal,
        cause: "The memory of the GPU reports errors that ECC cannot correct: bad pages, or a defect of the card.",
        fix: &[
            "restart the machine; the driver then leaves bad pages out",
            "amd-smi bad-pages and amd-smi metric --ecc: if the count grows, the card belongs into repair",
        ],
        ask: &[
            "amd-smi bad-pages",
            "dmesg | grep -iE 'ras|umc|ecc' | tail -n 40",
        ],
        source: "https://docs.kernel.org/gpu/amdgpu/ras.html",
        ..BASE
    },
    Entry {
        id: "too-hot",
        patterns: &[
            r"(?i)amdgpu.*(?:over temperature|CTF\) detected|thermal (?:shutdown|trip))",
            r"(?i)GPU (?:is )?overheat",
        ],
        cause: "The GPU was too hot and shut itself down or slowed to the lowest clock.",
        fix: &[
            "clean the fans, mind the air flow, set a fan curve or a lower power limit (rocm-smi --setpoweroverdrive)",
        ],
        ask: &["rocm-smi --showtemp --showfan"],
        source: "https://docs.kernel.org/gpu/amdgpu/thermal.html",
        ..BASE
    },
    Entry {
        id: "kfd-queue-evicted",
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"(?i)Freeing queue vital buffer",
            r"(?i)init_user_pages: Failed to (?:get user pages|register)",
        ],
        scope: BareMetal,
        cause: "A process freed memory that a queue of the GPU still used, mostly because it was ending already: a program that crashed or was killed leaves this line. It is a consequence, not the cause.",
        fix: &["look at what the program itself printed, and at the lines before this one"],
        ask: &["dmesg | grep -iE 'amdgpu|kfd' | tail -n 60"],
        source: "https://github.com/ROCm/legacy-rocm-build/issues/2197",
        ..BASE
    },
    Entry {
        id: "smu-no-answer",
        confidence: Medium,
        patterns: &[
            r"(?i)SM[UC] (?:is not ready|engine is not correctly up|load firmware failed|failed to respond)",
            r"(?i)(?:SMU|smu).*(?:No response|Failed to (?:enable requested dpm|setup smc hw|send message|export SMU metrics))",
            r"(?i)Msg issuing pre-check failed",
            r"(?i)SMU: response:0x(?:FFFFFFFF|00000000)",
        ],
        scope: BareMetal,
        covers: &["gpu-init-failed"],
        cause: "The controller of clocks and power on the GPU (SMU) does not answer the driver: it crashed with a hang, did not come back from sleep, or its firmware does not fit the driver.",
        fix: &[
            "power the machine off (not restart) and on again",
            "a newer kernel and linux-firmware, of one age",
            "amdgpu.runpm=0 on the kernel command line, if the card sleeps when idle",
            "stock clocks, voltage and power limit",
        ],
        ask: &[
            "dmesg | grep -iE 'smu|psp|amdgpu' | tail -n 60",
            "uname -r; dpkg -l linux-firmware",
        ],
        source: "https://github.com/ROCm/amdgpu/issues/183",
        ..BASE
    },
    Entry {
        id: "display-hang",
        severity: Warning,
        confidence: Low,
        patterns: &[
            r"(?i)flip_done timed out",
            r"(?i)commit wait timed out",
            r"(?i)Error waiting for DMUB idle|dmub_srv.*timed? ?out|DMCUB error - collecting diagnostic data",
        ],
        scope: BareMetal,
        cause: "The display part of the GPU hung, not its compute part: panel self refresh and the firmware of the display controller are known causes on laptops.",
        fix: &[
            "a newer kernel and linux-firmware",
            "amdgpu.dcdebugmask=0x10 on the kernel command line switches panel self refresh off",
        ],
        ask: &["uname -r; cat /proc/cmdline"],
        source: "https://docs.kernel.org/gpu/amdgpu/module-parameters.html",
        ..BASE
    },
    Entry {
        id: "atomics-needed",
        confidence: Medium,
        patterns: &[r"(?i)(?:PCIE|PCI) atomic ops is not supported"],
        also: &[
            r"(?i)operation cannot be performed in the present state|hipErrorIllegalState|printf|hostcall",
        ],
        scope: BareMetal,
        covers: &["slot-without-atomics", "hip-error-other", "rccl-error"],
        cause: "The GPU of this line sits in a slot without PCIe atomics (mostly one of the chipset, not of the processor). Most programs do without; kernels that call back to the host (RCCL, printf, assertions on the device) need them, and their launch is refused.",
        fix: &[
            "the card in a slot that is wired to the processor",
            "this GPU left out: HIP_VISIBLE_DEVICES with the number of the other one",
            "an RCCL that is built without calls back to the host (another version)",
        ],
        source: "https://github.com/ROCm/legacy-rocm-build/issues/6520",
        ..BASE
    },
    Entry {
        id: "host-memory-limit",
        patterns: &[
            r"(?i)SVM mapping failed, exceeds resident system memory limit",
            r"(?i)exceeds resident system memory limit",
        ],
        scope: BareMetal,
        cause: "The kernel refuses to map more host memory for the GPU than its limit: everything that is mapped or pinned for GPUs together counts, a file that is mapped (mmap) among it.",
        fix: &[
            "models without mmap: --no-mmap in llama.cpp, use_mmap false in ollama; a smaller model or fewer pinned buffers",
            "amdgpu.no_system_mem_limit=1 on the kernel command line, or a larger ttm.pages_limit; `surefoot doctor` tells which one binds",
            "end other programs that hold memory for the GPU",
        ],
        ask: &[
            "cat /sys/module/ttm/parameters/pages_limit; free -h",
            "uname -r; cat /proc/cmdline",
        ],
        source: "https://docs.kernel.org/gpu/amdgpu/module-parameters.html",
        ..BASE
    },
    Entry {
        id: "gpu-off-the-bus",
        confidence: Medium,
        patterns: &[
            r"(?i)Unable to change power state from D3(?:cold|hot) to D0, device inaccessible",
            r"(?i)amdgpu.{0,60}(?:device lost from bus|fallen off the bus)",
            r"(?i)amdgpu \S+ (?:pci_channel_io_perm_failure|not ready \d+ms after (?:resume|\w+ reset); giving up)",
            r"(?i)can't change power state from D3(?:cold|hot) to D0 \(config space inaccessible\)",
        ],
        scope: BareMetal,
        covers: &["mes-hang", "bus-error-pcie"],
        cause: "The GPU no longer answers on the bus: power saving switched it off and it did not come back, or its power supply, slot or riser fails under load.",
        fix: &[
            "power the machine off (not restart) and on again",
            "amdgpu.runpm=0 and pcie_aspm=off on the kernel command line keep it awake",
            "power supply, its cables, slot and riser; a newer BIOS, and its settings for that slot (PCIe generation, clock, ASPM)",
        ],
        ask: &["dmesg | grep -iE 'amdgpu|pcieport|AER' | tail -n 60"],
        source: "https://docs.kernel.org/gpu/amdgpu/module-parameters.html",
        ..BASE
    },
    Entry {
        id: "kernel-oops",
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"(?i)BUG: unable to handle (?:kernel (?:NULL pointer|paging request)|page fault)",
            r"(?i)BUG: kernel NULL pointer dereference|Kernel panic - not syncing",
            r"(?i)general protection fault, probably for non-canonical address",
            r"(?i)\bOops: [0-9a-f]{4} \[#\d+\]",
        ],
        scope: BareMetal,
        cause: "The kernel itself crashed (an oops). The module is the one in brackets behind RIP: [amdgpu] or [amdkfd] there is the GPU's driver, and no setting of the program fixes that. Until a restart the GPU may hang.",
        fix: &[
            "restart, then another kernel: a newer one, or the last one that worked",
            "with amdgpu-dkms installed: without it (sudo apt purge amdgpu-dkms), by the kernel's own driver, or the newest release of it",
            "a newer BIOS, where it came with one",
        ],
        ask: &[
            "the lines from BUG: to the end of the call trace",
            "uname -r; dkms status",
        ],
        source: "https://docs.kernel.org/admin-guide/bug-hunting.html",
        ..BASE
    },
    Entry {
        id: "kernel-statistics-harmless",
        severity: Info,
        patterns: &[
            r"(?i)VM memory stats for proc .* is non-zero when fini",
            r"(?i)optional (?:ras|rap|dtm|hdcp|securedisplay) ta ucode is not (?:available|loaded)",
            r"(?i)Expected integer value from monitor, but got",
            r"(?i)amdgpu version file missing|recommends running the https://www\.amd\.com/en/support/linux-drivers",
        ],
        cause: "Harmless: the line is for information, and computing on the GPU needs nothing of what it misses.",
        source: "https://docs.kernel.org/gpu/amdgpu/index.html",
        ..BASE
    },
    Entry {
        id: "slot-without-atomics",
        severity: Info,
        confidence: Medium,
        patterns: &[r"(?i)(?:PCIE|PCI) atomic ops is not supported"],
        scope: BareMetal,
        cause: "The GPU of this line has no PCIe atomics. An integrated GPU needs none, and most programs do without on RX 5000 and newer; there only kernels that call back to the host (RCCL, printf) fail. ROCm refuses the RX 400 and 500 in such a slot.",
        fix: &[
            "a card that ROCm does not list: a slot that is wired to the processor, without a riser",
        ],
        source: "https://github.com/ROCm/ROCm/issues/2232",
        ..BASE
    },
    Entry {
        id: "bus-errors-corrected",
        severity: Info,
        patterns: &[
            r"(?i)AER: (?:Multiple )?Correct(?:ed|able) error",
            r"(?i)PCIe Bus Error: severity=Correct",
        ],
        scope: BareMetal,
        cause: "The PCIe bus repeated a transfer and corrected the error by itself: single ones mean nothing. Thousands of them mean a slot, riser or cable that carries the signals badly.",
        fix: &[
            "many: reseat the card, without a riser; a lower PCIe generation in the BIOS; pcie_aspm=off on the kernel command line",
        ],
        source: "https://docs.kernel.org/PCI/pcieaer-howto.html",
        ..BASE
    },
    Entry {
        id: "machine-check",
        severity: Warning,
        confidence: Medium,
        patterns: &[r"(?i)\bmce: \[Hardware Error\]|Hardware Error\]: (?:CPU \d+|Uncorrected)"],
        scope: BareMetal,
        cause: "The processor reported a hardware error (machine check): of itself, of the memory or of the bus. Crashes beside it, those of the GPU as well, can be its consequence.",
        fix: &[
            "stock clocks and voltages (no EXPO, XMP or curve optimizer), a newer BIOS",
            "test the memory (memtest86+); sudo ras-mc-ctl --errors, or journalctl -k | grep -i mce, names the part",
        ],
        ask: &["journalctl -k | grep -iE 'mce|hardware error' | tail -n 20"],
        source: "https://docs.kernel.org/arch/x86/x86_64/machinecheck.html",
        ..BASE
    },
];
