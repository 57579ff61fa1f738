//! Under a real control group, made for the test, a process is refused memory by us and not
//! killed by the kernel. Root can make one in version 1; in version 2 a group that has processes
//! has no groups with limits below it, so it is only made where this process is in the root
//! group. Elsewhere `memory_limit.rs` plays the group.

#![allow(clippy::unwrap_used, reason = "tests")]

use crate::common::{compile, library};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 400 * MIB;

/// A memory group below that of this process. Goes with the value.
struct Group {
    folder: PathBuf,
    /// The file that counts the processes which the kernel killed in it.
    kills: &'static str,
}

impl Group {
    /// `None`, and a line that says why, where this user may not have one.
    fn new(name: &str) -> Option<Group> {
        let made = Self::version_1(name).or_else(|| Self::version_2(name));
        if made.is_none() {
            eprintln!("not run: this user may not make a memory group");
        }
        made
    }

    fn version_1(name: &str) -> Option<Group> {
        let own = own_path(":memory:")?;
        let folder = Path::new("/sys/fs/cgroup/memory").join(own).join(name);
        Self::limited(folder, "memory.limit_in_bytes", "memory.oom_control")
    }

    fn version_2(name: &str) -> Option<Group> {
        let folder = Path::new("/sys/fs/cgroup").join(own_path("0::")?);
        Self::limited(folder.join(name), "memory.max", "memory.events")
    }

    fn limited(folder: PathBuf, limit: &str, kills: &'static str) -> Option<Group> {
        fs::create_dir(&folder).ok()?;
        let group = Group { folder, kills };
        // Without the memory controller the file is not there.
        let limited = group.folder.join(limit).is_file()
            && fs::write(group.folder.join(limit), LIMIT.to_string()).is_ok();
        limited.then_some(group)
    }

    fn run(&self, program: &Path, touch: &str) -> Output {
        Command::new("sh")
            .args(["-c", "echo $$ > \"$0/cgroup.procs\" && exec \"$@\""])
            .arg(&self.folder)
            .arg(program)
            .arg(library())
            .arg(touch)
            .env("HIP_ALLOC_CONF", "warmup_mb:0,reserve_mb:16")
            .output()
            .unwrap()
    }

    fn kills(&self) -> u64 {
        let text = fs::read_to_string(self.folder.join(self.kills)).unwrap();
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count.unwrap().trim().parse().unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The last process may still be leaving it.
        for _ in 0..100 {
            if fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

/// The group of this process in the hierarchy whose line has `mark`, below its root.
fn own_path(mark: &str) -> Option<String> {
    let text = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = text.lines().find_map(|line| {
        let at = line.find(mark)?;
        (mark != "0::" || at == 0).then(|| &line[at + mark.len()..])
    })?;
    Some(path.trim_start_matches('/').to_owned())
}

fn is_refused_and_not_killed(touch: &str) {
    let Some(group) = Group::new(&format!("surefoot-{touch}-{}", std::process::id())) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let program = compile("fill.cpp", folder.path());
    let output = group.run(&program, touch);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(group.kills(), 0);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("refused: Host out of memory"), "{text}");
    assert!(text.contains("The control group of this process"), "{text}");
    let got = text
        .lines()
        .find_map(|line| line.strip_prefix("got ")?.trim().parse::<u64>().ok())
        .unwrap();
    assert!(got >= LIMIT / 2, "only {} MiB of 400 were given", got / MIB);
}

#[test]
fn memory_that_is_touched_at_once() {
    is_refused_and_not_killed("at-once");
}

#[test]
fn memory_that_is_touched_at_the_end() {
    is_refused_and_not_killed("at-the-end");
}
