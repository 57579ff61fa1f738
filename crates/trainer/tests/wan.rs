//! A LoRA on a tiny Wan: its losses beside those of PEFT, and the way from a folder of clips to a file.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod child_process;
mod encoded_by;
mod experts;
mod faults;
mod fresh;
mod full_disk;
mod images;
mod kills;
mod kinds;
mod losses;
mod many;
mod place;
mod previews;
mod ranks;
mod single_files;

use std::fs;

use models::formats::{SafetensorsFile, TensorSource};
use surefoot_trainer::{Allocator, NoObserver, Stop};
use tch::Kind;

use place::{Place, copy, plain, weights};

#[test]
fn a_folder_of_clips_becomes_a_lora_and_is_encoded_once() {
    let place = Place::new();
    // Three pictures, a folder of six frames (one clip of five), and three clips of the GIF.
    assert_eq!(place.encoded(&[]), (7, 6));
    assert_eq!(place.encoded(&[]), (0, 0));
    fs::write(place.path("media/1.txt"), "a dog s").unwrap();
    assert_eq!(place.encoded(&[]), (0, 1));
    plain(7).save(place.path("media/2.png")).unwrap();
    assert_eq!(place.encoded(&[]), (1, 0));
    // Renamed is not changed, and another size is.
    for ending in ["png", "txt"] {
        let name = |stem: &str| place.path(&format!("media/{stem}.{ending}"));
        fs::rename(name("0"), name("zero")).unwrap();
    }
    assert_eq!(place.encoded(&[]), (0, 0));
    assert_eq!(place.encoded(&["data.resolution=[64, 32]"]), (7, 0));

    let summary = place.run(&[]).unwrap();
    assert_eq!(summary.steps, 6);
    let held_out = summary.held_out.unwrap();
    assert!(held_out.loss.is_finite() && held_out.complete && held_out.samples == 1);
    let run = place.path("runs/clips");
    // As PEFT has it, and under the names that ComfyUI looks for.
    let adapter = run.join("adapter");
    let peft = SafetensorsFile::open(&adapter.join("adapter_model.safetensors")).unwrap();
    let kohya = SafetensorsFile::open(&adapter.join("clips.safetensors")).unwrap();
    assert_eq!((peft.names().len(), kohya.names().len()), (40, 60));
    assert_eq!(kohya.metadata()["ss_network_dim"], "2");
    let read = |file: &SafetensorsFile, name: &str| file.read(name, Kind::Float).unwrap();
    let layer = "lora_unet_blocks_1_cross_attn_o";
    assert_eq!(
        read(&kohya, &format!("{layer}.alpha")).double_value(&[]),
        4.0
    );
    for (part, theirs) in [("down", "A"), ("up", "B")] {
        let ours = read(&kohya, &format!("{layer}.lora_{part}.weight"));
        let name = format!("base_model.model.blocks.1.attn2.to_out.0.lora_{theirs}.weight");
        assert_eq!(ours, read(&peft, &name));
    }
    let state = fs::read_to_string(run.join("checkpoints/step-000006/state.json")).unwrap();
    assert!(state.contains("\"order\""), "{state}");
}

#[test]
fn what_was_killed_while_encoding_goes_on_where_files_are_missing() {
    let place = Place::new();
    place.encoded(&[]);
    let latents = place.path("cache/latents");
    let mut files: Vec<_> = fs::read_dir(&latents)
        .unwrap()
        .map(|f| f.unwrap().path())
        .collect();
    files.sort();
    let kept = fs::read(&files[0]).unwrap();
    let whole = fs::read(&files[1]).unwrap();
    // One file less, one that broke off in the middle, and a draft.
    fs::remove_file(&files[0]).unwrap();
    fs::write(&files[1], &whole[..whole.len() / 2]).unwrap();
    fs::write(latents.join("x.tmp-1"), b"half").unwrap();
    assert_eq!(place.encoded(&[]), (2, 0));
    assert_eq!(fs::read(&files[0]).unwrap(), kept);
    assert_eq!(fs::read(&files[1]).unwrap(), whole);
}

#[test]
fn a_run_that_is_resumed_ends_with_the_same_bits() {
    let place = Place::new();
    place.run(&["name=whole"]).unwrap();
    place.run(&["name=parts", "train.max_steps=2"]).unwrap();
    let resume = "train.resume_from_checkpoint=latest";
    place
        .run(&["name=parts", "train.max_steps=4", resume])
        .unwrap();
    place.run(&["name=parts", resume]).unwrap();
    let (whole, parts) = (place.path("runs/whole"), place.path("runs/parts"));
    assert!(weights(&whole) == weights(&parts));
    // Other captions are other data.
    fs::write(place.path("media/1.txt"), "a dog s").unwrap();
    let error = place
        .run(&["name=parts", "train.max_steps=8", resume])
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("differ from those of the checkpoint"),
        "{error}"
    );
}

#[test]
fn streamed_and_checkpointed_blocks_learn_the_same() {
    let place = Place::new();
    place.run(&["name=plain"]).unwrap();
    place
        .run(&[
            "name=other",
            "train.gradient_checkpointing=true",
            "model.blocks_to_swap=1",
        ])
        .unwrap();
    assert!(weights(&place.path("runs/plain")) == weights(&place.path("runs/other")));
}

#[test]
fn media_that_cannot_be_used_are_all_named() {
    let place = Place::new();
    fs::write(place.path("media/broken.png"), b"no picture").unwrap();
    fs::write(place.path("media/broken.txt"), "a cat").unwrap();
    fs::write(place.path("media/walk/0.png"), b"no picture").unwrap();
    let error = place.run(&[]).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("`broken.png`") && text.contains("walk/0.png"),
        "{text}"
    );
    assert!(error.is_bad_usage());
}

#[test]
fn clips_that_are_too_short_are_told_with_what_would_fit() {
    let place = Place::new();
    for index in 0..3 {
        for ending in ["png", "txt"] {
            fs::remove_file(place.path(&format!("media/{index}.{ending}"))).unwrap();
        }
    }
    let error = place.run(&["data.num_frames=81"]).unwrap_err().to_string();
    for part in [
        "`walk` has 6 frames",
        "up to 5 fits",
        "`dog.gif` has 16 frames",
        "up to 13",
    ] {
        assert!(error.contains(part), "{error}");
    }
    let error = place
        .run(&["data.num_frames=null"])
        .unwrap_err()
        .to_string();
    assert!(error.contains("`data.num_frames` is not set"), "{error}");
}

#[test]
fn a_video_is_cut_within_the_part_that_it_is_trimmed_to() {
    let place = Place::new();
    // Sixteen frames of the one and six of the other give three clips and one; there are three pictures.
    assert_eq!(place.encoded(&[]).0, 7);
    let trim = place.path("media/dog.trim.json");
    // Frames 5 to 15: two clips, where the second and the third were.
    fs::write(&trim, r#"{"start": 0.3, "end": 0.95}"#).unwrap();
    assert_eq!(place.encoded(&[]).0, 0);
    fs::write(&trim, r#"{"start": 0.4, "end": 0.8}"#).unwrap();
    assert_eq!(place.encoded(&[]).0, 1);
    fs::write(&trim, r#"{"start": 0.8}"#).unwrap();
    fs::write(place.path("media/1.trim.json"), r#"{"end": 1}"#).unwrap();
    fs::write(place.path("media/walk.trim.json"), r#"{"start": 2}"#).unwrap();
    let error = place.run(&[]).unwrap_err().to_string();
    for part in [
        "`1.png`: a picture has no part",
        "`walk`: it is trimmed to nothing: it has 6 frames",
    ] {
        assert!(error.contains(part), "{error}");
    }
    fs::write(&trim, r#"{"start": 0.8, "stop": 1}"#).unwrap();
    let error = place.run(&[]).unwrap_err().to_string();
    assert!(
        error.contains("`dog.trim.json`: unknown field `stop`"),
        "{error}"
    );
}

#[test]
fn a_model_of_videos_asks_for_what_it_needs() {
    let place = Place::new();
    for key in [
        "train.experts=both",
        "train.steps_per_expert=2",
        "model.boundary_ratio=0.9",
    ] {
        let error = place.run(&[key]).unwrap_err().to_string();
        assert!(error.contains("has one transformer"), "{error}");
    }
    let two = place.path("model/transformer_2");
    copy(&place.path("model/transformer"), &two);
    let error = place.run(&["train.experts=low"]).unwrap_err().to_string();
    assert!(error.contains("`model.boundary_ratio`"), "{error}");
    let sides = ["train.experts=low", "model.boundary_ratio=0.9"];
    let part = [&sides[..], &["adapter.target_modules=[attn1.to_q]"]].concat();
    assert_eq!(place.run(&part).unwrap().steps, 6);
    // One layer of each of two blocks, its strength folded in.
    let file = place.path("runs/clips/adapter/clips_low_noise.safetensors");
    let file = SafetensorsFile::open(&file).unwrap();
    assert_eq!(file.names().len(), 4);
    let peft = place.path("runs/clips/adapter/adapter_model.safetensors");
    let peft = SafetensorsFile::open(&peft).unwrap();
    let peft = peft.read(
        "base_model.model.blocks.0.attn1.to_q.lora_B.weight",
        Kind::Float,
    );
    let name = "diffusion_model.blocks.0.self_attn.q.lora_B.weight";
    assert_eq!(file.read(name, Kind::Float).unwrap(), peft.unwrap() * 2.0);
    let whole = [&part[..], &["adapter.format=kohya"]].concat();
    let error = place.run(&whole).unwrap_err().to_string();
    assert!(error.contains("`adapter.format: kohya` needs"), "{error}");
    let none = [&sides[..], &["train.min_sigma=0.95"]].concat();
    let error = place.run(&none).unwrap_err().to_string();
    assert!(error.contains("leave no noise level"), "{error}");
    let config = place.config(&[]);
    let mut text = config.clone();
    text.data.resolution = None;
    let stop = Stop::default();
    let error = surefoot_trainer::run(&text, &Allocator::torch(), &mut NoObserver, &stop);
    assert!(
        error
            .unwrap_err()
            .to_string()
            .contains("set `data.resolution`")
    );
}
