//! Turns: processes that use the machine's own memory look for free memory and allocate it one at a time.

use crate::shared_file::{SharedFile, path_of};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a process waits for its turn. Clearing the pages of a large block takes its time.
const LONGEST_TURN: Duration = Duration::from_secs(2);

/// The turns of the processes of this user that allocate the same memory.
///
/// Free memory is a number that all of them read: without turns, two that each find room for one
/// request both allocate, and the kernel kills one of them. A process that ends gives up its turn.
pub(crate) struct Turns {
    file: SharedFile,
    /// Whether the last turn was had: who holds one for too long, stopped by a signal for example,
    /// delays the others only once.
    had: bool,
}

impl Turns {
    /// The turns at `memory`, the address of a card, or `host`.
    pub(crate) fn at(memory: &str) -> Option<Self> {
        Self::in_file(&path_of(memory)?)
    }

    pub(crate) fn in_file(path: &Path) -> Option<Self> {
        let file = SharedFile::open(path)?;
        Some(Turns { file, had: true })
    }

    /// Waits for a turn, at most [`LONGEST_TURN`].
    pub(crate) fn begin(&mut self) {
        let began = Instant::now();
        loop {
            let has_it = self.file.take_turn();
            if has_it || !self.had || began.elapsed() > LONGEST_TURN {
                self.had = has_it;
                return;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Ends the turn.
    pub(crate) fn end(&mut self) {
        self.file.end_turn();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn one_has_its_turn_while_others_wait() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("shared");
        let (inside, had) = (AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut turns = Turns::in_file(&path).unwrap();
                    for _ in 0..50 {
                        turns.begin();
                        // On a busy machine a thread may wait too long, and goes on without its turn.
                        if turns.had {
                            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                            std::thread::yield_now();
                            inside.fetch_sub(1, Ordering::SeqCst);
                            had.fetch_add(1, Ordering::SeqCst);
                        }
                        turns.end();
                    }
                });
            }
        });
        assert!(had.into_inner() > 100, "of 200");
    }

    #[test]
    fn who_never_ends_a_turn_delays_others_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("shared");
        let mut stuck = Turns::in_file(&path).unwrap();
        stuck.begin();
        let mut waiting = Turns::in_file(&path).unwrap();
        waiting.begin();
        assert!(!waiting.had);
        let began = Instant::now();
        for _ in 0..100 {
            waiting.begin();
        }
        assert!(began.elapsed() < LONGEST_TURN, "no more waiting");
        drop(stuck);
        waiting.begin();
        assert!(waiting.had);
    }
}
