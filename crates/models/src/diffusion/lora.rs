//! LoRA files in the formats that programs read and write; the names of a model's layers are those of its [`Arch`].
//!
//! | format | a module | read by |
//! |---|---|---|
//! | kohya | `lora_unet_blocks_0_self_attn_q.lora_down.weight`, `.lora_up.weight`, `.alpha` | ComfyUI, diffusers, musubi |
//! | Comfy | `diffusion_model.blocks.0.self_attn.q.lora_A.weight`, `.lora_B.weight` | ComfyUI, diffusers |
//! | diffusers | `transformer.blocks.0.attn1.to_q.lora_A.weight`, `.lora_B.weight` | diffusers |
//!
//! Other formats that can be read: Comfy's with `lora_down`, `lora_up` and `alpha`; PEFT's
//! (`base_model.model.…`, with its `adapter_config.json`); changes to whole tensors (`.diff`, `.diff_b`); and
//! both experts in one file, as ai-toolkit may write them. If a format has no place for alpha, or only a
//! header entry that tools drop, alpha is multiplied into `lora_B`.

mod apply;
mod names;
mod stacked;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tch::{Kind, Tensor};

pub use self::apply::WithLoras;
use self::names::{Key, Role, original_module, parse};
use super::{Arch, Expert};
use crate::Error;
use crate::adapters::write_folder;
use crate::formats::{LazyTensor, SafetensorsFile, TensorSource, write_safetensors_with};

/// The change to one weight: `alpha / rank · up · down`.
#[derive(Debug)]
pub struct LoraModule {
    /// `[rank, inputs]`, with more dimensions for a convolution.
    pub down: Tensor,
    /// `[outputs, rank]`, with more dimensions for a convolution.
    pub up: Tensor,
    /// The product is scaled by `alpha / rank`.
    pub alpha: f64,
}

impl LoraModule {
    /// The rank: rows of `down`.
    pub fn rank(&self) -> i64 {
        self.down.size().first().copied().unwrap_or(0)
    }

    /// The scale of the product.
    pub fn scale(&self) -> f64 {
        self.alpha / self.rank() as f64
    }

    /// A second handle to the same tensors.
    fn shallow_clone(&self) -> Self {
        Self {
            down: self.down.shallow_clone(),
            up: self.up.shallow_clone(),
            alpha: self.alpha,
        }
    }
}

/// A LoRA for one denoiser.
#[derive(Debug)]
pub struct LoraFile {
    /// The kind of model that it is for.
    pub arch: &'static Arch,
    /// By diffusers' names of the modules, such as `blocks.0.attn1.to_q`.
    pub modules: BTreeMap<String, LoraModule>,
    /// Changes to whole tensors, by diffusers' names.
    pub differences: BTreeMap<String, Tensor>,
    /// The file's `__metadata__`.
    pub metadata: BTreeMap<String, String>,
}

/// How modules are named in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoraForm {
    /// kohya's, which musubi-tuner also uses: all linear layers of every block.
    Kohya,
    /// ComfyUI's.
    Comfy,
    /// diffusers'.
    Diffusers,
}

impl LoraFile {
    /// One without any change.
    pub fn new(arch: &'static Arch) -> Self {
        Self {
            arch,
            modules: BTreeMap::new(),
            differences: BTreeMap::new(),
            metadata: BTreeMap::new(),
        }
    }

    /// Reads a LoRA for whichever of the known models has layers of these names: the one that its header names, if there are
    /// several.
    ///
    /// # Errors
    /// As [`LoraFile::read`], for the first of them.
    pub fn read_any(path: &Path, expert: Option<Expert>) -> Result<Self, Error> {
        let mut first = None;
        let mut archs = super::archs();
        if let Ok(file) = SafetensorsFile::open(path) {
            let metadata = file.metadata();
            let named = metadata.get("modelspec.architecture");
            archs.sort_by_key(|arch| named.is_none_or(|name| name != arch.lora.architecture));
        }
        for arch in archs {
            match Self::read(path, arch, expert) {
                Ok(file) => return Ok(file),
                Err(error) => first = first.or(Some(error)),
            }
        }
        Err(first.unwrap_or_else(|| Error::Internal("no model is known".into())))
    }

    /// Reads a file in any format, or a PEFT folder. If the file contains both experts, `expert` selects one;
    /// otherwise it is ignored.
    ///
    /// # Errors
    /// If the file is damaged, has an unknown tensor, is not a LoRA, or contains both experts and `expert` is
    /// `None`.
    pub fn read(path: &Path, arch: &'static Arch, expert: Option<Expert>) -> Result<Self, Error> {
        let file = match path.is_dir() {
            true => path.join("adapter_model.safetensors"),
            false => path.to_owned(),
        };
        let tensors = SafetensorsFile::open(&file)?;
        let wrong = |reason: String| Error::file(&file, reason);
        let metadata: BTreeMap<_, _> = tensors.metadata().into_iter().collect();
        let settings = Settings::find(&file, &metadata, arch)?;
        let mut parts: BTreeMap<String, Parts> = BTreeMap::new();
        let mut differences = BTreeMap::new();
        let mut of_other = 0;
        for name in tensors.names() {
            let Key {
                module,
                role,
                expert: of,
            } = parse(&name, arch).map_err(wrong)?;
            match (of, expert) {
                (Some(_), None) => {
                    let reason = format!(
                        "`{name}`: the file contains both experts; say which one to use (high or low)"
                    );
                    return Err(wrong(reason));
                }
                (Some(of), Some(wanted)) if of != wanted => {
                    of_other += 1;
                    continue;
                }
                _ => {}
            }
            let tensor = tensors.read_stored(&name)?;
            crate::formats::require_finite(&tensors, &name, &tensor)?;
            let part = |parts: &mut BTreeMap<String, Parts>| -> Option<Tensor> {
                let parts = parts.entry(module.clone()).or_default();
                match role {
                    Role::Down => parts.down.replace(tensor.shallow_clone()),
                    Role::Up => parts.up.replace(tensor.shallow_clone()),
                    _ => parts.alpha.replace(tensor.shallow_clone()),
                }
            };
            let before = match role {
                Role::WeightDifference => {
                    differences.insert(format!("{module}.weight"), tensor.shallow_clone())
                }
                Role::BiasDifference => {
                    differences.insert(format!("{module}.bias"), tensor.shallow_clone())
                }
                _ => part(&mut parts),
            };
            if before.is_some() {
                return Err(wrong(format!(
                    "`{name}` is a second definition of `{module}`"
                )));
            }
        }
        let ranks = match metadata.get(stacked::RANKS) {
            Some(text) => serde_json::from_str(text)
                .map_err(|error| wrong(format!("`{}` in its header: {error}", stacked::RANKS)))?,
            None => stacked::Ranks::new(),
        };
        let mut modules = BTreeMap::new();
        for (name, parts) in parts {
            let module = parts.module(&name, &settings).map_err(wrong)?;
            for (name, module) in stacked::parted(arch, name, module, &ranks)? {
                if modules.insert(name.clone(), module).is_some() {
                    return Err(wrong(format!("`{name}` is changed twice")));
                }
            }
        }
        if modules.is_empty() && differences.is_empty() {
            let reason = match of_other {
                0 => "there is no LoRA in it",
                _ => "it contains only the other expert",
            };
            return Err(wrong(reason.into()));
        }
        Ok(Self {
            arch,
            modules,
            differences,
            metadata,
        })
    }

    /// Writes it as a folder of PEFT.
    ///
    /// # Errors
    /// If it changes whole tensors, which PEFT has no form for, or the folder cannot be written.
    pub fn write_peft(&self, folder: &Path) -> Result<(), Error> {
        if let Some(name) = self.differences.keys().next() {
            return Err(Error::Invalid(format!(
                "it changes the whole tensor `{name}`, which PEFT has no form for"
            )));
        }
        let pairs = |value: &dyn Fn(&LoraModule) -> Value| -> serde_json::Map<String, Value> {
            let modules = self.modules.iter();
            modules
                .map(|(name, module)| (name.clone(), value(module)))
                .collect()
        };
        let config = json!({
            "peft_type": "LORA",
            "r": self.modules.values().map(LoraModule::rank).max(),
            "target_modules": self.modules.keys().collect::<Vec<_>>(),
            "rank_pattern": pairs(&|module| module.rank().into()),
            "alpha_pattern": pairs(&|module| crate::json::number(module.alpha)),
            "lora_alpha": self.modules.values().map(LoraModule::rank).max(),
            "bias": "none",
        });
        let tensors = self.modules.iter().flat_map(|(name, module)| {
            let name = |part: &str| format!("base_model.model.{name}.{part}.weight");
            [(name("lora_A"), &module.down), (name("lora_B"), &module.up)]
        });
        let tensors: Vec<_> = tensors.collect();
        write_folder(folder, &config, &tensors)
    }

    /// Writes a new file in `form`, with [`LoraFile::metadata`] and what the format adds to it (rank and
    /// alpha under kohya's names). Returns the CRC-32C of the file.
    ///
    /// # Errors
    /// If the format cannot represent all of it, with advice; or if the file cannot be written.
    pub fn write(&self, path: &Path, form: LoraForm) -> Result<u32, Error> {
        self.check(form)?;
        let mut tensors = Vec::new();
        let mut metadata = self.metadata_of(form);
        let joined;
        let modules = match form {
            LoraForm::Diffusers => &self.modules,
            LoraForm::Kohya | LoraForm::Comfy => {
                let ranks;
                (joined, ranks) = stacked::joined(self.arch, &self.modules)?;
                if !ranks.is_empty() {
                    metadata.insert(stacked::RANKS.into(), json!(ranks).to_string());
                }
                &joined
            }
        };
        for (name, module) in modules {
            let alpha = Tensor::from(module.alpha as f32);
            match form {
                LoraForm::Kohya => {
                    let name = original_module(name, self.arch).replace('.', "_");
                    tensors.push((
                        format!("lora_unet_{name}.lora_down.weight"),
                        module.down.shallow_clone(),
                    ));
                    tensors.push((
                        format!("lora_unet_{name}.lora_up.weight"),
                        module.up.shallow_clone(),
                    ));
                    tensors.push((format!("lora_unet_{name}.alpha"), alpha));
                }
                LoraForm::Comfy | LoraForm::Diffusers => {
                    let name = match form {
                        LoraForm::Comfy => {
                            format!("diffusion_model.{}", original_module(name, self.arch))
                        }
                        _ => of_pipeline(name, self.arch),
                    };
                    tensors.push((format!("{name}.lora_A.weight"), module.down.shallow_clone()));
                    tensors.push((format!("{name}.lora_B.weight"), folded(module)?));
                }
            }
        }
        for (name, tensor) in &self.differences {
            let (module, role) = name.rsplit_once('.').unwrap_or((name, ""));
            let role = if role == "bias" { "diff_b" } else { "diff" };
            let name = format!(
                "diffusion_model.{}.{role}",
                original_module(module, self.arch)
            );
            tensors.push((name, tensor.shallow_clone()));
        }
        let lazy = tensors
            .iter()
            .map(|(name, tensor)| (name.clone(), LazyTensor::ready(tensor)));
        write_safetensors_with(path, lazy, &metadata)
    }

    /// Fails if `form` cannot represent this LoRA.
    fn check(&self, form: LoraForm) -> Result<(), Error> {
        let invalid = |reason: String| Err(Error::Invalid(reason));
        if let Some(name) = self
            .differences
            .keys()
            .next()
            .filter(|_| form != LoraForm::Comfy)
        {
            return invalid(format!(
                "this format cannot store the change to the whole tensor `{name}`: choose `comfy`"
            ));
        }
        if form != LoraForm::Kohya {
            return Ok(());
        }
        if !self.arch.lora.kohya {
            return invalid(format!(
                "not every program reads kohya's form of a LoRA for {}, and diffusers ignores it without a word: choose \
                 `comfy`",
                self.arch.title
            ));
        }
        if let Some(whole) = self.arch.split_layer() {
            return invalid(format!(
                "in kohya's form of this model `{whole}` is one layer, and ComfyUI drops its parts in silence: choose \
                 `comfy`"
            ));
        }
        if self.arch.lora.partial != LoraForm::Comfy {
            return Ok(());
        }
        let missing = self.missing();
        if let Some(first) = missing.first() {
            return invalid(format!(
                "kohya's form is read by diffusers only with all linear layers of every block, and {} \
                 are missing, such as `{first}`: choose `comfy`",
                missing.len()
            ));
        }
        let beside = self
            .modules
            .keys()
            .find(|name| self.arch.part_of_block(name).is_none());
        match beside {
            Some(name) => invalid(format!(
                "kohya's form is read by diffusers only for the layers of blocks, and there is `{name}`: \
                 choose `comfy`"
            )),
            None => Ok(()),
        }
    }

    /// Linear layers of blocks that have no module.
    fn missing(&self) -> Vec<String> {
        let mut missing = Vec::new();
        for list in self.arch.lists {
            let number = |name: &String| match self.arch.part_of_block(name) {
                Some((of, number, _)) if of.name == list.name => Some(number),
                _ => None,
            };
            let blocks = self.modules.keys().filter_map(number).max();
            let blocks = blocks.map_or(1, |last| last + 1);
            let all = (0..blocks).flat_map(|block| list.linear_layers(block));
            missing.extend(all.filter(|name| !self.modules.contains_key(name)));
        }
        missing
    }

    fn metadata_of(&self, form: LoraForm) -> BTreeMap<String, String> {
        let mut metadata = self.metadata.clone();
        // It contains alpha from before it was multiplied in.
        metadata.remove("lora_adapter_metadata");
        metadata.remove(stacked::RANKS);
        metadata.insert("format".into(), "pt".into());
        let ranks: Vec<i64> = self.modules.values().map(LoraModule::rank).collect();
        if let Some(rank) = ranks.iter().max() {
            let alphas = self.modules.values().map(|module| module.alpha);
            let alpha = match form {
                LoraForm::Kohya => alphas.fold(f64::MIN, f64::max),
                _ => *rank as f64,
            };
            metadata.insert("ss_network_dim".into(), rank.to_string());
            metadata.insert("ss_network_alpha".into(), alpha.to_string());
            metadata.insert("ss_network_module".into(), self.arch.lora.network.into());
        }
        metadata
            .entry("modelspec.sai_model_spec".into())
            .or_insert_with(|| "1.0.1".into());
        metadata
            .entry("modelspec.architecture".into())
            .or_insert_with(|| self.arch.lora.architecture.into());
        metadata
    }
}

/// diffusers' name of a module in a file for a whole pipeline, which begins with the component that it is in.
fn of_pipeline(name: &str, arch: &Arch) -> String {
    match name.starts_with("text_conditioner.") {
        true => name.to_owned(),
        false => format!("{}.{name}", arch.denoiser_folder()),
    }
}

/// `up` multiplied by the scale: in its own type if that is exact, otherwise in fp32.
fn folded(module: &LoraModule) -> Result<Tensor, Error> {
    let scale = module.scale();
    let product = module.up.f_to_kind(Kind::Float)?.f_mul_scalar(scale)?;
    let is_exact = scale.log2().fract() == 0.0;
    let kind = if is_exact {
        module.up.kind()
    } else {
        Kind::Float
    };
    Ok(product.f_to_kind(kind)?)
}

/// The tensors of a module found so far.
#[derive(Default)]
struct Parts {
    down: Option<Tensor>,
    up: Option<Tensor>,
    alpha: Option<Tensor>,
}

impl Parts {
    fn module(self, name: &str, settings: &Settings) -> Result<LoraModule, String> {
        let (Some(down), Some(up)) = (self.down, self.up) else {
            return Err(format!("`{name}` has only one of its two matrices"));
        };
        let (inner, rank) = (up.size().get(1).copied(), down.size().first().copied());
        let (Some(inner), Some(rank)) = (inner, rank) else {
            return Err(format!("`{name}` has a matrix without two dimensions"));
        };
        if inner != rank || rank == 0 {
            return Err(format!(
                "`{name}` has the rank {rank} in one matrix and {inner} in the other"
            ));
        }
        let alpha = match self.alpha {
            Some(alpha) if alpha.numel() == 1 => {
                let alpha = alpha.f_to_kind(Kind::Double).and_then(|a| a.f_reshape([]));
                alpha
                    .and_then(|alpha| alpha.f_double_value(&[]))
                    .map_err(|e| e.to_string())?
            }
            Some(alpha) => {
                return Err(format!(
                    "alpha of `{name}` has the shape {:?}, not that of a single number",
                    alpha.size()
                ));
            }
            None => settings.alpha(name, rank),
        };
        match alpha.is_finite() {
            true => Ok(LoraModule { down, up, alpha }),
            false => Err(format!("alpha of `{name}` is {alpha}")),
        }
    }
}

/// Alpha settings from PEFT's config, in the header or a file beside it.
#[derive(Default)]
struct Settings {
    alpha: Option<f64>,
    patterns: Vec<(String, f64)>,
    is_rank_stabilised: bool,
}

impl Settings {
    fn find(file: &Path, metadata: &BTreeMap<String, String>, arch: &Arch) -> Result<Self, Error> {
        let beside: PathBuf = file.with_file_name("adapter_config.json");
        let (text, prefix) = if let Some(text) = metadata.get("lora_adapter_metadata") {
            (text.clone(), format!("{}.", arch.denoiser_folder()))
        } else if file
            .file_name()
            .is_some_and(|n| n == "adapter_model.safetensors")
            && beside.is_file()
        {
            let text =
                std::fs::read_to_string(&beside).map_err(|e| Error::io("read", &beside, e))?;
            (text, String::new())
        } else {
            return Ok(Self::default());
        };
        let wrong = |reason: &str| Error::file(file, format!("its LoRA's settings: {reason}"));
        let values: Value =
            serde_json::from_str(&text).map_err(|error| wrong(&error.to_string()))?;
        let get = |key: &str| {
            values
                .get(format!("{prefix}{key}"))
                .filter(|v| !v.is_null())
        };
        let is_set = |key: &str| get(key).and_then(Value::as_bool).unwrap_or(false);
        if is_set("use_dora") {
            return Err(wrong(&format!(
                "`use_dora` is set: DoRA is not supported for {}",
                arch.title
            )));
        }
        let patterns = get("alpha_pattern").and_then(Value::as_object);
        let patterns = patterns.into_iter().flatten();
        Ok(Self {
            alpha: get("lora_alpha").and_then(Value::as_f64),
            patterns: patterns
                .filter_map(|(k, v)| Some((k.clone(), v.as_f64()?)))
                .collect(),
            is_rank_stabilised: is_set("use_rslora"),
        })
    }

    /// The alpha of a module; the rank if the settings have none.
    fn alpha(&self, name: &str, rank: i64) -> f64 {
        let fits = |key: &str| name == key || name.ends_with(&format!(".{key}"));
        let pattern = self.patterns.iter().find(|(key, _)| fits(key));
        match pattern.map(|(_, alpha)| *alpha).or(self.alpha) {
            // rsLoRA divides by the square root of the rank.
            Some(alpha) if self.is_rank_stabilised => alpha * (rank as f64).sqrt(),
            Some(alpha) => alpha,
            None => rank as f64,
        }
    }
}
