//! `cargo xtask bench step`: what a training step asks of a GPU, counted, ours beside PEFT's in eager mode.
//!
//! Both sides run on the simulated device, under the libtorch of the reference environment's CUDA wheel, with models of
//! real shapes and few blocks (`bench/step/model.py`). A library that is loaded in advance (`bench/step/count.cpp`)
//! counts operators, launches, bytes and floating-point operations by phase. Blocks of one kind are alike, so that the
//! counts of the whole model follow from models of one and of two of them.
//!
//! From the counts follow bounds of time on GPUs with published numbers (a roofline): no operator is faster than its
//! bytes or its operations allow. That is no forecast: caches, launches and kernels that are slower than the hardware
//! are left out.

mod counts;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use plotters::style::RGBColor;
use serde::Serialize;

use self::counts::{GPUS, Gpu, Side, Step, parsed, side};
use super::bars::{self, Contender, Panel};
use super::process;
use super::simulator::Simulator;
use crate::{setup, workspace};

/// What a training step asks of a GPU: ours beside PEFT's, counted on the simulated device.
#[derive(clap::Args)]
pub(crate) struct StepBench {
    /// Only models whose names contain this
    #[arg(long, value_name = "TEXT", default_value = "")]
    model: String,

    /// Only sum up what an earlier run has counted
    #[arg(long)]
    counted: bool,

    /// This `surefoot-trainer` instead of a release build: what is counted does not depend on how it was compiled
    #[arg(long, value_name = "FILE")]
    trainer: Option<PathBuf>,

    /// Where the numbers go, and beside them a picture [default: bench/step.json in the target folder]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// A model, its blocks, and what it is trained on.
struct Model {
    name: &'static str,
    what: &'static str,
    /// Lists of blocks that are run, and how often the counts of each are part of the whole model's.
    runs: &'static [(&'static str, f64)],
    data: Data,
    quantization: Option<&'static str>,
}

enum Data {
    Text,
    /// Keys besides the path.
    Media(&'static str),
}

/// As for the whole model of `n` equal blocks: `(2 − n)` times one of one block and `(n − 1)` times one of two.
const MODELS: [Model; 5] = [
    Model {
        name: "qwen3-8b",
        what: "Qwen3-8B, QLoRA (NF4), 2,048 tokens",
        runs: &[("full", -34.0), ("full,full", 35.0)],
        data: Data::Text,
        quantization: Some("nf4"),
    },
    Model {
        name: "gemma3-4b",
        what: "Gemma 3 4B, LoRA, 2,048 tokens",
        // 29 blocks with a window and 5 without.
        runs: &[("local", -32.0), ("local,local", 28.0), ("local,full", 5.0)],
        data: Data::Text,
        quantization: None,
    },
    Model {
        name: "z-image",
        what: "Z-Image, LoRA, 1024 × 1024",
        runs: &[("full", -28.0), ("full,full", 29.0)],
        data: Data::Media("resolution: [1024, 1024]"),
        quantization: None,
    },
    Model {
        name: "sdxl",
        what: "SDXL, LoRA, 1024 × 1024",
        runs: &[("full", 1.0)],
        data: Data::Media("resolution: [1024, 1024]"),
        quantization: None,
    },
    Model {
        name: "wan-5b",
        what: "Wan 2.2 5B, LoRA, 832 × 480, 17 frames",
        runs: &[("full", -28.0), ("full,full", 29.0)],
        data: Data::Media("resolution: [832, 480], num_frames: 17"),
        quantization: None,
    },
];

/// The sides: the name of a file of counts, a setting of ours (what `auto` means would be measured on the simulated device), and
/// where kernels of our own are used.
const SIDES: [(&str, Option<&str>, &str); 3] = [
    ("peft", None, "off"),
    ("operators", Some("adapter.lora_bf16=true"), "off"),
    ("surefoot", Some("adapter.lora_bf16=true"), "any"),
];

/// Ours over PEFT's.
#[derive(Serialize)]
struct Ratios {
    launches: f64,
    bytes: f64,
    flops: f64,
    roofline: BTreeMap<&'static str, f64>,
}

#[derive(Serialize)]
struct Counted {
    model: &'static str,
    sides: Vec<Side>,
    ratios: Ratios,
}

#[derive(Serialize)]
struct Report {
    evidence_level: &'static str,
    sources: BTreeMap<&'static str, &'static str>,
    models: Vec<Counted>,
}

impl StepBench {
    pub(crate) fn run(self) -> Result<()> {
        let shell = workspace::shell()?;
        let target = workspace::target(&shell)?;
        let place = target.join("bench/step");
        let chosen = || {
            MODELS
                .iter()
                .filter(|model| model.name.contains(&self.model))
        };
        if !self.counted {
            let python = setup::reference_python()?;
            let others: &[&str] = match self.trainer {
                Some(_) => &[],
                None => &["--package", "surefoot", "--package", "surefoot-trainer"],
            };
            let simulator = Simulator::build(&shell, &python, others)?;
            let trainer = self.trainer.clone();
            let runner = Runner {
                trainer: trainer.unwrap_or_else(|| simulator.built.join("surefoot-trainer")),
                counter: compiled(&python, &place)?,
                simulator,
                python,
            };
            for model in chosen() {
                for (blocks, _) in model.runs {
                    runner.count(model, blocks, &place.join(model.name).join(blocks))?;
                }
            }
        }
        let models = chosen().map(|model| counted(model, &place));
        let report = Report {
            evidence_level: "2: counted on the simulated device under the libtorch of a CUDA wheel; times are bounds from published \
                             numbers",
            sources: GPUS.iter().map(|gpu| (gpu.name, gpu.source)).collect(),
            models: models.collect::<Result<_>>()?,
        };
        print(&report);
        let out = self.out.clone().unwrap_or(target.join("bench/step.json"));
        let context = || format!("cannot write `{}`", out.display());
        fs::write(&out, serde_json::to_string_pretty(&report)? + "\n").with_context(context)?;
        fs::write(out.with_extension("svg"), picture(&report)?).with_context(context)?;
        eprintln!("all numbers are in `{}`", out.display());
        Ok(())
    }
}

/// Compiles the library that counts, against the headers of that torch.
fn compiled(python: &Path, folder: &Path) -> Result<PathBuf> {
    fs::create_dir_all(folder)?;
    let library = folder.join("libcount.so");
    let script = "import pathlib, torch; print(pathlib.Path(torch.__file__).parent)";
    let torch = Command::new(python).args(["-c", script]).output()?;
    let torch = PathBuf::from(String::from_utf8(torch.stdout)?.trim());
    let mut compiler = Command::new("c++");
    compiler
        .args(["-shared", "-fPIC", "-std=c++17", "-O1", "-w", "-DNDEBUG"])
        .arg("-I")
        .arg(torch.join("include"))
        .arg("-I")
        .arg(torch.join("include/torch/csrc/api/include"))
        .arg(workspace::root().join("bench/step/count.cpp"))
        .arg("-o")
        .arg(&library)
        .arg("-L")
        .arg(torch.join("lib"))
        // Also of what it only changes, so that it is loaded after that.
        .args(["-Wl,--no-as-needed", "-ltorch_cuda", "-ltorch_cpu", "-lc10"]);
    process::run(compiler)?;
    Ok(library)
}

/// Runs programs on the simulated device.
struct Runner {
    trainer: PathBuf,
    counter: PathBuf,
    simulator: Simulator,
    python: PathBuf,
}

impl Runner {
    /// Lets all sides take steps of a model with these `blocks`, whose counts are then in `folder`.
    fn count(&self, model: &Model, blocks: &str, folder: &Path) -> Result<()> {
        eprintln!("{}, blocks: {blocks}", model.what);
        if folder.exists() {
            fs::remove_dir_all(folder)?;
        }
        let scripts = workspace::root().join("bench/step");
        let mut make = Command::new(&self.python);
        make.arg(scripts.join("model.py")).arg(folder);
        make.args(["--model", model.name, "--blocks", blocks]);
        process::run(make)?;
        let config = folder.join("config.yaml");
        fs::write(&config, text(model, folder))?;
        if matches!(model.data, Data::Media(_)) {
            let mut cache = Command::new(&self.trainer);
            cache.arg("cache").arg(&config);
            process::run({
                cache.args(["--set", "device=cpu"]);
                cache
            })?;
        }
        for (name, setting, kernels) in SIDES {
            let mut command = match setting {
                Some(setting) => {
                    let mut ours = Command::new(&self.trainer);
                    ours.arg("train").arg(&config).args(["--set", setting]);
                    ours
                }
                None => {
                    let mut theirs = Command::new(&self.python);
                    theirs.arg(scripts.join("reference.py")).arg(folder);
                    theirs.args(["--model", model.name]);
                    theirs
                }
            };
            let mut preload = self.simulator.preload.clone();
            preload.push(":");
            preload.push(&self.counter);
            command
                .env("LD_LIBRARY_PATH", &self.simulator.libraries)
                .env("LD_PRELOAD", preload)
                .env("DEVICE_SIM_CAPACITY", "64G")
                .env("DEVICE_SIM_DATA", "none")
                .env("HF_HUB_OFFLINE", "1")
                .env("SUREFOOT_KERNELS", kernels)
                .env("SUREFOOT_COUNT", file(folder, name));
            process::run(command)?;
        }
        // What is left are counts: weights have the sizes of real ones, though they are holes.
        fs::remove_dir_all(folder.join("model"))?;
        Ok(fs::remove_dir_all(folder.join("runs"))?)
    }
}

fn file(folder: &Path, side: &str) -> PathBuf {
    folder.join(format!("{side}.tsv"))
}

/// The config of our side.
fn text(model: &Model, folder: &Path) -> String {
    let root = folder.display();
    let data = match model.data {
        Data::Text => format!("path: '{root}/text.txt', block_size: 2048, validation_fraction: 0"),
        Data::Media(keys) => format!("path: '{root}/clips', cache_dir: '{root}/cache', {keys}"),
    };
    let quantization = model.quantization.unwrap_or("null");
    format!(
        "name: bench\noutput_dir: '{root}/runs'\ndevice: gpu:0\n\
         model: {{name_or_path: '{root}/model', quantization: {quantization}}}\n\
         adapter: {{r: 16, lora_alpha: 16}}\ndata: {{{data}}}\n\
         train: {{bf16: true, per_device_train_batch_size: 1, gradient_checkpointing: true, learning_rate: 1.0e-4, \
         lr_scheduler_type: constant, warmup_steps: 0, logging_steps: 1, eval_steps: 0, save_steps: 0, max_steps: 4, \
         verify: off}}\n"
    )
}

/// The counts of the whole model, of all sides.
fn counted(model: &Model, place: &Path) -> Result<Counted> {
    let mut sides = Vec::new();
    for (name, ..) in SIDES {
        let mut whole = Step::new();
        for (blocks, times) in model.runs {
            let path = file(&place.join(model.name).join(blocks), name);
            let context = || format!("in `{}`", path.display());
            let text = fs::read_to_string(&path).with_context(context)?;
            for (key, counts) in parsed(&text).with_context(context)? {
                whole.entry(key).or_default().add(&counts, *times);
            }
        }
        sides.push(side(name, &whole));
    }
    let [theirs, .., ours] = &sides[..] else {
        anyhow::bail!("there are no two sides");
    };
    let roofline = |gpu: &Gpu| ours.roofline_seconds[gpu.name] / theirs.roofline_seconds[gpu.name];
    let flops = |side: &Side| side.total.flops_half + side.total.flops_full;
    let ratios = Ratios {
        launches: ours.total.launches / theirs.total.launches,
        bytes: ours.total.bytes() / theirs.total.bytes(),
        flops: flops(ours) / flops(theirs),
        roofline: GPUS.iter().map(|gpu| (gpu.name, roofline(gpu))).collect(),
    };
    Ok(Counted {
        model: model.what,
        sides,
        ratios,
    })
}

fn print(report: &Report) {
    for counted in &report.models {
        println!("\n{}", counted.model);
        println!(
            "{:<16} {:>9} {:>8} {:>12} {:>12}  at least, on {}",
            "",
            "launches",
            "GB",
            "TFLOP bf16",
            "TFLOP fp32",
            GPUS.map(|gpu| gpu.name.split(' ').next().unwrap_or_default())
                .join(", ")
        );
        for side in &counted.sides {
            let seconds = GPUS
                .iter()
                .map(|gpu| format!("{:.2} s", side.roofline_seconds[gpu.name]));
            println!(
                "{:<16} {:>9.0} {:>8.0} {:>12.1} {:>12.2}  {}",
                side.name,
                side.total.launches,
                side.total.bytes() / 1e9,
                side.total.flops_half / 1e12,
                side.total.flops_full / 1e12,
                seconds.collect::<Vec<_>>().join(", ")
            );
        }
        let ratios = &counted.ratios;
        let roofline = GPUS
            .iter()
            .map(|gpu| format!("{:.2}", ratios.roofline[gpu.name]));
        println!(
            "surefoot / peft: launches {:.2}, bytes {:.2}, operations {:.2}, time at least {}",
            ratios.launches,
            ratios.bytes,
            ratios.flops,
            roofline.collect::<Vec<_>>().join(", ")
        );
    }
}

fn picture(report: &Report) -> Result<String> {
    const CONTENDERS: [Contender; 3] = [
        Contender {
            name: "PEFT, eager",
            colour: RGBColor(0x94, 0xA3, 0xB8),
        },
        Contender {
            name: "Surefoot, adapters in bf16, PyTorch's operators",
            colour: RGBColor(0x5E, 0xEA, 0xD4),
        },
        Contender {
            name: "Surefoot, kernels of its own",
            colour: RGBColor(0x0F, 0x76, 0x6E),
        },
    ];
    let of = |number: fn(&Side) -> f64| -> Vec<Vec<Option<f64>>> {
        let sides = |counted: &Counted| {
            counted
                .sides
                .iter()
                .map(|side| Some(number(side)))
                .collect()
        };
        report.models.iter().map(sides).collect()
    };
    let panel = |title, label, values: Vec<Vec<Option<f64>>>| {
        let most = values
            .iter()
            .flatten()
            .flatten()
            .fold(0.0, |one: f64, other| one.max(*other));
        Panel {
            title,
            end: (1.05 * most).max(1e-3),
            label,
            values,
        }
    };
    let subjects: Vec<String> = report
        .models
        .iter()
        .map(|counted| {
            let name = counted.model.split(',').next().unwrap_or_default();
            name.to_owned()
        })
        .collect();
    bars::draw(
        "A training step, counted on a simulated device",
        &subjects,
        &CONTENDERS,
        &[
            panel(
                "launches",
                |value| format!("{value:.0}"),
                of(|side| side.total.launches),
            ),
            panel(
                "GB read and written",
                |value| format!("{:.0}", value / 1e9),
                of(|side| side.total.bytes()),
            ),
            panel(
                "seconds at least on gfx1151",
                |value| format!("{value:.1}"),
                of(|side| side.roofline_seconds[GPUS[0].name]),
            ),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_and_two_blocks_tell_of_all() {
        for model in &MODELS {
            // Each run has what is outside of blocks once, and all runs together have it once.
            let outside: f64 = model.runs.iter().map(|(_, times)| times).sum();
            assert_eq!(outside, 1.0, "{}", model.name);
        }
        let blocks = |model: &Model, kind: &str| -> f64 {
            let count =
                |blocks: &str| blocks.split(',').filter(|block| *block == kind).count() as f64;
            model
                .runs
                .iter()
                .map(|(blocks, times)| times * count(blocks))
                .sum()
        };
        assert_eq!(blocks(&MODELS[0], "full"), 36.0);
        assert_eq!(
            (blocks(&MODELS[1], "local"), blocks(&MODELS[1], "full")),
            (29.0, 5.0)
        );
        assert_eq!(
            (blocks(&MODELS[2], "full"), blocks(&MODELS[4], "full")),
            (30.0, 30.0)
        );
    }
}
