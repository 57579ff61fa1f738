//! This machine, as `platform` reads it: files, devices, the environment.

use crate::{cache, remembered};
use platform::Machine;
use platform::python_source::collect_python;
use platform::snapshot::{Content, Snapshot};
use platform::source::{Source, collect};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, UNIX_EPOCH};

/// Which Python to look at.
#[derive(Clone, Debug)]
pub enum Python {
    /// None: everything else takes a few milliseconds.
    Skip,
    /// The active one.
    Active,
    /// This one.
    At(String),
}

/// Reads this machine.
pub fn snapshot(python: &Python) -> Snapshot {
    let source = Live;
    let mut snapshot = collect(&source);
    let wanted = match python {
        Python::Skip => return snapshot,
        Python::Active => None,
        Python::At(path) => Some(path.as_str()),
    };
    if let Some(prefix) = collect_python(&source, wanted, &mut snapshot) {
        ask_torch(&prefix, &mut snapshot);
        add_probed(&mut snapshot);
    }
    snapshot
}

/// What an earlier `surefoot probe` found for the GPU that is picked, and this torch.
fn add_probed(snapshot: &mut Snapshot) {
    let probed = probed(&platform::detect::machine(snapshot));
    if !probed.is_empty() {
        snapshot.insert_text("surefoot/probed", probed);
    }
}

fn probed(machine: &Machine) -> String {
    let picked = platform::plan::plan(machine).pick;
    let gfx = picked.and_then(|index| machine.gpus.get(index)?.gfx);
    let torch = machine
        .python
        .as_ref()
        .and_then(|python| python.torch.as_ref());
    match (gfx, torch) {
        (Some(gfx), Some(torch)) => remembered::read(&gfx.to_string(), &torch.version),
        _ => String::new(),
    }
}

/// A variable that names a dump: everything then behaves as on the machine of the dump,
/// with the environment of this process. For tests, and to try what a machine would get.
pub const MACHINE: &str = "SUREFOOT_MACHINE";

/// Reads this machine and states its facts.
pub fn machine(python: &Python) -> Machine {
    machine_of_dump().unwrap_or_else(|| platform::detect::machine(&snapshot(python)))
}

fn machine_of_dump() -> Option<Machine> {
    let path = std::env::var_os(MACHINE).filter(|path| !path.is_empty())?;
    let read = fs::read(&path).map_err(|error| error.to_string());
    let machine = read.and_then(|bytes| {
        platform::dump::read(&platform::dump::decode(&bytes)).map_err(|error| error.to_string())
    });
    match machine {
        Ok(mut machine) => {
            let own = Live.variables();
            machine.variables = own
                .into_iter()
                .filter(|(name, _)| platform::source::is_relevant_variable(name))
                .collect();
            machine.is_complete = true;
            machine.probed = remembered::parse(&probed(&machine));
            Some(machine)
        }
        Err(error) => {
            tracing::warn!("{MACHINE}={}: {error}", path.display());
            None
        }
    }
}

/// The last resort for the architectures of a ROCm wheel: torch itself, in a process
/// that may crash or hang.
fn ask_torch(prefix: &str, snapshot: &mut Snapshot) {
    let machine = platform::detect::machine(snapshot);
    let torch = machine.python.and_then(|python| python.torch);
    let is_open = torch.is_some_and(|torch| {
        torch.build == platform::python::Build::Rocm && torch.architectures.is_none()
    });
    if !is_open {
        return;
    }
    const QUESTION: &str =
        "import torch; print(*torch.cuda.get_arch_list(), torch._C._cuda_getArchFlags())";
    let mut command = Command::new(format!("{prefix}/bin/python"));
    command.args(["-c", QUESTION]);
    if let Some(answer) = output_within(command, Duration::from_secs(20)) {
        snapshot.insert_text("python/torch/arch_list", answer);
    }
}

/// What a command prints, if it ends well and in time.
fn output_within(mut command: Command, limit: Duration) -> Option<String> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let end = Instant::now() + limit;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => {
                let mut text = String::new();
                // What it prints fits into a pipe, so that it could end before we read.
                child.stdout.take()?.read_to_string(&mut text).ok()?;
                return status.success().then_some(text);
            }
            Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(20)),
            _ => {
                // It hangs, or cannot be waited for; either way there is no answer.
                let _ = child.kill();
                let _ = child.wait();
                return None;
            }
        }
    }
}

/// The machine that this process runs on.
pub struct Live;

impl Source for Live {
    fn read(&self, path: &str) -> Option<Content> {
        match fs::read(path) {
            Ok(bytes) => Some(Content::Text(String::from_utf8_lossy(&bytes).into_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            // A folder where a file is expected is as good as nothing.
            Err(error) if error.kind() == io::ErrorKind::IsADirectory => None,
            Err(error) => Some(Content::Error(error_name(&error))),
        }
    }

    fn list(&self, folder: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(folder) else {
            return Vec::new();
        };
        let mut names: Vec<String> = entries
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort();
        names
    }

    fn open_device(&self, path: &str) -> String {
        match File::options().read(true).write(true).open(path) {
            Ok(_) => "ok".to_owned(),
            Err(error) => error_name(&error),
        }
    }

    #[cfg(unix)]
    fn owner(&self, path: &str) -> Option<String> {
        use std::os::unix::fs::MetadataExt;
        let metadata = fs::metadata(path).ok()?;
        Some(format!(
            "mode={:04o} uid={} gid={}",
            metadata.mode() & 0o7777,
            metadata.uid(),
            metadata.gid()
        ))
    }

    #[cfg(not(unix))]
    fn owner(&self, path: &str) -> Option<String> {
        fs::metadata(path).ok().map(|_| String::new())
    }

    fn variables(&self) -> Vec<(String, String)> {
        std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect()
    }

    fn real_path(&self, path: &str) -> Option<String> {
        fs::canonicalize(path).ok()?.to_str().map(str::to_owned)
    }

    fn words(&self, path: &str, prefix: &str) -> Vec<String> {
        remembered_words(Path::new(path), prefix, &cache::folder().join("words"))
            .unwrap_or_default()
    }
}

/// The words of a library, read once: it can be a gigabyte, and `surefoot run` should not
/// cost seconds at every start. Size and time of change tell when it is another one.
fn remembered_words(path: &Path, prefix: &str, folder: &Path) -> io::Result<Vec<String>> {
    let metadata = fs::metadata(path)?;
    let changed = metadata
        .modified()?
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let identity = format!(
        "{}\n{}\n{}\n{prefix}",
        path.display(),
        metadata.len(),
        changed.as_nanos()
    );
    let memory = folder.join(cache::fingerprint(identity.bytes()));
    if let Ok(text) = fs::read_to_string(&memory) {
        return Ok(text.lines().map(str::to_owned).collect());
    }
    let found = words(path, prefix.as_bytes())?;
    // Without a place to remember it is only slower next time.
    let _ = fs::create_dir_all(folder).and_then(|()| fs::write(&memory, found.join("\n")));
    Ok(found)
}

/// Reads the file in pieces that overlap, so that no word is cut.
fn words(path: &Path, prefix: &[u8]) -> io::Result<Vec<String>> {
    const PIECE: usize = 8 << 20;
    const LONGEST: usize = 256;
    let mut file = File::open(path)?;
    let finder = memchr::memmem::Finder::new(prefix);
    let mut found = BTreeSet::new();
    let mut buffer = Vec::with_capacity(PIECE + LONGEST);
    loop {
        let read = file.by_ref().take(PIECE as u64).read_to_end(&mut buffer)?;
        for start in finder.find_iter(&buffer) {
            let rest = &buffer[start..buffer.len().min(start + LONGEST)];
            let end = rest
                .iter()
                .position(|byte| !(byte.is_ascii_alphanumeric() || *byte == b'-'))
                .unwrap_or(rest.len());
            found.insert(String::from_utf8_lossy(&rest[..end]).into_owned());
        }
        if read == 0 {
            return Ok(found.into_iter().collect());
        }
        buffer.drain(..buffer.len().saturating_sub(LONGEST));
    }
}

/// The name of an error as the kernel's documentation has it.
fn error_name(error: &io::Error) -> String {
    let name = match error.raw_os_error() {
        Some(1) => "EPERM",
        Some(2) => "ENOENT",
        Some(5) => "EIO",
        Some(6) => "ENXIO",
        Some(12) => "ENOMEM",
        Some(13) => "EACCES",
        Some(16) => "EBUSY",
        Some(19) => "ENODEV",
        Some(22) => "EINVAL",
        Some(number) => return format!("errno{number}"),
        None => "EOTHER",
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_across_the_seams_of_pieces() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("library.so");
        let mut bytes = vec![0u8; (8 << 20) - 10];
        bytes.extend(b"amdgcn-amd-amdhsa--gfx1151\0");
        bytes.extend(vec![0u8; 100]);
        bytes.extend(b"amdgcn-amd-amdhsa--gfx90a:xnack+\0");
        fs::write(&path, bytes).expect("a file");
        let found = words(&path, b"amdgcn-amd-amdhsa--gfx").expect("readable");
        assert!(
            found.contains(&"amdgcn-amd-amdhsa--gfx1151".to_owned()),
            "{found:?}"
        );
        assert!(
            found.contains(&"amdgcn-amd-amdhsa--gfx90a".to_owned()),
            "{found:?}"
        );
    }

    #[test]
    fn a_library_is_read_again_only_when_it_changed() {
        let folder = tempfile::tempdir().expect("a folder");
        let (library, memory) = (
            folder.path().join("library.so"),
            folder.path().join("words"),
        );
        let read = || remembered_words(&library, "gfx", &memory).expect("readable");
        fs::write(&library, "gfx1151 ").expect("a file");
        assert_eq!(read(), ["gfx1151"]);
        for entry in fs::read_dir(&memory).expect("a memory") {
            fs::write(entry.expect("an entry").path(), "gfx1").expect("a file");
        }
        assert_eq!(read(), ["gfx1"], "from memory");
        fs::write(&library, "gfx1151 gfx1100 ").expect("a file");
        assert_eq!(read(), ["gfx1100", "gfx1151"], "it changed");
    }

    #[test]
    fn a_command_that_hangs_has_no_answer() {
        let mut command = Command::new("sleep");
        command.arg("60");
        assert_eq!(output_within(command, Duration::from_millis(50)), None);
    }
}
