//! Driver errors on paths that cannot fail, such as a free.

use crate::driver::DriverError;
use crate::report::warn;
use crate::units::DeviceIndex;

/// Driver errors that cannot be returned to a caller: memory could not be released.
#[derive(Default)]
pub(crate) struct DeferredErrors {
    said: Vec<(&'static str, u32)>,
    device_lost: bool,
}

impl DeferredErrors {
    /// Whether an error showed that the device is lost.
    pub(crate) fn device_lost(&self) -> bool {
        self.device_lost
    }

    /// Prints a line about an error of a new kind.
    pub(crate) fn report(&mut self, device: DeviceIndex, error: &DriverError) {
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
        if self.said.contains(&kind) {
            return None;
        }
        self.said.push(kind);
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
    fn an_error_is_said_once_and_another_is_said_too() {
        let mut errors = DeferredErrors::default();
        let mut said = |call, code| errors.line(DeviceIndex(0), &failed(call, code)).is_some();
        assert!(said("Free", 1));
        assert!(!said("Free", 1));
        assert!(said("Free", 2));
        assert!(said("MemUnmap", 1));
    }

    #[test]
    fn after_a_lost_device_nothing_is_said() {
        let mut errors = DeferredErrors::default();
        let line = errors.line(DeviceIndex(1), &failed("EventQuery", 700));
        assert!(line.is_some_and(|line| {
            line.starts_with("device 1 is lost: EventQuery failed with error 700")
        }));
        for (call, code) in [("EventQuery", 700), ("Free", 700), ("Free", 1)] {
            assert_eq!(errors.line(DeviceIndex(1), &failed(call, code)), None);
        }
    }
}
