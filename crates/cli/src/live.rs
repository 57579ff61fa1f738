//! The machine that a command works on: this one, or that of a dump.

use crate::cache;
use doctor::{live, probe_cache};
use platform::source::{Source, is_relevant_variable};
use platform::{Machine, Snapshot, detect};
use std::fs;

pub use doctor::live::Python;

/// Reads this machine.
pub fn snapshot(python: &Python) -> Snapshot {
    live::snapshot(python, Some(cache::folder()))
}

/// An environment variable with the path of a dump: all commands then behave as on the machine of the dump, with the
/// environment of this process. For tests, and to see what another machine would get.
pub const MACHINE: &str = "SUREFOOT_MACHINE";

/// The facts of this machine.
pub fn machine(python: &Python) -> Machine {
    machine_of_dump().unwrap_or_else(|| detect::machine(&snapshot(python)))
}

fn machine_of_dump() -> Option<Machine> {
    let path = std::env::var_os(MACHINE).filter(|path| !path.is_empty())?;
    let read = fs::read(&path).map_err(|error| error.to_string());
    let machine = read.and_then(|bytes| {
        doctor::dump::read(&doctor::dump::decode(&bytes)).map_err(|error| error.to_string())
    });
    match machine {
        Ok(mut machine) => {
            let own = platform::live::Live::default().variables();
            machine.variables = own
                .into_iter()
                .filter(|(name, _)| is_relevant_variable(name))
                .collect();
            machine.is_complete = true;
            let results = live::probe_results(&machine, &cache::folder());
            machine.probed = probe_cache::parse(&results);
            Some(machine)
        }
        Err(error) => {
            tracing::warn!("{MACHINE}={}: {error}", path.display());
            None
        }
    }
}
