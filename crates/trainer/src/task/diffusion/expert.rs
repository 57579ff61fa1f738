//! The experts of a run: what is trained of each, and which one is on the device.

use std::path::Path;

use models::Parameters;
use models::adapters::{
    Attached, Attachment, LoraConfig, Modules, Naming, PeftAdapter, adapter_config, write_peft,
};
use models::diffusion::lora::{LoraFile, LoraForm, WithLoras};
use models::diffusion::{Arch, Denoiser, Diffusion, Expert as Which, Part};
use models::model::{Base, Builder, FileWeights, Load, RandomWeights, Streaming, WeightSource};
use models::pretrained::fingerprint;
use placement::Placer;
use placement::phases::{self, SpillFile, StageComponent, enter};
use placement::plan::{PhasePlan, Plan};
use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

use super::lora_file;
use super::model::config_file;
use super::plan::{component, has_offloaded_modules};
use crate::Error;
use crate::adapter_speed;
use crate::config::{Config, ModuleNames};
use crate::media::{Density, TrainedPart};
use crate::memory_plan::{MemoryPlan, StreamedPass, offload_folder};

/// A transformer with its LoRA, or one that is trained itself.
pub(super) struct Expert {
    /// Which of two experts it is; `None` if there is only one.
    pub(super) which: Option<Which>,
    pub(super) model: Box<dyn Denoiser>,
    /// Its frozen tensors that stay on the device.
    frozen: Vec<(String, Tensor)>,
    pub(super) fingerprint: String,
    /// The LoRA; without one, the model itself is trained.
    pub(super) lora: Option<Lora>,
    /// The LoRA's, with PEFT's names, or the model's, with those of its files.
    pub(super) parameters: Parameters,
    pub(super) density: Density,
    /// The trained noise levels, from lowest to highest.
    pub(super) range: (f64, f64),
}

/// A LoRA on a transformer, and the format of its file.
pub(super) struct Lora {
    pub(super) adapter: Attached,
    pub(super) form: LoraForm,
}

impl Expert {
    /// The denoiser `part` of `diffusion` with a LoRA as configured.
    ///
    /// # Errors
    /// If a file is missing, damaged or not supported, the adapter does not match, or memory runs out.
    pub(super) fn open(
        config: &Config,
        diffusion: &dyn Diffusion,
        part: &TrainedPart,
        streaming: Option<Streaming>,
        compute: Kind,
        placer: &mut Placer,
    ) -> Result<Self, Error> {
        let (arch, which) = (diffusion.arch(), part.which());
        let weights = diffusion.weights(Part::Denoiser(which))?;
        let (blocks, fingerprint) = (arch.blocks(&weights), fingerprint(&weights)?);
        let added = config.model.training_adapter.as_deref();
        let added = added.map(|path| LoraFile::read(path, arch, Some(which)));
        let added = added.transpose()?.into_iter().map(|lora| (lora, 1.0));
        let weights = WithLoras::new(Box::new(weights), added.collect())?;
        let kind = config.adapter.as_ref().map_or(Kind::Float, |adapter| {
            adapter_speed::computes_in(adapter, (compute, placer.device()))
        });
        let mut attachment = attachment(config, arch, part.expert)?.computing_in(kind);
        let mut parameters = Parameters::default();
        let load = Load {
            compute,
            quantization: config.model.quantization.map(Into::into),
            streaming,
        };
        let trained = (Some(&mut attachment), &mut parameters);
        let (model, frozen) = load.adapted(&weights, placer, trained, |device, builder| {
            diffusion.denoiser(which, device, builder)
        })?;
        offload_activations(&*model, config, placer.device());
        let adapter = attachment.finish()?;
        let wanted = config.adapter.as_ref().and_then(|adapter| adapter.format);
        Ok(Self {
            which: part.expert,
            lora: Some(Lora {
                form: lora_file::form(wanted, (&adapter.config, &adapter.modules), arch, &blocks)?,
                adapter,
            }),
            model,
            frozen,
            fingerprint,
            parameters,
            density: Density::new(&config.train, diffusion.arch().training_shift, part.range)?,
            range: part.range,
        })
    }

    /// The denoiser `part`, all weights of which are trained, in fp32: from those in its file or, with `model.from_config`, from
    /// random ones that are drawn from the run's seed.
    ///
    /// # Errors
    /// If a file is missing, damaged or not supported, or memory runs out.
    pub(super) fn whole(
        config: &Config,
        diffusion: &dyn Diffusion,
        part: &TrainedPart,
        compute: Kind,
        placer: &mut Placer,
    ) -> Result<Self, Error> {
        let (device, which) = (placer.device(), part.which());
        let mut parameters = Parameters::default();
        let mut build = |source: &mut dyn WeightSource| {
            let mut builder = Builder::new(source, &mut parameters, compute, Base::Trained);
            diffusion.denoiser(which, device, &mut builder)
        };
        let (model, fingerprint) = match config.model.from_config {
            Some(true) => {
                let shape = config_file(config, diffusion, which)?;
                let shape =
                    std::fs::read_to_string(&shape).map_err(|e| Error::io("read", &shape, e))?;
                (build(&mut RandomWeights::new(config.seed, placer))?, shape)
            }
            _ => {
                let weights = diffusion.weights(Part::Denoiser(which))?;
                let model = build(&mut FileWeights::new(&weights, Kind::Float, placer))?;
                (model, fingerprint(&weights)?)
            }
        };
        offload_activations(&*model, config, device);
        Ok(Self {
            which: part.expert,
            lora: None,
            model,
            frozen: Vec::new(),
            fingerprint,
            parameters,
            density: Density::new(&config.train, diffusion.arch().training_shift, part.range)?,
            range: part.range,
        })
    }

    /// Its name in files and records.
    pub(super) fn name(&self) -> &'static str {
        name(self.which)
    }

    /// Name of its LoRA file: that of the run plus its own.
    fn file_name(&self, run: &str) -> String {
        let expert = match self.which {
            Some(_) => format!("_{}", self.name()),
            None => String::new(),
        };
        // Other files of a checkpoint have these names.
        match ["model", "optimizer", "adapter_model"].contains(&run) {
            true => format!("{run}_lora{expert}.safetensors"),
            false => format!("{run}{expert}.safetensors"),
        }
    }

    /// The shape of the adapter, for comparing runs.
    pub(super) fn adapter_identity(&self) -> Value {
        let Some(Lora { adapter, .. }) = &self.lora else {
            return Value::Null;
        };
        let mut identity = adapter_config(adapter, "", Naming::ALONE);
        if let Some(keys) = identity.as_object_mut() {
            keys.retain(|key, _| key != "base_model_name_or_path" && key != "lora_dropout");
            keys.insert("layers".into(), json!(adapter.modules));
        }
        identity
    }

    /// The LoRA as it is now, if there is one.
    pub(super) fn lora_file(&self, arch: &'static Arch) -> Result<Option<LoraFile>, Error> {
        let lora = self.lora.as_ref();
        let file = lora.map(|lora| lora_file::of(&lora.adapter, &self.parameters, arch));
        file.transpose()
    }

    /// Writes the LoRA, if there is one, to `folder` in the format for other programs, and to `peft` in
    /// PEFT's format, from which training can continue.
    pub(super) fn export(
        &self,
        config: &Config,
        model: &dyn Diffusion,
        folder: &Path,
        peft: &Path,
    ) -> Result<(), Error> {
        let Some(Lora { adapter, form }) = &self.lora else {
            return Ok(());
        };
        let mut file = lora_file::of(adapter, &self.parameters, model.arch())?;
        let base = model.path().display().to_string();
        write_peft(peft, adapter, &self.parameters, (&base, Naming::ALONE))?;
        let path = peft.join("adapter_config.json");
        let text = std::fs::read_to_string(&path).map_err(|e| Error::io("read", &path, e))?;
        // PEFT has no task type for video models.
        let text = text.replace("\"CAUSAL_LM\"", "null");
        std::fs::write(&path, text).map_err(|error| Error::io("write", &path, error))?;
        file.metadata = self.about(config, model, &base).into_iter().collect();
        file.write(&folder.join(self.file_name(&config.name)), *form)?;
        Ok(())
    }

    /// Metadata of the LoRA file besides rank and alpha.
    fn about(&self, config: &Config, model: &dyn Diffusion, base: &str) -> Vec<(String, String)> {
        let mut about = vec![
            ("modelspec.title", config.name.clone()),
            (
                "modelspec.architecture",
                model.arch().lora.architecture.to_owned(),
            ),
            ("ss_output_name", config.name.clone()),
            ("ss_sd_model_name", base.to_owned()),
            ("surefoot.version", env!("CARGO_PKG_VERSION").to_owned()),
        ];
        if let Some(word) = &config.data.trigger_word {
            about.push(("modelspec.trigger_phrase", word.clone()));
        }
        if self.which.is_some() {
            about.push(("surefoot.expert", self.name().to_owned()));
        }
        let owned = about
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value));
        owned.collect()
    }
}

/// An expert's name in files and records.
pub(super) fn name(which: Option<Which>) -> &'static str {
    match which {
        Some(Which::Low) => "low_noise",
        Some(Which::High) => "high_noise",
        None => "model",
    }
}

/// Where the experts are.
pub(super) struct ExpertPlacement {
    /// The plan's phases: one for each transformer, and one between their turns. Empty if all stay.
    phases: Vec<PhasePlan>,
    /// For tensors that are in no memory.
    spill_file: Option<SpillFile>,
    /// The last phase entered; `None` if unknown.
    current: Option<usize>,
}

impl ExpertPlacement {
    /// Carries out `plan`; without one, everything stays.
    pub(super) fn new(config: &Config, plan: Option<&Plan>) -> Result<Self, Error> {
        let Some(plan) = plan.filter(|plan| has_offloaded_modules(plan)) else {
            return Ok(Self {
                phases: Vec::new(),
                spill_file: None,
                current: None,
            });
        };
        let folder = offload_folder(config);
        let made = std::fs::create_dir_all(&folder).and_then(|()| SpillFile::new(&folder));
        let made = made.map_err(|error| Error::io("write to", &folder, error))?;
        Ok(Self {
            phases: plan.phases.clone(),
            spill_file: Some(made),
            current: None,
        })
    }

    /// Call this after another expert was put on the device.
    pub(super) fn forget(&mut self) {
        self.current = None;
    }

    /// Enters the phase of an expert, or the one between all turns: offloads what has to make room, then
    /// loads what is used.
    ///
    /// # Errors
    /// If memory runs out, or offloaded tensors cannot be restored; entering again continues.
    pub(super) fn enter(
        &mut self,
        experts: &[Expert],
        number: Option<usize>,
        placer: &mut Placer,
    ) -> Result<(), Error> {
        let phase = number.unwrap_or(self.phases.len().wrapping_sub(1));
        let (Some(plan), Some(spill_file)) = (self.phases.get(phase), &mut self.spill_file) else {
            return Ok(());
        };
        if self.current == Some(phase) {
            return Ok(());
        }
        self.current = None;
        let mut frozen: Vec<_> = experts.iter().map(Frozen::of).collect();
        let mut components: Vec<StageComponent<'_>> = frozen
            .iter_mut()
            .map(|frozen| StageComponent {
                name: frozen.component,
                parameters: frozen,
            })
            .collect();
        enter(placer, plan, &mut components, spill_file)?;
        self.current = Some(phase);
        Ok(())
    }
}

/// Handles to the frozen tensors of an expert, named after their modules in the plan.
struct Frozen {
    component: &'static str,
    tensors: Vec<(String, Tensor)>,
}

impl Frozen {
    fn of(expert: &Expert) -> Self {
        let component = component(expert.which);
        // Others would be restored with another layout, which changes rounding.
        let tensors = expert.frozen.iter();
        let tensors = tensors.filter(|(_, tensor)| tensor.is_contiguous());
        Self {
            component,
            tensors: tensors
                .map(|(name, tensor)| (format!("{component}.{name}"), tensor.shallow_clone()))
                .collect(),
        }
    }
}

impl phases::Parameters for Frozen {
    fn parameters(&mut self) -> Vec<(String, &mut Tensor)> {
        let tensors = self.tensors.iter_mut();
        tensors
            .map(|(name, tensor)| (name.clone(), tensor))
            .collect()
    }
}

/// Offloads the activation checkpoints of a denoiser if the config says so.
pub(super) fn offload_activations(model: &dyn Denoiser, config: &Config, device: Device) {
    let offload = config.train.activation_offload && device != Device::Cpu;
    for list in model.lists() {
        list.offload_activations(offload);
    }
}

/// A frozen denoiser, with a LoRA merged into its weights if there is one.
pub(super) fn frozen(
    config: &Config,
    (diffusion, which): (&dyn Diffusion, Which),
    lora: Option<LoraFile>,
    streaming: Option<Streaming>,
    compute: Kind,
    placer: &mut Placer,
) -> Result<Box<dyn Denoiser>, Error> {
    let weights = Box::new(diffusion.weights(Part::Denoiser(which))?);
    let weights = WithLoras::new(weights, lora.into_iter().map(|lora| (lora, 1.0)).collect())?;
    let load = Load {
        compute,
        quantization: config.model.quantization.map(Into::into),
        streaming,
    };
    Ok(load.frozen(&weights, placer, |device, builder| {
        diffusion.denoiser(which, device, builder)
    })?)
}

/// The LoRA to attach to a model, fresh or from its file.
pub(super) fn attachment(
    config: &Config,
    arch: &'static Arch,
    which: Option<Which>,
) -> Result<Attachment, Error> {
    let Some(adapter) = &config.adapter else {
        return Err(Error::Internal(
            "a run without `adapter` attaches one".into(),
        ));
    };
    if let Some(folder) = &adapter.resume_from {
        return Ok(Attachment::saved(saved(config, folder, arch, which)?)?);
    }
    let mut lora: LoraConfig = adapter.lora()?;
    let all = ModuleNames::Pattern("all-linear".into());
    if adapter.target_modules == all {
        lora.target_modules = match arch.lora.targets {
            [pattern] => Modules::from_text(pattern).map_err(Error::Data)?,
            names => {
                let text = arch.lora.text.iter().filter(|_| config.train.text_encoder);
                let text = text
                    .flat_map(|text| text.blocks.linear)
                    .map(|(name, _)| name);
                let mut names: Vec<String> = names
                    .iter()
                    .chain(text)
                    .map(|name| (*name).to_owned())
                    .collect();
                names.dedup();
                Modules::Suffixes(names)
            }
        };
    }
    Ok(Attachment::fresh(&lora)?)
}

/// The adapter of this expert in `adapter.resume_from`: a run that trains both writes each to its own folder. A LoRA of
/// another program may be in any form that [`LoraFile`] reads.
fn saved(
    config: &Config,
    path: &Path,
    arch: &'static Arch,
    which: Option<Which>,
) -> Result<PeftAdapter, Error> {
    let own = path.join(name(which));
    if which.is_some() && own.is_dir() {
        return Ok(PeftAdapter::open(&own)?);
    }
    let is_file = path.is_file();
    let both = config
        .train
        .experts
        .is_none_or(|e| e == crate::config::Experts::Both);
    // One that needs no choice is for one expert.
    if which.is_some() && both && !(is_file && LoraFile::read(path, arch, None).is_err()) {
        return Err(Error::Data(format!(
            "`adapter.resume_from`: `{}` has no folder `{}`, and both experts are trained: give the `adapter` \
             folder of a run on both, or set `train.experts`",
            path.display(),
            name(which)
        )));
    }
    if !is_file {
        return Ok(PeftAdapter::open(path)?);
    }
    let folder = tempfile::tempdir().map_err(|error| Error::io("write", path, error))?;
    let file = LoraFile::read(path, arch, which)?;
    if file.text_layers().next().is_some() && !config.train.text_encoder {
        return Err(Error::Data(format!(
            "`adapter.resume_from`: `{}` changes text encoders, too: set `train.text_encoder: true`",
            path.display()
        )));
    }
    file.write_peft(folder.path())?;
    Ok(PeftAdapter::open(folder.path())?)
}

/// Which blocks of a transformer are streamed, if any; `component` is its name in the plan.
pub(super) fn streaming(
    config: &Config,
    plan: &MemoryPlan,
    component: &str,
    placer: &Placer,
) -> Result<Option<Streaming>, Error> {
    let adapter = config.adapter.as_ref();
    let pass = StreamedPass {
        dropout: adapter.is_some_and(|adapter| adapter.lora_dropout > 0.0),
        offload: config.train.activation_offload && placer.device() != Device::Cpu,
    };
    plan.streaming(component, placer, &pass)
}
