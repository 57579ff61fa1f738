//! Repositories of packages: their keys, addresses and downloads, and what package managers ask for beside them.

use super::Scope::{BareMetal, NotWindows};
use super::{BASE, Entry};
use crate::explain::Confidence::Medium;
use crate::explain::Severity::{Info, Warning};

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        id: "repository-key",
        patterns: &[
            r"(?i)Conflicting values set for option Signed-By .{0,30}repo\.(?:radeon|amd)\.com",
            r"(?:NO_PUBKEY|EXPKEYSIG|KEYEXPIRED|BADSIG)\W+(?:9386B48A1A693C5C|1A693C5C)",
            r"(?i)unknown key .{0,4}(?:9386B48A)?1A693C5C",
            r"(?i)GPG keys listed for the .{0,30}(?:rocm|amdgpu).{0,40}not correct",
            r"(?i)repo\.radeon\.com.{0,120}(?:NO_PUBKEY|EXPKEYSIG|is not signed|signatures? (?:were|was|couldn't))",
        ],
        scope: NotWindows,
        covers: &["apt-repository-refused", "package-signature"],
        cause: "The key that signs AMD's repository is not where the entry of the repository looks for it: it was never stored there, it is an old one that has expired, or two entries name the same repository with different keys.",
        fix: &[
            "store the key anew: sudo mkdir -p /etc/apt/keyrings; wget -qO- https://repo.radeon.com/rocm/rocm.gpg.key | sudo gpg --dearmor --yes -o /etc/apt/keyrings/rocm.gpg, and let each entry say [signed-by=/etc/apt/keyrings/rocm.gpg]",
            "grep -r repo.radeon.com /etc/apt/sources.list.d: of two entries for one repository (one that was written by hand, one that a script or amdgpu-install wrote) delete the older, then sudo apt update",
            "RHEL, Fedora, SUSE: sudo rpm --import https://repo.radeon.com/rocm/rocm.gpg.key",
        ],
        ask: &[
            "grep -r radeon /etc/apt/sources.list /etc/apt/sources.list.d; ls -l /etc/apt/keyrings",
        ],
        source: "https://rocm.docs.amd.com/projects/install-on-linux/en/latest/install/install-methods/package-manager/package-manager-ubuntu.html",
        ..BASE
    },
    Entry {
        id: "apt-download-broken",
        severity: Warning,
        patterns: &[
            r"(?i)Failed to fetch \S+.{0,20}(?:Hash Sum mismatch|File has unexpected size)",
            r"(?i)Failed to fetch \S+.{0,20}(?:Could not (?:connect|resolve|handshake)|Connection (?:timed out|failed|refused)|Temporary failure resolving|Certificate verification failed)",
            r"(?i)^\W*Hash Sum mismatch\W*$",
        ],
        scope: NotWindows,
        covers: &["pip-download-broken"],
        cause: "apt could not download a package: the connection broke off, a proxy changed the file, or the server was just being updated. The packages of ROCm have gigabytes, so that it happens often.",
        fix: &[
            "sudo apt clean; sudo rm -rf /var/lib/apt/lists/*; sudo apt update, then again; an hour later, if the server was being updated",
            "behind a proxy or in a network that blocks the server: another network",
        ],
        source: "https://wiki.debian.org/AptConfiguration",
        ..BASE
    },
    Entry {
        id: "installer-address-wrong",
        confidence: Medium,
        patterns: &[r"ERROR 404: Not Found|The requested URL returned error: 404"],
        also: &[r"(?i)repo\.(?:radeon|amd)\.com"],
        scope: NotWindows,
        covers: &["apt-repository-refused"],
        cause: "The address does not exist at AMD's server: the release of ROCm, its build number in the file's name, or the release of the distribution is not (or no longer) there.",
        fix: &[
            "look into the folder in a browser (https://repo.radeon.com/amdgpu-install/, https://repo.radeon.com/rocm/) and take the file of a release that lists your distribution (jammy, noble; el8, el9)",
        ],
        source: "https://repo.radeon.com/amdgpu-install/",
        ..BASE
    },
    Entry {
        id: "kernel-headers-unavailable",
        patterns: &[
            r"(?i)(?:Unable to locate package|Couldn't find any package by (?:glob|regex)) .?linux-(?:headers|modules-extra)-\S+",
            r"(?i)Package .?linux-(?:headers|modules-extra)-\S+ has no installation candidate",
            r"(?i)(?:No match for argument|Unable to find a match): kernel-(?:devel|headers)(?:-matched)?-\S+",
        ],
        scope: BareMetal,
        cause: "The package manager has no headers (or extra modules) for the kernel that runs: the kernel is older than what the repository still has, or not one of this distribution (mainline, a vendor's, Raspberry Pi's).",
        fix: &[
            "update and restart into the newest kernel of the distribution (sudo apt full-upgrade; sudo dnf upgrade), then again",
            "headers are only for amdgpu-dkms, which is seldom needed: amdgpu-install --usecase=rocm --no-dkms",
        ],
        ask: &["uname -r; apt-cache search linux-headers | tail -n 5"],
        source: "https://rocm.docs.amd.com/projects/install-on-linux/en/latest/install/prerequisites.html",
        ..BASE
    },
    Entry {
        id: "apt-unsandboxed-harmless",
        severity: Info,
        patterns: &[r"(?i)Download is performed unsandboxed as root as file"],
        cause: "apt only says that it read the package file as root, since its own user may not look into your home folder. The installation is not affected.",
        fix: &["nothing is needed; a file in /tmp gives no such line"],
        scope: NotWindows,
        source: "https://manpages.debian.org/apt",
        ..BASE
    },
    Entry {
        id: "group-missing",
        patterns: &[r"(?i)\bgroup '?(?:render|video)'? does not exist"],
        scope: BareMetal,
        cause: "This system has no group of that name: old releases and small images lack `render`, and there the device belongs to another group.",
        fix: &[
            "the group that owns the device: sudo usermod -aG $(stat -c %G /dev/kfd) $USER, then log in again",
            "if it belongs to root alone: sudo groupadd -r render, and a udev rule: KERNEL==\"kfd\", GROUP=\"render\", MODE=\"0660\"",
        ],
        ask: &["ls -ln /dev/kfd /dev/dri; getent group render video"],
        source: "https://rocm.docs.amd.com/projects/install-on-linux/en/latest/install/prerequisites.html",
        ..BASE
    },
    Entry {
        id: "nix-package-refused",
        severity: Warning,
        confidence: Medium,
        patterns: &[
            r"(?i)(?:is|has been) marked as (?:broken|insecure), refusing to evaluate",
            r"(?i)builder for '/nix/store/[\w.-]*(?:rocm|hip|miopen|rocblas|composable|rccl|torch|triton|migraphx)\S*' failed",
            r"(?i)Cannot build '/nix/store/[\w.-]*(?:rocm|hip|miopen|rocblas|composable|rccl|torch|triton|migraphx)\S*'",
        ],
        also: &[r"(?i)rocm|hip|torch"],
        scope: BareMetal,
        covers: &["extension-build-failed"],
        cause: "nixpkgs cannot build this package of ROCm in the revision that is used: it is marked as broken there, or its build needs more time or memory than there is, since binary caches have no ROCm builds of most packages.",
        fix: &[
            "another revision of nixpkgs (the channel nixos-unstable, or a release in which hydra built it), and its binary cache",
            "fewer architectures: rocmPackages.gfx1100 or nixpkgs.config.rocmTargets, which also makes the build smaller",
            "or a wheel of torch, which brings its ROCm, in an environment with nix-ld or a container",
        ],
        ask: &["nix log <the .drv of the message> | tail -n 40"],
        source: "https://nixos.org/manual/nixpkgs/stable/#rocm",
        ..BASE
    },
    Entry {
        id: "gentoo-masked",
        severity: Warning,
        patterns: &[
            r"(?i)All ebuilds that could satisfy .{0,60}(?:rocm|hip|roct|hsa|rocblas|miopen).{0,40}masked",
            r"(?i)any-of \( amdgpu_targets_|amdgpu_targets_gfx\w+.{0,80}(?:unsatisfied|not met)",
            r"(?i)masked by: .{0,40}keyword.{0,80}(?:rocm|hip)",
        ],
        scope: BareMetal,
        cause: "Portage holds the package back: it is masked (keywords for testing), or AMDGPU_TARGETS names no architecture.",
        fix: &[
            "AMDGPU_TARGETS=\"<gfx>\" in /etc/portage/make.conf",
            "accept the keyword: the line `<category>/<package> ~amd64` for each package of ROCm in /etc/portage/package.accept_keywords (all of one version)",
        ],
        source: "https://wiki.gentoo.org/wiki/ROCm",
        ..BASE
    },
];
