//! Access to the devices, containers, WSL, limits of the process.

use super::{Found, said};
use platform::machine::{DeviceFile, Machine, System};
use platform::{Bytes, Gfx};

pub(super) fn find(machine: &Machine, found: &mut Found) {
    if machine.system == System::Wsl {
        let is_before = |gfx: Gfx| gfx.major < 11;
        let mut gpus = machine.gpus.iter();
        if let Some(gpu) = gpus.find(|gpu| gpu.gfx.is_some_and(is_before)) {
            found.add(&said::WSL_GPU_NOT_LISTED, &[("gpu", &gpu.name())]);
        }
    }
    if !machine.is_complete {
        return;
    }
    if machine.system == System::Wsl {
        wsl(machine, found);
    } else {
        for device in &machine.devices {
            access(machine, device, found);
        }
    }
    limits(machine, found);
}

/// `/dev/kfd` is checked by opening it, since its mode alone is not enough.
fn access(machine: &Machine, device: &DeviceFile, found: &mut Found) {
    // Render nodes of other vendors' GPUs are ignored.
    let mut gpus = machine.gpus.iter();
    let is_ours =
        device.path == "/dev/kfd" || gpus.any(|gpu| gpu.render_node.as_ref() == Some(&device.path));
    let has_gpu = !machine.gpus.is_empty() || !machine.unseen.is_empty();
    if device.access == "ok" || !is_ours || !has_gpu {
        return;
    }
    let everybody = device.mode.is_some_and(|mode| mode & 0o006 == 0o006);
    let gid = device.gid.unwrap_or(0);
    let group = machine.groups.names.get(&gid);
    let said = match device.access.as_str() {
        "EACCES" | "EPERM" if machine.container.is_some() => &said::DEVICE_PERMISSION_CONTAINER,
        "EACCES" | "EPERM" if everybody || machine.groups.own.contains(&gid) => {
            &said::DEVICE_PERMISSION_DENIED
        }
        "EACCES" | "EPERM" => &said::DEVICE_PERMISSION,
        "ENOENT" => &said::KFD_MISSING,
        "EINVAL" => &said::KFD_REFUSES,
        "ENOMEM" => &said::KFD_NO_MEMORY,
        _ => &said::KFD_UNUSABLE,
    };
    found.add(
        said,
        &[
            ("path", &device.path),
            ("answer", &device.access),
            ("gid", &gid),
            ("group", &group.cloned().unwrap_or_else(|| gid.to_string())),
            ("flags", &container_flags(machine)),
        ],
    );
}

/// How a container gets the devices. The group is that of the host's file, by number;
/// a rootless engine keeps the groups of its user instead.
pub(super) fn container_flags(machine: &Machine) -> String {
    let group = match machine.container.as_deref() {
        Some("podman" | "libpod") => "--group-add keep-groups",
        Some("kubepods") => {
            return "# in a pod: request amd.com/gpu, which AMD's device plugin offers".to_owned();
        }
        _ => "--group-add $(stat -c %g /dev/kfd)",
    };
    format!("# start the container with: --device /dev/kfd --device /dev/dri {group}")
}

fn wsl(machine: &Machine, found: &mut Found) {
    if !machine.gpus.is_empty() {
        return;
    }
    if !machine
        .devices
        .iter()
        .any(|device| device.path == "/dev/dxg")
    {
        found.add(&said::WSL_WITHOUT_GPU, &[]);
        return;
    }
    let python = machine.python.as_ref();
    let rocm = python.and_then(|python| python.torch.as_ref()?.rocm);
    let is_old = rocm.is_some_and(|rocm| rocm < (7, 13));
    let is_set = machine.variable("HSA_ENABLE_DXG_DETECTION") == Some("1");
    let said = match is_old && !is_set {
        true => &said::WSL_NEEDS_DETECTION,
        false => &said::WSL,
    };
    found.add(said, &[]);
    // Older ones came with a runtime for WSL instead.
    let may_need_it = rocm.is_none_or(|rocm| rocm >= (7, 1));
    if machine.has_librocdxg == Some(false) && may_need_it {
        found.add(&said::WSL_WITHOUT_LIBROCDXG, &[]);
    }
    if let Some(total) = machine.memory.total.filter(|&total| total < Bytes::gib(24)) {
        match &machine.wslconfig_memory {
            Some(value) => found.add(
                &said::WSL_MEMORY_SET,
                &[("total", &total), ("value", value)],
            ),
            None => found.add(&said::WSL_MEMORY, &[("total", &total)]),
        };
    }
}

fn limits(machine: &Machine, found: &mut Found) {
    if let Some(limit) = machine.open_files.filter(|&limit| limit < 4096) {
        found.add(&said::OPEN_FILES, &[("limit", &limit)]);
    }
    let shared_memory = machine
        .shared_memory
        .filter(|_| machine.container.is_some());
    if let Some(size) = shared_memory.filter(|&size| size < Bytes::gib(1)) {
        found.add(&said::SMALL_SHM, &[("size", &size)]);
    }
    if machine.has_ffmpeg == Some(false) {
        found.add(&said::NO_FFMPEG, &[]);
    }
}
