//! `surefoot chat`: a conversation with a language model in the terminal.

use std::io::{self, BufRead as _, IsTerminal as _};
use std::path::PathBuf;

use anyhow::Context as _;
use serde_json::json;
use surefoot_cli::output::{self, Failure, Outcome};
use trainer::hub::ModelKind;
use trainer::inference::{self, SamplingSettings};
use trainer::records::Message;

use super::generate::{SamplingOptions, question};
use super::model_options::{ModelOptions, failure};

/// Talk to the result of a run, or to another language model
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The folder of a run; of a checkpoint, if the run trains a whole model; or a model: a Hugging Face folder, a GGUF file, or
    /// a name in the cache or on the hub
    #[arg(value_name = "RUN|MODEL")]
    what: PathBuf,

    /// The model that the run started from, without what it learned
    #[arg(long, conflicts_with = "adapter")]
    base: bool,

    /// A LoRA adapter for a model: a folder in PEFT's format
    #[arg(long, value_name = "DIR")]
    adapter: Option<PathBuf>,

    /// The device: `auto`, `cpu`, `gpu` or `gpu:N` [default: that of the run, else `auto`]
    #[arg(long)]
    device: Option<String>,

    /// A message of the system, before the first of the user
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,

    #[command(flatten)]
    sampling: SamplingOptions,

    /// Seed of the random generator
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,
}

/// Answers each line of stdin.
pub(crate) fn run(args: &Args, json: bool) -> Result<Outcome, Failure> {
    let adapter = args.adapter.as_deref();
    let options = ModelOptions::of(&args.what, adapter, args.base, args.device.as_deref())?;
    let path = options.locate(ModelKind::Any)?;
    if ModelOptions::is_video(&path) {
        return Err(Failure::usage(
            "this model makes images or videos: `surefoot generate` asks it for one",
        ));
    }
    let model = options.load(&path, i64::MAX)?;
    let ends = inference::ends_of_answers(&model.config, &model.encoder);
    let settings = args.sampling.settings(SamplingSettings {
        max_new_tokens: 1024,
        temperature: 0.7,
        top_p: 0.95,
    });
    let system = args.system.iter().map(|text| Message::new("system", text));
    let system: Vec<_> = system.collect();
    // Before the first question, so that a model without a template does not wait for it.
    let first = [&system[..], &[Message::new("user", "?")]].concat();
    question(&model, first).map_err(failure)?;
    let asks = io::stdin().is_terminal();
    if asks {
        eprintln!("A line is a question. /new begins a new conversation, Ctrl-D ends.");
    }
    let mut turns = system.clone();
    let mut lines = io::stdin().lock().lines();
    loop {
        if asks {
            eprint!("> ");
        }
        let Some(line) = lines.next().transpose().context("cannot read stdin")? else {
            return Ok(Outcome::Fine);
        };
        match line.trim() {
            "" => continue,
            "/new" => {
                turns.clone_from(&system);
                continue;
            }
            text => turns.push(Message::new("user", text)),
        }
        let mut broken = None;
        let mut told = |text: &str| {
            if !json && broken.is_none() {
                broken = output::print(text).err();
            }
        };
        let seed = args.seed + turns.len() as u64;
        let answer = question(&model, turns.clone()).and_then(|tokens| {
            inference::generate(&model, &tokens, &ends, settings, seed, &mut told)
        });
        if let Some(error) = broken {
            return Err(error.into());
        }
        let answer = match answer {
            Ok(answer) => answer,
            // The conversation so far is worth more than the question.
            Err(trainer::Error::Data(reason)) if asks => {
                eprintln!("surefoot: {reason}; /new begins a new conversation");
                turns.pop();
                continue;
            }
            Err(error) => return Err(failure(error)),
        };
        match json {
            true => {
                let mut report = json!(answer);
                report["prompt"] = line.trim().into();
                output::print(&format!("{report}\n"))?;
            }
            false => output::print("\n")?,
        }
        turns.push(Message::new("assistant", &answer.text));
    }
}
