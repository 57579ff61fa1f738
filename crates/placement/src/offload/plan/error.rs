//! Why there is no plan, with numbers that show what would help.

use std::collections::HashSet;

use crate::offload::plan::modules::{Component, Phase};
use crate::offload::plan::options::{DeviceMap, OffloadOptions, Place};
use platform::Bytes;

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs)] // The messages explain the fields.
pub enum PlanError {
    /// The device cannot hold what it must.
    #[error(
        "`{phase}` does not fit the device: {what}, it needs {needed} ({working} of it to work in), \
         and there are {limit}: {} too little",
        *.needed - *.limit
    )]
    DeviceTooSmall {
        phase: String,
        what: &'static str,
        needed: Bytes,
        limit: Bytes,
        working: Bytes,
    },
    /// Host memory cannot hold what it must.
    #[error("`{phase}` needs {needed} of host memory, but there are {limit}")]
    HostTooSmall {
        phase: String,
        needed: Bytes,
        limit: Bytes,
    },
    /// `blocks_to_swap` exceeds the number of blocks.
    #[error("`blocks_to_swap: {asked}`: only {most} blocks can be streamed")]
    TooManyBlocks { asked: usize, most: usize },
    /// `blocks_to_swap` is too small.
    #[error("`blocks_to_swap: {asked}` needs {needed} on the device, but there are {limit}{}", hint(*.enough))]
    TooFewBlocks {
        asked: usize,
        needed: Bytes,
        limit: Bytes,
        enough: Option<usize>,
    },
    /// The device map puts a module elsewhere that has to be on the device.
    #[error(
        "`device_map`: `{module}` cannot be on {place}: it is trained, or not one of the repeated blocks"
    )]
    NotStreamable { module: String, place: Place },
    /// The device map separates modules that share memory.
    #[error("`device_map`: `{one}` and `{other}` share weights and must have the same place")]
    TiedApart { one: String, other: String },
    /// The device map leaves a module out.
    #[error("`device_map` does not cover `{module}`; an entry with the empty name covers the rest")]
    NotCovered { module: String },
    /// The device map names an unknown module.
    #[error("`device_map`: there is no module `{name}`{}", did_you_mean(.close))]
    NoSuchModule { name: String, close: Option<String> },
    /// A phase uses an unknown component.
    #[error("`{phase}` uses `{component}`, but there is no such component{}", did_you_mean(.close))]
    NoSuchComponent {
        phase: String,
        component: String,
        close: Option<String>,
    },
    /// Two modules have the same name.
    #[error("there are two modules named `{module}`")]
    TwoOfOneName { module: String },
    /// Two options that both set how much is streamed.
    #[error("`{one}` and `{other}` both set what is streamed: remove one of them")]
    Contradiction {
        one: &'static str,
        other: &'static str,
    },
    /// A fraction outside 0 to 1.
    #[error("`offload_fraction: {value}` is not a fraction: use a number from 0 to 1")]
    NotAShare { value: f64 },
    /// A ring without slots.
    #[error("`ring_slots: 0`: streaming needs at least one slot")]
    NoSlots,
}

fn hint(enough: Option<usize>) -> String {
    match enough {
        Some(count) => format!("; {count} would be enough"),
        None => "; no number of blocks is enough".to_owned(),
    }
}

fn did_you_mean(close: &Option<String>) -> String {
    close
        .as_ref()
        .map_or_else(String::new, |close| format!("; did you mean `{close}`?"))
}

/// Validates everything that does not depend on sizes.
pub(crate) fn check(
    components: &[Component],
    phases: &[Phase],
    options: &OffloadOptions,
) -> Result<(), PlanError> {
    if !(0.0..=1.0).contains(&options.offload_fraction) {
        return Err(PlanError::NotAShare {
            value: options.offload_fraction,
        });
    }
    if options.ring_slots == 0 {
        return Err(PlanError::NoSlots);
    }
    if let Some((one, other)) = contradiction(options) {
        return Err(PlanError::Contradiction { one, other });
    }
    let modules = || components.iter().flat_map(|component| &component.modules);
    let mut seen = HashSet::new();
    for module in modules() {
        if !seen.insert(module.name.as_str()) {
            return Err(PlanError::TwoOfOneName {
                module: module.name.clone(),
            });
        }
    }
    let names = || components.iter().map(|component| component.name.as_str());
    for phase in phases {
        if let Some(absent) = phase
            .active
            .iter()
            .find(|name| !names().any(|n| n == *name))
        {
            return Err(PlanError::NoSuchComponent {
                phase: phase.name.clone(),
                component: absent.clone(),
                close: closest(absent, names()),
            });
        }
    }
    let DeviceMap::Explicit(places) = &options.device_map else {
        return Ok(());
    };
    for name in places.keys().filter(|name| !name.is_empty()) {
        let parents = || modules().flat_map(|module| parents(&module.name));
        if !parents().any(|parent| parent == name) {
            return Err(PlanError::NoSuchModule {
                name: name.clone(),
                close: closest(name, parents()),
            });
        }
    }
    match modules().find(|module| options.device_map.place_of(&module.name).is_none()) {
        Some(module) => Err(PlanError::NotCovered {
            module: module.name.clone(),
        }),
        None => Ok(()),
    }
}

/// Two options that contradict each other. (`low_vram` streams every block, and so at least any
/// `offload_fraction` of them.)
fn contradiction(options: &OffloadOptions) -> Option<(&'static str, &'static str)> {
    let explicit = matches!(options.device_map, DeviceMap::Explicit(_));
    let asked = [
        ("device_map", explicit),
        ("blocks_to_swap", options.blocks_to_swap.is_some()),
        ("low_vram", options.low_vram),
        ("offload_fraction", options.offload_fraction > 0.0),
    ];
    let mut asked = asked
        .into_iter()
        .filter(|(_, set)| *set)
        .map(|(key, _)| key);
    let first = asked
        .next()
        .filter(|key| ["device_map", "blocks_to_swap"].contains(key))?;
    Some((first, asked.next()?))
}

/// `a.b.c` → `a`, `a.b`, `a.b.c`.
fn parents(name: &str) -> impl Iterator<Item = &str> {
    name.match_indices('.')
        .map(|(at, _)| &name[..at])
        .chain([name])
}

/// The name that was most likely intended.
fn closest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<String> {
    names
        .map(|known| (strsim::jaro_winkler(name, known), known))
        .filter(|(likeness, _)| *likeness > 0.85)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, known)| known.to_owned())
}
