//! Access to the devices, containers, WSL, limits of the process.

use super::{Check, Finding, Severity};
use platform::machine::{DeviceFile, Machine, System};
use platform::{Bytes, Gfx};

pub(super) fn find(machine: &Machine, found: &mut Vec<Finding>) {
    if machine.system == System::Wsl {
        wsl_support(machine, found);
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
fn access(machine: &Machine, device: &DeviceFile, found: &mut Vec<Finding>) {
    // Render nodes of other vendors' GPUs are ignored.
    let is_ours = device.path == "/dev/kfd"
        || machine
            .gpus
            .iter()
            .any(|gpu| gpu.render_node.as_ref() == Some(&device.path));
    let has_gpu = !machine.gpus.is_empty() || !machine.unseen.is_empty();
    if device.access == "ok" || !is_ours || !has_gpu {
        return;
    }
    let path = &device.path;
    let finding = match device.access.as_str() {
        "EACCES" | "EPERM" => permission(machine, device),
        "ENOENT" => Finding::new(Check::Access, Severity::Error, "kfd-missing", format!("There is no {path}"))
            .seen(format!("Opening {path} answers ENOENT."))
            .why("amdgpu is not loaded, or the container was started without the device.")
            .fix(if machine.container.is_some() {
                vec![container_flags(machine)]
            } else {
                vec!["sudo modprobe amdgpu".to_owned(), "sudo dmesg | grep -iE 'amdgpu|kfd'".to_owned()]
            })
            .source("https://rocm.docs.amd.com/projects/install-on-linux/en/latest/how-to/docker.html"),
        "EINVAL" => Finding::new(Check::Access, Severity::Error, "kfd-refuses", format!("{path} refuses to open"))
            .seen(format!("Opening {path} answers EINVAL."))
            .why("Seen after a card came back from a virtual machine: it is stuck until the host restarts.")
            .fix(["sudo reboot  # the host, not only the virtual machine"])
            .source("https://github.com/ROCm/ROCm/issues/5379"),
        "ENOMEM" => Finding::new(Check::Access, Severity::Error, "kfd-no-memory", format!("{path} cannot create a process"))
            .seen(format!("Opening {path} answers ENOMEM."))
            .why("KFD failed to set the process up: an old driver, PCIe atomics or the IOMMU. Groups have nothing to do with it.")
            .fix(["sudo dmesg | grep -iE 'kfd|atomics|iommu'"])
            .source("https://github.com/ROCm/ROCm/issues/1185"),
        other => Finding::new(Check::Access, Severity::Error, "kfd-unusable", format!("{path} cannot be opened"))
            .seen(format!("Opening {path} answers {other}."))
            .why("HIP opens it first and gives up without it.")
            .fix(["sudo dmesg | grep -iE 'amdgpu|kfd'"])
            .source("https://docs.kernel.org/gpu/amdgpu/index.html"),
    };
    found.push(finding);
}

fn permission(machine: &Machine, device: &DeviceFile) -> Finding {
    let path = &device.path;
    let everybody = device.mode.is_some_and(|mode| mode & 0o006 == 0o006);
    let gid = device.gid.unwrap_or(0);
    let group = machine.groups.names.get(&gid).cloned();
    let is_member = machine.groups.own.contains(&gid);
    let finding = Finding::new(
        Check::Access,
        Severity::Error,
        "device-permission",
        format!("No permission to open {path}"),
    )
    .source("https://github.com/ROCm/rocminfo/issues/41");
    if machine.container.is_some() {
        return finding
            .seen(format!("Opening {path} answers {}; it belongs to group {gid}.", device.access))
            .why("In a container the number of the group counts, not its name, and the device must be allowed.")
            .fix([
                container_flags(machine),
                "# still denied: add --security-opt seccomp=unconfined".to_owned(),
            ]);
    }
    if everybody || is_member {
        return finding
            .seen(format!("Opening {path} answers {} although its mode and groups allow it.", device.access))
            .why("A device cgroup or a security module denies it; adding the user to a group changes nothing.")
            .fix(["sudo dmesg | grep -iE 'apparmor|selinux|denied'"]);
    }
    let name = group.unwrap_or_else(|| gid.to_string());
    finding
        .seen(format!(
            "Opening {path} answers {}; it belongs to group {name}, and this process is not in it.",
            device.access
        ))
        .why("A new membership counts only from the next login on.")
        .fix([
            format!("sudo usermod -aG {name} $USER"),
            "# log out and in again (a new terminal is not enough)".to_owned(),
        ])
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

/// ROCm for WSL supports RDNA 3 and newer.
fn wsl_support(machine: &Machine, found: &mut Vec<Finding>) {
    let is_before = |gfx: Gfx| gfx.major < 11;
    let Some(gpu) = machine
        .gpus
        .iter()
        .find(|gpu| gpu.gfx.is_some_and(is_before))
    else {
        return;
    };
    found.push(
        Finding::new(Check::Gpu, Severity::Warning, "wsl-gpu-not-listed", format!("{} is not among the GPUs that ROCm supports under WSL", gpu.name()))
            .seen("The text comes from WSL.")
            .why("AMD's table for WSL begins with RDNA 3 (RX 7000). An older GPU is often not listed by rocminfo there, whatever is installed.")
            .fix(["# train under Linux itself, or under Windows with a wheel that has code for this GPU"])
            .source("https://rocm.docs.amd.com/projects/radeon-ryzen/en/latest/docs/compatibility/compatibilityrad/wsl/wsl_compatibility.html"),
    );
}

fn wsl(machine: &Machine, found: &mut Vec<Finding>) {
    let has_dxg = machine
        .devices
        .iter()
        .any(|device| device.path == "/dev/dxg");
    if !has_dxg && machine.gpus.is_empty() {
        found.push(
            Finding::new(Check::Gpu, Severity::Error, "wsl-without-gpu", "This WSL has no GPU")
                .seen("There is no /dev/dxg, through which WSL reaches the GPU of Windows.")
                .why("It needs WSL 2, and on Windows a driver (Adrenalin) that offers the GPU to it; no kernel module inside of WSL is needed.")
                .fix([
                    "# in PowerShell: wsl --update, then wsl --shutdown",
                    "# in PowerShell: wsl --list --verbose must say VERSION 2 for this distribution",
                    "# install the newest Adrenalin driver on Windows",
                ])
                .source("https://rocm.docs.amd.com/projects/radeon-ryzen/en/latest/docs/install/installrad/wsl/howto_wsl.html"),
        );
    } else if machine.gpus.is_empty() {
        let rocm = machine
            .python
            .as_ref()
            .and_then(|python| python.torch.as_ref()?.rocm);
        let is_old = rocm.is_some_and(|rocm| rocm < (7, 13));
        let is_set = machine.variable("HSA_ENABLE_DXG_DETECTION") == Some("1");
        found.push(
            Finding::new(Check::Gpu, Severity::Info, "wsl", "WSL: the GPU can be seen only by ROCm itself")
                .seen("There is no KFD under WSL; the GPU is behind /dev/dxg.")
                .why("Which GPU it is, and its memory, only ROCm with librocdxg can tell; before 7.13 it looks there only where HSA_ENABLE_DXG_DETECTION is 1.")
                .fix([match is_old && !is_set {
                    true => "export HSA_ENABLE_DXG_DETECTION=1",
                    false => "surefoot probe",
                }])
                .source("https://github.com/ROCm/librocdxg/issues/34"),
        );
        // Older ones came with a runtime for WSL instead.
        let may_need_it = rocm.is_none_or(|rocm| rocm >= (7, 1));
        if machine.has_librocdxg == Some(false) && may_need_it {
            found.push(
                Finding::new(Check::Gpu, Severity::Warning, "wsl-without-librocdxg", "librocdxg is not there")
                    .seen("It is neither in the libraries of the system, nor in /opt/rocm*/lib, nor in the active Python environment.")
                    .why("Through it ROCm reaches /dev/dxg. A ROCm without it looks for the GPU driver of Linux, which WSL does not have, and finds no GPU.")
                    .fix(["# install the package of librocdxg for this distribution, or AMD's wheels of ROCm 7.13 or newer, which bring it"])
                    .source("https://github.com/ROCm/librocdxg"),
            );
        }
        wsl_memory(machine, found);
    }
}

/// By default WSL has half of the RAM of Windows.
fn wsl_memory(machine: &Machine, found: &mut Vec<Finding>) {
    let Some(total) = machine.memory.total.filter(|&total| total < Bytes::gib(24)) else {
        return;
    };
    found.push(
        Finding::new(Check::Memory, Severity::Info, "wsl-memory", format!("WSL has {total} of the RAM of Windows"))
            .seen(match &machine.wslconfig_memory {
                Some(value) => format!("MemTotal is {total}; .wslconfig says memory={value}."),
                None => format!("MemTotal is {total}; no memory= was found in .wslconfig, and the default is half of the RAM."),
            })
            .why("Loading a model, and moving parts of it to the host, takes of this; on an APU the memory of the GPU does too.")
            .fix([
                "# in Windows, in %USERPROFILE%\\.wslconfig below [wsl2]: memory=, as much as Windows can spare",
                "# in PowerShell: wsl --shutdown",
            ])
            .source("https://github.com/ROCm/ROCm/issues/6022"),
    );
}

fn limits(machine: &Machine, found: &mut Vec<Finding>) {
    if let Some(limit) = machine.open_files.filter(|&limit| limit < 4096) {
        found.push(
            Finding::new(Check::Limits, Severity::Warning, "open-files", format!("A process may open only {limit} files"))
                .seen(format!("ulimit -n is {limit}."))
                .why("Every block of GPU memory that is mapped through virtual memory holds a file, and so does every tensor that a data loader worker hands over.")
                .fix(["ulimit -n 65536"])
                .source("https://docs.pytorch.org/docs/stable/multiprocessing.html#file-descriptor-file-descriptor"),
        );
    }
    let small = |size: &Bytes| *size < Bytes::gib(1);
    if let Some(size) = machine
        .shared_memory
        .filter(small)
        .filter(|_| machine.container.is_some())
    {
        found.push(
            Finding::new(Check::Limits, Severity::Warning, "small-shm", format!("/dev/shm has only {size}"))
                .seen(format!("/dev/shm is {size}, the default of containers."))
                .why("Data loader workers hand batches over through it and die with a bus error when it is full.")
                .fix(["# start the container with --ipc=host or --shm-size=16g"])
                .source("https://github.com/pytorch/pytorch#docker-image"),
        );
    }
    if machine.has_ffmpeg == Some(false) {
        found.push(
            Finding::new(Check::Limits, Severity::Info, "no-ffmpeg", "No ffmpeg: video files cannot be read or written")
                .seen("There is no program `ffmpeg` in PATH, and SUREFOOT_FFMPEG names none.")
                .why("A LoRA for Wan learns from .mp4 and its relatives through it. Pictures, GIF, animated WebP and folders of frames need none.")
                .fix([match machine.system {
                    System::Windows => "winget install Gyan.FFmpeg",
                    _ => "sudo apt install ffmpeg  # Fedora: sudo dnf install ffmpeg-free, Arch: sudo pacman -S ffmpeg",
                }])
                .source("https://ffmpeg.org/download.html"),
        );
    }
}
