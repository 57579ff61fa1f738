//! Held against whole runs of diffusers' pipelines on tiny models.

use std::collections::BTreeMap;

use placement::{Placer, Policy};
use serde_json::Value;

use tch::{Device, Kind, Tensor};

use super::model::{CONDITION, first_frame_channels};
use super::names::TRANSFORMER;
use super::transformer::{Transformer, TransformerConfig};
use crate::Error;
use crate::diffusion::files::PartFile;
use crate::diffusion::parts::causal_kl::{self, Autoencoder, AutoencoderConfig};
use crate::diffusion::parts::schedule::Scheduler;
use crate::diffusion::sampling::{Experts, Guided, Sampling, sample};
use crate::diffusion::{Conditions, Denoiser, Expert, FIRST_FRAME, Objective, TEXT};
use crate::formats::{SafetensorsFile, TensorSource};
use crate::golden::golden;
use crate::model::Load;

/// The second expert's weights: those of the first, each from its last row to its first.
struct Backwards {
    file: PartFile,
}

impl TensorSource for Backwards {
    fn path(&self) -> &std::path::Path {
        self.file.path()
    }

    fn names(&self) -> Vec<String> {
        self.file.names()
    }

    fn shape(&self, name: &str) -> Option<Vec<i64>> {
        self.file.shape(name)
    }

    fn read(&self, name: &str, kind: Kind) -> Result<Tensor, Error> {
        Ok(self.file.read(name, kind)?.flip([0]))
    }
}

fn transformer(name: &str, expert: Expert) -> Transformer {
    let folder = golden(&format!("wan/transformer-{name}"));
    let config = TransformerConfig::read(&folder.join("config.json")).unwrap();
    let file = PartFile::open(&TRANSFORMER, &folder).unwrap();
    let tensors: Box<dyn TensorSource> = match expert {
        Expert::High => Box::new(file),
        Expert::Low => Box::new(Backwards { file }),
    };
    let mut placer = Placer::new(Device::Cpu, Policy::default()).unwrap();
    let load = Load::whole(Kind::Float);
    let built = load.frozen(tensors.as_ref(), &mut placer, |device, builder| {
        Transformer::new(&config, device, builder)
    });
    built.unwrap()
}

fn autoencoder(name: &str) -> Autoencoder {
    let folder = golden(&format!("wan/{name}"));
    let config = AutoencoderConfig::read(&folder.join("config.json")).unwrap();
    let tensors = PartFile::open(&causal_kl::NAMES, &folder).unwrap();
    let mut placer = Placer::new(Device::Cpu, Policy::default()).unwrap();
    let load = Load::whole(Kind::Float);
    let built = load.frozen(&tensors, &mut placer, |device, builder| {
        Autoencoder::new(&config, device, builder)
    });
    built.unwrap()
}

/// Loads an expert when it is asked, and counts how often.
struct Loaded {
    name: String,
    current: Option<(Expert, Transformer)>,
    loads: Vec<Expert>,
}

impl Experts for Loaded {
    fn denoiser(&mut self, expert: Expert) -> Result<&dyn Denoiser, Error> {
        if self.current.as_ref().is_none_or(|(of, _)| *of != expert) {
            self.current = Some((expert, transformer(&self.name, expert)));
            self.loads.push(expert);
        }
        Ok(&self.current.as_ref().unwrap().1)
    }
}

struct Run {
    label: String,
    model: String,
    frames: i64,
    settings: Sampling,
}

fn runs() -> Vec<Run> {
    let text = std::fs::read_to_string(golden("wan/pipelines/runs.json")).unwrap();
    let runs: Vec<Value> = serde_json::from_str(&text).unwrap();
    let run = |run: &Value| Run {
        label: run["label"].as_str().unwrap().to_owned(),
        model: run["model"].as_str().unwrap().to_owned(),
        frames: run["frames"].as_i64().unwrap(),
        settings: Sampling {
            objective: Objective::FLOW,
            scheduler: match run["scheduler"].as_str().unwrap() {
                "unipc" => Scheduler::UniPc,
                _ => Scheduler::Euler,
            },
            steps: run["steps"].as_u64().unwrap() as usize,
            flow_shift: run["shift"].as_f64().unwrap(),
            guidance_scale: run["guidance"].as_f64().unwrap(),
            is_guidance_told: false,
            guidance_scale_2: run["second"].as_f64(),
            boundary_ratio: run["boundary"].as_f64(),
        },
    };
    runs.iter().map(run).collect()
}

fn sampled(run: &Run, file: &SafetensorsFile) -> (Tensor, Vec<Expert>) {
    let read = |what: &str| {
        let name = format!("{}.{what}", run.label);
        file.shape(&name)
            .map(|_| file.read(&name, Kind::Float).unwrap())
    };
    let padded = |rows: Tensor| {
        let rest = 512 - rows.size()[0];
        rows.constant_pad_nd([0, 0, 0, rest]).unsqueeze(0)
    };
    let name = match run.model.as_str() {
        "a14b" => "t2v",
        "ti2v-image" => "ti2v",
        name => name,
    };
    let picture = read("image").map(|pixels| (pixels * 2.0 - 1.0).unsqueeze(0));
    let image = picture.map(|picture| match name {
        "i2v" => {
            let codec = autoencoder("autoencoder-2.1");
            let channels = first_frame_channels(&codec, &picture, run.frames, None);
            (CONDITION, channels.unwrap())
        }
        _ => {
            let codec = autoencoder("autoencoder-2.2");
            (FIRST_FRAME, codec.encode(&picture, None).unwrap())
        }
    });
    let with_text = |name: &str| {
        let mut conditions = Conditions::of(TEXT, padded(read(name).unwrap()));
        if let Some((name, tensor)) = &image {
            conditions.insert(name, tensor.unsqueeze(0));
        }
        conditions
    };
    let conditions = Guided {
        positive: with_text("text"),
        negative: Some(with_text("negative")),
    };
    let mut experts = Loaded {
        name: name.to_owned(),
        current: None,
        loads: Vec::new(),
    };
    let mut steps = Vec::new();
    let mut on_step = |step| steps.push(step);
    let start = read("start").unwrap();
    let latents = sample(
        &mut experts,
        &start,
        &conditions,
        &run.settings,
        &mut on_step,
    )
    .unwrap();
    assert_eq!(steps, (1..=run.settings.steps).collect::<Vec<_>>());
    (latents, experts.loads)
}

#[test]
fn latents_are_those_of_diffusers() {
    let file = SafetensorsFile::open(&golden("wan/pipelines/expected.safetensors")).unwrap();
    let mut loads = BTreeMap::new();
    for run in runs() {
        let (ours, loaded) = sampled(&run, &file);
        let theirs = file
            .read(&format!("{}.latents", run.label), Kind::Float)
            .unwrap();
        assert_eq!(ours.size(), theirs.size(), "{}", run.label);
        let apart = f64::try_from((ours - theirs).abs().max()).unwrap();
        assert!(apart <= 1e-3, "{}: {apart}", run.label);
        loads.insert(run.label, loaded);
    }
    assert_eq!(loads.len(), 9);
    // One swap at most, and both experts were asked.
    assert_eq!(loads["experts"], [Expert::High, Expert::Low]);
    assert_eq!(loads["text"], [Expert::High]);
}

#[test]
fn guidance_without_a_negative_text_is_refused() {
    let runs = runs();
    let run = runs.iter().find(|run| run.label == "guided").unwrap();
    let mut experts = Loaded {
        name: "t2v".into(),
        current: None,
        loads: Vec::new(),
    };
    let zeros = |shape: &[i64]| Tensor::zeros(shape, (Kind::Float, Device::Cpu));
    let conditions = Guided {
        positive: Conditions::of(TEXT, zeros(&[1, 512, 20])),
        negative: None,
    };
    let noise = zeros(&[1, 4, 1, 4, 6]);
    let error = sample(
        &mut experts,
        &noise,
        &conditions,
        &run.settings,
        &mut |_| {},
    )
    .unwrap_err();
    assert!(
        error.to_string().contains("needs a negative prompt"),
        "{error}"
    );
    assert!(experts.loads.is_empty());
}
