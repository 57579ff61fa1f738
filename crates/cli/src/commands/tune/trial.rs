//! Some steps of a config in a process of their own.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use indicatif::ProgressBar;
use surefoot_cli::output::Failure;
use trainer::{Config, Record};

use super::kept::{self, SWITCH, Setting, TUNABLE_OP_FILE, TUNABLE_OP_SEARCH};
use super::{Args, LARGEST_DIFFERENCE};

/// Steps at the start that are not timed: kernels are loaded, and memory is first touched.
const WARM_UP: usize = 2;

/// A process may take this many times as long as the config as it is, and at least this long.
const PATIENCE: u32 = 5;
const LEAST_PATIENCE: Duration = Duration::from_secs(300);
/// A search for kernels tries hundreds for each product.
const SEARCH: Duration = Duration::from_secs(3600);

/// How the folders of trials begin.
const FOLDER: &str = ".tune-";

/// The file there that is locked as long as they last.
const LOCK: &str = "lock";

/// The variable by which a process knows that it is a trial.
const TRIAL: &str = "SUREFOOT_TRIAL";

/// Lets this process end with the one that tries settings, if it is a trial.
pub(crate) fn end_with_the_trials() {
    #[cfg(target_os = "linux")]
    if std::env::var_os(TRIAL).is_some() {
        let signal = Some(rustix::process::Signal::KILL);
        // Without it, only a trial of a killed process goes on to its end.
        let _ = rustix::process::set_parent_process_death_signal(signal);
    }
}

/// What some steps took.
#[derive(Debug, Clone)]
pub(super) struct Measured {
    /// Tokens per second: the median of the steps.
    pub(super) speed: f64,
    /// Of all steps.
    pub(super) losses: Vec<f64>,
}

impl Measured {
    /// How its losses differ, if they do.
    pub(super) fn differs_from(&self, other: &Self) -> Option<String> {
        let pairs = self.losses.iter().zip(&other.losses);
        let off = pairs
            .map(|(own, other)| (own - other).abs() / other.abs().max(1e-6))
            .map(|off| if off.is_nan() { f64::INFINITY } else { off })
            .fold(0.0, f64::max);
        let is_short = self.losses.len() != other.losses.len();
        (is_short || off > LARGEST_DIFFERENCE)
            .then(|| format!("losses differ by {:.0} %", 100.0 * off))
    }
}

/// The process that trains now.
type Running = Arc<Mutex<Option<Child>>>;

/// Runs of one config.
pub(super) struct Trials<'a> {
    args: &'a Args,
    has_adapter: bool,
    /// Where their runs go; removed with this.
    folder: tempfile::TempDir,
    /// Says that the folder is in use.
    _lock: File,
    running: Running,
    /// How long the first one took.
    first: std::cell::Cell<Option<Duration>>,
}

impl<'a> Trials<'a> {
    pub(super) fn new(args: &'a Args, config: &Config) -> anyhow::Result<Self> {
        let place = &config.output_dir;
        let context = || format!("cannot make a folder in `{}`", place.display());
        fs::create_dir_all(place).with_context(context)?;
        remove_what_was_left(place);
        let folder = tempfile::Builder::new()
            .prefix(FOLDER)
            .tempdir_in(place)
            .with_context(context)?;
        let lock = File::create(folder.path().join(LOCK)).with_context(context)?;
        lock.lock().with_context(context)?;
        let running = Running::default();
        clean_up_when_stopped(&running, folder.path())?;
        Ok(Self {
            _lock: lock,
            running,
            args,
            has_adapter: config.adapter.is_some(),
            folder,
            first: std::cell::Cell::new(None),
        })
    }

    /// Runs the config with these settings. `Ok(Err)` says why no steps came out of it.
    pub(super) fn run(
        &self,
        what: &str,
        settings: &[Setting],
    ) -> Result<Result<Measured, String>, Failure> {
        let limit = match self.first.get() {
            None => Duration::MAX,
            Some(first) => LEAST_PATIENCE.max(PATIENCE * first),
        };
        let began = Instant::now();
        let ended = self.train(what, settings, &[], limit)?;
        if self.first.get().is_none() {
            self.first.set(Some(began.elapsed()));
        }
        Ok(match ended {
            Some(reason) => Err(reason),
            None => self.measured().map_err(|error| format!("{error:#}")),
        })
    }

    /// What has to be done before a setting is timed: TunableOp looks for kernels. `Ok(Err)` says why the setting cannot be tried.
    pub(super) fn prepare(
        &self,
        setting: &mut Setting,
        chosen: &[Setting],
    ) -> Result<Result<(), String>, Failure> {
        let Some(file) = setting.variables.get_mut(TUNABLE_OP_FILE) else {
            return Ok(Ok(()));
        };
        // PyTorch puts the number of the GPU before the extension.
        let folder = kept::folder();
        fs::create_dir_all(&folder)
            .with_context(|| format!("cannot make `{}`", folder.display()))?;
        let process = std::process::id();
        let path = folder.join(format!("tunableop-{process}-.csv"));
        *file = path.display().to_string();
        let all: Vec<Setting> = chosen.iter().chain([&*setting]).cloned().collect();
        let search = [(TUNABLE_OP_SEARCH, "1")];
        let ended = self.train("looking for kernels", &all, &search, SEARCH)?;
        let written = path.with_file_name(format!("tunableop-{process}-0.csv"));
        Ok(match ended {
            Some(reason) => Err(reason),
            None if !written.is_file() => Err("this libtorch has no TunableOp".into()),
            None => Ok(()),
        })
    }

    /// Trains; why it did not end well, if so.
    fn train(
        &self,
        what: &str,
        settings: &[Setting],
        variables: &[(&str, &str)],
        limit: Duration,
    ) -> Result<Option<String>, Failure> {
        let run = self.folder.path().join("trial");
        let removed = fs::remove_dir_all(&run);
        if run.exists() {
            removed.with_context(|| format!("cannot remove `{}`", run.display()))?;
        }
        let log = self.folder.path().join("log");
        let mut command = Command::new(surefoot_cli::itself()?.0);
        command.arg("train").arg(&self.args.config);
        let mut steps_alone = vec![
            "name=trial".to_owned(),
            format!("output_dir={}", self.folder.path().display()),
            format!("train.max_steps={}", self.args.steps as usize + WARM_UP),
            "train.num_train_epochs=null".into(),
            "train.warmup_steps=0".into(),
            "train.warmup_ratio=null".into(),
            "train.lr_scheduler_type=constant".into(),
            "train.lr_scheduler_kwargs={}".into(),
            "train.load_best_model_at_end=false".into(),
            "train.early_stopping_patience=null".into(),
            "train.early_stopping_threshold=null".into(),
            "train.resume_from_checkpoint=null".into(),
            "train.find_learning_rate=false".into(),
            "train.logging_steps=1".into(),
            "train.eval_steps=0".into(),
            "train.save_steps=0".into(),
            "train.report_to=[]".into(),
            "sample.max_new_tokens=0".into(),
            "sample.sample_steps=0".into(),
            "notify.url=null".into(),
        ];
        if self.has_adapter {
            steps_alone.push("adapter.save_merged=false".into());
        }
        let keys = settings.iter().flat_map(|setting| &setting.keys);
        let keys = keys.map(|(key, value)| format!("{key}={value}"));
        let own = self.args.set.iter().cloned();
        for set in own.chain(steps_alone).chain(keys) {
            command.arg("--set").arg(set);
        }
        for setting in settings {
            command.envs(&setting.variables);
        }
        command
            .envs(variables.iter().copied())
            .env(SWITCH, "off")
            .env(TRIAL, "1")
            .env_remove(platform::requests::PROCESS)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log)?);
        let bar = ProgressBar::new_spinner().with_message(what.to_owned());
        bar.enable_steady_tick(Duration::from_millis(120));
        if bar.is_hidden() {
            eprintln!("{what}");
        }
        let ended = wait(&self.running, command, limit)?;
        bar.finish_and_clear();
        Ok(match ended {
            Some(status) if status.success() => None,
            Some(status) => Some(last_words(&log).unwrap_or_else(|| status.to_string())),
            None => Some(format!("not done after {} s", limit.as_secs())),
        })
    }

    /// What the run has written.
    fn measured(&self) -> anyhow::Result<Measured> {
        let path = self.folder.path().join("trial/metrics.jsonl");
        let text = fs::read_to_string(&path).context("it has written no steps")?;
        let (mut losses, mut speeds) = (Vec::new(), Vec::new());
        for line in text.lines() {
            if let Record::Train {
                loss,
                tokens_per_second,
                ..
            } = serde_json::from_str(line)?
            {
                losses.push(loss);
                speeds.push(tokens_per_second);
            }
        }
        let mut timed = speeds.split_off(WARM_UP.min(speeds.len()));
        anyhow::ensure!(!timed.is_empty(), "it has done too few steps");
        timed.sort_by(f64::total_cmp);
        Ok(Measured {
            speed: timed[timed.len() / 2],
            losses,
        })
    }
}

/// How a process ended; `None` if it was killed because the time was over.
fn wait(
    running: &Running,
    mut command: Command,
    limit: Duration,
) -> std::io::Result<Option<ExitStatus>> {
    let began = Instant::now();
    *locked(running) = Some(command.spawn()?);
    loop {
        if let Some(child) = &mut *locked(running) {
            if let Some(status) = child.try_wait()? {
                return Ok(Some(status));
            }
            if began.elapsed() > limit {
                child.kill()?;
                child.wait()?;
                return Ok(None);
            }
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn locked(running: &Running) -> MutexGuard<'_, Option<Child>> {
    running.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends the process that trains and removes `folder` when this process is asked to stop. Windows ends both together, and the next
/// search removes the folder.
#[cfg(windows)]
fn clean_up_when_stopped(_running: &Running, _folder: &Path) -> std::io::Result<()> {
    Ok(())
}

/// Ends the process that trains and removes `folder` when this process is asked to stop.
#[cfg(unix)]
fn clean_up_when_stopped(running: &Running, folder: &Path) -> std::io::Result<()> {
    use super::super::train_signals::is_ignored;
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    // Under `nohup`, or in the background of a script, some are ignored, and stay so.
    let asked = [SIGINT, SIGTERM, SIGHUP]
        .into_iter()
        .filter(|signal| !is_ignored(*signal));
    let mut signals = signal_hook::iterator::Signals::new(asked)?;
    let (running, folder) = (Arc::clone(running), folder.to_owned());
    let clean_up = move || {
        let Some(signal) = signals.forever().next() else {
            return;
        };
        // Never released: no other process is started.
        let mut running = locked(&running);
        if let Some(child) = &mut *running {
            // Both fail if it has ended.
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = fs::remove_dir_all(&folder);
        let _ = signal_hook::low_level::emulate_default_handler(signal);
    };
    let thread = std::thread::Builder::new().name("signals".into());
    thread.spawn(clean_up).map(drop)
}

/// Removes folders of trials in `place` whose process was killed.
fn remove_what_was_left(place: &Path) {
    for entry in fs::read_dir(place).into_iter().flatten().flatten() {
        let is_one = entry.file_name().to_string_lossy().starts_with(FOLDER);
        let lock = is_one.then(|| File::open(entry.path().join(LOCK)).ok());
        if lock.flatten().is_some_and(|lock| lock.try_lock().is_ok()) {
            // If that fails, it is only in the way.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// What the program said last: its error, if it told one, in one line.
fn last_words(log: &Path) -> Option<String> {
    let text = String::from_utf8_lossy(&fs::read(log).ok()?).into_owned();
    let lines = text.lines().map(str::trim);
    let lines: Vec<&str> = lines
        .filter(|line| line.contains(char::is_alphabetic))
        .collect();
    let told = lines
        .iter()
        .rposition(|line| line.starts_with("surefoot: "));
    let last = told.map_or_else(
        || lines.last().copied().into_iter().collect(),
        |at| lines[at..].iter().take(2).copied().collect::<Vec<_>>(),
    );
    (!last.is_empty()).then(|| last.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_told_in_a_line() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let said = |text: &str| {
            fs::write(&log, text).unwrap();
            last_words(&log)
        };
        let text =
            "loading\nsurefoot: the config has a problem\n\n  x `a` is wrong\n   ,-[1]\n   `----\n";
        assert_eq!(
            said(text).unwrap(),
            "surefoot: the config has a problem x `a` is wrong"
        );
        assert_eq!(
            said("one\nfree(): invalid pointer\n\n").unwrap(),
            "free(): invalid pointer"
        );
        assert_eq!(said(""), None);
    }

    #[test]
    fn losses_have_to_be_the_same() {
        let of = |losses: &[f64]| Measured {
            speed: 1.0,
            losses: losses.to_vec(),
        };
        let base = of(&[2.0, 1.5, 1.0]);
        assert_eq!(of(&[2.001, 1.49, 1.01]).differs_from(&base), None);
        assert!(of(&[2.0, 1.5, 1.1]).differs_from(&base).is_some());
        assert!(of(&[2.0, f64::NAN, 1.0]).differs_from(&base).is_some());
        assert!(of(&[2.0, 1.5]).differs_from(&base).is_some());
    }
}
