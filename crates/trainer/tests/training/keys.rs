//! What single keys of a config do to a whole run. A test for a new key goes here.

use std::fs;
use std::path::Path;

use models::formats::{SafetensorsFile, TensorSource};
use models::pretrained::Pretrained;
use surefoot_trainer::Record;

use super::place::{Place, records};

#[test]
fn only_the_newest_checkpoints_are_kept() {
    let place = Place::new();
    place
        .run("a", &["train.save_steps=1", "train.save_total_limit=2"])
        .unwrap();
    let mut kept: Vec<_> = fs::read_dir(place.path("runs/a/checkpoints"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    kept.sort();
    assert_eq!(kept, ["step-000007", "step-000008"]);
}

#[test]
fn bf16_and_a_bpe_train_and_resume_exactly() {
    let place = Place::new();
    let options = [
        "train.bf16=true",
        "data.tokenizer=bpe",
        "data.vocab_size=300",
    ];
    place.run("whole", &options).unwrap();
    place.run_until("cut", 5, &options);
    place
        .run(
            "cut",
            &[&options[..], &["train.resume_from_checkpoint=latest"]].concat(),
        )
        .unwrap();
    let bytes = |run| fs::read(place.checkpoint(run, 8).join("model.safetensors")).unwrap();
    assert!(bytes("whole") == bytes("cut"));
}

#[test]
fn every_family_trains_from_scratch_and_resumes_exactly() {
    let families = models::language::REGISTRY.into_iter();
    for family in families.filter(|family| family.is_plain()) {
        let place = Place::new();
        let option = format!("model.model_type={}", family.model_type);
        place.run("whole", &[&option]).unwrap();
        place.run_until("cut", 5, &[&option]);
        let resume = [&option[..], "train.resume_from_checkpoint=latest"];
        place.run("cut", &resume).unwrap();
        let bytes = |run| fs::read(place.checkpoint(run, 8).join("model.safetensors")).unwrap();
        assert!(bytes("whole") == bytes("cut"), "{family:?}");
        let exported = Pretrained::open(&place.path("runs/whole/model")).unwrap();
        assert_eq!(exported.config.family, family);
    }
}

#[test]
fn moments_of_eight_bits_train_and_resume_exactly() {
    let place = Place::new();
    let options = ["train.optim=adamw_8bit", "model.hidden_size=64"];
    place.run("whole", &options).unwrap();
    place.run_until("cut", 5, &options);
    let resume = [&options[..], &["train.resume_from_checkpoint=latest"]].concat();
    place.run("cut", &resume).unwrap();
    for file in ["model.safetensors", "optimizer.safetensors"] {
        let bytes = |run| fs::read(place.checkpoint(run, 8).join(file)).unwrap();
        assert!(bytes("whole") == bytes("cut"), "{file}");
        let full_size = bytes("whole").len();
        assert!(full_size > 4096);
    }
    let state = fs::read(place.checkpoint("whole", 8).join("optimizer.safetensors")).unwrap();
    let header = String::from_utf8_lossy(&state[8..8000]).into_owned();
    assert!(
        header.contains("q_proj.weight.values"),
        "no eight bits: {header}"
    );
    // The other kind of moments is not taken for these.
    let other = [&resume[1..], &["train.optim=adamw_torch"]].concat();
    let error = place.run("cut", &other).unwrap_err().to_string();
    assert!(error.contains("`train.optim`"), "{error}");
}

#[test]
fn every_optimizer_resumes_exactly() {
    for optim in [
        "lion",
        "lion_8bit",
        "adafactor",
        "came",
        "prodigy",
        "schedule_free_adamw",
        "muon",
    ] {
        let place = Place::new();
        let optim = format!("train.optim={optim}");
        let rate = if optim.contains("prodigy") {
            "1.0"
        } else {
            "0.003"
        };
        let rate = format!("train.learning_rate={rate}");
        // A warm-up, and evaluations with other weights on the way.
        let options = [
            &optim,
            &rate,
            "train.lr_scheduler_type=constant",
            "train.warmup_steps=3",
            "train.eval_steps=2",
            "model.hidden_size=64",
        ];
        place.run("whole", &options).unwrap();
        place.run_until("cut", 5, &options);
        let resume = [&options[..], &["train.resume_from_checkpoint=latest"]].concat();
        place.run("cut", &resume).unwrap();
        for file in ["model.safetensors", "optimizer.safetensors"] {
            let bytes = |run| fs::read(place.checkpoint(run, 8).join(file)).unwrap();
            assert!(bytes("whole") == bytes("cut"), "{optim}: {file}");
        }
        let losses = |run: &str| evaluations(&place.path(&format!("runs/{run}")));
        assert_eq!(losses("whole"), losses("cut"), "{optim}");
    }
}

/// The average is evaluated and exported; the checkpoint has the weights that go on.
#[test]
fn what_schedule_free_evaluates_is_exported() {
    let place = Place::new();
    let options = [
        "train.optim=schedule_free_adamw",
        "train.lr_scheduler_type=constant",
    ];
    place.run("free", &options).unwrap();
    let tensors = |path: &Path| SafetensorsFile::open(path).unwrap();
    let trained = tensors(&place.checkpoint("free", 8).join("model.safetensors"));
    let state = tensors(&place.checkpoint("free", 8).join("optimizer.safetensors"));
    let exported = tensors(&place.path("runs/free/model/model.safetensors"));
    let name = "model.layers.0.self_attn.q_proj.weight";
    let (y, z) = (
        trained.read_stored(name).unwrap(),
        state.read_stored(&format!("z.{name}")).unwrap(),
    );
    let x = y.lerp(&z, 1.0 - 1.0 / 0.9);
    let off = (exported.read_stored(name).unwrap() - &x).abs().max();
    assert!(off.double_value(&[]) < 1e-6, "{off:?}");
    assert!((x - y).abs().max().double_value(&[]) > 1e-6);
}

/// Losses of the evaluations on the way and at the end.
fn evaluations(run: &Path) -> Vec<(u64, f64, bool)> {
    let evaluation = |record| match record {
        Record::Eval {
            step,
            eval_loss,
            complete,
            ..
        } => Some((step, eval_loss, complete)),
        _ => None,
    };
    records(run).into_iter().filter_map(evaluation).collect()
}

#[test]
fn the_best_weights_are_exported_and_their_checkpoint_kept() {
    let place = Place::new();
    // A rate at which the model gets worse again.
    let options = [
        "train.max_steps=60",
        "train.eval_steps=5",
        "train.learning_rate=0.3",
        "train.warmup_steps=0",
        "train.lr_scheduler_type=constant",
        "train.save_steps=5",
        "train.save_total_limit=1",
        "train.load_best_model_at_end=true",
    ];
    let summary = place.run("a", &options).unwrap();
    let best = summary.best.unwrap();
    let run = place.path("runs/a");
    let on_the_way = evaluations(&run);
    let (least, _, _) = on_the_way[..on_the_way.len() - 1]
        .iter()
        .copied()
        .min_by(|a, b| a.1.total_cmp(&b.1))
        .unwrap();
    assert_eq!(best.step, least);
    assert!(best.step < 60, "the test needs a run that gets worse");
    assert_eq!(summary.held_out.unwrap().loss, best.value);
    let checkpoint = place.checkpoint("a", best.step).join("model.safetensors");
    let kept = SafetensorsFile::open(&checkpoint).unwrap();
    let exported = SafetensorsFile::open(&run.join("model/model.safetensors")).unwrap();
    for name in exported.names() {
        let same = exported
            .read_stored(&name)
            .unwrap()
            .equal(&kept.read_stored(&name).unwrap());
        assert!(same, "{name}");
    }
}

#[test]
fn averaged_weights_are_evaluated_exported_and_resumed() {
    let place = Place::new();
    let options = ["train.ema_decay=0.9"];
    place.run("whole", &options).unwrap();
    place.run_until("cut", 5, &options);
    let resume = [&options[..], &["train.resume_from_checkpoint=latest"]].concat();
    place.run("cut", &resume).unwrap();
    let exported = |run: &str| {
        let path = place.path("runs").join(run);
        fs::read(path.join("model/model.safetensors")).unwrap()
    };
    assert!(exported("whole") == exported("cut"), "the averages differ");
    place.run("last", &[]).unwrap();
    assert!(exported("whole") != exported("last"));
    // Training itself goes on with the last weights, not the averages.
    let trained = |run: &str| fs::read(place.checkpoint(run, 8).join("model.safetensors")).unwrap();
    assert!(trained("whole") == trained("last"));
}
