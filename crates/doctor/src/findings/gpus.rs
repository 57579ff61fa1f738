//! Which GPUs are there, and which of them can train.

use super::said::{self, Said};
use super::system::container_flags;
use super::{Found, Severity};
use crate::names;
use crate::plan::{Plan, WRONG_GRADIENTS};
use crate::signs::ENGINE;
use platform::Gfx;
use platform::machine::{Gpu, HipInfo, Machine, ReadFrom, System, UnusableGpu, UnusableReason};
use platform::pci::PciAddress;

pub(super) fn find(machine: &Machine, plan: &Plan, found: &mut Found) {
    none(machine, found);
    unseen(machine, found);
    architectures(machine, plan, found);
    too_old(machine, plan, found);
    several(machine, plan, found);
    tools(machine, found);
}

fn none(machine: &Machine, found: &mut Found) {
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
    absence(machine, found);
    if let (Some(gpu), Some(finding)) = (machine.gpus.first(), found.all.last_mut()) {
        finding.title = format!("ROCm does not list {}: no GPU can be used", gpu.name());
    }
}

/// A report of a Python without torch says nothing about GPUs.
fn is_without_torch(machine: &Machine) -> bool {
    let python = machine.python.as_ref();
    machine.read_from == ReadFrom::PythonReport
        && python.is_none_or(|python| python.torch.is_none())
}

/// Why there is no GPU, as far as it can be told.
fn absence(machine: &Machine, found: &mut Found) {
    let others = match &machine.pci_bus {
        Some(bus) if !bus.others.is_empty() => {
            format!(" (it lists those of {})", bus.others.join(", "))
        }
        _ => String::new(),
    };
    let flags = container_flags(machine);
    if machine.system == System::Wsl {
        absence_in_wsl(machine, found);
        return;
    }
    if machine.windows.is_some() {
        absence_on_windows(machine, found);
        return;
    }
    match (&machine.pci_bus, &machine.container) {
        _ if machine.system == System::Windows => found.add(&said::NO_GPU_WINDOWS, &[]),
        _ if !machine.unseen.is_empty() => {
            let count = match machine.unseen.len() {
                1 => "One is".to_owned(),
                count => format!("{count} are"),
            };
            found.add(&said::NO_GPU_UNSEEN, &[("count", &count)])
        }
        (Some(bus), Some(container)) if bus.amd == 0 => found.add(
            &said::NO_GPU_CONTAINER_WITHOUT_GPU,
            &[
                ("container", container),
                ("others", &others),
                ("flags", &flags),
            ],
        ),
        (Some(bus), None) if bus.amd == 0 => {
            found.add(&said::NO_GPU_NOT_ON_THE_BUS, &[("others", &others)])
        }
        (None, Some(_)) if machine.is_complete => {
            found.add(&said::NO_GPU_CONTAINER, &[("flags", &flags)])
        }
        (None, _) if machine.read_from == ReadFrom::Kfd && !machine.is_complete => {
            found.add(&said::NO_GPU_KFD, &[])
        }
        _ if machine.read_from == ReadFrom::Kfd => found.add(&said::NO_GPU_LIVE, &[]),
        _ if machine.read_from == ReadFrom::PythonReport => {
            found.add(&said::NO_GPU_REPORT_OF_PYTHON, &[])
        }
        _ => found.add(&said::NO_GPU, &[]),
    };
}

/// The same under WSL, where releases of ROCm reach the GPU in different ways.
fn absence_in_wsl(machine: &Machine, found: &mut Found) {
    let version = machine.posted.rocm.as_deref().and_then(|version| {
        let mut parts = version.split('.').map(str::parse::<u32>);
        Some((parts.next()?.ok()?, parts.next()?.ok()?))
    });
    let is_set = machine.variable("HSA_ENABLE_DXG_DETECTION") == Some("1");
    let has_own_runtime = version.is_none_or(|version| version < (7, 13));
    let has_librocdxg = version.is_none_or(|version| version >= (7, 1));
    let step = |holds: bool, text: &'static str| if holds { text } else { "" };
    found.add(
        &said::NO_GPU_WSL,
        &[
            ("runtime", &step(has_own_runtime, "# Radeon software for WSL with ROCm: amdgpu-install -y --usecase=wsl,rocm --no-dkms; no packages of the distribution")),
            ("librocdxg", &step(has_librocdxg, "# newer releases: librocdxg beside the libraries of ROCm")),
            ("detection", &step(has_librocdxg && has_own_runtime && !is_set, "export HSA_ENABLE_DXG_DETECTION=1  # with librocdxg and a ROCm before 7.13")),
        ],
    );
}

/// The same if the registry and HIP were read.
fn absence_on_windows(machine: &Machine, found: &mut Found) {
    let windows = machine.windows.clone().unwrap_or_default();
    let names = |of_amd: bool| -> String {
        let adapters = windows.adapters.iter();
        let named = adapters.filter(|adapter| !of_amd || adapter.is_amd());
        let names: Vec<&str> = named.map(|adapter| &*adapter.name).collect();
        names.join(", ")
    };
    let amd = names(true);
    match &windows.hipinfo {
        _ if amd.is_empty() => {
            let adapters = match windows.adapters.is_empty() {
                true => "Windows lists no display adapter.".to_owned(),
                false => format!("The display adapters of Windows are {}.", names(false)),
            };
            found.add(
                &said::NO_GPU_WINDOWS_WITHOUT_ADAPTER,
                &[("adapters", &adapters)],
            )
        }
        HipInfo::Failed { program, reason } => found.add(
            &said::NO_GPU_WINDOWS_HIPINFO_FAILED,
            &[("adapters", &amd), ("program", program), ("reason", reason)],
        ),
        _ => found.add(&said::NO_GPU_WINDOWS_HIP_LISTS_NONE, &[("adapters", &amd)]),
    };
}

fn unseen(machine: &Machine, found: &mut Found) {
    for gpu in &machine.unseen {
        let gfx = names::architecture_by(gpu.device_id, gpu.product.as_deref());
        let mut name = gpu.product.clone().unwrap_or_else(|| "A GPU".to_owned());
        if let Some(gfx) = gfx {
            name = format!("{name}, {gfx},");
        }
        if let Some(pci) = gpu.pci {
            name += &format!(" at {pci}");
        }
        let device = gpu.pci.map_or("1002:".to_owned(), |pci| pci.to_string());
        let (said, detail): (&'static Said, &str) = match &gpu.reason {
            UnusableReason::NoDriver(None) => (&said::GPU_WITHOUT_DRIVER, ""),
            UnusableReason::NoDriver(Some(reason)) => (&said::GPU_WITHOUT_DRIVER_KEPT_AWAY, reason),
            UnusableReason::OtherDriver(driver) => (&said::GPU_WITH_OTHER_DRIVER, driver),
            UnusableReason::NotInKfd => (&said::GPU_NOT_IN_KFD, ""),
            UnusableReason::HiddenByCgroup => (&said::GPU_HIDDEN_BY_CGROUP, ""),
        };
        let finding = found.add(
            said,
            &[
                ("gpu", &name),
                ("reason", &detail),
                ("driver", &detail),
                ("device", &device),
            ],
        );
        // Other GPUs may be all that is wanted.
        if !machine.gpus.is_empty() {
            finding.severity = Severity::Info;
        }
        if gfx.is_some_and(Gfx::is_too_old) {
            finding.why += " In any case this GPU is too old: ROCm no longer has code for it.";
            finding.fix = said::GPU_TOO_OLD
                .fix
                .iter()
                .map(|step| step.text.to_owned())
                .collect();
        }
    }
}

fn architectures(machine: &Machine, plan: &Plan, found: &mut Found) {
    let names_architectures = matches!(
        machine.read_from,
        ReadFrom::Kfd | ReadFrom::Rocminfo | ReadFrom::Hipinfo | ReadFrom::Windows
    );
    for gpu in &machine.gpus {
        if gpu.gfx_from_device_id && machine.read_from == ReadFrom::Kfd {
            let id = gpu.device_id.map(|id| id.to_string()).unwrap_or_default();
            found.add(
                &said::KERNEL_WITHOUT_GFX_VERSION,
                &[("gpu", &gpu.name()), ("id", &id)],
            );
        }
        let (name, seen) = match gpu.gfx {
            None if names_architectures => (
                gpu.name(),
                "Its architecture is not given, and its device id is not known to us.",
            ),
            Some(gfx) if gfx.architecture().is_none() => (
                gfx.to_string(),
                "Its architecture is newer, or rarer, than what is known here.",
            ),
            _ => continue,
        };
        found.add(
            &said::ARCHITECTURE_UNKNOWN,
            &[("gpu", &name), ("seen", &seen)],
        );
    }
    if machine
        .gpus
        .iter()
        .any(|gpu| gpu.gfx == Some(WRONG_GRADIENTS))
    {
        let finding = found.add(&said::GFX1033_WRONG_GRADIENTS, &[]);
        if plan.pick.is_some() {
            finding.severity = Severity::Warning;
        }
    }
    let picked = plan.pick.and_then(|index| machine.gpus.get(index));
    if let Some(gpu) = picked.filter(|gpu| gpu.gfx.is_some_and(Gfx::is_rdna2)) {
        found.add(&said::RDNA2_PREFERS_FP16, &[("gpu", &gpu.name())]);
    }
}

/// GPUs from before Vega: nothing that is published computes on them any more.
fn too_old(machine: &Machine, plan: &Plan, found: &mut Found) {
    let is_old = |gpu: &&Gpu| crate::plan::is_too_old(gpu);
    let usable = machine.gpus.iter().find(is_old).map(Gpu::name);
    // A driver for one that HIP does not see would not help either.
    let Some(name) = usable.or_else(|| machine.unseen.iter().find_map(old_name)) else {
        return;
    };
    let finding = found.add(&said::GPU_TOO_OLD, &[("gpu", &name)]);
    if plan.pick.is_some() {
        finding.severity = Severity::Info;
    }
}

/// The name of a GPU from before Vega, with its architecture.
fn old_name(gpu: &UnusableGpu) -> Option<String> {
    let product = gpu.product.as_deref().unwrap_or_default();
    match names::architecture_by(gpu.device_id, Some(product)) {
        Some(gfx) => gfx.is_too_old().then(|| format!("{product} ({gfx})")),
        None => names::is_before_rocm(product).then(|| product.to_owned()),
    }
}

fn several(machine: &Machine, plan: &Plan, found: &mut Found) {
    let places = machine.gpus.iter().filter_map(|gpu| gpu.pci);
    let cards: Vec<PciAddress> = places.map(PciAddress::whole_card).collect();
    let mut distinct = cards.clone();
    distinct.sort_unstable();
    distinct.dedup();
    let same_identity = |a: usize, b: usize| machine.gpus[a].uuid == machine.gpus[b].uuid;
    let partitioned = machine.gpus.len() > distinct.len()
        && cards.len() == machine.gpus.len()
        && (1..machine.gpus.len())
            .any(|index| cards[index] == cards[index - 1] && same_identity(index, index - 1));
    if partitioned {
        found.add(
            &said::PARTITIONED,
            &[("gpus", &machine.gpus.len()), ("cards", &distinct.len())],
        );
    }
    // Whether one of them loads beside the other is known of PyTorch's wheels.
    let is_of_torch = machine.posted.framework.is_none_or(|name| name == ENGINE);
    let picked = plan.pick.and_then(|index| machine.gpus.get(index));
    let Some(picked) = picked.filter(|_| is_of_torch) else {
        return;
    };
    let is_alternative = |gpu: &&Gpu| {
        gpu.index != picked.index
            && gpu.gfx != picked.gfx
            && gpu.gfx.is_some_and(crate::wheels::is_in_newest_upstream)
    };
    let alternatives = machine.gpus.iter().filter(is_alternative);
    let named = |gpu: &Gpu| format!("GPU {} ({})", gpu.index, gpu.name());
    let others = alternatives.map(named).collect::<Vec<_>>().join(", ");
    if !others.is_empty() {
        found.add(
            &said::SEVERAL_USABLE_GPUS,
            &[
                ("index", &picked.index),
                ("gpu", &picked.name()),
                ("others", &others),
            ],
        );
    }
}

fn tools(machine: &Machine, found: &mut Found) {
    let is_smi = matches!(machine.read_from, ReadFrom::RocmSmi | ReadFrom::AmdSmi);
    if is_smi && machine.gpus.len() > 1 && machine.gpus.iter().any(|gpu| gpu.kfd_node.is_none()) {
        found.add(&said::SMI_ORDER, &[]);
    }
}
