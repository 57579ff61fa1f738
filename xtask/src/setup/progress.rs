//! Progress of a long step on stderr: a bar on a terminal, occasional lines elsewhere.

use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// Interval of lines if stderr is not a terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Progress of one step, in bytes.
pub(crate) struct Progress {
    what: String,
    total: u64,
    /// `None` if stderr is not a terminal.
    bar: Option<ProgressBar>,
    last_line: Instant,
}

impl Progress {
    /// Announces the step; `total` is its length in bytes.
    pub(crate) fn start(what: impl Into<String>, total: u64) -> Progress {
        let what = what.into();
        let bar = stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(total).with_message(what.clone());
            let template = "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
            match ProgressStyle::with_template(template) {
                Ok(style) => bar.with_style(style),
                Err(_) => bar,
            }
        });
        if bar.is_none() {
            eprintln!("{what} ({})", megabytes(total));
        }
        Progress {
            what,
            total,
            bar,
            last_line: Instant::now(),
        }
    }

    /// Sets the number of bytes done.
    pub(crate) fn set(&mut self, done: u64) {
        let done = done.min(self.total);
        match &self.bar {
            Some(bar) => bar.set_position(done),
            None if self.last_line.elapsed() >= LINE_EVERY => {
                self.last_line = Instant::now();
                let percent = done * 100 / self.total.max(1);
                eprintln!("{}: {percent} % of {}", self.what, megabytes(self.total));
            }
            None => {}
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Formats bytes as a download size.
pub(crate) fn megabytes(bytes: u64) -> String {
    format!("{:.0} MB", bytes as f64 / 1e6)
}
