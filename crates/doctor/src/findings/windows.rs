//! Findings for a live Windows machine: its drivers and HIP runtimes.

use super::{Check, Finding, Severity};
use crate::wheels;
use platform::machine::{HipInfo, Machine, Windows};

pub(super) fn find(machine: &Machine, found: &mut Vec<Finding>) {
    let Some(windows) = &machine.windows else {
        return;
    };
    without_driver(machine, windows, found);
    without_hipinfo(machine, windows, found);
    shadowed_runtime(windows, found);
}

/// Windows runs every GPU for which it has no driver by one that only shows a picture.
fn without_driver(machine: &Machine, windows: &Windows, found: &mut Vec<Finding>) {
    let severity = match machine.gpus.is_empty() {
        true => Severity::Error,
        false => Severity::Info,
    };
    let adapters = windows.adapters.iter();
    for adapter in adapters.filter(|adapter| adapter.is_amd() && !adapter.has_driver_of_amd()) {
        let product = adapter.device_id.and_then(|id| id.product(None));
        let name = product.unwrap_or("A GPU of AMD");
        let provider = adapter.provider.as_deref().unwrap_or("nobody");
        found.push(
            Finding::new(Check::Gpu, severity, "windows-driver-missing", format!("{name} has no driver of AMD"))
                .seen(format!("Its adapter is \"{}\", with a driver of {provider}.", adapter.name))
                .why("Such a driver shows a picture and computes nothing: HIP does not see the GPU.")
                .fix(["# install AMD's newest driver (Adrenalin), then restart"])
                .source("https://rocm.docs.amd.com/projects/install-on-windows/en/latest/reference/system-requirements.html"),
        );
    }
}

/// The registry knows the GPUs, and neither their order in HIP nor whether HIP can use them.
fn without_hipinfo(machine: &Machine, windows: &Windows, found: &mut Vec<Finding>) {
    if windows.hipinfo != HipInfo::Missing || machine.gpus.is_empty() {
        return;
    }
    let architectures = machine.gpus.iter().filter_map(|gpu| gpu.gfx);
    let install = architectures.map(wheels::install_on_windows);
    let mut fix: Vec<String> = install.flatten().collect();
    fix.dedup();
    fix.push("surefoot doctor --python PATH  # an environment that has ROCm, if it is not the active one".to_owned());
    found.push(
        Finding::new(Check::Gpu, Severity::Info, "hipinfo-missing", "HIP was not asked: there is no hipInfo.exe")
            .seen("It is neither in the active Python environment (_rocm_sdk_core) nor where HIP_PATH says, among AMD's programs, or in PATH. The GPUs are those of the registry.")
            .why("Only a program of HIP tells in which order HIP lists the GPUs and what memory it gives; AMD's wheels for Windows bring this one.")
            .fix(fix)
            .source("https://github.com/ROCm/TheRock/blob/main/RELEASES.md"),
    );
}

/// The driver puts its HIP runtime where every program looks before it looks at PATH.
fn shadowed_runtime(windows: &Windows, found: &mut Vec<Finding>) {
    let file = |path: &str| {
        path.rsplit('\\')
            .next()
            .unwrap_or(path)
            .to_ascii_lowercase()
    };
    let is_of_driver = |path: &&String| path.to_ascii_lowercase().contains(r"\system32\");
    let of_driver: Vec<_> = windows.runtimes.iter().filter(is_of_driver).collect();
    let mut others = windows.runtimes.iter().filter(|path| !is_of_driver(path));
    let same = others.find_map(|path| {
        let driver = of_driver.iter().find(|known| file(known) == file(path))?;
        Some((path, *driver))
    });
    let Some((own, driver)) = same else { return };
    let folder = own
        .rsplit_once('\\')
        .map_or(own.as_str(), |(folder, _)| folder);
    found.push(
        Finding::new(Check::Python, Severity::Info, "hip-runtime-shadowed", format!("Programs that look for {} get the driver's", file(own)))
            .seen(format!("There are {driver} and {own}."))
            .why("Windows looks into the folder of the program, then into System32, and into PATH last, so PATH does not help. A runtime of another version than the libraries beside it crashes at the first kernel (0xC0000005) or finds no GPU. AMD's wheels load their own by its full path when torch is imported.")
            .fix([
                "# in Python: import torch before anything else that loads HIP".to_owned(),
                format!("# another program: put the DLLs of {folder} beside its .exe"),
                "# the driver's is the newer one and HIP finds no GPU: update the wheels".to_owned(),
            ])
            .source("https://github.com/ROCm/TheRock/issues/7132"),
    );
}
