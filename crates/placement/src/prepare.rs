//! One call that makes a model, its optimizer, its data and its schedule ready for
//! the device: the counterpart of Accelerate's `prepare`, with nothing moved behind
//! anybody's back.
//!
//! What it does is in [`Preparation`], to be printed before training. What it does not
//! do: wrap the model, replace the optimizer, change the batch size, or touch the
//! schedule. The order matters on unified memory: the model first, then the
//! optimizer's state beside it, and no batch before the first step asks for one.

use std::fmt;

use serde::Serialize;
use tch::Tensor;

use crate::batch::Batch;
use crate::bytes::Bytes;
use crate::loader::{LoadError, Loaded, Loader, Source};
use crate::placer::{ModuleSummary, PlaceError, Placer};

/// Something with named tensors that must be on the device.
pub trait Parameters {
    /// Every parameter and buffer by its name, in a fixed order. Tied weights may come
    /// twice.
    fn parameters(&mut self) -> Vec<(String, &mut Tensor)>;
}

/// Something that updates parameters.
pub trait OptimizerState {
    /// The parameters it updates, by the names that its messages use.
    fn updates(&self) -> Vec<(String, Tensor)>;

    /// Its own tensors (moments, step counts), by name; empty before the first step.
    fn state(&mut self) -> Vec<(String, &mut Tensor)>;
}

/// Why something is not ready.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrepareError {
    /// A tensor did not arrive.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// The optimizer would update a tensor that the model does not use.
    #[error(
        "the optimizer updates `{parameter}`, which is no parameter of the model any more: it was \
         made from a copy. Make the optimizer from the model's own tensors"
    )]
    ForeignParameter {
        /// The optimizer's name for it.
        parameter: String,
    },
    /// The optimizer has nothing to do.
    #[error("the optimizer updates no parameter at all: nothing would be trained")]
    NothingToTrain,
}

/// Everything ready, and the list of what was done.
pub struct Prepared<M, O, S: Source, C> {
    /// The model, its tensors on the device.
    pub model: M,
    /// The optimizer, its state on the device.
    pub optimizer: O,
    /// The loader; its batches arrive on the device through the placer.
    pub batches: PlacedLoader<S>,
    /// The schedule, as it was.
    pub scheduler: C,
    /// What was done.
    pub preparation: Preparation,
}

/// What [`prepare`] did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Preparation {
    /// The device everything is on.
    pub device: String,
    /// Tensors of the model, and their bytes.
    pub model: Moved,
    /// Tensors of the optimizer's state, and their bytes.
    pub optimizer: Moved,
    /// Parameters that will be trained.
    pub trained: usize,
    /// Parameters that had to stay on the host, if the policy allowed it.
    pub on_host: usize,
}

/// A number of tensors and their size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Moved {
    /// Tensors.
    pub tensors: usize,
    /// Their bytes, tied ones counted once.
    pub bytes: Bytes,
}

impl From<ModuleSummary> for Moved {
    fn from(summary: ModuleSummary) -> Self {
        Self {
            tensors: summary.tensors,
            bytes: summary.bytes,
        }
    }
}

impl fmt::Display for Preparation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            device,
            model,
            optimizer,
            trained,
            on_host,
        } = self;
        writeln!(
            formatter,
            "model      {} tensors, {} on {device}",
            model.tensors, model.bytes
        )?;
        writeln!(formatter, "trained    {trained} of them")?;
        writeln!(
            formatter,
            "optimizer  {} tensors, {} on {device}",
            optimizer.tensors, optimizer.bytes
        )?;
        writeln!(
            formatter,
            "batches    move to {device} when they are asked for"
        )?;
        if *on_host > 0 {
            writeln!(
                formatter,
                "on the CPU {on_host} tensors: see the placement report"
            )?;
        }
        Ok(())
    }
}

/// Makes everything ready. The model's tensors keep their identity, so an optimizer
/// that was made from them before still updates the right ones; that is checked.
///
/// # Errors
/// [`PrepareError`]. What was moved before the error stays moved.
pub fn prepare<M: Parameters, O: OptimizerState, S: Source, C>(
    placer: &mut Placer,
    mut model: M,
    mut optimizer: O,
    loader: Loader<S>,
    scheduler: C,
) -> Result<Prepared<M, O, S, C>, PrepareError> {
    let placed = placer.module(model.parameters(), None)?;
    let trained = check_optimizer(&mut model, &optimizer)?;
    let state = placer.module(optimizer.state(), None)?;
    let preparation = Preparation {
        device: crate::torch_transport::device_name(placer.device()),
        model: placed.into(),
        optimizer: state.into(),
        trained,
        on_host: placed.on_host + state.on_host,
    };
    Ok(Prepared {
        model,
        optimizer,
        batches: PlacedLoader { loader },
        scheduler,
        preparation,
    })
}

/// Every tensor of the optimizer must be one of the model's: same memory on the same
/// device, after the move.
fn check_optimizer<M: Parameters, O: OptimizerState>(
    model: &mut M,
    optimizer: &O,
) -> Result<usize, PrepareError> {
    let of_model: Vec<Tensor> = model
        .parameters()
        .into_iter()
        .map(|(_, tensor)| tensor.shallow_clone())
        .collect();
    let updates = optimizer.updates();
    if updates.is_empty() {
        return Err(PrepareError::NothingToTrain);
    }
    for (name, tensor) in &updates {
        let same = |other: &Tensor| {
            other.device() == tensor.device() && other.data_ptr() == tensor.data_ptr()
        };
        if !of_model.iter().any(same) {
            return Err(PrepareError::ForeignParameter {
                parameter: name.clone(),
            });
        }
    }
    Ok(updates.len())
}

/// A loader whose batches go through the placer.
pub struct PlacedLoader<S: Source> {
    /// The loader itself, for its state.
    pub loader: Loader<S>,
}

/// Why there is no batch on the device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BatchError {
    /// It could not be made.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// It could not be moved.
    #[error(transparent)]
    Place(#[from] PlaceError),
}

impl<S: Source> PlacedLoader<S> {
    /// The next batch, on the placer's device.
    ///
    /// # Errors
    /// [`BatchError`].
    pub fn next_on(&mut self, placer: &mut Placer) -> Result<Loaded<S::Batch>, BatchError>
    where
        S::Batch: Batch,
    {
        // The loader has no end; an end would be a batch that cannot be made.
        let loaded = self.loader.next().ok_or(LoadError::TooFewSamples {
            samples: 0,
            batch_size: self.loader.state().batch_size,
        })??;
        let batch = placer.batch(loaded.batch)?;
        Ok(Loaded {
            epoch: loaded.epoch,
            number: loaded.number,
            batch,
        })
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;
    use crate::loader::{BoxError, LoaderOptions};
    use crate::policy::Policy;

    struct Linear {
        weight: Tensor,
    }

    impl Parameters for Linear {
        fn parameters(&mut self) -> Vec<(String, &mut Tensor)> {
            vec![("weight".into(), &mut self.weight)]
        }
    }

    struct Momentum {
        weights: Vec<Tensor>,
        moments: Vec<Tensor>,
    }

    impl OptimizerState for Momentum {
        fn updates(&self) -> Vec<(String, Tensor)> {
            self.weights
                .iter()
                .map(|weight| ("weight".into(), weight.shallow_clone()))
                .collect()
        }

        fn state(&mut self) -> Vec<(String, &mut Tensor)> {
            self.moments
                .iter_mut()
                .map(|moment| ("moment".into(), moment))
                .collect()
        }
    }

    struct Ones;

    impl Source for Ones {
        type Sample = f32;
        type Batch = Tensor;

        fn len(&self) -> usize {
            4
        }

        fn sample(&self, _: usize, _: u64) -> Result<f32, BoxError> {
            Ok(1.0)
        }

        fn collate(&self, samples: Vec<f32>) -> Result<Tensor, BoxError> {
            Ok(Tensor::f_from_slice(&samples)?)
        }
    }

    fn weight() -> Tensor {
        Tensor::ones([2, 3], (Kind::Float, Device::Cpu))
            .tr()
            .set_requires_grad(true)
    }

    fn ready(
        model: Linear,
        weights: Vec<Tensor>,
    ) -> Result<Prepared<Linear, Momentum, Ones, u8>, PrepareError> {
        let mut placer = Placer::new(Device::Cpu, Policy::default()).unwrap();
        let moments = weights.iter().map(Tensor::zeros_like).collect();
        let loader = Loader::new(
            Ones,
            LoaderOptions {
                batch_size: 2,
                ..Default::default()
            },
        );
        prepare(
            &mut placer,
            model,
            Momentum { weights, moments },
            loader.unwrap(),
            7,
        )
    }

    #[test]
    fn everything_comes_back_ready_and_the_schedule_untouched() {
        let model = Linear { weight: weight() };
        let held = model.weight.shallow_clone();
        let mut prepared = ready(model, vec![held]).unwrap();
        assert!(prepared.model.weight.is_contiguous());
        assert!(
            prepared.optimizer.weights[0].is_contiguous(),
            "the optimizer sees the move"
        );
        assert_eq!((prepared.scheduler, prepared.preparation.trained), (7, 1));
        let mut placer = Placer::new(Device::Cpu, Policy::default()).unwrap();
        assert_eq!(
            prepared.batches.next_on(&mut placer).unwrap().batch.size(),
            [2]
        );
        assert!(
            prepared
                .preparation
                .to_string()
                .starts_with("model      1 tensors, 24 B on cpu")
        );
    }

    #[test]
    fn an_optimizer_made_from_a_copy_is_refused() {
        let model = Linear { weight: weight() };
        let copy = model.weight.detach().copy();
        let error = ready(model, vec![copy]).err().unwrap();
        assert!(
            matches!(error, PrepareError::ForeignParameter { parameter } if parameter == "weight")
        );
    }

    #[test]
    fn an_optimizer_of_nothing_is_refused() {
        let error = ready(Linear { weight: weight() }, vec![]).err().unwrap();
        assert!(matches!(error, PrepareError::NothingToTrain));
    }
}
