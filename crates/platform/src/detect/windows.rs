//! A Windows machine, from its registry and the output of `hipInfo`.
//!
//! The registry lists every display adapter with its driver, in an order that is unrelated to HIP's. `hipInfo`
//! lists what HIP can use, in HIP's order; without it, AMD's adapters are used instead.

use crate::Bytes;
use crate::hipinfo;
use crate::machine::{Adapter, Gpu, HipInfo, Machine, Windows};
use crate::memory::HostMemory;
use crate::pci::DeviceId;
use crate::snapshot::Snapshot;
use crate::windows_source::paths;

/// Completes a machine from the parts of a snapshot that only Windows has; returns whether it has them.
pub(super) fn complete(snapshot: &Snapshot, machine: &mut Machine) -> bool {
    if !snapshot.has(paths::VERSION) {
        return false;
    }
    let adapters: Vec<Adapter> = snapshot
        .paths_under(paths::ADAPTERS)
        .filter_map(|path| adapter(snapshot.text(path)?))
        .collect();
    let listing = snapshot.text(paths::HIPINFO).and_then(hipinfo::parse);
    let hipinfo = match (&listing, snapshot.value(paths::HIPINFO_PROGRAM)) {
        (Some(_), _) => HipInfo::Listed,
        (None, None) => HipInfo::Missing,
        (None, Some(program)) => HipInfo::Failed {
            program: program.to_owned(),
            reason: why_no_list(snapshot),
        },
    };
    machine.distribution = version(snapshot.text(paths::VERSION).unwrap_or_default());
    machine.memory = snapshot
        .text(paths::MEMORY)
        .map(HostMemory::parse)
        .unwrap_or_default();
    machine.gpus = match (listing, &hipinfo) {
        (Some(listing), _) => {
            machine.reported.hip_free = listing.free;
            let gpus = listing.gpus.into_iter();
            gpus.map(|gpu| with_adapter(gpu, &adapters)).collect()
        }
        (None, HipInfo::Missing) => adapters.iter().filter_map(gpu_of).collect(),
        (None, _) => Vec::new(),
    };
    let runtimes = snapshot.text(paths::RUNTIMES).unwrap_or_default().lines();
    machine.windows = Some(Windows {
        adapters,
        hipinfo,
        runtimes: runtimes.map(str::to_owned).collect(),
    });
    true
}

/// The last line of what `hipInfo` printed instead of a list, or how it ended.
fn why_no_list(snapshot: &Snapshot) -> String {
    let said = snapshot.value(paths::HIPINFO);
    let last = said.and_then(|text| text.lines().map(str::trim).rfind(|line| !line.is_empty()));
    last.or_else(|| snapshot.error(paths::HIPINFO))
        .unwrap_or("it printed nothing")
        .to_owned()
}

/// `Windows 11 Pro 24H2 (26100.2314)`. The registry of Windows 11 calls itself Windows 10, but the
/// build number distinguishes them.
fn version(text: &str) -> Option<String> {
    const FIRST_BUILD_OF_11: u32 = 22_000;
    let get = |key: &str| {
        let mut found = text.lines().filter_map(|line| line.split_once(':'));
        let (_, value) = found.find(|(known, _)| *known == key)?;
        Some(value.trim()).filter(|value| !value.is_empty())
    };
    let build = get("CurrentBuildNumber").unwrap_or_default();
    let is_11 = build
        .parse()
        .is_ok_and(|build: u32| build >= FIRST_BUILD_OF_11);
    let mut name = get("ProductName")?.to_owned();
    if is_11 {
        name = name.replacen("Windows 10", "Windows 11", 1);
    }
    if let Some(release) = get("DisplayVersion") {
        name = format!("{name} {release}");
    }
    Some(match (build, get("UBR")) {
        ("", _) => name,
        (build, Some(revision)) => format!("{name} ({build}.{revision})"),
        (build, None) => format!("{name} ({build})"),
    })
}

/// Adds facts from the registry to a GPU of HIP: from the adapter with its name, if there is exactly one.
fn with_adapter(mut gpu: Gpu, adapters: &[Adapter]) -> Gpu {
    let mut same = adapters
        .iter()
        .filter(|adapter| adapter.is_amd() && gpu.product.as_ref() == Some(&adapter.name));
    if let (Some(adapter), None) = (same.next(), same.next()) {
        gpu.device_id = gpu.device_id.or(adapter.device_id);
        gpu.vram_bytes = gpu.vram_bytes.or(adapter.memory);
    }
    gpu
}

/// A GPU that only the registry knows.
fn gpu_of(adapter: &Adapter) -> Option<Gpu> {
    let is_usable = adapter.is_amd() && adapter.has_driver_of_amd();
    is_usable.then(|| Gpu {
        product: Some(adapter.name.clone()),
        device_id: adapter.device_id,
        vram_bytes: adapter.memory,
        ..Gpu::default()
    })
}

fn adapter(text: &str) -> Option<Adapter> {
    let get = |key: &str| {
        let mut found = text.lines().filter_map(|line| line.split_once(':'));
        let (_, value) = found.find(|(known, _)| *known == key)?;
        Some(value.trim().to_owned()).filter(|value| !value.is_empty())
    };
    let id = get("MatchingDeviceId").unwrap_or_default();
    Some(Adapter {
        name: get("DriverDesc")?,
        provider: get("ProviderName"),
        driver: get("DriverVersion"),
        release: get("RadeonSoftwareVersion"),
        vendor: hexadecimal_after(&id, "VEN_"),
        device_id: hexadecimal_after(&id, "DEV_"),
        memory: get("HardwareInformation.qwMemorySize")
            .and_then(|bytes| bytes.parse().ok())
            .filter(|&bytes: &u64| bytes > 0)
            .map(Bytes),
    })
}

/// The four digits after a key in `PCI\VEN_1002&DEV_744C&REV_C8`.
fn hexadecimal_after(text: &str, key: &str) -> Option<DeviceId> {
    let text = text.to_ascii_uppercase();
    let start = text.find(key)? + key.len();
    let digits = text.get(start..start + 4)?;
    DeviceId::from_hex(digits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detect;
    use crate::machine::{Class, ReadFrom, System};

    const VERSION: &str = "== windows/version\nProductName: Windows 10 Pro\nDisplayVersion: 24H2\n\
        CurrentBuildNumber: 26100\nUBR: 2314\n";
    const CARD: &str = "DriverDesc: AMD Radeon RX 7900 XTX\n\
        ProviderName: Advanced Micro Devices, Inc.\nDriverVersion: 32.0.12033.1030\n\
        RadeonSoftwareVersion: 24.12.1\n\
        MatchingDeviceId: PCI\\VEN_1002&DEV_744C&REV_C8\n\
        HardwareInformation.qwMemorySize: 25753026560\n";
    const HIPINFO: &str = "device#                           0\n\
        Name:                             AMD Radeon RX 7900 XTX\n\
        totalGlobalMem:                   23.98 GB\n\
        gcnArchName:                      gfx1100\nisIntegrated:                     0\n";

    fn machine(more: &str) -> Machine {
        let text = format!("# surefoot dump 1\n== environment\n{VERSION}{more}");
        detect::machine(&Snapshot::parse(&text))
    }

    fn card() -> String {
        format!("== windows/adapters/0000\n{CARD}")
    }

    #[test]
    fn the_build_tells_windows_11_from_its_name() {
        let machine = machine("== windows/memory\nMemTotal: 33419264 kB\nSwapTotal: 2097152 kB\n");
        assert_eq!(machine.system, System::Windows);
        assert_eq!(machine.read_from, ReadFrom::Windows);
        assert_eq!(
            machine.distribution.as_deref(),
            Some("Windows 11 Pro 24H2 (26100.2314)")
        );
        assert_eq!(machine.memory.total, Some(Bytes(33_419_264 << 10)));
        let older = version("ProductName: Windows 10 Home\nCurrentBuildNumber: 19045\n");
        assert_eq!(older.as_deref(), Some("Windows 10 Home (19045)"));
    }

    #[test]
    fn hip_lists_the_gpus_and_the_registry_knows_more_of_each() {
        let text = card() + "== windows/hipinfo-program\nC:\\x\\hipInfo.exe\n== windows/hipinfo\n";
        let machine = machine(&(text + HIPINFO));
        let [gpu] = &machine.gpus[..] else {
            panic!("{:?}", machine.gpus)
        };
        assert_eq!(gpu.device_id, Some(DeviceId(0x744c)));
        assert_eq!(gpu.vram_bytes, Some(Bytes(25_753_026_560)));
        assert_eq!(gpu.class, Some(Class::Dgpu));
        let windows = machine.windows.expect("Windows");
        assert_eq!(windows.hipinfo, HipInfo::Listed);
        assert_eq!(windows.adapters[0].release.as_deref(), Some("24.12.1"));
    }

    #[test]
    fn two_adapters_of_one_name_are_not_told_apart() {
        let other = CARD.replace("744C", "7448");
        let text = format!(
            "{}== windows/adapters/0001\n{other}== windows/hipinfo\n{HIPINFO}",
            card()
        );
        assert_eq!(machine(&text).gpus[0].device_id, None);
    }

    #[test]
    fn without_hipinfo_the_adapters_with_a_driver_of_amd_stand_in() {
        let basic = "== windows/adapters/0001\nDriverDesc: Microsoft Basic Display Adapter\n\
            ProviderName: Microsoft\nMatchingDeviceId: PCI\\VEN_1002&DEV_73BF\n\
            == windows/adapters/0002\nDriverDesc: NVIDIA GeForce RTX 4090\nProviderName: NVIDIA\n\
            MatchingDeviceId: PCI\\VEN_10DE&DEV_2684\n";
        let machine = machine(&(card() + basic));
        let [gpu] = &machine.gpus[..] else {
            panic!("{:?}", machine.gpus)
        };
        assert_eq!(
            gpu.gfx.map(|gfx| gfx.to_string()).as_deref(),
            Some("gfx1100")
        );
        let windows = machine.windows.expect("Windows");
        assert_eq!(windows.hipinfo, HipInfo::Missing);
        let amd: Vec<bool> = windows.adapters.iter().map(Adapter::is_amd).collect();
        assert_eq!(amd, [true, true, false]);
        assert!(!windows.adapters[1].has_driver_of_amd());
    }

    #[test]
    fn a_hipinfo_that_fails_leaves_no_gpu_and_says_why() {
        let program = "== windows/hipinfo-program\nC:\\x\\hipInfo.exe\n";
        for (told, expected) in [
            ("== windows/hipinfo !exit code 1\n", "exit code 1"),
            (
                "== windows/hipinfo\nerror: 'no ROCm-capable device is detected'(100)\n\n",
                "error: 'no ROCm-capable device is detected'(100)",
            ),
            ("", "it printed nothing"),
        ] {
            let machine = machine(&(card() + program + told));
            assert!(machine.gpus.is_empty());
            let HipInfo::Failed { reason, .. } = machine.windows.expect("Windows").hipinfo else {
                panic!("it did not fail: {told}")
            };
            assert_eq!(reason, expected);
        }
    }
}
