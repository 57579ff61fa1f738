//! The training loop.
//!
//! A batch is taken from the host, placed on the device, turned into a loss by the task and into gradients by
//! the backward pass; the optimizer clips them and steps; now and then the run is evaluated, sampled and
//! saved. Nothing here knows what a model is. A step synchronises with the device once, when its gradients
//! are complete: their norm and the loss decide whether the optimizer may step.

mod batches;
mod best;
mod finder;
mod idle;
mod measure;
mod nonfinite;
mod oom;
mod problems;
mod ranks;
mod recovery;
mod reference;
mod results;
mod samples;

use std::time::{Duration, Instant};

use models::fused::use_kernels;
use placement::Placer;
use tch::Tensor;

use crate::Error;
use crate::allocator::Allocator;
use crate::checkpoint::{self, State, Trained, Window};
use crate::config::{Config, ConfigError};
use crate::data::SplitMix64;
use crate::estimate::Estimate;
use crate::events::{Best, Evaluation, FoundRate, SkippedStep};
use crate::metrics::{Record, Recorder, Trackers, expect_addresses};
use crate::observer::{NoObserver, Observer, Start};
use crate::optim::{Ema, Gradients, Optimizer, Schedule};
use crate::ranks::Ranks;
use crate::resume::{self, Change, Resumed};
use crate::run_folder::RunFolder;
use crate::setup::{self, Machine};
use crate::stop::Stop;
use crate::summary::{Ending, Environment, Summary};
use crate::task::{AlternatingGroup, Measures, Task};
use crate::timetable::Timetable;

pub(crate) use reference::restore_reference;

use idle::{OffloadedState, StepPhase};
use measure::due;
use nonfinite::DivergenceGuard;
use oom::OomRecovery;
use problems::ReportedProblems;

/// Trains as `config` says, to the end or until `stop`.
///
/// # Errors
/// If the run cannot start or cannot continue safely. What was saved before remains.
pub fn run(
    config: &Config,
    allocator: &Allocator,
    observer: &mut dyn Observer,
    stop: &Stop,
) -> Result<Summary, Error> {
    let search = finder::search_of(config)?;
    let config = search.as_ref().unwrap_or(config);
    run_here(
        config,
        allocator,
        observer,
        stop,
        |config, placer, observer| setup::task(config, allocator, placer, observer),
    )
}

/// Trains a custom task in the same loop: `make` builds it, with its model placed by the placer. The loop
/// itself reads all of `config` except `model`, `adapter` and `data`.
pub fn run_task(
    config: &Config,
    allocator: &Allocator,
    observer: &mut dyn Observer,
    stop: &Stop,
    make: impl FnOnce(&mut Placer, &mut dyn Observer) -> Result<Box<dyn Task>, Error>,
) -> Result<Summary, Error> {
    let search = finder::search_of(config)?;
    run_here(
        search.as_ref().unwrap_or(config),
        allocator,
        observer,
        stop,
        |_, placer, observer| make(placer, observer),
    )
}

/// The same for a config that says all.
fn run_here(
    config: &Config,
    allocator: &Allocator,
    observer: &mut dyn Observer,
    stop: &Stop,
    make: impl FnOnce(&Config, &mut Placer, &mut dyn Observer) -> Result<Box<dyn Task>, Error>,
) -> Result<Summary, Error> {
    let timeout = Duration::from_secs(config.train.rank_timeout.into());
    let mut ranks = Ranks::join(timeout, stop)?;
    // Of several processes, only rank 0 reports progress.
    let observer = match ranks.is_first() {
        true => observer,
        false => &mut NoObserver,
    };
    let ended = run_rank(config, allocator, observer, stop, &mut ranks, make);
    if let Err(error) = &ended {
        ranks.failed(error);
    }
    ended
}

/// This process's part of a run with several ranks.
fn run_rank(
    config: &Config,
    allocator: &Allocator,
    observer: &mut dyn Observer,
    stop: &Stop,
    ranks: &mut Ranks,
    make: impl FnOnce(&Config, &mut Placer, &mut dyn Observer) -> Result<Box<dyn Task>, Error>,
) -> Result<Summary, Error> {
    let began = Instant::now();
    ranks.expect_same(&ranks::configuration(config)?)?;
    if ranks.is_first() {
        expect_addresses(config)?;
    }
    if ranks.size() > 1 && config.train.optim.sums() {
        let reason = "`train.optim`: adafactor, came, prodigy and muon need sums over whole matrices, which processes may \
                      round differently, so that their models would drift apart: with several, take `adamw_torch_fused`, \
                      `lion` or `schedule_free_adamw`";
        return Err(ConfigError::of(&config.name, reason.to_owned()).into());
    }
    let machine = Machine::prepare(config, allocator)?;
    let mut placer = machine.placer()?;
    ranks.choose_backend(config.train.ddp_backend, placer.device())?;
    use_kernels(config.train.kernels.into());
    let resumed = match ranks.is_first() {
        true => ranks::resumed(ranks, config)?,
        false => None,
    };
    let config = &ranks::with_passes_so_far(ranks, config, resumed.as_ref())?;
    let task = make(config, &mut placer, observer)?;
    let mut run = Run::open(config, ranks, resumed, task, placer, machine, began)?;
    run.prepare_reference(observer)?;
    observer.started(&Start {
        folder: run.folder.path(),
        environment: &run.environment,
        ranks: run.ranks.description(),
        estimate: &run.estimate,
        plan: run.task.memory_plan(),
        advice: &run.advice(),
        resumed_at: run.resumed_at,
        changes: run.changes(),
        max_steps: run.timetable.max_steps,
        passes: run.timetable.passes,
    });
    run.record_start()?;
    run.write_page(Ending::Running, None);
    let ended = match config.train.find_learning_rate {
        true => run.search(observer, stop),
        false => run.train(observer, stop),
    };
    // Problems just before an error often explain it, so record them first.
    let ended = match run.record_problems() {
        Ok(()) => ended,
        Err(error) => ended.and(Err(error)),
    };
    let ended = ended.and_then(|ending| {
        let summary = match config.train.find_learning_rate {
            true => run.finish_search(ending, observer)?,
            false => run.finish(ending, observer)?,
        };
        run.expect_to_stay(ending, stop)?;
        Ok(summary)
    });
    if let Err(error) = &ended {
        run.write_page(Ending::Failed, Some(error));
    }
    let ending = ended
        .as_ref()
        .map_or(Ending::Failed, |summary| summary.ending);
    run.recorder.trackers.end(ending);
    ended
}

/// A run in progress.
struct Run<'a> {
    config: &'a Config,
    ranks: &'a mut Ranks,
    asked: ranks::Asked,
    folder: RunFolder,
    /// What the training is based on, for checkpoints.
    identity: serde_json::Value,
    task: Box<dyn Task>,
    /// Groups of parameters that are trained in turns, if any.
    turns: Vec<AlternatingGroup>,
    placer: Placer,
    machine: Machine,
    environment: Environment,
    estimate: Estimate,
    optimizer: Optimizer,
    ema: Option<Ema>,
    guard: DivergenceGuard,
    oom: OomRecovery,
    /// Placement problems that have been recorded.
    recorded: ReportedProblems,
    /// What is offloaded while idle, once a step has run out of memory.
    offloaded: Option<OffloadedState>,
    best: Option<Best>,
    /// Evaluations since then without an improvement.
    waited: u32,
    /// How many of these there were when they ended the run.
    stopped_early: Option<u32>,
    timetable: Timetable,
    schedule: Schedule,
    recorder: Recorder,
    step: u64,
    resumed_at: Option<u64>,
    units: u64,
    /// Seconds in training steps, without evaluations and saves.
    train_seconds: f64,
    last_saved: Option<u64>,
    last_evaluation: Option<(u64, Evaluation)>,
    found_rate: Option<FoundRate>,
    window: Window,
    began: Instant,
    page_written: Instant,
}

/// The result of a step's forward and backward passes.
struct Passes {
    /// The group whose turn it was.
    turn: usize,
    gradients: Gradients,
    loss: f64,
    norm: f64,
    units: u64,
    /// Sums of what the task measures beside the loss.
    measured: Vec<f64>,
}

impl<'a> Run<'a> {
    /// Creates the run folder, or continues in an existing one.
    fn open(
        config: &'a Config,
        ranks: &'a mut Ranks,
        resumed: Option<Resumed>,
        mut task: Box<dyn Task>,
        mut placer: Placer,
        machine: Machine,
        began: Instant,
    ) -> Result<Self, Error> {
        let parameters = task.parameters();
        let turns = task.turns();
        let ranges: Vec<_> = turns.iter().map(|turn| turn.parameters.clone()).collect();
        let mut optimizer = Optimizer::from_config(config, parameters, &ranges)?;
        let ema = Ema::from_config(config, parameters)?;
        let identity = task.identity()?;
        ranks.expect_same(&ranks::foundation(task.as_ref(), &identity)?)?;
        // Rank 0 creates the folder or reads the checkpoint, and tells the others.
        let mut own_folder = None;
        let size = ranks.size();
        let opened = ranks.broadcast_value(|| {
            let (folder, state, changes) = match resumed {
                None => (RunFolder::create(config)?, None, Vec::new()),
                Some(mut resumed) => {
                    resumed.expect_identity(&identity)?;
                    resumed.note_ranks(size, config);
                    let Resumed {
                        folder,
                        checkpoint,
                        changes,
                    } = resumed;
                    let state = checkpoint.restore(Trained {
                        parameters,
                        optimizer: &mut optimizer,
                        ema: ema.as_ref(),
                    })?;
                    folder.sweep()?;
                    checkpoint::set_aside_after(&folder.checkpoints(), state.step)?;
                    (folder, Some(state), changes)
                }
            };
            let path = folder.path().to_owned();
            own_folder = Some(folder);
            Ok((path, state, changes))
        });
        let (path, state, changes) = opened?;
        let folder = own_folder.unwrap_or_else(|| RunFolder::of_first_rank(path));
        ranks.remember_folder(folder.path())?;
        let mut trained = Trained {
            parameters,
            optimizer: &mut optimizer,
            ema: ema.as_ref(),
        };
        ranks::share_trained(ranks, state.as_ref(), &mut trained, &mut placer)?;
        ranks::overlap_sums(ranks, config, task.as_ref())?;
        if let Some(state) = &state {
            task.restore_data(&state.data)?;
        }
        let at = state.as_ref().map(|state| (state.step, state.planned));
        let timetable = Timetable::new(config, task.as_ref(), ranks.size(), at)?;
        let estimate = machine.estimate(config, task.as_ref(), &optimizer);
        let pass_size = ranks::pass_size(ranks, task.as_ref())?;
        let step = state.as_ref().map_or(0, |state| state.step);
        let at_step = state.as_ref().map_or(0, |state| state.records);
        let mut recorder = Recorder::open(&folder, step, at_step)?;
        if folder.is_written_here() {
            recorder.trackers = Trackers::start(config, &folder)?;
        }
        if let Some(restart) = restarts_after_faults() {
            recorder.restarted(step, restart)?;
        }
        if (state.is_some() || timetable.planned.is_some()) && folder.is_written_here() {
            if !changes.is_empty() {
                recorder.resumed(step, changes)?;
            }
            let resumes: Vec<_> = resumes(recorder.records()).collect();
            folder.write_config(&resume::config_text(config, timetable.planned, &resumes)?)?;
        }
        let mut run = Self {
            config,
            ranks,
            asked: ranks::Asked::default(),
            identity,
            environment: Environment {
                batch: pass_size.as_ref().map(ToString::to_string),
                ..machine.environment(task.as_ref())
            },
            estimate,
            recorder,
            folder,
            task,
            turns,
            placer,
            machine,
            optimizer,
            ema,
            guard: DivergenceGuard::default(),
            oom: OomRecovery::new(
                &config.train,
                (pass_size.map(|size| size.rows))
                    .or_else(|| state.as_ref().and_then(|state| state.micro_batch)),
            ),
            recorded: ReportedProblems::default(),
            offloaded: None,
            best: state.as_ref().and_then(|state| state.best),
            waited: state.as_ref().map_or(0, |state| state.waited),
            stopped_early: None,
            timetable,
            schedule: Schedule::new(&config.train, timetable.max_steps),
            step,
            resumed_at: state.as_ref().map(|state| state.step),
            units: state.as_ref().map_or(0, State::recorded_units),
            train_seconds: state.as_ref().map_or(0.0, State::recorded_seconds),
            last_saved: state.as_ref().map(|state| state.step),
            last_evaluation: None,
            found_rate: None,
            window: state.map(|state| state.window).unwrap_or_default(),
            began,
            page_written: began,
        };
        run.oom.may_offload(run.has_idle_parts());
        Ok(run)
    }

    /// Config changes since the run was resumed by this process.
    fn changes(&self) -> &[Change] {
        let last = resumes(self.recorder.records()).last();
        let last = last.filter(|(step, _)| Some(*step) == self.resumed_at);
        last.map_or(&[], |(_, changes)| changes)
    }

    /// What to change if memory is insufficient.
    fn advice(&self) -> Vec<&'static str> {
        match self.estimate.fits() {
            true => Vec::new(),
            false => self.estimate.advice(self.config),
        }
    }

    /// All remaining steps.
    fn train(&mut self, observer: &mut dyn Observer, stop: &Stop) -> Result<Ending, Error> {
        let config = &self.config.train;
        let max_steps = self.timetable.max_steps;
        if self.step == 0 && self.task.starts_trained() {
            self.evaluate(config.max_eval_samples, observer)?;
            self.sample(observer)?;
        }
        while self.step < max_steps && !self.ends_early(observer) {
            if self.is_to_stop(stop) {
                return Ok(Ending::Stopped);
            }
            let learning_rate = self.schedule.at(self.step);
            if let Some(skipped) = self.step(learning_rate, observer, stop)? {
                self.skip(skipped, observer)?;
                continue;
            }
            observer.stepped(self.step);
            self.note_asked(stop);
            let on_the_way = self.step < max_steps;
            if due(self.step, config.logging_steps) || !on_the_way {
                self.log(learning_rate, observer)?;
            }
            if on_the_way && self.is_due(config.eval_strategy, config.eval_steps) {
                self.evaluate(config.max_eval_samples, observer)?;
            }
            let is_asked = std::mem::take(&mut self.asked.sample);
            if on_the_way && (is_asked || due(self.step, self.config.sample.sample_steps)) {
                self.sample(observer)?;
            }
            // Saved after everything else in a step, so that a resumed run has all of it exactly once.
            let is_wanted = self.note_evaluation() | std::mem::take(&mut self.asked.save);
            if (is_wanted || self.is_due(config.save_strategy, config.save_steps))
                && self.last_saved != Some(self.step)
            {
                self.save(observer)?;
            }
        }
        Ok(Ending::Completed)
    }

    /// One optimizer step, or what was wrong with it.
    fn step(
        &mut self,
        learning_rate: f64,
        observer: &mut dyn Observer,
        stop: &Stop,
    ) -> Result<Option<SkippedStep>, Error> {
        let began = Instant::now();
        self.ranks.doing(&format!("step {}", self.step + 1))?;
        self.machine.step_begins();
        let position = self.task.data_state()?;
        self.enter(StepPhase::ForwardBackward)?;
        let Passes {
            turn,
            mut gradients,
            loss,
            norm,
            units,
            measured,
        } = loop {
            let own = self.passes();
            match self.of_all_ranks(own, stop) {
                Ok(passes) => break passes,
                Err(error) => self.recover_from_oom(error, &position, observer)?,
            }
        };
        self.step += 1;
        if !(norm + loss).is_finite() {
            let batch = position.get("order").unwrap_or(&position).to_string();
            let parameters = self.task.parameters();
            let seen = nonfinite::describe(self.step, loss, norm, batch, &gradients, parameters)?;
            return Ok(Some(seen));
        }
        self.enter(StepPhase::Update)?;
        gradients.clip(norm, self.config.train.max_grad_norm)?;
        self.optimizer.step(&gradients, learning_rate)?;
        if let Some(ema) = &mut self.ema {
            let parameters = self.task.parameters();
            let range = gradients.range(parameters.iter().len());
            let steps = self.optimizer.steps_of_turns();
            let steps = steps.get(turn).copied().unwrap_or_default();
            ema.update(parameters, range, steps)?;
        }
        self.guard.stepped();
        self.oom.stepped();
        self.machine.step_ends();
        let turn = self.turns.get(turn).map(|turn| turn.name);
        self.window.add(loss, norm, units, turn);
        self.window.add_measured(&measured);
        self.window.seconds += began.elapsed().as_secs_f64();
        Ok(None)
    }

    /// All forward and backward passes of a step.
    fn passes(&mut self) -> Result<Passes, Error> {
        // The random numbers of a step depend only on the seed, the step and the rank, so there is no
        // generator state to save.
        torch_ext::random::manual_seed(step_seed(
            self.config.seed,
            self.step,
            self.ranks.rank() as u64,
        ))?;
        let turn = self.task.begin_step(self.step, &mut self.placer)?;
        let mut gradients = match self.turns.get(turn) {
            Some(turn) => Gradients::of(turn.parameters.clone()),
            None => Gradients::default(),
        };
        let mut losses = Vec::new();
        let mut measured: Option<Tensor> = None;
        let (batches, units) = self.batches()?;
        let mut batches = batches.into_iter();
        while let Some((batch, batch_share)) = batches.next() {
            let pieces = self.task.micro_batches(batch, self.oom.rows())?;
            let mut pieces = pieces.into_iter();
            while let Some((piece, share)) = pieces.next() {
                let piece = self.placer.batch(piece)?;
                let mut loss = self.task.loss(&piece)?;
                if let Some(sums) = self.task.measures().and_then(Measures::take) {
                    measured = Some(match measured {
                        Some(before) => before.f_add(&sums)?,
                        None => sums,
                    });
                }
                let share = share * batch_share;
                if share != 1.0 {
                    loss = loss.f_mul_scalar(share)?;
                }
                if batches.len() == 0 && pieces.len() == 0 && self.ranks.overlaps_sums() {
                    gradients.put_back(self.task.parameters())?;
                    self.ranks.last_pass_begins()?;
                }
                gradients.accumulate(&loss, self.task.parameters())?;
                losses.push(loss.f_detach()?);
            }
        }
        // The only synchronisation of a step. With several ranks, the norm is that of the sum of all their
        // gradients.
        losses.push(match self.ranks.size() {
            1 => gradients.norm()?,
            _ => Tensor::f_zeros_like(losses.first().unwrap_or(&Tensor::from(0.0f32)))?,
        });
        let numbers = Tensor::f_stack(&losses, 0)?.f_to_kind(tch::Kind::Double)?;
        let numbers = match measured {
            Some(sums) => Tensor::f_cat(&[numbers, sums.f_to_kind(tch::Kind::Double)?], 0)?,
            None => numbers,
        };
        let mut numbers = Vec::<f64>::try_from(&numbers)?;
        let measured = numbers.split_off(losses.len());
        Ok(Passes {
            turn,
            gradients,
            norm: numbers.pop().unwrap_or(f64::NAN),
            loss: numbers.iter().sum(),
            units,
            measured,
        })
    }

    /// The tensors that a checkpoint saves and restores.
    fn trained(&mut self) -> Trained<'_> {
        Trained {
            parameters: self.task.parameters(),
            optimizer: &mut self.optimizer,
            ema: self.ema.as_ref(),
        }
    }
}

/// How often `surefoot run --restart-on-fault` or the queue started this run again, if they did: they say so in the
/// environment.
fn restarts_after_faults() -> Option<u32> {
    let count = std::env::var("SUREFOOT_RESTARTS").ok()?.parse().ok()?;
    (count > 0).then_some(count)
}

/// The steps at which a run was resumed with another config, and what changed.
fn resumes(records: &[Record]) -> impl Iterator<Item = (u64, &[Change])> {
    records.iter().filter_map(|record| match record {
        Record::Resumed { step, changes } => Some((*step, changes.as_slice())),
        _ => None,
    })
}

/// The generators' seed for a step of a rank. The CPU generator uses only the lower 32 bits, so each of them
/// depends on all inputs.
fn step_seed(seed: u64, step: u64, rank: u64) -> u64 {
    SplitMix64::new(&[seed, step, rank]).next()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_two_steps_draw_the_same_numbers_on_the_cpu() {
        let mut drawn = BTreeSet::new();
        for (seed, step, rank) in [(0, 0, 0), (0, 1, 0), (0, 2, 0), (0, 1, 1), (1, 1, 0)] {
            torch_ext::random::manual_seed(step_seed(seed, step, rank)).unwrap();
            let numbers = tch::Tensor::rand([8], (tch::Kind::Float, tch::Device::Cpu));
            let numbers = Vec::<f32>::try_from(&numbers).unwrap();
            drawn.insert(numbers.iter().map(|n| n.to_bits()).collect::<Vec<_>>());
        }
        assert_eq!(drawn.len(), 5);
    }
}
