//! The variables that mask GPUs: four of them, which can contradict each other.
//!
//! `ROCR_VISIBLE_DEVICES` filters what ROCr lists (Linux). `HIP_VISIBLE_DEVICES`
//! numbers what is left; `CUDA_VISIBLE_DEVICES` is read only when that one is empty.
//! Each list ends at its first bad entry.

use super::{Check, Finding, Severity};
use crate::plan::{Plan, VISIBILITY};
use platform::machine::{Class, Machine, System};

const SOURCE: &str = "https://rocm.docs.amd.com/en/latest/conceptual/gpu-isolation.html";

pub(super) fn find(machine: &Machine, plan: &Plan, found: &mut Vec<Finding>) {
    if machine.gpus.is_empty() {
        beyond_rocr(machine, found);
        return;
    }
    if VISIBILITY
        .iter()
        .any(|name| machine.variables.contains_key(*name))
    {
        set_by_user(machine, found);
    } else {
        integrated(machine, plan, found);
    }
}

/// HIP numbers the GPUs that ROCR_VISIBLE_DEVICES leaves from 0: an index beyond their number is wrong on
/// any machine.
fn beyond_rocr(machine: &Machine, found: &mut Vec<Finding>) {
    let (Some(rocr), Some(hip)) = (
        machine.variable("ROCR_VISIBLE_DEVICES"),
        machine.variable("HIP_VISIBLE_DEVICES"),
    ) else {
        return;
    };
    let first = hip
        .split(',')
        .next()
        .and_then(|number| number.trim().parse::<usize>().ok());
    if first.is_some_and(|first| first >= entries(rocr)) && machine.uses_rocr() {
        found.push(
            Finding::new(Check::Visibility, Severity::Error, "visibility-leaves-nothing", "The visibility variables leave no GPU")
                .seen(format!("ROCR_VISIBLE_DEVICES={rocr} HIP_VISIBLE_DEVICES={hip}"))
                .why("HIP_VISIBLE_DEVICES counts what ROCR_VISIBLE_DEVICES has left, from 0; together they leave nothing.")
                .fix(["unset HIP_VISIBLE_DEVICES"])
                .source("https://github.com/mcmonkeyprojects/SwarmUI/pull/565"),
        );
    }
}

/// The numbers of the GPUs that a process sees, in its order, under the variables that are set.
#[must_use]
pub fn seen_by_hip(machine: &Machine) -> Vec<usize> {
    let all: Vec<usize> = (0..machine.gpus.len()).collect();
    let rocr = if machine.uses_rocr() {
        machine.variables.get("ROCR_VISIBLE_DEVICES")
    } else {
        None
    };
    let left = rocr.map_or_else(|| all.clone(), |list| select(machine, &all, list));
    let hip = machine
        .variable("HIP_VISIBLE_DEVICES")
        .or_else(|| machine.variable("CUDA_VISIBLE_DEVICES"));
    hip.map_or_else(|| left.clone(), |list| select(machine, &left, list))
}

fn select(machine: &Machine, from: &[usize], list: &str) -> Vec<usize> {
    let mut chosen = Vec::new();
    for token in list.split(',').map(str::trim) {
        let by_number = || {
            token
                .parse::<usize>()
                .ok()
                .and_then(|number| from.get(number).copied())
        };
        let by_identity = || {
            let is = |index: &&usize| {
                machine.gpus[**index]
                    .uuid
                    .as_ref()
                    .is_some_and(|uuid| uuid.starts_with(token))
            };
            token
                .starts_with("GPU-")
                .then(|| from.iter().find(is).copied())
                .flatten()
        };
        match by_number().or_else(by_identity) {
            Some(index) if !chosen.contains(&index) => chosen.push(index),
            // Repeated or bad: the runtime stops reading here.
            _ => break,
        }
    }
    chosen
}

fn entries(list: &str) -> usize {
    list.split(',')
        .filter(|token| !token.trim().is_empty())
        .count()
}

fn set_by_user(machine: &Machine, found: &mut Vec<Finding>) {
    let set: Vec<(&str, &str)> = VISIBILITY
        .iter()
        .filter_map(|&name| Some((name, machine.variables.get(name)?.as_str())))
        .collect();
    let seen = set
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect::<Vec<_>>()
        .join(" ");
    let names = set
        .iter()
        .map(|(name, _)| *name)
        .collect::<Vec<_>>()
        .join(" ");
    let value = |name: &str| {
        set.iter()
            .find(|(known, _)| *known == name)
            .map(|(_, value)| *value)
    };
    let mut add = |severity, id: &str, title: &str, why: &str, fix: String, source: &str| {
        found.push(
            Finding::new(Check::Visibility, severity, id, title)
                .seen(seen.clone())
                .why(why)
                .fix([fix])
                .source(source),
        );
    };
    let visible = seen_by_hip(machine);
    let (rocr, hip, cuda) = (
        value("ROCR_VISIBLE_DEVICES"),
        value("HIP_VISIBLE_DEVICES"),
        value("CUDA_VISIBLE_DEVICES"),
    );
    if machine.system == System::Windows && rocr.is_some() {
        add(
            Severity::Warning,
            "rocr-mask-on-windows",
            "ROCR_VISIBLE_DEVICES has no effect on Windows",
            "There is no ROCr on Windows. HIP_VISIBLE_DEVICES does the same there.",
            "unset ROCR_VISIBLE_DEVICES".to_owned(),
            SOURCE,
        );
    }
    if visible.is_empty() {
        let both = rocr.is_some() && hip.or(cuda).is_some();
        let why = if both {
            "HIP_VISIBLE_DEVICES (or CUDA_VISIBLE_DEVICES) counts what ROCR_VISIBLE_DEVICES has left, from 0; together they leave nothing."
        } else {
            "The list is empty, or its first entry names no GPU of this machine."
        };
        add(
            Severity::Error,
            "visibility-leaves-nothing",
            "The visibility variables leave no GPU",
            why,
            format!("unset {names}"),
            "https://github.com/mcmonkeyprojects/SwarmUI/pull/565",
        );
        return;
    }
    if let (Some(rocr), Some(hip)) = (rocr.filter(|_| machine.uses_rocr()), hip) {
        if entries(hip) > entries(rocr) {
            add(
                Severity::Error,
                "visibility-contradicts",
                "HIP_VISIBLE_DEVICES names more GPUs than ROCR_VISIBLE_DEVICES leaves",
                "torch refuses this combination with an error.",
                "unset HIP_VISIBLE_DEVICES".to_owned(),
                SOURCE,
            );
        } else {
            add(
                Severity::Warning,
                "visibility-twice",
                "Two variables mask GPUs",
                "The second counts what the first has left; it is easy to end with another GPU than meant.",
                "unset HIP_VISIBLE_DEVICES".to_owned(),
                SOURCE,
            );
        }
    } else if let (Some(hip), Some(cuda)) = (hip, cuda)
        && hip != cuda
        && !hip.is_empty()
    {
        add(
            Severity::Warning,
            "cuda-mask-ignored",
            "CUDA_VISIBLE_DEVICES is ignored",
            "HIP reads it only when HIP_VISIBLE_DEVICES is empty.",
            "unset CUDA_VISIBLE_DEVICES".to_owned(),
            SOURCE,
        );
    }
    if value("GPU_DEVICE_ORDINAL").is_some() {
        add(
            Severity::Warning,
            "gpu-device-ordinal",
            "GPU_DEVICE_ORDINAL is a variable of OpenCL",
            "Newer ROCm warns about it, and it adds one more mask.",
            "unset GPU_DEVICE_ORDINAL".to_owned(),
            "https://github.com/ROCm/TheRock/pull/8290",
        );
    }
    let is_apu = |index: &usize| machine.gpus[*index].is_apu();
    let has_card = machine
        .gpus
        .iter()
        .any(|gpu| gpu.class == Some(Class::Dgpu));
    if has_card && visible.first().is_some_and(is_apu) {
        add(
            Severity::Warning,
            "visibility-selects-igpu",
            "The integrated GPU is selected, and there is a card",
            "Device 0 of every program will be the integrated GPU.",
            format!("unset {names}  # then: surefoot env"),
            SOURCE,
        );
    }
}

/// An integrated GPU beside a card, and nothing masks it.
fn integrated(machine: &Machine, plan: &Plan, found: &mut Vec<Finding>) {
    let apus = || machine.gpus.iter().filter(|gpu| gpu.is_apu());
    let Some(card) = plan
        .pick
        .and_then(|index| machine.gpus.get(index))
        .filter(|gpu| gpu.class == Some(Class::Dgpu))
    else {
        return;
    };
    let Some(apu) = apus().next() else { return };
    let (id, title) = if apu.index < card.index {
        ("igpu-in-front", "The integrated GPU is device 0")
    } else {
        (
            "igpu-visible",
            "The integrated GPU is visible beside the card",
        )
    };
    let mut fix: Vec<String> = plan
        .variables
        .iter()
        .filter(|variable| VISIBILITY.contains(&variable.name.as_str()))
        .map(|variable| format!("export {}={}", variable.name, variable.value))
        .collect();
    fix.push("surefoot run -- …  # does the same".to_owned());
    found.push(
        Finding::new(Check::Visibility, Severity::Warning, id, title)
            .seen(format!("GPU {} is {}; GPU {} is {}.", apu.index, apu.name(), card.index, card.name()))
            .why("Programs take device 0, and a single visible GPU without code in the wheel aborts the whole process.")
            .fix(fix)
            .source("https://github.com/ROCm/TheRock/issues/3392"),
    );
    if let Some(larger) =
        apus().find(|apu| apu.usable_bytes > card.usable_bytes && card.usable_bytes.is_some())
    {
        let size = |bytes: Option<platform::Bytes>| {
            bytes.map(|bytes| bytes.to_string()).unwrap_or_default()
        };
        found.push(
            Finding::new(Check::Visibility, Severity::Info, "igpu-pool-larger", "The integrated GPU reports more memory than the card")
                .seen(format!("{} against {}.", size(larger.usable_bytes), size(card.usable_bytes)))
                .why("Its memory is the RAM of the host. That is no reason to choose it: the card is many times faster.")
                .fix(["# nothing to do; do not choose a GPU by its memory"])
                .source("https://github.com/ROCm/ROCm/issues/5379"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use platform::machine::Gpu;

    fn machine(variables: &[(&str, &str)]) -> Machine {
        let gpu = |index| Gpu {
            index,
            class: Some(Class::Dgpu),
            uuid: Some(format!("GPU-{index:016x}")),
            ..Gpu::default()
        };
        Machine {
            gpus: (0..3).map(gpu).collect(),
            variables: variables
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
            ..Machine::default()
        }
    }

    fn ids(variables: &[(&str, &str)]) -> Vec<String> {
        let mut found = Vec::new();
        set_by_user(&machine(variables), &mut found);
        found.into_iter().map(|finding| finding.id).collect()
    }

    #[test]
    fn lists_are_read_as_the_runtimes_read_them() {
        let seen = |variables: &[(&str, &str)]| seen_by_hip(&machine(variables));
        assert_eq!(seen(&[]), [0, 1, 2]);
        assert_eq!(seen(&[("ROCR_VISIBLE_DEVICES", "2,0")]), [2, 0]);
        assert_eq!(
            seen(&[
                ("ROCR_VISIBLE_DEVICES", "2,0"),
                ("HIP_VISIBLE_DEVICES", "1")
            ]),
            [0]
        );
        assert_eq!(seen(&[("HIP_VISIBLE_DEVICES", "1,9,2")]), [1]);
        assert_eq!(
            seen(&[("ROCR_VISIBLE_DEVICES", "GPU-0000000000000001")]),
            [1]
        );
        assert_eq!(
            seen(&[("CUDA_VISIBLE_DEVICES", "2"), ("HIP_VISIBLE_DEVICES", "")]),
            [2]
        );
    }

    #[test]
    fn masking_twice_can_leave_nothing() {
        assert_eq!(
            ids(&[("ROCR_VISIBLE_DEVICES", "1"), ("HIP_VISIBLE_DEVICES", "1")]),
            ["visibility-leaves-nothing"]
        );
        assert_eq!(
            ids(&[("ROCR_VISIBLE_DEVICES", "")]),
            ["visibility-leaves-nothing"]
        );
        assert_eq!(
            ids(&[
                ("ROCR_VISIBLE_DEVICES", "1"),
                ("HIP_VISIBLE_DEVICES", "0,1")
            ]),
            ["visibility-contradicts"]
        );
        assert_eq!(
            ids(&[("HIP_VISIBLE_DEVICES", "0"), ("CUDA_VISIBLE_DEVICES", "1")]),
            ["cuda-mask-ignored"]
        );
        assert_eq!(ids(&[("HIP_VISIBLE_DEVICES", "0")]), [] as [&str; 0]);
    }
}
