//! A dry run: everything that a run does before and in its first step, and nothing that
//! it leaves behind.
//!
//! Config, data, model, adapter, optimizer and checkpoint are opened as for training, and
//! one batch goes forward and backward twice: so what would fail after minutes fails
//! now, and time and memory are measured, not guessed. No weight changes, and no run folder is made.

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Serialize;

use crate::Error;
use crate::allocator::Allocator;
use crate::checkpoint::Trained;
use crate::config::Config;
use crate::estimate::Estimate;
use crate::memory_plan::MemoryPlan;
use crate::observer::Observer;
use crate::optim::{Ema, Gradients, Optimizer};
use crate::pass_size::PassSize;
use crate::resume::{Change, Resumed};
use crate::run::restore_reference;
use crate::run_folder::RunFolder;
use crate::setup::{self, Machine};
use crate::summary::{Environment, MemorySummary};
use crate::task::{Batch, Share, Task};
use crate::timetable::Timetable;

/// What a dry run found.
#[derive(Debug, Clone, Serialize)]
pub struct DryRun {
    /// The folder that the run would have, or continues in.
    pub folder: PathBuf,
    /// Where it would run, on what, and what would be trained.
    pub environment: Environment,
    /// Numbers that are trained.
    pub trained_parameters: u64,
    /// The step after which the run would continue.
    pub resumed_at: Option<u64>,
    /// Config keys that would have other values from there on.
    pub changes: Vec<Change>,
    /// Optimizer steps of the whole run.
    pub max_steps: u64,
    /// Loss of the first batch.
    pub loss: f64,
    /// Norm of its gradient.
    pub gradient_norm: f64,
    /// Held-out loss of one sample, if anything is held out.
    pub held_out_loss: Option<f64>,
    /// Units (tokens) in one pass.
    pub units: u64,
    /// Seconds of one forward and backward pass, the second of two.
    pub seconds: f64,
    /// Seconds of the passes of a whole step.
    pub step_seconds: f64,
    /// Bytes that each rank sums with the others in a step, if there are several.
    pub reduced_bytes: u64,
    /// Seconds that the remaining steps would take at that speed; evaluations, samples and
    /// checkpoints come on top.
    pub estimated_seconds: f64,
    /// What was expected of the memory.
    pub memory_estimate: Estimate,
    /// What would live where, if the config asks for a plan.
    pub memory_plan: Option<MemoryPlan>,
    /// What to change if that is more than is available, otherwise empty.
    pub advice: Vec<&'static str>,
    /// Memory, at the peak of it all.
    pub memory: MemorySummary,
}

/// Checks all of what `config` asks for without training.
///
/// # Errors
/// What [`run()`](crate::run()) would end with before its first step is done.
pub fn dry_run(
    config: &Config,
    allocator: &Allocator,
    observer: &mut dyn Observer,
) -> Result<DryRun, Error> {
    let machine = Machine::prepare(config, allocator)?;
    let mut placer = machine.placer()?;
    let resumed = Resumed::open(config)?;
    let so_far = resumed.as_ref().and_then(Resumed::pass_size);
    let config = &config.with_passes_so_far(so_far);
    let mut task = setup::task(config, allocator, &mut placer, observer)?;
    let parameters = task.parameters();
    let turns = task.turns();
    let ranges: Vec<_> = turns.iter().map(|turn| turn.parameters.clone()).collect();
    let mut optimizer = Optimizer::from_config(config, parameters, &ranges)?;
    let ema = Ema::from_config(config, parameters)?;
    let (folder, resumed_at, planned, changes) = match resumed {
        None => {
            let folder = RunFolder::planned(config);
            require_writable(&folder)?;
            (folder, None, None, Vec::new())
        }
        Some(resumed) => {
            resumed.expect_identity(&task.identity()?)?;
            let Resumed {
                folder,
                checkpoint,
                changes,
            } = resumed;
            require_writable(&folder.checkpoints().join("new"))?;
            let state = checkpoint.restore(Trained {
                parameters,
                optimizer: &mut optimizer,
                ema: ema.as_ref(),
            })?;
            task.restore_data(&state.data)?;
            let folder = folder.path().to_owned();
            restore_reference(task.as_mut(), &folder)?;
            (folder, Some(state.step), state.planned, changes)
        }
    };
    let at = resumed_at.map(|step| (step, planned));
    let max_steps = Timetable::new(config, task.as_ref(), 1, at)?.max_steps;

    let memory_estimate = machine.estimate(config, task.as_ref(), &optimizer);
    observer.preparing("two passes over the first batch");
    torch_ext::random::manual_seed(config.seed)?;
    let (mut loss, mut gradient_norm, mut units, mut seconds) = (0.0, 0.0, 0, 0.0);
    for _ in 0..2 {
        let began = Instant::now();
        let turn = task.begin_step(resumed_at.unwrap_or(0), &mut placer)?;
        let batch = placer.batch(first_pass(task.as_mut())?)?;
        let value = task.loss(&batch)?;
        let mut gradients = match turns.get(turn) {
            Some(turn) => Gradients::of(turn.parameters.clone()),
            None => Gradients::default(),
        };
        gradients.accumulate(&value, task.parameters())?;
        loss = f64::try_from(&value)?;
        gradient_norm = f64::try_from(&gradients.norm()?)?;
        units = batch.units;
        seconds = began.elapsed().as_secs_f64();
        if !(loss + gradient_norm).is_finite() {
            return Err(Error::Diverged(format!(
                "the first batch has loss {loss} and gradient norm {gradient_norm}: look at the \
                 model's weights and at the data"
            )));
        }
    }
    let held_out_loss = match task.evaluates() {
        true => Some(
            task.evaluate(Some(1), Share::WHOLE, &mut placer)?
                .mean()
                .loss,
        ),
        false => None,
    };
    let size = PassSize::rows(task.pass_size(), config);
    let passes = u64::from(config.in_passes_of(size).train.batches());
    let trained_parameters = task.parameters().count();
    let of_each = config.train.reduce_dtype.kind().elt_size_in_bytes() as u64;
    let remaining = max_steps.saturating_sub(resumed_at.unwrap_or(0));
    Ok(DryRun {
        folder,
        environment: machine.environment(task.as_ref()),
        trained_parameters,
        resumed_at,
        changes,
        max_steps,
        loss,
        gradient_norm,
        held_out_loss,
        units,
        seconds,
        step_seconds: seconds * passes as f64,
        reduced_bytes: trained_parameters * of_each,
        estimated_seconds: seconds * (passes * remaining) as f64,
        advice: match memory_estimate.fits() {
            true => Vec::new(),
            false => memory_estimate.advice(config),
        },
        memory_estimate,
        memory_plan: task.memory_plan().cloned(),
        memory: machine.memory_summary(),
    })
}

/// What goes through the model at once of the next batch.
fn first_pass(task: &mut dyn Task) -> Result<Batch, Error> {
    let batch = task.next_batch()?;
    match task.pass_size() {
        Some(size) => batch.narrow(0, batch.rows()?.min(size.rows.into())),
        None => Ok(batch),
    }
}

/// Whether `folder` could be made: its nearest ancestor that exists must be a folder that
/// takes files.
fn require_writable(folder: &Path) -> Result<(), Error> {
    let ancestors = folder.ancestors().skip(1);
    let parents = ancestors.map(|parent| match parent.as_os_str().is_empty() {
        true => Path::new("."),
        false => parent,
    });
    for parent in parents {
        let Ok(metadata) = parent.metadata() else {
            continue;
        };
        let refuse = |kind| Err(Error::io("create a run folder in", parent, kind));
        if !metadata.is_dir() {
            return refuse(std::io::ErrorKind::NotADirectory.into());
        }
        if metadata.permissions().readonly() {
            return refuse(std::io::ErrorKind::PermissionDenied.into());
        }
        // Permissions do not tell of other owners, read-only file systems and full ones.
        let probe = parent.join(format!(".surefoot-{}.tmp", std::process::id()));
        return match std::fs::create_dir(&probe).and_then(|()| std::fs::remove_dir(&probe)) {
            Ok(()) => Ok(()),
            Err(error) => refuse(error),
        };
    }
    Ok(())
}
