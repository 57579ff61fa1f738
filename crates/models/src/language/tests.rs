//! Held against `transformers`: the logits of tiny random models.

use std::path::PathBuf;

use tch::{Device, Kind, Tensor};

use super::*;
use crate::Parameters;
use crate::formats::{SafetensorsFile, TensorSource};
use crate::model::{
    Base, Builder, FileWeights, Initial, PackedTexts, Pass, Scoring, Sight, Streaming,
    WeightSource, causal_attention,
};
use crate::pretrained::HfFolder;
use placement::Placer;
use placement::swap::{BackingStore, SwapOptions};

/// The language models that `tests/reference/models.py` makes.
pub(crate) const MODELS: [&str; 37] = [
    "llama-grouped",
    "llama-tied-biases",
    "llama-scaled",
    "qwen2",
    "qwen3",
    "qwen3-untied",
    "llama-yarn",
    "qwen2-dynamic",
    "gemma2",
    "gemma3",
    "gemma3-biases",
    "gemma3-multimodal",
    "mistral",
    "granite",
    "granite-biases",
    "smollm3",
    "smollm3-list",
    "olmo2",
    "olmo3",
    "olmo3-old",
    "phi3",
    "phi3-longrope",
    "ministral3",
    "ministral3-multimodal",
    "qwen3-moe",
    "qwen3-moe-stacked",
    "gpt-oss",
    "gpt-oss-dense",
    "qwen3.5",
    "qwen3.5-untied",
    "qwen3.5-multimodal",
    "qwen3.5-moe",
    "qwen3.5-moe-multimodal",
    "gemma4",
    "gemma4-dense",
    "gemma4-moe",
    "gemma4-multimodal",
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
        positions: folder.config().max_position_embeddings,
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
        let size = f64::try_from(theirs.abs().max()).unwrap();
        // The sums of the delta rule differ by 6e-6 between CPUs, in whose order libtorch adds.
        assert!(difference <= 1e-5 * size, "{name}: {difference} of {size}");
    }
}

#[test]
fn within_its_original_context_a_text_has_other_rotations() {
    let name = "phi3-longrope";
    let file = SafetensorsFile::open(&golden(name).join("expected.safetensors")).unwrap();
    let theirs = file.read("short_logits", Kind::Float).unwrap();
    let length = theirs.size()[1];
    let tokens = expected(name).0.narrow(1, 0, length);
    let model = open(name, Kind::Float);
    let ours = model.logits(&tokens, Pass::Evaluate).unwrap();
    let difference = largest_difference(&ours, &theirs);
    assert!(difference <= 1e-5, "{difference}");
    let long = expected(name).1.narrow(1, 0, length);
    assert!(largest_difference(&ours, &long) > 0.1);
}

#[test]
fn a_cache_changes_no_logits() {
    for name in MODELS {
        let (tokens, _) = expected(name);
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
            let whole = model.logits(&tokens.narrow(1, 0, start), Pass::Evaluate);
            let difference = largest_difference(&logits, &whole.unwrap().select(1, start - 1));
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
            let options = SwapOptions {
                backing: BackingStore::Divided {
                    folder: folder.clone(),
                    from_file: from_file.into_iter().collect(),
                },
                ..SwapOptions::default()
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

/// Texts of several lengths that share rows are what they are alone, with their gradients; also
/// where a row is longer than the blocks of the attention kernel.
#[test]
fn texts_that_share_a_row_see_nothing_of_each_other() {
    let pass = Pass::Train { checkpoint: false };
    for name in MODELS {
        for (kind, bound) in [(Kind::Float, 5e-6), (Kind::BFloat16, 2e-2)] {
            let (tokens, _) = expected(name);
            let model = open(name, kind);
            // Two rows of 40 tokens: texts of 7, 30, 2 and a padding of 1; of 1, 38 and 1.
            let rows = [[7, 30, 2, 1].as_slice(), &[1, 38, 1]];
            let row = tokens.get(0).narrow(0, 0, 40);
            let positions: Vec<i64> = rows
                .iter()
                .flat_map(|row| row.iter().flat_map(|length| 0..*length))
                .collect();
            let positions = Tensor::from_slice(&positions).view([2, 40]);
            let both = Tensor::stack(&[&row, &row.flip([0])], 0);
            let packed = model.hidden_packed(&both, &positions, pass).unwrap();
            for checkpoint in [false, true] {
                let pass = Pass::Train { checkpoint };
                let again = model.hidden_packed(&both, &positions, pass).unwrap();
                assert_eq!(largest_difference(&again, &packed), 0.0, "{name}");
            }
            for (number, lengths) in rows.iter().enumerate() {
                let mut start = 0;
                for &length in *lengths {
                    let text = both.get(number as i64).narrow(0, start, length);
                    let alone = model.hidden(&text.unsqueeze(0), pass).unwrap();
                    let shared = packed.get(number as i64).narrow(0, start, length);
                    let difference = largest_difference(&alone.squeeze_dim(0), &shared);
                    let size = f64::try_from(alone.abs().max()).unwrap();
                    assert!(
                        difference <= bound * size,
                        "{name}, {kind:?}, {length} tokens at {start}: {difference} of {size}"
                    );
                    start += length;
                }
            }
        }
    }
}

#[test]
fn a_long_row_of_many_texts_is_the_texts() {
    let options = (Kind::Float, Device::Cpu);
    let [query, key, value] = [4, 2, 2].map(|heads| Tensor::randn([1, heads, 1500, 8], options));
    let positions = Tensor::cat(
        &[700, 5, 795].map(|length| Tensor::arange(length, (Kind::Int64, Device::Cpu))),
        0,
    );
    let sight = Sight {
        texts: Some(PackedTexts::new(&positions.unsqueeze(0)).unwrap()),
        ..Sight::default()
    };
    let attend = |query: &Tensor, key: &Tensor, value: &Tensor, sight: &Sight| {
        causal_attention([query, key, value], sight, Scoring::default())
    };
    let whole = attend(&query, &key, &value, &sight).unwrap();
    for (start, length) in [(0, 700), (700, 5), (705, 795)] {
        let part = |tensor: &Tensor| tensor.narrow(2, start, length);
        let (query, key, value) = (part(&query), part(&key), part(&value));
        let alone = attend(&query, &key, &value, &Sight::default()).unwrap();
        let difference = largest_difference(&alone, &part(&whole));
        assert!(
            difference <= 1e-6,
            "{length} tokens at {start}: {difference}"
        );
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
fn a_weight_of_another_shape_is_an_error() {
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
        "`model.layers.0.mlp.gate_proj.weight` is [24, 16], but its config makes it [25, 16]";
    assert!(error.ends_with(reason), "{error}");
}

#[test]
fn weights_that_are_not_finite_are_found_when_they_are_loaded() {
    let name = "model.layers.1.mlp.up_proj.weight";
    for bad in [f64::NAN, f64::INFINITY] {
        let folder = tempfile::tempdir().unwrap();
        let config = golden("qwen3").join("config.json");
        std::fs::copy(config, folder.path().join("config.json")).unwrap();
        let source = SafetensorsFile::open(&golden("qwen3").join("model.safetensors")).unwrap();
        let read = |name: String| {
            let tensor = source.read(&name, Kind::Float).unwrap();
            (name, tensor)
        };
        let tensors: Vec<(String, Tensor)> = source.names().into_iter().map(read).collect();
        let damaged = tensors.iter().find(|(found, _)| found == name).unwrap();
        let _ = damaged.1.get(1).get(2).fill_(bad);
        let tensors: Vec<(String, &Tensor)> = tensors
            .iter()
            .map(|(name, tensor)| (name.clone(), tensor))
            .collect();
        let file = folder.path().join("model.safetensors");
        crate::formats::write_tensors(&file, &tensors).unwrap();

        let folder = HfFolder::open(folder.path()).unwrap();
        let mut placer = Placer::new(Device::Cpu, placement::Policy::default()).unwrap();
        let mut source = FileWeights::new(&folder, Kind::Float, &mut placer);
        let shape = folder.shape(name).unwrap();
        let error = source.tensor(name, &shape, Initial::Zeros).unwrap_err();
        // The job failed, and was not asked for wrongly.
        assert!(!error.is_bad_usage());
        let error = error.to_string();
        assert!(
            error.contains(&format!("`{name}` has 1 NaN or infinite values of")),
            "{error}"
        );
    }
}

/// Beyond the window, where blocks take keys and values of others, and from a cache.
#[test]
fn the_likeliest_text_is_that_of_transformers() {
    let mut compared = 0;
    for name in MODELS {
        let file = SafetensorsFile::open(&golden(name).join("expected.safetensors")).unwrap();
        if file.shape("greedy").is_none() {
            continue;
        }
        compared += 1;
        let theirs = file.read("greedy", Kind::Int64).unwrap();
        let model = open(name, Kind::Float);
        let mut cache = model.cache(40);
        let mut next = theirs.narrow(1, 0, 5);
        for place in 5..35 {
            let logits = model.next_logits(&next, &mut cache).unwrap();
            next = logits.argmax(-1, true);
            assert_eq!(next, theirs.narrow(1, place, 1), "{name}, token {place}");
        }
    }
    assert_eq!(compared, 10);
}

/// Loss and gradients of a model that is trained in full, with the routers' balance, and texts of two lengths.
#[test]
fn routers_and_experts_learn_what_those_of_transformers_learn() {
    // Two routers, five experts in each of two blocks, and a block without; and two blocks with biases and sinks.
    for (name, count) in [
        ("qwen3-moe-stacked", 2 + 3 * (2 * 5 + 1)),
        ("gpt-oss-dense", 2 * (2 + 6 * 5 + 1)),
        // And two with an expert of all tokens and its gate.
        ("qwen3.5-moe", 2 * (1 + 3 * 6 + 3 + 1)),
        // All parameters, also those that make the keys and values that other blocks take: the embeddings, the head's norm, and
        // projection and norm of the parts; of a block 16, or 13 without keys and values.
        ("gemma4", 5 + 3 * 16 + 2 * 13),
        ("gemma4-moe", 2 + 19 + 18 + 2 * 3 * 6),
    ] {
        assert_eq!(learned_as_in_transformers(name), count, "{name}");
    }
}

/// Compares the loss and the gradients with those of transformers; returns the number of gradients.
fn learned_as_in_transformers(name: &str) -> usize {
    let mut compared = 0;
    let file = SafetensorsFile::open(&golden(name).join("expected.safetensors")).unwrap();
    let folder = HfFolder::open(&golden(name)).unwrap();
    let (tokens, _) = expected(name);
    let real = tokens.ones_like();
    let _ = real.get(1).narrow(0, 20, 20).fill_(0);
    // What comes after each token, where both are there.
    let next = Tensor::cat(&[tokens.narrow(1, 1, 39), tokens.narrow(1, 0, 1)], 1);
    let learned = real.narrow(1, 1, 39).constant_pad_nd([0, 1]);
    let targets = next.masked_fill(&learned.eq(0), -100);
    for checkpoint in [false, true] {
        let mut placer = Placer::new(Device::Cpu, placement::Policy::default()).unwrap();
        let mut source = FileWeights::new(&folder, Kind::Float, &mut placer);
        let mut parameters = Parameters::default();
        let base = Base::Trained;
        let mut builder = Builder::new(&mut source, &mut parameters, Kind::Float, base);
        let options = DecoderOptions {
            positions: 64,
            initializer_range: 0.0,
            device: Device::Cpu,
        };
        let model = Decoder::new(folder.config(), options, &mut builder).unwrap();
        let pass = Pass::Train { checkpoint };
        let (hidden, balance) = model.learned(&tokens, (None, Some(&real)), pass).unwrap();
        let text = crate::loss::mean_cross_entropy(&model, &hidden, &targets, pass).unwrap();
        let loss = match balance {
            Some(balance) => text + balance,
            None => text,
        };
        let theirs = f64::try_from(file.read("loss", Kind::Double).unwrap()).unwrap();
        let ours = f64::try_from(&loss).unwrap();
        assert!((ours / theirs - 1.0).abs() <= 1e-6, "{ours} and {theirs}");
        torch_ext::backward(&loss).unwrap();
        compared = 0;
        let every = name.starts_with("gemma4");
        // Of all parameters, those in transformers are up to 4e-5 from what it computes in fp64.
        let bound = if every { 1e-4 } else { 1e-5 };
        let is_compared = |name: &str| every || name.contains(".mlp.") || name.contains("sinks");
        for parameter in parameters.iter().filter(|p| is_compared(&p.name)) {
            let stored = parameter.name.replace(".experts.", " ");
            let (place, part) = match stored.split_once(' ') {
                None => (None, format!("gradient.{stored}")),
                Some((layer, expert)) => {
                    let (number, part) = expert.split_once('.').unwrap();
                    let place: i64 = number.parse().unwrap();
                    (Some(place), format!("gradient.{layer}.experts.{part}"))
                }
            };
            let theirs = file.read(&part, Kind::Float).unwrap();
            let theirs = place.map_or(theirs.shallow_clone(), |place| theirs.get(place));
            let difference = largest_difference(&parameter.tensor.grad(), &theirs);
            let size = f64::try_from(theirs.abs().max()).unwrap();
            assert!(
                difference <= bound * size.max(0.1),
                "{name}, {}: {difference} of {size}",
                parameter.name
            );
            compared += 1;
        }
    }
    compared
}

/// Noise of the same generator, on embeddings that are layers with a scale, or are scaled after the layer.
#[test]
fn noise_in_training_is_that_of_transformers_neftune() {
    let path = crate::golden::golden("regularised.safetensors");
    let file = SafetensorsFile::open(&path).unwrap();
    let tokens = file.read("tokens", Kind::Int64).unwrap();
    let number = |name: &str| file.read(name, Kind::Double).unwrap().double_value(&[]);
    let train = Pass::Train { checkpoint: false };
    for name in ["llama-grouped", "gemma3", "granite"] {
        let mut model = open(name, Kind::Float);
        let plain = model.logits(&tokens, train).unwrap();
        model.add_noise(number("alpha"));
        tch::manual_seed(number("seed") as i64);
        let ours = model.logits(&tokens, train).unwrap();
        let theirs = file.read(&format!("logits.{name}"), Kind::Float).unwrap();
        let size = f64::try_from(theirs.abs().max()).unwrap();
        let difference = largest_difference(&ours, &theirs);
        assert!(difference <= 5e-6 * size, "{name}: {difference} of {size}");
        assert!(largest_difference(&ours, &plain) > 1e-2 * size, "{name}");
        let evaluated = model.logits(&tokens, Pass::Evaluate).unwrap();
        assert_eq!(evaluated, plain, "{name}");
    }
}
