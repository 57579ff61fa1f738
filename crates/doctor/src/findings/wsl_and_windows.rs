//! Windows and WSL: which findings have a meaning there, and commands for the shell of Windows.

use super::Finding;
use crate::{powershell, wheels};
use platform::machine::System;

/// About `amdgpu` and KFD, the GPU driver of Linux, with its files, limits and firmware. Under
/// WSL and on Windows the driver is that of Windows.
const OF_THE_DRIVER: &[&str] = &[
    "gpu-without-driver",
    "gpu-with-other-driver",
    "gpu-not-in-kfd",
    "gpu-hidden-by-cgroup",
    "kernel-without-gfx-version",
    "kfd-missing",
    "kfd-refuses",
    "kfd-no-memory",
    "kfd-unusable",
    "device-permission",
    "kernel-gfx1030-nan-copies",
    "kernel-gfx1151",
    "firmware-gfx1151",
    "iommu-off",
    "ttm-limit-default",
    "ttm-limit-unknown",
    "gtt-size-typo",
    "gttsize-deprecated",
    "gttsize-without-pages-limit",
    "gtt-above-ram",
    "gtt-above-ttm",
    "pages-limit-not-in-effect",
    "kernel-uses-carveout-only",
];

/// About what WSL has and Windows has not.
const OF_LINUX: &[&str] = &[
    "kernel-slow-mmap",
    "open-files",
    "small-shm",
    "cgroup-limit",
    "library-path-over-wheel",
];

/// PyTorch's own index has wheels with ROCm for Linux only.
const NO_WHEEL: &str = "# no published wheel for Windows has code for this GPU";

/// Removes what does not apply to a system, and rewrites the rest for its shell.
pub(super) fn fit(system: System, found: &mut Vec<Finding>) {
    let holds = |id: &str| match system {
        System::Linux | System::Macos => true,
        System::Wsl => !OF_THE_DRIVER.contains(&id),
        System::Windows => !OF_THE_DRIVER.contains(&id) && !OF_LINUX.contains(&id),
    };
    found.retain(|finding| holds(&finding.id));
    if system == System::Windows {
        for finding in found.iter_mut() {
            let is_for_linux = |step: &String| !wheels::is_for_windows(step);
            if finding.fix.iter().any(is_for_linux) {
                finding.fix.retain(|step| wheels::is_for_windows(step));
                if finding.fix.is_empty() {
                    finding.fix = vec![NO_WHEEL.to_owned()];
                }
            }
        }
        // There is no allocator for Windows.
        for finding in found.iter_mut() {
            finding
                .fix
                .retain(|step| !step.starts_with("surefoot run --alloc"));
        }
        for step in found.iter_mut().flat_map(|finding| &mut finding.fix) {
            if let Some(said) = powershell::translated(step) {
                *step = said;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::findings::IDS;

    #[test]
    fn the_lists_name_findings() {
        for id in OF_THE_DRIVER.iter().chain(OF_LINUX) {
            assert!(IDS.contains(id), "{id}");
        }
    }
}
