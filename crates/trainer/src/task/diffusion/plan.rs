//! Plans what of a diffusion model is where during training: the turns of the experts and the previews between
//! them, before any weight is loaded.

mod modules;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use models::Parameters;
use models::diffusion::files::PartFile;
use models::diffusion::{Diffusion, Expert as Which, Part};
use models::formats::TensorSource;
use models::model::{Base, Builder, MetaWeights, Pass, Streaming};
use models::tensor::bytes;
use placement::Bytes;
use placement::plan::{
    Component, DeviceMap, Memory, OffloadOptions, Phase, Plan, PlanError, Residency, plan_cycle,
};
use placement::swap::SwapOptions;
use tch::{Device, Kind, Tensor};
use torch_ext::fake::PassMemory;

use self::modules::{bytes_of_each, modules};
use super::clip_loader::Encoded;
use super::expert::{attachment, offload_activations};
use super::weights::{means, squares};
use crate::Error;
use crate::adapter_speed;
use crate::config::{Config, Quantization};
use crate::estimate;
use crate::memory_plan::{MemoryPlan, decide, is_free, unlimited};
use crate::pass_size::PassSize;
use crate::text::thousands;

/// Working memory to plan with, in tenths of the estimate: a tenth more, so that a run does not end at the
/// limit; as estimated; and a tenth less, because a run that may fit should be tried.
const MARGINS: [u64; 3] = [11, 10, 9];

/// So many rows of the largest clip.
pub(super) type Largest<'a> = &'a dyn Fn(u32) -> Result<Encoded, Error>;

/// The run's config, or a variant that might fit.
pub(super) struct PlannedExperts<'a> {
    config: &'a Config,
    model: &'a Arc<dyn Diffusion>,
    /// The first denoiser.
    which: Option<Which>,
    /// Number of blocks of each list of a denoiser.
    blocks: Vec<usize>,
    largest: Largest<'a>,
    /// What passes were measured to need, each under a description of what matters.
    measured: RefCell<BTreeMap<String, Measured>>,
    compute: Kind,
    device: Device,
    /// How many of the components are trained: the first ones.
    trained: usize,
    components: Vec<Component>,
    /// Whether the autoencoder replaces all of them between their turns.
    previews: bool,
}

/// A transformer's name in the plan: that of its folder.
pub(super) fn component(which: Option<Which>) -> &'static str {
    match which {
        Some(Which::Low) => "transformer_2",
        _ => "transformer",
    }
}

/// The name in the plan of a transformer that is loaded for previews.
pub(super) const OF_PREVIEWS: &str = "preview_transformer";

/// The input of a plan.
struct PlanRequest<'a> {
    /// That of the run, or another one that might fit.
    config: &'a Config,
    options: &'a OffloadOptions,
    /// One of [`MARGINS`].
    margin: u64,
    /// Clips per pass.
    rows: u32,
}

impl<'a> PlannedExperts<'a> {
    /// The transformers in `trained`, and others that previews need, if there are some: of the model itself, or that of another
    /// model.
    ///
    /// # Errors
    /// If a file is missing or damaged.
    pub(super) fn new(
        config: &'a Config,
        model: &'a Arc<dyn Diffusion>,
        largest: Largest<'a>,
        (compute, device): (Kind, Device),
        trained: &[Option<Which>],
        (previews, other): (bool, Option<&Arc<dyn Diffusion>>),
    ) -> Result<Self, Error> {
        let mut all = trained.to_vec();
        if previews && model.has_low_noise() {
            let both = [Some(Which::High), Some(Which::Low)];
            all.extend(both.into_iter().filter(|which| !trained.contains(which)));
        }
        let mut planned = Self {
            config,
            model,
            which: trained.first().copied().flatten(),
            blocks: Vec::new(),
            largest,
            measured: RefCell::default(),
            compute,
            device,
            trained: trained.len(),
            components: Vec::new(),
            previews,
        };
        for which in all {
            let file = model.weights(Part::Denoiser(which.unwrap_or(Which::High)))?;
            planned.blocks = model.arch().blocks(&file);
            planned.add(component(which), &**model, &file);
        }
        if let Some(other) = other {
            let file = other.weights(Part::Denoiser(Which::High))?;
            planned.add(OF_PREVIEWS, &**other, &file);
        }
        Ok(planned)
    }

    fn add(&mut self, name: &str, model: &dyn Diffusion, file: &PartFile) {
        let quantization = self.config.model.quantization;
        let modules = modules(name, model, file, self.compute, quantization);
        let number = self.components.len() as u64;
        self.components.push(Component {
            name: name.into(),
            modules: modules
                .into_iter()
                .map(|mut module| {
                    // Transformers share no storage.
                    module.tensors[0].storage += number << 32;
                    module
                })
                .collect(),
        });
    }

    /// How many clips are in a pass, where memory decides it.
    ///
    /// # Errors
    /// If a file is missing or damaged.
    pub(super) fn pass_size(&self, memory: Memory) -> Result<Option<PassSize>, Error> {
        let options = self.options();
        PassSize::choose(self.config, memory.on_device(), |config| {
            let request = PlanRequest {
                config,
                options: &options,
                margin: MARGINS[0],
                rows: config.train.batch(),
            };
            let planned = self.attempt(&self.components, memory, &request)?;
            Ok(planned.ok().map(|plan| plan.device_peak()))
        })
    }

    /// Plans within `memory`, as configured, passes of `rows` clips.
    ///
    /// # Errors
    /// If it does not fit however the batches are split, with what would fit; or an option does not apply to
    /// this model.
    pub(super) fn plan(&self, memory: Memory, rows: u32) -> Result<MemoryPlan, Error> {
        let options = self.options();
        let attempts = MARGINS.iter().map(|margin| (*margin, rows));
        let mut refused = None;
        for (margin, rows) in attempts.chain([(MARGINS[2], 1)]) {
            let request = PlanRequest {
                config: self.config,
                options: &options,
                margin,
                rows,
            };
            match self.attempt(&self.components, memory, &request)? {
                Ok(plan) => return Ok(MemoryPlan::new(self.config, plan)),
                Err(error) => match error {
                    PlanError::DeviceTooSmall { .. }
                    | PlanError::HostTooSmall { .. }
                    | PlanError::TooFewBlocks { .. } => refused = Some(error),
                    other => {
                        return Err(Error::Data(format!("the model cannot be placed: {other}")));
                    }
                },
            }
        }
        self.refuse(memory, &options, refused)
    }

    /// The most that is on the device at once if it is planned as configured within `memory`.
    ///
    /// # Errors
    /// If a file is missing or damaged.
    pub(super) fn peak(&self, memory: Memory) -> Result<Result<Bytes, PlanError>, Error> {
        let request = PlanRequest {
            config: self.config,
            options: &self.options(),
            margin: MARGINS[1],
            rows: self.config.train.batch(),
        };
        let planned = self.attempt(&self.components, memory, &request)?;
        Ok(planned.map(|plan| plan.device_peak()))
    }

    /// As configured; without such options, all blocks stay.
    fn options(&self) -> OffloadOptions {
        let options = self.config.model.offload_options();
        options.unwrap_or_else(|| OffloadOptions {
            device_map: DeviceMap::all_on_device(),
            ..OffloadOptions::default()
        })
    }

    /// Plans the turns of `components`.
    fn attempt(
        &self,
        components: &[Component],
        memory: Memory,
        request: &PlanRequest,
    ) -> Result<Result<Plan, PlanError>, Error> {
        let config = request.config.in_passes_of(request.rows);
        let working = |streamed: &[usize]| {
            let bytes = working(&config, self.measured(&config, streamed)?, self.trained);
            Ok(Bytes(bytes.0 / 10 * request.margin))
        };
        let turns = |working, memory, options: &OffloadOptions| {
            self.turns(components, working, memory, options)
        };
        decide(
            memory,
            request.options,
            self.blocks.iter().sum(),
            working,
            turns,
        )
    }

    /// What a pass needs on `config` if these blocks are streamed.
    fn measured(&self, config: &Config, streamed: &[usize]) -> Result<Measured, Error> {
        let train = &config.train;
        let key = format!(
            "{} {} {} {:?} {streamed:?}",
            train.batch(),
            train.gradient_checkpointing,
            train.activation_offload,
            config.model.quantization,
        );
        if let Some(known) = self.measured.borrow().get(&key) {
            return Ok(*known);
        }
        let machine = (self.compute, self.device);
        let measured = measured(
            config,
            self.model,
            self.largest,
            self.which,
            machine,
            streamed,
        )?;
        self.measured.borrow_mut().insert(key, measured);
        Ok(measured)
    }

    /// A phase for each transformer, and one for the autoencoder if they have to make room for it.
    fn turns(
        &self,
        components: &[Component],
        working: Bytes,
        memory: Memory,
        options: &OffloadOptions,
    ) -> Result<Plan, PlanError> {
        let phase = |component: &Component| Phase {
            name: match component.name.as_str() {
                "transformer_2" => "low noise".into(),
                OF_PREVIEWS => "drawing previews".into(),
                _ if components.iter().any(|other| other.name == "transformer_2") => {
                    "high noise".into()
                }
                _ => "train".into(),
            },
            active: vec![component.name.clone()],
            working,
        };
        let mut phases: Vec<Phase> = components.iter().map(phase).collect();
        let cycle = |phases: &[Phase]| {
            let plan = plan_cycle(components, phases, memory, options)?;
            match memory_per_model(&plan, components.len()) {
                Some(less) => plan_cycle(components, phases, less, options),
                None => Ok(plan),
            }
        };
        let plan = cycle(&phases)?;
        if !self.previews || !has_offloaded_modules(&plan) {
            return Ok(plan);
        }
        phases.push(Phase {
            name: "previews".into(),
            active: Vec::new(),
            working: plan.memory.on_device(),
        });
        cycle(&phases)
    }

    /// The components with matrices at another precision.
    fn resized(&self, quantization: Option<Quantization>) -> Vec<Component> {
        let ratio = |kind: Option<Quantization>| {
            bytes_of_each(&[1, 1], self.compute, kind)
                / bytes_of_each(&[1, 1], self.compute, self.config.model.quantization)
        };
        let mut components = self.components.clone();
        for tensor in components
            .iter_mut()
            .flat_map(|component| &mut component.modules)
            .flat_map(|module| &mut module.tensors)
        {
            // Modules consist almost entirely of matrices.
            tensor.bytes = Bytes((tensor.bytes.0 as f64 * ratio(quantization)) as u64);
        }
        components
    }

    /// Fails with what is needed, what there is, and the options that fit.
    fn refuse(
        &self,
        memory: Memory,
        options: &OffloadOptions,
        reason: Option<PlanError>,
    ) -> Result<MemoryPlan, Error> {
        let device = memory.on_device();
        let most = options.max_memory.device;
        let available = most.map_or(device, |most| most.min(device));
        // One clip, with one transformer at a time if possible.
        let needed = |config: &Config, memory: Memory, options: &OffloadOptions| {
            let resized = self.resized(config.model.quantization);
            let request = PlanRequest {
                config,
                options,
                margin: 10,
                rows: 1,
            };
            let mut most = None;
            for component in &resized {
                let plan = self.attempt(std::slice::from_ref(component), memory, &request)?;
                let Ok(plan) = plan else {
                    return Ok::<_, Error>(None);
                };
                most = most.max(Some(plan.device_peak()));
            }
            Ok(most)
        };
        let unbounded = OffloadOptions {
            max_memory: Default::default(),
            low_vram: options.low_vram || is_free(options),
            ..options.clone()
        };
        let need = needed(self.config, unlimited(memory), &unbounded)?.unwrap_or_default();
        let mut fitting = Vec::new();
        for (word, quantization) in [
            ("", None),
            ("`model.quantization: int8`", Some(Quantization::Int8)),
            ("`model.quantization: nf4`", Some(Quantization::Nf4)),
        ] {
            for (swap, offload) in [(false, false), (true, false), (true, true)] {
                let mut other = self.config.clone();
                other.model.quantization = quantization;
                other.train.gradient_checkpointing = true;
                other.train.activation_offload = offload;
                let other_options = OffloadOptions {
                    low_vram: swap,
                    device_map: match swap {
                        true => DeviceMap::Auto,
                        false => DeviceMap::all_on_device(),
                    },
                    max_memory: options.max_memory,
                    ..OffloadOptions::default()
                };
                if let Some(need) = needed(&other, memory, &other_options)? {
                    let mut keys = vec!["`train.gradient_checkpointing: true`"];
                    keys.extend((!word.is_empty()).then_some(word));
                    keys.extend(swap.then_some("`model.offload: all`"));
                    keys.extend(offload.then_some("`train.activation_offload: true`"));
                    fitting.push(format!("{} ({need})", keys.join(" and ")));
                    break;
                }
            }
        }
        let fitting = match fitting.is_empty() {
            true => "only a smaller `data.resolution` or `data.num_frames` would fit".into(),
            false => format!("what would fit: {}", fitting.join("; ")),
        };
        let reason = match reason {
            Some(PlanError::DeviceTooSmall { .. }) | None => String::new(),
            Some(other) => format!(" ({other})"),
        };
        Err(Error::Data(format!(
            "this run needs about {need} of memory with one clip at a time, and there are {available}{reason}; \
             {fitting}"
        )))
    }
}

/// What a pass needs, and how many numbers of a denoiser are trained.
#[derive(Debug, Clone, Copy)]
pub(super) struct Measured {
    pub(super) pass: PassMemory,
    trained: u64,
}

/// Measures a pass of the denoiser `which` with the largest batch, if these of its blocks are streamed.
///
/// # Errors
/// If a file is missing or damaged.
pub(super) fn measured(
    config: &Config,
    model: &Arc<dyn Diffusion>,
    largest: Largest<'_>,
    which: Option<Which>,
    (compute, device): (Kind, Device),
    streamed: &[usize],
) -> Result<Measured, Error> {
    let part = which.unwrap_or(Which::High);
    let rows = config.train.batch();
    let largest = largest(rows)?;
    let conditions = largest
        .conditions
        .map(|_, tensor| tensor.f_to_device(device))?;
    let sigma = Tensor::f_full([i64::from(rows)], 0.5, (Kind::Float, device))?;
    let weights = match &config.adapter {
        Some(_) => Some(model.weights(Part::Denoiser(part))?),
        None => None,
    };
    let mut adapters = match &config.adapter {
        Some(adapter) => {
            let adapters = attachment(config, model.arch(), which)?.without_values();
            Some(adapters.computing_in(adapter_speed::computes_in(adapter, (compute, device))))
        }
        None => None,
    };
    let (base, stored) = match &adapters {
        Some(_) => (Base::Frozen(compute), compute),
        None => (Base::Trained, Kind::Float),
    };
    let shapes = weights.as_ref().map(|weights| weights as &dyn TensorSource);
    let mut source = MetaWeights::new(shapes, (stored, device));
    let mut parameters = Parameters::default();
    let build = || {
        let mut builder = Builder::new(&mut source, &mut parameters, compute, base)
            .quantized(config.model.quantization.map(Into::into))
            .streamed(Some(Streaming {
                blocks: streamed.to_vec(),
                options: SwapOptions::default(),
            }));
        if let Some(adapters) = &mut adapters {
            builder = builder.with_adapters(adapters);
        }
        let denoiser = model.denoiser(part, device, &mut builder)?;
        offload_activations(&*denoiser, config, device);
        Ok(denoiser)
    };
    let mut pass = estimate::measured(device, build, |denoiser| {
        let options = (Kind::Float, device);
        let clean = Tensor::f_empty(largest.latents.size(), options)?;
        let noise = clean.f_empty_like()?;
        let pass = Pass::Train {
            checkpoint: config.train.gradient_checkpointing,
        };
        let of = (&**model, &**denoiser);
        let squares = squares(
            config,
            of,
            [&clean, &noise, &sigma],
            conditions.shallow_clone(),
            pass,
        )?;
        Ok(means(&squares)?.f_mean(Kind::Float)?)
    });
    // These are real.
    pass.kept += conditions
        .iter()
        .map(|(_, tensor)| bytes(tensor))
        .sum::<u64>();
    Ok(Measured {
        pass,
        trained: parameters.count(),
    })
}

/// What a step needs besides the frozen weights: the passes of one expert, and the trained parameters of
/// `experts` with gradients and moments.
pub(super) fn working(config: &Config, measured: Measured, experts: usize) -> Bytes {
    let trained = measured.trained * 4;
    let moments = measured.trained * config.train.optim.bytes_of_each();
    let averages = u64::from(config.train.ema_decay.is_some()) * trained;
    let several = config.train.batches() > 1;
    let so_far = if several { trained } else { 0 };
    let resting = experts as u64 * (trained + moments + averages);
    let pass = so_far + measured.pass.kept + measured.pass.temporary;
    Bytes(resting + pass.max(so_far + trained))
}

/// Fails if all weights of `experts` with what training them takes are more than the device has, before any is read: nothing
/// of them can be offloaded.
pub(super) fn expect_room(
    config: &Config,
    measured: Measured,
    experts: usize,
    memory: Memory,
) -> Result<(), Error> {
    let (need, available) = (working(config, measured, experts), memory.on_device());
    match need <= available {
        true => Ok(()),
        false => Err(Error::Data(format!(
            "training all {} parameters needs about {need} of memory, and there are {available}: train an adapter \
             (`adapter`), or set `train.gradient_checkpointing: true` or an optimizer with less state (`train.optim`)",
            thousands(measured.trained)
        ))),
    }
}

/// Whether a module is off the device in a phase that does not use it.
pub(super) fn has_offloaded_modules(plan: &Plan) -> bool {
    let mut placements = plan.phases.iter().flat_map(|phase| &phase.placements);
    placements.any(|placed| placed.residency.is_idle())
}

/// Streamed blocks keep their place while another transformer has its turn. If those of all do not fit the
/// host together, returns the memory to plan with instead.
fn memory_per_model(plan: &Plan, models: usize) -> Option<Memory> {
    let bytes = |residency| -> Bytes {
        let placements = plan.phases.iter().flat_map(|phase| &phase.placements);
        let there = placements.filter(|placed| placed.residency == residency);
        there.map(|placed| placed.bytes).sum()
    };
    match plan.memory {
        Memory::Discrete { device, host } => {
            let all = bytes(Residency::StreamedFromHost);
            (all > host).then(|| Memory::Discrete {
                device,
                host: Bytes(host.0 / models as u64),
            })
        }
        Memory::Unified {
            device,
            pool,
            zero_copy,
        } => {
            let most = plan.device_peak() + bytes(Residency::ZeroCopy);
            (zero_copy && most > pool).then_some(Memory::Unified {
                device,
                pool,
                zero_copy: false,
            })
        }
    }
}

#[cfg(test)]
mod tests;
