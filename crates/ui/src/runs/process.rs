//! A process, told apart from others that have its number later.

use serde::{Deserialize, Serialize};

/// A process: its number, and when it started, since numbers are used again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// Clock ticks from the start of the machine to its own (proc(5)).
    pub started: u64,
    /// Which start of the machine that was.
    pub boot: String,
}

impl Process {
    /// The process that now has this number.
    pub fn of(pid: u32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        Some(Self {
            pid,
            started: started(&stat)?,
            boot: boot_id(),
        })
    }

    /// Whether it still lives.
    pub fn is_alive(&self) -> bool {
        Self::of(self.pid).as_ref() == Some(self)
    }
}

/// Tells one start of the machine from the next; empty where the system does not say.
pub fn boot_id() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    id.map(|id| id.trim().to_owned()).unwrap_or_default()
}

/// Field 22 of `/proc/<pid>/stat`, of a process that is not a zombie. The name before it is in brackets and may
/// have any character.
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
    fn a_number_alone_is_not_the_process() {
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
