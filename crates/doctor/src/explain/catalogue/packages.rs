//! Messages of apt and pip.

use super::Scope::{BareMetal, NotWindows};
use super::{BASE, Entry};
use crate::explain::Confidence::Medium;
use crate::explain::Severity::Warning;

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        id: "apt-unmet-dependencies",
        patterns: &[
            r"(?i)(?:rocm|hip|amdgpu|rocblas|miopen|rccl)\S* : (?:Pre)?Depends: \S+ \(= ",
            r"(?i)Depends: (?:rocm|hip|rocminfo|hsa|comgr|rocblas|miopen|amdgpu)\S* .*(?:but .* is to be installed|is not going to be installed|is not installable)",
            r"(?i)^\W*(?:\d+\.\d+ +)?(?:rocm|hip|amdgpu|rocblas|roc\w+|miopen|rccl|llvm-amdgpu|comgr|hsa|openmp-extras|half)\S* : (?:Pre-?)?Depends: \S+.* but it is not (?:installable|going to be installed)",
            r"(?i)Depends: (?:libc6|libstdc\+\+6|python3|zlib1g|libzstd1) \(= \S+\) but \S+ is to be installed",
            r"(?i)^\W*(?:amdgpu|rocm|hip|roc\w+|miopen|rccl)\S* depends on \S+.{0,60}; however:",
            r"(?i)trying to overwrite '/\S*rocm\S*', which is also in package",
        ],
        scope: NotWindows,
        cause: "The packages of ROCm conflict: the distribution's own versions (Ubuntu has a rocminfo, rocm-cmake and hipcc of its own) are preferred to those of AMD's repository, the repository is that of another distribution release, or packages of an older ROCm or amdgpu-dkms are left.",
        fix: &[
            "prefer AMD's repository with a pin: in /etc/apt/preferences.d/rocm-pin-600 the lines `Package: *`, `Pin: release o=repo.radeon.com`, `Pin-Priority: 600`; then sudo apt update",
            "remove what is left: sudo amdgpu-install --uninstall (or sudo apt purge 'rocm*' 'hip*' amdgpu-dkms), sudo apt autoremove, then install again",
            "look whether /etc/apt/sources.list.d/rocm.list names your release (jammy, noble)",
        ],
        ask: &[
            "apt-cache policy rocminfo rocm-cmake hipcc",
            "cat /etc/apt/sources.list.d/rocm.list /etc/apt/preferences.d/*",
            "cat /etc/os-release | head -n 4",
        ],
        source: "https://github.com/ROCm/legacy-rocm-build/issues/1713",
        ..BASE
    },
    Entry {
        id: "rpm-dependencies",
        patterns: &[
            r"(?i)nothing provides \S.* needed by \S*(?:rocm|hip|amdgpu|comgr|rocblas|roc\w+|miopen|rccl|hsa|llvm-amdgpu)\S*",
            r"(?i)package (?:amd|rocm|hip|roc|comgr|miopen|rccl)\S* .{0,60}requires .*none of the providers can be installed",
            r"(?i)the to be installed (?:rocm|hip|roc|comgr|miopen|rccl|amdgpu)\S* requires|needed by the to be installed (?:rocm|hip|roc|comgr|miopen|rccl|amdgpu)",
            r"(?i)rpm transaction failed|Error: Transaction test error.*(?:rocm|amdgpu)",
        ],
        scope: NotWindows,
        cause: "The packages of ROCm need others that this system does not have: they were built for another release or distribution (the el8, el9, fc… in their names says which; a GLIBC or GLIBCXX that is missing means a newer one), or a repository that they build upon (EPEL, CodeReady Builder, PowerTools) is not enabled.",
        fix: &[
            "the repository of this very release; on Fedora the distribution's own ROCm packages (sudo dnf install rocm) instead of AMD's",
            "RHEL and its kin: EPEL and CodeReady Builder first: sudo dnf install epel-release; sudo crb enable",
            "nothing of it is needed for a torch wheel, which brings its own ROCm",
        ],
        ask: &["cat /etc/os-release; dnf repolist"],
        source: "https://rocm.docs.amd.com/projects/install-on-linux/en/latest/install/prerequisites.html",
        ..BASE
    },
    Entry {
        id: "package-half-installed",
        patterns: &[
            r"(?i)The package \S+ needs to be reinstalled, but I can't find an archive for it",
            r"(?i)Package is in a very bad inconsistent state",
            r"(?i)dpkg was interrupted, you must manually run",
        ],
        scope: NotWindows,
        cause: "An installation broke off, and apt refuses everything until the package that it left half installed is gone.",
        fix: &[
            "sudo dpkg --configure -a first; if one package blocks: sudo dpkg --remove --force-remove-reinstreq <package>, then sudo apt --fix-broken install",
            "Linux: amdgpu-dkms is seldom needed: the kernel's own amdgpu driver does (amdgpu-install --no-dkms)",
        ],
        source: "https://manpages.debian.org/dpkg",
        ..BASE
    },
    Entry {
        id: "apt-repository-refused",
        patterns: &[
            r"(?i)repo\.radeon\.com.*(?:404|does not have a Release file|not signed|NO_PUBKEY)",
            r"(?i)Unable to locate package (?:rocm|hip|amdgpu|roc\w+|hsa-|comgr|miopen|rccl|migraphx|amd-smi|\S+-amdgpu|\S+-rocm)\S*",
            r"(?i)Package '?(?:rocm|hip|amdgpu|roc\w+|miopen|rccl|comgr)\S* has no installation candidate",
            r"(?i)error: target not found: (?:rocm|hip|roc\w+|miopen|rccl|comgr|hsa)\S*",
            r"(?i)No match for argument: (?:rocm|hip|amdgpu|roc\w+|miopen)\S*",
            r"(?i)Cannot find a valid baseurl for repo: (?:rocm|amdgpu)",
            r"(?i)amdgpu-install: (?:command )?not found",
            r"(?i)Version '\S+' for '(?:rocm|hip|amdgpu|roc\w+|miopen|rccl)\S*' was not found",
            r"(?i)Unable to find a match: .*(?:rocm|hip|amdgpu)",
            r"(?i)nothing provides \S+.* needed by (?:rocm|hip|amdgpu|miopen|rocblas)",
            r"(?i)Failed to download metadata for repo '(?:amdgpu|rocm)\S*'",
            r"(?i)GPG error: .*repo\.radeon\.com|repo\.radeon\.com.*signatures couldn't be verified",
        ],
        scope: NotWindows,
        cause: "AMD's repository is not set up, or has nothing for this release of the distribution.",
        fix: &[
            "install the amdgpu-install package for your distribution and version from repo.radeon.com, then sudo apt update",
            "a 404 for amdgpu/<version>: the driver has version numbers of its own since ROCm 7 (30.10, 30.20, …), and lists of apt from an older amdgpu-install may be left: sudo apt purge amdgpu-install, remove amdgpu*.list and rocm*.list from /etc/apt/sources.list.d, then install it again",
            "Arch: its own packages are in extra: sudo pacman -Syu rocm-hip-sdk",
            "a distribution that AMD has no repository for: its own packages of ROCm, or wheels that bring ROCm (`surefoot doctor` prints the command)",
        ],
        source: "https://rocm.docs.amd.com/projects/install-on-linux/en/latest/",
        ..BASE
    },
    Entry {
        id: "pip-other-platform",
        patterns: &[
            r"(?i)has no wheels with a matching (?:platform|Python|ABI) (?:version )?tag",
            r"(?i)can't be installed because it doesn't have a source distribution or wheel for the current platform",
            r"(?i)hint: .*(?:Wheels are available for .* on|only has wheels for) the following platform",
            r"(?i)\S*(?:torch|rocm|triton)\S*\.whl is not a supported wheel on this platform",
        ],
        covers: &["pip-no-version"],
        cause: "The index has wheels, but not for this platform (Linux or Windows), this Python version or this processor.",
        fix: &[
            "another index or version that has the platform and Python (`surefoot doctor` prints the command for this GPU)",
            "Python 3.10 to 3.13: most ROCm wheels exist for those alone",
            "some architectures have wheels for Windows only: there an older ROCm release, or a build of your own, on Linux",
        ],
        source: "https://github.com/pytorch/pytorch/issues/184430",
        ..BASE
    },
    Entry {
        id: "pip-no-version",
        patterns: &[
            r"(?i)Could not find a version that satisfies the requirement (?:torch|torchvision|torchaudio|pytorch|triton|rocm|tensorflow|jax|vllm|bitsandbytes|xformers|flash)",
            r"(?i)No matching distribution found for (?:torch|torchvision|torchaudio|pytorch|triton|rocm|tensorflow|jax|vllm|bitsandbytes|xformers|flash)",
            r"(?i)Because there (?:is|are) no versions? of (?:torch|rocm|triton|pytorch)\S*",
        ],
        cause: "That index has no such version, or none for this Python version and platform: a Python newer than the wheels, a nightly that was deleted, or a package that is in PyTorch's or AMD's index and not in PyPI.",
        fix: &[
            "`(from versions: …)` lists what there is for this Python; `none` means no wheel for it: take Python 3.12",
            "Linux, WSL: name the index: --index-url https://download.pytorch.org/whl/rocm<version> (or --extra-index-url, where dependencies come from PyPI)",
            "Windows: PyTorch's own index has ROCm wheels for Linux alone; AMD's has those for Windows: --index-url https://repo.amd.com/rocm/whl-multi-arch/ with torch[device-<gfx>]",
            "ask for a version that is listed, or for none",
        ],
        ask: &[
            "python --version; pip --version",
            "pip index versions torch --index-url <the index>",
        ],
        source: "https://pytorch.org/get-started/locally/",
        ..BASE
    },
    Entry {
        id: "torchvision-other-build",
        patterns: &[
            r"(?i)\b(?:torchvision|torchaudio)\S* \S+ (?:requires|has requirement) torch==\S+, but you(?:'ll)? have torch \S+ which is incompatible",
            r"(?i)(?:torchvision|torchaudio).*undefined symbol",
            r"(?i)partially initialized module 'torchvision' has no attribute 'extension'",
            r"(?i)operator torchvision::nms does not exist",
            r"(?i)Could not run 'torchvision::nms' with arguments from the '(?:CUDA|HIP)' backend",
            r"(?i)Couldn't load custom C\+\+ ops",
            r"(?i)Detected that PyTorch and torchvision were compiled with different CUDA (?:major )?versions",
        ],
        covers: &["operator-not-in-build"],
        cause: "torchvision is not of the same build as torch: one of them was replaced, so that the two are of different versions or one is for CUDA or the CPU.",
        fix: &[
            "reinstall torch, torchvision and torchaudio together from the same index: pip install --force-reinstall torch torchvision torchaudio --index-url <the ROCm index>",
            "`surefoot doctor` prints the versions that belong together",
        ],
        ask: &["pip list | grep -i torch"],
        source: "https://github.com/ROCm/legacy-rocm-build/issues/5897",
        ..BASE
    },
    Entry {
        id: "numpy-two",
        severity: Warning,
        patterns: &[
            r"(?i)Numba needs NumPy",
            r"RuntimeError: Numpy is not available",
            r"A module that was compiled using NumPy 1\.x cannot be run in",
            r"numpy\.dtype size changed, may indicate binary incompatibility",
            r"_ARRAY_API not found",
            r"(?i)RuntimeError: Numpy is not available",
            r"(?i)numpy\.core\.(?:multiarray|umath) failed to import",
        ],
        cause: "A package was built for NumPy 1, and NumPy 2 is installed. It has nothing to do with the GPU.",
        fix: &[
            "pip install \"numpy<2\", or a newer version of the package that the traceback names",
        ],
        source: "https://numpy.org/devdocs/user/troubleshooting-importerror.html",
        ..BASE
    },
    Entry {
        id: "amdgpu-install-distribution",
        patterns: &[
            r"(?i)amdgpu-(?:pro-)?install.{0,80}(?:unsupported|not supported|unknown).{0,20}(?:OS|distribution|distro)",
            r"(?i)unsupported (?:OS|distribution|distro)\W.{0,60}(?:/etc/os-release|\bID\b|\b(?:pop|neon|kali|zorin|elementary|arch|manjaro|fedora|nobara|cachyos)\b)",
            r"(?i)ERROR: (?:this )?(?:OS|distribution) (?:is )?not supported.{0,40}amdgpu",
        ],
        scope: NotWindows,
        cause: "amdgpu-install knows only the distributions that AMD supports (Ubuntu, Debian, RHEL and its kin, SLES): it reads ID in /etc/os-release and stops for any other, also for those that are made from Ubuntu.",
        fix: &[
            "a distribution made from Ubuntu or Debian (Pop!_OS, KDE neon, Zorin, Kali): add AMD's repository by hand for the release that it is made from (jammy, noble), and install rocm without the DKMS driver: that of the kernel does",
            "Fedora, Arch, openSUSE, NixOS: their own packages of ROCm",
            "a container for ROCm (rocm/pytorch), or a torch wheel, which brings its ROCm: neither needs an installed ROCm",
        ],
        ask: &["cat /etc/os-release | head -n 5"],
        source: "https://github.com/ROCm/legacy-rocm-build/issues/5925",
        ..BASE
    },
    Entry {
        id: "package-manager-busy",
        severity: Warning,
        patterns: &[
            r"(?i)Could not get lock /var/lib/(?:dpkg|apt)/",
            r"(?i)Unable to (?:acquire the dpkg frontend lock|lock the administration directory|lock directory /var/lib/apt)",
            r"(?i)unable to lock database|/var/lib/pacman/db\.lck",
        ],
        scope: NotWindows,
        cause: "Another program of the package manager runs (automatic updates after the start, a software centre, another terminal) and holds its lock.",
        fix: &[
            "wait until it has ended, then again; the line names its process",
            "pacman, if none runs any more: sudo rm /var/lib/pacman/db.lck",
        ],
        source: "https://manpages.debian.org/apt",
        ..BASE
    },
    Entry {
        id: "package-files-conflict",
        confidence: Medium,
        patterns: &[
            r"(?i)file \S*(?:rocm|hip|amdgpu|opencl)\S* .{0,120}conflicts (?:between attempted installs|with file from package)",
            r"(?i)\S*(?:rocm|hip|hsa|comgr|miopen|rccl|opencl)\S*: /\S+ exists in filesystem",
            r"(?i)installing \S*(?:rocm|hip|hsa|comgr|miopen|rccl)\S* \(.{0,40}breaks dependency",
            r"(?i)unable to satisfy dependency '\S*(?:rocm|hip|hsa|comgr|miopen|rccl)\S*' required by",
            r"(?i)(?:rocm|hip|hsa|opencl-amd|comgr|miopen|rccl)\S* and \S+ are in conflict",
            r"(?i) and \S*(?:rocm|hip|hsa|opencl-amd|comgr|miopen|rccl)\S* are in conflict",
        ],
        scope: NotWindows,
        cause: "Two packages of ROCm bring the same files or need different versions of a third: those of the distribution and those of AMD or of users (AUR, opencl-amd, copr) are mixed, or only a part was updated.",
        fix: &[
            "all of ROCm from one origin: remove the other packages first (the line names them), then install again",
            "Arch: a whole update (sudo pacman -Syu), never a part; packages of AUR that need ROCm are removed before and built again after",
            "files that no package owns (left from an installation by script): delete them, or pacman --overwrite",
        ],
        ask: &["pacman -Qo <the file of the message>; rpm -qf <the file>; dpkg -S <the file>"],
        source: "https://wiki.archlinux.org/title/Pacman",
        ..BASE
    },
    Entry {
        id: "package-signature",
        severity: Warning,
        patterns: &[
            r"(?i)signature from .{0,80} is (?:unknown trust|marginal trust|invalid)",
            r"(?i)invalid or corrupted package \(PGP signature\)",
            r"(?i)Public key for \S*(?:rocm|hip|amdgpu|miopen)\S* is not installed",
        ],
        scope: NotWindows,
        cause: "The package manager does not know the key that signed the package, or its keys are out of date.",
        fix: &[
            "Arch: sudo pacman -Sy archlinux-keyring && sudo pacman -Su; for another repository, its key as its page says",
            "RHEL, Fedora: sudo rpm --import https://repo.radeon.com/rocm/rocm.gpg.key",
        ],
        source: "https://wiki.archlinux.org/title/Pacman/Package_signing",
        ..BASE
    },
    Entry {
        id: "dkms-leftover",
        confidence: Medium,
        patterns: &[
            r"(?i)Could not locate dkms\.conf file",
            r"(?i)DKMS tree already contains: ?(?:amdgpu|rock)",
            r"(?i)(?:amdgpu|rock)\S* is already added",
        ],
        also: &[r"(?i)amdgpu|rock-"],
        scope: BareMetal,
        covers: &["amdgpu-dkms-build"],
        cause: "DKMS remembers a version of the amdgpu driver whose sources are gone or that is registered twice: an installation broke off, or an older release was removed by hand.",
        fix: &[
            "sudo dkms status; sudo dkms remove amdgpu/<version> --all for each old one; what stays: sudo rm -r /var/lib/dkms/amdgpu/<version>",
            "then sudo apt install --reinstall amdgpu-dkms, or without it: the kernel's own driver is enough (sudo apt purge amdgpu-dkms)",
        ],
        ask: &["dkms status; ls /var/lib/dkms/amdgpu /usr/src | grep amdgpu"],
        source: "https://github.com/dell/dkms",
        ..BASE
    },
];
