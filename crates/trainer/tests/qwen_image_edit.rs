//! A LoRA on a tiny Qwen-Image-Edit: its losses beside those of PEFT, and the way from pictures and their control pictures
//! to a file and to previews.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::PathBuf;

use image::{Rgb, RgbImage};
use models::diffusion::{Conditions, Controls, PartPaths, TEXT, TEXT_TOKENS};
use models::formats::{SafetensorsFile, TensorSource};
use tch::Kind;

use crate::pictures::Place;

const NAME: &str = "qwen_image_edit";

/// Four pictures with control pictures: one each, and two for the last.
fn place() -> Place {
    place_of(NAME)
}

/// The same with the model of another test.
pub(crate) fn place_of(model: &'static str) -> Place {
    let place = Place::new(model);
    fs::create_dir_all(place.path("control")).unwrap();
    for (name, size) in [
        ("0", (40, 40)),
        ("1", (30, 60)),
        ("2", (40, 40)),
        ("3_0", (40, 40)),
        ("3_1", (64, 32)),
    ] {
        let picture = RgbImage::from_fn(size.0, size.1, |x, y| Rgb([4 * x as u8, 3 * y as u8, 90]));
        picture
            .save(place.path(&format!("control/{name}.png")))
            .unwrap();
    }
    place
}

/// Keys that name the control pictures, at a size at which the tiny model is fast.
pub(crate) fn keys(place: &Place) -> [String; 2] {
    let path = place.path("control");
    [
        format!("data.control_path={}", path.display()),
        "data.control_resolution=64".into(),
    ]
}

pub(crate) fn with<'a>(keys: &'a [String; 2], others: &[&'a str]) -> Vec<&'a str> {
    keys.iter()
        .map(String::as_str)
        .chain(others.iter().copied())
        .collect()
}

#[test]
fn losses_of_five_steps_are_those_of_peft() {
    let place = place();
    let file = place.training();
    let read = |name: &str| file.read(name, Kind::Float).unwrap();
    let controls = [0, 1].map(|number| (Controls::name(number), read(&Controls::name(number))));
    let rows = [0, 1].map(|row| {
        let mut conditions = Conditions::of(TEXT, read(&format!("text.{row}")));
        for (name, control) in &controls {
            conditions.insert(name, control.get(row));
        }
        conditions
    });
    let model = models::diffusion::open(&place.golden("model"), &PartPaths::default()).unwrap();
    let batch = model.collate(&rows).unwrap();
    let given = [TEXT, TEXT_TOKENS, "control.0", "control.1"];
    let given = given.map(|name| (name, batch.get(name).unwrap().shallow_clone()));
    let keys = keys(&place);
    place.losses_of_five_steps_with(&with(&keys, &[]), &given);
}

#[test]
fn a_run_that_is_resumed_or_streamed_ends_with_the_same_bits() {
    let place = place();
    let keys = keys(&place);
    place.run(&with(&keys, &["name=whole"])).unwrap();
    place
        .run(&with(&keys, &["name=parts", "train.max_steps=2"]))
        .unwrap();
    place
        .run(&with(
            &keys,
            &["name=parts", "train.resume_from_checkpoint=latest"],
        ))
        .unwrap();
    assert!(place.weights("whole") == place.weights("parts"));
    for (name, how) in [
        ("streamed", "model.low_vram=true"),
        ("again", "train.gradient_checkpointing=true"),
    ] {
        let name_key = format!("name={name}");
        place.run(&with(&keys, &[&name_key, how])).unwrap();
        assert!(place.weights("whole") == place.weights(name), "{name}");
    }
    for quantization in ["int8", "nf4"] {
        let (name, how) = (
            format!("name={quantization}"),
            format!("model.quantization={quantization}"),
        );
        let summary = place.run(&with(&keys, &[&name, &how])).unwrap();
        assert!(summary.held_out.unwrap().loss.is_finite());
    }
}

/// The cache follows the pictures and their control pictures, and previews are drawn with one.
#[test]
fn pictures_are_encoded_with_their_control_pictures() {
    let place = place();
    let keys = keys(&place);
    // Of each clip its caption, and the empty text for what is dropped, which one has as caption and two with one picture;
    // and the empty text without pictures.
    assert_eq!(place.encoded(&with(&keys, &[])), (4, 7));
    assert_eq!(place.encoded(&with(&keys, &[])), (0, 0));
    let mut shapes = Vec::new();
    for clip in fs::read_dir(place.path("cache/latents")).unwrap() {
        let file = SafetensorsFile::open(&clip.unwrap().path()).unwrap();
        let names = file
            .names()
            .into_iter()
            .filter(|name| name.starts_with("control."));
        shapes.push(
            names
                .map(|name| file.shape(&name).unwrap())
                .collect::<Vec<_>>(),
        );
    }
    shapes.sort();
    // 64 × 64 pixels in their own form, in latents of 4 pixels.
    let square = vec![16, 16, 16];
    assert!(shapes.contains(&vec![square.clone()]));
    assert!(shapes.contains(&vec![vec![16, 24, 8]]), "{shapes:?}");
    assert!(
        shapes
            .iter()
            .any(|clip| clip.len() == 2 && clip[0] == square)
    );
    // Another control picture is another text and another clip; another area another clip alone.
    RgbImage::from_pixel(40, 40, Rgb([1, 2, 3]))
        .save(place.path("control/0.png"))
        .unwrap();
    assert_eq!(place.encoded(&with(&keys, &[])), (1, 2));
    assert_eq!(
        place.encoded(&[&keys[0], "data.control_resolution=96"]),
        (4, 0)
    );
    let control = format!(
        "sample.control_image={}",
        place.path("control/1.png").display()
    );
    let previews = [
        &*control,
        "sample.prompts=[red]",
        "sample.negative_prompt=grey",
        "sample.guidance_scale=4",
        "sample.num_inference_steps=2",
        "sample.width=32",
        "sample.height=48",
    ];
    place.run(&with(&keys, &previews)).unwrap();
    let preview = place.previewed("pictures");
    let drawn = |controls: &[&str]| {
        place.drawn(None, "pictures", |request| {
            let path = |name: &&str| place.path(&format!("control/{name}.png"));
            request.controls = controls.iter().map(path).collect();
            request.control_area = Some(64 * 64);
        })
    };
    let with_one = drawn(&["1"]).unwrap();
    // The LoRA is merged into the weights there, and beside them here.
    let apart = with_one
        .iter()
        .zip(preview.iter())
        .map(|(one, other)| one.abs_diff(*other));
    assert!(apart.max().unwrap() <= 1);
    let error = drawn(&[]).unwrap_err().to_string();
    assert!(error.contains("give one with `--control-image`"), "{error}");
    let error = drawn(&["1"; 10]).unwrap_err().to_string();
    assert!(
        error.contains("10 control pictures, where Qwen-Image-Edit takes 9"),
        "{error}"
    );
}

#[test]
fn control_pictures_are_asked_for_and_refused() {
    let place = place();
    let keys = keys(&place);
    let refused = |place: &Place, overrides: &[&str]| {
        let error = place.run(overrides).unwrap_err().to_string();
        assert!(!place.path("runs/pictures/checkpoints").exists());
        error
    };
    let error = refused(&place, &[]);
    assert!(
        error.contains("`0.png`: Qwen-Image-Edit changes pictures"),
        "{error}"
    );
    let error = refused(&place, &with(&keys, &["sample.prompts=[red]"]));
    assert!(error.contains("`sample.control_image`"), "{error}");
    fs::remove_file(place.path("control/2.png")).unwrap();
    let error = refused(&place, &with(&keys, &[]));
    assert!(
        error.contains("`2.png`") && !error.contains("`1.png`"),
        "{error}"
    );
    let plain = Place::new("qwen_image");
    let error = refused(&plain, &with(&keys, &[]));
    assert!(
        error.contains("Qwen-Image takes no control pictures"),
        "{error}"
    );
}

/// The lines of a file name them, one or several.
#[test]
fn lines_name_control_pictures() {
    let place = place();
    let lines = [
        r#"{"file_name": "media/0.png", "caption": "a", "control_path": "control/0.png"}"#,
        r#"{"file_name": "media/1.png", "caption": "b", "control_path_1": "control/1.png", "control_path_0": "control/0.png"}"#,
        r#"{"file_name": "media/2.png", "caption": "c", "edit_image": ["control/3_0.png", "control/3_1.png"]}"#,
    ];
    let write = |lines: &[&str]| {
        let path: PathBuf = place.path("lines.jsonl");
        fs::write(&path, lines.join("\n")).unwrap();
        format!("data.path={}", path.display())
    };
    let data = write(&lines);
    let keys = [
        "data.control_resolution=64",
        "data.caption_dropout=0",
        &*data,
    ];
    assert_eq!(place.encoded(&keys), (3, 4));
    let wrong = r#"{"file_name": "media/0.png", "caption": "a", "control_path": 3}"#;
    write(&[wrong]);
    let error = place.run(&keys).unwrap_err().to_string();
    assert!(
        error.contains("line 1: `control_path` is not a file or a list"),
        "{error}"
    );
}
