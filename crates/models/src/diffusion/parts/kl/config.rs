//! The dimensions of a KL autoencoder, from the `config.json` of its folder.

use std::path::Path;

use serde_json::{Value, json};

use crate::Error;
use crate::formats::TensorSource;
use crate::json::Object;

/// Dimensions of an autoencoder, with diffusers' names.
#[derive(Debug, Clone, PartialEq)]
pub struct KlConfig {
    /// Colours.
    pub in_channels: i64,
    /// Colours.
    pub out_channels: i64,
    /// Channels of each stage of the encoder; every stage but the last halves height and width.
    pub block_out_channels: Vec<i64>,
    /// Channels of as many stages of the decoder, in the same order.
    pub decoder_block_out_channels: Vec<i64>,
    /// Residual blocks per stage of the encoder; the decoder has one more.
    pub layers_per_block: i64,
    /// Latent channels.
    pub latent_channels: i64,
    /// Groups of channels that are normalised together.
    pub norm_num_groups: i64,
    /// What latents are multiplied by for the denoiser.
    pub scaling_factor: f64,
    /// What is subtracted from them before.
    pub shift_factor: f64,
    /// Whether a convolution follows the encoder.
    pub use_quant_conv: bool,
    /// Whether a convolution precedes the decoder.
    pub use_post_quant_conv: bool,
    /// Whether the middle has attention.
    pub mid_block_add_attention: bool,
    /// Whether 2 × 2 latents are put together to one with all their channels, each of which is normalised with the mean
    /// and the variance in the file, to which this is added.
    pub batch_norm_eps: Option<f64>,
}

/// A class of diffusers.
#[derive(Debug)]
struct Class {
    name: &'static str,
    /// Keys that only this class has, and that are applied or refused.
    keys: &'static [&'static str],
    /// Keys that change nothing here: the side of diffusers' own tiles, what a pipeline of another model does in half
    /// precision (pictures are decoded in fp32), and what counts only in training.
    without_effect: &'static [&'static str],
    /// Its default for `block_out_channels`, `layers_per_block` and `latent_channels`.
    sizes: (&'static [i64], i64, i64),
    /// Whether it puts latents together.
    is_patched: bool,
}

static CLASSES: [Class; 2] = [
    Class {
        name: "AutoencoderKL",
        keys: &[
            "scaling_factor",
            "shift_factor",
            "latents_mean",
            "latents_std",
        ],
        without_effect: &["sample_size", "force_upcast"],
        sizes: (&[64], 1, 4),
        is_patched: false,
    },
    Class {
        name: "AutoencoderKLFlux2",
        keys: &["decoder_block_out_channels", "batch_norm_eps", "patch_size"],
        without_effect: &["sample_size", "force_upcast", "batch_norm_momentum"],
        sizes: (&[128, 256, 512, 512], 2, 32),
        is_patched: true,
    },
];

/// Latents that are put together, in each direction.
pub(super) const PATCH: i64 = 2;

/// What is added to variances where no config says it.
const BATCH_NORM_EPSILON: f64 = 1e-4;

/// Keys of all classes that are applied or refused.
const KEYS: [&str; 12] = [
    "in_channels",
    "out_channels",
    "down_block_types",
    "up_block_types",
    "block_out_channels",
    "layers_per_block",
    "act_fn",
    "latent_channels",
    "norm_num_groups",
    "use_quant_conv",
    "use_post_quant_conv",
    "mid_block_add_attention",
];

impl KlConfig {
    /// Reads a `config.json`, with a warning for each unknown key.
    ///
    /// # Errors
    /// The error names the key, what is allowed and what was found.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let object = Object::read(path)?;
        let name = object.text("_class_name")?.unwrap_or(CLASSES[0].name);
        let Some(class) = CLASSES.iter().find(|class| class.name == name) else {
            let [first, second] = CLASSES.each_ref().map(|class| class.name);
            let reason = format!("is {name:?}: only {first:?} and {second:?} are supported");
            return Err(object.error("_class_name", reason));
        };
        object.warn_about_unknown_keys(&[&KEYS[..], class.keys, class.without_effect].concat());
        object.require("act_fn", &json!("silu"), &json!("silu"))?;
        let (widths, layers, latents) = class.sizes;
        let given = object.integers("block_out_channels", 1..=1 << 16)?;
        let widths = given.unwrap_or_else(|| widths.to_vec());
        for (key, supported) in [
            ("down_block_types", "DownEncoderBlock2D"),
            ("up_block_types", "UpDecoderBlock2D"),
        ] {
            let all = Value::from(vec![supported; widths.len()]);
            let default = Value::from(vec![supported; class.sizes.0.len()]);
            object.require(key, &all, &default)?;
        }
        let integer = |key, default, largest| object.integer(key, Some(default), 1..=largest);
        let (factors, decoder, batch_norm_eps) = match class.is_patched {
            true => {
                let patch = json!([PATCH, PATCH]);
                object.require("patch_size", &patch, &patch)?;
                let decoder = object.integers("decoder_block_out_channels", 1..=1 << 16)?;
                let epsilon = object.positive("batch_norm_eps", Some(BATCH_NORM_EPSILON))?;
                ((1.0, 0.0), decoder, Some(epsilon))
            }
            false => (Self::factors(&object)?, None, None),
        };
        let config = Self {
            in_channels: integer("in_channels", 3, 4096)?,
            out_channels: integer("out_channels", 3, 4096)?,
            layers_per_block: integer("layers_per_block", layers, 64)?,
            latent_channels: integer("latent_channels", latents, 4096)?,
            norm_num_groups: integer("norm_num_groups", 32, 4096)?,
            scaling_factor: factors.0,
            shift_factor: factors.1,
            use_quant_conv: object.flag("use_quant_conv", true)?,
            use_post_quant_conv: object.flag("use_post_quant_conv", true)?,
            mid_block_add_attention: object.flag("mid_block_add_attention", true)?,
            decoder_block_out_channels: decoder.unwrap_or_else(|| widths.clone()),
            block_out_channels: widths,
            batch_norm_eps,
        };
        match config.problem() {
            Some((key, reason)) => Err(object.error(key, reason)),
            None => Ok(config),
        }
    }

    /// The scale and the shift of latents.
    fn factors(object: &Object) -> Result<(f64, f64), Error> {
        for key in ["latents_mean", "latents_std"] {
            object.require(key, &Value::Null, &Value::Null)?;
        }
        let shift = match object.get("shift_factor") {
            None => 0.0,
            Some(value) => value
                .as_f64()
                .filter(|number| number.is_finite())
                .ok_or_else(|| object.error("shift_factor", "must be a number"))?,
        };
        Ok((object.positive("scaling_factor", Some(0.18215))?, shift))
    }

    /// Infers the config from the shapes in a file with diffusers' names, which does not have the two factors.
    ///
    /// # Errors
    /// If it is no autoencoder of this kind.
    pub fn of_shapes(tensors: &dyn TensorSource, factors: (f64, f64)) -> Result<Self, Error> {
        let config = Self::sizes(tensors, factors)?;
        match config.problem() {
            Some((key, reason)) => {
                let reason = format!("not a KL autoencoder: `{key}` {reason}");
                Err(Error::file(tensors.path(), reason))
            }
            None => Ok(config),
        }
    }

    /// What the shapes say, with as many groups as all published models have.
    fn sizes(
        tensors: &dyn TensorSource,
        (scaling_factor, shift_factor): (f64, f64),
    ) -> Result<Self, Error> {
        let wrong =
            |reason: String| Error::file(tensors.path(), format!("not a KL autoencoder: {reason}"));
        let has = |name: &str| tensors.shape(name).is_some();
        let size = |name: &str, dimension: usize| {
            let shape = tensors.shape(name);
            let size = shape.and_then(|shape| shape.get(dimension).copied());
            size.ok_or_else(|| wrong(format!("there is no `{name}`")))
        };
        let block = |stage: usize, number: i64| {
            format!("encoder.down_blocks.{stage}.resnets.{number}.conv1.weight")
        };
        let stages = (0..8).take_while(|stage| has(&block(*stage, 0)));
        let widths = stages.map(|stage| size(&block(stage, 0), 0));
        let widths = widths.collect::<Result<Vec<_>, _>>()?;
        let in_decoder = |stage: usize| format!("decoder.up_blocks.{stage}.resnets.0.conv1.weight");
        let decoder = (0..widths.len()).rev();
        let decoder = decoder.map(|stage| size(&in_decoder(stage), 0));
        let is_patched = has("bn.running_mean");
        Ok(Self {
            in_channels: size("encoder.conv_in.weight", 1)?,
            out_channels: size("decoder.conv_out.weight", 0)?,
            block_out_channels: widths,
            decoder_block_out_channels: decoder.collect::<Result<_, _>>()?,
            batch_norm_eps: is_patched.then_some(BATCH_NORM_EPSILON),
            layers_per_block: (0..64).take_while(|number| has(&block(0, *number))).count() as i64,
            latent_channels: size("decoder.conv_in.weight", 1)?,
            norm_num_groups: 32,
            scaling_factor,
            shift_factor,
            use_quant_conv: has("quant_conv.weight"),
            use_post_quant_conv: has("post_quant_conv.weight"),
            mid_block_add_attention: has("encoder.mid_block.attentions.0.to_q.weight"),
        })
    }

    /// Pixels per latent that the denoiser sees, in each direction.
    pub fn pixels_per_latent(&self) -> i64 {
        self.step() * self.patch()
    }

    /// Channels of the latents that the denoiser sees.
    pub fn channels(&self) -> i64 {
        self.latent_channels * self.patch().pow(2)
    }

    /// Pixels per latent of the encoder, in each direction.
    pub(in crate::diffusion) fn step(&self) -> i64 {
        1 << (self.block_out_channels.len().max(1) - 1)
    }

    /// Latents of the encoder that are put together, in each direction.
    fn patch(&self) -> i64 {
        self.batch_norm_eps.map_or(1, |_| PATCH)
    }

    /// An inconsistency: a key, and what is wrong with it.
    pub(super) fn problem(&self) -> Option<(&'static str, String)> {
        let widths = &self.block_out_channels;
        if !(1..=8).contains(&widths.len()) {
            let reason = format!("has {} stages: from 1 to 8 are supported", widths.len());
            return Some(("block_out_channels", reason));
        }
        let decoder = &self.decoder_block_out_channels;
        if decoder.len() != widths.len() {
            let reason = format!(
                "has {} stages: the encoder has {}",
                decoder.len(),
                widths.len()
            );
            return Some(("decoder_block_out_channels", reason));
        }
        let groups = self.norm_num_groups;
        let mut all = widths.iter().chain(decoder);
        if let Some(width) = all.find(|width| **width % groups != 0) {
            let reason =
                format!("is {groups}, which does not divide the {width} channels of a stage");
            return Some(("norm_num_groups", reason));
        }
        let colours = [
            ("in_channels", self.in_channels),
            ("out_channels", self.out_channels),
        ];
        let other = colours.into_iter().find(|(_, count)| *count != 3);
        other.map(|(key, count)| {
            (
                key,
                format!("is {count}: only 3, the colours, is supported"),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diffusion::files::{PartFile, PartNames};
    use crate::golden::golden;
    use crate::json::testing::reading;

    #[test]
    fn shapes_say_what_the_config_says() {
        for name in ["model/vae", "quant-autoencoder"] {
            let folder = golden("z_image").join(name);
            let config = KlConfig::read(&folder.join("config.json")).unwrap();
            let file = PartFile::open(&PartNames::DIFFUSERS, &folder).unwrap();
            let factors = (config.scaling_factor, config.shift_factor);
            let found = KlConfig::sizes(&file, factors).unwrap();
            let groups = config.norm_num_groups;
            let found = KlConfig {
                norm_num_groups: groups,
                ..found
            };
            assert_eq!(found, config, "{name}");
            let reason = KlConfig::of_shapes(&file, factors).unwrap_err().to_string();
            assert!(reason.contains("`norm_num_groups` is 32"), "{reason}");
        }
        let file = golden("z_image/model/transformer");
        let file = PartFile::open(&PartNames::DIFFUSERS, &file).unwrap();
        let reason = KlConfig::of_shapes(&file, (1.0, 0.0))
            .unwrap_err()
            .to_string();
        assert!(
            reason.contains("not a KL autoencoder: there is no"),
            "{reason}"
        );
    }

    #[test]
    fn each_key_of_a_config_is_obeyed_refused_or_without_effect() {
        let read = reading(KlConfig::read);
        for class in &CLASSES {
            let plain = json!({"_class_name": class.name});
            let base = read(
                &json!({"_class_name": class.name, "block_out_channels": [64],
                "down_block_types": ["DownEncoderBlock2D"], "up_block_types": ["UpDecoderBlock2D"]}),
            );
            let base = base.unwrap();
            for key in KEYS.iter().chain(class.keys) {
                let mut config = json!({"_class_name": class.name, "block_out_channels": [64],
                    "down_block_types": ["DownEncoderBlock2D"], "up_block_types": ["UpDecoderBlock2D"]});
                config[key] = match *key {
                    "down_block_types" | "up_block_types" => json!(["AttnDownEncoderBlock2D"]),
                    "block_out_channels" | "decoder_block_out_channels" => json!([32]),
                    "latents_mean" | "latents_std" => json!([0.5]),
                    "act_fn" => json!("gelu"),
                    "scaling_factor" | "shift_factor" | "batch_norm_eps" => json!(0.25),
                    "use_quant_conv" | "use_post_quant_conv" | "mid_block_add_attention" => {
                        json!(false)
                    }
                    _ => json!(16),
                };
                match read(&config) {
                    Ok(found) => assert_ne!(found, base, "{key} changes nothing"),
                    Err(reason) => assert!(reason.contains(key), "{key}: {reason}"),
                }
            }
            let base = read(&plain).unwrap();
            for key in class.without_effect {
                let mut config = plain.clone();
                config[key] = json!(true);
                assert_eq!(read(&config).unwrap(), base, "{key}");
            }
        }
        let reason = read(&json!({"_class_name": "AutoencoderDC"})).unwrap_err();
        assert!(
            reason.contains("`_class_name` is \"AutoencoderDC\""),
            "{reason}"
        );
        let reason = read(&json!({"norm_num_groups": 7})).unwrap_err();
        assert!(reason.contains("`norm_num_groups` is 7"), "{reason}");
        let stages = json!({"_class_name": CLASSES[1].name, "decoder_block_out_channels": [64]});
        let reason = read(&stages).unwrap_err();
        assert!(
            reason.contains("`decoder_block_out_channels` has 1 stages"),
            "{reason}"
        );
    }
}
