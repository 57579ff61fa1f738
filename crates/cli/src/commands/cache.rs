//! `surefoot cache`: shows and clears the cache folder; with a config, the trainer fills it.

use std::fs;
use std::path::{Path, PathBuf};

use platform::Bytes;
use serde::Serialize;
use surefoot_cli::cache;
use surefoot_cli::output::{self, Failure, Outcome};

use super::delegate;

/// Show or clear the cache folder; or encode the clips and captions of a config
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A config of a run on videos: encodes now what its run would encode first
    config: Option<PathBuf>,

    /// Override a key of the config, such as `data.num_frames=33`; may be repeated
    #[arg(long, value_name = "KEY=VALUE", requires = "config")]
    set: Vec<String>,

    /// Remove what training recreates by itself: tokens, encoded clips and captions, and blocks of
    /// models left by a run
    #[arg(long, conflicts_with = "config")]
    clear: bool,
}

/// What the folders of the cache hold, and whether training makes it again by itself.
const KNOWN: [(&str, &str, bool); 12] = [
    ("tokens", "tokens of texts", true),
    ("videos", "encoded clips and captions", true),
    (
        "streamed",
        "blocks of models while a run streams them",
        true,
    ),
    ("fits", "which models fit into memory", true),
    ("data", "data sets downloaded by setup", false),
    ("models", "models by name", false),
    ("probe", "results of `surefoot probe`", false),
    ("tune", "settings found by `surefoot tune`", false),
    ("python", "the Python part of the allocator", false),
    ("hip-runtime", "AMD's runtime, for tests", false),
    (
        "libtorch-2.13.0-cpu",
        "libtorch, which the programs load",
        false,
    ),
    ("libtorch-2.15.0-cpu", "the same of a newer PyTorch", false),
];

/// The contents of the cache.
#[derive(Serialize)]
struct Report {
    folder: PathBuf,
    entries: Vec<Entry>,
    /// Bytes removed by `--clear`.
    freed_bytes: u64,
}

/// A file or folder of the cache.
#[derive(Serialize)]
struct Entry {
    name: String,
    what: &'static str,
    bytes: u64,
    files: u64,
    /// Whether `--clear` removes it.
    clearable: bool,
}

/// Lists the cache, after clearing it if requested.
pub(crate) fn run(args: &Args, json: bool) -> Result<Outcome, Failure> {
    if let Some(config) = &args.config {
        let mut rest = vec![config.into()];
        for key in &args.set {
            rest.extend(["--set".into(), key.into()]);
        }
        return delegate::start("cache", &rest, json);
    }
    let folder = cache::folder();
    let mut freed = 0;
    if args.clear {
        for (name, ..) in KNOWN.iter().filter(|(_, _, clearable)| *clearable) {
            freed += clear(&folder.join(name))?;
        }
    }
    let report = Report {
        entries: entries(&folder)?,
        folder,
        freed_bytes: freed,
    };
    let text = match json {
        true => serde_json::to_string_pretty(&report)? + "\n",
        false => shown(&report, args.clear),
    };
    output::print(&text)?;
    Ok(Outcome::Fine)
}

fn entries(folder: &Path) -> Result<Vec<Entry>, Failure> {
    let mut entries = Vec::new();
    for path in inside(folder)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let known = KNOWN.iter().find(|(known, ..)| *known == name);
        let (what, clearable) = known.map_or(("", false), |(_, what, clear)| (*what, *clear));
        let (bytes, files) = size(&path)?;
        entries.push(Entry {
            name: name.into_owned(),
            what,
            bytes,
            files,
            clearable,
        });
    }
    Ok(entries)
}

fn shown(report: &Report, cleared: bool) -> String {
    let mut text = format!("{}\n", report.folder.display());
    let width = report.entries.iter().map(|entry| entry.name.len()).max();
    for entry in &report.entries {
        let size = Bytes(entry.bytes).to_string();
        let line = format!(
            "  {:width$}  {size:>9}  {}",
            entry.name,
            entry.what,
            width = width.unwrap_or(0)
        );
        text += line.trim_end();
        text += if entry.clearable {
            "; `--clear` removes them\n"
        } else {
            "\n"
        };
    }
    if report.entries.is_empty() {
        text += "  nothing\n";
    }
    if cleared {
        text += &format!("removed {}\n", Bytes(report.freed_bytes));
    }
    text
}

/// Removes everything in `folder` that no running program is writing; returns its size in bytes.
fn clear(folder: &Path) -> Result<u64, Failure> {
    let mut freed = 0;
    for path in inside(folder)? {
        // A run that is writing an entry holds its lock.
        let is_free = fs::File::open(&path).is_ok_and(|file| file.try_lock().is_ok());
        if !is_free {
            continue;
        }
        let (bytes, _) = size(&path)?;
        let removed = match path.is_dir() {
            true => fs::remove_dir_all(&path),
            false => fs::remove_file(&path),
        };
        removed.map_err(|error| failed("remove", &path, &error))?;
        freed += bytes;
    }
    Ok(freed)
}

/// Size in bytes and number of the files at `path` and below; targets of links do not count.
fn size(path: &Path) -> Result<(u64, u64), Failure> {
    let metadata = fs::symlink_metadata(path).map_err(|error| failed("read", path, &error))?;
    if !metadata.is_dir() {
        return Ok((metadata.len(), 1));
    }
    let mut total = (0, 0);
    for path in inside(path)? {
        let (bytes, files) = size(&path)?;
        total = (total.0 + bytes, total.1 + files);
    }
    Ok(total)
}

/// The sorted paths in a folder; empty if it does not exist.
fn inside(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed("read", folder, &error)),
    };
    let mut paths = Vec::new();
    for entry in entries {
        paths.push(
            entry
                .map_err(|error| failed("read", folder, &error))?
                .path(),
        );
    }
    paths.sort();
    Ok(paths)
}

fn failed(action: &str, path: &Path, error: &std::io::Error) -> Failure {
    Failure::Job(anyhow::anyhow!(
        "cannot {action} `{}`: {error}",
        path.display()
    ))
}
