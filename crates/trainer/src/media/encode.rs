//! Encodes media and captions that are not in the cache, and lists all encoded clips.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use models::diffusion::parts::codec::MediaCodec;
use models::diffusion::{
    Conditions, Diffusion, FirstFrame, Framing, Geometry, Part, Tokenizer, load_autoencoder,
    load_text_encoder,
};
use models::pretrained::fingerprint;
use placement::Placer;
use tch::{Device, Kind, Tensor};

use super::Problems;
use super::buckets::{Buckets, Size};
use super::cache::{self, Cache};
use super::clips::{ClipExtraction, Span};
use super::encoded_by::{self, ModelRequirements};
use super::frames::{self, Shape};
use super::masks::{LOSS_MASK, Mask, Masks};
use super::sources::{self, Source};
use crate::Error;
use crate::config::{Config, DataConfig, EncodedBy};
use crate::observer::Observer;

/// An encoded clip.
#[derive(Debug, Clone)]
pub(crate) struct Clip {
    /// Its name in messages: the file, and the position in it.
    pub(crate) name: String,
    /// Identifies it when runs are compared: the key of its latents.
    pub(crate) key: String,
    /// Its latents' file.
    pub(crate) latents: PathBuf,
    /// Its text's file.
    pub(crate) text: PathBuf,
    /// Width, height and frames in pixels; clips of the same shape can share a batch.
    pub(crate) shape: (u32, u32, u32),
    /// Number of transformer tokens.
    pub(crate) tokens: u64,
    /// How often its folder's name asks for it in a pass.
    pub(crate) repeats: u32,
}

/// All clips, in the cache.
#[derive(Debug)]
pub(crate) struct VideoData {
    /// Clips to train on.
    pub(crate) training: Vec<Clip>,
    /// Held-out clips.
    pub(crate) held_out: Vec<Clip>,
    /// File of the empty text.
    pub(crate) empty: PathBuf,
    /// The cache's folder.
    pub(crate) folder: PathBuf,
    /// Files of the other requested texts, in order.
    pub(crate) texts: Vec<PathBuf>,
    /// Numbers of clips and texts that were encoded now.
    pub(crate) encoded: (usize, usize),
}

/// A clip before it is encoded.
struct PlannedClip {
    clip: Clip,
    /// Its frames; `None` if another trainer has encoded it.
    cut: Option<Cut>,
}

/// Frames of a medium, and their target size.
struct Cut {
    source: Source,
    shape: Shape,
    span: Span,
    size: Size,
    /// What of it counts, if there are masks.
    mask: Option<Mask>,
}

impl Cut {
    /// How its frames come to their size.
    fn framing(&self) -> Framing {
        let pair = |(width, height): (u32, u32)| (i64::from(width), i64::from(height));
        Framing {
            original: pair(self.shape.size),
            corner: pair(frames::corner(self.shape.size, self.size)),
            size: pair(self.size),
        }
    }
}

/// What encoding depends on besides the media.
struct Encoder<'a> {
    config: &'a Config,
    model: &'a dyn Diffusion,
    geometry: Geometry,
    cache: Cache,
    fps: f64,
    /// Pixels along one side of a token.
    step: u32,
    compute: Kind,
    /// Identifies the autoencoder's weights.
    autoencoder: String,
    texts: TextKeys,
}

impl VideoData {
    /// The clips that `config` describes for `model`, and other `texts`; encodes what is not in the cache.
    pub(crate) fn prepare(
        config: &Config,
        model: &dyn Diffusion,
        texts: &[String],
        placer: &mut Placer,
        observer: &mut dyn Observer,
    ) -> Result<Self, Error> {
        let folder = cache_folder(config);
        let geometry = model.geometry();
        let encoder = Encoder {
            config,
            model,
            cache: Cache::open(&folder)?,
            fps: frame_rate(config, geometry.fps),
            step: geometry.step() as u32,
            geometry,
            compute: config.train.bf16.kind(placer.device()),
            autoencoder: identity(model, Part::Autoencoder)?,
            texts: TextKeys::open(model)?,
        };
        encoder.run(texts, placer, observer)
    }
}

impl Encoder<'_> {
    fn run(
        self,
        texts: &[String],
        placer: &mut Placer,
        observer: &mut dyn Observer,
    ) -> Result<VideoData, Error> {
        let data = &self.config.data;
        let path = crate::locate::text_path(data)?;
        let mut captions = BTreeMap::new();
        let mut training = self.plan(&path, &mut captions, observer)?;
        let held_out = match crate::locate::eval_path(data)? {
            Some(other) => self.plan(&other, &mut captions, observer)?,
            None => {
                let count = training.len() as f64 * data.validation_fraction;
                training.split_off(training.len() - (count as usize).min(training.len() - 1))
            }
        };
        let empty = self.text_file("", &mut captions)?;
        let others = texts.iter().map(|text| self.text_file(text, &mut captions));
        let others = others.collect::<Result<_, _>>()?;
        let texts = self.encode_texts(&captions, placer, observer)?;
        let all: Vec<&PlannedClip> = training.iter().chain(&held_out).collect();
        let latents = self.encode_clips(&all, placer, observer)?;
        let clips = |list: Vec<PlannedClip>| list.into_iter().map(|planned| planned.clip).collect();
        Ok(VideoData {
            training: clips(training),
            held_out: clips(held_out),
            empty,
            texts: others,
            folder: self.cache.folder().to_owned(),
            encoded: (latents, texts),
        })
    }

    /// The clips of the media at `path`, and their captions by the file of the text.
    fn plan(
        &self,
        path: &Path,
        captions: &mut BTreeMap<PathBuf, Vec<Vec<u32>>>,
        observer: &mut dyn Observer,
    ) -> Result<Vec<PlannedClip>, Error> {
        let data = &self.config.data;
        if let Some(by) = data.encoded_by {
            return self.import(path, by, observer);
        }
        let buckets = buckets(self.config, self.model)?;
        let items = sources::list(path, data)?;
        let masks = Masks::of(data, path)?;
        let mut unmasked = Problems::default();
        let (mut planned, mut wrong, mut short) =
            (Vec::new(), Problems::default(), Problems::default());
        let count = items.len();
        for (index, item) in items.into_iter().enumerate() {
            if index % 64 == 0 {
                observer.preparing(&format!("looking at the media: {index} of {count}"));
            }
            let name = sources::shown(item.source.path(), path);
            let facts = match self.cache.facts(&item.source, self.fps)? {
                Ok(facts) => facts,
                Err(reason) => {
                    wrong.add(format!("`{name}`: {reason}"));
                    continue;
                }
            };
            let shape = facts.shape();
            let Some(size) = buckets.of(shape.size) else {
                wrong.add(format!(
                    "`{name}`: {} × {} pixels are too few for `data.bucket_no_upscale`",
                    shape.size.0, shape.size.1
                ));
                continue;
            };
            let mask = masks.as_ref();
            let mask = mask.map(|masks| masks.of_medium(&item.source, shape, path));
            if mask == Some(Mask::Whole) {
                unmasked.add(format!("`{name}`"));
            }
            let text = self.text_file(&item.caption, captions)?;
            for span in self.spans(data, shape, &name, &mut short, &mut wrong) {
                let cut = Cut {
                    source: item.source.clone(),
                    shape,
                    span,
                    size,
                    mask: mask.clone(),
                };
                planned.push(self.planned(cut, &facts.content, &name, &text)?);
            }
        }
        wrong.refuse(&format!(
            "media of `{}` that cannot be used",
            path.display()
        ))?;
        if planned.is_empty() {
            short.refuse(&format!("no clip is left of `{}`", path.display()))?;
        }
        short.warn("videos that are too short");
        if masks.is_some() && unmasked.len() == count {
            unmasked.refuse("there is no mask for any of the media")?;
        }
        unmasked.warn("media without a mask, of which everything counts");
        Ok(planned)
    }

    /// The clips in `path` that another trainer has encoded.
    fn import(
        &self,
        path: &Path,
        by: EncodedBy,
        observer: &mut dyn Observer,
    ) -> Result<Vec<PlannedClip>, Error> {
        let arch = self.model.arch();
        let caches = arch.caches.as_ref().ok_or_else(|| {
            Error::Data(format!(
                "`data.encoded_by`: no caches of other trainers are read for {}",
                arch.title
            ))
        })?;
        let fit = ModelRequirements {
            title: arch.title,
            caches,
            geometry: self.geometry,
            width: self.model.text_width()?,
            with_first_frame: self.with_first_frame(),
        };
        let clips = encoded_by::import(path, by, &fit, &self.cache, observer)?;
        Ok(clips
            .into_iter()
            .map(|clip| PlannedClip { clip, cut: None })
            .collect())
    }

    /// How much of what is masked counts.
    fn least(&self) -> f64 {
        self.config.data.mask_min_value.unwrap_or(0.0)
    }

    /// Whether clips need conditions of their first frame.
    fn with_first_frame(&self) -> bool {
        self.model.first_frame() == FirstFrame::Required
    }

    /// The clips to cut from a medium.
    fn spans(
        &self,
        data: &DataConfig,
        shape: Shape,
        name: &str,
        short: &mut Problems,
        wrong: &mut Problems,
    ) -> Vec<Span> {
        if shape.still {
            let image = Span {
                start: 0,
                frames: 1,
            };
            return vec![image];
        }
        if self.geometry.frames.is_none() {
            let title = self.model.arch().title;
            wrong.add(format!(
                "`{name}` is a video, and {title} learns pictures alone"
            ));
            return Vec::new();
        }
        let Some(cutting) = ClipExtraction::of(data, self.geometry) else {
            wrong.add(format!(
                "`{name}` is a video of {} frames, but `data.num_frames` is not set",
                shape.frames
            ));
            return Vec::new();
        };
        let (spans, too_long) = cutting.clips(shape.frames);
        for length in too_long {
            short.add(format!(
                "`{name}` has {} frames at {} a second, and gives no clip of {length}: lower \
                 `data.num_frames` (up to {} fits)",
                shape.frames,
                self.fps,
                self.geometry.whole_frames(shape.frames.into())
            ));
        }
        spans
    }

    fn planned(
        &self,
        cut: Cut,
        content: &str,
        name: &str,
        text: &Path,
    ) -> Result<PlannedClip, Error> {
        let (size, span) = (cut.size, cut.span);
        let mut numbers = format!(
            "{}x{} {}+{} at {} {:?} {}",
            size.0,
            size.1,
            span.start,
            span.frames,
            self.fps,
            self.compute,
            encoded_by::pipeline(self.with_first_frame())
        );
        if let Some(mask) = &cut.mask {
            numbers += &format!(" mask {}", mask.identity(&self.cache, self.least())?);
        }
        let key = cache::key(&[content, &numbers, &self.autoencoder]);
        let clip = Clip {
            name: match cut.shape.still {
                true => name.to_owned(),
                false => format!("{name} from frame {}, {} frames", span.start, span.frames),
            },
            latents: self.cache.latents(&key),
            key,
            text: text.to_owned(),
            shape: (size.0, size.1, span.frames),
            tokens: self.geometry.latent_frames(span.frames.into()) as u64
                * u64::from(size.0 / self.step)
                * u64::from(size.1 / self.step),
            repeats: sources::repeats(cut.source.path()),
        };
        Ok(PlannedClip {
            clip,
            cut: Some(cut),
        })
    }

    /// The file of a caption, whose tokens are added to `captions`.
    fn text_file(
        &self,
        caption: &str,
        captions: &mut BTreeMap<PathBuf, Vec<Vec<u32>>>,
    ) -> Result<PathBuf, Error> {
        let tokens = self.texts.tokens(caption)?;
        let ids: Vec<String> = tokens.iter().map(|ids| format!("{ids:?}")).collect();
        let key = cache::key(&[
            "text",
            &ids.join(" "),
            &self.texts.fingerprint,
            &format!("{:?}", self.compute),
        ]);
        let path = self.cache.text(&key);
        captions.insert(path.clone(), tokens);
        Ok(path)
    }

    /// Encodes the captions that are not in the cache; returns their number.
    fn encode_texts(
        &self,
        captions: &BTreeMap<PathBuf, Vec<Vec<u32>>>,
        placer: &mut Placer,
        observer: &mut dyn Observer,
    ) -> Result<usize, Error> {
        let missing: Vec<_> = captions
            .iter()
            .filter(|(path, _)| !cache::has(path))
            .collect();
        if missing.is_empty() {
            return Ok(0);
        }
        let _no_grad = tch::no_grad_guard();
        let (count, last) = (missing.len(), self.model.text_encoders());
        let encoded = missing.iter().map(|(_, ids)| self.model.of_tokens(ids));
        let mut encoded = encoded.collect::<Result<Vec<Conditions>, _>>()?;
        if last == 0 {
            // The denoiser is told tokens.
            for ((path, _), tokens) in missing.iter().zip(&encoded) {
                cache::write(path, &named(tokens))?;
            }
        }
        // One encoder after the other, so that only one is in memory.
        for number in 0..last {
            observer.preparing("loading the text encoder");
            let encoder = load_text_encoder(self.model, number, self.compute, true, placer)?;
            for (index, (path, tokens)) in missing.iter().enumerate() {
                observer.preparing(&format!("encoding captions: {index} of {count}"));
                let text = encoder.encode(&tokens[number])?;
                let text = text.map(|_, tensor| tensor.f_to_device(Device::Cpu))?;
                encoded[index].join(text)?;
                if number + 1 == last {
                    cache::write(path, &named(&std::mem::take(&mut encoded[index])))?;
                }
            }
        }
        Ok(count)
    }

    /// Encodes the clips that are not in the cache; returns their number.
    fn encode_clips(
        &self,
        clips: &[&PlannedClip],
        placer: &mut Placer,
        observer: &mut dyn Observer,
    ) -> Result<usize, Error> {
        let missing: BTreeMap<&Path, (&Clip, &Cut)> = clips
            .iter()
            .filter_map(|planned| Some((&planned.clip, planned.cut.as_ref()?)))
            .filter(|(clip, _)| !cache::has(&clip.latents))
            .map(|(clip, cut)| (clip.latents.as_path(), (clip, cut)))
            .collect();
        if missing.is_empty() {
            return Ok(0);
        }
        observer.preparing("loading the autoencoder");
        let _no_grad = tch::no_grad_guard();
        let autoencoder = load_autoencoder(self.model, self.compute, placer)?;
        let count = missing.len();
        for (index, (path, (clip, cut))) in missing.into_iter().enumerate() {
            observer.preparing(&format!("encoding clips: {index} of {count}"));
            let told = |error: Error| match error {
                Error::Data(reason) => Error::Data(format!("{}: {reason}", clip.name)),
                other => other,
            };
            let (latents, first) = self.encode_clip(&*autoencoder, cut).map_err(told)?;
            let frames = i64::from(cut.span.frames);
            let mut conditions = self.model.framing_conditions(cut.framing())?;
            if self.with_first_frame() {
                let (model, codec) = (self.model, &*autoencoder);
                let made = model.first_frame_conditions(codec, &first, frames, None)?;
                conditions.extend(made.map(|_, tensor| tensor.f_to_device(Device::Cpu))?);
            }
            if let Some(mask) = &cut.mask {
                let mask = mask.for_latents(&latents, cut.shape, cut.size, self.least());
                conditions.insert(LOSS_MASK, mask.map_err(told)?);
            }
            let mut tensors = vec![("latents".to_owned(), &latents)];
            tensors.extend(named(&conditions));
            let finite = |tensor: &Tensor| -> Result<bool, Error> {
                Ok(f64::try_from(&tensor.f_sum(Kind::Double)?)?.is_finite())
            };
            if !finite(&latents)? {
                return Err(Error::Diverged(format!(
                    "the autoencoder makes numbers that are not finite of {}: look at its weights, or \
                     set `train.bf16: false`",
                    clip.name
                )));
            }
            cache::write(path, &tensors)?;
        }
        Ok(count)
    }

    /// The latents of a clip, and its first frame, `[1, 3, height, width]` from −1 to 1.
    fn encode_clip(
        &self,
        autoencoder: &dyn MediaCodec,
        cut: &Cut,
    ) -> Result<(Tensor, Tensor), Error> {
        let (width, height) = (i64::from(cut.size.0), i64::from(cut.size.1));
        let mut encoding = autoencoder.encoding(height, width, None)?;
        let (mut latents, mut first, mut failed) = (Vec::new(), None, None);
        let mut push = |picture: image::RgbImage| -> Result<(), Error> {
            let frame = frames::pixels(&picture)?;
            latents.extend(encoding.push(&frame)?);
            first.get_or_insert(frame);
            Ok(())
        };
        let read = frames::read(
            &cut.source,
            cut.shape,
            self.fps,
            cut.span,
            cut.size,
            &mut |picture| {
                push(picture).map_err(|error| {
                    let reason = error.to_string();
                    failed = Some(error);
                    reason
                })
            },
        );
        if let Some(error) = failed {
            return Err(error);
        }
        read.map_err(Error::Data)?;
        encoding.finish()?;
        let first = first.ok_or_else(|| Error::Data("it has no frames".into()))?;
        Ok((
            Tensor::f_stack(&latents, 1)?.f_to_device(Device::Cpu)?,
            first,
        ))
    }
}

/// The available picture sizes for a model.
pub(super) fn buckets(config: &Config, model: &dyn Diffusion) -> Result<Buckets, Error> {
    let data = &config.data;
    let sides = data.resolution.as_ref().map(|numbers| numbers.list());
    let size = match sides {
        Some([side]) => (*side, *side),
        Some([width, height]) => (*width, *height),
        _ => return Err(Error::Data("`data.resolution` is not set".into())),
    };
    let bucketed = data.enable_bucket.unwrap_or(true);
    Buckets::new(
        size,
        model.bucket_step() as u32,
        bucketed,
        data.bucket_no_upscale.unwrap_or(false),
    )
}

/// Frames per second that media are resampled to.
pub(super) fn frame_rate(config: &Config, unset: u32) -> f64 {
    config.data.fps.unwrap_or(unset.into())
}

/// The folder for encoded clips and captions.
pub(super) fn cache_folder(config: &Config) -> PathBuf {
    let set = config.data.cache_dir.clone();
    set.unwrap_or_else(|| crate::data::cache_folder().join("videos"))
}

/// The tensors of a cache file.
fn named(conditions: &Conditions) -> Vec<(String, &Tensor)> {
    let tensors = conditions.iter();
    tensors
        .map(|(name, tensor)| (name.to_owned(), tensor))
        .collect()
}

/// The tokenizer, and everything else that the encoding of captions depends on.
struct TextKeys {
    tokenizer: Box<dyn Tokenizer>,
    fingerprint: String,
}

impl TextKeys {
    fn open(model: &dyn Diffusion) -> Result<Self, Error> {
        let encoders = 0..model.text_encoders();
        let encoders = encoders.map(|number| identity(model, Part::TextEncoder(number)));
        Ok(Self {
            tokenizer: model.tokenizer()?,
            fingerprint: encoders.collect::<Result<Vec<_>, _>>()?.join(" "),
        })
    }

    /// The tokens of a caption, at most as many as the model reads, including the end token.
    fn tokens(&self, caption: &str) -> Result<Vec<Vec<u32>>, Error> {
        let (count, most) = self.tokenizer.length(caption)?;
        if count > most {
            tracing::warn!("a caption of {count} tokens is truncated to {most}: {caption:?}");
        }
        Ok(self.tokenizer.tokens(caption)?)
    }
}

/// Identifies what a part computes: its weights, and its config if it has one.
fn identity(model: &dyn Diffusion, part: Part) -> Result<String, Error> {
    let mut identity = fingerprint(&model.weights(part)?)?;
    let config = model.part(part).map(|path| path.join("config.json"));
    if let Some(config) = config.filter(|config| config.is_file()) {
        let text = std::fs::read(&config).map_err(|error| Error::io("read", &config, error))?;
        identity += &format!(" {:08x}", crc32c::crc32c(&text));
    }
    Ok(identity)
}
