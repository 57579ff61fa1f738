//! What a test has a child process do, from an environment variable: a command, the folder, and the overrides of
//! its config, one per line.

use std::path::Path;

use surefoot_trainer::{Allocator, Error, NoObserver, Stop};

use super::place::Place;

/// The text of the variable.
pub(crate) fn write(place: &Place, what: &str, overrides: &[&str]) -> String {
    let root = place.path("").display().to_string();
    [&[what, root.as_str()], overrides].concat().join("\n")
}

/// Encodes or trains as the variable says; does nothing if it is not set.
pub(crate) fn run_if_asked(variable: &str) -> Option<Result<(), Error>> {
    let task = std::env::var(variable).ok()?;
    let mut lines = task.lines();
    let (what, root) = (lines.next().unwrap(), lines.next().unwrap());
    let overrides: Vec<&str> = lines.collect();
    let config = super::place::config(Path::new(root), &overrides);
    let allocator = Allocator::torch();
    Some(match what {
        "encode" => surefoot_trainer::encode(&config, &allocator, &mut NoObserver).map(drop),
        _ => {
            surefoot_trainer::run(&config, &allocator, &mut NoObserver, &Stop::default()).map(drop)
        }
    })
}
