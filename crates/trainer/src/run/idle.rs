//! Offloads what a phase of the loop does not use.
//!
//! | tensors | forward, backward | update, checkpoint | evaluation, sample, export |
//! |---|---|---|---|
//! | the optimizer's moments | offloaded | on the device | offloaded |
//! | averaged weights | offloaded | on the device | on the device |
//! | the task's [`Task::idle_in_steps`](crate::task::Task::idle_in_steps) | offloaded | offloaded | on the device |
//!
//! Nothing is offloaded before a step has run out of memory with all caches released. From then on, each
//! phase has on the device only what it uses. Tensors are restored bit-exactly, so the training result is the
//! same.

use placement::Bytes;
use placement::oom::{IdleOffloader, OffloadGroup};
use placement::plan::{Memory, Residency};
use tch::Tensor;

use super::Run;
use crate::Error;
use crate::memory_plan::offload_folder;

/// On unified memory, and if host memory is too small, groups are offloaded to disk. Tensors that every step
/// uses would be written in every step: more than this stays in memory, because smaller micro-batches cost
/// less time and do not wear the disk.
const MAX_DISK_BYTES_PER_STEP: Bytes = Bytes::gib(1);

/// A phase of the loop, which uses some groups and leaves others idle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StepPhase {
    /// Forward and backward passes.
    ForwardBackward,
    /// The optimizer step, or writing or reading a checkpoint.
    Update,
    /// Evaluation, samples, export.
    Evaluation,
    /// Everything on the device, as before memory ran out.
    AllResident,
}

/// What is offloaded in phases that do not use it, once memory has run out.
pub(super) struct OffloadedState {
    idle: IdleOffloader,
    choice: OffloadChoice,
}

/// Which of the groups that every step uses are offloaded.
#[derive(Debug, Clone, Copy)]
struct OffloadChoice {
    moments: bool,
    averages: bool,
}

impl OffloadChoice {
    /// Decided once, while everything is on the device. `others` are offloaded too, for many steps at a time.
    fn decide(memory: Memory, moments: Bytes, averages: Bytes, others: Bytes) -> Self {
        let fits = |each_step: Bytes| match IdleOffloader::residency(memory, each_step + others) {
            Residency::IdleOnHost => true,
            _ => each_step <= MAX_DISK_BYTES_PER_STEP,
        };
        let averages_leave = fits(averages);
        let beside = if averages_leave {
            averages
        } else {
            Bytes::ZERO
        };
        Self {
            moments: fits(moments + beside),
            averages: averages_leave,
        }
    }
}

impl Run<'_> {
    /// Loads what `phase` uses and offloads the rest, once memory has run out.
    ///
    /// # Errors
    /// If something cannot be restored. What cannot be offloaded stays, with a warning.
    pub(super) fn enter(&mut self, phase: StepPhase) -> Result<(), Error> {
        let Some(mut offloaded) = self.offloaded.take() else {
            return Ok(());
        };
        let mut parts = self.parts(phase, offloaded.choice);
        let mut entered = offloaded.idle.enter(&mut self.placer, &mut parts);
        if matches!(&entered, Err(error) if error.is_out_of_memory()) {
            self.machine.trim()?;
            entered = offloaded.idle.enter(&mut self.placer, &mut parts);
        }
        match entered {
            Ok(_) => self.offloaded = Some(offloaded),
            Err(error) if phase == StepPhase::ForwardBackward && error.context_is_usable() => {
                tracing::warn!("idle tensors stay on the device from here on: {error}");
                let mut everything = self.parts(StepPhase::AllResident, offloaded.choice);
                offloaded.idle.enter(&mut self.placer, &mut everything)?;
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Starts offloading what forward and backward passes do not use; returns the number of bytes.
    ///
    /// # Errors
    /// If what could not be offloaded cannot be restored either.
    pub(super) fn offload_idle(&mut self) -> Result<Bytes, Error> {
        let memory = self.machine.memory_for_plans(&self.placer);
        let folder = offload_folder(self.config);
        let made =
            std::fs::create_dir_all(&folder).and_then(|()| IdleOffloader::new(memory, &folder));
        let idle = match made {
            Ok(idle) => idle,
            Err(error) => {
                let folder = folder.display();
                tracing::warn!("idle tensors stay on the device: `{folder}`: {error}");
                return Ok(Bytes::ZERO);
            }
        };
        let choice = self.choice(memory);
        let bytes = self.idle_bytes(choice);
        self.offloaded = Some(OffloadedState { idle, choice });
        self.enter(StepPhase::ForwardBackward)?;
        Ok(self.offloaded.as_ref().map_or(Bytes::ZERO, |_| bytes))
    }

    /// Whether there is anything to offload.
    pub(super) fn has_idle_parts(&self) -> bool {
        let memory = self.machine.memory_for_plans(&self.placer);
        self.idle_bytes(self.choice(memory)) > Bytes::ZERO
    }

    fn choice(&self, memory: Memory) -> OffloadChoice {
        let all = OffloadChoice {
            moments: true,
            averages: true,
        };
        let [moments, averages, others] = self.parts(StepPhase::ForwardBackward, all);
        OffloadChoice::decide(memory, moments.bytes(), averages.bytes(), others.bytes())
    }

    /// Bytes that forward and backward passes do not use and that may be offloaded.
    fn idle_bytes(&self, choice: OffloadChoice) -> Bytes {
        let parts = self.parts(StepPhase::ForwardBackward, choice);
        parts.iter().map(OffloadGroup::bytes).sum()
    }

    /// All groups that are idle in some phase, and whether `phase` uses them.
    fn parts(&self, phase: StepPhase, choice: OffloadChoice) -> [OffloadGroup; 3] {
        let parameters = self.task.parameters();
        let moments = self.optimizer.moments(parameters);
        let averages = self.ema.iter().flat_map(|ema| ema.state(parameters));
        let used =
            |phases: &[StepPhase]| phase == StepPhase::AllResident || phases.contains(&phase);
        [
            OffloadGroup::new(
                "optimizer",
                handles(choice.moments, moments),
                used(&[StepPhase::Update]),
            ),
            OffloadGroup::new(
                "averages",
                handles(choice.averages, averages.collect()),
                used(&[StepPhase::Update, StepPhase::Evaluation]),
            ),
            OffloadGroup::new(
                "task",
                self.task.idle_in_steps(),
                used(&[StepPhase::Evaluation]),
            ),
        ]
    }
}

/// Handles to the tensors of a state, or none if they are not to be offloaded. Tensors that are not
/// contiguous stay: they would be restored contiguous, but the optimizer needs the parameter's layout.
fn handles(leave: bool, state: Vec<(String, &Tensor)>) -> Vec<(String, Tensor)> {
    let state = state
        .into_iter()
        .filter(|(_, tensor)| leave && tensor.is_contiguous());
    state
        .map(|(name, tensor)| (name, tensor.shallow_clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_takes_in_each_step_no_more_than_it_should() {
        let apu = Memory::Unified {
            device: Bytes::gib(64),
            pool: Bytes::gib(64),
            zero_copy: true,
        };
        let card = Memory::Discrete {
            device: Bytes::gib(8),
            host: Bytes::gib(64),
        };
        let decided = |memory, moments, averages| {
            let [moments, averages] = [moments, averages].map(Bytes::mib);
            let choice = OffloadChoice::decide(memory, moments, averages, Bytes::mib(2048));
            (choice.moments, choice.averages)
        };
        assert_eq!(decided(apu, 512, 256), (true, true));
        assert_eq!(decided(apu, 1024, 512), (false, true));
        assert_eq!(decided(apu, 1024, 2048), (true, false));
        assert_eq!(decided(card, 4096, 2048), (true, true));
        // After offloading the task's tensors, the host has room for 14 GiB.
        let small = Memory::Discrete {
            device: Bytes::gib(48),
            host: Bytes::gib(16),
        };
        assert_eq!(decided(small, 24 * 1024, 12 * 1024), (false, true));
        assert_eq!(decided(small, 12 * 1024, 2048), (true, true));
        assert_eq!(decided(small, 14 * 1024, 2048), (false, true));
        assert_eq!(decided(small, 4096, 20 * 1024), (true, false));
    }

    #[test]
    fn tensors_that_are_not_contiguous_stay() {
        let plain = Tensor::zeros([4, 8], (tch::Kind::Float, tch::Device::Cpu));
        let transposed = plain.tr();
        let state = || {
            vec![
                ("plain".to_owned(), &plain),
                ("transposed".to_owned(), &transposed),
            ]
        };
        let names = |leave| -> Vec<String> {
            let handles = handles(leave, state()).into_iter();
            handles.map(|(name, _)| name).collect()
        };
        assert_eq!(names(true), ["plain"]);
        assert!(names(false).is_empty());
    }
}
