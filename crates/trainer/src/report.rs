//! `report.html`: a run on one page that needs nothing else, to look at or to send.
//!
//! The page is a fixed frame with its style and script inside, and the run's numbers as
//! JSON, which the script draws. It loads nothing and works from a file.

use std::path::Path;

use placement::PlacementReport;
use serde::Serialize;

use crate::Error;
use crate::metrics::Record;
use crate::summary::Summary;

const FRAME: &str = include_str!("report/page.html");
const STYLE: &str = include_str!("report/page.css");
const SCRIPT: &str = include_str!("report/page.js");

/// What a page shows.
#[derive(Serialize)]
pub(crate) struct Page<'a> {
    pub(crate) summary: &'a Summary,
    pub(crate) records: &'a [Record],
    pub(crate) placement: &'a PlacementReport,
    /// The config as YAML.
    pub(crate) config: String,
}

impl Page<'_> {
    /// Writes the page; an older one stays whole until the new one is.
    pub(crate) fn write(&self, path: &Path) -> Result<(), Error> {
        let html = self.html()?;
        let temporary = path.with_extension("html.tmp");
        std::fs::write(&temporary, html)
            .and_then(|()| std::fs::rename(&temporary, path))
            .map_err(|error| Error::io("write", path, error))
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
