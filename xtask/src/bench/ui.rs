//! `cargo xtask bench ui`: what the page of `surefoot ui` costs.
//!
//! `crates/ui/web/tests/bench.mjs` measures it with the release build and Debian's Chromium: memory and CPU
//! of an idle server, first paint, a run of 100,000 points, a folder of 10,000 pictures, a list of 500 runs, 1,000 jobs,
//! and how much five open tabs in a browser
//! elsewhere slow down a training, in pairs.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use xshell::cmd;

use crate::{ui, workspace};

/// Memory, CPU and first paint of the page, and what it takes from a training.
#[derive(clap::Args)]
pub(crate) struct UiBench {
    /// Pairs of trainings, one of each with five tabs open on it; 0 leaves them out
    #[arg(long, value_name = "N", default_value_t = 10)]
    pairs: u32,

    /// Steps of each training
    #[arg(long, value_name = "N", default_value_t = 1500, value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,

    /// Where the numbers go [default: bench/ui.json in the target folder]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

impl UiBench {
    pub(crate) fn run(self) -> Result<()> {
        let shell = workspace::shell()?;
        let Some(web) = ui::browser_place(&shell)? else {
            bail!("this needs node 20 or newer, npm and /usr/bin/chromium");
        };
        let cargo = workspace::cargo();
        // Only trainings need the trainer, which takes much longer to compile than all else.
        let features = (self.pairs == 0).then_some("--no-default-features");
        cmd!(shell, "{cargo} build --release -p surefoot {features...}").run()?;
        let target = workspace::target(&shell)?;
        let (pairs, steps) = (self.pairs.to_string(), self.steps.to_string());
        let _web = shell.push_dir(web);
        let text = cmd!(shell, "node tests/bench.mjs")
            .env("SUREFOOT", target.join("release/surefoot"))
            .env("PAIRS", pairs)
            .env("STEPS", steps)
            .read()?;
        let found: Value = serde_json::from_str(&text).context("what bench.mjs printed")?;
        print(&found);
        let path = self.out.unwrap_or_else(|| target.join("bench/ui.json"));
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(&path, text + "\n")
            .with_context(|| format!("cannot write `{}`", path.display()))?;
        eprintln!("wrote {}", path.display());
        Ok(())
    }
}

/// Prints the results beside their targets.
fn print(found: &Value) {
    let row = |what: &str, pointer: &str, scale: f64, unit: &str, bound: &str| {
        if let Some(value) = found.pointer(pointer).and_then(Value::as_f64) {
            println!("{what:<44} {:>8.2} {unit:<4} {bound}", value / scale);
        }
    };
    let mebi = f64::from(1 << 20);
    row(
        "memory of the server, idle",
        "/idle/resident_bytes",
        mebi,
        "MiB",
        "at most 28.6 (30 MB)",
    );
    row(
        "CPU of the server, idle",
        "/idle/cpu_percent",
        1.0,
        "%",
        "at most 0.1",
    );
    let watched = "/idle_with_the_list_open";
    row(
        "memory, the list open",
        &format!("{watched}/resident_bytes"),
        mebi,
        "MiB",
        "",
    );
    row(
        "CPU, the list open",
        &format!("{watched}/cpu_percent"),
        1.0,
        "%",
        "",
    );
    row(
        "first paint from a cold start, median",
        "/first_paint_ms/median",
        1.0,
        "ms",
        "at most 150",
    );
    let long = "/points_100000";
    row(
        "100,000 points, until they are seen",
        &format!("{long}/shown_ms"),
        1.0,
        "ms",
        "at most 200",
    );
    row(
        "a frame of theirs, median",
        &format!("{long}/frame_ms_median"),
        1.0,
        "ms",
        "",
    );
    row(
        "a frame of theirs, the longest",
        &format!("{long}/frame_ms_most"),
        1.0,
        "ms",
        "at most 16",
    );
    let pictures = "/pictures_10000";
    row(
        "10,000 pictures, until they are seen",
        &format!("{pictures}/shown_ms"),
        1.0,
        "ms",
        "",
    );
    row(
        "a frame while they are scrolled, the longest",
        &format!("{pictures}/frame_ms_most"),
        1.0,
        "ms",
        "at most 32",
    );
    row(
        "CPU, 500 runs and three tabs, of one core",
        "/runs_500_three_tabs/cpu_percent",
        1.0,
        "%",
        "at most 1",
    );
    row(
        "1,000 jobs, until the last is added",
        "/jobs_1000_seconds",
        1.0,
        "s",
        "at most 5",
    );
    let tabs = "/training_with_five_tabs";
    row(
        "a training with five tabs, slower by",
        &format!("{tabs}/median_percent"),
        1.0,
        "%",
        "at most 0.5",
    );
    row(
        "CPU of the server meanwhile, of one core",
        &format!("{tabs}/server_percent_of_a_core"),
        1.0,
        "%",
        "",
    );
    row(
        "  a quarter of the pairs below",
        &format!("{tabs}/quarter_percent"),
        1.0,
        "%",
        "",
    );
    row(
        "  a quarter of the pairs above",
        &format!("{tabs}/three_quarters_percent"),
        1.0,
        "%",
        "",
    );
}
