//! Pictures and videos as they are used in training, for display: sizes, buckets, clips, captions.

use std::path::{Path, PathBuf};

use models::diffusion::{Diffusion, Geometry};
use serde::Serialize;

use super::buckets::{Buckets, buckets};
use super::clips::ClipExtraction;
use super::encode::frame_rate;
use super::frames;
use super::sources::{self, Found, Source};
use crate::Error;
use crate::config::Config;

/// The media of a config.
#[derive(Debug, Clone, Serialize)]
pub struct ShownMedia {
    /// The folder that file paths are relative to.
    pub folder: PathBuf,
    /// Frames per second that videos are resampled to.
    pub fps: f64,
    /// The word that every caption gets.
    pub trigger_word: Option<String>,
    /// Number of media.
    pub count: usize,
    /// The first of them.
    pub media: Vec<ShownMedium>,
}

/// A picture or a video.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ShownMedium {
    /// Its file or its folder of frames.
    pub file: PathBuf,
    /// `image`, `moving`, `video` or `frames`.
    pub kind: &'static str,
    /// The pictures of a folder of frames.
    pub frame_files: Vec<PathBuf>,
    /// The file of its caption, which may not exist yet; `None` if it is in a line of JSON.
    pub caption_file: Option<PathBuf>,
    /// Its caption as written.
    pub caption: Option<String>,
    /// Why it cannot be trained on.
    pub problem: Option<String>,
    /// Width and height in pixels.
    pub size: Option<(u32, u32)>,
    /// Number of frames after resampling.
    pub frames: Option<u32>,
    /// Width and height in training.
    pub bucket: Option<(u32, u32)>,
    /// First frame and length of each clip cut from it; empty for a picture.
    pub clips: Vec<(u32, u32)>,
}

/// The first `count` media at `path` by name, for a model.
pub(crate) fn shown_media(
    config: &Config,
    path: &Path,
    model: &dyn Diffusion,
    count: usize,
) -> Result<ShownMedia, Error> {
    let path = std::path::absolute(path).map_err(|error| Error::io("find", path, error))?;
    let folder = match path.is_dir() {
        true => path.clone(),
        false => path.parent().unwrap_or(Path::new("/")).to_owned(),
    };
    let buckets = buckets(config, model)?;
    let geometry = model.geometry();
    let fps = frame_rate(config, geometry.fps);
    let mut found = sources::find(&path, &config.data)?;
    // As people count them, which training need not do: 2.png before 10.png.
    found.sort_by_cached_key(|found| {
        let path = found.source.path();
        (path.parent().map(Path::to_owned), sources::natural(path))
    });
    Ok(ShownMedia {
        fps,
        trigger_word: config.data.trigger_word.clone(),
        count: found.len(),
        media: (found.into_iter().take(count))
            .map(|found| medium(config, found, &folder, &buckets, (geometry, fps)))
            .collect(),
        folder,
    })
}

fn medium(
    config: &Config,
    found: Found,
    folder: &Path,
    buckets: &Buckets,
    (geometry, fps): (Geometry, f64),
) -> ShownMedium {
    let below = |path: &Path| path.strip_prefix(folder).unwrap_or(path).to_owned();
    let mut problems = Vec::new();
    let caption = found.caption.map_err(|problem| problems.push(problem)).ok();
    let mut shown = ShownMedium {
        file: below(found.source.path()),
        kind: match &found.source {
            Source::Image(_) => "image",
            Source::Moving(_) => "moving",
            Source::Video(_) => "video",
            Source::Frames(..) => "frames",
        },
        frame_files: match &found.source {
            Source::Frames(_, files) => files.iter().map(|file| below(file)).collect(),
            _ => Vec::new(),
        },
        caption_file: found.caption_file.as_deref().map(below),
        caption,
        ..ShownMedium::default()
    };
    match frames::shape(&found.source, fps) {
        Err(problem) => problems.push(problem),
        Ok(shape) => {
            shown.size = Some(shape.size);
            shown.frames = Some(shape.frames);
            shown.bucket = buckets.of(shape.size);
            if shown.bucket.is_none() {
                problems.push("too few pixels for `data.bucket_no_upscale`".into());
            }
            match ClipExtraction::of(&config.data, geometry) {
                _ if shape.still => {}
                None => problems.push("it is a video, but `data.num_frames` is not set".into()),
                Some(cutting) => match found.trim.and_then(|trim| trim.of(shape, fps)) {
                    Err(problem) => problems.push(problem),
                    Ok(part) => {
                        let (spans, _) = cutting.clips(part);
                        if spans.is_empty() {
                            problems.push(format!(
                                "its {} frames are too few for `data.num_frames`",
                                part.frames
                            ));
                        }
                        let spans = spans.iter().map(|span| (span.start, span.frames));
                        shown.clips = spans.collect();
                    }
                },
            }
        }
    }
    shown.problem = (!problems.is_empty()).then(|| problems.join("; "));
    shown
}
