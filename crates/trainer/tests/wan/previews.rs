//! Previews on the way.

use std::fs;
use std::path::Path;

use image::GenericImageView;

use super::experts;
use super::place::{Place, scheduled};

pub(crate) const PREVIEWS: [&str; 6] = [
    "train.max_steps=4",
    "sample.sample_steps=2",
    "sample.num_inference_steps=3",
    "sample.width=32",
    "sample.height=48",
    "sample.prompts=[a grey cat --d 7, a dog runs --f 1 --w 48 --h 32 --n a cat]",
];

/// A prompt and its files.
pub(crate) type Made = (String, Vec<String>);

/// The records of samples: the step and what was made.
pub(crate) fn records(run: &Path) -> Vec<(u64, Vec<Made>)> {
    let lines = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let records = lines
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    records
        .filter(|record| record["kind"] == "samples")
        .map(|record| {
            let samples = record["samples"].as_array().unwrap().iter();
            let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
            let sample = |sample: &serde_json::Value| {
                let files = sample["files"].as_array().unwrap();
                (text(&sample["prompt"]), files.iter().map(text).collect())
            };
            (
                record["step"].as_u64().unwrap(),
                samples.map(sample).collect(),
            )
        })
        .collect()
}

#[test]
fn prompts_are_shown_before_the_first_step_and_on_the_way() {
    let place = scheduled(Place::new());
    place.run(&PREVIEWS).unwrap();
    let run = place.path("runs/clips");
    let records = records(&run);
    let steps: Vec<u64> = records.iter().map(|(step, _)| *step).collect();
    assert_eq!(steps, [0, 2, 4]);
    for (step, samples) in &records {
        let prompts: Vec<&str> = samples.iter().map(|(prompt, _)| prompt.as_str()).collect();
        assert_eq!(prompts, ["a grey cat", "a dog runs"]);
        let folder = format!("samples/step-{step:06}");
        let [video, still] = [&samples[0].1, &samples[1].1];
        assert!(video[0].starts_with(&format!("{folder}/0.")), "{video:?}");
        assert!(fs::metadata(run.join(&video[0])).unwrap().len() > 0);
        // Five frames beside each other, four in a row.
        let sheet = image::open(run.join(&video[1])).unwrap();
        assert_eq!(sheet.dimensions(), (4 * 32, 2 * 48));
        assert_eq!(*still, [format!("{folder}/1.png")]);
        let still = image::open(run.join(&still[0])).unwrap();
        assert_eq!(still.dimensions(), (48, 32));
    }
    // What was learned shows, and the noise is the same.
    let sheet = |step: usize| fs::read(run.join(&records[step].1[0].1[1])).unwrap();
    assert_ne!(sheet(0), sheet(2));
    let page = fs::read_to_string(run.join("report.html")).unwrap();
    assert!(page.contains(&records[2].1[0].1[1]));
    // Nothing of a model that has not learned depends on the run.
    place
        .run(&[&PREVIEWS[..], &["name=again", "train.learning_rate=1e-12"]].concat())
        .unwrap();
    let again = place.path("runs/again").join(&records[0].1[0].1[1]);
    assert_eq!(fs::read(again).unwrap(), sheet(0));
}

#[test]
fn previews_change_nothing_that_is_learned() {
    let place = scheduled(Place::new());
    let last = |run: &str| {
        let folder = place.path("runs").join(run).join("checkpoints/step-000004");
        fs::read(folder.join("model.safetensors")).unwrap()
    };
    place
        .run(&[&PREVIEWS[..], &["name=seen"]].concat())
        .unwrap();
    place.run(&["train.max_steps=4", "name=unseen"]).unwrap();
    assert!(last("seen") == last("unseen"));
}

#[test]
fn both_experts_make_a_preview_also_where_one_is_trained() {
    let place = scheduled(experts::place());
    let index = r#"{"_class_name": "WanPipeline", "boundary_ratio": 0.9}"#;
    fs::write(place.path("model/model_index.json"), index).unwrap();
    let sheet = |name: &str, more: &[&str]| {
        let name_key = format!("name={name}");
        place
            .run(&[&PREVIEWS[..], &[&*name_key], more].concat())
            .unwrap();
        let run = place.path("runs").join(name);
        let records = records(&run);
        fs::read(run.join(&records[0].1[0].1[1])).unwrap()
    };
    // Before the first step a LoRA changes nothing.
    let both = sheet("both", &["train.steps_per_expert=1"]);
    assert_eq!(both, sheet("high", &["train.experts=high"]));
    assert_eq!(both, sheet("low", &["train.experts=low"]));
}

#[test]
fn what_a_model_cannot_make_is_told_before_anything_is_loaded() {
    let place = scheduled(Place::new());
    let with = |key: &str| {
        let error = place.run(&[&PREVIEWS[..], &[key]].concat()).unwrap_err();
        error.to_string()
    };
    let error = with("sample.width=33");
    assert!(
        error.contains("`sample.prompts[0]`: `--width 33`"),
        "{error}"
    );
    let error = with("sample.num_frames=4");
    assert!(error.contains("`--num-frames 4`"), "{error}");
    let error = with("sample.image=x.png");
    assert!(error.contains("of texts alone"), "{error}");
}
