//! Reads a [`Snapshot`] from a live Windows machine.
//!
//! The registry has the version and the display adapters with their drivers; folders have the HIP
//! runtimes, of which the driver's comes first, whatever PATH is. Only a program that uses HIP can tell
//! which GPUs HIP can use: [`hipinfo_program`] finds it, and the caller
//! runs it.

use crate::memory::HostMemory;
use crate::python_source::site_folders;
use crate::snapshot::{Content, Snapshot};
use crate::source::{self, Source};
use std::fmt::Write as _;

/// Paths of the parts of a snapshot that exist only on Windows.
pub(crate) mod paths {
    /// The version from the registry, one `key: value` per line.
    pub(crate) const VERSION: &str = "windows/version";
    /// One file for each display adapter, with such lines.
    pub(crate) const ADAPTERS: &str = "windows/adapters/";
    /// RAM and page files, in the format of `/proc/meminfo`.
    pub(crate) const MEMORY: &str = "windows/memory";
    /// The HIP runtimes of the machine, one path per line, in the order in which a program finds them.
    pub(crate) const RUNTIMES: &str = "windows/hip-runtimes";
    /// The path of `hipInfo.exe`.
    pub(crate) const HIPINFO_PROGRAM: &str = "windows/hipinfo-program";
    /// Its output, or why there is none.
    pub(crate) const HIPINFO: &str = "windows/hipinfo";
}

/// What must be read from Windows besides files.
pub trait WindowsSource: Source {
    /// The names of the direct subkeys of a key of `HKEY_LOCAL_MACHINE`.
    fn keys(&self, key: &str) -> Vec<String>;
    /// A value of such a key: text unchanged, a number in decimal.
    fn value(&self, key: &str, name: &str) -> Option<String>;
    /// RAM and page files; the page files are the swap.
    fn memory(&self) -> HostMemory;
}

/// The class of display adapters.
const ADAPTERS: &str =
    r"SYSTEM\CurrentControlSet\Control\Class\{4d36e968-e325-11ce-bfc1-08002be10318}";
const VERSION: &str = r"SOFTWARE\Microsoft\Windows NT\CurrentVersion";

/// Values of an adapter's key that identify the adapter and its driver. Others contain names of displays and people.
const OF_AN_ADAPTER: [&str; 7] = [
    "DriverDesc",
    "ProviderName",
    "DriverVersion",
    "DriverDate",
    "RadeonSoftwareVersion",
    "MatchingDeviceId",
    "HardwareInformation.qwMemorySize",
];

/// Reads what the doctor needs, except for Python and HIP's own list.
#[must_use]
pub fn collect(source: &dyn WindowsSource) -> Snapshot {
    let mut snapshot = source::collect_process(source);
    let version = values(
        source,
        VERSION,
        &["ProductName", "DisplayVersion", "CurrentBuildNumber", "UBR"],
    );
    snapshot.insert_text(paths::VERSION, version);
    for name in source.keys(ADAPTERS) {
        if name.bytes().all(|byte| byte.is_ascii_digit()) {
            let text = values(source, &format!(r"{ADAPTERS}\{name}"), &OF_AN_ADAPTER);
            if !text.is_empty() {
                snapshot.insert_text(&format!("{}{name}", paths::ADAPTERS), text);
            }
        }
    }
    snapshot.insert_text(paths::MEMORY, in_words_of_linux(source.memory()));
    snapshot
}

/// The values of a key, one a line.
fn values(source: &dyn WindowsSource, key: &str, names: &[&str]) -> String {
    let mut text = String::new();
    for name in names {
        if let Some(value) = source.value(key, name) {
            // Writing to a `String` cannot fail.
            let _ = writeln!(text, "{name}: {}", value.replace(['\n', '\r'], " "));
        }
    }
    text
}

fn in_words_of_linux(memory: HostMemory) -> String {
    let lines = [
        ("MemTotal", memory.total),
        ("MemAvailable", memory.available),
        ("SwapTotal", memory.swap_total),
        ("SwapFree", memory.swap_free),
    ];
    let lines = lines.iter().filter_map(|(key, value)| {
        let kibibytes = value.as_ref()?.0 >> 10;
        Some(format!("{key}: {kibibytes} kB\n"))
    });
    lines.collect()
}

/// Adds where the HIP runtimes are; `python` is the folder of the Python environment.
pub fn collect_runtimes(source: &dyn Source, python: Option<&str>, snapshot: &mut Snapshot) {
    let is_runtime = |name: &&String| {
        let name = name.to_ascii_lowercase();
        name.starts_with("amdhip64") && name.ends_with(".dll")
    };
    let mut folders: Vec<String> = variable(source, "SYSTEMROOT")
        .map(|root| backslashes(&format!("{root}/System32")))
        .into_iter()
        .collect();
    folders.extend(on_path(source));
    folders.extend(folders_of_rocm(source, python));
    let mut seen = Vec::new();
    let mut text = String::new();
    for folder in folders {
        if seen.contains(&folder.to_ascii_lowercase()) {
            continue;
        }
        seen.push(folder.to_ascii_lowercase());
        for name in source.list(&folder).iter().filter(is_runtime) {
            let _ = writeln!(text, r"{folder}\{name}");
        }
    }
    if !text.is_empty() {
        snapshot.insert_text(paths::RUNTIMES, text);
    }
}

/// The `hipInfo.exe` to ask: that of the Python environment, whose HIP PyTorch runs on, before that
/// of the HIP SDK and whatever is on PATH.
#[must_use]
pub fn hipinfo_program(source: &dyn Source, python: Option<&str>) -> Option<String> {
    let mut folders = folders_of_rocm(source, python);
    folders.extend(on_path(source));
    folders.into_iter().find_map(|folder| {
        let names = source.list(&folder);
        let name = names
            .iter()
            .find(|name| name.eq_ignore_ascii_case("hipInfo.exe"))?;
        Some(format!(r"{folder}\{name}"))
    })
}

/// Adds the output of `hipInfo`, or why there is none.
pub fn insert_hipinfo(snapshot: &mut Snapshot, program: &str, printed: Result<String, String>) {
    snapshot.insert_text(paths::HIPINFO_PROGRAM, format!("{program}\n"));
    let content = match printed {
        // A line that looks like the header of the next file would end this one.
        Ok(text) => Content::Text(text.replace("\n== ", "\n")),
        Err(reason) => Content::Error(reason.replace(['\n', '\r', '!'], " ")),
    };
    snapshot.insert(paths::HIPINFO, content);
}

/// The folders with ROCm's programs and libraries: of the environment's wheels, of the HIP SDK that
/// HIP_PATH names, and of those that are installed, the newest first.
fn folders_of_rocm(source: &dyn Source, python: Option<&str>) -> Vec<String> {
    const SDKS: &str = r"AMD\ROCm";
    let sites = python.map(|prefix| site_folders(source, prefix));
    let mut folders: Vec<String> = sites
        .into_iter()
        .flatten()
        .map(|site| backslashes(&format!("{site}/_rocm_sdk_core/bin")))
        .collect();
    folders.extend(variable(source, "HIP_PATH").map(|path| backslashes(&format!("{path}/bin"))));
    if let Some(programs) = variable(source, "PROGRAMFILES") {
        let sdks = format!(r"{programs}\{SDKS}");
        let mut releases = source.list(&sdks);
        releases.sort_by_key(|name| {
            let numbers = name.split('.').map(|number| number.parse::<u32>().ok());
            std::cmp::Reverse(numbers.collect::<Vec<_>>())
        });
        folders.extend(releases.iter().map(|name| format!(r"{sdks}\{name}\bin")));
    }
    folders
}

fn on_path(source: &dyn Source) -> Vec<String> {
    let path = variable(source, "PATH").unwrap_or_default();
    let folders = path.split(';').map(|folder| folder.trim_matches('"'));
    folders
        .filter(|folder| !folder.is_empty())
        .map(backslashes)
        .collect()
}

fn variable(source: &dyn Source, name: &str) -> Option<String> {
    let mut variables = source.variables().into_iter();
    let (_, value) = variables.find(|(known, value)| known == name && !value.is_empty())?;
    Some(value)
}

/// A path as Windows writes it, so that the same folder is the same text.
fn backslashes(path: &str) -> String {
    let path = path.replace('/', r"\");
    let parts: Vec<&str> = path.split('\\').filter(|part| !part.is_empty()).collect();
    let start = match path.starts_with(r"\\") {
        true => r"\\",
        false if path.starts_with('\\') => r"\",
        false => "",
    };
    let end = match parts[..] {
        [drive] if drive.ends_with(':') => r"\",
        _ => "",
    };
    format!("{start}{}{end}", parts.join(r"\"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Bytes;

    /// A machine made of lists: files, values of the registry, variables.
    #[derive(Default)]
    struct Fake {
        files: Vec<&'static str>,
        registry: Vec<(String, &'static str, &'static str)>,
        variables: Vec<(&'static str, &'static str)>,
    }

    impl Source for Fake {
        fn read(&self, _: &str) -> Option<Content> {
            None
        }
        fn list(&self, folder: &str) -> Vec<String> {
            let folder = format!(r"{}\", backslashes(folder));
            let inside = self.files.iter().filter_map(|path| {
                let rest = path.strip_prefix(&folder)?;
                Some(rest.split('\\').next()?.to_owned())
            });
            let mut names: Vec<String> = inside.collect();
            names.dedup();
            names
        }
        fn open_device(&self, _: &str) -> String {
            String::new()
        }
        fn owner(&self, path: &str) -> Option<String> {
            let path = backslashes(path);
            self.files.contains(&path.as_str()).then(String::new)
        }
        fn variables(&self) -> Vec<(String, String)> {
            let variables = self.variables.iter();
            variables.map(|(n, v)| ((*n).into(), (*v).into())).collect()
        }
        fn real_path(&self, path: &str) -> Option<String> {
            Some(path.to_owned())
        }
        fn words(&self, _: &str, _: &str) -> Vec<String> {
            Vec::new()
        }
        fn is_windows(&self) -> bool {
            true
        }
    }

    impl WindowsSource for Fake {
        fn keys(&self, key: &str) -> Vec<String> {
            let below = format!(r"{key}\");
            let inside = self.registry.iter();
            let mut names: Vec<String> = inside
                .filter_map(|(path, ..)| Some(path.strip_prefix(&below)?.to_owned()))
                .collect();
            names.dedup();
            names
        }
        fn value(&self, key: &str, name: &str) -> Option<String> {
            let mut values = self.registry.iter();
            let found = values.find(|(path, known, _)| path == key && *known == name)?;
            Some(found.2.to_owned())
        }
        fn memory(&self) -> HostMemory {
            HostMemory {
                total: Some(Bytes::gib(32)),
                ..HostMemory::default()
            }
        }
    }

    const CORE: &str = r"C:\me\venv\Lib\site-packages\_rocm_sdk_core\bin";

    fn hip_everywhere() -> Fake {
        Fake {
            files: vec![
                r"C:\Windows\System32\amdhip64_6.dll",
                r"C:\Windows\System32\amdhip64_7.dll",
                r"C:\Windows\System32\kernel32.dll",
                r"C:\tools\hipinfo.exe",
                r"C:\Program Files\AMD\ROCm\6.2\bin\hipInfo.exe",
                r"C:\Program Files\AMD\ROCm\6.10\bin\hipInfo.exe",
                r"C:\me\venv\Lib\site-packages\_rocm_sdk_core\bin\amdhip64_7.dll",
                r"C:\me\venv\Lib\site-packages\_rocm_sdk_core\bin\hipInfo.exe",
            ],
            variables: vec![
                ("SYSTEMROOT", r"C:\Windows"),
                ("PATH", r#"C:\Windows\system32;"C:\tools\";C:\none"#),
                ("PROGRAMFILES", r"C:\Program Files"),
            ],
            ..Fake::default()
        }
    }

    #[test]
    fn what_is_read_of_the_registry_names_nobody() {
        let of = |name: &str| format!(r"{ADAPTERS}\{name}");
        let fake = Fake {
            registry: vec![
                (VERSION.to_owned(), "ProductName", "Windows 10 Pro"),
                (VERSION.to_owned(), "RegisteredOwner", "Erika Mustermann"),
                (of("0000"), "DriverDesc", "AMD Radeon RX 7600"),
                (of("0000"), "InstalledFor", "Erika"),
                (of("Configuration"), "DriverDesc", "no adapter"),
            ],
            ..Fake::default()
        };
        let snapshot = collect(&fake);
        assert_eq!(
            snapshot.text(paths::VERSION),
            Some("ProductName: Windows 10 Pro\n")
        );
        let adapters: Vec<_> = snapshot.paths_under(paths::ADAPTERS).collect();
        assert_eq!(adapters, ["windows/adapters/0000"]);
        assert_eq!(
            snapshot.text("windows/adapters/0000"),
            Some("DriverDesc: AMD Radeon RX 7600\n")
        );
        assert_eq!(
            snapshot.text(paths::MEMORY),
            Some("MemTotal: 33554432 kB\n")
        );
        assert!(!snapshot.to_text().contains("Erika"));
    }

    #[test]
    fn the_runtimes_are_listed_as_a_program_finds_them_each_once() {
        let mut snapshot = Snapshot::default();
        collect_runtimes(&hip_everywhere(), Some(r"C:\me\venv"), &mut snapshot);
        let expected = format!(
            "C:\\Windows\\System32\\amdhip64_6.dll\nC:\\Windows\\System32\\amdhip64_7.dll\n{CORE}\\amdhip64_7.dll\n"
        );
        assert_eq!(snapshot.text(paths::RUNTIMES), Some(expected.as_str()));
    }

    #[test]
    fn the_environments_hipinfo_comes_first_then_the_newest_sdk_then_path() {
        let mut fake = hip_everywhere();
        let found = |fake: &Fake, python| hipinfo_program(fake, python).expect("one");
        assert_eq!(
            found(&fake, Some(r"C:\me\venv")),
            format!(r"{CORE}\hipInfo.exe")
        );
        assert_eq!(
            found(&fake, None),
            r"C:\Program Files\AMD\ROCm\6.10\bin\hipInfo.exe"
        );
        fake.variables.pop();
        assert_eq!(found(&fake, None), r"C:\tools\hipinfo.exe");
        fake.variables.clear();
        assert_eq!(hipinfo_program(&fake, None), None);
    }

    #[test]
    fn what_hipinfo_says_stays_in_its_place_in_a_dump() {
        let mut snapshot = Snapshot::default();
        let printed = "device# 0\n== kfd/nodes/1/properties\nName: x\n".to_owned();
        insert_hipinfo(&mut snapshot, r"C:\hipInfo.exe", Ok(printed));
        let read = Snapshot::parse(&snapshot.to_text());
        assert!(!read.has("kfd/nodes/1/properties"));
        assert!(
            read.text(paths::HIPINFO)
                .is_some_and(|text| text.contains("Name: x"))
        );
        insert_hipinfo(
            &mut snapshot,
            r"C:\hipInfo.exe",
            Err("exit code 1!\n".to_owned()),
        );
        let read = Snapshot::parse(&snapshot.to_text());
        assert_eq!(read.error(paths::HIPINFO), Some("exit code 1"));
    }

    #[test]
    fn a_folder_has_one_spelling() {
        for (path, expected) in [
            ("C:/a//b/", r"C:\a\b"),
            (r"C:\", r"C:\"),
            (r"\\server\share\x", r"\\server\share\x"),
            ("€/x", r"€\x"),
            ("", ""),
        ] {
            assert_eq!(backslashes(path), expected);
        }
    }
}
