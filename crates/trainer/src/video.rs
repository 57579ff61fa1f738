//! Videos and images as training data: found with their captions, cut into clips of few sizes,
//! encoded once, and kept on the disk.
//!
//! ```text
//! folder or JSON lines ──media──▶ items ──frames──▶ size and length ──buckets, clips──▶ clips
//!                                   │                                                  │ autoencoder
//!                                   └─captions──▶ text encoder ──▶ cache ◀─────────────┘
//! ```

mod buckets;
mod cache;
mod clips;
mod density;
mod encode;
mod encoded_by;
pub(crate) mod ffmpeg;
pub(crate) mod frames;
mod fresh;
mod media;
mod shown;
mod trained;

pub(crate) use density::Density;
pub(crate) use encode::{Clip, VideoData};
pub(crate) use fresh::{fresh_parts, fresh_step};
pub(crate) use media::Source;
pub(crate) use shown::shown_media;
pub use shown::{ShownMedia, ShownMedium};
pub(crate) use trained::{TrainedPart, boundary, trained_parts};

use std::path::PathBuf;

use serde::Serialize;

use crate::Error;

/// What was encoded.
#[derive(Debug, Clone, Serialize)]
pub struct Encoded {
    /// The folder of the cache.
    pub folder: PathBuf,
    /// Clips to train on.
    pub clips: usize,
    /// Clips to measure on.
    pub held_out: usize,
    /// Clips that were not in the cache yet.
    pub encoded_clips: usize,
    /// Captions that were not in the cache yet.
    pub encoded_captions: usize,
}

/// What is wrong with data, told all at once.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    list: Vec<String>,
}

/// As many are told by name.
const TOLD: usize = 20;

impl Problems {
    /// Adds one.
    pub(crate) fn add(&mut self, problem: String) {
        self.list.push(problem);
    }

    /// The list, one a line.
    fn text(&self) -> String {
        let mut lines: Vec<&str> = self.list.iter().take(TOLD).map(String::as_str).collect();
        let more = format!("and {} more", self.list.len().saturating_sub(TOLD));
        if self.list.len() > TOLD {
            lines.push(&more);
        }
        lines.join("\n  ")
    }

    /// An error, if there is anything in it.
    pub(crate) fn refuse(&self, what: &str) -> Result<(), Error> {
        match self.list.is_empty() {
            true => Ok(()),
            false => Err(Error::Data(format!("{what}:\n  {}", self.text()))),
        }
    }

    /// A warning, if there is anything in it.
    pub(crate) fn warn(&self, what: &str) {
        if !self.list.is_empty() {
            tracing::warn!("{what}:\n  {}", self.text());
        }
    }
}
