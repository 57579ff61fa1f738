//! The experts of a run: what is trained of each, and which of them is on the device.

use std::path::{Path, PathBuf};

use models::Parameters;
use models::adapters::{
    Attached, Attachment, LoraConfig, Modules, PeftAdapter, adapter_config, write_peft,
};
use models::model::{Base, Builder, FileWeights, RandomWeights, Streaming};
use models::pretrained::fingerprint;
use models::wan::files::{Part, PartFile};
use models::wan::lora::{Expert as Which, LoraForm};
use models::wan::model::WanModel;
use models::wan::transformer::{Transformer, TransformerConfig};
use placement::Placer;
use placement::phases::{self, SpillFile, StageComponent, enter};
use placement::plan::{PhasePlan, Plan};
use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

use super::lora_file;
use super::plan::{component, someone_waits};
use crate::Error;
use crate::config::{Config, ModuleNames};
use crate::memory_plan::{MemoryPlan, StreamedPass, offload_folder};
use crate::video::{Density, TrainedPart};

/// The linear layers of a block, which is what programs that load LoRAs of Wan know.
const LAYERS: [&str; 6] = [
    "to_q",
    "to_k",
    "to_v",
    "to_out.0",
    "ffn.net.0.proj",
    "ffn.net.2",
];

/// A transformer with its LoRA, or one that is trained from nothing.
pub(super) struct Expert {
    /// Which of two it is, where there are two.
    pub(super) which: Option<Which>,
    pub(super) model: Transformer,
    pub(super) fingerprint: String,
    /// What learns in the place of the model, which learns itself where there is none.
    pub(super) lora: Option<Lora>,
    /// Those of the LoRA by PEFT's names, or of the model by those of its files.
    pub(super) parameters: Parameters,
    pub(super) density: Density,
    /// The levels that are trained, from the lowest to the highest.
    pub(super) range: (f64, f64),
}

/// A LoRA on a transformer, and the form of its file.
pub(super) struct Lora {
    pub(super) adapter: Attached,
    pub(super) form: LoraForm,
}

impl Expert {
    /// The transformer `part` of `wan` with a LoRA, as `config` says.
    ///
    /// # Errors
    /// When a file is missing, damaged or not known here, the adapter does not fit, or memory runs out.
    pub(super) fn open(
        config: &Config,
        wan: &WanModel,
        part: &TrainedPart,
        streaming: Option<Streaming>,
        compute: Kind,
        placer: &mut Placer,
    ) -> Result<Self, Error> {
        let shape = wan.transformer_config(part.expert.unwrap_or(Which::High))?;
        let weights = PartFile::open(Part::Transformer, &part.path)?;
        let mut attachment = attachment(config, part.expert)?;
        let mut parameters = Parameters::default();
        let device = placer.device();
        let mut source = FileWeights::new(&weights, compute, placer);
        let base = Base::Frozen(compute);
        let mut builder = Builder::new(&mut source, &mut parameters, compute, base)
            .with_adapters(&mut attachment)
            .quantized(config.model.quantization.map(Into::into))
            .streamed(streaming);
        let mut model = Transformer::new(&shape, device, &mut builder)?;
        model.offload_activations(config.train.activation_offload && device != Device::Cpu);
        let adapter = attachment.finish()?;
        let wanted = config.adapter.as_ref().and_then(|adapter| adapter.format);
        let (low, high) = part.range;
        Ok(Self {
            which: part.expert,
            lora: Some(Lora {
                form: lora_file::form(wanted, &adapter.modules, shape.num_layers)?,
                adapter,
            }),
            model,
            fingerprint: fingerprint(&weights)?,
            parameters,
            density: Density::new(&config.train, low, high)?,
            range: part.range,
        })
    }

    /// A transformer of the sizes in the folder of `part`, whose weights are drawn from the run's seed
    /// and all learn, in fp32.
    ///
    /// # Errors
    /// When the sizes cannot be read, or memory runs out.
    pub(super) fn fresh(
        config: &Config,
        part: &TrainedPart,
        compute: Kind,
        placer: &mut Placer,
    ) -> Result<Self, Error> {
        let shape = TransformerConfig::read(&part.path.join("config.json"))?;
        let mut parameters = Parameters::default();
        let device = placer.device();
        let mut source = RandomWeights::new(config.seed, placer);
        let mut builder = Builder::new(&mut source, &mut parameters, compute, Base::Trained);
        let mut model = Transformer::new(&shape, device, &mut builder)?;
        model.offload_activations(config.train.activation_offload && device != Device::Cpu);
        let (low, high) = part.range;
        Ok(Self {
            which: part.expert,
            lora: None,
            model,
            fingerprint: shape.to_json().to_string(),
            parameters,
            density: Density::new(&config.train, low, high)?,
            range: part.range,
        })
    }

    /// What files and records call it.
    pub(super) fn name(&self) -> &'static str {
        name(self.which)
    }

    /// Name of its LoRA file: that of the run, and its own.
    fn file_name(&self, run: &str) -> String {
        let expert = match self.which {
            Some(_) => format!("_{}", self.name()),
            None => String::new(),
        };
        // Other files of a checkpoint are called so.
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
        let mut identity = adapter_config(adapter, "");
        if let Some(keys) = identity.as_object_mut() {
            keys.retain(|key, _| key != "base_model_name_or_path" && key != "lora_dropout");
            keys.insert("layers".into(), json!(adapter.modules));
        }
        identity
    }

    /// Writes the LoRA, if it is one that learns, into `folder` under the names that others look for, and
    /// into `peft` in PEFT's form, from which training goes on.
    pub(super) fn export(
        &self,
        config: &Config,
        model: &WanModel,
        folder: &Path,
        peft: &Path,
    ) -> Result<(), Error> {
        let Some(Lora { adapter, form }) = &self.lora else {
            return Ok(());
        };
        let base = model.path.display().to_string();
        write_peft(peft, adapter, &self.parameters, &base)?;
        let path = peft.join("adapter_config.json");
        let text = std::fs::read_to_string(&path).map_err(|e| Error::io("read", &path, e))?;
        // To PEFT, a video model is of no kind.
        let text = text.replace("\"CAUSAL_LM\"", "null");
        std::fs::write(&path, text).map_err(|error| Error::io("write", &path, error))?;
        let mut file = lora_file::of(adapter, &self.parameters)?;
        file.metadata = self.about(config, &base).into_iter().collect();
        file.write(&folder.join(self.file_name(&config.name)), *form)?;
        Ok(())
    }

    /// What the metadata of the LoRA file say beside rank and alpha.
    fn about(&self, config: &Config, base: &str) -> Vec<(String, String)> {
        let mut about = vec![
            ("modelspec.title", config.name.clone()),
            ("modelspec.architecture", "wan/lora".to_owned()),
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

/// What files and records call an expert.
pub(super) fn name(which: Option<Which>) -> &'static str {
    match which {
        Some(Which::Low) => "low_noise",
        Some(Which::High) => "high_noise",
        None => "model",
    }
}

/// Where the experts are.
pub(super) struct Residency {
    /// Of the plan: a phase for each transformer, and one for what comes between their turns. Empty where all
    /// stay.
    phases: Vec<PhasePlan>,
    /// For what waits in no memory.
    spill_file: Option<SpillFile>,
    /// The phase that was entered last; none while that is not known.
    here: Option<usize>,
}

impl Residency {
    /// Carries out `plan`; without one, all stay.
    ///
    /// # Errors
    /// When a file for what waits on a disk cannot be made.
    pub(super) fn new(config: &Config, plan: Option<&Plan>) -> Result<Self, Error> {
        let Some(plan) = plan.filter(|plan| someone_waits(plan)) else {
            return Ok(Self {
                phases: Vec::new(),
                spill_file: None,
                here: None,
            });
        };
        let folder = offload_folder(config);
        let made = std::fs::create_dir_all(&folder).and_then(|()| SpillFile::new(&folder));
        let made = made.map_err(|error| Error::io("write to", &folder, error))?;
        Ok(Self {
            phases: plan.phases.clone(),
            spill_file: Some(made),
            here: None,
        })
    }

    /// There is one more expert, which is on the device.
    pub(super) fn forget(&mut self) {
        self.here = None;
    }

    /// Enters the phase of that expert, or the one between the turns of all: what it uses comes to the device, after
    /// what has to make room.
    ///
    /// # Errors
    /// When memory runs out, or what left does not come back; entering again goes on.
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
        if self.here == Some(phase) {
            return Ok(());
        }
        self.here = None;
        let frozen = experts.iter().map(Frozen::of);
        let mut frozen = frozen.collect::<Result<Vec<_>, Error>>()?;
        let mut components: Vec<StageComponent<'_>> = frozen
            .iter_mut()
            .map(|frozen| StageComponent {
                name: frozen.component,
                parameters: frozen,
            })
            .collect();
        enter(placer, plan, &mut components, spill_file)?;
        self.here = Some(phase);
        Ok(())
    }
}

/// Handles on the frozen tensors of an expert, by the names that a plan has for their modules.
struct Frozen {
    component: &'static str,
    tensors: Vec<(String, Tensor)>,
}

impl Frozen {
    fn of(expert: &Expert) -> Result<Self, Error> {
        let component = component(expert.which);
        let mut tensors = expert.model.frozen()?;
        // Others would come back in another layout, and with it other sums.
        tensors.retain(|(_, tensor)| tensor.is_contiguous());
        let named = tensors.into_iter();
        Ok(Self {
            component,
            tensors: named
                .map(|(name, tensor)| (format!("{component}.{name}"), tensor))
                .collect(),
        })
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

/// A transformer without a LoRA.
pub(super) fn frozen(
    config: &Config,
    wan: &WanModel,
    which: Which,
    streaming: Option<Streaming>,
    compute: Kind,
    placer: &mut Placer,
) -> Result<Transformer, Error> {
    let shape = wan.transformer_config(which)?;
    let weights = PartFile::open(Part::Transformer, wan.transformer_path(which))?;
    let device = placer.device();
    let mut parameters = Parameters::default();
    let mut source = FileWeights::new(&weights, compute, placer);
    let base = Base::Frozen(compute);
    let mut builder = Builder::new(&mut source, &mut parameters, compute, base)
        .quantized(config.model.quantization.map(Into::into))
        .streamed(streaming);
    Ok(Transformer::new(&shape, device, &mut builder)?)
}

/// The LoRA to put on a model, fresh or from its file.
fn attachment(config: &Config, which: Option<Which>) -> Result<Attachment, Error> {
    let Some(adapter) = &config.adapter else {
        return Err(Error::Data(
            "of a video model, a LoRA is trained: add `adapter`".into(),
        ));
    };
    if let Some(folder) = &adapter.resume_from {
        let folder = saved(config, folder, which)?;
        return Ok(Attachment::saved(PeftAdapter::open(&folder)?)?);
    }
    let mut lora: LoraConfig = adapter.lora()?;
    let all = ModuleNames::Pattern("all-linear".into());
    if adapter.target_modules == all {
        lora.target_modules = Modules::Suffixes(LAYERS.map(str::to_owned).into());
    }
    Ok(Attachment::fresh(&lora)?)
}

/// Where in `adapter.resume_from` the adapter of this expert is: a run that trains both writes each
/// into a folder of its own.
fn saved(config: &Config, folder: &Path, which: Option<Which>) -> Result<PathBuf, Error> {
    let own = folder.join(name(which));
    let both = config
        .train
        .experts
        .is_none_or(|e| e == crate::config::Experts::Both);
    match which {
        Some(_) if own.is_dir() => Ok(own),
        Some(_) if both => Err(Error::Data(format!(
            "`adapter.resume_from`: `{}` has no folder `{}`, and both experts are trained: give the `adapter` \
             folder of a run on both, or set `train.experts`",
            folder.display(),
            name(which)
        ))),
        _ => Ok(folder.to_owned()),
    }
}

/// Which blocks of a transformer are streamed, if any.
pub(super) fn streaming(
    config: &Config,
    plan: &MemoryPlan,
    which: Option<Which>,
    placer: &Placer,
) -> Result<Option<Streaming>, Error> {
    let adapter = config.adapter.as_ref();
    let pass = StreamedPass {
        dropout: adapter.is_some_and(|adapter| adapter.lora_dropout > 0.0),
        offload: config.train.activation_offload && placer.device() != Device::Cpu,
    };
    plan.streaming(component(which), placer, &pass)
}
