//! `HSA_OVERRIDE_GFX_VERSION`: invalid, needless, harmful, of the wrong value.
//!
//! The variable makes ROCr report another architecture. It was a work-around for
//! cards without code in the wheels, and is carried from guide to guide since.

use super::{Check, Finding, Severity};
use crate::{names, wheels};
use platform::Gfx;
use platform::gfx::Override;
use platform::machine::{Gpu, Machine, ReadFrom, System};

const NAME: &str = "HSA_OVERRIDE_GFX_VERSION";
const SOURCE: &str = "https://github.com/ROCm/rocm-systems/blob/develop/projects/rocr-runtime/libhsakmt/src/topology.c";

pub(super) fn find(machine: &Machine, found: &mut Vec<Finding>) {
    for (name, value) in machine
        .variables
        .iter()
        .filter(|(name, value)| name.starts_with(NAME) && !value.is_empty())
    {
        judge(machine, name, value, found);
    }
}

fn judge(machine: &Machine, name: &str, value: &str, found: &mut Vec<Finding>) {
    let seen = format!("{name}={value}");
    if machine.system == System::Windows {
        found.push(
            Finding::new(
                Check::Override,
                Severity::Warning,
                "override-on-windows",
                format!("{name} has no effect on Windows"),
            )
            .seen(seen)
            .why("The Windows runtime does not go through HSA and never reads it.")
            .fix([format!("unset {name}")])
            .source("https://github.com/ROCm/TheRock/issues/1719"),
        );
        return;
    }
    let Some(target) = Gfx::from_override(value) else {
        found.push(
            Finding::new(Check::Override, Severity::Error, "override-invalid", format!("{name} is invalid"))
                .seen(seen)
                .why("The value must be `major.minor.stepping` in decimal. Anything else stops every HIP program before it lists a GPU.")
                .fix([format!("unset {name}")])
                .source(SOURCE),
        );
        return;
    };
    let suffix = name.strip_prefix(NAME).unwrap_or_default();
    let node = suffix
        .strip_prefix('_')
        .and_then(|node| node.parse::<u32>().ok());
    if !suffix.is_empty()
        && !machine.gpus.is_empty()
        && !machine.gpus.iter().any(|gpu| gpu.kfd_node == node)
    {
        found.push(
            Finding::new(
                Check::Override,
                Severity::Warning,
                "override-for-no-gpu",
                format!("{name} names no GPU of this machine"),
            )
            .seen(seen)
            .why("The number behind the underscore is the KFD node, usually 1 for the first GPU.")
            .fix([format!("unset {name}")])
            .source(SOURCE),
        );
        return;
    }
    let own_variable = |gpu: &Gpu| {
        gpu.kfd_node
            .is_some_and(|node| machine.variables.contains_key(&format!("{NAME}_{node}")))
    };
    let affected: Vec<&Gpu> = machine
        .gpus
        .iter()
        .filter(|gpu| {
            if suffix.is_empty() {
                !own_variable(gpu)
            } else {
                gpu.kfd_node == node
            }
        })
        .collect();
    // One finding for each kind of GPU is enough.
    let real_or_shown = |gpu: &&Gpu| real(machine, gpu).or(gpu.gfx);
    let mut kinds: Vec<Gfx> = affected.iter().filter_map(real_or_shown).collect();
    kinds.sort_unstable();
    kinds.dedup();
    // One that is right for a GPU and wrong for another is reported for the other.
    let is_for_one = kinds.len() > 1 && suffix.is_empty();
    for &gfx in &kinds {
        if gfx == target {
            if !is_for_one {
                let is_certain = affected.iter().any(|gpu| real(machine, gpu).is_some());
                found.push(needless(machine, name, &seen, target, is_certain));
            }
        } else {
            let mut judged = judge_for(machine, name, &seen, target, gfx);
            if let Some(finding) = judged.as_mut().filter(|_| is_for_one) {
                // Another value would be wrong for another of the GPUs.
                finding.fix.retain(|step| !step.starts_with("export "));
            }
            found.extend(judged);
        }
    }
    let value = target.as_override();
    let needs_it = |gfx: &Gfx| wheels::override_for(*gfx) == Some(value.as_str());
    if is_for_one && kinds.iter().any(needs_it) {
        let names: Vec<String> = kinds.iter().map(ToString::to_string).collect();
        found.push(
            Finding::new(Check::Override, Severity::Warning, "override-relabels-all", format!("{name} relabels every GPU"))
                .seen(format!("{seen} and {} are all reported as {target}.", names.join(", ")))
                .why("A global override counts for the integrated GPU too. The form with the KFD node names one GPU.")
                .fix([format!("unset {name}"), format!("export {NAME}_<node>={value}  # for the one that needs it")])
                .source(SOURCE),
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

/// The value is the architecture that the GPU is shown with.
fn needless(machine: &Machine, name: &str, seen: &str, target: Gfx, is_certain: bool) -> Finding {
    if is_certain {
        return Finding::new(
            Check::Override,
            Severity::Warning,
            "override-needless",
            format!("{name} labels the GPU as what it is"),
        )
        .seen(format!("{seen} on {target}."))
        .why(format!("The GPU is a {target} without it: it changes nothing, and is wrong for the next GPU or another one in the machine."))
        .fix([format!("unset {name}")])
        .source(SOURCE);
    }
    Finding::new(
        Check::Override,
        Severity::Info,
        "override-hides-gpu",
        format!("Under {name} the GPU need not be a {target}"),
    )
    .seen(format!("{seen}, and no name or device id of the GPU."))
    .why(format!("ROCm's tools and programs call every GPU {target} under this override, so which one it is cannot be told from that. Where the GPU is a {target}, the variable is not needed."))
    .fix([match machine.system {
        System::Wsl => "# the Device Manager of Windows names the GPU",
        _ => "lspci -nn -d 1002:  # names the GPU whatever the variable says",
    }])
    .source(SOURCE)
}

/// The effect of an override to `target` on a GPU of architecture `gfx`.
fn judge_for(machine: &Machine, name: &str, seen: &str, target: Gfx, gfx: Gfx) -> Option<Finding> {
    let unset = [format!("unset {name}")];
    let torch = machine
        .python
        .as_ref()
        .and_then(|python| python.torch.as_ref());
    let native = torch.and_then(|torch| torch.supports(gfx));
    let has_target = torch.and_then(|torch| torch.supports(target));
    let advice = gfx
        .architecture()
        .map_or(Override::Never, |known| known.override_value);
    let harmful = |why: String| {
        Finding::new(
            Check::Override,
            Severity::Error,
            "override-harmful",
            format!("{name} makes {gfx} run code of {target}"),
        )
        .seen(format!("{seen} on {gfx}."))
        .why(why)
        .fix(unset.clone())
        .source("https://github.com/ROCm/ROCm/issues/5824")
    };
    match advice {
        _ if native == Some(true) => Some(harmful(format!(
            "The installed torch has native code for {gfx}. Under an override it runs code of another chip: page faults, hangs, wrong results."
        ))),
        Override::Never => {
            let mut finding = harmful(format!("Wheels with native code for {gfx} exist; code of another chip ends in page faults and hangs."));
            finding.fix.extend(crate::wheels::install(gfx));
            Some(finding)
        }
        Override::TooOld => Some(harmful(format!("No library has code for {gfx} any more, and no value changes that."))),
        Override::Unsafe(what) => Some(harmful(format!("No value is safe for {gfx}: {what}."))),
        Override::Works(value) if target.as_override() != value => {
            let mut finding = harmful(format!("For {gfx} only {value} is known to work."));
            finding.fix.push(format!("export {name}={value}  # only with a wheel without {gfx}"));
            Some(finding)
        }
        Override::Works(_) if has_target == Some(false) => Some(
            Finding::new(Check::Override, Severity::Error, "override-target-not-in-wheel", format!("The installed torch has no code for {target} either"))
                .seen(format!("{seen} on {gfx}, torch {}.", torch.map_or("", |torch| &torch.version)))
                .why("The GPU passes for an architecture that the wheel lacks: \"invalid device function\".")
                .fix([unset.to_vec(), crate::wheels::install(gfx)].concat())
                .source("https://github.com/ROCm/ROCm/issues/3207"),
        ),
        Override::Works(_) => None,
    }
}
