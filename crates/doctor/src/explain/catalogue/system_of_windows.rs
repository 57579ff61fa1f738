//! Windows itself and the virtual machine of WSL: what they refuse, their driver packages and devices.

use super::Scope::Wsl;
use super::{BASE, Entry};
use crate::explain::Confidence::Medium;
use crate::explain::Severity::{Info, Warning};

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        id: "wsl-needs-no-driver",
        patterns: &[
            r"(?i)dpkg: error processing package amdgpu-dkms",
            r"(?i)Your kernel headers for kernel \S+microsoft\S* cannot be found",
            r"(?i)Module amdgpu not found in directory \S*microsoft",
            r"(?i)(?:Unable to locate package|Couldn't find any package by \w+) .?linux-(?:headers|modules-extra)-\S*microsoft",
            r"(?i)(?:amdgpu|rock)-dkms.{0,60}(?:failed|exit status|not configured)",
            r"(?i)Bad return status for module build on kernel: \S*microsoft",
        ],
        scope: Wsl,
        covers: &[
            "amdgpu-dkms-build",
            "amdgpu-dkms-headers",
            "amdgpu-module-missing",
            "kernel-headers-unavailable",
            "wsl-gpu-not-usable",
        ],
        cause: "Under WSL there is no amdgpu driver to install or to load: the GPU comes through the driver of Windows (/dev/dxg), and WSL's kernel has neither headers nor modules for another one.",
        fix: &[
            "WSL: sudo apt purge amdgpu-dkms, then amdgpu-install -y --usecase=wsl,rocm --no-dkms (newer releases: ROCm with librocdxg)",
            "the Adrenalin driver on Windows that AMD's table for WSL names, and a card that it lists",
        ],
        ask: &["uname -r; ls -l /dev/dxg; rocminfo | head -n 12"],
        source: "https://rocm.docs.amd.com/projects/radeon-ryzen/en/latest/docs/install/installrad/wsl/install-radeon.html",
        ..BASE
    },
    Entry {
        id: "wsl-no-amdsmi",
        severity: Info,
        patterns: &[
            r"(?i)Driver not initialized \(amdgpu not found in modules\)",
            r"(?i)WARNING: No AMD GPUs specified|Unable to get devices, driver not initialized",
            r"(?i)Unable to detect any GPU devices, check amdgpu version",
            r"AMDSMI_STATUS_(?:DRIVER_NOT_LOADED|INIT_ERROR|NOT_INIT|DRM_ERROR)",
            r"/sys/module/amdgpu/initstate: No such file",
        ],
        scope: Wsl,
        cause: "rocm-smi and amd-smi ask Linux's own kernel driver, which does not exist under WSL: they do not work there, and that says nothing about the GPU. rocminfo and PyTorch tell whether it can be used; its load is shown by the Task Manager of Windows.",
        fix: &[],
        source: "https://github.com/ROCm/amdsmi/issues/75",
        ..BASE
    },
    Entry {
        id: "wsl-start-failed",
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"(?i)\bWsl/(?:Service|InstallDistro|EnumerateDistros)?/?\w*/?(?:CreateInstance|CreateVm|E_\w+|HCS|0x[0-9a-f]{8}|WSL_E_\w+)",
            r"WslRegisterDistribution failed with error: 0x[0-9a-f]{8}",
        ],
        cause: "WSL's virtual machine did not start; ROCm and the GPU have no part in it. Reasons are virtualisation that is switched off, a .wslconfig with more memory or other values than the machine has, a disk that is full, or a WSL that needs an update.",
        fix: &[
            "wsl --shutdown, then wsl --update, and restart Windows",
            "rename %USERPROFILE%\\.wslconfig to see whether it is the cause",
            "virtualisation on in the BIOS; the Windows feature `Virtual Machine Platform` on; space on the disk of the distribution",
        ],
        ask: &[
            "wsl --version; wsl --status",
            "type %USERPROFILE%\\.wslconfig",
        ],
        source: "https://learn.microsoft.com/windows/wsl/troubleshooting",
        ..BASE
    },
    Entry {
        id: "windows-policy-blocked",
        patterns: &[
            r"(?i)Application Control policy has blocked",
            r"(?i)\[WinError (?:4551|1260|225)\]",
            r"(?i)Smart App Control|blocked by (?:group policy|your (?:organi[sz]ation|administrator))",
        ],
        covers: &["windows-dll-missing", "windows-rocm-dll"],
        cause: "Windows itself forbids to load the file: Smart App Control, a policy of the organisation or the virus scanner does not trust it, because builds of ROCm and nightlies are not signed.",
        fix: &[
            "Windows Security, App & browser control: switch Smart App Control off (it cannot be switched on again without a new installation of Windows)",
            "a machine of an organisation: its administrators allow the folder of the environment",
            "an exception in the virus scanner for that folder, then install the package again",
        ],
        source: "https://support.microsoft.com/topic/what-is-smart-app-control-285ea03d-fa88-4d56-882e-6698afdb7003",
        ..BASE
    },
    Entry {
        id: "windows-hardware-error",
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"(?i)WHEA[-_ ](?:Logger|UNCORRECTABLE).{0,160}",
            r"(?i)A (?:fatal|corrected) hardware error has occurred",
        ],
        cause: "Windows logged an error of the hardware: a `corrected` one of the PCI Express bus means a slot, riser or cable that carries signals badly; a fatal one of a processor core means unstable clocks, voltages or memory. Crashes of the GPU can be its consequence.",
        fix: &[
            "stock clocks and voltages (no EXPO, XMP or curve optimizer), a newer BIOS",
            "PCI Express: reseat the card, without a riser; a lower PCIe generation for the slot in the BIOS",
        ],
        ask: &["the source and component of the WHEA-Logger event in the Event Viewer"],
        source: "https://learn.microsoft.com/windows-hardware/drivers/whea/",
        ..BASE
    },
    Entry {
        id: "windows-device-problem",
        confidence: Medium,
        patterns: &[
            r"(?i)Windows has stopped this device because it has reported problems",
            r"(?i)(?:device|driver|gpu|graphics).{0,120}\(Code (?:10|12|22|28|31|39|43)\)",
        ],
        cause: "Windows does not run the driver of the card: after a crash, a broken or mixed installation of the driver, an external or passed-through card without enough address space, or a defect of the card. Nothing of ROCm works before the Device Manager shows no problem.",
        fix: &[
            "remove the driver with AMD's Cleanup Utility (or DDU) in safe mode, then install a current Adrenalin driver",
            "Code 12 or an external card: Above 4G decoding and Resizable BAR in the BIOS; another port or cable",
            "Code 43 in a virtual machine: the card with its VBIOS as a file, and the host restarted",
        ],
        ask: &["the name, driver version and code of the card in the Device Manager"],
        source: "https://support.microsoft.com/topic/error-codes-in-device-manager-in-windows-524e9e89-4dee-8883-0afa-6bca0456324e",
        ..BASE
    },
    Entry {
        id: "adrenalin-installer",
        confidence: Medium,
        patterns: &[
            r"(?i)Error (?:173|182|184|192|195|205|206|207|208) ?.{0,6}(?:AMD )?(?:Software|Installer|detected)",
            r"(?i)AMD Software Installer.{0,80}(?:Error \d{3}|not supported|failed)",
            r"(?i)Detected AMD Graphics Hardware in Your System Configuration That Is Not Supported",
        ],
        cause: "AMD's installer for Windows refuses: it was made for other cards or another Windows than this one (182, 184), finds no AMD graphics (173), could not load its files (192, 195, 205), or needs a restart first.",
        fix: &[
            "the driver that AMD's page lists for exactly this card and Windows (laptops and old cards have packages of their own)",
            "restart Windows and let Windows Update finish; remove the old driver with AMD's Cleanup Utility, then install again",
        ],
        source: "https://www.amd.com/en/resources/support-articles/faqs/GPU-KB182.html",
        ..BASE
    },
];
