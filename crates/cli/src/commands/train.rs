//! `surefoot train`: trains a model from a config, and shows the progress.

use std::cell::Cell;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use doctor::findings::seen_by_hip;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use platform::Bytes;
use platform::Machine;
use surefoot_cli::live::{self, Python};
use surefoot_cli::notify::{Event, Notifier};
use surefoot_cli::output::{self, Failure, Outcome};
use surefoot_cli::unsafe_gpu;
use trainer::config::ConfigError;
use trainer::text::thousands;
use trainer::{
    Allocator, Best, Config, Ending, Evaluation, Metrics, Observer, OomRetry, Rollback, Sample,
    Shown, SkippedStep, Start, Stop, Summary,
};

use super::model_options::failure;
#[cfg(unix)]
use super::train_ranks;
use super::tune::kept::Kept;
use super::{config_report, train_data, train_environment, train_report, train_signals};

/// The default config.
const DEFAULT_CONFIG: &str = "configs/small.yaml";

/// How often a preparation step is reported if the output is not a terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Train a model from a config
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The config: a YAML file, or `-` for stdin [default: that of the run after `--resume RUN`, else
    /// configs/small.yaml]
    config: Option<PathBuf>,

    /// The name of a config from stdin in messages
    #[arg(
        long,
        value_name = "NAME",
        default_value = "stdin",
        hide_default_value = true
    )]
    source: String,

    /// Override a key of the config, such as `train.max_steps=50`; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,

    /// Resume a run: the newest with this config's name, or a run or checkpoint folder
    #[arg(long, value_name = "PATH", num_args = 0..=1, default_missing_value = "latest")]
    resume: Option<String>,

    /// Check config, data, model, memory and one step, without training
    #[arg(long)]
    dry_run: bool,

    /// Train in this many processes on this machine, each with its own GPU or its share of
    /// the cores; the batch of a step is that many times larger
    #[arg(long, value_name = "N", value_parser = train_environment::processes)]
    nproc: Option<u32>,

    /// Print this many rows of the training data as the model sees them, with what it learns marked, or this many
    /// pictures and videos with size, clips and caption, without training
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u64).range(1..=10_000),
        conflicts_with_all = ["dry_run", "check", "nproc"]
    )]
    show_data: Option<u64>,

    /// In place of training, try a step at each of many learning rates, in a run folder of its own, and suggest one
    #[arg(long, conflicts_with_all = ["dry_run", "resume", "show_data"])]
    find_lr: bool,

    /// Say how the model of the config fits into this machine's memory, quantised or streamed if need be; no data are read
    #[arg(
        long,
        conflicts_with_all = ["dry_run", "check", "nproc", "show_data", "find_lr", "resume"]
    )]
    fits: bool,

    /// Check only the config; with `--json`, its problems are a list on stdout
    #[arg(long, conflicts_with = "dry_run")]
    check: bool,
}

/// Trains; the summary goes to stdout, everything else to stderr.
pub(crate) fn run(args: &Args, json: bool) -> Result<Outcome, Failure> {
    if args.check {
        return check(args, json);
    }
    super::tune::trial::end_with_the_trials();
    let mut config = config(args, &[])?;
    if let Some(count) = args.show_data {
        return show_data(&config, count, json);
    }
    #[cfg(unix)]
    if !args.dry_run && !args.fits && train_ranks::are_to_be_started(args.nproc)? {
        return train_ranks::run(args.nproc.unwrap_or(1));
    }
    let mut tuned = Vec::new();
    if let Some(kept) = Kept::of(&config) {
        let keys = kept.keys(&config);
        if !keys.is_empty() {
            config = self::config(args, &keys)?;
        }
        if !train_environment::is_restarted() {
            eprintln!("surefoot: {}", kept.describe());
        }
        tuned = kept.variables();
    }
    train_environment::apply(&config.device, tuned);
    let mut display = ProgressDisplay::new();
    if args.dry_run {
        return dry_run(&config, display, json);
    }
    if args.fits {
        return fits(&config, display, json);
    }
    let stop = Stop::default();
    train_signals::listen(&stop)?;
    display.name.clone_from(&config.name);
    display.notifier = Notifier::new(config.notify.url.clone());
    let result = install(&config).and_then(|allocator| {
        trainer::run(&config, &allocator, &mut display, &stop).map_err(failure)
    });
    display.bar.finish_and_clear();
    let rank = trainer::rank_of_this_process();
    if rank == 0 {
        display.notify_of_the_end(result.as_ref());
    }
    // The terminal shows the messages of all processes.
    let summary = result.map_err(|failure| match rank {
        #[cfg(unix)]
        0 => train_ranks::explained(failure),
        _ => failure.of_rank(rank),
    })?;
    // The summary of all processes is shown once.
    if rank > 0 {
        return Ok(Outcome::Fine);
    }
    if json {
        let text = serde_json::to_string_pretty(&summary)?;
        output::print(&format!("{text}\n"))?;
    } else if let Some(found) = &summary.learning_rate {
        output::print(&train_report::found(found, &display.folder))?;
    } else {
        // Before the first step there is nothing to try.
        let next = match summary.steps {
            0 => String::new(),
            _ => train_report::next(&display.folder),
        };
        output::print(&(train_report::summary(&summary, &display.folder) + &next))?;
    }
    match summary.learning_rate {
        Some(found) if found.learning_rate.is_none() => Err(Failure::Job(anyhow::anyhow!(
            "no learning rate can be told: {}",
            found.reason
        ))),
        _ => Ok(Outcome::Fine),
    }
}

/// Prints rows of the data.
fn show_data(config: &Config, count: u64, json: bool) -> Result<Outcome, Failure> {
    let mut display = ProgressDisplay::new();
    let result = trainer::show_data(config, count, &mut display).map_err(failure);
    display.clear();
    let shown = result?;
    let text = match json {
        true => serde_json::to_string_pretty(&shown)? + "\n",
        false => match &shown {
            Shown::Rows(rows) => train_data::shown(rows, output::wants_colour(&std::io::stdout())),
            Shown::Media(media) => train_data::media(media),
        },
    };
    output::print(&text)?;
    Ok(Outcome::Fine)
}

/// Checks the config only.
fn check(args: &Args, json: bool) -> Result<Outcome, Failure> {
    let Some(path) = &args.config else {
        return Err(Failure::usage("`--check` needs a config, or `-` for stdin"));
    };
    let problems = match (load(args, path, &[]), json) {
        (Err(error), true) => error.problems,
        (found, _) => {
            found.map_err(|error| Failure::Usage(config_report::render(&error)))?;
            Vec::new()
        }
    };
    match json {
        true => output::print(&format!("{}\n", config_report::json(&problems)))?,
        false => output::print("the config is fine\n")?,
    }
    Ok(match problems.is_empty() {
        true => Outcome::Fine,
        false => Outcome::Child(2),
    })
}

/// The config in a file, or on stdin, with these keys and those of the command line.
fn load(args: &Args, path: &Path, tuned: &[String]) -> Result<Config, ConfigError> {
    let mut set = [tuned, &args.set].concat();
    set.extend(
        args.find_lr
            .then(|| "train.find_learning_rate=true".to_owned()),
    );
    if path != Path::new("-") {
        return Config::load(path, &set);
    }
    let text = train_environment::stdin()
        .map_err(|error| ConfigError::of(&args.source, format!("cannot read it: {error}")))?;
    Config::parse(&args.source, &text, &set)
}

/// The given config file, or the run's own, or the default one, with these keys.
fn config(args: &Args, tuned: &[String]) -> Result<Config, Failure> {
    let load = |path: &Path| {
        load(args, path, tuned).map_err(|error| Failure::Usage(config_report::render(&error)))
    };
    let mut config = match (&args.config, args.resume.as_deref()) {
        (Some(path), _) => load(path)?,
        (None, Some(run)) if run != "latest" => load(&own_config(Path::new(run))?)?,
        (None, Some(_)) => {
            let named = load(Path::new(DEFAULT_CONFIG))?;
            let run = trainer::resume::newest_run(&named).map_err(failure)?;
            load(&own_config(&run)?)?
        }
        (None, None) => load(Path::new(DEFAULT_CONFIG))?,
    };
    if args.resume.is_some() {
        config.train.resume_from_checkpoint.clone_from(&args.resume);
    }
    Ok(config)
}

/// The config of a run, by its folder or that of a checkpoint.
fn own_config(run: &Path) -> Result<PathBuf, Failure> {
    let path = trainer::resume::config_of(run);
    if path.is_file() {
        return Ok(path);
    }
    Err(Failure::usage(format_args!(
        "`--resume {}` is neither a run nor a checkpoint of one, since there is no `{}`",
        run.display(),
        path.display()
    )))
}

/// Installs the allocator before looking at the GPU, since that would initialise libtorch's own
/// allocator.
fn install(config: &Config) -> Result<Allocator, Failure> {
    let allocator = Allocator::install(config).map_err(failure)?;
    refuse_wrong_gradients(config)?;
    Ok(allocator)
}

/// Finds out which GPU the config's device is, and refuses one with wrong gradients.
fn refuse_wrong_gradients(config: &Config) -> Result<(), Failure> {
    // The run itself reports a missing device.
    let Some(index) = trainer::device::choose(&config.device)
        .ok()
        .and_then(trainer::device::gpu_index)
    else {
        return Ok(());
    };
    refuse_on(&live::machine(&Python::Skip), index)
}

/// The same for the GPU of this number, as HIP counts them here.
fn refuse_on(machine: &Machine, index: usize) -> Result<(), Failure> {
    let gpu = seen_by_hip(machine)
        .get(index)
        .and_then(|&gpu| machine.gpus.get(gpu));
    unsafe_gpu::refuse_wrong_ones(gpu)
}

/// Checks everything, and prints the result.
fn dry_run(config: &Config, mut display: ProgressDisplay, json: bool) -> Result<Outcome, Failure> {
    let result = install(config)
        .and_then(|allocator| trainer::dry_run(config, &allocator, &mut display).map_err(failure));
    display.bar.finish_and_clear();
    let found = result?;
    let text = match json {
        true => serde_json::to_string_pretty(&found)? + "\n",
        false => train_report::dry_run(&found),
    };
    output::print(&text)?;
    Ok(Outcome::Fine)
}

/// Prints how the model fits.
fn fits(config: &Config, mut display: ProgressDisplay, json: bool) -> Result<Outcome, Failure> {
    let result = install(config)
        .and_then(|allocator| trainer::fit(config, &allocator, &mut display).map_err(failure));
    display.bar.finish_and_clear();
    let found = result?;
    let text = match json {
        true => serde_json::to_string_pretty(&found)? + "\n",
        false => train_report::fit(&found),
    };
    output::print(&text)?;
    Ok(Outcome::Fine)
}

/// The progress bar, and lines above it.
pub(crate) struct ProgressDisplay {
    bar: ProgressBar,
    folder: PathBuf,
    /// Without a terminal there is no bar, and every record becomes a line.
    interactive: bool,
    /// The last line about preparations, and when it was written.
    prepared: Option<(String, Instant)>,
    /// The name of the run.
    name: String,
    /// The last completed step.
    step: u64,
    /// Steps of the run.
    max_steps: u64,
    /// When the last line was written, and when the steps began, until the first was done.
    last_line: Cell<Instant>,
    first_step: Option<Instant>,
    notifier: Notifier,
}

impl ProgressDisplay {
    pub(crate) fn new() -> Self {
        let interactive = std::io::stderr().is_terminal();
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(8));
        Self {
            bar,
            folder: PathBuf::new(),
            interactive,
            prepared: None,
            name: String::new(),
            step: 0,
            max_steps: 0,
            last_line: Cell::new(Instant::now()),
            first_step: None,
            notifier: Notifier::default(),
        }
    }

    /// Sends the notification about how the run ended.
    fn notify_of_the_end(&mut self, result: Result<&Summary, &Failure>) {
        let event = match result {
            Ok(summary) if summary.ending == Ending::Completed => Event::Completed {
                steps: summary.steps,
                loss: summary.last_loss.map(|loss| format!("{loss:.4}")),
            },
            Ok(summary) => Event::Stopped {
                steps: summary.steps,
                of: summary.max_steps,
            },
            Err(Failure::Usage(error) | Failure::Job(error)) => Event::Failed {
                step: self.step,
                error: format!("{error:#}"),
            },
        };
        self.notifier.send(&self.name, event);
    }

    /// Removes the bar.
    pub(crate) fn clear(&self) {
        self.bar.finish_and_clear();
    }

    /// Whether a line about preparations should be logged: it is about something else, or the last line about this is old.
    /// The part after a colon is progress.
    fn is_news(&mut self, what: &str) -> bool {
        let subject = what.split(':').next().unwrap_or_default();
        if let Some((before, when)) = &self.prepared
            && before == subject
            && when.elapsed() < LINE_EVERY
        {
            return false;
        }
        self.prepared = Some((subject.to_owned(), Instant::now()));
        true
    }

    fn line(&self, text: impl AsRef<str>) {
        let text = text.as_ref();
        self.last_line.set(Instant::now());
        if self.interactive {
            self.bar.println(text);
        } else {
            // Nothing can be reported if stderr is closed.
            let _ = writeln!(std::io::stderr(), "{text}");
        }
    }
}

impl Observer for ProgressDisplay {
    fn preparing(&mut self, what: &str) {
        if self.interactive {
            self.bar.set_style(style("{spinner} {msg}"));
            self.bar.set_message(what.to_owned());
            self.bar.enable_steady_tick(Duration::from_millis(120));
        } else if self.is_news(what) {
            self.line(what);
        }
    }

    fn started(&mut self, start: &Start<'_>) {
        self.folder = start.folder.to_owned();
        if let Some(name) = start.folder.file_name() {
            self.name = name.to_string_lossy().into_owned();
        }
        self.step = start.resumed_at.unwrap_or(0);
        let environment = start.environment;
        self.line(format!("libtorch   {}", environment.libtorch));
        self.line(format!("device     {}", environment.device));
        if let Some(ranks) = start.ranks {
            self.line(format!("ranks      {ranks}"));
        }
        self.line(format!("allocator  {}", environment.allocator));
        self.line(format!("data       {}", environment.data));
        self.line(format!("model      {}", environment.model));
        if let Some(attention) = &environment.attention {
            self.line(format!("attention  {attention}"));
        }
        if let Some(batch) = &environment.batch {
            self.line(format!("batch      {batch}"));
        }
        self.line(format!("run        {}", start.folder.display()));
        for line in train_report::plan(start.plan) {
            self.line(line);
        }
        self.line(format!("memory     {}", start.estimate.describe()));
        if !start.advice.is_empty() {
            self.line(
                "           that is more than is available; what helps, most effective first:",
            );
        }
        for advice in start.advice {
            self.line(format!("           - {advice}"));
        }
        if let Some(step) = start.resumed_at {
            self.line(format!("resumed    after step {}", thousands(step)));
        }
        for change in start.changes {
            self.line(format!("changed    {change}"));
        }
        self.line(train_report::steps(start));
        self.line("");
        self.max_steps = start.max_steps;
        self.first_step = Some(Instant::now());
        self.bar.disable_steady_tick();
        // Nobody knows yet how long a step takes.
        self.bar.set_style(style("{bar:24} {pos}/{len}  {msg}"));
        self.bar.set_message("the first step");
        self.bar.set_length(start.max_steps);
        self.bar.set_position(start.resumed_at.unwrap_or(0));
    }

    fn stepped(&mut self, step: u64) {
        self.step = step;
        self.bar.set_position(step);
        if let Some(began) = self.first_step.take() {
            self.bar
                .set_style(style("{bar:24} {pos}/{len}  {msg}  {eta} left"));
            self.bar.set_message("");
            self.bar.reset_eta();
            if !self.interactive {
                let took = began.elapsed().as_secs_f64();
                self.line(format!(
                    "step {step:>6}  of {}, after {took:.1} s",
                    thousands(self.max_steps)
                ));
            }
        } else if !self.interactive && self.last_line.get().elapsed() >= 6 * LINE_EVERY {
            self.line(format!("step {step:>6}  of {}", thousands(self.max_steps)));
        }
    }

    fn logged(&mut self, metrics: &Metrics) {
        let turns: String = (metrics.turns.iter())
            .map(|(name, turn)| format!(" ({name} {:.4})", turn.loss))
            .collect();
        let turns = turns + &train_report::rewards(&metrics.measures);
        let text = format!(
            "loss {:.4}{turns}  lr {:.2e}  {} tokens/s  {}",
            metrics.loss,
            metrics.learning_rate,
            thousands(metrics.units_per_second.round() as u64),
            Bytes(metrics.memory.headline()),
        );
        if self.interactive {
            self.bar.set_message(text);
        } else {
            self.line(format!(
                "step {:>6}  {text}  grad norm {:.3}",
                metrics.step, metrics.gradient_norm
            ));
        }
    }

    fn evaluated(&mut self, step: u64, evaluation: &Evaluation) {
        self.line(format!(
            "step {step:>6}  held out: {}",
            train_report::evaluation(evaluation)
        ));
    }

    fn sampled(&mut self, step: u64, samples: &[Sample]) {
        for sample in samples {
            self.line(format!("step {step:>6}  sample after {:?}:", sample.prompt));
            for line in sample.text.trim_matches('\n').lines() {
                self.line(format!("    │ {line}"));
            }
            for file in &sample.files {
                self.line(format!("    │ {file}"));
            }
        }
    }

    fn oom_retry(&mut self, step: &OomRetry) {
        self.line(step.to_string());
    }

    fn skipped(&mut self, step: &SkippedStep) {
        self.line(format!("skipped {step}"));
    }

    fn rolled_back(&mut self, rollback: &Rollback) {
        self.line(format!(
            "step {:>6}  three steps in a row were skipped: returning to the checkpoint of step {}, and \
            continuing with the data that follow",
            rollback.from_step, rollback.to_step,
        ));
        self.bar.set_position(rollback.to_step);
        self.step = rollback.to_step;
        let (from, to) = (rollback.from_step, rollback.to_step);
        self.notifier
            .send(&self.name, Event::RolledBack { from, to });
    }

    fn stopped_early(&mut self, step: u64, evaluations: u32, best: &Best) {
        self.line(format!(
            "step {step:>6}  {evaluations} evaluations in a row were no better than {:.4} after step {}: \
            the run ends early",
            best.value, best.step
        ));
    }

    fn best_loaded(&mut self, step: u64, value: f64) {
        self.line(format!(
            "the best weights are those of step {step}, with {value:.4}"
        ));
    }

    fn saved(&mut self, step: u64, checkpoint: &Path) {
        self.line(format!("step {step:>6}  saved {}", checkpoint.display()));
    }
}

fn style(template: &str) -> ProgressStyle {
    // All templates are constants that parse; a plain bar is the fallback.
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("━╸─")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gpu_whose_gradients_are_wrong_is_refused_by_the_number_that_hip_gives_it() {
        let dump = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../doctor/tests/fixtures/synthetic/kfd_gfx1033_steamdeck.txt"
        );
        let text = std::fs::read_to_string(dump).expect("a fixture");
        let mut machine = doctor::dump::read(&text).expect("a machine");
        let card = platform::machine::Gpu {
            index: 1,
            gfx: "gfx1201".parse().ok(),
            ..platform::machine::Gpu::default()
        };
        machine.gpus.push(card);
        assert!(matches!(refuse_on(&machine, 0), Err(Failure::Usage(_))));
        assert!(refuse_on(&machine, 1).is_ok());
        machine
            .variables
            .insert("ROCR_VISIBLE_DEVICES".to_owned(), "1,0".to_owned());
        assert!(refuse_on(&machine, 0).is_ok());
        assert!(refuse_on(&machine, 1).is_err());
    }
}
