//! `cargo xtask test --matrix`: the allocator's tests in Python, under each available combination of Python and PyTorch.
//!
//! ```text
//! PyTorch ─┬─ Python 3.10 ──uv──▶ environment ──pytest──▶ a cell of the table
//!          ├─ Python 3.11 ──…
//! ```
//!
//! A combination that is not available (an interpreter that is not installed, a wheel that does not exist) is reported,
//! but is no failure.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde::Serialize;
use xshell::Shell;

use crate::setup;
use crate::test::python_libraries;
use crate::workspace;

/// The minor releases of Python 3 that the wheel supports.
const PYTHONS: std::ops::RangeInclusive<u32> = 10..=15;
/// The last patch release of each minor release of PyTorch that the activation supports.
const TORCHES: [&str; 8] = [
    "2.8.0", "2.9.1", "2.10.0", "2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0",
];
/// The files of `python/tests` that depend most on the releases of Python and PyTorch: how the allocator is installed in
/// each kind of process, its answers, and the errors for a PyTorch in which something has moved.
const TESTS: [&str; 4] = [
    "test_activation.py",
    "test_activation_in_any_process.py",
    "test_allocator_on_device.py",
    "test_another_torch.py",
];

/// Which part of the matrix is run.
#[derive(clap::Args)]
pub(crate) struct Matrix {
    /// Only these releases of PyTorch, for example 2.8.0,2.15.0
    #[arg(
        long,
        value_delimiter = ',',
        requires = "matrix",
        value_name = "VERSION"
    )]
    torch: Vec<String>,
    /// Only these releases of Python, for example 3.10,3.13
    #[arg(
        long,
        value_delimiter = ',',
        requires = "matrix",
        value_name = "VERSION"
    )]
    python: Vec<String>,
    /// Keep the environments in the cache for the next run (5 GB for each PyTorch)
    #[arg(long, requires = "matrix")]
    keep: bool,
}

/// The result for one combination.
#[derive(Debug, Serialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case", tag = "outcome")]
enum Outcome {
    Passed { passed: u32, skipped: u32 },
    Failed { failed: u32, log: PathBuf },
    NotRun { why: String },
}

/// One combination of releases.
#[derive(Debug, Serialize)]
struct Cell {
    python: String,
    torch: String,
    #[serde(flatten)]
    outcome: Outcome,
    seconds: u64,
}

impl Matrix {
    pub(crate) fn run(self, shell: &Shell) -> Result<()> {
        let libraries = python_libraries(shell)?;
        let folder = workspace::target(shell)?.join("matrix");
        fs::create_dir_all(&folder)
            .with_context(|| format!("cannot make `{}`", folder.display()))?;
        let torches: Vec<String> = match self.torch.is_empty() {
            true => TORCHES.map(str::to_owned).to_vec(),
            false => self.torch.clone(),
        };
        let mut cells = Vec::new();
        for torch in &torches {
            for minor in self.minors()? {
                let began = Instant::now();
                let python = format!("3.{minor}");
                eprintln!("matrix    Python {python}, PyTorch {torch}");
                let log = folder.join(format!("{python}-{torch}.log"));
                let outcome = cell(minor, torch, &libraries, &log)?;
                eprintln!("          {}", outcome.in_words());
                cells.push(Cell {
                    python,
                    torch: torch.clone(),
                    outcome,
                    seconds: began.elapsed().as_secs(),
                });
                // What is not told is lost when the next one is stopped.
                let path = folder.join("matrix.json");
                fs::write(&path, serde_json::to_vec_pretty(&cells)?)
                    .with_context(|| format!("cannot write `{}`", path.display()))?;
            }
            if !self.keep {
                setup::remove_matrix()?;
            }
        }
        println!("{}", table(&cells));
        let failed = |cell: &&Cell| matches!(cell.outcome, Outcome::Failed { .. });
        match cells.iter().filter(failed).count() {
            0 => Ok(()),
            count => bail!(
                "{count} of {} failed: {} has what pytest said",
                cells.len(),
                folder.display()
            ),
        }
    }

    fn minors(&self) -> Result<Vec<u32>> {
        if self.python.is_empty() {
            return Ok(PYTHONS.collect());
        }
        let minor = |version: &String| {
            let minor = version
                .strip_prefix("3.")
                .and_then(|rest| rest.parse().ok());
            minor.with_context(|| format!("`{version}` is not a release such as 3.11"))
        };
        self.python.iter().map(minor).collect()
    }
}

fn cell(minor: u32, torch: &str, libraries: &[std::ffi::OsString], log: &Path) -> Result<Outcome> {
    let not_run = |why: String| Ok(Outcome::NotRun { why });
    let Some(interpreter) = setup::matrix_interpreter(minor) else {
        return not_run("no such interpreter is installed here".to_owned());
    };
    let name = format!("3.{minor}-{torch}");
    let python = match setup::matrix_environment(&interpreter, &name, torch)? {
        Ok(python) => python,
        Err(why) => return not_run(why),
    };
    let tests = TESTS.map(|name| format!("python/tests/{name}"));
    let output = Command::new(&python)
        .args(["-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider"])
        .args(&tests)
        .args(libraries)
        .current_dir(workspace::root())
        // Uv compiles nothing when it installs: what the first process imports is compiled for all of them, and
        // not again in each, where it is half of the time.
        .env_remove("PYTHONDONTWRITEBYTECODE")
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run `{}`", python.display()))?;
    fs::write(log, [&output.stdout[..], &output.stderr].concat())
        .with_context(|| format!("cannot write `{}`", log.display()))?;
    let counts = counts(&String::from_utf8_lossy(&output.stdout));
    let count = |word: &str| counts.get(word).copied().unwrap_or(0);
    let passed = count("passed");
    Ok(match output.status.success() && passed > 0 {
        true => Outcome::Passed {
            passed,
            skipped: count("skipped"),
        },
        false => Outcome::Failed {
            failed: count("failed") + count("error") + count("errors"),
            log: log.to_owned(),
        },
    })
}

/// The numbers of pytest's last line: `3 failed, 40 passed, 1 skipped in 12.34s`.
fn counts(said: &str) -> BTreeMap<String, u32> {
    let last = said.lines().rfind(|line| !line.trim().is_empty());
    let last = last.unwrap_or_default().trim_matches(['=', ' ']);
    let pairs = last.split(" in ").next().unwrap_or_default().split(", ");
    let pair = |pair: &str| {
        let (number, word) = pair.split_once(' ')?;
        Some((word.to_owned(), number.parse().ok()?))
    };
    pairs.filter_map(pair).collect()
}

impl Outcome {
    fn in_words(&self) -> String {
        match self {
            Self::Passed { passed, skipped: 0 } => format!("{passed} passed"),
            Self::Passed { passed, skipped } => format!("{passed} passed, {skipped} skipped"),
            Self::Failed { failed, log } => format!("{failed} FAILED: {}", log.display()),
            Self::NotRun { why } => format!("not run: {why}"),
        }
    }

    fn in_short(&self) -> String {
        match self {
            Self::Passed { passed, .. } => passed.to_string(),
            Self::Failed { failed, .. } => format!("{failed} FAILED"),
            Self::NotRun { .. } => "-".to_owned(),
        }
    }
}

/// A table with a row for each Python and a column for each PyTorch, followed by the reasons for what was not run.
fn table(cells: &[Cell]) -> String {
    let mut torches: Vec<&str> = cells.iter().map(|cell| &*cell.torch).collect();
    torches.dedup();
    let mut pythons: Vec<&str> = Vec::new();
    for cell in cells {
        if !pythons.contains(&&*cell.python) {
            pythons.push(&cell.python);
        }
    }
    let mut text = format!("{:<8}", "");
    text.extend(torches.iter().map(|torch| format!("{torch:>10}")));
    for python in &pythons {
        text += &format!("\n{python:<8}");
        for torch in &torches {
            let of_both = |cell: &&Cell| cell.python == **python && cell.torch == **torch;
            let cell = cells.iter().find(of_both);
            let short = cell.map_or(String::new(), |cell| cell.outcome.in_short());
            text += &format!("{short:>10}");
        }
    }
    let mut reasons: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for cell in cells {
        if let Outcome::NotRun { why } = &cell.outcome {
            let pair = format!("{} with {}", cell.python, cell.torch);
            reasons.entry(why).or_default().push(pair);
        }
    }
    for (why, pairs) in reasons {
        text += &format!("\nnot run: {}: {why}", pairs.join(", "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_pytest_counts_is_read() {
        let read = |said: &str| {
            let counts = counts(said);
            ["passed", "failed", "skipped", "errors"].map(|word| counts.get(word).copied())
        };
        let none = None;
        assert_eq!(
            read("...\n3 failed, 40 passed, 1 skipped in 12.34s\n"),
            [Some(40), Some(3), Some(1), none]
        );
        assert_eq!(
            read("===== 2 errors in 0.10s =====\n\n"),
            [none, none, none, Some(2)]
        );
        assert_eq!(read(""), [none; 4]);
    }

    #[test]
    fn the_table_tells_what_was_not_run_and_why() {
        let cell = |python: &str, torch: &str, outcome| Cell {
            python: python.to_owned(),
            torch: torch.to_owned(),
            outcome,
            seconds: 1,
        };
        let why = || Outcome::NotRun {
            why: "no wheel".to_owned(),
        };
        let passed = Outcome::Passed {
            passed: 40,
            skipped: 0,
        };
        let failed = Outcome::Failed {
            failed: 2,
            log: "x".into(),
        };
        let cells = [
            cell("3.11", "2.8.0", passed),
            cell("3.15", "2.8.0", why()),
            cell("3.11", "2.15.0", failed),
            cell("3.15", "2.15.0", why()),
        ];
        assert_eq!(
            table(&cells),
            "             2.8.0    2.15.0\n\
             3.11            40  2 FAILED\n\
             3.15             -         -\n\
             not run: 3.15 with 2.8.0, 3.15 with 2.15.0: no wheel"
        );
    }
}
