//! Findings about a posted text and the program that printed it.

use super::kernel::since;
use super::{Found, Severity, python, said};
use crate::names::{self, DISPLAY_ONLY};
use crate::plan::Plan;
use crate::wheels;
use platform::Gfx;
use platform::machine::{Gpu, InsteadOfRocm, Machine, ReadFrom, System};
use platform::python::Build;

pub(super) fn find(machine: &Machine, plan: &Plan, found: &mut Found) {
    if machine.is_complete {
        return;
    }
    text(machine, found);
    under_override(machine, found);
    instead_of_rocm(machine, plan, found);
    program(machine, found);
    others(machine, found);
    unidentified(machine, found);
    if let Some(size) = machine.posted.impossible_memory {
        found.add(&said::MEMORY_IMPLAUSIBLE, &[("size", &size)]);
    }
    age(machine, plan, found);
    versions(machine, found);
    access(machine, found);
}

/// Information that the text lacks.
fn text(machine: &Machine, found: &mut Found) {
    let posted = &machine.posted;
    let inside = processor_graphics(machine).map_or(String::new(), |(name, gfx)| {
        format!("; the processor, {name}, has a {gfx} in it")
    });
    if posted.is_cut {
        found.add(&said::TEXT_CUT_OFF, &[("inside", &inside)]);
    }
    if posted.has_npu && machine.gpus.is_empty() {
        found.add(&said::NPU_IS_NO_GPU, &[("inside", &inside)]);
    }
    if machine.system == System::Macos {
        let finding = found.add(&said::MACOS, &[]);
        // Without one, it may be the Mac of a user who trains elsewhere.
        if machine.gpus.is_empty() {
            finding.severity = Severity::Info;
        }
    }
}

/// The processor and the architecture of its graphics.
fn processor_graphics(machine: &Machine) -> Option<(&str, Gfx)> {
    let name = machine.posted.processor.as_deref()?;
    Some((name, names::graphics_of_processor(name)?))
}

/// The only GPU has a generic name and the architecture of a card, and the
/// processor has graphics of the same generation: probably the graphics under an override.
fn under_override(machine: &Machine, found: &mut Found) {
    let ([gpu], Some((name, inside))) = (&machine.gpus[..], processor_graphics(machine)) else {
        return;
    };
    let is_nameless = gpu.device_id.is_none() && machine.posted.is_nameless;
    let is_set = machine.variable("HSA_OVERRIDE_GFX_VERSION").is_some();
    let is_another =
        |gfx: &Gfx| *gfx != inside && gfx.major == inside.major && inside != DISPLAY_ONLY;
    if let Some(gfx) = gpu.gfx.filter(is_another)
        && is_nameless
        && !is_set
    {
        found.add(
            &said::OVERRIDE_SUSPECTED,
            &[("gfx", &gfx), ("inside", &inside), ("name", &name)],
        );
    }
}

fn instead_of_rocm(machine: &Machine, plan: &Plan, found: &mut Found) {
    match machine.posted.instead_of_rocm {
        // It has nothing to run; that torch has a finding of its own.
        Some(InsteadOfRocm::Zluda) if build(machine) == Some(Build::Cpu) => {}
        Some(InsteadOfRocm::DirectMl) => {
            let picked = plan.pick.and_then(|index| machine.gpus.get(index));
            let install = picked.map(|gpu| python::install(machine, gpu.gfx));
            found.add(
                &said::DIRECTML,
                &[("install", &install.unwrap_or_default())],
            );
        }
        Some(InsteadOfRocm::Zluda) => {
            let finding = found.add(&said::ZLUDA, &[]);
            // Where nothing failed it is how that program works.
            if !machine.posted.has_failed {
                finding.severity = Severity::Info;
            }
        }
        None => {}
    }
}

/// For what the torch of the text was built.
fn build(machine: &Machine) -> Option<Build> {
    let python = machine.python.as_ref()?;
    Some(python.torch.as_ref()?.build)
}

/// What a program said about the GPUs that it looked for.
fn program(machine: &Machine, found: &mut Found) {
    let list = |list: &[Gfx]| {
        let names: Vec<String> = list.iter().map(ToString::to_string).collect();
        names.join(", ")
    };
    if let Some((without, with)) = &machine.posted.without_code {
        let libraries = match with.is_empty() {
            true => String::new(),
            false => format!(" They are for {}.", list(with)),
        };
        let gpus = list(without);
        found.add(
            &said::PROGRAM_WITHOUT_CODE,
            &[("gpus", &gpus), ("libraries", &libraries)],
        );
        return;
    }
    let has_code = |list: &[Gfx], gpu: &Gpu| gpu.gfx.is_none_or(|gfx| list.contains(&gfx));
    let is_overridden = |name: &String| name.starts_with("HSA_OVERRIDE_GFX_VERSION");
    if let Some((what, compiled)) = &machine.posted.code_list
        && let Some(gpu) = machine.gpus.first()
        && !machine.gpus.iter().any(|gpu| has_code(compiled, gpu))
        && !machine.variables.keys().any(is_overridden)
    {
        let gfx = gpu.gfx.map(|gfx| gfx.to_string()).unwrap_or_default();
        found.add(
            &said::CODE_LIST_WITHOUT_GPU,
            &[
                ("gfx", &gfx),
                ("what", what),
                ("list", &list(compiled)),
                ("gpu", &gpu.name()),
            ],
        );
    }
    if let Some(words) = &machine.posted.on_cpu {
        // The wrong build has a finding of its own, and messages of JAX and TensorFlow tell of theirs.
        if machine.posted.framework.is_none()
            && !matches!(build(machine), Some(Build::Cpu | Build::Cuda))
        {
            let there = machine.gpus.first().map_or(String::new(), |gpu| {
                format!(", though the text names a GPU ({})", gpu.name())
            });
            found.add(
                &said::PROGRAM_ON_CPU,
                &[("words", words), ("there", &there)],
            );
        }
    } else if let Some(name) = &machine.posted.cpu_only
        && machine.gpus.is_empty()
    {
        found.add(&said::PROGRAM_FOUND_NO_GPU, &[("program", name)]);
    }
}

/// GPUs of other vendors: beside one by AMD, or alone.
fn others(machine: &Machine, found: &mut Found) {
    let others = &machine.posted.other_gpus;
    let is_of_nvidia = |name: &&String| name.starts_with("NVIDIA");
    if let Some(name) = others.iter().find(is_of_nvidia)
        && let Some(gpu) = machine.gpus.first()
        && build(machine).is_none()
    {
        found.add(
            &said::GEFORCE_BESIDE_RADEON,
            &[("other", name), ("gpu", &gpu.name())],
        );
    }
    if others.is_empty() || !machine.gpus.is_empty() || !machine.unseen.is_empty() {
        return;
    }
    let is_virtual = others.iter().all(|name| names::is_virtual_adapter(name));
    let said = match is_virtual {
        true => &said::VIRTUAL_MACHINE_WITHOUT_GPU,
        false => &said::OTHER_VENDOR,
    };
    found.add(said, &[("list", &others.join(", "))]);
}

/// A GPU that the text does not identify.
fn unidentified(machine: &Machine, found: &mut Found) {
    let said_elsewhere = matches!(
        machine.read_from,
        ReadFrom::Kfd
            | ReadFrom::Rocminfo
            | ReadFrom::Hipinfo
            | ReadFrom::Memory
            | ReadFrom::Windows
    );
    // Beside a card that is known, the graphics of a processor are hidden whatever they are.
    let is_card = |gpu: &Gpu| gpu.gfx.is_some() && !gpu.is_apu();
    let is_card_known = machine.gpus.iter().any(is_card);
    let is_open = |gpu: &&Gpu| {
        gpu.gfx.is_none()
            && !(gpu.is_apu() && is_card_known)
            && !gpu.product.as_deref().is_some_and(names::is_before_rocm)
    };
    let open = machine.gpus.iter().find(is_open);
    if let Some(gpu) = open.filter(|_| !said_elsewhere) {
        let seen = match &gpu.product {
            Some(name) => format!("It is called {name}, which does not tell the chip."),
            None => "Neither a name that tells the chip nor a device id is in the text.".to_owned(),
        };
        found.add(&said::GPU_NOT_IDENTIFIED, &[("seen", &seen)]);
    }
}

/// PyTorch sees no GPU, or its user must not open the device.
fn access(machine: &Machine, found: &mut Found) {
    if let Some(group) = &machine.posted.lacks_group {
        found.add(&said::DEVICE_PERMISSION_POSTED, &[("group", group)]);
    }
    // Another build has its own finding, and so has a machine without a GPU.
    let is_of_another_build = matches!(build(machine), Some(Build::Cpu | Build::Cuda));
    let python = machine.python.as_ref();
    let torch = python.and_then(|python| python.torch.as_ref());
    let is_for_rocm = torch.is_some_and(|torch| torch.rocm.is_some());
    let has_none = machine.gpus.is_empty();
    if !machine.posted.torch_sees_none || is_of_another_build || has_none && !is_for_rocm {
        return;
    }
    let said = match machine.system {
        System::Linux if has_none => &said::TORCH_SEES_NO_GPU_UNKNOWN_LINUX,
        _ if has_none => &said::TORCH_SEES_NO_GPU_UNKNOWN,
        _ => &said::TORCH_SEES_NO_GPU,
    };
    found.add(said, &[]);
}

/// The ROCm that a text names is older than its GPU, or of another time.
fn age(machine: &Machine, plan: &Plan, found: &mut Found) {
    let picked = plan.pick.and_then(|index| machine.gpus.get(index));
    let gfx = picked.and_then(|gpu| gpu.gfx);
    // What torch is built for counts more than what somebody writes of.
    let torch = machine
        .python
        .as_ref()
        .and_then(|python| python.torch.as_ref()?.rocm);
    let of_torch = torch.map(|(major, minor)| format!("{major}.{minor}"));
    let rocm = of_torch
        .or_else(|| machine.posted.rocm.clone())
        .unwrap_or_default();
    // Age is worth a word where something is wrong.
    let version = wheels::major_minor(&rocm).filter(|_| machine.posted.has_failed);
    let Some(version) = version else {
        return;
    };
    let first = gfx.and_then(since).map(|(rocm, _)| rocm);
    let install = match machine.posted.framework {
        None => python::install(machine, gfx),
        Some(_) => String::new(),
    };
    let (said, first) = match first {
        Some(first) if version < first => (&said::ROCM_OLDER_THAN_GPU, first),
        _ if version < (6, 0) => (&said::ROCM_OF_YEARS_AGO, (6, 0)),
        _ => return,
    };
    let gpu = picked.map_or_else(String::new, Gpu::name);
    let first = format!("{}.{}", first.0, first.1);
    found.add(
        said,
        &[
            ("rocm", &rocm),
            ("gpu", &gpu),
            ("first", &first),
            ("install", &install),
        ],
    );
}

fn versions(machine: &Machine, found: &mut Found) {
    let versions = &machine.posted.rocm_versions;
    // They are folders and packages of Linux.
    if versions.len() < 2 || !matches!(machine.system, System::Linux | System::Wsl) {
        return;
    }
    let (list, each) = (versions.join(", "), versions.join(" and of "));
    let finding = found.add(
        &said::SEVERAL_ROCM_VERSIONS,
        &[("list", &list), ("each", &each)],
    );
    if machine.posted.has_failed {
        finding.severity = Severity::Warning;
    }
}
