//! Length of a run, learning rate schedule and strategies in a config.

use super::*;

const DATA: &str = "data.dataset=shakespeare";

fn parsed(arguments: &[&str]) -> Result<TrainConfig, String> {
    let all = [&[DATA], arguments].concat();
    let all: Vec<String> = all.iter().map(|text| (*text).to_owned()).collect();
    let config = Config::parse("x.yaml", "", &all);
    config
        .map(|config| config.train)
        .map_err(|error| error.to_string())
}

#[test]
fn conflicting_keys_are_refused_by_name() {
    for (arguments, told) in [
        (
            &["train={max_steps: 5, num_train_epochs: 1}"][..],
            "`train.max_steps` and `train.num_train_epochs` both set the length of the run",
        ),
        (
            &["train={warmup_steps: 5, warmup_ratio: 0.1}"],
            "`train.warmup_steps` and `train.warmup_ratio` both set the length of the warm-up",
        ),
        (
            &["per_device_train_batch_size=0"],
            "out of range (allowed: at least 1 and at most 65536)",
        ),
        (
            &["per_device_train_batch_size=most"],
            "`train.per_device_train_batch_size` cannot be `most` (A number from 1 to 65536, or `auto`.)",
        ),
        (
            &["warmup_ratio=1.5"],
            "out of range (allowed: at least 0 and at most 1)",
        ),
        (&["num_train_epochs=0"], "out of range"),
        (
            &["eval_strategy=best"],
            "`train.eval_strategy` cannot be the text `best`",
        ),
        (
            &["optim=prodigy", "optim_args={momentum: 0.9}"],
            "it has `betas`, `beta3`, `eps`",
        ),
        (
            &["optim_args={r: 1}"],
            "`adamw_torch_fused` has no argument `r`",
        ),
        (
            &["optim=lion", "optim_args={betas: [0.9]}"],
            "not a list of 2 numbers",
        ),
        (
            &["optim=lion", "optim_args={betas: [0.9, 1]}"],
            "from 0 to below 1",
        ),
        (
            &["optim=came", "optim_args={eps: 1e-8}"],
            "`eps` of `came` is not a list of 2 numbers",
        ),
        (
            &["optim=prodigy", "optim_args={eps: [1e-8, 1]}"],
            "`eps` of `prodigy` is one number",
        ),
        (
            &["optim=lion", "adam_beta2=0.99"],
            "`lion` does not use `train.adam_beta2`",
        ),
        (
            &["optim=schedule_free_adamw"],
            "write `lr_scheduler_type: constant`",
        ),
        (
            &[
                "optim=schedule_free_adamw",
                "lr_scheduler_type=constant",
                "ema_decay=0.9",
            ],
            "averages the weights itself",
        ),
        (
            &["lr_scheduler_kwargs={num_cycle: 2}"],
            "unknown key `num_cycle` in `train.lr_scheduler_kwargs`",
        ),
        (
            &["lr_scheduler_kwargs={power: 2}"],
            "`cosine` does not use `power`",
        ),
        (&["lr_scheduler_kwargs={power: 2}"], "it uses `num_cycles`"),
        (
            &["lr_scheduler_type=linear", "lr_scheduler_kwargs={power: 2}"],
            "`linear` has no parameters: remove `train.lr_scheduler_kwargs`",
        ),
        (
            &["lr_scheduler_type=cosine_with_min_lr"],
            "needs a `min_lr` or a `min_lr_rate`",
        ),
        (
            &[
                "lr_scheduler_type=cosine_with_min_lr",
                "lr_scheduler_kwargs={min_lr: 1e-5, min_lr_rate: 0.1}",
            ],
            "both set the rate at the end",
        ),
        (
            &[
                "lr_scheduler_type=cosine_with_min_lr",
                "lr_scheduler_kwargs={min_lr: 0.1}",
            ],
            "`min_lr` 0.1 is above `learning_rate` 0.001",
        ),
        (
            &["lr_scheduler_type=polynomial", "learning_rate=1e-8"],
            "`lr_end` 1e-7 is not below `learning_rate` 1e-8",
        ),
        (
            &["lr_scheduler_type=polynomial", "train.min_lr=1e-5"],
            "`polynomial` does not use `train.min_lr`",
        ),
        (
            &["lr_scheduler_type=warmup_stable_decay"],
            "needs `num_decay_steps`",
        ),
        (
            &[
                "lr_scheduler_type=warmup_stable_decay",
                "lr_scheduler_kwargs={num_decay_steps: 5, decay_type: sqrt}",
            ],
            "cannot be the text `sqrt` (did you mean `1-sqrt`?",
        ),
        (
            &[
                "lr_scheduler_type=warmup_stable_decay",
                "lr_scheduler_kwargs={num_decay_steps: 90}",
                "train={max_steps: 100, warmup_steps: 20}",
            ],
            "`num_decay_steps` 90 do not fit into 100 steps",
        ),
        (
            &["early_stopping_patience=2", "eval_strategy=no"],
            "there are no evaluations during training to find the best model",
        ),
        (
            &["early_stopping_patience=2", "validation_fraction=0"],
            "no data is held out to find the best model",
        ),
        (
            &["early_stopping_threshold=0.1"],
            "early stopping is off, so it needs no threshold",
        ),
        (&["early_stopping_patience=0"], "out of range"),
        (
            &["columns={question: prompt}"],
            "`question` is not a key of records (write `{prompt: prompt}`",
        ),
        (
            &["columns={prompt: a, text: a}"],
            "`prompt` and `text` both name the column `a`",
        ),
    ] {
        // `train={…}` replaces the section, so it comes first.
        let mut arguments = arguments.to_vec();
        arguments.sort_by_key(|argument| !argument.starts_with("train={"));
        let error = parsed(&arguments).unwrap_err();
        assert!(error.contains(told), "{arguments:?}: {error}");
    }
}

#[test]
fn an_override_replaces_the_alternative_key() {
    let text = "data: {dataset: shakespeare}\ntrain: {num_train_epochs: 2, warmup_ratio: 0.1}";
    let of = |overrides: &[&str]| {
        let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
        Config::parse("x.yaml", text, &overrides).unwrap().train
    };
    let asked = of(&[]);
    assert_eq!((asked.steps(), asked.num_train_epochs), (None, Some(2.0)));
    let other = of(&["max_steps=7", "warmup_steps=3"]);
    assert_eq!((other.steps(), other.num_train_epochs), (Some(7), None));
    assert_eq!((other.warmup_steps_of(7), other.warmup_ratio), (3, None));
}

#[test]
fn the_default_of_a_thousand_steps_is_written_to_the_config() {
    assert_eq!(parsed(&[]).unwrap().max_steps, Some(1000));
    let epochs = parsed(&["num_train_epochs=2"]).unwrap();
    assert_eq!((epochs.max_steps, epochs.by_epoch()), (None, true));
}

#[test]
fn a_strategy_may_be_a_yaml_boolean_and_reads_back() {
    for (written, strategy) in [
        ("no", Strategy::No),
        ("'no'", Strategy::No),
        ("false", Strategy::No),
        ("steps", Strategy::Steps),
        ("epoch", Strategy::Epoch),
    ] {
        let overrides = [DATA.to_owned(), format!("eval_strategy={written}")];
        let config = Config::parse("x.yaml", "", &overrides).unwrap();
        assert_eq!(config.train.eval_strategy, strategy, "{written}");
        let again = Config::parse("y.yaml", &config.to_yaml().unwrap(), &[]).unwrap();
        assert_eq!(again, config);
    }
}

#[test]
fn keys_without_effect_give_a_warning_and_are_written_as_unset() {
    for (text, told) in [
        (
            "eval_strategy: epoch, eval_steps: 5",
            "`train.eval_steps` has no effect",
        ),
        (
            "save_strategy: no, save_steps: 5",
            "`train.save_steps` has no effect",
        ),
        (
            "lr_scheduler_type: constant, min_lr: 1e-5",
            "`train.min_lr` has no effect",
        ),
        ("eval_strategy: steps, eval_steps: 5", ""),
        ("eval_strategy: epoch, eval_steps: 0", ""),
        ("eval_strategy: epoch", ""),
    ] {
        let text = format!("data: {{dataset: shakespeare}}\ntrain: {{{text}}}");
        let tree = tree::parse_file("x.yaml", &text).unwrap();
        let config: Config = serde_json::from_value(tree.to_json()).unwrap();
        let warnings = consistency::unused(&config, &tree);
        let warnings: Vec<_> = warnings.iter().map(ToString::to_string).collect();
        assert_eq!(warnings.len(), usize::from(!told.is_empty()), "{text}");
        assert!(warnings.concat().contains(told), "{warnings:?}");
        // Whoever resumes the run is not warned again.
        let written = Config::parse("x.yaml", &text, &[]).unwrap();
        let written = written.to_yaml().unwrap();
        let tree = tree::parse_file("y.yaml", &written).unwrap();
        let config: Config = serde_json::from_value(tree.to_json()).unwrap();
        assert!(consistency::unused(&config, &tree).is_empty(), "{written}");
    }
}

#[test]
fn keys_that_follow_from_a_published_model_or_saved_adapter_give_a_warning() {
    let data = "data: {path: x.jsonl}\n";
    let model = "model: {name_or_path: org/name";
    for (text, told) in [
        (
            format!("{model}, hidden_size: 64}}\n"),
            "`model.hidden_size` has no effect",
        ),
        (
            format!("{model}, initializer_range: 0.5}}\n"),
            "`model.initializer_range`",
        ),
        (
            format!("{model}}}\ndata: {{path: x, tokenizer: bpe}}\n"),
            "`data.tokenizer`",
        ),
        (
            format!("{model}}}\nadapter: {{resume_from: saved, r: 32}}\n"),
            "`adapter.r` has no effect",
        ),
        (
            format!("{model}}}\nadapter: {{resume_from: saved, target_modules: [q_proj]}}\n"),
            "`adapter.target_modules`",
        ),
        (
            format!("{model}}}\nadapter: {{r: 4, loraplus_lr_embedding: 1e-5}}\n"),
            "`adapter.loraplus_lr_embedding` has no effect",
        ),
        (
            format!("{model}, ring_slots: 3}}\nadapter: {{r: 4}}\n"),
            "`model.ring_slots`",
        ),
        (format!("{model}}}\nadapter: {{r: 32}}\n"), ""),
        ("model: {hidden_size: 64}\n".to_owned(), ""),
    ] {
        let text = match text.contains("data:") {
            true => text,
            false => format!("{data}{text}"),
        };
        let tree = tree::parse_file("x.yaml", &text).unwrap();
        let config: Config = serde_json::from_value(tree.to_json()).unwrap();
        let warnings = consistency::unused(&config, &tree);
        let warnings: Vec<_> = warnings.iter().map(ToString::to_string).collect();
        assert_eq!(
            warnings.len(),
            usize::from(!told.is_empty()),
            "{text}{warnings:?}"
        );
        assert!(warnings.concat().contains(told), "{warnings:?}");
    }
}

/// Runs wrote all keys to their configs, whether they had an effect or not, and some keys had other names.
#[test]
fn a_config_with_all_keys_that_an_older_run_wrote_is_read() {
    let published = "model: {name_or_path: org/name, quantization: nf4}\nadapter: {r: 4}\n";
    let tuned = format!("{published}data: {{path: x}}");
    let video = format!("{published}data: {{path: x, resolution: 64}}");
    for (kind, text) in [
        ("from scratch", "data: {path: x.txt}"),
        ("fine-tuned", &tuned),
        ("video", &video),
        (
            "video from scratch",
            "model: {name_or_path: org/name, from_config: true}\ndata: {path: x, resolution: 64}",
        ),
    ] {
        let config = Config::parse("x.yaml", text, &[]).unwrap();
        let mut all = serde_json::to_value(&config).unwrap();
        for (section, key, default) in [
            ("model", "profile", serde_json::json!(null)),
            ("model", "low_vram", serde_json::json!(null)),
            ("model", "blocks_to_swap", serde_json::json!(null)),
            ("model", "offload_fraction", serde_json::json!(null)),
            ("model", "device_map", serde_json::json!(null)),
        ] {
            all[section][key] = default;
        }
        all["model"].as_object_mut().unwrap().remove("offload");
        let written = serde_saphyr::to_string(&all).unwrap();
        let again = Config::parse("config.yaml", &written, &[]);
        assert_eq!(again.unwrap(), config, "{kind}");
        let tree = tree::parse_file("config.yaml", &written).unwrap();
        let warnings = consistency::unused(&config, &tree);
        assert!(warnings.len() <= 1, "{kind}: {warnings:?}");
    }
    let other = Config::parse("x.yaml", "train: {sync_every: 2}", &[DATA.into()]);
    assert!(other.unwrap_err().to_string().contains("sync_every"));
}

#[test]
fn an_automatic_batch_has_the_samples_of_a_step_and_is_written_as_it_was_read() {
    let arguments = [
        "train={per_device_train_batch_size: auto, gradient_accumulation_steps: 6}",
        DATA,
    ];
    let config = Config::parse("x.yaml", "", &arguments.map(str::to_owned)).unwrap();
    let train = &config.train;
    assert_eq!(
        (train.batch(), train.batches(), train.samples_in_step(2)),
        (6, 1, 12)
    );
    let passes = config.in_passes_of(2).train;
    assert_eq!(
        (passes.batch(), passes.batches(), passes.samples_in_step(2)),
        (2, 3, 12)
    );
    // The size of its passes is no part of the config.
    let going_on = config.with_passes_so_far(Some(2));
    let written = going_on.to_yaml().unwrap();
    assert_eq!(Config::parse("y.yaml", &written, &[]).unwrap(), config);
    let fixed = Config::parse("x.yaml", "", &[DATA.to_owned()]).unwrap();
    assert_eq!(fixed.with_passes_so_far(Some(2)), fixed);
}

#[test]
fn off_is_a_word_where_a_key_has_it_and_false_elsewhere() {
    let text = "data: {path: x.txt}\ntrain: {verify: off, kernels: off, bf16: off}\n";
    let config = Config::parse("x.yaml", text, &["train.verify=OFF".into()]).unwrap();
    assert_eq!(config.train.verify, super::VerifyMode::Off);
    assert_eq!(config.train.kernels, super::KernelMode::Off);
    let error = Config::parse("x.yaml", "train: {kernels: on}\n", &[]).unwrap_err();
    let told = error.to_string();
    assert!(told.contains("`train.kernels` cannot be `true`"), "{told}");
}
