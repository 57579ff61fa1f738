//! `surefoot export`: writes a language model in the form of another program.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Subcommand, ValueEnum};
use serde_json::json;
use surefoot_cli::output::{self, Failure, Outcome};
use trainer::Observer as _;
use trainer::hub::ModelKind;
use trainer::inference::{self, Exported, GgufType};

use super::model_options::{ModelOptions, failure};
use super::train::ProgressDisplay;

/// Write a language model in the form of another program
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    form: Form,
}

#[derive(Subcommand)]
enum Form {
    /// One file for llama.cpp, Ollama and LM Studio, and a Modelfile beside it
    Gguf(Gguf),
}

#[derive(clap::Args)]
struct Gguf {
    /// The folder of a run; or a model: a Hugging Face folder, a GGUF file, or a name in the cache or on the hub
    #[arg(value_name = "RUN|MODEL")]
    what: PathBuf,

    /// A LoRA adapter that is merged into a model: a folder in PEFT's format
    #[arg(long, value_name = "DIR")]
    adapter: Option<PathBuf>,

    /// How matrices are stored
    #[arg(long, value_enum, value_name = "TYPE", default_value_t = Stored::Q8_0)]
    quantize: Stored,

    /// Write the LoRA alone, which llama.cpp adds to its base (`--lora`), and Ollama by `ADAPTER`
    #[arg(long, conflicts_with = "quantize")]
    adapter_only: bool,

    /// The file to write [default: `model-TYPE.gguf`, or `adapter.gguf`, in the folder of the run, or in this one]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Stored {
    /// 32 bits an element
    F32,
    /// 16 bits an element, as most programs had it before bf16
    F16,
    /// 16 bits an element, as models are trained
    Bf16,
    /// 8.5 bits an element: hardly distinguishable from bf16
    #[value(name = "q8_0")]
    Q8_0,
    /// 6.6 bits an element
    #[value(name = "q6_k")]
    Q6K,
    /// About 5.7 bits an element
    #[value(name = "q5_k_m")]
    Q5KM,
    /// About 4.8 bits an element: what most people run
    #[value(name = "q4_k_m")]
    Q4KM,
}

/// Exports.
pub(crate) fn run(args: &Args, json: bool) -> Result<Outcome, Failure> {
    let Form::Gguf(args) = &args.form;
    let options = ModelOptions::of(&args.what, args.adapter.as_deref(), false, None)?;
    let path = options.locate(ModelKind::Text)?;
    let stored = match args.quantize {
        Stored::F32 => GgufType::F32,
        Stored::F16 => GgufType::F16,
        Stored::Bf16 => GgufType::BF16,
        Stored::Q8_0 => GgufType::Q8_0,
        Stored::Q6K => GgufType::Q6K,
        Stored::Q5KM => GgufType::Q5KM,
        Stored::Q4KM => GgufType::Q4KM,
    };
    let output = match &args.output {
        Some(path) => path.clone(),
        None => {
            let is_run = args.what.join("run.json").is_file();
            let folder = if is_run { &*args.what } else { Path::new("") };
            let named = args.quantize.to_possible_value();
            let named = named.as_ref().map_or("", |value| value.get_name());
            folder.join(match args.adapter_only {
                true => "adapter.gguf".to_owned(),
                false => format!("model-{named}.gguf"),
            })
        }
    };
    if args.adapter_only {
        return adapter_only(&path, options.adapter(), &output, json);
    }
    let modelfile = output.with_extension("Modelfile");
    if modelfile == output {
        return Err(Failure::usage(
            "`--output` is the model's file, and its Modelfile is written beside it",
        ));
    }
    refuse_existing(&[&output, &modelfile])?;
    let display = std::cell::RefCell::new(ProgressDisplay::new());
    let told = |done: usize, all: usize| {
        let text = format!("writing: tensor {done} of {all}");
        display.borrow_mut().preparing(&text);
    };
    let written = inference::export_gguf(&path, options.adapter(), stored, &output, &told);
    display.into_inner().clear();
    let text = self::modelfile(&output, &written.map_err(failure)?);
    std::fs::write(&modelfile, text)
        .with_context(|| format!("cannot write `{}`", modelfile.display()))?;
    let bytes = output.metadata().map_or(0, |file| file.len());
    output::print(&match json {
        true => {
            let report = json!({ "output": output, "modelfile": modelfile, "bytes": bytes });
            format!("{report}\n")
        }
        false => format!(
            "{} ({:.2} GB)\nnext: ollama create NAME -f {} && ollama run NAME\n",
            output.display(),
            bytes as f64 / 1e9,
            modelfile.display()
        ),
    })?;
    Ok(Outcome::Fine)
}

/// Writes the adapter alone.
fn adapter_only(
    model: &Path,
    adapter: Option<&Path>,
    output: &Path,
    json: bool,
) -> Result<Outcome, Failure> {
    let adapter = adapter.ok_or_else(|| {
        Failure::usage(
            "`--adapter-only` needs a LoRA: name a run that trained one, or `--adapter DIR`",
        )
    })?;
    refuse_existing(&[output])?;
    inference::export_gguf_adapter(model, adapter, output).map_err(failure)?;
    let bytes = output.metadata().map_or(0, |file| file.len());
    output::print(&match json {
        true => format!("{}\n", json!({ "output": output, "bytes": bytes })),
        false => format!(
            "{} ({:.2} MB)\nnext: load it in llama.cpp beside a file of its base: --lora {}\n",
            output.display(),
            bytes as f64 / 1e6,
            output.display()
        ),
    })?;
    Ok(Outcome::Fine)
}

/// Refuses to replace a file.
fn refuse_existing(files: &[&Path]) -> Result<(), Failure> {
    match files.iter().find(|path| path.exists()) {
        None => Ok(()),
        Some(there) => Err(Failure::usage(format_args!(
            "`{}` is there already: move it away, or name another file with `--output`",
            there.display()
        ))),
    }
}

/// What Ollama makes a model of.
fn modelfile(model: &Path, exported: &Exported) -> String {
    let name = model.file_name().unwrap_or_default().to_string_lossy();
    let mut text = format!("FROM ./{name}\n");
    for end in &exported.ends {
        let end = end.replace('\\', "\\\\").replace('"', "\\\"");
        let _ = writeln!(text, "PARAMETER stop \"{end}\"");
    }
    text += &match &exported.ollama_template {
        Some(template) => format!("TEMPLATE \"\"\"{template}\"\"\"\n"),
        None => "# The model's chat template has no form for Ollama, which then takes one of its own that is like it. If\n\
                 # `ollama show --template` prints `{{ .Prompt }}` alone, it knows none: write a TEMPLATE here, or ask through\n\
                 # llama.cpp's server.\n"
            .to_owned(),
    };
    text
}
