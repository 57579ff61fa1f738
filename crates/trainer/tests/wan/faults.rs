//! Numbers that are not finite, and what `generate` keeps in fewer bits or elsewhere.

use std::fs;
use std::path::PathBuf;

use models::formats::{SafetensorsFile, TensorSource, write_tensors};
use models::quant::Quantization;
use surefoot_trainer::media_sampling::{DenoiserOptions, PartPaths, Request, generate, open};
use tch::{Device, Kind, Tensor};

use super::place::{Place, scheduled, weights};

/// Puts NaN in the place of what was encoded of `count` clips.
fn spoil(place: &Place, count: usize) {
    let folder = place.path("cache/latents");
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    for path in files.iter().take(count) {
        let latents = SafetensorsFile::open(path)
            .unwrap()
            .read("latents", Kind::Float)
            .unwrap();
        fs::remove_file(path).unwrap();
        write_tensors(path, &[("latents".to_owned(), &(latents * f64::NAN))]).unwrap();
    }
}

#[test]
fn a_step_without_a_finite_loss_is_skipped_and_where_all_are_so_the_run_ends() {
    let place = Place::new();
    place.encoded(&[]);
    // Of six that are trained on, one: each epoch meets it once.
    spoil(&place, 2);
    let one = ["train.per_device_train_batch_size=1", "train.eval_steps=0"];
    let summary = place.run(&one).unwrap();
    assert_eq!(summary.steps, 6);
    assert!(summary.skipped_steps > 0, "{}", summary.skipped_steps);
    let learned = place.path("runs/clips/adapter/adapter_model.safetensors");
    let file = SafetensorsFile::open(&learned).unwrap();
    for name in file.names() {
        let sum = file.read(&name, Kind::Float).unwrap().sum(Kind::Double);
        assert!(sum.double_value(&[]).is_finite(), "{name}");
    }
    assert!(!weights(&place.path("runs/clips")).is_empty());

    spoil(&place, 7);
    let error = place.run(&[&one[..], &["name=all"]].concat()).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("3 steps in a row had no finite loss"),
        "{text}"
    );
}

fn made(place: &Place, name: &str, quantization: Option<Quantization>, streamed: usize) -> Tensor {
    made_by(place, &PartPaths::default(), name, quantization, streamed)
}

fn made_by(
    place: &Place,
    parts: &PartPaths,
    name: &str,
    quantization: Option<Quantization>,
    streamed: usize,
) -> Tensor {
    let model = open(&place.path("model"), parts, &mut |_| ()).unwrap();
    let path = place.path(&format!("{name}.safetensors"));
    let request = Request {
        prompt: "a grey cat".into(),
        negative_prompt: Some(String::new()),
        width: Some(32),
        height: Some(32),
        num_frames: Some(5),
        fps: None,
        num_inference_steps: 3,
        guidance_scale: Some(3.0),
        guidance_scale_2: None,
        flow_shift: None,
        scheduler: None,
        boundary_ratio: None,
        seed: 5,
        image: None,
        controls: Vec::new(),
        control_area: None,
        loras: Vec::new(),
        loras_2: Vec::new(),
        checkpoint: None,
        latents: None,
        save_latents: Some(path.clone()),
        output: None,
    };
    let options = DenoiserOptions {
        quantization,
        streamed,
        ..DenoiserOptions::whole(Device::Cpu, Kind::Float)
    };
    generate(&*model, &request, options, &mut |_, _| ()).unwrap();
    let file = SafetensorsFile::open(&path).unwrap();
    file.read("latents", Kind::Float).unwrap()
}

#[test]
fn streamed_blocks_make_the_same_video_and_fewer_bits_one_like_it() {
    let place = scheduled(Place::new());
    let whole = made(&place, "whole", None, 0);
    assert_eq!(whole, made(&place, "one", None, 1));
    assert_eq!(whole, made(&place, "all", None, usize::MAX));
    let apart = |other: &Tensor| {
        let apart = (other - &whole).norm() / whole.norm();
        f64::try_from(apart).unwrap()
    };
    let int8 = made(&place, "int8", Some(Quantization::Int8), 0);
    let nf4 = made(&place, "nf4", Some(Quantization::Nf4), 0);
    let (few, fewer) = (apart(&int8), apart(&nf4));
    assert!(0.0 < few && few < fewer && fewer < 0.3, "{few} and {fewer}");
    // Both at once.
    assert_eq!(nf4, made(&place, "both", Some(Quantization::Nf4), 2));
}

/// The transformer of `place` as a single file with its matrices in scaled fp8, and as one with the numbers that
/// those stand for.
fn in_fp8(place: &Place) -> [PartPaths; 2] {
    let folder = place.path("model/transformer");
    let weights =
        SafetensorsFile::open(&folder.join("diffusion_pytorch_model.safetensors")).unwrap();
    let mut eight = vec![("scaled_fp8".to_owned(), Tensor::from_slice(&[0u8; 2]))];
    let mut plain = Vec::new();
    for name in weights.names() {
        let tensor = weights.read(&name, Kind::Float).unwrap();
        match name.strip_suffix(".weight") {
            Some(base) if name.starts_with("blocks.") && tensor.dim() == 2 => {
                // The largest number of fp8.
                let scale = tensor.abs().max() / 448.0;
                let bytes = (&tensor / &scale).to_kind(Kind::Float8e4m3fn);
                plain.push((name.clone(), bytes.to_kind(Kind::Float) * &scale));
                eight.push((format!("{base}.scale_weight"), scale));
                eight.push((name, bytes));
            }
            _ => {
                plain.push((name.clone(), tensor.shallow_clone()));
                eight.push((name, tensor));
            }
        }
    }
    [("eight", eight), ("plain", plain)].map(|(kind, tensors)| {
        let file = place.path(&format!("{kind}/wan.safetensors"));
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::copy(
            folder.join("config.json"),
            file.with_file_name("config.json"),
        )
        .unwrap();
        let list: Vec<_> = tensors.iter().map(|(name, t)| (name.clone(), t)).collect();
        write_tensors(&file, &list).unwrap();
        PartPaths {
            transformer: Some(file),
            ..PartPaths::default()
        }
    })
}

#[test]
fn a_file_in_scaled_fp8_makes_the_video_of_the_numbers_in_it() {
    let place = scheduled(Place::new());
    let whole = made(&place, "whole", None, 0);
    let [eight, plain] = in_fp8(&place);
    let size = |parts: &PartPaths| {
        let path = parts.transformer.as_ref().unwrap();
        fs::metadata(path).unwrap().len()
    };
    assert!(size(&eight) < size(&plain));
    let expected = made_by(&place, &plain, "expected", None, 0);
    assert_eq!(made_by(&place, &eight, "fp8", None, 0), expected);
    assert_eq!(made_by(&place, &eight, "streamed", None, 1), expected);
    let apart = f64::try_from((&expected - &whole).norm() / whole.norm()).unwrap();
    assert!(0.0 < apart && apart < 0.2, "{apart}");
}
