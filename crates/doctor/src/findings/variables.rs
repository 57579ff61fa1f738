//! Variables that do not exist, do nothing at run time, or were left on.

use super::{Check, Finding, Severity};
use crate::plan::{AOTRITON, AOTRITON_CHECK, Plan, WITHOUT_HIPBLASLT, lora_may_fault};
use crate::tables::{KNOWN_VARIABLES, VARIABLE_RULES, VariableRule};
use platform::machine::{Gpu, Machine, System};

pub(super) fn find(machine: &Machine, plan: &Plan, found: &mut Vec<Finding>) {
    let picked = plan.pick.and_then(|index| machine.gpus.get(index));
    let needs_it_off = |name| {
        WITHOUT_HIPBLASLT.contains(&name)
            && picked.is_some_and(|gpu| gpu.gfx.is_some_and(|gfx| gfx.major == 12))
    };
    let named = |rule: &'static VariableRule| rule.names.iter().map(move |&name| (name, rule));
    for (name, rule) in VARIABLE_RULES.iter().flat_map(named) {
        let Some(value) = machine
            .variable(name)
            .filter(|value| rule.applies.to(value))
        else {
            continue;
        };
        // As `surefoot env` sets it.
        if value == "0" && needs_it_off(name) {
            continue;
        }
        let tried = (name == AOTRITON)
            .then(|| machine.probed.get(AOTRITON_CHECK))
            .flatten();
        match tried {
            Some(true) => continue,
            Some(false) => {
                found.push(aotriton_failed(value));
                continue;
            }
            None => {}
        }
        let title = match rule.id {
            "variable-does-not-exist" => format!("{} does not exist", name),
            "variable-compile-time" => format!("{} does nothing at run time", name),
            "variable-without-effect" => format!("{} has no effect", name),
            "debug-variable-left-on" => format!("{} is on", name),
            _ => format!("{} is set", name),
        };
        let mut fix = vec![format!("unset {name}")];
        if !rule.instead.is_empty() {
            fix.push(rule.instead.to_owned());
        }
        found.push(
            Finding::new(Check::Variables, rule.severity, rule.id, title)
                .seen(format!("{}={value}", name))
                .why(rule.why)
                .fix(fix)
                .source(rule.source),
        );
    }
    allocator(machine, found);
    unguarded(machine, picked, found);
    slips(machine, found);
}

/// PyTorch's own allocator on a GPU whose matrix kernels read too far. Only where it is known what is set.
fn unguarded(machine: &Machine, picked: Option<&Gpu>, found: &mut Vec<Finding>) {
    let Some(gpu) = picked.filter(|gpu| machine.is_complete && lora_may_fault(machine, gpu)) else {
        return;
    };
    let torch = (machine.python.as_ref()).and_then(|python| python.torch.as_ref());
    let version = torch.map_or("", |torch| &torch.version);
    found.push(
        Finding::new(
            Check::Variables,
            Severity::Warning,
            "lora-may-fault",
            "LoRA training on this card may fault",
        )
        .seen(format!("{} with torch {version} and PyTorch's own allocator.", gpu.name()))
        .why(
            "Kernels of hipBLASLt for RX 9000 read past the end of an operand: where nothing is mapped there, the backward \
             pass of a LoRA ends with a page fault. hip-alloc keeps it mapped, for at most 2 % of the time of a step.",
        )
        .fix(["surefoot run --alloc -- python train.py"])
        .source("https://github.com/ROCm/legacy-rocm-build/issues/6413"),
    );
}

fn aotriton_failed(value: &str) -> Finding {
    Finding::new(
        Check::Variables,
        Severity::Error,
        "aotriton-fails",
        format!("{AOTRITON} breaks attention with this torch"),
    )
    .seen(format!(
        "{AOTRITON}={value}, and `surefoot probe` found attention failing or wrong under it."
    ))
    .why("This build has no kernels for the GPU, or wrong ones.")
    .fix([format!("unset {AOTRITON}")])
    .source("https://github.com/pytorch/pytorch/pull/166397")
}

/// `expandable_segments` where it is refused or corrupts.
fn allocator(machine: &Machine, found: &mut Vec<Finding>) {
    let names = [
        "PYTORCH_ALLOC_CONF",
        "PYTORCH_HIP_ALLOC_CONF",
        "PYTORCH_CUDA_ALLOC_CONF",
    ];
    let set: Vec<(&str, &str)> = names
        .iter()
        .filter_map(|&name| Some((name, machine.variable(name)?)))
        .collect();
    let is_on = |value: &str| {
        value
            .replace(' ', "")
            .to_ascii_lowercase()
            .contains("expandable_segments:true")
    };
    if let Some((name, value)) = set.iter().find(|(_, value)| is_on(value)) {
        let corrupts = machine
            .gpus
            .iter()
            .any(|gpu| gpu.gfx.is_some_and(|gfx| gfx.major == 12));
        let (severity, why) = if corrupts {
            (
                Severity::Error,
                "On gfx1201 training in bf16 gives NaN with it, without a message.",
            )
        } else if machine.system == System::Windows {
            (
                Severity::Info,
                "It is refused on Windows; the warning in the log is harmless.",
            )
        } else {
            (
                Severity::Warning,
                "It corrupts bf16 training on gfx1201 and is little tested on other consumer GPUs.",
            )
        };
        found.push(
            Finding::new(
                Check::Variables,
                severity,
                "expandable-segments",
                "expandable_segments is on",
            )
            .seen(format!("{name}={value}"))
            .why(why)
            .fix([
                format!("unset {name}"),
                "surefoot run --alloc -- …  # against fragmentation".to_owned(),
            ])
            .source("https://github.com/pytorch/pytorch/issues/195202"),
        );
    }
    if let [(first, a), .., (last, b)] = set.as_slice()
        && a != b
    {
        found.push(
            Finding::new(Check::Variables, Severity::Warning, "allocator-settings-differ", "Two names of the allocator's settings differ")
                .seen(format!("{first}={a} and {last}={b}"))
                .why("They are older and newer names of one setting; which one counts depends on the version of torch.")
                .fix([format!("unset {last}")])
                .source("https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-alloc-conf"),
        );
    }
}

/// A variable whose name is one or two letters off a real one.
fn slips(machine: &Machine, found: &mut Vec<Finding>) {
    let real = || {
        KNOWN_VARIABLES.iter().copied().chain(
            VARIABLE_RULES
                .iter()
                .flat_map(|rule| rule.names.iter().copied()),
        )
    };
    for name in machine.variables.keys() {
        // `…_1` is the form of the override for one KFD node.
        if real().any(|known| known == name) || name.starts_with("HSA_OVERRIDE_GFX_VERSION_") {
            continue;
        }
        let Some(meant) = real().find(|known| known.len() > 10 && distance(known, name) <= 2)
        else {
            continue;
        };
        found.push(
            Finding::new(
                Check::Variables,
                Severity::Warning,
                "variable-misspelled",
                format!("{name} does not exist; did you mean {meant}?"),
            )
            .seen(name.clone())
            .why("Nothing reads it.")
            .fix([format!("unset {name}")])
            .source(
                "https://rocm.docs.amd.com/projects/HIP/en/latest/reference/env_variables.html",
            ),
        );
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
        let mut found = Vec::new();
        find(&machine, &crate::plan::plan(&machine), &mut found);
        found.into_iter().map(|finding| finding.id).collect()
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
