//! Which blocks of a frozen model stay on the device, decided by placement before anything is loaded.
//!
//! The model and its adapters are built from shapes only; the working memory of training is estimated from
//! them; and [`placement::plan`] decides, within the available memory and the limits in the config. The
//! model's builder then carries out the decision:
//!
//! ```text
//! shapes ──▶ components ──┐
//! estimate ─▶ working ────┼──▶ plan ──▶ Streaming { blocks, from host or disk, slots } ──▶ Builder
//! config ───▶ options ────┘
//! ```

mod decoder;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use models::model::Streaming;
use placement::plan::{DeviceMap, Memory, OffloadOptions, PhasePlan, Plan, PlanError, Residency};
use placement::swap::{BackingStore, SwapOptions};
use placement::{Bytes, Placer};
use serde::Serialize;

pub(crate) use self::decoder::{MODEL, PlannedDecoder};
use crate::Error;
use crate::config::Config;
use crate::data::cache_folder;

/// Alignment of a streamed block, in bytes.
pub(crate) const STREAM_ALIGNMENT: u64 = 256;
/// A budget that everything fits into.
const UNLIMITED: Bytes = Bytes(u64::MAX / 4);

/// What lives where while a model is trained.
#[derive(Debug, Clone, Serialize)]
pub struct MemoryPlan {
    /// The plan.
    pub plan: Plan,
    /// Number of blocks of the model; of each, if there are several models.
    pub blocks: usize,
    /// Indices of the streamed blocks; those of the first model, if there are several.
    pub streamed: Vec<usize>,
    /// Indices of streamed blocks that are kept in a file.
    pub from_file: Vec<usize>,
    /// The file's folder, if blocks are kept in a file.
    pub folder: Option<PathBuf>,
}

impl MemoryPlan {
    /// The plan of a run on `config`. Its phases repeat in this order.
    pub(crate) fn new(config: &Config, plan: Plan) -> Self {
        let first = components(&plan).into_iter().next().unwrap_or_default();
        let blocks = blocks_in_use(&plan, &first);
        let streamed = streamed(&plan, &first);
        let from_file = from_file(&blocks);
        let any_file = components(&plan)
            .iter()
            .any(|component| !self::from_file(&blocks_in_use(&plan, component)).is_empty());
        Self {
            blocks: blocks.len(),
            streamed,
            from_file,
            folder: any_file.then(|| offload_folder(config)),
            plan,
        }
    }

    /// The streaming settings for the model's builder; `None` if every block stays.
    ///
    /// # Errors
    /// If the folder for the file cannot be created.
    pub(crate) fn streaming(
        &self,
        component: &str,
        placer: &Placer,
        pass: &StreamedPass,
    ) -> Result<Option<Streaming>, Error> {
        let blocks = self.streamed_of(component);
        if blocks.is_empty() {
            return Ok(None);
        }
        let phase = phase_of(&self.plan, component);
        let slots = phase.map_or(0, |phase| phase.ring_slots).max(1);
        let options = SwapOptions {
            backing: match &self.folder {
                None => BackingStore::Host,
                Some(folder) => {
                    create(folder)?;
                    BackingStore::Divided {
                        folder: folder.clone(),
                        from_file: self.numbers_in_stream(component),
                    }
                }
            },
            slots: slots as usize,
            verify: placer.policy().verify,
            transport: placer.options().clone(),
            preserve_generators: pass.dropout,
            offload_inputs: pass.offload,
            ..SwapOptions::default()
        };
        Ok(Some(Streaming { blocks, options }))
    }

    /// Indices of the streamed blocks of `component`, in ascending order.
    pub(crate) fn streamed_of(&self, component: &str) -> Vec<usize> {
        streamed(&self.plan, component)
    }

    /// The blocks in the file by their index in the swapper, which only counts streamed blocks.
    fn numbers_in_stream(&self, component: &str) -> BTreeSet<usize> {
        let from_file = from_file(&blocks_in_use(&self.plan, component));
        let streamed = self.streamed_of(component);
        let numbered = streamed.iter().enumerate();
        numbered
            .filter(|(_, block)| from_file.contains(block))
            .map(|(number, _)| number)
            .collect()
    }

    /// A description like "20 of 30 blocks streamed from a file through a ring of 2 (14 MB)".
    pub fn describe(&self) -> String {
        let components = components(&self.plan);
        let mut texts: Vec<String> = components
            .iter()
            .map(|component| self.describe_component(component))
            .collect();
        if components.len() < 2 {
            return texts.pop().unwrap_or_default();
        }
        let text = match texts.windows(2).all(|pair| pair[0] == pair[1]) {
            true => format!("of each model, {}", texts[0]),
            false => {
                let named = components.iter().zip(&texts);
                let named = named.map(|(component, text)| format!("`{component}`: {text}"));
                named.collect::<Vec<_>>().join("; ")
            }
        };
        let idle = |residency| {
            let mut placements = self.plan.phases.iter().flat_map(|phase| &phase.placements);
            placements.any(|placed| placed.residency == residency)
        };
        let waits = match (idle(Residency::IdleOnHost), idle(Residency::IdleOnDisk)) {
            (false, false) => return text,
            (true, false) => "in host memory",
            (false, true) => "in a file",
            (true, true) => "in host memory and a file",
        };
        format!("{text}; idle weights wait {waits}")
    }

    fn describe_component(&self, component: &str) -> String {
        let blocks = blocks_in_use(&self.plan, component);
        let streamed = self.streamed_of(component).len();
        let Some(phase) = phase_of(&self.plan, component).filter(|_| streamed > 0) else {
            return format!("all {} blocks stay in memory", blocks.len());
        };
        let on_device = phase.resident + phase.ring;
        let host = match blocks.iter().any(|(_, to)| *to == Residency::ZeroCopy) {
            true => "from host memory, which the device reads in place",
            false => "from host memory",
        };
        let from_file = from_file(&blocks).len();
        let source = match &self.folder {
            Some(folder) if from_file > 0 => {
                let file = format!("from a file in `{}`", folder.display());
                match streamed - from_file {
                    0 => file,
                    from_host => format!("({from_host} {host}, {from_file} {file})"),
                }
            }
            _ => host.to_owned(),
        };
        // Fewer blocks than slots need only as many slots.
        let ring = match (phase.ring_slots as usize).min(streamed) {
            0 => String::new(),
            slots => format!(" through a ring of {slots} ({})", phase.ring),
        };
        format!(
            "{streamed} of {} blocks streamed {source}{ring}; {on_device} of weights stay on \
             the device",
            blocks.len()
        )
    }

    /// Remarks for the user.
    pub fn notes(&self) -> &[String] {
        &self.plan.notes
    }
}

/// How a streamed model is trained, as far as streaming depends on it.
pub(crate) struct StreamedPass {
    /// Whether blocks use random numbers, which must be the same when a block is recomputed.
    pub(crate) dropout: bool,
    /// Whether the inputs of blocks are offloaded to host memory until the backward pass.
    pub(crate) offload: bool,
}

/// Decides what is streamed, within `memory`. `working` estimates the working memory of each phase, given the
/// streamed blocks of its component, since streaming reduces it; `plan` then plans the phases. The outer
/// error is that of `working`.
pub(crate) fn decide(
    memory: Memory,
    options: &OffloadOptions,
    blocks: usize,
    working: impl Fn(&[usize]) -> Result<Bytes, Error>,
    plan: impl Fn(Bytes, Memory, &OffloadOptions) -> Result<Plan, PlanError>,
) -> Result<Result<Plan, PlanError>, Error> {
    // Blocks that the options always stream reduce the working memory.
    let unbounded = OffloadOptions {
        max_memory: Default::default(),
        ..options.clone()
    };
    let asked = match plan(working(&[])?, unlimited(memory), &unbounded) {
        Ok(asked) => asked,
        Err(error) => return Ok(Err(error)),
    };
    let first = components(&asked).into_iter().next().unwrap_or_default();
    match plan(working(&streamed(&asked, &first))?, memory, options) {
        Err(PlanError::DeviceTooSmall { .. }) if is_free(options) => {
            let all = OffloadOptions {
                low_vram: true,
                ..options.clone()
            };
            let every: Vec<usize> = (0..blocks).collect();
            Ok(plan(working(&every)?, memory, &all))
        }
        planned => Ok(planned),
    }
}

/// Whether the plan may choose which blocks are streamed.
pub(crate) fn is_free(options: &OffloadOptions) -> bool {
    options.blocks_to_swap.is_none() && options.device_map == DeviceMap::Auto
}

/// The same kind of memory without limits.
pub(crate) fn unlimited(memory: Memory) -> Memory {
    match memory {
        Memory::Discrete { .. } => Memory::Discrete {
            device: UNLIMITED,
            host: UNLIMITED,
        },
        Memory::Unified { zero_copy, .. } => Memory::Unified {
            device: UNLIMITED,
            pool: UNLIMITED,
            zero_copy,
        },
    }
}

/// The components of a plan, in their order.
fn components(plan: &Plan) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for placed in plan
        .phases
        .iter()
        .take(1)
        .flat_map(|phase| &phase.placements)
    {
        if !names.contains(&placed.component) {
            names.push(placed.component.clone());
        }
    }
    names
}

/// The phase in which `component` is active.
fn phase_of<'a>(plan: &'a Plan, component: &str) -> Option<&'a PhasePlan> {
    plan.phases.iter().find(|phase| {
        let mut placements = phase.placements.iter();
        placements.any(|placed| placed.component == component && !placed.residency.is_idle())
    })
}

/// Where the blocks of `component` are while it is used, with their indices, which count through all its lists of
/// blocks.
fn blocks_in_use(plan: &Plan, component: &str) -> Vec<(usize, Residency)> {
    let placements = phase_of(plan, component).map_or(&[][..], |phase| &phase.placements);
    let own = placements
        .iter()
        .filter(|placed| placed.component == component);
    let is_block = |module: &str| {
        let number = module.rsplit_once('.').map(|(_, number)| number);
        number.is_some_and(|number| number.parse::<usize>().is_ok())
    };
    own.filter(|placed| is_block(&placed.module))
        .enumerate()
        .map(|(number, placed)| (number, placed.residency))
        .collect()
}

/// Indices of the blocks of `component` that are streamed while it is used.
fn streamed(plan: &Plan, component: &str) -> Vec<usize> {
    let blocks = blocks_in_use(plan, component).into_iter();
    let away = blocks.filter(|(_, residency)| *residency != Residency::Device);
    away.map(|(number, _)| number).collect()
}

/// Indices of those that are kept in a file.
fn from_file(blocks: &[(usize, Residency)]) -> Vec<usize> {
    let blocks = blocks.iter();
    let from_file = blocks.filter(|(_, residency)| *residency == Residency::StreamedFromDisk);
    from_file.map(|(number, _)| *number).collect()
}

/// The folder for offloaded data.
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
    use placement::plan::{Component, Module, Phase, PlacementConstraint, plan, plan_cycle};

    use super::*;

    const BLOCK: Bytes = Bytes::mib(10);

    /// Six blocks; the card holds two beside a ring, the host two more.
    fn planned(memory: Memory) -> MemoryPlan {
        let blocks = (0..6_u64).map(|number| {
            let name = format!("model.layers.{number}");
            Module::new(name, number, BLOCK, PlacementConstraint::Streamable)
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
        let mut config = Config::default();
        config.model.offload_folder = Some("/models".into());
        MemoryPlan::new(&config, plan)
    }

    #[test]
    fn what_the_host_cannot_hold_comes_from_the_file_and_the_rest_does_not() {
        let plan = planned(Memory::Discrete {
            device: Bytes::mib(40),
            host: Bytes::mib(25),
        });
        assert_eq!((plan.streamed.len(), plan.from_file.len()), (4, 2));
        // The swapper only numbers streamed blocks.
        let numbers = plan.numbers_in_stream("model");
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
        let blocks = blocks_in_use(&plan.plan, "model").into_iter();
        let mapped = blocks.filter(|(_, residency)| *residency == Residency::ZeroCopy);
        let mapped: Vec<_> = mapped.collect();
        assert_eq!(mapped.len() + plan.from_file.len(), plan.streamed.len());
        assert!(!mapped.is_empty() && !plan.from_file.is_empty(), "{plan:?}");
        let text = plan.describe();
        assert!(text.contains("which the device reads in place, "), "{text}");
    }

    #[test]
    fn models_that_take_turns_are_described_together() {
        let model = |name: &str, storage| Component {
            name: name.into(),
            modules: (0..4_u64)
                .map(|number| {
                    let block = format!("{name}.blocks.{number}");
                    Module::new(
                        block,
                        storage + number,
                        BLOCK,
                        PlacementConstraint::Streamable,
                    )
                })
                .collect(),
        };
        let turn = |name: &str| Phase {
            name: name.into(),
            active: vec![name.into()],
            working: Bytes::ZERO,
        };
        let told = |device, host| {
            let memory = Memory::Discrete { device, host };
            let components = [model("high", 0), model("low", 4)];
            let options = OffloadOptions::default();
            let plan = plan_cycle(&components, &[turn("high"), turn("low")], memory, &options);
            MemoryPlan::new(&Config::default(), plan.unwrap()).describe()
        };
        let gib = Bytes::gib(1);
        let stay = "of each model, all 4 blocks stay in memory";
        assert_eq!(told(gib, gib), stay);
        let waits = format!("{stay}; idle weights wait in host memory");
        assert_eq!(told(Bytes::mib(50), gib), waits);
        let waits = format!("{stay}; idle weights wait in a file");
        assert_eq!(told(Bytes::mib(50), Bytes::mib(5)), waits);
        let waits = format!("{stay}; idle weights wait in host memory and a file");
        assert_eq!(told(Bytes::mib(50), Bytes::mib(30)), waits);
        assert_eq!(
            told(Bytes::mib(30), gib),
            "of each model, 3 of 4 blocks streamed from host memory through a ring of 2 (20 MiB); \
             30 MiB of weights stay on the device; idle weights wait in host memory"
        );
    }
}
