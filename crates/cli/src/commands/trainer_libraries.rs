//! The libraries that the trainer is started with: PyTorch's for HIP, and ROCm's below it.
//!
//! The trainer may have been built against a libtorch for the CPU. Where the environment has the
//! same release of PyTorch for HIP, the trainer runs on that one's libraries: they are put on the search
//! path of its process, and it loads `libtorch_hip.so` as it starts.
//!
//! A trainer that was installed with pip has no libtorch of its own, and runs on that of the
//! environment, whatever it is built for.

use platform::live::Live;
use platform::rocm_libraries::{self, Libraries, Torch};
use serde::Serialize;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use surefoot_cli::TRAINER_TORCH;
use surefoot_cli::output::Failure;

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

/// Whether the trainer beside this program was built with it, and so knows the libtorch that it was
/// built against. That of a wheel does not.
const HAS_A_LIBTORCH: bool = cfg!(feature = "torch");

/// What the trainer's process gets in the environment that is active here; says so on stderr.
///
/// # Errors
/// When the trainer has no libtorch of its own, and no environment here has the one that it needs.
pub(crate) fn choose() -> Result<Variables, Failure> {
    let search_path = std::env::var_os(SEARCH_PATH);
    let for_hip = find(None).map(|libraries| choice(&libraries, search_path.clone()));
    if let Some(note) = for_hip.as_ref().and_then(|choice| choice.note.as_ref()) {
        eprintln!("surefoot: {note}");
    }
    let variables = for_hip.map_or_else(Variables::new, |choice| choice.variables);
    if HAS_A_LIBTORCH || !variables.is_empty() {
        return Ok(variables);
    }
    let active = rocm_libraries::find_torch(&Live::default(), None);
    let own = own_environment()
        .and_then(|folder| rocm_libraries::find_torch(&Live::default(), Some(&folder)));
    borrowed([active, own], search_path)
}

/// The environment that this program was installed into: the folder above `bin`.
fn own_environment() -> Option<String> {
    let program = std::env::current_exe().ok()?;
    let folder = program.parent()?.parent()?;
    folder.to_str().map(str::to_owned)
}

/// The search path with the first PyTorch that the trainer can run on.
fn borrowed(
    candidates: [Option<Torch>; 2],
    search_path: Option<OsString>,
) -> Result<Variables, Failure> {
    let candidates: Vec<Torch> = candidates.into_iter().flatten().collect();
    let fits = |torch: &&Torch| torch.release() == TRAINER_TORCH;
    let Some(torch) = candidates.iter().find(fits) else {
        let found = match candidates.first() {
            Some(Torch { version, folder }) => format!("PyTorch {version} is in {folder}"),
            None => "no PyTorch was found in the active environment".to_owned(),
        };
        return Err(Failure::usage(format_args!(
            "this trainer runs on the libraries of PyTorch {TRAINER_TORCH}, and {found}. Install torch \
             {TRAINER_TORCH} for your GPU (or `pip install torch=={TRAINER_TORCH}` for the CPU) into the environment, \
             and activate it"
        )));
    };
    let path = before([torch.folder.as_str()], search_path).map_err(|_| {
        let folder = &torch.folder;
        Failure::usage(format_args!(
            "a folder with `:` in its name cannot be on {SEARCH_PATH}: {folder}"
        ))
    })?;
    Ok(vec![(SEARCH_PATH, path)])
}

/// What `doctor` tells of it.
#[derive(Serialize)]
pub(crate) struct Listed {
    #[serde(flatten)]
    pub(crate) libraries: Libraries,
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

/// A search path with `folders` before what is set.
fn before<'a>(
    folders: impl IntoIterator<Item = &'a str>,
    search_path: Option<OsString>,
) -> Result<OsString, std::env::JoinPathsError> {
    let set = search_path.iter().flat_map(std::env::split_paths);
    std::env::join_paths(folders.into_iter().map(PathBuf::from).chain(set))
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
    let Ok(path) = before(libraries.folders(), search_path) else {
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

    fn torch(version: &str, folder: &str) -> Option<Torch> {
        Some(Torch {
            version: version.to_owned(),
            folder: folder.to_owned(),
        })
    }

    #[test]
    fn a_trainer_without_libtorch_takes_the_first_that_fits() {
        let candidates = [torch("2.15.0", "/active"), torch("2.13.0+cpu", "/own")];
        let variables = borrowed(candidates, Some("/mine".into())).expect("one fits");
        assert_eq!(variables, [("LD_LIBRARY_PATH", "/own:/mine".into())]);
    }

    #[test]
    fn a_trainer_without_libtorch_says_which_it_needs() {
        for (candidates, found) in [
            (
                [torch("2.15.0", "/active"), None],
                "PyTorch 2.15.0 is in /active",
            ),
            ([None, None], "no PyTorch was found"),
            ([torch("2.13.0", "/a:b"), None], "`:` in its name"),
        ] {
            let said = match borrowed(candidates, None) {
                Err(Failure::Usage(error)) => error.to_string(),
                other => panic!("{other:?}"),
            };
            assert!(said.contains(found), "{said}");
        }
    }
}
