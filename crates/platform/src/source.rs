//! Reading a [`Snapshot`] from a live machine.
//!
//! [`Source`] is all the I/O there is; [`collect`] decides what to read. Nothing
//! is started and nothing is written: about a hundred small files on a machine
//! with one GPU, a few milliseconds.

use crate::memory::host::memory_cgroups;
use crate::snapshot::{Content, Snapshot};

/// The few things that must be read from an operating system.
pub trait Source {
    /// The text of a file. `None` when it is not there.
    fn read(&self, path: &str) -> Option<Content>;
    /// The names in a folder; empty when it cannot be listed.
    fn list(&self, folder: &str) -> Vec<String>;
    /// Opens a device for reading and writing and closes it again: `ok`, or the
    /// name of the error.
    fn open_device(&self, path: &str) -> String;
    /// Permissions of a file, as `mode=0660 uid=0 gid=992`.
    fn owner(&self, path: &str) -> Option<String>;
    /// The environment of this process.
    fn variables(&self) -> Vec<(String, String)>;
    /// The path behind symbolic links.
    fn real_path(&self, path: &str) -> Option<String>;
    /// Every word (up to the next byte that is no ASCII letter, digit or `-`) that
    /// begins with `prefix` in a large binary file, each once.
    fn words(&self, path: &str, prefix: &str) -> Vec<String>;
    /// Whether paths and names of programs are those of Windows.
    fn is_windows(&self) -> bool {
        false
    }
}

/// Environment variables that matter to a GPU, by prefix.
const VARIABLE_PREFIXES: [&str; 27] = [
    "ACCELERATE_",
    "AMD_",
    "BNB_",
    "CUDA_",
    "DEBUG_CLR_",
    "DISABLE_ADDMM",
    "FLASH_ATTENTION_",
    "GPU_",
    "HCC_",
    "HIP_",
    "HIPBLASLT_",
    "HSAKMT_",
    "HSA_",
    "LD_",
    "MIOPEN_",
    "NCCL_",
    "OMP_",
    "PYTORCH_",
    "RCCL_",
    "ROCBLAS_",
    "ROCM_",
    "ROCR_",
    "SUREFOOT_",
    "TENSILE_",
    "TORCH_",
    "TRITON_",
    "UV_AMD",
];

/// Whether a variable belongs in a snapshot. The rest of the environment is
/// private: a dump is meant to be posted.
#[must_use]
pub fn is_relevant_variable(name: &str) -> bool {
    VARIABLE_PREFIXES
        .iter()
        .any(|prefix| name.starts_with(prefix))
        || matches!(
            name,
            "VIRTUAL_ENV" | "CONDA_PREFIX" | "PYTHONPATH" | "PYTHONHOME" | "CUDA_HOME"
        )
}

/// Reads what the doctor needs.
#[must_use]
pub fn collect(source: &dyn Source) -> Snapshot {
    let mut reader = Reader {
        source,
        snapshot: Snapshot::default(),
    };
    reader.kfd();
    reader.drm();
    reader.pci();
    reader.kernel();
    reader.cgroup();
    reader.devices();
    reader.packages();
    reader.environment();
    reader.ffmpeg();
    reader.snapshot
}

/// The part that is about this process, on every system.
pub(crate) fn collect_process(source: &dyn Source) -> Snapshot {
    let mut reader = Reader {
        source,
        snapshot: Snapshot::default(),
    };
    reader.environment();
    reader.ffmpeg();
    reader.snapshot
}

struct Reader<'a> {
    source: &'a dyn Source,
    snapshot: Snapshot,
}

impl Reader<'_> {
    fn file(&mut self, path: &str) {
        if let Some(content) = self.source.read(path) {
            self.snapshot.insert(path, content);
        }
    }

    fn files(&mut self, folder: &str, names: &[&str]) {
        for name in names {
            self.file(&format!("{folder}/{name}"));
        }
    }

    /// The part of a file that concerns us. The rest (names of users, of network
    /// drives) does not belong into something that is made to be posted.
    fn lines(&mut self, path: &str, keep: &dyn Fn(&str) -> bool) {
        if let Some(Content::Text(text)) = self.source.read(path) {
            let kept: String = text
                .lines()
                .filter(|line| keep(line))
                .map(|line| format!("{line}\n"))
                .collect();
            if !kept.is_empty() {
                self.snapshot.insert_text(path, kept);
            }
        }
    }

    fn kfd(&mut self) {
        const TOPOLOGY: &str = "/sys/class/kfd/kfd/topology";
        self.file("/sys/class/kfd/kfd/topology/system_properties");
        for node in self.source.list(&format!("{TOPOLOGY}/nodes")) {
            let node = format!("{TOPOLOGY}/nodes/{node}");
            self.files(&node, &["gpu_id", "name", "properties"]);
            for bank in self.source.list(&format!("{node}/mem_banks")) {
                self.file(&format!("{node}/mem_banks/{bank}/properties"));
            }
        }
    }

    fn drm(&mut self) {
        const WANTED: [&str; 13] = [
            "vendor",
            "device",
            "uevent",
            "board_info",
            "mem_info_vram_total",
            "mem_info_vram_used",
            "mem_info_gtt_total",
            "mem_info_gtt_used",
            "mem_info_vram_vendor",
            "uma/carveout",
            "uma/carveout_options",
            "current_compute_partition",
            "fw_version/mes_fw_version",
        ];
        for name in self.source.list("/sys/class/drm") {
            if name.starts_with("renderD") {
                self.files(&format!("/sys/class/drm/{name}/device"), &WANTED);
            }
        }
    }

    fn pci(&mut self) {
        let addresses = self.source.list("/sys/bus/pci/devices");
        // That the bus was read, and lists no GPU, is a fact too.
        if !addresses.is_empty() {
            self.snapshot
                .insert_text("pci-devices", format!("{}\n", addresses.len()));
        }
        for address in addresses {
            let folder = format!("/sys/bus/pci/devices/{address}");
            let is = |content: Option<Content>, prefixes: &[&str]| match content {
                Some(Content::Text(text)) => prefixes.iter().any(|prefix| text.starts_with(prefix)),
                _ => false,
            };
            // Display controllers, and accelerators without a display (Instinct).
            if is(
                self.source.read(&format!("{folder}/class")),
                &["0x03", "0x12"],
            ) {
                self.files(&folder, &["vendor", "device", "class", "uevent"]);
            }
        }
    }

    fn kernel(&mut self) {
        for module in ["ttm", "amdttm"] {
            self.files(
                &format!("/sys/module/{module}/parameters"),
                &["pages_limit", "page_pool_size"],
            );
        }
        self.files("/sys/module/amdgpu", &["version", "initstate"]);
        self.files(
            "/sys/module/amdgpu/parameters",
            &["gttsize", "vramlimit", "cwsr_enable", "mes"],
        );
        self.files(
            "/proc",
            &[
                "cmdline",
                "meminfo",
                "sys/kernel/osrelease",
                "self/limits",
                "self/cgroup",
            ],
        );
        self.lines("/proc/self/status", &|line| {
            ["Uid:", "Gid:", "Groups:"]
                .iter()
                .any(|key| line.starts_with(key))
        });
        self.lines("/proc/mounts", &|line| {
            line.split_whitespace().nth(1) == Some("/dev/shm")
        });
        self.files("/etc", &["os-release"]);
        self.files("/", &[".dockerenv", "run/.containerenv"]);
        for folder in ["/etc/modprobe.d", "/usr/lib/modprobe.d", "/run/modprobe.d"] {
            for name in self.source.list(folder) {
                let path = format!("{folder}/{name}");
                // Only the few of them that say something about the driver.
                if let Some(Content::Text(text)) = self.source.read(&path) {
                    let about = |line: &&str| {
                        !line.trim_start().starts_with('#')
                            && (line.contains("amdgpu") || line.contains("ttm"))
                    };
                    let lines: Vec<&str> = text.lines().filter(about).collect();
                    if !lines.is_empty() {
                        self.snapshot.insert_text(&path, lines.join("\n") + "\n");
                    }
                }
            }
        }
    }

    /// The own cgroup and everything above it: any of them may hold the limit.
    fn cgroup(&mut self) {
        let Some(text) = self.snapshot.text("proc/self/cgroup").map(str::to_owned) else {
            return;
        };
        for (folder, files) in memory_cgroups(&text) {
            self.files(&folder, &files);
            // How often the kernel has killed for the limit (version 2).
            self.file(&format!("{folder}/memory.events"));
        }
    }

    fn devices(&mut self) {
        let mut paths = vec!["/dev/kfd".to_owned(), "/dev/dxg".to_owned()];
        paths.extend(
            self.source
                .list("/dev/dri")
                .iter()
                .filter(|name| name.starts_with("renderD"))
                .map(|name| format!("/dev/dri/{name}")),
        );
        for path in paths {
            if let Some(owner) = self.source.owner(&path) {
                let access = self.source.open_device(&path);
                self.snapshot
                    .insert_text(&path, format!("access={access} {owner}\n"));
            } else if path == "/dev/kfd" {
                self.snapshot.insert_text(&path, "access=ENOENT\n");
            }
        }
        self.group_names();
        for path in ["/usr/lib/wsl/lib/libdxcore.so", "/opt/rocm"] {
            if self.source.owner(path).is_some() {
                self.snapshot.insert_text(path, "present\n");
            }
        }
        if self.snapshot.has("dev/dxg") {
            self.wsl();
        }
    }

    /// What WSL needs for the GPU of Windows, and how much of the memory it was given.
    fn wsl(&mut self) {
        let mut folders = vec!["/usr/lib/x86_64-linux-gnu".to_owned()];
        folders.extend(["/usr/lib", "/usr/lib64", "/usr/local/lib"].map(str::to_owned));
        let opt = self.source.list("/opt").into_iter();
        let rocm = opt.filter(|name| name.starts_with("rocm"));
        folders.extend(rocm.map(|name| format!("/opt/{name}/lib")));
        for folder in folders {
            let names = self.source.list(&folder);
            if names.iter().any(|name| name.starts_with(ROCDXG)) {
                self.snapshot.insert_text(ROCDXG_PATH, "present\n");
            }
        }
        // Its owner must not be revealed, and of several it is unknown which one applies.
        let users = self.source.list("/mnt/c/Users").into_iter();
        let configs: Vec<String> = users
            .map(|user| format!("/mnt/c/Users/{user}/.wslconfig"))
            .filter(|path| self.source.owner(path).is_some())
            .collect();
        if let [path] = &configs[..]
            && let Some(Content::Text(text)) = self.source.read(path)
        {
            let kept = text.lines().map(str::trim).filter(|line| {
                let key = line.split('=').next().unwrap_or_default().trim();
                line.starts_with('[') || ["memory", "swap"].contains(&key)
            });
            let kept: String = kept.map(|line| format!("{line}\n")).collect();
            self.snapshot.insert_text(WSLCONFIG, kept);
        }
    }

    /// The names of the groups that own the devices, without their members.
    fn group_names(&mut self) {
        let Some(Content::Text(groups)) = self.source.read("/etc/group") else {
            return;
        };
        let owners: Vec<&str> = self
            .snapshot
            .paths_under("dev/")
            .filter_map(|path| {
                self.snapshot
                    .text(path)?
                    .split_whitespace()
                    .find_map(|word| word.strip_prefix("gid="))
            })
            .collect();
        let names: String = groups
            .lines()
            .filter_map(|line| {
                let mut fields = line.split(':');
                let (name, gid) = (fields.next()?, fields.nth(1)?);
                owners.contains(&gid).then(|| format!("{name}:x:{gid}:\n"))
            })
            .collect();
        if !names.is_empty() {
            self.snapshot.insert_text("/etc/group", names);
        }
    }

    /// The version of the firmware package, where the package manager keeps text.
    fn packages(&mut self) {
        for name in self.source.list("/var/lib/pacman/local") {
            if name
                .strip_prefix("linux-firmware-")
                .is_some_and(|rest| rest.starts_with("20"))
            {
                self.snapshot
                    .insert_text("packages/linux-firmware", name + "\n");
                return;
            }
        }
        if let Some(Content::Text(status)) = self.source.read("/var/lib/dpkg/status") {
            for package in ["linux-firmware", "firmware-amd-graphics"] {
                if let Some(version) = dpkg_version(&status, package) {
                    self.snapshot
                        .insert_text("packages/linux-firmware", format!("{package} {version}\n"));
                    return;
                }
            }
        }
    }

    fn environment(&mut self) {
        let mut text = String::new();
        let mut variables = self.source.variables();
        variables.sort();
        for (name, value) in variables {
            if is_relevant_variable(&name) && !value.contains(['\n', '\r']) {
                text.push_str(&format!("{name}={value}\n"));
            }
        }
        self.snapshot.insert_text("environment", text);
    }

    /// Whether there is an `ffmpeg`: not where, which may name a person.
    fn ffmpeg(&mut self) {
        let variables = self.source.variables();
        let get = |wanted: &str| {
            let mut all = variables.iter();
            let found = all.find(|(name, value)| name == wanted && !value.is_empty());
            found.map(|(_, value)| value.as_str())
        };
        let (name, separator) = match self.source.is_windows() {
            true => ("ffmpeg.exe", ';'),
            false => ("ffmpeg", ':'),
        };
        let is_path = |text: &str| {
            text.contains('/') || self.source.is_windows() && text.contains(['\\', ':'])
        };
        let in_folder = |folder: &str| self.source.owner(&format!("{folder}/{name}")).is_some();
        let found = match (get("SUREFOOT_FFMPEG"), get("PATH")) {
            (Some(path), _) if is_path(path) => self.source.owner(path).is_some(),
            (_, Some(folders)) => folders.split(separator).any(in_folder),
            (_, None) => return,
        };
        let word = if found { "found" } else { "missing" };
        self.snapshot.insert_text(FFMPEG, word);
    }
}

/// The library through which ROCm reaches the GPU of Windows from WSL.
pub(crate) const ROCDXG: &str = "librocdxg";
/// Where a snapshot says that it is there.
pub(crate) const ROCDXG_PATH: &str = "wsl/librocdxg";
/// Where a snapshot has the part of `.wslconfig` that is about memory.
pub(crate) const WSLCONFIG: &str = "wsl/wslconfig";

/// Whether there is an `ffmpeg`: `found` or `missing`.
pub(crate) const FFMPEG: &str = "surefoot/ffmpeg";

fn dpkg_version<'a>(status: &'a str, package: &str) -> Option<&'a str> {
    let start = status.find(&format!("Package: {package}\n"))?;
    let entry = status[start..].split("\n\n").next()?;
    entry
        .lines()
        .find_map(|line| line.strip_prefix("Version: "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn ffmpeg_is_looked_for_in_the_search_path() {
        for (path, expected) in [("/usr/bin/ffmpeg", "found"), ("/home/me/ffmpeg", "missing")] {
            let machine = Fake([(path, "")].into());
            assert_eq!(collect(&machine).value(FFMPEG), Some(expected), "{path}");
        }
    }

    /// A machine made of a map.
    #[derive(Default)]
    struct Fake(BTreeMap<&'static str, &'static str>);

    impl Source for Fake {
        fn read(&self, path: &str) -> Option<Content> {
            self.0
                .get(path)
                .map(|text| Content::Text((*text).to_owned()))
        }
        fn list(&self, folder: &str) -> Vec<String> {
            let folder = format!("{folder}/");
            let mut names: Vec<String> = self
                .0
                .keys()
                .filter_map(|path| {
                    path.strip_prefix(&folder)?
                        .split('/')
                        .next()
                        .map(str::to_owned)
                })
                .collect();
            names.dedup();
            names
        }
        fn open_device(&self, _: &str) -> String {
            "ok".to_owned()
        }
        fn owner(&self, path: &str) -> Option<String> {
            self.0
                .contains_key(path)
                .then(|| "mode=0660 uid=0 gid=992".to_owned())
        }
        fn real_path(&self, path: &str) -> Option<String> {
            Some(path.to_owned())
        }
        fn words(&self, _: &str, _: &str) -> Vec<String> {
            Vec::new()
        }
        fn variables(&self) -> Vec<(String, String)> {
            [
                ("HIP_VISIBLE_DEVICES", "0"),
                ("AWS_SECRET", "x"),
                ("HF_TOKEN", "y"),
                ("PATH", "/opt/bin:/usr/bin"),
            ]
            .map(|(n, v)| (n.into(), v.into()))
            .to_vec()
        }
    }

    #[test]
    fn secrets_stay_at_home() {
        let snapshot = collect(&Fake::default());
        assert_eq!(
            snapshot.text("environment"),
            Some("HIP_VISIBLE_DEVICES=0\n")
        );
    }

    #[test]
    fn only_the_groups_of_the_devices_are_named_and_nobody_in_them() {
        let fake = Fake(BTreeMap::from([
            ("/dev/kfd", ""),
            ("/etc/group", "render:x:992:alice\nsecret:x:7:bob\n"),
        ]));
        assert_eq!(collect(&fake).text("etc/group"), Some("render:x:992:\n"));
    }

    #[test]
    fn a_missing_kfd_is_a_fact() {
        assert_eq!(
            collect(&Fake::default()).value("dev/kfd"),
            Some("access=ENOENT")
        );
    }

    #[test]
    fn of_a_wsl_the_library_and_the_memory_are_read_and_no_name() {
        let files = [
            ("/dev/dxg", ""),
            ("/opt/rocm-7.2.0/lib/librocdxg.so.1", ""),
            (
                "/mnt/c/Users/erika/.wslconfig",
                "[wsl2]\nmemory = 48GB\nkernel=C:\\\\Users\\\\erika\\\\bzImage\n",
            ),
            ("/mnt/c/Users/Public/desktop.ini", ""),
        ];
        let snapshot = collect(&Fake(files.into()));
        assert!(snapshot.has(ROCDXG_PATH));
        assert_eq!(snapshot.text(WSLCONFIG), Some("[wsl2]\nmemory = 48GB\n"));
        assert!(!snapshot.to_text().contains("erika"));
        let mut elsewhere = Fake(files.into());
        elsewhere.0.remove("/dev/dxg");
        let snapshot = collect(&elsewhere);
        assert!(!snapshot.has(ROCDXG_PATH) && !snapshot.has(WSLCONFIG));
    }

    #[test]
    fn of_two_wslconfigs_neither_is_believed() {
        let text = "[wsl2]\nmemory=8GB\n";
        let files = [
            ("/dev/dxg", ""),
            ("/mnt/c/Users/a/.wslconfig", text),
            ("/mnt/c/Users/b/.wslconfig", text),
        ];
        assert!(!collect(&Fake(files.into())).has(WSLCONFIG));
    }

    #[test]
    fn every_cgroup_above_is_read() {
        let fake = Fake(BTreeMap::from([
            ("/proc/self/cgroup", "0::/user.slice/app\n"),
            ("/sys/fs/cgroup/user.slice/memory.max", "1000\n"),
            ("/sys/fs/cgroup/user.slice/app/memory.max", "max\n"),
        ]));
        let snapshot = collect(&fake);
        assert_eq!(
            snapshot.number("sys/fs/cgroup/user.slice/memory.max"),
            Some(1000)
        );
        assert!(snapshot.has("sys/fs/cgroup/user.slice/app/memory.max"));
    }

    #[test]
    fn finds_a_dpkg_version() {
        let status = "Package: a\nVersion: 1\n\nPackage: linux-firmware\nStatus: x\nVersion: 20251125-1\n\nPackage: b\n";
        assert_eq!(dpkg_version(status, "linux-firmware"), Some("20251125-1"));
        assert_eq!(dpkg_version(status, "absent"), None);
    }
}
