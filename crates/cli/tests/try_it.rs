//! "Try it" of the page, on the folders of runs that the trainer wrote: each kind of them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../../trainer/tests/wan/place.rs"]
#[allow(dead_code, reason = "the trainer's tests need more of it")]
mod place;

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use surefoot_trainer::{Allocator, Config, NoObserver, Stop};
use surefoot_ui::queue::{Prompt, Queue};
use surefoot_ui::runs::Runs;

use self::place::{Place, copy, golden, plain, scheduled};

fn train(text: &str, overrides: &[String]) {
    let config = Config::parse("config.yaml", text, overrides).unwrap();
    let allocator = Allocator::torch();
    surefoot_trainer::run(&config, &allocator, &mut NoObserver, &Stop::default()).unwrap();
}

/// Sends a prompt to a run of the folder `runs` as the page does; returns what was printed, and the made file.
fn try_it(runs: &Path, prompt: Value) -> (String, Option<Vec<u8>>) {
    let queue = Queue::new(Runs::new(runs));
    let prompt: Prompt = serde_json::from_value(prompt).unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_surefoot-trainer"));
    // What the arguments name is found from anywhere.
    let elsewhere = tempfile::tempdir().unwrap();
    let made = runs.join("tried");
    let begun = queue.start_generate(program, elsewhere.path(), &made, &prompt);
    let begun = begun.unwrap();
    let output = begun.child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{prompt:?}: {said}");
    let text = String::from_utf8(output.stdout).unwrap();
    (text, begun.file.map(|file| fs::read(file).unwrap()))
}

#[test]
fn a_language_model_and_an_adapter_on_it_write() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("it's here");
    fs::create_dir(&root).unwrap();
    let text = crate::common::bottles(400);
    fs::write(root.join("text.txt"), text).unwrap();
    let quoted = |name: &str| format!("{:?}", root.join(name).display().to_string());
    let common = format!(
        "device: cpu\nthreads: 1\noutput_dir: {}\ndata: {{path: {}, block_size: 16}}\n\
         train: {{bf16: false, max_steps: 2, eval_steps: 0, save_steps: 0}}\n",
        quoted("runs"),
        quoted("text.txt")
    );
    let shape =
        "hidden_size: 16, intermediate_size: 24, num_hidden_layers: 1, num_attention_heads: 2";
    train(&format!("name: whole\n{common}model: {{{shape}}}\n"), &[]);
    let base = quoted("runs/whole/model");
    train(
        &format!("name: tuned\n{common}model: {{name_or_path: {base}}}\nadapter: {{r: 2}}\n"),
        &[],
    );
    let runs = root.join("runs");
    for (run, base) in [("whole", false), ("tuned", false), ("tuned", true)] {
        let prompt = json!({ "run": run, "prompt": "7 bo", "max_new_tokens": 4, "base": base });
        let (text, file) = try_it(&runs, prompt);
        assert!(!text.is_empty() && file.is_none(), "{run}: {text}");
    }
}

/// The last checkpoint makes what the result does, and an earlier one something else. Nothing has to be there but that.
fn check_checkpoints<T: PartialEq + std::fmt::Debug>(
    runs: &Path,
    run: &str,
    made: impl Fn(Option<u64>) -> T,
) {
    let result = made(None);
    fs::rename(runs.join(run).join("model"), runs.join("aside")).unwrap();
    assert_eq!(made(Some(2)), result, "{run}");
    assert_ne!(made(Some(1)), result, "{run}");
    fs::rename(runs.join("aside"), runs.join(run).join("model")).unwrap();
}

#[test]
fn checkpoints_of_whole_language_models_write_and_averages_are_what_the_result_is_made_of() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    fs::write(root.join("text.txt"), crate::common::bottles(400)).unwrap();
    let at = root.display();
    let common = format!(
        "device: cpu\nthreads: 1\noutput_dir: {at}/runs\ndata: {{path: {at}/text.txt, block_size: 16}}\n\
         train: {{bf16: false, max_steps: 2, eval_steps: 0, save_steps: 1, learning_rate: 0.5}}\n"
    );
    let shape =
        "hidden_size: 16, intermediate_size: 24, num_hidden_layers: 1, num_attention_heads: 2";
    train(&format!("name: fresh\n{common}model: {{{shape}}}\n"), &[]);
    let tuned = format!("name: tuned\n{common}model: {{name_or_path: {at}/runs/fresh/model}}\n");
    train(&tuned, &[]);
    let averaged = ["name=averaged", "train.ema_decay=0.5"].map(str::to_owned);
    train(&tuned, &averaged);
    let runs = root.join("runs");
    for run in ["fresh", "tuned", "averaged"] {
        // What a model that is trained further began with is not the run's own.
        check_checkpoints(&runs, run, |checkpoint| {
            let prompt = json!({
                "run": run, "prompt": "7 bo", "max_new_tokens": 12, "temperature": 1, "seed": 3, "checkpoint": checkpoint,
            });
            try_it(&runs, prompt).0
        });
    }
    // Of a LoRA, a checkpoint has the adapter.
    train(&tuned, &["name=lora", "adapter.r=2"].map(str::to_owned));
    let checkpoint = runs.join("lora/checkpoints/step-000002");
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_surefoot-trainer"))
        .args(["generate", "--prompt=x", "--model"])
        .arg(runs.join("fresh/model"))
        .arg("--checkpoint")
        .arg(checkpoint)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && said.contains("`--adapter`"),
        "{said}"
    );
}

/// A picture, small and in one step.
fn picture(place: &Place, run: &str, base: bool) -> Vec<u8> {
    picture_at(place, run, base, None)
}

fn picture_at(place: &Place, run: &str, base: bool, checkpoint: Option<u64>) -> Vec<u8> {
    let prompt = json!({
        "run": run, "prompt": "a cat", "frames": 1, "steps": 2, "width": 32, "height": 32, "seed": 3, "base": base,
        "checkpoint": checkpoint,
    });
    try_it(&place.path("runs"), prompt).1.unwrap()
}

#[test]
fn checkpoints_of_whole_models_of_pictures_make_what_they_had_learned() {
    let folder = tempfile::tempdir().unwrap();
    let (at, media) = (folder.path().display(), folder.path().join("media"));
    fs::create_dir(&media).unwrap();
    for number in 0..3 {
        let path = media.join(format!("{number}.png"));
        plain(40 * number).save(&path).unwrap();
        fs::write(path.with_extension("txt"), "a cat").unwrap();
    }
    let model = golden("../z_image/model");
    let text = format!(
        "name: tuned\ndevice: cpu\nthreads: 1\noutput_dir: {at}/runs\nmodel: {{name_or_path: {}}}\n\
         data: {{path: {at}/media, resolution: 64, cache_dir: {at}/cache}}\n\
         train: {{bf16: false, max_steps: 2, per_device_train_batch_size: 1, eval_steps: 0, save_steps: 1, \
         learning_rate: 0.01}}\n",
        model.display()
    );
    train(&text, &[]);
    let fresh = [
        "name=fresh",
        "model.from_config=true",
        "train.ema_decay=0.5",
    ];
    train(&text, &fresh.map(str::to_owned));
    let runs = folder.path().join("runs");
    for run in ["tuned", "fresh"] {
        check_checkpoints(&runs, run, |checkpoint| {
            let prompt = json!({
                "run": run, "prompt": "a cat", "steps": 2, "width": 64, "height": 64, "seed": 3, "checkpoint": checkpoint,
            });
            try_it(&runs, prompt).1.unwrap()
        });
    }
}

#[test]
fn checkpoints_of_whole_models_of_videos_make_what_they_had_learned() {
    let whole = [
        "adapter=null",
        "train.max_steps=2",
        "train.save_steps=1",
        "train.eval_steps=0",
    ];
    let place = scheduled(Place::new());
    place.run(&[&whole[..], &["name=tuned"]].concat()).unwrap();
    let fresh = [
        "name=fresh",
        "model.from_config=true",
        "train.ema_decay=0.5",
    ];
    place.run(&[&whole[..], &fresh].concat()).unwrap();
    let runs = place.path("runs");
    for run in ["tuned", "fresh"] {
        check_checkpoints(&runs, run, |step| picture_at(&place, run, false, step));
    }
    copy(
        &place.path("model/transformer"),
        &place.path("model/transformer_2"),
    );
    // Each expert is trained in one of the two steps.
    let both = [
        "name=both",
        "model.boundary_ratio=0.9",
        "train.steps_per_expert=1",
    ];
    place.run(&[&whole[..], &both].concat()).unwrap();
    check_checkpoints(&runs, "both", |step| {
        picture_at(&place, "both", false, step)
    });
}

#[test]
fn the_lora_of_one_expert_is_applied_once_and_parts_are_those_of_the_run() {
    let place = scheduled(Place::new());
    // The folder's own transformer is not the one that is trained.
    let aside = place.path("transformer");
    fs::rename(place.path("model/transformer"), &aside).unwrap();
    let part = format!("model.transformer={}", aside.display());
    place.run(&[&part, "train.learning_rate=0.1"]).unwrap();
    let arguments = |run: &str| -> Vec<String> {
        let facts = fs::read(place.path("runs").join(run).join("run.json")).unwrap();
        let facts: Value = serde_json::from_slice(&facts).unwrap();
        assert_eq!(
            (&facts["kind"], &facts["architecture"]),
            (&json!("diffusion"), &json!("wan"))
        );
        serde_json::from_value(facts["generate"].clone()).unwrap()
    };
    let loras = arguments("clips");
    let loras = loras
        .iter()
        .filter(|argument| argument.starts_with("--lora"));
    assert_eq!(loras.count(), 1);
    assert_ne!(
        picture(&place, "clips", false),
        picture(&place, "clips", true)
    );

    // Two experts, whose boundary only the config tells.
    fs::rename(&aside, place.path("model/transformer")).unwrap();
    copy(
        &place.path("model/transformer"),
        &place.path("model/transformer_2"),
    );
    let both = [
        "name=both",
        "model.boundary_ratio=0.9",
        "train.steps_per_expert=2",
    ];
    place.run(&both).unwrap();
    assert!(arguments("both").contains(&"--boundary-ratio=0.9".to_owned()));
    picture(&place, "both", false);
}
