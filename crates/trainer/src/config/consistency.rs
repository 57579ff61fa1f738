//! Rules between keys, which the schema cannot express.

use std::collections::BTreeMap;

use super::data::RECORD_KEYS;
use super::problem::Problem;
use super::tree::Node;
use super::{BestMetric, Config, DeviceMapConfig, Strategy};

/// Problems between keys whose values are valid individually.
pub(crate) fn check(config: &Config, tree: &Node) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut report = |path: &[&str], message: String, help: &str| {
        let place = &tree
            .find(path)
            .or_else(|| tree.find(&path[..1]))
            .unwrap_or(tree)
            .place;
        problems.push(Problem::at(place, message).with_help(help));
    };

    let model = &config.model;
    let (hidden, heads) = (model.hidden_size, model.num_attention_heads);
    // The shape of a video model is determined by other keys.
    if config.is_video() {
    } else if model.head_dim.is_none() && hidden % heads != 0 {
        report(
            &["model", "num_attention_heads"],
            format!("{heads} attention heads do not divide `hidden_size` {hidden}"),
            "choose a divisor, or set `model.head_dim`",
        );
    } else if !model.head_dim().is_multiple_of(2) {
        report(
            &["model", "head_dim"],
            format!(
                "heads of width {} cannot be rotated in pairs",
                model.head_dim()
            ),
            "rotary embeddings need an even `model.head_dim`",
        );
    }
    let key_value_heads = model.num_key_value_heads();
    if heads % key_value_heads != 0 && !config.is_video() {
        report(
            &["model", "num_key_value_heads"],
            format!("{heads} query heads cannot share {key_value_heads} key-value heads evenly"),
            "choose a divisor of `model.num_attention_heads`",
        );
    }

    let published = model.name_or_path.is_some();
    if config.adapter.is_some() && !published {
        report(
            &["adapter"],
            "an adapter needs a published model".into(),
            "set `model.name_or_path`, or remove `adapter` to train a model from scratch",
        );
    }
    if model.quantization.is_some() && config.adapter.is_none() {
        report(
            &["model", "quantization"],
            "only a frozen model can be quantised".into(),
            "add an `adapter` section, which is trained instead, or remove `model.quantization`",
        );
    }
    let asked = model.memory_keys().into_iter().find(|(_, set)| *set);
    if let Some((key, _)) = asked.filter(|_| config.adapter.is_none()) {
        report(
            &["model", key],
            format!("`{key}` streams a frozen model, but all of this one is trained"),
            "add an `adapter` section, which is trained instead, or remove the key",
        );
    }
    let all = model.low_vram == Some(true);
    if let Some(count) = model.blocks_to_swap {
        if all {
            report(
                &["model", "blocks_to_swap"],
                format!("`low_vram` streams every block, but `blocks_to_swap` {count} of them"),
                "keep one of the two",
            );
        } else if model.offload_fraction.is_some() {
            report(
                &["model", "blocks_to_swap"],
                "`blocks_to_swap` and `offload_fraction` both set how much is streamed".into(),
                "keep one of the two",
            );
        }
    }

    let mapped = matches!(model.device_map, Some(DeviceMapConfig::Places(_)));
    let divided = [
        ("low_vram", all),
        ("blocks_to_swap", model.blocks_to_swap.is_some()),
        (
            "offload_fraction",
            model.offload_fraction.is_some_and(|share| share > 0.0),
        ),
    ];
    let also = divided.into_iter().find(|(_, set)| *set);
    if let Some((key, _)) = also.filter(|_| mapped) {
        report(
            &["model", key],
            format!("`device_map` places every module, and leaves nothing for `{key}`"),
            "keep one of the two",
        );
    }

    if config.train.gradient_checkpointing && !published && !config.is_video() {
        report(
            &["train", "gradient_checkpointing"],
            "gradient checkpointing is for published models".into(),
            "set `model.name_or_path`, or remove `train.gradient_checkpointing`",
        );
    }

    if config.train.activation_offload && !config.train.gradient_checkpointing {
        report(
            &["train", "activation_offload"],
            "only activations that gradient checkpointing keeps can be offloaded".into(),
            "set `train.gradient_checkpointing: true`, or remove `train.activation_offload`",
        );
    }

    let sources = [
        ("dataset", config.data.dataset.is_some()),
        ("path", config.data.path.is_some()),
        ("mixture", !config.data.mixture.is_empty()),
    ];
    let set: Vec<_> = sources.into_iter().filter(|(_, set)| *set).collect();
    match &set[..] {
        [(first, _), (second, _), ..] => report(
            &["data", *second],
            format!("`data.{first}` and `data.{second}` are both set"),
            "keep one of them",
        ),
        [] => report(
            &["data"],
            "there is nothing to train on".into(),
            match config.is_video() {
                true => "set `data.dataset: moving_garments`, or `data.path` to a folder of videos",
                false => {
                    "set `data.dataset: shakespeare`, or `data.path` to a file or folder of text"
                }
            },
        ),
        [_] => {}
    }

    let data = &config.data;
    if data.packing.is_some() && !published {
        report(
            &["data", "packing"],
            "a model that is trained from scratch always uses text without gaps".into(),
            "set `model.name_or_path`, or remove `data.packing`",
        );
    }
    let parts = [
        ("subset", &data.subset),
        ("split", &data.split),
        ("eval_split", &data.eval_split),
    ];
    for (key, _) in parts.into_iter().filter(|(_, value)| value.is_some()) {
        let other = match data.dataset {
            Some(set) => format!("`data.dataset: {}` is not one", set.name()),
            None if config.is_video() => "videos are not downloaded from there".to_owned(),
            None => continue,
        };
        report(
            &["data", key],
            format!("`data.{key}` selects from a data set on the hub, but {other}"),
            "remove the key, or name a data set with `data.path: org/name`",
        );
    }
    if let Some((message, help)) = columns_problem(&data.columns) {
        report(&["data", "columns"], message, &help);
    }
    let split = !data.has_eval_data() && data.validation_fraction > 0.0;
    if data.validation_shuffle && !split {
        report(
            &["data", "validation_shuffle"],
            "no part of the data is held out, so nothing can be shuffled".into(),
            "remove `data.validation_shuffle`, or `data.eval_dataset` and `data.validation_fraction: 0`",
        );
    }
    let train = &config.train;
    if train.min_lr > train.learning_rate {
        report(
            &["train", "min_lr"],
            format!(
                "`min_lr` {} is above `learning_rate` {}",
                train.min_lr, train.learning_rate
            ),
            "the schedule falls from `learning_rate` to `min_lr`",
        );
    }
    let alternatives = [
        (
            "max_steps",
            train.max_steps.is_some() && train.num_train_epochs.is_some(),
            "`train.max_steps` and `train.num_train_epochs` both set the length of the run",
        ),
        (
            "warmup_steps",
            train.warmup_steps > 0 && train.warmup_ratio.is_some(),
            "`train.warmup_steps` and `train.warmup_ratio` both set the length of the warm-up",
        ),
    ];
    for (key, both, message) in alternatives {
        if both {
            report(&["train", key], message.into(), "keep one of the two");
        }
    }
    let shape = super::schedule::problems(train);
    let fits = train.steps().filter(|_| shape.is_empty());
    let misfit = fits.and_then(|steps| super::schedule::misfit(train, steps));
    for (key, message, help) in shape.into_iter().chain(misfit) {
        report(&["train", key], message, &help);
    }
    for (key, set) in [
        ("load_best_model_at_end", train.load_best_model_at_end),
        (
            "early_stopping_patience",
            train.early_stopping_patience.is_some(),
        ),
    ] {
        if set && !train.evaluates_on_the_way() {
            report(
                &["train", key],
                "there are no evaluations during training to find the best model".into(),
                &format!(
                    "set `train.eval_steps` or `train.eval_strategy: epoch`, or remove `train.{key}`"
                ),
            );
        }
        if set && !data.has_eval_data() && !split {
            report(
                &["train", key],
                "no data is held out to find the best model".into(),
                &format!(
                    "raise `data.validation_fraction`, set `data.eval_dataset`, or remove `train.{key}`"
                ),
            );
        }
    }
    if train.early_stopping_threshold.is_some() && train.early_stopping_patience.is_none() {
        report(
            &["train", "early_stopping_threshold"],
            "early stopping is off, so it needs no threshold".into(),
            "set `train.early_stopping_patience`, or remove `train.early_stopping_threshold`",
        );
    }
    if train.metric_for_best_model == BestMetric::EvalNatsPerByte && published {
        report(
            &["train", "metric_for_best_model"],
            "published models are measured per token, not per byte".into(),
            "use `eval_loss`",
        );
    }
    for (path, message, help) in super::video::problems(config) {
        report(&path, message, help);
    }
    if config.name.contains(['/', '\\']) || config.name.starts_with('.') {
        report(
            &["name"],
            format!("`{}` cannot be the name of a folder", config.name),
            "use letters, digits, `-` and `_`",
        );
    }
    problems.extend(super::mixture::problems(config, tree));
    problems
}

/// The problem with column names and what to write instead, if there is one.
pub(super) fn columns_problem(columns: &BTreeMap<String, String>) -> Option<(String, String)> {
    for (name, column) in columns {
        if !RECORD_KEYS.contains(&name.as_str()) {
            let known = RECORD_KEYS.join(", ");
            return Some((
                format!("`{name}` is not a key of records"),
                format!("write `{{prompt: {column}}}`; the known keys are {known}"),
            ));
        }
        let mut others = columns.iter().filter(|(other, _)| *other > name);
        if let Some((other, _)) = others.find(|(_, of_other)| *of_other == column) {
            return Some((
                format!("`{name}` and `{other}` both name the column `{column}`"),
                "keep one of the two".to_owned(),
            ));
        }
    }
    None
}

/// Keys that describe a model that is trained from scratch.
const OF_MODELS_FROM_NOTHING: [(&str, &str); 13] = [
    ("model", "model_type"),
    ("model", "hidden_size"),
    ("model", "intermediate_size"),
    ("model", "num_hidden_layers"),
    ("model", "num_attention_heads"),
    ("model", "num_key_value_heads"),
    ("model", "head_dim"),
    ("model", "rope_theta"),
    ("model", "rms_norm_eps"),
    ("model", "tie_word_embeddings"),
    ("model", "initializer_range"),
    ("data", "tokenizer"),
    ("data", "vocab_size"),
];

/// Keys that follow from the config of a saved adapter.
const DECIDED_BY_AN_ADAPTER: [&str; 13] = [
    "r",
    "lora_alpha",
    "lora_dropout",
    "use_rslora",
    "use_dora",
    "target_modules",
    "exclude_modules",
    "layers_to_transform",
    "layers_pattern",
    "modules_to_save",
    "bias",
    "rank_pattern",
    "alpha_pattern",
];

/// Warnings about keys that are set and allowed, but have no effect beside other keys.
pub(crate) fn unused(config: &Config, tree: &Node) -> Vec<Problem> {
    let data = &config.data;
    let mut warnings = Vec::new();
    let fraction = tree.find(&["data", "validation_fraction"]);
    if let (Some(place), Some(measured)) = (fraction, data.eval_data())
        && data.validation_fraction > 0.0
    {
        let message = format!(
            "`data.validation_fraction: {}` has no effect beside {measured}: all of the data is trained on, \
             and that is what is measured",
            data.validation_fraction
        );
        warnings.push(Problem::at(&place.place, message));
    }
    let train = &config.train;
    let mut warn_of = |section: &str, key: &str, set: bool, message: &str| {
        if let Some(place) = tree.find(&[section, key]).filter(|_| set) {
            warnings.push(Problem::at(&place.place, message));
        }
    };
    // A config written by a run contains every key: only non-default values count.
    let plain = Config {
        adapter: config.adapter.as_ref().map(|_| Default::default()),
        ..Config::default()
    };
    let differs = match (config.leaves(), plain.leaves()) {
        (Ok(leaves), Ok(plain)) => leaves
            .into_iter()
            .filter(|(key, value)| plain.get(key) != Some(value))
            .map(|(key, _)| key)
            .collect(),
        _ => Vec::new(),
    };
    // A published model determines these; for a video model other keys are refused.
    let published = config.model.name_or_path.is_some() && !config.is_video();
    for (section, key) in OF_MODELS_FROM_NOTHING {
        let set = differs.contains(&format!("{section}.{key}"));
        let message =
            format!("`{section}.{key}` has no effect on a published model (`model.name_or_path`)");
        warn_of(section, key, published && set, &message);
    }
    if let Some(adapter) = &config.adapter {
        for key in DECIDED_BY_AN_ADAPTER {
            let set = differs.contains(&format!("adapter.{key}"));
            let message = format!(
                "`adapter.{key}` has no effect: it follows from the adapter of `adapter.resume_from`"
            );
            warn_of(
                "adapter",
                key,
                adapter.resume_from.is_some() && set,
                &message,
            );
        }
        warn_of(
            "adapter",
            "loraplus_lr_embedding",
            adapter.loraplus_lr_ratio.is_none()
                && differs.contains(&"adapter.loraplus_lr_embedding".to_owned()),
            "`adapter.loraplus_lr_embedding` has no effect without `adapter.loraplus_lr_ratio`",
        );
    }
    let streamed = config.model.memory_keys().into_iter();
    let streams = streamed
        .filter(|(key, _)| *key != "ring_slots")
        .any(|(_, set)| set);
    warn_of(
        "model",
        "ring_slots",
        config.model.ring_slots.is_some() && !streams,
        "`model.ring_slots` has no effect if nothing is streamed (`model.low_vram`, `model.blocks_to_swap`)",
    );
    let mut warn = |key: &str, set: bool, message: &str| warn_of("train", key, set, message);
    warn(
        "eval_steps",
        train.eval_steps > 0 && train.eval_strategy != Strategy::Steps,
        "`train.eval_steps` has no effect without `train.eval_strategy: steps`",
    );
    warn(
        "save_steps",
        train.save_steps > 0 && train.save_strategy != Strategy::Steps,
        "`train.save_steps` has no effect without `train.save_strategy: steps`",
    );
    warn(
        "min_lr",
        train.min_lr > 0.0 && train.lr_scheduler_type.is_constant(),
        "`train.min_lr` has no effect on a constant learning rate",
    );
    warnings
}
