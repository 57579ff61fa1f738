//! Running a program to its end while watching its memory.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Serialize;

/// The peak memory of a process.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct PeakMemory {
    /// Peak resident set: `VmHWM`, as counted by the kernel.
    pub(crate) resident_bytes: u64,
    /// Without file-backed pages such as those of libraries: `RssAnon`, sampled many times a second.
    pub(crate) anonymous_bytes: u64,
}

/// Runs `command` to completion; its output goes to our stderr.
pub(crate) fn run(mut command: Command) -> Result<PeakMemory> {
    command.stdout(std::io::stderr());
    run_to(command, 0)
}

/// Runs `command` to completion; it must return this exit code.
pub(crate) fn run_to(mut command: Command, code: i32) -> Result<PeakMemory> {
    let described = format!("{command:?}");
    let mut child = command
        .stdin(Stdio::null())
        .spawn()
        .with_context(|| format!("cannot start {described}"))?;
    let mut peak = PeakMemory::default();
    loop {
        peak.look(&child);
        if let Some(status) = child.try_wait()? {
            if status.code() != Some(code) {
                bail!("{described} failed: {status}");
            }
            return Ok(peak);
        }
        thread::sleep(Duration::from_millis(20));
    }
}

impl PeakMemory {
    fn look(&mut self, child: &Child) {
        // Between its exit and our `wait` a process has no memory to report.
        let Ok(status) = fs::read_to_string(format!("/proc/{}/status", child.id())) else {
            return;
        };
        let resident = kilobytes(&status, "VmHWM:").unwrap_or(0);
        let anonymous = kilobytes(&status, "RssAnon:").unwrap_or(0);
        self.resident_bytes = self.resident_bytes.max(resident * 1024);
        self.anonymous_bytes = self.anonymous_bytes.max(anonymous * 1024);
    }
}

/// The value of a line of `/proc/<pid>/status`, in units of 1024 bytes.
fn kilobytes(status: &str, key: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(key))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_kernels_table() {
        let status = "Name:\tx\nVmHWM:\t  123456 kB\nRssAnon:\t      12 kB\n";
        assert_eq!(kilobytes(status, "VmHWM:"), Some(123_456));
        assert_eq!(kilobytes(status, "VmSwap:"), None);
    }

    #[test]
    fn sees_the_memory_that_a_program_takes() {
        // 64 MiB, held for a moment so that the sampling sees them.
        let mut shell = Command::new("sh");
        shell.args([
            "-c",
            "x=$(head -c 67108864 /dev/zero | tr '\\0' x); sleep 0.2; : \"$x\"",
        ]);
        let peak = run(shell).unwrap();
        assert!(peak.anonymous_bytes > 64 << 20, "{peak:?}");
        assert!(peak.resident_bytes >= peak.anonymous_bytes, "{peak:?}");
    }

    #[test]
    fn a_program_that_fails_fails_the_benchmark() {
        assert!(run(Command::new("false")).is_err());
    }
}
