//! `cargo xtask train`: set up, build in release, train.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
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
        if needs_base(&config) && !self.names_model() {
            train_base(&binary)?;
        }
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

    /// Whether the command line overrides the model of the config.
    fn names_model(&self) -> bool {
        let mut set = self.set.iter().filter_map(|value| value.split_once('='));
        set.any(|(key, _)| key == "model.name_or_path" || key == "name_or_path")
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

/// The small video model, which is trained locally rather than downloaded, and its config.
const BASE: &str = "runs/video-small/model";
const BASE_CONFIG: &str = "configs/video-small.yaml";

/// Whether `config` needs the small video model and it does not exist.
fn needs_base(config: &str) -> bool {
    let named = config.lines().any(|line| {
        let mut words = line.split_whitespace();
        words.next() == Some("name_or_path:") && words.next() == Some(BASE)
    });
    named && !Path::new(BASE).join("model_index.json").is_file()
}

/// Trains the small video model, or resumes its training.
fn train_base(binary: &Path) -> Result<()> {
    let run = Path::new(BASE).parent().unwrap_or(Path::new(BASE));
    let config = workspace::root().join(BASE_CONFIG);
    let text = std::fs::read_to_string(&config)
        .with_context(|| format!("cannot read `{}`", config.display()))?;
    setup::needed_by(&text)?;
    eprintln!("base      `{BASE}` is not there, and is trained first, as {BASE_CONFIG} says");
    let mut command = Command::new(binary);
    command.arg("train").arg(&config);
    if run.join("checkpoints").is_dir() {
        command.arg("--resume").arg(run);
    }
    let status = command
        .status()
        .with_context(|| format!("cannot start `{}`", binary.display()))?;
    if !status.success() || !Path::new(BASE).is_dir() {
        bail!("the training of the base ended without `{BASE}` ({status})");
    }
    Ok(())
}

/// Builds the programs and their allocator; returns the path of `surefoot`.
///
/// With cargo's profile `release`, unless the variable [`PROFILE`] names another one: with `dev`, what the tests
/// have built is used.
pub(crate) fn build(libtorch: &Libtorch) -> Result<PathBuf> {
    let shell = setup::shell(libtorch)?;
    let cargo = workspace::cargo();
    let profile = std::env::var(PROFILE).unwrap_or_else(|_| "release".to_owned());
    // With `dev`, all of the workspace, as the tests are built: a part of it has other features.
    let what: &[&str] = match profile.as_str() {
        "dev" => &["--workspace"],
        _ => &["--package", "surefoot", "--package", "hip-alloc"],
    };
    cmd!(shell, "{cargo} build --profile {profile} {what...}").run()?;
    let folder = match profile.as_str() {
        "dev" => "debug",
        other => other,
    };
    let target = workspace::target(&shell)?;
    Ok(target.join(folder).join("surefoot"))
}

#[cfg(test)]
mod tests {
    use super::needs_base;

    #[test]
    fn a_config_on_the_small_video_model_needs_it() {
        assert!(needs_base(
            "model:\n  name_or_path: runs/video-small/model\n"
        ));
        assert!(!needs_base(
            "model:\n  name_or_path: runs/video-small/model-of-mine\n"
        ));
        assert!(!needs_base(
            "model:\n  num_layers: 4\n# runs/video-small/model\n"
        ));
    }
}
