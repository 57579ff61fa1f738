//! Asking what a run has made: `surefoot generate` as a child.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde::Deserialize;

use super::{Queue, refuse_without_trainer};
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
    /// Of a video: its frames.
    #[serde(default)]
    pub frames: Option<u32>,
    /// Of a video: steps of the solver.
    #[serde(default)]
    pub steps: Option<u32>,
    /// Of a video: pixels.
    #[serde(default)]
    pub width: Option<u32>,
    /// Of a video: pixels.
    #[serde(default)]
    pub height: Option<u32>,
    /// Also where a run uses the GPU, which may run out of memory then.
    #[serde(default)]
    pub beside: bool,
}

/// A model that answers.
pub struct Answering {
    /// Its process.
    pub child: Child,
    /// The file that is made, of a video: its text is no answer then.
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
    /// Starts `program generate`, whose answer comes on its stdout; that of a video model is a file in `tried`.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Refused`] when the run has made nothing yet that could answer.
    pub fn start_generate(
        &self,
        program: &Path,
        folder: &Path,
        tried: &Path,
        prompt: &Prompt,
    ) -> Result<Answering, Error> {
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
                    "`{}` has neither an adapter nor a model yet: they are written when a run ends",
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
        Ok(Answering { child, file })
    }

    /// A run that goes on and is not on the CPU by its config.
    ///
    /// # Errors
    /// When the folder of runs is there and cannot be read.
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

/// The files of an adapter, each for its expert.
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
        // With its strength, or what stands behind a `:` in the path would be taken for one.
        let mut value = adapter.join(name).into_os_string();
        value.push(":1");
        command.arg(option).arg(value);
    }
    Ok(())
}

/// What a video model is asked, and the file that it makes.
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
