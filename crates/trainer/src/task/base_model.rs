//! Loading the published model that is fine-tuned: planned, placed, and with its adapter.

use placement::Placer;
use placement::plan::{Memory, OffloadOptions};
use tch::{Device, Kind};

use crate::Error;
use crate::config::Config;
use crate::estimate::DecoderUse;
use crate::memory_plan::{MODEL, MemoryPlan, PlannedDecoder, StreamedPass};
use models::Parameters;
use models::adapters::{Attached, Attachment, PeftAdapter};
use models::language::{Decoder, DecoderOptions, attention_path};
use models::model::{Base, Builder, FileWeights, MetaWeights, WeightSource};
use models::pretrained::Pretrained;

/// A model that is ready to be trained.
pub(super) struct BaseModel {
    pub(super) model: Decoder,
    pub(super) adapter: Option<Attached>,
    pub(super) parameters: Parameters,
    /// How it is trained, as far as memory depends on it.
    pub(super) usage: DecoderUse,
    /// Bytes of the model in memory that do not learn.
    pub(super) base_bytes: u64,
    /// What was decided about memory, where the config asks for it.
    pub(super) plan: Option<MemoryPlan>,
}

/// What a row of a batch is, as far as memory depends on it.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowShape {
    /// Tokens in the longest.
    pub(super) length: u64,
    /// Whether it holds several examples that do not see each other.
    pub(super) packed: bool,
    /// Sequences that a row of a batch is, as far as they have a gradient.
    pub(super) sequences: u64,
}

/// Everything that a model is made from.
struct Plans<'a> {
    config: &'a Config,
    pretrained: &'a Pretrained,
    /// Positions that it can see.
    context: i64,
    rows: RowShape,
    compute: Kind,
    /// The type of the adapters' products.
    adapters: Kind,
}

impl BaseModel {
    /// The weights of `pretrained` as `config` wants them, in positions up to `context`, for `rows`.
    ///
    /// # Errors
    /// When a file is damaged, the adapter does not fit, there is no plan under `memory` that
    /// the config's options allow, or memory runs out.
    pub(super) fn load(
        config: &Config,
        pretrained: &Pretrained,
        (context, rows): (i64, RowShape),
        placer: &mut Placer,
        memory: Memory,
    ) -> Result<Self, Error> {
        let compute = match config.train.bf16.on(placer.device()) {
            true => Kind::BFloat16,
            false => Kind::Float,
        };
        let plans = Plans {
            config,
            pretrained,
            context,
            rows,
            compute,
            adapters: (config.adapter.as_ref()).map_or(Kind::Float, |adapter| {
                adapter.computes_in((compute, placer.device()))
            }),
        };
        let mut usage = plans.usage(placer.device())?;
        let plan = match config.model.offload_options() {
            Some(options) => Some(plans.plan(&usage, memory, &options)?),
            None => None,
        };
        let mut streaming = None;
        if let Some(plan) = &plan {
            usage.streamed.clone_from(&plan.streamed);
            let pass = StreamedPass {
                dropout: usage.dropout > 0.0,
                offload: usage.offload,
            };
            streaming = plan.streaming(MODEL, placer, &pass)?;
        }
        tch::manual_seed(config.seed as i64);
        let mut parameters = Parameters::default();
        let mut attachment = plans.attachment()?;
        let (device, stored) = (placer.device(), usage.frozen.unwrap_or(Kind::Float));
        let mut source = FileWeights::new(pretrained.tensors.as_ref(), stored, placer);
        let mut builder = plans
            .builder(&mut source, &mut parameters, attachment.as_mut())
            .quantized(config.model.quantization.map(Into::into))
            .streamed(streaming);
        let mut model = Decoder::new(&pretrained.config, plans.options(device), &mut builder)?;
        model.offload_activations(usage.offload);
        model.add_noise(config.train.neftune_noise_alpha.unwrap_or_default());
        if config.train.activation_offload && !usage.offload {
            tracing::warn!(
                "`train.activation_offload` is left off: on the CPU there is no other memory to \
                 free"
            );
        }
        Ok(Self {
            base_bytes: model.bytes()?,
            adapter: attachment.map(Attachment::finish).transpose()?,
            model,
            parameters,
            usage,
            plan,
        })
    }
}

impl Plans<'_> {
    fn options(&self, device: Device) -> DecoderOptions {
        DecoderOptions {
            positions: self.context,
            initializer_range: 0.0,
            device,
        }
    }

    fn base(&self) -> Base {
        match self.config.adapter {
            Some(_) => Base::Frozen(self.compute),
            None => Base::Trained,
        }
    }

    /// The adapter to put on the model, fresh or from its file.
    fn attachment(&self) -> Result<Option<Attachment>, Error> {
        let Some(adapter) = &self.config.adapter else {
            return Ok(None);
        };
        let attachment = match &adapter.resume_from {
            Some(folder) => Attachment::saved(PeftAdapter::open(folder)?)?,
            None => Attachment::fresh(&adapter.lora()?)?,
        };
        Ok(Some(attachment.computing_in(self.adapters)))
    }

    fn builder<'b>(
        &self,
        source: &'b mut dyn WeightSource,
        parameters: &'b mut Parameters,
        attachment: Option<&'b mut Attachment>,
    ) -> Builder<'b> {
        let builder = Builder::new(source, parameters, self.compute, self.base());
        match attachment {
            Some(attachment) => builder.with_adapters(attachment),
            None => builder,
        }
    }

    fn usage(&self, device: Device) -> Result<DecoderUse, Error> {
        let train = &self.config.train;
        let RowShape {
            length,
            packed,
            sequences,
        } = self.rows;
        let attachment = self.attachment()?;
        Ok(DecoderUse {
            rows: u64::from(train.per_device_train_batch_size) * sequences,
            length,
            packed,
            compute: self.compute,
            adapters: self.adapters,
            frozen: match self.base() {
                Base::Frozen(kind) => Some(kind),
                Base::Trained => None,
            },
            quantization: self.config.model.quantization.map(Into::into),
            device,
            checkpoint: train.gradient_checkpointing,
            streamed: Vec::new(),
            offload: train.activation_offload && device != Device::Cpu,
            dropout: attachment.map_or(0.0, |attachment| attachment.dropout()),
            whole_logits: false,
            attention: attention_path(
                &self.pretrained.config,
                (device, self.compute),
                (length as i64, packed),
            )?,
        })
    }

    /// What lives where, decided from the model's shapes.
    fn plan(
        &self,
        usage: &DecoderUse,
        memory: Memory,
        options: &OffloadOptions,
    ) -> Result<MemoryPlan, Error> {
        let mut parameters = Parameters::default();
        let mut attachment = self.attachment()?;
        let tensors = self.pretrained.tensors.as_ref();
        let mut source = MetaWeights::new(tensors, usage.frozen.unwrap_or(Kind::Float));
        let mut builder = self.builder(&mut source, &mut parameters, attachment.as_mut());
        let shape = self.options(Device::Cpu);
        let decoder = Decoder::new(&self.pretrained.config, shape, &mut builder)?;
        let planned = PlannedDecoder {
            config: self.config,
            shape: &self.pretrained.config,
            decoder: &decoder,
            parameters: &parameters,
            usage,
        };
        planned.plan(memory, options)
    }
}
