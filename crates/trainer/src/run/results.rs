//! The output of a run: checkpoints, the exported model, the summary and the report page.

use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

use super::{Run, StepPhase};
use crate::Error;
use crate::checkpoint::{self, Draft, Progress};
use crate::observer::Observer;
use crate::report::Page;
use crate::run_facts::RunFacts;
use crate::run_folder::{RunFolder, replace};
use crate::summary::{Ending, Summary};

impl Run<'_> {
    /// Writes a checkpoint, which is complete before any rank continues.
    pub(super) fn save(&mut self, observer: &mut dyn Observer) -> Result<(), Error> {
        let what = format!("the checkpoint of step {}", self.step);
        self.ranks.doing(&what)?;
        if self.folder.is_written_here() {
            let path = self.write_checkpoint()?;
            observer.saved(self.step, &path);
        }
        self.last_saved = Some(self.step);
        self.ranks.barrier()
    }

    fn write_checkpoint(&mut self) -> Result<PathBuf, Error> {
        let folder = self.folder.checkpoints();
        let draft = Draft::begin(&folder, self.step)?;
        self.export_adapter(draft.path())?;
        self.task.export_companions(draft.path())?;
        self.enter(StepPhase::Update)?;
        let at_step = self.recorder.records().iter();
        let progress = Progress {
            step: self.step,
            units: self.units + self.window.units,
            train_seconds: self.train_seconds + self.window.seconds,
            window: self.window.clone(),
            best: self.best,
            waited: self.waited,
            planned: self.timetable.planned,
            micro_batch: self.oom.micro_batch(),
            ranks: self.ranks.size() as u32,
            data: self.task.data_state()?,
            identity: self.identity.clone(),
            records: at_step.filter(|record| record.step() == self.step).count() as u64,
        };
        let keep = self.config.train.save_total_limit;
        draft.finish(self.config, progress, &self.trained(), keep)
    }

    /// Writes the current adapter, for tasks that train one.
    fn export_adapter(&mut self, folder: &Path) -> Result<bool, Error> {
        match self.has_averages() {
            true => self.with_averages(|run| run.task.export_adapter(folder)),
            false => self.task.export_adapter(folder),
        }
    }

    /// Writes the model for other programs, replacing that of an earlier part of the run.
    fn export(&mut self, ending: Ending) -> Result<(), Error> {
        let target = self.folder.join(self.task.export_name());
        let draft = target.with_extension("tmp");
        checkpoint::remove_if_there(&draft)?;
        let written = match ending {
            Ending::Completed => {
                self.with_averages(|run| run.task.export(&draft))?;
                true
            }
            _ => self.export_adapter(&draft)?,
        };
        if written {
            checkpoint::remove_if_there(&target)?;
            std::fs::rename(&draft, &target).map_err(|error| Error::io("write", &target, error))?;
        }
        Ok(())
    }

    /// The last checkpoint, evaluation and sample, the exported model and the summary.
    pub(super) fn finish(
        &mut self,
        ending: Ending,
        observer: &mut dyn Observer,
    ) -> Result<Summary, Error> {
        if self.last_saved != Some(self.step) && self.step > 0 {
            self.save(observer)?;
        }
        if ending == Ending::Completed {
            self.load_best(observer)?;
            self.evaluate(None, observer)?;
            self.sample(observer)?;
        }
        if !self.folder.is_written_here() {
            self.forget_if(ending)?;
            return Ok(self.summary(ending));
        }
        self.export(ending)?;
        self.recorder.draw(self.config.loss_unit())?;
        let summary = self.summary(ending);
        write_summary(&self.folder, &summary)?;
        self.write_page(ending, None);
        self.forget_if(ending)?;
        observer.finished(&summary);
        Ok(summary)
    }

    /// A completed run is not continued when its processes are started again, once rank 0 has written all of it.
    pub(super) fn forget_if(&mut self, ending: Ending) -> Result<(), Error> {
        if ending == Ending::Completed {
            self.ranks.barrier()?;
            self.ranks.forget_folder();
        }
        Ok(())
    }

    /// Writes `run.json` and `report.html` for the current state. Failing to write them is only a warning.
    pub(super) fn write_page(&mut self, ending: Ending, error: Option<&Error>) {
        if !self.folder.is_written_here() {
            return;
        }
        self.page_written = Instant::now();
        if let Err(other) = self.try_write_page(ending, error) {
            tracing::warn!(
                "`run.json` or `report.html` tells an earlier state of the run: {other}"
            );
        }
    }

    fn try_write_page(&self, ending: Ending, error: Option<&Error>) -> Result<(), Error> {
        let facts = RunFacts::new(
            self.config,
            // Of a search, nothing is kept.
            self.task
                .usable()
                .filter(|_| !self.config.train.find_learning_rate),
            self.folder.path(),
            self.task.export_name(),
            ending,
            error.map(ToString::to_string),
            self.estimate,
        );
        facts.write(&self.folder.join("run.json"))?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let page = Page {
            summary: &self.summary(ending),
            records: self.recorder.records(),
            placement: self.placer.report(),
            error: facts.error,
            written: now.unwrap_or_default().as_secs(),
            loss_unit: self.config.loss_unit(),
            warmup_steps: self.schedule.warmup_steps(),
            commands: facts.commands,
            // The page may be shared.
            config: self.config.without_secrets().to_yaml()?,
        };
        page.write(&self.folder.join("report.html"))
    }

    pub(super) fn summary(&self, ending: Ending) -> Summary {
        let units = self.units + self.window.units;
        let train_seconds = self.train_seconds + self.window.seconds;
        let losses = self.recorder.training_losses();
        let name = self.folder.path().file_name().unwrap_or_default();
        Summary {
            name: name.to_string_lossy().into_owned(),
            ending,
            steps: self.step,
            max_steps: self.timetable.max_steps,
            stopped_early: self.stopped_early,
            first_loss: losses.first().copied(),
            last_loss: losses.last().copied(),
            skipped_steps: self.guard.skipped,
            rollbacks: self.guard.rollbacks,
            repeated_steps: self.oom.repeated_steps,
            micro_batch: self.oom.micro_batch(),
            best: self.best,
            learning_rate: self.found_rate.clone(),
            held_out: self
                .last_evaluation
                .as_ref()
                .map(|(_, evaluation)| evaluation.clone()),
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

/// Writes `summary.json` atomically.
pub(super) fn write_summary(folder: &RunFolder, summary: &Summary) -> Result<(), Error> {
    let text = serde_json::to_string_pretty(summary)
        .map_err(|error| Error::Internal(format!("the summary: {error}")))?;
    replace(&folder.join("summary.json"), &(text + "\n"))
}
