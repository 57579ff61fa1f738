//! Asks a classifier what a model makes of the names of garments, with and without a LoRA.
//!
//! ```sh
//! cargo run --release -p surefoot-trainer --example 02-garments -- DATA MODEL LORA SEEDS [PICTURE]
//! ```
//!
//! `cargo xtask bench garments` starts it. The classifier is a small convolutional network that is trained here, on the
//! pictures that the model learns from and those of the garment that it does not; how often it is right is counted on the
//! held-out pictures of the data set. Prints one JSON object; PICTURE gets what was made, a row for each garment.

use std::fs;
use std::path::{Path, PathBuf};

use image::{GrayImage, imageops};
use serde_json::{Value, json};
use surefoot_trainer::media_sampling::{DenoiserOptions, Lora, PartPaths, Request, generate, open};
use tch::nn::{self, ModuleT, OptimizerConfig};
use tch::{Device, Kind, Tensor};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Words for the labels 0 to 9, which are the prompts.
const WORDS: [&str; 10] = [
    "t-shirt", "trousers", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot",
];
/// Pixels on a side: of the data set, and of what the model makes.
const SIDES: [i64; 2] = [28, 16];
const EPOCHS: usize = 2;
const ROWS: i64 = 64;
const STEPS: usize = 20;
const GUIDANCE: f64 = 3.0;
/// Previews and the training use others.
const FIRST_SEED: u64 = 1000;
/// Pictures of a garment that are drawn.
const SHOWN: u64 = 8;

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [data, model, lora, seeds, picture @ ..] = &arguments[..] else {
        return Err("which DATA, MODEL, LORA and SEEDS?".into());
    };
    tch::manual_seed(1);
    let classifier = Classifier::trained(Path::new(data))?;
    let accuracy = classifier.held_out(Path::new(data))?;
    let seeds = FIRST_SEED..FIRST_SEED + seeds.parse::<u64>()?;
    let scratch = std::env::temp_dir().join(format!("garments-{}", std::process::id()));
    fs::create_dir_all(&scratch)?;
    let model = open(Path::new(model), &PartPaths::default(), &mut |_| ())?;
    let mut sources = Vec::new();
    let mut rows = Vec::new();
    for lora in [None, Some(lora)] {
        let mut shares = serde_json::Map::new();
        for (label, word) in WORDS.iter().enumerate() {
            let (mut right, mut row) = (0.0, Vec::new());
            for seed in seeds.clone() {
                let output = scratch.join("made.png");
                let request = request(word, seed, lora.map(PathBuf::from), output.clone());
                let options = DenoiserOptions::whole(Device::Cpu, Kind::Float);
                generate(&*model, &request, options, &mut |_, _| ())?;
                let made = image::open(&output)?.to_luma8();
                fs::remove_file(&output)?;
                right += f64::from(classifier.label(&made)? == label as i64);
                row.push(made);
            }
            shares.insert((*word).to_owned(), json!(right / row.len() as f64));
            row.truncate(SHOWN as usize);
            rows.push(row);
        }
        sources.push(Value::Object(shares));
    }
    fs::remove_dir_all(&scratch)?;
    if let Some(path) = picture.first() {
        sheet(&rows).save(path)?;
    }
    let report = json!({
        "classifier_held_out_accuracy": accuracy,
        "pictures_of_each": seeds.count(),
        "steps": STEPS,
        "guidance_scale": GUIDANCE,
        "base": sources[0],
        "base_with_lora": sources[1],
    });
    println!("{report:#}");
    Ok(())
}

fn request(prompt: &str, seed: u64, lora: Option<PathBuf>, output: PathBuf) -> Request {
    let side = Some(SIDES[1]);
    let loras = lora.map(|path| Lora {
        path,
        strength: 1.0,
    });
    Request {
        controls: Vec::new(),
        control_area: None,
        prompt: prompt.to_owned(),
        negative_prompt: None,
        width: side,
        height: side,
        num_frames: None,
        fps: None,
        num_inference_steps: STEPS,
        guidance_scale: Some(GUIDANCE),
        guidance_scale_2: None,
        flow_shift: Some(1.0),
        scheduler: None,
        boundary_ratio: None,
        seed,
        image: None,
        loras: loras.into_iter().collect(),
        loras_2: Vec::new(),
        checkpoint: None,
        latents: None,
        save_latents: None,
        output: Some(output),
    }
}

/// Says which garment a picture shows.
struct Classifier {
    _variables: nn::VarStore,
    network: nn::SequentialT,
}

impl Classifier {
    /// Trained on the pictures that are not held out.
    fn trained(data: &Path) -> Outcome<Self> {
        let variables = nn::VarStore::new(Device::Cpu);
        let root = variables.root();
        let conv = |name: &str, inputs, outputs| {
            let padded = nn::ConvConfig {
                padding: 1,
                ..Default::default()
            };
            nn::conv2d(&root / name, inputs, outputs, 3, padded)
        };
        let halved = |x: &Tensor| x.relu().max_pool2d_default(2);
        let network = nn::seq_t()
            .add(conv("first", 1, 32))
            .add_fn(halved)
            .add(conv("second", 32, 64))
            .add_fn(halved)
            .add_fn(|x| x.flatten(1, 3))
            .add_fn_t(|x, train| x.dropout(0.3, train))
            .add(nn::linear(
                &root / "last",
                64 * 16,
                WORDS.len() as i64,
                Default::default(),
            ));
        let mut optimizer = nn::Adam::default().build(&variables, 1e-3)?;
        let (pictures, labels) = read(data, "train")?;
        for epoch in 0..EPOCHS {
            optimizer.set_lr(1e-3 / (1 << epoch) as f64);
            let order = Tensor::randperm(labels.size()[0], (Kind::Int64, Device::Cpu));
            for rows in order.split(ROWS, 0) {
                let made = network.forward_t(&pictures.index_select(0, &rows), true);
                let loss = made.cross_entropy_for_logits(&labels.index_select(0, &rows));
                optimizer.backward_step(&loss);
            }
        }
        Ok(Self {
            _variables: variables,
            network,
        })
    }

    fn labels(&self, pictures: &Tensor) -> Tensor {
        tch::no_grad(|| self.network.forward_t(pictures, false).argmax(1, false))
    }

    /// How often it is right about pictures that nobody was trained on.
    fn held_out(&self, data: &Path) -> Outcome<f64> {
        let (pictures, labels) = read(data, "t10k")?;
        let right = self.labels(&pictures).eq_tensor(&labels);
        Ok(f64::try_from(
            right.to_kind(Kind::Double).mean(Kind::Double),
        )?)
    }

    fn label(&self, picture: &GrayImage) -> Outcome<i64> {
        let side = i64::from(picture.width());
        let pixels = Tensor::from_slice(picture.as_raw()).view([1, 1, side, side]);
        Ok(i64::try_from(&self.labels(&scaled(&pixels)))?)
    }
}

/// Pictures and labels of a part of the data set, in the format of MNIST.
fn read(data: &Path, part: &str) -> Outcome<(Tensor, Tensor)> {
    let read = |name: &str| fs::read(data.join(format!("{part}-{name}")));
    let (images, labels) = (read("images-idx3-ubyte")?, read("labels-idx1-ubyte")?);
    let side = SIDES[0];
    let pixels = Tensor::from_slice(&images[16..]).view([-1, 1, side, side]);
    Ok((
        scaled(&pixels),
        Tensor::from_slice(&labels[8..]).to_kind(Kind::Int64),
    ))
}

/// Greys from 0 to 255 as numbers from −1 to 1, in the size of what the model makes.
fn scaled(pixels: &Tensor) -> Tensor {
    let numbers = pixels.to_kind(Kind::Float) / 127.5 - 1.0;
    match numbers.size()[2] == SIDES[1] {
        true => numbers,
        false => numbers.internal_upsample_bilinear2d_aa([SIDES[1], SIDES[1]], false, None, None),
    }
}

/// Rows of pictures, each twice: without the LoRA, and with it.
fn sheet(rows: &[Vec<GrayImage>]) -> GrayImage {
    const GAP: u32 = 2;
    const SCALE: u32 = 3;
    let side = SIDES[1] as u32 * SCALE + GAP;
    let columns = 2 * SHOWN as u32 + 1;
    let mut sheet = GrayImage::from_pixel(
        columns * side,
        WORDS.len() as u32 * side,
        image::Luma([255]),
    );
    for (index, row) in rows.iter().enumerate() {
        let (line, half) = (index % WORDS.len(), index / WORDS.len());
        for (column, picture) in row.iter().enumerate() {
            let large = side - GAP;
            let picture = imageops::resize(picture, large, large, imageops::FilterType::Nearest);
            let column = column as u32 + half as u32 * (SHOWN as u32 + 1);
            imageops::replace(
                &mut sheet,
                &picture,
                (column * side).into(),
                (line as u32 * side).into(),
            );
        }
    }
    sheet
}
