//! Every explanation on Windows and under WSL, where the driver is that of Windows.

use super::{AFTER, BEFORE, messages};
use std::collections::BTreeSet;
use surefoot_doctor::explain::explain;

/// What has no meaning where the GPU is driven by Windows.
const BARE_METAL: [&str; 16] = [
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
    "atomics",
    "dmesg",
    "linux-firmware",
    "initramfs",
];

/// People install `amdgpu-dkms` under WSL too: there the answer is to remove it.
const ABOUT_A_PACKAGE: [&str; 5] = [
    "wsl-dkms: ",
    "amdgpu-dkms-build: ",
    "amdgpu-dkms-headers: ",
    "apt-unmet-dependencies: ",
    "wsl-needs-no-driver: ",
];

/// What Windows does not have either.
const LINUX: [&str; 13] = [
    "run --alloc",
    "sudo ",
    "apt ",
    "dnf ",
    "/etc/",
    "/proc/",
    "/opt/",
    "LD_LIBRARY_PATH",
    "ROCR_VISIBLE_DEVICES=",
    "rocminfo",
    "ldconfig",
    "ulimit",
    "newer kernel",
];

const WSL: &str = "Kernel: Linux 6.6.87.2-microsoft-standard-WSL2\n";
const WINDOWS: &str = "PS C:\\ComfyUI> .\\venv\\Scripts\\python.exe main.py\n\
    File \"C:\\ComfyUI\\venv\\Lib\\site-packages\\torch\\__init__.py\", line 1\n\
    File \"C:\\ComfyUI\\main.py\", line 2\n";

/// What is told of all messages where a line before them shows the system.
fn told(system: &str) -> (BTreeSet<String>, Vec<String>) {
    let mut ids = BTreeSet::new();
    let mut told = Vec::new();
    for (_, message) in messages() {
        let found = explain(&format!("{system}{BEFORE}{message}\n{AFTER}")).matches;
        // Messages that show WSL themselves are not from Windows.
        let is_from_wsl =
            system == WINDOWS && found.iter().any(|found| found.id.starts_with("wsl-"));
        for found in found.into_iter().filter(|_| !is_from_wsl) {
            let lines = found.fix.iter().chain(&found.ask).chain([&found.cause]);
            told.extend(lines.map(|line| format!("{}: {line}", found.id)));
            ids.insert(found.id);
        }
    }
    told.sort();
    told.dedup();
    (ids, told)
}

fn with(told: Vec<String>, words: &[&str]) -> Vec<String> {
    let is_about_it = |line: &String| ABOUT_A_PACKAGE.iter().any(|id| line.starts_with(id));
    let has = |line: &String| {
        let is_meant = |word: &&&str| **word != "amdgpu-dkms" || !is_about_it(line);
        words
            .iter()
            .filter(is_meant)
            .any(|word| line.contains(word))
    };
    told.into_iter().filter(has).collect()
}

#[test]
fn no_explanation_gives_advice_of_bare_metal_under_wsl() {
    let (ids, told) = told(WSL);
    assert!(ids.len() > 100, "{}", ids.len());
    let foreign = with(told, &BARE_METAL);
    assert!(foreign.is_empty(), "{foreign:#?}");
}

#[test]
fn no_explanation_gives_advice_of_linux_on_windows() {
    let (ids, told) = told(WINDOWS);
    assert!(ids.len() > 80, "{}", ids.len());
    let foreign = with(told, &[&BARE_METAL[..], &LINUX].concat());
    assert!(foreign.is_empty(), "{foreign:#?}");
}

/// The words are those of the catalogue: on bare metal they are told.
#[test]
fn on_bare_metal_the_same_messages_get_that_advice() {
    let (_, told) = told("Linux host 6.14.0-24-generic x86_64\n");
    assert!(with(told, &BARE_METAL).len() > 20);
}
