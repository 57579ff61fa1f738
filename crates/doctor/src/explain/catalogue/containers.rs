//! Groups and devices of containers and services.

use super::Scope::NotWindows;
use super::{BASE, Entry};

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
        id: "kubernetes-no-gpu",
        patterns: &[
            r"Insufficient amd\.com/gpu",
            r"\b(?:capacity|allocatable)[\w.\x22:\[\] ]{0,12}amd\.com/gpu[\x22\]]?\s*[:=]\s*\x22?0\b",
            r"^\s*amd\.com/gpu:\s+0\s*$",
        ],
        cause: "No node of the cluster has a free amd.com/gpu: AMD's device plugin does not run on the node, it found no GPU there (the amdgpu driver is not loaded, the card is not supported), or other pods have requested all of them.",
        fix: &[
            "kubectl describe node <node> | grep -A 8 -E 'Capacity|Allocated': 0 of amd.com/gpu means the plugin found none, as many as are allocated means they are taken",
            "kubectl get pods -A | grep -iE 'amd.*(plugin|gpu)': install AMD's device plugin or GPU operator, and read the log of its pod on that node",
            "Linux: on the node: ls /dev/kfd /dev/dri and lsmod | grep amdgpu; the plugin counts what the driver offers",
        ],
        ask: &[
            "kubectl describe node <node>",
            "kubectl logs -n kube-system <pod of the amdgpu device plugin>",
        ],
        source: "https://github.com/ROCm/k8s-device-plugin",
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
];
