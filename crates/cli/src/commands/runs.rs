//! `surefoot runs`: lists and manages training runs.

use std::fmt::Write as _;
use std::path::PathBuf;

use platform::Bytes;
use surefoot_cli::output::{self, Failure, Outcome};
use surefoot_ui::runs::{self, Metrics, Overview, Range, Request, RunName, Runs, Status, Stopping};

use super::queue;

/// List, show, compare, stop, queue and remove training runs
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The folder of runs
    #[arg(long, value_name = "FOLDER", default_value = "runs", global = true)]
    runs: PathBuf,

    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// List all runs, the most recently changed first
    List,
    /// Show one run: its status, latest numbers and events
    Show {
        /// The name of its folder
        run: RunName,
    },
    /// Compare runs: their numbers, and the differences between their configs
    Compare {
        /// The names of their folders
        #[arg(required = true, num_args = 2..)]
        run: Vec<RunName>,
    },
    /// Ask a run to finish its step, save and end, as Ctrl-C does
    Stop {
        /// The name of its folder
        run: RunName,
        /// Wait until it has ended
        #[arg(long)]
        wait: bool,
        /// Ask a run again that was asked before: it ends at once, without saving
        #[arg(long)]
        again: bool,
    },
    /// Ask a run to save a checkpoint after the current step, and go on
    Save {
        /// The name of its folder
        run: RunName,
    },
    /// Ask a run to generate samples after the current step, and go on
    Sample {
        /// The name of its folder
        run: RunName,
    },
    /// Remove runs that are not running, with all their files
    Rm {
        /// The names of their folders
        #[arg(required = true)]
        run: Vec<RunName>,
    },
    Add(queue::Add),
    Queue(queue::Args),
}

/// Runs the command.
pub(crate) fn run(args: &Args, json: bool) -> Result<Outcome, Failure> {
    let runs = Runs::new(&args.runs);
    match &args.command {
        Command::List => {
            let list = runs.list()?;
            match json {
                true => print_json(&list)?,
                false => output::print(&table(&list))?,
            }
        }
        Command::Show { run } => show(&runs, run, json)?,
        Command::Compare { run } => {
            let comparison = runs::compare(&runs, run).map_err(failure)?;
            match json {
                true => print_json(&comparison)?,
                false => output::print(&compared(&comparison))?,
            }
        }
        Command::Stop { run, wait, again } => stop(&runs, run, *wait, *again, json)?,
        Command::Save { run } => runs.ask(run, Request::Save).map_err(failure)?,
        Command::Sample { run } => runs.ask(run, Request::Sample).map_err(failure)?,
        Command::Rm { run } => {
            for run in run {
                runs.remove(run).map_err(failure)?;
            }
        }
        Command::Add(args) => queue::add(runs, args, json)?,
        Command::Queue(args) => queue::run(runs, args, json)?,
    }
    Ok(Outcome::Fine)
}

/// An invalid name is a usage error.
pub(super) fn failure(error: runs::Error) -> Failure {
    match error {
        runs::Error::NotFound { .. } | runs::Error::NoJob { .. } => Failure::usage(error),
        error => Failure::Job(error.into()),
    }
}

pub(super) fn print_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    output::print(&format!("{}\n", serde_json::to_string_pretty(value)?))?;
    Ok(())
}

fn stop(runs: &Runs, run: &RunName, wait: bool, again: bool, json: bool) -> Result<(), Failure> {
    let process = match runs.overview(run).map_err(failure)?.status {
        Status::Running { process, .. } => process,
        _ => None,
    };
    let stopping = runs.stop(run, again).map_err(failure)?;
    if wait && let Some(process) = &process {
        runs::wait(process)?;
    }
    if json {
        return print_json(&serde_json::json!({ "stopping": stopping, "waited": wait }));
    }
    let said = match (stopping, wait) {
        (_, true) => format!("{run} has ended\n"),
        (Stopping::Asked, false) => format!("{run} will finish its step, save and end\n"),
        (Stopping::AlreadyAsked, false) => {
            format!("{run} was already asked; `--again` ends it at once, without saving\n")
        }
    };
    output::print(&said)?;
    Ok(())
}

fn show(runs: &Runs, run: &RunName, json: bool) -> Result<(), Failure> {
    let detail = runs.detail(run).map_err(failure)?;
    let mut metrics = Metrics::new(Range::default());
    if let Some(mut file) = runs.metrics_file(run).map_err(failure)? {
        metrics.update(&mut file)?;
    }
    let (events, before) = metrics.events();
    if json {
        return print_json(&serde_json::json!({
            "run": detail,
            "train": metrics.train(),
            "eval": metrics.eval(),
            "events": events,
            "dropped_events": before,
            "unreadable_lines": metrics.unreadable(),
        }));
    }
    let latest = metrics.latest();
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<16}{value}");
    };
    line("run", printable(&detail.path.display().to_string()));
    line("state", state(&detail.overview.status));
    line("step", steps(&detail.overview));
    line("training loss", number(latest.loss));
    line("held-out loss", number(latest.eval_loss));
    line("learning rate", number(latest.learning_rate));
    line("gradient norm", number(latest.grad_norm));
    line(
        "tokens/s",
        latest
            .tokens_per_second
            .map_or(unknown(), |speed| format!("{speed:.0}")),
    );
    line("memory", memory(latest.memory));
    let facts = detail.facts.as_ref();
    let expected = facts.and_then(|facts| facts.expected_memory["peak"].as_f64());
    line("expected", memory(expected));
    if metrics.unreadable() > 0 {
        line(
            "damaged",
            format!("{} lines of metrics.jsonl", metrics.unreadable()),
        );
    }
    if before > 0 {
        line("events", format!("{before} before these"));
    }
    for event in events {
        line(
            &format!("step {}", event.step),
            printable(&format!("{} {}", event.kind, event.record)),
        );
    }
    output::print(&text)?;
    Ok(())
}

fn table(list: &[Overview]) -> String {
    if list.is_empty() {
        return "no runs here; `surefoot train` creates one\n".to_owned();
    }
    let rows = list.iter().map(|run| {
        [
            run.name.to_string(),
            run.status.word().to_owned(),
            steps(run),
            number(run.latest.loss),
            number(run.latest.eval_loss),
            memory(run.latest.memory),
        ]
    });
    let head = ["run", "state", "step", "loss", "held out", "memory"];
    let rows: Vec<[String; 6]> = std::iter::once(head.map(str::to_owned))
        .chain(rows)
        .collect();
    columns(&rows.iter().map(|row| row.to_vec()).collect::<Vec<_>>())
}

fn compared(comparison: &runs::Comparison) -> String {
    let names = comparison.runs.iter().map(|run| run.name.to_string());
    let row = |name: &str, of: &dyn Fn(&Overview) -> String| -> Vec<String> {
        let values = comparison.runs.iter().map(of);
        std::iter::once(name.to_owned()).chain(values).collect()
    };
    let mut rows = vec![std::iter::once(String::new()).chain(names).collect()];
    rows.push(row("state", &|run| run.status.word().to_owned()));
    rows.push(row("step", &steps));
    rows.push(row("loss", &|run| number(run.latest.loss)));
    rows.push(row("held out", &|run| number(run.latest.eval_loss)));
    for difference in &comparison.differences {
        let values = difference.values.iter();
        let values = values.map(|value| value.as_deref().map_or("-".to_owned(), printable));
        rows.push(
            std::iter::once(printable(&difference.key))
                .chain(values)
                .collect(),
        );
    }
    let mut text = columns(&rows);
    for unreadable in &comparison.unreadable {
        let _ = writeln!(text, "{}", printable(unreadable));
    }
    text
}

/// Formats rows of cells with aligned columns.
pub(super) fn columns(rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..rows.first().map_or(0, Vec::len)).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths);
        let line: String = cells
            .map(|(cell, width)| format!("{cell:<width$}  "))
            .collect();
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

fn state(status: &Status) -> String {
    match status {
        Status::Running {
            process: Some(process),
            ..
        } => format!("{}, process {}", status.word(), process.pid),
        Status::Failed { error: Some(error) } => format!("failed: {}", printable(error)),
        status => status.word().to_owned(),
    }
}

fn steps(run: &Overview) -> String {
    let of = run
        .max_steps
        .map_or(String::new(), |steps| format!("/{steps}"));
    format!("{}{of}", run.latest.step)
}

fn unknown() -> String {
    "unknown".to_owned()
}

fn number(value: Option<f64>) -> String {
    value.map_or(unknown(), |value| match value.abs() {
        size if size != 0.0 && size < 1e-3 => format!("{value:.2e}"),
        _ => format!("{value:.4}"),
    })
}

fn memory(bytes: Option<f64>) -> String {
    bytes.map_or(unknown(), |bytes| Bytes(bytes as u64).to_string())
}

/// Text from a file for a terminal: control characters are escaped.
pub(super) fn printable(text: &str) -> String {
    let letters = text.chars().map(|letter| match letter.is_control() {
        true => letter.escape_default().to_string(),
        false => letter.to_string(),
    });
    letters.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_escape_sequences_are_escaped() {
        assert_eq!(printable("a\u{1b}[31mb\nc"), "a\\u{1b}[31mb\\nc");
        assert_eq!(printable("gemäß ✓"), "gemäß ✓");
    }
}
