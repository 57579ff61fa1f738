//! Findings for a live Windows machine: its drivers and HIP runtimes.

use super::{Found, Severity, said};
use crate::wheels;
use platform::machine::{HipInfo, Machine, Windows};

pub(super) fn find(machine: &Machine, found: &mut Found) {
    let Some(windows) = &machine.windows else {
        return;
    };
    let adapters = windows.adapters.iter();
    for adapter in adapters.filter(|adapter| adapter.is_amd() && !adapter.has_driver_of_amd()) {
        let product = adapter.device_id.and_then(|id| id.product(None));
        let gpu = product.unwrap_or("A GPU of AMD");
        let provider = adapter.provider.as_deref().unwrap_or("nobody");
        let finding = found.add(
            &said::WINDOWS_DRIVER_MISSING,
            &[
                ("gpu", &gpu),
                ("adapter", &adapter.name),
                ("provider", &provider),
            ],
        );
        if !machine.gpus.is_empty() {
            finding.severity = Severity::Info;
        }
    }
    // The registry knows the GPUs, and neither their order in HIP nor whether HIP can use them.
    if windows.hipinfo == HipInfo::Missing && !machine.gpus.is_empty() {
        let architectures = machine.gpus.iter().filter_map(|gpu| gpu.gfx);
        let install = architectures.flat_map(|gfx| wheels::install_on(machine.system, gfx));
        let mut install: Vec<String> = install.collect();
        install.dedup();
        found.add(&said::HIPINFO_MISSING, &[("install", &install.join("\n"))]);
    }
    shadowed_runtime(windows, found);
}

/// The driver puts its HIP runtime where every program looks before it looks at PATH.
fn shadowed_runtime(windows: &Windows, found: &mut Found) {
    let file = |path: &str| {
        let name = path.rsplit('\\').next().unwrap_or(path);
        name.to_ascii_lowercase()
    };
    let is_of_driver = |path: &&String| path.to_ascii_lowercase().contains(r"\system32\");
    let of_driver: Vec<_> = windows.runtimes.iter().filter(is_of_driver).collect();
    let mut others = windows.runtimes.iter().filter(|path| !is_of_driver(path));
    let same = others.find_map(|path| {
        let driver = of_driver.iter().find(|known| file(known) == file(path))?;
        Some((path, *driver))
    });
    let Some((own, driver)) = same else { return };
    let folder = own.rsplit_once('\\').map_or(&**own, |(folder, _)| folder);
    found.add(
        &said::HIP_RUNTIME_SHADOWED,
        &[
            ("file", &file(own)),
            ("driver", driver),
            ("own", own),
            ("folder", &folder),
        ],
    );
}
