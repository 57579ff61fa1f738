//! Windows and WSL: the driver is that of Windows, so nothing about the kernel driver of Linux helps.

use crate::{cases, ids};
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
const LINUX: [&str; 14] = [
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
