//! Reading the machine that this process runs on.

#[cfg(windows)]
mod windows;

use crate::memory::HostMemory;
use crate::snapshot::{Content, Snapshot};
use crate::source::Source;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// The machine that this process runs on.
///
/// ```
/// use surefoot_platform::live::Live;
///
/// let machine = surefoot_platform::detect::machine(&Live::default().snapshot());
/// println!("{} GPUs", machine.gpus.len());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Live {
    /// Where the words of large libraries are kept, so that each is read once: the HIP
    /// library of PyTorch can be a gigabyte. `None`: they are read every time.
    pub cache: Option<PathBuf>,
}

impl Live {
    /// Reads what the doctor needs from this machine, without Python.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        #[cfg(windows)]
        return crate::windows_source::collect(self);
        #[cfg(not(windows))]
        crate::source::collect(self)
    }

    /// The current RAM and swap; all unknown if the system does not tell.
    #[must_use]
    pub fn host_memory(&self) -> HostMemory {
        #[cfg(windows)]
        return crate::windows_source::WindowsSource::memory(self);
        #[cfg(not(windows))]
        match self.read("/proc/meminfo") {
            Some(Content::Text(text)) => HostMemory::parse(&text),
            _ => HostMemory::default(),
        }
    }
}

/// Whether a path is a Linux path. On Windows it would refer to the root of the current
/// drive, which is not what is meant.
fn is_of_linux(path: &str) -> bool {
    cfg!(windows) && path.starts_with('/')
}

impl Source for Live {
    fn read(&self, path: &str) -> Option<Content> {
        if is_of_linux(path) {
            return None;
        }
        match fs::read(path) {
            Ok(bytes) => Some(Content::Text(String::from_utf8_lossy(&bytes).into_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            // A folder where a file is expected is as good as nothing.
            Err(error) if error.kind() == io::ErrorKind::IsADirectory => None,
            Err(error) => Some(Content::Error(error_name(&error))),
        }
    }

    fn list(&self, folder: &str) -> Vec<String> {
        if is_of_linux(folder) {
            return Vec::new();
        }
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
        let path = Some(path).filter(|path| !is_of_linux(path))?;
        fs::metadata(path).ok().map(|_| String::new())
    }

    fn variables(&self) -> Vec<(String, String)> {
        let variables = std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        // Windows writes `Path`, and takes any spelling.
        let named = |name: String| match cfg!(windows) {
            true => name.to_ascii_uppercase(),
            false => name,
        };
        variables
            .map(|(name, value)| (named(name), value))
            .collect()
    }

    fn real_path(&self, path: &str) -> Option<String> {
        let path = fs::canonicalize(path).ok()?.to_str()?.to_owned();
        // The form for long paths, which no other program prints.
        let short = path.strip_prefix(r"\\?\").filter(|_| cfg!(windows));
        Some(short.unwrap_or(&path).to_owned())
    }

    fn is_windows(&self) -> bool {
        cfg!(windows)
    }

    fn words(&self, path: &str, prefix: &str) -> Vec<String> {
        let path = Path::new(path);
        let found = match &self.cache {
            Some(folder) => cached_words(path, prefix, folder),
            None => words(path, prefix.as_bytes()),
        };
        found.unwrap_or_default()
    }
}

/// The words of a library, from the cache unless its size or time of change is another.
fn cached_words(path: &Path, prefix: &str, folder: &Path) -> io::Result<Vec<String>> {
    let metadata = fs::metadata(path)?;
    let mut hasher = DefaultHasher::new();
    (path, metadata.len(), metadata.modified()?, prefix).hash(&mut hasher);
    let cached = folder.join(format!("{:016x}", hasher.finish()));
    if let Ok(text) = fs::read_to_string(&cached) {
        return Ok(text.lines().map(str::to_owned).collect());
    }
    let found = words(path, prefix.as_bytes())?;
    // Without a place to keep them it is only slower next time.
    let _ = keep(&cached, folder, &found.join("\n"));
    Ok(found)
}

/// Writes a file of the cache, which is there as a whole or not at all: others read it meanwhile.
fn keep(cached: &Path, folder: &Path, text: &str) -> io::Result<()> {
    static WRITTEN: AtomicU64 = AtomicU64::new(0);
    fs::create_dir_all(folder)?;
    let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
    let beside = folder.join(format!(".{}.{number}", std::process::id()));
    let written = fs::write(&beside, text).and_then(|()| fs::rename(&beside, cached));
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written
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

/// The name of an error in the kernel's documentation. Windows has its own numbers.
fn error_name(error: &io::Error) -> String {
    if cfg!(windows) {
        let number = error.raw_os_error();
        return number.map_or("EOTHER".to_owned(), |number| format!("error{number}"));
    }
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
        let read = || cached_words(&library, "gfx", &memory).expect("readable");
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
    fn who_reads_a_file_of_the_cache_while_it_is_replaced_reads_the_one_before() {
        let folder = tempfile::tempdir().expect("a folder");
        let (cached, opened) = (folder.path().join("cached"), folder.path().join("opened"));
        keep(&cached, folder.path(), "before").expect("written");
        fs::hard_link(&cached, &opened).expect("a link");
        keep(&cached, folder.path(), "after").expect("written");
        let read = |path: &Path| fs::read_to_string(path).expect("readable");
        assert_eq!(
            (read(&cached), read(&opened)),
            ("after".into(), "before".into())
        );
        // Remove the draft if the file cannot be replaced.
        let place = folder.path().join("place");
        fs::create_dir(&place).expect("a folder where the file would be");
        assert!(keep(&place, folder.path(), "after").is_err());
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 3);
    }
}
