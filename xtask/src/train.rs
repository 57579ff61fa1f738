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
/// Everything after the config goes to `surefoot train` as it is; `cargo xtask train -- --help`
/// lists what it understands.
#[derive(clap::Args)]
pub(crate) struct Train {
    /// The training config (YAML) [default: that of the run after `--resume RUN`, else
    /// configs/small.yaml]
    #[arg(value_name = "CONFIG")]
    config: Option<PathBuf>,

    /// Set one value of the config, as in `--set train.learning_rate=1e-3`; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,

    /// Continue a run: `latest`, or the folder of a run or of a checkpoint
    #[arg(long, value_name = "RUN", num_args = 0..=1, default_missing_value = "latest")]
    resume: Option<String>,

    /// Check everything, one step included, and train nothing
    #[arg(long)]
    dry_run: bool,

    /// Passed to `surefoot train` as they are
    #[arg(last = true, value_name = "ARGUMENT")]
    rest: Vec<OsString>,
}

impl Train {
    pub(crate) fn run(self) -> Result<()> {
        let libtorch = setup::ensure()?;
        // A config that cannot be read is the trainer's to complain about.
        let path = self.config_file();
        setup::model_for(&std::fs::read_to_string(path).unwrap_or_default())?;
        let binary = build(&libtorch)?;
        // From here on this process is the trainer: its exit code is ours, and Ctrl-C
        // reaches it alone, so that it can save before it leaves.
        let error = self.command(&binary).exec();
        Err(error).with_context(|| format!("cannot start `{}`", binary.display()))
    }

    /// The config to train by; a run that is resumed has its own.
    fn config_file(&self) -> PathBuf {
        match (&self.config, &self.resume) {
            (Some(path), _) => path.clone(),
            (None, Some(run)) => {
                // A run, or one of its checkpoints.
                let folders = Path::new(run).ancestors().step_by(2).take(2);
                let mut paths = folders.map(|folder| folder.join("config.yaml"));
                paths.find(|path| path.is_file()).unwrap_or_default()
            }
            // A path that the user gave is relative to where they stand, the default is not.
            (None, None) => workspace::root().join("configs/small.yaml"),
        }
    }

    fn command(&self, binary: &Path) -> Command {
        let mut command = Command::new(binary);
        command.arg("train");
        // Without one, the trainer takes that of the run.
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

/// Builds the programs and the allocator that they load, in release; where `surefoot` is.
pub(crate) fn build(libtorch: &Libtorch) -> Result<PathBuf> {
    let shell = setup::shell(libtorch)?;
    let cargo = workspace::cargo();
    cmd!(
        shell,
        "{cargo} build --release --package surefoot --package hip-alloc"
    )
    .run()?;
    Ok(workspace::target(&shell)?.join("release/surefoot"))
}
