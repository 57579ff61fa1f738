//! Kernels and firmware that are known to be bad for a GPU.

use super::{Found, Severity, said};
use crate::tables::{SINCE, Since};
use platform::Gfx;
use platform::machine::{Machine, ReadFrom, System};

const STRIX_HALO: Gfx = Gfx::new(11, 5, 1);

/// Both got the firmware that had to be taken back.
const STRIX: [Gfx; 2] = [Gfx::new(11, 5, 0), STRIX_HALO];

/// That firmware's version of the scheduler.
const BAD_MES: u32 = 0x83;

/// The first releases of ROCm and of the kernel that know an architecture.
pub(super) fn since(gfx: Gfx) -> Option<((u32, u32), (u32, u32))> {
    let is_of = |row: &&Since| Gfx::new(row.0.0, row.0.1, row.0.2) == gfx;
    let (_, rocm, kernel) = SINCE.iter().find(is_of)?;
    Some((*rocm, *kernel))
}

pub(super) fn find(machine: &Machine, found: &mut Found) {
    let has = |gfx: Gfx| machine.gpus.iter().any(|gpu| gpu.gfx == Some(gfx));
    if has(STRIX_HALO) {
        strix_halo_kernel(machine, found);
        iommu(machine, found);
    }
    strix_firmware(machine, found);
    let Some(kernel) = &machine.kernel else {
        return;
    };
    // What the driver itself lists it knows.
    let is_told = matches!(machine.read_from, ReadFrom::Log | ReadFrom::Listing)
        && machine.posted.has_failed
        && machine.system == System::Linux;
    let older = machine.gpus.iter().filter(|_| is_told).find_map(|gpu| {
        let (_, first) = since(gpu.gfx?)?;
        let (major, minor, _) = kernel.version;
        ((major, minor) < first).then_some((gpu, first))
    });
    if let Some((gpu, (major, minor))) = older {
        let first = format!("{major}.{minor}");
        found.add(
            &said::KERNEL_OLDER_THAN_GPU,
            &[
                ("kernel", &kernel.release),
                ("gpu", &gpu.name()),
                ("first", &first),
            ],
        );
    }
    let python = machine.python.as_ref();
    let rocm = python.and_then(|python| python.torch.as_ref()?.rocm);
    if let Some((major, minor)) = rocm.filter(|&rocm| rocm >= (6, 4))
        && has(Gfx::new(10, 3, 0))
        && kernel.version < (5, 16, 0)
    {
        let rocm = format!("{major}.{minor}");
        found.add(
            &said::KERNEL_GFX1030_NAN_COPIES,
            &[("kernel", &kernel.release), ("rocm", &rocm)],
        );
    }
    if matches!(kernel.version, (7, 0, 0 | 12)) && !machine.gpus.is_empty() {
        found.add(&said::KERNEL_SLOW_MMAP, &[("kernel", &kernel.release)]);
    }
}

fn strix_halo_kernel(machine: &Machine, found: &mut Found) {
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
        let finding = found.add(&said::KERNEL_GFX1151, &[("kernel", &kernel.release)]);
        if is_bad_oem {
            finding.severity = Severity::Error;
        }
    }
}

/// The firmware that is loaded counts; the package only where that is not known, because
/// an initramfs may hold an older one, and a distribution may have put one file back.
fn strix_firmware(machine: &Machine, found: &mut Found) {
    let is_strix = |gfx| STRIX.contains(&gfx);
    let gpus = machine.gpus.iter();
    let mut strix = gpus.filter(|gpu| gpu.gfx.is_some_and(is_strix));
    let package = machine.firmware.as_ref();
    let package = package.filter(|firmware| firmware.contains("20251125"));
    let seen = match (strix.find_map(|gpu| gpu.mes_firmware), package) {
        (Some(BAD_MES), _) => {
            format!("The firmware of the scheduler (MES) that is loaded is {BAD_MES:#x}.")
        }
        (None, Some(package)) => format!("{package} is installed."),
        _ => return,
    };
    found.add(&said::FIRMWARE_GFX1151, &[("seen", &seen)]);
}

fn iommu(machine: &Machine, found: &mut Found) {
    let parameters = ["amd_iommu", "iommu"].map(|name| machine.parameter(name));
    let mut set = parameters.into_iter().flatten();
    if let Some(parameter) = set.find(|parameter| parameter.value == "off") {
        found.add(
            &said::IOMMU_OFF,
            &[("parameter", &parameter.name), ("place", &parameter.place)],
        );
    }
}
