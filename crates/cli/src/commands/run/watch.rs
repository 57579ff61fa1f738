//! The memory of the machine while a command runs, and what the kernel says about it.
//!
//! After a process has died its memory is free again, so looking then shows nothing. A
//! thread looks once in a while, and the last look before the end is what is reported.

use doctor::explain::ending::KernelEvents;
use platform::live::Live;
use platform::snapshot::Content;
use platform::source::Source;
use platform::{Bytes, Machine};
use std::fs::File;
use std::io::{self, Read};
#[cfg(unix)]
use std::io::{Seek as _, SeekFrom};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Often enough to see a checkpoint being loaded, seldom enough to cost nothing.
const INTERVAL: Duration = Duration::from_millis(500);

/// What the system calls the disk that stands in for RAM.
const SWAP: &str = if cfg!(windows) { "page file" } else { "swap" };

/// Watches from its start to [`Watch::finish`].
pub(super) struct Watch {
    before: KernelEvents,
    kernel_log: Option<File>,
    pid: Arc<AtomicU32>,
    last: Arc<Mutex<Sample>>,
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

/// What was seen.
pub(super) struct Seen {
    /// Kills for memory, by the kernel, in the meantime.
    pub(super) events: KernelEvents,
    /// One line about memory at the last look.
    pub(super) memory: String,
    /// What the kernel logged about GPUs, memory and crashes in the meantime; empty when
    /// this user may not read it.
    pub(super) kernel_log: Vec<String>,
}

struct Sample {
    at: Instant,
    text: String,
    /// The most that the process itself has held, by the kernel's own account.
    process_peak: Option<Bytes>,
}

impl Watch {
    /// Begins.
    pub(super) fn start(machine: &Machine) -> Self {
        let (stop, stopped) = channel();
        let pid = Arc::new(AtomicU32::new(0));
        let render_nodes = render_nodes(machine);
        // The first look is our own: a command can be over before a thread begins.
        let last = Arc::new(Mutex::new(look(&render_nodes, 0)));
        let thread = {
            let (pid, last) = (Arc::clone(&pid), Arc::clone(&last));
            thread::spawn(move || {
                loop {
                    let sample = look(&render_nodes, pid.load(Ordering::SeqCst));
                    let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
                    *last = Sample {
                        process_peak: sample.process_peak.or(last.process_peak),
                        ..sample
                    };
                    drop(last);
                    if stopped.recv_timeout(INTERVAL) != Err(RecvTimeoutError::Timeout) {
                        return;
                    }
                }
            })
        };
        Self {
            before: kernel_events(),
            kernel_log: kernel_log_from_now(),
            pid,
            last,
            stop,
            thread,
        }
    }

    /// For the child's process id, once it has one.
    pub(super) fn pid(&self) -> Arc<AtomicU32> {
        Arc::clone(&self.pid)
    }

    /// Ends, and tells what was seen.
    pub(super) fn finish(self) -> Seen {
        let after = kernel_events();
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let held = last
            .process_peak
            .map(|peak| format!(", the process held {peak} at most"))
            .unwrap_or_default();
        let ago = last.at.elapsed().as_secs_f64();
        let memory = format!("{} {ago:.1} s before its end{held}", last.text);
        drop(last);
        // The thread may have ended by a panic; there is nothing to tell anybody then.
        let _ = self.stop.send(());
        let _ = self.thread.join();
        Seen {
            events: KernelEvents {
                oom_kills: after.oom_kills.saturating_sub(self.before.oom_kills),
                cgroup_oom_kills: after
                    .cgroup_oom_kills
                    .saturating_sub(self.before.cgroup_oom_kills),
            },
            memory,
            kernel_log: self.kernel_log.map(relevant_records).unwrap_or_default(),
        }
    }
}

fn read(path: &str) -> Option<String> {
    match Live::default().read(path) {
        Some(Content::Text(text)) => Some(text),
        _ => None,
    }
}

/// The number of each GPU and the folder that has its memory.
fn render_nodes(machine: &Machine) -> Vec<(usize, String)> {
    let node = |gpu: &platform::machine::Gpu| {
        let name = gpu.render_node.as_ref()?.strip_prefix("/dev/dri/")?;
        Some((gpu.index, format!("/sys/class/drm/{name}/device")))
    };
    machine.gpus.iter().filter_map(node).collect()
}

/// RAM, swap, the cgroup, and the memory of each GPU.
fn look(render_nodes: &[(usize, String)], pid: u32) -> Sample {
    let mut words = Vec::new();
    let memory = Live::default().host_memory();
    if memory.total.is_some() {
        let size =
            |bytes: Option<Bytes>| bytes.map_or_else(|| "?".to_owned(), |bytes| bytes.to_string());
        words.push(format!(
            "{} of {} RAM available",
            size(memory.available),
            size(memory.total)
        ));
        if memory.swap_total.is_some_and(|total| total > Bytes::ZERO) {
            words.push(format!(
                "{} of {} {SWAP} free",
                size(memory.swap_free),
                size(memory.swap_total)
            ));
        }
    }
    for (index, folder) in render_nodes {
        let used = |name: &str| Bytes::parse_tool_output(&read(&format!("{folder}/{name}"))?);
        if let (Some(vram), Some(gtt)) = (used("mem_info_vram_used"), used("mem_info_gtt_used")) {
            words.push(format!("GPU {index}: {vram} VRAM and {gtt} GTT in use"));
        }
    }
    let process_peak = read(&format!("/proc/{pid}/status"))
        .filter(|_| pid != 0)
        .and_then(|status| {
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix("VmHWM:"))?;
            Bytes::parse_tool_output(line)
        });
    Sample {
        at: Instant::now(),
        text: words.join(", "),
        process_peak,
    }
}

/// How often the kernel has killed for memory, so far.
fn kernel_events() -> KernelEvents {
    let counter = |path: &str, key: &str| {
        let text = read(path)?;
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))?;
        value.trim().parse().ok()
    };
    let cgroup = read("/proc/self/cgroup").and_then(|text| {
        text.lines()
            .find_map(|line| line.strip_prefix("0::"))
            .map(str::to_owned)
    });
    let events = format!(
        "/sys/fs/cgroup{}/memory.events",
        cgroup.as_deref().unwrap_or_default().trim_end_matches('/')
    );
    KernelEvents {
        oom_kills: counter("/proc/vmstat", "oom_kill").unwrap_or(0),
        cgroup_oom_kills: counter(&events, "oom_kill").unwrap_or(0),
    }
}

/// The kernel log, so far read; `None` where a user may not (`kernel.dmesg_restrict`), and where no kernel writes
/// one.
fn kernel_log_from_now() -> Option<File> {
    #[cfg(unix)]
    {
        let mut options = File::options();
        options.read(true);
        std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
        let mut log = options.open("/dev/kmsg").ok()?;
        log.seek(SeekFrom::End(0)).ok()?;
        Some(log)
    }
    #[cfg(not(unix))]
    None
}

/// The records since then that concern a GPU, memory or a crash.
fn relevant_records(mut log: impl Read) -> Vec<String> {
    const WORDS: [&str; 8] = [
        "amdgpu",
        "kfd",
        "[drm",
        "out of memory",
        "oom",
        "segfault",
        "general protection",
        "blocked for more than",
    ];
    let mut record = [0u8; 8192];
    let mut found = Vec::new();
    // A machine that logs without end must not keep us.
    for _ in 0..4096 {
        match log.read(&mut record) {
            Ok(0) => break,
            Ok(length) => {
                let text = String::from_utf8_lossy(&record[..length]);
                // `6,1234,98765,-;message`, and continuation lines with values.
                let message = text
                    .split_once(';')
                    .and_then(|(_, rest)| rest.lines().next());
                let lower = message.unwrap_or_default().to_ascii_lowercase();
                if WORDS.iter().any(|word| lower.contains(word)) {
                    found.extend(message.map(str::to_owned));
                }
            }
            // Records that were overwritten before we came: the next one is there.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            Err(_) => break,
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel gives one record a read.
    struct Records(Vec<&'static str>);

    impl Read for Records {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            if self.0.is_empty() {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            self.0.remove(0).as_bytes().read(buffer)
        }
    }

    #[test]
    fn only_records_that_concern_the_death_are_kept() {
        let records = Records(vec![
            "6,1,2,-;usb 1-1: new device\n",
            "3,2,3,-;amdgpu 0000:c5:00.0: amdgpu: [gfxhub] page fault (src_id:0)\n SUBSYSTEM=pci\n",
            "4,3,4,-;python3[4711]: segfault at 0 ip 00007f\n",
        ]);
        assert_eq!(
            relevant_records(records),
            [
                "amdgpu 0000:c5:00.0: amdgpu: [gfxhub] page fault (src_id:0)",
                "python3[4711]: segfault at 0 ip 00007f"
            ]
        );
    }

    #[test]
    fn the_peak_of_the_process_outlives_it() {
        let watch = Watch::start(&Machine::default());
        watch.pid().store(std::process::id(), Ordering::SeqCst);
        let sample = look(&[], std::process::id());
        #[cfg(target_os = "linux")]
        assert!(sample.process_peak.is_some_and(|peak| peak > Bytes::ZERO));
        assert!(sample.text.contains("RAM available"), "{}", sample.text);
        assert!(watch.finish().memory.contains("before its end"));
    }
}
