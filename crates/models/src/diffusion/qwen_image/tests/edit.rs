//! Edit: control pictures, as the pipeline and the libraries below it take them.

use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

use crate::diffusion::qwen_image::transformer::{Transformer, TransformerConfig};
use crate::diffusion::qwen_image::vision::{Pixels, Tower, VisionConfig};
use crate::diffusion::qwen_image::{ARCH, EDIT};
use crate::diffusion::reference::{
    Case, One, Reference, SingleFiles, checksum, difference, loaded, picture_in, placer, write,
};
use crate::diffusion::sampling::{Guided, Sampling};
use crate::diffusion::{
    Conditions, Controls, Denoiser, DenoiserOptions, Diffusion, Objective, Part, PartPaths,
    Picture, TEXT, is_at, load_autoencoder, load_text_encoder, open,
};
use crate::json::Object;
use crate::model::{Base, Builder, FileWeights, Load, Pass};
use crate::{Parameters, formats::SafetensorsFile, formats::TensorSource};

const REFERENCE: Reference = Reference {
    case: with_controls,
    ..Reference::of(&EDIT)
};

/// The area at which the reference has encoded control pictures.
const AREA: u32 = 64 * 64;

/// What the transformer is given under a label.
fn with_controls(reference: &Reference, label: &str) -> Case {
    let read = |what: &str| reference.expected(&format!("velocity.{label}.{what}"));
    let file = SafetensorsFile::open(&reference.golden("expected.safetensors")).unwrap();
    let controls = (0..).map_while(|number| {
        let name = format!("velocity.{label}.{}", Controls::name(number));
        file.shape(&name).map(|_| reference.expected(&name))
    });
    let controls: Vec<Tensor> = controls.collect();
    let rows = [0, 1].map(|row| {
        let mut conditions = Conditions::of(TEXT, read(&format!("text.{row}")));
        for (number, control) in controls.iter().enumerate() {
            conditions.insert(&Controls::name(number), control.get(row));
        }
        conditions
    });
    Case {
        latents: read("latents"),
        times: read("levels") * 1000.0,
        conditions: reference.model().collate(&rows).unwrap(),
        made: read("made"),
    }
}

fn picture(number: usize) -> Picture {
    picture_in(&REFERENCE.golden("expected.safetensors"), number)
}

fn pictures(which: &Value) -> Vec<Picture> {
    let numbers: Vec<usize> = serde_json::from_value(which.clone()).unwrap();
    numbers.into_iter().map(picture).collect()
}

/// The text with its pictures, as a batch of one.
fn conditions(model: &dyn Diffusion, text: &str, pictures: &[Picture]) -> Conditions {
    let sizes: Vec<_> = pictures.iter().map(Picture::size).collect();
    let tokens = model
        .tokenizer()
        .unwrap()
        .tokens_with(text, &sizes)
        .unwrap();
    let encoder = load_text_encoder(model, 0, Kind::Float, false, &mut placer()).unwrap();
    let mut row = encoder.encode_with(&tokens[0], pictures).unwrap();
    let codec = load_autoencoder(model, Kind::Float, &mut placer()).unwrap();
    for (number, picture) in pictures.iter().enumerate() {
        let pixels = model.controls().unwrap().pixels(AREA, picture).unwrap();
        row.insert(
            &Controls::name(number),
            codec.encode_frame(&pixels, None).unwrap(),
        );
    }
    model.collate(&[row]).unwrap()
}

/// Both encoders get the numbers of the original, to the bit, and make the same of them.
#[test]
fn pictures_are_prepared_and_encoded_as_by_the_pipeline() {
    let model = REFERENCE.model();
    let folder = REFERENCE.golden("model");
    let pixels = Pixels::read(&folder.join("processor")).unwrap();
    assert_eq!(pixels, Pixels::default());
    let config = Object::read(&folder.join("text_encoder/config.json")).unwrap();
    let config = VisionConfig::read(&config.object("vision_config").unwrap().unwrap()).unwrap();
    let weights = model.weights(Part::TextEncoder(0)).unwrap();
    let tower = Load::whole(Kind::Float).frozen(&weights, &mut placer(), |device, builder| {
        Tower::new(&config, device, builder)
    });
    let tower = tower.unwrap();
    let codec = load_autoencoder(&*model, Kind::Float, &mut placer()).unwrap();
    let controls = model.controls().unwrap();
    for (number, theirs) in REFERENCE
        .json::<Vec<Value>>("pixels.json")
        .iter()
        .enumerate()
    {
        let picture = picture(number);
        let (small, grid) = pixels.sizes(picture.size());
        assert_eq!(json!([small.0, small.1]), theirs["size"]);
        assert_eq!(json!([2 * grid.0, 2 * grid.1]), theirs["grid"]);
        let (patches, _) = pixels.patches(&picture).unwrap();
        assert_eq!(checksum(&patches), theirs["pixels"], "{number}");
        let states = tower.states(&patches, grid).unwrap();
        let apart = difference(&states, &REFERENCE.expected(&format!("tower.{number}")));
        assert!(apart <= 1e-4, "{number}, states: {apart}");
        let (width, height) = controls.size(AREA, picture.size());
        assert_eq!(json!([width, height]), theirs["control"]);
        let clean = controls.pixels(AREA, &picture).unwrap();
        assert_eq!(checksum(&clean), theirs["clean"], "{number}");
        let latents = codec.encode_frame(&clean, None).unwrap();
        let apart = difference(&latents, &REFERENCE.expected(&format!("control.{number}")));
        assert!(apart <= 1e-4, "{number}, latents: {apart}");
    }
}

#[test]
fn prompts_are_cut_and_encoded_with_their_pictures() {
    let model = REFERENCE.model();
    let tokenizer = model.tokenizer().unwrap();
    let encoder = load_text_encoder(&*model, 0, Kind::Float, false, &mut placer()).unwrap();
    for (number, prompt) in REFERENCE
        .json::<Vec<Value>>("prompts.json")
        .iter()
        .enumerate()
    {
        let (text, pictures) = (
            prompt["text"].as_str().unwrap(),
            pictures(&prompt["pictures"]),
        );
        let theirs: Vec<u32> = serde_json::from_value(prompt["tokens"].clone()).unwrap();
        let sizes: Vec<_> = pictures.iter().map(Picture::size).collect();
        let ours = tokenizer.tokens_with(text, &sizes).unwrap().remove(0);
        assert_eq!(ours, theirs, "{text:?}");
        let rows = encoder.encode_with(&ours, &pictures).unwrap();
        let apart = difference(
            rows.get(TEXT).unwrap(),
            &REFERENCE.expected(&format!("text.{number}")),
        );
        assert!(apart <= 1e-4, "{text:?}: {apart}");
        // One picture less than the text has places for.
        let error = encoder.encode_with(&ours, &pictures[1..]);
        assert!(error.is_err() || pictures.len() == 1);
    }
    let text = "put <|image_pad|> here";
    let tokens = tokenizer.tokens_with(text, &[picture(0).size()]).unwrap();
    let error = encoder
        .encode_with(&tokens[0], &[picture(0)])
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("`<|image_pad|>` in a prompt is not allowed"),
        "{error}"
    );
    assert_eq!(tokenizer.length("").unwrap().1, 1024);
    let long = tokenizer
        .tokens_with(&"a grey cat ".repeat(900), &[picture(0).size()])
        .unwrap();
    let (places, around) = (14 * 14, tokenizer.tokens("Picture 1: ").unwrap()[0].len());
    assert!(
        long[0].len() < 64 + places + 1024 + around,
        "{}",
        long[0].len()
    );
}

#[test]
fn velocities_are_those_of_diffusers() {
    let labels = ["none", "one", "two"];
    REFERENCE.velocities_are_those_of_diffusers(&labels, |batch| {
        let mut row = Conditions::default();
        for (name, tensor) in batch
            .iter()
            .filter(|(name, _)| name.starts_with("control."))
        {
            row.insert(name, tensor.get(0));
        }
        let tokens = batch.text_tokens().unwrap()[0];
        row.insert(TEXT, batch.get(TEXT).unwrap().get(0).narrow(0, 0, tokens));
        REFERENCE.model().collate(&[row]).unwrap()
    });
    // As in 2509, where control pictures have the time of the others.
    let path = REFERENCE.golden("model/transformer/config.json");
    let config = TransformerConfig::read(&path).unwrap();
    assert!(config.zero_cond_t);
    let config = TransformerConfig {
        zero_cond_t: false,
        ..config
    };
    let (mut placer, mut parameters) = (placer(), Parameters::default());
    let file = REFERENCE.denoiser_file();
    let mut source = FileWeights::new(&file, Kind::Float, &mut placer);
    let frozen = Base::Frozen(Kind::Float);
    let mut builder = Builder::new(&mut source, &mut parameters, Kind::Float, frozen);
    let denoiser = Transformer::new(&config, Device::Cpu, &mut builder).unwrap();
    for label in labels {
        let case = REFERENCE.case(label);
        let ours = case.predicted(&denoiser as &dyn Denoiser, Pass::Evaluate);
        let theirs = REFERENCE.expected(&format!("velocity.{label}.made.2509"));
        let apart = difference(&ours, &theirs);
        assert!(apart <= 1e-4, "{label}: {apart}");
    }
}

#[test]
fn streamed_and_quantised_blocks_compute_as_resident_ones() {
    REFERENCE.streamed_and_quantised_blocks_compute_as_resident_ones("two", &[&[0, 1, 2]]);
}

#[test]
fn checkpoints_change_no_gradient() {
    REFERENCE.checkpoints_change_no_gradient("two");
}

#[test]
fn bfloat16_is_close() {
    REFERENCE.bfloat16_is_close("one");
}

#[test]
fn samples_are_those_of_the_pipeline() {
    let model = REFERENCE.model();
    let options = DenoiserOptions::whole(Device::Cpu, Kind::Float);
    let denoiser = loaded(&*model, Vec::new(), options);
    let mut experts = One(denoiser);
    let scheduler = model.defaults().unwrap().scheduler;
    for run in REFERENCE.json::<Vec<Value>>("runs.json") {
        let name = run["name"].as_str().unwrap();
        let steps = run["steps"].as_u64().unwrap() as usize;
        let pictures = pictures(&run["pictures"]);
        let given = |text: &Value| Some(conditions(&*model, text.as_str()?, &pictures));
        let start = REFERENCE.expected(&format!("run.{name}.start"));
        let tokens = start.size()[3] * start.size()[4] / 4;
        let settings = Sampling {
            objective: Objective::FLOW,
            scheduler,
            steps,
            flow_shift: model.shift(tokens, steps).unwrap(),
            guidance_scale: run["guidance"].as_f64().unwrap(),
            is_guidance_told: false,
            guidance_scale_2: None,
            boundary_ratio: None,
        };
        let guided = Guided {
            positive: given(&run["prompt"]).unwrap(),
            negative: given(&run["negative"]),
        };
        REFERENCE.sample_is_that_of_the_pipeline(name, &mut experts, &guided, &settings);
    }
}

/// What says how pictures are prepared, and the tower, are obeyed or refused by file and key.
#[test]
fn what_does_not_fit_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    REFERENCE.configs(path);
    let opened = || open(path, &PartPaths::default()).map(|model| model.controls());
    assert_eq!(opened().unwrap().unwrap().most, 9);
    let name = "processor/preprocessor_config.json";
    let usual = REFERENCE.original(name);
    for (key, value, told) in [
        ("resample", json!(2), "`resample` is 2"),
        ("do_resize", json!(false), "`do_resize` is false"),
        ("patch_size", json!(16), "`patch_size` is 16"),
        (
            "image_mean",
            json!([0.5]),
            "`image_mean` must be three numbers",
        ),
        (
            "crop_size",
            json!({"height": 3}),
            "`crop_size` is not supported",
        ),
        ("min_pixels", json!("x"), "`min_pixels`"),
    ] {
        let mut changed = usual.clone();
        changed[key] = value;
        write(path, name, &changed);
        let error = opened().unwrap_err().to_string();
        assert!(error.contains(told), "{key}: {error}");
    }
    // As published before, and as saved today.
    let published =
        json!({"min_pixels": 3136, "max_pixels": 12_845_056, "image_mean": usual["image_mean"]});
    write(path, name, &published);
    assert_eq!(
        Pixels::read(&path.join("processor")).unwrap(),
        Pixels::default()
    );
    std::fs::remove_file(path.join(name)).unwrap();
    let mut saved = usual.clone();
    saved["size"]["longest_edge"] = json!(500_000);
    write(
        path,
        "processor/processor_config.json",
        &json!({"image_processor": saved}),
    );
    let read = Pixels::read(&path.join("processor")).unwrap();
    assert_ne!(read, Pixels::default());
    // 384 × 384 is less, so that nothing changes; 100 × 100 would be more.
    assert_eq!(read.sizes((100, 100)).1, (14, 14));
    let name = "text_encoder/config.json";
    let usual = REFERENCE.original(name);
    for (change, told) in [
        (
            json!({"vision_config": Value::Null}),
            "`vision_config` is missing",
        ),
        (
            json!({"vision_config": {"patch_size": 16}}),
            "`vision_config.patch_size` is 16",
        ),
        (
            json!({"vision_config": {"out_hidden_size": 32}}),
            "makes states of width 32",
        ),
    ] {
        let mut changed = usual.clone();
        changed["vision_config"] = change["vision_config"].clone();
        write(path, name, &changed);
        let error = opened().unwrap_err().to_string();
        assert!(error.contains(told), "{error}");
    }
}

/// Of the files of the family, those whose name or content says so are Edit's; the first release is refused.
#[test]
fn single_files_are_told_by_name_or_by_a_tensor() {
    let reference = Reference::of(&ARCH);
    let named = |name: &str, unused: &[&str]| {
        let files = SingleFiles::new(&reference, unused);
        let path = files.path(name);
        std::fs::copy(files.path("transformer"), &path).unwrap();
        assert!(is_at(&path));
        let parts = PartPaths {
            vae: Some(REFERENCE.golden("model/vae")),
            text_encoder: Some(REFERENCE.golden("model/text_encoder")),
            tokenizer: Some(REFERENCE.golden("model/tokenizer")),
            ..PartPaths::default()
        };
        let kind = crate::diffusion::of_file(&path).unwrap().name;
        (kind, open(&path, &parts).unwrap_err().to_string())
    };
    // Heads are narrower than those of the published model: everything else was found.
    let narrow = "where heads are of 128";
    for (name, unused, kind, told) in [
        (
            "qwen_image_edit_2511_bf16",
            &[][..],
            "qwen_image_edit",
            narrow,
        ),
        ("Qwen-Image-Edit-2509", &[], "qwen_image_edit", narrow),
        ("x", &["__index_timestep_zero__"], "qwen_image_edit", narrow),
        ("qwen_image_2512", &[], "qwen_image", narrow),
        (
            "qwen_image_edit_fp8",
            &[],
            "qwen_image",
            "is named like Qwen-Image-Edit, of which 2509",
        ),
    ] {
        let (found, error) = named(name, unused);
        assert_eq!(found, kind, "{name}");
        assert!(error.contains(told), "{name}: {error}");
    }
}
