//! Findings about a posted text and the program that printed it.

use super::{Check, Finding, Severity};
use crate::names;
use platform::Gfx;
use platform::machine::{InsteadOfRocm, Machine, ReadFrom, System};
use platform::python::Build;

pub(super) fn find(machine: &Machine, found: &mut Vec<Finding>) {
    if machine.is_complete {
        return;
    }
    text(machine, found);
    under_override(machine, found);
    instead_of_rocm(machine, found);
    program(machine, found);
    others(machine, found);
    unidentified(machine, found);
    memory(machine, found);
    versions(machine, found);
    access(machine, found);
}

/// Information that the text lacks.
fn text(machine: &Machine, found: &mut Vec<Finding>) {
    let posted = &machine.posted;
    if posted.is_cut {
        found.push(
            Finding::new(Check::Gpu, Severity::Info, "text-cut-off", "The text is cut off before it comes to a GPU")
                .seen(match processor_graphics(machine) {
                    Some((name, gfx)) => format!("It is a part of the output of a tool, and no GPU is in that part; the processor, {name}, has a {gfx} in it."),
                    None => "It is a part of the output of a tool, and no GPU is in that part.".to_owned(),
                })
                .why("Nothing follows from it about the GPU: neither that there is one nor that there is none.")
                .fix(["# collect the whole output, to its last line", "surefoot doctor --report report.txt"])
                .source("https://rocm.docs.amd.com/projects/rocminfo/en/latest/"),
        );
    }
    if posted.has_npu && machine.gpus.is_empty() {
        found.push(
            Finding::new(Check::Gpu, Severity::Info, "npu-is-no-gpu", "The NPU in this text is no GPU")
                .seen(match processor_graphics(machine) {
                    Some((name, gfx)) => format!("An AI Engine (aie2, RyzenAI-npu, driver amdxdna) is listed, and no GPU; the processor, {name}, has a {gfx} in it."),
                    None => "An AI Engine (aie2, RyzenAI-npu, driver amdxdna) is listed, and no GPU.".to_owned(),
                })
                .why("HIP and PyTorch do not compute on an NPU: xrt-smi and its tests say nothing about the GPU, which has a driver of its own (amdgpu) and is an agent with a name that begins with gfx.")
                .fix([if machine.system == System::Windows { "hipInfo.exe" } else { "rocminfo | grep -A 4 gfx" }])
                .source("https://ryzenai.docs.amd.com/en/latest/"),
        );
    }
    if machine.system == System::Macos {
        // Without one, it may be the Mac of a user who trains elsewhere.
        let severity = if machine.gpus.is_empty() {
            Severity::Info
        } else {
            Severity::Error
        };
        found.push(
            Finding::new(Check::Gpu, severity, "macos", "There is no ROCm for macOS")
                .seen("The text comes from a Mac.")
                .why("AMD GPUs are used there through Metal (MoltenVK for Vulkan) only; PyTorch's ROCm wheels exist for Linux and Windows.")
                .fix(["# start Linux on this machine, or train on another"])
                .source("https://rocm.docs.amd.com/projects/install-on-linux/en/latest/reference/system-requirements.html"),
        );
    }
}

/// The processor and the architecture of its graphics.
fn processor_graphics(machine: &Machine) -> Option<(&str, Gfx)> {
    let name = machine.posted.processor.as_deref()?;
    Some((name, names::graphics_of_processor(name)?))
}

/// The graphics of desktop processors, which are usually accompanied by a card.
const DISPLAY_ONLY: Gfx = Gfx::new(10, 3, 6);

/// The only GPU has a generic name and the architecture of a card, and the
/// processor has graphics of the same generation: probably the graphics under an override.
fn under_override(machine: &Machine, found: &mut Vec<Finding>) {
    let ([gpu], Some((name, inside))) = (&machine.gpus[..], processor_graphics(machine)) else {
        return;
    };
    let Some(gfx) = gpu
        .gfx
        .filter(|&gfx| gfx != inside && gfx.major == inside.major && inside != DISPLAY_ONLY)
    else {
        return;
    };
    let is_nameless = gpu.device_id.is_none() && machine.posted.is_nameless;
    if !is_nameless || machine.variable("HSA_OVERRIDE_GFX_VERSION").is_some() {
        return;
    }
    found.push(
        Finding::new(Check::Override, Severity::Warning, "override-suspected", format!("This {gfx} may be the {inside} of the processor, under an override"))
            .seen(format!("The processor is {name}; the GPU has no name of its own, and is called {gfx}."))
            .why("HSA_OVERRIDE_GFX_VERSION makes a GPU pass for another one, in this tool as well. What is said here of the card does not hold then.")
            .fix(["unset HSA_OVERRIDE_GFX_VERSION  # then look at the name again"])
            .source("https://github.com/ROCm/ROCm/issues/3910"),
    );
}

fn instead_of_rocm(machine: &Machine, found: &mut Vec<Finding>) {
    let rocm = "# a ROCm build of PyTorch for Windows or Linux uses the GPU without it";
    let has_torch_for_cpu = machine
        .python
        .as_ref()
        .and_then(|python| python.torch.as_ref())
        .is_some_and(|torch| torch.build == Build::Cpu);
    match machine.posted.instead_of_rocm {
        // It has nothing to run; that torch has a finding of its own.
        Some(InsteadOfRocm::Zluda) if has_torch_for_cpu => {}
        Some(InsteadOfRocm::DirectMl) => found.push(
            Finding::new(Check::Python, Severity::Warning, "directml", "The program uses DirectML, not ROCm")
                .seen("The text names DirectML, or its device `privateuseone`.")
                .why("DirectML does not train (many operators and autocast are missing), and the memory it reports, often 1024 MB, is the same for every card.")
                .fix([rocm])
                .source("https://github.com/microsoft/DirectML/issues/414"),
        ),
        Some(InsteadOfRocm::Zluda) => found.push(
            Finding::new(Check::Python, Severity::Warning, "zluda", "The program runs a CUDA build of torch through ZLUDA")
                .seen("The text names ZLUDA.")
                .why("ZLUDA translates CUDA for the HIP runtime; cuDNN and fused attention are switched off, and what is said here about ROCm wheels does not hold for it.")
                .fix([rocm])
                .source("https://github.com/vosen/ZLUDA"),
        ),
        None => {}
    }
}

/// What a program said about the GPUs that it looked for.
fn program(machine: &Machine, found: &mut Vec<Finding>) {
    let list = |list: &[Gfx]| {
        let names: Vec<String> = list.iter().map(ToString::to_string).collect();
        names.join(", ")
    };
    if let Some((without, with)) = &machine.posted.without_code {
        let libraries = if with.is_empty() {
            String::new()
        } else {
            format!(" They are for {}.", list(with))
        };
        found.push(
            Finding::new(Check::Gpu, Severity::Error, "program-without-code", format!("The libraries of this program have no code for {}", list(without)))
                .seen(format!("It says that the GPU ({}) is not supported.{libraries}", list(without)))
                .why("The rocBLAS libraries beside a program decide which GPUs it can use, whatever the driver and other programs can do.")
                .fix([
                    format!("# install a build of the program, or of its rocBLAS libraries, that is for {} (ollama-for-amd)", list(without)),
                    "# or its Vulkan backend, which runs on every GPU (ollama: OLLAMA_VULKAN=1)".to_owned(),
                ])
                .source("https://github.com/ollama/ollama/blob/main/docs/gpu.mdx"),
        );
        return;
    }
    without_code_in_list(machine, found);
    if let Some(words) = &machine.posted.on_cpu {
        on_cpu(words, machine, found);
    } else if let Some(name) = &machine.posted.cpu_only
        && machine.gpus.is_empty()
    {
        found.push(
            Finding::new(Check::Gpu, Severity::Warning, "program-found-no-gpu", format!("{name} found no GPU that it can use, and computes on the CPU"))
                .seen("It says so in this text.")
                .why("Whether the machine has one cannot be told from that: the driver, access to its devices, or the program's libraries can be missing.")
                .fix(["surefoot doctor"])
                .source("https://github.com/ollama/ollama/blob/main/docs/troubleshooting.mdx"),
        );
    }
}

/// The program says that it computes on the CPU.
fn on_cpu(words: &str, machine: &Machine, found: &mut Vec<Finding>) {
    let torch = machine
        .python
        .as_ref()
        .and_then(|python| python.torch.as_ref());
    // The wrong build has a finding of its own.
    if torch.is_some_and(|torch| matches!(torch.build, Build::Cpu | Build::Cuda)) {
        return;
    }
    let there = match machine.gpus.first() {
        Some(gpu) => format!(", though the text names a GPU ({})", gpu.name()),
        None => String::new(),
    };
    let on_windows = machine.system == System::Windows;
    let mut fix = vec![
        "python -c \"import torch; print(torch.__version__, torch.version.hip, torch.cuda.is_available())\"  # in the environment of the program; None: not a ROCm build",
    ];
    fix.push(if on_windows {
        "# a torch without ROCm: install AMD's wheels for Windows; SD.Next offers --use-zluda instead"
    } else {
        "# a torch without ROCm: install one from the index of a ROCm build"
    });
    fix.push("# else: what keeps HIP from the GPU is said by `surefoot doctor` on the machine");
    found.push(
        Finding::new(Check::Python, Severity::Error, "program-on-cpu", format!("The program computes on the CPU{there}"))
            .seen(format!("It says: {words}"))
            .why("Usually its PyTorch is not a ROCm build (an installer took the one for the CPU or for CUDA), or that PyTorch sees no GPU.")
            .fix(fix)
            .source("https://github.com/invoke-ai/InvokeAI/issues/7146"),
    );
}

/// A list of what something was compiled for, without any GPU of the machine.
fn without_code_in_list(machine: &Machine, found: &mut Vec<Finding>) {
    let Some((what, list)) = &machine.posted.code_list else {
        return;
    };
    let has_code = |gpu: &platform::machine::Gpu| gpu.gfx.is_none_or(|gfx| list.contains(&gfx));
    let is_overridden = machine
        .variables
        .keys()
        .any(|name| name.starts_with("HSA_OVERRIDE_GFX_VERSION"));
    let Some(gpu) = machine.gpus.first() else {
        return;
    };
    if machine.gpus.iter().any(has_code) || is_overridden {
        return;
    }
    let names: Vec<String> = list.iter().map(ToString::to_string).collect();
    let gfx = gpu.gfx.map(|gfx| gfx.to_string()).unwrap_or_default();
    found.push(
        Finding::new(Check::Gpu, Severity::Error, "code-list-without-gpu", format!("There is no code for {gfx} in this build"))
            .seen(format!("What {what} was compiled for: {}. The GPU is {}.", names.join(", "), gpu.name()))
            .why("A GPU runs only kernels that were compiled for its architecture; without them programs end with `invalid device function`, `no kernel image` or a missing TensileLibrary.")
            .fix([format!("# install a build that names {gfx}: AMD's wheels have one for nearly every GPU, and a build from source takes the architecture as its target")])
            .source("https://github.com/ROCm/TheRock/issues/1184"),
    );
}

/// GPUs of other vendors, if there is none by AMD.
fn others(machine: &Machine, found: &mut Vec<Finding>) {
    let others = &machine.posted.other_gpus;
    if others.is_empty() || !machine.gpus.is_empty() || !machine.unseen.is_empty() {
        return;
    }
    let is_virtual = others.iter().all(|name| names::is_virtual_adapter(name));
    let list = others.join(", ");
    if is_virtual {
        found.push(
            Finding::new(Check::Gpu, Severity::Error, "virtual-machine-without-gpu", "This virtual machine has no AMD GPU")
                .seen(format!("Its display adapter is {list}."))
                .why("A virtual adapter computes nothing. The host must give the GPU to the virtual machine (PCI passthrough).")
                .fix(["# on the host: pass the GPU through to this virtual machine, or run on the host"])
                .source("https://rocm.docs.amd.com/projects/install-on-linux/en/latest/reference/system-requirements.html"),
        );
    } else {
        found.push(
            Finding::new(Check::Gpu, Severity::Info, "other-vendor", "The text names GPUs of another vendor, and no AMD GPU")
                .seen(format!("It names {list}."))
                .why("Nothing here is about AMD's ROCm; for a card of NVIDIA a CUDA build of torch is right.")
                .fix(["# nothing to do, unless an AMD GPU was expected"])
                .source("https://pytorch.org/get-started/locally/"),
        );
    }
}

/// A GPU that the text does not identify.
fn unidentified(machine: &Machine, found: &mut Vec<Finding>) {
    let said_elsewhere = matches!(
        machine.read_from,
        ReadFrom::Kfd
            | ReadFrom::Rocminfo
            | ReadFrom::Hipinfo
            | ReadFrom::Memory
            | ReadFrom::Windows
    );
    // Beside a card that is known, the graphics of a processor are hidden whatever they are.
    let is_card_known = machine
        .gpus
        .iter()
        .any(|gpu| gpu.gfx.is_some() && !gpu.is_apu());
    let is_open = |gpu: &&platform::machine::Gpu| {
        gpu.gfx.is_none()
            && !(gpu.is_apu() && is_card_known)
            && !gpu.product.as_deref().is_some_and(names::is_before_rocm)
    };
    let Some(gpu) = machine
        .gpus
        .iter()
        .find(is_open)
        .filter(|_| !said_elsewhere)
    else {
        return;
    };
    let fix = if machine.system == System::Windows {
        "hipInfo.exe  # collect its whole output"
    } else {
        "rocminfo | grep -E 'Name:|Chip ID|Compute Unit'  # on Windows: hipInfo.exe"
    };
    found.push(
        Finding::new(
            Check::Gpu,
            Severity::Warning,
            "gpu-not-identified",
            "Which GPU this is cannot be told from the text",
        )
        .seen(match &gpu.product {
            Some(name) => format!("It is called {name}, which does not tell the chip."),
            None => "Neither a name that tells the chip nor a device id is in the text.".to_owned(),
        })
        .why("Its architecture decides which wheel has code for it, and is unknown.")
        .fix([fix])
        .source("https://rocm.docs.amd.com/en/latest/reference/gpu-arch-specs.html"),
    );
}

/// PyTorch sees no GPU, or its user must not open the device.
fn access(machine: &Machine, found: &mut Vec<Finding>) {
    if let Some(group) = &machine.posted.lacks_group {
        found.push(
            Finding::new(Check::Access, Severity::Error, "device-permission", format!("The user is not in the group {group}, which owns /dev/kfd"))
                .seen(format!("`ls -l` shows that /dev/kfd belongs to {group}; the groups of the user are without it."))
                .why("HIP opens /dev/kfd first, and finds no GPU where it may not. A session that was opened before the membership does not have it either.")
                .fix([format!("sudo usermod -aG {group} $USER  # then log out and in again")])
                .source("https://rocm.docs.amd.com/projects/install-on-linux/en/latest/install/prerequisites.html"),
        );
    }
    let torch = machine
        .python
        .as_ref()
        .and_then(|python| python.torch.as_ref());
    // Another build has its own finding, and so has a machine without a GPU.
    let is_of_another_build =
        torch.is_some_and(|torch| matches!(torch.build, Build::Cpu | Build::Cuda));
    let is_for_rocm = torch.is_some_and(|torch| torch.rocm.is_some());
    let has_none = machine.gpus.is_empty();
    if !machine.posted.torch_sees_none || is_of_another_build || has_none && !is_for_rocm {
        return;
    }
    let check = "python -c \"import torch; print(torch.__version__, torch.version.hip)\"  # None: not a ROCm build";
    let (why, fix): (_, Vec<&str>) = match machine.system {
        // Where it ran, and on which GPU, is not known.
        System::Linux if has_none => (
            "HIP finds no GPU in that process: its device may not be opened, a container or a virtual machine has none, a variable hides it, or this ROCm does not support it.",
            vec![
                check,
                "surefoot doctor  # on that machine",
                "env | grep -E 'VISIBLE_DEVICES|HSA_OVERRIDE'",
            ],
        ),
        System::Windows => (
            "Either this torch is not a ROCm build (the one of PyPI for Windows is for the CPU), or HIP finds no GPU: the Adrenalin driver is too old for the build, or the build does not support the GPU.",
            vec![
                check,
                "# install AMD's newest driver (Adrenalin), then restart",
                "hipInfo.exe  # must list the GPU",
            ],
        ),
        System::Wsl => (
            "Either this torch is not a ROCm build, or its own runtime does not know WSL: ROCm reaches the GPU there through /dev/dxg and the driver of Windows, with a release that supports WSL.",
            vec![
                check,
                "ls -l /dev/dxg  # missing: `wsl --update` in PowerShell",
                "# a ROCm and wheels of a release for WSL, and the Adrenalin driver that belongs to it",
            ],
        ),
        System::Linux | System::Macos => (
            "Either this torch is not a ROCm build, or HIP finds no GPU in that process: the user may not open /dev/kfd (group render), a container has not the devices, a variable hides the GPU, or the ROCm of the wheel does not support it or this kernel.",
            vec![
                check,
                "rocminfo | grep -E 'gfx|Unable|not member'  # as root as well: works there only, then it is the group",
                "sudo usermod -aG render,video $USER  # then log out and in again",
                "env | grep -E 'VISIBLE_DEVICES|HSA_OVERRIDE'",
                "# container: --device /dev/kfd --device /dev/dri, and the group that owns them",
            ],
        ),
    };
    found.push(
        Finding::new(
            Check::Access,
            Severity::Error,
            "torch-sees-no-gpu",
            match has_none {
                true => "PyTorch is a ROCm build, and sees no GPU",
                false => "PyTorch sees no GPU, though the machine has one",
            },
        )
        .seen("`torch.cuda.is_available()` is False in this text, or the program says so.")
        .why(why)
        .fix(fix)
        .source("https://github.com/ROCm/ROCm/issues/2354"),
    );
}

/// Two releases of ROCm can lie beside each other; a program that finds libraries of both fails.
fn versions(machine: &Machine, found: &mut Vec<Finding>) {
    let versions = &machine.posted.rocm_versions;
    // They are folders and packages of Linux.
    if versions.len() < 2 || !matches!(machine.system, System::Linux | System::Wsl) {
        return;
    }
    let severity = if machine.posted.has_failed {
        Severity::Warning
    } else {
        Severity::Info
    };
    found.push(
        Finding::new(Check::Access, severity, "several-rocm-versions", format!("Several versions of ROCm are named: {}", versions.join(", ")))
            .seen(format!("Folders or packages are of ROCm {}.", versions.join(" and of ")))
            .why("They may lie side by side, but a program must find the libraries of one only: mixed ones give undefined symbols, missing kernels and crashes. PyTorch's wheels bring their own.")
            .fix([
                "ls -ld /opt/rocm /opt/rocm-*; echo \"$LD_LIBRARY_PATH\"",
                "# keep one of them: remove the packages of the others, and their folders from LD_LIBRARY_PATH, ROCM_PATH and /etc/ld.so.conf.d",
            ])
            .source("https://rocm.docs.amd.com/projects/install-on-linux/en/latest/install/install-methods/multi-version-install-index.html"),
    );
}

fn memory(machine: &Machine, found: &mut Vec<Finding>) {
    let Some(size) = machine.posted.impossible_memory else {
        return;
    };
    found.push(
        Finding::new(Check::Memory, Severity::Warning, "memory-implausible", format!("A GPU with {size} cannot be: its memory is unknown"))
            .seen(format!("The text gives {size} as all the memory of the GPU."))
            .why("A driver that has not come up, an overflow in a tool, or a number that was cut gives such sizes. They are not used here.")
            .fix(["# restart, and look at the size again; collect the kernel log if it stays"])
            .source("https://github.com/ROCm/ROCm/issues/2014"),
    );
}
