//! This process's memory budget on a device, read from the kernel's files.
//!
//! The allocator queries it for every request that goes to the driver, and the trainer when it plans.
//! [`capacity`](mod@super::capacity) defines the meaning of the numbers; this module only finds the files:
//! `/proc/meminfo`, the control groups of this process, and for an APU the limits of its driver. Windows has functions
//! instead, whose results the caller brings.

use super::host::memory_cgroups;
use super::{
    Capacity, CgroupMemory, DeviceKind, HostMemory, Inputs, Reserve, VideoMemory, capacity,
};
use crate::Bytes;
use crate::pci::PciAddress;
use std::fs;
use std::path::{Path, PathBuf};

/// Reads how much memory this process can use.
#[derive(Clone, Debug)]
pub struct MemoryBudget {
    inputs: Inputs,
    /// Replaces `meminfo` where the kernel has no such file.
    read_host: Option<fn() -> HostMemory>,
    meminfo: PathBuf,
    cgroups: Vec<[PathBuf; 3]>,
}

impl MemoryBudget {
    /// The memory of the host, of which `reserve` is left to the rest of the machine.
    ///
    /// ```
    /// use surefoot_platform::memory::{MemoryBudget, Reserve};
    ///
    /// if let Some(memory) = MemoryBudget::host(Reserve::Auto).host_capacity() {
    ///     println!("{} of {} can still be allocated", memory.free, memory.total);
    /// }
    /// ```
    #[must_use]
    pub fn host(reserve: Reserve) -> Self {
        Self::host_below(Path::new("/"), reserve)
    }

    /// Like [`MemoryBudget::host`], for the machine whose files are below `root`.
    #[must_use]
    pub fn host_below(root: &Path, reserve: Reserve) -> Self {
        let mut inputs = Inputs::new(DeviceKind::Host);
        inputs.reserve = reserve;
        let groups = memory_cgroups(&text(root.join("proc/self/cgroup")));
        let paths = groups.into_iter().map(|(folder, files)| {
            let folder = root.join(folder.trim_start_matches('/'));
            files.map(|file| folder.join(file))
        });
        Self {
            inputs,
            read_host: None,
            meminfo: root.join("proc/meminfo"),
            // In a container, the group may only be visible from outside.
            cgroups: paths.filter(|[limit, ..]| limit.exists()).collect(),
        }
    }

    /// The memory of a GPU. On an APU, `address` (from the driver) leads to the limits of its driver; `None`
    /// if only the driver's numbers are known.
    #[must_use]
    pub fn gpu(kind: DeviceKind, address: Option<PciAddress>, reserve: Reserve) -> Self {
        Self::gpu_below(Path::new("/"), kind, address, reserve)
    }

    fn gpu_below(
        root: &Path,
        kind: DeviceKind,
        address: Option<PciAddress>,
        reserve: Reserve,
    ) -> Self {
        let mut budget = Self::host_below(root, reserve);
        budget.inputs.kind = kind;
        if let Some(address) = address.filter(|_| kind == DeviceKind::Apu) {
            let sys = root.join("sys");
            let device = sys.join(format!("bus/pci/devices/{}", address.whole_card()));
            let inputs = &mut budget.inputs;
            inputs.vram_total = number(device.join("mem_info_vram_total")).map(Bytes);
            inputs.gtt_total = number(device.join("mem_info_gtt_total")).map(Bytes);
            inputs.ttm_pages_limit = number(sys.join("module/ttm/parameters/pages_limit"));
            inputs.kfd_pool = kfd_pool(&sys.join("class/kfd/kfd/topology/nodes"), address);
        }
        budget
    }

    /// Reads the memory of the host with this function, where the kernel has no files that say it (Windows).
    #[must_use]
    pub fn reading_host(self, read: fn() -> HostMemory) -> Self {
        Self {
            read_host: Some(read),
            ..self
        }
    }

    /// Like [`MemoryBudget::capacity`], also within what Windows' memory manager gives this process.
    pub fn capacity_within(
        &mut self,
        driver: Option<(Bytes, Bytes)>,
        video: Option<VideoMemory>,
    ) -> Capacity {
        self.inputs.video = video;
        self.capacity(driver)
    }

    /// What can be allocated now; `driver` is free and total memory according to the device's driver, `None`
    /// for the host.
    pub fn capacity(&mut self, driver: Option<(Bytes, Bytes)>) -> Capacity {
        self.inputs.driver_free = driver.map(|(free, _)| free);
        self.inputs.driver_total = driver.map(|(_, total)| total);
        self.inputs.host = match self.read_host {
            Some(read) => read(),
            None => HostMemory::parse(&text(&self.meminfo)),
        };
        self.inputs.cgroup = self
            .cgroups
            .iter()
            .map(|[limit, usage, stat]| {
                CgroupMemory::parse(&text(limit), &text(usage), &text(stat))
            })
            .fold(CgroupMemory::default(), CgroupMemory::within);
        capacity(&self.inputs)
    }

    /// How much host memory can be allocated now; `None` if `/proc/meminfo` does not say what is available.
    pub fn host_capacity(&mut self) -> Option<Capacity> {
        let capacity = self.capacity(None);
        self.inputs.host.available.map(|_| capacity)
    }
}

/// The memory that HIP allocates from: the largest bank of the GPU's KFD node.
fn kfd_pool(nodes: &Path, address: PciAddress) -> Option<Bytes> {
    let node = folders(nodes).into_iter().find(|node| {
        let properties = text(node.join("properties"));
        let get = |name| property(&properties, name);
        let domain = get("domain").and_then(|domain| u32::try_from(domain).ok());
        get("simd_count").is_some_and(|count| count > 0)
            && get("location_id").is_some_and(|location| {
                PciAddress::from_location_id(domain.unwrap_or(0), location) == address
            })
    })?;
    folders(&node.join("mem_banks"))
        .iter()
        .filter_map(|bank| property(&text(bank.join("properties")), "size_in_bytes"))
        .max()
        .map(Bytes)
}

fn folders(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

/// A line `name value` of a KFD properties file.
fn property(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        line.strip_prefix(name)?
            .strip_prefix(' ')?
            .trim()
            .parse()
            .ok()
    })
}

fn number(path: PathBuf) -> Option<u64> {
    text(path).trim().parse().ok()
}

/// The text of a file, empty if there is none: unknown values do not limit.
fn text(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn write(root: &Path, files: &[(&str, &str)]) {
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, text).expect("a file");
        }
    }

    fn meminfo(total: u64, available: u64) -> String {
        let (total, available) = (total << 20, available << 20);
        format!("MemTotal: {total} kB\nMemFree: 1 kB\nMemAvailable: {available} kB\n")
    }

    /// Free and total of the host below `root`.
    fn host(root: &Path) -> Option<(u64, u64)> {
        let capacity = MemoryBudget::host_below(root, Reserve::Auto).host_capacity()?;
        Some((capacity.free.0, capacity.total.0))
    }

    #[test]
    fn the_rest_of_the_machine_keeps_a_reserve() {
        let root = tempfile::tempdir().expect("a folder");
        for (info, expected) in [
            (meminfo(64, 48), Some((44 * GIB, 60 * GIB))),
            (meminfo(16, 1), Some((0, 14 * GIB))),
            (meminfo(2, 2), Some((GIB, GIB))),
            ("MemTotal: 1 kB\n".to_owned(), None),
        ] {
            write(root.path(), &[("proc/meminfo", &info)]);
            assert_eq!(host(root.path()), expected, "{info}");
        }
    }

    #[test]
    fn of_nested_groups_each_bound_binds() {
        let root = tempfile::tempdir().expect("a folder");
        let gib = |count: u64| (count * GIB).to_string();
        write(
            root.path(),
            &[
                ("proc/meminfo", &meminfo(64, 48)),
                ("proc/self/cgroup", "0::/slice/job\n"),
                ("sys/fs/cgroup/slice/job/memory.max", &gib(32)),
                ("sys/fs/cgroup/slice/job/memory.current", &gib(31)),
                ("sys/fs/cgroup/slice/memory.max", &gib(16)),
                ("sys/fs/cgroup/slice/memory.current", &gib(10)),
            ],
        );
        assert_eq!(host(root.path()), Some((GIB / 2, 16 * GIB)));
        write(root.path(), &[("sys/fs/cgroup/slice/memory.max", &gib(4))]);
        assert_eq!(host(root.path()), Some((0, 4 * GIB)));
    }

    fn cgroups(root: &Path, membership: &str) -> Vec<String> {
        write(root, &[("proc/self/cgroup", membership)]);
        let budget = MemoryBudget::host_below(root, Reserve::Auto);
        let limits = budget.cgroups.iter().map(|[limit, ..]| {
            let below = limit.strip_prefix(root.join("sys/fs/cgroup"));
            below.expect("below the root").display().to_string()
        });
        limits.collect()
    }

    #[test]
    fn every_ancestor_with_a_limit_counts() {
        let root = tempfile::tempdir().expect("a folder");
        let files = [
            ("sys/fs/cgroup/user.slice/job.scope/memory.max", "max"),
            ("sys/fs/cgroup/user.slice/memory.max", "1000000"),
        ];
        write(root.path(), &files);
        assert_eq!(
            cgroups(root.path(), "0::/user.slice/job.scope\n"),
            ["user.slice/job.scope/memory.max", "user.slice/memory.max"]
        );
        assert!(cgroups(root.path(), "0::/only/outside\n").is_empty());
    }

    #[test]
    fn version_one_uses_the_memory_controller() {
        let root = tempfile::tempdir().expect("a folder");
        let limit = "sys/fs/cgroup/memory/docker/memory.limit_in_bytes";
        write(root.path(), &[(limit, "1000000")]);
        assert_eq!(
            cgroups(root.path(), "5:cpu,cpuacct:/docker\n4:memory:/docker\n"),
            ["memory/docker/memory.limit_in_bytes"]
        );
    }

    #[test]
    fn files_that_were_read_are_not_taken_in_both_versions() {
        let root = tempfile::tempdir().expect("a folder");
        write(
            root.path(),
            &[
                ("proc/meminfo", &meminfo(64, 48)),
                ("sys/fs/cgroup/slice/memory.max", "200\n"),
                ("sys/fs/cgroup/slice/memory.current", "100\n"),
                (
                    "sys/fs/cgroup/slice/memory.stat",
                    "anon 70\ninactive_file 30\n",
                ),
                ("sys/fs/cgroup/slice/job/memory.max", "max\n"),
                ("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "300"),
                ("sys/fs/cgroup/memory/box/memory.usage_in_bytes", "100"),
                (
                    "sys/fs/cgroup/memory/box/memory.stat",
                    "inactive_file 1\ntotal_inactive_file 40\n",
                ),
                (
                    "sys/fs/cgroup/memory/memory.limit_in_bytes",
                    "9223372036854771712",
                ),
                ("proc/self/cgroup", "0::/slice/job\n"),
            ],
        );
        assert_eq!(host(root.path()), Some((200 - 70 - 200 / 32, 200)));
        let version_one = "12:cpu,cpuacct:/slice\n9:memory:/box\n1:name=systemd:/\n";
        write(root.path(), &[("proc/self/cgroup", version_one)]);
        assert_eq!(host(root.path()), Some((300 - 60 - 300 / 32, 300)));
    }

    #[test]
    fn an_apu_is_bound_by_the_bank_of_the_gpu_at_its_address() {
        let root = tempfile::tempdir().expect("a folder");
        let nodes = "sys/class/kfd/kfd/topology/nodes";
        for (node, properties, bytes) in [
            ("0", "simd_count 0\nlocation_id 0\n", 1000),
            ("1", "simd_count 80\nlocation_id 50176\ndomain 0\n", 2000),
            ("2", "simd_count 64\nlocation_id 768\ndomain 0\n", 3000),
        ] {
            let bank = format!("heap_type 1\nsize_in_bytes {bytes}\n");
            write(
                root.path(),
                &[
                    (&format!("{nodes}/{node}/properties"), properties),
                    (&format!("{nodes}/{node}/mem_banks/0/properties"), &bank),
                ],
            );
        }
        let pool = |address| {
            let address = PciAddress::parse(address);
            MemoryBudget::gpu_below(root.path(), DeviceKind::Apu, address, Reserve::Auto)
                .inputs
                .kfd_pool
        };
        assert_eq!(pool("0000:c4:00.0"), Some(Bytes(2000)));
        assert_eq!(pool("0000:c5:00.0"), None);
    }

    #[test]
    fn this_machine_has_memory_and_no_more_free_than_total() {
        let capacity = MemoryBudget::host(Reserve::Auto).host_capacity();
        let capacity = capacity.expect("Linux");
        assert!(
            capacity.free > Bytes::ZERO && capacity.free <= capacity.total,
            "{capacity:?}"
        );
    }
}
