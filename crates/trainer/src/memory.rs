//! How much memory training uses.

use std::path::Path;

use serde::{Deserialize, Serialize};

/// One look at the memory of the run's device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemorySample {
    /// Bytes in tensors; `None` without an allocator that counts them.
    pub live: Option<u64>,
    /// Bytes that the allocator holds.
    pub held: Option<u64>,
    /// Most bytes in tensors since the last look.
    pub live_peak: Option<u64>,
    /// Most bytes held since the last look.
    pub held_peak: Option<u64>,
    /// Bytes of this process in main memory.
    pub resident: u64,
}

impl MemorySample {
    /// What to show as the one number: what the allocator held at most since the last look
    /// where that is known, else the process.
    pub fn headline(&self) -> u64 {
        self.held_peak.unwrap_or(self.resident)
    }
}

/// Bytes of this process in main memory; 0 where the system does not say.
pub(crate) fn resident_bytes() -> u64 {
    status_field("VmRSS:")
}

/// The most bytes this process ever had in main memory; 0 where the system does not say.
pub(crate) fn peak_resident_bytes() -> u64 {
    status_field("VmHWM:")
}

/// Bytes of main memory that this process can still have, and that there are for it: within its control groups,
/// and beside what is left to the rest of the machine.
pub(crate) fn of_the_machine() -> Option<(u64, u64)> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    let groups = control_groups(&text("/proc/self/cgroup"), Path::new("/sys/fs/cgroup"));
    within(&meminfo, &groups)
}

/// A control group's limit, and what of it is taken and cannot be given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Group {
    limit: u64,
    taken: u64,
}

/// What `meminfo` has, less a reserve of the size that hip-alloc keeps: a sixteenth of the RAM, but 2 to 8 GiB,
/// and of a small machine not more than half.
fn within(meminfo: &str, groups: &[Group]) -> Option<(u64, u64)> {
    let field = |name| Some(field(meminfo, name)? * 1024);
    let (mut free, mut total) = (field("MemAvailable:")?, field("MemTotal:")?);
    let reserve = (total / 16).clamp(2 << 30, 8 << 30).min(total / 2);
    free = free.saturating_sub(reserve);
    total -= reserve;
    for Group { limit, taken } in groups {
        free = free.min(limit.saturating_sub(*taken));
        total = total.min(*limit);
    }
    Some((free, total))
}

/// The groups with a limit that hold a process, of which `membership` (its `/proc/…/cgroup`) tells: its own and
/// those around it. Version 2 has one line, `0::/path`; version 1 has one for each controller.
fn control_groups(membership: &str, root: &Path) -> Vec<Group> {
    let mut groups = Vec::new();
    for line in membership.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
            continue;
        };
        let (root, limit, usage) = if controllers.is_empty() {
            (root.to_owned(), "memory.max", "memory.current")
        } else if controllers.split(',').any(|name| name == "memory") {
            let root = root.join("memory");
            (root, "memory.limit_in_bytes", "memory.usage_in_bytes")
        } else {
            continue;
        };
        // In a container the path may be one that only the outside knows: then the root is what counts.
        for folder in Path::new(path.trim_start_matches('/')).ancestors() {
            let folder = root.join(folder);
            let number = |name| text(folder.join(name)).trim().parse::<u64>().ok();
            // Without a limit it is `max`, or a number near 2^63.
            let Some(limit) = number(limit).filter(|limit| *limit < 1 << 60) else {
                continue;
            };
            let stat = text(folder.join("memory.stat"));
            // The kernel drops these pages under pressure: files that were read.
            let cache = field(&stat, "total_inactive_file ").or(field(&stat, "inactive_file "));
            let taken = number(usage).unwrap_or(0);
            groups.push(Group {
                limit,
                taken: taken.saturating_sub(cache.unwrap_or(0)),
            });
        }
    }
    groups
}

fn text(path: impl AsRef<Path>) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// The first number of the line that begins with `name`.
fn field(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

fn status_field(name: &str) -> u64 {
    field(&text("/proc/self/status"), name).unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn the_rest_of_the_machine_keeps_a_reserve_and_a_limit_binds() {
        let meminfo = |total: u64, available: u64| {
            let kib = |gib: u64| gib << 20;
            let (total, available) = (kib(total), kib(available));
            format!("MemTotal: {total} kB\nMemFree: 1 kB\nMemAvailable: {available} kB\n")
        };
        let of = |meminfo: &str, groups: &[Group]| within(meminfo, groups).unwrap();
        assert_eq!(of(&meminfo(64, 48), &[]), (44 * GIB, 60 * GIB));
        assert_eq!(of(&meminfo(16, 1), &[]), (0, 14 * GIB));
        assert_eq!(of(&meminfo(2, 2), &[]), (GIB, GIB));
        let group = |limit, taken| Group {
            limit: limit * GIB,
            taken: taken * GIB,
        };
        let nested = [group(32, 31), group(16, 10)];
        assert_eq!(of(&meminfo(64, 48), &nested), (GIB, 16 * GIB));
        assert_eq!(of(&meminfo(64, 48), &[group(4, 5)]).0, 0);
        assert_eq!(within("MemTotal: 1 kB\n", &[]), None);
    }

    #[test]
    fn a_limit_binds_in_whichever_group_around_the_process_it_is() {
        let root = tempfile::tempdir().unwrap();
        let write = |group: &str, files: &[(&str, &str)]| {
            let folder = root.path().join(group);
            fs::create_dir_all(&folder).unwrap();
            for (name, text) in files {
                fs::write(folder.join(name), text).unwrap();
            }
        };
        let stat = ("memory.stat", "anon 70\ninactive_file 30\n");
        let limits = [("memory.max", "200\n"), ("memory.current", "100\n"), stat];
        write("slice", &limits);
        write("slice/job", &[("memory.max", "max\n")]);
        let own = control_groups("0::/slice/job\n", root.path());
        let group = |limit, taken| Group { limit, taken };
        assert_eq!(own, [group(200, 70)]);
        let elsewhere = control_groups("0::/only/outside\n", root.path());
        assert!(elsewhere.is_empty());

        let limits = [
            ("memory.limit_in_bytes", "300"),
            ("memory.usage_in_bytes", "100"),
            ("memory.stat", "inactive_file 1\ntotal_inactive_file 40\n"),
        ];
        write("memory/box", &limits);
        let unlimited = [("memory.limit_in_bytes", "9223372036854771712")];
        write("memory", &unlimited);
        let membership = "12:cpu,cpuacct:/slice\n9:memory:/box\n1:name=systemd:/\n";
        let first = control_groups(membership, root.path());
        assert_eq!(first, [group(300, 60)]);
    }
}
