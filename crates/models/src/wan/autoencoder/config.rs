//! What an autoencoder is: `vae/config.json` of a diffusers folder, or the shapes in a single file.

use std::path::Path;

use serde_json::{Value, json};

use super::FRAMES_PER_LATENT;
use crate::Error;
use crate::formats::TensorSource;
use crate::json::Object;

/// Means of Wan 2.1's latents, by channel.
const MEANS_2_1: [f64; 16] = [
    -0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508, 0.4134, -0.0715, 0.5517,
    -0.3632, -0.1922, -0.9497, 0.2503, -0.2921,
];
/// Their deviations.
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
/// Their deviations.
const DEVIATIONS_2_2: [f64; 48] = [
    0.4765, 1.0364, 0.4514, 1.1677, 0.5313, 0.4990, 0.4818, 0.5013, 0.8158, 1.0344, 0.5894, 1.0901,
    0.6885, 0.6165, 0.8454, 0.4978, 0.5759, 0.3523, 0.7135, 0.6804, 0.5833, 1.4146, 0.8986, 0.5659,
    0.7069, 0.5338, 0.4889, 0.4917, 0.4069, 0.4999, 0.6866, 0.4093, 0.5709, 0.6065, 0.6415, 0.4944,
    0.5726, 1.2042, 0.5458, 1.6887, 0.3971, 1.0600, 0.3943, 0.5537, 0.5444, 0.4089, 0.7468, 0.7744,
];

/// Sizes and variants of an autoencoder, under diffusers' names.
#[derive(Debug, Clone, PartialEq)]
pub struct AutoencoderConfig {
    /// Channels of the encoder's first stage.
    pub base_dim: i64,
    /// Channels of the decoder's last stage.
    pub decoder_base_dim: i64,
    /// Channels of latents.
    pub z_dim: i64,
    /// Channels of each stage of the encoder, in `base_dim`; every stage but the last halves the
    /// pixels.
    pub dim_mult: Vec<i64>,
    /// Residual blocks of a stage of the encoder; the decoder has one more.
    pub num_res_blocks: i64,
    /// For each stage but the last: whether it halves the frames, too (`temperal_downsample`).
    pub temporal_downsample: Vec<bool>,
    /// Mean of each channel of latents.
    pub latents_mean: Vec<f64>,
    /// Deviation of each channel of latents.
    pub latents_std: Vec<f64>,
    /// Whether every stage has a way around it, as in Wan 2.2's.
    pub is_residual: bool,
    /// Channels of what is encoded: 3 for each pixel of a patch.
    pub in_channels: i64,
    /// Channels of what is decoded.
    pub out_channels: i64,
    /// Side of the squares of pixels that are channels of one; 1 for none.
    pub patch_size: i64,
    /// Side of the square of pixels that a latent stands for.
    pub scale_factor_spatial: i64,
    /// Whether it is the linear one of models that are trained from nothing, which has no stages: what
    /// is said of them here is said of one pixel.
    pub is_linear: bool,
}

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

/// More than any autoencoder has.
const MAX_STAGES: usize = 8;
/// The class of the linear one, which is of this project.
const LINEAR: &str = "SurefootLinearAutoencoder";

const KNOWN_LINEAR: [&str; 3] = ["z_dim", "scale_factor_spatial", "scale_factor_temporal"];

/// The numbers under `key`, one for each channel of latents.
fn statistics(object: &Object, key: &str, z_dim: i64, default: &[f64]) -> Result<Vec<f64>, Error> {
    let numbers = object.numbers(key)?.unwrap_or_else(|| default.to_vec());
    match numbers.len() as i64 == z_dim {
        true => Ok(numbers),
        false => {
            let reason = format!("has {} numbers for {z_dim} channels", numbers.len());
            Err(object.error(key, reason))
        }
    }
}

impl AutoencoderConfig {
    /// Reads a `config.json`. Keys that are not known are told in a warning.
    ///
    /// # Errors
    /// When the file cannot be read, or describes an autoencoder that is not known here.
    pub fn read(path: &Path) -> Result<Self, Error> {
        Self::from_object(&Object::read(path)?)
    }

    /// A linear one: latents of `z_dim` channels, each for squares of `step` pixels.
    pub fn linear(z_dim: i64, step: i64) -> Self {
        Self {
            base_dim: 1,
            decoder_base_dim: 1,
            z_dim,
            dim_mult: vec![1],
            num_res_blocks: 0,
            temporal_downsample: Vec::new(),
            latents_mean: vec![0.0; z_dim.max(0) as usize],
            latents_std: vec![1.0; z_dim.max(0) as usize],
            is_residual: false,
            in_channels: 3,
            out_channels: 3,
            patch_size: 1,
            scale_factor_spatial: step,
            is_linear: true,
        }
    }

    /// What [`AutoencoderConfig::read`] reads of a linear one.
    pub fn linear_json(&self) -> Value {
        json!({
            "_class_name": LINEAR,
            "z_dim": self.z_dim,
            "scale_factor_spatial": self.scale_factor_spatial,
            "scale_factor_temporal": FRAMES_PER_LATENT,
        })
    }

    fn from_object(object: &Object) -> Result<Self, Error> {
        match object.text("_class_name")? {
            None | Some("AutoencoderKLWan") => {}
            Some(LINEAR) => return Self::linear_from_object(object),
            Some(class) => {
                let reason =
                    format!("is {class:?}: \"AutoencoderKLWan\" and \"{LINEAR}\" are known here");
                return Err(object.error("_class_name", reason));
            }
        }
        object.warn_of_others(&KNOWN);
        if object
            .numbers("attn_scales")?
            .is_some_and(|list| !list.is_empty())
        {
            let reason = "must be empty: attention between stages is not known here";
            return Err(object.error("attn_scales", reason));
        }
        let base_dim = object.whole("base_dim", Some(96), 1..=4096)?;
        let z_dim = object.whole("z_dim", Some(16), 1..=4096)?;
        let dim_mult = object.wholes("dim_mult", 1..=64)?;
        let steps = object.flags("temperal_downsample")?;
        let patch_size = object.whole("patch_size", Some(1), 1..=16)?;
        let config = Self {
            base_dim,
            decoder_base_dim: object.whole("decoder_base_dim", Some(base_dim), 1..=4096)?,
            z_dim,
            dim_mult: dim_mult.unwrap_or_else(|| vec![1, 2, 4, 4]),
            num_res_blocks: object.whole("num_res_blocks", Some(2), 1..=64)?,
            temporal_downsample: steps.unwrap_or_else(|| vec![false, true, true]),
            latents_mean: statistics(object, "latents_mean", z_dim, &MEANS_2_1)?,
            latents_std: statistics(object, "latents_std", z_dim, &DEVIATIONS_2_1)?,
            is_residual: object.flag("is_residual", false)?,
            in_channels: object.whole("in_channels", Some(3), 1..=4096)?,
            out_channels: object.whole("out_channels", Some(3), 1..=4096)?,
            patch_size,
            scale_factor_spatial: object.whole("scale_factor_spatial", Some(8), 1..=256)?,
            is_linear: false,
        };
        if object.whole("scale_factor_temporal", Some(4), 1..=64)? != 4 {
            return Err(object.error("scale_factor_temporal", "must be 4"));
        }
        match config.problem() {
            Some((key, reason)) => Err(object.error(key, reason)),
            None => Ok(config),
        }
    }

    fn linear_from_object(object: &Object) -> Result<Self, Error> {
        object.warn_of_others(&KNOWN_LINEAR);
        let z_dim = object.whole("z_dim", None, 1..=4096)?;
        let step = object.whole("scale_factor_spatial", None, 1..=64)?;
        if object.whole("scale_factor_temporal", Some(4), 1..=64)? != FRAMES_PER_LATENT {
            return Err(object.error("scale_factor_temporal", "must be 4"));
        }
        let most = 3 * step * step;
        match z_dim > most {
            true => {
                let reason = format!("is more than the {most} numbers that a latent stands for");
                Err(object.error("z_dim", reason))
            }
            false => Ok(Self::linear(z_dim, step)),
        }
    }

    /// What the shapes of a file say, whose tensors have diffusers' names; means and deviations of latents are
    /// those of the published autoencoder with as many channels.
    ///
    /// # Errors
    /// When a tensor is missing, or the autoencoder is not known here.
    pub fn of_shapes(tensors: &dyn TensorSource) -> Result<Self, Error> {
        let sizes = Self::sizes(tensors)?;
        let (means, deviations): (&[f64], &[f64]) = match sizes.z_dim {
            16 => (&MEANS_2_1, &DEVIATIONS_2_1),
            48 => (&MEANS_2_2, &DEVIATIONS_2_2),
            channels => {
                let reason = format!(
                    "an autoencoder with latents of {channels} channels: means and deviations are known here of \
                     Wan 2.1 (16) and of Wan 2.2 5B (48); those of another are read from a `config.json` of diffusers \
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

    /// All but means and deviations.
    fn sizes(tensors: &dyn TensorSource) -> Result<Self, Error> {
        let wrong = |reason: String| Error::file(tensors.path(), reason);
        let size = |name: &str, dimension: usize| -> Result<i64, Error> {
            let size = tensors
                .shape(name)
                .and_then(|shape| shape.get(dimension).copied());
            size.filter(|size| *size > 0).ok_or_else(|| {
                wrong(format!(
                    "not an autoencoder of Wan: there is no `{name}` of {} dimensions or more",
                    dimension + 1
                ))
            })
        };
        let has = |name: &str| tensors.shape(name).is_some();
        let base_dim = size("encoder.conv_in.weight", 0)?;
        let in_channels = size("encoder.conv_in.weight", 1)?;
        let z_dim = size("post_quant_conv.weight", 0)?;
        let is_residual = has("encoder.down_blocks.0.resnets.0.conv1.weight");
        // Width and number of the residual blocks of each stage, and whether it ends in halving the frames.
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
                    "not an autoencoder of Wan: stage {stage} of its encoder has {count} blocks of {width} channels"
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
            is_linear: false,
        };
        match config.problem() {
            Some((key, reason)) => Err(wrong(format!(
                "not an autoencoder of Wan: `{key}` {reason}"
            ))),
            None => Ok(config),
        }
    }

    /// What does not go together: a key, and what is wrong with it.
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
            let reason = "must make 4 frames one: exactly two flags set";
            return Some(("temperal_downsample", reason.into()));
        }
        let step = self.patch_size << (stages - 1);
        if self.scale_factor_spatial != step {
            let reason = format!(
                "must be {step}, which `dim_mult` and `patch_size` make, not {}",
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
                let reason = format!("must be {channels}, colours of a patch, not {found}");
                return Some((key, reason));
            }
        }
        let widths = self.dim_mult.iter().zip(self.dim_mult.iter().skip(1));
        let shared = |base: i64, (from, to): (&i64, &i64), factor: i64| {
            (from * base * factor) % (to * base) == 0
        };
        if self.is_residual && !widths.clone().all(|pair| shared(1, pair, 4)) {
            let reason = "widens a stage by more than its pixels can fill";
            return Some(("dim_mult", reason.into()));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::golden;
    use crate::wan::files::{Part, PartFile};

    #[test]
    fn shapes_say_what_the_config_says() {
        for name in ["autoencoder-2.1", "autoencoder-2.2"] {
            let folder = golden(&format!("wan/{name}"));
            let tensors = PartFile::open(Part::Autoencoder, &folder).unwrap();
            let config = AutoencoderConfig::read(&folder.join("config.json")).unwrap();
            let expected = AutoencoderConfig {
                latents_mean: Vec::new(),
                latents_std: Vec::new(),
                ..config
            };
            assert_eq!(AutoencoderConfig::sizes(&tensors).unwrap(), expected);
            // Of latents that nobody has published, the statistics are not known.
            let error = AutoencoderConfig::of_shapes(&tensors).unwrap_err();
            assert!(error.to_string().contains("`config.json`"), "{error}");
        }
        let other = golden("wan/text-encoder");
        let tensors = PartFile::open(Part::TextEncoder, &other).unwrap();
        let error = AutoencoderConfig::of_shapes(&tensors).unwrap_err();
        assert!(error.to_string().contains("not an autoencoder"), "{error}");
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
