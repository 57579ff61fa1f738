//! LoRA files in the formats that programs read and write; the names of a model's layers are those of its [`Arch`].
//!
//! | format | a module | read by |
//! |---|---|---|
//! | kohya | `lora_unet_blocks_0_self_attn_q.lora_down.weight`, `.lora_up.weight`, `.alpha` | ComfyUI, diffusers, musubi |
//! | Comfy | `diffusion_model.blocks.0.self_attn.q.lora_A.weight`, `.lora_B.weight` | ComfyUI, diffusers |
//! | diffusers | `transformer.blocks.0.attn1.to_q.lora_A.weight`, `.lora_B.weight` | diffusers |
//!
//! LoHa and LoKr have LyCORIS' parts in place of the two matrices, `.hada_w1_a`, `.lokr_w1` and so on, and DoRA has
//! `.dora_scale` beside them: ComfyUI reads these in the names of the first two forms, and diffusers drops them. A part of a
//! layer that the original files have as one keeps its name in diffusers then, after `lycoris_`, with underscores.
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

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;
use tch::{Kind, Tensor};

pub use self::apply::WithLoras;
pub(super) use self::names::is_known;
use self::names::{Key, Role, original_module, parse};
use super::{Arch, Expert};
use crate::Error;
pub use crate::adapters::LoraModule;
use crate::adapters::{Change, Keep, Kept, plain, write_changes};
use crate::formats::{LazyTensor, SafetensorsFile, TensorSource, write_safetensors_with};

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

/// The file of a LoRA, which may be in a folder of PEFT.
fn weights_at(path: &Path) -> PathBuf {
    match path.is_dir() {
        true => path.join("adapter_model.safetensors"),
        false => path.to_owned(),
    }
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
    /// As [`LoraFile::read`], for the model whose layers most of its names are.
    pub fn read_any(path: &Path, expert: Option<Expert>) -> Result<Self, Error> {
        let file = SafetensorsFile::open(&weights_at(path))?;
        let (names, metadata) = (file.names(), file.metadata());
        let named = metadata.get("modelspec.architecture");
        let mut archs = super::archs();
        let known = |arch: &Arch| {
            let known = names.iter().filter(|name| parse(name, arch).is_ok());
            known.count()
        };
        archs.sort_by_cached_key(|arch| {
            let is_other = named.is_none_or(|name| name != arch.lora.architecture);
            (Reverse(known(arch)), is_other)
        });
        // What is wrong with a file is what the model says to which it belongs most.
        let mut first = None;
        for arch in &archs {
            match Self::read(path, arch, expert) {
                Ok(file) => return Ok(file),
                Err(error) => first = first.or(Some(error)),
            }
        }
        let reasons = archs.iter().map(|arch| parse(names.first()?, arch).err());
        let reasons: BTreeSet<_> = reasons.collect();
        match names
            .first()
            .filter(|_| known(archs[0]) == 0 && reasons.len() > 1)
        {
            Some(key) => {
                let titles: Vec<_> = archs.iter().map(|arch| arch.title).collect();
                let titles = titles.join(", ");
                let reason = format!("`{key}` belongs to no known layer of these models: {titles}");
                Err(Error::file(file.path(), reason))
            }
            None => Err(first.unwrap_or_else(|| Error::Internal("no model is known".into()))),
        }
    }

    /// Reads a file in any format, or a PEFT folder. If the file contains both experts, `expert` selects one;
    /// otherwise it is ignored.
    ///
    /// # Errors
    /// If the file is damaged, has an unknown tensor, is not a LoRA, or contains both experts and `expert` is
    /// `None`.
    pub fn read(path: &Path, arch: &'static Arch, expert: Option<Expert>) -> Result<Self, Error> {
        let file = weights_at(path);
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
                let tensor = tensor.shallow_clone();
                match role {
                    Role::Part(part) => parts.change.insert(part, tensor),
                    Role::Magnitude => parts.magnitude.replace(tensor),
                    _ => parts.alpha.replace(tensor),
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

    /// The layers of text encoders that it changes.
    pub fn text_layers(&self) -> impl Iterator<Item = &String> {
        let names = self.modules.keys();
        names.filter(|name| self.arch.text_layer(name).is_some())
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
        write_changes(folder, &self.modules, None, None)
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
                    metadata.insert(stacked::RANKS.into(), serde_json::json!(ranks).to_string());
                }
                &joined
            }
        };
        for (name, module) in modules {
            let original = || original_module(name, self.arch);
            let text = self.arch.text_layer(name).map(|(text, number, part)| {
                let flat = format!("{}.{number}.{part}", text.blocks.original);
                format!("{}{}", text.prefix, flat.replace('.', "_"))
            });
            let path = text.unwrap_or_else(|| match form {
                LoraForm::Diffusers => of_pipeline(name, self.arch),
                _ if self.arch.whole_of(name).is_some() => {
                    format!("lycoris_{}", name.replace('.', "_"))
                }
                LoraForm::Kohya => format!("lora_unet_{}", original().replace('.', "_")),
                LoraForm::Comfy => format!("diffusion_model.{}", original()),
            });
            let mut add =
                |part: &str, tensor: Tensor| tensors.push((format!("{path}.{part}"), tensor));
            let alpha = || Tensor::from(module.alpha as f32);
            match module.factors() {
                Some([down, up]) if form == LoraForm::Kohya => {
                    add("lora_down.weight", down.shallow_clone());
                    add("lora_up.weight", up.shallow_clone());
                    add("alpha", alpha());
                }
                Some([down, up]) => {
                    add("lora_A.weight", down.shallow_clone());
                    add("lora_B.weight", folded(up, module.scale())?);
                }
                None => {
                    for (part, tensor) in module.change.parts() {
                        add(&part, tensor.shallow_clone());
                    }
                    add("alpha", alpha());
                }
            }
            if let Some(magnitude) = &module.magnitude {
                add("dora_scale", magnitude.f_reshape([-1, 1])?);
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

    /// Makes plain LoRAs, as near as `keep` allows, of what diffusers would drop: LoHa, LoKr and DoRA. The last depends on the
    /// weights of the model, which `base` has. Returns how much of their changes is kept.
    ///
    /// # Errors
    /// If `base` is needed, or memory runs out.
    pub fn make_plain(
        &mut self,
        base: Option<&dyn TensorSource>,
        keep: Keep,
    ) -> Result<Kept, Error> {
        let (modules, kept) = plain(std::mem::take(&mut self.modules), base, keep)?;
        self.modules = modules;
        self.metadata.remove("ss_network_args");
        Ok(kept)
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
        let dropped = self.modules.iter().find_map(|(name, module)| {
            let what = match &module.change {
                Change::Lora { .. } => module.magnitude.as_ref().map(|_| "DoRA")?,
                Change::Loha(_) => "LoHa",
                Change::Lokr(_) => "LoKr",
            };
            Some((name, what))
        });
        if form == LoraForm::Diffusers
            && let Some(name) = self.text_layers().next()
        {
            return invalid(format!(
                "the layer `{name}` of a text encoder has one name in kohya's form alone: choose `kohya`"
            ));
        }
        if let (Some((name, what)), LoraForm::Diffusers) = (dropped, form) {
            return invalid(format!(
                "diffusers would drop the {what} of `{name}`: choose `comfy`, or make a plain LoRA of it with `--rank`"
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
        // What diffusers does not read needs not be complete for it.
        if self.arch.lora.partial != LoraForm::Comfy || dropped.is_some() {
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
        let ranks = self.modules.values().map(|module| module.change.rank());
        if let Some(rank) = ranks.max() {
            let alphas = self.modules.values().map(|module| module.alpha);
            let rank = rank.unwrap_or(1);
            let algorithm = self
                .modules
                .values()
                .find_map(|module| match module.change {
                    Change::Lora { .. } => None,
                    Change::Loha(_) => Some("loha"),
                    Change::Lokr(_) => Some("lokr"),
                });
            let alpha = match (form, algorithm) {
                (LoraForm::Kohya, _) | (_, Some(_)) => alphas.fold(f64::MIN, f64::max),
                _ => rank as f64,
            };
            metadata.insert("ss_network_dim".into(), rank.to_string());
            metadata.insert("ss_network_alpha".into(), alpha.to_string());
            let network = match algorithm {
                None => self.arch.lora.network,
                Some(algorithm) => {
                    let args = format!("{{\"algo\": \"{algorithm}\"}}");
                    metadata.insert("ss_network_args".into(), args);
                    "lycoris.kohya"
                }
            };
            metadata.insert("ss_network_module".into(), network.into());
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
fn folded(up: &Tensor, scale: f64) -> Result<Tensor, Error> {
    let product = up.f_to_kind(Kind::Float)?.f_mul_scalar(scale)?;
    let is_exact = scale.log2().fract() == 0.0;
    let kind = if is_exact { up.kind() } else { Kind::Float };
    Ok(product.f_to_kind(kind)?)
}

/// The tensors of a module found so far.
#[derive(Default)]
struct Parts {
    change: BTreeMap<&'static str, Tensor>,
    alpha: Option<Tensor>,
    magnitude: Option<Tensor>,
}

impl Parts {
    fn module(mut self, name: &str, settings: &Settings) -> Result<LoraModule, String> {
        let change = Change::of(|part| self.change.remove(part));
        let change = change.map_err(|reason| format!("`{name}` {reason}"))?;
        let [outputs, _] = change.size();
        if let Some(magnitude) = self.magnitude.as_ref().map(Tensor::size)
            && (magnitude.first() != Some(&outputs) || magnitude.iter().product::<i64>() != outputs)
        {
            return Err(format!(
                "the magnitude of `{name}` has the shape {magnitude:?}: only that of each of its {outputs} rows is supported"
            ));
        }
        let alpha = match self.alpha {
            Some(alpha) if alpha.numel() == 1 => {
                let alpha = alpha.f_to_kind(Kind::Double).and_then(|a| a.f_reshape([]));
                let alpha = alpha.and_then(|alpha| alpha.f_double_value(&[]));
                Some(alpha.map_err(|e| e.to_string())?)
            }
            Some(alpha) => {
                return Err(format!(
                    "alpha of `{name}` has the shape {:?}, not that of a single number",
                    alpha.size()
                ));
            }
            None => None,
        };
        if let Some(alpha) = alpha.filter(|alpha| !alpha.is_finite()) {
            return Err(format!("alpha of `{name}` is {alpha}"));
        }
        let scale = match (change.rank(), alpha) {
            (Some(rank), Some(alpha)) => alpha / rank as f64,
            // As in LyCORIS.
            (None, Some(_)) => 1.0,
            (rank, None) => settings.scale(name, rank),
        };
        LoraModule::scaled(change, scale, self.magnitude).map_err(|error| error.to_string())
    }
}

/// Settings of the scale from PEFT's config, in the header or a file beside it.
#[derive(Default)]
struct Settings {
    alpha: Option<f64>,
    alphas: Vec<(String, f64)>,
    /// What matrices do not show if they are whole.
    rank: Option<f64>,
    ranks: Vec<(String, f64)>,
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
        let pattern = |key: &str| -> Vec<(String, f64)> {
            let entries = get(key).and_then(Value::as_object).into_iter().flatten();
            let numbers = entries.filter_map(|(name, value)| Some((name.clone(), value.as_f64()?)));
            numbers.collect()
        };
        // LoHa and LoKr have the second.
        let alpha = get("lora_alpha").or_else(|| get("alpha"));
        Ok(Self {
            alpha: alpha.and_then(Value::as_f64),
            alphas: pattern("alpha_pattern"),
            rank: get("r").and_then(Value::as_f64),
            ranks: pattern("rank_pattern"),
            is_rank_stabilised: is_set("use_rslora"),
        })
    }

    /// The scale of a module that has this rank; 1 if the settings do not say.
    fn scale(&self, name: &str, rank: Option<i64>) -> f64 {
        let fits = |key: &str| match key.strip_prefix('^') {
            Some(whole) => name == whole,
            None => name == key || name.ends_with(&format!(".{key}")),
        };
        let of = |patterns: &[(String, f64)]| {
            let found = patterns.iter().find(|(key, _)| fits(key));
            found.map(|(_, value)| *value)
        };
        let rank = rank.map(|rank| rank as f64);
        let rank = rank.or_else(|| of(&self.ranks)).or(self.rank);
        match (of(&self.alphas).or(self.alpha), rank) {
            // rsLoRA divides by the square root of the rank.
            (Some(alpha), Some(rank)) if self.is_rank_stabilised => alpha / rank.sqrt(),
            (Some(alpha), Some(rank)) => alpha / rank,
            _ => 1.0,
        }
    }
}
