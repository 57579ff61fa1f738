//! Kernels and firmware that are known to be bad for a GPU.

use super::{Check, Finding, Severity};
use platform::Gfx;
use platform::machine::Machine;

const STRIX_HALO: Gfx = Gfx::new(11, 5, 1);

/// Both got the firmware that had to be taken back.
const STRIX: [Gfx; 2] = [Gfx::new(11, 5, 0), STRIX_HALO];

/// That firmware's version of the scheduler.
const BAD_MES: u32 = 0x83;

pub(super) fn find(machine: &Machine, found: &mut Vec<Finding>) {
    let has = |gfx: Gfx| machine.gpus.iter().any(|gpu| gpu.gfx == Some(gfx));
    if has(STRIX_HALO) {
        strix_halo_kernel(machine, found);
        iommu(machine, found);
    }
    strix_firmware(machine, found);
    let Some(kernel) = &machine.kernel else {
        return;
    };
    let rocm = machine
        .python
        .as_ref()
        .and_then(|python| python.torch.as_ref()?.rocm);
    if has(Gfx::new(10, 3, 0))
        && kernel.version < (5, 16, 0)
        && rocm.is_some_and(|rocm| rocm >= (6, 4))
    {
        found.push(
            Finding::new(
                Check::Kernel,
                Severity::Warning,
                "kernel-gfx1030-nan-copies",
                "This kernel is reported to break copies on gfx1030",
            )
            .seen(format!(
                "Kernel {} with ROCm {}.",
                kernel.release,
                text(rocm)
            ))
            .why("NaN appeared in plain `.to(\"cuda\")` copies with kernel 5.15 and ROCm 6.4.2.")
            .fix(["# install a newer kernel", "surefoot probe"])
            .source("https://github.com/ROCm/ROCm/issues/6123"),
        );
    }
    if kernel.version == (7, 0, 0) && !machine.gpus.is_empty() {
        found.push(
            Finding::new(
                Check::Kernel,
                Severity::Info,
                "kernel-slow-mmap",
                "Kernel 7.0.0 loads mapped checkpoints slowly",
            )
            .seen(format!("Kernel {}.", kernel.release))
            .why("Loading weights through mmap was measured 300 times slower than before.")
            .fix(["# a newer kernel, or load without mmap"])
            .source("https://github.com/ROCm/ROCm/issues/6530"),
        );
    }
}

fn text(version: Option<(u32, u32)>) -> String {
    version
        .map(|(major, minor)| format!("{major}.{minor}"))
        .unwrap_or_default()
}

fn strix_halo_kernel(machine: &Machine, found: &mut Vec<Finding>) {
    let Some(kernel) = &machine.kernel else {
        return;
    };
    // OEM kernels carry the repair under older numbers, from 1012 on.
    let oem = kernel
        .release
        .split_once("-oem")
        .and_then(|(head, _)| head.rsplit('-').next()?.parse::<u32>().ok());
    let is_bad_oem = kernel.version == (6, 17, 0) && oem == Some(1011);
    if is_bad_oem || (machine.kernel_before((6, 18, 4)) && oem.is_none()) {
        let severity = if is_bad_oem {
            Severity::Error
        } else {
            Severity::Warning
        };
        found.push(
            Finding::new(Check::Kernel, severity, "kernel-gfx1151", "This kernel is known to hang or fault on gfx1151")
                .seen(format!("Kernel {}.", kernel.release))
                .why("gfx1151 needs kernel 6.18.4, or a distribution's kernel with the same repairs: before it, correct programs end in page faults or never return.")
                .fix(["# install kernel 6.18.4 or newer", "uname -r"])
                .source("https://github.com/ROCm/ROCm/issues/5991"),
        );
    }
}

/// The firmware that is loaded counts; the package only where that is not known, because
/// an initramfs may hold an older one, and a distribution may have put one file back.
fn strix_firmware(machine: &Machine, found: &mut Vec<Finding>) {
    let loaded = machine
        .gpus
        .iter()
        .filter(|gpu| gpu.gfx.is_some_and(|gfx| STRIX.contains(&gfx)))
        .find_map(|gpu| gpu.mes_firmware);
    let package = machine
        .firmware
        .as_ref()
        .filter(|firmware| firmware.contains("20251125"));
    let seen = match (loaded, package) {
        (Some(BAD_MES), _) => {
            format!("The firmware of the scheduler (MES) that is loaded is {BAD_MES:#x}.")
        }
        (None, Some(package)) => format!("{package} is installed."),
        _ => return,
    };
    found.push(
        Finding::new(
            Check::Kernel,
            Severity::Error,
            "firmware-gfx1151",
            "The firmware of linux-firmware 20251125 breaks ROCm on gfx1150 and gfx1151",
        )
        .seen(seen)
        .why("The firmware of the scheduler in this release (MES 0x83) hangs compute queues and lets correct programs end in page faults.")
        .fix([
            "# install linux-firmware (Fedora: amd-gpu-firmware) 20260110 or newer, or 20251111, then restart",
            "cat /sys/class/drm/renderD*/device/fw_version/mes_fw_version  # anything but 0x00000083",
        ])
        .source("https://github.com/ROCm/ROCm/issues/5724"),
    );
}

fn iommu(machine: &Machine, found: &mut Vec<Finding>) {
    let off = ["amd_iommu", "iommu"]
        .iter()
        .filter_map(|name| machine.parameter(name))
        .find(|parameter| parameter.value == "off");
    let Some(parameter) = off else { return };
    found.push(
        Finding::new(Check::Kernel, Severity::Info, "iommu-off", "The IOMMU is switched off")
            .seen(format!("{}=off in {}.", parameter.name, parameter.place))
            .why("Advice differs: benchmarks of gfx1151 are a little faster without it, and AMD staff asked reporters of faults to remove it.")
            .fix([format!("# after page faults, try without {}=off", parameter.name)])
            .source("https://github.com/ROCm/ROCm/issues/5824"),
    );
}
