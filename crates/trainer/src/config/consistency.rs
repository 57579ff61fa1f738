//! Rules between keys, which the schema cannot express.

use std::collections::BTreeMap;

use super::data::RECORD_KEYS;
use super::declared::{self, Misfit};
use super::problem::{Problem, SourceSpan};
use super::tree::Node;
use super::{AdapterConfig, AdapterInit, BestMetric, Config, Optim};

/// Problems between keys whose values are valid individually.
pub(crate) fn check(config: &Config, tree: &Node) -> Vec<Problem> {
    let mut problems: Vec<_> = refused(tree).collect();
    let mut report = |path: &[&str], message: String, help: &str| {
        problems.push(Problem::at(&place_of(tree, path), message).with_help(help));
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
    if let Some(adapter) = config.adapter.as_ref().filter(|one| one.learns_nothing()) {
        report(
            &["adapter", "lora_alpha"],
            "`adapter.lora_alpha: 0` scales the adapter by 0, so that it would learn nothing"
                .into(),
            &format!(
                "write `lora_alpha: {}` for a scale of 1, which kohya's 0 means",
                adapter.r
            ),
        );
    }
    if config
        .adapter
        .as_ref()
        .is_some_and(|one| one.decompose_factor == 0)
    {
        report(
            &["adapter", "decompose_factor"],
            "`adapter.decompose_factor: 0` divides by 0".into(),
            "write -1 to divide near the square root, or what to divide by",
        );
    }
    let begins = |adapter: &&AdapterConfig| {
        adapter.init_lora_weights != AdapterInit::Default && adapter.resume_from.is_none()
    };
    if let Some(adapter) = config.adapter.as_ref().filter(begins) {
        let place = ["adapter", "init_lora_weights"];
        let is_loftq = adapter.init_lora_weights == AdapterInit::Loftq;
        if is_loftq && config.model.quantization.is_none() {
            report(
                &place,
                "`adapter.init_lora_weights: loftq` makes up for what quantisation loses, and nothing is quantised".into(),
                "set `model.quantization: nf4`",
            );
        }
        let mut alphas = adapter.alpha_pattern.values();
        let is_scaled = adapter.lora_alpha > 0.0 && alphas.all(|alpha| *alpha > 0.0);
        if adapter.use_dora || !is_scaled {
            report(
                &place,
                "`adapter.init_lora_weights` needs plain LoRAs with alphas above 0".into(),
                "remove it, or `use_dora` and the alphas of 0",
            );
        }
    }
    if let Some(adapter) = config.adapter.as_ref().filter(|one| one.is_on_experts()) {
        for (is_set, key) in [
            (adapter.lora_dropout > 0.0, "lora_dropout"),
            (adapter.use_dora, "use_dora"),
            (begins(&adapter), "init_lora_weights"),
        ] {
            if is_set {
                report(
                    &["adapter", key],
                    format!("`adapter.{key}` does not work with adapters on experts"),
                    &format!("remove `{key}` or `target_parameters`"),
                );
            }
        }
    }
    if config.train.gradient_checkpointing && !published && !config.is_video() {
        report(
            &["train", "gradient_checkpointing"],
            "gradient checkpointing is for published models".into(),
            "set `model.name_or_path`, or remove `train.gradient_checkpointing`",
        );
    }

    let data = &config.data;
    if data.dataset.is_none() && data.path.is_none() && data.mixture.is_empty() {
        report(
            &["data"],
            "there is nothing to train on".into(),
            match config.is_video() {
                true => {
                    "set `data.dataset: garments`, or `data.path` to a folder of pictures or videos"
                }
                false => {
                    "set `data.dataset: shakespeare`, or `data.path` to a file or folder of text"
                }
            },
        );
    }
    if let Some(set) = data
        .dataset
        .filter(|set| set.is_pictures() != config.is_video())
    {
        let (what, help) = match set.is_pictures() {
            true => ("pictures", "set `data.resolution`"),
            false => ("text", "remove `data.resolution`"),
        };
        report(
            &["data", "dataset"],
            format!("`data.dataset: {}` is {what}", set.name()),
            help,
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
    let shape = super::schedule::problems(train);
    let fits = train.steps().filter(|_| shape.is_empty());
    let misfit = fits.and_then(|steps| super::schedule::misfit(train, steps));
    let optimizer = super::optim::problems(train).into_iter();
    for (key, message, help) in shape.into_iter().chain(misfit).chain(optimizer) {
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
    if let Some((message, help)) = train.report_to.problem() {
        report(&["train", "report_to"], message, &help);
    }
    if train.metric_for_best_model == BestMetric::EvalNatsPerByte && published {
        report(
            &["train", "metric_for_best_model"],
            "published models are measured per token, not per byte".into(),
            "use `eval_loss`",
        );
    }
    let others = super::video::problems(config).into_iter();
    for (path, message, help) in others.chain(super::preference::problems(config)) {
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

/// Where a key is written, or its section.
fn place_of(tree: &Node, path: &[&str]) -> SourceSpan {
    let node = tree.find(path).or_else(|| tree.find(&path[..1]));
    node.unwrap_or(tree).place.clone()
}

/// Problems that follow from the declarations of keys.
fn refused(tree: &Node) -> impl Iterator<Item = Problem> {
    let misfits = declared::misfits(&tree.to_json()).into_iter();
    let refused = misfits.filter(|misfit| misfit.refused);
    refused.map(|misfit| problem_of(tree, misfit))
}

/// Warnings that follow from the declarations of keys: one for all that have their default values.
fn without_effect(tree: &Node) -> Vec<Problem> {
    let misfits = declared::misfits(&tree.to_json()).into_iter();
    let (mut plain, others): (Vec<_>, Vec<_>) = misfits
        .filter(|misfit| !misfit.refused)
        .partition(|misfit| misfit.is_default);
    let more = plain.len().saturating_sub(1);
    plain.truncate(1);
    if let Some(first) = plain.first_mut().filter(|_| more > 0) {
        let name = first.key.full_name();
        first.message = format!(
            "`{name}` and {more} more keys have no effect in this run; they are set to their defaults"
        );
        first.help = "remove them".into();
    }
    let all = plain.into_iter().chain(others);
    all.map(|misfit| problem_of(tree, misfit)).collect()
}

fn problem_of(tree: &Node, misfit: Misfit) -> Problem {
    Problem::at(&place_of(tree, &misfit.key.path()), misfit.message).with_help(misfit.help)
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

/// Warnings about keys that are set and allowed, but have no effect beside other keys.
pub(crate) fn unused(config: &Config, tree: &Node) -> Vec<Problem> {
    let data = &config.data;
    let mut warnings = without_effect(tree);
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
    let mut warn = |key: &str, set: bool, message: &str| warn_of("train", key, set, message);
    warn(
        "min_lr",
        train.min_lr > 0.0 && train.lr_scheduler_type.is_constant(),
        "`train.min_lr` has no effect on a constant learning rate",
    );
    let is_low = train.optim == Optim::Prodigy && train.learning_rate < 0.1;
    let place = tree.find(&["train", "learning_rate"]);
    if let Some(place) = place
        .or_else(|| tree.find(&["train", "optim"]))
        .filter(|_| is_low)
    {
        let message = format!(
            "`prodigy` estimates the learning rate, and `train.learning_rate` {} is a factor on that: usually 1",
            train.learning_rate
        );
        warnings.push(Problem::at(&place.place, message));
    }
    warnings
}
