//! Messages for the person running the program: one line each, on standard error.
//!
//! A program that does something wrong usually does it in a loop, and a device that is lost
//! fails every call from then on: what has been said is not said again.

use crate::driver::DriverError;
use crate::units::DeviceIndex;
use std::sync::atomic::{AtomicU32, Ordering};

/// Writes one line. The process may be low on memory or about to stop, so this does not fail.
pub(crate) fn warn(message: &str) {
    let line = format!("hip-alloc: {message}\n");
    crate::ffi::write_to_standard_error(line.as_bytes());
}

/// How often the same kind of mistake is told.
const OFTEN_ENOUGH: u32 = 20;

/// Messages of one kind, of which only the first are written.
#[derive(Default)]
pub(crate) struct Repeated(AtomicU32);

impl Repeated {
    pub(crate) const fn new() -> Self {
        Repeated(AtomicU32::new(0))
    }

    pub(crate) fn warn(&self, message: &str) {
        // The count ends near the limit, so that it cannot wrap around to zero.
        if self.0.load(Ordering::Relaxed) > OFTEN_ENOUGH {
            return;
        }
        match self.0.fetch_add(1, Ordering::Relaxed) {
            said if said < OFTEN_ENOUGH => warn(message),
            OFTEN_ENOUGH => warn("(more of this kind is not reported)"),
            _ => (),
        }
    }
}

/// Driver errors that no caller can be told about: memory that could not be given back.
#[derive(Default)]
pub(crate) struct Troubles {
    told: Vec<(&'static str, u32)>,
    device_lost: bool,
}

impl Troubles {
    /// Writes a line about an error of a kind that is new.
    pub(crate) fn tell(&mut self, device: DeviceIndex, error: &DriverError) {
        if let Some(line) = self.line(device, error) {
            warn(&line);
        }
    }

    fn line(&mut self, device: DeviceIndex, error: &DriverError) -> Option<String> {
        if self.device_lost {
            return None;
        }
        if error.loses_device() {
            self.device_lost = true;
            return Some(format!(
                "{device} is lost: {error}. Its memory goes back when the process ends; until \
                 then every call to it fails"
            ));
        }
        let kind = match error {
            DriverError::Failed { call, code, .. } => (*call, *code),
            DriverError::OutOfMemory => ("out of memory", 0),
            DriverError::Orphaned(_) => ("orphaned", 0),
        };
        if self.told.contains(&kind) {
            return None;
        }
        self.told.push(kind);
        Some(format!(
            "{device}: memory could not be given back: {error} (said once)"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(call: &'static str, code: u32) -> DriverError {
        let message = "a name".to_owned();
        DriverError::Failed {
            call,
            code,
            message,
        }
    }

    #[test]
    fn an_error_is_told_once_and_another_is_told_too() {
        let mut troubles = Troubles::default();
        let mut told = |call, code| troubles.line(DeviceIndex(0), &failed(call, code)).is_some();
        assert!(told("Free", 1));
        assert!(!told("Free", 1));
        assert!(told("Free", 2));
        assert!(told("MemUnmap", 1));
    }

    #[test]
    fn after_a_lost_device_nothing_is_told() {
        let mut troubles = Troubles::default();
        let line = troubles.line(DeviceIndex(1), &failed("EventQuery", 700));
        assert!(line.is_some_and(|line| {
            line.starts_with("device 1 is lost: EventQuery failed with error 700")
        }));
        for (call, code) in [("EventQuery", 700), ("Free", 700), ("Free", 1)] {
            assert_eq!(troubles.line(DeviceIndex(1), &failed(call, code)), None);
        }
    }
}
