//! The variables that mask GPUs: four of them, which can contradict each other.
//!
//! `ROCR_VISIBLE_DEVICES` filters what ROCr lists (Linux). `HIP_VISIBLE_DEVICES`
//! numbers what is left; `CUDA_VISIBLE_DEVICES` is read only when that one is empty.
//! Each list ends at its first bad entry.

use super::Found;
use super::said::{self, Said};
use crate::plan::{Plan, VISIBILITY};
use platform::machine::{Class, Machine, System};

pub(super) fn find(machine: &Machine, plan: &Plan, found: &mut Found) {
    let is_set = |name: &&str| machine.variables.contains_key(*name);
    if machine.gpus.is_empty() {
        beyond_rocr(machine, found);
        hides_all(machine, found);
    } else if VISIBILITY.iter().any(is_set) {
        set_by_user(machine, found);
    } else {
        integrated(machine, plan, found);
    }
}

/// An empty mask, or one of -1, hides all GPUs of any machine.
fn hides_all(machine: &Machine, found: &mut Found) {
    let hides = |name: &&&str| {
        let value = machine.variables.get(**name).map(String::as_str);
        matches!(value, Some("" | "-1"))
    };
    if let Some(name) = VISIBILITY[..3].iter().find(hides) {
        let set = format!("{name}={}", machine.variables[*name]);
        found.add(
            &said::VISIBILITY_LEAVES_NOTHING_ONE,
            &[("set", &set), ("names", name)],
        );
    }
}

/// HIP numbers the GPUs that ROCR_VISIBLE_DEVICES leaves from 0: an index beyond their number is wrong on
/// any machine.
fn beyond_rocr(machine: &Machine, found: &mut Found) {
    let (Some(rocr), Some(hip)) = (
        machine.variable("ROCR_VISIBLE_DEVICES"),
        machine.variable("HIP_VISIBLE_DEVICES"),
    ) else {
        return;
    };
    let first = hip.split(',').next();
    let first = first.and_then(|number| number.trim().parse::<usize>().ok());
    if first.is_some_and(|first| first >= entries(rocr)) && machine.uses_rocr() {
        let set = format!("ROCR_VISIBLE_DEVICES={rocr} HIP_VISIBLE_DEVICES={hip}");
        let names = "HIP_VISIBLE_DEVICES";
        found.add(
            &said::VISIBILITY_LEAVES_NOTHING,
            &[("set", &set), ("names", &names)],
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

fn set_by_user(machine: &Machine, found: &mut Found) {
    let value = |name: &str| machine.variables.get(name).map(String::as_str);
    let set = VISIBILITY
        .iter()
        .filter_map(|&name| Some((name, value(name)?)));
    let names: Vec<&str> = set.clone().map(|(name, _)| name).collect();
    let names = names.join(" ");
    let set: Vec<String> = set.map(|(name, value)| format!("{name}={value}")).collect();
    let set = set.join(" ");
    let mut add = |said: &'static Said| {
        found.add(said, &[("set", &set), ("names", &names)]);
    };
    let visible = seen_by_hip(machine);
    let [rocr, hip, cuda, ordinal] = VISIBILITY.map(value);
    if machine.system == System::Windows && rocr.is_some() {
        add(&said::ROCR_MASK_ON_WINDOWS);
    }
    if visible.is_empty() {
        add(match rocr.is_some() && hip.or(cuda).is_some() {
            true => &said::VISIBILITY_LEAVES_NOTHING,
            false => &said::VISIBILITY_LEAVES_NOTHING_ONE,
        });
        return;
    }
    if let (Some(rocr), Some(hip)) = (rocr.filter(|_| machine.uses_rocr()), hip) {
        // torch refuses the first.
        add(match entries(hip) > entries(rocr) {
            true => &said::VISIBILITY_CONTRADICTS,
            false => &said::VISIBILITY_TWICE,
        });
    } else if let (Some(hip), Some(cuda)) = (hip, cuda)
        && hip != cuda
        && !hip.is_empty()
    {
        add(&said::CUDA_MASK_IGNORED);
    }
    if ordinal.is_some() {
        add(&said::GPU_DEVICE_ORDINAL);
    }
    let is_apu = |index: &usize| machine.gpus[*index].is_apu();
    let mut gpus = machine.gpus.iter();
    let has_card = gpus.any(|gpu| gpu.class == Some(Class::Dgpu));
    if has_card && visible.first().is_some_and(is_apu) {
        add(&said::VISIBILITY_SELECTS_IGPU);
    }
}

/// An integrated GPU beside a card, and nothing masks it.
fn integrated(machine: &Machine, plan: &Plan, found: &mut Found) {
    let mut apus = machine.gpus.iter().filter(|gpu| gpu.is_apu());
    let picked = plan.pick.and_then(|index| machine.gpus.get(index));
    let (Some(card), Some(apu)) = (
        picked.filter(|gpu| gpu.class == Some(Class::Dgpu)),
        apus.clone().next(),
    ) else {
        return;
    };
    let said = match apu.index < card.index {
        _ if machine.posted.is_unordered => &said::IGPU_VISIBLE_UNORDERED,
        true => &said::IGPU_IN_FRONT,
        false => &said::IGPU_VISIBLE,
    };
    let masks = plan.variables.iter();
    let masks = masks.filter(|variable| VISIBILITY.contains(&&*variable.name));
    let exports = masks.map(|variable| format!("export {}={}\n", variable.name, variable.value));
    found.add(
        said,
        &[
            ("apu-index", &apu.index),
            ("apu", &apu.name()),
            ("card-index", &card.index),
            ("card", &card.name()),
            ("exports", &exports.collect::<String>()),
        ],
    );
    let larger = apus.find(|apu| apu.usable_bytes > card.usable_bytes);
    if let (Some(card), Some(apu)) = (card.usable_bytes, larger.and_then(|apu| apu.usable_bytes)) {
        found.add(&said::IGPU_POOL_LARGER, &[("apu", &apu), ("card", &card)]);
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
        let machine = machine(variables);
        let mut found = Found::about(&machine);
        set_by_user(&machine, &mut found);
        found.all.into_iter().map(|finding| finding.id).collect()
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
