//! Where this workspace is, and how its commands start other programs.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;

use anyhow::{Context, Result};
use xshell::{Shell, cmd};

/// The workspace that xtask was started in, which cargo passes on. The path compiled into xtask
/// may belong to another checkout that shares the target folder.
pub(crate) fn root() -> &'static Path {
    static ROOT: OnceLock<PathBuf> = OnceLock::new();
    ROOT.get_or_init(|| root_of(env::var_os("CARGO_MANIFEST_DIR")))
}

fn root_of(package: Option<OsString>) -> PathBuf {
    let package = package.unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let package = PathBuf::from(package);
    package.parent().unwrap_or(&package).to_owned()
}

/// A shell in the workspace's root.
pub(crate) fn shell() -> Result<Shell> {
    let shell = Shell::new().context("cannot read the current folder")?;
    shell.change_dir(root());
    Ok(shell)
}

/// The cargo that started xtask, so that `cargo +toolchain xtask` keeps its toolchain.
pub(crate) fn cargo() -> OsString {
    env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// cargo's target folder, which a variable or the user's config may move.
pub(crate) fn target(shell: &Shell) -> Result<PathBuf> {
    let cargo = cargo();
    let metadata = cmd!(
        shell,
        "{cargo} metadata --format-version=1 --no-deps --offline"
    );
    let metadata: serde_json::Value = serde_json::from_str(&metadata.quiet().read()?)
        .context("cannot parse the output of `cargo metadata`")?;
    let folder = metadata["target_directory"].as_str();
    Ok(folder
        .context("`cargo metadata` names no target folder")?
        .into())
}

/// Has cargo build with `torch-abi` in the place of tch's own bindings: `work` gets the options for that, and the
/// target folder, which is one of its own.
pub(crate) fn with_torch_abi<T>(
    shell: &Shell,
    work: impl FnOnce(&[OsString], &Path) -> Result<T>,
) -> Result<T> {
    let lock = root().join("Cargo.lock");
    let kept = fs::read(&lock)?;
    let target = target(shell)?.join("torch-abi");
    let patch = "patch.crates-io.torch-sys.path='crates/torch-abi'";
    let options = [
        "--config".into(),
        patch.into(),
        "--target-dir".into(),
        target.clone().into(),
    ];
    let done = work(&options, &target);
    // Cargo has written the other bindings into it.
    fs::write(&lock, kept)?;
    done
}

/// Does all `jobs`, as many at once as there are cores; the first error is returned when all are done.
pub(crate) fn at_once<T: Send>(jobs: Vec<T>, work: impl Fn(T) -> Result<()> + Sync) -> Result<()> {
    let waiting = Mutex::new(jobs.into_iter());
    let next = || {
        waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .next()
    };
    let work_on = || {
        let mut outcome = Ok(());
        while let Some(job) = next() {
            outcome = outcome.and(work(job));
        }
        outcome
    };
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(work_on)).collect();
        let ends = threads.into_iter().map(|thread| match thread.join() {
            Ok(outcome) => outcome,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        ends.fold(Ok(()), Result::and)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workspace_is_the_one_that_cargo_was_started_in() {
        let other = root_of(Some("/somewhere/else/xtask".into()));
        assert_eq!(other, Path::new("/somewhere/else"));
        assert!(root_of(None).join("xtask/src/workspace.rs").is_file());
    }

    #[test]
    fn every_job_is_done_also_after_an_error() {
        let done = Mutex::new(Vec::new());
        let outcome = at_once((0..20).collect(), |job| {
            done.lock().unwrap().push(job);
            anyhow::ensure!(job != 3, "three");
            Ok(())
        });
        assert_eq!(outcome.unwrap_err().to_string(), "three");
        let mut done = done.into_inner().unwrap();
        done.sort_unstable();
        assert_eq!(done, (0..20).collect::<Vec<i32>>());
    }
}
