//! Generates with a run's model: starts `surefoot generate` as a child process.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde::Deserialize;

use super::{Queue, refuse_without_trainer};
use crate::runs::{Error, RunName};

/// A request to a model.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prompt {
    /// The run whose adapter or model is used.
    pub run: RunName,
    /// The text to continue.
    pub prompt: String,
    /// Whether to apply the model's chat template.
    #[serde(default)]
    pub chat: bool,
    /// Without the adapter, for comparison.
    #[serde(default)]
    pub base: bool,
    /// The most tokens to generate.
    #[serde(default)]
    pub max_new_tokens: Option<u32>,
    /// Sampling temperature.
    #[serde(default)]
    pub temperature: Option<f64>,
    /// Seed of the random generator.
    #[serde(default)]
    pub seed: Option<u64>,
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

#[derive(Default, Deserialize)]
#[serde(default)]
struct Model {
    name_or_path: Option<String>,
    transformer_2: Option<String>,
    vae: Option<String>,
    text_encoder: Option<String>,
    tokenizer: Option<String>,
    quantization: Option<String>,
    low_vram: Option<bool>,
    blocks_to_swap: Option<u32>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Data {
    resolution: Option<serde_json::Value>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Config {
    model: Model,
    data: Data,
    device: Option<String>,
}

impl Config {
    fn read(text: &str) -> Self {
        let read = serde_saphyr::from_str::<Option<Self>>(text);
        read.ok().flatten().unwrap_or_default()
    }
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
        refuse_without_trainer()?;
        let detail = self.runs().detail(&prompt.run)?;
        let config = Config::read(&detail.config);
        let is_video = config.data.resolution.is_some();
        let mut command = Command::new(program);
        command.arg("generate");
        let (adapter, whole) = (detail.path.join("adapter"), detail.path.join("model"));
        match &config.model.name_or_path {
            Some(base) if prompt.base || adapter.is_dir() => {
                command.arg(format!("--model={base}"));
                match (prompt.base, is_video) {
                    (true, _) => {}
                    (false, false) => {
                        command.arg("--adapter").arg(&adapter);
                    }
                    (false, true) => add_loras(&mut command, &adapter)?,
                }
            }
            _ if whole.is_dir() && !prompt.base => {
                command.arg("--model").arg(&whole);
            }
            _ => {
                return Err(Error::Refused(format!(
                    "`{}` has neither an adapter nor a model yet: they are written at the end of a run",
                    prompt.run
                )));
            }
        }
        if let Some(device) = &config.device {
            command.arg(format!("--device={device}"));
        }
        command.arg(format!("--prompt={}", prompt.prompt));
        if let Some(seed) = prompt.seed {
            command.arg(format!("--seed={seed}"));
        }
        let file = match is_video {
            true => Some(add_video(&mut command, &config.model, prompt, tried)?),
            false => {
                add_text(&mut command, prompt);
                None
            }
        };
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let child = command
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let child = child.map_err(|error| Error::io("start", program, error))?;
        Ok(Generation { child, file })
    }

    /// A run that is training, unless its config says `device: cpu`.
    ///
    /// # Errors
    /// If the folder of runs exists but cannot be read.
    pub fn run_on_a_gpu(&self) -> Result<Option<RunName>, Error> {
        let runs = self.runs().list()?;
        let mut going = runs.into_iter().filter(|run| run.status.is_running());
        let uses = going.find(|run| {
            let config = self.runs().detail(&run.name).map(|detail| detail.config);
            let device = config.ok().and_then(|config| Config::read(&config).device);
            device.as_deref() != Some("cpu")
        });
        Ok(uses.map(|run| run.name))
    }
}

fn add_text(command: &mut Command, prompt: &Prompt) {
    let most = prompt.max_new_tokens.unwrap_or(200);
    command.arg(format!("--max-new-tokens={most}"));
    if let Some(temperature) = prompt.temperature {
        command.arg(format!("--temperature={temperature}"));
    }
    if prompt.chat {
        command.arg("--chat");
    }
}

/// The adapter files, each with the option of its expert.
fn add_loras(command: &mut Command, adapter: &Path) -> Result<(), Error> {
    let entries = std::fs::read_dir(adapter).map_err(|error| Error::io("read", adapter, error))?;
    let names = entries.flatten().map(|entry| entry.file_name());
    let mut names: Vec<String> = names.filter_map(|name| name.into_string().ok()).collect();
    names.sort();
    for name in names.iter().filter(|name| name.ends_with(".safetensors")) {
        let option = match name.ends_with("_low_noise.safetensors") {
            true => "--lora-2",
            false => "--lora",
        };
        // With the strength, since a `:` in the path would otherwise be taken for its separator.
        let mut value = adapter.join(name).into_os_string();
        value.push(":1");
        command.arg(option).arg(value);
    }
    Ok(())
}

/// Adds the options of a video model, and returns the file that it will write.
fn add_video(
    command: &mut Command,
    model: &Model,
    prompt: &Prompt,
    tried: &Path,
) -> Result<PathBuf, Error> {
    let io = |error| Error::io("write", tried, error);
    std::fs::create_dir_all(tried).map_err(io)?;
    let mut number = [0; 8];
    getrandom::fill(&mut number).map_err(|error| io(std::io::Error::other(error)))?;
    let file = tried.join(format!("{:016x}.webp", u64::from_le_bytes(number)));
    let texts = [
        ("--transformer-2", &model.transformer_2),
        ("--vae", &model.vae),
        ("--text-encoder", &model.text_encoder),
        ("--tokenizer", &model.tokenizer),
        ("--quantization", &model.quantization),
    ];
    for (option, value) in texts {
        command.args(value.as_ref().map(|value| format!("{option}={value}")));
    }
    let numbers = [
        ("--num-frames", prompt.frames),
        ("--num-inference-steps", prompt.steps),
        ("--width", prompt.width),
        ("--height", prompt.height),
    ];
    for (option, value) in numbers {
        command.args(value.map(|value| format!("{option}={value}")));
    }
    match (model.low_vram, model.blocks_to_swap) {
        (Some(true), _) => {
            command.arg("--low-vram");
        }
        (_, Some(blocks)) => {
            command.arg(format!("--blocks-to-swap={blocks}"));
        }
        _ => {}
    }
    command.arg("--output").arg(&file);
    Ok(file)
}
