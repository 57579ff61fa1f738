//! From a [`Snapshot`] to a [`Machine`]: the pure core of detection.
//!
//! Needs no ROCm. KFD's topology gives the GPUs in HIP's order (its nodes sorted as
//! numbers; HIP lists what ROCr lists, and ROCr lists KFD's nodes), DRM gives the
//! memory of each, and the PCI bus has what KFD leaves out.

mod host;
mod windows;

pub use host::command_line_parameters;

use crate::machine::{Gpu, Kernel, Machine, PciBus, ReadFrom, System, UnusableGpu, UnusableReason};
use crate::memory::HostMemory;
use crate::pci::{self, DeviceId, PciAddress};
use crate::snapshot::Snapshot;
use crate::source::{FFMPEG, ROCDXG_PATH, WSLCONFIG};
use crate::{Bytes, Gfx, describe, python};
use host::{
    cgroup, container, device_files, groups, kernel_parameters, open_files, os_release, shm_size,
    wslconfig_memory,
};
use std::collections::{BTreeMap, HashMap};

/// Everything that a snapshot says about its machine.
#[must_use]
pub fn machine(snapshot: &Snapshot) -> Machine {
    let mut machine = Machine {
        read_from: ReadFrom::Kfd,
        kernel: snapshot
            .value("proc/sys/kernel/osrelease")
            .and_then(Kernel::parse),
        distribution: os_release(snapshot),
        container: container(snapshot),
        amdgpu_dkms: snapshot.value("module/amdgpu/version").map(str::to_owned),
        firmware: snapshot.value("packages/linux-firmware").map(str::to_owned),
        memory: snapshot
            .text("proc/meminfo")
            .map(HostMemory::parse)
            .unwrap_or_default(),
        cgroup: cgroup(snapshot),
        ttm_pages_limit: ["ttm", "amdttm"]
            .iter()
            .find_map(|module| snapshot.number(&format!("module/{module}/parameters/pages_limit"))),
        shared_memory: snapshot.text("proc/mounts").and_then(shm_size),
        open_files: snapshot.text("proc/self/limits").and_then(open_files),
        has_ffmpeg: match snapshot.value(FFMPEG) {
            Some("found") => Some(true),
            Some("missing") => Some(false),
            _ => None,
        },
        kernel_parameters: kernel_parameters(snapshot),
        devices: device_files(snapshot),
        groups: groups(snapshot),
        pci_bus: pci_bus(snapshot),
        variables: snapshot
            .text("environment")
            .map(variables)
            .unwrap_or_default(),
        python: python::from_snapshot(snapshot),
        probed: snapshot
            .text("surefoot/probed")
            .map(probed)
            .unwrap_or_default(),
        is_complete: snapshot.has("environment"),
        ..Machine::default()
    };
    if windows::complete(snapshot, &mut machine) {
        machine.read_from = ReadFrom::Windows;
        machine.system = System::Windows;
        for (index, gpu) in machine.gpus.iter_mut().enumerate() {
            gpu.index = index;
        }
        describe::complete(&mut machine);
        return machine;
    }
    machine.system = system(snapshot, &machine);
    if machine.memory.total.is_none() {
        machine.memory.total = host_bank(snapshot);
    }
    if machine.system == System::Wsl && machine.is_complete {
        machine.has_librocdxg = Some(snapshot.has(ROCDXG_PATH));
        machine.wslconfig_memory = snapshot.text(WSLCONFIG).and_then(wslconfig_memory);
    }
    let (gpus, hidden) = kfd_gpus(snapshot);
    machine.gpus = gpus;
    for (index, gpu) in machine.gpus.iter_mut().enumerate() {
        gpu.index = index;
    }
    machine.unseen = unseen(snapshot, &machine, hidden);
    describe::complete(&mut machine);
    machine
}

/// A file of `key value` lines.
fn properties(text: &str) -> HashMap<&str, u64> {
    text.lines()
        .filter_map(|line| {
            let (key, value) = line.trim().split_once(char::is_whitespace)?;
            Some((key, value.trim().parse().ok()?))
        })
        .collect()
}

/// The GPUs of KFD's topology, and the nodes that this process may not use.
fn kfd_gpus(snapshot: &Snapshot) -> (Vec<Gpu>, usize) {
    let (mut gpus, mut hidden) = (Vec::new(), 0);
    for node in snapshot.children("kfd/nodes/") {
        let Ok(number) = node.parse::<u32>() else {
            continue;
        };
        let folder = format!("kfd/nodes/{node}");
        let Some(text) = snapshot.text(&format!("{folder}/properties")) else {
            // The device cgroup makes the kernel answer EPERM.
            hidden += usize::from(snapshot.error(&format!("{folder}/properties")).is_some());
            continue;
        };
        let properties = properties(text);
        let get = |key: &str| properties.get(key).copied().filter(|&value| value != 0);
        let is_gpu = get("simd_count").is_some() || get("gfx_target_version").is_some();
        if !is_gpu {
            continue;
        }
        let gpu_id = format!("{folder}/gpu_id");
        if snapshot.error(&gpu_id).is_some() || snapshot.number(&gpu_id) == Some(0) {
            hidden += 1;
            continue;
        }
        let minor = get("drm_render_minor");
        let mut gpu = Gpu {
            kfd_node: Some(number),
            gfx: get("gfx_target_version").and_then(Gfx::from_target_version),
            device_id: get("device_id")
                .and_then(|id| u16::try_from(id).ok())
                .map(DeviceId),
            pci: get("location_id").map(|id| {
                PciAddress::from_location_id(
                    get("domain")
                        .and_then(|d| u32::try_from(d).ok())
                        .unwrap_or(0),
                    id,
                )
            }),
            render_node: minor.map(|minor| format!("/dev/dri/renderD{minor}")),
            compute_units: get("simd_count")
                .map(|simds| simds / get("simd_per_cu").unwrap_or(1))
                .and_then(|units| u32::try_from(units).ok()),
            wave_size: get("wave_front_size").and_then(|lanes| u32::try_from(lanes).ok()),
            uuid: get("unique_id").map(|id| format!("GPU-{id:016x}")),
            usable_bytes: pool(snapshot, &folder).or_else(|| get("local_mem_size").map(Bytes)),
            ..Gpu::default()
        };
        // Old APUs, and MI300A, are one node for CPU and GPU.
        if get("cpu_cores_count").is_some() {
            gpu.class = Some(crate::machine::Class::Apu);
            gpu.class_from = "KFD: CPU and GPU are one node";
        }
        if let Some(drm) = drm_folder(snapshot, minor, gpu.pci) {
            drm_facts(snapshot, &drm, &mut gpu);
        }
        gpus.push(gpu);
    }
    (gpus, hidden)
}

/// The memory banks of a node that are the GPU's: heap 1 is visible to the host, 2 is not.
fn pool(snapshot: &Snapshot, node: &str) -> Option<Bytes> {
    let banks = format!("{node}/mem_banks/");
    let mut sum = None;
    for bank in snapshot.children(&banks) {
        let Some(text) = snapshot.text(&format!("{banks}{bank}/properties")) else {
            continue;
        };
        let properties = properties(text);
        if matches!(properties.get("heap_type"), Some(1 | 2))
            && let Some(&size) = properties.get("size_in_bytes")
        {
            sum = Some(sum.unwrap_or(Bytes::ZERO).saturating_add(Bytes(size)));
        }
    }
    sum.filter(|&sum| sum > Bytes::ZERO)
}

/// The RAM, from the memory banks of the CPU nodes.
fn host_bank(snapshot: &Snapshot) -> Option<Bytes> {
    let mut sum = Bytes::ZERO;
    for node in snapshot.children("kfd/nodes/") {
        let banks = format!("kfd/nodes/{node}/mem_banks/");
        for bank in snapshot.children(&banks) {
            let Some(text) = snapshot.text(&format!("{banks}{bank}/properties")) else {
                continue;
            };
            let properties = properties(text);
            if properties.get("heap_type") == Some(&0) {
                sum = sum
                    .saturating_add(Bytes(properties.get("size_in_bytes").copied().unwrap_or(0)));
            }
        }
    }
    Some(sum).filter(|&sum| sum > Bytes::ZERO)
}

/// The DRM folder of a GPU: by its render node, else by its PCI address, else the only one.
fn drm_folder(snapshot: &Snapshot, minor: Option<u64>, pci: Option<PciAddress>) -> Option<String> {
    let names = snapshot.children("drm/");
    if let Some(minor) = minor {
        let name = format!("renderD{minor}");
        if names.contains(&name.as_str()) {
            return Some(format!("drm/{name}/device"));
        }
    }
    let folders: Vec<String> = names
        .iter()
        .map(|name| format!("drm/{name}/device"))
        .collect();
    let same_address = folders.iter().find(|folder| {
        let slot = uevent(snapshot, folder, "PCI_SLOT_NAME").and_then(PciAddress::parse);
        slot.is_some() && slot == pci.map(PciAddress::whole_card)
    });
    same_address
        .or(if let [only] = folders.as_slice() {
            Some(only)
        } else {
            None
        })
        .cloned()
}

fn uevent<'a>(snapshot: &'a Snapshot, folder: &str, key: &str) -> Option<&'a str> {
    let text = snapshot.text(&format!("{folder}/uevent"))?;
    text.lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
        .map(str::trim)
}

fn drm_facts(snapshot: &Snapshot, folder: &str, gpu: &mut Gpu) {
    let number = |name: &str| snapshot.number(&format!("{folder}/{name}")).map(Bytes);
    gpu.vram_bytes = number("mem_info_vram_total");
    gpu.gtt_bytes = number("mem_info_gtt_total");
    gpu.mes_firmware = snapshot
        .value(&format!("{folder}/fw_version/mes_fw_version"))
        .and_then(hexadecimal);
    // The kernel hides `board_info` on APUs (amdgpu_board_attrs_is_visible).
    let is_card = snapshot.has(&format!("{folder}/board_info"))
        || snapshot
            .value(&format!("{folder}/mem_info_vram_vendor"))
            .is_some_and(|vendor| vendor != "unknown");
    if is_card {
        gpu.class = Some(crate::machine::Class::Dgpu);
        gpu.class_from = "DRM: it has a board";
    }
}

/// `0x00000083`.
fn hexadecimal(text: &str) -> Option<u32> {
    u32::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
}

/// AMD GPUs on the PCI bus that KFD does not list.
fn unseen(snapshot: &Snapshot, machine: &Machine, mut hidden_nodes: usize) -> Vec<UnusableGpu> {
    let mut found = Vec::new();
    for name in snapshot.children("pci/") {
        let folder = format!("pci/{name}");
        let vendor = snapshot
            .value(&format!("{folder}/vendor"))
            .and_then(DeviceId::parse);
        let address = PciAddress::parse(name);
        if vendor != Some(DeviceId(pci::AMD))
            || machine
                .gpus
                .iter()
                .any(|gpu| gpu.pci.map(PciAddress::whole_card) == address)
        {
            continue;
        }
        let device_id = snapshot
            .value(&format!("{folder}/device"))
            .and_then(DeviceId::parse);
        let reason = match uevent(snapshot, &folder, "DRIVER") {
            None => UnusableReason::NoDriver(why_no_driver(machine)),
            Some("amdgpu") if hidden_nodes > 0 => {
                hidden_nodes -= 1;
                UnusableReason::HiddenByCgroup
            }
            Some("amdgpu") => UnusableReason::NotInKfd,
            Some(other) => UnusableReason::OtherDriver(other.to_owned()),
        };
        let product = device_id.and_then(|id| id.product(None)).map(str::to_owned);
        found.push(UnusableGpu {
            pci: address,
            device_id,
            product,
            reason,
        });
    }
    let unexplained = UnusableGpu {
        pci: None,
        device_id: None,
        product: None,
        reason: UnusableReason::HiddenByCgroup,
    };
    found.extend(std::iter::repeat_n(unexplained, hidden_nodes));
    found
}

/// The result of searching the PCI bus, if that was done: its files, or the note that there are none of interest.
fn pci_bus(snapshot: &Snapshot) -> Option<PciBus> {
    let names = snapshot.children("pci/");
    if names.is_empty() && !snapshot.has("pci-devices") {
        return None;
    }
    let mut bus = PciBus::default();
    for name in names {
        let vendor = snapshot.value(&format!("pci/{name}/vendor"));
        match vendor.and_then(DeviceId::parse) {
            Some(DeviceId(pci::AMD)) => bus.amd += 1,
            Some(DeviceId(0x10de)) => bus.others.push("NVIDIA".to_owned()),
            Some(DeviceId(0x8086)) => bus.others.push("Intel".to_owned()),
            Some(DeviceId(0x1af4 | 0x1b36 | 0x1234 | 0x15ad)) => {
                bus.others.push("the virtual machine".to_owned());
            }
            Some(other) => bus.others.push(format!("vendor {other}")),
            None => {}
        }
    }
    bus.others.sort_unstable();
    bus.others.dedup();
    Some(bus)
}

fn why_no_driver(machine: &Machine) -> Option<String> {
    machine.kernel_parameters.iter().find_map(|parameter| {
        let names_driver = parameter.value.split(',').any(|name| name == "amdgpu");
        match parameter.name.as_str() {
            "nomodeset" => Some("`nomodeset` on the kernel command line".to_owned()),
            "blacklist" | "modprobe.blacklist" | "module_blacklist" | "rd.driver.blacklist"
                if names_driver =>
            {
                Some(format!("amdgpu is blacklisted in {}", parameter.place))
            }
            _ => None,
        }
    })
}

fn system(snapshot: &Snapshot, machine: &Machine) -> System {
    let microsoft = machine
        .kernel
        .as_ref()
        .is_some_and(|kernel| kernel.release.to_ascii_lowercase().contains("microsoft"));
    if microsoft || snapshot.has("dev/dxg") {
        System::Wsl
    } else {
        System::Linux
    }
}

fn variables(text: &str) -> BTreeMap<String, String> {
    text.lines()
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// `attention-aotriton ok`, a check a line.
fn probed(text: &str) -> BTreeMap<String, bool> {
    text.lines()
        .filter_map(|line| line.trim().split_once(' '))
        .map(|(check, verdict)| (check.to_owned(), verdict == "ok"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Class;

    fn gpu_node(number: u32, extra: &str) -> String {
        format!("== nodes/{number}/properties\nsimd_count 80\nsimd_per_cu 2\n{extra}\n")
    }

    #[test]
    fn a_gpu_id_of_zero_hides_the_node() {
        let text = gpu_node(1, "gfx_target_version 110501")
            + "== nodes/1/gpu_id\n0\n"
            + &gpu_node(2, "gfx_target_version 110501");
        let machine = machine(&Snapshot::parse(&text));
        assert_eq!(machine.gpus.len(), 1);
        assert_eq!(
            (machine.gpus[0].index, machine.gpus[0].kfd_node),
            (0, Some(2))
        );
        assert_eq!(machine.unseen[0].reason, UnusableReason::HiddenByCgroup);
    }

    #[test]
    fn a_card_bound_to_vfio_is_unseen_and_why_is_known() {
        let text = "== pci/0000:03:00.0/vendor\n0x1002\n== pci/0000:03:00.0/device\n0x744c\n\
                    == pci/0000:03:00.0/uevent\nDRIVER=vfio-pci\n";
        let machine = machine(&Snapshot::parse(text));
        assert_eq!(
            machine.unseen[0].reason,
            UnusableReason::OtherDriver("vfio-pci".to_owned())
        );
        assert_eq!(
            machine.unseen[0].product.as_deref(),
            Some("Radeon RX 7900 XT/XTX/GRE")
        );
    }

    #[test]
    fn a_blacklist_is_named_with_its_place() {
        let text =
            "== pci/0000:03:00.0/vendor\n0x1002\n== etc/modprobe.d/gpu.conf\nblacklist amdgpu\n";
        let machine = machine(&Snapshot::parse(text));
        let UnusableReason::NoDriver(Some(why)) = &machine.unseen[0].reason else {
            panic!("{:?}", machine.unseen)
        };
        assert!(why.contains("/etc/modprobe.d/gpu.conf"), "{why}");
    }

    #[test]
    fn an_unknown_architecture_is_still_a_gpu() {
        let machine = machine(&Snapshot::parse(&gpu_node(1, "gfx_target_version 130002")));
        assert_eq!(
            machine.gpus[0].gfx.map(|gfx| gfx.to_string()).as_deref(),
            Some("gfx1302")
        );
        assert_eq!(machine.gpus[0].class, None);
    }

    #[test]
    fn one_node_for_cpu_and_gpu_is_an_apu() {
        let machine = machine(&Snapshot::parse(&gpu_node(0, "cpu_cores_count 4")));
        assert_eq!(machine.gpus[0].class, Some(Class::Apu));
    }

    #[test]
    fn limits_are_read() {
        assert_eq!(
            open_files("Max open files            1024                 524288               files"),
            Some(1024)
        );
        let mounts = "shm /dev/shm tmpfs rw,nosuid,size=65536k,inode64 0 0\n";
        assert_eq!(shm_size(mounts), Some(Bytes::mib(64)));
    }

    #[test]
    fn the_command_line_wins_over_modprobe() {
        let text = "== etc/modprobe.d/a.conf\noptions amdgpu gttsize=1\n== proc/cmdline\nquiet amdgpu.gttsize=2\n";
        let machine = machine(&Snapshot::parse(text));
        assert_eq!(
            machine
                .parameter("amdgpu.gttsize")
                .map(|p| p.value.as_str()),
            Some("2")
        );
    }
}
