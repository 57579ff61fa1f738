//! The config's section `preference`, by the names in TRL.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Config, DataFormat};

section! {
    /// Learning from answers that were preferred to others, or judged, in place of texts.
    pub struct PreferenceConfig {
        /// The loss. All but `kto` need pairs: records of `chosen` and `rejected`. `orpo` and `simpo` compare with no
        /// other model, the others with the model as it was before the first step.
        pub loss_type: LossType = LossType::Sigmoid, for PublishedLanguage, resume Fixed;
        /// How strongly answers may part from those of the model before (small: more); for `orpo` the weight of the
        /// odds ratio (λ), for `ipo` τ. Unset means 0.1; `simpo` needs a value.
        #[schemars(extend("exclusiveMinimum" = 0), range(max = 1000))]
        pub beta: Option<f64> = None, for PublishedLanguage, resume Fixed;
        /// The share of pairs that may be the wrong way round, for `robust` and `simpo`.
        #[schemars(
            range(min = 0),
            extend(
                "exclusiveMaximum" = 0.5,
                "x-needs" = "preference.loss_type: robust or preference.loss_type: simpo"
            )
        )]
        pub label_smoothing: f64 = 0.0, for PublishedLanguage, resume Fixed;
        /// SimPO's margin γ, by which the reward of what was chosen is to be larger.
        #[schemars(range(min = 0, max = 1000), extend("x-needs" = "preference.loss_type: simpo"))]
        pub simpo_gamma: f64 = 0.5, for PublishedLanguage, resume Fixed;
        /// With `simpo`, the weight of the cross-entropy of what was chosen, which is added (CPO-SimPO).
        #[schemars(range(min = 0, max = 1000), extend("x-needs" = "preference.loss_type: simpo"))]
        pub cpo_alpha: f64 = 0.0, for PublishedLanguage, resume Fixed;
        /// KTO's weight of answers that were judged good.
        #[schemars(range(min = 0, max = 1000), extend("x-needs" = "preference.loss_type: kto"))]
        pub desirable_weight: f64 = 1.0, for PublishedLanguage, resume Fixed;
        /// KTO's weight of answers that were judged bad.
        #[schemars(range(min = 0, max = 1000), extend("x-needs" = "preference.loss_type: kto"))]
        pub undesirable_weight: f64 = 1.0, for PublishedLanguage, resume Fixed;
        /// Whether the log-probabilities of the model before the first step are computed for all data before that, and
        /// kept in the run folder; else in each step, with the adapter switched off. Unset means only where there is no
        /// new adapter that could be switched off.
        pub precompute_ref_log_probs: Option<bool> = None, for PublishedLanguage, resume Fixed;
    }
}

/// A loss on preferences, by TRL's names for it or for its trainer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LossType {
    /// DPO: the logistic loss of the difference of rewards.
    Sigmoid,
    /// The hinge loss of it.
    Hinge,
    /// IPO: its squared distance from a margin, by the mean of an answer's tokens.
    Ipo,
    /// DPO for pairs some of which are the wrong way round (`label_smoothing`).
    Robust,
    /// ORPO: cross-entropy of prompt and chosen answer, and the odds ratio.
    Orpo,
    /// KTO: answers that are judged one by one, as records of `prompt`, `completion` and `label`, or as pairs.
    Kto,
    /// SimPO: mean log-probabilities with a margin.
    Simpo,
}

impl LossType {
    /// Whether it compares with the model before the first step.
    pub(crate) fn has_reference(self) -> bool {
        !matches!(self, Self::Orpo | Self::Simpo)
    }
}

impl PreferenceConfig {
    /// `beta`, or what it is by default.
    pub(crate) fn beta(&self) -> f64 {
        self.beta.unwrap_or(0.1)
    }
}

/// Problems of a run on preferences: key, message, and help.
pub(super) fn problems(config: &Config) -> Vec<([&'static str; 2], String, &'static str)> {
    let Some(preference) = &config.preference else {
        return Vec::new();
    };
    let mut problems = Vec::new();
    let mut report = |path: [&'static str; 2], message: &str, help: &'static str| {
        problems.push((path, message.to_owned(), help));
    };
    let loss = preference.loss_type;
    if loss == LossType::Simpo && preference.beta.is_none() {
        report(
            ["preference", "loss_type"],
            "`simpo` needs `preference.beta`: TRL's default of 0.1 is far too small for it",
            "set it to 2 or 2.5, as in the paper",
        );
    }
    match preference.precompute_ref_log_probs {
        Some(_) if !loss.has_reference() => report(
            ["preference", "precompute_ref_log_probs"],
            "`orpo` and `simpo` compare with no other model, so that there is nothing to compute",
            "remove the key",
        ),
        Some(false) if config.adapter.is_none() => report(
            ["preference", "precompute_ref_log_probs"],
            "without an adapter to switch off, the model before the first step is gone after it",
            "remove the key, or add an `adapter` section",
        ),
        Some(false)
            if config
                .adapter
                .as_ref()
                .is_some_and(|adapter| !adapter.is_new_and_alone()) =>
        {
            report(
                ["preference", "precompute_ref_log_probs"],
                "`adapter.resume_from`, `modules_to_save`, `bias` and `init_lora_weights` leave no model before the first step when the adapter \
             is switched off",
                "remove the key",
            )
        }
        _ => {}
    }
    let dropout = config.adapter.as_ref().map_or(0.0, |one| one.lora_dropout);
    if dropout > 0.0 {
        report(
            ["adapter", "lora_dropout"],
            "`adapter.lora_dropout` would change the rewards at random; TRL switches it off",
            "set it to 0 beside `preference`",
        );
    }
    if loss == LossType::Kto && config.train.has_auto_batch() {
        report(
            ["train", "per_device_train_batch_size"],
            "`kto` estimates a divergence from all of a batch, so that the number in a pass changes what is learned, and `auto` \
             cannot choose it",
            "set `train.per_device_train_batch_size` to a number of 2 or more",
        );
    } else if loss == LossType::Kto && config.train.batch() < 2 {
        report(
            ["train", "per_device_train_batch_size"],
            "`kto` compares each prompt with the answer to another one of its batch, and one record has none",
            "set `train.per_device_train_batch_size` to 2 or more",
        );
    }
    if loss == LossType::Kto && config.train.group_by_length {
        report(
            ["train", "group_by_length"],
            "`kto` takes records in the order of the file: so each is compared with the answer to another one of its batch",
            "remove the key",
        );
    }
    if config.data.dataset.is_some() {
        report(
            ["data", "dataset"],
            "`data.dataset` is a text, and `preference` needs records of answers",
            "set `data.path`",
        );
    }
    if config.data.format == Some(DataFormat::Text) {
        report(
            ["data", "format"],
            "`preference` needs records of answers, and a text has none",
            "use JSON lines, JSON, CSV or Parquet",
        );
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(preference: &str, more: &str) -> String {
        let text = format!(
            "model: {{name_or_path: m}}\ndata: {{path: a.jsonl}}\npreference: {{{preference}}}\n{more}"
        );
        match Config::parse("c.yaml", &text, &[]) {
            Ok(_) => String::new(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn combinations_without_a_meaning_are_refused_by_key() {
        for (preference, more, key) in [
            ("loss_type: simpo", "", "`preference.beta`"),
            ("loss_type: simpo, beta: 2", "", ""),
            ("label_smoothing: 0.1", "", "`preference.label_smoothing`"),
            ("loss_type: robust, label_smoothing: 0.1", "", ""),
            ("simpo_gamma: 1", "", "`preference.simpo_gamma`"),
            ("desirable_weight: 2", "", "`preference.desirable_weight`"),
            (
                "loss_type: orpo, precompute_ref_log_probs: true",
                "",
                "nothing to compute",
            ),
            ("precompute_ref_log_probs: false", "", "is gone after it"),
            ("precompute_ref_log_probs: false", "adapter: {r: 4}", ""),
            (
                "precompute_ref_log_probs: false",
                "adapter: {bias: all}",
                "leave no model",
            ),
            (
                "beta: 0.2",
                "adapter: {lora_dropout: 0.1}",
                "`adapter.lora_dropout`",
            ),
            (
                "loss_type: kto",
                "train: {per_device_train_batch_size: 1}",
                "`train.per_device_train_batch_size`",
            ),
            (
                "loss_type: kto",
                "train: {per_device_train_batch_size: auto, gradient_accumulation_steps: 4}",
                "`auto` cannot choose it",
            ),
            (
                "",
                "train: {per_device_train_batch_size: auto, gradient_accumulation_steps: 4}",
                "",
            ),
            ("", "train: {group_by_length: true}", ""),
            (
                "loss_type: kto",
                "train: {group_by_length: true}",
                "order of the file",
            ),
            (
                "",
                "train: {label_smoothing_factor: 0.1}",
                "`train.label_smoothing_factor`",
            ),
        ] {
            let found = messages(preference, more);
            assert_eq!(
                found.is_empty(),
                key.is_empty(),
                "{preference} {more}: {found}"
            );
            assert!(found.contains(key), "{found}");
        }
        let packed =
            "model: {name_or_path: m}\ndata: {path: a.jsonl, packing: true}\npreference: {}";
        let refused = Config::parse("c.yaml", packed, &[])
            .unwrap_err()
            .to_string();
        assert!(refused.contains("`data.packing`"), "{refused}");
        let scratch = "data: {path: a.jsonl}\npreference: {}";
        let refused = Config::parse("c.yaml", scratch, &[])
            .unwrap_err()
            .to_string();
        assert!(refused.contains("needs a published model"), "{refused}");
    }
}
