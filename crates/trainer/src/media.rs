//! Videos and images as training data: found with their captions, cut into clips of a few sizes, encoded
//! once, and cached on disk.
//!
//! ```text
//! folder or JSON lines ──media──▶ items ──frames──▶ size and length ──buckets, clips──▶ clips
//!                                   │                                                  │ autoencoder
//!                                   └─captions──▶ text encoder ──▶ cache ◀─────────────┘
//! ```

mod buckets;
mod cache;
mod clips;
mod controls;
mod density;
mod encode;
mod encoded_by;
pub(crate) mod ffmpeg;
pub(crate) mod frames;
mod masks;
mod shown;
mod sources;
mod tags;
mod texts;
mod trained;
mod trim;

pub(crate) use buckets::largest_size;
pub(crate) use cache::{key, stamp};
pub(crate) use controls::{area as control_area, latents_of, picture_at};
pub(crate) use density::Density;
pub(crate) use encode::{Clip, VideoData};
pub(crate) use masks::{LOSS_MASK, masked_means};
pub(crate) use shown::shown_media;
pub use shown::{ShownMedia, ShownMedium};
pub(crate) use sources::Source;
pub(crate) use texts::Prompt;
pub(crate) use trained::{TrainedPart, boundary, trained_parts};

use std::path::PathBuf;

use serde::Serialize;

use crate::Error;

/// The result of encoding.
#[derive(Debug, Clone, Serialize)]
pub struct Encoded {
    /// The cache's folder.
    pub folder: PathBuf,
    /// Clips to train on.
    pub clips: usize,
    /// Held-out clips.
    pub held_out: usize,
    /// Clips that were not in the cache yet.
    pub encoded_clips: usize,
    /// Captions that were not in the cache yet.
    pub encoded_captions: usize,
}

/// Problems with data, reported together.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    list: Vec<String>,
}

/// Maximum number of problems that are listed.
const MAX_LISTED: usize = 20;

const HEIC: &str =
    "HEIC is not read; `heif-convert` or `magick mogrify -format png *.heic` converts it";

impl Problems {
    /// Adds a problem.
    pub(crate) fn add(&mut self, problem: String) {
        self.list.push(problem);
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// The problems, one per line.
    fn text(&self) -> String {
        let mut lines: Vec<&str> = self
            .list
            .iter()
            .take(MAX_LISTED)
            .map(String::as_str)
            .collect();
        let more = format!("and {} more", self.list.len().saturating_sub(MAX_LISTED));
        if self.list.len() > MAX_LISTED {
            lines.push(&more);
        }
        lines.join("\n  ")
    }

    /// Fails if there are problems.
    pub(crate) fn refuse(&self, what: &str) -> Result<(), Error> {
        match self.list.is_empty() {
            true => Ok(()),
            false => Err(Error::Data(format!("{what}:\n  {}", self.text()))),
        }
    }

    /// Warns of those of `count` media that have no `what`, or fails if none has one and `some_must`.
    pub(crate) fn lack(
        &self,
        (count, some_must): (usize, bool),
        what: &str,
        so: &str,
    ) -> Result<(), Error> {
        if some_must && self.len() == count {
            self.refuse(&format!("there is no {what} for any of the media"))?;
        }
        let lacking = self.len();
        self.warn(&format!(
            "{lacking} of {count} media have no {what}, so that {so}"
        ));
        Ok(())
    }

    /// Warns if there are problems.
    pub(crate) fn warn(&self, what: &str) {
        if !self.list.is_empty() {
            tracing::warn!("{what}:\n  {}", self.text());
        }
    }
}
