//! `cargo xtask train`: set up, build in release, train.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use xshell::cmd;

use crate::setup::{self, Libtorch};
use crate::workspace;

/// Set up, build in release, and train a model.
///
/// Everything after the config is passed to `surefoot train`; `cargo xtask train -- --help`
/// lists its options.
#[derive(clap::Args)]
pub(crate) struct Train {
    /// The training config (YAML) [default: that of the run after `--resume RUN`, else
    /// configs/small.yaml]
    #[arg(value_name = "CONFIG")]
    config: Option<PathBuf>,

    /// Set one value of the config, such as `--set train.learning_rate=1e-3`; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,

    /// Continue a run: `latest`, or the folder of a run or of a checkpoint
    #[arg(long, value_name = "RUN", num_args = 0..=1, default_missing_value = "latest")]
    resume: Option<String>,

    /// Check everything, including one step, without training
    #[arg(long)]
    dry_run: bool,

    /// Passed to `surefoot train` unchanged
    #[arg(last = true, value_name = "ARGUMENT")]
    rest: Vec<OsString>,
}

impl Train {
    pub(crate) fn run(self) -> Result<()> {
        let libtorch = setup::ensure()?;
        // If the config cannot be read, the trainer reports it.
        let path = self.config_file();
        let config = std::fs::read_to_string(path).unwrap_or_default();
        setup::needed_by(&config)?;
        let binary = build(&libtorch)?;
        // From here on this process is the trainer: its exit code is ours, and only it receives Ctrl-C, so
        // that it can save before it exits.
        let error = self.command(&binary).exec();
        Err(error).with_context(|| format!("cannot start `{}`", binary.display()))
    }

    /// The config to train with; a resumed run has its own.
    fn config_file(&self) -> PathBuf {
        match (&self.config, &self.resume) {
            (Some(path), _) => path.clone(),
            (None, Some(run)) => {
                // A run, or one of its checkpoints.
                let folders = Path::new(run).ancestors().step_by(2).take(2);
                let mut paths = folders.map(|folder| folder.join("config.yaml"));
                paths.find(|path| path.is_file()).unwrap_or_default()
            }
            // A path that the user gave is relative to the current folder, but the default is not.
            (None, None) => workspace::root().join("configs/small.yaml"),
        }
    }

    fn command(&self, binary: &Path) -> Command {
        let mut command = Command::new(binary);
        command.arg("train");
        // Without a config, the trainer uses that of the run.
        if self.config.is_some() || self.resume.is_none() {
            command.arg(self.config_file());
        }
        for value in &self.set {
            command.arg("--set").arg(value);
        }
        if let Some(run) = &self.resume {
            command.arg("--resume").arg(run);
        }
        if self.dry_run {
            command.arg("--dry-run");
        }
        command.args(&self.rest);
        command
    }
}

/// The environment variable that names cargo's profile for the trainer.
const PROFILE: &str = "XTASK_PROFILE";

/// Builds the programs and their allocator; returns the path of `surefoot`.
///
/// With cargo's profile `release`, unless the variable [`PROFILE`] names another one: with `dev`, what the tests
/// have built is used.
pub(crate) fn build(libtorch: &Libtorch) -> Result<PathBuf> {
    let shell = setup::shell(libtorch)?;
    let cargo = workspace::cargo();
    let profile = profile();
    // With `dev`, all of the workspace, as the tests are built: a part of it has other features.
    let what: &[&str] = match profile.as_str() {
        "dev" => &["--workspace"],
        _ => &["--package", "surefoot", "--package", "hip-alloc"],
    };
    cmd!(shell, "{cargo} build --profile {profile} {what...}").run()?;
    let target = workspace::target(&shell)?;
    Ok(target.join(folder(&profile)).join("surefoot"))
}

/// cargo's profile for programs that train.
pub(crate) fn profile() -> String {
    std::env::var(PROFILE).unwrap_or_else(|_| "release".to_owned())
}

/// Where cargo puts what it builds with a profile, in its target folder.
pub(crate) fn folder(profile: &str) -> &str {
    match profile {
        "dev" => "debug",
        other => other,
    }
}
