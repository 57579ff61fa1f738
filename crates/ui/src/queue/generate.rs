//! Asking what a run has made: `surefoot generate` as a child.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde::Deserialize;

use super::Queue;
use crate::runs::{Error, RunName};

/// What a model is asked.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prompt {
    /// The run whose adapter or model answers.
    pub run: RunName,
    /// The text to continue.
    pub prompt: String,
    /// Whether it is put into the model's chat template.
    #[serde(default)]
    pub chat: bool,
    /// Without the adapter, to compare.
    #[serde(default)]
    pub base: bool,
    /// Most tokens.
    #[serde(default)]
    pub max_new_tokens: Option<u32>,
    /// How far to stray from the likeliest token.
    #[serde(default)]
    pub temperature: Option<f64>,
    /// Seed of the random choices.
    #[serde(default)]
    pub seed: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Model {
    name_or_path: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Config {
    model: Model,
    device: Option<String>,
}

impl Queue {
    /// Starts `program generate`, whose answer comes on its stdout.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Refused`] when the run has made nothing yet that could answer.
    pub fn start_generate(
        &self,
        program: &Path,
        folder: &Path,
        prompt: &Prompt,
    ) -> Result<Child, Error> {
        use std::os::unix::process::CommandExt as _;

        let detail = self.runs().detail(&prompt.run)?;
        let config: Config = serde_saphyr::from_str::<Option<Config>>(&detail.config)
            .ok()
            .flatten()
            .unwrap_or_default();
        let mut command = Command::new(program);
        command.arg("generate");
        let (adapter, whole) = (detail.path.join("adapter"), detail.path.join("model"));
        match config.model.name_or_path {
            Some(base) if prompt.base || adapter.is_dir() => {
                command.arg(format!("--model={base}"));
                if !prompt.base {
                    command.arg("--adapter").arg(&adapter);
                }
            }
            _ if whole.is_dir() && !prompt.base => {
                command.arg("--model").arg(&whole);
            }
            _ => {
                return Err(Error::Refused(format!(
                    "`{}` has neither an adapter nor a model yet: they are written when a run ends",
                    prompt.run
                )));
            }
        }
        if let Some(device) = config.device {
            command.arg(format!("--device={device}"));
        }
        command.arg(format!("--prompt={}", prompt.prompt));
        command.arg(format!(
            "--max-new-tokens={}",
            prompt.max_new_tokens.unwrap_or(200)
        ));
        if let Some(temperature) = prompt.temperature {
            command.arg(format!("--temperature={temperature}"));
        }
        if let Some(seed) = prompt.seed {
            command.arg(format!("--seed={seed}"));
        }
        if prompt.chat {
            command.arg("--chat");
        }
        let child = command
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn();
        child.map_err(|error| Error::io("start", program, error))
    }
}
