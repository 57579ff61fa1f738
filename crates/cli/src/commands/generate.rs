//! `surefoot generate`: continues a text, answers in a chat, or generates a video.

use surefoot_cli::output::{self, Failure, Outcome};
use trainer::hub::ModelKind;
use trainer::inference::{self, SamplingSettings};
use trainer::records::{Conversation, Message};

use super::generate_video::VideoOptions;
use super::model_options::{ModelOptions, PartOptions, failure};

/// Continue a text, or generate a video
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelOptions,

    /// The text to continue, or what the video shows
    #[arg(long, value_name = "TEXT")]
    prompt: String,

    /// Put the prompt into the model's chat template, as the user's message
    #[arg(long)]
    chat: bool,

    /// The most tokens to generate [default: 100]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    max_new_tokens: Option<u32>,

    /// Sampling temperature; 0 always chooses the most likely token [default: 0]
    #[arg(long, value_name = "T", value_parser = temperature, allow_negative_numbers = true)]
    temperature: Option<f64>,

    /// Sample from the most likely tokens that together have this probability [default: 1]
    #[arg(long, value_name = "P", value_parser = probability)]
    top_p: Option<f64>,

    /// Seed of the random generator
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,

    #[command(flatten)]
    video: VideoOptions,

    #[command(flatten)]
    parts: PartOptions,
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

/// Generates; new text goes to stdout as it is produced.
pub(crate) fn run(args: &Args, json: bool) -> Result<Outcome, Failure> {
    let path = args.model.locate(ModelKind::Any)?;
    if ModelOptions::is_video(&path) {
        let of_texts = [
            ("--chat", args.chat),
            ("--max-new-tokens", args.max_new_tokens.is_some()),
            ("--temperature", args.temperature.is_some()),
            ("--top-p", args.top_p.is_some()),
        ];
        if let Some((name, _)) = of_texts.into_iter().find(|(_, given)| *given) {
            return Err(Failure::usage(format_args!(
                "`{name}` is for language models, and this one makes videos"
            )));
        }
        let options = args.model.denoiser_options()?;
        let model = args.parts.open(&path)?;
        return args
            .video
            .run(&*model, &args.prompt, args.seed, options, json);
    }
    if let Some(name) = args.video.given().or(args.parts.given()) {
        return Err(Failure::usage(format_args!(
            "`{name}` is for video models (a folder with a `model_index.json`, or a file of a transformer), and \
             this one continues texts"
        )));
    }
    let model = args.model.load(&path, i64::MAX)?;
    let prompt = prompt_tokens(args, &model).map_err(failure)?;
    let settings = SamplingSettings {
        max_new_tokens: args.max_new_tokens.unwrap_or(100) as usize,
        temperature: args.temperature.unwrap_or(0.0),
        top_p: args.top_p.unwrap_or(1.0),
    };
    if settings.temperature == 0.0 && settings.top_p < 1.0 {
        eprintln!(
            "surefoot: `--top-p` has no effect at a temperature of 0, which takes the likeliest token: give \
             `--temperature` too"
        );
    }
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
        return Ok(model.encoder.tokens(&args.prompt, true)?);
    }
    let template = model
        .encoder
        .template()
        .ok_or_else(|| trainer::Error::Data("`--chat`: this model has no chat template".into()))?;
    let message = Message::new("user", &args.prompt);
    let text = template
        .render(&Conversation::new(vec![message]), true)
        .map_err(trainer::Error::Data)?;
    Ok(model.encoder.tokens(&text, false)?)
}
