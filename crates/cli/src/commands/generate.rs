//! `surefoot generate`: continues a text, answers in a chat, or generates a video.

use surefoot_cli::output::{self, Failure, Outcome};
use trainer::hub::ModelKind;
use trainer::inference::{self, SamplingSettings};
use trainer::records::{Conversation, Message};

use super::generate_video::VideoOptions;
use super::model_options::{ModelOptions, PartOptions, failure};

/// How tokens are chosen.
#[derive(clap::Args)]
pub(crate) struct SamplingOptions {
    /// The most tokens to generate [default: 100, in a chat 1024]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    max_new_tokens: Option<u32>,

    /// Sampling temperature; 0 always chooses the most likely token [default: 0, in a chat 0.7]
    #[arg(long, value_name = "T", value_parser = temperature, allow_negative_numbers = true)]
    temperature: Option<f64>,

    /// Sample from the most likely tokens that together have this probability [default: 1, in a chat 0.95]
    #[arg(long, value_name = "P", value_parser = probability)]
    top_p: Option<f64>,
}

impl SamplingOptions {
    /// What is given, else that of `defaults`.
    pub(crate) fn settings(&self, defaults: SamplingSettings) -> SamplingSettings {
        let most = self.max_new_tokens.map(|most| most as usize);
        let settings = SamplingSettings {
            max_new_tokens: most.unwrap_or(defaults.max_new_tokens),
            temperature: self.temperature.unwrap_or(defaults.temperature),
            top_p: self.top_p.unwrap_or(defaults.top_p),
        };
        if settings.temperature == 0.0 && self.top_p.is_some_and(|top_p| top_p < 1.0) {
            eprintln!(
                "surefoot: `--top-p` has no effect at a temperature of 0, which takes the likeliest token: give \
                 `--temperature` too"
            );
        }
        settings
    }

    /// The first option that was given.
    fn given(&self) -> Option<&'static str> {
        let all = [
            ("--max-new-tokens", self.max_new_tokens.is_some()),
            ("--temperature", self.temperature.is_some()),
            ("--top-p", self.top_p.is_some()),
        ];
        all.into_iter()
            .find(|(_, given)| *given)
            .map(|(name, _)| name)
    }
}

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

    /// What was said in the chat before, as JSON: `[{"role": "user", "content": "…"}, {"role": "assistant", …}]`
    #[arg(long, value_name = "JSON", requires = "chat", value_parser = history)]
    history: Option<History>,

    #[command(flatten)]
    sampling: SamplingOptions,

    /// Seed of the random generator
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,

    #[command(flatten)]
    video: VideoOptions,

    #[command(flatten)]
    parts: PartOptions,
}

/// Messages with their roles.
type History = std::sync::Arc<[Message]>;

fn history(text: &str) -> Result<History, String> {
    #[derive(serde::Deserialize)]
    struct Turn {
        role: String,
        content: String,
    }
    let turns: Vec<Turn> = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let turns = turns
        .iter()
        .map(|turn| Message::new(&turn.role, &turn.content));
    Ok(turns.collect())
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
        let chat = args.chat.then_some("--chat");
        if let Some(name) = chat.or(args.sampling.given()) {
            return Err(Failure::usage(format_args!(
                "`{name}` is for language models, and this one makes videos"
            )));
        }
        let options = args.model.denoiser_options()?;
        let model = args.parts.open(&path)?;
        return args.video.run(
            &*model,
            &args.prompt,
            args.seed,
            (options, args.model.checkpoint()),
            json,
        );
    }
    if let Some(name) = args.video.given().or(args.parts.given()) {
        return Err(Failure::usage(format_args!(
            "`{name}` is for video models (a folder with a `model_index.json`, or a file of a transformer), and \
             this one continues texts"
        )));
    }
    let model = args.model.load(&path, i64::MAX)?;
    let prompt = prompt_tokens(args, &model).map_err(failure)?;
    let settings = args.sampling.settings(SamplingSettings {
        max_new_tokens: 100,
        temperature: 0.0,
        top_p: 1.0,
    });
    let ends = match args.chat {
        true => inference::ends_of_answers(&model.config, &model.encoder),
        false => model.config.eos_token_ids.clone(),
    };
    let mut broken = None;
    let mut told = |text: &str| {
        if !json && broken.is_none() {
            broken = output::print(text).err();
        }
    };
    let generated = inference::generate(&model, &prompt, &ends, settings, args.seed, &mut told)
        .map_err(failure)?;
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
    let mut turns = args
        .history
        .as_deref()
        .map(<[Message]>::to_vec)
        .unwrap_or_default();
    turns.push(Message::new("user", &args.prompt));
    question(model, turns)
}

/// The tokens of a conversation up to the start of the next answer.
pub(super) fn question(
    model: &inference::LanguageModel,
    turns: Vec<Message>,
) -> Result<Vec<u32>, trainer::Error> {
    let template = model.encoder.template().ok_or_else(|| {
        trainer::Error::Data(
            "this model has no chat template: `surefoot generate` without `--chat` continues a text".into(),
        )
    })?;
    let text = template.render(&Conversation::new(turns), true);
    Ok(model
        .encoder
        .tokens(&text.map_err(trainer::Error::Data)?, false)?)
}
