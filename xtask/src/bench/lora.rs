//! `cargo xtask bench lora`: `surefoot train` against Hugging Face's Trainer with PEFT, or TRL.
//!
//! Both fine-tune SmolLM2-135M, or a model with random weights and few blocks as wide as those of a larger one, from the
//! same adapter on the same batches, in turn, pair after pair, so that a machine that slows down slows both. The losses show
//! that they did the same work.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::measured::{self, Measured, difference, steady};
use super::median;
use super::process;
use super::train::{cpu_name, largest};
use crate::{setup, train, workspace};

/// Steps at the start that are not counted: caches are cold, and memory is first touched.
const WARM_UP: usize = 2;

/// Number of losses that are compared.
const COMPARED: usize = 5;

/// Fine-tuning speed and memory, against Hugging Face's Trainer with PEFT.
#[derive(clap::Args)]
pub(crate) struct LoraBench {
    /// The training config (YAML)
    #[arg(default_value = "bench/lora/bench.yaml")]
    config: PathBuf,

    /// What is trained; may be given several times
    #[arg(long = "row", value_enum, default_values_t = [Row::Smollm2])]
    rows: Vec<Row>,

    /// How many times each side runs
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pairs: u32,

    /// Optimizer steps of each run; the first two are not counted
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u32).range(6..))]
    steps: u32,

    /// Base and matrix products in bfloat16 on both sides; without it all in fp32
    #[arg(long)]
    bf16: bool,

    /// Fail if the losses of the first steps differ by more than 1e-3 of their value (1e-2
    /// with `--bf16`)
    #[arg(long)]
    check: bool,

    /// The folder where the numbers go [default: bench in the target folder]
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
}

/// What is trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
enum Row {
    /// SmolLM2-135M
    Smollm2,
    /// Four blocks as wide as those of Gemma 3 1B
    Gemma3,
    /// Four blocks as wide as those of Qwen3.5 0.8B
    #[value(name = "qwen3.5")]
    Qwen35,
    /// Four blocks of 32 experts, with adapters on attention and experts
    Moe,
    /// SmolLM2-135M by DPO, against TRL
    Dpo,
}

/// What a row trains.
struct Trained {
    model: PathBuf,
    adapter: PathBuf,
    /// For `surefoot`.
    settings: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Report {
    row: Row,
    evidence_level: &'static str,
    cpu: String,
    cores: usize,
    config: PathBuf,
    bf16: bool,
    steps: u32,
    versions: Vec<String>,
    surefoot: Vec<Measured>,
    hugging_face: Vec<Measured>,
    medians: Medians,
}

#[derive(Debug, Serialize)]
struct Medians {
    surefoot_tokens_per_second: f64,
    hugging_face_tokens_per_second: f64,
    /// Median over the pairs of surefoot's speed divided by Hugging Face's: above 1, surefoot is faster.
    speed_ratio: f64,
    surefoot_peak_resident_bytes: f64,
    hugging_face_peak_resident_bytes: f64,
    surefoot_peak_anonymous_bytes: f64,
    hugging_face_peak_anonymous_bytes: f64,
    /// Ratio of the resident peaks: below 1, surefoot needs less.
    resident_ratio: f64,
    /// Ratio of the peaks without file-backed pages.
    anonymous_ratio: f64,
    /// Largest relative difference among the losses compared.
    loss_difference: f64,
}

/// What `bench/lora/reference.py` writes.
#[derive(Deserialize)]
pub(super) struct ReferenceResult {
    transformers: String,
    torch: String,
    tokens_per_step: f64,
    pub(super) losses: Vec<f64>,
    step_seconds: Vec<f64>,
}

impl ReferenceResult {
    /// Reads what the reference wrote to `path`.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path)
            .with_context(|| format!("cannot read `{}`", path.display()))?;
        serde_json::from_str(&text).context("cannot read what the reference wrote")
    }

    /// Tokens per second of each step.
    pub(super) fn speeds(&self) -> Vec<f64> {
        let speed = |seconds: &f64| self.tokens_per_step / seconds;
        self.step_seconds.iter().map(speed).collect()
    }

    /// The versions of the libraries it was measured with.
    pub(super) fn versions(&self) -> Vec<String> {
        vec![
            format!("transformers {}", self.transformers),
            format!("torch {}", self.torch),
        ]
    }
}

impl LoraBench {
    pub(crate) fn run(self) -> Result<()> {
        let libtorch = setup::ensure()?;
        let python = setup::reference_python()?;
        let surefoot = train::build(&libtorch)?;
        let model = setup::published_model(&surefoot)?;
        for row in &self.rows {
            self.run_row(*row, &surefoot, &python, &model)?;
        }
        Ok(())
    }

    fn run_row(&self, row: Row, surefoot: &Path, python: &Path, published: &Path) -> Result<()> {
        let scratch = tempfile::tempdir().context("cannot make a temporary folder")?;
        let trained = self.prepare(row, python, published, scratch.path())?;
        let (mut ours, mut theirs, mut versions) = (Vec::new(), Vec::new(), Vec::new());
        for pair in 1..=self.pairs {
            eprintln!("{}: pair {pair} of {}", row.name(), self.pairs);
            let folder = scratch.path().join(format!("pair-{pair}"));
            ours.push(self.run_surefoot(surefoot, &folder, &trained)?);
            let (measured, used) = self.run_reference(python, &folder, &trained)?;
            theirs.push(measured);
            versions = used;
        }
        let report = Report {
            row,
            evidence_level: "CPU, real",
            cpu: cpu_name(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            config: self.config.clone(),
            bf16: self.bf16,
            steps: self.steps,
            versions,
            medians: Medians::of(&ours, &theirs),
            surefoot: ours,
            hugging_face: theirs,
        };
        report.print();
        let target = workspace::target(&workspace::shell()?)?;
        let out = self.out.clone().unwrap_or(target.join("bench"));
        report.write(&out.join(match row {
            Row::Smollm2 => "lora.json".to_owned(),
            _ => format!("lora-{}.json", row.name()),
        }))?;
        let difference = report.medians.loss_difference;
        let most = if self.bf16 { 1e-2 } else { 1e-3 };
        if self.check && difference.is_nan() | (difference > most) {
            bail!("the losses differ by {difference:.1e} of their value: not the same training");
        }
        Ok(())
    }

    /// Makes what `row` trains in `scratch`; `published` is the folder of SmolLM2.
    fn prepare(
        &self,
        row: Row,
        python: &Path,
        published: &Path,
        scratch: &Path,
    ) -> Result<Trained> {
        let made = scratch.join("made");
        if row != Row::Smollm2 {
            let mut command = Command::new(python);
            command.arg(workspace::root().join("bench/lora/model.py"));
            command
                .arg(row.name())
                .arg(&made)
                .arg("--like")
                .arg(published);
            process::run(command)?;
        }
        let adapter = scratch.join("adapter");
        let mut settings = vec![
            format!("adapter.resume_from={}", adapter.display()),
            format!("train.max_steps={}", self.steps),
            format!("train.bf16={}", self.bf16),
        ];
        let model = match row {
            Row::Smollm2 | Row::Dpo => published.to_owned(),
            _ => {
                settings.push(format!("model.name_or_path={}", made.display()));
                made.clone()
            }
        };
        if row == Row::Dpo {
            settings.extend([
                format!("data.path={}", made.join("pairs.jsonl").display()),
                "data.validation_fraction=0".to_owned(),
                "preference.loss_type=sigmoid".to_owned(),
            ]);
        }
        let mut command = self.reference(python, &self.config, &model);
        command.arg("--make-adapter").arg(&adapter);
        if row == Row::Moe {
            command.arg("--experts");
        }
        process::run(command)?;
        Ok(Trained {
            model,
            adapter,
            settings,
        })
    }

    fn run_surefoot(&self, surefoot: &Path, folder: &Path, trained: &Trained) -> Result<Measured> {
        let settings = &trained.settings;
        measured::surefoot(surefoot, &self.config, settings, folder, WARM_UP)
    }

    fn run_reference(
        &self,
        python: &Path,
        folder: &Path,
        trained: &Trained,
    ) -> Result<(Measured, Vec<String>)> {
        let out = folder.join("reference.json");
        let config = folder.join("bench/config.yaml");
        let mut command = self.reference(python, &config, &trained.model);
        command
            .arg("--adapter")
            .arg(&trained.adapter)
            .arg("--out")
            .arg(&out);
        let memory = process::run(command)?;
        let result = ReferenceResult::read(&out)?;
        let versions = result.versions();
        let measured = Measured {
            tokens_per_second: steady(&result.speeds(), WARM_UP),
            memory,
            losses: result.losses,
        };
        Ok((measured, versions))
    }

    fn reference(&self, python: &Path, config: &Path, model: &Path) -> Command {
        let mut command = Command::new(python);
        command
            .arg(workspace::root().join("bench/lora/reference.py"))
            .arg(config)
            .arg("--model")
            .arg(model)
            .current_dir(workspace::root())
            .env("HF_HUB_OFFLINE", "1");
        command
    }
}

impl Row {
    fn name(self) -> String {
        let value = clap::ValueEnum::to_possible_value(&self);
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// The other side.
    fn peer(self) -> &'static str {
        match self {
            Self::Dpo => "TRL + PEFT",
            _ => "Trainer + PEFT",
        }
    }
}

impl Medians {
    fn of(surefoot: &[Measured], theirs: &[Measured]) -> Medians {
        let over = |runs: &[Measured], value: fn(&Measured) -> f64| {
            median(&runs.iter().map(value).collect::<Vec<_>>())
        };
        let speed = |run: &Measured| run.tokens_per_second;
        let resident = |run: &Measured| run.memory.resident_bytes as f64;
        let anonymous = |run: &Measured| run.memory.anonymous_bytes as f64;
        let pairs = || surefoot.iter().zip(theirs);
        let ratios: Vec<f64> = pairs().map(|(a, b)| speed(a) / speed(b)).collect();
        let differences = pairs().map(|(a, b)| difference(&a.losses, &b.losses, COMPARED));
        Medians {
            surefoot_tokens_per_second: over(surefoot, speed),
            hugging_face_tokens_per_second: over(theirs, speed),
            speed_ratio: median(&ratios),
            surefoot_peak_resident_bytes: over(surefoot, resident),
            hugging_face_peak_resident_bytes: over(theirs, resident),
            surefoot_peak_anonymous_bytes: over(surefoot, anonymous),
            hugging_face_peak_anonymous_bytes: over(theirs, anonymous),
            resident_ratio: over(surefoot, resident) / over(theirs, resident),
            anonymous_ratio: over(surefoot, anonymous) / over(theirs, anonymous),
            loss_difference: differences.fold(0.0, largest),
        }
    }
}

impl Report {
    fn print(&self) {
        let mib = |bytes: f64| format!("{:.0} MiB", bytes / f64::from(1 << 20));
        let medians = &self.medians;
        println!(
            "{:<14} {:>10} {:>12} {:>14}",
            self.row.name(),
            "tokens/s",
            "peak RSS",
            "its anonymous"
        );
        for (name, speed, resident, anonymous) in [
            (
                "surefoot",
                medians.surefoot_tokens_per_second,
                medians.surefoot_peak_resident_bytes,
                medians.surefoot_peak_anonymous_bytes,
            ),
            (
                self.row.peer(),
                medians.hugging_face_tokens_per_second,
                medians.hugging_face_peak_resident_bytes,
                medians.hugging_face_peak_anonymous_bytes,
            ),
        ] {
            let (resident, anonymous) = (mib(resident), mib(anonymous));
            println!("{name:<14} {speed:>10.1} {resident:>12} {anonymous:>14}");
        }
        println!(
            "surefoot has {:.2} × the tokens/s and {:.2} × the peak memory (median of {} pairs, \
             {} steps each, {}; {}, {} cores)",
            medians.speed_ratio,
            medians.resident_ratio,
            self.surefoot.len(),
            self.steps,
            if self.bf16 { "bf16" } else { "fp32" },
            self.cpu,
            self.cores
        );
        println!(
            "the first {COMPARED} losses differ by at most {:.1e} of their value",
            medians.loss_difference
        );
    }

    fn write(&self, path: &Path) -> Result<()> {
        measured::write(self, path)?;
        eprintln!("every run is in `{}`", path.display());
        Ok(())
    }
}
