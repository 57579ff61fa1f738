//! `HSA_OVERRIDE_GFX_VERSION`: invalid, needless, harmful, of the wrong value.
//!
//! The variable makes ROCr report another architecture. It was a work-around for
//! cards without code in the wheels, and is carried from guide to guide since.

use super::python::install;
use super::{Found, said};
use crate::{names, wheels};
use platform::Gfx;
use platform::gfx::Override;
use platform::machine::{Gpu, Machine, ReadFrom, System};

const NAME: &str = "HSA_OVERRIDE_GFX_VERSION";

pub(super) fn find(machine: &Machine, found: &mut Found) {
    let set = machine.variables.iter();
    for (name, value) in set.filter(|(name, value)| name.starts_with(NAME) && !value.is_empty()) {
        judge(machine, name, value, found);
    }
}

fn judge(machine: &Machine, name: &str, value: &str, found: &mut Found) {
    let suffix = name.strip_prefix(NAME).unwrap_or_default();
    let node = suffix
        .strip_prefix('_')
        .and_then(|node| node.parse::<u32>().ok());
    let is_of_node = |gpu: &Gpu| gpu.kfd_node == node;
    let names_none =
        !suffix.is_empty() && !machine.gpus.is_empty() && !machine.gpus.iter().any(is_of_node);
    let target = Gfx::from_override(value);
    let useless = match target {
        _ if machine.system == System::Windows => Some(&said::OVERRIDE_ON_WINDOWS),
        None => Some(&said::OVERRIDE_INVALID),
        Some(_) => names_none.then_some(&said::OVERRIDE_FOR_NO_GPU),
    };
    let Some(target) = target.filter(|_| useless.is_none()) else {
        found.add(
            useless.unwrap_or(&said::OVERRIDE_INVALID),
            &[("name", &name), ("value", &value)],
        );
        return;
    };
    let has_its_own = |gpu: &Gpu| {
        let name = gpu.kfd_node.map(|node| format!("{NAME}_{node}"));
        name.is_some_and(|name| machine.variables.contains_key(&name))
    };
    let is_affected = |gpu: &&Gpu| match suffix.is_empty() {
        true => !has_its_own(gpu),
        false => is_of_node(gpu),
    };
    let affected: Vec<&Gpu> = machine.gpus.iter().filter(is_affected).collect();
    // One finding for each kind of GPU is enough.
    let real_or_shown = |gpu: &&Gpu| real(machine, gpu).or(gpu.gfx);
    let mut kinds: Vec<Gfx> = affected.iter().filter_map(real_or_shown).collect();
    kinds.sort_unstable();
    kinds.dedup();
    // One that is right for a GPU and wrong for another is reported for the other.
    let is_for_one = kinds.len() > 1 && suffix.is_empty();
    for &gfx in &kinds {
        if gfx != target {
            judge_for(machine, (name, value), target, gfx, is_for_one, found);
        } else if !is_for_one {
            // The value is the architecture that the GPU is shown with.
            let said = match affected.iter().any(|gpu| real(machine, gpu).is_some()) {
                true => &said::OVERRIDE_NEEDLESS,
                false => &said::OVERRIDE_HIDES_GPU,
            };
            found.add(
                said,
                &[("name", &name), ("value", &value), ("target", &target)],
            );
        }
    }
    let version = target.as_override();
    let needs_it = |gfx: &Gfx| wheels::override_for(*gfx) == Some(version.as_str());
    if is_for_one && kinds.iter().any(needs_it) {
        let list: Vec<String> = kinds.iter().map(ToString::to_string).collect();
        found.add(
            &said::OVERRIDE_RELABELS_ALL,
            &[
                ("name", &name),
                ("value", &value),
                ("list", &list.join(", ")),
                ("target", &target),
                ("version", &version),
            ],
        );
    }
}

/// The architecture of a GPU by something that an override does not change: tools that go through ROCr call every
/// GPU as the override says.
fn real(machine: &Machine, gpu: &Gpu) -> Option<Gfx> {
    if machine.read_from == ReadFrom::Kfd {
        return gpu.gfx;
    }
    // Without a name in the text, a GPU is called as all of its architecture are.
    let generic = gpu
        .gfx
        .and_then(Gfx::architecture)
        .map(|known| known.products);
    let product = gpu.product.as_deref().filter(|&name| generic != Some(name));
    names::architecture_by(gpu.device_id, product)
}

/// The effect of an override to `target` on a GPU of architecture `gfx`.
fn judge_for(
    machine: &Machine,
    (name, value): (&str, &str),
    target: Gfx,
    gfx: Gfx,
    is_for_one: bool,
    found: &mut Found,
) {
    let python = machine.python.as_ref();
    let torch = python.and_then(|python| python.torch.as_ref());
    let has_code_for = |gfx| torch.and_then(|torch| torch.supports(gfx));
    let advice = gfx
        .architecture()
        .map_or(Override::Never, |known| known.override_value);
    let (said, detail) = match advice {
        _ if has_code_for(gfx) == Some(true) => (&said::OVERRIDE_HARMFUL_NATIVE, ""),
        Override::Never => (&said::OVERRIDE_HARMFUL, ""),
        Override::TooOld => (&said::OVERRIDE_HARMFUL_TOO_OLD, ""),
        Override::Unsafe(what) => (&said::OVERRIDE_HARMFUL_UNSAFE, what),
        Override::Works(right) if target.as_override() != right => {
            (&said::OVERRIDE_HARMFUL_OTHER_VALUE, right)
        }
        Override::Works(_) if has_code_for(target) == Some(false) => {
            (&said::OVERRIDE_TARGET_NOT_IN_WHEEL, "")
        }
        Override::Works(_) => return,
    };
    // Another value would be wrong for another of the GPUs.
    let only = match is_for_one {
        true => String::new(),
        false => format!("export {name}={detail}  # only with a wheel without {gfx}"),
    };
    found.add(
        said,
        &[
            ("name", &name),
            ("value", &value),
            ("target", &target),
            ("gfx", &gfx),
            ("install", &install(machine, Some(gfx))),
            ("torch", &torch.map_or("", |torch| &torch.version)),
            ("what", &detail),
            ("right", &detail),
            ("only", &only),
        ],
    );
}
