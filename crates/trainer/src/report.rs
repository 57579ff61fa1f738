//! `report.html`: a run on one page that needs nothing else, to look at or to send.
//!
//! The page is a fixed frame with its style and script inside, and the run's numbers as
//! JSON, which the script draws. It loads nothing and works from a file. It is there before the
//! first step, so that a run that breaks has one too.

mod commands;

use std::path::Path;

use placement::PlacementReport;
use serde::Serialize;

use crate::Error;
use crate::metrics::Record;
use crate::run_folder::replace;
use crate::summary::Summary;

pub(crate) use commands::{Command, commands};

const FRAME: &str = include_str!("report/page.html");
const STYLE: &str = include_str!("report/page.css");
const SCRIPT: &str = include_str!("report/page.js");

/// What a page shows.
#[derive(Serialize)]
pub(crate) struct Page<'a> {
    pub(crate) summary: &'a Summary,
    pub(crate) records: &'a [Record],
    pub(crate) placement: &'a PlacementReport,
    /// What the run ended with, if that was an error.
    pub(crate) error: Option<String>,
    /// When the page was written, in seconds since 1970.
    pub(crate) written: u64,
    /// What a loss is measured in.
    pub(crate) loss_unit: &'static str,
    /// Steps of the warm-up of the learning rate.
    pub(crate) warmup_steps: u64,
    /// What to type to use the result.
    pub(crate) commands: Vec<Command>,
    /// The config as YAML.
    pub(crate) config: String,
}

impl Page<'_> {
    /// Writes the page; an older one stays whole until the new one is.
    pub(crate) fn write(&self, path: &Path) -> Result<(), Error> {
        replace(path, &self.html()?)
    }

    fn html(&self) -> Result<String, Error> {
        let data = serde_json::to_string(self)
            .map_err(|error| Error::Internal(format!("the report: {error}")))?;
        // Inside a script element only `<` can end it or begin a comment; in JSON it stands
        // in strings alone, where it may be written so.
        let data = data.replace('<', "\\u003c");
        let frame = FRAME.replace("@STYLE@", STYLE.trim_end());
        // The data last: what is in them is not looked at any more.
        let frame = frame.replace("@SCRIPT@", SCRIPT.trim_end());
        Ok(frame.replacen("@DATA@", &data, 1))
    }
}
