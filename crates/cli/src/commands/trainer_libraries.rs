//! The libraries that the trainer is started with: PyTorch's for HIP, and ROCm's below it.
//!
//! The trainer may have been built against a libtorch for the CPU. Where the environment has the
//! same release of PyTorch for HIP, the trainer runs on that one's libraries: they are put on the search
//! path of its process, and it loads `libtorch_hip.so` as it starts.

use platform::live::Live;
use platform::rocm_libraries::{self, Libraries};
use serde::Serialize;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use surefoot_cli::TRAINER_TORCH;

/// The search path of the dynamic linker.
const SEARCH_PATH: &str = "LD_LIBRARY_PATH";

/// How long `rocm-sdk path` may take: it starts a Python.
const PATIENCE: Duration = Duration::from_secs(20);

/// Variables of a process.
pub(crate) type Variables = Vec<(&'static str, OsString)>;

/// What the trainer's process gets, and what to say of it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Choice {
    variables: Variables,
    /// For people; `None` when there is nothing to say, as without a PyTorch for HIP.
    note: Option<String>,
}

/// What the trainer's process gets in the environment that is active here; says so on stderr.
pub(crate) fn choose() -> Variables {
    let Some(libraries) = find(None) else {
        return Vec::new();
    };
    let Choice { variables, note } = choice(&libraries, std::env::var_os(SEARCH_PATH));
    if let Some(note) = note {
        eprintln!("surefoot: {note}");
    }
    variables
}

/// What `doctor` tells of it.
#[derive(Serialize)]
pub(crate) struct Listed {
    #[serde(flatten)]
    libraries: Libraries,
    /// Whether `surefoot train` takes them.
    used: bool,
    /// In words.
    pub(crate) note: Option<String>,
}

/// The same for `doctor`, of `python` or the active environment.
pub(crate) fn list(python: Option<&str>) -> Option<Listed> {
    let libraries = find(python)?;
    let Choice { variables, note } = choice(&libraries, None);
    Some(Listed {
        libraries,
        used: !variables.is_empty(),
        note,
    })
}

/// The PyTorch for HIP of `python`, or of the active environment.
fn find(python: Option<&str>) -> Option<Libraries> {
    rocm_libraries::find(&Live::default(), python, &sdk_root)
}

/// What those libraries mean for the trainer; `search_path` is the one that is set.
fn choice(libraries: &Libraries, search_path: Option<OsString>) -> Choice {
    let Libraries {
        torch,
        torch_folder,
        rocm,
    } = libraries;
    if libraries.release() != TRAINER_TORCH {
        return Choice {
            note: Some(format!(
                "PyTorch {torch} in {torch_folder} is for ROCm, and this trainer was built for PyTorch \
                 {TRAINER_TORCH}: it runs without it. Install torch {TRAINER_TORCH} for ROCm to train on the GPU"
            )),
            ..Choice::default()
        };
    }
    let Some(rocm) = rocm else {
        return Choice {
            note: Some(format!(
                "PyTorch {torch} in {torch_folder} is for ROCm, and its libraries are nowhere: not in PyTorch, in \
                 packages of rocm-sdk, where `rocm-sdk path` or ROCM_PATH say, or in /opt/rocm. The trainer runs \
                 without it. `pip install rocm-sdk-core` from the index of that PyTorch, or install ROCm"
            )),
            ..Choice::default()
        };
    };
    let mut folders: Vec<PathBuf> = libraries.folders().iter().map(PathBuf::from).collect();
    folders.extend(search_path.iter().flat_map(std::env::split_paths));
    let Ok(path) = std::env::join_paths(&folders) else {
        return Choice {
            note: Some(format!(
                "PyTorch {torch} in {torch_folder} is not used: a folder with `:` in its name cannot be on {SEARCH_PATH}"
            )),
            ..Choice::default()
        };
    };
    Choice {
        variables: vec![
            (SEARCH_PATH, path),
            (
                surefoot_cli::DEVICE_LIBRARY,
                libraries.device_library().into(),
            ),
        ],
        note: Some(format!(
            "libraries of PyTorch {torch} in {torch_folder}, {}: {}",
            rocm.layout.describe(),
            rocm.folders.join(", ")
        )),
    }
}

/// What `rocm-sdk path --root` prints; `None` when it fails or does not end.
fn sdk_root(program: &str) -> Option<String> {
    let mut child = Command::new(program)
        .args(["path", "--root"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let end = Instant::now() + PATIENCE;
    // One line: it fits into the pipe, so that the program ends without a reader.
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(10)),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return None;
            }
        }
    };
    let mut text = String::new();
    std::io::Read::read_to_string(child.stdout.as_mut()?, &mut text).ok()?;
    let root = text.trim();
    (status.success() && !root.is_empty()).then(|| root.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use platform::rocm_libraries::{Layout, Rocm};

    fn libraries(torch: &str, folders: Option<&[&str]>) -> Libraries {
        Libraries {
            torch: torch.to_owned(),
            torch_folder: "/site/torch/lib".to_owned(),
            rocm: folders.map(|folders| Rocm {
                layout: Layout::SdkPackages,
                folders: folders.iter().map(|&folder| folder.to_owned()).collect(),
            }),
        }
    }

    #[test]
    fn the_folders_come_before_what_the_user_has_set() {
        let libraries = libraries("2.13.0+rocm7.1", Some(&["/site/_rocm_sdk_core/lib"]));
        let choice = choice(&libraries, Some("/mine".into()));
        assert_eq!(
            choice.variables,
            [
                (
                    "LD_LIBRARY_PATH",
                    "/site/torch/lib:/site/_rocm_sdk_core/lib:/mine".into()
                ),
                (
                    "SUREFOOT_DEVICE_LIBRARY",
                    "/site/torch/lib/libtorch_hip.so".into()
                ),
            ]
        );
        let note = choice.note.expect("a note");
        assert!(
            note.contains("ROCm of the rocm-sdk packages: /site/_rocm_sdk_core/lib"),
            "{note}"
        );
    }

    #[test]
    fn another_release_is_told_and_not_taken() {
        let choice = choice(&libraries("2.12.1+rocm7.0", Some(&["/opt/rocm/lib"])), None);
        assert!(choice.variables.is_empty());
        let note = choice.note.expect("a note");
        assert!(
            note.contains("2.12.1+rocm7.0") && note.contains("built for PyTorch 2.13.0"),
            "{note}"
        );
    }

    #[test]
    fn a_pytorch_without_its_rocm_is_told_and_not_taken() {
        let choice = choice(&libraries("2.13.0+rocm7.1", None), None);
        assert!(choice.variables.is_empty());
        let note = choice.note.expect("a note");
        assert!(note.contains("libraries are nowhere"), "{note}");
    }
}
