//! The wheel: whether it is for this GPU, and whether its companions fit.

use super::said::{self, Said};
use super::{Found, Severity};
use crate::plan::{Plan, missing_override};
use crate::signs::ENGINE;
use crate::wheels;
use platform::Gfx;
use platform::machine::{Gpu, InsteadOfRocm, Machine, ReadFrom, System};
use platform::python::{Build, Python, Torch};

const STRIX_HALO: Gfx = Gfx::new(11, 5, 1);
const GFX900: Gfx = Gfx::new(9, 0, 0);

/// Where it is known from that the rocBLAS of newer wheels has no kernels for Vega.
fn without_rocblas(gfx: Gfx) -> &'static str {
    match gfx {
        GFX900 => "https://github.com/pytorch/pytorch/issues/179865",
        _ => "https://github.com/unslothai/unsloth/pull/7354",
    }
}

pub(super) fn find(machine: &Machine, plan: &Plan, found: &mut Found) {
    let picked = plan.pick.and_then(|index| machine.gpus.get(index));
    let Some(python) = &machine.python else {
        // Beside a card of NVIDIA an integrated GPU drives the display.
        let is_spare = |gpu: &&Gpu| gpu.is_apu() && names_nvidia(machine);
        if let Some(gpu) = picked.filter(|gpu| machine.uses_rocr() && !is_spare(gpu)) {
            without_wheel(machine, gpu, found);
        }
        return;
    };
    match &python.torch {
        None => {
            let install = picked.map(|gpu| install(machine, gpu.gfx));
            let install = install.unwrap_or_default();
            found.add(&said::TORCH_MISSING, &[("install", &install)]);
        }
        Some(torch) if matches!(torch.build, Build::Cpu | Build::Cuda) => {
            wrong_build(machine, torch, picked, found);
        }
        Some(torch) => {
            if let Some(gpu) = picked {
                architecture(machine, plan, gpu, torch, found);
                versions(machine, gpu, torch, found);
            }
            companions(python, torch, found);
        }
    }
    library_path(machine, python, found);
}

/// The commands that install a torch for a GPU on this system, one a line.
pub(super) fn install(machine: &Machine, gfx: Option<Gfx>) -> String {
    let Some(gfx) = gfx else {
        return "# an AMD GPU: the ROCm build, from its own index and in this environment; `surefoot doctor` on the machine prints the command for its GPU".to_owned();
    };
    let commands = wheels::install_on(machine.system, gfx);
    match machine.system {
        _ if !commands.is_empty() => commands.join("\n"),
        System::Windows if !wheels::install(gfx).is_empty() => {
            "# no published wheel for Windows has code for this GPU".to_owned()
        }
        _ => "# no published wheel has code for this GPU".to_owned(),
    }
}

/// Whether the machine has a GPU of NVIDIA as well.
fn names_nvidia(machine: &Machine) -> bool {
    let on_bus = machine.pci_bus.iter().flat_map(|bus| &bus.others);
    machine.posted.other_gpus.iter().chain(on_bus).any(|name| {
        let name = name.to_ascii_lowercase();
        name.contains("nvidia") || name.contains("geforce")
    })
}

/// Nothing is known about the wheel: say what the GPU needs, if it needs something special.
fn without_wheel(machine: &Machine, gpu: &Gpu, found: &mut Found) {
    let Some(gfx) = gpu.gfx else { return };
    let (name, install) = (gpu.name(), install(machine, gpu.gfx));
    let mut add = |said: &'static Said, value: &str| {
        let values: [(&str, &dyn std::fmt::Display); 5] = [
            ("gfx", &gfx),
            ("gpu", &name),
            ("install", &install),
            ("override", &value),
            ("source", &value),
        ];
        found.add(said, &values);
    };
    if let Some(framework) = machine.posted.framework {
        if !wheels::is_in_newest_upstream(gfx) {
            let (said, value) = match wheels::override_for(gfx) {
                _ if framework == ENGINE => (&said::ARCHITECTURE_OF_OTHER_FRAMEWORK_ENGINE, ""),
                Some(value) => (&said::ARCHITECTURE_OF_OTHER_FRAMEWORK_OVERRIDE, value),
                None => (&said::ARCHITECTURE_OF_OTHER_FRAMEWORK, ""),
            };
            found.add(
                said,
                &[
                    ("framework", &framework),
                    ("gfx", &gfx),
                    ("gpu", &name),
                    ("override", &value),
                ],
            );
        }
    } else if wheels::needs_old_upstream(gfx) {
        add(&said::ARCHITECTURE_NEEDS_OLD_WHEEL, without_rocblas(gfx));
    } else if gfx.architecture().is_none() || wheels::is_in_newest_upstream(gfx) {
        // Nothing special.
    } else if wheels::install(gfx).is_empty() {
        match wheels::is_like_gfx900(gfx) {
            true => add(&said::ARCHITECTURE_WITHOUT_WHEEL_LIKE_GFX900, ""),
            false => add(&said::ARCHITECTURE_WITHOUT_WHEEL, ""),
        }
        // A program that goes another way runs nevertheless.
        if let Some(finding) = found.all.last_mut()
            && machine.posted.instead_of_rocm.is_some()
        {
            finding.severity = Severity::Warning;
        }
    } else if let Some(value) = wheels::override_for(gfx) {
        if machine.variable("HSA_OVERRIDE_GFX_VERSION") == Some(value) {
            return;
        }
        add(&said::ARCHITECTURE_NEEDS_DEVICE_WHEEL_OR_OVERRIDE, value);
    } else {
        add(&said::ARCHITECTURE_NEEDS_DEVICE_WHEEL, "");
    }
}

fn wrong_build(machine: &Machine, torch: &Torch, picked: Option<&Gpu>, found: &mut Found) {
    if torch.build == Build::Cuda && picked.is_none_or(Gpu::is_apu) && names_nvidia(machine) {
        return;
    }
    let said = match torch.build {
        Build::Cpu => &said::TORCH_CPU_ONLY,
        _ => &said::TORCH_FOR_CUDA,
    };
    let uninstall = match picked {
        Some(_) => "pip uninstall -y torch torchvision torchaudio triton",
        None => "",
    };
    let install = install(machine, picked.and_then(|gpu| gpu.gfx));
    let finding = found.add(
        said,
        &[
            ("torch", &torch.version),
            ("uninstall", &uninstall),
            ("install", &install),
        ],
    );
    // Without a GPU a torch for the CPU is just right.
    let is_right_for = match machine.posted.instead_of_rocm {
        Some(InsteadOfRocm::Zluda) => torch.build == Build::Cuda,
        Some(InsteadOfRocm::DirectMl) => torch.build == Build::Cpu,
        None => false,
    };
    let is_meant = picked.is_some_and(|gpu| gpu.gfx.is_some()) || machine.posted.wants_rocm;
    if is_right_for && machine.posted.has_failed {
        finding.severity = Severity::Warning;
    } else if is_right_for || !is_meant {
        finding.severity = Severity::Info;
    }
}

fn architecture(machine: &Machine, plan: &Plan, gpu: &Gpu, torch: &Torch, found: &mut Found) {
    let Some(gfx) = gpu.gfx else { return };
    if torch.supports(gfx) != Some(false) {
        return;
    }
    let list = torch.architectures.iter().flatten();
    let list: Vec<String> = list.map(ToString::to_string).collect();
    let from = torch.architectures_from.as_deref();
    let missing = missing_override(machine, plan, gpu);
    let is_override = |name: &String| name.starts_with("HSA_OVERRIDE_GFX_VERSION");
    let is_overridden = machine.variables.keys().any(is_override);
    let (said, name, value) = match missing {
        Some((name, value)) => (&said::OVERRIDE_MISSING, name, value),
        // Whether the value is right is judged with the overrides.
        None if is_overridden && wheels::override_for(gfx).is_some() && machine.uses_rocr() => {
            return;
        }
        None => (&said::ARCHITECTURE_NOT_IN_WHEEL, String::new(), ""),
    };
    let finding = found.add(
        said,
        &[
            ("gfx", &gfx),
            ("torch", &torch.version),
            ("list", &list.join(", ")),
            ("from", &from.unwrap_or("an unknown source")),
            ("install", &install(machine, Some(gfx))),
            ("name", &name),
            ("value", &value),
        ],
    );
    // The start-up log of a program that runs does not show its environment.
    if matches!(machine.read_from, ReadFrom::Listing | ReadFrom::Log) {
        finding.severity = Severity::Warning;
    }
}

/// Versions of ROCm that are known to be bad for a GPU.
fn versions(machine: &Machine, gpu: &Gpu, torch: &Torch, found: &mut Found) {
    let (Some(rocm), Some(gfx)) = (torch.rocm, gpu.gfx) else {
        return;
    };
    // AMD's own wheels, which are split by architecture, have versions of their own. Of gfx900 it is known for 7.2.
    let is_upstream = wheels::upstream_architectures(&format!("{}.{}", rocm.0, rocm.1)).is_some();
    let without = if gfx == GFX900 { (7, 0) } else { (6, 4) };
    let known = [
        (rocm == (7, 0), &said::ROCM_7_0_MEMSET),
        (
            rocm == (10, 0) && gfx == STRIX_HALO,
            &said::MIOPEN_3_6_0_GFX1151,
        ),
        (
            rocm < (7, 0) && gfx.is_rdna35(),
            &said::ROCM_OLD_FOR_GFX115X,
        ),
        (
            rocm >= without && wheels::needs_old_upstream(gfx) && is_upstream,
            &said::ROCBLAS_WITHOUT_GFX906,
        ),
    ];
    for (_, said) in known.into_iter().filter(|(is_bad, _)| *is_bad) {
        found.add(
            said,
            &[
                ("torch", &torch.version),
                ("gfx", &gfx),
                ("install", &install(machine, Some(gfx))),
                ("source", &without_rocblas(gfx)),
            ],
        );
    }
}

fn companions(python: &Python, torch: &Torch, found: &mut Found) {
    let version = |name: &str| wheels::major_minor(python.packages.get(name)?);
    if let (Some(own), Some(vision)) = (wheels::major_minor(&torch.version), version("torchvision"))
        && let Some(expected) = wheels::torchvision_for(own)
        && expected != vision
    {
        let [own, vision, expected] =
            [own, vision, expected].map(|(major, minor)| format!("{major}.{minor}"));
        found.add(
            &said::TORCHVISION_MISMATCH,
            &[
                ("torch", &torch.version),
                ("own", &own),
                ("vision", &vision),
                ("expected", &expected),
            ],
        );
    }
    if torch.build != Build::Rocm {
        return;
    }
    let has_rocm = python.bitsandbytes.iter().any(|name| name.contains("rocm"));
    if python.has("bitsandbytes") && !python.bitsandbytes.is_empty() && !has_rocm {
        let libraries = python.bitsandbytes.join(", ");
        found.add(
            &said::BITSANDBYTES_WITHOUT_ROCM,
            &[
                ("version", &python.packages["bitsandbytes"]),
                ("libraries", &libraries),
            ],
        );
    }
    if python.has("triton") && (python.has("pytorch-triton-rocm") || python.has("triton-rocm")) {
        found.add(&said::TWO_TRITONS, &[]);
    }
}

fn library_path(machine: &Machine, python: &Python, found: &mut Found) {
    let Some(path) = machine.variable("LD_LIBRARY_PATH") else {
        return;
    };
    let torch = python.torch.as_ref();
    let is_foreign = |folder: &&str| folder.contains("rocm") && !folder.starts_with(&python.prefix);
    let folders: Vec<&str> = path.split(':').filter(is_foreign).collect();
    if torch.is_some_and(|torch| torch.build == Build::Rocm) && !folders.is_empty() {
        found.add(
            &said::LIBRARY_PATH_OVER_WHEEL,
            &[("folders", &folders.join(", "))],
        );
    }
}
