//! Held against diffusers' `WanTransformer3DModel`: tiny random models.

use std::collections::HashMap;

use placement::swap::SwapOptions;
use placement::{Placer, Policy};

use super::*;
use crate::Parameters;
use crate::formats::{SafetensorsFile, TensorSource};
use crate::golden::golden;
use crate::model::{Base, FileWeights, Streaming};
use crate::quant::Quantization;

const MODELS: [&str; 3] = ["transformer-t2v", "transformer-i2v", "transformer-ti2v"];
const WEIGHTS: &str = "diffusion_pytorch_model.safetensors";

struct How {
    compute: Kind,
    base: Base,
    streaming: Option<Streaming>,
    quantization: Option<Quantization>,
}

const FROZEN: How = How {
    compute: Kind::Float,
    base: Base::Frozen(Kind::Float),
    streaming: None,
    quantization: None,
};

fn open(name: &str, how: How) -> (Transformer, Parameters) {
    let folder = golden(&format!("wan/{name}"));
    let config = TransformerConfig::read(&folder.join("config.json")).unwrap();
    let tensors = SafetensorsFile::open(&folder.join(WEIGHTS)).unwrap();
    let mut placer = Placer::new(Device::Cpu, Policy::default()).unwrap();
    let mut source = FileWeights::new(&tensors, how.compute, &mut placer);
    let mut parameters = Parameters::default();
    let mut builder = Builder::new(&mut source, &mut parameters, how.compute, how.base)
        .streamed(how.streaming)
        .quantized(how.quantization);
    let model = Transformer::new(&config, Device::Cpu, &mut builder).unwrap();
    (model, parameters)
}

/// What diffusers was given, and what it made of it.
struct Expected(HashMap<String, Tensor>);

impl Expected {
    fn of(name: &str) -> Self {
        let file = golden(&format!("wan/{name}/expected.safetensors"));
        let file = SafetensorsFile::open(&file).unwrap();
        let read = |name: String| {
            let tensor = file.read(&name, Kind::Float).unwrap();
            (name, tensor)
        };
        Self(file.names().into_iter().map(read).collect())
    }

    fn get(&self, name: &str) -> Tensor {
        self.0[name].shallow_clone()
    }

    /// 512 rows, of which the last are zeros.
    fn text(&self) -> Tensor {
        let text = self.get("text");
        text.constant_pad_nd([0, 0, 0, 512 - text.size()[1]])
    }

    fn uniform(&self) -> Timesteps {
        Timesteps::Uniform(self.get("times"))
    }
}

fn difference(ours: &Tensor, theirs: &Tensor) -> f64 {
    assert_eq!(ours.size(), theirs.size());
    f64::try_from((ours - theirs).abs().max()).unwrap()
}

/// On the CPU zeros are asked once, and count as often as there are.
#[test]
fn the_zeros_of_a_text_count_as_many_as_they_are() {
    let (model, _) = open(MODELS[0], FROZEN);
    let expected = Expected::of(MODELS[0]);
    let latents = expected.get("latents");
    let under = |text: &Tensor| {
        let times = expected.uniform();
        let velocity = model.velocity(&latents, &times, text, Pass::Evaluate);
        velocity.unwrap()
    };
    let text = expected.text();
    let (short, bias) = model.distinct(&text).unwrap();
    assert!(short.size()[1] < 512 && bias.is_some());
    // A last row that is not zero, by next to nothing: all are asked.
    let all = text.copy();
    let _ = all.select(1, 511).fill_(1e-30);
    assert!(model.distinct(&all).unwrap().1.is_none());
    let apart = difference(&under(&text), &under(&all));
    assert!(apart < 1e-5, "{apart}");
    let fewer = text.narrow(1, 0, short.size()[1]);
    let fewer = difference(&under(&text), &under(&fewer));
    assert!(fewer > 1e-4, "{fewer}");
    // Nothing but zeros.
    let none = text.zeros_like();
    let short = model.distinct(&none).unwrap().0;
    assert_eq!(short.size()[1], 1);
    assert!(bool::try_from(under(&none).isfinite().all()).unwrap());
}

#[test]
fn velocities_are_those_of_diffusers() {
    for name in MODELS {
        let (model, _) = open(name, FROZEN);
        let expected = Expected::of(name);
        let (latents, text) = (expected.get("latents"), expected.text());
        let ours = model
            .velocity(&latents, &expected.uniform(), &text, Pass::Evaluate)
            .unwrap();
        let apart = difference(&ours, &expected.get("velocity"));
        assert!(apart <= 1e-5, "{name}: {apart}");
        let image = latents.narrow(2, 0, 1);
        let ours = model
            .velocity(&image, &expected.uniform(), &text, Pass::Evaluate)
            .unwrap();
        let apart = difference(&ours, &expected.get("image"));
        assert!(apart <= 1e-5, "{name}, one frame: {apart}");
    }
}

#[test]
fn the_first_frame_has_a_time_of_its_own() {
    let name = "transformer-ti2v";
    let (model, _) = open(name, FROZEN);
    let expected = Expected::of(name);
    let times = Timesteps::FirstFrame {
        first: Tensor::zeros([2], (Kind::Float, Device::Cpu)),
        others: expected.get("times"),
    };
    let (latents, text) = (expected.get("latents"), expected.text());
    let ours = model
        .velocity(&latents, &times, &text, Pass::Evaluate)
        .unwrap();
    let apart = difference(&ours, &expected.get("first_frame"));
    assert!(apart <= 1e-5, "{apart}");
    assert!(difference(&ours, &expected.get("velocity")) > 1e-3);
}

/// One row of it for each time there is: the first frame's and the others'.
#[test]
fn modulation_is_not_made_for_each_token() {
    let name = "transformer-ti2v";
    let (model, _) = open(name, FROZEN);
    let expected = Expected::of(name);
    let time = Tensor::zeros([2], (Kind::Float, Device::Cpu));
    for (times, rows) in [
        (Timesteps::Uniform(time.shallow_clone()), 1),
        (
            Timesteps::FirstFrame {
                first: time.shallow_clone(),
                others: expected.get("times"),
            },
            2,
        ),
    ] {
        assert_eq!(model.embedded(&times).unwrap().size(), [2, rows, 36]);
    }
}

#[test]
fn the_listed_tensors_stay_in_fp32() {
    struct Recorder<'a>(FileWeights<'a>, Vec<String>);
    impl crate::model::WeightSource for Recorder<'_> {
        fn tensor(&mut self, name: &str, shape: &[i64], initial: Initial) -> Result<Tensor, Error> {
            self.0.tensor(name, shape, initial)
        }
        fn exact_tensor(
            &mut self,
            name: &str,
            shape: &[i64],
            initial: Initial,
        ) -> Result<Tensor, Error> {
            self.1.push(name.to_owned());
            self.0.exact_tensor(name, shape, initial)
        }
    }
    let folder = golden("wan/transformer-t2v");
    let listed = std::fs::read_to_string(folder.join("kept_in_fp32.json")).unwrap();
    let listed: Vec<String> = serde_json::from_str(&listed).unwrap();
    let config = TransformerConfig::read(&folder.join("config.json")).unwrap();
    let tensors = SafetensorsFile::open(&folder.join(WEIGHTS)).unwrap();
    let mut placer = Placer::new(Device::Cpu, Policy::default()).unwrap();
    let weights = FileWeights::new(&tensors, Kind::BFloat16, &mut placer);
    let mut recorder = Recorder(weights, Vec::new());
    let mut parameters = Parameters::default();
    let base = Base::Frozen(Kind::BFloat16);
    let mut builder = Builder::new(&mut recorder, &mut parameters, Kind::BFloat16, base);
    let model = Transformer::new(&config, Device::Cpu, &mut builder).unwrap();
    recorder.1.sort();
    assert_eq!(recorder.1, listed);
    // Not rounded on the way.
    let exact = tensors.read("scale_shift_table", Kind::Float).unwrap();
    assert_eq!(model.table, exact);
}

#[test]
fn bfloat16_is_close() {
    for name in MODELS {
        let how = How {
            compute: Kind::BFloat16,
            base: Base::Frozen(Kind::BFloat16),
            ..FROZEN
        };
        let (model, _) = open(name, how);
        let expected = Expected::of(name);
        let (latents, text) = (expected.get("latents"), expected.text());
        let ours = model
            .velocity(&latents, &expected.uniform(), &text, Pass::Evaluate)
            .unwrap();
        let theirs = expected.get("velocity");
        let apart = f64::try_from((&ours - &theirs).std(true) / theirs.std(true)).unwrap();
        assert!(apart > 0.0 && apart < 0.05, "{name}: {apart}");
    }
}

#[test]
fn streamed_and_quantised_blocks_compute_as_resident_ones() {
    let name = "transformer-t2v";
    let expected = Expected::of(name);
    let (latents, text) = (expected.get("latents"), expected.text());
    for quantization in [None, Some(Quantization::Int8), Some(Quantization::Nf4)] {
        let velocity = |streaming| {
            let how = How {
                streaming,
                quantization,
                ..FROZEN
            };
            let (model, _) = open(name, how);
            let streamed = model.lists()[0].report().is_some();
            let velocity = model
                .velocity(&latents, &expected.uniform(), &text, Pass::Evaluate)
                .unwrap();
            (velocity, streamed)
        };
        let streaming = Streaming {
            blocks: vec![0, 1],
            options: SwapOptions::default(),
        };
        let (resident, streamed) = velocity(None);
        assert!(!streamed);
        assert_eq!(velocity(Some(streaming)), (resident.shallow_clone(), true));
        let spread = f64::try_from(expected.get("velocity").std(true)).unwrap();
        let apart = f64::try_from((resident - expected.get("velocity")).std(true)).unwrap();
        assert!(
            apart < 0.3 * spread,
            "{quantization:?}: {apart} of {spread}"
        );
    }
}

/// Gradients of every parameter, those of time and text among them, with checkpoints and without.
#[test]
fn checkpoints_change_no_gradient() {
    for name in ["transformer-t2v", "transformer-ti2v"] {
        let expected = Expected::of(name);
        let gradients = |checkpoint: bool| {
            let how = How {
                base: Base::Trained,
                ..FROZEN
            };
            let (model, parameters) = open(name, how);
            let times = match name {
                "transformer-ti2v" => Timesteps::FirstFrame {
                    first: Tensor::zeros([2], (Kind::Float, Device::Cpu)),
                    others: expected.get("times"),
                },
                _ => expected.uniform(),
            };
            let pass = Pass::Train { checkpoint };
            let (latents, text) = (expected.get("latents"), expected.text());
            let velocity = model.velocity(&latents, &times, &text, pass).unwrap();
            torch_ext::backward(&velocity.square().mean(Kind::Float)).unwrap();
            let gradient = |parameter: &crate::Parameter| {
                let gradient = parameter.tensor.grad();
                assert!(gradient.defined(), "{}", parameter.name);
                (parameter.name.clone(), gradient)
            };
            parameters.iter().map(gradient).collect::<Vec<_>>()
        };
        let (kept, again) = (gradients(false), gradients(true));
        let file = SafetensorsFile::open(&golden(&format!("wan/{name}/{WEIGHTS}"))).unwrap();
        assert_eq!(kept.len(), file.names().len());
        for ((name, kept), (_, again)) in kept.iter().zip(&again) {
            assert!(kept.allclose(again, 1e-5, 1e-9, false), "{name}");
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let (model, _) = open("transformer-t2v", FROZEN);
    let expected = Expected::of("transformer-t2v");
    for size in [[2, 5, 3, 6, 8], [2, 4, 3, 5, 8], [2, 4, 0, 6, 8]] {
        let latents = Tensor::zeros(size, (Kind::Float, Device::Cpu));
        let error = model
            .velocity(
                &latents,
                &expected.uniform(),
                &expected.text(),
                Pass::Evaluate,
            )
            .unwrap_err();
        assert!(
            error.to_string().contains("this model takes 4 channels"),
            "{error}"
        );
    }
}

#[test]
fn a_config_of_another_model_is_refused_by_its_key() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    for (text, key) in [
        (
            r#"{"_class_name": "FluxTransformer2DModel"}"#,
            "`_class_name`",
        ),
        (r#"{"image_dim": 1280}"#, "`image_dim`"),
        (r#"{"added_kv_proj_dim": 5120}"#, "`added_kv_proj_dim`"),
        (r#"{"qk_norm": "rms_norm"}"#, "`qk_norm`"),
        (r#"{"patch_size": [1, 2]}"#, "`patch_size`"),
        (r#"{"attention_head_dim": 5}"#, "`attention_head_dim`"),
    ] {
        std::fs::write(&path, text).unwrap();
        let error = TransformerConfig::read(&path).unwrap_err().to_string();
        assert!(error.contains(key), "{text}: {error}");
    }
}

#[test]
fn the_shapes_of_a_file_tell_its_config() {
    for (name, head) in [
        ("transformer-t2v", 16),
        ("transformer-i2v", 16),
        ("transformer-ti2v", 18),
    ] {
        let folder = golden(&format!("wan/{name}"));
        let config = TransformerConfig::read(&folder.join("config.json")).unwrap();
        let tensors = SafetensorsFile::open(&folder.join(WEIGHTS)).unwrap();
        assert_eq!(
            TransformerConfig::of_shapes_with(&tensors, head).unwrap(),
            config
        );
    }
}

/// Norms and rotations of a block, by kernels that are executed in the simulated device. Of so few numbers none may be
/// rounded otherwise.
#[cfg(unix)]
#[test]
fn kernels_compute_what_operators_do() {
    use crate::fused::tests::{in_simulated_gpu, name_of};
    use crate::fused::{Family, UseKernels, is_used, use_kernels};
    in_simulated_gpu(name_of!(kernels_compute_what_operators_do), |executes| {
        let expected = Expected::of(MODELS[0]);
        let velocity = |how| {
            use_kernels(how);
            let half = How {
                compute: Kind::BFloat16,
                base: Base::Frozen(Kind::BFloat16),
                ..FROZEN
            };
            let (model, _) = open(MODELS[0], half);
            let latents = expected.get("latents").set_requires_grad(true);
            let pass = Pass::Train { checkpoint: true };
            let made = model.velocity(&latents, &expected.uniform(), &expected.text(), pass);
            let made = made.unwrap();
            torch_ext::backward(&made.square().sum(Kind::Float)).unwrap();
            [made.detach(), latents.grad()]
        };
        let (theirs, ours) = (velocity(UseKernels::Off), velocity(UseKernels::Auto));
        assert_eq!(is_used(Device::Cpu, Family::Norms), executes);
        for (ours, theirs) in ours.iter().zip(&theirs) {
            let largest = f64::try_from(theirs.abs().max()).unwrap();
            let apart = difference(ours, theirs);
            assert!(apart <= 0.02 * largest, "{apart} of {largest}");
        }
    });
}
