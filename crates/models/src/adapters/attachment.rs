//! Attaches adapters to a model while it is built.

use std::collections::BTreeSet;

use tch::{Device, Kind, Tensor};

use super::attached::Attached;
use super::change::{AdapterType, Change, Factor, divided};
use super::config::{Biases, Effects, HEAD, LoraConfig, Matcher, Modules, RankAndScaling};
use super::experts::TENSORS;
use super::layer::{Dora, LoraLayer};
use super::naming::Naming;
use super::peft::PeftAdapter;
use super::start::{Init, Start};
use crate::Error;
use crate::parameters::Parameters;
use crate::weight::Weight;

/// Prefix of every name in PEFT's files.
pub(crate) const PREFIX: &str = "base_model.model.";

/// Attaches an adapter to each layer that a config targets, and makes the modules in its `modules_to_save`
/// trainable.
pub struct Attachment {
    pub(super) matcher: Matcher,
    /// Weights of an existing adapter.
    pub(super) saved: Option<PeftAdapter>,
    /// How new LoRAs begin.
    pub(super) init: Init,
    /// The matrices of the next layer's, if they are known, and its name.
    pub(super) begun: Option<(String, [Tensor; 2])>,
    /// What the base has lost to LoRAs, by the names of their matrices.
    pub(super) taken: Vec<(String, Tensor)>,
    /// The type of the adapters' products.
    pub(super) compute: Kind,
    /// Names in its file that exist in this model.
    used: BTreeSet<String>,
    attached: Vec<String>,
    /// Tensors of experts that may have an adapter, and those that have one.
    pub(super) experts: Vec<String>,
    pub(super) parameters: Vec<String>,
    /// Modules that are trained in full (`modules_to_save`).
    saved_modules: Vec<String>,
    /// Number of biases that are trained besides the adapters.
    biases: usize,
    tables: Vec<(String, Tensor)>,
    seen: Vec<String>,
    /// All other modules of the model: norms, blocks and other containers.
    others: BTreeSet<String>,
    /// The feed-forward layers of a model with experts.
    pub(super) left_out: BTreeSet<String>,
}

/// One trained tensor: a matrix of an adapter, a bias, or a tensor that is trained in full.
pub(super) struct Part {
    /// Its name in PEFT's files.
    pub(super) name: String,
    pub(super) size: Vec<i64>,
    /// Whether weight decay applies.
    pub(super) decay: bool,
    pub(super) device: Device,
}

impl Attachment {
    /// New adapters, which change nothing yet. Random values are drawn from the global generator on the CPU,
    /// so the same seed gives the same adapter on every device.
    ///
    /// # Errors
    /// If the config is invalid; the message names the key and what is allowed.
    pub fn fresh(config: &LoraConfig) -> Result<Self, Error> {
        Self::named(config, Naming::ALONE)
    }

    fn named(config: &LoraConfig, naming: Naming) -> Result<Self, Error> {
        Ok(Self {
            matcher: Matcher::new(config, naming).map_err(Error::Invalid)?,
            saved: None,
            init: Init::Default,
            begun: None,
            taken: Vec::new(),
            compute: Kind::Float,
            used: BTreeSet::new(),
            attached: Vec::new(),
            experts: Vec::new(),
            parameters: Vec::new(),
            saved_modules: Vec::new(),
            biases: 0,
            tables: Vec::new(),
            seen: Vec::new(),
            others: BTreeSet::new(),
            left_out: BTreeSet::new(),
        })
    }

    /// A saved adapter.
    pub fn saved(adapter: PeftAdapter) -> Result<Self, Error> {
        Ok(Self {
            saved: Some(adapter.clone()),
            ..Self::named(adapter.config(), adapter.naming())?
        })
    }

    /// The same adapters, of which only the shapes matter: nothing is read from a file.
    #[must_use]
    pub fn without_values(self) -> Self {
        Self {
            saved: None,
            init: Init::Default,
            ..self
        }
    }

    /// Lets the adapters' products be in the type `compute` where those of their layers are; fp32 without this. Their matrices are
    /// in fp32 anyway, and DoRA computes in it.
    #[must_use]
    pub fn computing_in(self, compute: Kind) -> Self {
        Self { compute, ..self }
    }

    /// Dropout probability of the adapters' inputs in training.
    pub fn dropout(&self) -> f64 {
        self.matcher.config().dropout
    }

    /// The adapter for the linear layer `name`, on `device` and registered as trainable, if the layer is
    /// targeted.
    pub(crate) fn attach(
        &mut self,
        name: &str,
        weight: &Weight,
        device: Device,
        parameters: &mut Parameters,
    ) -> Result<Option<LoraLayer>, Error> {
        let Some(shape) = self.target(name)? else {
            return Ok(None);
        };
        if let Some(table) = weight.as_dense().filter(|_| name == HEAD) {
            self.keep_table(name, table);
        }
        let names = ["lora_A.weight", "lora_B.weight"];
        self.layer(name, names, shape, weight, device, parameters)
            .map(Some)
    }

    /// The adapter for the embedding `name`, whose weight `table` is `[vocabulary, hidden]`, if it is
    /// targeted. As in PEFT, the adapter treats the embedding as a linear layer on one-hot vectors.
    pub(crate) fn attach_embedding(
        &mut self,
        name: &str,
        table: &Tensor,
        parameters: &mut Parameters,
    ) -> Result<Option<LoraLayer>, Error> {
        let Some(shape) = self.target(name)? else {
            return Ok(None);
        };
        self.keep_table(name, table);
        let weight = Weight::Dense(table.f_tr()?);
        let names = ["lora_embedding_A", "lora_embedding_B"];
        self.layer(name, names, shape, &weight, table.device(), parameters)
            .map(Some)
    }

    /// The trainable fp32 copy of the model's tensor `name`, whose initial value is `fresh`, on `device` and
    /// registered; `None` if the tensor stays frozen. Weight decay applies to matrices, and to others if `decay` says so.
    pub(crate) fn trained_copy(
        &mut self,
        name: &str,
        fresh: &Tensor,
        (device, decay): (Device, bool),
        parameters: &mut Parameters,
    ) -> Result<Option<Tensor>, Error> {
        let part = |name: String, decay| Part {
            name,
            size: fresh.size(),
            decay,
            device,
        };
        let (layer, is_bias) = match name.strip_suffix(".bias") {
            Some(layer) => (layer, true),
            None => (name, false),
        };
        self.note_modules(name);
        let saved = self.matcher.saved_module(name).map_err(Error::Invalid)?;
        let tensor = if let Some(module) = saved {
            if self.saved_modules.last().is_none_or(|last| last != module) {
                self.saved_modules.push(module.to_owned());
            }
            // Hugging Face's Trainer applies no weight decay to norms and biases.
            part(format!("{PREFIX}{name}"), decay || fresh.dim() >= 2)
        } else {
            let adapted = self.matcher.shape(layer).is_some();
            match self.matcher.config().bias {
                Biases::All | Biases::LoraOnly if is_bias && adapted => {
                    part(format!("{PREFIX}{layer}.base_layer.bias"), false)
                }
                Biases::All if is_bias => part(format!("{PREFIX}{name}"), false),
                _ => return Ok(None),
            }
        };
        self.biases += usize::from(saved.is_none());
        self.register(&tensor, parameters, || full(fresh)).map(Some)
    }

    /// A saved adapter's replacement for the frozen embedding or head `name`: PEFT saves these along with
    /// adapters on them, and where the vocabulary was resized. It may be stored under the name `tied`, that
    /// of the tensor it shares its weight with.
    ///
    /// # Errors
    /// If the size differs, or both names are present with different values.
    pub(crate) fn table(
        &mut self,
        name: &str,
        size: &[i64],
        tied: Option<&str>,
    ) -> Result<Option<Tensor>, Error> {
        let mut found: Option<(String, Tensor)> = None;
        for name in [Some(name), tied].into_iter().flatten() {
            let Some((key, table)) = self.saved_table(name, size)? else {
                continue;
            };
            match &found {
                Some((other, first)) if *first != table => {
                    return Err(Error::Invalid(format!(
                        "the adapter has two weights for a model with tied embedding and head, and they \
                         differ: `{other}` and `{key}`. Remove the wrong one from \
                         `adapter_model.safetensors`; or, if both are right, use a base model with \
                         `tie_word_embeddings: false`"
                    )));
                }
                _ => found = Some((key, table)),
            }
        }
        Ok(found.map(|(_, table)| table))
    }

    /// The embedding or head `name` in the adapter's file, with its key there.
    fn saved_table(&mut self, name: &str, size: &[i64]) -> Result<Option<(String, Tensor)>, Error> {
        let Some(saved) = &self.saved else {
            return Ok(None);
        };
        let own = format!("{PREFIX}{name}.base_layer.weight");
        let replaced = format!("{PREFIX}{name}.weight");
        let is_there = |key: &String| saved.shape(key).is_some();
        let weight = format!("{name}.weight");
        let whole = self.matcher.saved_module(&weight).map_err(Error::Invalid)?;
        let key = if is_there(&own) {
            own
        } else if whole.is_none() && is_there(&replaced) {
            replaced
        } else {
            return Ok(None);
        };
        let tensor = saved.read(&key, size)?;
        self.used.insert(key.clone());
        if self.matcher.shape(name).is_none() {
            // If `name` has an adapter, `keep_table` does this.
            self.tables.push((key.clone(), tensor.shallow_clone()));
        }
        Ok(Some((key, tensor)))
    }

    /// Whether the adapter changes the output of `name`, the embedding or the head.
    pub(crate) fn changes(&self, name: &str) -> Result<bool, Error> {
        let weight = format!("{name}.weight");
        let whole = self.matcher.saved_module(&weight).map_err(Error::Invalid)?;
        Ok(whole.is_some() || self.matcher.shape(name).is_some())
    }

    /// Call this once the model is complete.
    ///
    /// # Errors
    /// If no layer was targeted, a fresh adapter names modules that this model lacks, or the saved adapter
    /// has weights for modules that it lacks.
    pub fn finish(self) -> Result<Attached, Error> {
        self.expect_layers_only()?;
        if self.attached.is_empty() && self.parameters.is_empty() {
            return Err(Error::Invalid(format!(
                "the adapter's target modules match no layer of this model; the layers that can \
                 have one are {}",
                self.layer_names().join(", ")
            )));
        }
        let unused = self.matcher.unused(&Effects {
            seen: &self.seen,
            attached: &self.attached,
            parameters: &self.parameters,
            saved: &self.saved_modules,
        });
        let config = self.matcher.config();
        match &self.saved {
            Some(saved) => saved.expect_only(&self.used)?,
            None if !unused.unknown.is_empty() => return Err(self.no_such_layers(&unused.unknown)),
            None if !unused.parameters.is_empty() => {
                return Err(Error::Invalid(format!(
                    "`target_parameters`: {} is no tensor of experts of this model; those that can have an adapter are {}",
                    unused.parameters.join(" or "),
                    match self.experts.is_empty() {
                        true => "none, since it has no experts".to_owned(),
                        false => self.experts[..TENSORS.len()]
                            .iter()
                            .map(|name| name.splitn(4, '.').last().unwrap_or(name))
                            .collect::<Vec<_>>()
                            .join(", "),
                    }
                )));
            }
            None if !unused.saved.is_empty() => {
                return Err(Error::Invalid(format!(
                    "`modules_to_save`: no module of this model with weights is called {}",
                    unused.saved.join(" or ")
                )));
            }
            None => {}
        }
        let mut without_effect = unused.list();
        if config.bias != Biases::None && self.biases == 0 {
            without_effect.push("bias: the model has no biases".into());
        }
        if !without_effect.is_empty() {
            tracing::warn!(
                "entries of the adapter's config match nothing in this model and have no effect: {}",
                without_effect.join(", ")
            );
        }
        Ok(Attached {
            config: unused.removed_from(config.clone()),
            modules: self.attached,
            parameters: self.parameters,
            matcher: self.matcher.clone(),
            saved_modules: self.saved_modules,
            tables: self.tables,
            taken: self.taken,
        })
    }

    /// The adapter settings of the layer `name`, if it is targeted.
    fn target(&mut self, name: &str) -> Result<Option<RankAndScaling>, Error> {
        self.seen.push(name.to_owned());
        let shape = self.matcher.shape(name);
        if shape.is_some() {
            self.matcher
                .expect_not_saved(name)
                .map_err(Error::Invalid)?;
            self.attached.push(name.to_owned());
        }
        Ok(shape)
    }

    /// Records the modules that contain the tensor `tensor`, and weightless modules that transformers'
    /// classes have beside them.
    fn note_modules(&mut self, tensor: &str) {
        for (end, _) in tensor.match_indices('.') {
            let module = &tensor[..end];
            self.others.insert(module.to_owned());
            if module.ends_with(".mlp") {
                self.others.insert(format!("{module}.act_fn"));
            }
            if module == "model" {
                self.others.insert("model.rotary_emb".to_owned());
            }
        }
    }

    /// A tensor that is not trained although it may be part of a module that is: PEFT saves it with that.
    pub(crate) fn note_constant(&mut self, name: &str) {
        self.note_modules(name);
        self.used.insert(format!("{PREFIX}{name}"));
    }

    /// Names a feed-forward layer, a router or an expert's layer of a model with experts, or a table of per-layer
    /// embeddings, which has no adapter.
    pub(crate) fn leave_out(&mut self, name: &str) {
        self.left_out.insert(name.to_owned());
    }

    /// Fails if the config has the tensor `tensor` trained in full, which is part of an expert or a table in host memory.
    pub(crate) fn expect_frozen(&self, tensor: &str) -> Result<(), Error> {
        let saved = self.matcher.saved_module(tensor).map_err(Error::Invalid)?;
        match saved {
            None if tensor.ends_with(".bias") && self.matcher.config().bias == Biases::All => {
                Err(Error::Invalid(
                    "`bias: all`: the biases of experts are not trained; `lora_only` trains those of layers that have \
                     an adapter"
                        .into(),
                ))
            }
            None => Ok(()),
            Some(module) if !tensor.contains(".experts.") => Err(Error::Invalid(format!(
                "`modules_to_save`: `{module}` stays in host memory, and is not trained beside an adapter"
            ))),
            Some(module) => Err(Error::Invalid(format!(
                "`modules_to_save`: `{module}` has experts, which are not trained in full beside an adapter; \
                 name what else of it is to be trained, such as its router (`mlp.gate`, `mlp.router`)"
            ))),
        }
    }

    /// Fails if the targets match a module that cannot have an adapter, as PEFT does.
    fn expect_layers_only(&self) -> Result<(), Error> {
        if matches!(self.matcher.config().target_modules, Modules::AllLinear) {
            // PEFT takes no embeddings, either.
            let is_left_out = self.left_out.iter().any(|name| !name.contains(".embed_"));
            if is_left_out && self.parameters.is_empty() {
                tracing::warn!(
                    "`target_modules: all-linear` puts no adapters on experts, routers and what stands in for them: \
                     `target_parameters` does on experts (newer versions of PEFT may adapt every expert)"
                );
            }
            return Ok(());
        }
        let is_target =
            |name: &&String| !self.seen.contains(name) && self.matcher.shape(name).is_some();
        if let Some(layer) = self.left_out.iter().find(is_target) {
            return Err(Error::Invalid(format!(
                "`target_modules` match `{layer}`: routers and per-layer embeddings cannot have adapters, nor can feed-forward \
                 layers of models that have experts elsewhere, and experts have theirs by `target_parameters`. The layers of this model that can have one \
                 are {}",
                self.layer_names().join(", ")
            )));
        }
        match self.others.iter().find(is_target) {
            None => Ok(()),
            Some(module) => Err(Error::Invalid(format!(
                "`target_modules` match `{module}`, which cannot have an adapter (PEFT \
                 refuses this too): name its layers, or exclude it with `exclude_modules`. The \
                 layers of this model that can have one are {}",
                self.layer_names().join(", ")
            ))),
        }
    }

    /// PEFT saves an embedding or head that has an adapter along with it.
    fn keep_table(&mut self, name: &str, table: &Tensor) {
        let key = format!("{PREFIX}{name}.base_layer.weight");
        self.tables.push((key, table.shallow_clone()));
    }

    /// The adapter for the layer `name`, whose weight is `[outputs, inputs]`. `lora` are the names of a LoRA's matrices.
    fn layer(
        &mut self,
        name: &str,
        lora: [&str; 2],
        RankAndScaling { rank, scaling }: RankAndScaling,
        weight: &Weight,
        device: Device,
        parameters: &mut Parameters,
    ) -> Result<LoraLayer, Error> {
        let (outputs, inputs) = weight.size();
        let config = self.matcher.config();
        let (dropout, dora, kind) = (config.dropout, config.dora, config.kind);
        let is_embedding = lora[0] == "lora_embedding_A";
        if is_embedding && kind != AdapterType::Lora {
            return Err(Error::Invalid(format!(
                "`target_modules` match the embedding `{name}`, which can have a LoRA but no {}",
                kind.name()
            )));
        }
        let part = |part: &str, size: &[i64]| Part {
            name: format!("{PREFIX}{name}.{part}"),
            size: size.to_vec(),
            // Hugging Face's Trainer applies weight decay to all parts of an adapter.
            decay: true,
            device,
        };
        let begun = self.begun.take().filter(|(layer, _)| layer == name);
        let mut matrix = |name: &str, size: [i64; 2], start: Start| {
            self.register(&part(name, &size), parameters, || start.tensor(size))
        };
        let change = match kind {
            AdapterType::Lora => {
                let [a, b] = match begun {
                    Some((_, matrices)) => matrices.map(Start::Given),
                    None if is_embedding => [Start::Zeros, Start::Normal],
                    None => [Start::Uniform, Start::Zeros],
                };
                Change::Lora {
                    a: matrix(lora[0], [rank, inputs], a)?,
                    b: matrix(lora[1], [outputs, rank], b)?,
                }
            }
            AdapterType::Loha => {
                let mut product = |name: &str, last: Start| -> Result<[Tensor; 2], Error> {
                    let a = matrix(&format!("{name}_a"), [outputs, rank], Start::Uniform)?;
                    Ok([a, matrix(&format!("{name}_b"), [rank, inputs], last)?])
                };
                let first = product("hada_w1", Start::Uniform)?;
                Change::Loha([first, product("hada_w2", Start::Zeros)?])
            }
            AdapterType::Lokr {
                factor,
                decompose_both,
            } => {
                let [[up, tall], [left, wide]] =
                    [outputs, inputs].map(|side| divided(side, factor));
                let mut part = |name: &str, [rows, columns]: [i64; 2], may_be_two, start| {
                    Ok::<_, Error>(match may_be_two && 2 * rank < rows.max(columns) {
                        false => Factor::Whole(matrix(name, [rows, columns], start)?),
                        true => {
                            let a = matrix(&format!("{name}_a"), [rows, rank], start)?;
                            let b = format!("{name}_b");
                            Factor::Product([a, matrix(&b, [rank, columns], Start::Uniform)?])
                        }
                    })
                };
                let first = part("lokr_w1", [up, left], decompose_both, Start::Zeros)?;
                Change::Lokr([first, part("lokr_w2", [tall, wide], true, Start::Uniform)?])
            }
        };
        let dora = match dora {
            false => None,
            true => {
                let base_squares = Dora::squares(weight)?;
                // B·A is zero here, so the adapted weight equals the base weight.
                let magnitude = part("lora_magnitude_vector", &[outputs]);
                let magnitude =
                    self.register(&magnitude, parameters, || Ok(base_squares.f_sqrt()?))?;
                Some(Dora {
                    magnitude,
                    base_squares,
                })
            }
        };
        Ok(LoraLayer {
            change,
            scaling,
            dropout,
            compute: self.compute,
            dora,
        })
    }

    /// The saved tensor, or the result of `fresh`, registered as trainable.
    pub(super) fn register(
        &mut self,
        part: &Part,
        parameters: &mut Parameters,
        fresh: impl FnOnce() -> Result<Tensor, Error>,
    ) -> Result<Tensor, Error> {
        let tensor = match &self.saved {
            Some(saved) => saved.read(&part.name, &part.size)?,
            None => fresh()?,
        };
        self.used.insert(part.name.clone());
        let tensor = tensor.f_to_device(part.device)?;
        parameters.register(&part.name, &tensor, part.decay)
    }

    /// The sorted last components of the names of all layers that can have an adapter.
    fn layer_names(&self) -> Vec<&str> {
        let names = self.seen.iter();
        let mut names: Vec<&str> = names
            .map(|name| name.rsplit('.').next().unwrap_or(name))
            .collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// The error for targets that match no layer of the model.
    fn no_such_layers(&self, targets: &[String]) -> Error {
        let layers = self.layer_names();
        let reasons = targets.iter().map(|target| {
            let like = |layer: &&&str| strsim::jaro_winkler(target, layer) > 0.85;
            match layers.iter().find(like) {
                Some(layer) => format!("`{target}` matches no layer (did you mean `{layer}`?)"),
                None => format!("`{target}` matches no layer"),
            }
        });
        let reasons: Vec<String> = reasons.collect();
        Error::Invalid(format!(
            "`target_modules`: {}. The layers of this model that can have an adapter are {}",
            reasons.join("; "),
            layers.join(", ")
        ))
    }
}

/// A copy of `tensor` in fp32.
fn full(tensor: &Tensor) -> Result<Tensor, Error> {
    Ok(tensor.f_to_dtype(Kind::Float, false, true)?)
}
