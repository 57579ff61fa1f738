//! Finds the libraries that a native program needs to compute on an AMD GPU: PyTorch's own for
//! HIP, and ROCm's.
//!
//! PyTorch's wheels come in three layouts. Those of pytorch.org carry ROCm in `torch/lib`. Those of
//! TheRock carry none: `import torch` loads some twenty libraries of the packages `_rocm_sdk_core`
//! and `_rocm_sdk_libraries_*`. Distributions and container images build against `/opt/rocm`. For a
//! program without Python none of these folders is searched automatically, so its launcher has to set them.
//!
//! Only names of folders and one small file are read; nothing is executed.

use crate::python_source::{active_environment, interpreter, site_folders};
use crate::snapshot::Content;
use crate::source::Source;
use serde::Serialize;

/// The beginning of the file name of the HIP runtime.
const RUNTIME: &str = "libamdhip64.so";

/// The files of AMD's runtime on this system, newest first. PyTorch's ROCm wheels for Linux contain the one without a number.
pub const HIP_RUNTIMES: &[&str] = match cfg!(windows) {
    true => &["amdhip64_7.dll", "amdhip64.dll", "amdhip64_6.dll"],
    false => &[
        "libamdhip64.so.7",
        "libamdhip64.so.6",
        "libamdhip64.so",
        "libamdhip64.so.5",
    ],
};
/// PyTorch's library for HIP.
const DEVICE_LIBRARY: &str = "libtorch_hip.so";

/// The PyTorch for HIP of an environment, and the ROCm that it would run on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Libraries {
    /// For example `2.13.0+rocm7.1`.
    pub torch: String,
    /// The folder with `libtorch_hip.so`.
    pub torch_folder: String,
    /// ROCm's libraries; `None` if there are none in any known place.
    pub rocm: Option<Rocm>,
}

/// Where ROCm's libraries are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rocm {
    /// How they came there.
    pub layout: Layout,
    /// In the order in which the loader is to search them.
    pub folders: Vec<String>,
}

/// How ROCm came to a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// In `torch/lib`.
    InTorch,
    /// The packages `rocm-sdk-core` and `rocm-sdk-libraries-*` of the same environment.
    SdkPackages,
    /// The folder that the program `rocm-sdk path --root` names.
    SdkProgram,
    /// The folder that `ROCM_PATH` names.
    RocmPath,
    /// `/opt/rocm`, or else the newest `/opt/rocm-*`.
    Opt,
}

impl Layout {
    /// A few words for people.
    pub fn describe(self) -> &'static str {
        match self {
            Layout::InTorch => "ROCm inside of PyTorch",
            Layout::SdkPackages => "ROCm of the rocm-sdk packages",
            Layout::SdkProgram => "ROCm of `rocm-sdk path`",
            Layout::RocmPath => "ROCm of ROCM_PATH",
            Layout::Opt => "ROCm of the system",
        }
    }
}

impl Libraries {
    /// The folders for the loader, those of PyTorch first.
    pub fn folders(&self) -> Vec<&str> {
        let rocm = self.rocm.iter().flat_map(|rocm| &rocm.folders);
        let mut folders = vec![self.torch_folder.as_str()];
        folders.extend(
            rocm.map(String::as_str)
                .filter(|folder| *folder != self.torch_folder),
        );
        folders
    }

    /// The library that brings HIP to libtorch.
    pub fn device_library(&self) -> String {
        format!("{}/{DEVICE_LIBRARY}", self.torch_folder)
    }

    /// The release without its local part: `2.13.0`.
    pub fn release(&self) -> &str {
        release(&self.torch)
    }
}

/// A PyTorch of any kind, by its files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Torch {
    /// As in `2.13.0+cpu`.
    pub version: String,
    /// The folder with `libtorch_cpu.so`.
    pub folder: String,
}

impl Torch {
    /// The release without its local part: `2.13.0`.
    pub fn release(&self) -> &str {
        release(&self.version)
    }
}

/// Finds the PyTorch of the environment that `python` would run in, or of `wanted`, a Python or an
/// environment, whatever it is built for.
pub fn find_torch(source: &dyn Source, wanted: Option<&str>) -> Option<Torch> {
    environment(source, wanted).map(|environment| environment.torch)
}

/// The interpreter of that environment, and its PyTorch.
pub fn find_python(source: &dyn Source, wanted: Option<&str>) -> Option<(String, Torch)> {
    let environment = environment(source, wanted)?;
    Some((interpreter(source, &environment.prefix)?, environment.torch))
}

/// A Python environment that has a PyTorch.
struct Environment {
    torch: Torch,
    prefix: String,
    /// Where its packages are.
    sites: Vec<String>,
}

fn environment(source: &dyn Source, wanted: Option<&str>) -> Option<Environment> {
    let prefix = active_environment(source, wanted)?;
    let sites = site_folders(source, &prefix);
    let (folder, version) = sites.iter().find_map(|site| {
        let text = match source.read(&format!("{site}/torch/version.py"))? {
            Content::Text(text) => text,
            _ => return None,
        };
        Some((format!("{site}/torch/lib"), version(&text)?))
    })?;
    Some(Environment {
        torch: Torch { version, folder },
        prefix,
        sites,
    })
}

/// Finds the PyTorch for HIP of the environment that `python` would run in, or of `wanted`, a
/// Python or an environment; `None` if there is none, or it is not a build for HIP.
///
/// `sdk_root` returns the output of `rocm-sdk path`, and is called only if the environment has
/// that program but not its packages.
pub fn find(
    source: &dyn Source,
    wanted: Option<&str>,
    sdk_root: &dyn Fn(&str) -> Option<String>,
) -> Option<Libraries> {
    let Environment {
        torch: Torch {
            version: torch,
            folder: torch_folder,
        },
        prefix,
        sites,
    } = environment(source, wanted)?;
    let variables = source.variables();
    let get = |name: &str| {
        let known = variables.iter().find(|(known, _)| known == name);
        known
            .map(|(_, value)| value.as_str())
            .filter(|value| !value.is_empty())
    };
    let has = |folder: &str, library: &str| {
        let names = source.list(folder);
        names.iter().any(|name| name.starts_with(library))
    };
    if !has(&torch_folder, DEVICE_LIBRARY) {
        return None;
    }
    let at = |layout, folders| Some(Rocm { layout, folders });
    let of_packages = || {
        let folders = sdk_folders(source, &sites);
        let found = folders.iter().any(|folder| has(folder, RUNTIME));
        found.then(|| at(Layout::SdkPackages, folders)).flatten()
    };
    let of_program = || {
        let program = format!("{prefix}/bin/rocm-sdk");
        source.owner(&program)?;
        let folder = format!("{}/lib", sdk_root(&program)?.trim_end_matches('/'));
        has(&folder, RUNTIME).then(|| at(Layout::SdkProgram, vec![folder]))?
    };
    let of_variable = || {
        let folder = format!("{}/lib", get("ROCM_PATH")?.trim_end_matches('/'));
        has(&folder, RUNTIME).then(|| at(Layout::RocmPath, vec![folder]))?
    };
    let of_system = || {
        let folder = opt_folders(source)
            .into_iter()
            .find(|folder| has(folder, RUNTIME))?;
        at(Layout::Opt, vec![folder])
    };
    let rocm = match has(&torch_folder, RUNTIME) {
        true => at(Layout::InTorch, vec![torch_folder.clone()]),
        false => of_packages()
            .or_else(of_program)
            .or_else(of_variable)
            .or_else(of_system),
    };
    Some(Libraries {
        torch,
        torch_folder,
        rocm,
    })
}

/// `_rocm_sdk_core/lib`, then those of `_rocm_sdk_libraries_*` and `_rocm_sdk_libraries`.
fn sdk_folders(source: &dyn Source, sites: &[String]) -> Vec<String> {
    let mut folders = Vec::new();
    for site in sites {
        let names = source.list(site);
        let packages = names.iter().filter(|name| {
            name.as_str() == "_rocm_sdk_core" || name.starts_with("_rocm_sdk_libraries")
        });
        folders.extend(packages.map(|name| format!("{site}/{name}/lib")));
    }
    folders.retain(|folder| !source.list(folder).is_empty());
    folders
}

/// `/opt/rocm/lib`, and those of `/opt/rocm-*` with the newest first.
fn opt_folders(source: &dyn Source) -> Vec<String> {
    let names = source.list("/opt");
    let mut releases: Vec<(Vec<u32>, &String)> = names
        .iter()
        .filter_map(|name| {
            let release = name.strip_prefix("rocm-")?;
            let numbers = release.split(['.', '-']).map(|number| number.parse().ok());
            Some((numbers.collect::<Option<Vec<u32>>>()?, name))
        })
        .collect();
    releases.sort_by(|one, other| other.0.cmp(&one.0));
    let named = releases
        .into_iter()
        .map(|(_, name)| format!("/opt/{name}/lib"));
    std::iter::once("/opt/rocm/lib".to_owned())
        .chain(named)
        .collect()
}

/// `2.13.0` of `2.13.0+rocm7.1`.
fn release(version: &str) -> &str {
    version.split('+').next().unwrap_or(version)
}

/// The version that `torch/version.py` assigns.
fn version(text: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let value = line.strip_prefix("__version__")?.split_once('=')?.1;
        let value = value.trim().trim_matches(['\'', '"']);
        (!value.is_empty()).then(|| value.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SITE: &str = "/env/lib/python3.12/site-packages";

    /// A machine made of a list of files; `site` in a path stands for the environment's packages.
    struct Machine(Vec<String>, Vec<(String, String)>);

    impl Machine {
        fn with(files: &[&str]) -> Self {
            let mut all = vec![
                "/env/pyvenv.cfg".to_owned(),
                format!("{SITE}/torch/version.py"),
            ];
            all.extend(
                files
                    .iter()
                    .map(|file| file.replace("site/", &format!("{SITE}/"))),
            );
            Self(all, vec![("VIRTUAL_ENV".to_owned(), "/env".to_owned())])
        }
        fn find(&self) -> Option<Libraries> {
            find(self, None, &|program| {
                assert_eq!(program, "/env/bin/rocm-sdk");
                Some("/sdk".to_owned())
            })
        }
        fn rocm(&self) -> Option<(Layout, Vec<String>)> {
            let rocm = self.find().expect("a PyTorch for HIP").rocm?;
            Some((rocm.layout, rocm.folders))
        }
    }

    impl Source for Machine {
        fn read(&self, path: &str) -> Option<Content> {
            let there = self.0.iter().any(|file| file == path);
            there.then(|| Content::Text("__version__ = '2.13.0+rocm7.1'\nhip = '7.1'\n".to_owned()))
        }
        fn list(&self, folder: &str) -> Vec<String> {
            let folder = format!("{folder}/");
            let below = self.0.iter().filter_map(|file| file.strip_prefix(&folder));
            let mut names: Vec<String> = below
                .map(|rest| rest.split('/').next().unwrap_or_default().to_owned())
                .collect();
            names.sort();
            names.dedup();
            names
        }
        fn open_device(&self, _: &str) -> String {
            String::new()
        }
        fn owner(&self, path: &str) -> Option<String> {
            self.0.iter().any(|file| file == path).then(String::new)
        }
        fn variables(&self) -> Vec<(String, String)> {
            self.1.clone()
        }
        fn real_path(&self, path: &str) -> Option<String> {
            Some(path.to_owned())
        }
        fn words(&self, _: &str, _: &str) -> Vec<String> {
            Vec::new()
        }
    }

    const HIP: &str = "site/torch/lib/libtorch_hip.so";

    #[test]
    fn a_build_for_the_cpu_is_found_and_has_no_libraries_of_hip() {
        let machine = Machine::with(&["site/torch/lib/libtorch_cpu.so"]);
        assert_eq!(machine.find(), None);
        let torch = find_torch(&machine, None).expect("a PyTorch");
        assert_eq!(torch.folder, format!("{SITE}/torch/lib"));
        assert_eq!(torch.release(), "2.13.0");
        assert_eq!(find_torch(&machine, Some("/elsewhere")), None);
    }

    #[test]
    fn the_release_is_told_apart_from_its_local_part() {
        let found = Machine::with(&[HIP]).find().expect("a PyTorch for HIP");
        assert_eq!(
            (found.torch.as_str(), found.release()),
            ("2.13.0+rocm7.1", "2.13.0")
        );
        assert_eq!(
            found.device_library(),
            format!("{SITE}/torch/lib/libtorch_hip.so")
        );
        assert_eq!(found.rocm, None);
    }

    #[test]
    fn a_wheel_with_rocm_in_it_needs_no_other() {
        let machine = Machine::with(&[
            HIP,
            "site/torch/lib/libamdhip64.so",
            "site/_rocm_sdk_core/lib/libamdhip64.so.7",
            "/opt/rocm/lib/libamdhip64.so.7",
        ]);
        let folder = format!("{SITE}/torch/lib");
        assert_eq!(
            machine.rocm(),
            Some((Layout::InTorch, vec![folder.clone()]))
        );
        assert_eq!(machine.find().expect("it").folders(), [folder]);
    }

    #[test]
    fn the_packages_of_therock_are_searched_core_first() {
        let machine = Machine::with(&[
            HIP,
            "site/_rocm_sdk_libraries_gfx1151/lib/librocblas.so.5",
            "site/_rocm_sdk_core/lib/libamdhip64.so.7",
            "site/_rocm_sdk_devel/lib/libamdhip64.so.7",
            "/opt/rocm/lib/libamdhip64.so.6",
        ]);
        let folders = ["_rocm_sdk_core", "_rocm_sdk_libraries_gfx1151"];
        let folders = folders.map(|name| format!("{SITE}/{name}/lib")).to_vec();
        assert_eq!(machine.rocm(), Some((Layout::SdkPackages, folders)));
    }

    #[test]
    fn a_core_without_the_runtime_is_none() {
        let machine = Machine::with(&[HIP, "site/_rocm_sdk_core/lib/libhsa-runtime64.so.1"]);
        assert_eq!(machine.rocm(), None);
    }

    #[test]
    fn the_program_is_asked_where_there_are_no_packages() {
        let machine = Machine::with(&[HIP, "/env/bin/rocm-sdk", "/sdk/lib/libamdhip64.so.7"]);
        assert_eq!(
            machine.rocm(),
            Some((Layout::SdkProgram, vec!["/sdk/lib".to_owned()]))
        );
    }

    #[test]
    fn a_named_rocm_comes_before_the_systems() {
        let mut machine = Machine::with(&[
            HIP,
            "/my/rocm/lib/libamdhip64.so.7",
            "/opt/rocm/lib/libamdhip64.so.7",
        ]);
        machine
            .1
            .push(("ROCM_PATH".to_owned(), "/my/rocm/".to_owned()));
        assert_eq!(
            machine.rocm(),
            Some((Layout::RocmPath, vec!["/my/rocm/lib".to_owned()]))
        );
    }

    #[test]
    fn without_the_link_the_newest_of_the_system_is_taken() {
        let machine = Machine::with(&[
            HIP,
            "/opt/rocm-7.2.0/lib/libamdhip64.so.7",
            "/opt/rocm-7.10.0/lib/libamdhip64.so.7",
            "/opt/rocm-old/lib/libamdhip64.so.5",
        ]);
        let newest = vec!["/opt/rocm-7.10.0/lib".to_owned()];
        assert_eq!(machine.rocm(), Some((Layout::Opt, newest)));
    }
}
