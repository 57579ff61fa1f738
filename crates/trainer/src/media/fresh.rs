//! The parts of a model that is trained from scratch: an autoencoder fitted to the clips, a text encoder with
//! random weights, and a tokenizer with the captions' words.
//!
//! They are created once, in the cache folder, under the hash of everything they depend on.

use std::path::{Path, PathBuf};

use models::diffusion::wan::autoencoder::{LinearFit, LinearWeights};
use models::diffusion::wan::fresh::FreshParts;
use models::diffusion::wan::transformer::TransformerConfig;
use tch::Tensor;

use super::Problems;
use super::buckets::{Buckets, Size};
use super::cache::{self, Cache};
use super::clips::{ClipExtraction, Span};
use super::encode::{buckets, cache_folder, frame_rate, pixels};
use super::frames::{self, Shape};
use super::sources::{self, Source};
use crate::Error;
use crate::config::{CHANNELS, Config, SCALE_FACTOR, WeightingScheme};
use crate::observer::Observer;

/// Increase when the same clips and settings would give other parts.
const FORMAT: &str = "parts-1";
/// Frames per second of clips.
pub(crate) const FRESH_FPS: u32 = 16;
/// Latents per token, in each direction.
const PATCH: u32 = 2;
/// Maximum number of clips that the autoencoder is fitted to, evenly spaced.
const MAX_FITTED_CLIPS: usize = 1024;

/// A medium from which clips can be read.
struct Medium {
    source: Source,
    shape: Shape,
    size: Size,
}

/// Pixels along one side of a token of such a model.
pub(crate) fn fresh_step(config: &Config) -> u32 {
    let factor = config.model.scale_factor_spatial.unwrap_or(SCALE_FACTOR);
    factor * PATCH
}

/// The folder of the parts for `config`.
pub(crate) fn fresh_parts(config: &Config, observer: &mut dyn Observer) -> Result<PathBuf, Error> {
    let root = cache_folder(config);
    let step = config.model.scale_factor_spatial.unwrap_or(SCALE_FACTOR);
    let shape = transformer(config);
    let buckets = buckets(config, step * PATCH)?;
    let (media, captions, contents) = find_media(config, &Cache::open(&root)?, &buckets, observer)?;
    let described = [
        FORMAT,
        &shape.to_json().to_string(),
        &format!("{step} {:?} {}", config.data, flow_shift(config)),
        &config.seed.to_string(),
        &captions.join("\n"),
        &contents.join(" "),
    ];
    let parts = root.join("parts");
    let folder = parts.join(cache::key(&described));
    if folder.join("model_index.json").is_file() {
        return Ok(folder);
    }
    let autoencoder = fit(config, &media, step, observer)?;
    std::fs::create_dir_all(&parts).map_err(|error| Error::io("create", &parts, error))?;
    let draft = tempfile::Builder::new().prefix(".tmp-").tempdir_in(&parts);
    let draft = draft.map_err(|error| Error::io("write to", &parts, error))?;
    let fresh = FreshParts {
        transformer: &shape,
        autoencoder: &autoencoder,
        captions: &captions,
        seed: config.seed,
        flow_shift: flow_shift(config),
    };
    fresh.write(draft.path())?;
    match std::fs::rename(draft.path(), &folder) {
        // Another process has created the same parts.
        Err(_) if folder.join("model_index.json").is_file() => Ok(folder),
        Err(error) => Err(Error::io("write", &folder, error)),
        Ok(()) => Ok(folder),
    }
}

/// The dimensions of the transformer in the config.
fn transformer(config: &Config) -> TransformerConfig {
    let model = &config.model;
    let channels = i64::from(model.in_channels.unwrap_or(CHANNELS));
    let heads = i64::from(model.num_attention_heads);
    let head = i64::from(model.attention_head_dim.unwrap_or(32));
    TransformerConfig {
        patch_size: [1, PATCH.into(), PATCH.into()],
        num_attention_heads: heads,
        attention_head_dim: head,
        in_channels: channels,
        out_channels: channels,
        text_dim: model.text_dim.unwrap_or(64).into(),
        freq_dim: model.freq_dim.unwrap_or(256).into(),
        ffn_dim: model.ffn_dim.map_or(4 * heads * head, i64::from),
        num_layers: model.num_layers.unwrap_or(4).into(),
        cross_attn_norm: true,
        eps: 1e-6,
        rope_max_seq_len: 1024,
    }
}

/// The shift of the scheduler, the same as in training.
fn flow_shift(config: &Config) -> f64 {
    let train = &config.train;
    let unset = match train.weighting_scheme {
        None | Some(WeightingScheme::Shift) => 5.0,
        Some(_) => 1.0,
    };
    train.flow_shift.unwrap_or(unset)
}

/// Media, their captions, and hashes of their contents.
type FoundMedia = (Vec<Medium>, Vec<String>, Vec<String>);

/// All media to train on.
fn find_media(
    config: &Config,
    cache: &Cache,
    buckets: &Buckets,
    observer: &mut dyn Observer,
) -> Result<FoundMedia, Error> {
    let path = crate::locate::text_path(&config.data)?;
    let items = sources::list(&path, &config.data)?;
    let (mut media, mut captions, mut contents) = (Vec::new(), Vec::new(), Vec::new());
    let mut wrong = Problems::default();
    let count = items.len();
    for (index, item) in items.into_iter().enumerate() {
        if index % 64 == 0 {
            observer.preparing(&format!("looking at the media: {index} of {count}"));
        }
        let facts = cache.facts(&item.source, frame_rate(config, FRESH_FPS))?;
        let facts = facts.map(|facts| (buckets.of(facts.shape().size), facts));
        let name = item.source.path().display().to_string();
        match facts {
            Err(reason) => wrong.add(format!("`{name}`: {reason}")),
            Ok((None, _)) => wrong.add(format!(
                "`{name}`: too few pixels for `data.bucket_no_upscale`"
            )),
            Ok((Some(size), facts)) => {
                media.push(Medium {
                    source: item.source,
                    shape: facts.shape(),
                    size,
                });
                captions.push(item.caption);
                contents.push(facts.content);
            }
        }
    }
    wrong.refuse(&format!(
        "media of `{}` that cannot be used",
        path.display()
    ))?;
    Ok((media, captions, contents))
}

/// Fits the autoencoder to the media.
fn fit(
    config: &Config,
    media: &[Medium],
    step: u32,
    observer: &mut dyn Observer,
) -> Result<LinearWeights, Error> {
    let _no_grad = tch::no_grad_guard();
    let mut fit = LinearFit::new(step.into())?;
    let spans = |medium| spans(config, medium).into_iter();
    let clips = media.iter();
    let clips = clips.flat_map(|medium| spans(medium).map(move |span| (medium, span)));
    let clips: Vec<(&Medium, Span)> = clips.collect();
    let shown = clips.len().min(MAX_FITTED_CLIPS);
    for number in 0..shown {
        if number % 64 == 0 {
            observer.preparing(&format!("fitting the autoencoder: {number} of {shown}"));
        }
        let (medium, span) = clips[number * clips.len() / shown];
        fit.push(&clip(config, medium, span)?)?;
    }
    let channels = config.model.in_channels.unwrap_or(CHANNELS);
    let weights = fit.finish(channels.into()).map_err(|error| match error {
        models::Error::Invalid(reason) => Error::Data(format!("the autoencoder: {reason}")),
        other => other.into(),
    })?;
    let [first, later] = weights.kept.map(|share| 100.0 * share);
    tracing::info!(
        "the autoencoder keeps {first:.1} % of the variance of first frames, and {later:.1} % of that of others"
    );
    Ok(weights)
}

/// The clips to cut from a medium.
fn spans(config: &Config, medium: &Medium) -> Vec<Span> {
    if medium.shape.still {
        let (start, frames) = (0, 1);
        return vec![Span { start, frames }];
    }
    match ClipExtraction::of(&config.data) {
        Some(cutting) => cutting.clips(medium.shape.frames).0,
        // This is reported when the clips are planned.
        None => Vec::new(),
    }
}

/// `[frames, 3, height, width]` from −1 to 1.
fn clip(config: &Config, medium: &Medium, span: Span) -> Result<Tensor, Error> {
    let Medium {
        source,
        shape,
        size,
    } = medium;
    let mut pictures = Vec::new();
    let fps = frame_rate(config, FRESH_FPS);
    let mut take = |picture| {
        let picture = pixels(&picture).map_err(|error| error.to_string())?;
        pictures.push(picture);
        Ok(())
    };
    frames::read(source, *shape, fps, span, *size, &mut take).map_err(|reason| {
        let name: &Path = source.path();
        Error::Data(format!("`{}`: {reason}", name.display()))
    })?;
    Ok(Tensor::f_cat(&pictures, 0)?)
}
