//! `report.html`: a run on a single self-contained page, to view or to send.
//!
//! The page is a fixed template with inline style and script; the run's data is JSON that the script draws.
//! It loads nothing and works as a local file. It is written before the first step, so a run that fails has
//! one too.

use std::path::Path;

use placement::PlacementReport;
use serde::Serialize;

use crate::Error;
use crate::metrics::Record;
use crate::run_facts::Command;
use crate::run_folder::replace;
use crate::summary::Summary;

const FRAME: &str = include_str!("report/page.html");
const STYLE: &str = include_str!("report/page.css");
const SCRIPT: &str = include_str!("report/page.js");

/// The contents of a page.
#[derive(Serialize)]
pub(crate) struct Page<'a> {
    pub(crate) summary: &'a Summary,
    pub(crate) records: &'a [Record],
    pub(crate) placement: &'a PlacementReport,
    /// The error that ended the run, if any.
    pub(crate) error: Option<String>,
    /// When the page was written, in seconds since 1970.
    pub(crate) written: u64,
    /// Unit of the loss.
    pub(crate) loss_unit: &'static str,
    /// Number of warm-up steps.
    pub(crate) warmup_steps: u64,
    /// Commands that use the result.
    pub(crate) commands: Vec<Command>,
    /// The config as YAML.
    pub(crate) config: String,
}

impl Page<'_> {
    /// Writes the page atomically.
    pub(crate) fn write(&self, path: &Path) -> Result<(), Error> {
        replace(path, &self.html()?)
    }

    fn html(&self) -> Result<String, Error> {
        let data = serde_json::to_string(self)
            .map_err(|error| Error::Internal(format!("the report: {error}")))?;
        // Only `<` can end a script element or start a comment; in JSON it only occurs in strings, where it
        // can be escaped.
        let data = data.replace('<', "\\u003c");
        let frame = FRAME.replace("@STYLE@", STYLE.trim_end());
        // The data last, so that placeholders in it are not replaced.
        let frame = frame.replace("@SCRIPT@", SCRIPT.trim_end());
        Ok(frame.replacen("@DATA@", &data, 1))
    }
}
