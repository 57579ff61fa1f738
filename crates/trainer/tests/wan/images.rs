//! Models that make videos of a picture: from clips to LoRAs, resumed, with previews.

use std::fs;

use models::formats::{SafetensorsFile, TensorSource};
use tch::Kind;

use super::place::{Place, plain, scheduled};
use super::previews::{PREVIEWS, records};

const KILLED: [&str; 2] = ["train.save_steps=1", "train.ema_decay=0.9"];

#[test]
fn a_run_on_pictures_that_is_killed_anywhere_ends_with_the_same_bits() {
    let place = Place::image_to_video();
    place.check_kills(
        &[&KILLED[..], &["train.steps_per_expert=2"]].concat(),
        &[
            "adapter/high_noise/adapter_model.safetensors",
            "adapter/low_noise/adapter_model.safetensors",
            "checkpoints/step-000006/optimizer.safetensors",
        ],
    );
}

#[test]
fn a_run_on_first_frames_that_is_killed_anywhere_ends_with_the_same_bits() {
    let place = Place::first_frame_to_video();
    place.check_kills(
        &[&KILLED[..], &["data.image_to_video=true"]].concat(),
        &[
            "adapter/adapter_model.safetensors",
            "checkpoints/step-000006/optimizer.safetensors",
        ],
    );
}

#[test]
fn a_clip_has_the_condition_of_its_first_frame_beside_it() {
    let place = Place::image_to_video();
    place.encoded(&[]);
    let mut seen = Vec::new();
    for entry in fs::read_dir(place.path("cache/latents")).unwrap() {
        let file = SafetensorsFile::open(&entry.unwrap().path()).unwrap();
        let condition = file.read("condition", Kind::Float).unwrap();
        let latents = file.read("latents", Kind::Float).unwrap();
        let (channels, frames, height, width) = condition.size4().unwrap();
        assert_eq!(
            latents.size(),
            [channels - 4, frames, height, width],
            "four channels are the mask"
        );
        let sum = |frame: i64| {
            let mask = condition.narrow(0, 0, 4).select(1, frame);
            mask.sum(Kind::Double).double_value(&[])
        };
        assert_eq!(sum(0), (4 * height * width) as f64);
        assert!((1..frames).all(|frame| sum(frame) == 0.0));
        // The first latent frame is that of the picture alone, in either.
        let picture = condition.narrow(0, 4, channels - 4).select(1, 0);
        let apart = (picture - latents.select(1, 0)).abs().max();
        assert!(apart.double_value(&[]) < 1e-5);
        seen.push(frames);
    }
    seen.sort_unstable();
    assert_eq!(seen, [1, 1, 1, 2, 2, 2, 2]);
}

/// The sheets of the first preview before the first step, with `image` as its picture.
fn sheet(place: &Place, name: &str, image: u8, more: &[&str]) -> Vec<u8> {
    let path = place.path(&format!("{name}.png"));
    plain(image).save(&path).unwrap();
    let (name_key, image) = (
        format!("name={name}"),
        format!("sample.image={}", path.display()),
    );
    let own = [
        "train.max_steps=2",
        "sample.prompts=[a grey cat --d 7]",
        &name_key,
        &image,
    ];
    place.run(&[&PREVIEWS[..], &own, more].concat()).unwrap();
    let run = place.path("runs").join(name);
    let records = records(&run);
    assert_eq!(
        records.iter().map(|(step, _)| *step).collect::<Vec<_>>(),
        [0, 2]
    );
    fs::read(run.join(&records[0].1[0].1[1])).unwrap()
}

#[test]
fn previews_begin_with_their_picture() {
    let experts = scheduled(Place::image_to_video());
    let more = ["train.steps_per_expert=1"];
    let dark = sheet(&experts, "dark", 0, &more);
    assert_eq!(dark, sheet(&experts, "dark-again", 0, &more));
    assert_ne!(dark, sheet(&experts, "bright", 255, &more));
    let error = experts.run(&[&PREVIEWS[..], &more].concat()).unwrap_err();
    assert!(
        error.to_string().contains("is an image-to-video model"),
        "{error}"
    );

    let one = scheduled(Place::first_frame_to_video());
    let size = ["sample.height=32", "data.image_to_video=true"];
    let dark = sheet(&one, "dark", 0, &size);
    assert_eq!(dark, sheet(&one, "dark-again", 0, &size));
    assert_ne!(dark, sheet(&one, "bright", 255, &size));
}
