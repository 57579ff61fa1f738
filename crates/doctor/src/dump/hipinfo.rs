//! The output of `hipInfo`, and on which system it ran.

use super::several::listed_once;
use platform::hipinfo;
use platform::machine::{Gpu, Machine, System};

/// The GPUs that it lists.
pub(super) fn gpus(text: &str, machine: &mut Machine) -> Vec<Gpu> {
    let Some(listing) = hipinfo::parse(text) else {
        return Vec::new();
    };
    // There is a hipInfo for Linux too; it is the Windows one that has no rocminfo beside it.
    let is_linux = ["/opt/rocm", "/dev/kfd", "Linux", "$ "]
        .iter()
        .any(|sign| text.contains(sign));
    if !is_linux {
        machine.system = System::Windows;
    }
    machine.reported.hip_free = machine.reported.hip_free.or(listing.free);
    // The same list may be posted twice.
    match &lists(text)[..] {
        [_] => listing.gpus,
        parts => {
            let lists = parts.iter().filter_map(|part| hipinfo::parse(part));
            listed_once(lists.map(|listing| listing.gpus).collect())
        }
    }
}

/// The text in parts, each of which begins with the first device of a list.
fn lists(text: &str) -> Vec<&str> {
    let is_first = |line: &str| {
        let number = line.trim_start().strip_prefix("device#");
        number.is_some_and(|number| number.trim() == "0")
    };
    let mut parts = Vec::new();
    let (mut from, mut at, mut is_open) = (0, 0, false);
    for line in text.split_inclusive('\n') {
        if is_first(line) {
            if is_open {
                parts.push(&text[from..at]);
                from = at;
            }
            is_open = true;
        }
        at += line.len();
    }
    parts.push(&text[from..]);
    parts
}
