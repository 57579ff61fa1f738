//! The config's section `train`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::batch_size::BatchSize;
use super::bf16::Bf16;
use super::schedule::{LrSchedulerKwargs, LrSchedulerType};
use super::strategy::Strategy;
use super::video::Experts;

/// The optimization: Hugging Face's `TrainingArguments` by name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TrainConfig {
    /// Optimizer steps of the whole run. Unset means 1000, or what `num_train_epochs` makes of the data.
    #[schemars(range(min = 1))]
    pub max_steps: Option<u64>,
    /// Passes over the training data, in place of `max_steps`; 0.5 is half of one. The steps of a pass
    /// are counted as transformers' Trainer does, from the rows that the data make, the batch size,
    /// `gradient_accumulation_steps` and the processes; the last step of a pass may have a smaller batch.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 1_000_000))]
    pub num_train_epochs: Option<f64>,
    /// Sequences in one forward pass. Where several processes train together, `auto` shares `train_batch_size`
    /// out by how fast each is, as it measures in the first steps.
    pub per_device_train_batch_size: BatchSize,
    /// With `per_device_train_batch_size: auto`, sequences in an optimizer step, of all processes and passes
    /// together.
    #[schemars(range(min = 1, max = 65_536))]
    pub train_batch_size: Option<u32>,
    /// Sequences in one forward pass of the evaluation; unset means as in training.
    #[schemars(range(min = 1, max = 65_536))]
    pub per_device_eval_batch_size: Option<u32>,
    /// Forward and backward passes before each optimizer step.
    #[schemars(range(min = 1, max = 65_536))]
    pub gradient_accumulation_steps: u32,
    /// The optimizer: AdamW with fp32 moments, or with moments of eight bits where a parameter
    /// has 4096 numbers or more and is no embedding, which take a quarter of the memory.
    pub optim: Optim,
    /// Peak learning rate of AdamW.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 10))]
    pub learning_rate: f64,
    /// Learning rate at the end of a `linear` or `cosine` schedule.
    #[schemars(range(min = 0, max = 10))]
    pub min_lr: f64,
    /// Shape of the learning rate after the warm-up.
    pub lr_scheduler_type: LrSchedulerType,
    /// What that shape takes.
    pub lr_scheduler_kwargs: LrSchedulerKwargs,
    /// Steps over which the learning rate rises linearly from zero.
    pub warmup_steps: u64,
    /// The same as a share of all steps, in place of `warmup_steps`; a part of a step is a whole one.
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
    /// Parameters that learn at another rate or decay otherwise; the first group whose `names`
    /// match counts.
    pub parameter_groups: Vec<ParameterGroup>,
    /// Keep an exponential moving average of the weights with this decay, as in 0.999, and
    /// evaluate, sample and export that; unset keeps none.
    #[schemars(range(min = 0), extend("exclusiveMaximum" = 1))]
    pub ema_decay: Option<f64>,
    /// Largest norm of the whole gradient; 0 switches clipping off.
    #[schemars(range(min = 0))]
    pub max_grad_norm: f64,
    /// Whether the forward and backward passes compute in bfloat16; weights, norms, losses and
    /// the optimizer stay in fp32.
    pub bf16: Bf16,
    /// Compute the inside of each block a second time in the backward pass instead of
    /// keeping it: less memory, about a third more work.
    pub gradient_checkpointing: bool,
    /// With gradient checkpointing, let what is kept of each block wait in host memory. It
    /// frees device memory where the GPU has its own; on unified memory and on the CPU there
    /// is nothing to free, and it is left off.
    pub activation_offload: bool,
    /// Record metrics every this many steps.
    #[schemars(range(min = 1))]
    pub logging_steps: u64,
    /// When the held-out loss is measured on the way; at the end it always is.
    pub eval_strategy: Strategy,
    /// With `eval_strategy: steps`, after every this many; 0 leaves only the one at the end.
    pub eval_steps: u64,
    /// Held-out sequences in each evaluation on the way; the last one always takes all of them.
    #[schemars(range(min = 1))]
    pub max_eval_samples: Option<u64>,
    /// When a checkpoint is written on the way; at the end one always is.
    pub save_strategy: Strategy,
    /// With `save_strategy: steps`, after every this many; 0 leaves only the one at the end.
    pub save_steps: u64,
    /// Keep this many checkpoints, the newest; unset keeps all.
    #[schemars(range(min = 1))]
    pub save_total_limit: Option<u32>,
    /// Export the weights that were best in the evaluations on the way, not the last ones. Each
    /// evaluation that is the best so far is saved.
    pub load_best_model_at_end: bool,
    /// By what they are best; the least is.
    pub metric_for_best_model: BestMetric,
    /// End the run once so many evaluations on the way, one after the other, were no better than the
    /// best before them, by `metric_for_best_model`. Unset goes on to the last step.
    #[schemars(range(min = 1))]
    pub early_stopping_patience: Option<u32>,
    /// How much better counts as better for that; any is without it.
    #[schemars(range(min = 0))]
    pub early_stopping_threshold: Option<f64>,
    /// Which tensors are compared, by a checksum, with what was sent once they are on the device.
    pub verify: VerifyMode,
    /// Seconds that one copy to or from the device may take before it counts as hung, beside the
    /// time that its bytes take on the slowest link (64 MiB a second).
    #[schemars(range(min = 1, max = 86_400))]
    pub transfer_deadline: u32,
    /// Where several processes train together: seconds that one waits for another before the run
    /// ends with that one's name. Longer than a step, a sample or a checkpoint takes; a process that
    /// is gone is noticed at once.
    #[schemars(range(min = 1, max = 86_400))]
    pub rank_timeout: u32,
    /// Where several processes train together: what sums up their gradients.
    pub ddp_backend: Backend,
    /// Where several processes train together: the numbers that gradients are sent as. `bfloat16`
    /// halves what is sent, and rounds it to 3 digits; each process adds it up alike.
    pub reduce_dtype: ReduceDtype,
    /// Where several processes train together: steps that each takes for itself before they exchange what they
    /// have learned (DiLoCo), for links that are too slow for a sum in each step. They exchange before an
    /// evaluation, a sample and a checkpoint too. 1 sums gradients in each step.
    #[schemars(range(min = 1, max = 100_000))]
    pub sync_every: u64,
    /// With `sync_every`, the learning rate of the outer optimizer (SGD with Nesterov's momentum), which takes the
    /// mean of how far all have moved for its gradient.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 10))]
    pub outer_learning_rate: f64,
    /// With `sync_every`, the momentum of the outer optimizer.
    #[schemars(range(min = 0), extend("exclusiveMaximum" = 1))]
    pub outer_momentum: f64,
    /// For videos, how levels of noise are drawn. Unset means `shift`.
    pub weighting_scheme: Option<WeightingScheme>,
    /// For videos, moves the levels of noise that are drawn towards noise: a level `u` becomes
    /// `s·u / (1 + (s−1)·u)`. Unset means 5 with `shift`, and 1 (no change) with the others.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 1000))]
    pub flow_shift: Option<f64>,
    /// Mean of the logarithm of the odds, for `logit_normal`. Unset means 0.
    #[schemars(range(min = -20, max = 20))]
    pub logit_mean: Option<f64>,
    /// Standard deviation of the logarithm of the odds, for `logit_normal`. Unset means 1.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 20))]
    pub logit_std: Option<f64>,
    /// Weight of the middle, for `mode`. Unset means 1.29.
    #[schemars(range(min = -1, max = 1.75))]
    pub mode_scale: Option<f64>,
    /// For videos, least level of noise that is trained, from 0 (clean) to 1 (noise). Unset means 0,
    /// or where the chosen expert's range begins.
    #[schemars(range(min = 0, max = 1))]
    pub min_sigma: Option<f64>,
    /// For videos, highest level of noise that is trained. Unset means 1, or where the chosen
    /// expert's range ends.
    #[schemars(range(min = 0, max = 1))]
    pub max_sigma: Option<f64>,
    /// Which experts of a Wan 2.2 model with two are trained: each has a LoRA of its own. Unset means
    /// `both`.
    pub experts: Option<Experts>,
    /// Steps in a row that one of both experts learns before it is the other's turn. Unset means 10;
    /// where the other is off the device meanwhile, fewer cost more time.
    #[schemars(range(min = 1))]
    pub steps_per_expert: Option<u64>,
    /// Continue from this checkpoint or run folder; `latest` takes the newest run of this name.
    #[schemars(extend("format" = "path"))]
    pub resume_from_checkpoint: Option<String>,
}

/// Parameters that are trained in a way of their own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ParameterGroup {
    /// A regular expression that is found in the names of these parameters, as `norm|bias`.
    #[schemars(length(min = 1))]
    pub names: String,
    /// Their peak learning rate, on the schedule of all; unset takes `train.learning_rate`.
    #[serde(default)]
    #[schemars(range(min = 0, max = 10))]
    pub learning_rate: Option<f64>,
    /// Their weight decay; unset leaves what they would have without this group.
    #[serde(default)]
    #[schemars(range(min = 0, max = 10))]
    pub weight_decay: Option<f64>,
}

/// Which arrivals on the device are verified, as `docs/transfer.md` specifies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum VerifyMode {
    /// None: wrong bytes pass unseen.
    Off,
    /// Each weight once, and each field of a batch the first time.
    First,
    /// Each weight once, and of the batches one in 64.
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

/// What an evaluation is judged by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BestMetric {
    /// The held-out loss.
    EvalLoss,
    /// The held-out loss in nats per byte, of models that train a tokenizer of their own.
    EvalNatsPerByte,
}

/// What sums up the gradients of several processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    /// RCCL or NCCL where all processes have a GPU and a first sum of it is right, else Gloo.
    Auto,
    /// Gloo, through host memory.
    Gloo,
    /// RCCL (AMD) or NCCL (NVIDIA), or nothing.
    Nccl,
}

/// The numbers that gradients are sent as.
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

/// The optimizer, by Hugging Face's names: two of each kind mean the same here.
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
    /// Whether moments are kept in eight bits.
    pub fn eight_bit(self) -> bool {
        matches!(self, Self::Adamw8bit | Self::AdamwBnb8bit)
    }
}

/// How levels of noise are drawn for flow matching, by diffusers' names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WeightingScheme {
    /// All alike.
    Uniform,
    /// The logarithm of the odds is normal: more of the middle.
    LogitNormal,
    /// All alike, then moved towards noise by `flow_shift`.
    Shift,
    /// More of the middle by a cosine, as Stable Diffusion 3 was trained.
    Mode,
}

impl Default for TrainConfig {
    fn default() -> Self {
        Self {
            max_steps: None,
            num_train_epochs: None,
            per_device_train_batch_size: BatchSize::Rows(16),
            train_batch_size: None,
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
            sync_every: 1,
            outer_learning_rate: 0.7,
            outer_momentum: 0.9,
            weighting_scheme: None,
            flow_shift: None,
            logit_mean: None,
            logit_std: None,
            mode_scale: None,
            min_sigma: None,
            max_sigma: None,
            experts: None,
            steps_per_expert: None,
            resume_from_checkpoint: None,
        }
    }
}

/// Steps of a run of which nothing says how long it is.
const DEFAULT_STEPS: u64 = 1000;

impl TrainConfig {
    /// Optimizer steps of the whole run, unless the data say it (`num_train_epochs`).
    pub fn steps(&self) -> Option<u64> {
        match (self.max_steps, self.num_train_epochs) {
            (Some(steps), _) => Some(steps),
            (None, Some(_)) => None,
            (None, None) => Some(DEFAULT_STEPS),
        }
    }

    /// Samples in a batch of the data: what one process takes in a pass, or with `auto` what all take in a step.
    pub fn rows_per_batch(&self) -> u32 {
        match self.per_device_train_batch_size {
            BatchSize::Rows(rows) => rows,
            BatchSize::Auto => self.train_batch_size.unwrap_or(1),
        }
    }

    /// Most samples in a pass of one of `processes`. With `auto` those of equal shares: a faster process makes more
    /// passes, and none needs more memory than the others.
    pub fn rows_per_pass(&self, processes: usize) -> u32 {
        match self.per_device_train_batch_size {
            BatchSize::Rows(rows) => rows,
            BatchSize::Auto => {
                let passes = self.gradient_accumulation_steps.max(1) as usize * processes.max(1);
                let rows = self.rows_per_batch() as usize;
                u32::try_from(rows.div_ceil(passes)).unwrap_or(u32::MAX)
            }
        }
    }

    /// Batches of the data in a step of so many processes.
    pub(crate) fn batches_in_step(&self, processes: usize) -> u64 {
        match self.per_device_train_batch_size {
            BatchSize::Rows(_) => processes as u64 * u64::from(self.gradient_accumulation_steps),
            BatchSize::Auto => 1,
        }
    }

    /// Samples in a step of so many processes.
    pub(crate) fn samples_in_step(&self, processes: usize) -> u64 {
        self.batches_in_step(processes) * u64::from(self.rows_per_batch())
    }

    /// Copies of what is trained that a run keeps: averages, or what ranks that learn apart agreed on last
    /// and its momentum.
    pub(crate) fn kept_copies(&self) -> u64 {
        u64::from(self.ema_decay.is_some()) + if self.sync_every > 1 { 2 } else { 0 }
    }

    /// Whether the data are gone through pass by pass, so that no batch is of two.
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
