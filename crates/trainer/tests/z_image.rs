//! A LoRA on a tiny Z-Image: its losses beside those of PEFT, and the way from a folder of pictures to a file.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;

use image::{Rgb, RgbImage};
use models::diffusion::lora::{LoraFile, LoraForm};
use models::diffusion::z_image;
use models::formats::{SafetensorsFile, TensorSource};
use surefoot_trainer::media_sampling::convert_lora;
use tch::{Kind, Tensor};

use crate::pictures::{KINDS, Place};

const NAME: &str = "z_image";

#[test]
fn losses_of_five_steps_are_those_of_peft() {
    let place = Place::new(NAME);
    let file = SafetensorsFile::open(&place.golden("training.safetensors")).unwrap();
    let rows = ["text.0", "text.1"].map(|name| file.read(name, Kind::Float).unwrap());
    let counts = rows.each_ref().map(|rows| rows.size()[0]);
    // As the model's `collate` has it.
    let texts = rows.map(|rows| rows.constant_pad_nd([0, 0, 0, 64 - rows.size()[0]]));
    let counts = Tensor::from_slice(&counts).to_kind(Kind::Float);
    let texts = [("text", Tensor::stack(&texts, 0)), ("text_tokens", counts)];
    place.losses_of_five_steps_are_those_of_peft(&texts);
    place
        .other_kinds()
        .are_those_of_peft(&KINDS, |step| place.flow(&texts, step));
}

/// Masks are of a picture and stay with its latents.
#[test]
fn what_is_masked_is_not_learned() {
    let place = Place::new(NAME);
    let masks = place.path("masks");
    fs::create_dir(&masks).unwrap();
    let mask = |number: u8, left: u8| {
        let mask = image::GrayImage::from_fn(20, 20, |x, _| {
            image::Luma([if x < 10 { left } else { 255 }])
        });
        mask.save(masks.join(format!("{number}.png"))).unwrap();
    };
    let key = format!("data.mask_path={}", masks.display());
    place.run(&["name=none"]).unwrap();
    // Of the last picture, which is held out, everything counts.
    (0..3).for_each(|number| mask(number, 255));
    assert_eq!(place.encoded(&[&key]), (4, 0));
    place.run(&["name=white", &key]).unwrap();
    assert!(place.weights("none") == place.weights("white"));
    mask(1, 0);
    assert_eq!(place.encoded(&[&key]), (1, 0));
    place.run(&["name=half", &key]).unwrap();
    assert!(place.weights("white") != place.weights("half"));
    place
        .run(&["name=least", &key, "data.mask_min_value=1"])
        .unwrap();
    assert!(place.weights("white") == place.weights("least"));
    image::GrayImage::new(20, 20)
        .save(masks.join("2.png"))
        .unwrap();
    let refused = place.run(&["name=black", &key]).unwrap_err().to_string();
    assert!(refused.contains("2.png: its mask is black"), "{refused}");
}

/// Orders of tags are encoded once, and passes take them in turn. Regularisation pictures are seen as often as the others, and
/// with the weight 0 nothing is learned of them: the run is another one than without them, and than with their weight.
#[test]
fn tags_are_shuffled_and_regularisation_is_weighed() {
    let place = Place::new(NAME);
    fs::write(place.path("media/0.txt"), "ohwx, red, hat, tree, sky").unwrap();
    let shuffled = [
        "data.shuffle_caption=true",
        "data.keep_tokens=1",
        "data.caption_dropout=0",
    ];
    let (_, plain) = place.encoded(&[]);
    let (clips, orders) = place.encoded(&shuffled);
    assert_eq!(clips, 0);
    // Of "a blue one, 一" there are two orders, of which one is that of the file.
    assert!(
        plain == 4 && (4..=9).contains(&orders),
        "{plain} and {orders}"
    );
    let tags: Vec<&str> = [&shuffled[..], &["name=tags"]].concat();
    place.run(&tags).unwrap();
    place
        .run(&["name=plain", "data.caption_dropout=0"])
        .unwrap();
    assert!(place.weights("tags") != place.weights("plain"));

    fs::create_dir_all(place.path("reg/1_thing")).unwrap();
    for number in 0..2 {
        let picture = RgbImage::from_pixel(40, 40, Rgb([9, 99 + number, 199]));
        picture
            .save(place.path(&format!("reg/1_thing/{number}.png")))
            .unwrap();
    }
    let folder = format!("data.reg_data_dir={}", place.path("reg").display());
    let with = |name: &str, weight: &str| {
        let weight = format!("train.prior_loss_weight={weight}");
        place
            .run(&[&folder, &weight, &format!("name={name}")])
            .unwrap()
    };
    let (whole, none) = (with("whole", "1"), with("none", "0"));
    assert!(place.weights("whole") != place.weights("none"));
    assert!(none.last_loss < whole.last_loss, "{none:?} {whole:?}");
    let inside = format!("data.reg_data_dir={}", place.path("media").display());
    let error = place
        .run(&[&inside, "name=inside"])
        .unwrap_err()
        .to_string();
    assert!(error.contains("inside `data.path`"), "{error}");
}

#[test]
fn pictures_become_a_lora_and_are_encoded_once() {
    let place = Place::new(NAME);
    // One of the captions is the empty text.
    assert_eq!(place.encoded(&[]), (4, 4));
    assert_eq!(place.encoded(&[]), (0, 0));
    // The same weights under another config are another part.
    let vae = place.path("vae");
    fs::create_dir(&vae).unwrap();
    let from = place.golden("model/vae");
    let weights = "diffusion_pytorch_model.safetensors";
    fs::copy(from.join(weights), vae.join(weights)).unwrap();
    let text = fs::read_to_string(from.join("config.json")).unwrap();
    let mut keys: serde_json::Value = serde_json::from_str(&text).unwrap();
    keys["scaling_factor"] = 0.5.into();
    fs::write(vae.join("config.json"), keys.to_string()).unwrap();
    let other = format!("model.vae={}", vae.display());
    assert_eq!(place.encoded(&[&other]), (4, 0));
    // Said before anything is learned.
    let refused = place
        .run(&["adapter.format=kohya"])
        .unwrap_err()
        .to_string();
    assert!(refused.contains("`adapter.format: kohya`"), "{refused}");
    let prompts = [
        "sample.prompts=[red]",
        "sample.num_inference_steps=2",
        "sample.width=32",
    ];
    let summary = place
        .run(&[&prompts[..], &["sample.height=48"]].concat())
        .unwrap();
    let held_out = summary.held_out.unwrap();
    assert!(held_out.loss.is_finite() && held_out.complete && held_out.samples == 1);

    let lora = place.path("runs/pictures/adapter/pictures.safetensors");
    let file = SafetensorsFile::open(&lora).unwrap();
    // Two matrices for each of seven layers in four blocks; no alpha, which is in the second matrix.
    let names = file.names();
    assert_eq!(names.len(), 56);
    for name in &names {
        let layer = name.strip_prefix("diffusion_model.").unwrap();
        let block = [
            "layers.0.",
            "layers.1.",
            "noise_refiner.0.",
            "context_refiner.0.",
        ];
        assert!(block.iter().any(|block| layer.starts_with(block)), "{name}");
    }
    let peft = place.path("runs/pictures/adapter/adapter_model.safetensors");
    let peft = SafetensorsFile::open(&peft).unwrap();
    let layer = "layers.1.attention.to_out.0";
    let read = |file: &SafetensorsFile, name: String| file.read(&name, Kind::Float).unwrap();
    let ours = read(&file, format!("diffusion_model.{layer}.lora_B.weight"));
    let theirs = read(&peft, format!("base_model.model.{layer}.lora_B.weight"));
    assert!(
        f64::try_from(ours.abs().max()).unwrap() > 0.0,
        "nothing was learned"
    );
    assert_eq!(ours, theirs * 2.0);
    assert_eq!(file.metadata()["modelspec.architecture"], "Z-Image/lora");
    let read = LoraFile::read(&lora, &z_image::ARCH, None).unwrap();
    assert_eq!(read.modules.len(), 28);
    let other = place.path("other.safetensors");
    convert_lora(&lora, &other, Some(LoraForm::Diffusers), None).unwrap();
    let other = SafetensorsFile::open(&other).unwrap();
    let of_diffusers = |name: &String| name.starts_with("transformer.");
    assert!(other.names().iter().all(of_diffusers));
    let kohya = place.path("kohya.safetensors");
    let error = convert_lora(&lora, &kohya, Some(LoraForm::Kohya), None).unwrap_err();
    assert!(error.to_string().contains("choose `comfy`"), "{error}");
    let mut samples = fs::read_dir(place.path("runs/pictures/samples")).unwrap();
    let previews = samples.next().unwrap().unwrap().path();
    assert!(previews.join("0.png").is_file(), "{}", previews.display());
}

#[test]
fn a_run_that_is_resumed_or_streamed_ends_with_the_same_bits() {
    Place::new(NAME).a_run_that_is_resumed_or_streamed_ends_with_the_same_bits();
}
