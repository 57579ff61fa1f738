//! How long programs stall on memory: the kernel's pressure stall information (PSI).

use super::host::memory_cgroups;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Reads how long tasks on this machine, or in the control groups of this process, have stalled on memory.
#[derive(Clone, Debug)]
pub struct MemoryPressure {
    files: Vec<PathBuf>,
}

impl MemoryPressure {
    /// The pressure on this machine.
    #[must_use]
    pub fn new() -> Self {
        Self::below(Path::new("/"))
    }

    /// Like [`MemoryPressure::new`], for the machine whose files are below `root`.
    #[must_use]
    pub fn below(root: &Path) -> Self {
        let membership = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        let groups = memory_cgroups(&membership).into_iter();
        let files = groups.map(|(folder, _)| {
            let folder = root.join(folder.trim_start_matches('/'));
            folder.join("memory.pressure")
        });
        let machine = root.join("proc/pressure/memory");
        let files = files.chain([machine]).filter(|file| file.exists());
        Self {
            files: files.collect(),
        }
    }

    /// The total time that at least one task has stalled on memory since boot, the maximum over machine and
    /// groups; `None` if the kernel does not report it.
    #[must_use]
    pub fn waited(&self) -> Option<Duration> {
        let texts = self
            .files
            .iter()
            .filter_map(|file| fs::read_to_string(file).ok());
        texts.filter_map(|text| waited(&text)).max()
    }
}

impl Default for MemoryPressure {
    fn default() -> Self {
        Self::new()
    }
}

/// The total of the line `some avg10=0.00 avg60=0.00 avg300=0.00 total=12345`, in microseconds.
fn waited(text: &str) -> Option<Duration> {
    let line = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let total = line
        .split(' ')
        .find_map(|word| word.strip_prefix("total="))?;
    total.parse().ok().map(Duration::from_micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(total: u64) -> String {
        format!(
            "some avg10=0.00 avg60=0.00 avg300=0.00 total={total}\n\
             full avg10=0.00 avg60=0.00 avg300=0.00 total=1\n"
        )
    }

    #[test]
    fn the_longest_wait_of_machine_and_groups_counts() {
        let root = tempfile::tempdir().expect("a folder");
        let pressure = || MemoryPressure::below(root.path()).waited();
        assert_eq!(pressure(), None);
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, text).expect("a file");
        };
        write("proc/pressure/memory", &some(20));
        assert_eq!(pressure(), Some(Duration::from_micros(20)));
        write("proc/self/cgroup", "0::/a/b\n");
        write("sys/fs/cgroup/a/memory.pressure", &some(30));
        write("sys/fs/cgroup/a/b/memory.pressure", "");
        assert_eq!(pressure(), Some(Duration::from_micros(30)));
    }
}
