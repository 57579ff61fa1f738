//! The dimensions of an autoencoder, from `vae/config.json` of a diffusers folder or from the shapes in a
//! single file.

use std::ops::RangeInclusive;
use std::path::Path;

use crate::Error;
use crate::formats::TensorSource;
use crate::json::Object;

/// Means of Wan 2.1's latents, by channel.
const MEANS_2_1: [f64; 16] = [
    -0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508, 0.4134, -0.0715, 0.5517,
    -0.3632, -0.1922, -0.9497, 0.2503, -0.2921,
];
/// Their standard deviations.
const DEVIATIONS_2_1: [f64; 16] = [
    2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743, 3.2687, 2.1526, 2.8652, 1.5579,
    1.6382, 1.1253, 2.8251, 1.9160,
];
/// Means of Wan 2.2's latents, by channel.
const MEANS_2_2: [f64; 48] = [
    -0.2289, -0.0052, -0.1323, -0.2339, -0.2799, 0.0174, 0.1838, 0.1557, -0.1382, 0.0542, 0.2813,
    0.0891, 0.1570, -0.0098, 0.0375, -0.1825, -0.2246, -0.1207, -0.0698, 0.5109, 0.2665, -0.2108,
    -0.2158, 0.2502, -0.2055, -0.0322, 0.1109, 0.1567, -0.0729, 0.0899, -0.2799, -0.1230, -0.0313,
    -0.1649, 0.0117, 0.0723, -0.2839, -0.2083, -0.0520, 0.3748, 0.0152, 0.1957, 0.1433, -0.2944,
    0.3573, -0.0548, -0.1681, -0.0667,
];
/// Their standard deviations.
const DEVIATIONS_2_2: [f64; 48] = [
    0.4765, 1.0364, 0.4514, 1.1677, 0.5313, 0.4990, 0.4818, 0.5013, 0.8158, 1.0344, 0.5894, 1.0901,
    0.6885, 0.6165, 0.8454, 0.4978, 0.5759, 0.3523, 0.7135, 0.6804, 0.5833, 1.4146, 0.8986, 0.5659,
    0.7069, 0.5338, 0.4889, 0.4917, 0.4069, 0.4999, 0.6866, 0.4093, 0.5709, 0.6065, 0.6415, 0.4944,
    0.5726, 1.2042, 0.5458, 1.6887, 0.3971, 1.0600, 0.3943, 0.5537, 0.5444, 0.4089, 0.7468, 0.7744,
];

/// Dimensions and variant of an autoencoder, with diffusers' names.
#[derive(Debug, Clone, PartialEq)]
pub struct AutoencoderConfig {
    /// Channels of the encoder's first stage.
    pub base_dim: i64,
    /// Channels of the decoder's last stage.
    pub decoder_base_dim: i64,
    /// Latent channels.
    pub z_dim: i64,
    /// Channels of each stage of the encoder, as multiples of `base_dim`; every stage but the last halves
    /// height and width.
    pub dim_mult: Vec<i64>,
    /// Residual blocks per stage of the encoder; the decoder has one more.
    pub num_res_blocks: i64,
    /// For each stage but the last: whether it also halves the frames (`temperal_downsample`).
    pub temporal_downsample: Vec<bool>,
    /// Mean of each latent channel.
    pub latents_mean: Vec<f64>,
    /// Standard deviation of each latent channel.
    pub latents_std: Vec<f64>,
    /// Whether every stage has a skip connection, as in Wan 2.2's autoencoder.
    pub is_residual: bool,
    /// Input channels: 3 for each pixel of a patch.
    pub in_channels: i64,
    /// Output channels.
    pub out_channels: i64,
    /// Side of the pixel patches that are folded into channels; 1 for none.
    pub patch_size: i64,
    /// Pixels per latent, in each direction.
    pub scale_factor_spatial: i64,
}

/// The class of autoencoders of videos, and of those that were trained on pictures alone.
const CLASSES: [&str; 2] = ["AutoencoderKLWan", "AutoencoderKLQwenImage"];

/// Keys of the second class, whose pictures are not folded into channels.
const KNOWN_OF_PICTURES: [&str; 10] = [
    "base_dim",
    "z_dim",
    "dim_mult",
    "num_res_blocks",
    "attn_scales",
    "temperal_downsample",
    "dropout",
    "input_channels",
    "latents_mean",
    "latents_std",
];

const KNOWN: [&str; 16] = [
    "base_dim",
    "decoder_base_dim",
    "z_dim",
    "dim_mult",
    "num_res_blocks",
    "attn_scales",
    "temperal_downsample",
    "dropout",
    "latents_mean",
    "latents_std",
    "is_residual",
    "in_channels",
    "out_channels",
    "patch_size",
    "scale_factor_temporal",
    "scale_factor_spatial",
];

/// Larger than in any autoencoder.
const MAX_STAGES: usize = 8;

/// The values under `key`, one for each latent channel.
fn statistics(object: &Object, key: &str, z_dim: i64, default: &[f64]) -> Result<Vec<f64>, Error> {
    let numbers = object.numbers(key)?.unwrap_or_else(|| default.to_vec());
    match numbers.len() as i64 == z_dim {
        true => Ok(numbers),
        false => {
            let reason = format!("has {} values for {z_dim} channels", numbers.len());
            Err(object.error(key, reason))
        }
    }
}

impl AutoencoderConfig {
    /// Reads a `config.json`, with a warning for each unknown key.
    pub fn read(path: &Path) -> Result<Self, Error> {
        Self::from_object(&Object::read(path)?)
    }

    fn from_object(object: &Object) -> Result<Self, Error> {
        let class = object.text("_class_name")?.unwrap_or(CLASSES[0]);
        let of_pictures = match CLASSES.iter().position(|known| *known == class) {
            Some(number) => number == 1,
            None => {
                let reason = format!("is {class:?}: only {CLASSES:?} are supported");
                return Err(object.error("_class_name", reason));
            }
        };
        match of_pictures {
            true => object.warn_about_unknown_keys(&KNOWN_OF_PICTURES),
            false => object.warn_about_unknown_keys(&KNOWN),
        }
        if object
            .numbers("attn_scales")?
            .is_some_and(|list| !list.is_empty())
        {
            let reason = "must be empty: attention between stages is not supported";
            return Err(object.error("attn_scales", reason));
        }
        let base_dim = object.integer("base_dim", Some(96), 1..=4096)?;
        let z_dim = object.integer("z_dim", Some(16), 1..=4096)?;
        let dim_mult = object.integers("dim_mult", 1..=64)?;
        let steps = object.flags("temperal_downsample")?;
        let dim_mult = dim_mult.unwrap_or_else(|| vec![1, 2, 4, 4]);
        let integer = |key: &str, default: i64, range: RangeInclusive<i64>| match of_pictures {
            true => Ok(default),
            false => object.integer(key, Some(default), range),
        };
        let patch_size = integer("patch_size", 1, 1..=16)?;
        let (in_channels, out_channels, scale) = match of_pictures {
            true => {
                let channels = object.integer("input_channels", Some(3), 1..=4096)?;
                (
                    channels,
                    channels,
                    1 << (dim_mult.len().clamp(1, MAX_STAGES) - 1),
                )
            }
            false => (
                integer("in_channels", 3, 1..=4096)?,
                integer("out_channels", 3, 1..=4096)?,
                integer("scale_factor_spatial", 8, 1..=256)?,
            ),
        };
        let config = Self {
            base_dim,
            decoder_base_dim: integer("decoder_base_dim", base_dim, 1..=4096)?,
            z_dim,
            dim_mult,
            num_res_blocks: object.integer("num_res_blocks", Some(2), 1..=64)?,
            temporal_downsample: steps.unwrap_or_else(|| vec![false, true, true]),
            latents_mean: statistics(object, "latents_mean", z_dim, &MEANS_2_1)?,
            latents_std: statistics(object, "latents_std", z_dim, &DEVIATIONS_2_1)?,
            is_residual: !of_pictures && object.flag("is_residual", false)?,
            in_channels,
            out_channels,
            patch_size,
            scale_factor_spatial: scale,
        };
        if integer("scale_factor_temporal", 4, 1..=64)? != 4 {
            return Err(object.error("scale_factor_temporal", "must be 4"));
        }
        match config.problem() {
            Some((key, reason)) => Err(object.error(key, reason)),
            None => Ok(config),
        }
    }

    /// Infers the config from the shapes in a file with diffusers' names. Latent statistics are those of the
    /// published autoencoder with the same number of channels.
    pub fn of_shapes(tensors: &dyn TensorSource) -> Result<Self, Error> {
        let sizes = Self::sizes(tensors)?;
        let (means, deviations): (&[f64], &[f64]) = match sizes.z_dim {
            16 => (&MEANS_2_1, &DEVIATIONS_2_1),
            48 => (&MEANS_2_2, &DEVIATIONS_2_2),
            channels => {
                let reason = format!(
                    "an autoencoder with {channels} latent channels: latent statistics are only known for \
                     Wan 2.1 (16) and Wan 2.2 5B (48); for others, put diffusers' `config.json` \
                     beside the file"
                );
                return Err(Error::file(tensors.path(), reason));
            }
        };
        Ok(Self {
            latents_mean: means.to_vec(),
            latents_std: deviations.to_vec(),
            ..sizes
        })
    }

    /// Everything but the latent statistics.
    fn sizes(tensors: &dyn TensorSource) -> Result<Self, Error> {
        let wrong = |reason: String| Error::file(tensors.path(), reason);
        let size = |name: &str, dimension: usize| -> Result<i64, Error> {
            let size = tensors
                .shape(name)
                .and_then(|shape| shape.get(dimension).copied());
            size.filter(|size| *size > 0).ok_or_else(|| {
                wrong(format!(
                    "not an autoencoder of videos: there is no `{name}` of {} dimensions or more",
                    dimension + 1
                ))
            })
        };
        let has = |name: &str| tensors.shape(name).is_some();
        let base_dim = size("encoder.conv_in.weight", 0)?;
        let in_channels = size("encoder.conv_in.weight", 1)?;
        let z_dim = size("post_quant_conv.weight", 0)?;
        let is_residual = has("encoder.down_blocks.0.resnets.0.conv1.weight");
        // Channels and number of the residual blocks of each stage, and whether it halves the frames at its
        // end.
        let mut stages: Vec<(i64, i64)> = Vec::new();
        let mut temporal_downsample = Vec::new();
        let mut listed = 0;
        loop {
            let stage = stages.len();
            let (mut width, mut count) = (0, 0);
            loop {
                let name = match is_residual {
                    true => format!("encoder.down_blocks.{stage}.resnets.{count}.conv1.weight"),
                    false => format!("encoder.down_blocks.{listed}.conv1.weight"),
                };
                if !has(&name) {
                    break;
                }
                width = size(&name, 0)?;
                (count, listed) = (count + 1, listed + 1);
            }
            if count == 0 || width % base_dim != 0 || stage == MAX_STAGES {
                return Err(wrong(format!(
                    "not an autoencoder of videos: stage {stage} of its encoder has {count} blocks of {width} channels"
                )));
            }
            stages.push((width / base_dim, count));
            let end = match is_residual {
                true => format!("encoder.down_blocks.{stage}.downsampler"),
                false => format!("encoder.down_blocks.{listed}"),
            };
            if !has(&format!("{end}.resample.1.weight")) {
                break;
            }
            temporal_downsample.push(has(&format!("{end}.time_conv.weight")));
            listed += 1;
        }
        let patch_size = (in_channels / 3).isqrt();
        let (first, blocks) = stages[0];
        let config = Self {
            base_dim,
            decoder_base_dim: size("decoder.norm_out.gamma", 0)? / first,
            z_dim,
            num_res_blocks: blocks,
            scale_factor_spatial: patch_size << (stages.len() - 1),
            dim_mult: stages.iter().map(|(factor, _)| *factor).collect(),
            temporal_downsample,
            latents_mean: Vec::new(),
            latents_std: Vec::new(),
            is_residual,
            in_channels,
            out_channels: size("decoder.conv_out.weight", 0)?,
            patch_size,
        };
        match config.problem() {
            Some((key, reason)) => Err(wrong(format!(
                "not an autoencoder of videos: `{key}` {reason}"
            ))),
            None => Ok(config),
        }
    }

    /// An inconsistency: a key, and what is wrong with it.
    fn problem(&self) -> Option<(&'static str, String)> {
        if self.latents_std.iter().any(|deviation| *deviation <= 0.0) {
            return Some(("latents_std", "must be greater than zero".into()));
        }
        let stages = self.dim_mult.len();
        if stages < 2 || self.temporal_downsample.len() != stages - 1 {
            let reason = format!(
                "must have one flag for each of the {stages} stages of `dim_mult` but the last, not {}",
                self.temporal_downsample.len()
            );
            return Some(("temperal_downsample", reason));
        }
        let in_time = self
            .temporal_downsample
            .iter()
            .filter(|step| **step)
            .count();
        if in_time != 2 {
            let reason = "must reduce 4 frames to one: exactly two flags set";
            return Some(("temperal_downsample", reason.into()));
        }
        let step = self.patch_size << (stages - 1);
        if self.scale_factor_spatial != step {
            let reason = format!(
                "must be {step}, as `dim_mult` and `patch_size` imply, not {}",
                self.scale_factor_spatial
            );
            return Some(("scale_factor_spatial", reason));
        }
        let channels = 3 * self.patch_size * self.patch_size;
        for (key, found) in [
            ("in_channels", self.in_channels),
            ("out_channels", self.out_channels),
        ] {
            if found != channels {
                let reason = format!("must be {channels}, the colours of a patch, not {found}");
                return Some((key, reason));
            }
        }
        let widths = self.dim_mult.iter().zip(self.dim_mult.iter().skip(1));
        let shared = |base: i64, (from, to): (&i64, &i64), factor: i64| {
            (from * base * factor) % (to * base) == 0
        };
        if self.is_residual && !widths.clone().all(|pair| shared(1, pair, 4)) {
            let reason = "widens a stage by more channels than its pixels can fill";
            return Some(("dim_mult", reason.into()));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::diffusion::files::PartFile;
    use crate::diffusion::parts::causal_kl::NAMES;
    use crate::diffusion::wan::names::TEXT_ENCODER;
    use crate::golden::golden;
    use crate::json::testing::reading;

    #[test]
    fn shapes_say_what_the_config_says() {
        for name in ["autoencoder-2.1", "autoencoder-2.2"] {
            let folder = golden(&format!("wan/{name}"));
            let tensors = PartFile::open(&NAMES, &folder).unwrap();
            let config = AutoencoderConfig::read(&folder.join("config.json")).unwrap();
            let expected = AutoencoderConfig {
                latents_mean: Vec::new(),
                latents_std: Vec::new(),
                ..config
            };
            assert_eq!(AutoencoderConfig::sizes(&tensors).unwrap(), expected);
            // The statistics are only known for published autoencoders.
            let error = AutoencoderConfig::of_shapes(&tensors).unwrap_err();
            assert!(error.to_string().contains("`config.json`"), "{error}");
        }
        let other = golden("wan/text-encoder");
        let tensors = PartFile::open(&TEXT_ENCODER, &other).unwrap();
        let error = AutoencoderConfig::of_shapes(&tensors).unwrap_err();
        assert!(
            error.to_string().contains("not an autoencoder of videos"),
            "{error}"
        );
    }

    #[test]
    fn each_key_of_a_config_is_obeyed_refused_or_without_effect() {
        let read = reading(AutoencoderConfig::read);
        let keys = [(CLASSES[0], &KNOWN[..]), (CLASSES[1], &KNOWN_OF_PICTURES)];
        let keys = keys
            .into_iter()
            .flat_map(|(class, keys)| keys.iter().map(move |key| (class, *key)));
        for (class, key) in keys {
            let plain = json!({"_class_name": class, "z_dim": 16});
            let base = read(&plain).unwrap();
            let mut config = plain.clone();
            config[key] = match key {
                "attn_scales" => json!([1.0]),
                "dim_mult" => json!([1, 2, 4]),
                "temperal_downsample" => json!([true, true, false]),
                "latents_mean" | "latents_std" => json!(vec![0.5; 16]),
                "is_residual" => json!(true),
                "dropout" => json!(0.5),
                _ => json!(5),
            };
            match read(&config) {
                Ok(found) if key == "dropout" => assert_eq!(found, base),
                Ok(found) => assert_ne!(found, base, "{key} changes nothing"),
                // Dimensions are checked together.
                Err(reason) => assert!(
                    reason.contains(key.trim_start_matches("input_"))
                        || ["z_dim", "dim_mult", "patch_size"].contains(&key),
                    "{key}: {reason}"
                ),
            }
        }
    }

    #[test]
    fn published_statistics_are_of_as_many_channels() {
        assert_eq!(MEANS_2_1.len(), DEVIATIONS_2_1.len());
        assert!(
            DEVIATIONS_2_1
                .iter()
                .chain(&DEVIATIONS_2_2)
                .all(|d| *d > 0.0)
        );
    }
}
