//! Commands that use the result of a run.

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::config::Config;
use crate::locate::located_before;
use crate::summary::Ending;

/// A command on the page, and what it does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Command {
    what: &'static str,
    line: String,
}

/// The commands for a run in `folder`, whose result is in its subfolder `export`, as far as it exists.
pub(crate) fn commands(
    config: &Config,
    folder: &Path,
    export: &str,
    ending: Ending,
) -> Vec<Command> {
    let mut commands = Vec::new();
    let mut add = |what, line| commands.push(Command { what, line });
    if ending != Ending::Completed {
        add(
            "go on with the run",
            format!("surefoot train --resume {}", word(&absolute(folder))),
        );
    }
    let result = absolute(&folder.join(export));
    if !result.is_dir() {
        return commands;
    }
    let base = config.model.name_or_path.as_deref();
    let base = base.filter(|_| config.adapter.is_some()).map(model_path);
    if config.is_video() {
        commands.extend(base.map_or(Vec::new(), |base| of_videos(config, &base, &result)));
        return commands;
    }
    let mut options = match &base {
        Some(base) => format!("--model {} --adapter {}", word(base), word(&result)),
        None => format!("--model {}", word(&result)),
    };
    if config.device != "auto" {
        options += &format!(" --device {}", config.device);
    }
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
        "let it write",
        format!("surefoot generate {options} --prompt {}", quoted(prompt)),
    );
    if let Some(data) = located_before(&config.data) {
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
    let python = |text: &str| {
        quoted(&format!(
            "from transformers import AutoModelForCausalLM as M; {text}"
        ))
    };
    let literal = |path: &Path| format!("{:?}", path.display().to_string());
    let result = literal(&result);
    match &base {
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

/// The commands for LoRA files in the folder `result`, for the video model `base`.
fn of_videos(config: &Config, base: &Path, result: &Path) -> Vec<Command> {
    let file = |expert: &str| {
        let path = result.join(format!("{}{expert}.safetensors", config.name));
        path.is_file().then_some(path)
    };
    // The LoRA of the only transformer, or of the high-noise expert.
    let high = file("").or_else(|| file("_high_noise"));
    let loras = [("--lora", high), ("--lora-2", file("_low_noise"))];
    let loras: Vec<(&str, PathBuf)> = loras
        .into_iter()
        .filter_map(|(option, path)| Some((option, path?)))
        .collect();
    if loras.is_empty() {
        return Vec::new();
    }
    let mut line = format!("surefoot generate --model {}", word(base));
    let model = &config.model;
    for (option, path) in [
        ("--transformer", &model.transformer),
        ("--transformer-2", &model.transformer_2),
        ("--vae", &model.vae),
        ("--text-encoder", &model.text_encoder),
        ("--tokenizer", &model.tokenizer),
    ] {
        if let Some(path) = path {
            line += &format!(" {option} {}", word(&absolute(path)));
        }
    }
    for (option, path) in &loras {
        line += &format!(" {option} {}", word(path));
    }
    if let Some(boundary) = model.boundary_ratio {
        line += &format!(" --boundary-ratio {boundary}");
    }
    if config.device != "auto" {
        line += &format!(" --device {}", config.device);
    }
    // A prompt of the run, with its settings.
    let preview = config
        .previews()
        .ok()
        .and_then(|list| list.into_iter().next());
    match &preview {
        Some(preview) => {
            line += &format!(
                " --width {} --height {} --num-frames {} --prompt {}",
                preview.width,
                preview.height,
                preview.num_frames,
                quoted(&preview.prompt)
            );
            if let Some(image) = &preview.image {
                line += &format!(" --image {}", word(&absolute(image)));
            }
        }
        None => {
            let word = config.data.trigger_word.as_deref().unwrap_or("a video");
            line += &format!(" --prompt {}", quoted(word));
        }
    }
    line += &format!(" --output {}.mp4", word(Path::new(&config.name)));
    let mut commands = vec![Command {
        what: "make a video with it",
        line,
    }];
    let files: Vec<String> = loras.iter().map(|(_, path)| word(path)).collect();
    commands.push(Command {
        what: "give it to ComfyUI",
        line: format!("cp {} ~/ComfyUI/models/loras/", files.join(" ")),
    });
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
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_a_shell() {
        for text in [
            "",
            "plain/path.txt",
            "it's",
            "two words",
            "$HOME `x` \"y\"",
            "a\nb",
            "!",
        ] {
            let command = format!("printf %s {}", quoted(text));
            let output = std::process::Command::new("sh")
                .args(["-c", &command])
                .output()
                .unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), text);
        }
    }

    #[test]
    fn the_commands_are_those_of_the_run() {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("my run");
        std::fs::create_dir_all(run.join("adapter")).unwrap();
        std::fs::write(folder.path().join("data.jsonl"), "{}").unwrap();
        let mut config = Config {
            adapter: Some(Default::default()),
            ..Config::default()
        };
        config.model.name_or_path = Some("smollm2".into());
        config.data.path = Some(folder.path().join("data.jsonl"));
        let at = folder.path().display();
        let lines = |config: &Config, export, ending| -> Vec<String> {
            let found = commands(config, &run, export, ending).into_iter();
            found.map(|command| command.line).collect()
        };
        assert_eq!(
            lines(&config, "adapter", Ending::Stopped),
            [
                format!("surefoot train --resume '{at}/my run'"),
                format!(
                    "surefoot generate --model smollm2 --adapter '{at}/my run/adapter' \
                     --prompt 'Once upon a time'"
                ),
                format!(
                    "surefoot eval --model smollm2 --adapter '{at}/my run/adapter' \
                     --data {at}/data.jsonl"
                ),
            ]
        );
        let made = lines(&config, "adapter", Ending::Completed);
        assert!(made[0].starts_with("surefoot generate"), "{made:?}");
        // There is no result yet.
        assert_eq!(lines(&config, "model", Ending::Running).len(), 1);
    }

    #[test]
    fn a_lora_for_videos_makes_videos() {
        let folder = tempfile::tempdir().unwrap();
        let adapter = folder.path().join("adapter");
        std::fs::create_dir(&adapter).unwrap();
        let text = "name: cat\nmodel: {name_or_path: wan, vae: /m/vae.safetensors}\nadapter: {}\n\
                    data: {path: clips, resolution: 64, num_frames: 5}\n\
                    sample: {prompts: ['a cat --f 9']}\n";
        let config = Config::parse("cat.yaml", text, &[]).unwrap();
        let lines = || -> Vec<String> {
            let found = commands(&config, folder.path(), "adapter", Ending::Completed);
            found.into_iter().map(|command| command.line).collect()
        };
        // No file yet.
        assert!(lines().is_empty());
        let at = adapter.display();
        for name in ["cat_high_noise", "cat_low_noise"] {
            std::fs::write(adapter.join(format!("{name}.safetensors")), "").unwrap();
        }
        let options = "--width 64 --height 64 --num-frames 9 --prompt 'a cat' --output cat.mp4";
        assert_eq!(
            lines(),
            [
                format!(
                    "surefoot generate --model wan --vae /m/vae.safetensors --lora {at}/cat_high_noise.safetensors \
                     --lora-2 {at}/cat_low_noise.safetensors {options}"
                ),
                format!(
                    "cp {at}/cat_high_noise.safetensors {at}/cat_low_noise.safetensors ~/ComfyUI/models/loras/"
                ),
            ]
        );
        std::fs::write(adapter.join("cat.safetensors"), "").unwrap();
        std::fs::remove_file(adapter.join("cat_low_noise.safetensors")).unwrap();
        assert!(lines()[0].contains(&format!("--lora {at}/cat.safetensors --width")));
    }
}
