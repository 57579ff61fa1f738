//! Control pictures, as the pipeline takes them.

use serde_json::{Value, json};
use tch::{Kind, Tensor};

use super::REFERENCE;
use crate::diffusion::reference::{
    FROZEN, One, checksum, difference, encoded, loaded, picture_in, placer,
};
use crate::diffusion::sampling::{Guided, Sampling, sample};
use crate::diffusion::{
    Conditions, Controls, DenoiserOptions, Diffusion, Picture, TEXT, load_autoencoder,
};
use crate::formats::{SafetensorsFile, TensorSource};
use crate::model::Pass;

fn expected(name: &str) -> Tensor {
    let file = SafetensorsFile::open(&REFERENCE.golden("edit.safetensors")).unwrap();
    file.read(name, Kind::Float).unwrap()
}

fn picture(number: usize) -> Picture {
    picture_in(&REFERENCE.golden("edit.safetensors"), number)
}

fn controls(model: &dyn Diffusion) -> Controls {
    model.controls().unwrap()
}

/// Those that are too large are scaled, and what is beyond whole latents is cut off.
#[test]
fn pictures_are_prepared_and_encoded_as_by_the_pipeline() {
    let model = REFERENCE.model();
    let rule = controls(&*model);
    let told = REFERENCE.json::<Value>("edit.json");
    let small = u32::try_from(told["area"].as_u64().unwrap()).unwrap();
    let codec = load_autoencoder(&*model, Kind::Float, &mut placer()).unwrap();
    for (number, theirs) in told["pictures"].as_array().unwrap().iter().enumerate() {
        let picture = picture(number);
        for (area, theirs) in [(rule.area, &theirs[0]), (small, &theirs[1])] {
            let (width, height) = rule.size(area, picture.size());
            assert_eq!(json!([width, height]), theirs["size"], "{number}, {area}");
            let clean = rule.pixels(area, &picture).unwrap();
            assert_eq!(checksum(&clean), theirs["clean"], "{number}, {area}");
        }
        let clean = rule.pixels(rule.area, &picture).unwrap();
        let latents = codec.encode_frame(&clean, None).unwrap();
        let apart = difference(&latents, &expected(&format!("control.{number}")));
        assert!(apart <= 1e-4, "{number}: {apart}");
    }
    let tiny = Picture::new((3, 40), vec![0; 3 * 3 * 40]).unwrap();
    let error = rule.pixels(rule.area, &tiny).unwrap_err().to_string();
    assert!(error.contains("3 × 40"), "{error}");
}

#[test]
fn velocities_beside_control_pictures_are_those_of_diffusers() {
    let (denoiser, _) = REFERENCE.denoiser(FROZEN, Kind::Float);
    for (label, count) in [("one", 1), ("two", 2)] {
        let read = |what: &str| expected(&format!("velocity.{label}.{what}"));
        let mut conditions = Conditions::of(TEXT, read("text"));
        for number in 0..count {
            let name = Controls::name(number);
            conditions.insert(&name, read(&name));
        }
        let (latents, times) = (read("latents"), read("levels") * 1000.0);
        let made = denoiser.predict(&latents, &times, &conditions, Pass::Evaluate);
        let apart = difference(&made.unwrap(), &read("made"));
        assert!(apart <= 1e-4, "{label}: {apart}");
    }
}

#[test]
fn samples_beside_control_pictures_are_those_of_the_pipeline() {
    let model = REFERENCE.model();
    let codec = load_autoencoder(&*model, Kind::Float, &mut placer()).unwrap();
    let options = DenoiserOptions::whole(tch::Device::Cpu, Kind::Float);
    let denoiser = loaded(&*model, Vec::new(), options);
    let mut experts = One(denoiser);
    let (rule, defaults) = (controls(&*model), model.defaults().unwrap());
    for run in REFERENCE.json::<Value>("edit.json")["runs"]
        .as_array()
        .unwrap()
    {
        let name = run["name"].as_str().unwrap();
        let numbers: Vec<usize> = serde_json::from_value(run["pictures"].clone()).unwrap();
        let pictures: Vec<_> = numbers.into_iter().map(picture).collect();
        let given = |text: &str| {
            let mut row = encoded(&*model, text);
            for (number, picture) in pictures.iter().enumerate() {
                let pixels = rule.pixels(rule.area, picture).unwrap();
                let latents = codec.encode_frame(&pixels, None).unwrap();
                row.insert(&Controls::name(number), latents);
            }
            model.collate(&[row]).unwrap()
        };
        let start = expected(&format!("run.{name}.start"));
        let steps = run["steps"].as_u64().unwrap() as usize;
        let settings = Sampling {
            objective: model.objective(),
            scheduler: defaults.scheduler,
            steps,
            flow_shift: model
                .shift(start.size()[3] * start.size()[4], steps)
                .unwrap(),
            guidance_scale: run["guidance"].as_f64().unwrap(),
            is_guidance_told: false,
            guidance_scale_2: None,
            boundary_ratio: None,
        };
        let guided = Guided {
            positive: given(run["prompt"].as_str().unwrap()),
            negative: (settings.guidance_scale > 1.0).then(|| given("")),
        };
        let made = sample(&mut experts, &start, &guided, &settings, &mut |_| ());
        let apart = difference(&made.unwrap(), &expected(&format!("run.{name}.latents")));
        assert!(apart <= 1e-3, "{name}: {apart}");
    }
    // What is made has the size of the first picture, if nothing is said.
    assert_eq!(rule.sizing(&[1, 2]), Some(&1));
}
