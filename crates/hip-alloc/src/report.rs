//! Messages for the user: one line each, on standard error.
//!
//! A program that makes a mistake usually makes it in a loop, and a lost device
//! fails every later call: so messages are not repeated.

use crate::system;
use std::sync::atomic::{AtomicU32, Ordering};

/// Writes one line. The process may be low on memory or about to exit, so this must not fail.
pub(crate) fn warn(message: &str) {
    system::write_to_stderr(format!("hip-alloc: {message}\n").as_bytes());
}

/// How often the same kind of mistake is reported.
const MOST_REPORTS: u32 = 20;

/// Messages of one kind, of which only the first are written.
#[derive(Default)]
pub(crate) struct Repeated(AtomicU32);

impl Repeated {
    pub(crate) const fn new() -> Self {
        Repeated(AtomicU32::new(0))
    }

    pub(crate) fn warn(&self, message: &str) {
        // The count stops near the limit, so that it cannot wrap around to zero.
        if self.0.load(Ordering::Relaxed) > MOST_REPORTS {
            return;
        }
        match self.0.fetch_add(1, Ordering::Relaxed) {
            said if said < MOST_REPORTS => warn(message),
            MOST_REPORTS => warn("(more of this kind is not reported)"),
            _ => (),
        }
    }
}
