//! Going on with a run: what must be the same, what may change, and what is damaged.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod part;

use std::fs;
use std::path::{Path, PathBuf};

use models::formats::{SafetensorsFile, TensorSource};
use models::pretrained::convert_gguf;
use surefoot_trainer::{
    Allocator, Config, Error, NoObserver, Observer, Record, Stop, Summary, dry_run,
};
use tch::Kind;

const CONFIG: &str = "
name: a
seed: 7
device: cpu
threads: 1
adapter: {r: 2, lora_alpha: 4, target_modules: [q_proj, v_proj]}
data: {block_size: 16, validation_fraction: 0.1}
sample: {max_new_tokens: 4, sample_steps: 2, prompts: ['on 1']}
train:
  bf16: false
  max_steps: 6
  per_device_train_batch_size: 2
  learning_rate: 0.01
  logging_steps: 1
  eval_steps: 2
  max_eval_samples: 2
  save_steps: 2
";

struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self::of("llama-grouped")
    }

    fn of(model: &str) -> Self {
        let place = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        let golden =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/reference/golden/models");
        let folder = golden.join(model);
        // One of no GGUF file has the tokenizer of another.
        let gguf = [model, "llama-grouped"].map(|name| golden.join(format!("{name}.gguf")));
        let gguf = gguf.iter().find(|file| file.is_file()).unwrap();
        convert_gguf(gguf, &place.path("model"), Kind::Float, &|_, _| {}).unwrap();
        if !gguf.ends_with(format!("{model}.gguf")) {
            for file in ["config.json", "model.safetensors"] {
                fs::copy(folder.join(file), place.path("model").join(file)).unwrap();
            }
        }
        let line = |n: usize| format!("{{\"text\": \"on {} the {n}. \"}}\n", n % 10);
        let text: String = (0..300).map(line).collect();
        fs::write(place.path("data.jsonl"), text).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn config(&self, more: &[&str]) -> Config {
        let mut all = vec![
            format!("output_dir={}", self.path("runs").display()),
            format!("data.path={}", self.path("data.jsonl").display()),
            format!("model.name_or_path={}", self.path("model").display()),
        ];
        all.extend(more.iter().map(|text| (*text).to_owned()));
        Config::parse("test.yaml", CONFIG, &all).unwrap()
    }

    fn watched(
        &self,
        more: &[&str],
        observer: &mut dyn Observer,
        stop: &Stop,
    ) -> Result<Summary, Error> {
        let config = self.config(more);
        surefoot_trainer::run(&config, &Allocator::torch(), observer, stop)
    }

    fn run(&self, more: &[&str]) -> Result<Summary, Error> {
        self.watched(more, &mut NoObserver, &Stop::default())
    }

    fn resume(&self, more: &[&str]) -> Result<Summary, Error> {
        self.run(&[&["train.resume_from_checkpoint=latest"], more].concat())
    }

    /// What a resume with these keys is refused with, by a run and by a dry run.
    fn refused(&self, more: &[&str]) -> String {
        let error = self.resume(more).unwrap_err();
        let all = [&["train.resume_from_checkpoint=latest"], more].concat();
        let dry = dry_run(&self.config(&all), &Allocator::torch(), &mut NoObserver);
        assert_eq!(dry.unwrap_err().to_string(), error.to_string());
        error.to_string()
    }

    fn checkpoint(&self, step: u64) -> PathBuf {
        self.path(&format!("runs/a/checkpoints/step-{step:06}"))
    }

    fn records(&self) -> Vec<Record> {
        let text = fs::read_to_string(self.path("runs/a/metrics.jsonl")).unwrap();
        let lines = text.lines();
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}

/// Asks the run to stop in a step.
struct StopAt(u64, Stop);

impl Observer for StopAt {
    fn stepped(&mut self, step: u64) {
        if step == self.0 {
            self.1.request();
        }
    }
}

fn stopped_at(place: &Place, step: u64, more: &[&str]) -> Summary {
    let stop = Stop::default();
    let mut observer = StopAt(step, stop.clone());
    place.watched(more, &mut observer, &stop).unwrap()
}

/// An adapter, and all of a model whose routers learn their balance from rows with padding.
#[test]
fn a_mixture_of_experts_goes_on_to_the_same_end() {
    let experts = "adapter.target_parameters=[mlp.experts.gate_up_proj, mlp.experts.down_proj]";
    let settings = [&[experts][..], &["adapter=null", "data.packing=false"]];
    let models = ["qwen3-moe", "gpt-oss", "qwen3.5-moe"].into_iter();
    for (model, more) in models.flat_map(|model| settings.map(|more| (model, more))) {
        let place = || {
            let place = Place::of(model);
            let path = place.path("model/config.json");
            let text = fs::read_to_string(&path).unwrap();
            let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
            config["output_router_logits"] = true.into();
            fs::write(&path, config.to_string()).unwrap();
            place
        };
        let (whole, cut) = (place(), place());
        whole.run(more).unwrap();
        stopped_at(&cut, 3, more);
        cut.resume(more).unwrap();
        for file in ["model.safetensors", "optimizer.safetensors"] {
            let bytes = |place: &Place| fs::read(place.checkpoint(6).join(file)).unwrap();
            assert!(
                bytes(&whole) == bytes(&cut),
                "{model}: {file} with {more:?}"
            );
        }
    }
}

/// An adapter, and all of a model with a delta rule, with keys and values that several blocks use, and with experts beside a
/// feed-forward layer; with and without gradient checkpointing.
#[test]
fn blocks_that_are_not_alike_go_on_to_the_same_end() {
    let models = ["qwen3.5", "gemma4", "gemma4-moe"].into_iter();
    let settings = [&[][..], &["adapter=null"]];
    for (model, more) in models.flat_map(|model| settings.map(|more| (model, more))) {
        let (whole, cut, recomputed) = (Place::of(model), Place::of(model), Place::of(model));
        whole.run(more).unwrap();
        stopped_at(&cut, 3, more);
        cut.resume(more).unwrap();
        recomputed
            .run(&[more, &["train.gradient_checkpointing=true"]].concat())
            .unwrap();
        for file in ["model.safetensors", "optimizer.safetensors"] {
            let bytes = |place: &Place| fs::read(place.checkpoint(6).join(file)).unwrap();
            assert!(
                bytes(&whole) == bytes(&cut),
                "{model}: {file} with {more:?}"
            );
            // A trained embedding that blocks have parts of sums its gradients in another order.
            assert!(
                (model == "gemma4" && !more.is_empty()) || bytes(&whole) == bytes(&recomputed),
                "{model}: {file} with {more:?}, recomputed"
            );
        }
        if !more.is_empty() {
            // All that the base has, also what was not trained.
            let names = |folder: &str| {
                let file = whole.path(folder).join("model.safetensors");
                SafetensorsFile::open(&file).unwrap().names()
            };
            assert_eq!(names("runs/a/model"), names("model"), "{model}");
        }
    }
}

#[test]
fn what_must_not_change_is_refused_by_name() {
    let place = Place::new();
    stopped_at(&place, 3, &[]);
    for (change, told) in [
        (
            "adapter.lora_alpha=8",
            "`adapter.lora_alpha` was 4.0, and is now 8.0",
        ),
        ("adapter.r=4", "`adapter.r` was 2, and is now 4"),
        (
            "adapter.target_modules=[q_proj]",
            "`adapter.target_modules` was [\"q_proj\",\"v_proj\"]",
        ),
        (
            "adapter.use_rslora=true",
            "`adapter.use_rslora` was false, and is now true",
        ),
        ("seed=8", "`seed` was 7, and is now 8"),
        (
            "data.block_size=8",
            "`data.block_size` was 16, and is now 8",
        ),
        (
            "data.validation_fraction=0.2",
            "`data.validation_fraction` was 0.1, and is now 0.2",
        ),
        (
            "model.quantization=nf4",
            "`model.quantization` was unset, and is now \"nf4\"",
        ),
        ("train.optim=adamw_8bit", "`train.optim` was"),
        ("adapter=null", "`adapter` was \"set\", and is now unset"),
    ] {
        let refused = place.refused(&[change]);
        assert!(refused.contains(told), "{change}: {refused}");
        assert_eq!(refused.lines().count(), 3, "{change}: {refused}");
    }
    let two = place.refused(&["seed=8", "adapter.r=4"]);
    assert!(
        two.contains("`seed`") && two.contains("`adapter.r`"),
        "{two}"
    );
    // Nothing of all that touched the run.
    assert_eq!(place.resume(&[]).unwrap().steps, 6);
}

#[test]
fn other_weights_another_architecture_and_other_data_are_refused_whatever_their_name() {
    let place = Place::new();
    stopped_at(&place, 3, &[]);
    let weights = place.path("model/model.safetensors");
    let whole = fs::read(&weights).unwrap();
    for at in [whole.len() / 2, whole.len() - 1] {
        let mut other = whole.clone();
        other[at] ^= 1;
        fs::write(&weights, other).unwrap();
        let refused = place.refused(&[]);
        assert!(refused.contains("`weights` was \""), "{refused}");
    }
    fs::write(&weights, &whole).unwrap();
    let config = place.path("model/config.json");
    let text = fs::read_to_string(&config).unwrap();
    let mut other: serde_json::Value = serde_json::from_str(&text).unwrap();
    other["rms_norm_eps"] = serde_json::json!(0.5);
    fs::write(&config, other.to_string()).unwrap();
    let refused = place.refused(&[]);
    assert!(refused.contains("`model.rms_norm_eps` was"), "{refused}");
    fs::write(&config, text).unwrap();

    let data = place.path("data.jsonl");
    let text = fs::read_to_string(&data).unwrap();
    fs::write(&data, text.replacen("on 1", "on 7", 1)).unwrap();
    let refused = place.refused(&[]);
    assert!(refused.contains("`fingerprint` was"), "{refused}");
    fs::write(&data, text).unwrap();

    // The same model and data elsewhere are the same.
    fs::rename(place.path("model"), place.path("moved")).unwrap();
    fs::rename(&data, place.path("moved.jsonl")).unwrap();
    let model = format!("model.name_or_path={}", place.path("moved").display());
    let data = format!("data.path={}", place.path("moved.jsonl").display());
    assert_eq!(place.resume(&[&model, &data]).unwrap().steps, 6);
}

#[derive(Default)]
struct Changes(Vec<String>);

impl Observer for Changes {
    fn started(&mut self, start: &surefoot_trainer::Start<'_>) {
        self.0 = start.changes.iter().map(ToString::to_string).collect();
    }
}

#[test]
fn what_may_change_is_told_and_the_config_says_from_when() {
    let place = Place::new();
    stopped_at(&place, 3, &[]);
    let resume = "train.resume_from_checkpoint=latest";
    let stop = Stop::default();
    let mut seen = Changes::default();
    let options = [
        resume,
        "learning_rate=0.002",
        "max_steps=8",
        "per_device_train_batch_size=1",
    ];
    place.watched(&options, &mut seen, &stop).unwrap();
    let want = [
        "train.learning_rate 0.01 → 0.002",
        "train.max_steps 6 → 8",
        "train.per_device_train_batch_size 2 → 1",
    ];
    assert_eq!(seen.0, want);
    let options = [
        resume,
        "learning_rate=0.002",
        "max_steps=9",
        "per_device_train_batch_size=1",
    ];
    place.watched(&options, &mut seen, &stop).unwrap();
    assert_eq!(seen.0, ["train.max_steps 8 → 9"]);
    // The same once more changes nothing, and is told once.
    place.watched(&options, &mut seen, &stop).unwrap();
    assert_eq!(seen.0, Vec::<String>::new());

    let path = place.path("runs/a/config.yaml");
    let text = fs::read_to_string(&path).unwrap();
    let comments: Vec<&str> = text
        .lines()
        .take_while(|line| line.starts_with('#'))
        .collect();
    assert_eq!(
        comments,
        [
            "# In force from step 9 on. Changes so far:",
            "#   from step 4 on: train.learning_rate 0.01 → 0.002",
            "#   from step 4 on: train.max_steps 6 → 8",
            "#   from step 4 on: train.per_device_train_batch_size 2 → 1",
            "#   from step 9 on: train.max_steps 8 → 9",
        ]
    );
    let written = Config::load(&path, &[]).unwrap();
    assert_eq!(written, place.config(&options[1..]));
    let rate = |record: &Record| match record {
        Record::Train {
            step,
            learning_rate,
            ..
        } => Some((*step, *learning_rate)),
        _ => None,
    };
    let rates: Vec<_> = place.records().iter().filter_map(rate).collect();
    assert_eq!(rates[2].0, 3);
    assert!(rates[2].1 > 0.002 && rates[3].1 <= 0.002, "{rates:?}");
}

#[test]
fn every_part_of_a_checkpoint_is_covered() {
    let place = Place::new();
    place.run(&[]).unwrap();
    let folder = place.checkpoint(6);
    let mut files: Vec<String> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    assert_eq!(
        files,
        [
            "adapter_config.json",
            "adapter_model.safetensors",
            "model.safetensors",
            "optimizer.safetensors",
            "state.json"
        ]
    );
    let whole_one = format!("--resume {}", place.checkpoint(4).display());
    let refused = |what: &str| {
        let refused = place.refused(&["max_steps=7"]);
        assert!(refused.contains(&whole_one), "{what}: {refused}");
        refused
    };
    for name in &files {
        let path = folder.join(name);
        let whole = fs::read(&path).unwrap();
        for at in [0, whole.len() / 3, whole.len() / 2, whole.len() - 1] {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(&path, damaged).unwrap();
            let told = refused(&format!("{name} at {at}"));
            assert!(told.contains(name.as_str()), "{name} at {at}: {told}");
        }
        for cut in [0, whole.len() / 2, whole.len() - 1] {
            fs::write(&path, &whole[..cut]).unwrap();
            refused(&format!("{name} cut to {cut}"));
        }
        fs::remove_file(&path).unwrap();
        let told = refused(&format!("no {name}"));
        assert!(told.contains(name.as_str()), "no {name}: {told}");
        fs::write(&path, whole).unwrap();
    }
    fs::write(folder.join("more.txt"), "").unwrap();
    assert!(refused("more").contains("more.txt"));
    fs::remove_file(folder.join("more.txt")).unwrap();

    let state = fs::read_to_string(folder.join("state.json")).unwrap();
    let edits = [
        ("\"step\": 6", "\"step\": 5"),
        ("\"checksums\"", "\"checksum_list\""),
        ("\n  \"checksum\":", "\n  \"no\":"),
    ];
    for (from, to) in edits {
        let edited = state.replacen(from, to, 1);
        assert_ne!(edited, state, "{from}");
        fs::write(folder.join("state.json"), edited).unwrap();
        assert!(refused(from).contains("state.json"));
    }
    // Without any checksum at all, as if there had never been one.
    let mut bare: serde_json::Value = serde_json::from_str(&state).unwrap();
    bare.as_object_mut().unwrap().remove("checksums");
    bare.as_object_mut().unwrap().remove("checksum");
    fs::write(folder.join("state.json"), format!("{bare:#}")).unwrap();
    assert!(refused("bare").contains("it is damaged"));
    fs::write(folder.join("state.json"), state).unwrap();
    assert_eq!(place.resume(&["max_steps=7"]).unwrap().steps, 7);
}

#[test]
fn a_run_goes_on_from_an_older_checkpoint_to_the_same_end() {
    let place = Place::new();
    place.run(&[]).unwrap();
    let end = |step| fs::read(place.checkpoint(step).join("model.safetensors")).unwrap();
    let undisturbed = end(6);
    let records = place.records();
    fs::write(place.checkpoint(6).join("optimizer.safetensors"), "broken").unwrap();
    let from = format!(
        "train.resume_from_checkpoint={}",
        place.checkpoint(2).display()
    );
    let stop = Stop::default();
    place
        .watched(&[&from], &mut StopAt(5, stop.clone()), &stop)
        .unwrap();
    // What came after is out of the way: the newest is of this line of steps.
    assert!(place.path("runs/a/checkpoints/step-000006.aside").is_dir());
    assert!(!place.path("runs/a/checkpoints/step-000004.aside").exists());
    assert_eq!(place.resume(&[]).unwrap().steps, 6);
    assert!(end(6) == undisturbed);
    assert!(!place.path("runs/a/checkpoints/step-000006.aside").exists());
    let kinds = |records: &[Record]| -> Vec<String> {
        let kind = |record: &Record| {
            let value = serde_json::to_value(record).unwrap();
            format!("{} {}", value["kind"], record.step())
        };
        records.iter().map(kind).collect()
    };
    assert_eq!(kinds(&place.records()), kinds(&records));
}

#[test]
fn a_record_sums_up_its_steps_whoever_made_them() {
    let place = Place::new();
    place
        .run(&["name=whole", "logging_steps=4", "max_steps=8"])
        .unwrap();
    let often = ["logging_steps=4", "max_steps=8", "save_steps=3"];
    stopped_at(&place, 2, &often);
    let resumed = [&often[..], &["train.resume_from_checkpoint=latest"]].concat();
    stopped_at(&place, 7, &resumed);
    assert_eq!(place.resume(&often).unwrap().steps, 8);
    let rows = |run: &str| -> Vec<String> {
        let path = place.path("runs").join(run).join("metrics.jsonl");
        let text = fs::read_to_string(path).unwrap();
        let records = text.lines().map(|line| {
            let record: serde_json::Value = serde_json::from_str(line).unwrap();
            record
        });
        records
            .filter(|record| record["kind"] == "train")
            .map(|record| {
                format!(
                    "{} {} {}",
                    record["step"], record["loss"], record["grad_norm"]
                )
            })
            .collect()
    };
    assert_eq!(rows("whole").len(), 2);
    assert!(!rows("whole")[0].contains("null"), "{:?}", rows("whole"));
    assert_eq!(rows("a"), rows("whole"));
    let units = |run: &str| {
        let path = place.path("runs").join(run).join("summary.json");
        let summary: serde_json::Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        summary["tokens"].clone()
    };
    assert_eq!(units("a"), units("whole"));
}

#[test]
fn no_record_and_no_sample_is_written_twice() {
    let place = Place::new();
    place.run(&["name=whole"]).unwrap();
    let text = |run: &str, file: &str| {
        fs::read_to_string(place.path("runs").join(run).join(file)).unwrap()
    };
    let steps = |run: &str| -> Vec<(String, String, bool)> {
        let text = text(run, "metrics.jsonl");
        text.lines()
            .map(|line| {
                let record: serde_json::Value = serde_json::from_str(line).unwrap();
                let complete = record["complete"] == true;
                (
                    record["kind"].to_string(),
                    record["step"].to_string(),
                    complete,
                )
            })
            .collect()
    };
    for step in [1, 2, 3, 4] {
        stopped_at(
            &place,
            step,
            if step == 1 {
                &[]
            } else {
                &["train.resume_from_checkpoint=latest"]
            },
        );
    }
    place.resume(&[]).unwrap();
    // Once more after its end: all that its end did is done again, and recorded once.
    place.resume(&[]).unwrap();
    assert_eq!(steps("a"), steps("whole"));
    assert_eq!(text("a", "samples.txt"), text("whole", "samples.txt"));
    // A file that was damaged is no hindrance.
    let path = place.path("runs/a/metrics.jsonl");
    let mut bytes = fs::read(&path).unwrap();
    bytes[5] = 0xFF;
    bytes.extend(b"{\"kind\": \"train\", \xC3");
    fs::write(&path, bytes).unwrap();
    place.resume(&["max_steps=7"]).unwrap();
    let resumed = steps("a")
        .iter()
        .filter(|(kind, ..)| kind == "\"resumed\"")
        .count();
    assert_eq!(resumed, 1);
}

#[test]
fn what_a_kill_left_is_swept() {
    let place = Place::new();
    stopped_at(&place, 3, &[]);
    let left = [
        "checkpoints/.step-000002.old",
        "checkpoints/.step-000004.tmp",
        ".adapter.old",
        "adapter.tmp",
        "metrics.jsonl.tmp",
        "report.html.tmp",
    ];
    for name in left {
        let path = place.path("runs/a").join(name);
        match name.contains("l.tmp") {
            true => fs::write(path, "half").unwrap(),
            false => {
                fs::create_dir(&path).unwrap();
                fs::write(path.join("model.safetensors"), "half").unwrap();
            }
        }
    }
    fs::write(place.path("runs/a/notes.tmp"), "the user's").unwrap();
    place.resume(&[]).unwrap();
    for name in left {
        assert!(!place.path("runs/a").join(name).exists(), "{name}");
    }
    assert!(place.path("runs/a/notes.tmp").exists());
}

#[test]
fn a_stopped_run_and_every_checkpoint_have_the_adapter() {
    let place = Place::new();
    let options = ["train.ema_decay=0.5"];
    stopped_at(&place, 3, &options);
    let file = |folder: &Path| fs::read(folder.join("adapter_model.safetensors")).unwrap();
    let adapter = place.path("runs/a/adapter");
    assert!(file(&adapter) == file(&place.checkpoint(3)));
    assert!(file(&adapter) != file(&place.checkpoint(2)));
    // The averages, which are what the end exports too.
    let last = fs::read(place.checkpoint(3).join("model.safetensors")).unwrap();
    assert!(file(&adapter) != last);
    models::adapters::PeftAdapter::open(&adapter).unwrap();
    place.resume(&options).unwrap();
    assert!(file(&adapter) == file(&place.checkpoint(6)));
}
