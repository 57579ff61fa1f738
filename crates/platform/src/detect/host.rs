//! The host around the GPUs: distribution, container, limits, parameters of the kernel,
//! and what its device files answer.

use crate::Bytes;
use crate::machine::{DeviceFile, Groups, Parameter};
use crate::memory::CgroupMemory;
use crate::snapshot::Snapshot;

pub(super) fn os_release(snapshot: &Snapshot) -> Option<String> {
    let text = snapshot.text("etc/os-release")?;
    let name = text
        .lines()
        .find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    Some(name.trim().trim_matches('"').to_owned())
}

pub(super) fn container(snapshot: &Snapshot) -> Option<String> {
    if snapshot.has(".dockerenv") {
        return Some("docker".to_owned());
    }
    if let Some(text) = snapshot.text("run/.containerenv") {
        let engine = text
            .lines()
            .find_map(|line| line.strip_prefix("engine="))
            .map(|name| name.trim_matches('"'));
        return Some(
            engine
                .filter(|name| !name.is_empty())
                .unwrap_or("podman")
                .to_owned(),
        );
    }
    let cgroup = snapshot.text("proc/self/cgroup")?;
    ["docker", "kubepods", "libpod", "lxc", "containerd"]
        .iter()
        .find(|name| cgroup.contains(**name))
        .map(|&name| name.to_owned())
}

/// The tightest limit of all cgroups that contain this process.
pub(super) fn cgroup(snapshot: &Snapshot) -> CgroupMemory {
    let mut tightest = CgroupMemory::default();
    for (limit, usage) in [
        ("memory.max", "memory.current"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    ] {
        for path in snapshot.paths_under("sys/fs/cgroup/") {
            let Some(folder) = path.strip_suffix(limit) else {
                continue;
            };
            let text = |name: &str| {
                snapshot
                    .text(&format!("{folder}{name}"))
                    .unwrap_or_default()
            };
            tightest = tightest.within(CgroupMemory::parse(
                text(limit),
                text(usage),
                text("memory.stat"),
            ));
        }
    }
    tightest
}

pub(super) fn kernel_parameters(snapshot: &Snapshot) -> Vec<Parameter> {
    let mut found = Vec::new();
    for folder in ["etc/modprobe.d/", "usr/lib/modprobe.d/", "run/modprobe.d/"] {
        for path in snapshot.paths_under(folder) {
            let text = snapshot.text(path).unwrap_or_default();
            modprobe_parameters(text, &format!("/{path}"), &mut found);
        }
    }
    // Last, because a parameter on the command line wins.
    if let Some(text) = snapshot.text("proc/cmdline") {
        command_line_parameters(text, &mut found);
    }
    found
}

/// `options amdgpu gttsize=1 mes=0` and `blacklist amdgpu`.
fn modprobe_parameters(text: &str, place: &str, found: &mut Vec<Parameter>) {
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let (verb, module) = (words.next(), words.next());
        let mut add = |name: String, value: &str| {
            found.push(Parameter {
                name,
                value: value.to_owned(),
                place: place.to_owned(),
            });
        };
        match (verb, module) {
            (Some("options"), Some(module)) => {
                for word in words {
                    let (key, value) = word.split_once('=').unwrap_or((word, ""));
                    add(format!("{module}.{key}"), value);
                }
            }
            (Some("blacklist"), Some(module)) => add("blacklist".to_owned(), module),
            _ => {}
        }
    }
}

/// The words of a kernel command line.
pub fn command_line_parameters(text: &str, found: &mut Vec<Parameter>) {
    for word in text.split_whitespace() {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        found.push(Parameter {
            name: name.to_owned(),
            value: value.trim_matches('"').to_owned(),
            place: "the kernel command line".to_owned(),
        });
    }
}

pub(super) fn device_files(snapshot: &Snapshot) -> Vec<DeviceFile> {
    let paths = snapshot.paths_under("dev/").filter(|path| {
        matches!(*path, "dev/kfd" | "dev/dxg") || path.starts_with("dev/dri/renderD")
    });
    paths
        .filter_map(|path| {
            let text = snapshot.text(path)?;
            let field = |key: &str| {
                text.split_whitespace()
                    .find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
            };
            Some(DeviceFile {
                path: format!("/{path}"),
                access: field("access")?.to_owned(),
                mode: field("mode").and_then(|mode| u32::from_str_radix(mode, 8).ok()),
                gid: field("gid").and_then(|gid| gid.parse().ok()),
            })
        })
        .collect()
}

pub(super) fn groups(snapshot: &Snapshot) -> Groups {
    let status = snapshot.text("proc/self/status").unwrap_or_default();
    let numbers = |key: &str| -> Vec<u32> {
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix(key))
            .unwrap_or_default();
        line.split_whitespace()
            .filter_map(|word| word.parse().ok())
            .collect()
    };
    // `Uid:` and `Gid:` are real, effective, saved, file system.
    let uid = numbers("Uid:").get(1).copied();
    let mut own = numbers("Groups:");
    own.extend(numbers("Gid:").get(1));
    let names = snapshot
        .text("etc/group")
        .unwrap_or_default()
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(':');
            let (name, gid) = (fields.next()?, fields.nth(1)?);
            Some((gid.parse().ok()?, name.to_owned()))
        });
    Groups {
        uid,
        own,
        names: names.collect(),
    }
}

/// The soft limit of open files in `/proc/self/limits`.
pub(super) fn open_files(text: &str) -> Option<u64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))?;
    let soft = line.split_whitespace().next()?;
    if soft == "unlimited" {
        Some(u64::MAX)
    } else {
        soft.parse().ok()
    }
}

/// The size of `/dev/shm`, when it has a size.
pub(super) fn shm_size(mounts: &str) -> Option<Bytes> {
    let line = mounts
        .lines()
        .find(|line| line.split_whitespace().nth(1) == Some("/dev/shm"))?;
    let options = line.split_whitespace().nth(3)?;
    options
        .split(',')
        .find_map(|option| Bytes::parse_tool_output(option.strip_prefix("size=")?))
}

/// The value of `memory` below `[wsl2]`.
pub(super) fn wslconfig_memory(text: &str) -> Option<String> {
    let mut is_inside = false;
    let mut found = None;
    for line in text.lines().map(str::trim) {
        if line.starts_with('[') {
            is_inside = line.eq_ignore_ascii_case("[wsl2]");
        } else if let (true, Some((key, value))) = (is_inside, line.split_once('='))
            && key.trim() == "memory"
        {
            found = Some(value.trim().to_owned());
        }
    }
    found.filter(|value| !value.is_empty())
}
