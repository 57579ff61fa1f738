//! `surefoot generate`: lets a model continue a text or answer in a chat.

use surefoot_cli::output::{self, Failure, Outcome};
use trainer::examples::{Conversation, Message};
use trainer::inference::{self, SamplingSettings};

use super::model_options::{ModelOptions, failure};

/// Let a model continue a text
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelOptions,

    /// The text to continue
    #[arg(long, value_name = "TEXT")]
    prompt: String,

    /// Put the prompt into the model's chat template, as what the user says
    #[arg(long)]
    chat: bool,

    /// Most tokens to generate
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    max_new_tokens: u32,

    /// How far to stray from the likeliest token; 0 always takes it
    #[arg(long, value_name = "T", default_value_t = 0.0, value_parser = temperature, allow_negative_numbers = true)]
    temperature: f64,

    /// Choose among the likeliest tokens that together have this probability
    #[arg(long, value_name = "P", default_value_t = 1.0, value_parser = probability)]
    top_p: f64,

    /// Seed of the random choices
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,
}

fn temperature(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(number) if (0.0..=100.0).contains(&number) => Ok(number),
        _ => Err("must be a number from 0 to 100".into()),
    }
}

fn probability(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(number) if number > 0.0 && number <= 1.0 => Ok(number),
        _ => Err("must be greater than 0 and at most 1".into()),
    }
}

/// Generates; the new text goes to stdout as it comes.
pub(crate) fn run(args: &Args, json: bool) -> Result<Outcome, Failure> {
    let model = args.model.load(i64::MAX)?;
    let prompt = prompt_tokens(args, &model).map_err(failure)?;
    let settings = SamplingSettings {
        max_new_tokens: args.max_new_tokens as usize,
        temperature: args.temperature,
        top_p: args.top_p,
    };
    let mut broken = None;
    let mut told = |text: &str| {
        if !json && broken.is_none() {
            broken = output::print(text).err();
        }
    };
    let generated =
        inference::generate(&model, &prompt, settings, args.seed, &mut told).map_err(failure)?;
    if let Some(error) = broken {
        return Err(error.into());
    }
    if json {
        let mut report = serde_json::to_value(&generated)?;
        report["prompt"] = args.prompt.clone().into();
        report["prompt_tokens"] = prompt.len().into();
        output::print(&format!("{report}\n"))?;
    } else {
        output::print("\n")?;
    }
    Ok(Outcome::Fine)
}

fn prompt_tokens(
    args: &Args,
    model: &inference::LanguageModel,
) -> Result<Vec<u32>, trainer::Error> {
    if !args.chat {
        return model.encoder.tokens(&args.prompt, true);
    }
    let template = model
        .encoder
        .template()
        .ok_or_else(|| trainer::Error::Data("`--chat`: this model has no chat template".into()))?;
    let message = Message::new("user", &args.prompt);
    let text = template
        .render(&Conversation::new(vec![message]), true)
        .map_err(trainer::Error::Data)?;
    model.encoder.tokens(&text, false)
}
