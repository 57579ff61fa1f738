//! Variables that do not exist, do nothing at run time, or were left on.

use super::{Found, Severity, said};
use crate::plan::{AOTRITON, AOTRITON_CHECK, Plan, WITHOUT_HIPBLASLT, lora_may_fault};
use platform::Gfx;
use platform::machine::{Machine, System};

include!(concat!(env!("OUT_DIR"), "/variables.rs"));

/// Variables, the values that make them a problem, and why.
struct VariableRule {
    names: &'static [&'static str],
    severity: Severity,
    said: &'static said::Said,
    applies: Applies,
    why: &'static str,
    instead: &'static str,
    source: &'static str,
}

/// The values that are a problem.
enum Applies {
    Any,
    Zero,
    NotZero,
    AtLeast(u32),
}

impl Applies {
    /// Whether this value is one.
    fn to(&self, value: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Zero => value == "0",
            Self::NotZero => value != "0",
            Self::AtLeast(least) => value.parse::<u32>().is_ok_and(|level| level >= *least),
        }
    }
}

pub(super) fn find(machine: &Machine, plan: &Plan, found: &mut Found) {
    let picked = plan.pick.and_then(|index| machine.gpus.get(index));
    let is_gfx12 = |gfx: Gfx| gfx.major == 12;
    let needs_it_off = |name| {
        WITHOUT_HIPBLASLT.contains(&name) && picked.is_some_and(|gpu| gpu.gfx.is_some_and(is_gfx12))
    };
    let named = |rule: &'static VariableRule| rule.names.iter().map(move |&name| (name, rule));
    for (name, rule) in VARIABLE_RULES.iter().flat_map(named) {
        let Some(value) = machine
            .variable(name)
            .filter(|value| rule.applies.to(value))
        else {
            continue;
        };
        let tried = machine
            .probed
            .get(AOTRITON_CHECK)
            .filter(|_| name == AOTRITON);
        // As `surefoot env` sets it, or as `surefoot probe` found it right.
        if value == "0" && needs_it_off(name) || tried == Some(&true) {
            continue;
        }
        let (said, severity) = match tried {
            Some(_) => (&said::AOTRITON_FAILS, Severity::Error),
            None => (rule.said, rule.severity),
        };
        let finding = found.add(
            said,
            &[
                ("name", &name),
                ("value", &value),
                ("why", &rule.why),
                ("instead", &rule.instead),
                ("source", &rule.source),
            ],
        );
        finding.severity = severity;
    }
    allocator(machine, found);
    // Only where it is known what is set.
    if let Some(gpu) = picked.filter(|gpu| machine.is_complete && lora_may_fault(machine, gpu)) {
        let torch = (machine.python.as_ref()).and_then(|python| python.torch.as_ref());
        let version = torch.map_or("", |torch| &torch.version);
        found.add(
            &said::LORA_MAY_FAULT,
            &[("gpu", &gpu.name()), ("torch", &version)],
        );
    }
    slips(machine, found);
}

/// `expandable_segments` where it is refused or corrupts, and names that contradict each other.
fn allocator(machine: &Machine, found: &mut Found) {
    let names = [
        "PYTORCH_ALLOC_CONF",
        "PYTORCH_HIP_ALLOC_CONF",
        "PYTORCH_CUDA_ALLOC_CONF",
    ];
    let set = names
        .iter()
        .filter_map(|&name| Some((name, machine.variable(name)?)));
    let set: Vec<(&str, &str)> = set.collect();
    let is_on = |value: &str| {
        let value = value.replace(' ', "").to_ascii_lowercase();
        value.contains("expandable_segments:true")
    };
    if let Some((name, value)) = set.iter().find(|(_, value)| is_on(value)) {
        let is_gfx12 = |gfx: Gfx| gfx.major == 12;
        let mut gpus = machine.gpus.iter();
        let said = match machine.system {
            _ if gpus.any(|gpu| gpu.gfx.is_some_and(is_gfx12)) => {
                &said::EXPANDABLE_SEGMENTS_CORRUPTS
            }
            System::Windows => &said::EXPANDABLE_SEGMENTS_WINDOWS,
            _ => &said::EXPANDABLE_SEGMENTS,
        };
        found.add(said, &[("name", name), ("value", value)]);
    }
    if let [(first, a), .., (last, b)] = set.as_slice()
        && a != b
    {
        let (first, second) = (format!("{first}={a}"), format!("{last}={b}"));
        found.add(
            &said::ALLOCATOR_SETTINGS_DIFFER,
            &[("first", &first), ("second", &second), ("last", last)],
        );
    }
}

/// A variable whose name is one or two letters off a real one.
fn slips(machine: &Machine, found: &mut Found) {
    let of_rules = || VARIABLE_RULES.iter().flat_map(|rule| rule.names);
    let real = || KNOWN_VARIABLES.iter().chain(of_rules()).copied();
    for name in machine.variables.keys() {
        // `…_1` is the form of the override for one KFD node.
        if real().any(|known| known == name) || name.starts_with("HSA_OVERRIDE_GFX_VERSION_") {
            continue;
        }
        let meant = real().find(|known| known.len() > 10 && distance(known, name) <= 2);
        if let Some(meant) = meant {
            found.add(
                &said::VARIABLE_MISSPELLED,
                &[("name", name), ("meant", &meant)],
            );
        }
    }
}

/// The number of letters to insert, remove or change.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let changed = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(variables: &[(&str, &str)]) -> Vec<String> {
        let variables = variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        let machine = Machine {
            variables,
            ..Machine::default()
        };
        let mut found = Found::about(&machine);
        find(&machine, &crate::plan::plan(&machine), &mut found);
        found.all.into_iter().map(|finding| finding.id).collect()
    }

    #[test]
    fn folklore_is_named() {
        assert_eq!(
            ids(&[("PYTORCH_MAX_SPLIT_SIZE_MB", "512")]),
            ["variable-does-not-exist"]
        );
        assert_eq!(
            ids(&[("TORCH_USE_HIP_DSA", "1")]),
            ["variable-compile-time"]
        );
        assert_eq!(
            ids(&[("AMD_SERIALIZE_KERNEL", "3")]),
            ["debug-variable-left-on"]
        );
        assert_eq!(ids(&[("AMD_SERIALIZE_KERNEL", "0")]), [] as [&str; 0]);
        assert_eq!(
            ids(&[("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments: True")]),
            ["expandable-segments"]
        );
    }

    #[test]
    fn slips_are_named_and_real_names_are_not() {
        assert_eq!(
            ids(&[("HSA_OVERRIDE_GFX_VERISON", "10.3.0")]),
            ["variable-misspelled"]
        );
        assert_eq!(ids(&[("HIP_VISIBLE_DEVICE", "0")]), ["variable-misspelled"]);
        assert_eq!(
            ids(&[
                ("HSA_OVERRIDE_GFX_VERSION_1", "10.3.0"),
                ("HIP_PATH", "/opt"),
                ("AMD_LOG_LEVEL", "0")
            ]),
            [] as [&str; 0]
        );
    }

    #[test]
    fn distance_counts_letters() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "ab"), 2);
    }
}
