//! Phases entered on the CPU, where the spill file is real and nothing else moves.

use tch::Kind;

use super::*;
use crate::offload::plan::{
    Component, Memory, Module, OffloadOptions, Phase, Placement, PlacementConstraint, Plan, plan,
};
use crate::transfer::policy::Policy;

struct Tensors(Vec<(String, Tensor)>);

impl Parameters for Tensors {
    fn parameters(&mut self) -> Vec<(String, &mut Tensor)> {
        let tensors = self.0.iter_mut();
        tensors
            .map(|(name, tensor)| (name.clone(), tensor))
            .collect()
    }
}

/// A text encoder that is used first, and a transformer that does not fit beside it.
fn planned() -> Plan {
    let component = |name: &str, storage| Component {
        name: name.to_owned(),
        modules: vec![Module::new(
            format!("{name}.0"),
            storage,
            Bytes(4096),
            PlacementConstraint::Resident,
        )],
    };
    let phase = |name: &str, active: &str| Phase {
        name: name.to_owned(),
        active: vec![active.to_owned()],
        working: Bytes::ZERO,
    };
    let memory = Memory::Unified {
        device: Bytes(5000),
        pool: Bytes(5000),
        zero_copy: false,
    };
    let components = [component("text", 0), component("transformer", 1)];
    let phases = [
        phase("encode", "text"),
        phase("train", "transformer"),
        phase("sample", "text"),
    ];
    plan(&components, &phases, memory, &OffloadOptions::default()).unwrap()
}

fn tensor(seed: i64) -> Tensor {
    Tensor::arange_start(seed, seed + 1024, (Kind::Float, Device::Cpu))
}

/// Two components of which one weight is the same, and one is a part of the other's.
#[test]
fn what_is_tied_between_components_stays_tied_and_parts_stay_parts() {
    let tied = |name: &str| Component {
        name: name.to_owned(),
        modules: vec![Module::new(
            format!("{name}.0"),
            0,
            Bytes(4096),
            PlacementConstraint::Resident,
        )],
    };
    let away = Component {
        name: "other".to_owned(),
        modules: vec![Module::new(
            "other.0",
            1,
            Bytes(4096),
            PlacementConstraint::Resident,
        )],
    };
    let phase = |active: &[&str]| Phase {
        name: active[0].to_owned(),
        active: active.iter().map(|name| (*name).to_owned()).collect(),
        working: Bytes::ZERO,
    };
    let memory = Memory::Unified {
        device: Bytes(5000),
        pool: Bytes(5000),
        zero_copy: false,
    };
    let phases = [
        phase(&["text", "model"]),
        phase(&["other"]),
        phase(&["text", "model"]),
    ];
    let components = [tied("text"), tied("model"), away];
    let plan = plan(&components, &phases, memory, &OffloadOptions::default()).unwrap();

    let weight = tensor(1);
    let mut text = Tensors(vec![
        ("text.0.weight".into(), weight.shallow_clone()),
        ("text.0.first".into(), weight.narrow(0, 0, 8)),
    ]);
    let mut model = Tensors(vec![("model.0.weight".into(), weight.detach())]);
    let mut other = Tensors(vec![("other.0.weight".into(), tensor(2))]);
    drop(weight);
    let mut placer = Placer::new(Device::Cpu, Policy::default()).unwrap();
    let mut spill_file = SpillFile::new(&std::env::temp_dir()).unwrap();
    let mut shelved = Vec::new();
    for phase in &plan.phases {
        let mut components = [
            ("text", &mut text),
            ("model", &mut model),
            ("other", &mut other),
        ]
        .map(|(name, parameters)| StageComponent { name, parameters });
        let entered = enter(&mut placer, phase, &mut components, &mut spill_file).unwrap();
        shelved.push(entered.to_file.0);
        if phase.phase == "text" {
            let (weight, part) = (&text.0[0].1, &text.0[1].1);
            assert_eq!(weight.data_ptr(), model.0[0].1.data_ptr(), "one memory");
            assert!(weight.equal(&tensor(1)) && model.0[0].1.equal(&tensor(1)));
            assert!(part.equal(&tensor(1).narrow(0, 0, 8)), "{:?}", part.size());
        }
    }
    // What two share goes once; what is a part of it is a tensor of its own.
    assert_eq!(shelved, [4096, 4096 + 32, 4096]);
}

#[test]
fn what_is_idle_is_in_no_memory_and_comes_back_bit_by_bit() {
    let plan = planned();
    let mut text = Tensors(vec![("text.0.weight".to_owned(), tensor(1))]);
    let tied = text.0[0].1.detach();
    text.0.push(("text.0.tied".to_owned(), tied));
    let mut transformer = Tensors(vec![("transformer.0.weight".to_owned(), tensor(2))]);
    let mut placer = Placer::new(Device::Cpu, Policy::default()).unwrap();
    let mut spill_file = SpillFile::new(&std::env::temp_dir()).unwrap();
    let mut go = |phase: usize, text: &mut Tensors, transformer: &mut Tensors| {
        let mut components = [
            StageComponent {
                name: "text",
                parameters: text,
            },
            StageComponent {
                name: "transformer",
                parameters: transformer,
            },
        ];
        enter(
            &mut placer,
            &plan.phases[phase],
            &mut components,
            &mut spill_file,
        )
        .unwrap()
    };

    let entered = go(0, &mut text, &mut transformer);
    assert_eq!(
        (entered.to_file, transformer.0[0].1.numel()),
        (Bytes(4096), 0)
    );
    let entered = go(1, &mut text, &mut transformer);
    assert_eq!(entered.to_file, Bytes(4096), "tied weights go once");
    assert_eq!((text.0[0].1.numel(), text.0[1].1.numel()), (0, 0));
    assert!(transformer.0[0].1.equal(&tensor(2)));
    go(2, &mut text, &mut transformer);
    assert!(text.0[0].1.equal(&tensor(1)));
    assert_eq!(text.0[0].1.data_ptr(), text.0[1].1.data_ptr(), "still tied");
    assert_eq!(transformer.0[0].1.numel(), 0);
}

/// A phase that has these modules of one name with their component at these residencies.
fn phase(residencies: &[(&str, Residency)]) -> PhasePlan {
    let placements = residencies.iter().map(|&(name, residency)| Placement {
        component: name.to_owned(),
        module: name.to_owned(),
        bytes: Bytes(4096),
        residency,
    });
    PhasePlan::from_placements("by hand", placements.collect())
}

/// A weight that two components have, and phases by which of them they use: each phase trains the weight
/// through one that it uses, and all that it uses must have what was trained before.
fn train_by_turns(tie: fn(&Tensor) -> Tensor, phases: &[&[&str]]) {
    for idle in [Residency::IdleOnDisk, Residency::IdleOnHost] {
        let weight = tensor(1);
        let mut text = Tensors(vec![("text.weight".into(), tie(&weight))]);
        let mut model = Tensors(vec![("model.weight".into(), weight)]);
        let mut placer = Placer::new(Device::Cpu, Policy::default()).unwrap();
        let mut spill_file = SpillFile::new(&std::env::temp_dir()).unwrap();
        let mut expected = tensor(1);
        for (number, used) in phases.iter().enumerate() {
            let residency = |name: &'static str| match used.contains(&name) {
                true => (name, Residency::Device),
                false => (name, idle),
            };
            let phase = phase(&[residency("text"), residency("model")]);
            let mut components = [("text", &mut text), ("model", &mut model)]
                .map(|(name, parameters)| StageComponent { name, parameters });
            enter(&mut placer, &phase, &mut components, &mut spill_file).unwrap();
            let (text, model) = (&mut text.0[0].1, &mut model.0[0].1);
            if used.is_empty() {
                let on_disk = idle == Residency::IdleOnDisk;
                assert_eq!(
                    (text.numel() == 0, spill_file.len() == 2),
                    (on_disk, on_disk)
                );
                continue;
            }
            assert!(spill_file.is_empty(), "phase {number}");
            assert!(text.equal(&expected), "text in phase {number}, {idle:?}");
            assert!(model.equal(&expected), "model in phase {number}, {idle:?}");
            assert_eq!(text.data_ptr(), model.data_ptr(), "phase {number}");
            let trained = if used[0] == "text" { text } else { model };
            *trained += 1.0;
            expected += 1.0;
        }
    }
}

const BOTH: &[&str] = &["text", "model"];

#[test]
fn what_one_owner_trains_while_the_other_is_idle_is_the_others_too() {
    train_by_turns(Tensor::detach, &[BOTH, &["model"], BOTH, &["text"], BOTH]);
}

#[test]
fn one_tensor_of_two_owners_is_not_emptied_while_one_uses_it() {
    let phases = [BOTH, &["model"], BOTH, &["text"], BOTH];
    train_by_turns(Tensor::shallow_clone, &phases);
}

#[test]
fn either_owner_may_return_alone_when_both_were_idle() {
    for tie in [Tensor::shallow_clone, Tensor::detach] {
        for owner in ["model", "text"] {
            let alone: &[&str] = &[owner];
            train_by_turns(tie, &[BOTH, &[], alone, BOTH, &[], alone, &[], &[], BOTH]);
        }
    }
}

/// The first group moves, since the gaps of its first tensor are closed; in the second one is a tensor that no
/// memory can hold.
#[test]
fn what_moved_before_a_failure_is_still_of_one_memory() {
    let strided = tensor(1).view([32, 32]).tr();
    let mut text = Tensors(vec![("text.weight".into(), strided.shallow_clone())]);
    let mut model = Tensors(vec![("model.weight".into(), strided.detach())]);
    let more = (0..300).map(|number| (format!("model.{number}"), tensor(number)));
    model.0.extend(more);
    let endless = Tensor::from(1_f32).expand([1 << 60], false);
    model.0.push(("model.endless".into(), endless));
    let mut placer = Placer::new(Device::Cpu, Policy::default()).unwrap();
    let mut spill_file = SpillFile::new(&std::env::temp_dir()).unwrap();
    let phase = phase(&[("text", Residency::Device), ("model", Residency::Device)]);
    let mut components = [("text", &mut text), ("model", &mut model)]
        .map(|(name, parameters)| StageComponent { name, parameters });
    let entered = enter(&mut placer, &phase, &mut components, &mut spill_file);
    let error = entered.unwrap_err().to_string();
    assert!(error.contains("model.endless"), "{error}");
    let (text, model) = (&text.0[0].1, &model.0[0].1);
    assert!(text.is_contiguous(), "it has moved");
    assert_eq!(text.data_ptr(), model.data_ptr());
}
