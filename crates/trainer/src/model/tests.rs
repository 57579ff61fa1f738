//! Held against `transformers`: the logits of tiny random models.

use std::path::PathBuf;

use tch::{Device, Kind, Tensor};

use super::*;
use crate::weights::{HfFolder, SafetensorsFile, TensorSource};
use placement::Placer;
use placement::stream::{Masters, StreamOptions};

const MODELS: [&str; 8] = [
    "llama-grouped",
    "llama-tied-biases",
    "llama-scaled",
    "qwen2",
    "qwen3",
    "qwen3-untied",
    "llama-yarn",
    "qwen2-dynamic",
];

fn golden(name: &str) -> PathBuf {
    crate::golden::golden(&format!("models/{name}"))
}

fn open(name: &str, compute: Kind) -> Decoder {
    open_streamed(name, compute, None)
}

fn open_streamed(name: &str, compute: Kind, streaming: Option<Streaming>) -> Decoder {
    let folder = HfFolder::open(&golden(name)).unwrap();
    let mut placer = Placer::new(Device::Cpu, placement::Policy::default()).unwrap();
    let mut source = FileWeights::new(&folder, compute, &mut placer);
    let mut parameters = Parameters::default();
    let mut builder = Builder::new(&mut source, &mut parameters, compute, Base::Frozen(compute))
        .streamed(streaming);
    let options = DecoderOptions {
        positions: 64,
        initializer_range: 0.0,
        device: Device::Cpu,
    };
    Decoder::new(folder.config(), options, &mut builder).unwrap()
}

fn expected(name: &str) -> (Tensor, Tensor) {
    let file = SafetensorsFile::open(&golden(name).join("expected.safetensors")).unwrap();
    (
        file.read("tokens", Kind::Int64).unwrap(),
        file.read("logits", Kind::Float).unwrap(),
    )
}

fn largest_difference(a: &Tensor, b: &Tensor) -> f64 {
    f64::try_from((a - b).abs().max()).unwrap()
}

#[test]
fn logits_are_those_of_transformers() {
    for name in MODELS {
        let (tokens, theirs) = expected(name);
        let ours = open(name, Kind::Float)
            .logits(&tokens, Pass::Evaluate)
            .unwrap();
        let difference = largest_difference(&ours, &theirs);
        assert!(difference <= 1e-5, "{name}: {difference}");
    }
}

#[test]
fn a_cache_changes_no_logits() {
    for name in MODELS {
        let (tokens, theirs) = expected(name);
        let model = open(name, Kind::Float);
        let mut cache = model.cache(40);
        // A prompt, several tokens at once, then one at a time.
        let mut start = 0;
        for length in [7, 5, 1, 1, 1, 25] {
            let logits = model
                .next_logits(&tokens.narrow(1, start, length), &mut cache)
                .unwrap();
            start += length;
            assert_eq!(cache.length(), start);
            let difference = largest_difference(&logits, &theirs.select(1, start - 1));
            assert!(difference <= 2e-5, "{name}, token {start}: {difference}");
        }
        let full = model.next_logits(&tokens.narrow(1, 0, 1), &mut cache);
        assert_eq!(
            full.unwrap_err().to_string(),
            "internal error, please report it: 41 tokens in a cache for 40"
        );
    }
}

#[test]
fn streamed_blocks_change_no_logits() {
    let folder = std::env::temp_dir();
    for name in MODELS {
        for (blocks, from_file) in [
            (vec![0], vec![0]),
            (vec![1], vec![0]),
            (vec![0, 1], vec![0, 1]),
            (vec![0, 1], vec![1]),
            (vec![0, 1], vec![0]),
        ] {
            let (tokens, _) = expected(name);
            let all = from_file.len() == blocks.len();
            let options = StreamOptions {
                masters: Masters::Divided {
                    folder: folder.clone(),
                    from_file: from_file.into_iter().collect(),
                },
                ..StreamOptions::default()
            };
            let streaming = Streaming { blocks, options };
            let model = open_streamed(name, Kind::BFloat16, Some(streaming.clone()));
            let resident = open(name, Kind::BFloat16);
            let pass = Pass::Evaluate;
            let logits = |model: &Decoder| model.logits(&tokens, pass).unwrap();
            assert!(logits(&model) == logits(&resident), "{name} {streaming:?}");
            let (mut ours, mut theirs) = (model.cache(9), resident.cache(9));
            for (start, length) in [(0, 5), (5, 1), (6, 1)] {
                let tokens = tokens.narrow(1, start, length);
                let ours = model.next_logits(&tokens, &mut ours).unwrap();
                let theirs = resident.next_logits(&tokens, &mut theirs).unwrap();
                assert!(ours == theirs, "{name}, token {start}, {streaming:?}");
            }
            let report = model.streamed().unwrap();
            assert!(report.disk_bytes.0 > 0 && (report.host_bytes.0 == 0) == all);
        }
    }
}

#[test]
fn bf16_compute_is_near() {
    for name in MODELS {
        let (tokens, theirs) = expected(name);
        let ours = open(name, Kind::BFloat16)
            .logits(&tokens, Pass::Evaluate)
            .unwrap();
        let size = f64::try_from(theirs.std(true)).unwrap();
        let error = f64::try_from((ours - theirs).square().mean(Kind::Float).sqrt()).unwrap();
        assert!(error < 0.05 * size, "{name}: {error} of {size}");
    }
}

#[test]
fn a_weight_of_another_shape_is_told() {
    let folder = HfFolder::open(&golden("qwen3")).unwrap();
    let mut config = folder.config().clone();
    config.intermediate_size = 25;
    let mut placer = Placer::new(Device::Cpu, placement::Policy::default()).unwrap();
    let mut source = FileWeights::new(&folder, Kind::Float, &mut placer);
    let mut parameters = Parameters::default();
    let mut builder = Builder::new(
        &mut source,
        &mut parameters,
        Kind::Float,
        Base::Frozen(Kind::Float),
    );
    let options = DecoderOptions {
        positions: 8,
        initializer_range: 0.0,
        device: Device::Cpu,
    };
    let error = Decoder::new(&config, options, &mut builder)
        .unwrap_err()
        .to_string();
    let reason =
        "`model.layers.0.mlp.gate_proj.weight` is [24, 16], and its config makes it [25, 16]";
    assert!(error.ends_with(reason), "{error}");
}
