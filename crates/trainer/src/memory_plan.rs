//! Which blocks of a frozen model stay in memory, decided by placement before any is loaded.
//!
//! The shapes of the model and its adapters are looked at without their numbers; what training
//! needs beside the weights is estimated from them; and [`placement::plan`] decides under the
//! memory that there is and the bounds in the config. What it decides the model's builder then
//! carries out:
//!
//! ```text
//! shapes ──▶ components ──┐
//! estimate ─▶ working ────┼──▶ plan ──▶ Streaming { blocks, from host or disk, slots } ──▶ Builder
//! config ───▶ options ────┘
//! ```

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use placement::plan::{
    Component, DeviceMap, Handling, Memory, Module, OffloadOptions, Phase, PhasePlan, Plan,
    PlanError, Residency, TensorSize, plan,
};
use placement::swap::{BackingStore, SwapOptions};
use placement::{Bytes, Placer};
use serde::Serialize;
use tch::Kind;

use crate::Error;
use crate::config::{Config, Quantization};
use crate::data::cache_folder;
use crate::estimate::{self, DecoderUse, Estimate};
use crate::optim::AdamW;
use models::Parameters;
use models::model::{Decoder, DecoderConfig, Streaming};

/// Where the bytes of a streamed block begin and end at multiples of this.
const ALIGNMENT: u64 = 256;
/// A budget that everything fits into.
const BOUNDLESS: Bytes = Bytes(u64::MAX / 4);

/// What lives where while a model is trained.
#[derive(Debug, Clone, Serialize)]
pub struct MemoryPlan {
    /// The profile in the config, and what it sets.
    pub profile: Option<String>,
    /// What placement decided.
    pub plan: Plan,
    /// Decoder blocks of the model.
    pub blocks: usize,
    /// Those that are streamed, by number.
    pub streamed: Vec<usize>,
    /// Of these, the ones that come from a file.
    pub from_file: Vec<usize>,
    /// The file's folder, where blocks come from a file.
    pub folder: Option<PathBuf>,
}

/// The model that is planned, as far as it is known before it is loaded.
pub(crate) struct PlannedModel<'a> {
    pub(crate) config: &'a Config,
    pub(crate) shape: &'a DecoderConfig,
    /// Made of [`MetaWeights`](models::model::MetaWeights).
    pub(crate) decoder: &'a Decoder,
    pub(crate) parameters: &'a Parameters,
    pub(crate) usage: &'a DecoderUse,
}

impl MemoryPlan {
    /// Decides for `model` under `memory`.
    ///
    /// # Errors
    /// When it does not fit however it is divided, or an option makes no sense for this model.
    pub(crate) fn new(
        model: &PlannedModel,
        memory: Memory,
        options: &OffloadOptions,
    ) -> Result<Self, Error> {
        let components = [model.component()?];
        let attempt = |memory, options: &OffloadOptions, streamed: &[usize]| {
            let phase = Phase {
                name: "train".into(),
                active: vec![components[0].name.clone()],
                working: model.working(streamed)?,
            };
            Ok::<_, Error>(plan(&components, &[phase], memory, options))
        };
        let explain = |error: PlanError| model.explain(&error);
        // What is streamed whatever the memory needs less to work in.
        let unbounded = OffloadOptions {
            max_memory: Default::default(),
            ..options.clone()
        };
        let asked = attempt(boundless(memory), &unbounded, &[])?.map_err(explain)?;
        let plan = match attempt(memory, options, &streamed(&asked))? {
            Ok(plan) => plan,
            Err(PlanError::DeviceTooSmall { .. }) if is_free(options) => {
                let all = OffloadOptions {
                    low_vram: true,
                    ..options.clone()
                };
                let blocks: Vec<usize> = (0..model.blocks()).collect();
                attempt(memory, &all, &blocks)?.map_err(explain)?
            }
            Err(error) => return Err(explain(error)),
        };
        let streamed = streamed(&plan);
        let from_file = blocks_at(&plan, |residency| residency == Residency::StreamedFromDisk);
        let profile = model.config.model.profile;
        Ok(Self {
            profile: profile.map(|profile| profile.profile().to_string()),
            plan,
            blocks: model.blocks(),
            streamed,
            folder: (!from_file.is_empty()).then(|| offload_folder(model.config)),
            from_file,
        })
    }

    /// How the builder of the model carries it out; `None` when every block stays.
    ///
    /// # Errors
    /// When the folder for the file cannot be made.
    pub(crate) fn streaming(
        &self,
        placer: &Placer,
        usage: &DecoderUse,
    ) -> Result<Option<Streaming>, Error> {
        if self.streamed.is_empty() {
            return Ok(None);
        }
        let slots = self.phase().map_or(0, |phase| phase.ring_slots).max(1);
        let options = SwapOptions {
            backing: match &self.folder {
                None => BackingStore::Host,
                Some(folder) => {
                    create(folder)?;
                    BackingStore::Divided {
                        folder: folder.clone(),
                        from_file: self.numbers_in_stream(),
                    }
                }
            },
            slots: slots as usize,
            verify: placer.policy().verify,
            transport: placer.options().clone(),
            preserve_generators: usage.dropout > 0.0,
            offload_inputs: usage.offload,
            ..SwapOptions::default()
        };
        let blocks = self.streamed.clone();
        Ok(Some(Streaming { blocks, options }))
    }

    /// The blocks from the file by the numbers that the stream gives them: it counts only what is streamed.
    fn numbers_in_stream(&self) -> BTreeSet<usize> {
        let numbered = self.streamed.iter().enumerate();
        numbered
            .filter(|(_, block)| self.from_file.contains(block))
            .map(|(number, _)| number)
            .collect()
    }

    /// As in "20 of 30 blocks streamed from a file through a ring of 2 (14 MB)".
    pub fn describe(&self) -> String {
        let Some(phase) = self.phase().filter(|_| !self.streamed.is_empty()) else {
            return format!("all {} blocks stay in memory", self.blocks);
        };
        let on_device = phase.resident + phase.ring;
        let mapped = residencies(&self.plan).any(|(_, residency)| residency == Residency::ZeroCopy);
        let host = match mapped {
            true => "from host memory, which the device reads where it is",
            false => "from host memory",
        };
        let from_file = self.from_file.len();
        let source = match &self.folder {
            None => host.to_owned(),
            Some(folder) => {
                let file = format!("from a file in `{}`", folder.display());
                match self.streamed.len() - from_file {
                    0 => file,
                    from_host => format!("({from_host} {host}, {from_file} {file})"),
                }
            }
        };
        // Fewer blocks than slots need no more of them.
        let ring = match (phase.ring_slots as usize).min(self.streamed.len()) {
            0 => String::new(),
            slots => format!(" through a ring of {slots} ({})", phase.ring),
        };
        let (streamed, blocks) = (self.streamed.len(), self.blocks);
        format!(
            "{streamed} of {blocks} blocks streamed {source}{ring}; {on_device} of weights stay on \
             the device"
        )
    }

    /// What the reader should know of it.
    pub fn notes(&self) -> &[String] {
        &self.plan.notes
    }

    fn phase(&self) -> Option<&PhasePlan> {
        self.plan.phases.first()
    }
}

impl PlannedModel<'_> {
    fn blocks(&self) -> usize {
        usize::try_from(self.shape.num_hidden_layers).unwrap_or(0)
    }

    /// The parts of the model by the names of its file.
    fn component(&self) -> Result<Component, Error> {
        let stored = self.usage.frozen.unwrap_or(Kind::Float);
        let number = |width: i64| u64::try_from(width).unwrap_or(0);
        let (vocabulary, hidden) = (
            number(self.shape.vocab_size),
            number(self.shape.hidden_size),
        );
        let table = Bytes(vocabulary * hidden * stored.elt_size_in_bytes() as u64);
        // What learns in a module's place is counted with what is trained.
        let frozen = |module: &str, bytes| {
            let whole = format!(".{module}.weight");
            let mut names = self.parameters.iter().map(|parameter| &parameter.name);
            match names.any(|name| name.ends_with(&whole)) {
                true => Bytes::ZERO,
                false => bytes,
            }
        };
        let module = |name: String, storage, bytes, handling| Module {
            name,
            tensors: vec![TensorSize { storage, bytes }],
            handling,
        };
        let embedding = "model.embed_tokens".to_owned();
        let tied = self.shape.tie_word_embeddings;
        // A head that is tied to the embedding may need the table that the embedding no longer does.
        let bytes = match tied && frozen("lm_head", table) > Bytes::ZERO {
            true => table,
            false => frozen("embed_tokens", table),
        };
        let mut modules = vec![module(embedding, 0, bytes, Handling::Resident)];
        for index in 0..self.blocks() {
            let bytes = self.block_bytes(index, stored)?;
            let name = format!("model.layers.{index}");
            modules.push(module(name, index as u64 + 1, bytes, Handling::Streamable));
        }
        let (norm, head) = (self.blocks() as u64 + 1, self.blocks() as u64 + 2);
        let scale = frozen("model.norm", Bytes(hidden * 4));
        modules.push(module("model.norm".into(), norm, scale, Handling::Resident));
        // A head that is the embedding is the same memory.
        let (head, bytes) = match tied {
            true => (0, bytes),
            false => (head, frozen("lm_head", table)),
        };
        modules.push(module("lm_head".into(), head, bytes, Handling::Resident));
        Ok(Component {
            name: "model".into(),
            modules,
        })
    }

    /// What a block takes in a slot of the ring.
    fn block_bytes(&self, index: usize, stored: Kind) -> Result<Bytes, Error> {
        let aligned = |bytes: u64| bytes.div_ceil(ALIGNMENT) * ALIGNMENT;
        let of = |size: &Vec<i64>| {
            let numbers: u64 = size.iter().map(|&width| width.max(0) as u64).product();
            let rows = size.first().map_or(0, |&rows| rows.max(0) as u64);
            if size.len() < 2 {
                return aligned(numbers * 4);
            }
            match self.config.model.quantization {
                None => aligned(numbers * stored.elt_size_in_bytes() as u64),
                Some(Quantization::Int8) => aligned(numbers) + aligned(rows * 4),
                // Two in a byte, a scale for each 64, and the table of the sixteen levels.
                Some(Quantization::Nf4) => {
                    let blocks = numbers.div_ceil(64);
                    aligned(blocks * 32) + aligned(blocks * 4) + 256 * 2 * 4
                }
            }
        };
        let sizes = self.decoder.block_sizes(index)?;
        Ok(Bytes(sizes.iter().map(of).sum()))
    }

    /// What training takes beside the frozen weights when these blocks are streamed.
    fn working(&self, streamed: &[usize]) -> Result<Bytes, Error> {
        let usage = DecoderUse {
            streamed: streamed.to_vec(),
            ..self.usage.clone()
        };
        let rest = self.decoder.rope_bytes();
        let footprint = estimate::decoder(self.shape, self.parameters, rest, &usage);
        let optimizer = AdamW::from_config(self.config, self.parameters, &[])?;
        let moments = optimizer.state_bytes(self.parameters);
        Ok(Bytes(
            Estimate::new(self.config, footprint, self.parameters, moments, None).peak,
        ))
    }

    fn explain(&self, error: &PlanError) -> Error {
        let mut text = format!("the model cannot be placed: {error}");
        if matches!(error, PlanError::DeviceTooSmall { .. }) {
            let train = &self.config.train;
            if !train.gradient_checkpointing {
                text += "; `train.gradient_checkpointing: true` needs less to work in";
            } else if train.per_device_train_batch_size > 1 {
                text += "; a smaller `train.per_device_train_batch_size` needs less to work in";
            } else if self.config.model.quantization.is_none() {
                text += "; `model.quantization: nf4` makes smaller blocks";
            }
        }
        Error::Data(text)
    }
}

/// Whether the plan may choose which blocks are streamed.
fn is_free(options: &OffloadOptions) -> bool {
    options.blocks_to_swap.is_none() && options.device_map == DeviceMap::Auto
}

fn boundless(memory: Memory) -> Memory {
    match memory {
        Memory::Discrete { .. } => Memory::Discrete {
            device: BOUNDLESS,
            host: BOUNDLESS,
        },
        Memory::Unified { zero_copy, .. } => Memory::Unified {
            device: BOUNDLESS,
            pool: BOUNDLESS,
            zero_copy,
        },
    }
}

/// Where each module is, by name.
fn residencies(plan: &Plan) -> impl Iterator<Item = (&str, Residency)> {
    let placements = plan.phases.iter().flat_map(|phase| &phase.placements);
    placements.map(|placed| (placed.module.as_str(), placed.residency))
}

/// The numbers of the blocks that are away.
fn streamed(plan: &Plan) -> Vec<usize> {
    blocks_at(plan, |residency| residency != Residency::Device)
}

/// The numbers of the blocks whose residency `is_there` accepts, ascending.
fn blocks_at(plan: &Plan, is_there: impl Fn(Residency) -> bool) -> Vec<usize> {
    residencies(plan)
        .filter(|(_, residency)| is_there(*residency))
        .filter_map(|(module, _)| module.strip_prefix("model.layers.")?.parse().ok())
        .collect()
}

/// The folder on a disk for what is away.
pub(crate) fn offload_folder(config: &Config) -> PathBuf {
    match &config.model.offload_folder {
        Some(folder) => folder.clone(),
        None => cache_folder().join("streamed"),
    }
}

fn create(folder: &Path) -> Result<(), Error> {
    std::fs::create_dir_all(folder).map_err(|error| Error::io("create", folder, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: Bytes = Bytes::mib(10);

    /// Six blocks on a card for two of them beside a ring, and a host for two more.
    fn planned(memory: Memory) -> MemoryPlan {
        let blocks = (0..6_u64).map(|number| {
            let name = format!("model.layers.{number}");
            Module::new(name, number, BLOCK, Handling::Streamable)
        });
        let component = Component {
            name: "model".into(),
            modules: blocks.collect(),
        };
        let phase = Phase {
            name: "train".into(),
            active: vec!["model".into()],
            working: Bytes::ZERO,
        };
        let plan = plan(&[component], &[phase], memory, &OffloadOptions::default()).unwrap();
        MemoryPlan {
            profile: None,
            blocks: 6,
            streamed: streamed(&plan),
            from_file: blocks_at(&plan, |residency| residency == Residency::StreamedFromDisk),
            folder: Some("/models".into()),
            plan,
        }
    }

    #[test]
    fn what_the_host_cannot_hold_comes_from_the_file_and_the_rest_does_not() {
        let plan = planned(Memory::Discrete {
            device: Bytes::mib(40),
            host: Bytes::mib(25),
        });
        assert_eq!((plan.streamed.len(), plan.from_file.len()), (4, 2));
        // The stream numbers what it streams, and nothing else.
        let numbers = plan.numbers_in_stream();
        let named: Vec<usize> = numbers
            .iter()
            .map(|&number| plan.streamed[number])
            .collect();
        assert_eq!(named, plan.from_file);
        assert_eq!(
            plan.describe(),
            "4 of 6 blocks streamed (2 from host memory, 2 from a file in `/models`) through a ring of 2 \
             (20 MiB); 40 MiB of weights stay on the device"
        );
    }

    #[test]
    fn what_the_device_reads_where_it_is_may_lie_beside_a_file() {
        let plan = planned(Memory::Unified {
            device: Bytes::mib(40),
            pool: Bytes::mib(55),
            zero_copy: true,
        });
        let mapped = blocks_at(&plan.plan, |residency| residency == Residency::ZeroCopy);
        assert_eq!(mapped.len() + plan.from_file.len(), plan.streamed.len());
        assert!(!mapped.is_empty() && !plan.from_file.is_empty(), "{plan:?}");
        let text = plan.describe();
        assert!(
            text.contains("which the device reads where it is, "),
            "{text}"
        );
    }
}
