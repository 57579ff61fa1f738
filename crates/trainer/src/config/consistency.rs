//! What the schema cannot say: rules between keys.

use super::problem::Problem;
use super::tree::Node;
use super::{BestMetric, Config, DeviceMapConfig};

/// Problems of a config whose keys are each allowed by themselves.
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
    if model.head_dim.is_none() && hidden % heads != 0 {
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
    if heads % key_value_heads != 0 {
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
            "an adapter needs a published model to sit on".into(),
            "set `model.name_or_path`, or drop `adapter` to train a model from scratch",
        );
    }
    if model.quantization.is_some() && config.adapter.is_none() {
        report(
            &["model", "quantization"],
            "only a model that stays as it is can be kept in fewer bits".into(),
            "add an `adapter` section, which is trained in its place, or drop `model.quantization`",
        );
    }
    let asked = model.memory_keys().into_iter().find(|(_, set)| *set);
    if let Some((key, _)) = asked.filter(|_| config.adapter.is_none()) {
        report(
            &["model", key],
            format!("`{key}` streams a model that stays as it is, and all of this one is trained"),
            "add an `adapter` section, which is trained in its place, or drop the key",
        );
    }
    let all = model.low_vram == Some(true);
    if let Some(count) = model.blocks_to_swap {
        if all {
            report(
                &["model", "blocks_to_swap"],
                format!("`low_vram` streams every block, `blocks_to_swap` {count} of them"),
                "keep one of the two",
            );
        } else if model.offload_fraction.is_some() {
            report(
                &["model", "blocks_to_swap"],
                "`blocks_to_swap` and `offload_fraction` both say how much is streamed".into(),
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
            format!("`device_map` says where every module is, and leaves nothing for `{key}`"),
            "keep one of the two",
        );
    }

    if config.train.gradient_checkpointing && !published {
        report(
            &["train", "gradient_checkpointing"],
            "gradient checkpointing is for published models".into(),
            "set `model.name_or_path`, or drop `train.gradient_checkpointing`",
        );
    }

    if config.train.activation_offload && !config.train.gradient_checkpointing {
        report(
            &["train", "activation_offload"],
            "only what gradient checkpointing keeps can wait in host memory".into(),
            "set `train.gradient_checkpointing: true`, or drop `train.activation_offload`",
        );
    }

    match (&config.data.dataset, &config.data.path) {
        (Some(_), Some(_)) => report(
            &["data", "path"],
            "`data.dataset` and `data.path` are both set".into(),
            "keep one of them",
        ),
        (None, None) => report(
            &["data"],
            "there is nothing to train on".into(),
            "set `data.dataset: shakespeare`, or `data.path` to a file or folder of text",
        ),
        _ => {}
    }

    let data = &config.data;
    if data.packing.is_some() && !published {
        report(
            &["data", "packing"],
            "a model that is trained from scratch reads its text without gaps".into(),
            "set `model.name_or_path`, or drop `data.packing`",
        );
    }
    let split = data.eval_dataset.is_none() && data.validation_fraction > 0.0;
    if data.validation_shuffle && !split {
        report(
            &["data", "validation_shuffle"],
            "no part of the data is held out that could be shuffled".into(),
            "drop `data.validation_shuffle`, or `data.eval_dataset` and `data.validation_fraction: 0`",
        );
    }
    if config.train.load_best_model_at_end && data.eval_dataset.is_none() && !split {
        report(
            &["train", "load_best_model_at_end"],
            "nothing is held out that the best model could be measured on".into(),
            "raise `data.validation_fraction`, set `data.eval_dataset`, or drop \
             `train.load_best_model_at_end`",
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
    if train.warmup_steps > train.max_steps {
        report(
            &["train", "warmup_steps"],
            format!(
                "a warm-up of {} steps does not fit into {} steps",
                train.warmup_steps, train.max_steps
            ),
            "lower `train.warmup_steps` or raise `train.max_steps`",
        );
    }
    if train.load_best_model_at_end && train.eval_steps == 0 {
        report(
            &["train", "load_best_model_at_end"],
            "nothing is evaluated on the way that could be the best".into(),
            "set `train.eval_steps`, or drop `train.load_best_model_at_end`",
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
    problems
}

/// What is set, allowed, and without effect beside other keys: a warning for each.
pub(crate) fn unused(config: &Config, tree: &Node) -> Vec<Problem> {
    let data = &config.data;
    let mut warnings = Vec::new();
    let fraction = tree.find(&["data", "validation_fraction"]);
    if let (Some(place), Some(measured)) = (fraction, &data.eval_dataset)
        && data.validation_fraction > 0.0
    {
        let message = format!(
            "`data.validation_fraction: {}` has no effect beside `data.eval_dataset`: all of the data \
             is trained on, and `{}` is what is measured",
            data.validation_fraction,
            measured.display()
        );
        warnings.push(Problem::at(&place.place, message));
    }
    warnings
}
