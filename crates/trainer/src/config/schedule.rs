//! The learning rate schedule: `lr_scheduler_type`, its parameters, and which of them fit together.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{ConfigError, TrainConfig};

/// Shape of the learning rate after the warm-up, by transformers' names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LrSchedulerType {
    /// Stays at `learning_rate`.
    Constant,
    /// The same as `constant`: the warm-up always applies here.
    ConstantWithWarmup,
    /// Falls linearly to `min_lr`.
    Linear,
    /// Falls along half a cosine to `min_lr`, or along `num_cycles` of it.
    Cosine,
    /// Falls to zero along half a cosine, `num_cycles` times, starting from the peak each time.
    CosineWithRestarts,
    /// Falls along half a cosine to the `min_lr` or the `min_lr_rate` of `lr_scheduler_kwargs`.
    CosineWithMinLr,
    /// Falls to `lr_end` like the remaining fraction of the run to the `power`.
    Polynomial,
    /// Falls like one over the square root of the steps over `timescale`.
    InverseSqrt,
    /// Stays at `learning_rate`, then falls within `num_decay_steps`.
    WarmupStableDecay,
}

impl LrSchedulerType {
    /// Its name in a config.
    fn name(self) -> String {
        match serde_json::to_value(self) {
            Ok(Value::String(name)) => name,
            _ => format!("{self:?}"),
        }
    }

    /// The keys of `lr_scheduler_kwargs` that it supports.
    fn keys(self) -> &'static [&'static str] {
        match self {
            Self::Constant | Self::ConstantWithWarmup | Self::Linear => &[],
            Self::Cosine | Self::CosineWithRestarts => &["num_cycles"],
            Self::CosineWithMinLr => &["num_cycles", "min_lr", "min_lr_rate"],
            Self::Polynomial => &["lr_end", "power"],
            Self::InverseSqrt => &["timescale"],
            Self::WarmupStableDecay => &[
                "num_decay_steps",
                "num_stable_steps",
                "warmup_type",
                "decay_type",
                "min_lr_ratio",
                "num_cycles",
            ],
        }
    }

    /// Whether it falls to `train.min_lr`.
    pub(crate) fn has_min_lr(self) -> bool {
        matches!(self, Self::Linear | Self::Cosine)
    }
}

/// Parameters of a learning rate schedule, by transformers' names and with its defaults. Keys that the
/// schedule does not use are refused.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LrSchedulerKwargs {
    /// For the cosines and `warmup_stable_decay`, the number of waves: 0.5, the default, falls once. For
    /// `cosine_with_restarts`, how often the rate falls from the peak; unset means 1.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 1_000_000))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_cycles: Option<f64>,
    /// For `cosine_with_min_lr`, the learning rate at the end; or set `min_lr_rate`.
    #[schemars(range(min = 0, max = 10))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_lr: Option<f64>,
    /// For `cosine_with_min_lr`, the same as a fraction of `learning_rate`.
    #[schemars(range(min = 0, max = 1))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_lr_rate: Option<f64>,
    /// For `polynomial`, the learning rate at the end, which is below `learning_rate`. Unset means 1e-7.
    #[schemars(range(min = 0, max = 10))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lr_end: Option<f64>,
    /// For `polynomial`, the power. Unset means 1, a straight line.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 100))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power: Option<f64>,
    /// For `inverse_sqrt`, the number of steps after which the rate begins to halve every time the steps
    /// quadruple. Unset means the steps of the warm-up, or 10000 without one.
    #[schemars(range(min = 1))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timescale: Option<u64>,
    /// For `warmup_stable_decay`, the steps in which the rate falls. It has no default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_decay_steps: Option<u64>,
    /// For `warmup_stable_decay`, the steps before those at the full rate. Unset means all that the
    /// warm-up and the decay leave.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_stable_steps: Option<u64>,
    /// For `warmup_stable_decay`, how the rate rises. Unset means `linear`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warmup_type: Option<RampType>,
    /// For `warmup_stable_decay`, how the rate falls. Unset means `cosine`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decay_type: Option<RampType>,
    /// For `warmup_stable_decay`, the rate at the start and the end, as a fraction of `learning_rate`. Unset
    /// means 0.
    #[schemars(range(min = 0, max = 1))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_lr_ratio: Option<f64>,
}

/// How a learning rate changes from one value to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RampType {
    /// Linearly.
    Linear,
    /// Along half a cosine.
    Cosine,
    /// Like one minus a square root: falls fast first, rises fast last.
    #[serde(rename = "1-sqrt")]
    OneMinusSqrt,
}

impl LrSchedulerKwargs {
    /// The keys that are set.
    fn keys(&self) -> Vec<String> {
        match serde_json::to_value(self) {
            Ok(Value::Object(keys)) => keys.into_iter().map(|(key, _)| key).collect(),
            _ => Vec::new(),
        }
    }
}

/// A key of `train`, the problem with it, and the help.
pub(super) type Wrong = (&'static str, String, String);

/// Problems of the learning rate schedule that do not depend on the number of steps.
pub(super) fn problems(train: &TrainConfig) -> Vec<Wrong> {
    let mut found = Vec::new();
    let kind = train.lr_scheduler_type;
    let kwargs = &train.lr_scheduler_kwargs;
    let name = kind.name();
    for key in kwargs.keys() {
        if !kind.keys().contains(&key.as_str()) {
            let known: Vec<_> = kind.keys().iter().map(|key| format!("`{key}`")).collect();
            found.push((
                "lr_scheduler_kwargs",
                format!("`{name}` does not use `{key}`"),
                match known.is_empty() {
                    true => {
                        format!("`{name}` has no parameters: remove `train.lr_scheduler_kwargs`")
                    }
                    false => format!("it uses {}", known.join(", ")),
                },
            ));
        }
    }
    if !found.is_empty() {
        return found;
    }
    // What is missing altogether is missed by the schedule.
    let place = match kwargs.keys().is_empty() {
        true => "lr_scheduler_type",
        false => "lr_scheduler_kwargs",
    };
    let mut wrong = |message: String, help: String| found.push((place, message, help));
    match kind {
        LrSchedulerType::CosineWithMinLr => match (kwargs.min_lr, kwargs.min_lr_rate) {
            (Some(_), Some(_)) => wrong(
                "`min_lr` and `min_lr_rate` both set the rate at the end".into(),
                "keep one of the two".into(),
            ),
            (None, None) => wrong(
                "`cosine_with_min_lr` needs a `min_lr` or a `min_lr_rate`".into(),
                "write `lr_scheduler_kwargs: {min_lr_rate: 0.1}`".into(),
            ),
            (Some(least), None) if least > train.learning_rate => wrong(
                format!(
                    "`min_lr` {least} is above `learning_rate` {}",
                    train.learning_rate
                ),
                "the schedule falls from `learning_rate` to `min_lr`".into(),
            ),
            _ => {}
        },
        LrSchedulerType::Polynomial => {
            let end = kwargs.lr_end.unwrap_or(POLYNOMIAL_END);
            if end >= train.learning_rate {
                wrong(
                    format!(
                        "`lr_end` {end:e} is not below `learning_rate` {:e}",
                        train.learning_rate
                    ),
                    "set `lr_scheduler_kwargs: {lr_end: …}` lower".into(),
                );
            }
        }
        LrSchedulerType::WarmupStableDecay if kwargs.num_decay_steps.is_none() => wrong(
            "`warmup_stable_decay` needs `num_decay_steps`".into(),
            "write `lr_scheduler_kwargs: {num_decay_steps: 100}`".into(),
        ),
        _ => {}
    }
    if train.min_lr > 0.0 && !kind.has_min_lr() && !kind.is_constant() {
        let help = match kind {
            LrSchedulerType::CosineWithMinLr => "its end is `lr_scheduler_kwargs: {min_lr: …}`",
            LrSchedulerType::Polynomial => "its end is `lr_scheduler_kwargs: {lr_end: …}`",
            LrSchedulerType::WarmupStableDecay => {
                "its end is `lr_scheduler_kwargs: {min_lr_ratio: …}`"
            }
            _ => "remove it, or choose `linear` or `cosine`",
        };
        found.push((
            "min_lr",
            format!("`{name}` does not use `train.min_lr`"),
            help.into(),
        ));
    }
    found
}

/// The default of `lr_end`.
pub(crate) const POLYNOMIAL_END: f64 = 1e-7;

impl LrSchedulerType {
    pub(crate) fn is_constant(self) -> bool {
        matches!(self, Self::Constant | Self::ConstantWithWarmup)
    }
}

impl TrainConfig {
    /// Steps in which the learning rate rises in a run of `max_steps`.
    pub fn warmup_steps_of(&self, max_steps: u64) -> u64 {
        match self.warmup_ratio {
            // Rounded as in transformers.
            Some(ratio) => (max_steps as f64 * ratio).ceil() as u64,
            None => self.warmup_steps,
        }
    }

    /// Steps at the full rate with `warmup_stable_decay` in a run of `max_steps`.
    pub(crate) fn stable_steps_of(&self, max_steps: u64) -> u64 {
        let kwargs = &self.lr_scheduler_kwargs;
        let decay = kwargs.num_decay_steps.unwrap_or(0);
        kwargs.num_stable_steps.unwrap_or_else(|| {
            max_steps
                .saturating_sub(self.warmup_steps_of(max_steps))
                .saturating_sub(decay)
        })
    }

    /// Checks that the schedule fits into a run of `max_steps`.
    ///
    /// # Errors
    /// If the warm-up, or it and the decay, are longer than the run.
    pub(crate) fn expect_to_fit(&self, max_steps: u64) -> Result<(), ConfigError> {
        match misfit(self, max_steps) {
            None => Ok(()),
            Some((key, message, help)) => Err(ConfigError::of(
                &format!("train.{key}"),
                format!("{message}: {help}"),
            )),
        }
    }
}

/// The part of the schedule that does not fit into a run of `max_steps`.
pub(super) fn misfit(train: &TrainConfig, max_steps: u64) -> Option<Wrong> {
    let warmup = train.warmup_steps_of(max_steps);
    if warmup > max_steps {
        return Some((
            "warmup_steps",
            format!("a warm-up of {warmup} steps does not fit into {max_steps} steps"),
            "lower `train.warmup_steps` or raise `train.max_steps`".into(),
        ));
    }
    let decay = train.lr_scheduler_kwargs.num_decay_steps.unwrap_or(0);
    let stable = train.lr_scheduler_kwargs.num_stable_steps;
    if train.lr_scheduler_type == LrSchedulerType::WarmupStableDecay
        && warmup.saturating_add(decay) > max_steps
        && stable.is_none()
    {
        return Some((
            "lr_scheduler_kwargs",
            format!(
                "a warm-up of {warmup} and `num_decay_steps` {decay} do not fit into {max_steps} steps"
            ),
            "lower one of them, or train longer".into(),
        ));
    }
    None
}
