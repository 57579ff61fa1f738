//! The config's section `train`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::bf16::Bf16;
use super::schedule::{LrSchedulerKwargs, LrSchedulerType};
use super::strategy::Strategy;
use super::video::Experts;

/// The optimization: Hugging Face's `TrainingArguments` by name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TrainConfig {
    /// Optimizer steps of the whole run. Unset means 1000, or what follows from `num_train_epochs`.
    #[schemars(range(min = 1))]
    pub max_steps: Option<u64>,
    /// Epochs, in place of `max_steps`; 0.5 is half of one. The steps of an epoch
    /// are counted as by transformers' Trainer, from the rows of the data, the batch size,
    /// `gradient_accumulation_steps` and the processes; the last step of an epoch may have a smaller batch.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 1_000_000))]
    pub num_train_epochs: Option<f64>,
    /// Sequences per forward pass.
    #[schemars(range(min = 1, max = 65_536))]
    pub per_device_train_batch_size: u32,
    /// Sequences per forward pass of the evaluation; unset means as in training.
    #[schemars(range(min = 1, max = 65_536))]
    pub per_device_eval_batch_size: Option<u32>,
    /// Forward and backward passes per optimizer step.
    #[schemars(range(min = 1, max = 65_536))]
    pub gradient_accumulation_steps: u32,
    /// The optimizer: AdamW with fp32 moments, or with 8-bit moments for all parameters
    /// with 4096 values or more except embeddings, which need a quarter of the memory.
    pub optim: Optim,
    /// Peak learning rate of AdamW.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 10))]
    pub learning_rate: f64,
    /// Learning rate at the end of a `linear` or `cosine` schedule.
    #[schemars(range(min = 0, max = 10))]
    pub min_lr: f64,
    /// Shape of the learning rate after the warm-up.
    pub lr_scheduler_type: LrSchedulerType,
    /// Parameters of that shape.
    pub lr_scheduler_kwargs: LrSchedulerKwargs,
    /// Steps over which the learning rate rises linearly from zero.
    pub warmup_steps: u64,
    /// The same as a fraction of all steps, in place of `warmup_steps`; rounded up to whole steps.
    #[schemars(range(min = 0, max = 1))]
    pub warmup_ratio: Option<f64>,
    /// Decay of AdamW's running mean of the gradient.
    #[schemars(range(min = 0), extend("exclusiveMaximum" = 1))]
    pub adam_beta1: f64,
    /// Decay of AdamW's running mean of the squared gradient.
    #[schemars(range(min = 0), extend("exclusiveMaximum" = 1))]
    pub adam_beta2: f64,
    /// AdamW's epsilon.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub adam_epsilon: f64,
    /// Decoupled weight decay of the matrices; norms, biases and embeddings have none.
    #[schemars(range(min = 0, max = 10))]
    pub weight_decay: f64,
    /// Parameters with a different learning rate or weight decay; the first group whose `names`
    /// match applies.
    pub parameter_groups: Vec<ParameterGroup>,
    /// Keep an exponential moving average of the weights with this decay, for example 0.999, and
    /// evaluate, sample and export that; unset keeps none.
    #[schemars(range(min = 0), extend("exclusiveMaximum" = 1))]
    pub ema_decay: Option<f64>,
    /// The maximum norm of the whole gradient; 0 disables clipping.
    #[schemars(range(min = 0))]
    pub max_grad_norm: f64,
    /// Whether the forward and backward passes compute in bfloat16; weights, norms, losses and
    /// the optimizer stay in fp32.
    pub bf16: Bf16,
    /// Recompute the activations inside each block in the backward pass instead of
    /// storing them: less memory, about a third more work.
    pub gradient_checkpointing: bool,
    /// With gradient checkpointing, keep the stored activations of each block in host memory. This
    /// frees device memory if the GPU has its own; on unified memory and on the CPU there
    /// is nothing to free, and it is disabled.
    pub activation_offload: bool,
    /// Record metrics every this many steps.
    #[schemars(range(min = 1))]
    pub logging_steps: u64,
    /// When the held-out loss is measured during training; it always is at the end.
    pub eval_strategy: Strategy,
    /// With `eval_strategy: steps`, every this many steps; 0 evaluates only at the end.
    pub eval_steps: u64,
    /// Held-out sequences per evaluation during training; the last evaluation always uses all of them.
    #[schemars(range(min = 1))]
    pub max_eval_samples: Option<u64>,
    /// When a checkpoint is saved during training; one always is at the end.
    pub save_strategy: Strategy,
    /// With `save_strategy: steps`, every this many steps; 0 saves only at the end.
    pub save_steps: u64,
    /// Keep this many of the newest checkpoints; unset keeps all.
    #[schemars(range(min = 1))]
    pub save_total_limit: Option<u32>,
    /// Export the weights that were best in the evaluations during training instead of the last ones. A
    /// checkpoint is saved at each evaluation that is the best so far.
    pub load_best_model_at_end: bool,
    /// The metric by which weights are compared; lower is better.
    pub metric_for_best_model: BestMetric,
    /// End the run after this many consecutive evaluations without an improvement of
    /// `metric_for_best_model`. Unset never ends it early.
    #[schemars(range(min = 1))]
    pub early_stopping_patience: Option<u32>,
    /// How much better an evaluation must be to count as an improvement. Unset means by any amount.
    #[schemars(range(min = 0))]
    pub early_stopping_threshold: Option<f64>,
    /// Which tensors are verified by checksum after a copy to the device.
    pub verify: VerifyMode,
    /// Seconds that one copy to or from the device may take before it counts as hung, in addition to the
    /// time for its bytes on the slowest link (64 MiB per second).
    #[schemars(range(min = 1, max = 86_400))]
    pub transfer_deadline: u32,
    /// With several processes: seconds that a process waits for another before the run
    /// ends and names that one. Must be longer than a step, a sample and a checkpoint take; a process that
    /// has died is noticed at once.
    #[schemars(range(min = 1, max = 86_400))]
    pub rank_timeout: u32,
    /// With several processes: the backend that sums gradients.
    pub ddp_backend: Backend,
    /// With several processes: the data type in which gradients are sent. `bfloat16`
    /// halves the traffic, and rounds to 3 digits; all processes compute the same sum.
    pub reduce_dtype: ReduceDtype,
    /// For videos, how noise levels are sampled. Unset means `shift`.
    pub weighting_scheme: Option<WeightingScheme>,
    /// For videos, shifts the sampled noise levels towards noise: a level `u` becomes
    /// `s·u / (1 + (s−1)·u)`. Unset means 5 with `shift`, and 1 (no change) with the others.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 1000))]
    pub flow_shift: Option<f64>,
    /// Mean of the log-odds, for `logit_normal`. Unset means 0.
    #[schemars(range(min = -20, max = 20))]
    pub logit_mean: Option<f64>,
    /// Standard deviation of the log-odds, for `logit_normal`. Unset means 1.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 20))]
    pub logit_std: Option<f64>,
    /// For videos, the lowest noise level that is trained, from 0 (clean) to 1 (noise). Unset means 0,
    /// or the start of the chosen expert's range.
    #[schemars(range(min = 0, max = 1))]
    pub min_sigma: Option<f64>,
    /// For videos, the highest noise level that is trained. Unset means 1, or the end of the chosen
    /// expert's range.
    #[schemars(range(min = 0, max = 1))]
    pub max_sigma: Option<f64>,
    /// Which experts of a Wan 2.2 model with two are trained; each has its own LoRA. Unset means
    /// `both`.
    pub experts: Option<Experts>,
    /// Consecutive steps for one expert before switching to the other. Unset means 10; if
    /// the other is offloaded meanwhile, fewer steps cost more time.
    #[schemars(range(min = 1))]
    pub steps_per_expert: Option<u64>,
    /// Resume from this checkpoint or run folder; `latest` means the newest run with this name.
    #[schemars(extend("format" = "path"))]
    pub resume_from_checkpoint: Option<String>,
}

/// Parameters with their own learning rate or weight decay.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ParameterGroup {
    /// A regular expression that matches a part of the names of these parameters, such as `norm|bias`.
    #[schemars(length(min = 1))]
    pub names: String,
    /// Their peak learning rate, with the same schedule; unset means `train.learning_rate`.
    #[serde(default)]
    #[schemars(range(min = 0, max = 10))]
    pub learning_rate: Option<f64>,
    /// Their weight decay; unset means what they would have without this group.
    #[serde(default)]
    #[schemars(range(min = 0, max = 10))]
    pub weight_decay: Option<f64>,
}

/// Which copies to the device are verified, as `docs/transfer.md` specifies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum VerifyMode {
    /// None: wrong bytes remain unnoticed.
    Off,
    /// Each weight once, and each field of a batch the first time.
    First,
    /// Each weight once, and one in 64 batches.
    Sample,
    /// Every copy.
    Always,
}

impl From<VerifyMode> for placement::Verify {
    fn from(mode: VerifyMode) -> Self {
        match mode {
            VerifyMode::Off => Self::Off,
            VerifyMode::First => Self::First,
            VerifyMode::Sample => Self::SAMPLE,
            VerifyMode::Always => Self::Always,
        }
    }
}

/// The metric of an evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BestMetric {
    /// The held-out loss.
    EvalLoss,
    /// The held-out loss in nats per byte, for models that train their own tokenizer.
    EvalNatsPerByte,
}

/// The backend that sums the gradients of several processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    /// RCCL or NCCL if all processes have a GPU and a first sum with it is right, else Gloo.
    Auto,
    /// Gloo, through host memory.
    Gloo,
    /// RCCL (AMD) or NCCL (NVIDIA); if it cannot be used, the run fails.
    Nccl,
}

/// The data type in which gradients are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReduceDtype {
    /// fp32.
    Float32,
    /// bf16.
    Bfloat16,
}

impl ReduceDtype {
    pub(crate) fn kind(self) -> tch::Kind {
        match self {
            Self::Float32 => tch::Kind::Float,
            Self::Bfloat16 => tch::Kind::BFloat16,
        }
    }
}

/// The optimizer, by Hugging Face's names, two of each kind being equivalent here.
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
}

impl Optim {
    /// Whether the moments have eight bits.
    pub fn eight_bit(self) -> bool {
        matches!(self, Self::Adamw8bit | Self::AdamwBnb8bit)
    }
}

/// How noise levels are sampled for flow matching, by diffusers' names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WeightingScheme {
    /// Uniformly.
    Uniform,
    /// The log-odds are normally distributed: more from the middle.
    LogitNormal,
    /// Uniformly, then shifted towards noise by `flow_shift`.
    Shift,
}

impl Default for TrainConfig {
    fn default() -> Self {
        Self {
            max_steps: None,
            num_train_epochs: None,
            per_device_train_batch_size: 16,
            per_device_eval_batch_size: None,
            gradient_accumulation_steps: 1,
            optim: Optim::AdamwTorchFused,
            learning_rate: 1e-3,
            min_lr: 0.0,
            lr_scheduler_type: LrSchedulerType::Cosine,
            lr_scheduler_kwargs: LrSchedulerKwargs::default(),
            warmup_steps: 0,
            warmup_ratio: None,
            adam_beta1: 0.9,
            adam_beta2: 0.999,
            adam_epsilon: 1e-8,
            weight_decay: 0.0,
            parameter_groups: Vec::new(),
            ema_decay: None,
            max_grad_norm: 1.0,
            bf16: Bf16::Auto,
            gradient_checkpointing: false,
            activation_offload: false,
            logging_steps: 10,
            eval_strategy: Strategy::Steps,
            eval_steps: 100,
            max_eval_samples: None,
            save_strategy: Strategy::Steps,
            save_steps: 500,
            save_total_limit: None,
            load_best_model_at_end: false,
            metric_for_best_model: BestMetric::EvalLoss,
            early_stopping_patience: None,
            early_stopping_threshold: None,
            verify: VerifyMode::First,
            transfer_deadline: 120,
            rank_timeout: 600,
            ddp_backend: Backend::Auto,
            reduce_dtype: ReduceDtype::Float32,
            weighting_scheme: None,
            flow_shift: None,
            logit_mean: None,
            logit_std: None,
            min_sigma: None,
            max_sigma: None,
            experts: None,
            steps_per_expert: None,
            resume_from_checkpoint: None,
        }
    }
}

/// Default number of steps.
const DEFAULT_STEPS: u64 = 1000;

impl TrainConfig {
    /// Optimizer steps of the whole run, unless they follow from the data (`num_train_epochs`).
    pub fn steps(&self) -> Option<u64> {
        match (self.max_steps, self.num_train_epochs) {
            (Some(steps), _) => Some(steps),
            (None, Some(_)) => None,
            (None, None) => Some(DEFAULT_STEPS),
        }
    }

    /// Batches of the data per step of this many processes.
    pub(crate) fn batches_in_step(&self, processes: usize) -> u64 {
        processes as u64 * u64::from(self.gradient_accumulation_steps)
    }

    /// Samples per step of this many processes.
    pub(crate) fn samples_in_step(&self, processes: usize) -> u64 {
        self.batches_in_step(processes) * u64::from(self.per_device_train_batch_size)
    }

    /// Whether the data is used epoch by epoch, so that no batch spans two.
    pub(crate) fn by_epoch(&self) -> bool {
        self.num_train_epochs.is_some()
            || [self.eval_strategy, self.save_strategy].contains(&Strategy::Epoch)
    }

    /// Whether the held-out loss is measured before the end.
    pub(crate) fn evaluates_on_the_way(&self) -> bool {
        match self.eval_strategy {
            Strategy::No => false,
            Strategy::Steps => self.eval_steps > 0,
            Strategy::Epoch => true,
        }
    }

    /// Whether evaluations decide something: which weights are kept, or when the run ends.
    pub(crate) fn judges(&self) -> bool {
        self.load_best_model_at_end || self.early_stopping_patience.is_some()
    }
}
