//! Reading the Python part of a [`Snapshot`] from a live machine.
//!
//! Finds the environment that `python` would run in, as the shell and Python do,
//! and reads names of folders and one small file from it. No Python is started.

use crate::python::{distribution, is_relevant_package};
use crate::snapshot::{Content, Snapshot};
use crate::source::{ROCDXG, ROCDXG_PATH, Source};

/// Adds what is known about the active Python environment; `wanted` is a Python or
/// an environment that the user names. Returns its folder.
pub fn collect_python(
    source: &dyn Source,
    wanted: Option<&str>,
    snapshot: &mut Snapshot,
) -> Option<String> {
    let variables = source.variables();
    let get = |name: &str| {
        variables
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    };
    let prefix = active_environment(source, wanted)?;
    snapshot.insert_text("python/prefix", format!("{prefix}\n"));
    let mut packages = Vec::new();
    for site in site_folders(source, &prefix) {
        read_site(source, &site, &mut packages, snapshot);
    }
    packages.sort();
    // The same distribution in two folders: the first on the path is imported.
    packages.dedup_by(|later, earlier| later.0 == earlier.0);
    let lines: String = packages
        .iter()
        .map(|(name, version)| format!("{name} {version}\n"))
        .collect();
    snapshot.insert_text("python/packages", lines);
    accelerate(source, &get, snapshot);
    Some(prefix)
}

/// The configuration by `accelerate config`: only the keys that can contradict the machine. The others
/// (addresses of other machines, paths) do not belong in a text that will be posted.
fn accelerate<'a>(
    source: &dyn Source,
    get: &dyn Fn(&str) -> Option<&'a str>,
    snapshot: &mut Snapshot,
) {
    const KEYS: [&str; 5] = [
        "distributed_type",
        "gpu_ids",
        "mixed_precision",
        "num_processes",
        "use_cpu",
    ];
    let user = get("HOME").or_else(|| get("USERPROFILE"));
    let home = match (get("HF_HOME"), get("XDG_CACHE_HOME"), user) {
        (Some(home), ..) => home.to_owned(),
        (None, Some(cache), _) => format!("{cache}/huggingface"),
        (None, None, Some(home)) => format!("{home}/.cache/huggingface"),
        (None, None, None) => return,
    };
    for name in [
        "default_config.yaml",
        "default_config.yml",
        "default_config.json",
    ] {
        let Some(Content::Text(text)) = source.read(&format!("{home}/accelerate/{name}")) else {
            continue;
        };
        let kept: String = text
            .lines()
            .filter(|line| {
                let key = line.split(':').next().unwrap_or_default();
                KEYS.contains(&key.trim().trim_matches('"'))
            })
            .map(|line| format!("{}\n", line.trim()))
            .collect();
        if !kept.is_empty() {
            snapshot.insert_text("python/accelerate", kept);
        }
        return;
    }
}

/// The activated environment, or else the one of the first Python on PATH.
fn active<'a>(source: &dyn Source, get: &dyn Fn(&str) -> Option<&'a str>) -> Option<String> {
    for name in ["VIRTUAL_ENV", "CONDA_PREFIX"] {
        if let Some(prefix) = get(name).filter(|prefix| is_environment(source, prefix)) {
            return Some(prefix.to_owned());
        }
    }
    let (names, separator) = match source.is_windows() {
        true => (["python.exe", "python3.exe"], ';'),
        false => (["python3", "python"], ':'),
    };
    for folder in get("PATH")?.split(separator) {
        let folder = folder.trim_matches('"').trim_end_matches(['/', '\\']);
        for name in names {
            let path = format!("{folder}/{name}");
            if source.owner(&path).is_none() {
                continue;
            }
            if folder.ends_with("/shims") {
                // A shim of pyenv is a script; the version that it runs is in a file.
                if let Some(prefix) = pyenv(source, folder) {
                    return Some(prefix);
                }
            } else if let Some(prefix) = prefix_of(source, &path) {
                return Some(prefix);
            }
        }
    }
    None
}

fn pyenv(source: &dyn Source, shims: &str) -> Option<String> {
    let root = shims.strip_suffix("/shims")?;
    let Some(Content::Text(versions)) = source.read(&format!("{root}/version")) else {
        return None;
    };
    let prefix = format!("{root}/versions/{}", versions.split_whitespace().next()?);
    is_environment(source, &prefix).then_some(prefix)
}

/// The environment of a Python executable, or the folder itself.
fn prefix_of(source: &dyn Source, path: &str) -> Option<String> {
    if is_environment(source, path) {
        return Some(path.trim_end_matches('/').to_owned());
    }
    let two_up = |path: &str| Some(above(source, above(source, path)?)?.to_owned());
    // The link of a virtual environment must not be followed: it leads out of it.
    let as_called =
        two_up(path).filter(|prefix| source.owner(&format!("{prefix}/pyvenv.cfg")).is_some());
    // On Windows it lies in the folder of the environment, unless that is a virtual one.
    let beside = || {
        let folder = above(source, path).filter(|_| source.is_windows())?;
        is_environment(source, folder).then(|| folder.to_owned())
    };
    as_called
        .or_else(beside)
        .or_else(|| two_up(&source.real_path(path)?))
        .filter(|prefix| is_environment(source, prefix))
}

/// The folder that a path is in.
fn above<'a>(source: &dyn Source, path: &'a str) -> Option<&'a str> {
    let is_separator = |c: char| c == '/' || c == '\\' && source.is_windows();
    path.rsplit_once(is_separator).map(|(folder, _)| folder)
}

fn is_environment(source: &dyn Source, prefix: &str) -> bool {
    source
        .list(&format!("{prefix}/lib"))
        .iter()
        .any(|name| name.starts_with("python3"))
        || source
            .list(&format!("{prefix}/Lib"))
            .iter()
            .any(|name| name == "site-packages")
}

/// The environment that `python` would run in; or that of `wanted`, a Python or an environment.
pub(crate) fn active_environment(source: &dyn Source, wanted: Option<&str>) -> Option<String> {
    let variables = source.variables();
    let get = |name: &str| {
        let known = variables.iter().find(|(known, _)| known == name);
        known.map(|(_, value)| value.as_str())
    };
    match wanted {
        Some(path) => prefix_of(source, path),
        None => active(source, &get),
    }
}

/// The interpreter of an environment.
pub fn interpreter(source: &dyn Source, prefix: &str) -> Option<String> {
    let places: &[&str] = match source.is_windows() {
        true => &["Scripts/python.exe", "python.exe"],
        false => &["bin/python"],
    };
    let mut programs = places.iter().map(|place| format!("{prefix}/{place}"));
    programs.find(|program| source.owner(program).is_some())
}

/// The package folders of an environment, in Python's search order.
pub(crate) fn site_folders(source: &dyn Source, prefix: &str) -> Vec<String> {
    let variables = source.variables();
    let get = |name: &str| {
        let mut all = variables.iter();
        let found = all.find(|(known, value)| known == name && !value.is_empty());
        found.map(|(_, value)| value.as_str())
    };
    let is_virtual = source.owner(&format!("{prefix}/pyvenv.cfg")).is_some();
    if source.is_windows() {
        let own = get("APPDATA").filter(|_| !is_virtual).into_iter();
        let own = own.flat_map(|home| {
            let pythons = source.list(&format!("{home}/Python")).into_iter();
            let pythons = pythons.filter(|name| name.starts_with("Python3"));
            pythons.map(move |python| format!("{home}/Python/{python}/site-packages"))
        });
        return own.chain([format!("{prefix}/Lib/site-packages")]).collect();
    }
    let mut folders = Vec::new();
    let mut roots = vec![
        format!("{prefix}/lib"),
        format!("{prefix}/lib64"),
        format!("{prefix}/local/lib"),
    ];
    if let Some(home) = get("HOME").filter(|_| !is_virtual) {
        roots.insert(0, format!("{home}/.local/lib"));
    }
    for root in roots {
        for python in source
            .list(&root)
            .iter()
            .filter(|name| name.starts_with("python3"))
        {
            folders.push(format!("{root}/{python}/site-packages"));
            folders.push(format!("{root}/{python}/dist-packages"));
        }
    }
    folders.push(format!("{prefix}/Lib/site-packages"));
    folders
}

fn read_site(
    source: &dyn Source,
    site: &str,
    packages: &mut Vec<(String, String)>,
    snapshot: &mut Snapshot,
) {
    for entry in source.list(site) {
        if let Some((name, version)) =
            distribution(&entry).filter(|(name, _)| is_relevant_package(name))
        {
            packages.push((name, version.to_owned()));
        }
    }
    if !snapshot.has("python/torch/version.py")
        && let Some(Content::Text(text)) = source.read(&format!("{site}/torch/version.py"))
    {
        let is_rocm = text
            .lines()
            .any(|line| line.starts_with("hip") && !line.trim_end().ends_with("None"));
        snapshot.insert_text("python/torch/version.py", text);
        // Reading it would take a gigabyte; device packages contain the same information.
        if is_rocm
            && !packages
                .iter()
                .any(|(name, _)| name.starts_with("amd-torch-device-"))
        {
            let library = match source.is_windows() {
                true => "torch_hip.dll",
                false => "libtorch_hip.so",
            };
            let code_objects = source.words(
                &format!("{site}/torch/lib/{library}"),
                "amdgcn-amd-amdhsa--gfx",
            );
            if !code_objects.is_empty() {
                snapshot.insert_text("python/torch/code_objects", code_objects.join("\n") + "\n");
            }
        }
    }
    for folder in ["_rocm_sdk_core/lib", "torch/lib"] {
        let names = source.list(&format!("{site}/{folder}"));
        if names.iter().any(|name| name.starts_with(ROCDXG)) {
            snapshot.insert_text(ROCDXG_PATH, "present\n");
        }
    }
    let libraries: Vec<String> = source
        .list(&format!("{site}/bitsandbytes"))
        .into_iter()
        .filter(|name| name.starts_with("libbitsandbytes"))
        .collect();
    if !libraries.is_empty() {
        snapshot.insert_text("python/bitsandbytes", libraries.join("\n") + "\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::python::{Build, from_snapshot};

    /// A machine made of a list of paths.
    struct Fake {
        files: &'static [(&'static str, &'static str)],
        links: &'static [(&'static str, &'static str)],
        variables: &'static [(&'static str, &'static str)],
    }

    impl Source for Fake {
        fn read(&self, path: &str) -> Option<Content> {
            self.files
                .iter()
                .find(|(known, _)| *known == path)
                .map(|(_, text)| Content::Text((*text).to_owned()))
        }
        fn list(&self, folder: &str) -> Vec<String> {
            let folder = format!("{folder}/");
            let mut names: Vec<String> = self
                .files
                .iter()
                .filter_map(|(path, _)| {
                    path.strip_prefix(&folder)?
                        .split('/')
                        .next()
                        .map(str::to_owned)
                })
                .collect();
            names.sort();
            names.dedup();
            names
        }
        fn open_device(&self, _: &str) -> String {
            "ok".to_owned()
        }
        fn owner(&self, path: &str) -> Option<String> {
            let exists = self
                .files
                .iter()
                .chain(self.links)
                .any(|(known, _)| *known == path);
            exists.then(|| "mode=0755 uid=0 gid=0".to_owned())
        }
        fn variables(&self) -> Vec<(String, String)> {
            self.variables
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect()
        }
        fn real_path(&self, path: &str) -> Option<String> {
            Some(
                self.links
                    .iter()
                    .find(|(known, _)| *known == path)
                    .map_or(path, |(_, target)| target)
                    .to_owned(),
            )
        }
        fn words(&self, path: &str, _: &str) -> Vec<String> {
            self.read(path)
                .map(|_| vec!["amdgcn-amd-amdhsa--gfx1100".to_owned()])
                .unwrap_or_default()
        }
    }

    const VENV: &[(&str, &str)] = &[
        ("/home/me/venv/pyvenv.cfg", ""),
        (
            "/home/me/venv/lib/python3.12/site-packages/torch-2.11.0+rocm7.2.dist-info/METADATA",
            "",
        ),
        (
            "/home/me/venv/lib/python3.12/site-packages/torch/version.py",
            "__version__ = '2.11.0+rocm7.2'\nhip: str = '7.2.1'\n",
        ),
        (
            "/home/me/venv/lib/python3.12/site-packages/torch/lib/libtorch_hip.so",
            "",
        ),
        (
            "/usr/lib/python3.12/site-packages/torch-1.0.dist-info/METADATA",
            "",
        ),
    ];

    fn python(fake: &Fake) -> Option<crate::python::Python> {
        let mut snapshot = Snapshot::default();
        collect_python(fake, None, &mut snapshot);
        from_snapshot(&Snapshot::parse(&snapshot.to_text()))
    }

    #[test]
    fn an_activated_environment_wins() {
        let fake = Fake {
            files: VENV,
            links: &[("/usr/bin/python3", "/usr/bin/python3.12")],
            variables: &[("VIRTUAL_ENV", "/home/me/venv"), ("PATH", "/usr/bin")],
        };
        let torch = python(&fake)
            .and_then(|python| python.torch)
            .expect("a torch");
        assert_eq!(
            (torch.version.as_str(), torch.build),
            ("2.11.0+rocm7.2", Build::Rocm)
        );
        assert_eq!(
            torch.architectures_from.as_deref(),
            Some("the code objects in PyTorch's library for HIP")
        );
    }

    #[test]
    fn the_link_of_an_environment_is_not_followed_out_of_it() {
        let fake = Fake {
            files: VENV,
            links: &[("/home/me/venv/bin/python3", "/usr/bin/python3.12")],
            variables: &[("PATH", "/home/me/venv/bin:/usr/bin")],
        };
        assert_eq!(
            python(&fake).map(|python| python.prefix).as_deref(),
            Some("/home/me/venv")
        );
    }

    #[test]
    fn the_python_of_the_system_is_found_behind_its_link() {
        let fake = Fake {
            files: VENV,
            links: &[("/bin/python3", "/usr/bin/python3.12")],
            variables: &[("PATH", "/bin")],
        };
        let torch = python(&fake)
            .and_then(|python| python.torch)
            .expect("a torch");
        assert_eq!(torch.version, "1.0");
    }

    #[test]
    fn without_python_nothing_is_said() {
        assert_eq!(
            python(&Fake {
                files: VENV,
                links: &[],
                variables: &[("PATH", "/sbin")]
            }),
            None
        );
    }
}
