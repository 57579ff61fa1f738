//! `run.json`: what other programs need to know of a run. What it trains, how it stands or ended, and how its result
//! is used; the page of runs, the queue and `report.html` read it, and none of them guesses from the config.

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::Error;
use crate::config::{Config, Offload};
use crate::estimate::Estimate;
use crate::locate::located_before;
use crate::run_folder::replace;
use crate::summary::Ending;
use crate::task::{Makes, Usable};

/// The contents of `run.json`.
#[derive(Debug, Serialize)]
pub(crate) struct RunFacts {
    pub(crate) ending: Ending,
    /// The error that ended the run, if any.
    pub(crate) error: Option<String>,
    /// `language` or `diffusion`.
    pub(crate) kind: &'static str,
    /// Unset if `surefoot generate` cannot load what the run exports.
    pub(crate) architecture: Option<String>,
    /// The folder that relative paths in the config start from.
    pub(crate) folder: Option<PathBuf>,
    /// `device` of the config.
    pub(crate) device: String,
    /// The memory that a step is expected to take.
    pub(crate) expected_memory: Estimate,
    /// Arguments of `surefoot generate` that load the result, once there is one.
    pub(crate) generate: Option<Vec<String>>,
    /// The same for a checkpoint, for whose folder [`CHECKPOINT`] stands, if the run trains a whole model.
    pub(crate) generate_checkpoint: Option<Vec<String>>,
    /// The same for the model that the run started from, if it trains an adapter.
    pub(crate) generate_base: Option<Vec<String>>,
    /// Commands that use the result.
    pub(crate) commands: Vec<Command>,
}

/// What a program puts the folder of a checkpoint in place of.
const CHECKPOINT: &str = "{checkpoint}";

/// A command, and what it does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Command {
    what: &'static str,
    line: String,
}

impl RunFacts {
    /// Of a run in `folder`, whose result is in its subfolder `export`, as far as it exists.
    pub(crate) fn new(
        config: &Config,
        usable: Option<Usable<'_>>,
        folder: &Path,
        export: &str,
        ending: Ending,
        error: Option<String>,
        expected_memory: Estimate,
    ) -> Self {
        let result = absolute(&folder.join(export));
        let tuned = usable.and_then(|_| of_result(config, &result));
        let base = usable.and_then(|_| of_base(config));
        let checkpoint = usable.and_then(|_| of_checkpoint(config));
        let mut commands = Vec::new();
        if usable.is_some() && ending != Ending::Completed {
            commands.push(Command {
                what: "go on with the run",
                line: format!("surefoot train --resume {}", word(&absolute(folder))),
            });
        }
        if let (Some(usable), Some(options)) = (usable, &tuned) {
            commands.extend(match usable.makes {
                Makes::Image => of_media(config, options, false),
                Makes::Video => of_media(config, options, true),
                Makes::Text | Makes::Chat => {
                    of_texts(config, options, usable, &absolute(folder), &result)
                }
            });
        }
        Self {
            ending,
            error,
            kind: match config.is_video() {
                true => "diffusion",
                false => "language",
            },
            architecture: usable.map(|usable| usable.architecture.to_owned()),
            folder: std::env::current_dir().ok(),
            device: config.device.clone(),
            expected_memory,
            generate: tuned.as_deref().map(arguments),
            generate_checkpoint: checkpoint.as_deref().map(arguments),
            generate_base: base.as_deref().map(arguments),
            commands,
        }
    }

    /// Writes it atomically.
    pub(crate) fn write(&self, path: &Path) -> Result<(), Error> {
        let text = serde_json::to_string_pretty(self)
            .map_err(|error| Error::Internal(format!("the facts of the run: {error}")))?;
        replace(path, &(text + "\n"))
    }
}

/// An option of `surefoot generate` and its value; empty for a flag.
type GenerateOption = (&'static str, String);

/// As arguments for a process.
fn arguments(options: &[GenerateOption]) -> Vec<String> {
    let options = options.iter().map(|(name, value)| match &**value {
        "" => (*name).to_owned(),
        value => format!("{name}={value}"),
    });
    options.collect()
}

/// As words of a shell.
fn words(options: &[GenerateOption]) -> String {
    let words = options.iter().map(|(name, value)| match &**value {
        "" => (*name).to_owned(),
        value => format!("{name} {}", quoted(value)),
    });
    words.collect::<Vec<_>>().join(" ")
}

/// The model that an adapter is trained on.
fn base_model(config: &Config) -> Option<String> {
    let base = config.model.name_or_path.as_deref();
    let base = base.filter(|_| config.adapter.is_some()).map(model_path);
    base.map(|path| path.display().to_string())
}

/// What loads the model that an adapter is trained on.
fn of_base(config: &Config) -> Option<Vec<GenerateOption>> {
    let mut options = vec![("--model", base_model(config)?)];
    options.extend(settings(config, true));
    Some(options)
}

/// What loads a checkpoint of a whole model.
fn of_checkpoint(config: &Config) -> Option<Vec<GenerateOption>> {
    let model = match &config.model.name_or_path {
        _ if config.adapter.is_some() => return None,
        Some(name) => model_path(name).display().to_string(),
        // Beside the weights of a language model that began with random ones is all that it needs.
        None => CHECKPOINT.to_owned(),
    };
    let mut options = vec![("--model", model), ("--checkpoint", CHECKPOINT.to_owned())];
    options.extend(settings(config, true));
    Some(options)
}

/// What loads the single file that the whole denoiser was written to, which is named as the one that it was read from.
fn of_file(config: &Config, result: &Path) -> Option<Vec<GenerateOption>> {
    let model = &config.model;
    let name = model.name_or_path.as_deref()?;
    let written = |file: &Path| {
        let file = result.join(file.file_name()?);
        file.is_file().then(|| file.display().to_string())
    };
    let parts = [
        ("--transformer", &model.transformer),
        ("--transformer-2", &model.transformer_2),
    ];
    let parts = parts.map(|(option, path)| Some((option, written(path.as_deref()?)?)));
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    let mut options = match written(Path::new(name)) {
        Some(file) => vec![("--model", file)],
        None if parts.is_empty() => return None,
        None => vec![("--model", model_path(name).display().to_string())],
    };
    let mut others = settings(config, true);
    others.retain(|(option, _)| parts.iter().all(|(other, _)| other != option));
    options.extend(parts);
    options.extend(others);
    Some(options)
}

/// What loads the result of a run, if it is there.
fn of_result(config: &Config, result: &Path) -> Option<Vec<GenerateOption>> {
    let whole = result.display().to_string();
    if config.is_video()
        && config.adapter.is_none()
        && let Some(options) = of_file(config, result)
    {
        return Some(options);
    }
    let mut options = match base_model(config) {
        _ if !result.is_dir() => return None,
        None => vec![("--model", whole)],
        Some(base) if config.is_video() => {
            let loras = loras(config, result);
            match loras.is_empty() {
                true => return None,
                false => [vec![("--model", base)], loras].concat(),
            }
        }
        Some(base) => vec![("--model", base), ("--adapter", whole)],
    };
    options.extend(settings(config, config.adapter.is_some()));
    Some(options)
}

/// The files of a LoRA for a diffusion model: of the only transformer, or of one expert or both.
fn loras(config: &Config, result: &Path) -> Vec<GenerateOption> {
    let file = |expert: &str| {
        // A name that other files have gets `_lora`.
        let names = ["_lora", ""].map(|lora| format!("{}{lora}{expert}.safetensors", config.name));
        let mut files = names.iter().map(|name| result.join(name));
        let path = files.find(|file| file.is_file())?.display().to_string();
        // What follows a colon would be taken for the strength.
        Some(match path.contains(':') {
            true => path + ":1",
            false => path,
        })
    };
    let high = file("").or_else(|| file("_high_noise"));
    let loras = [("--lora", high), ("--lora-2", file("_low_noise"))];
    let loras = loras
        .into_iter()
        .filter_map(|(option, file)| Some((option, file?)));
    loras.collect()
}

/// How the run loaded its model, with its `parts`, and on which device.
fn settings(config: &Config, parts: bool) -> Vec<GenerateOption> {
    let model = &config.model;
    // The result of a run without an adapter is a model with all its parts.
    let part = |path: &Option<PathBuf>| {
        let path = path.as_deref().filter(|_| parts);
        path.map(|path| absolute(path).display().to_string())
    };
    let mut options = Vec::new();
    if config.is_video() {
        let quantization = model.quantization.map(serde_json::to_value);
        let quantization = quantization.and_then(|name| Some(name.ok()?.as_str()?.to_owned()));
        let (all, blocks) = match model.offload {
            Some(Offload::All) => (Some(String::new()), None),
            Some(Offload::Blocks(count)) => (None, Some(count.to_string())),
            _ => (None, None),
        };
        options.extend([
            ("--transformer", part(&model.transformer)),
            ("--transformer-2", part(&model.transformer_2)),
            ("--vae", part(&model.vae)),
            ("--text-encoder", part(&model.text_encoder)),
            ("--text-encoder-2", part(&model.text_encoder_2)),
            ("--tokenizer", part(&model.tokenizer)),
            (
                "--boundary-ratio",
                model.boundary_ratio.map(|r| r.to_string()),
            ),
            ("--quantization", quantization),
            ("--blocks-to-swap", blocks),
            ("--low-vram", all),
        ]);
    }
    let device = Some(config.device.clone()).filter(|device| device != "auto");
    options.push(("--device", device));
    let options = options.into_iter();
    options
        .filter_map(|(name, value)| Some((name, value?)))
        .collect()
}

/// The commands for a language model: try, measure, merge, export, run elsewhere.
fn of_texts(
    config: &Config,
    options: &[GenerateOption],
    usable: Usable<'_>,
    folder: &Path,
    result: &Path,
) -> Vec<Command> {
    let mut commands = Vec::new();
    let mut add = |what, line| commands.push(Command { what, line });
    let options = words(options);
    let run = word(folder);
    let prompts = config.sample.prompts.iter();
    let mut prompts = prompts.map(|prompt| prompt.trim_end());
    let prompt = prompts.find(|prompt| !prompt.is_empty());
    let mut prompt = prompt.unwrap_or("Once upon a time");
    if config.model.name_or_path.is_none() {
        // A model trained from scratch sees one block, of at least a byte per token, and needs room for the
        // answer.
        let most = config.data.block_size as usize / 2;
        prompt = &prompt[..prompt.floor_char_boundary(most)];
    }
    add(
        "try it",
        match usable.makes {
            Makes::Chat => format!("surefoot chat {run}"),
            _ => format!("surefoot generate {options} --prompt {}", quoted(prompt)),
        },
    );
    // Preferences are no texts to be measured on.
    if config.preference.is_none()
        && let Some(data) = located_before(&config.data)
    {
        let format = config.data.format.map_or(String::new(), |format| {
            let name = serde_json::to_value(format).unwrap_or_default();
            format!(" --format {}", name.as_str().unwrap_or_default())
        });
        let data = word(&absolute(&data));
        add(
            "measure it",
            format!("surefoot eval {options} --data {data}{format}"),
        );
    }
    if config.adapter.is_some() && !folder.join("merged/config.json").is_file() {
        add(
            "merge it",
            format!("surefoot train --resume {run} --set adapter.save_merged=true"),
        );
    }
    if usable.gguf {
        add(
            "export it",
            format!("surefoot export gguf {run} --quantize q4_k_m"),
        );
        let modelfile = word(&folder.join("model-q4_k_m.Modelfile"));
        // Letters and digits are allowed in names of Ollama's models.
        let name = config.name.to_ascii_lowercase();
        let name = name.replace(|letter: char| !letter.is_ascii_alphanumeric(), "-");
        add(
            "run it in Ollama",
            format!("ollama create {name} -f {modelfile} && ollama run {name}"),
        );
    }
    let base = base_model(config);
    // In a class with all parts, modules have other names; a model that was trained as a whole is written alone.
    let class = match usable.is_part && base.is_some() {
        true => "AutoModelForImageTextToText",
        false => "AutoModelForCausalLM",
    };
    let python = |text: &str| quoted(&format!("from transformers import {class} as M; {text}"));
    let literal = |path: &Path| format!("{:?}", path.display().to_string());
    let result = literal(result);
    match base.as_deref().map(Path::new) {
        // Python does not know names from our cache.
        Some(base) if base.is_absolute() && base.is_dir() => add(
            "load it in Python",
            format!(
                "python -c {}",
                python(&format!(
                    "from peft import PeftModel; print(PeftModel.from_pretrained(M.from_pretrained({}), {result}))",
                    literal(base)
                ))
            ),
        ),
        Some(_) => {}
        None => add(
            "load it in Python",
            format!(
                "python -c {}",
                python(&format!("print(M.from_pretrained({result}))"))
            ),
        ),
    }
    commands
}

/// The model's path or name, valid from any folder.
fn model_path(name: &str) -> PathBuf {
    let path = Path::new(name);
    match path.exists() {
        true => absolute(path),
        // The name of a model in the cache.
        false => path.to_owned(),
    }
}

/// The commands for a diffusion model of videos or of pictures.
fn of_media(config: &Config, options: &[GenerateOption], moves: bool) -> Vec<Command> {
    let mut line = format!("surefoot generate {}", words(options));
    // A prompt of the run, with its settings.
    let preview = config
        .previews()
        .ok()
        .and_then(|list| list.into_iter().next());
    match &preview {
        Some(preview) => {
            // Clips that others encoded tell no size.
            if preview.width > 0 {
                line += &format!(" --width {} --height {}", preview.width, preview.height);
            }
            if moves {
                line += &format!(" --num-frames {}", preview.num_frames);
            }
            line += &format!(" --prompt {}", quoted(&preview.prompt));
            if let Some(image) = &preview.image {
                line += &format!(" --image {}", word(&absolute(image)));
            }
            for control in &preview.controls {
                line += &format!(" --control-image {}", word(&absolute(control)));
            }
        }
        None => {
            let any = if moves { "a video" } else { "a picture" };
            let word = config.data.trigger_word.as_deref().unwrap_or(any);
            line += &format!(" --prompt {}", quoted(word));
        }
    }
    let (what, extension) = match moves {
        true => ("make a video with it", "mp4"),
        false => ("make a picture with it", "png"),
    };
    line += &format!(" --output {}.{extension}", word(Path::new(&config.name)));
    let mut commands = vec![Command { what, line }];
    let loras = options
        .iter()
        .filter(|(name, _)| name.starts_with("--lora"));
    let files: Vec<String> = loras.map(|(_, path)| quoted(path)).collect();
    if !files.is_empty() {
        commands.push(Command {
            what: "give it to ComfyUI",
            line: format!("cp {} ~/ComfyUI/models/loras/", files.join(" ")),
        });
    }
    commands
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Quotes a path for a shell.
fn word(path: &Path) -> String {
    quoted(&path.display().to_string())
}

/// Quotes a text for a shell.
fn quoted(text: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "/._-+:,@%".contains(letter);
    match !text.is_empty() && text.chars().all(plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests;
