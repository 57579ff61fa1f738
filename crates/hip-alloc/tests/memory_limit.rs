//! Under a control group's limit a process is refused memory, never killed.
//!
//! The program (`tests/cpp/fill.cpp`) takes and touches host memory until it is refused.
//! What it sees as `/sys/fs/cgroup` is a folder of this test, in a mount namespace of its
//! own; the usage in it is a pipe, which the test answers, at the moment it is read, with
//! what the kernel counts for the process then. Whether the kernel would have killed it is
//! told by the kernel too: the most that the process ever had in memory.

#![allow(clippy::unwrap_used, reason = "tests")]

use crate::common::{compile, library};
use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 400 * MIB;

/// The files of a memory group, in one of the two versions.
struct Layout {
    folder: &'static str,
    limit: &'static str,
    usage: &'static str,
}

const VERSION_1: Layout = Layout {
    folder: "memory",
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
};
const VERSION_2: Layout = Layout {
    folder: ".",
    limit: "memory.max",
    usage: "memory.current",
};

/// A private `/sys/fs/cgroup`; `None`, and a line, where this user may not have one.
fn namespace() -> Option<&'static [&'static str]> {
    const WAYS: [&[&str]; 2] = [&["--mount"], &["--map-root-user", "--mount"]];
    let works = |way: &&&[&str]| {
        Command::new("unshare")
            .args(**way)
            .args(["sh", "-c", "mount --bind /tmp /sys/fs/cgroup"])
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    };
    let way = WAYS.iter().find(works).copied();
    if way.is_none() {
        eprintln!("not run: this user may not mount anything, not even in a namespace");
    }
    way
}

fn mkfifo(path: &Path) {
    let made = Command::new("mkfifo").arg(path).status().unwrap();
    assert!(made.success());
}

/// What the kernel counts for the processes of this test that are `program`.
fn resident(program: &Path) -> u64 {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let ours = processes.filter(|entry| {
        fs::read_link(entry.path().join("exe")).is_ok_and(|executable| executable == program)
    });
    ours.filter_map(|entry| {
        let status = fs::read_to_string(entry.path().join("status")).ok()?;
        let kib = status.lines().find_map(|line| {
            line.strip_prefix("VmRSS:")?
                .strip_suffix("kB")?
                .trim()
                .parse::<u64>()
                .ok()
        })?;
        Some(kib * 1024)
    })
    .sum()
}

/// Answers each reader of the usage with what `program` has in memory at that moment.
fn serve(usage: &Path, program: &Path, ended: &AtomicBool) {
    let next = usage.with_extension("next");
    while !ended.load(Ordering::Relaxed) {
        // Without a reader this fails; it does not wait.
        let opened = fs::OpenOptions::new()
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(usage);
        let Ok(mut pipe) = opened else {
            std::thread::sleep(Duration::from_micros(200));
            continue;
        };
        // The next reader gets a pipe of its own, so that this one's ends when we close it.
        mkfifo(&next);
        fs::rename(&next, usage).unwrap();
        writeln!(pipe, "{}", resident(program)).unwrap();
    }
}

fn fill_under_a_limit(layout: &Layout, conf: &str, touch: &str) -> Option<Output> {
    let way = namespace()?;
    let root = tempfile::tempdir().unwrap();
    let group = root.path().join(layout.folder);
    fs::create_dir_all(&group).unwrap();
    fs::write(group.join(layout.limit), LIMIT.to_string()).unwrap();
    fs::write(group.join("memory.stat"), "").unwrap();
    let usage = group.join(layout.usage);
    mkfifo(&usage);
    let program = fs::canonicalize(compile("fill.cpp", root.path())).unwrap();
    let ended = AtomicBool::new(false);
    let output = std::thread::scope(|scope| {
        scope.spawn(|| serve(&usage, &program, &ended));
        let output = Command::new("unshare")
            .args(way)
            .args([
                "sh",
                "-c",
                "mount --bind \"$0\" /sys/fs/cgroup && exec \"$@\"",
            ])
            .arg(root.path())
            .arg(&program)
            .arg(library())
            .arg(touch)
            .env("HIP_ALLOC_CONF", conf)
            .output();
        // Before a failure to start it, too: the scope waits for the other thread.
        ended.store(true, Ordering::Relaxed);
        output.unwrap()
    });
    Some(output)
}

/// `most` and `got` of what the program printed.
fn numbers(output: &Output) -> (u64, u64) {
    let text = String::from_utf8_lossy(&output.stdout);
    let number = |name: &str| {
        let found = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        found.unwrap_or_else(|| {
            panic!(
                "no {name} in {text}{}",
                String::from_utf8_lossy(&output.stderr)
            )
        })
    };
    (number("most"), number("got"))
}

fn is_refused_and_not_killed(layout: &Layout, touch: &str) {
    let Some(output) = fill_under_a_limit(layout, "warmup_mb:0,reserve_mb:0", touch) else {
        return;
    };
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("refused: Host out of memory"), "{text}");
    assert!(text.contains("The control group of this process"), "{text}");
    let (most, got) = numbers(&output);
    assert!(
        most <= LIMIT,
        "{} MiB in memory under a limit of 400",
        most / MIB
    );
    assert!(got >= LIMIT / 2, "only {} MiB of 400 were given", got / MIB);
}

#[test]
fn under_version_two_with_memory_that_is_touched_at_once() {
    is_refused_and_not_killed(&VERSION_2, "at-once");
}

#[test]
fn under_version_two_with_memory_that_is_touched_at_the_end() {
    is_refused_and_not_killed(&VERSION_2, "at-the-end");
}

#[test]
fn under_version_one() {
    is_refused_and_not_killed(&VERSION_1, "at-once");
}
