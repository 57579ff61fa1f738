//! Which part of a video is used: what a file `.trim.json` beside it says, or `start` and `end` in its JSON line.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::clips::Span;
use super::frames::Shape;
use super::sources::Source;

/// What the file is called, after the name of the video with or without its ending.
pub(super) const EXTENSION: &str = ".trim.json";

/// What is before a frame by less than this, in frames, counts as at it: times have few digits.
const CLOSE: f64 = 1e-3;

/// A part of a video, in seconds from its beginning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Trim {
    /// Where it begins; unset: where the video does.
    #[serde(default)]
    pub(crate) start: Option<f64>,
    /// Where it ends; unset: where the video does.
    #[serde(default)]
    pub(crate) end: Option<f64>,
}

impl Trim {
    /// What a file says.
    pub(super) fn read(path: &Path) -> Result<Self, String> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let text = std::fs::read(path).map_err(|error| format!("`{name}`: {error}"))?;
        let read = serde_json::from_slice::<Self>(&text).map_err(|error| error.to_string());
        read.and_then(Self::checked)
            .map_err(|error| format!("`{name}`: {error}"))
    }

    /// The same, if it can be a part of a video.
    pub(super) fn checked(self) -> Result<Self, String> {
        for (key, time) in [("start", self.start), ("end", self.end)] {
            if let Some(time) = time.filter(|time| !(0.0..1e6).contains(time)) {
                return Err(format!(
                    "`{key}` {time} is no number of seconds from 0 to a million"
                ));
            }
        }
        match (self.start.unwrap_or(0.0), self.end) {
            (start, Some(end)) if end <= start => {
                Err(format!("`end` {end} is not after `start` {start}"))
            }
            _ => Ok(self),
        }
    }

    /// Which frames of a medium these are, of which there are `fps` a second.
    ///
    /// # Errors
    /// If it is no video, or there is none.
    pub(super) fn of(self, shape: Shape, fps: f64) -> Result<Span, String> {
        if shape.still && self != Self::default() {
            return Err("a picture has no part to be trimmed to".into());
        }
        let frame = |time: f64| (time * fps - CLOSE).ceil().max(0.0) as u32;
        let start = self.start.map_or(0, frame);
        let end = self.end.map_or(shape.frames, frame).min(shape.frames);
        match end.checked_sub(start) {
            Some(frames) if frames > 0 => Ok(Span { start, frames }),
            _ => Err(format!(
                "it is trimmed to nothing: it has {} frames at {fps} a second",
                shape.frames
            )),
        }
    }
}

/// How many media of a folder that may be videos have each name without its ending.
pub(super) fn namesakes(sources: &[Source]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for source in sources {
        if !matches!(source, Source::Image(_)) {
            *counts.entry(names(source)[1].clone()).or_insert(0) += 1;
        }
    }
    counts
}

/// The name of a medium, and that without its ending.
fn names(source: &Source) -> [String; 2] {
    let path = source.path();
    let whole = path.file_name().unwrap_or_default().to_string_lossy();
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    match source {
        Source::Frames(..) => [whole.clone().into(), whole.into()],
        _ => [whole.into(), stem.into()],
    }
}

/// What the file beside `source` says; `files` are those of its folder by what is before [`EXTENSION`], without those that were
/// read.
///
/// # Errors
/// If it cannot be read, or may be for several videos.
pub(super) fn beside(
    files: &mut BTreeMap<String, PathBuf>,
    source: &Source,
    namesakes: &BTreeMap<String, usize>,
) -> Result<Trim, String> {
    let [whole, stem] = names(source);
    if let Some(path) = files.remove(&whole) {
        return Trim::read(&path);
    }
    match (namesakes.get(&stem).copied().unwrap_or(0), source) {
        // It is for the video of this name.
        (1.., Source::Image(_)) => return Ok(Trim::default()),
        (2.., _) if files.contains_key(&stem) => {
            return Err(format!(
                "`{stem}{EXTENSION}` may be for several videos: call it `{whole}{EXTENSION}` if it is for that one"
            ));
        }
        _ => {}
    }
    match files.remove(&stem) {
        Some(path) => Trim::read(&path),
        None => Ok(Trim::default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_the_frames_whose_times_are_in_it() {
        let shape = Shape {
            size: (64, 64),
            frames: 40,
            still: false,
        };
        let of = |start, end| Trim { start, end }.of(shape, 16.0);
        let span = |start, frames| Ok(Span { start, frames });
        assert_eq!(of(None, None), span(0, 40));
        assert_eq!(of(Some(0.5), None), span(8, 32));
        // Frame 9 is shown at 0.5625 s, and frame 12 at 0.75 s.
        assert_eq!(of(Some(0.51), Some(0.7)), span(9, 3));
        assert_eq!(of(Some(0.56251), Some(0.75)), span(9, 3));
        assert_eq!(of(None, Some(99.0)), span(0, 40));
        assert!(of(Some(2.5), None).is_err());
        let still = Shape {
            frames: 1,
            still: true,
            ..shape
        };
        assert_eq!(Trim::default().of(still, 16.0), span(0, 1));
        assert!(
            Trim {
                start: Some(0.0),
                end: None
            }
            .of(still, 16.0)
            .is_err()
        );
    }

    #[test]
    fn what_is_no_part_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("a.trim.json");
        for (text, part) in [
            ("{\"start\": 1.5, \"end\": 4}", ""),
            ("{\"end\": null}", ""),
            ("{\"start\": -1}", "`start` -1"),
            (
                "{\"start\": 2, \"end\": 2}",
                "`end` 2 is not after `start` 2",
            ),
            ("{\"begin\": 2}", "unknown field `begin`"),
            ("[1, 2, 3]", "`a.trim.json`"),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = Trim::read(&path).err().unwrap_or_default();
            assert_eq!(error.is_empty(), part.is_empty(), "{text}: {error}");
            assert!(error.contains(part), "{error}");
        }
    }
}
