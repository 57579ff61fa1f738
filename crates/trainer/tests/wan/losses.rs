//! Five steps of a LoRA beside those of diffusers and PEFT, from golden files.

use models::formats::{SafetensorsFile, TensorSource};
use placement::{Bytes, Placer, Policy};
use surefoot_trainer::NoObserver;
use surefoot_trainer::optim::{Gradients, Optimizer};
use surefoot_trainer::task::diffusion::DiffusionTask;
use surefoot_trainer::task::{Batch, Task};
use tch::{Device, Kind};

use super::place::{Place, golden};
use crate::pictures::{KINDS, Steps};

/// Trains `place` on the batches of `folder`, from its LoRA on, and fails unless each loss is theirs within
/// 1e-5 of it and 99.9 % of the numbers of the LoRA are theirs within 1e-4. `names` are the experts, which
/// see the same batches.
fn check(place: &Place, folder: &str, names: &[&str], more: &[&str]) {
    let adapter = golden(&format!("{folder}/adapter"));
    let adapter = format!("adapter.resume_from={}", adapter.display());
    let fixed = [&*adapter, "train.weight_decay=0.05"];
    let config = place.config(&[&fixed, more].concat());
    let mut placer = Placer::new(Device::Cpu, Policy::default()).unwrap();
    let memory = placer.memory(Bytes::gib(8), Bytes::gib(8));
    let model = place.path("model");
    let mut task =
        DiffusionTask::open(&config, &model, &mut placer, memory, &mut NoObserver).unwrap();
    let expected = golden(&format!("{folder}/expected.safetensors"));
    let file = SafetensorsFile::open(&expected).unwrap();
    let read = |name: &str| file.read(name, Kind::Float).unwrap();
    let text = read("text").constant_pad_nd([0, 0, 0, 492]);
    let theirs = |name: &&str| {
        let key = match names.len() {
            1 => "losses".to_owned(),
            _ => format!("losses.{name}"),
        };
        Vec::<f64>::try_from(&file.read(&key, Kind::Double).unwrap()).unwrap()
    };
    let theirs: Vec<Vec<f64>> = names.iter().map(theirs).collect();
    let turns = task.turns();
    let ranges: Vec<_> = turns.iter().map(|turn| turn.parameters.clone()).collect();
    let mut optimizer = Optimizer::from_config(&config, task.parameters(), &ranges).unwrap();
    for step in 0..theirs[0].len() * names.len() {
        let turn = task.begin_step(step as u64, &mut placer).unwrap();
        assert_eq!(turn, step % names.len());
        let number = step / names.len();
        let mut tensors = vec![("text", text.shallow_clone())];
        for name in ["latents", "noise", "sigma", "condition"] {
            if file.names().iter().any(|there| there == name) {
                tensors.push((name, read(name).select(0, number as i64)));
            }
        }
        let loss = task.loss(&Batch::new(tensors, 1)).unwrap();
        let mut gradients = match ranges.get(turn) {
            Some(range) => Gradients::of(range.clone()),
            None => Gradients::default(),
        };
        gradients.accumulate(&loss, task.parameters()).unwrap();
        let norm = f64::try_from(&gradients.norm().unwrap()).unwrap();
        gradients.clip(norm, 1.0).unwrap();
        optimizer.step(&gradients, 0.01).unwrap();
        let (ours, theirs) = (f64::try_from(&loss).unwrap(), theirs[turn][number]);
        let apart = (ours / theirs - 1.0).abs();
        let name = names[turn];
        assert!(
            apart <= 1e-5,
            "{name}, step {number}: {ours} and {theirs}: {apart:e}"
        );
    }
    let (mut numbers, mut near) = (0, 0.0);
    for parameter in task.parameters().iter() {
        let theirs = read(&format!("after.{}", parameter.name));
        let apart = (&parameter.tensor - theirs).abs();
        numbers += apart.numel();
        near += f64::try_from(&apart.le(1e-4).sum(Kind::Double)).unwrap();
    }
    assert!(near >= 0.999 * numbers as f64, "{near} of {numbers}");
}

#[test]
fn losses_of_five_steps_are_those_of_peft() {
    check(&Place::new(), "training", &["model"], &[]);
}

#[test]
fn losses_of_other_kinds_are_those_of_peft() {
    let place = Place::new();
    let file = SafetensorsFile::open(&golden("training/expected.safetensors")).unwrap();
    let read = |name: &str| file.read(name, Kind::Float).unwrap();
    let steps = Steps {
        config: Box::new(|overrides| place.config(overrides)),
        model: place.path("model"),
        kinds: golden("training/kinds"),
    };
    steps.are_those_of_peft(&KINDS, |step| {
        let own = |name| (name, read(name).select(0, step));
        let text = ("text", read("text").constant_pad_nd([0, 0, 0, 492]));
        vec![text, own("latents"), own("noise"), own("sigma")]
    });
}

#[test]
fn losses_of_both_experts_on_pictures_are_those_of_peft() {
    let place = Place::image_to_video();
    let experts = ["high_noise", "low_noise"];
    let more = [
        "train.steps_per_expert=1",
        "train.gradient_checkpointing=true",
    ];
    check(&place, "training-i2v", &experts, &more);
}

#[test]
fn losses_beside_a_given_first_frame_are_those_of_peft() {
    let place = Place::first_frame_to_video();
    check(
        &place,
        "training-ti2v",
        &["model"],
        &["data.image_to_video=true"],
    );
}
