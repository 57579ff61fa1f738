//! How a process ended, in words.

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// With this exit code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

/// What the kernel did while the process ran, according to counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelEvents {
    /// `oom_kill` of `/proc/vmstat` went up by this much.
    pub oom_kills: u64,
    /// `oom_kill` of the cgroup's `memory.events` went up by this much.
    pub cgroup_oom_kills: u64,
}

/// The name of a signal and what it usually means for a program on a GPU.
#[must_use]
pub fn signal(number: i32) -> (&'static str, &'static str) {
    match number {
        1 => ("SIGHUP", "the terminal was closed"),
        2 => ("SIGINT", "interrupted from the keyboard"),
        4 => (
            "SIGILL",
            "the CPU does not know an instruction: a wheel for a newer CPU",
        ),
        6 => (
            "SIGABRT",
            "a library gave up: its last line says why (ROCr aborts after a memory access fault)",
        ),
        7 => (
            "SIGBUS",
            "memory that was promised is not there: /dev/shm too small, or a truncated file that is mapped",
        ),
        8 => ("SIGFPE", "a division by zero in native code"),
        9 => (
            "SIGKILL",
            "killed from outside: by the kernel when RAM runs out, or by somebody",
        ),
        11 => (
            "SIGSEGV",
            "a crash in native code: the driver, a library, or code of the wrong architecture",
        ),
        15 => (
            "SIGTERM",
            "asked to stop: by a person, a time limit or a scheduler",
        ),
        _ => ("", "ended by a signal"),
    }
}

/// The meaning of a Windows exit code that is a status code.
fn windows_status(code: i32) -> Option<&'static str> {
    Some(match code.cast_unsigned() {
        0xC000_0005 => "an access violation in native code",
        0xC000_0017 => "Windows had no memory left: RAM and page file were full",
        0xC000_001D => "the CPU does not know an instruction: a wheel for a newer CPU",
        0xC000_0094 => "a division by zero in native code",
        0xC000_00FD => "native code used up its stack",
        0xC000_0135 => "a DLL that the program needs was not found",
        0xC000_0139 => "a DLL has not what the program needs of it: it is of another version",
        0xC000_013A => "interrupted from the keyboard",
        0xC000_0142 => "a DLL failed as it was loaded",
        0xC000_0374 => "native code wrote where it must not, and the heap is broken",
        0xC000_0409 => "native code detected a corrupted stack and stopped",
        _ => return None,
    })
}

/// One sentence for how the process ended; `None` for success.
#[must_use]
pub fn describe(ending: Ending, events: KernelEvents) -> Option<String> {
    // A shell turns a signal into 128 + its number; Windows has its own codes.
    let (code, number) = match ending {
        Ending::Code(0) => return None,
        Ending::Signal(number) => (None, number),
        Ending::Code(code @ 129..=159) => (Some(code), code - 128),
        Ending::Code(code) if windows_status(code).is_some() => {
            let meaning = windows_status(code).unwrap_or_default();
            return Some(format!(
                "exit code {:#010X}: {meaning}",
                code.cast_unsigned()
            ));
        }
        Ending::Code(code) => return Some(format!("exit code {code}")),
    };
    if number == 9 && events.cgroup_oom_kills > 0 {
        return Some("killed by the kernel: the memory limit of the cgroup was reached".to_owned());
    }
    if number == 9 && events.oom_kills > 0 {
        return Some(
            "killed by the kernel: the RAM ran out (on an APU, GPU memory is RAM)".to_owned(),
        );
    }
    let (name, meaning) = signal(number);
    let name = if name.is_empty() {
        format!("signal {number}")
    } else {
        name.to_owned()
    };
    Some(match code {
        Some(code) => format!("exit code {code}, which is {name}: {meaning}"),
        None => format!("{name}: {meaning}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn success_needs_no_words() {
        assert_eq!(describe(Ending::Code(0), KernelEvents::default()), None);
    }

    #[test]
    fn a_kill_by_the_kernel_is_told_from_a_kill_by_somebody() {
        let somebody = describe(Ending::Signal(9), KernelEvents::default());
        let kernel = describe(
            Ending::Signal(9),
            KernelEvents {
                oom_kills: 1,
                cgroup_oom_kills: 0,
            },
        );
        assert!(somebody.is_some_and(|text| text.contains("or by somebody")));
        assert!(kernel.is_some_and(|text| text.contains("the RAM ran out")));
    }

    #[test]
    fn a_status_of_windows_is_told_in_words() {
        let text = |code: u32| {
            let ending = Ending::Code(code.cast_signed());
            describe(ending, KernelEvents::default()).expect("no success")
        };
        assert_eq!(
            text(0xC000_0005),
            "exit code 0xC0000005: an access violation in native code"
        );
        assert!(text(0xC000_0135).contains("a DLL that the program needs"));
        assert_eq!(text(7), "exit code 7");
    }

    #[test]
    fn the_shell_spelling_of_a_signal_is_understood() {
        let text = describe(Ending::Code(139), KernelEvents::default());
        assert!(text.is_some_and(|text| text.contains("SIGSEGV")));
    }
}
