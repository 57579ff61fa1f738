//! Held against diffusers' `AutoencoderKLWan`: tiny random models.

use placement::{Placer, Policy};
use tch::{Device, Kind, Tensor};

use super::*;
use crate::Parameters;
use crate::formats::{SafetensorsFile, TensorSource};
use crate::golden::golden;
use crate::model::{Base, FileWeights};

const MODELS: [&str; 2] = ["autoencoder-2.1", "autoencoder-2.2"];
const WEIGHTS: &str = "diffusion_pytorch_model.safetensors";

fn open(name: &str, compute: Kind, base: Base) -> Autoencoder {
    let folder = golden(&format!("wan/{name}"));
    let config = AutoencoderConfig::read(&folder.join("config.json")).unwrap();
    let tensors = SafetensorsFile::open(&folder.join(WEIGHTS)).unwrap();
    let mut placer = Placer::new(Device::Cpu, Policy::default()).unwrap();
    let mut source = FileWeights::new(&tensors, Kind::Float, &mut placer);
    let mut parameters = Parameters::default();
    let mut builder = Builder::new(&mut source, &mut parameters, compute, base);
    Autoencoder::new(&config, Device::Cpu, &mut builder).unwrap()
}

fn frozen(name: &str) -> Autoencoder {
    open(name, Kind::Float, Base::Frozen(Kind::Float))
}

/// What diffusers made of one case: `[frames, channels, …]` for pixels, `[channels, frames, …]` for
/// latents.
struct Case {
    pixels: Tensor,
    latents: Tensor,
    noise: Tensor,
    decoded: Tensor,
    tiling: Option<Tiling>,
}

fn case(model: &Autoencoder, name: &str, label: &str) -> Case {
    let file = golden(&format!("wan/{name}/expected.safetensors"));
    let file = SafetensorsFile::open(&file).unwrap();
    let read = |what: &str| file.read(&format!("{label}.{what}"), Kind::Float).unwrap();
    let step = model.config().scale_factor_spatial;
    Case {
        pixels: read("pixels").transpose(0, 1),
        latents: read("latents"),
        noise: read("noise"),
        decoded: read("decoded").transpose(0, 1),
        tiling: (label == "tiled").then_some(Tiling {
            size: (3 * step, 3 * step),
            stride: (2 * step, 2 * step),
        }),
    }
}

fn difference(ours: &Tensor, theirs: &Tensor) -> f64 {
    assert_eq!(ours.size(), theirs.size());
    f64::try_from((ours - theirs).abs().max()).unwrap()
}

#[test]
fn latents_and_pixels_are_those_of_diffusers() {
    for name in MODELS {
        let model = frozen(name);
        for label in ["image", "video", "tiled"] {
            let case = case(&model, name, label);
            let latents = model.encode(&case.pixels, case.tiling).unwrap();
            let apart = difference(&latents, &case.latents);
            assert!(apart <= 1e-5, "{name}, {label}, encoded: {apart}");
            let pixels = model.decode(&case.noise, case.tiling).unwrap();
            let apart = difference(&pixels, &case.decoded);
            assert!(apart <= 1e-5, "{name}, {label}, decoded: {apart}");
        }
    }
}

/// Tiles that made no difference would be no tiles.
#[test]
fn tiles_are_computed_for_themselves() {
    for name in MODELS {
        let model = frozen(name);
        let case = case(&model, name, "tiled");
        let whole = model.encode(&case.pixels, None).unwrap();
        assert!(difference(&whole, &case.latents) > 1e-3, "{name}");
        // Larger tiles than the picture are none.
        let whole_again = model.encode(&case.pixels, Some(Tiling::default())).unwrap();
        assert_eq!(whole, whole_again, "{name}");
    }
}

#[test]
fn no_conv3d_is_called() {
    for name in MODELS {
        let model = frozen(name);
        let case = case(&model, name, "video");
        let work = || {
            let latents = model.encode(&case.pixels, None).unwrap();
            (latents, model.decode(&case.noise, None).unwrap())
        };
        let (_, counts) = torch_ext::operators::counted(work).unwrap();
        let forbidden = ["conv3d", "slow_conv3d", "convolution_3d"];
        for operator in counts.keys() {
            assert!(
                !forbidden.iter().any(|part| operator.contains(part)),
                "{operator}"
            );
        }
        // Every convolution there is was asked for as one of two dimensions.
        let count = |operator: &str| counts.get(operator).copied().unwrap_or(0);
        assert!(count("aten::conv2d") > 100);
        assert_eq!(count("aten::convolution"), count("aten::conv2d"), "{name}");
    }
}

#[test]
fn a_video_in_pieces_is_the_same_video() {
    for name in MODELS {
        let model = frozen(name);
        let case = case(&model, name, "video");
        let (_, _, height, width) = case.pixels.size4().unwrap();
        let mut encoding = model.encoding(height, width, None).unwrap();
        let mut latents = Vec::new();
        let mut start = 0;
        for length in [2, 1, 5, 1] {
            let piece = case.pixels.narrow(0, start, length);
            latents.extend(encoding.push(&piece).unwrap());
            start += length;
        }
        encoding.finish().unwrap();
        let whole = model.encode(&case.pixels, None).unwrap();
        assert_eq!(Tensor::stack(&latents, 1), whole, "{name}");
    }
}

/// What is remembered between chunks is the same after every chunk but the first.
#[test]
fn memory_does_not_grow_with_the_video() {
    for name in MODELS {
        let model = frozen(name);
        let step = model.config().scale_factor_spatial;
        let mut encoding = model.encoding(step, step, None).unwrap();
        let mut decoding = model.decoding(1, 1, None).unwrap();
        let options = (Kind::Float, Device::Cpu);
        let mut sizes = Vec::new();
        encoding
            .push(&Tensor::zeros([1, 3, step, step], options))
            .unwrap();
        let latent = Tensor::zeros([model.config().z_dim, 1, 1], options);
        for _ in 0..5 {
            encoding
                .push(&Tensor::zeros([4, 3, step, step], options))
                .unwrap();
            assert!(encoding.waiting.is_none());
            assert_eq!(decoding.push(&latent).unwrap().size()[1], 3);
            sizes.push([encoding.caches[0].numbers(), decoding.caches[0].numbers()]);
        }
        assert!(sizes[2].iter().all(|size| *size > 0));
        assert_eq!(sizes[2], sizes[3], "{name}");
        assert_eq!(sizes[3], sizes[4], "{name}");
    }
}

#[test]
fn bfloat16_is_close_and_keeps_norms_and_biases() {
    for name in MODELS {
        let model = open(name, Kind::BFloat16, Base::Frozen(Kind::BFloat16));
        let case = case(&model, name, "video");
        let latents = model.encode(&case.pixels, None).unwrap();
        assert_eq!(latents.kind(), Kind::Float);
        let spread = f64::try_from(case.latents.std(true)).unwrap();
        let apart = f64::try_from((&latents - &case.latents).std(true)).unwrap();
        assert!(apart < 0.1 * spread, "{name}: {apart} of {spread}");
        assert!(apart > 0.0, "{name}");
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let model = frozen("autoencoder-2.1");
    let options = (Kind::Float, Device::Cpu);
    let encode = |size: [i64; 4]| model.encode(&Tensor::zeros(size, options), None);
    assert_eq!(
        encode([1, 3, 12, 16]).unwrap_err().to_string(),
        "pictures of 16 × 12 pixels: this autoencoder needs multiples of 8"
    );
    assert_eq!(
        encode([7, 3, 16, 16]).unwrap_err().to_string(),
        "a video of 7 frames: this autoencoder needs 4 n + 1, such as 5 or 9"
    );
    assert_eq!(
        encode([0, 3, 16, 16]).unwrap_err().to_string(),
        "a video without frames"
    );
    let tiling = Tiling {
        size: (20, 16),
        stride: (16, 16),
    };
    let error = model.encoding(64, 64, Some(tiling)).unwrap_err();
    assert!(error.to_string().contains("multiples of 8"), "{error}");
    let latents = Tensor::zeros([3, 1, 2, 2], options);
    let error = model.decode(&latents, None).unwrap_err();
    assert!(
        error.to_string().contains("this autoencoder has 4"),
        "{error}"
    );
}

/// Every parameter is reached by a gradient, through both halves.
#[test]
fn a_trained_autoencoder_has_gradients() {
    for name in MODELS {
        let folder = golden(&format!("wan/{name}"));
        let config = AutoencoderConfig::read(&folder.join("config.json")).unwrap();
        let tensors = SafetensorsFile::open(&folder.join(WEIGHTS)).unwrap();
        let mut placer = Placer::new(Device::Cpu, Policy::default()).unwrap();
        let mut source = FileWeights::new(&tensors, Kind::Float, &mut placer);
        let mut parameters = Parameters::default();
        let mut builder = Builder::new(&mut source, &mut parameters, Kind::Float, Base::Trained);
        let model = Autoencoder::new(&config, Device::Cpu, &mut builder).unwrap();
        assert_eq!(parameters.iter().len(), tensors.names().len());
        let pixels = case(&model, name, "video").pixels;
        let latents = model.encode(&pixels, None).unwrap();
        let loss = (model.decode(&latents, None).unwrap() - &pixels)
            .square()
            .mean(Kind::Float);
        torch_ext::backward(&loss).unwrap();
        for parameter in parameters.iter() {
            let gradient = parameter.tensor.grad();
            assert!(gradient.defined(), "{name}: {}", parameter.name);
        }
    }
}

#[test]
fn a_config_that_does_not_fit_together_is_refused_by_its_key() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    for (text, key) in [
        (r#"{"_class_name": "AutoencoderKL"}"#, "`_class_name`"),
        (r#"{"attn_scales": [1.0]}"#, "`attn_scales`"),
        (r#"{"z_dim": 4}"#, "`latents_mean`"),
        (
            r#"{"temperal_downsample": [true, true]}"#,
            "`temperal_downsample`",
        ),
        (
            r#"{"temperal_downsample": [true, true, true]}"#,
            "`temperal_downsample`",
        ),
        (r#"{"patch_size": 2}"#, "`scale_factor_spatial`"),
        (
            r#"{"patch_size": 2, "scale_factor_spatial": 16}"#,
            "`in_channels`",
        ),
        (r#"{"dim_mult": [1, 2, "4", 4]}"#, "`dim_mult`"),
    ] {
        std::fs::write(&path, text).unwrap();
        let error = AutoencoderConfig::read(&path).unwrap_err().to_string();
        assert!(error.contains(key), "{text}: {error}");
    }
    std::fs::write(&path, "{}").unwrap();
    let config = AutoencoderConfig::read(&path).unwrap();
    assert_eq!((config.base_dim, config.z_dim), (96, 16));
}
