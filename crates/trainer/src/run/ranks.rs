//! Collective operations of a run: the sum of all gradients in each step, and decisions that all ranks share, so that a
//! step is skipped, split, rolled back or the last one on all ranks or on none.

use std::collections::BTreeMap;
use std::path::Path;

use placement::Placer;
use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

use super::{Passes, Run, StepPhase};
use crate::Error;
use crate::checkpoint::{self, Checkpoint, State, Trained};
use crate::config::{self, Config, ConfigError};
use crate::device;
use crate::events::Evaluation;
use crate::optim::Gradients;
use crate::pass_size::PassSize;
use crate::ranks::Ranks;
use crate::resume::Resumed;
use crate::stop::Stop;
use crate::summary::Ending;
use crate::task::{Measures, Share, Task};

/// Index of the first out-of-memory flag among the numbers that ranks sum in each step.
const SHORT: usize = 6;

/// Requests to the run that all ranks know of.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Asked {
    stop: bool,
    /// Whether it stops because one of its ranks leaves.
    leave: bool,
    pub(super) sample: bool,
    pub(super) save: bool,
}

/// What must be equal on all ranks before they read anything: version and config.
pub(super) fn configuration(config: &Config) -> Result<Value, ConfigError> {
    let mut leaves = config.leaves()?;
    // What a path names is compared itself; where a run goes on from is rank 0's to say.
    leaves.retain(|name, _| !config::key(name).is_some_and(|key| key.is_per_machine()));
    let sources = leaves.get_mut("data.mixture").and_then(Value::as_array_mut);
    for source in sources.into_iter().flatten() {
        // As `data.path`.
        source["path"] = Value::Null;
    }
    Ok(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "libtorch": device::LIBTORCH_VERSION,
        "config": leaves,
    }))
}

/// What must be equal once model and data are loaded.
pub(super) fn foundation(task: &dyn Task, identity: &Value) -> Result<Value, Error> {
    let parameters = task.parameters().iter();
    let shapes = parameters
        .map(|parameter| (parameter.name.clone(), json!(parameter.tensor.size())))
        .collect::<serde_json::Map<_, _>>();
    Ok(json!({
        "model": identity,
        "data": task.data_state()?,
        "trained": shapes,
    }))
}

/// The checkpoint to resume from: that of the config or, if `torchrun` has restarted the ranks, the newest one of their run.
pub(super) fn resumed(ranks: &Ranks, config: &Config) -> Result<Option<Resumed>, Error> {
    match ranks.folder_before_restart() {
        Some(folder) if !checkpoint::list(&folder.join("checkpoints"))?.is_empty() => {
            let mut again = config.clone();
            again.train.resume_from_checkpoint = Some(folder.display().to_string());
            Resumed::open(&again).map_err(|error| match error {
                Error::Resume(reason) => Error::Resume(format!(
                    "{reason}\nthis job of `torchrun` has begun that run: for a new one, give it another name \
                     (`--rdzv-id`)"
                )),
                other => other,
            })
        }
        _ => {
            ranks.remove_folder_without_results()?;
            Resumed::open(config)
        }
    }
}

/// Copies weights, moments and averages from rank 0 to all ranks, bit for bit. Initial weights from one seed may differ in
/// the last digit between CPUs, and only rank 0 reads checkpoints; `state` is that of the checkpoint, if there is one.
pub(super) fn share_trained(
    ranks: &mut Ranks,
    state: Option<&State>,
    trained: &mut Trained<'_>,
    placer: &mut Placer,
) -> Result<(), Error> {
    if ranks.size() == 1 {
        return Ok(());
    }
    let _no_grad = tch::no_grad_guard();
    for (name, tensor) in trained.tensors() {
        let mut tensor = tensor.f_detach()?;
        let mut host = on_host(placer, &name, &tensor)?;
        ranks.broadcast_tensor(&mut host)?;
        if !ranks.is_first() {
            let arrived = placer.weight(&name, &host, None)?;
            tensor.f_copy_(&arrived)?;
        }
    }
    if let Some(state) = state {
        trained.optimizer.set_steps(&state.steps_of_turns())?;
    }
    Ok(())
}

/// The config of a run that goes on with passes of the size so far, if memory decided it; only rank 0 knows the checkpoint.
pub(super) fn with_passes_so_far(
    ranks: &mut Ranks,
    config: &Config,
    resumed: Option<&Resumed>,
) -> Result<Config, Error> {
    if !config.train.has_auto_batch() {
        return Ok(config.clone());
    }
    let so_far = ranks.broadcast_value(|| Ok(resumed.and_then(Resumed::pass_size)))?;
    Ok(config.with_passes_so_far(so_far))
}

/// How many samples are in a pass of each rank, where memory decides it: as many as all have room for, so that one number says it
/// in a checkpoint.
pub(super) fn pass_size(ranks: &mut Ranks, task: &dyn Task) -> Result<Option<PassSize>, Error> {
    let Some(own) = task.pass_size() else {
        return Ok(None);
    };
    let mut sizes = vec![0.0; ranks.size()];
    sizes[ranks.rank()] = f64::from(own.rows);
    let sizes = ranks.sum_numbers(&sizes)?.into_iter();
    let least = sizes.fold(f64::INFINITY, f64::min);
    Ok(Some(own.clone().at_most(least as u32)))
}

/// Overlaps sums of gradients with the backward pass, if all ranks can.
pub(super) fn overlap_sums(
    ranks: &mut Ranks,
    config: &Config,
    task: &dyn Task,
) -> Result<(), Error> {
    // Groups that are trained in turns would need a buffer each.
    if !task.turns().is_empty() {
        return Ok(());
    }
    // Streamed blocks are copied in and recomputed during the backward pass. Overlapping sums with that was not tested, so
    // gradients are summed afterwards.
    let is_possible = task.streamed().is_none();
    let kind = config.train.reduce_dtype.kind();
    ranks.overlap_sums(task.parameters(), kind, is_possible)
}

/// A copy in host memory, without gaps.
pub(super) fn on_host(placer: &mut Placer, name: &str, tensor: &Tensor) -> Result<Tensor, Error> {
    match tensor.device() {
        Device::Cpu => {
            let mut copy = Tensor::f_empty(tensor.size(), (tensor.kind(), Device::Cpu))?;
            copy.f_copy_(tensor)?;
            Ok(copy)
        }
        _ => Ok(placer.to_host(name, tensor)?),
    }
}

impl Run<'_> {
    /// Whether to stop after this step; with several ranks, once all of them know of the request.
    pub(super) fn is_to_stop(&self, stop: &Stop) -> bool {
        match self.ranks.size() {
            1 => stop.is_requested(),
            _ => self.asked.stop,
        }
    }

    /// Under `torchrun`, an error on ranks that stopped because another one leaves: `torchrun` restarts ranks that fail,
    /// and considers a run complete if they succeed.
    pub(super) fn expect_to_stay(&self, ending: Ending, stop: &Stop) -> Result<(), Error> {
        let is_left = ending == Ending::Stopped && self.asked.leave && !stop.is_requested();
        match is_left && self.ranks.is_started_again() {
            false => Ok(()),
            true => Err(Error::Ranks(
                "another rank was asked to stop (SIGTERM): all have saved, and this one ends for `torchrun` to \
                 start it again"
                    .into(),
            )),
        }
    }

    /// Records requests since the last step; several ranks exchange them with each step.
    pub(super) fn note_asked(&mut self, stop: &Stop) {
        if self.ranks.size() == 1 {
            self.asked.sample |= stop.take_sample();
            self.asked.save |= stop.take_save();
        }
    }

    /// Combines the passes of a step on all ranks: gradients and loss are sums, since every rank has weighted its own by
    /// its share.
    ///
    /// # Errors
    /// Out of memory on all ranks if one ran out of memory; if a rank is gone.
    pub(super) fn of_all_ranks(
        &mut self,
        own: Result<Passes, Error>,
        stop: &Stop,
    ) -> Result<Passes, Error> {
        let (rank, size) = (self.ranks.rank(), self.ranks.size());
        if size == 1 {
            return own;
        }
        let overlaps = self.ranks.overlaps_sums();
        let own = own.and_then(|passes| {
            if overlaps {
                return Ok((passes, None));
            }
            let flat = flat(&passes.gradients, self.config.train.reduce_dtype.kind())?;
            let flat = match self.ranks.sums_on_device() {
                true => flat,
                false => on_host(&mut self.placer, "gradients", &flat)?,
            };
            Ok((passes, Some(flat)))
        });
        if let Err(error) = &own
            && !error.is_out_of_memory()
        {
            return own.map(|(passes, _)| passes);
        }
        // Also by a rank that ran out of memory: the others wait for the sums that have started.
        let finished = {
            let gradients = own.as_ref().ok();
            let gradients = gradients.map(|(passes, _)| passes.gradients.tensors());
            self.ranks.finish_sums(gradients)
        };
        let (own, is_complete) = match finished {
            Ok(is_complete) => (own, is_complete),
            Err(error) if error.is_out_of_memory() => (Err(error), true),
            Err(error) => return Err(error),
        };
        // The loss; whether to stop, to sample, to save and to leave; whether a sum started too early; and who ran out
        // of memory.
        let flag = |is_set: bool| f64::from(u8::from(is_set));
        let measured = SHORT + size;
        let sums = self.task.measures().map_or(0, Measures::count);
        let mut told = vec![0.0; measured + sums];
        told[1] = flag(stop.is_requested());
        told[2] = flag(stop.take_sample());
        told[3] = flag(stop.take_save());
        told[4] = flag(stop.is_to_leave());
        told[5] = flag(!is_complete);
        if let Ok((passes, _)) = &own {
            told[0] = passes.loss;
            told[measured..].copy_from_slice(&passes.measured);
        }
        told[SHORT + rank] = flag(own.is_err());
        let mut told = self.ranks.sum_numbers(&told)?;
        self.asked.stop = told[1] > 0.0;
        self.asked.leave = told[4] > 0.0;
        self.asked.sample |= told[2] > 0.0;
        self.asked.save |= told[3] > 0.0;
        let short = told[SHORT..measured].iter().position(|short| *short > 0.0);
        let (mut passes, flat) = match (own, short) {
            (Ok(own), None) => own,
            (Ok(_), Some(other)) => {
                let message = format!("{} ran out of memory", self.ranks.name_of(other));
                return Err(torch_ext::Error::OutOfMemory { message }.into());
            }
            (Err(error), _) => return Err(error),
        };
        match flat {
            Some(flat) => {
                let sum = self.ranks.sum(flat)?;
                let sum = match self.ranks.sums_on_device() {
                    true => sum,
                    false => self.placer.batch(sum)?,
                };
                passes.gradients.fill(&sum)?;
            }
            None => {
                // Once more, by all, where one of them has started to sum a gradient before it was complete.
                if told[5] > 0.0 {
                    self.ranks.finish_sums(Some(passes.gradients.tensors()))?;
                }
                let sums = self.ranks.overlapped_sums();
                let sums = sums.ok_or_else(|| Error::Internal("no sums of gradients".into()))?;
                passes.gradients.fill(sums)?;
            }
        }
        passes.loss = told[0];
        passes.measured = told.split_off(measured);
        // The same everywhere, also where CPUs round in different ways.
        let norm = f64::try_from(&passes.gradients.norm()?.f_to_kind(Kind::Double)?)?;
        let norm = self.ranks.broadcast_numbers(&[norm])?;
        passes.norm = norm.first().copied().unwrap_or(f64::NAN);
        Ok(passes)
    }

    /// Evaluates, each rank its share. All ranks get the same numbers.
    pub(super) fn evaluate_by_all(&mut self, limit: Option<u64>) -> Result<Evaluation, Error> {
        let share = Share::of(self.ranks.rank(), self.ranks.size());
        let mut sums = self.task.evaluate(limit, share, &mut self.placer)?;
        if self.ranks.size() > 1 {
            let all = self.ranks.sum_numbers(&sums.to_numbers())?;
            sums = sums.with_numbers(&all);
        }
        let measures = match self.task.measures() {
            Some(measures) => measures.named(&sums.measures),
            None => BTreeMap::new(),
        };
        Ok(Evaluation {
            measures,
            ..sums.mean()
        })
    }

    /// Restores the checkpoint in `path`, which rank 0 reads.
    pub(super) fn restore(&mut self, path: &Path) -> Result<State, Error> {
        self.enter(StepPhase::Update)?;
        let mut trained = Trained {
            parameters: self.task.parameters(),
            optimizer: &mut self.optimizer,
            ema: self.ema.as_ref(),
        };
        let state = self.ranks.broadcast_value(|| {
            Checkpoint::open(path)?.restore(Trained {
                parameters: trained.parameters,
                optimizer: trained.optimizer,
                ema: trained.ema,
            })
        })?;
        share_trained(self.ranks, Some(&state), &mut trained, &mut self.placer)?;
        Ok(state)
    }
}

/// All gradients, flattened and concatenated, as one data type.
fn flat(gradients: &Gradients, kind: Kind) -> Result<Tensor, Error> {
    let rows = gradients
        .tensors()
        .iter()
        .map(|gradient| Ok(gradient.f_detach()?.f_reshape([-1])?.f_to_kind(kind)?));
    Ok(Tensor::f_cat(&rows.collect::<Result<Vec<_>, Error>>()?, 0)?)
}
