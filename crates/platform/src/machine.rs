//! The facts about a machine, on which all findings are based.
//!
//! A [`Machine`] is made by [`crate::detect`] from a snapshot, or by
//! `crate::dump` from the output of another tool; both fill the same structs, so
//! nothing later depends on where a fact came from.

mod windows;

use crate::memory::{Capacity, CgroupMemory, DeviceKind, HostMemory, Inputs, MemoryRule, capacity};
use crate::pci::{DeviceId, PciAddress};
use crate::python::Python;
use crate::{Bytes, Gfx};
use serde::Serialize;
use std::collections::BTreeMap;

pub use windows::{Adapter, HipInfo, Windows};

/// Where the facts were read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReadFrom {
    /// Files of the kernel: a live machine, a dump of one, or a KFD tree.
    #[default]
    Kfd,
    /// The output of `rocminfo`.
    Rocminfo,
    /// The output of `hipInfo`.
    Hipinfo,
    /// The output of `rocm-smi`.
    RocmSmi,
    /// The output of `amd-smi`.
    AmdSmi,
    /// The output of `torch.utils.collect_env` or `accelerate env`.
    PythonReport,
    /// The kernel log.
    KernelLog,
    /// The output of `lspci`.
    Lspci,
    /// A report about memory: sizes with names, in running text.
    Memory,
    /// The devices that a program listed when it started.
    Listing,
    /// A log with error messages.
    Log,
    /// The registry of Windows and `hipInfo`: a live machine, or a dump of one.
    Windows,
}

/// The operating system, as far as it matters to a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum System {
    /// Linux with its own kernel.
    #[default]
    Linux,
    /// Linux under Windows: no KFD, the GPU behind `/dev/dxg`.
    Wsl,
    /// Windows.
    Windows,
    /// macOS, for which there is no ROCm.
    Macos,
}

/// A kernel version that can be compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Kernel {
    /// As `uname -r` prints it.
    pub release: String,
    /// Major, minor, patch.
    #[serde(skip)]
    pub version: (u32, u32, u32),
}

impl Kernel {
    /// Reads `6.18.4-200.fc43.x86_64`; the patch level may be missing.
    #[must_use]
    pub fn parse(release: &str) -> Option<Self> {
        let release = release.split_whitespace().next()?;
        let mut numbers = release
            .split(|c: char| !c.is_ascii_digit())
            .map(|part| part.parse::<u32>().ok());
        let version = (
            numbers.next()??,
            numbers.next()??,
            numbers.next().flatten().unwrap_or(0),
        );
        Some(Self {
            release: release.to_owned(),
            version,
        })
    }
}

/// Everything known about a machine. Unknown facts are empty. A new fact needs a file that
/// [`crate::source::collect`] reads, and a line in [`crate::detect::machine`].
#[derive(Clone, Debug, Default, Serialize)]
pub struct Machine {
    /// Where the facts were read.
    pub read_from: ReadFrom,
    /// The operating system.
    pub system: System,
    /// Release of the kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<Kernel>,
    /// The distribution, as `/etc/os-release` calls it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distribution: Option<String>,
    /// The kind of container this runs in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// Version of the amdgpu module when it is AMD's (dkms) and not the kernel's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub amdgpu_dkms: Option<String>,
    /// The firmware package.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub firmware: Option<String>,
    /// RAM and swap.
    pub memory: HostMemory,
    /// The memory limit of this process.
    pub cgroup: CgroupMemory,
    /// Pages of 4 KiB that TTM lets GPUs use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttm_pages_limit: Option<u64>,
    /// Size of `/dev/shm`, where data loaders exchange batches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared_memory: Option<Bytes>,
    /// How many files a process may open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open_files: Option<u64>,
    /// Whether there is an `ffmpeg`, without which no video is read or written; a dump may not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub has_ffmpeg: Option<bool>,
    /// The parameters of the kernel, one a line: its command line and modprobe.d.
    #[serde(skip)]
    pub kernel_parameters: Vec<Parameter>,
    /// Results of opening the GPU's files in `/dev`; empty if that was not tried.
    #[serde(skip)]
    pub devices: Vec<DeviceFile>,
    /// Groups of this process, and the names of groups.
    #[serde(skip)]
    pub groups: Groups,
    /// The GPUs that HIP can use, in HIP's order.
    #[serde(skip)]
    pub gpus: Vec<Gpu>,
    /// GPUs that are there and that HIP cannot use.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unseen: Vec<UnusableGpu>,
    /// The GPUs on the PCI bus; `None` if it was not searched.
    #[serde(skip)]
    pub pci_bus: Option<PciBus>,
    /// Whether the library is there through which ROCm reaches the GPU of Windows; `None` outside of a
    /// WSL that was read as a whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub has_librocdxg: Option<bool>,
    /// The memory that `.wslconfig` gives to WSL, as it is written there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wslconfig_memory: Option<String>,
    /// What Windows says of its GPUs; `None` elsewhere, and where only a tool was read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub windows: Option<Windows>,
    /// Environment variables that matter to a GPU.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub variables: BTreeMap<String, String>,
    /// The active Python environment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub python: Option<Python>,
    /// What `surefoot probe` found for this GPU and torch: a check, and whether it passed.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub probed: BTreeMap<String, bool>,
    /// Numbers about memory that only a report contains.
    #[serde(skip)]
    pub reported: Reported,
    /// Facts about a posted text and the program that printed it.
    #[serde(skip)]
    pub posted: Posted,
    /// Whether the environment and limits above are those of the machine: a dump of
    /// another tool does not contain them, and silence then means nothing.
    #[serde(skip)]
    pub is_complete: bool,
}

impl Machine {
    /// A variable of the environment that is set and not empty.
    #[must_use]
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.variables
            .get(name)
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    }

    /// The value of a kernel parameter (`ttm.pages_limit`), the last one given.
    #[must_use]
    pub fn parameter(&self, name: &str) -> Option<&Parameter> {
        self.kernel_parameters
            .iter()
            .rev()
            .find(|parameter| parameter.name == name)
    }

    /// Whether the kernel is older than this; `false` when it is not known.
    #[must_use]
    pub fn kernel_before(&self, version: (u32, u32, u32)) -> bool {
        self.kernel
            .as_ref()
            .is_some_and(|kernel| kernel.version < version)
    }

    /// How much a process can allocate on a GPU of this machine: the number that the allocator
    /// enforces and the trainer plans with, as far as it follows from the facts. On a card `free` is an
    /// upper bound, since only the driver knows what other processes use there.
    ///
    /// `None` if the pool of the GPU is unknown, and for APUs outside Linux, whose
    /// drivers have their own rules.
    #[must_use]
    pub fn capacity(&self, gpu: &Gpu) -> Option<Capacity> {
        let kind = match gpu.class? {
            Class::Dgpu => DeviceKind::Discrete,
            Class::Apu if self.system == System::Linux => DeviceKind::Apu,
            Class::Apu => return None,
        };
        Some(capacity(&Inputs {
            kfd_pool: Some(gpu.usable_bytes?),
            host: self.memory,
            cgroup: self.cgroup,
            ttm_pages_limit: self.ttm_pages_limit,
            gtt_total: gpu.gtt_bytes,
            vram_total: gpu.vram_bytes,
            ..Inputs::new(kind)
        }))
    }

    /// Whether programs can be given a device override and ROCr's variables.
    #[must_use]
    pub fn uses_rocr(&self) -> bool {
        matches!(self.system, System::Linux | System::Wsl)
    }
}

/// A parameter of the kernel and where it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Module and parameter, such as `amdgpu.gttsize`.
    pub name: String,
    /// Value as it was written, such as `131072`.
    pub value: String,
    /// The kernel command line, or a file of modprobe.d.
    pub place: String,
}

/// A device file, and what opening it answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFile {
    /// Path of the file, such as `/dev/kfd`.
    pub path: String,
    /// `ok`, or the name of the error.
    pub access: String,
    /// Permission bits of the file, as `stat` gives them.
    pub mode: Option<u32>,
    /// The group that owns it.
    pub gid: Option<u32>,
}

/// Groups, by number: names differ between a host and its containers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Groups {
    /// Effective user id.
    pub uid: Option<u32>,
    /// Groups of this process (of the login session, not of `/etc/group`).
    pub own: Vec<u32>,
    /// Names from `/etc/group`.
    pub names: BTreeMap<u32, String>,
}

/// Card or APU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// Shares the RAM of the host.
    Apu,
    /// It has its own memory.
    Dgpu,
}

/// A GPU that HIP can use.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Gpu {
    /// Its number in HIP, when nothing is masked.
    pub index: usize,
    /// Architecture of the GPU; `None` when nothing told it.
    pub gfx: Option<Gfx>,
    /// Card or APU; null when the dump does not say.
    pub class: Option<Class>,
    /// How that was decided.
    pub class_from: &'static str,
    /// Its PCI address; the function is the partition in partition modes.
    pub pci: Option<PciAddress>,
    /// Its render node.
    pub render_node: Option<String>,
    /// Compute units (hipInfo on RDNA counts pairs of them).
    pub compute_units: Option<u32>,
    /// PCI device id.
    pub device_id: Option<DeviceId>,
    /// The product name.
    pub product: Option<String>,
    /// Its node in KFD.
    pub kfd_node: Option<u32>,
    /// The identity of the card; partitions share it.
    pub uuid: Option<String>,
    /// The most that `hipMalloc` can allocate.
    pub usable_bytes: Option<Bytes>,
    /// The rule that gives it.
    pub memory_rule: Option<MemoryRule>,
    /// Its own memory; on an APU the carve-out.
    pub vram_bytes: Option<Bytes>,
    /// RAM it may map.
    pub gtt_bytes: Option<Bytes>,
    /// Version of the scheduler's firmware (MES) that is loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mes_firmware: Option<u32>,
    /// Lanes of a wave.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wave_size: Option<u32>,
    /// Whether the architecture comes from the device id, for want of a better source.
    #[serde(skip)]
    pub gfx_from_device_id: bool,
}

impl Gpu {
    /// Whether it shares the RAM of the host.
    #[must_use]
    pub fn is_apu(&self) -> bool {
        self.class == Some(Class::Apu)
    }

    /// MI300A: host and GPU share one memory, all of which the GPU may have. The rules for
    /// APUs of consumers, which have a carve-out and a limit, do not hold for it.
    #[must_use]
    pub fn is_server_apu(&self) -> bool {
        self.is_apu() && self.gfx == Some(Gfx::new(9, 4, 2))
    }

    /// For sentences: `Radeon 8060S (gfx1151)`.
    #[must_use]
    pub fn name(&self) -> String {
        match (&self.product, self.gfx) {
            (Some(product), Some(gfx)) if product.contains(&gfx.to_string()) => product.clone(),
            (Some(product), Some(gfx)) => format!("{product}, {gfx}"),
            (Some(product), None) => product.clone(),
            (None, Some(gfx)) => gfx.to_string(),
            (None, None) => format!("GPU {}", self.index),
        }
    }
}

/// GPUs of all vendors on the PCI bus.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PciBus {
    /// How many of them are AMD's.
    pub amd: usize,
    /// The vendors of the others, by name where it is known.
    pub others: Vec<String>,
}

/// A GPU that HIP cannot use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnusableGpu {
    /// Its PCI address.
    pub pci: Option<PciAddress>,
    /// PCI device id.
    pub device_id: Option<DeviceId>,
    /// The product name.
    pub product: Option<String>,
    /// Why it is not there.
    pub reason: UnusableReason,
}

/// Why HIP does not see a GPU that the machine has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum UnusableReason {
    /// No driver is bound to it; the reason, if one was found.
    NoDriver(Option<String>),
    /// Bound to another driver, such as `vfio-pci`.
    OtherDriver(String),
    /// amdgpu runs it, but KFD has no node for it.
    NotInKfd,
    /// The device cgroup of this process hides it.
    HiddenByCgroup,
}

/// Numbers that tools reported about memory and that must be judged, not believed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reported {
    /// Free memory as HIP reports it.
    pub hip_free: Option<Bytes>,
    /// A total that a tool displays.
    pub tool_total: Option<Bytes>,
    /// A total as HIP reports it.
    pub hip_total: Option<Bytes>,
    /// The carve-out, as the BIOS setting was described.
    pub carve_out: Option<Bytes>,
    /// What Windows lets all programs have: RAM and page file.
    pub commit_limit: Option<Bytes>,
}

/// Facts about a posted text, and about the program that printed it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Posted {
    /// It describes a machine, and ends (or begins) before it comes to a GPU.
    pub is_cut: bool,
    /// What the program uses instead of ROCm.
    pub instead_of_rocm: Option<InsteadOfRocm>,
    /// GPUs of other vendors, by name.
    pub other_gpus: Vec<String>,
    /// A program that looked for a GPU and computes on the CPU.
    pub cpu_only: Option<String>,
    /// Architectures for which the program's libraries have no code, and those that they support.
    pub without_code: Option<(Vec<Gfx>, Vec<Gfx>)>,
    /// The processor, if its name determines its integrated graphics.
    pub processor: Option<String>,
    /// No GPU has a specific name: `AMD Radeon Graphics`, or none.
    pub is_nameless: bool,
    /// Its GPUs are named in passing, so that their numbers are not known.
    pub is_unordered: bool,
    /// An NPU is listed.
    pub has_npu: bool,
    /// A size of memory that cannot be, as it was given.
    pub impossible_memory: Option<Bytes>,
    /// The version of ROCm that is installed.
    pub rocm: Option<String>,
    /// The versions of ROCm that lie on the disk or that packages are of, one of each release.
    pub rocm_versions: Vec<String>,
    /// A package index with ROCm builds is named.
    pub wants_rocm: bool,
    /// A program failed, in words that need not be known.
    pub has_failed: bool,
    /// PyTorch says that it sees no GPU, and nowhere that it sees one.
    pub torch_sees_none: bool,
    /// PyTorch says that it sees a GPU.
    pub sees_gpu: bool,
    /// The line in which a program shows that it works on the GPU.
    pub works: Option<String>,
    /// The group that owns `/dev/kfd` and of which the user is no member, as `ls -l` and `id` show.
    pub lacks_group: Option<String>,
    /// `rocminfo` is whole and lists no GPU, whatever else the text names.
    pub rocminfo_lists_none: bool,
    /// The words in which a program says that it computes on the CPU.
    pub on_cpu: Option<String>,
    /// What the program computes with where that is not PyTorch: `JAX`, `TensorFlow`.
    pub framework: Option<&'static str>,
    /// A list of the architectures that something was compiled for: what it is, and the list.
    pub code_list: Option<(String, Vec<Gfx>)>,
}

/// What lets a program use an AMD GPU without ROCm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InsteadOfRocm {
    /// DirectML of Windows.
    DirectMl,
    /// ZLUDA, which runs programs for CUDA.
    Zluda,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_releases_compare() {
        let version = |text: &str| Kernel::parse(text).map(|kernel| kernel.version);
        assert_eq!(version("6.18.4-200.fc43.x86_64"), Some((6, 18, 4)));
        assert_eq!(version("6.10.0-rc1"), Some((6, 10, 0)));
        assert_eq!(version("7.1"), Some((7, 1, 0)));
        assert_eq!(version("linux"), None);
        assert_eq!(version(""), None);
    }
}
