//! The machine that a command works on: this one, or that of a dump.

use crate::cache;
use doctor::{live, probe_cache};
use platform::source::{Source, is_relevant_variable};
use platform::{Machine, Snapshot, detect};
use std::fs;

pub use doctor::live::Python;

/// Reads this machine.
pub fn snapshot(python: &Python) -> Snapshot {
    let of_dump = std::env::var_os(MACHINE).filter(|path| !path.is_empty());
    match of_dump.and_then(|path| fs::read(path).ok()) {
        Some(dump) => snapshot_of_dump(&doctor::dump::decode(&dump)),
        None => live::snapshot(python, Some(cache::folder())),
    }
}

/// A dump, with the environment and the cache of this process.
fn snapshot_of_dump(dump: &str) -> Snapshot {
    let mut snapshot = Snapshot::parse(dump);
    let lines = own_variables().map(|(name, value)| format!("{name}={value}\n"));
    snapshot.insert_text("environment", lines.collect::<String>());
    let results = live::probe_results(&detect::machine(&snapshot), &cache::folder());
    snapshot.insert_text("surefoot/probed", results);
    snapshot
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
            machine.variables = own_variables().collect();
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

/// The variables of this process that concern GPUs.
fn own_variables() -> impl Iterator<Item = (String, String)> {
    let all = platform::live::Live::default().variables().into_iter();
    all.filter(|(name, _)| is_relevant_variable(name))
}
