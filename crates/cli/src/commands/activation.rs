//! Enables hip-alloc in a child process: unpacks the embedded Python part, finds the library, and sets
//! environment variables.

use anyhow::Context;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use surefoot_cli::cache;
use surefoot_cli::output::Failure;

macro_rules! python_files {
    ($($path:literal),* $(,)?) => {
        &[$(($path, include_str!(concat!("../../python/", $path)))),*]
    };
}

/// The embedded Python packages: path and content.
///
/// The folder `python` of this crate is a symbolic link to the repository's, which cargo follows when it packages the
/// crate.
const FILES: &[(&str, &str)] = python_files![
    "sitecustomize.py",
    "surefoot_activate/__init__.py",
    "surefoot_activate/__init__.pyi",
    "surefoot_activate/__main__.py",
    "surefoot_activate/_answers.py",
    "surefoot_activate/_errors.py",
    "surefoot_activate/_features.py",
    "surefoot_activate/_history.py",
    "surefoot_activate/_hook.py",
    "surefoot_activate/_install.py",
    "surefoot_activate/_installer.py",
    "surefoot_activate/_library.py",
    "surefoot_activate/_pools.py",
    "surefoot_activate/_refusals.py",
    "surefoot_activate/_startup.py",
    "surefoot_activate/_summary.py",
    "surefoot_activate/py.typed",
    "surefoot_placement/__init__.py",
    "surefoot_placement/__init__.pyi",
    "surefoot_placement/_checksum.py",
    "surefoot_placement/_mover.py",
    "surefoot_placement/_options.py",
    "surefoot_placement/_parts.py",
    "surefoot_placement/_prepare.py",
    "surefoot_placement/_report.py",
    "surefoot_placement/_strategy.py",
    "surefoot_placement/_transfer.py",
    "surefoot_placement/_verify.py",
    "surefoot_placement/py.typed",
];

/// Sets `HIP_ALLOC`, `HIP_ALLOC_LIB` and `PYTHONPATH` for a child.
pub(super) fn activate(command: &mut Command) -> Result<(), Failure> {
    let library = library()?;
    let folder = unpack()?;
    // Ours must come first: Python imports the first `sitecustomize` that it finds, and ours runs the
    // one that it hides.
    let mut paths = vec![folder];
    paths.extend(
        std::env::var_os("PYTHONPATH")
            .iter()
            .flat_map(std::env::split_paths),
    );
    let joined = std::env::join_paths(paths).context("PYTHONPATH")?;
    command
        .env("HIP_ALLOC", "1")
        .env("HIP_ALLOC_LIB", library)
        .env("PYTHONPATH", joined);
    Ok(())
}

/// Refuses a Python that would silently run with PyTorch's own allocator: one with an option to ignore `PYTHONPATH`
/// (`-E`, `-I`) or `sitecustomize` (`-S`), or Windows' embeddable Python, whose `._pth` file has the same effect. The
/// interpreter itself is asked, since `surefoot activate` may have installed hip-alloc where it looks.
pub(super) fn refuse_isolated_python(
    program: &OsStr,
    arguments: &[OsString],
) -> Result<(), Failure> {
    let pth = pth_beside(program);
    let options = isolating_options(program, arguments);
    let Some(options) = options.or_else(|| pth.is_some().then(Vec::new)) else {
        return Ok(());
    };
    let mut question = Command::new(program);
    question
        .args(&options)
        .args([
            "-c",
            "import importlib.metadata as m, sys; print('surefoot_activate' in sys.modules or \
             any(e.value.startswith('surefoot_activate:') for e in m.entry_points(group='torch.backends')))",
        ])
        .env("HIP_ALLOC", "1")
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    match question.output() {
        Ok(answer) if answer.stdout.trim_ascii() == b"False" => {
            let program = program.to_string_lossy();
            let options: Vec<_> = options
                .iter()
                .map(|option| option.to_string_lossy())
                .collect();
            let (why, instead) = match &pth {
                Some(pth) => (
                    format!(
                        "`{program}` has a `{}` beside it, so that it",
                        pth.display()
                    ),
                    "",
                ),
                None => (
                    format!("`{program} {}`", options.join(" ")),
                    "leave the option out, or ",
                ),
            };
            Err(Failure::usage(format_args!(
                "{why} does not read PYTHONPATH, which is needed to enable hip-alloc, and would run with \
                PyTorch's own allocator: {instead}install hip-alloc into its environment with \
                `surefoot activate --python {program}`, which works except with -S"
            )))
        }
        // A program that cannot be started reports that itself.
        _ => Ok(()),
    }
}

/// The name of the file beside a Python of Windows that replaces `PYTHONPATH`, if it has one.
fn pth_beside(program: &OsStr) -> Option<PathBuf> {
    let program = Path::new(program);
    if !cfg!(windows) || !is_python(program) {
        return None;
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut on_path = std::env::split_paths(&path);
    let folder = match program.parent().filter(|folder| *folder != Path::new("")) {
        Some(folder) => folder.to_path_buf(),
        None => on_path.find(|folder| folder.join(program).with_extension("exe").is_file())?,
    };
    let names = fs::read_dir(folder)
        .ok()?
        .flatten()
        .map(|entry| PathBuf::from(entry.file_name()));
    let mut pth = names.filter(|name| name.extension().is_some_and(|end| end == "_pth"));
    pth.find(|name| is_python(&name.with_extension("")))
}

fn is_python(program: &Path) -> bool {
    let name = program
        .file_name()
        .and_then(OsStr::to_str)
        .unwrap_or_default();
    let name = name.strip_suffix(".exe").unwrap_or(name);
    name.strip_prefix("python").is_some_and(|version| {
        version
            .chars()
            .all(|each| each.is_ascii_digit() || each == '.')
    })
}

/// The options before the script, if `program` is a Python and one of them isolates it.
fn isolating_options(program: &OsStr, arguments: &[OsString]) -> Option<Vec<OsString>> {
    if !is_python(Path::new(program)) {
        return None;
    }
    let mut options = Vec::new();
    let mut isolates = false;
    let mut arguments = arguments.iter();
    'options: while let Some(argument) = arguments.next() {
        let Some(letters) = argument.to_str().and_then(|text| text.strip_prefix('-')) else {
            break;
        };
        if letters.is_empty() || letters == "-" {
            break;
        }
        if letters.starts_with('-') {
            options.push(argument.clone());
            if letters == "-check-hash-based-pycs" {
                options.extend(arguments.next().cloned());
            }
            continue;
        }
        for (at, letter) in letters.char_indices() {
            match letter {
                // The program follows.
                'c' | 'm' => {
                    if at > 0 {
                        options.push(format!("-{}", &letters[..at]).into());
                    }
                    break 'options;
                }
                // The option's value follows.
                'W' | 'X' => {
                    options.push(argument.clone());
                    if at + 1 == letters.len() {
                        options.extend(arguments.next().cloned());
                    }
                    continue 'options;
                }
                'E' | 'I' | 'S' => isolates = true,
                _ => {}
            }
        }
        options.push(argument.clone());
    }
    isolates.then_some(options)
}

/// `HIP_ALLOC_LIB`, or else the library installed with this executable.
pub(super) fn library() -> Result<PathBuf, Failure> {
    if let Some(path) = std::env::var_os("HIP_ALLOC_LIB").filter(|path| !path.is_empty()) {
        let path = PathBuf::from(path);
        return if path.is_file() {
            // The child may change its working directory before it loads the library.
            Ok(std::path::absolute(&path)?)
        } else {
            Err(Failure::usage(format_args!(
                "HIP_ALLOC_LIB={}: there is no such file",
                path.display()
            )))
        };
    }
    let here = std::env::current_exe().context("cannot tell where this executable is")?;
    let name = library_name("hip_alloc");
    let mut candidates = library_candidates(&here, &name);
    candidates.retain(|path| path.is_file());
    candidates.into_iter().next().ok_or_else(|| {
        Failure::usage(format_args!(
            "there is no `{name}` with `{}`: build it with `cargo build -p hip-alloc`, or set HIP_ALLOC_LIB",
            here.display()
        ))
    })
}

/// The name of a library's file.
pub(super) fn library_name(library: &str) -> String {
    use std::env::consts::{DLL_PREFIX, DLL_SUFFIX};
    format!("{DLL_PREFIX}{library}{DLL_SUFFIX}")
}

/// Where a library may be if the executable is `here`: beside it (cargo), in `../lib/surefoot` (the archive and the
/// Debian package), or in the package of a Python environment, whose programs are in `bin` (the wheel; `pip install
/// --target` omits `lib/pythonX.Y`).
pub(super) fn library_candidates(here: &Path, name: &str) -> Vec<PathBuf> {
    let mut candidates = vec![
        here.with_file_name(name),
        here.with_file_name("deps").join(name),
    ];
    let Some(prefix) = here.parent().and_then(Path::parent) else {
        return candidates;
    };
    candidates.push(prefix.join("lib/surefoot").join(name));
    // Windows has one such folder, which does not say the version.
    let mut site_packages = vec![prefix.to_owned(), prefix.join("Lib/site-packages")];
    for lib in ["lib", "lib64", "local/lib"] {
        let entries = fs::read_dir(prefix.join(lib)).into_iter().flatten();
        for folder in entries.flatten().map(|entry| entry.path()) {
            let is_python = |name: &OsStr| name.to_string_lossy().starts_with("python3");
            if folder.file_name().is_some_and(is_python) {
                site_packages
                    .extend(["site-packages", "dist-packages"].map(|name| folder.join(name)));
            }
        }
    }
    // Sort, since the order of directory entries is arbitrary.
    site_packages.sort();
    candidates.extend(
        site_packages
            .into_iter()
            .map(|folder| folder.join("surefoot_activate").join(name)),
    );
    candidates
}

/// Unpacks the Python files into the cache, once for each version of this binary.
pub(super) fn unpack() -> Result<PathBuf, Failure> {
    let folder = cache::folder().join("python").join(fingerprint());
    if folder.join("sitecustomize.py").is_file() {
        return Ok(folder);
    }
    // Two processes may unpack at once: each into its own folder, which is then renamed.
    let parent = folder.parent().unwrap_or(Path::new("."));
    let temporary = parent.join(format!("unpacking-{}", std::process::id()));
    for (path, text) in FILES {
        let path = temporary.join(path);
        let parent = path.parent().unwrap_or(&temporary);
        fs::create_dir_all(parent)
            .with_context(|| format!("cannot create {}", parent.display()))?;
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if fs::rename(&temporary, &folder).is_err() {
        // The other process was first; its files are the same.
        let _ = fs::remove_dir_all(&temporary);
    }
    if folder.join("sitecustomize.py").is_file() {
        Ok(folder)
    } else {
        Err(Failure::Job(anyhow::anyhow!(
            "cannot unpack the Python part into {}",
            folder.display()
        )))
    }
}

/// A hash of the files, so that an update does not use old ones.
fn fingerprint() -> String {
    cache::fingerprint(
        FILES
            .iter()
            .flat_map(|(path, text)| path.bytes().chain(text.bytes())),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_isolate_a_python_are_found_before_its_program() {
        let options = |program: &str, line: &str| {
            let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let found = isolating_options(OsStr::new(program), &arguments)?;
            let words: Vec<_> = found.iter().map(|word| word.to_string_lossy()).collect();
            Some(words.join(" "))
        };
        let seen = |line| options("/usr/bin/python3.12", line);
        assert_eq!(seen("-E train.py").as_deref(), Some("-E"));
        assert_eq!(seen("-u -sE -m train -v").as_deref(), Some("-u -sE"));
        assert_eq!(
            seen("-W error -X dev -Ic x").as_deref(),
            Some("-W error -X dev -I")
        );
        assert_eq!(seen("train.py -E"), None);
        assert_eq!(seen("-W E train.py"), None);
        assert_eq!(seen("-c -E"), None);
        assert_eq!(seen("-Xdev -BOO train.py"), None);
        assert_eq!(options("python.exe", "-s main.py"), None);
        assert_eq!(options("python.exe", "-E main.py").as_deref(), Some("-E"));
        assert_eq!(options("python-config", "-E"), None);
        assert_eq!(options("sh", "-E"), None);
    }

    #[test]
    fn the_library_is_found_in_every_installed_layout() {
        let name = library_name("hip_alloc");
        for layout in [
            "bin",
            "lib/surefoot",
            "lib/python3.12/site-packages/surefoot_activate",
            "lib64/python3.9/site-packages/surefoot_activate",
            "lib/python3/dist-packages/surefoot_activate",
            "Lib/site-packages/surefoot_activate",
            "surefoot_activate",
        ] {
            let prefix = tempfile::tempdir().expect("a folder");
            let folder = prefix.path().join(layout);
            fs::create_dir_all(&folder).expect("a folder");
            fs::write(folder.join(&name), b"").expect("a file");
            let found: Vec<PathBuf> =
                library_candidates(&prefix.path().join("bin/surefoot"), &name)
                    .into_iter()
                    .filter(|path| path.is_file())
                    .collect();
            assert_eq!(found, [folder.join(&name)]);
        }
    }

    #[test]
    fn the_binary_embeds_every_file_of_the_folder() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("python");
        let mut expected = vec!["sitecustomize.py".to_owned()];
        for package in ["surefoot_activate", "surefoot_placement"] {
            for entry in fs::read_dir(root.join(package)).expect("the folder") {
                let name = entry.expect("an entry").file_name();
                let name = name.into_string().expect("a name");
                if [".py", ".pyi", ".typed"]
                    .iter()
                    .any(|end| name.ends_with(end))
                {
                    expected.push(format!("{package}/{name}"));
                }
            }
        }
        expected.sort();
        let mut carried: Vec<&str> = FILES.iter().map(|(path, _)| *path).collect();
        carried.sort_unstable();
        assert_eq!(carried, expected);
    }
}
