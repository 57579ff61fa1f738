//! Adapters that are merged into their bases, and those that begin as a part of them.

use super::*;
use crate::pretrained::{Pretrained, merge};

/// The model of golden/models that is called `base`, with the tokenizer of another.
fn pretrained(base: &str) -> Pretrained {
    let gguf = Pretrained::open(&golden("models/llama-grouped.gguf")).unwrap();
    let folder = HfFolder::open(&golden(&format!("models/{base}"))).unwrap();
    Pretrained {
        config: folder.config().clone(),
        tensors: Box::new(folder),
        ..gguf
    }
}

/// The logits of the model `base` with adapters of golden/adapters merged into it, each with a strength.
fn merged_logits(base: &str, adapters: &[(&str, f64)], tokens: &Tensor) -> Result<Tensor, Error> {
    let target = tempfile::tempdir().unwrap();
    let opened = adapters.iter().map(|(name, strength)| {
        let adapter = PeftAdapter::open(&golden(&format!("adapters/{name}"))).unwrap();
        (adapter, *strength)
    });
    let opened: Vec<_> = opened.collect();
    merge(&pretrained(base), &opened, target.path(), Kind::Float)?;
    let merged = HfFolder::open(target.path()).unwrap();
    let mut placer = Placer::new(Device::Cpu, placement::Policy::default()).unwrap();
    let mut source = FileWeights::new(&merged, Kind::Float, &mut placer);
    let mut parameters = Parameters::default();
    let frozen = Base::Frozen(Kind::Float);
    let mut builder = Builder::new(&mut source, &mut parameters, Kind::Float, frozen);
    let options = DecoderOptions {
        positions: 64,
        initializer_range: 0.0,
        device: Device::Cpu,
    };
    let model = Decoder::new(merged.config(), options, &mut builder).unwrap();
    model.logits(tokens, Pass::Evaluate)
}

#[test]
fn a_merged_model_computes_what_base_and_adapter_do() {
    for (name, base) in ADAPTERS {
        let expected = expected(name);
        let tokens = expected.read("tokens", Kind::Int64).unwrap().get(0);
        let logits = merged_logits(base, &[(name, 1.0)], &tokens).unwrap();
        let theirs = expected.read("logits", Kind::Float).unwrap();
        let difference = largest_difference(&logits, &theirs);
        assert!(difference <= 4.0 * bound(base), "{name}: {difference}");
    }
}

#[test]
fn adapters_merged_with_weights_are_pefts_weighted_adapter() {
    let expected = SafetensorsFile::open(&golden("adapters/weighted.safetensors")).unwrap();
    let tokens = expected.read("tokens", Kind::Int64).unwrap();
    let both = [("plain", 0.7), ("beside-plain", 0.4)];
    let one = [("plain", 0.4)];
    for (combination, adapters) in [("cat", &both[..]), ("linear", &one)] {
        let logits = merged_logits("llama-grouped", adapters, &tokens).unwrap();
        let theirs = expected.read(combination, Kind::Float).unwrap();
        let difference = largest_difference(&logits, &theirs);
        assert!(
            difference <= 4.0 * bound("llama-grouped"),
            "{combination}: {difference}"
        );
    }
    for (name, base, key) in [
        ("post-norms", "olmo3", "`use_dora`"),
        ("saved-head", "qwen3-untied", "`modules_to_save`"),
    ] {
        let refused = merged_logits(base, &[(name, 0.5)], &tokens);
        let error = refused.unwrap_err().to_string();
        assert!(error.contains(key), "{error}");
    }
}

/// The LoRAs of `tests/reference/adapters.py` that begin as principal components, and its logits for them.
fn begun(init: Init, alpha: f64, to: Option<Quantization>) -> (Adapted, SafetensorsFile) {
    let config = LoraConfig {
        rank: 3,
        alpha,
        target_modules: Modules::Suffixes(vec!["q_proj".into(), "down_proj".into()]),
        ..LoraConfig::default()
    };
    let attachment = Attachment::fresh(&config).unwrap().starting(init);
    let adapted = over(&golden("models/llama-grouped"), attachment, to).unwrap();
    let expected = SafetensorsFile::open(&golden("adapters/begun.safetensors")).unwrap();
    (adapted, expected)
}

/// How far logits are from those of `expected` that are called `name`.
fn away(model: &Decoder, expected: &SafetensorsFile, name: &str) -> f64 {
    let tokens = expected.read("tokens", Kind::Int64).unwrap();
    let logits = model.logits(&tokens, Pass::Evaluate).unwrap();
    largest_difference(&logits, &expected.read(name, Kind::Float).unwrap())
}

/// What is written is for the base as it was, to which the LoRA's part of it is given back.
#[test]
fn principal_components_are_taken_from_the_base_as_in_peft_and_written_as_a_lora() {
    let (adapted, expected) = begun(Init::Pissa, 6.0, None);
    let most = 4.0 * bound("llama-grouped");
    let before = away(&adapted.model, &expected, "before");
    assert!(before <= most, "{before}");
    // As PEFT trained them. The signs of components are arbitrary, but the same in both matrices.
    for parameter in adapted.parameters.iter() {
        let theirs = expected.read(&format!("after.{}", parameter.name), Kind::Float);
        parameter.tensor.detach().copy_(&theirs.unwrap());
    }
    let after = away(&adapted.model, &expected, "logits");
    // PEFT's components were found on another processor. Rounding changes the last ones as their singular values are close to the
    // next: PEFT itself was 7.9e-5 away from this on a processor without AVX-512, and 3.0e-5 with exact components.
    let apart = 10.0 * most;
    assert!(after <= apart, "{after}");
    assert!(away(&adapted.model, &expected, "before") > 10.0 * apart);
    let folder = tempfile::tempdir().unwrap();
    let base = ("base", Naming::ALONE);
    write_peft(folder.path(), &adapted.attached, &adapted.parameters, base).unwrap();
    let written = PeftAdapter::open(folder.path()).unwrap();
    assert_eq!((written.config().rank, written.config().alpha), (6, 12.0));
    let attachment = Attachment::saved(written).unwrap();
    let read = super::adapted(&golden("models/llama-grouped"), attachment).unwrap();
    let read = away(&read.model, &expected, "logits");
    assert!(read <= apart, "{read}");
}

#[test]
fn what_quantisation_loses_begins_a_lora_as_in_peft() {
    // PEFT knows no scale there.
    for alpha in [3.0, 7.0] {
        let of = |init| {
            let (adapted, expected) = begun(init, alpha, Some(Quantization::Nf4));
            away(&adapted.model, &expected, "loftq")
        };
        let (ours, plain) = (of(Init::Loftq), of(Init::Default));
        assert!(
            ours <= 4.0 * bound("llama-grouped") && plain > 100.0 * ours,
            "{ours} and {plain}"
        );
    }
}
