//! Identifies a process, even if its id is reused later.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A process by its id and its start time, since ids are reused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Process {
    /// Process id.
    pub pid: u32,
    /// Its start, in clock ticks since boot (proc(5)).
    // On Windows in milliseconds since 1601.
    pub started: u64,
    /// The boot id at its start.
    pub boot: String,
}

impl Process {
    /// The process that currently has this id.
    pub fn of(pid: u32) -> Option<Self> {
        #[cfg(unix)]
        let started = {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            started(&stat)?
        };
        #[cfg(windows)]
        let started = super::handle::started(pid)?;
        Some(Self {
            pid,
            started,
            boot: boot_id(),
        })
    }

    /// Whether it is still running.
    pub fn is_alive(&self) -> bool {
        Self::of(self.pid).as_ref() == Some(self)
    }
}

/// Identifies the current boot of the machine; empty if the system does not tell.
pub fn boot_id() -> String {
    #[cfg(unix)]
    {
        let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
        id.map(|id| id.trim().to_owned()).unwrap_or_default()
    }
    #[cfg(windows)]
    {
        let key = r"SYSTEM\CurrentControlSet\Control\Session Manager\Memory Management\PrefetchParameters";
        let boots = windows_registry::LOCAL_MACHINE.open(key);
        let boots = boots.and_then(|key| key.get_u32("BootId"));
        boots.map(|boots| boots.to_string()).unwrap_or_default()
    }
}

/// Field 22 of `/proc/<pid>/stat`, unless the process is a zombie. The name in the fields before is in brackets and
/// may contain any character.
#[cfg(any(unix, test))]
fn started(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_does_not_move_the_fields() {
        let stat = "4711 (a) R (b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 987 20";
        assert_eq!(started(stat), Some(987));
        assert_eq!(started(&stat.replace(") S ", ") Z ")), None);
        assert_eq!(started("4711 (a"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_reused_id_is_not_the_process() {
        let own = Process::of(std::process::id()).unwrap();
        assert!(own.is_alive());
        for other in [
            Process {
                started: own.started + 1,
                ..own.clone()
            },
            Process {
                boot: "another".into(),
                ..own.clone()
            },
        ] {
            assert!(!other.is_alive(), "{other:?}");
        }
    }
}
