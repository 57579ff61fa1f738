//! `surefoot eval`: measures how well a model predicts a text.

use std::path::PathBuf;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use surefoot_cli::output::{self, Failure, Outcome};
use trainer::config::DataFormat;
use trainer::hub::{self, ModelKind};
use trainer::text::thousands;
use trainer::{Observer as _, inference, records};

use super::model_options::{ModelOptions, failure};
use super::train::ProgressDisplay;

/// Measure how well a model predicts a text
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelOptions,

    /// The text: plain, or JSON, JSON lines or CSV with `text`, `prompt` and `completion`, or
    /// `messages`; or a data set on the hub, `org/name[@revision]`
    #[arg(long, value_name = "FILE|NAME")]
    data: PathBuf,

    /// The subset of a data set on the hub [default: its default one]
    #[arg(long, value_name = "NAME")]
    subset: Option<String>,

    /// The split of a data set on the hub [default: test]
    #[arg(long, value_name = "NAME")]
    split: Option<String>,

    /// The format of the data, if their name does not tell it
    #[arg(long, value_name = "FORMAT", value_parser = format)]
    format: Option<DataFormat>,

    /// Tokens per window; the first token of a window is not predicted from anything before
    /// it
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    block_size: u32,
}

fn format(name: &str) -> Result<DataFormat, String> {
    serde_json::from_value(name.into())
        .map_err(|_| "must be one of `text`, `jsonl`, `json`, `csv`".to_owned())
}

impl Args {
    /// The path of the data, which may have to be downloaded first.
    fn locate_data(&self) -> Result<PathBuf, Failure> {
        let name = self.data.to_str().filter(|_| hub::is_data_set(&self.data));
        let Some(name) = name else {
            let chosen = [("--subset", &self.subset), ("--split", &self.split)];
            return match chosen.into_iter().find(|(_, value)| value.is_some()) {
                Some((option, _)) => Err(Failure::usage(format!(
                    "`{option}` selects from a data set on the hub (`--data org/name`), but `{}` is a path",
                    self.data.display()
                ))),
                None => Ok(self.data.clone()),
            };
        };
        let mut display = ProgressDisplay::new();
        let found = hub::fetch_data_set(
            name,
            self.subset.as_deref(),
            self.split.as_deref().unwrap_or("test"),
            &hub::Settings::of_the_environment(),
            &mut |text| display.preparing(text),
        );
        display.clear();
        found.map_err(failure)
    }
}

/// Evaluates; the score goes to stdout.
pub(crate) fn run(args: &Args, json: bool) -> Result<Outcome, Failure> {
    let data = args.locate_data()?;
    let records = records::records(&data, args.format).map_err(failure)?;
    let path = args.model.locate(ModelKind::Text)?;
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(8));
    bar.set_style(ProgressStyle::with_template("{spinner} {msg}")?);
    bar.enable_steady_tick(Duration::from_millis(120));
    bar.set_message("loading the model");
    let model = args.model.load(&path, i64::from(args.block_size))?;
    let block_size = i64::from(args.block_size).min(model.context) as usize;
    let mut on_progress = |tokens| bar.set_message(format!("{} tokens", thousands(tokens)));
    let score = inference::score(&model, records, block_size, &mut on_progress).map_err(failure)?;
    bar.finish_and_clear();
    let window = match block_size < args.block_size as usize {
        true => format!(
            "{block_size} (the model's maximum; `--block-size` is {})",
            args.block_size
        ),
        false => block_size.to_string(),
    };
    let divided = match score.divided {
        0 => String::new(),
        divided => format!(
            "; {} of {} records are longer, and measured in several",
            thousands(divided),
            thousands(score.records)
        ),
    };
    let text = if json {
        serde_json::to_string_pretty(&score)?
    } else {
        format!(
            "negative log-likelihood  {:.4} nats per token\n\
             perplexity               {:.3}\n\
             tokens                   {}\n\
             windows                  of {window} tokens at most{divided}\n\
             speed                    {:.0} tokens/s",
            score.negative_log_likelihood,
            score.perplexity,
            thousands(score.tokens),
            score.tokens_per_second,
        )
    };
    output::print(&format!("{text}\n"))?;
    Ok(Outcome::Fine)
}
