//! Containers, services, Kubernetes and virtual machines: their groups and devices.

use super::Scope::{BareMetal, NotWindows};
use super::{BASE, Entry};
use crate::explain::Confidence::Medium;
use crate::explain::Severity::{Info, Warning};

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        id: "container-group-unknown",
        patterns: &[r"(?i)Unable to find group [\w-]+: no matching entries in group file"],
        cause: "Docker looks for a group given by its name (--group-add, group_add) in the image, and the image has no such group. keep-groups is no group but a word of Podman.",
        fix: &[
            "Linux: the number of the host's group instead of its name: --group-add $(stat -c %g /dev/kfd) --group-add $(getent group video | cut -d: -f3); in a compose file the numbers in quotes",
            "keep-groups: only with podman",
        ],
        scope: NotWindows,
        source: "https://github.com/odysseus-dev/odysseus/pull/515",
        ..BASE
    },
    Entry {
        id: "service-group-unknown",
        patterns: &[
            r"(?i)Failed at step GROUP spawning|Failed to determine (?:supplementary )?groups?",
        ],
        cause: "The unit of the service names a group (Group=, SupplementaryGroups=) that does not exist on this system, so that systemd does not start it.",
        fix: &[
            "getent group render video shows which exist; remove the other from the unit (systemctl edit --full <service>)",
            "or create it: sudo groupadd --system render",
        ],
        scope: NotWindows,
        source: "https://www.freedesktop.org/software/systemd/man/latest/systemd.exec.html",
        ..BASE
    },
    Entry {
        id: "container-device-unresolved",
        patterns: &[r"(?i)unresolvable CDI devices? amd\.com/gpu"],
        cause: "The container asks for the GPU by its CDI name (amd.com/gpu=…), and no CDI specification on this host describes it.",
        fix: &[
            "install AMD's container toolkit and write the specification: sudo amd-ctk cdi generate --output=/etc/cdi/amd.json",
            "Linux: or pass the devices: --device /dev/kfd --device /dev/dri",
        ],
        scope: NotWindows,
        source: "https://instinct.docs.amd.com/projects/container-toolkit/en/latest/container-runtime/running-workloads.html",
        ..BASE
    },
    Entry {
        id: "docker-device-missing",
        confidence: Medium,
        patterns: &[
            r"(?i)error gathering device information while adding custom device .?/dev/(?:kfd|dri)",
            r"(?i)stat /dev/kfd: no such file",
        ],
        scope: BareMetal,
        covers: &["kfd-missing"],
        cause: "Where the container engine runs there is no such device. /dev/kfd comes from the amdgpu driver of a Linux kernel: it is not loaded there, or the engine runs in a virtual machine, as Docker Desktop does on every system. Under WSL and on Windows there is none: the GPU is /dev/dxg there.",
        fix: &[
            "`ls -l /dev/kfd` on the host: if it is there, the engine is in a virtual machine: use Docker Engine instead of Docker Desktop (docker context use default), or podman",
            "if it is not there: lsmod | grep amdgpu tells whether the driver is loaded, dmesg | grep -i amdgpu why it did not start",
            "WSL: --device /dev/dxg -v /usr/lib/wsl:/usr/lib/wsl in place of the two devices",
        ],
        ask: &[
            "ls -l /dev/kfd /dev/dri; docker context ls",
            "uname -r; lsmod | grep amdgpu",
        ],
        source: "https://github.com/ROCm/container-toolkit/issues/86",
        ..BASE
    },
    Entry {
        id: "container-one-render-node",
        confidence: Medium,
        patterns: &[r"HSA_STATUS_ERROR_OUT_OF_RESOURCES|hsa_init.{0,40}\b1008\b"],
        also: &[r"(?:podman|docker).{0,200}--device[ =]/dev/dri/renderD\d+"],
        scope: BareMetal,
        covers: &["hsa-out-of-resources"],
        cause: "The container was given one render device of several: ROCm asks the kernel for all GPUs and gives up at the one whose device it may not open. In rootless containers this cannot be restricted so.",
        fix: &[
            "pass all of them, --device /dev/kfd --device /dev/dri, and choose inside with ROCR_VISIBLE_DEVICES=<index>",
            "rootless: with --group-add keep-groups (podman with crun)",
        ],
        ask: &["ls -ln /dev/dri /dev/kfd; id"],
        source: "https://github.com/ROCm/legacy-rocm-build/issues/3144",
        ..BASE
    },
    Entry {
        id: "kubernetes-no-gpu",
        confidence: Medium,
        patterns: &[
            r"(?i)\bInsufficient (?:amd\.com/\w+|squat\.ai/dri)",
            r"\b(?:capacity|allocatable)[\w.\x22:\[\] ]{0,12}amd\.com/gpu[\x22\]]?\s*[:=]\s*\x22?0\b",
            r#"(?i)amd\.com/gpu"?:\s+"?0\b"#,
            r"(?i)(?:Unschedulable|FailedScheduling|UnexpectedAdmissionError).{0,200}amd\.com/gpu",
            r"(?i)requested number of devices unavailable for amd\.com/\w+",
        ],
        scope: BareMetal,
        cause: "No node of the cluster has a free GPU by the name amd.com/gpu: AMD's device plugin does not run there (or was not restarted with the kubelet), finds no GPU because the amdgpu driver of the node is not loaded, or all GPUs belong to other pods: each is given to one pod as a whole.",
        fix: &[
            "kubectl describe node <node> | grep amd.com/gpu: with 0 or nothing, install AMD's device plugin (ROCm/k8s-device-plugin, or the GPU operator) and look at the log of its pod on that node",
            "on the node: ls -l /dev/kfd /dev/dri; without them the plugin counts no GPU",
            "as many GPUs as the node has, at most; tolerations, where its nodes have a taint; end pods that hold a GPU",
        ],
        ask: &[
            "kubectl describe node <node> | grep -A 8 -E 'Capacity|Allocatable'",
            "kubectl logs -n kube-system -l name=amdgpu-dp-ds --tail=30",
        ],
        source: "https://github.com/ROCm/k8s-device-plugin",
        ..BASE
    },
    Entry {
        id: "kubernetes-nvidia-asked",
        severity: Warning,
        confidence: Medium,
        patterns: &[r"(?i)\bInsufficient nvidia\.com/gpu"],
        scope: NotWindows,
        cause: "The pod asks for a GPU of NVIDIA (nvidia.com/gpu), and no node has a free one. GPUs of AMD have another name, amd.com/gpu.",
        fix: &[
            "for AMD GPUs: limits of amd.com/gpu in the manifest (in a Helm chart mostly gpu.type: amd), an image for ROCm, and AMD's device plugin",
        ],
        ask: &["kubectl describe node <node> | grep -E 'com/gpu'"],
        source: "https://github.com/ROCm/k8s-device-plugin",
        ..BASE
    },
    Entry {
        id: "virtual-machine-reset",
        confidence: Medium,
        patterns: &[
            r"(?i)vfio\S* \S+: not ready \d+ms after (?:FLR|\w+ (?:bus )?reset|\w+)",
            r"(?i)vfio\S* \S+: AMD_\w+: (?:failed to reset|could not get enabled SMU|reset result = [^0\s])",
            r"(?i)(?:vfio|kvm).{0,60}(?:Unable to power on device|stuck in D3)",
            r"(?i)vfio\S* \S+: (?:SMU error|Failed to send message)",
            r"(?i)vfio: Cannot reset device .{0,40}(?:no available reset mechanism|depends on group)|/reset': Inappropriate ioctl",
            r"(?i)vfio\S* \S+: (?:can't change power state|Unable to change power state)",
        ],
        scope: BareMetal,
        covers: &["gpu-off-the-bus", "smu-no-answer"],
        cause: "The card that is passed to a virtual machine did not come back from its reset: the guest's driver left it in a state that the host cannot reset it from (the reset bug of Polaris, Vega and Navi 10; newer cards after a crash of the guest).",
        fix: &[
            "power the host off and on (a restart of the virtual machine is not enough); where it helps, suspend the host once instead",
            "Polaris, Vega, Navi 10: the kernel module vendor-reset, in its newest version, with reset_method set to device_specific",
            "bind the card to vfio-pci from the start of the host (vfio-pci.ids=…), so that amdgpu of the host never touches it; options vfio-pci disable_idle_d3=1; its VBIOS as a file",
            "end the guest's programs on the GPU and unload amdgpu there before it shuts down; ROCm on the host itself or in a container needs no pass-through",
        ],
        ask: &["dmesg | grep -iE 'vfio|amdgpu' | tail -n 40; lspci -nnk -d 1002:"],
        source: "https://github.com/gnif/vendor-reset",
        ..BASE
    },
    Entry {
        id: "container-numa-harmless",
        severity: Info,
        patterns: &[
            r"(?i)[sg]et_mempolicy: Operation not permitted|migrate_pages.{0,20}Operation not permitted",
        ],
        cause: "The container may not choose on which memory node a process lives (the default seccomp profile forbids it). Only the speed of memory on machines with several nodes depends on it: nothing fails.",
        fix: &["to be rid of the line: --security-opt seccomp=unconfined, or --cap-add SYS_NICE"],
        scope: NotWindows,
        source: "https://github.com/vllm-project/vllm/issues/24016",
        ..BASE
    },
    Entry {
        id: "container-runtime-unknown",
        patterns: &[r"(?i)unknown or invalid runtime name: (?:amd|nvidia)"],
        scope: NotWindows,
        cause: "Docker was asked for a runtime of a GPU vendor (--runtime) that it does not know. For an AMD GPU none is needed: it is passed as a device.",
        fix: &[
            "Linux: without --runtime: --device /dev/kfd --device /dev/dri --group-add video --security-opt seccomp=unconfined",
            "Linux: or install AMD's container toolkit, then sudo amd-ctk runtime configure and sudo systemctl restart docker",
        ],
        source: "https://instinct.docs.amd.com/projects/container-toolkit/en/latest/container-runtime/running-workloads.html",
        ..BASE
    },
    Entry {
        id: "sandbox-without-device",
        confidence: Medium,
        patterns: &[
            r#"(?i)Not sharing "?/dev/(?:kfd|dri)|bwrap: Can't find source path /dev/(?:kfd|dri)"#,
            r"(?i)\b(?:snap|flatpak)\b.{0,80}/dev/kfd",
        ],
        scope: BareMetal,
        covers: &["kfd-missing", "kfd-permission"],
        cause: "The program runs in a sandbox (Flatpak, Snap) that does not pass /dev/kfd on: HIP cannot work in it, Vulkan mostly can.",
        fix: &[
            "the program's own package or archive instead of the Flatpak or Snap",
            "Flatpak: flatpak override --user --device=all <the program>; Snap: connect its GPU interface (snap connections <name>), where it has one",
        ],
        ask: &["flatpak info --show-permissions <the program>; snap connections <name>"],
        source: "https://docs.flatpak.org/en/latest/sandbox-permissions.html",
        ..BASE
    },
    Entry {
        id: "apptainer-without-rocm",
        severity: Warning,
        patterns: &[r"(?i)Could not find any rocm (?:files|libraries) on this host"],
        scope: BareMetal,
        cause: "Apptainer (Singularity) was started with --rocm and found no ROCm on the host that it could lend to the container. An image that brings its own ROCm does not need it; the devices are passed all the same.",
        fix: &[
            "an image with ROCm in it (rocm/pytorch): nothing is needed; --rocm passes /dev/kfd and /dev/dri",
            "otherwise ROCm on the host, with its libraries in the search path (ldconfig -p | grep amdhip64)",
        ],
        source: "https://apptainer.org/docs/user/latest/gpu.html",
        ..BASE
    },
    Entry {
        id: "lxc-group-map",
        patterns: &[
            r"(?i)newgidmap: gid range .{0,40}not allowed|newuidmap: uid range .{0,40}not allowed",
            r"(?i)\blxc\b.{0,120}(?:idmap|newgidmap).{0,60}(?:failed|not allowed|invalid)",
        ],
        scope: BareMetal,
        cause: "An unprivileged LXC container maps a group of the host (render, video) that the host's root may not hand on.",
        fix: &[
            "the number of the group in /etc/subgid of the host: the lines root:<number of render>:1 and root:<number of video>:1",
            "Proxmox 8.2 and newer need no map: dev0: /dev/kfd,gid=<number of render in the container>, dev1: /dev/dri/renderD128,gid=<the same> in the container's file",
        ],
        ask: &["cat /etc/subgid; getent group render video; ls -ln /dev/kfd /dev/dri"],
        source: "https://pve.proxmox.com/wiki/Unprivileged_LXC_containers",
        ..BASE
    },
    Entry {
        id: "virtual-machine-map",
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"(?i)vfio_(?:container_)?dma_map\(.{0,120}= -22|VFIO_MAP_DMA failed: Invalid argument",
        ],
        scope: BareMetal,
        cause: "The virtual machine puts the card's memory at an address that the IOMMU of the host cannot reach. The guest mostly runs all the same; only direct traffic between two passed cards is impossible.",
        fix: &[
            "the guest's address width no larger than the host's: CPU type host with host-phys-bits=on, or phys-bits=39 on desktop processors of Intel",
        ],
        source: "https://docs.kernel.org/driver-api/vfio.html",
        ..BASE
    },
    Entry {
        id: "virtual-machine-group",
        confidence: Medium,
        patterns: &[
            r"(?i)vfio.{0,120}group \d+ is not viable",
            r"(?i)vfio.{0,80}(?:failed to open /dev/vfio/\d+|error getting device from group|No available IOMMU models)",
            r"(?i)vfio.{0,80}(?:failed to setup container|no iommu_group found)",
            r"(?i)cannot prepare PCI pass-?through, IOMMU not present|No IOMMU detected",
        ],
        scope: BareMetal,
        cause: "The host cannot hand the card to the virtual machine: the IOMMU is off, or other devices of its IOMMU group (its sound device, a bridge) still belong to a driver of the host.",
        fix: &[
            "the IOMMU (AMD-Vi, VT-d) on in the BIOS; intel_iommu=on on Intel",
            "bind all devices of the group to vfio-pci (vfio-pci.ids=<GPU>,<its sound device>), before amdgpu and snd_hda_intel take them",
            "another slot, where the group contains other devices",
        ],
        ask: &["ls -l /sys/kernel/iommu_groups/*/devices; lspci -nnk -d 1002:"],
        source: "https://docs.kernel.org/driver-api/vfio.html",
        ..BASE
    },
    Entry {
        id: "container-program-missing",
        severity: Warning,
        patterns: &[
            r#"(?i)exec: \\?"(?:\S*/)?(?:rocminfo|rocm-smi|amd-smi|hipcc|hipconfig|clinfo|nvidia-smi)\S*: executable file not found"#,
        ],
        cause: "The image does not contain the program that the container was told to run; that says nothing about the GPU.",
        fix: &[
            "an image that has it (rocm/dev-ubuntu, rocm/pytorch), or install it in this one: apt install rocminfo rocm-smi-lib",
        ],
        scope: NotWindows,
        source: "https://hub.docker.com/u/rocm",
        ..BASE
    },
    Entry {
        id: "container-image-unknown",
        severity: Warning,
        patterns: &[
            r"(?i)manifest for \S+ not found|manifest unknown",
            r"(?i)(?:pull access denied for|repository does not exist)",
        ],
        cause: "The registry has no image of this name and tag: tags name the exact versions of ROCm, of the distribution and of torch, and old ones are removed.",
        fix: &["look the tags up (hub.docker.com/r/rocm/pytorch/tags), or take :latest"],
        source: "https://hub.docker.com/u/rocm",
        ..BASE
    },
    Entry {
        id: "docker-daemon-refused",
        severity: Warning,
        patterns: &[
            r"(?i)permission denied while trying to connect to the Docker (?:daemon|API)",
            r"(?i)Cannot connect to the Docker daemon at",
        ],
        cause: "The command does not reach the Docker daemon: it does not run, or the user may not talk to it (the group docker). The GPU has no part in it.",
        fix: &[
            "Linux: sudo systemctl start docker; sudo usermod -aG docker $USER, then log in again",
            "Windows: start Docker Desktop",
        ],
        source: "https://docs.docker.com/engine/install/linux-postinstall/",
        ..BASE
    },
];
