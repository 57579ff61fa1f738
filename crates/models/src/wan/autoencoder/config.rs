//! What an autoencoder is: `vae/config.json` of a diffusers folder.

use std::path::Path;

use crate::Error;
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

impl AutoencoderConfig {
    /// Reads a `config.json`. Keys that are not known are told in a warning.
    ///
    /// # Errors
    /// When the file cannot be read, or describes an autoencoder that is not known here.
    pub fn read(path: &Path) -> Result<Self, Error> {
        Self::from_object(&Object::read(path)?)
    }

    fn from_object(object: &Object) -> Result<Self, Error> {
        if let Some(class) = object
            .text("_class_name")?
            .filter(|c| *c != "AutoencoderKLWan")
        {
            let reason = format!("is {class:?}: only \"AutoencoderKLWan\" is known here");
            return Err(object.error("_class_name", reason));
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
        let statistics = |key, default: &[f64]| -> Result<Vec<f64>, Error> {
            let numbers = object.numbers(key)?.unwrap_or_else(|| default.to_vec());
            match numbers.len() as i64 == z_dim {
                true => Ok(numbers),
                false => {
                    let reason = format!("has {} numbers for {z_dim} channels", numbers.len());
                    Err(object.error(key, reason))
                }
            }
        };
        let config = Self {
            base_dim,
            decoder_base_dim: object.whole("decoder_base_dim", Some(base_dim), 1..=4096)?,
            z_dim,
            dim_mult: dim_mult.unwrap_or_else(|| vec![1, 2, 4, 4]),
            num_res_blocks: object.whole("num_res_blocks", Some(2), 1..=64)?,
            temporal_downsample: steps.unwrap_or_else(|| vec![false, true, true]),
            latents_mean: statistics("latents_mean", &MEANS_2_1)?,
            latents_std: statistics("latents_std", &DEVIATIONS_2_1)?,
            is_residual: object.flag("is_residual", false)?,
            in_channels: object.whole("in_channels", Some(3), 1..=4096)?,
            out_channels: object.whole("out_channels", Some(3), 1..=4096)?,
            patch_size,
            scale_factor_spatial: object.whole("scale_factor_spatial", Some(8), 1..=256)?,
        };
        config.check(object)?;
        Ok(config)
    }

    /// Fails unless the numbers go together.
    fn check(&self, object: &Object) -> Result<(), Error> {
        if self.latents_std.iter().any(|deviation| *deviation <= 0.0) {
            return Err(object.error("latents_std", "must be greater than zero"));
        }
        let stages = self.dim_mult.len();
        if stages < 2 || self.temporal_downsample.len() != stages - 1 {
            let reason = format!(
                "must have one flag for each of the {stages} stages of `dim_mult` but the last, not {}",
                self.temporal_downsample.len()
            );
            return Err(object.error("temperal_downsample", reason));
        }
        let in_time = self
            .temporal_downsample
            .iter()
            .filter(|step| **step)
            .count();
        if in_time != 2 || object.whole("scale_factor_temporal", Some(4), 1..=64)? != 4 {
            let reason = "and `scale_factor_temporal` must make 4 frames one: exactly two flags set, \
                          and the factor 4";
            return Err(object.error("temperal_downsample", reason));
        }
        let step = self.patch_size << (stages - 1);
        if self.scale_factor_spatial != step {
            let reason = format!(
                "must be {step}, which `dim_mult` and `patch_size` make, not {}",
                self.scale_factor_spatial
            );
            return Err(object.error("scale_factor_spatial", reason));
        }
        let channels = 3 * self.patch_size * self.patch_size;
        for (key, found) in [
            ("in_channels", self.in_channels),
            ("out_channels", self.out_channels),
        ] {
            if found != channels {
                let reason = format!("must be {channels}, colours of a patch, not {found}");
                return Err(object.error(key, reason));
            }
        }
        let widths = self.dim_mult.iter().zip(self.dim_mult.iter().skip(1));
        let shared = |base: i64, (from, to): (&i64, &i64), factor: i64| {
            (from * base * factor) % (to * base) == 0
        };
        if self.is_residual && !widths.clone().all(|pair| shared(1, pair, 4)) {
            let reason = "widens a stage by more than its pixels can fill";
            return Err(object.error("dim_mult", reason));
        }
        Ok(())
    }
}
