//! `surefoot import`: translates a config of another trainer.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::json;
use surefoot_cli::output::{self, Failure, Outcome};
use trainer::config::ConfigError;
use trainer::config::import::{Imported, import};

/// Translate a config of another trainer
///
/// Reads YAML of axolotl, LLaMA-Factory, TRL and ai-toolkit (`.yaml`), TOML of kohya's sd-scripts and of musubi-tuner
/// (`.toml`), command lines of all of them (`.sh`, `.bat`, `.txt`), and the arguments in Python programs and notebooks with
/// TRL or unsloth (`.py`, `.ipynb`). A comment says what became of each key that has no counterpart.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The config, script or notebook
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    /// The file to write; without it, the config is printed
    #[arg(short, long, value_name = "OUT")]
    output: Option<PathBuf>,

    /// Replace the output if it exists
    #[arg(long)]
    force: bool,

    /// For any number of files, show only how much of each was taken, and how many lines are left to change
    #[arg(long, conflicts_with = "output")]
    table: bool,
}

/// Translates.
pub(crate) fn run(args: &Args, json: bool) -> Result<Outcome, Failure> {
    if args.table {
        let rows = args.files.iter().map(|path| (path.as_path(), import(path)));
        output::print(&table(&rows.collect::<Vec<_>>(), json)?)?;
        return Ok(Outcome::Fine);
    }
    let [file] = &args.files[..] else {
        return Err(Failure::usage(
            "one file is translated at a time; `--table` shows how much of each of several would be taken",
        ));
    };
    let imported = import(file).map_err(|error| Failure::Usage(error.into()))?;
    if let Some(path) = &args.output {
        write(path, &imported.config, args.force)?;
    }
    let report = match (&args.output, json) {
        (_, true) => serde_json::to_string_pretty(&imported)? + "\n",
        (None, false) => imported.config,
        (Some(path), false) => {
            let fill_in = imported
                .fill_in
                .iter()
                .map(|line| format!("to fill in: {line}\n"));
            format!(
                "{}: {} keys of {}, {} left out with a reason each\n{}",
                path.display(),
                imported.set.len(),
                imported.origin.name(),
                imported.left_out.len(),
                fill_in.collect::<String>()
            )
        }
    };
    output::print(&report)?;
    Ok(Outcome::Fine)
}

/// Writes a new file, or with `force` in place of another.
fn write(path: &Path, text: &str, force: bool) -> Result<(), Failure> {
    let mut options = File::options();
    match force {
        true => options.create(true).truncate(true),
        // What another program made in the meantime is not touched, either.
        false => options.create_new(true),
    };
    let written = options
        .write(true)
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()));
    match written {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(Failure::usage(format!(
            "`{}` exists: name another file, or add `--force`",
            path.display()
        ))),
        written => Ok(written.with_context(|| format!("cannot write `{}`", path.display()))?),
    }
}

/// What was taken of each file.
fn table(rows: &[(&Path, Result<Imported, ConfigError>)], json: bool) -> Result<String, Failure> {
    if json {
        let rows = rows.iter().map(|(path, imported)| match imported {
            Ok(imported) => json!({
                "file": path,
                "origin": imported.origin,
                "keys": imported.set.len(),
                "left_out": imported.left_out.len(),
                "to_change": imported.to_change,
            }),
            Err(error) => json!({"file": path, "error": error.to_string()}),
        });
        return Ok(serde_json::to_string_pretty(&rows.collect::<Vec<_>>())? + "\n");
    }
    let mut text =
        "| file | for | keys taken | left out | lines to change |\n|---|---|---|---|---|\n"
            .to_owned();
    for (path, imported) in rows {
        text += &match imported {
            Ok(imported) => {
                let (file, origin) = (path.display(), imported.origin.name());
                let (keys, left_out) = (imported.set.len(), imported.left_out.len());
                let to_change = imported.to_change;
                format!("| {file} | {origin} | {keys} | {left_out} | {to_change} |\n")
            }
            Err(error) => format!(
                "| {} | not read: {} | | | |\n",
                path.display(),
                error.to_string().replace('\n', " ")
            ),
        };
    }
    Ok(text)
}
