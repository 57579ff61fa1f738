//! The optimizer: `train.optim`, its arguments, and which of them fit together.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::TrainConfig;
use super::schedule::Wrong;

/// The optimizer, by the names of Hugging Face and of the packages that it comes from. Two names of AdamW each mean the same
/// here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Optim {
    /// AdamW with fp32 moments.
    AdamwTorchFused,
    /// The same: libtorch's fused kernel either way.
    AdamwTorch,
    /// AdamW with eight-bit moments in bitsandbytes' format. Needs no bitsandbytes.
    #[serde(rename = "adamw_8bit")]
    Adamw8bit,
    /// The same.
    #[serde(rename = "adamw_bnb_8bit")]
    AdamwBnb8bit,
    /// Lion: the sign of a moving average; half of AdamW's memory, and a third to a tenth of its `learning_rate`.
    Lion,
    /// Lion with an average in eight bits.
    #[serde(rename = "lion_8bit")]
    Lion8bit,
    /// Adafactor as transformers' Trainer sets it up: second moments of matrices as a row and a column.
    Adafactor,
    /// CAME: Adafactor with a moving average of the updates, each trusted as far as it agrees with that average.
    Came,
    /// Prodigy: AdamW that estimates the learning rate; `learning_rate` is a factor on that, usually 1.
    Prodigy,
    /// Schedule-free AdamW: evaluates, samples and exports an average of the weights in place of a schedule.
    ScheduleFreeAdamw,
    /// Muon: orthogonalised momentum for matrices; embeddings, `lm_head` and vectors have AdamW.
    Muon,
}

impl Optim {
    /// Whether the moments have eight bits.
    pub fn eight_bit(self) -> bool {
        matches!(self, Self::Adamw8bit | Self::AdamwBnb8bit | Self::Lion8bit)
    }

    /// Whether this is AdamW with fp32 moments.
    pub(crate) fn is_plain_adamw(self) -> bool {
        matches!(self, Self::AdamwTorchFused | Self::AdamwTorch)
    }

    /// Whether an update needs sums over a matrix or all weights, which processes on other devices round differently.
    pub(crate) fn sums(self) -> bool {
        matches!(
            self,
            Self::Adafactor | Self::Came | Self::Prodigy | Self::Muon
        )
    }

    /// Bytes of state for each number of a LoRA matrix, rounded up.
    pub(crate) fn bytes_of_each(self) -> u64 {
        match self {
            Self::Lion8bit | Self::Adafactor => 1,
            Self::Adamw8bit | Self::AdamwBnb8bit => 2,
            Self::Lion | Self::Muon => 4,
            Self::Came => 5,
            Self::AdamwTorchFused | Self::AdamwTorch | Self::ScheduleFreeAdamw => 8,
            Self::Prodigy => 16,
        }
    }

    /// The keys of `optim_args` that it supports.
    fn args(self) -> &'static [&'static str] {
        match self {
            Self::AdamwTorchFused | Self::AdamwTorch | Self::Adamw8bit | Self::AdamwBnb8bit => &[],
            Self::Lion | Self::Lion8bit => &["betas"],
            Self::Adafactor => &[
                "beta1",
                "eps",
                "decay_rate",
                "clip_threshold",
                "scale_parameter",
            ],
            Self::Came => &["betas", "eps", "clip_threshold"],
            Self::Prodigy => &[
                "betas",
                "beta3",
                "eps",
                "decouple",
                "use_bias_correction",
                "safeguard_warmup",
                "d0",
                "d_coef",
                "growth_rate",
                "slice_p",
            ],
            Self::ScheduleFreeAdamw => &["betas", "eps", "r", "weight_lr_power"],
            Self::Muon => &["momentum", "nesterov", "ns_steps", "adjust_lr_fn"],
        }
    }

    /// The keys of `optim_args` that are lists, with their lengths.
    fn lengths(self) -> &'static [(&'static str, usize)] {
        match self {
            Self::Came => &[("betas", 3), ("eps", 2)],
            Self::Adafactor => &[("eps", 2)],
            _ => &[("betas", 2)],
        }
    }

    /// Whether it has AdamW's numbers, for all or for some parameters.
    fn has_adam(self) -> bool {
        self.args().is_empty() || self == Self::Muon
    }
}

/// Arguments of an optimizer, by the names of the package that it comes from and with its defaults. Keys that the optimizer
/// does not have are refused.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OptimArgs {
    /// Decays of the moving averages. Unset means `[0.9, 0.99]` for `lion`, `[0.9, 0.999, 0.9999]` for `came`, and
    /// `[0.9, 0.999]` for `prodigy` and `schedule_free_adamw`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub betas: Option<Vec<f64>>,
    /// For `adafactor`, the decay of a moving average of the updates. Unset keeps none.
    #[schemars(range(min = 0), extend("exclusiveMaximum" = 1))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beta1: Option<f64>,
    /// For `prodigy`, the decay of the sums from which the rate is estimated. Unset means the square root of the second of
    /// `betas`.
    #[schemars(range(min = 0), extend("exclusiveMaximum" = 1))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beta3: Option<f64>,
    /// What is added so that nothing is divided by zero: 1e-8 for `prodigy` and `schedule_free_adamw`; a list of two for
    /// `adafactor`, `[1e-30, 1e-3]`, and for `came`, `[1e-30, 1e-16]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eps: Option<Eps>,
    /// For `adafactor`, the exponent with which the decay of second moments nears 1. Unset means -0.8.
    #[schemars(range(min = -1, max = 0))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decay_rate: Option<f64>,
    /// For `adafactor` and `came`, the largest root mean square of an update before the learning rate. Unset means 1.
    #[schemars(extend("exclusiveMinimum" = 0))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip_threshold: Option<f64>,
    /// For `adafactor`, whether the learning rate is multiplied by the size of the parameter. Unset means no, as in
    /// transformers' Trainer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale_parameter: Option<bool>,
    /// For `prodigy`, whether weight decay is AdamW's; else it is added to the gradient. Unset means yes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decouple: Option<bool>,
    /// For `prodigy`, whether Adam's correction of the first steps applies. Unset means no.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub use_bias_correction: Option<bool>,
    /// For `prodigy`, whether the steps of a warm-up have the same weight in the estimate. Unset means no.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub safeguard_warmup: Option<bool>,
    /// For `prodigy`, the first estimate. Unset means 1e-6.
    #[schemars(extend("exclusiveMinimum" = 0))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub d0: Option<f64>,
    /// For `prodigy`, a factor on each estimate. Unset means 1.
    #[schemars(extend("exclusiveMinimum" = 0))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub d_coef: Option<f64>,
    /// For `prodigy`, how much the estimate may grow in a step. Unset means without limit.
    #[schemars(range(min = 1))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub growth_rate: Option<f64>,
    /// For `prodigy`, that the rate is estimated from every so many numbers of a parameter, which needs less memory. Unset
    /// means 1.
    #[schemars(range(min = 1, max = 1_000_000))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slice_p: Option<i64>,
    /// For `schedule_free_adamw`, the power of the step with which the average weighs it. Unset means 0.
    #[schemars(range(min = 0, max = 100))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub r: Option<f64>,
    /// For `schedule_free_adamw`, the power of the learning rate with which the average weighs a step. Unset means 2.
    #[schemars(range(min = 0, max = 100))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight_lr_power: Option<f64>,
    /// For `muon`, the decay of the momentum. Unset means 0.95.
    #[schemars(range(min = 0), extend("exclusiveMaximum" = 1))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub momentum: Option<f64>,
    /// For `muon`, whether the momentum is Nesterov's. Unset means yes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nesterov: Option<bool>,
    /// For `muon`, the iterations that orthogonalise. Unset means 5.
    #[schemars(range(min = 1, max = 99))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ns_steps: Option<u32>,
    /// For `muon`, how the learning rate depends on the shape of a matrix. Unset means `original`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adjust_lr_fn: Option<AdjustLr>,
}

/// One number or two.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Eps {
    /// One.
    One(f64),
    /// A list.
    Several(Vec<f64>),
}

impl JsonSchema for Eps {
    fn schema_name() -> Cow<'static, str> {
        "Eps".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A number, or a list of two.",
            "type": ["number", "array"],
            "items": {"type": "number"},
        })
    }
}

/// How Muon's learning rate depends on the shape of a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AdjustLr {
    /// Times the root of rows over columns, where there are more rows.
    Original,
    /// Times a fifth of the root of the larger side, so that AdamW's rates fit.
    MatchRmsAdamw,
}

impl OptimArgs {
    /// The numbers of `betas`, or these.
    pub(crate) fn betas<const N: usize>(&self, unset: [f64; N]) -> [f64; N] {
        let set = self.betas.clone().and_then(|set| set.try_into().ok());
        set.unwrap_or(unset)
    }

    /// The single `eps`.
    pub(crate) fn eps(&self) -> f64 {
        match self.eps {
            Some(Eps::One(eps)) => eps,
            _ => 1e-8,
        }
    }

    /// The two numbers of `eps`, or these.
    pub(crate) fn two_eps(&self, unset: [f64; 2]) -> [f64; 2] {
        match &self.eps {
            Some(Eps::Several(set)) => set.clone().try_into().unwrap_or(unset),
            _ => unset,
        }
    }
}

/// Problems of the optimizer and its arguments.
pub(super) fn problems(train: &TrainConfig) -> Vec<Wrong> {
    let (optim, plain) = (train.optim, TrainConfig::default());
    let json = |value: Result<Value, _>| value.unwrap_or_default();
    let name = json(serde_json::to_value(optim));
    let name = name.as_str().unwrap_or_default();
    let args = json(serde_json::to_value(&train.optim_args));
    let mut found: Vec<Wrong> = Vec::new();
    for (key, value) in args.as_object().into_iter().flatten() {
        let known: Vec<_> = optim.args().iter().map(|key| format!("`{key}`")).collect();
        let length = optim.lengths().iter().find(|(list, _)| list == key);
        let items = value.as_array();
        let (message, help) = if !optim.args().contains(&key.as_str()) {
            let help = match known.is_empty() {
                true => {
                    "its arguments are `train.adam_beta1`, `adam_beta2` and `adam_epsilon`".into()
                }
                false => format!("it has {}", known.join(", ")),
            };
            (format!("`{name}` has no argument `{key}`"), help)
        } else if let Some((_, length)) =
            length.filter(|(_, length)| items.map(Vec::len) != Some(*length))
        {
            let message = format!("`{key}` of `{name}` is not a list of {length} numbers");
            (
                message,
                format!(
                    "write `{key}: {}`",
                    if key == "eps" {
                        "[1e-30, 1e-3]"
                    } else {
                        "[0.9, 0.99]"
                    }
                ),
            )
        } else if length.is_none() && items.is_some() {
            (
                format!("`{key}` of `{name}` is one number"),
                format!("write `{key}: 1e-8`"),
            )
        } else {
            let numbers = items
                .map_or(std::slice::from_ref(value), Vec::as_slice)
                .iter();
            let mut numbers = numbers.filter_map(Value::as_f64);
            // Schedule-free divides by the first.
            let least = if optim == Optim::ScheduleFreeAdamw {
                f64::MIN_POSITIVE
            } else {
                0.0
            };
            let wrong = match key.as_str() {
                "betas" => numbers.any(|beta| !(least..1.0).contains(&beta)),
                "eps" => numbers.any(|eps| eps <= 0.0),
                _ => false,
            };
            if !wrong {
                continue;
            }
            let allowed = if key == "eps" {
                "above 0"
            } else {
                "from 0 to below 1"
            };
            (
                format!("`{key}` {value} is out of range"),
                format!("each is {allowed}"),
            )
        };
        found.push(("optim_args", message, help));
    }
    for (key, set) in [
        ("adam_beta1", train.adam_beta1 != plain.adam_beta1),
        ("adam_beta2", train.adam_beta2 != plain.adam_beta2),
        ("adam_epsilon", train.adam_epsilon != plain.adam_epsilon),
    ] {
        if set && !optim.has_adam() {
            let message = format!("`{name}` does not use `train.{key}`");
            let known = optim.args().join("`, `");
            found.push((
                key,
                message,
                format!("its arguments are keys of `train.optim_args`: `{known}`"),
            ));
        }
    }
    if optim == Optim::Prodigy && train.find_learning_rate {
        found.push((
            "find_learning_rate",
            "`prodigy` estimates the learning rate itself".to_owned(),
            "write `learning_rate: 1`, or choose another optimizer".into(),
        ));
    }
    if optim == Optim::ScheduleFreeAdamw {
        if !train.lr_scheduler_type.is_constant() {
            let message = "`schedule_free_adamw` takes the place of a schedule".to_owned();
            found.push((
                "lr_scheduler_type",
                message,
                "write `lr_scheduler_type: constant`; `warmup_steps` is allowed".into(),
            ));
        }
        if train.ema_decay.is_some() {
            let message = "`schedule_free_adamw` averages the weights itself".to_owned();
            found.push(("ema_decay", message, "remove `train.ema_decay`".into()));
        }
    }
    found
}
