//! Encodes media and captions that are not in the cache, and lists all encoded clips.

mod regular;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use models::diffusion::parts::codec::MediaCodec;
use models::diffusion::{
    Conditions, Diffusion, FirstFrame, Framing, Geometry, Part, load_autoencoder,
};
use placement::Placer;
use tch::{Device, Kind, Tensor};

use super::Problems;
use super::buckets::{Size, buckets, other_buckets};
use super::cache::{self, Cache};
use super::clips::{ClipExtraction, Span};
use super::controls::{self, Control, ControlFiles};
use super::encoded_by::{self, ModelRequirements};
use super::frames::{self, Shape};
use super::masks::{LOSS_MASK, Mask, Masks};
use super::sources::{self, Source};
use super::tags;
use super::texts::{PlannedTexts, Prompt, TextKeys, identity};
use super::trim::Trim;
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
    /// Files of the orders of its caption's tags, which passes take in turn; empty if it has one text.
    pub(crate) orders: Vec<PathBuf>,
    /// Width, height and frames in pixels; clips of the same shape can share a batch.
    pub(crate) shape: (u32, u32, u32),
    /// Number of transformer tokens.
    pub(crate) tokens: u64,
    /// How often its folder's name asks for it in a pass.
    pub(crate) repeats: u32,
    /// Whether it is there so that the model does not forget it.
    pub(crate) is_regular: bool,
    /// The file of the empty text beside its control pictures; `None` if that of all is.
    pub(crate) empty: Option<PathBuf>,
    /// Width and height of each control picture in pixels; only clips whose are the same can share a batch.
    pub(crate) controls: Vec<Size>,
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

impl PlannedClip {
    /// Whether both have the same frames.
    fn is_another_size_of(&self, other: &Self) -> bool {
        let frames = |clip: &Self| clip.cut.as_ref().map(|cut| (cut.source.clone(), cut.span));
        self.cut.is_some() && frames(self) == frames(other)
    }
}

/// Frames of a medium, and their target size.
struct Cut {
    source: Source,
    shape: Shape,
    span: Span,
    size: Size,
    /// What of it counts, if there are masks.
    mask: Option<Mask>,
    /// Its control pictures.
    controls: Vec<Control>,
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
        texts: &[Prompt],
        placer: &mut Placer,
        observer: &mut dyn Observer,
    ) -> Result<Self, Error> {
        let folder = cache_folder(config);
        let geometry = model.geometry();
        let compute = config.train.bf16.kind(placer.device());
        let encoder = Encoder {
            config,
            model,
            cache: Cache::open(&folder)?,
            fps: frame_rate(config, geometry.fps),
            step: geometry.step() as u32,
            geometry,
            compute,
            autoencoder: identity(model, Part::Autoencoder)?,
            texts: TextKeys::open(model, compute)?,
        };
        encoder.run(texts, placer, observer)
    }
}

impl Encoder<'_> {
    fn run(
        self,
        texts: &[Prompt],
        placer: &mut Placer,
        observer: &mut dyn Observer,
    ) -> Result<VideoData, Error> {
        let data = &self.config.data;
        let path = crate::locate::text_path(data)?;
        let mut captions = PlannedTexts::new();
        let mut training = self.plan(&path, data, &mut captions, observer)?;
        let held_out = match crate::locate::eval_path(data)? {
            Some(other) => self.plan(&other, data, &mut captions, observer)?,
            None => {
                let count = training.len() as f64 * data.validation_fraction;
                let mut at = training.len() - (count as usize).min(training.len() - 1);
                // What is learned at one size is not held out at another.
                while at < training.len() && training[at].is_another_size_of(&training[at - 1]) {
                    at += 1;
                }
                training.split_off(at)
            }
        };
        if let Some(folder) = &data.reg_data_dir {
            training.extend(self.regular(folder, &path, &mut captions, observer)?);
        }
        let empty = self.texts.file("", &[], &self.cache, &mut captions)?;
        let mut others = Vec::new();
        for Prompt { text, controls } in texts {
            let controls = Control::open(controls, &self.cache)?.map_err(Error::Data)?;
            others.push((self.texts).file(text, &controls, &self.cache, &mut captions)?);
        }
        let texts = (self.texts).encode(&captions, self.model, placer, observer)?;
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
        data: &DataConfig,
        captions: &mut PlannedTexts,
        observer: &mut dyn Observer,
    ) -> Result<Vec<PlannedClip>, Error> {
        if let Some(by) = data.encoded_by {
            return self.import(path, by, observer);
        }
        let buckets = buckets(self.config, self.model)?;
        let others = other_buckets(self.config, self.model)?;
        let items = sources::list(path, data)?;
        let masks = Masks::of(data, path)?;
        let files = ControlFiles::of(data, path, items.iter().map(|item| &item.source))?;
        let dropped = data.caption_dropout.is_some_and(|share| share > 0.0);
        let [mut unmasked, mut uncontrolled, mut doubles, mut small] =
            std::array::from_fn(|_| Problems::default());
        let (mut seen, mut narrow) = (BTreeMap::new(), Problems::default());
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
            let mut sizes: Vec<Size> = buckets.of(shape.size).into_iter().collect();
            for size in others.iter().filter_map(|buckets| buckets.of(shape.size)) {
                if !sizes.contains(&size) {
                    sizes.push(size);
                }
            }
            let Some(&size) = sizes.first() else {
                wrong.add(format!(
                    "`{name}`: {} × {} pixels are too few for `data.bucket_no_upscale`",
                    shape.size.0, shape.size.1
                ));
                continue;
            };
            if let Some(first) = seen.insert(facts.content.clone(), name.clone()) {
                doubles.add(format!("`{name}` is `{first}` again"));
            }
            for &(to_width, to_height) in &sizes {
                let (width, height) = shape.size;
                if width < to_width && height < to_height {
                    small.add(format!(
                        "`{name}`: {width} × {height}, to {to_width} × {to_height}"
                    ));
                }
            }
            let kept = frames::kept(shape.size, size);
            if kept < 0.5 {
                narrow.add(format!("`{name}`: {:.0} %", 100.0 * kept));
            }
            let mask = masks.as_ref();
            let mask = mask.map(|masks| masks.of_medium(&item.source, shape, path));
            if mask == Some(Mask::Whole) {
                unmasked.add(format!("`{name}`"));
            }
            let controls = match (item.controls, &files) {
                (named, Some(files)) if named.is_empty() => files.of_medium(&item.source, path),
                (named, _) => named,
            };
            let controls = match Control::open(&controls, &self.cache)?
                .and_then(|controls| controls::checked(controls, self.model))
            {
                Ok(controls) => controls,
                Err(reason) => {
                    wrong.add(format!("`{name}`: {reason}"));
                    continue;
                }
            };
            if controls.is_empty() && files.is_some() {
                uncontrolled.add(format!("`{name}`"));
            }
            let mut file = |text: &str| self.texts.file(text, &controls, &self.cache, captions);
            let text = file(&tags::undivided(&item.caption, data))?;
            let empty = match dropped && !controls.is_empty() {
                true => Some(file("")?),
                false => None,
            };
            let orders = tags::orders(&item.caption, data, self.config.seed);
            let orders = orders.iter().map(|order| file(order));
            let orders = orders.collect::<Result<Vec<_>, _>>()?;
            let spans = self.spans(data, (shape, item.trim), &name, &mut short, &mut wrong);
            let sized = |span: Span| sizes.iter().map(move |size| (span, *size));
            for (span, size) in spans.into_iter().flat_map(sized) {
                let cut = Cut {
                    source: item.source.clone(),
                    shape,
                    span,
                    size,
                    mask: mask.clone(),
                    controls: controls.clone(),
                };
                let mut cut = self.planned(cut, &facts.content, &name, &text)?;
                cut.clip.orders.clone_from(&orders);
                cut.clip.empty = empty.clone();
                planned.push(cut);
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
        let by_files = matches!(masks, Some(Masks::Files(_)));
        unmasked.lack((count, by_files), "mask", "everything of them counts")?;
        uncontrolled.lack((count, true), "control picture", "they learn without")?;
        doubles.warn("media that are there twice, and seen as often");
        narrow.warn("media that are so narrow that less than half of them is left in the middle");
        small.warn(
            "media that are enlarged, which blurs them (`data.bucket_no_upscale` keeps their size)",
        );
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

    /// The area of control pictures, and the size of each.
    fn control_sizes(&self, controls: &[Control]) -> Option<(u32, Vec<Size>)> {
        let rule = self.model.controls().filter(|_| !controls.is_empty())?;
        let area = controls::area(&self.config.data, rule);
        let sizes = controls.iter().map(|control| rule.size(area, control.size));
        Some((area, sizes.collect()))
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
        (shape, trim): (Shape, Trim),
        name: &str,
        short: &mut Problems,
        wrong: &mut Problems,
    ) -> Vec<Span> {
        let part = match trim.of(shape, self.fps) {
            Ok(part) if shape.still => return vec![part],
            Ok(part) => part,
            Err(reason) => {
                wrong.add(format!("`{name}`: {reason}"));
                return Vec::new();
            }
        };
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
        let (spans, too_long) = cutting.clips(part);
        for length in too_long {
            short.add(format!(
                "`{name}` has {} frames at {} a second, and gives no clip of {length}: lower \
                 `data.num_frames` (up to {} fits)",
                part.frames,
                self.fps,
                self.geometry.whole_frames(part.frames.into())
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
        let controls = self.control_sizes(&cut.controls);
        if let Some((area, _)) = &controls {
            let contents = cut.controls.iter().map(|control| control.content.as_str());
            let contents: Vec<_> = contents.collect();
            numbers += &format!(" controls {area} {}", contents.join(" "));
        }
        let controls = controls.map_or(Vec::new(), |(_, sizes)| sizes);
        let places =
            |(width, height): &Size| u64::from(width / self.step) * u64::from(height / self.step);
        let key = cache::key(&[content, &numbers, &self.autoencoder]);
        let clip = Clip {
            name: match cut.shape.still {
                true => name.to_owned(),
                false => format!("{name} from frame {}, {} frames", span.start, span.frames),
            },
            latents: self.cache.latents(&key),
            key,
            text: text.to_owned(),
            orders: Vec::new(),
            shape: (size.0, size.1, span.frames),
            tokens: self.geometry.latent_frames(span.frames.into()) as u64 * places(&size)
                + controls.iter().map(places).sum::<u64>(),
            repeats: sources::repeats(cut.source.path()),
            is_regular: false,
            empty: None,
            controls,
        };
        Ok(PlannedClip {
            clip,
            cut: Some(cut),
        })
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
            if let Some((area, _)) = self.control_sizes(&cut.controls) {
                let pictures = cut.controls.iter();
                let pictures = pictures.map(|control| controls::picture_at(&control.path));
                let pictures = pictures.collect::<Result<Vec<_>, _>>()?;
                let (model, codec) = (self.model, &*autoencoder);
                conditions.extend(controls::latents_of(model, &pictures, area, codec)?);
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
pub(super) fn named(conditions: &Conditions) -> Vec<(String, &Tensor)> {
    let tensors = conditions.iter();
    tensors
        .map(|(name, tensor)| (name.to_owned(), tensor))
        .collect()
}
