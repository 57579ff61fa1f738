//! Estimates the memory of a training step before the first one.
//!
//! What is already in memory (weights, moments, averages) is counted; what a pass adds is measured: the model is built of
//! fake tensors, which have shapes and no memory, and goes forward and back with a batch of the run's largest size. So it
//! is known for every model, device and setting, without a word about any of them. The summary of every run shows how far
//! off the estimate was, if the allocator keeps statistics.
//!
//! ```text
//! weights │ optimizer │ averages │ gradients so far │ activations │ logits     end of forward
//! weights │ optimizer │ averages │ all gradients                               end of backward
//! ```

use models::Parameters;
use platform::Bytes;
use serde::Serialize;
use tch::{Device, Tensor};
use torch_ext::fake::{self, PassMemory};

use crate::Error;
use crate::config::Config;
use crate::optim::Optimizer;

/// Bytes of an fp32 element.
const FP32_BYTES: u64 = 4;

/// What a task needs besides gradients, moments and averages. All in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Footprint {
    /// The whole model, trained or not.
    pub weights: u64,
    /// What a forward pass keeps for its backward pass.
    pub activations: u64,
    /// The peak of what the loss, or the backward pass of one block, needs in addition.
    pub logits: u64,
}

impl Footprint {
    /// That of a model of `weights` bytes whose passes need so much.
    pub(crate) fn new(weights: u64, pass: PassMemory) -> Self {
        Self {
            weights,
            activations: pass.kept,
            logits: pass.temporary,
        }
    }
}

/// Measures a pass on `device`, with fake tensors. If that is not possible, the run goes on with a warning, as if a pass needed
/// nothing.
pub(crate) fn measured<M>(
    device: Device,
    build: impl FnOnce() -> Result<M, Error>,
    loss: impl FnOnce(&M) -> Result<Tensor, Error>,
) -> PassMemory {
    fake::pass(device, build, loss).unwrap_or_else(|error| {
        tracing::warn!("the memory of a step is not known: {error}");
        PassMemory::default()
    })
}

/// The peak of a step of `config` before the model is loaded, if this was measured of a pass.
///
/// # Errors
/// If the optimizer does not fit the parameters.
pub(crate) fn peak_of(
    config: &Config,
    pass: PassMemory,
    parameters: &Parameters,
) -> Result<Bytes, Error> {
    let moments = Optimizer::from_config(config, parameters, &[])?.all_bytes(parameters);
    let footprint = Footprint::new(pass.weights, pass);
    let estimate = Estimate::new(config, footprint, parameters, moments, None);
    Ok(Bytes(estimate.peak))
}

/// Estimated memory of a run's tensors, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Estimate {
    /// The model's weights.
    pub weights: u64,
    /// The optimizer's moments.
    pub optimizer: u64,
    /// Averaged weights.
    pub averages: u64,
    /// Gradients of all trained parameters.
    pub gradients: u64,
    /// What a forward pass keeps for its backward pass.
    pub activations: u64,
    /// What the loss needs in addition.
    pub logits: u64,
    /// Peak of the total.
    pub peak: u64,
    /// Bytes that could still be allocated before the first step, if known.
    pub free: Option<u64>,
}

/// The accuracy of an estimate.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct EstimateError {
    /// Peak bytes of tensors during a step.
    pub measured: u64,
    /// `estimated / measured - 1`.
    pub relative: f64,
}

impl Estimate {
    /// For a task whose model, `optimizer` bytes of moments and averages are already in memory; a step of the optimizer
    /// needs `update` bytes more, and while it is evaluated `aside` bytes of weights wait.
    pub(crate) fn new(
        config: &Config,
        footprint: Footprint,
        parameters: &Parameters,
        (optimizer, update, aside): (u64, u64, u64),
        free: Option<u64>,
    ) -> Self {
        let trained = parameters.count() * FP32_BYTES;
        let averages = u64::from(config.train.ema_decay.is_some()) * trained;
        let several = config.train.batches() > 1;
        // Gradients of earlier passes exist during the next forward pass.
        let so_far = if several { trained } else { 0 };
        let Footprint {
            weights,
            activations,
            logits,
        } = footprint;
        let resting = weights + optimizer + averages;
        let forward = so_far + activations + logits;
        Self {
            weights,
            optimizer,
            averages,
            gradients: trained,
            activations,
            logits,
            peak: resting
                + forward
                    .max(so_far + trained)
                    .max(trained + update)
                    .max(aside + logits),
            free,
        }
    }

    /// What the steps still have to allocate.
    pub fn to_come(&self) -> u64 {
        self.peak - self.weights - self.optimizer - self.averages
    }

    /// Whether it fits into the free memory; true if that is unknown.
    pub fn fits(&self) -> bool {
        self.free.is_none_or(|free| self.to_come() <= free)
    }

    /// The estimate compared with a measurement.
    pub fn error(&self, measured: u64) -> EstimateError {
        EstimateError {
            measured,
            relative: self.peak as f64 / measured.max(1) as f64 - 1.0,
        }
    }

    /// One line: `1.12 GiB expected (weights 513 MiB, …)`.
    pub fn describe(&self) -> String {
        let parts = [
            ("weights", self.weights),
            ("optimizer", self.optimizer),
            ("averages", self.averages),
            ("gradients", self.gradients),
            ("activations", self.activations),
            ("logits", self.logits),
        ];
        let parts: Vec<String> = parts
            .iter()
            .filter(|(_, size)| *size > 0)
            .map(|(name, size)| format!("{name} {}", Bytes(*size)))
            .collect();
        let free = self
            .free
            .map_or(String::new(), |free| format!("; {} are free", Bytes(free)));
        format!("{} expected ({}){free}", Bytes(self.peak), parts.join(", "))
    }

    /// What to change if it does not fit, most effective first.
    pub fn advice(&self, config: &Config) -> Vec<&'static str> {
        let train = &config.train;
        let mut advice: Vec<(u64, &'static str)> = Vec::new();
        if config.model.name_or_path.is_some() && !train.gradient_checkpointing {
            advice.push((
                self.activations,
                "`train.gradient_checkpointing: true` keeps one tensor of each block",
            ));
        }
        if train.batch() > 1 && !train.has_auto_batch() {
            advice.push((
                self.activations / 2,
                "a smaller `train.per_device_train_batch_size` with as much more \
                 `train.gradient_accumulation_steps` learns the same",
            ));
        } else {
            let shorter = match config.is_video() {
                true => "a smaller `data.resolution` or `data.num_frames` makes shorter sequences",
                false => "a smaller `data.block_size` makes shorter sequences",
            };
            advice.push((self.activations / 2, shorter));
        }
        if config.adapter.is_some() && config.model.quantization.is_none() {
            advice.push((
                self.weights / 2,
                "`model.quantization: nf4` keeps the frozen weights in four bits",
            ));
        }
        if config.adapter.is_some() && config.model.offload_options().is_none() {
            advice.push((
                self.weights / 4 * 3,
                "`model.offload: all` streams the frozen blocks through a small ring",
            ));
        }
        if config.adapter.is_none() && config.model.name_or_path.is_some() {
            advice.push((
                self.weights + self.gradients,
                "an `adapter:` trains a small part of the model",
            ));
        }
        if train.optim.is_plain_adamw() {
            advice.push((
                self.optimizer / 4 * 3,
                "`train.optim: adamw_8bit` keeps the optimizer in a quarter",
            ));
        }
        advice.sort_by_key(|(saved, _)| std::cmp::Reverse(*saved));
        advice.into_iter().map(|(_, text)| text).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn estimate(free: Option<u64>) -> Estimate {
        let footprint = Footprint {
            weights: 100,
            activations: 50,
            logits: 25,
        };
        let config = Config::default();
        Estimate::new(&config, footprint, &Parameters::default(), (10, 0, 0), free)
    }

    #[test]
    fn the_peak_is_all_that_is_there_at_once() {
        let estimate = estimate(None);
        assert_eq!((estimate.peak, estimate.to_come()), (185, 75));
        assert_eq!(estimate.error(370).relative, -0.5);
    }

    #[test]
    fn weights_that_wait_while_others_are_evaluated_have_to_fit() {
        let footprint = Footprint {
            weights: 100,
            activations: 50,
            logits: 25,
        };
        let (config, none) = (Config::default(), Parameters::default());
        let peak = |aside| Estimate::new(&config, footprint, &none, (10, 0, aside), None).peak;
        assert_eq!((peak(50), peak(60)), (185, 195));
    }

    #[test]
    fn only_what_is_still_to_come_has_to_fit() {
        assert!(estimate(Some(75)).fits());
        assert!(!estimate(Some(74)).fits());
        assert!(estimate(None).fits());
    }

    #[test]
    fn advice_names_what_saves_most_first_and_nothing_that_is_on_already() {
        let mut config = Config::default();
        config.model.name_or_path = Some("model".into());
        let mut estimate = estimate(Some(0));
        estimate.activations = 1000;
        let advice = estimate.advice(&config);
        assert!(advice[0].contains("gradient_checkpointing"), "{advice:?}");
        config.train.gradient_checkpointing = true;
        let advice = estimate.advice(&config);
        assert!(!advice.iter().any(|text| text.contains("checkpointing")));
    }
}
