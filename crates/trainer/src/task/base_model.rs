//! Loading the published model that is fine-tuned: planned, placed, and with its adapter.

use placement::plan::{DeviceMap, Memory, OffloadOptions};
use placement::swap::SwapOptions;
use placement::{Bytes, Placer};
use tch::{Device, Kind, Tensor};
use torch_ext::fake::{FakeMode, PassMemory};

use crate::Error;
use crate::adapter_speed;
use crate::config::Config;
use crate::estimate::{self, Footprint};
use crate::memory_plan::{MODEL, MemoryPlan, PlannedDecoder, StreamedPass};
use crate::pass_size::{PassSize, room};
use models::Parameters;
use models::adapters::{Attached, Attachment, PeftAdapter};
use models::language::{Decoder, DecoderOptions};
use models::model::{Base, Builder, FileWeights, MetaWeights, Streaming, WeightSource};
use models::pretrained::Pretrained;

/// A model that is ready to be trained.
pub(super) struct BaseModel {
    pub(super) model: Decoder,
    pub(super) adapter: Option<Attached>,
    pub(super) parameters: Parameters,
    pub(super) footprint: Footprint,
    /// How its samples are divided, where memory decides it.
    pub(super) pass_size: Option<PassSize>,
    /// What was decided about memory, where the config asks for it.
    pub(super) plan: Option<MemoryPlan>,
}

/// The loss of a model on so many of the longest samples.
pub(super) type Loss<'a> = &'a dyn Fn(&Decoder, u32) -> Result<Tensor, Error>;

/// Everything that a model is made from.
struct Plans<'a> {
    config: &'a Config,
    pretrained: &'a Pretrained,
    /// Positions that it can see.
    context: i64,
    loss: Loss<'a>,
    compute: Kind,
    device: Device,
    /// The type of the adapters' products.
    adapters: Kind,
}

impl BaseModel {
    /// The weights of `pretrained` as `config` wants them, in positions up to `context`.
    ///
    /// # Errors
    /// When a file is damaged, the adapter does not fit, there is no plan under `memory` that
    /// the config's options allow, or memory runs out.
    pub(super) fn load(
        config: &Config,
        pretrained: &Pretrained,
        (context, loss): (i64, Loss<'_>),
        placer: &mut Placer,
        memory: Memory,
    ) -> Result<Self, Error> {
        let device = placer.device();
        let pass_size = PassSize::choose(config, room(config, memory), |config| {
            Plans::new(config, pretrained, (context, loss), device).need(memory)
        })?;
        let config = &config.in_passes_of(PassSize::rows(pass_size.as_ref(), config));
        let plans = Plans::new(config, pretrained, (context, loss), device);
        let plan = match config.model.offload_options() {
            Some(options) => Some(plans.plan(memory, &options)?),
            None => None,
        };
        let mut streaming = None;
        if let Some(plan) = &plan {
            let pass = StreamedPass {
                dropout: plans.attachment()?.is_some_and(|a| a.dropout() > 0.0),
                offload: plans.offloads(),
            };
            streaming = plan.streaming(MODEL, placer, &pass)?;
        }
        let streamed = plan.as_ref().map_or(&[][..], |plan| &plan.streamed);
        let (pass, _) = plans.measured(streamed)?;
        tch::manual_seed(config.seed as i64);
        let mut parameters = Parameters::default();
        let mut attachment = plans.attachment()?;
        let mut source = FileWeights::new(pretrained.tensors.as_ref(), plans.stored(), placer);
        let mut builder = plans
            .builder(&mut source, &mut parameters, attachment.as_mut())
            .streamed(streaming);
        let model = plans.decoder(&mut builder)?;
        if config.train.activation_offload && !plans.offloads() {
            tracing::warn!(
                "`train.activation_offload` is left off: on the CPU there is no other memory to \
                 free"
            );
        }
        Ok(Self {
            footprint: Footprint::new(model.bytes()? + parameters.count() * 4, pass),
            adapter: attachment.map(Attachment::finish).transpose()?,
            pass_size,
            model,
            parameters,
            plan,
        })
    }
}

/// The most bytes that training has on the device at once if it is planned within `memory`.
///
/// # Errors
/// If the adapter does not fit, or there is no such plan.
pub(super) fn peak(
    config: &Config,
    pretrained: &Pretrained,
    (context, loss): (i64, Loss<'_>),
    device: Device,
    memory: Memory,
) -> Result<Bytes, Error> {
    let options = config.model.offload_options();
    let options = options.unwrap_or_else(|| OffloadOptions {
        device_map: DeviceMap::all_on_device(),
        ..OffloadOptions::default()
    });
    let plans = Plans::new(config, pretrained, (context, loss), device);
    Ok(plans.plan(memory, &options)?.plan.device_peak())
}

impl<'a> Plans<'a> {
    fn new(
        config: &'a Config,
        pretrained: &'a Pretrained,
        (context, loss): (i64, Loss<'a>),
        device: Device,
    ) -> Self {
        let compute = config.train.bf16.kind(device);
        Self {
            config,
            pretrained,
            context,
            loss,
            compute,
            device,
            adapters: (config.adapter.as_ref()).map_or(Kind::Float, |adapter| {
                adapter_speed::computes_in(adapter, (compute, device))
            }),
        }
    }

    fn decoder(&self, builder: &mut Builder) -> Result<Decoder, Error> {
        let options = DecoderOptions {
            positions: self.context,
            initializer_range: 0.0,
            device: self.device,
        };
        let mut model = Decoder::new(&self.pretrained.config, options, builder)?;
        model.offload_activations(self.offloads());
        model.add_noise((self.config.train.neftune_noise_alpha).unwrap_or_default());
        Ok(model)
    }

    /// Whether the inputs of recomputed blocks are offloaded.
    fn offloads(&self) -> bool {
        self.config.train.activation_offload && self.device != Device::Cpu
    }

    fn base(&self) -> Base {
        match self.config.adapter {
            Some(_) => Base::Frozen(self.compute),
            None => Base::Trained,
        }
    }

    /// The type in which weights are read.
    fn stored(&self) -> Kind {
        match self.base() {
            Base::Frozen(kind) => kind,
            Base::Trained => Kind::Float,
        }
    }

    /// The adapter to put on the model, fresh or from its file.
    fn attachment(&self) -> Result<Option<Attachment>, Error> {
        let Some(adapter) = &self.config.adapter else {
            return Ok(None);
        };
        let attachment = match &adapter.resume_from {
            Some(folder) => Attachment::saved(PeftAdapter::open(folder)?)?,
            None => Attachment::fresh(&adapter.lora()?)?.starting(adapter.init_lora_weights.into()),
        };
        Ok(Some(attachment.computing_in(self.adapters)))
    }

    fn builder<'b>(
        &self,
        source: &'b mut dyn WeightSource,
        parameters: &'b mut Parameters,
        attachment: Option<&'b mut Attachment>,
    ) -> Builder<'b> {
        let builder = Builder::new(source, parameters, self.compute, self.base())
            .quantized(self.config.model.quantization.map(Into::into));
        match attachment {
            Some(attachment) => builder.with_adapters(attachment),
            None => builder,
        }
    }

    /// The most bytes on the device at once; `None` if the config asks for a plan, and there is none within `memory`.
    fn need(&self, memory: Memory) -> Result<Option<Bytes>, Error> {
        let Some(options) = self.config.model.offload_options() else {
            let (pass, parameters) = self.measured(&[])?;
            return estimate::peak_of(self.config, pass, &parameters).map(Some);
        };
        // What else is wrong with it is told of the smallest pass, too.
        let plan = self.plan(memory, &options).ok();
        Ok(plan.map(|plan| plan.plan.device_peak()))
    }

    /// What a pass needs if these blocks are streamed, and what is trained.
    fn measured(&self, streamed: &[usize]) -> Result<(PassMemory, Parameters), Error> {
        let mut attachment = self.attachment()?.map(Attachment::without_values);
        let mut parameters = Parameters::default();
        let mut source = self.shapes();
        let streaming = Streaming {
            blocks: streamed.to_vec(),
            options: SwapOptions::default(),
        };
        let build = || {
            let builder = self.builder(&mut source, &mut parameters, attachment.as_mut());
            self.decoder(&mut builder.streamed(Some(streaming)))
        };
        let rows = self.config.train.batch();
        let pass = estimate::measured(self.device, build, |model| (self.loss)(model, rows));
        Ok((pass, parameters))
    }

    fn shapes(&self) -> MetaWeights<'_> {
        let tensors = self.pretrained.tensors.as_ref();
        MetaWeights::new(Some(tensors), (self.stored(), self.device))
    }

    /// What lives where, decided from the model's shapes.
    fn plan(&self, memory: Memory, options: &OffloadOptions) -> Result<MemoryPlan, Error> {
        let mut parameters = Parameters::default();
        let mut attachment = self.attachment()?.map(Attachment::without_values);
        let mut source = self.shapes();
        let mut builder = self
            .builder(&mut source, &mut parameters, attachment.as_mut())
            .quantized(None);
        let decoder = {
            let _fake = FakeMode::begin(self.device)?;
            self.decoder(&mut builder)?
        };
        let planned = PlannedDecoder {
            config: self.config,
            shape: &self.pretrained.config,
            decoder: &decoder,
            parameters: &parameters,
            stored: self.stored(),
            measured: &|streamed| Ok(self.measured(streamed)?.0),
        };
        planned.plan(memory, options)
    }
}
