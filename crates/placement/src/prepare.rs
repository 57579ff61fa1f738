//! One call that makes a model, its optimizer, its data and its schedule ready for
//! the device: the counterpart of Accelerate's `prepare`, with nothing moved behind
//! anybody's back.
//!
//! What it does is in [`Preparation`], to be printed before training. What it does not
//! do: wrap the model, replace the optimizer, change the batch size, or touch the
//! schedule. The order matters on unified memory: the model first, then its gradients
//! and the optimizer's state beside it, and no batch before the first step asks for
//! one. An optimizer that does not belong to the model is refused before anything moves.

use std::collections::{HashMap, HashSet};
use std::fmt;

use serde::Serialize;
use tch::{Device, Tensor};

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
    /// What begins with the name of a parameter and a dot goes where that parameter is;
    /// the rest goes to the device.
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
    /// The optimizer would update a tensor twice in each step.
    #[error(
        "the optimizer updates one tensor twice, as `{one}` and as `{other}`: tied weights belong in \
         it once"
    )]
    UpdatedTwice {
        /// The optimizer's first name for it.
        one: String,
        /// And its second.
        other: String,
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
    /// Gradients that the model had already, and their bytes.
    pub gradients: Moved,
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
            gradients,
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
        if gradients.tensors > 0 {
            let (count, bytes) = (gradients.tensors, gradients.bytes);
            writeln!(formatter, "gradients  {count} tensors, {bytes} beside them")?;
        }
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
/// that was made from them before still updates the right ones; that is checked before
/// anything moves, and again after it. Gradients that are there move with their weights.
///
/// What is ready already stays as it is: preparing twice changes nothing.
///
/// # Errors
/// [`PrepareError`]. What was moved before an error of placement stays moved.
pub fn prepare<M: Parameters, O: OptimizerState, S: Source, C>(
    placer: &mut Placer,
    mut model: M,
    mut optimizer: O,
    loader: Loader<S>,
    scheduler: C,
) -> Result<Prepared<M, O, S, C>, PrepareError> {
    check_optimizer(&mut model, &optimizer)?;
    let placed = placer.module(model.parameters(), None)?;
    // An alias of a weight (`detach`) was the same memory until now.
    let trained = check_optimizer(&mut model, &optimizer)?;
    let gradients = follow(placer, &mut model)?;
    let state = place_state(placer, &mut optimizer)?;
    let preparation = Preparation {
        device: crate::torch_transport::device_name(placer.device()),
        model: placed.into(),
        gradients: gradients.into(),
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

/// Moves gradients to where their weights are: backward adds to what is there.
fn follow<M: Parameters>(placer: &mut Placer, model: &mut M) -> Result<ModuleSummary, PlaceError> {
    let mut gradients: Vec<(String, Tensor)> = Vec::new();
    for (name, tensor) in model.parameters() {
        let gradient = tensor.grad();
        let here = placer.device() == tensor.device();
        if gradient.defined() && gradient.device() != tensor.device() && here {
            gradients.push((format!("{name}.grad"), gradient));
        }
    }
    placer.module(
        gradients
            .iter_mut()
            .map(|(name, gradient)| (name.as_str(), gradient)),
        None,
    )
}

/// Moves the optimizer's state, but for that of weights that had to stay on the host.
fn place_state<O: OptimizerState>(
    placer: &mut Placer,
    optimizer: &mut O,
) -> Result<ModuleSummary, PlaceError> {
    let updates = optimizer.updates();
    let homes: HashMap<&str, Device> = updates
        .iter()
        .map(|(name, tensor)| (name.as_str(), tensor.device()))
        .collect();
    let device = placer.device();
    let home_of = |state: &str| {
        let ends = state.match_indices('.').map(|(end, _)| end);
        // The longest name is the nearest owner.
        ends.rev()
            .find_map(|end| homes.get(&state[..end]))
            .copied()
            .unwrap_or(device)
    };
    let state = optimizer.state();
    placer.module(
        state
            .into_iter()
            .filter(|(name, _)| home_of(name) == device),
        None,
    )
}

/// Every tensor of the optimizer must be one of the model's, the same memory on the same
/// device, and in it once; how many there are.
fn check_optimizer<M: Parameters, O: OptimizerState>(
    model: &mut M,
    optimizer: &O,
) -> Result<usize, PrepareError> {
    // Tensors of no size have no memory to tell them apart by, and nothing to train.
    let place = |tensor: &Tensor| {
        (tensor.numel() > 0).then(|| (tensor.device(), tensor.data_ptr() as usize))
    };
    let of_model: HashSet<_> = model
        .parameters()
        .into_iter()
        .map(|(_, tensor)| place(tensor))
        .collect();
    let updates = optimizer.updates();
    if updates.is_empty() {
        return Err(PrepareError::NothingToTrain);
    }
    let mut seen: HashMap<_, &str> = HashMap::new();
    for (name, tensor) in &updates {
        let place = place(tensor);
        if !of_model.contains(&place) {
            return Err(PrepareError::ForeignParameter {
                parameter: name.clone(),
            });
        }
        if let Some(one) = place.and_then(|place| seen.insert(place, name)) {
            return Err(PrepareError::UpdatedTwice {
                one: one.to_owned(),
                other: name.clone(),
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
    fn tied_weights_that_an_optimizer_has_twice_are_refused() {
        let model = Linear { weight: weight() };
        let twice = vec![model.weight.shallow_clone(), model.weight.shallow_clone()];
        let error = ready(model, twice).err().unwrap();
        assert!(
            matches!(error, PrepareError::UpdatedTwice { .. }),
            "{error}"
        );
    }

    #[test]
    fn a_foreign_optimizer_is_refused_before_anything_moves() {
        let mut model = Linear { weight: weight() };
        let before = model.weight.data_ptr();
        let copy = model.weight.detach().copy();
        let held = model.weight.shallow_clone();
        let error = ready(Linear { weight: held }, vec![copy]).err().unwrap();
        assert!(matches!(error, PrepareError::ForeignParameter { .. }));
        assert_eq!(
            model.parameters()[0].1.data_ptr(),
            before,
            "gaps not closed"
        );
    }

    #[test]
    fn preparing_twice_changes_nothing() {
        let model = Linear { weight: weight() };
        let held = model.weight.shallow_clone();
        let first = ready(model, vec![held]).unwrap();
        let (weight, moment) = (
            first.model.weight.data_ptr(),
            first.optimizer.moments[0].data_ptr(),
        );
        let mut placer = Placer::new(Device::Cpu, Policy::default()).unwrap();
        let mut loader = first.batches.loader;
        loader.next().unwrap().unwrap();
        let again = prepare(&mut placer, first.model, first.optimizer, loader, 7).unwrap();
        assert_eq!(again.model.weight.data_ptr(), weight);
        assert_eq!(again.optimizer.moments[0].data_ptr(), moment);
        assert_eq!(again.preparation, first.preparation);
        assert_eq!(again.batches.loader.state().batches, 1, "the position too");
    }

    #[test]
    fn an_optimizer_of_nothing_is_refused() {
        let error = ready(Linear { weight: weight() }, vec![]).err().unwrap();
        assert!(matches!(error, PrepareError::NothingToTrain));
    }
}
