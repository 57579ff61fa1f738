//! The proof that a diffusion model is one folder: one that no crate knows is cached, trained from scratch or by a LoRA,
//! streamed, quantised, sampled and written, without a line of the trainer.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod arch;

use std::fs;
use std::path::PathBuf;

use image::{Rgb, RgbImage};
use models::diffusion::{self, Expert, Part, PartPaths};
use models::formats::{SafetensorsFile, TensorSource, write_tensors};
use models::model::{Base, Builder, RandomWeights};
use models::{Error, Parameters};
use placement::{Placer, Policy};
use surefoot_trainer::config::Quantization;
use surefoot_trainer::media_sampling::{
    DenoiserOptions, Lora, LoraForm, Request, convert_lora, generate,
};
use surefoot_trainer::{Allocator, Config, NoObserver, Shown, Stop, Summary, show_data};
use tch::{Device, Kind, Tensor};

/// A folder with the model, four pictures and the runs.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        diffusion::register(&arch::ARCH);
        let place = Self(tempfile::tempdir().unwrap());
        fs::create_dir_all(place.path("model")).unwrap();
        let index = r#"{"_class_name": "ToyPipeline"}"#;
        fs::write(place.path("model/model_index.json"), index).unwrap();
        for part in [
            Part::Denoiser(Expert::High),
            Part::Autoencoder,
            Part::TextEncoder(0),
        ] {
            place.write(part);
        }
        fs::create_dir_all(place.path("media")).unwrap();
        for (number, caption) in ["red", "green", "a blue one", "grey"].iter().enumerate() {
            let file = |ending: &str| place.path(&format!("media/{number}.{ending}"));
            let mut colour = [60, 70, 80];
            colour[number % 3] = 250 - number as u8;
            let picture = RgbImage::from_pixel(40, 40, Rgb(colour));
            picture.save(file("png")).unwrap();
            fs::write(file("txt"), caption).unwrap();
        }
        place
    }

    /// Writes random weights of a part.
    fn write(&self, part: Part) {
        let model = diffusion::open(&self.path("model"), &PartPaths::default()).unwrap();
        let mut placer = Placer::new(Device::Cpu, Policy::default()).unwrap();
        let mut source = RandomWeights::new(7, &mut placer);
        let mut parameters = Parameters::default();
        let mut builder = Builder::new(&mut source, &mut parameters, Kind::Float, Base::Trained);
        let (cpu, builder) = (Device::Cpu, &mut builder);
        let built: Result<(), Error> = match part {
            Part::Denoiser(expert) => model.denoiser(expert, cpu, builder).map(drop),
            Part::Autoencoder => model.autoencoder(cpu, builder).map(drop),
            Part::TextEncoder(number) => model.text_encoder(number, cpu, builder).map(drop),
        };
        built.unwrap();
        let folder = model.part(part).unwrap();
        fs::create_dir_all(&folder).unwrap();
        let file = folder.join(format!("{}.safetensors", model.names(part).stem));
        write_tensors(&file, &parameters.named()).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn config(&self, overrides: &[&str]) -> Config {
        let root = self.0.path().display();
        let text = format!(
            "name: toy\noutput_dir: {root}/runs\ndevice: cpu\nthreads: 1\nseed: 3\n\
             model: {{name_or_path: {root}/model}}\nadapter: {{r: 2, lora_alpha: 4, format: comfy}}\n\
             data: {{path: {root}/media, resolution: 32, cache_dir: {root}/cache, \
             validation_fraction: 0.25, caption_dropout: 0.3}}\n\
             train: {{max_steps: 6, per_device_train_batch_size: 2, learning_rate: 0.01, bf16: false, \
             lr_scheduler_type: constant, logging_steps: 1, eval_steps: 3, save_steps: 3}}\n"
        );
        let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
        Config::parse("toy.yaml", &text, &overrides).unwrap()
    }

    fn run(&self, overrides: &[&str]) -> Result<Summary, surefoot_trainer::Error> {
        let (config, allocator) = (self.config(overrides), Allocator::torch());
        surefoot_trainer::run(&config, &allocator, &mut NoObserver, &Stop::default())
    }

    /// The LoRA of a run, in the form for other programs.
    fn lora(&self, run: &str) -> PathBuf {
        self.path(&format!("runs/{run}/adapter/{run}.safetensors"))
    }

    /// Latents that are sampled with these LoRAs.
    fn sampled(&self, name: &str, loras: Vec<Lora>, options: DenoiserOptions) -> Tensor {
        let model = diffusion::open(&self.path("model"), &PartPaths::default()).unwrap();
        let latents = self.path(&format!("{name}.safetensors"));
        let request = Request {
            prompt: "red".into(),
            negative_prompt: Some(String::new()),
            width: Some(32),
            height: Some(48),
            num_frames: None,
            fps: None,
            num_inference_steps: 4,
            guidance_scale: Some(2.0),
            guidance_scale_2: None,
            flow_shift: None,
            scheduler: None,
            boundary_ratio: None,
            seed: 1,
            image: None,
            controls: Vec::new(),
            control_area: None,
            loras,
            loras_2: Vec::new(),
            checkpoint: None,
            latents: None,
            save_latents: Some(latents.clone()),
            output: Some(self.path(&format!("{name}.png"))),
        };
        generate(&*model, &request, options, &mut |_, _| ()).unwrap();
        let file = SafetensorsFile::open(&latents).unwrap();
        file.read("latents", Kind::Float).unwrap()
    }
}

const WHOLE: DenoiserOptions = DenoiserOptions {
    device: Device::Cpu,
    compute: Kind::Float,
    quantization: None,
    streamed: 0,
};

#[test]
fn pictures_become_a_lora_and_are_encoded_once() {
    let place = Place::new();
    let encoded = || {
        let config = place.config(&[]);
        let done = surefoot_trainer::encode(&config, &Allocator::torch(), &mut NoObserver);
        let done = done.unwrap();
        (done.encoded_clips, done.encoded_captions)
    };
    // The captions and the empty text.
    assert_eq!((encoded(), encoded()), ((4, 5), (0, 0)));

    let prompts = ["sample.prompts=[red]", "sample.num_inference_steps=2"];
    let summary = place.run(&prompts).unwrap();
    let held_out = summary.held_out.unwrap();
    assert!(held_out.loss.is_finite() && held_out.complete && held_out.samples == 1);
    let file = SafetensorsFile::open(&place.lora("toy")).unwrap();
    // Two matrices for each of three and two layers in two blocks.
    assert_eq!(file.names().len(), 20);
    let up = "diffusion_model.joint_blocks.1.to_text.lora_B.weight";
    let up = file.read(up, Kind::Float).unwrap();
    assert!(
        f64::try_from(up.abs().max()).unwrap() > 0.0,
        "nothing was learned"
    );
    let metadata = file.metadata();
    assert_eq!(metadata["modelspec.architecture"], "toy/lora");
    let mut samples = fs::read_dir(place.path("runs/toy/samples")).unwrap();
    let previews = samples.next().unwrap().unwrap().path();
    assert!(previews.join("0.png").is_file(), "{}", previews.display());
}

/// No picture is learned at one size and held out at another.
#[test]
fn pictures_are_learned_at_several_sizes() {
    let place = Place::new();
    let sizes = [
        "data.other_resolutions=[16, 32]",
        "data.validation_fraction=0.4",
    ];
    let config = place.config(&sizes);
    let done = surefoot_trainer::encode(&config, &Allocator::torch(), &mut NoObserver).unwrap();
    assert_eq!(done.encoded_clips, 8);
    let held_out = place.run(&sizes).unwrap().held_out.unwrap();
    assert_eq!(held_out.samples, 2);
}

#[test]
fn both_lists_of_blocks_are_streamed_and_learn_the_same() {
    let place = Place::new();
    let learned = |name: &str, options: &[&str]| {
        let set = format!("name={name}");
        let summary = place.run(&[&[set.as_str()], options].concat()).unwrap();
        let file = SafetensorsFile::open(&place.lora(name)).unwrap();
        let names = file.names().into_iter();
        let tensors = names.map(|name| file.read_stored(&name).unwrap());
        (tensors.collect::<Vec<_>>(), summary.streamed)
    };
    let (whole, none) = learned("whole", &[]);
    assert!(none.is_none());
    let (all, all_streamed) = learned("all", &["model.low_vram=true"]);
    let (some, some_streamed) = learned("some", &["model.blocks_to_swap=3"]);
    let (again, _) = learned("again", &["train.gradient_checkpointing=true"]);
    assert!(whole == all && whole == some && whole == again);
    let (all, some) = (all_streamed.unwrap(), some_streamed.unwrap());
    // Four blocks and three of them, so that the second list is streamed, too.
    assert_eq!((4 * some.used, all.repeated), (3 * all.used, 0));
}

#[test]
fn an_automatic_batch_of_pictures_is_divided_by_what_memory_has_room_for() {
    let place = Place::new();
    let run = |name: &str, more: &[&str]| {
        let set = format!("name={name}");
        let whole = "model.offload={'': device}";
        let summary = place.run(&[&[set.as_str(), whole], more].concat()).unwrap();
        let file = SafetensorsFile::open(&place.lora(name)).unwrap();
        let names = file.names().into_iter();
        let tensors = names.map(|name| file.read(&name, Kind::Float).unwrap());
        (tensors.collect::<Vec<_>>(), summary)
    };
    let (whole, summary) = run("whole", &["train.per_device_train_batch_size=3"]);
    let need = summary.memory_plan.unwrap().plan.device_peak().0;
    let auto = [
        "train.per_device_train_batch_size=auto",
        "train.gradient_accumulation_steps=3",
    ];
    let (roomy, summary) = run("roomy", &auto);
    assert_eq!(
        summary.environment.batch.unwrap(),
        "all 3 samples of a step in one pass"
    );
    assert!(whole == roomy);
    let limit = format!("model.max_memory={{device: {}}}", need - 1);
    let (divided, summary) = run("divided", &[&auto[..], &[&limit]].concat());
    assert_eq!(
        summary.environment.batch.unwrap(),
        "passes of 1 of the 3 samples of a step: memory has no room for 3"
    );
    for (whole, divided) in whole.iter().zip(&divided) {
        let apart = f64::try_from((whole - divided).abs().max()).unwrap();
        assert!(apart < 1e-6, "{apart}");
    }
    // All of a model, without a plan.
    let all = ["model.from_config=true", "adapter=null", "name=all"];
    fs::write(place.path("model/transformer/config.json"), "{}").unwrap();
    let summary = place.run(&[&auto[..], &all].concat()).unwrap();
    assert_eq!(
        summary.environment.batch.unwrap(),
        "all 3 samples of a step in one pass"
    );
}

#[test]
fn a_quantised_model_learns() {
    let place = Place::new();
    for kind in ["int8", "nf4"] {
        let (name, set) = (format!("name={kind}"), format!("model.quantization={kind}"));
        let summary = place.run(&[&name, &set, "model.low_vram=true"]).unwrap();
        assert!(summary.held_out.unwrap().loss.is_finite());
    }
}

#[test]
fn a_lora_changes_what_is_sampled() {
    let place = Place::new();
    place.run(&[]).unwrap();
    let lora = |path: PathBuf| {
        vec![Lora {
            path,
            strength: 1.0,
        }]
    };
    let plain = place.sampled("plain", Vec::new(), WHOLE);
    assert_eq!(plain.size(), [1, 3, 1, 12, 8]);
    let picture = image::open(place.path("plain.png")).unwrap();
    assert_eq!((picture.width(), picture.height()), (32, 48));
    let learned = place.sampled("learned", lora(place.lora("toy")), WHOLE);
    assert_ne!(plain, learned);
    // Whatever form it is in, and wherever the blocks are.
    let kohya = place.path("kohya.safetensors");
    convert_lora(&place.lora("toy"), &kohya, Some(LoraForm::Kohya), None).unwrap();
    let names = SafetensorsFile::open(&kohya).unwrap().names();
    assert!(
        names.contains(&"lora_unet_single_blocks_1_down.alpha".to_owned()),
        "{names:?}"
    );
    let streamed = DenoiserOptions {
        streamed: 3,
        ..WHOLE
    };
    let again = place.sampled("again", lora(kohya), streamed);
    let apart = f64::try_from((&learned - again).abs().max()).unwrap();
    assert!(apart < 1e-5, "{apart}");
    let quantised = DenoiserOptions {
        quantization: Some(Quantization::Int8.into()),
        ..WHOLE
    };
    assert_ne!(place.sampled("int8", Vec::new(), quantised), plain);
}

#[test]
fn a_model_from_scratch_is_a_folder_that_makes_pictures() {
    let place = Place::new();
    fs::write(place.path("model/transformer/config.json"), "{}").unwrap();
    let base = place.sampled("base", Vec::new(), WHOLE);
    place
        .run(&["model.from_config=true", "adapter=null"])
        .unwrap();
    fs::rename(place.path("model"), place.path("base")).unwrap();
    fs::rename(place.path("runs/toy/model"), place.path("model")).unwrap();
    assert_ne!(place.sampled("learned", Vec::new(), WHOLE), base);
}

#[test]
fn what_pictures_do_not_have_is_refused_and_media_are_shown() {
    let place = Place::new();
    for (set, told) in [
        ("data.num_frames=5", "makes pictures"),
        ("data.image_to_video=true", "takes no first frame"),
        ("train.experts=high", "has one transformer"),
        ("adapter.target_modules=[x_embedder]", "x_embedder"),
    ] {
        let error = place.run(&[set]).unwrap_err().to_string();
        assert!(error.contains(told), "{error}");
    }
    let shown = show_data(&place.config(&[]), 10, &mut NoObserver).unwrap();
    let Shown::Media(media) = shown else {
        panic!("no media")
    };
    let buckets: Vec<_> = media.media.iter().map(|medium| medium.bucket).collect();
    assert_eq!(buckets, [Some((32, 32)); 4]);
}

#[test]
fn a_learning_rate_is_searched_for_on_pictures_too() {
    let place = Place::new();
    let search = [
        "train.find_learning_rate=true",
        "train.per_device_train_batch_size=4",
    ];
    let found = place.run(&search).unwrap().learning_rate.unwrap();
    let rate = found
        .learning_rate
        .unwrap_or_else(|| panic!("{}", found.reason));
    assert!((1e-5..0.2).contains(&rate), "{rate}");
}
