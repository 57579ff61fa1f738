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
