//! What the trainer is started with: the one that was built for the PyTorch of the environment, and that
//! PyTorch's libraries, with ROCm's below them where it is for HIP.
//!
//! A trainer may have been built against a libtorch for the CPU. Where the environment has the
//! same release of PyTorch for HIP, it runs on that one's libraries: they are put on the search
//! path of its process, and it loads `libtorch_hip.so` as it starts.
//!
//! Trainers that were installed with pip have no libtorch of their own, and run on that of the
//! environment, whatever it is built for.

use super::hosted;
use super::trainers::{self, Trainer, releases};
use platform::live::Live;
use platform::rocm_libraries::{self, Libraries, Torch};
use serde::Serialize;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use surefoot_cli::TRAINER_RELEASES;
use surefoot_cli::output::Failure;

/// The search path of the dynamic linker.
const SEARCH_PATH: &str = "LD_LIBRARY_PATH";

/// How long `rocm-sdk path` may take: it starts a Python.
const PATIENCE: Duration = Duration::from_secs(20);

/// Variables of a process.
pub(crate) type Variables = Vec<(&'static str, OsString)>;

/// What is started.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Start {
    pub(crate) program: PathBuf,
    /// Before those of the trainer.
    pub(crate) arguments: Vec<OsString>,
    /// What its process gets beside the variables of this one.
    pub(crate) variables: Variables,
}

impl Start {
    /// The command, for what the trainer is to do.
    pub(crate) fn command(self) -> Command {
        let mut command = Command::new(self.program);
        command.args(self.arguments).envs(self.variables);
        command
    }
}

/// What the trainer's process gets, and what to say of it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Choice {
    variables: Variables,
    /// For people; `None` when there is nothing to say, as without a PyTorch for HIP.
    note: Option<String>,
}

/// Whether the trainer beside this program was built with it, and so knows the libtorch that it was
/// built against. Those of a wheel do not.
const HAS_A_LIBTORCH: bool = cfg!(feature = "torch");

/// The trainer for the environment that is active here, and what its process gets; says so on stderr.
///
/// # Errors
/// When there is no trainer, or none has a libtorch of its own, and no environment here has one that it
/// needs.
pub(crate) fn choose() -> Result<Start, Failure> {
    let trainers = match (trainers::beside(), hosted::library()) {
        (Err(_), Some(library)) => return hosted::start(library),
        (trainers, _) => trainers?,
    };
    let search_path = std::env::var_os(SEARCH_PATH);
    let libraries = find(None);
    let for_hip = libraries
        .as_ref()
        .map(|libraries| choice(libraries, &trainers, search_path.clone()));
    let Choice { variables, note } = for_hip.unwrap_or_default();
    let of_release = |release: &str| trainers.iter().find(|one| one.release == release);
    let on_hip = libraries
        .filter(|_| !variables.is_empty())
        .and_then(|libraries| of_release(libraries.release()));
    let start = match (on_hip, trainers.first()) {
        (Some(trainer), _) => Start {
            program: trainer.program.clone(),
            arguments: Vec::new(),
            variables,
        },
        (None, Some(trainer)) if HAS_A_LIBTORCH => Start {
            program: trainer.program.clone(),
            arguments: Vec::new(),
            variables: Variables::new(),
        },
        (None, _) => {
            let active = rocm_libraries::find_torch(&Live::default(), None);
            let own = own_environment()
                .and_then(|folder| rocm_libraries::find_torch(&Live::default(), Some(&folder)));
            borrowed(&trainers, [active, own], search_path)?
        }
    };
    // What is refused has a message of its own, which says the same.
    if let Some(note) = note {
        eprintln!("surefoot: {note}");
    }
    Ok(start)
}

/// The environment that this program was installed into: the folder above `bin`.
pub(super) fn own_environment() -> Option<String> {
    let program = std::env::current_exe().ok()?;
    let folder = program.parent()?.parent()?;
    folder.to_str().map(str::to_owned)
}

/// The first PyTorch that a trainer can run on, on the search path of that trainer.
fn borrowed(
    trainers: &[Trainer],
    candidates: [Option<Torch>; 2],
    search_path: Option<OsString>,
) -> Result<Start, Failure> {
    let candidates: Vec<Torch> = candidates.into_iter().flatten().collect();
    let fitting = candidates.iter().find_map(|torch| {
        let trainer = trainers.iter().find(|one| one.release == torch.release());
        trainer.map(|trainer| (torch, trainer))
    });
    let Some((torch, trainer)) = fitting else {
        let found = match candidates.first() {
            Some(Torch { version, folder }) => format!("PyTorch {version} is in {folder}"),
            None => "no PyTorch was found in the active environment".to_owned(),
        };
        let trainer = match trainers.len() {
            1 => "this trainer runs",
            _ => "the trainers here run",
        };
        let newest = trainers.first().map_or("", |trainer| &trainer.release);
        return Err(Failure::usage(format_args!(
            "{trainer} on the libraries of PyTorch {}, and {found}. Install torch \
             {newest} for your GPU (or `pip install torch=={newest}` for the CPU) into the environment, \
             and activate it",
            releases(trainers, "or")
        )));
    };
    let path = before([torch.folder.as_str()], search_path).map_err(|_| {
        let folder = &torch.folder;
        Failure::usage(format_args!(
            "a folder with `:` in its name cannot be on {SEARCH_PATH}: {folder}"
        ))
    })?;
    Ok(Start {
        program: trainer.program.clone(),
        arguments: Vec::new(),
        variables: vec![(SEARCH_PATH, path)],
    })
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
    // Without a trainer, what the one to install would do.
    let trainers = trainers::beside().unwrap_or_else(|_| {
        let to_install = TRAINER_RELEASES.iter().map(|release| Trainer {
            program: PathBuf::new(),
            release: (*release).to_owned(),
        });
        to_install.collect()
    });
    let Choice { variables, note } = choice(&libraries, &trainers, None);
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

/// What those libraries mean for these trainers; `search_path` is the one that is set.
fn choice(libraries: &Libraries, trainers: &[Trainer], search_path: Option<OsString>) -> Choice {
    let Libraries {
        torch,
        torch_folder,
        rocm,
    } = libraries;
    if !trainers
        .iter()
        .any(|one| one.release == libraries.release())
    {
        let built = match trainers.len() {
            1 => "this trainer was built for PyTorch",
            _ => "the trainers here were built for PyTorch",
        };
        let newest = trainers.first().map_or("", |trainer| &trainer.release);
        return Choice {
            note: Some(format!(
                "PyTorch {torch} in {torch_folder} is for ROCm, and {built} {}: it runs without it. Install \
                 torch {newest} for ROCm to train on the GPU",
                releases(trainers, "and")
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

    fn trainers(releases: &[&str]) -> Vec<Trainer> {
        let of = |release: &&str| Trainer {
            program: format!("/bin/surefoot-trainer-{release}").into(),
            release: (*release).to_owned(),
        };
        releases.iter().map(of).collect()
    }

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
        let choice = choice(
            &libraries,
            &trainers(&["2.15.0", "2.13.0"]),
            Some("/mine".into()),
        );
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
        let libraries = libraries("2.12.1+rocm7.0", Some(&["/opt/rocm/lib"]));
        for (releases, built) in [
            (
                &["2.13.0"][..],
                "this trainer was built for PyTorch 2.13.0:",
            ),
            (
                &["2.15.0", "2.13.0"],
                "the trainers here were built for PyTorch 2.15.0 and 2.13.0:",
            ),
        ] {
            let choice = choice(&libraries, &trainers(releases), None);
            assert!(choice.variables.is_empty());
            let note = choice.note.expect("a note");
            assert!(
                note.contains("2.12.1+rocm7.0") && note.contains(built),
                "{note}"
            );
        }
    }

    #[test]
    fn a_pytorch_without_its_rocm_is_told_and_not_taken() {
        let choice = choice(
            &libraries("2.13.0+rocm7.1", None),
            &trainers(&["2.13.0"]),
            None,
        );
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
        let candidates = || [torch("2.15.0", "/active"), torch("2.13.0+cpu", "/own")];
        for (releases, program, path) in [
            (&["2.13.0"][..], "2.13.0", "/own:/mine"),
            (&["2.14.1", "2.13.0"], "2.13.0", "/own:/mine"),
            (&["2.15.0", "2.13.0"], "2.15.0", "/active:/mine"),
        ] {
            let start = borrowed(&trainers(releases), candidates(), Some("/mine".into()));
            let Start {
                program: found,
                variables,
                ..
            } = start.expect("one fits");
            assert_eq!(variables, [("LD_LIBRARY_PATH", path.into())]);
            assert!(found.ends_with(format!("surefoot-trainer-{program}")));
        }
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
            let said = match borrowed(&trainers(&["2.13.0"]), candidates, None) {
                Err(Failure::Usage(error)) => error.to_string(),
                other => panic!("{other:?}"),
            };
            assert!(said.contains(found), "{said}");
        }
        let both = trainers(&["2.15.0", "2.13.0"]);
        match borrowed(&both, [torch("2.14.1", "/active"), None], None) {
            Err(Failure::Usage(error)) => assert_eq!(
                error.to_string(),
                "the trainers here run on the libraries of PyTorch 2.15.0 or 2.13.0, and PyTorch 2.14.1 is in \
                 /active. Install torch 2.15.0 for your GPU (or `pip install torch==2.15.0` for the CPU) into \
                 the environment, and activate it"
            ),
            other => panic!("{other:?}"),
        }
    }
}
