//! The training loop.
//!
//! A batch is taken on the host, placed on the device, turned into a loss by the
//! task and into gradients by the backward pass; the optimizer clips them and steps;
//! now and then the run is measured, sampled and saved. Nothing here knows what a
//! model is. A step looks at the device once, when its gradients are there: their norm
//! and the loss decide whether the optimizer may step.

mod best;
mod guard;
mod idle;
mod shortage;

use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use placement::Placer;
use tch::Tensor;

use crate::Error;
use crate::allocator::Allocator;
use crate::checkpoint::{self, Best, Progress, Trained};
use crate::config::Config;
use crate::estimate::Estimate;
use crate::metrics::Recorder;
use crate::observer::{Metrics, Observer, Start};
use crate::optim::{AdamW, Ema, Gradients, Schedule, treatments};
use crate::report::Page;
use crate::run_folder::RunFolder;
use crate::setup::{self, Machine};
use crate::stop::Stop;
use crate::summary::{Ending, Environment, Summary};
use crate::task::{Evaluation, Task};

use guard::Guard;
pub use guard::{DamagedTensor, Rollback, SkippedStep};
use idle::{Away, Moment};
use shortage::Relief;
pub use shortage::ShortOfMemory;

/// Trains as `config` says, to the end or until `stop`.
///
/// # Errors
/// When the run cannot start, or something on the way cannot be trusted any more. What was
/// saved before stays.
pub fn run(
    config: &Config,
    allocator: &Allocator,
    observer: &mut dyn Observer,
    stop: &Stop,
) -> Result<Summary, Error> {
    run_task(config, allocator, observer, stop, |placer, observer| {
        setup::task(config, allocator, placer, observer)
    })
}

/// Trains a task of your own, in the same loop: `make` builds it, its model placed by the
/// placer. Of `config` the loop itself reads everything but `model`, `adapter` and `data`.
///
/// # Errors
/// As [`run()`], and what `make` ends with.
pub fn run_task(
    config: &Config,
    allocator: &Allocator,
    observer: &mut dyn Observer,
    stop: &Stop,
    make: impl FnOnce(&mut Placer, &mut dyn Observer) -> Result<Box<dyn Task>, Error>,
) -> Result<Summary, Error> {
    let began = Instant::now();
    let machine = Machine::prepare(config, allocator)?;
    let mut placer = machine.placer()?;
    let task = make(&mut placer, observer)?;
    let mut run = Run::open(config, task, placer, machine, began)?;
    observer.started(&Start {
        folder: run.folder.path(),
        environment: &run.environment,
        estimate: &run.estimate,
        plan: run.task.memory_plan(),
        advice: &run.advice(),
        resumed_at: run.resumed_at,
        max_steps: config.train.max_steps,
    });
    let ending = run.train(observer, stop)?;
    run.finish(ending, observer)
}

/// A run in progress.
struct Run<'a> {
    config: &'a Config,
    folder: RunFolder,
    task: Box<dyn Task>,
    placer: Placer,
    machine: Machine,
    environment: Environment,
    estimate: Estimate,
    optimizer: AdamW,
    ema: Option<Ema>,
    guard: Guard,
    relief: Relief,
    /// What is not in use, once memory was short.
    away: Option<Away>,
    best: Option<Best>,
    recorder: Recorder,
    step: u64,
    resumed_at: Option<u64>,
    units: u64,
    /// Seconds in training steps, evaluations and saves left out.
    train_seconds: f64,
    last_saved: Option<u64>,
    last_evaluation: Option<(u64, Evaluation)>,
    window: Window,
    began: Instant,
}

/// What the passes of a step gave.
struct Passes {
    gradients: Gradients,
    loss: f64,
    norm: f64,
    units: u64,
}

/// What happened since the last record.
#[derive(Default)]
struct Window {
    /// Of the steps that were not skipped.
    loss: f64,
    steps: u64,
    /// Norm of the last gradient before clipping.
    norm: f64,
    units: u64,
    seconds: f64,
}

impl<'a> Run<'a> {
    /// Makes the run folder, or continues in one.
    fn open(
        config: &'a Config,
        mut task: Box<dyn Task>,
        placer: Placer,
        machine: Machine,
        began: Instant,
    ) -> Result<Self, Error> {
        let parameters = task.parameters();
        let treatments = treatments(config, parameters)?;
        let settings = (&config.train).into();
        let mut optimizer = AdamW::with_treatments(settings, &treatments, parameters)?;
        let ema = config.train.ema_decay;
        let ema = ema.map(|decay| Ema::new(decay, parameters)).transpose()?;
        let (folder, state) = match &config.train.resume_from_checkpoint {
            None => (RunFolder::create(config)?, None),
            Some(from) => {
                let (folder, path) = RunFolder::resume(config, from)?;
                let trained = Trained {
                    parameters,
                    optimizer: &mut optimizer,
                    ema: ema.as_ref(),
                };
                let state = checkpoint::load(&path, trained)?;
                task.restore_data(&state.data)?;
                (folder, Some(state))
            }
        };
        let estimate = machine.estimate(config, task.as_ref(), &optimizer);
        let step = state.as_ref().map_or(0, |state| state.step);
        let mut run = Self {
            config,
            environment: machine.environment(task.as_ref()),
            estimate,
            recorder: Recorder::open(&folder, step)?,
            folder,
            task,
            placer,
            machine,
            optimizer,
            ema,
            guard: Guard::default(),
            relief: Relief::new(
                &config.train,
                state.as_ref().and_then(|state| state.micro_batch),
            ),
            away: None,
            best: state.as_ref().and_then(|state| state.best),
            step,
            resumed_at: state.as_ref().map(|state| state.step),
            units: state.as_ref().map_or(0, |state| state.units),
            train_seconds: state.as_ref().map_or(0.0, |state| state.train_seconds),
            last_saved: state.as_ref().map(|state| state.step),
            last_evaluation: None,
            window: Window::default(),
            began,
        };
        run.relief.may_offload(run.has_idle_parts());
        Ok(run)
    }

    /// What to change when the memory will not do.
    fn advice(&self) -> Vec<&'static str> {
        match self.estimate.fits() {
            true => Vec::new(),
            false => self.estimate.advice(self.config),
        }
    }

    /// All remaining steps.
    fn train(&mut self, observer: &mut dyn Observer, stop: &Stop) -> Result<Ending, Error> {
        let config = &self.config.train;
        let schedule = Schedule::new(config);
        if self.step == 0 && self.task.starts_trained() {
            self.evaluate(config.max_eval_samples, observer)?;
            self.sample(observer)?;
        }
        while self.step < config.max_steps {
            if stop.is_requested() {
                return Ok(Ending::Stopped);
            }
            let learning_rate = schedule.at(self.step);
            if let Some(skipped) = self.step(learning_rate, observer)? {
                self.skip(skipped, observer)?;
                continue;
            }
            observer.stepped(self.step);
            if due(self.step, config.logging_steps) || self.step == config.max_steps {
                self.log(learning_rate, observer)?;
            }
            if due(self.step, config.eval_steps) && self.step < config.max_steps {
                self.evaluate(config.max_eval_samples, observer)?;
                self.keep_if_best(observer)?;
            }
            if due(self.step, self.config.sample.sample_steps) && self.step < config.max_steps {
                self.sample(observer)?;
            }
            if due(self.step, config.save_steps) && self.last_saved != Some(self.step) {
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
    ) -> Result<Option<SkippedStep>, Error> {
        let began = Instant::now();
        self.machine.step_begins();
        let position = self.task.data_state()?;
        self.enter(Moment::Passes)?;
        let Passes {
            mut gradients,
            loss,
            norm,
            units,
        } = loop {
            match self.passes() {
                Ok(passes) => break passes,
                Err(error) => self.relieve(error, &position, observer)?,
            }
        };

        self.step += 1;
        if !(norm + loss).is_finite() {
            let batch = position.get("order").unwrap_or(&position).to_string();
            let parameters = self.task.parameters();
            let seen = guard::describe(self.step, loss, norm, batch, &gradients, parameters)?;
            return Ok(Some(seen));
        }
        self.enter(Moment::Update)?;
        gradients.clip(norm, self.config.train.max_grad_norm)?;
        self.optimizer.step(&gradients, learning_rate)?;
        if let Some(ema) = &mut self.ema {
            ema.update(self.task.parameters(), self.optimizer.steps())?;
        }
        self.guard.stepped();
        self.relief.stepped();
        self.machine.step_ends();
        self.window.add(loss, norm, units);
        self.window.seconds += began.elapsed().as_secs_f64();
        Ok(None)
    }

    /// All forward and backward passes of a step.
    fn passes(&mut self) -> Result<Passes, Error> {
        // Randomness in a step depends on the seed and the step alone, so there is no
        // generator state to save.
        torch_ext::random::manual_seed(self.config.seed ^ self.step.rotate_left(32))?;
        let mut gradients = Gradients::default();
        let mut losses = Vec::new();
        let mut units = 0;
        let passes = self.config.train.gradient_accumulation_steps;
        for _ in 0..passes {
            let batch = self.task.next_batch()?;
            units += batch.units;
            for (piece, share) in self.task.pieces(batch, self.relief.rows())? {
                let piece = self.placer.batch(piece)?;
                let mut loss = self.task.loss(&piece)?.f_div_scalar(i64::from(passes))?;
                if share < 1.0 {
                    loss = loss.f_mul_scalar(share)?;
                }
                gradients.accumulate(&loss, self.task.parameters())?;
                losses.push(loss.f_detach()?);
            }
        }
        // The one time that a step waits for the device.
        losses.push(gradients.norm()?);
        let numbers = Tensor::f_stack(&losses, 0)?.f_to_kind(tch::Kind::Double)?;
        let mut numbers = Vec::<f64>::try_from(&numbers)?;
        Ok(Passes {
            gradients,
            norm: numbers.pop().unwrap_or(f64::NAN),
            loss: numbers.iter().sum(),
            units,
        })
    }

    /// After passes that ran out of memory: everything as it was before the step, and the next
    /// remedy in force. Any other error is handed back.
    fn relieve(
        &mut self,
        error: Error,
        position: &serde_json::Value,
        observer: &mut dyn Observer,
    ) -> Result<(), Error> {
        let memory = self.machine.free_and_total();
        let mut short = self.relief.next(self.step + 1, error, memory)?;
        Gradients::discard(self.task.parameters())?;
        self.task.restore_data(position)?;
        if short.offloaded.is_some() {
            short.offloaded = Some(self.offload_idle()?.0);
        }
        self.machine.trim()?;
        observer.short_of_memory(&short);
        Ok(())
    }

    /// Tells of a step that was skipped, and goes back when there were too many of them.
    fn skip(&mut self, skipped: SkippedStep, observer: &mut dyn Observer) -> Result<(), Error> {
        self.recorder.skipped(&skipped)?;
        observer.skipped(&skipped);
        if !self.guard.skipped(skipped) {
            return Ok(());
        }
        let last = checkpoint::list(&self.folder.checkpoints())?.pop();
        let rollback = self.guard.roll_back(last.as_ref().map(|(step, _)| *step))?;
        if let Some((_, path)) = last {
            self.enter(Moment::Update)?;
            let state = checkpoint::load(&path, self.trained())?;
            // The data go on: the same batches would lead to the same place.
            self.step = state.step;
            self.last_saved = Some(state.step);
            self.units = state.units;
            self.window = Window::default();
            self.last_evaluation = None;
            self.recorder = Recorder::open(&self.folder, state.step)?;
        }
        self.recorder.rolled_back(&rollback)?;
        observer.rolled_back(&rollback);
        Ok(())
    }

    /// What a checkpoint saves and restores.
    fn trained(&mut self) -> Trained<'_> {
        Trained {
            parameters: self.task.parameters(),
            optimizer: &mut self.optimizer,
            ema: self.ema.as_ref(),
        }
    }

    fn log(&mut self, learning_rate: f64, observer: &mut dyn Observer) -> Result<(), Error> {
        let window = std::mem::take(&mut self.window);
        self.units += window.units;
        self.train_seconds += window.seconds;
        let metrics = Metrics {
            step: self.step,
            loss: window.loss / window.steps as f64,
            learning_rate,
            gradient_norm: window.norm,
            units_per_second: window.units as f64 / window.seconds,
            memory: self.machine.memory(),
        };
        self.recorder.train(&metrics)?;
        observer.logged(&metrics);
        Ok(())
    }

    fn evaluate(&mut self, limit: Option<u64>, observer: &mut dyn Observer) -> Result<(), Error> {
        let evaluation = self.with_averages(|run| run.task.evaluate(limit, &mut run.placer))?;
        self.last_evaluation = Some((self.step, evaluation));
        self.recorder.evaluation(self.step, &evaluation)?;
        observer.evaluated(self.step, &evaluation);
        self.recorder.draw()
    }

    /// Does something with the averaged weights, if the run keeps them.
    fn with_averages<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.enter(Moment::Look)?;
        let Some(mut ema) = self.ema.take() else {
            return work(self);
        };
        ema.swap(self.task.parameters())?;
        let result = work(self);
        ema.swap(self.task.parameters())?;
        self.ema = Some(ema);
        result
    }

    fn sample(&mut self, observer: &mut dyn Observer) -> Result<(), Error> {
        if self.config.sample.max_new_tokens == 0 {
            return Ok(());
        }
        let samples = self.with_averages(|run| run.task.sample(run.step, &mut run.placer))?;
        let path = self.folder.join("samples.txt");
        let mut text = format!("=== step {} ===\n", self.step);
        for sample in &samples {
            text += &format!("--- {:?} ---\n{}\n", sample.prompt, sample.text);
        }
        std::fs::File::options()
            .create(true)
            .append(true)
            .open(&path)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .map_err(|error| Error::io("write", &path, error))?;
        self.recorder.samples(self.step, &samples)?;
        observer.sampled(self.step, &samples);
        Ok(())
    }

    fn save(&mut self, observer: &mut dyn Observer) -> Result<PathBuf, Error> {
        self.enter(Moment::Update)?;
        let progress = Progress {
            step: self.step,
            units: self.units + self.window.units,
            train_seconds: self.train_seconds + self.window.seconds,
            best: self.best,
            micro_batch: self.relief.micro_batch(),
            data: self.task.data_state()?,
        };
        let keep = self.config.train.save_total_limit;
        let folder = self.folder.checkpoints();
        let path = checkpoint::save(&folder, progress, &self.trained(), keep)?;
        self.last_saved = Some(self.step);
        observer.saved(self.step, &path);
        Ok(path)
    }

    /// The last checkpoint, evaluation and sample, the exported model and the summary.
    fn finish(mut self, ending: Ending, observer: &mut dyn Observer) -> Result<Summary, Error> {
        if self.last_saved != Some(self.step) && self.step > 0 {
            self.save(observer)?;
        }
        if ending == Ending::Completed {
            self.load_best(observer)?;
            self.evaluate(None, observer)?;
            self.sample(observer)?;
            let folder = self.folder.join(self.task.export_name());
            self.with_averages(|run| run.task.export(&folder))?;
        }
        self.recorder.draw()?;
        let summary = self.summary(ending);
        let path = self.folder.join("summary.json");
        let text = serde_json::to_string_pretty(&summary)
            .map_err(|error| Error::Internal(format!("the summary: {error}")))?;
        std::fs::write(&path, text + "\n").map_err(|error| Error::io("write", &path, error))?;
        let page = Page {
            summary: &summary,
            records: self.recorder.records(),
            placement: self.placer.report(),
            config: self.config.to_yaml()?,
        };
        page.write(&self.folder.join("report.html"))?;
        observer.finished(&summary);
        Ok(summary)
    }

    fn summary(&self, ending: Ending) -> Summary {
        let units = self.units + self.window.units;
        let train_seconds = self.train_seconds + self.window.seconds;
        let losses = self.recorder.training_losses();
        let name = self.folder.path().file_name().unwrap_or_default();
        Summary {
            name: name.to_string_lossy().into_owned(),
            ending,
            steps: self.step,
            max_steps: self.config.train.max_steps,
            first_loss: losses.first().copied(),
            last_loss: losses.last().copied(),
            skipped_steps: self.guard.skipped,
            rollbacks: self.guard.rollbacks,
            repeated_steps: self.relief.times,
            micro_batch: self.relief.micro_batch(),
            best: self.best,
            held_out: self.last_evaluation.map(|(_, evaluation)| evaluation),
            tokens: units,
            tokens_per_second: if train_seconds > 0.0 {
                units as f64 / train_seconds
            } else {
                0.0
            },
            train_seconds,
            wall_seconds: self.began.elapsed().as_secs_f64(),
            memory: self.machine.memory_summary(),
            memory_estimate: self.estimate,
            memory_estimate_error: self
                .machine
                .step_peak()
                .map(|measured| self.estimate.error(measured)),
            memory_plan: self.task.memory_plan().cloned(),
            streamed: self.task.streamed(),
            environment: self.environment.clone(),
        }
    }
}

impl Window {
    fn add(&mut self, loss: f64, norm: f64, units: u64) {
        self.loss += loss;
        self.norm = norm;
        self.steps += 1;
        self.units += units;
    }
}

/// Whether something that happens every `every` steps (0: never) happens after `step`.
fn due(step: u64, every: u64) -> bool {
    every > 0 && step.is_multiple_of(every)
}
