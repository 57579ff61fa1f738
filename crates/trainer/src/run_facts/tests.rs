//! Facts and commands of runs of each kind.

use super::*;

fn facts(config: &Config, makes: Makes, folder: &Path, export: &str, ending: Ending) -> RunFacts {
    let usable = Usable {
        architecture: "llama",
        makes,
        gguf: true,
        is_part: export == "adapter",
    };
    let memory = Estimate::default();
    RunFacts::new(config, Some(usable), folder, export, ending, None, memory)
}

fn lines(facts: RunFacts) -> Vec<String> {
    let commands = facts.commands.into_iter();
    commands.map(|command| command.line).collect()
}

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
    let run_at = format!("'{at}/my run'");
    let made = |makes, export, ending| lines(facts(&config, makes, &run, export, ending));
    let measure = format!(
        "surefoot eval --model smollm2 --adapter '{at}/my run/adapter' --data {at}/data.jsonl"
    );
    let merge = format!("surefoot train --resume {run_at} --set adapter.save_merged=true");
    let use_it = [
        format!("surefoot export gguf {run_at} --quantize q4_k_m"),
        format!("ollama create run -f '{at}/my run/model-q4_k_m.Modelfile' && ollama run run"),
    ];
    assert_eq!(
        made(Makes::Text, "adapter", Ending::Stopped),
        [
            format!("surefoot train --resume {run_at}"),
            format!(
                "surefoot generate --model smollm2 --adapter '{at}/my run/adapter' \
                 --prompt 'Once upon a time'"
            ),
            measure.clone(),
            merge,
            use_it[0].clone(),
            use_it[1].clone(),
        ]
    );
    std::fs::create_dir(run.join("merged")).unwrap();
    std::fs::write(run.join("merged/config.json"), "{}").unwrap();
    let [export, ollama] = use_it;
    assert_eq!(
        made(Makes::Chat, "adapter", Ending::Completed),
        [format!("surefoot chat {run_at}"), measure, export, ollama]
    );
    // There is no result yet.
    assert_eq!(made(Makes::Chat, "model", Ending::Running).len(), 1);
    // Modules of an adapter have other names in the class of text alone.
    config.model.name_or_path = Some(folder.path().display().to_string());
    let ending = Ending::Completed;
    let all = lines(facts(&config, Makes::Chat, &run, "adapter", ending));
    let class = "import AutoModelForImageTextToText as M";
    assert!(all.last().unwrap().contains(class), "{all:?}");
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
    let made = |makes| {
        lines(facts(
            &config,
            makes,
            folder.path(),
            "adapter",
            Ending::Completed,
        ))
    };
    // No file yet.
    assert!(made(Makes::Video).is_empty());
    let at = adapter.display();
    for name in ["cat_high_noise", "cat_low_noise"] {
        std::fs::write(adapter.join(format!("{name}.safetensors")), "").unwrap();
    }
    let options = "--width 64 --height 64 --num-frames 9 --prompt 'a cat' --output cat.mp4";
    assert_eq!(
        made(Makes::Video),
        [
            format!(
                "surefoot generate --model wan --lora {at}/cat_high_noise.safetensors \
                 --lora-2 {at}/cat_low_noise.safetensors --vae /m/vae.safetensors {options}"
            ),
            format!(
                "cp {at}/cat_high_noise.safetensors {at}/cat_low_noise.safetensors ~/ComfyUI/models/loras/"
            ),
        ]
    );
    std::fs::write(adapter.join("cat.safetensors"), "").unwrap();
    std::fs::remove_file(adapter.join("cat_low_noise.safetensors")).unwrap();
    let picture = &made(Makes::Image)[0];
    assert!(picture.contains(&format!("--lora {at}/cat.safetensors --vae")));
    assert!(picture.ends_with("--width 64 --height 64 --prompt 'a cat' --output cat.png"));
}

#[test]
fn a_lora_on_what_others_encoded_is_one_of_a_diffusion_model_with_all_that_it_was_trained_with() {
    let folder = tempfile::tempdir().unwrap();
    let adapter = folder.path().join("adapter");
    std::fs::create_dir(&adapter).unwrap();
    // Under PEFT's name, for training to go on, and for other programs.
    for name in ["adapter_model", "cat"] {
        std::fs::write(adapter.join(format!("{name}.safetensors")), "").unwrap();
    }
    let text = "name: cat\nmodel: {name_or_path: wan, transformer: /m/a.safetensors, boundary_ratio: 0.875, \
                quantization: nf4, offload: all}\nadapter: {}\n\
                data: {path: cache, encoded_by: musubi}\ndevice: cpu\n";
    let config = Config::parse("cat.yaml", text, &[]).unwrap();
    let ending = Ending::Completed;
    let facts = facts(&config, Makes::Video, folder.path(), "adapter", ending);
    assert_eq!(facts.kind, "diffusion");
    let lora = format!("--lora={}/cat.safetensors", adapter.display());
    let settings = [
        "--transformer=/m/a.safetensors",
        "--boundary-ratio=0.875",
        "--quantization=nf4",
        "--low-vram",
        "--device=cpu",
    ];
    let base = [&["--model=wan"], &settings[..]].concat();
    assert_eq!(facts.generate_base.unwrap(), base);
    let tuned = [&["--model=wan", &lora], &settings[..]].concat();
    assert_eq!(facts.generate.unwrap(), tuned);
}
