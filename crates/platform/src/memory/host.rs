//! The memory of the host: `/proc/meminfo` and the cgroup of this process.

use crate::Bytes;
use serde::Serialize;

/// The contents of `/proc/meminfo`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HostMemory {
    /// RAM managed by the kernel (without a carve-out).
    pub total: Option<Bytes>,
    /// What a new program could use without swapping.
    pub available: Option<Bytes>,
    /// Size of all swap areas.
    pub swap_total: Option<Bytes>,
    /// Swap that is not in use.
    pub swap_free: Option<Bytes>,
}

impl HostMemory {
    /// Parses `/proc/meminfo`. Missing lines are `None`; on kernels without `MemAvailable` (before 3.14),
    /// free and cached pages are used instead.
    #[must_use]
    pub fn parse(meminfo: &str) -> Self {
        let (mut found, mut free, mut cached) = (Self::default(), None, None);
        for line in meminfo.lines() {
            let Some((key, value)) = line.split_once(':') else {
                continue;
            };
            let value = Bytes::parse_tool_output(value);
            match key.trim() {
                "MemTotal" => found.total = value,
                "MemAvailable" => found.available = value,
                "MemFree" => free = value,
                "Cached" => cached = value,
                "SwapTotal" => found.swap_total = value,
                "SwapFree" => found.swap_free = value,
                _ => {}
            }
        }
        if found.available.is_none() {
            found.available = free.map(|free| free.saturating_add(cached.unwrap_or_default()));
        }
        found
    }
}

/// The memory limit of a cgroup, and how much of it is in use and cannot be reclaimed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CgroupMemory {
    /// The limit, if any.
    pub limit: Option<Bytes>,
    /// Usage without the page cache that the kernel drops under pressure. Otherwise, reading a checkpoint of
    /// 60 GB would look like 60 GB in use.
    pub working_set: Option<Bytes>,
}

impl CgroupMemory {
    /// Parses the files of cgroup v2 (`memory.max`, `memory.current`) or v1 (`memory.limit_in_bytes`,
    /// `memory.usage_in_bytes`), and `memory.stat`.
    ///
    /// No limit is `max` in v2 and a number near 2⁶³ in v1.
    #[must_use]
    pub fn parse(limit: &str, usage: &str, stat: &str) -> Self {
        let limit = limit
            .trim()
            .parse()
            .ok()
            .filter(|&limit: &u64| limit < 1 << 60)
            .map(Bytes);
        let cache =
            stat_value(stat, "total_inactive_file").or_else(|| stat_value(stat, "inactive_file"));
        let working_set = usage
            .trim()
            .parse()
            .ok()
            .map(|usage| Bytes(usage).saturating_sub(cache.unwrap_or_default()));
        Self { limit, working_set }
    }

    /// What is left below the limit; `None` without a limit.
    #[must_use]
    pub fn headroom(&self) -> Option<Bytes> {
        Some(
            self.limit?
                .saturating_sub(self.working_set.unwrap_or_default()),
        )
    }

    /// The combined limits of two nested cgroups: the smaller limit, and the smaller headroom.
    #[must_use]
    pub fn within(self, other: Self) -> Self {
        let (Some(own), Some(others)) = (self.headroom(), other.headroom()) else {
            return if self.limit.is_some() { self } else { other };
        };
        let limit = self.limit.min(other.limit);
        if (self.limit, own) == (limit, own.min(others)) {
            return self;
        }
        Self {
            limit,
            working_set: limit.map(|limit| limit.saturating_sub(own.min(others))),
        }
    }
}

/// The control groups that may limit the memory of a process, innermost first: the folder of each, and the
/// names of its files for limit, usage and statistics.
///
/// `membership` is the text of the process's `/proc/…/cgroup`. With version 2 it has one line, `0::/path`;
/// with version 1 one per controller, of which that for memory is used.
#[must_use]
pub fn memory_cgroups(membership: &str) -> Vec<(String, [&'static str; 3])> {
    let mut found = Vec::new();
    for line in membership.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
            continue;
        };
        let (root, files) = if controllers.is_empty() {
            let files = ["memory.max", "memory.current", "memory.stat"];
            ("/sys/fs/cgroup", files)
        } else if controllers.split(',').any(|name| name == "memory") {
            let files = [
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
                "memory.stat",
            ];
            ("/sys/fs/cgroup/memory", files)
        } else {
            continue;
        };
        let mut path = path.trim_matches('/');
        while !path.is_empty() {
            found.push((format!("{root}/{path}"), files));
            path = path.rsplit_once('/').map_or("", |(parent, _)| parent);
        }
        found.push((root.to_owned(), files));
    }
    found
}

fn stat_value(stat: &str, key: &str) -> Option<Bytes> {
    stat.lines().find_map(|line| {
        line.strip_prefix(key)?
            .strip_prefix(' ')?
            .trim()
            .parse()
            .ok()
            .map(Bytes)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_meminfo() {
        let text = "MemTotal:       131072000 kB\nMemFree:  1 kB\nMemAvailable:   98304000 kB\nSwapTotal: 0 kB\n";
        let memory = HostMemory::parse(text);
        assert_eq!(memory.total, Some(Bytes::kib(131_072_000)));
        assert_eq!(memory.available, Some(Bytes::kib(98_304_000)));
        assert_eq!(memory.swap_total, Some(Bytes::ZERO));
        assert_eq!(memory.swap_free, None);
    }

    #[test]
    fn old_kernels_have_no_mem_available() {
        let memory = HostMemory::parse("MemFree: 10 kB\r\nCached: 5 kB\r\n");
        assert_eq!(memory.available, Some(Bytes::kib(15)));
    }

    #[test]
    fn page_cache_is_not_usage() {
        let cgroup = CgroupMemory::parse("1000\n", "900\n", "anon 100\ninactive_file 700\n");
        assert_eq!(cgroup.headroom(), Some(Bytes(800)));
    }

    #[test]
    fn no_limit_is_no_limit_in_both_versions() {
        assert_eq!(CgroupMemory::parse("max\n", "5\n", "").limit, None);
        assert_eq!(
            CgroupMemory::parse("9223372036854771712\n", "5\n", "").limit,
            None
        );
        assert_eq!(CgroupMemory::parse("", "", ""), CgroupMemory::default());
    }

    proptest! {
        #[test]
        fn never_panics(a in "\\PC*", b in "\\PC*", c in "(\\PC|\n){0,80}") {
            let _ = CgroupMemory::parse(&a, &b, &c).headroom();
            let _ = HostMemory::parse(&c);
        }
    }
}
