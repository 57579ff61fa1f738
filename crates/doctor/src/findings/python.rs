//! The wheel: whether it is for this GPU, and whether its companions fit.

use super::{Check, Finding, Severity};
use crate::plan::{Plan, missing_override};
use crate::wheels;
use platform::Gfx;
use platform::machine::{Gpu, InsteadOfRocm, Machine, ReadFrom};
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

pub(super) fn find(machine: &Machine, plan: &Plan, found: &mut Vec<Finding>) {
    let picked = plan.pick.and_then(|index| machine.gpus.get(index));
    let Some(python) = &machine.python else {
        // Beside a card of NVIDIA an integrated GPU drives the display.
        let is_spare = |gpu: &&Gpu| gpu.is_apu() && names_nvidia(machine);
        if let Some(gpu) = picked.filter(|gpu| machine.uses_rocr() && !is_spare(gpu)) {
            without_wheel(gpu, machine.posted.instead_of_rocm.is_some(), found);
        }
        return;
    };
    match &python.torch {
        None => found.push(torch_missing(picked)),
        Some(torch) if matches!(torch.build, Build::Cpu | Build::Cuda) => {
            wrong_build(machine, torch, picked, found)
        }
        Some(torch) => {
            if let Some(gpu) = picked {
                architecture(machine, plan, gpu, torch, found);
                versions(gpu, torch, found);
            }
            companions(python, torch, found);
        }
    }
    library_path(machine, python, found);
}

fn install(gfx: Option<Gfx>) -> Vec<String> {
    let Some(gfx) = gfx else {
        return vec![
            "# an AMD GPU: the ROCm build, from its own index and in this environment; `surefoot doctor` on the machine prints the command for its GPU".to_owned(),
        ];
    };
    let commands = wheels::install(gfx);
    if commands.is_empty() {
        vec!["# no published wheel has code for this GPU".to_owned()]
    } else {
        commands
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
fn without_wheel(gpu: &Gpu, is_elsewhere: bool, found: &mut Vec<Finding>) {
    if let Some(gfx) = gpu.gfx.filter(|&gfx| wheels::needs_old_upstream(gfx)) {
        found.push(
            Finding::new(Check::Python, Severity::Warning, "architecture-needs-old-wheel", format!("{gfx} needs a wheel of ROCm 6.3, or one of its own"))
                .seen(format!("The GPU is {}; which torch is installed is not in this dump.", gpu.name()))
                .why(format!("Newer wheels of PyTorch still list {gfx}, but their rocBLAS has no kernels for it (ROCm 6.3 was the last that had): matrix products fail."))
                .fix(install(gpu.gfx))
                .source(without_rocblas(gfx)),
        );
        return;
    }
    let Some(gfx) = gpu
        .gfx
        .filter(|&gfx| gfx.architecture().is_some() && !wheels::is_in_newest_upstream(gfx))
    else {
        return;
    };
    let mut fix = install(Some(gfx));
    if wheels::install(gfx).is_empty() {
        // A program that goes another way runs nevertheless.
        let severity = if is_elsewhere {
            Severity::Warning
        } else {
            Severity::Error
        };
        found.push(
            Finding::new(
                Check::Python,
                severity,
                "architecture-without-wheel",
                format!("No published wheel has code for {gfx}"),
            )
            .seen(format!("The GPU is {}.", gpu.name()))
            .why(
                "Neither PyTorch's own wheels nor AMD's are built for it, and no override is safe.",
            )
            .fix(fix)
            .source("https://github.com/ROCm/TheRock/blob/main/SUPPORTED_GPUS.md"),
        );
        return;
    }
    let mut why = format!("PyTorch's own wheels have no code for {gfx}.");
    if let Some(value) = wheels::override_for(gfx) {
        why += &format!(
            " On Linux they run under HSA_OVERRIDE_GFX_VERSION={value}; with torch[device-{gfx}] from AMD's index no override is needed, and none may be set."
        );
        fix.push(format!(
            "export HSA_OVERRIDE_GFX_VERSION={value}  # only with an upstream wheel"
        ));
    }
    found.push(
        Finding::new(
            Check::Python,
            Severity::Warning,
            "architecture-needs-device-wheel",
            format!("{gfx} needs a wheel of its own"),
        )
        .seen(format!(
            "The GPU is {}; which torch is installed is not in this dump.",
            gpu.name()
        ))
        .why(why)
        .fix(fix)
        .source("https://github.com/ROCm/TheRock/blob/main/RELEASES.md"),
    );
}

fn torch_missing(picked: Option<&Gpu>) -> Finding {
    Finding::new(
        Check::Python,
        Severity::Info,
        "torch-missing",
        "There is no torch in the active Python",
    )
    .seen("The environment has no distribution named torch.")
    .why("Python programs need one with code for the GPU; the Rust trainer brings its own.")
    .fix(match picked {
        Some(gpu) => install(gpu.gfx),
        None => Vec::new(),
    })
    .source("https://pytorch.org/get-started/locally/")
}

fn wrong_build(machine: &Machine, torch: &Torch, picked: Option<&Gpu>, found: &mut Vec<Finding>) {
    if torch.build == Build::Cuda && picked.is_none_or(Gpu::is_apu) && names_nvidia(machine) {
        return;
    }
    let (id, kind) = if torch.build == Build::Cpu {
        ("torch-cpu-only", "the CPU")
    } else {
        ("torch-for-cuda", "CUDA")
    };
    // Without a GPU a torch for the CPU is just right.
    let is_right_for = match machine.posted.instead_of_rocm {
        Some(InsteadOfRocm::Zluda) => torch.build == Build::Cuda,
        Some(InsteadOfRocm::DirectMl) => torch.build == Build::Cpu,
        None => false,
    };
    let severity = if is_right_for {
        Severity::Warning
    } else if picked.is_some_and(|gpu| gpu.gfx.is_some()) || machine.posted.wants_rocm {
        Severity::Error
    } else {
        Severity::Info
    };
    let mut fix = install(picked.and_then(|gpu| gpu.gfx));
    if picked.is_some() {
        fix.insert(
            0,
            "pip uninstall -y torch torchvision torchaudio triton".to_owned(),
        );
    }
    found.push(
        Finding::new(Check::Python, severity, id, format!("The installed torch is built for {kind}"))
            .seen(format!("torch {}.", torch.version))
            .why("It cannot use an AMD GPU. Most programs then train on the CPU without a word. PyPI has no ROCm wheels: the index must be named.")
            .fix(fix)
            .source("https://github.com/ROCm/ROCm/issues/2354"),
    );
}

fn architecture(
    machine: &Machine,
    plan: &Plan,
    gpu: &Gpu,
    torch: &Torch,
    found: &mut Vec<Finding>,
) {
    let Some(gfx) = gpu.gfx else { return };
    if torch.supports(gfx) != Some(false) {
        return;
    }
    let list: Vec<String> = torch
        .architectures
        .iter()
        .flatten()
        .map(ToString::to_string)
        .collect();
    let seen = format!(
        "torch {} has code for {} (from {}).",
        torch.version,
        list.join(", "),
        torch
            .architectures_from
            .as_deref()
            .unwrap_or("an unknown source")
    );
    // The start-up log of a program that runs does not show its environment.
    let severity = if matches!(machine.read_from, ReadFrom::Listing | ReadFrom::Log) {
        Severity::Warning
    } else {
        Severity::Error
    };
    let mut fix = install(Some(gfx));
    if let Some((name, value)) = missing_override(machine, plan, gpu) {
        fix.push(format!(
            "export {name}={value}  # instead; `surefoot run` sets it"
        ));
        found.push(
            Finding::new(Check::Override, severity, "override-missing", format!("This torch has no code for {gfx} and no override is set"))
                .seen(seen)
                .why("Every kernel would fail with \"invalid device function\". A wheel with native code is better than an override.")
                .fix(fix)
                .source("https://github.com/ROCm/TheRock/blob/main/RELEASES.md"),
        );
        return;
    }
    let is_overridden = machine
        .variables
        .keys()
        .any(|name| name.starts_with("HSA_OVERRIDE_GFX_VERSION"));
    let works = wheels::override_for(gfx).is_some();
    if is_overridden && works && machine.uses_rocr() {
        // Whether the value is right is judged with the overrides.
        return;
    }
    found.push(
        Finding::new(Check::Python, severity, "architecture-not-in-wheel", format!("The installed torch has no code for {gfx}"))
            .seen(seen)
            .why("Every kernel would fail with \"invalid device function\", and no override is safe for this GPU here.")
            .fix(fix)
            .source("https://github.com/ROCm/TheRock/blob/main/RELEASES.md"),
    );
}

/// Versions of ROCm that are known to be bad for a GPU.
fn versions(gpu: &Gpu, torch: &Torch, found: &mut Vec<Finding>) {
    let (Some(rocm), Some(gfx)) = (torch.rocm, gpu.gfx) else {
        return;
    };
    let mut add = |severity, id, title: &str, why: &str, fix: Vec<String>, source| {
        found.push(
            Finding::new(Check::Python, severity, id, title)
                .seen(format!("torch {} on {gfx}.", torch.version))
                .why(why)
                .fix(fix)
                .source(source),
        );
    };
    if rocm == (7, 0) {
        add(
            Severity::Warning,
            "rocm-7.0-memset",
            "ROCm 7.0 can lose a memset",
            "hipMemsetAsync of ROCm 7.0 is reported to leave memory unset in graphs and after zero_(); 7.1 fixed it.",
            install(Some(gfx)),
            "https://github.com/pytorch/pytorch/pull/197017",
        );
    }
    if rocm == (10, 0) && gfx == STRIX_HALO {
        add(
            Severity::Error,
            "miopen-3.6.0-gfx1151",
            "Every convolution fails with this wheel on gfx1151",
            "MIOpen 3.6.0 of the ROCm 10.0 wheels measures times of zero (\"Invalid elapsed time\").",
            vec!["# install a 7.14 wheel, or set torch.backends.cudnn.enabled = False".to_owned()],
            "https://github.com/ROCm/TheRock/issues/6250",
        );
    }
    if rocm < (7, 0) && gfx.is_rdna35() {
        add(
            Severity::Warning,
            "rocm-old-for-gfx115x",
            "This ROCm is too old for gfx115x",
            "With ROCm 6.4 attention in bf16 gives NaN on gfx1151, and copies were seen to fail.",
            install(Some(gfx)),
            "https://github.com/unslothai/unsloth/issues/3385",
        );
    }
    // AMD's own wheels, which are split by architecture, have versions of their own. Of gfx900 it is known for 7.2.
    let is_upstream = wheels::upstream_architectures(&format!("{}.{}", rocm.0, rocm.1)).is_some();
    let without = if gfx == GFX900 { (7, 0) } else { (6, 4) };
    if rocm >= without && wheels::needs_old_upstream(gfx) && is_upstream {
        add(
            Severity::Error,
            "rocblas-without-gfx906",
            &format!("The rocBLAS of this wheel has no kernels for {gfx}"),
            &format!(
                "torch still lists {gfx}, but matrix products fail; ROCm 6.3 was the last that had them."
            ),
            install(Some(gfx)),
            without_rocblas(gfx),
        );
    }
}

fn companions(python: &Python, torch: &Torch, found: &mut Vec<Finding>) {
    let version = |name: &str| {
        python
            .packages
            .get(name)
            .and_then(|version| wheels::major_minor(version))
    };
    if let (Some(own), Some(vision)) = (wheels::major_minor(&torch.version), version("torchvision"))
        && let Some(expected) = wheels::torchvision_for(own)
        && expected != vision
    {
        found.push(
            Finding::new(Check::Python, Severity::Warning, "torchvision-mismatch", "torchvision does not belong to this torch")
                .seen(format!("torch {} with torchvision {}.{}.", torch.version, vision.0, vision.1))
                .why(format!("torch {}.{} goes with torchvision {}.{}; another one fails on import or at the first operator.", own.0, own.1, expected.0, expected.1))
                .fix(["# install both from one index, in one command"])
                .source("https://github.com/pytorch/vision#installation"),
        );
    }
    if torch.build != Build::Rocm {
        return;
    }
    let has_rocm = python.bitsandbytes.iter().any(|name| name.contains("rocm"));
    if python.has("bitsandbytes") && !python.bitsandbytes.is_empty() && !has_rocm {
        found.push(
            Finding::new(
                Check::Python,
                Severity::Warning,
                "bitsandbytes-without-rocm",
                "bitsandbytes has no library for ROCm",
            )
            .seen(format!(
                "bitsandbytes {} brings {}.",
                python.packages["bitsandbytes"],
                python.bitsandbytes.join(", ")
            ))
            .why("8-bit optimizers and 4-bit weights will fail or run on the CPU.")
            .fix([
                "pip install -U bitsandbytes",
                "# or use AdamW instead of AdamW8bit",
            ])
            .source("https://huggingface.co/docs/bitsandbytes/main/en/installation"),
        );
    }
    if python.has("triton") && (python.has("pytorch-triton-rocm") || python.has("triton-rocm")) {
        found.push(
            Finding::new(Check::Python, Severity::Warning, "two-tritons", "Two packages install the module `triton`")
                .seen("triton from PyPI beside the one that belongs to this torch.")
                .why("The files of one overwrite those of the other; torch.compile then fails with odd errors.")
                .fix(["pip uninstall -y triton", "pip install --force-reinstall --no-deps pytorch-triton-rocm --index-url https://download.pytorch.org/whl/rocm7.2"])
                .source("https://github.com/ROCm/TheRock/blob/main/RELEASES.md"),
        );
    }
}

/// Wheels bring their ROCm; a path to another one overrides it.
fn library_path(machine: &Machine, python: &Python, found: &mut Vec<Finding>) {
    let Some(path) = machine.variable("LD_LIBRARY_PATH") else {
        return;
    };
    let is_rocm = python
        .torch
        .as_ref()
        .is_some_and(|torch| torch.build == Build::Rocm);
    let foreign: Vec<&str> = path
        .split(':')
        .filter(|folder| folder.contains("rocm") && !folder.starts_with(&python.prefix))
        .collect();
    if is_rocm && !foreign.is_empty() {
        found.push(
            Finding::new(Check::Variables, Severity::Warning, "library-path-over-wheel", "LD_LIBRARY_PATH puts another ROCm over the wheel's own")
                .seen(format!("LD_LIBRARY_PATH contains {}.", foreign.join(", ")))
                .why("The wheel bundles its ROCm libraries; mixing two versions ends in missing symbols or crashes.")
                .fix(["unset LD_LIBRARY_PATH"])
                .source("https://github.com/pytorch/builder/pull/1468"),
        );
    }
}
