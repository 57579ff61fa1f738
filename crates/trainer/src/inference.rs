//! Using a trained model: continuing text, and measuring how well it predicts text.

mod evaluate;
mod export;
mod generate;

use std::path::Path;

use placement::{Placer, Verify};
use tch::{Device, Kind};

pub use evaluate::{Score, score};
pub use export::{Exported, export_gguf, export_gguf_adapter};
pub(crate) use generate::continue_tokens;
pub use generate::{Generated, SamplingSettings, generate};

use crate::Error;
use crate::checkpoint::CheckpointWeights;
use crate::device::{self, choose_products};
use crate::hub::{ModelKind, locate_model};
use models::Parameters;
use models::adapters::{Attachment, PeftAdapter};
use models::diffusion::Expert;
use models::language::{Decoder, DecoderConfig, DecoderOptions};
use models::model::{Base, Builder, FileWeights};
pub use models::pretrained::GgufType;
use models::pretrained::Pretrained;
use models::text::Encoder;

/// A model that is ready to be used.
#[derive(Debug)]
pub struct LanguageModel {
    /// Sizes and variants of the architecture.
    pub config: DecoderConfig,
    /// Its vocabulary and chat template.
    pub encoder: Encoder,
    /// Its weights, with the adapter if there is one.
    pub decoder: Decoder,
    /// Where it computes.
    pub device: Device,
    /// The longest text it can see, in tokens.
    pub context: i64,
}

/// The type of weights and matrix products.
pub fn compute_kind(bf16: bool) -> Kind {
    match bf16 {
        true => Kind::BFloat16,
        false => Kind::Float,
    }
}

/// How a model is loaded for use.
#[derive(Debug, Clone, Copy)]
pub struct LoadOptions {
    /// Where it computes.
    pub device: Device,
    /// The type of weights and matrix products.
    pub compute: Kind,
    /// Most tokens it will see at once; its own context bounds it further.
    pub context: i64,
}

/// The tokens that end an answer in a chat: those of the model, and that of its chat template.
pub fn ends_of_answers(config: &DecoderConfig, encoder: &Encoder) -> Vec<i64> {
    let of_template = encoder.end_of_answer().map(i64::from);
    let ends = config.eos_token_ids.iter().copied();
    ends.chain(of_template).collect()
}

impl LanguageModel {
    /// Loads the model at the path `name` (a Hugging Face folder or a GGUF file) or of that name on the
    /// hub, with an adapter.
    ///
    /// # Errors
    /// When a file is damaged or not known here, the adapter does not fit the model, or
    /// memory runs out.
    pub fn open(name: &Path, adapter: Option<&Path>, options: LoadOptions) -> Result<Self, Error> {
        Self::open_at(name, adapter, None, options)
    }

    /// The same, with the weights that a run without an adapter had at a checkpoint.
    ///
    /// # Errors
    /// As above, and if the checkpoint is of another model.
    pub fn open_at(
        name: &Path,
        adapter: Option<&Path>,
        checkpoint: Option<&Path>,
        options: LoadOptions,
    ) -> Result<Self, Error> {
        choose_products(options.device)?;
        let path = locate_model(name, ModelKind::Text, &mut |_| ())?;
        let mut pretrained = Pretrained::open(&path)?;
        let encoder = Encoder::new(&pretrained)?;
        let mut unread = None;
        if let Some(checkpoint) = checkpoint {
            let base = Some(pretrained.tensors);
            let weights = CheckpointWeights::open(checkpoint, Expert::High, base)?;
            let weights = weights.ok_or_else(|| {
                Error::checkpoint(checkpoint, "it is of a model of images or videos")
            })?;
            unread = Some(weights.unread());
            pretrained.tensors = Box::new(weights);
        }
        let config = pretrained.config;
        let mut attachment = match adapter {
            Some(folder) => Some(Attachment::saved(PeftAdapter::open(folder)?)?),
            None => None,
        };
        let mut placer = Placer::new(options.device, device::policy(Verify::First))?;
        let mut source =
            FileWeights::new(pretrained.tensors.as_ref(), options.compute, &mut placer);
        let mut parameters = Parameters::default();
        let base = Base::Frozen(options.compute);
        let mut builder = Builder::new(&mut source, &mut parameters, options.compute, base);
        if let Some(attachment) = &mut attachment {
            builder = builder.with_adapters(attachment);
        }
        let context = options.context.min(config.max_position_embeddings);
        let shape = DecoderOptions {
            positions: context,
            initializer_range: 0.0,
            device: options.device,
        };
        let decoder = Decoder::new(&config, shape, &mut builder)?;
        if let Some(attachment) = attachment {
            attachment.finish()?;
        }
        if let Some(unread) = unread {
            unread.expect_none()?;
        }
        Ok(Self {
            config,
            encoder,
            decoder,
            device: options.device,
            context,
        })
    }
}
