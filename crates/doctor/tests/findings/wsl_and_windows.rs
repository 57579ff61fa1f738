//! Windows and WSL: the driver is that of Windows, so nothing about the kernel driver of Linux helps.

use super::machines::{DRIVER_OF_AMD, adapter, host, memory, packages, windows};
use super::{cases, diagnose as read, ids};
use platform::machine::System;
use surefoot_doctor::dump;
use surefoot_doctor::report::{Report, diagnose};

/// What has no meaning where the GPU is driven by Windows.
const BARE_METAL: [&str; 17] = [
    "modprobe",
    "usermod",
    "render group",
    "render node",
    "/dev/kfd",
    "/dev/dri",
    "update-grub",
    "grubby",
    "kernel command line",
    "kernel parameter",
    "amdgpu.",
    "amdgpu-dkms",
    "ttm.",
    "atomics",
    "dmesg",
    "linux-firmware",
    "initramfs",
];

/// What Windows does not have either.
const LINUX: [&str; 15] = [
    "run --alloc",
    "sudo ",
    "apt ",
    "dnf ",
    "/etc/",
    "/proc/",
    "/sys/",
    "/opt/",
    "LD_LIBRARY_PATH",
    "ROCR_VISIBLE_DEVICES=",
    "export ",
    "rocminfo",
    "ldconfig",
    "ulimit",
    "newer kernel",
];

/// Each machine of the cases, as if its text had come from there.
fn on(system: System) -> impl Iterator<Item = Report> {
    cases().into_iter().flat_map(move |(_, fires, silent)| {
        [fires, silent].map(|text| {
            let text = match text.starts_with("== ") {
                true => format!("# surefoot dump 1\n{text}"),
                false => text,
            };
            let mut machine = dump::read(&text).expect("a machine");
            machine.system = system;
            diagnose(machine)
        })
    })
}

/// The advice among the findings that has one of these words, with its finding.
fn advice_with(report: &Report, words: &[&str]) -> Vec<String> {
    let lines = report.findings.iter().flat_map(|finding| {
        let told = finding.fix.iter().chain([&finding.why, &finding.title]);
        told.map(|line| (finding.id.as_str(), line.as_str()))
    });
    let lines = lines.filter(|(_, line)| words.iter().any(|word| line.contains(word)));
    lines.map(|(id, line)| format!("{id}: {line}")).collect()
}

#[test]
fn no_finding_gives_advice_of_bare_metal_under_wsl() {
    let mut told: Vec<_> = on(System::Wsl)
        .flat_map(|report| advice_with(&report, &BARE_METAL))
        .collect();
    told.sort();
    told.dedup();
    assert!(told.is_empty(), "{told:#?}");
}

#[test]
fn no_finding_gives_advice_of_linux_on_windows() {
    let foreign = [&BARE_METAL[..], &LINUX].concat();
    let mut told: Vec<_> = on(System::Windows)
        .flat_map(|report| advice_with(&report, &foreign))
        .collect();
    told.sort();
    told.dedup();
    assert!(told.is_empty(), "{told:#?}");
}

/// The words are those of the findings: on bare metal they are told.
#[test]
fn on_bare_metal_the_same_machines_get_that_advice() {
    let told: Vec<_> = on(System::Linux)
        .flat_map(|report| advice_with(&report, &BARE_METAL))
        .collect();
    assert!(told.len() > 20, "{told:#?}");
}

/// What is not about Linux's driver is found there as well.
#[test]
fn findings_about_python_hold_everywhere() {
    for system in [System::Wsl, System::Windows] {
        let found: Vec<_> = on(system)
            .flat_map(|report| {
                ids(&report)
                    .into_iter()
                    .map(str::to_owned)
                    .collect::<Vec<_>>()
            })
            .collect();
        for id in ["torch-cpu-only", "torch-for-cuda", "torchvision-mismatch"] {
            assert!(found.iter().any(|known| known == id), "{id} on {system:?}");
        }
    }
}

/// What a finding of this report says, all of it.
fn said(report: &Report, id: &str) -> String {
    let finding = report.findings.iter().find(|finding| finding.id == id);
    format!("{finding:?}")
}

#[test]
fn a_hipinfo_that_finds_nothing_is_quoted() {
    let failed = "== windows/hipinfo-program\nC:\\venv\\hipInfo.exe\n\
        == windows/hipinfo\nerror: 'no ROCm-capable device is detected'(100)\n";
    let report = read(&(windows() + &adapter(DRIVER_OF_AMD) + failed));
    let said = said(&report, "no-gpu");
    for word in ["RX 7900 XTX", "hipInfo.exe", "no ROCm-capable device"] {
        assert!(said.contains(word), "{word}: {said}");
    }
    let none = read(&windows());
    assert!(
        self::said(&none, "no-gpu").contains("no display adapter"),
        "{none:?}"
    );
}

#[test]
fn on_windows_nothing_is_installed_from_an_index_for_linux() {
    let without_torch = windows() + &adapter(DRIVER_OF_AMD) + &packages("transformers 5.0.0");
    let said = said(&read(&without_torch), "torch-missing");
    assert!(said.contains("torch[device-gfx1100]"), "{said}");
    assert!(!said.contains("download.pytorch.org"), "{said}");
}

#[test]
fn the_commands_for_windows_are_those_of_powershell() {
    let report = read(
        &(windows()
            + &adapter(DRIVER_OF_AMD)
            + "== environment\nHSA_OVERRIDE_GFX_VERSION=11.0.0\n"),
    );
    let script = report.fix_script();
    assert!(
        !script.contains("/bin/sh") && !script.contains("set -eu"),
        "{script}"
    );
    assert!(
        script.contains("\nRemove-Item Env:HSA_OVERRIDE_GFX_VERSION"),
        "{script}"
    );
}

/// A live WSL with a GPU and this PyTorch.
fn wsl(torch: &str) -> String {
    host()
        + &memory(31 << 30, 8 << 30, 8 << 30)
        + "== proc/sys/kernel/osrelease\n6.6.87.2-microsoft-standard-WSL2\n== dev/kfd\naccess=ENOENT\n\
           == dev/dxg\naccess=ok mode=0666 uid=0 gid=0\n== wsl/librocdxg\npresent\n"
        + &packages(torch)
}

#[test]
fn under_wsl_a_rocm_before_7_13_is_told_to_look_for_the_gpu() {
    for (torch, expected) in [
        ("torch 2.11.0+rocm7.2", Some("1")),
        ("torch 2.13.0+rocm7.14.0", None),
        ("torch 2.13.0+cpu", None),
    ] {
        let report = read(&wsl(torch));
        let set = report.env.get("HSA_ENABLE_DXG_DETECTION");
        assert_eq!(set.map(String::as_str), expected, "{torch}");
        let advice = said(&report, "wsl");
        assert_eq!(
            advice.contains("export HSA_ENABLE_DXG"),
            expected.is_some(),
            "{advice}"
        );
    }
}

#[test]
fn the_memory_of_wslconfig_is_quoted() {
    let small = wsl("torch 2.13.0+rocm7.14.0") + &memory(8 << 30, 8 << 30, 8 << 30);
    let config =
        small.clone() + "== wsl/wslconfig\n[wsl2]\nmemory=8GB\n[experimental]\nmemory=1GB\n";
    assert!(said(&read(&config), "wsl-memory").contains("memory=8GB"));
    assert!(said(&read(&small), "wsl-memory").contains("half of the RAM"));
}
