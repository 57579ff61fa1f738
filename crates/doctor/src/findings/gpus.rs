//! Which GPUs are there, and which of them can train.

use super::{Check, Finding, Severity};
use crate::names;
use crate::plan::{Plan, WRONG_GRADIENTS};
use platform::Gfx;
use platform::machine::{
    Gpu, HipInfo, Machine, PciBus, ReadFrom, System, UnusableGpu, UnusableReason,
};
use platform::pci::PciAddress;

pub(super) fn find(machine: &Machine, plan: &Plan, found: &mut Vec<Finding>) {
    none(machine, found);
    unseen(machine, found);
    architectures(machine, plan, found);
    too_old(machine, plan, found);
    several(machine, plan, found);
    tools(machine, found);
}

fn none(machine: &Machine, found: &mut Vec<Finding>) {
    let nothing_to_say = matches!(
        machine.read_from,
        ReadFrom::Log | ReadFrom::Memory | ReadFrom::Listing
    ) || machine.posted.is_cut
        || !machine.posted.other_gpus.is_empty()
        || is_without_torch(machine);
    // Problems of a live WSL are reported in `system.rs`.
    let is_live_wsl = machine.system == System::Wsl && machine.is_complete;
    // A form or another tool names the GPU, and ROCm does not list it.
    let is_unlisted = machine.posted.rocminfo_lists_none && !machine.gpus.is_empty();
    if !is_unlisted && (!machine.gpus.is_empty() || nothing_to_say) || is_live_wsl {
        return;
    }
    let absence = absence(machine);
    let title = match machine.gpus.first() {
        Some(gpu) => format!("ROCm does not list {}: no GPU can be used", gpu.name()),
        None => "No AMD GPU can be used".to_owned(),
    };
    found.push(
        Finding::new(Check::Gpu, Severity::Error, "no-gpu", title)
            .seen(absence.seen)
            .why(format!("{} Training would run on the CPU.", absence.why))
            .fix(absence.fix)
            .source("https://rocm.docs.amd.com/projects/install-on-linux/en/latest/reference/system-requirements.html"),
    );
}

/// A report of a Python without torch says nothing about GPUs.
fn is_without_torch(machine: &Machine) -> bool {
    machine.read_from == ReadFrom::PythonReport
        && machine
            .python
            .as_ref()
            .is_none_or(|python| python.torch.is_none())
}

/// Why there is no GPU, as far as it can be told.
struct Absence {
    seen: String,
    why: &'static str,
    fix: Vec<String>,
}

fn absence(machine: &Machine) -> Absence {
    let steps = |steps: &[&str]| steps.iter().map(|&step| step.to_owned()).collect();
    let others = |bus: &PciBus| {
        if bus.others.is_empty() {
            String::new()
        } else {
            format!(" (it lists those of {})", bus.others.join(", "))
        }
    };
    match (&machine.pci_bus, &machine.container) {
        _ if machine.system == System::Wsl => absence_in_wsl(machine),
        _ if machine.windows.is_some() => absence_on_windows(machine),
        _ if machine.system == System::Windows => Absence {
            seen: "The output lists no GPU that HIP can use.".to_owned(),
            why: "The driver of Windows has none for HIP: it is too old, it is that of Windows Update, or the GPU is not one that it supports.",
            fix: steps(&[
                "# install AMD's newest driver (Adrenalin), then restart",
                "hipInfo.exe  # from the HIP SDK, or from the wheel's _rocm_sdk_core folder",
            ]),
        },
        _ if !machine.unseen.is_empty() => Absence {
            seen: format!(
                "{} there, and HIP sees none of them.",
                match machine.unseen.len() {
                    1 => "One is".to_owned(),
                    count => format!("{count} are"),
                }
            ),
            why: "What keeps each of them from HIP is said on its own.",
            fix: Vec::new(),
        },
        (Some(bus), Some(container)) if bus.amd == 0 => Absence {
            seen: format!(
                "This is {container}, without /dev/kfd, and its PCI bus lists no GPU of AMD{}.",
                others(bus)
            ),
            why: "Either the host has none, or the container was started without its devices.",
            fix: vec![
                "# on the host: lspci -nn -d 1002:".to_owned(),
                super::system::container_flags(machine),
            ],
        },
        (Some(bus), None) if bus.amd == 0 => Absence {
            seen: format!("The PCI bus lists no GPU of AMD{}.", others(bus)),
            why: "There is none, or it is switched off: in the BIOS, for want of power, or because the host of a virtual machine does not pass it through. No driver can help.",
            fix: steps(&[
                "lspci -nn -d 1002:",
                "# it must appear there before any driver can use it",
            ]),
        },
        (None, Some(_)) if machine.is_complete => Absence {
            seen: "Neither KFD nor the PCI bus can be seen from this container.".to_owned(),
            why: "The container was started without the devices of the GPU.",
            fix: vec![super::system::container_flags(machine)],
        },
        (None, _) if machine.read_from == ReadFrom::Kfd && !machine.is_complete => Absence {
            seen: "KFD lists only CPUs.".to_owned(),
            why: "amdgpu has not initialised a GPU, it is given to a virtual machine (vfio-pci), or the driver is blacklisted.",
            fix: steps(&["lspci -nnk -d 1002:", "sudo dmesg | grep -iE 'amdgpu|kfd'"]),
        },
        _ if machine.read_from == ReadFrom::Kfd => Absence {
            seen: "Neither KFD nor the PCI bus lists one that HIP can use.".to_owned(),
            why: "amdgpu has not initialised a GPU.",
            fix: steps(&["lspci -nnk -d 1002:", "sudo dmesg | grep -iE 'amdgpu|kfd'"]),
        },
        _ if machine.read_from == ReadFrom::PythonReport => Absence {
            seen: "This report of a Python lists no GPU of AMD.".to_owned(),
            why: "It lists only GPUs that its PyTorch can use: either that is not a ROCm build, or HIP finds none (the driver, access to /dev/kfd, a GPU that this ROCm does not support).",
            fix: steps(&[
                "python -c \"import torch; print(torch.__version__, torch.version.hip)\"  # None: not a ROCm build",
                "rocminfo | grep gfx  # what ROCm itself sees",
            ]),
        },
        _ => Absence {
            seen: "The output lists only CPUs.".to_owned(),
            why: "amdgpu has not initialised a GPU, it is given to a virtual machine (vfio-pci), or the tool may not see it from where it ran.",
            fix: steps(&["lspci -nnk -d 1002:", "sudo dmesg | grep -iE 'amdgpu|kfd'"]),
        },
    }
}

/// The same under WSL, where three generations of ROCm reach the GPU in different ways.
fn absence_in_wsl(machine: &Machine) -> Absence {
    let version = machine.posted.rocm.as_deref().and_then(|version| {
        let mut parts = version.split('.').map(str::parse::<u32>);
        Some((parts.next()?.ok()?, parts.next()?.ok()?))
    });
    let is_set = machine.variable("HSA_ENABLE_DXG_DETECTION") == Some("1");
    let mut fix = vec![
        "ls -l /dev/dxg  # missing: `wsl --update` in PowerShell, then `wsl --shutdown`".to_owned(),
        "# Windows: the Adrenalin driver that AMD's table names for this version of ROCm for WSL, and a card that the table lists (RX 7000 and newer, Ryzen AI)".to_owned(),
    ];
    let has_own_runtime = version.is_none_or(|version| version < (7, 13));
    let has_librocdxg = version.is_none_or(|version| version >= (7, 1));
    if has_own_runtime {
        fix.push("# Radeon software for WSL with ROCm: amdgpu-install -y --usecase=wsl,rocm --no-dkms; no packages of the distribution".to_owned());
    }
    if has_librocdxg {
        fix.push("# newer releases: librocdxg beside the libraries of ROCm".to_owned());
        if has_own_runtime && !is_set {
            fix.push(
                "export HSA_ENABLE_DXG_DETECTION=1  # with librocdxg and a ROCm before 7.13"
                    .to_owned(),
            );
        }
    }
    Absence {
        seen: "The output lists only CPUs.".to_owned(),
        why: "Under WSL ROCm reaches the GPU through the driver of Windows and /dev/dxg: ROCm is not the one for WSL (its own runtime, or librocdxg), or this version of it or the driver on Windows does not support the card there.",
        fix,
    }
}

/// The same if the registry and HIP were read.
fn absence_on_windows(machine: &Machine) -> Absence {
    let windows = machine.windows.clone().unwrap_or_default();
    let amd: Vec<&str> = windows
        .adapters
        .iter()
        .filter(|adapter| adapter.is_amd())
        .map(|adapter| adapter.name.as_str())
        .collect();
    let driver = "# install AMD's newest driver (Adrenalin), then restart".to_owned();
    match &windows.hipinfo {
        _ if amd.is_empty() => {
            let others = windows.adapters.iter().map(|adapter| adapter.name.as_str());
            let others: Vec<&str> = others.collect();
            Absence {
                seen: match others.is_empty() {
                    true => "Windows lists no display adapter.".to_owned(),
                    false => format!("The display adapters of Windows are {}.", others.join(", ")),
                },
                why: "There is no GPU of AMD, or it is switched off in the BIOS or the Device Manager.",
                fix: vec![
                    "# it must appear in the Device Manager before any driver can use it"
                        .to_owned(),
                ],
            }
        }
        HipInfo::Failed { program, reason } => Absence {
            seen: format!(
                "Windows lists {}, and {program} says: {reason}.",
                amd.join(", ")
            ),
            why: "HIP cannot use it: the driver is too old for this HIP, the GPU is not one that it supports, or a variable hides it.",
            fix: vec![
                driver,
                "# unset HIP_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES, if they are set".to_owned(),
                format!("& \"{program}\"  # must list the GPU"),
            ],
        },
        _ => Absence {
            seen: format!("Windows lists {}, and HIP none.", amd.join(", ")),
            why: "The driver of Windows has none for HIP: it is too old, it is that of Windows Update, or the GPU is not one that it supports.",
            fix: vec![driver],
        },
    }
}

fn unseen(machine: &Machine, found: &mut Vec<Finding>) {
    for gpu in &machine.unseen {
        let gfx = names::architecture_by(gpu.device_id, gpu.product.as_deref());
        let mut name = gpu.product.clone().unwrap_or_else(|| "A GPU".to_owned());
        if let Some(gfx) = gfx {
            name = format!("{name}, {gfx},");
        }
        let place = gpu.pci.map(|pci| format!(" at {pci}")).unwrap_or_default();
        let device = gpu
            .pci
            .map_or_else(|| "1002:".to_owned(), |pci| pci.to_string());
        // Other GPUs may be all that is wanted.
        let severity = if machine.gpus.is_empty() {
            Severity::Error
        } else {
            Severity::Info
        };
        let (id, seen, why, fix): (&str, String, &str, Vec<String>) = match &gpu.reason {
            UnusableReason::NoDriver(reason) => (
                "gpu-without-driver",
                reason
                    .clone()
                    .unwrap_or_else(|| "No kernel driver is bound to it.".to_owned()),
                "Without amdgpu there is no KFD node and HIP cannot see the GPU.",
                load_driver(machine, reason.as_deref()),
            ),
            UnusableReason::OtherDriver(driver) => (
                "gpu-with-other-driver",
                format!("It is bound to `{driver}`."),
                "A GPU that is given to a virtual machine (vfio-pci), or run by another driver, is not there for HIP on this system.",
                vec![
                    format!("lspci -nnk -s {device}"),
                    format!(
                        "# to use it here and not in a virtual machine: remove the rule that binds {driver} (vfio-pci.ids= or modprobe.d), rebuild the initramfs, restart"
                    ),
                ],
            ),
            UnusableReason::NotInKfd => (
                "gpu-not-in-kfd",
                "amdgpu runs it, but KFD has no node for it.".to_owned(),
                "The compute driver refused it: no PCIe atomics in the slot, or a chip that it does not support.",
                vec!["sudo dmesg | grep -iE 'kfd|atomics'".to_owned()],
            ),
            UnusableReason::HiddenByCgroup => (
                "gpu-hidden-by-cgroup",
                "The kernel hides its KFD node from this process.".to_owned(),
                "The device cgroup of a container or a job scheduler does not include this GPU.",
                vec![
                    "# start the container with --device /dev/dri/renderD<N> of this GPU"
                        .to_owned(),
                ],
            ),
        };
        let mut why = why.to_owned();
        let mut fix = fix;
        if gfx.is_some_and(Gfx::is_too_old) {
            why += " In any case this GPU is too old: ROCm no longer has code for it.";
            fix = vec![TOO_OLD.to_owned()];
        }
        found.push(
            Finding::new(
                Check::Gpu,
                severity,
                id,
                format!("{name}{place} is not available to HIP"),
            )
            .seen(seen)
            .why(why)
            .fix(fix)
            .source("https://docs.kernel.org/gpu/amdgpu/index.html"),
        );
    }
}

/// `modprobe` is of no use where something keeps the driver away, nor in a container.
fn load_driver(machine: &Machine, reason: Option<&str>) -> Vec<String> {
    let place = if machine.container.is_some() {
        "# on the host: "
    } else {
        ""
    };
    match reason {
        Some(reason) => vec![
            format!(
                "# {place}remove what keeps it away ({reason}), rebuild the initramfs, restart"
            )
            .replace("# # ", "# "),
        ],
        None => vec![
            format!("{place}sudo modprobe amdgpu"),
            format!("{place}sudo dmesg | grep -i amdgpu"),
        ],
    }
}

fn architectures(machine: &Machine, plan: &Plan, found: &mut Vec<Finding>) {
    for gpu in &machine.gpus {
        if gpu.gfx_from_device_id && machine.read_from == ReadFrom::Kfd {
            let id = gpu.device_id.map(|id| id.to_string()).unwrap_or_default();
            found.push(
                Finding::new(Check::Kernel, Severity::Warning, "kernel-without-gfx-version", "The kernel is too old to say which GPU this is")
                    .seen(format!("KFD has no gfx_target_version; {} is taken from the device id {id}.", gpu.name()))
                    .why("Current ROCm reads the architecture from KFD and needs a newer kernel.")
                    .fix(["# install a kernel of 5.15 or newer"])
                    .source("https://github.com/ROCm/rocm-systems/blob/develop/projects/rocr-runtime/libhsakmt/src/topology.c"),
            );
        }
        match gpu.gfx {
            None if matches!(
                machine.read_from,
                ReadFrom::Kfd | ReadFrom::Rocminfo | ReadFrom::Hipinfo | ReadFrom::Windows
            ) =>
            {
                found.push(unknown(
                    &gpu.name(),
                    "Its architecture is not given, and its device id is not known to us.",
                ));
            }
            Some(gfx) if gfx.architecture().is_none() => {
                found.push(unknown(
                    &gfx.to_string(),
                    "Its architecture is newer, or rarer, than what is known here.",
                ));
            }
            _ => {}
        }
    }
    if machine
        .gpus
        .iter()
        .any(|gpu| gpu.gfx == Some(WRONG_GRADIENTS))
    {
        let severity = if plan.pick.is_none() {
            Severity::Error
        } else {
            Severity::Warning
        };
        found.push(
            Finding::new(Check::Gpu, severity, "gfx1033-wrong-gradients", "gfx1033 computes wrong gradients: do not train on it")
                .seen("The GPU is gfx1033 (Steam Deck).")
                .why("With torch 2.10 for ROCm 7.1, torch 2.11 for ROCm 7.2 and AMD's own wheels, training diverges to nonsense and gradcheck fails. Inference is right.")
                .fix(["# train on another GPU or on the CPU"])
                .source("https://github.com/unslothai/unsloth/pull/8412"),
        );
    }
    let picked = plan.pick.and_then(|index| machine.gpus.get(index));
    if let Some(gpu) = picked.filter(|gpu| gpu.gfx.is_some_and(Gfx::is_rdna2)) {
        found.push(
            Finding::new(Check::Gpu, Severity::Info, "rdna2-prefers-fp16", "On RDNA 2 prefer fp16 to bf16")
                .seen(format!("{} is RDNA 2.", gpu.name()))
                .why("It has no bf16 arithmetic: bf16 is converted to fp32 and back, slower than fp16. hipBLASLt has no kernels for it either; torch falls back to hipBLAS by itself.")
                .fix(["# use fp16 with a gradient scaler, or fp32"])
                .source("https://github.com/comfyanonymous/ComfyUI/blob/master/comfy/model_management.py"),
        );
    }
}

/// What remains for a GPU from before Vega.
const TOO_OLD: &str =
    "# train on another GPU; programs that compute through Vulkan may still run on this one";

/// GPUs from before Vega: nothing that is published computes on them any more.
fn too_old(machine: &Machine, plan: &Plan, found: &mut Vec<Finding>) {
    let is_old = |gpu: &&Gpu| crate::plan::is_too_old(gpu);
    let usable = machine.gpus.iter().find(is_old).map(Gpu::name);
    // A driver for one that HIP does not see would not help either.
    let Some(name) = usable.or_else(|| machine.unseen.iter().find_map(old_name)) else {
        return;
    };
    let severity = if plan.pick.is_none() {
        Severity::Error
    } else {
        Severity::Info
    };
    found.push(
        Finding::new(Check::Gpu, severity, "gpu-too-old", format!("{name} is too old: it is not supported"))
            .seen(format!("The GPU is {name}."))
            .why("ROCm no longer has code for GPUs from before Vega, and no published wheel of PyTorch does. An override does not help: there is no code that it could name.")
            .fix([TOO_OLD])
            .source("https://rocm.docs.amd.com/projects/install-on-linux/en/latest/reference/system-requirements.html"),
    );
}

/// The name of a GPU from before Vega, with its architecture.
fn old_name(gpu: &UnusableGpu) -> Option<String> {
    let product = gpu.product.as_deref().unwrap_or_default();
    match names::architecture_by(gpu.device_id, Some(product)) {
        Some(gfx) => gfx.is_too_old().then(|| format!("{product} ({gfx})")),
        None => names::is_before_rocm(product).then(|| product.to_owned()),
    }
}

fn unknown(name: &str, seen: &str) -> Finding {
    Finding::new(
        Check::Gpu,
        Severity::Warning,
        "architecture-unknown",
        format!("{name}: nothing is known about this GPU"),
    )
    .seen(seen)
    .why("Which wheel has code for it, and whether it is an APU, cannot be told from here.")
    .fix(["surefoot probe"])
    .source("https://github.com/ROCm/TheRock/blob/main/SUPPORTED_GPUS.md")
}

fn several(machine: &Machine, plan: &Plan, found: &mut Vec<Finding>) {
    let cards: Vec<PciAddress> = machine
        .gpus
        .iter()
        .filter_map(|gpu| gpu.pci)
        .map(PciAddress::whole_card)
        .collect();
    let mut distinct = cards.clone();
    distinct.sort_unstable();
    distinct.dedup();
    let same_identity = |a: usize, b: usize| machine.gpus[a].uuid == machine.gpus[b].uuid;
    let partitioned = machine.gpus.len() > distinct.len()
        && cards.len() == machine.gpus.len()
        && (1..machine.gpus.len())
            .any(|index| cards[index] == cards[index - 1] && same_identity(index, index - 1));
    if partitioned {
        found.push(
            Finding::new(Check::Gpu, Severity::Info, "partitioned", "The GPUs are partitions of fewer cards")
                .seen(format!("{} GPUs on {} cards.", machine.gpus.len(), distinct.len()))
                .why("Each partition has a part of the compute units and of the memory, and all of a card share one identity.")
                .fix(["# select partitions by index, not by UUID"])
                .source("https://rocm.docs.amd.com/projects/amdsmi/en/latest/"),
        );
    }
    let Some(picked) = plan.pick.and_then(|index| machine.gpus.get(index)) else {
        return;
    };
    let alternatives: Vec<String> = machine
        .gpus
        .iter()
        .filter(|gpu| {
            gpu.index != picked.index
                && gpu.gfx != picked.gfx
                && gpu.gfx.is_some_and(crate::wheels::is_in_newest_upstream)
        })
        .map(|gpu| format!("GPU {} ({})", gpu.index, gpu.name()))
        .collect();
    if !alternatives.is_empty() {
        found.push(
            Finding::new(Check::Gpu, Severity::Warning, "several-usable-gpus", "More than one kind of GPU here can train")
                .seen(format!("GPU {} ({}) is taken; {} could be.", picked.index, picked.name(), alternatives.join(", ")))
                .why("Which one is meant cannot be told from here, and two architectures in one process are known to crash the loader of multi-architecture wheels.")
                .fix([format!("surefoot run --gpu {} -- …  # or the number of another", picked.index)])
                .source("https://github.com/ROCm/TheRock/issues/6696"),
        );
    }
}

fn tools(machine: &Machine, found: &mut Vec<Finding>) {
    let is_smi = matches!(machine.read_from, ReadFrom::RocmSmi | ReadFrom::AmdSmi);
    if is_smi && machine.gpus.len() > 1 && machine.gpus.iter().any(|gpu| gpu.kfd_node.is_none()) {
        found.push(
            Finding::new(
                Check::Gpu,
                Severity::Info,
                "smi-order",
                "The order of this tool need not be that of HIP",
            )
            .seen("The listing has no KFD nodes to sort by.")
            .why("HIP numbers GPUs by KFD node; rocm-smi and amd-smi have an order of their own.")
            .fix(["surefoot doctor"])
            .source("https://github.com/pytorch/pytorch/issues/131901"),
        );
    }
}
