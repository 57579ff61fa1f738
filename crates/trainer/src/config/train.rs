//! The config's section `train`.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::batch_size::BatchSize;
use super::bf16::Bf16;
use super::optim::{Optim, OptimArgs};
use super::schedule::{LrSchedulerKwargs, LrSchedulerType};
use super::strategy::Strategy;
use super::video::Experts;

section! {
    /// The optimization: Hugging Face's `TrainingArguments` by name.
    pub struct TrainConfig {
        /// Optimizer steps of the whole run. Unset means what follows from `num_train_epochs`, or 1000; where a
        /// language model is fine-tuned, three passes over the data if those are fewer.
        #[schemars(range(min = 1), extend("x-sets" = "the length of the run"))]
        pub max_steps: Option<u64> = None, for Any, resume Free;
        /// Epochs, in place of `max_steps`; 0.5 is half of one. The steps of an epoch
        /// are counted as by transformers' Trainer, from the rows of the data, the batch size,
        /// `gradient_accumulation_steps` and the processes; the last step of an epoch may have a smaller batch.
        #[schemars(extend("x-sets" = "the length of the run", "exclusiveMinimum" = 0), range(max = 1_000_000))]
        pub num_train_epochs: Option<f64> = None, for Any, resume Free;
        /// Sequences per forward pass. `auto` leaves that to the estimate of memory: a step then has as many sequences as
        /// `gradient_accumulation_steps` says, in the largest equal passes that memory has room for, and learns the same
        /// whatever the machine, up to rounding.
        pub per_device_train_batch_size: BatchSize = BatchSize::Rows(16), for Any, resume Free;
        /// Sequences per forward pass of the evaluation; unset means as in training.
        #[schemars(range(min = 1, max = 65_536))]
        pub per_device_eval_batch_size: Option<u32> = None, for Any, resume Free;
        /// Whether batches have examples of similar length, so that little of them is padding: the order is random, then by
        /// length within each few hundred examples, longer and shorter ones in turns. The longest are the first batch, so
        /// that a lack of memory shows at once.
        #[schemars(extend(
            "x-needs" = "data.packing: false or preference",
            "x-because" = "other rows are all of one length"
        ))]
        pub group_by_length: bool = false, for PublishedLanguage, resume Fixed;
        /// Forward and backward passes per optimizer step.
        #[schemars(range(min = 1, max = 65_536))]
        pub gradient_accumulation_steps: u32 = 1, for Any, resume Free;
        /// The optimizer. Moments in 8 bits, where its name says so, are for all parameters with 4096 values or
        /// more except embeddings; they need a quarter of the memory.
        // The states of one cannot be read as those of another.
        pub optim: Optim = Optim::AdamwTorchFused, for Any, resume Fixed;
        /// Arguments of the optimizer, unless it is AdamW.
        // What schedule-free AdamW evaluates follows from its state by these.
        pub optim_args: OptimArgs = OptimArgs::default(), for Any, resume Fixed;
        /// Peak learning rate.
        #[schemars(extend("exclusiveMinimum" = 0), range(max = 10))]
        pub learning_rate: f64 = 1e-3, for Any, resume Free;
        /// In place of training, try a step at each of a hundred rates from 1e-7 to 1, in a run folder whose name ends in `-lr`,
        /// and suggest a `learning_rate` by the losses. No weights are kept. The same as `surefoot train --find-lr`.
        pub find_learning_rate: bool = false, for Any, resume Unrelated;
        /// Learning rate at the end of a `linear` or `cosine` schedule.
        #[schemars(range(min = 0, max = 10))]
        pub min_lr: f64 = 0.0, for Any, resume Free;
        /// Shape of the learning rate after the warm-up.
        pub lr_scheduler_type: LrSchedulerType = LrSchedulerType::Cosine, for Any, resume Free;
        /// Parameters of that shape.
        pub lr_scheduler_kwargs: LrSchedulerKwargs = LrSchedulerKwargs::default(), for Any, resume Free;
        /// Steps over which the learning rate rises linearly from zero.
        #[schemars(extend("x-sets" = "the length of the warm-up"))]
        pub warmup_steps: u64 = 0, for Any, resume Free;
        /// The same as a fraction of all steps, in place of `warmup_steps`; rounded up to whole steps.
        #[schemars(range(min = 0, max = 1), extend("x-sets" = "the length of the warm-up"))]
        pub warmup_ratio: Option<f64> = None, for Any, resume Free;
        /// Decay of AdamW's running mean of the gradient.
        #[schemars(range(min = 0), extend("exclusiveMaximum" = 1))]
        pub adam_beta1: f64 = 0.9, for Any, resume Free;
        /// Decay of AdamW's running mean of the squared gradient.
        #[schemars(range(min = 0), extend("exclusiveMaximum" = 1))]
        pub adam_beta2: f64 = 0.999, for Any, resume Free;
        /// AdamW's epsilon.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub adam_epsilon: f64 = 1e-8, for Any, resume Free;
        /// Decoupled weight decay of the matrices; norms, biases and embeddings have none.
        #[schemars(range(min = 0, max = 10))]
        pub weight_decay: f64 = 0.0, for Any, resume Free;
        /// Parameters with a different learning rate or weight decay; the first group whose `names`
        /// match applies.
        pub parameter_groups: Vec<ParameterGroup> = Vec::new(), for Any, resume Free;
        /// Keep an exponential moving average of the weights with this decay, for example 0.999, and
        /// evaluate, sample and export that; unset keeps none.
        #[schemars(range(min = 0), extend("exclusiveMaximum" = 1))]
        // An average over the steps so far has one decay.
        pub ema_decay: Option<f64> = None, for Any, resume Fixed;
        /// The maximum norm of the whole gradient; 0 disables clipping.
        #[schemars(range(min = 0))]
        pub max_grad_norm: f64 = 1.0, for Any, resume Free;
        /// Whether the forward and backward passes compute in bfloat16; weights, norms, losses and
        /// the optimizer stay in fp32.
        pub bf16: Bf16 = Bf16::Auto, for Any, resume Free;
        /// Recompute the activations inside each block in the backward pass instead of
        /// storing them: less memory, about a third more work.
        pub gradient_checkpointing: bool = false, for Any, resume Free;
        /// With gradient checkpointing, keep the stored activations of each block in host memory. This
        /// frees device memory if the GPU has its own; on unified memory and on the CPU there
        /// is nothing to free, and it is disabled.
        #[schemars(extend(
            "x-needs" = "train.gradient_checkpointing: true",
            "x-because" = "only activations that gradient checkpointing keeps can be offloaded"
        ))]
        pub activation_offload: bool = false, for Any, resume Free;
        /// Uniform noise in the embeddings of a batch, in training alone (NEFTune): up to this over the root of the numbers in
        /// a sequence; 5 is usual. Unset adds none.
        #[schemars(extend("exclusiveMinimum" = 0), range(max = 1000))]
        pub neftune_noise_alpha: Option<f64> = None, for PublishedLanguage, resume Free;
        /// The share of probability that targets give to all tokens alike, in training; the held-out loss is measured
        /// without.
        #[schemars(range(min = 0), extend("exclusiveMaximum" = 1, "x-not-with" = "preference"))]
        pub label_smoothing_factor: f64 = 0.0, for PublishedLanguage, resume Free;
        /// Record metrics every this many steps.
        #[schemars(range(min = 1))]
        pub logging_steps: u64 = 10, for Any, resume Free;
        /// Trackers that get the numbers, beside the run folder with its TensorBoard files: `mlflow` (the server of
        /// `MLFLOW_TRACKING_URI`), `trackio` (that of `TRACKIO_SERVER_URL`), or a list of both. A server that does not answer
        /// never stops or slows a run; a resumed run goes on there.
        pub report_to: ReportTo = ReportTo::default(), for Any, resume Unrelated;
        /// When the held-out loss is measured during training; it always is at the end.
        pub eval_strategy: Strategy = Strategy::Steps, for Any, resume Free;
        /// With `eval_strategy: steps`, every this many steps; 0 evaluates only at the end.
        #[schemars(extend("x-unused-without" = "train.eval_strategy: steps"))]
        pub eval_steps: u64 = 100, for Any, resume Free;
        /// Held-out sequences per evaluation during training; the last evaluation always uses all of them.
        #[schemars(range(min = 1))]
        pub max_eval_samples: Option<u64> = None, for Any, resume Free;
        /// When a checkpoint is saved during training; one always is at the end.
        pub save_strategy: Strategy = Strategy::Steps, for Any, resume Free;
        /// With `save_strategy: steps`, every this many steps; 0 saves only at the end.
        #[schemars(extend("x-unused-without" = "train.save_strategy: steps"))]
        pub save_steps: u64 = 500, for Any, resume Free;
        /// Keep this many of the newest checkpoints; unset keeps all.
        #[schemars(range(min = 1))]
        pub save_total_limit: Option<u32> = None, for Any, resume Free;
        /// Export the weights that were best in the evaluations during training instead of the last ones. A
        /// checkpoint is saved at each evaluation that is the best so far.
        pub load_best_model_at_end: bool = false, for Any, resume Free;
        /// The metric by which weights are compared; lower is better.
        // The best checkpoint so far was determined by it.
        pub metric_for_best_model: BestMetric = BestMetric::EvalLoss, for Language, resume Fixed;
        /// End the run after this many consecutive evaluations without an improvement of
        /// `metric_for_best_model`. Unset never ends it early.
        #[schemars(range(min = 1))]
        pub early_stopping_patience: Option<u32> = None, for Any, resume Free;
        /// How much better an evaluation must be to count as an improvement. Unset means by any amount.
        #[schemars(range(min = 0), extend(
            "x-needs" = "train.early_stopping_patience",
            "x-because" = "early stopping is off, so it needs no threshold"
        ))]
        pub early_stopping_threshold: Option<f64> = None, for Any, resume Free;
        /// Which tensors are verified by checksum after a copy to the device.
        #[schemars(extend("x-per-machine" = true))]
        pub verify: VerifyMode = VerifyMode::First, for Any, resume Free;
        /// Whether kernels of Surefoot's own, which move fewer bytes than PyTorch's operators, are used on an AMD GPU: for weights of
        /// 4 bits (NF4, MXFP4), for norms with what stands around them, and for the rotation of queries and keys.
        pub kernels: KernelMode = KernelMode::Auto, for Any, resume Free;
        /// Seconds that one copy to or from the device may take before it counts as hung, in addition to the
        /// time for its bytes on the slowest link (64 MiB per second).
        #[schemars(range(min = 1, max = 86_400), extend("x-per-machine" = true))]
        pub transfer_deadline: u32 = 120, for Any, resume Free;
        /// With several processes: seconds that a process waits for another before the run
        /// ends and names that one. Must be longer than a step, a sample and a checkpoint take; a process that
        /// has died is noticed at once.
        #[schemars(range(min = 1, max = 86_400))]
        pub rank_timeout: u32 = 600, for Any, resume Unrelated;
        /// With several processes: the backend that sums gradients.
        pub ddp_backend: Backend = Backend::Auto, for Any, resume Unrelated;
        /// With several processes: the data type in which gradients are sent. `bfloat16`
        /// halves the traffic, and rounds to 3 digits; all processes compute the same sum.
        pub reduce_dtype: ReduceDtype = ReduceDtype::Float32, for Any, resume Free;
        /// For videos, how noise levels are sampled. Unset means `shift`.
        pub weighting_scheme: Option<WeightingScheme> = None, for Diffusion, resume Free;
        /// For videos, shifts the sampled noise levels towards noise: a level `u` becomes
        /// `s·u / (1 + (s−1)·u)`. Unset means 5 with `shift`, and 1 (no change) with the others.
        #[schemars(extend("exclusiveMinimum" = 0), range(max = 1000))]
        pub flow_shift: Option<f64> = None, for Diffusion, resume Free;
        /// For models that are told the guidance (FLUX.1-dev), the guidance in training. Unset means 1.
        #[schemars(range(min = 0, max = 100))]
        pub guidance_scale: Option<f64> = None, for Diffusion, resume Free;
        /// Mean of the log-odds, for `logit_normal`. Unset means 0.
        #[schemars(range(min = -20, max = 20))]
        #[schemars(extend("x-needs" = "train.weighting_scheme: logit_normal"))]
        pub logit_mean: Option<f64> = None, for Diffusion, resume Free;
        /// Standard deviation of the log-odds, for `logit_normal`. Unset means 1.
        #[schemars(extend("x-needs" = "train.weighting_scheme: logit_normal", "exclusiveMinimum" = 0), range(max = 20))]
        pub logit_std: Option<f64> = None, for Diffusion, resume Free;
        /// For videos, the lowest noise level that is trained, from 0 (clean) to 1 (noise). Unset means 0,
        /// or the start of the chosen expert's range.
        #[schemars(range(min = 0, max = 1))]
        pub min_sigma: Option<f64> = None, for Diffusion, resume Free;
        /// For videos, the highest noise level that is trained. Unset means 1, or the end of the chosen
        /// expert's range.
        #[schemars(range(min = 0, max = 1))]
        pub max_sigma: Option<f64> = None, for Diffusion, resume Free;
        /// Whether the adapter changes the text encoders, too, where a model has such (SDXL). Captions are then not encoded
        /// beforehand, and the text encoders stay on the device.
        #[schemars(extend("x-needs" = "adapter"))]
        pub text_encoder: bool = false, for Diffusion, resume Fixed;
        /// Peak learning rate of the text encoders; unset means `learning_rate`.
        #[schemars(extend("x-needs" = "train.text_encoder: true", "exclusiveMinimum" = 0), range(max = 10))]
        pub text_encoder_lr: Option<f64> = None, for Diffusion, resume Free;
        /// For models that are noised by steps, such as SDXL: the most that a signal-to-noise ratio counts in the loss
        /// (min-SNR); 5 is usual. Unset weighs all noise levels alike.
        #[schemars(extend("exclusiveMinimum" = 0), range(max = 1000))]
        pub min_snr_gamma: Option<f64> = None, for Diffusion, resume Free;
        /// For the same models: whether the loss is divided by the root of that ratio, or for velocities by the ratio plus
        /// 1 (debiased estimation).
        pub debiased_estimation_loss: bool = false, for Diffusion, resume Free;
        /// Weight of the loss of the media in `data.reg_data_dir`.
        #[schemars(range(min = 0, max = 1000), extend("x-unused-without" = "data.reg_data_dir"))]
        pub prior_loss_weight: f64 = 1.0, for Diffusion, resume Free;
        /// Which experts of a Wan 2.2 model with two are trained; each has its own LoRA. Unset means
        /// `both`.
        pub experts: Option<Experts> = None, for Diffusion, resume Fixed;
        /// Consecutive steps for one expert before switching to the other. Unset means 10; if
        /// the other is offloaded meanwhile, fewer steps cost more time.
        #[schemars(range(min = 1))]
        pub steps_per_expert: Option<u64> = None, for Diffusion, resume Free;
        /// Resume from this checkpoint or run folder; `latest` means the newest run with this name.
        #[schemars(extend("x-per-machine" = true, "format" = "path"))]
        pub resume_from_checkpoint: Option<String> = None, for Any, resume Unrelated;
    }
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

/// Names of trackers: one, or a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ReportTo {
    /// One.
    One(String),
    /// A list.
    Several(Vec<String>),
}

impl Default for ReportTo {
    fn default() -> Self {
        Self::Several(Vec::new())
    }
}

impl ReportTo {
    /// Their names.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        let names = match self {
            Self::One(name) => std::slice::from_ref(name),
            Self::Several(names) => names,
        };
        names.iter().map(String::as_str)
    }

    /// What is wrong with a name, and what to do.
    pub(super) fn problem(&self) -> Option<(String, String)> {
        // TensorBoard's files are always written.
        let known = ["mlflow", "trackio", "tensorboard", "none"];
        let name = self.names().find(|name| !known.contains(name))?;
        Some(match name {
            "wandb" => (
                "`wandb` is not supported: it has no server of its own that is free to run".into(),
                "write `trackio`, which has the interface of wandb, or `mlflow`; or import the TensorBoard files of the run \
                 folder with `wandb sync`"
                    .into(),
            ),
            name => (
                format!("`{name}` is no tracker that is known here"),
                format!("choose from `{}`", known.join("`, `")),
            ),
        })
    }
}

impl JsonSchema for ReportTo {
    fn schema_name() -> Cow<'static, str> {
        "ReportTo".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "`mlflow`, `trackio`, a list of those, or `none`.",
            "type": ["string", "array"],
            "items": {"type": "string"},
        })
    }
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

/// Where kernels of Surefoot's own are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum KernelMode {
    /// Where they give the numbers of PyTorch's operators, which is tried before they are first used.
    Auto,
    /// Nowhere.
    Off,
    /// As `auto`, and each result of a forward pass is compared with that of operators: slow, to find a fault.
    Verify,
}

impl From<KernelMode> for models::fused::UseKernels {
    fn from(mode: KernelMode) -> Self {
        match mode {
            KernelMode::Auto => Self::Auto,
            KernelMode::Off => Self::Off,
            KernelMode::Verify => Self::Verify,
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

/// How noise levels are sampled for flow matching, by diffusers' names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WeightingScheme {
    /// Uniformly.
    Uniform,
    /// The log-odds are normally distributed: more from the middle.
    LogitNormal,
    /// More from the middle, but some at both ends: a density of 2 − 7.7 · (level − ½)².
    InvertedParabola,
    /// Uniformly, then shifted towards noise by `flow_shift`.
    Shift,
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
        processes as u64 * u64::from(self.batches())
    }

    /// Samples per step of this many processes.
    pub(crate) fn samples_in_step(&self, processes: usize) -> u64 {
        self.batches_in_step(processes) * u64::from(self.batch())
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
