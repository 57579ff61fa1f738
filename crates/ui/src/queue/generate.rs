//! Generates with a run's model: starts `surefoot generate` as a child process.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Queue, set_apart};
use crate::runs::{Detail, Error, Kind, RunName};

/// A message of a chat.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Turn {
    /// Who says it.
    pub role: Role,
    /// What is said.
    pub content: String,
}

/// Who says something in a chat.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Who asks.
    User,
    /// The model.
    Assistant,
}

/// A request to a model.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Prompt {
    /// The run whose adapter or model is used.
    pub run: RunName,
    /// The text to continue.
    pub prompt: String,
    /// Whether to apply the model's chat template.
    #[serde(default)]
    pub chat: bool,
    /// What was said in the chat before.
    #[serde(default)]
    pub history: Vec<Turn>,
    /// Without the adapter, for comparison.
    #[serde(default)]
    pub base: bool,
    /// With the adapter or the model as it was at the checkpoint of this step; unset for that of the end.
    #[serde(default)]
    pub checkpoint: Option<u64>,
    /// The most tokens to generate.
    #[serde(default)]
    pub max_new_tokens: Option<u32>,
    /// Sampling temperature.
    #[serde(default)]
    pub temperature: Option<f64>,
    /// Seed of the random generator.
    #[serde(default)]
    pub seed: Option<u64>,
    /// How strong a LoRA for pictures or videos is; 1 if unset.
    #[serde(default)]
    pub strength: Option<f64>,
    /// Video: number of frames.
    #[serde(default)]
    pub frames: Option<u32>,
    /// Video: number of inference steps.
    #[serde(default)]
    pub steps: Option<u32>,
    /// Video: width in pixels.
    #[serde(default)]
    pub width: Option<u32>,
    /// Video: height in pixels.
    #[serde(default)]
    pub height: Option<u32>,
    /// Also while a run uses the GPU, although memory may run out then.
    #[serde(default)]
    pub beside: bool,
}

/// A generation in progress.
pub struct Generation {
    /// Its process.
    pub child: Child,
    /// Video: the file that is written. The output of the process is no result then.
    pub file: Option<PathBuf>,
}

/// The options that `run.json` may name: those that load a model, and none that writes a file.
const LOADING: [&str; 15] = [
    "--model",
    "--checkpoint",
    "--adapter",
    "--lora",
    "--lora-2",
    "--transformer",
    "--transformer-2",
    "--vae",
    "--text-encoder",
    "--text-encoder-2",
    "--tokenizer",
    "--boundary-ratio",
    "--quantization",
    "--blocks-to-swap",
    "--device",
];

/// Whether an argument names one of these options and its value, or `--low-vram`.
fn loads(argument: &str) -> bool {
    let option = argument.split_once('=').map(|(option, _)| option);
    option.is_some_and(|option| LOADING.contains(&option)) || argument == "--low-vram"
}

impl Queue {
    /// Starts `program generate`. The answer is its stdout, or for a video model a file in the folder `tried`.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Refused`] if the run has no adapter or model yet.
    pub fn start_generate(
        &self,
        program: &Path,
        folder: &Path,
        tried: &Path,
        prompt: &Prompt,
    ) -> Result<Generation, Error> {
        let detail = self.runs().detail(&prompt.run)?;
        let facts = detail.facts.as_ref();
        let step = prompt.checkpoint.filter(|_| !prompt.base);
        let arguments = facts.and_then(|facts| match (prompt.base, step) {
            (true, _) => facts.generate_base.as_ref(),
            (false, Some(_)) if facts.generate_checkpoint.is_some() => {
                facts.generate_checkpoint.as_ref()
            }
            (false, _) => facts.generate.as_ref(),
        });
        let (Some(facts), Some(arguments)) = (facts, arguments) else {
            return Err(Error::Refused(match prompt.base {
                true => format!(
                    "`{}` trains no adapter: it has no model without one",
                    prompt.run
                ),
                false => format!(
                    "`{}` has neither an adapter nor a model yet: they are written at the end of a run",
                    prompt.run
                ),
            }));
        };
        if let Some(other) = arguments.iter().find(|argument| !loads(argument)) {
            return Err(Error::Refused(format!(
                "`run.json` of `{}` does not come from the trainer: `{other}` loads no model",
                prompt.run
            )));
        }
        let arguments = match step {
            Some(step) => at_checkpoint(arguments, &detail, step)?,
            None => arguments.clone(),
        };
        let mut command = Command::new(program);
        command.arg("generate");
        command.args(arguments.into_iter().map(|argument| {
            let is_lora = ["--lora=", "--lora-2="]
                .iter()
                .any(|option| argument.starts_with(option));
            match prompt.strength.filter(|_| is_lora) {
                Some(strength) => format!("{argument}:{strength}"),
                None => argument,
            }
        }));
        command.arg(format!("--prompt={}", prompt.prompt));
        if let Some(seed) = prompt.seed {
            command.arg(format!("--seed={seed}"));
        }
        let file = match facts.kind {
            Kind::Diffusion => Some(add_video(&mut command, prompt, tried)?),
            Kind::Language => {
                add_text(&mut command, prompt);
                None
            }
        };
        set_apart(&mut command);
        let child = command
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let child = child.map_err(|error| Error::io("start", program, error))?;
        Ok(Generation { child, file })
    }

    /// A run that is training, unless it says that it does so on the CPU.
    ///
    /// # Errors
    /// If the folder of runs exists but cannot be read.
    pub fn run_on_a_gpu(&self) -> Result<Option<RunName>, Error> {
        let runs = self.runs().list()?;
        let mut going = runs.into_iter().filter(|run| run.status.is_running());
        let uses = going.find(|run| {
            let detail = self.runs().detail(&run.name).ok();
            let facts = detail.and_then(|detail| detail.facts);
            facts.is_none_or(|facts| facts.device != "cpu")
        });
        Ok(uses.map(|run| run.name))
    }
}

/// The arguments with the folder of a checkpoint, or with its adapter, which has the same files as that of the end.
fn at_checkpoint(arguments: &[String], run: &Detail, step: u64) -> Result<Vec<String>, Error> {
    let name = &run.overview.name;
    if !run.checkpoints.contains(&step) {
        return Err(Error::Refused(format!(
            "`{name}` has no checkpoint of step {step}"
        )));
    }
    let checkpoint = run.path.join(format!("checkpoints/step-{step:06}"));
    let mut is_changed = false;
    let changed = arguments.iter().map(|argument| {
        let (option, path) = argument.split_once('=')?;
        if path == "{checkpoint}" {
            is_changed = true;
            return Some(format!("{option}={}", checkpoint.display()));
        }
        let is_adapter = matches!(option, "--adapter" | "--lora" | "--lora-2");
        let file = within(path, &run.path.join("adapter")).filter(|_| is_adapter)?;
        is_changed = true;
        Some(format!("{option}={}", checkpoint.join(file).display()))
    });
    let changed: Vec<_> = changed.collect();
    if !is_changed {
        return Err(Error::Refused(format!(
            "the checkpoints of `{name}` have nothing that could be tried"
        )));
    }
    let changed = arguments.iter().zip(changed);
    Ok(changed
        .map(|(argument, changed)| changed.unwrap_or_else(|| argument.clone()))
        .collect())
}

/// What follows `folder` in `path`, whichever links either was named by.
fn within(path: &str, folder: &Path) -> Option<PathBuf> {
    let path = Path::new(path);
    if let Ok(rest) = path.strip_prefix(folder) {
        return Some(rest.to_owned());
    }
    let (path, folder) = (path.canonicalize().ok()?, folder.canonicalize().ok()?);
    path.strip_prefix(folder).ok().map(Path::to_owned)
}

fn add_text(command: &mut Command, prompt: &Prompt) {
    let most = prompt.max_new_tokens.unwrap_or(200);
    command.arg(format!("--max-new-tokens={most}"));
    if let Some(temperature) = prompt.temperature {
        command.arg(format!("--temperature={temperature}"));
    }
    if prompt.chat {
        command.arg("--chat");
        if !prompt.history.is_empty() {
            command.arg(format!("--history={}", serde_json::json!(prompt.history)));
        }
    }
}

/// Adds the options of a video model, and returns the file that it will write.
fn add_video(command: &mut Command, prompt: &Prompt, tried: &Path) -> Result<PathBuf, Error> {
    let io = |error| Error::io("write", tried, error);
    std::fs::create_dir_all(tried).map_err(io)?;
    let mut number = [0; 8];
    getrandom::fill(&mut number).map_err(|error| io(std::io::Error::other(error)))?;
    let file = tried.join(format!("{:016x}.webp", u64::from_le_bytes(number)));
    let numbers = [
        ("--num-frames", prompt.frames),
        ("--num-inference-steps", prompt.steps),
        ("--width", prompt.width),
        ("--height", prompt.height),
    ];
    for (option, value) in numbers {
        command.args(value.map(|value| format!("{option}={value}")));
    }
    command.arg("--output").arg(&file);
    Ok(file)
}
