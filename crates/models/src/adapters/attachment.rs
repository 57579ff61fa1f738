//! Putting adapters on a model while it is built.

use std::collections::BTreeSet;

use tch::{Device, Kind, Tensor};

use super::config::{Biases, Effects, HEAD, LoraConfig, Matcher, Modules, Shape};
use super::layer::{Dora, LoraLayer};
use super::peft::PeftAdapter;
use crate::Error;
use crate::formats::{TensorSource, require_finite};
use crate::parameters::Parameters;
use crate::weight::Weight;

/// Prefix of every name in PEFT's files.
pub(crate) const PREFIX: &str = "base_model.model.";

/// Puts an adapter on each layer that a config targets, and lets learn whole what it says.
pub struct Attachment {
    matcher: Matcher,
    /// Weights of an adapter that exists already.
    saved: Option<PeftAdapter>,
    /// Names in its file that have a place in this model.
    used: BTreeSet<String>,
    attached: Vec<String>,
    /// Modules that learn whole.
    whole: Vec<String>,
    /// How many biases learn beside adapters.
    biases: usize,
    tables: Vec<(String, Tensor)>,
    seen: Vec<String>,
    /// Every other module of the model: norms, blocks and what else holds modules.
    others: BTreeSet<String>,
}

/// One of the two matrices of an adapter, or what else it trains.
struct Part {
    /// Its name in PEFT's files.
    name: String,
    size: Vec<i64>,
    /// Whether weight decay applies.
    decay: bool,
    device: Device,
}

impl Attachment {
    /// Fresh adapters, which change nothing yet. What is random in them is drawn from the global
    /// generator on the CPU, so that the same seed gives the same adapter everywhere.
    ///
    /// # Errors
    /// When the config makes no sense; which key, and what would be right.
    pub fn fresh(config: &LoraConfig) -> Result<Self, Error> {
        Ok(Self {
            matcher: Matcher::new(config).map_err(Error::Invalid)?,
            saved: None,
            used: BTreeSet::new(),
            attached: Vec::new(),
            whole: Vec::new(),
            biases: 0,
            tables: Vec::new(),
            seen: Vec::new(),
            others: BTreeSet::new(),
        })
    }

    /// The adapter that somebody saved.
    ///
    /// # Errors
    /// When its config makes no sense.
    pub fn saved(adapter: PeftAdapter) -> Result<Self, Error> {
        Ok(Self {
            saved: Some(adapter.clone()),
            ..Self::fresh(adapter.config())?
        })
    }

    /// Probability with which an input of an adapter is left out in training.
    pub fn dropout(&self) -> f64 {
        self.matcher.config().dropout
    }

    /// The adapter for the linear layer called `name`, if it is targeted, on `device`, registered
    /// as trainable.
    ///
    /// # Errors
    /// When the saved adapter lacks it or has it in another shape, or memory runs out.
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

    /// The adapter for the embedding called `name`, whose table is `[vocabulary, hidden]`, if it is
    /// targeted. To the adapter, as in PEFT, the table is a linear layer of one-hot vectors.
    ///
    /// # Errors
    /// As [`Attachment::attach`].
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

    /// What learns in place of the model's tensor called `name`, which is `fresh` on `device`: in
    /// fp32, registered as trainable. `None` when it stays as it is.
    ///
    /// # Errors
    /// As [`Attachment::attach`].
    pub(crate) fn whole(
        &mut self,
        name: &str,
        fresh: &Tensor,
        device: Device,
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
            if self.whole.last().is_none_or(|last| last != module) {
                self.whole.push(module.to_owned());
            }
            // Hugging Face's Trainer decays neither norms nor biases.
            part(format!("{PREFIX}{name}"), fresh.dim() >= 2)
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

    /// What a saved adapter has in place of the table (embedding or head) called `name`, frozen
    /// too: PEFT saves tables beside their adapters, and where the vocabulary was changed. It may be
    /// under the name of the one `tied` to it.
    ///
    /// # Errors
    /// When it is of another size, or both names have one and these differ.
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
                        "the adapter has two tables for a model whose head is its embedding, and they \
                         differ: `{other}` and `{key}`. Take out of `adapter_model.safetensors` the \
                         one that is not meant; or, if both are, use a base model with \
                         `tie_word_embeddings: false`"
                    )));
                }
                _ => found = Some((key, table)),
            }
        }
        Ok(found.map(|(_, table)| table))
    }

    /// The table called `name` in the adapter's file, and its name there.
    fn saved_table(&mut self, name: &str, size: &[i64]) -> Result<Option<(String, Tensor)>, Error> {
        let Some(saved) = &self.saved else {
            return Ok(None);
        };
        let own = format!("{PREFIX}{name}.base_layer.weight");
        let replaced = format!("{PREFIX}{name}.weight");
        let is_there = |key: &String| saved.tensors().shape(key).is_some();
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
            // Under an adapter, `keep_table` does this.
            self.tables.push((key.clone(), tensor.shallow_clone()));
        }
        Ok(Some((key, tensor)))
    }

    /// Whether what `name` computes differs from the model's, embedding or head.
    pub(crate) fn changes(&self, name: &str) -> Result<bool, Error> {
        let weight = format!("{name}.weight");
        let whole = self.matcher.saved_module(&weight).map_err(Error::Invalid)?;
        Ok(whole.is_some() || self.matcher.shape(name).is_some())
    }

    /// To be called when the model is complete.
    ///
    /// # Errors
    /// When no layer was targeted, a fresh adapter names modules that this model lacks, or the
    /// saved adapter has weights for some.
    pub fn finish(self) -> Result<Attached, Error> {
        self.expect_layers_only()?;
        if self.attached.is_empty() {
            return Err(Error::Invalid(format!(
                "the adapter's target modules match no layer of this model; the layers that can \
                 have one are {}",
                self.layer_names().join(", ")
            )));
        }
        let unused = self.matcher.unused(&Effects {
            seen: &self.seen,
            attached: &self.attached,
            saved: &self.whole,
        });
        let config = self.matcher.config();
        match &self.saved {
            Some(saved) => saved.expect_only(&self.used)?,
            None if !unused.unknown.is_empty() => return Err(self.no_such_layers(&unused.unknown)),
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
            without_effect.push("bias: there is none that could learn".into());
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
            whole: self.whole,
            tables: self.tables,
        })
    }

    /// The adapter that the layer called `name` gets, if any.
    fn target(&mut self, name: &str) -> Result<Option<Shape>, Error> {
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

    /// Remembers the modules that the tensor called `tensor` is in, and those beside them that
    /// transformers' classes have without weights.
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

    /// Fails when the targets match a module that can have no adapter, as PEFT does.
    fn expect_layers_only(&self) -> Result<(), Error> {
        if matches!(self.matcher.config().target_modules, Modules::AllLinear) {
            return Ok(());
        }
        let is_target =
            |name: &&String| !self.seen.contains(name) && self.matcher.shape(name).is_some();
        match self.others.iter().find(is_target) {
            None => Ok(()),
            Some(module) => Err(Error::Invalid(format!(
                "`target_modules` match `{module}`, which is no layer that can have an adapter (PEFT \
                 refuses that, too): name its layers, or leave it out with `exclude_modules`. The \
                 layers of this model that can have one are {}",
                self.layer_names().join(", ")
            ))),
        }
    }

    /// PEFT saves the table under an adapter beside it.
    fn keep_table(&mut self, name: &str, table: &Tensor) {
        let key = format!("{PREFIX}{name}.base_layer.weight");
        self.tables.push((key, table.shallow_clone()));
    }

    /// The adapter of the layer `name`, whose weight is `[outputs, inputs]`.
    fn layer(
        &mut self,
        name: &str,
        [first, second]: [&str; 2],
        Shape { rank, scaling }: Shape,
        weight: &Weight,
        device: Device,
        parameters: &mut Parameters,
    ) -> Result<LoraLayer, Error> {
        let (outputs, inputs) = weight.size();
        let (dropout, dora) = (self.matcher.config().dropout, self.matcher.config().dora);
        let part = |part: &str, size: &[i64]| Part {
            name: format!("{PREFIX}{name}.{part}"),
            size: size.to_vec(),
            // Hugging Face's Trainer decays all parts of an adapter.
            decay: true,
            device,
        };
        let options = (Kind::Float, Device::Cpu);
        let zeros = |size: [i64; 2]| Ok(Tensor::f_zeros(size, options)?);
        let is_embedding = first == "lora_embedding_A";
        let a = self.register(&part(first, &[rank, inputs]), parameters, || {
            if is_embedding {
                return zeros([rank, inputs]);
            }
            // PyTorch's `kaiming_uniform_(a=√5)`, which PEFT draws A from.
            let bound = 1.0 / (inputs as f64).sqrt();
            Ok(zeros([rank, inputs])?.f_uniform(-bound, bound)?)
        })?;
        let b = self.register(
            &part(second, &[outputs, rank]),
            parameters,
            || match is_embedding {
                true => Ok(Tensor::f_randn([outputs, rank], options)?),
                false => zeros([outputs, rank]),
            },
        )?;
        let dora = match dora {
            false => None,
            true => {
                let base_squares = Dora::squares(weight)?;
                // The change is zero, so the whole weight is the base.
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
            a,
            b,
            scaling,
            dropout,
            dora,
        })
    }

    /// A part as it was saved, or else as `fresh` makes it, registered as trainable.
    fn register(
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

    /// The last parts of the names of the layers that can have an adapter, sorted.
    fn layer_names(&self) -> Vec<&str> {
        let names = self.seen.iter();
        let mut names: Vec<&str> = names
            .map(|name| name.rsplit('.').next().unwrap_or(name))
            .collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// That a fresh adapter asks for layers that the model lacks.
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

/// A copy of `tensor` in fp32. One of which only the shape is known, because all of its numbers are one,
/// stays such a tensor, and takes no memory.
fn full(tensor: &Tensor) -> Result<Tensor, Error> {
    if tensor.numel() > 1 && tensor.stride().iter().all(|stride| *stride == 0) {
        let zero = Tensor::f_zeros(vec![1; tensor.dim()], (Kind::Float, tensor.device()))?;
        return Ok(zero.f_expand(tensor.size(), false)?);
    }
    Ok(tensor.f_to_dtype(Kind::Float, false, true)?)
}

/// Adapters that are on a model.
#[derive(Debug)]
pub struct Attached {
    /// What they are made of; only what this model has.
    pub config: LoraConfig,
    /// The layers they are on, in the order of the model.
    pub modules: Vec<String>,
    /// Modules that learn whole beside them, in the order of the model.
    pub whole: Vec<String>,
    /// Frozen tables that PEFT saves with them, by their names in its files.
    pub(super) tables: Vec<(String, Tensor)>,
}

impl PeftAdapter {
    /// Reads one of its tensors, which must have this size.
    fn read(&self, name: &str, size: &[i64]) -> Result<Tensor, Error> {
        let file = self.tensors();
        match file.shape(name) {
            Some(found) if found == size => {
                let tensor = file.read(name, Kind::Float)?;
                require_finite(file, name, &tensor)?;
                Ok(tensor)
            }
            Some(found) => Err(self.error(format!(
                "`{name}` is {found:?}, and this model needs {size:?}: it was made for another model"
            ))),
            None => Err(self.error(format!(
                "there is no `{name}`, which its config and this model ask for"
            ))),
        }
    }

    /// Fails when the file has weights beside those of these names.
    fn expect_only(&self, used: &BTreeSet<String>) -> Result<(), Error> {
        // With `bias: all`, PEFT writes the biases of modules that learn whole three times: as
        // they were, as they are, and where it reads them from.
        let copies = [".original_module.", ".modules_to_save."];
        let is_copy = |name: &str| {
            self.config().bias == Biases::All
                && name.ends_with(".bias")
                && copies.iter().any(|copy| name.contains(copy))
        };
        let names = self.tensors().names();
        match names
            .iter()
            .find(|name| !used.contains(*name) && !is_copy(name))
        {
            Some(name) => Err(self.error(format!("`{name}` has no place in this model"))),
            None => Ok(()),
        }
    }
}
