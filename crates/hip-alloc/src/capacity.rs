//! Reading what bounds memory on this machine, for `platform::memory` to judge.
//!
//! `platform` decides from text; this module fetches the text: `/proc/meminfo`,
//! and the control groups of this process.

use crate::driver::host::HostMemory;
use crate::driver::runtime::{Family, Place};
use crate::driver::{LimitedBy, MemoryInfo};
use platform::memory::{self, CgroupMemory, DeviceKind, Inputs};
use std::path::{Path, PathBuf};

/// The memory of the machine this process runs on.
pub struct SystemMemory {
    inputs: Inputs,
    groups: Vec<GroupFiles>,
}

/// The files of one control group: limit, usage, statistics.
struct GroupFiles([PathBuf; 3]);

impl SystemMemory {
    /// Memory of the host, of which `reserve` is left to the rest of the machine.
    pub fn host(reserve: memory::Reserve) -> Self {
        let membership = text("/proc/self/cgroup");
        Self::host_in(reserve, &membership, Path::new("/sys/fs/cgroup"))
    }

    /// As [`host`](SystemMemory::host), in the control groups that `membership` (the text of
    /// `/proc/self/cgroup`) names below `root`.
    pub fn host_in(reserve: memory::Reserve, membership: &str, root: &Path) -> Self {
        let mut inputs = Inputs::new(DeviceKind::Host);
        inputs.reserve = reserve;
        SystemMemory {
            inputs,
            groups: groups(membership, root),
        }
    }
}

impl SystemMemory {
    /// Memory of a GPU. `place`: `None` where only the driver's numbers are known.
    pub fn device(place: Option<Place>, reserve: memory::Reserve) -> Self {
        let kind = match place {
            Some(place) if place.integrated && place.family == Family::Hip => DeviceKind::Apu,
            Some(place) if place.integrated => DeviceKind::Unified,
            _ => DeviceKind::Discrete,
        };
        let mut memory = Self::host(reserve);
        memory.inputs.kind = kind;
        if let Some(place) = place.filter(|_| kind == DeviceKind::Apu) {
            let sys = Path::new("/sys");
            let Place {
                domain, bus, slot, ..
            } = place;
            let device = sys.join(format!(
                "bus/pci/devices/{domain:04x}:{bus:02x}:{slot:02x}.0"
            ));
            let bytes = |path: PathBuf| number(path).map(platform::Bytes);
            memory.inputs.vram_total = bytes(device.join("mem_info_vram_total"));
            memory.inputs.gtt_total = bytes(device.join("mem_info_gtt_total"));
            memory.inputs.ttm_pages_limit = number(sys.join("module/ttm/parameters/pages_limit"));
            memory.inputs.kfd_pool = kfd_pool(&sys.join("class/kfd/kfd/topology/nodes"), place);
        }
        memory
    }

    /// The driver's numbers, bounded by what this machine really has.
    pub fn bound(&mut self, driver: MemoryInfo) -> MemoryInfo {
        self.inputs.driver_total = Some(platform::Bytes(driver.total));
        self.inputs.driver_free = Some(platform::Bytes(driver.free));
        told(self.capacity())
    }

    fn capacity(&mut self) -> memory::Capacity {
        self.inputs.host = memory::HostMemory::parse(&text("/proc/meminfo"));
        self.inputs.cgroup = self
            .groups
            .iter()
            .map(|GroupFiles([limit, usage, stat])| {
                CgroupMemory::parse(&text(limit), &text(usage), &text(stat))
            })
            .fold(CgroupMemory::default(), CgroupMemory::tighter);
        memory::capacity(&self.inputs)
    }
}

impl HostMemory for SystemMemory {
    fn read(&mut self, untouched: u64) -> MemoryInfo {
        let info = told(self.capacity());
        MemoryInfo {
            free: info.free.saturating_sub(untouched),
            ..info
        }
    }
}

fn told(capacity: memory::Capacity) -> MemoryInfo {
    MemoryInfo {
        free: capacity.free.0,
        total: capacity.total.0,
        limited_by: LimitedBy::Machine(capacity.free_limited_by),
    }
}

/// The control groups of a process, innermost first, from its `/proc/…/cgroup`.
///
/// Version 2 has one line, `0::/path`; version 1 has one for each controller, of
/// which the one for memory counts. A limit of any ancestor binds.
fn groups(membership: &str, root: &Path) -> Vec<GroupFiles> {
    for line in membership.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let (root, names) = if controllers.is_empty() {
            (
                root.to_path_buf(),
                ["memory.max", "memory.current", "memory.stat"],
            )
        } else if controllers.split(',').any(|name| name == "memory") {
            (
                root.join("memory"),
                [
                    "memory.limit_in_bytes",
                    "memory.usage_in_bytes",
                    "memory.stat",
                ],
            )
        } else {
            continue;
        };
        // Inside a container the path may name what is only visible outside: the
        // folders that do not exist are passed over, down to the root.
        let relative = Path::new(path.trim_start_matches('/'));
        let found: Vec<GroupFiles> = relative
            .ancestors()
            .map(|group| GroupFiles(names.map(|name| root.join(group).join(name))))
            .filter(|files| files.0[0].exists())
            .collect();
        if !found.is_empty() {
            return found;
        }
    }
    Vec::new()
}

/// The memory that HIP allocates from: the largest bank of the GPU's node in KFD.
fn kfd_pool(nodes: &Path, place: Place) -> Option<platform::Bytes> {
    // KFD's location is bus, device and function packed as in PCI (kfd_topology.c).
    let location = u64::from(place.bus << 8 | place.slot << 3);
    let node = folders(nodes).into_iter().find(|node| {
        let properties = text(node.join("properties"));
        property(&properties, "simd_count").is_some_and(|count| count > 0)
            && property(&properties, "location_id") == Some(location)
            && property(&properties, "domain").unwrap_or(0) == u64::from(place.domain)
    })?;
    folders(&node.join("mem_banks"))
        .iter()
        .filter_map(|bank| property(&text(bank.join("properties")), "size_in_bytes"))
        .max()
        .map(platform::Bytes)
}

fn folders(path: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

/// A line `name value` of a KFD properties file.
fn property(text: &str, name: &str) -> Option<u64> {
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

fn number(path: PathBuf) -> Option<u64> {
    text(path).trim().parse().ok()
}

/// The text of a file, empty if there is none: what is not known does not bind.
fn text(path: impl AsRef<Path>) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(membership: &str, root: &Path) -> Vec<String> {
        groups(membership, root)
            .iter()
            .map(|files| files.0[0].strip_prefix(root).unwrap().display().to_string())
            .collect()
    }

    #[test]
    fn every_ancestor_with_a_limit_counts() {
        let root = tempfile::tempdir().unwrap();
        let inner = root.path().join("user.slice/job.scope");
        std::fs::create_dir_all(&inner).unwrap();
        std::fs::write(inner.join("memory.max"), "max").unwrap();
        std::fs::write(root.path().join("user.slice/memory.max"), "1000000").unwrap();
        assert_eq!(
            names("0::/user.slice/job.scope\n", root.path()),
            ["user.slice/job.scope/memory.max", "user.slice/memory.max"]
        );
    }

    #[test]
    fn version_one_uses_the_memory_controller() {
        let root = tempfile::tempdir().unwrap();
        let group = root.path().join("memory/docker");
        std::fs::create_dir_all(&group).unwrap();
        std::fs::write(group.join("memory.limit_in_bytes"), "1000000").unwrap();
        assert_eq!(
            names("5:cpu,cpuacct:/docker\n4:memory:/docker\n", root.path()),
            ["memory/docker/memory.limit_in_bytes"]
        );
    }

    #[test]
    fn the_pool_is_the_bank_of_the_gpu_at_this_place() {
        let root = tempfile::tempdir().unwrap();
        for (node, properties, bytes) in [
            ("0", "simd_count 0\nlocation_id 0\n", 1000),
            ("1", "simd_count 80\nlocation_id 50176\ndomain 0\n", 2000),
            ("2", "simd_count 64\nlocation_id 768\ndomain 0\n", 3000),
        ] {
            let bank = root.path().join(node).join("mem_banks/0");
            std::fs::create_dir_all(&bank).unwrap();
            std::fs::write(root.path().join(node).join("properties"), properties).unwrap();
            std::fs::write(
                bank.join("properties"),
                format!("heap_type 1\nsize_in_bytes {bytes}\n"),
            )
            .unwrap();
        }
        let place = Place {
            domain: 0,
            bus: 0xc4,
            slot: 0,
            integrated: true,
            family: Family::Hip,
        };
        assert_eq!(kfd_pool(root.path(), place), Some(platform::Bytes(2000)));
        assert_eq!(kfd_pool(root.path(), Place { bus: 0xc5, ..place }), None);
    }

    #[test]
    fn this_machine_has_memory_and_no_more_free_than_total() {
        let info = SystemMemory::host(memory::Reserve::Auto).read(0);
        assert!(info.free > 0 && info.free <= info.total, "{info:?}");
    }
}
