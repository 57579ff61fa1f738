//! Asking a run that goes on: to stop, save or sample after the step it is in.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Requests, shared between the run and whoever may ask.
#[derive(Debug, Clone, Default)]
pub struct Stop {
    asked: Arc<Asked>,
}

#[derive(Debug, Default)]
struct Asked {
    stop: AtomicBool,
    leave: AtomicBool,
    save: AtomicBool,
    sample: AtomicBool,
}

impl Stop {
    /// Asks it to stop. The run finishes its step, writes a checkpoint and returns.
    pub fn request(&self) {
        self.asked.stop.store(true, Ordering::Relaxed);
    }

    /// Asks it to stop, as [`Stop::request`]. Where several processes train together under `torchrun`, only this one is
    /// to go: the others save and end with an error, so that `torchrun` starts them again without it.
    pub fn request_leave(&self) {
        self.asked.leave.store(true, Ordering::Relaxed);
        self.request();
    }

    /// Whether this process alone was asked to go.
    pub(crate) fn is_to_leave(&self) -> bool {
        self.asked.leave.load(Ordering::Relaxed)
    }

    /// Whether somebody asked it to stop.
    pub fn is_requested(&self) -> bool {
        self.asked.stop.load(Ordering::Relaxed)
    }

    /// Asks for a checkpoint after the step that is going on. The run goes on.
    pub fn request_save(&self) {
        self.asked.save.store(true, Ordering::Relaxed);
    }

    /// Asks for samples after the step that is going on. The run goes on.
    pub fn request_sample(&self) {
        self.asked.sample.store(true, Ordering::Relaxed);
    }

    /// Whether a checkpoint was asked for since this was last called.
    pub(crate) fn take_save(&self) -> bool {
        self.asked.save.swap(false, Ordering::Relaxed)
    }

    /// Whether samples were asked for since this was last called.
    pub(crate) fn take_sample(&self) -> bool {
        self.asked.sample.swap(false, Ordering::Relaxed)
    }
}
