//! Runs the test programs of the workspace: as many processes at once as there are cores, each with the tests of one
//! module, one after the other.
//!
//! The tests of a module share their process, and with it libtorch's random generator and its allocator; modules do
//! not. `cargo test` would run one program after the other, on one core.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use xshell::{Shell, cmd};

use crate::workspace;

/// A program with tests, as cargo built it.
struct Program {
    /// `package/target`.
    name: String,
    path: PathBuf,
    /// Where its tests run.
    folder: PathBuf,
    /// In `tests/`, and not beside the code.
    is_of_whole_runs: bool,
}

/// The tests of a module.
struct Job<'a> {
    program: &'a Program,
    module: String,
    tests: Vec<String>,
}

/// How a job ended.
struct Outcome<'a> {
    job: &'a Job<'a>,
    time: Duration,
    /// Tests that were not seen to pass; none if the process ended well.
    failed: Vec<String>,
}

/// Builds the tests of the workspace, and runs those of `packages` (all without it). Those that fail are run again,
/// alone, if `again`: if they pass then, they are named, and no failure.
pub(super) fn run(shell: &Shell, packages: Option<&BTreeSet<String>>, again: bool) -> Result<()> {
    let programs = build(shell, packages)?;
    let mut jobs = Vec::new();
    for program in &programs {
        jobs.extend(modules(program)?);
    }
    // Whole runs take longest, and should not be begun last.
    jobs.sort_by_key(|job| std::cmp::Reverse((job.program.is_of_whole_runs, job.tests.len())));
    let began = Instant::now();
    let outcomes = all(&jobs)?;
    let tests: usize = jobs.iter().map(|job| job.tests.len()).sum();
    report_slowest(&outcomes);
    let mut failed = Vec::new();
    for outcome in &outcomes {
        for test in &outcome.failed {
            let name = format!("{} {test}", outcome.job.program.name);
            let once_more = || one(outcome.job.program, std::slice::from_ref(test));
            match again && once_more().is_ok_and(|failed| failed.is_empty()) {
                true => eprintln!("flaky     {name}: failed once, and passed when run alone"),
                false => failed.push(name),
            }
        }
    }
    let seconds = began.elapsed().as_secs();
    eprintln!("tests     of {} programs, in {seconds} s", programs.len());
    eprintln!("{} passed, {} failed", tests - failed.len(), failed.len());
    ensure!(failed.is_empty(), "failed:\n  {}", failed.join("\n  "));
    Ok(())
}

/// Builds all tests, since a selection would have other features, and with them other dependencies.
fn build(shell: &Shell, packages: Option<&BTreeSet<String>>) -> Result<Vec<Program>> {
    let cargo = workspace::cargo();
    let format = "--message-format=json-render-diagnostics";
    let messages = cmd!(shell, "{cargo} test --workspace --no-run {format}").read()?;
    let mut programs = Vec::new();
    for line in messages.lines().filter(|line| line.starts_with('{')) {
        let message: Value = serde_json::from_str(line)?;
        programs.extend(
            program(&message)
                .filter(|(package, _)| packages.is_none_or(|packages| packages.contains(package))),
        );
    }
    if programs.is_empty() {
        bail!("cargo built no test");
    }
    Ok(programs.into_iter().map(|(_, program)| program).collect())
}

/// The package and the program that a message of cargo is about, if it is about a test.
fn program(message: &Value) -> Option<(String, Program)> {
    let path = message["executable"].as_str()?;
    message["profile"]["test"]
        .as_bool()
        .filter(|is_test| *is_test)?;
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?;
    let id = message["package_id"].as_str()?;
    // `path+file:///folder#name@version`, or `…/name#version`.
    let named = id
        .rsplit(['#', '/'])
        .find(|part| part.starts_with(char::is_alphabetic))?;
    let package = named.split('@').next()?.to_owned();
    let target = message["target"]["name"].as_str()?;
    let program = Program {
        name: format!("{package}/{target}"),
        path: path.into(),
        folder: folder.to_owned(),
        is_of_whole_runs: message["target"]["kind"][0] == "test",
    };
    Some((package, program))
}

/// The tests of a program, by module.
fn modules(program: &Program) -> Result<Vec<Job<'_>>> {
    let output = program
        .command()
        .args(["--list", "--format=terse"])
        .output()
        .with_context(|| format!("cannot start `{}`", program.path.display()))?;
    ensure!(output.status.success(), "{} lists no tests", program.name);
    let mut modules: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        if let Some(test) = line.strip_suffix(": test") {
            let module = test.split_once("::").map_or("", |(module, _)| module);
            modules
                .entry(module.to_owned())
                .or_default()
                .push(test.to_owned());
        }
    }
    let job = |(module, tests)| Job {
        program,
        module,
        tests,
    };
    Ok(modules.into_iter().map(job).collect())
}

/// Runs all jobs, as many at once as there are cores.
fn all<'a>(jobs: &'a [Job<'a>]) -> Result<Vec<Outcome<'a>>> {
    let outcomes = Mutex::new(Vec::new());
    workspace::at_once(jobs.iter().collect(), |job: &Job<'_>| {
        let began = Instant::now();
        let failed = one(job.program, &job.tests)?;
        let time = began.elapsed();
        let result = if failed.is_empty() { "ok" } else { "FAILED" };
        eprintln!(
            "{result:<9} {:>6.1} s  {} {} ({})",
            time.as_secs_f64(),
            job.program.name,
            job.module,
            job.tests.len()
        );
        let outcome = Outcome { job, time, failed };
        outcomes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(outcome);
        Ok(())
    })?;
    Ok(outcomes
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner))
}

/// Runs these tests of a program in a process of their own; returns those that were not seen to pass, after printing
/// what it printed.
fn one(program: &Program, tests: &[String]) -> Result<Vec<String>> {
    let output = program
        .command()
        .args(["--exact", "--test-threads=1"])
        .args(tests)
        .output()
        .with_context(|| format!("cannot start `{}`", program.path.display()))?;
    if output.status.success() {
        return Ok(Vec::new());
    }
    let printed = String::from_utf8_lossy(&output.stdout);
    eprintln!("{printed}\n{}", String::from_utf8_lossy(&output.stderr));
    eprintln!("{} ended with {}", program.name, output.status);
    let failed = not_passed(&printed, tests);
    Ok(if failed.is_empty() {
        tests.to_vec()
    } else {
        failed
    })
}

/// The tests that libtest's output does not say to have passed. A process that crashed names none that failed.
fn not_passed(printed: &str, tests: &[String]) -> Vec<String> {
    let passed = printed.lines().filter_map(|line| {
        let (name, result) = line.strip_prefix("test ")?.split_once(" ... ")?;
        let passed = result.starts_with("ok") || result.starts_with("ignored");
        passed.then(|| name.trim_end_matches(" - should panic"))
    });
    let passed: BTreeSet<&str> = passed.collect();
    let failed = tests.iter().filter(|test| !passed.contains(test.as_str()));
    failed.cloned().collect()
}

fn report_slowest(outcomes: &[Outcome<'_>]) {
    let mut slowest: Vec<&Outcome<'_>> = outcomes.iter().collect();
    slowest.sort_by_key(|outcome| std::cmp::Reverse(outcome.time));
    for outcome in slowest.iter().take(5) {
        let Job {
            program, module, ..
        } = outcome.job;
        let seconds = outcome.time.as_secs_f64();
        eprintln!("slowest   {seconds:>6.1} s  {} {module}", program.name);
    }
}

impl Program {
    fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command
            .current_dir(&self.folder)
            .env("CARGO_MANIFEST_DIR", &self.folder)
            .stdin(Stdio::null());
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_passed_has_passed() {
        let printed = "\nrunning 4 tests\ntest a::b ... ok\ntest a::c - should panic ... ok\n\
                       test a::d ... FAILED\ntest a::e ... ";
        let tests = ["a::b", "a::c", "a::d", "a::e"].map(str::to_owned);
        assert_eq!(not_passed(printed, &tests), ["a::d", "a::e"]);
    }

    #[test]
    fn a_package_has_its_name_where_its_folder_has_another() {
        let named = |id: &str| {
            let message = serde_json::json!({
                "executable": "/t/a-1", "profile": {"test": true}, "manifest_path": "/w/doctor/Cargo.toml",
                "package_id": id, "target": {"name": "all", "kind": ["test"]},
            });
            program(&message).map(|(package, program)| (package, program.name))
        };
        let doctor = named("path+file:///w/crates/doctor#surefoot-doctor@0.1.0").unwrap();
        assert_eq!(doctor.1, "surefoot-doctor/all");
        assert_eq!(named("path+file:///w/xtask#0.1.0").unwrap().0, "xtask");
    }
}
