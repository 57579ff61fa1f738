//! What of a run is not in use at a moment, and away while memory is short.
//!
//! | part | passes | update, checkpoint | evaluation, sample, export |
//! |---|---|---|---|
//! | the optimizer's moments | away | here | away |
//! | averaged weights | away | here | here |
//! | what the task names ([`Task::idle_in_steps`](crate::task::Task::idle_in_steps)) | away | away | here |
//!
//! Nothing is away before a step has run out of memory with all caches handed back. From then on, each moment
//! has on the device what it uses. Bits come back as they left, so that what is learned stays the same.

use placement::Bytes;
use placement::plan::{Home, Memory};
use placement::shortage::{Idle, Part};
use tch::Tensor;

use super::Run;
use crate::Error;
use crate::memory_plan::offload_folder;

/// On one memory with the CPU, and where host memory is too small, "away" is a disk. What each step uses is written
/// to it in each step: more than this stays in memory, since smaller pieces cost less time, and no disk its life.
const EACH_STEP_ON_DISK: Bytes = Bytes::gib(1);

/// A stretch of the loop with needs of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Moment {
    /// Forward and backward passes.
    Passes,
    /// The optimizer steps, or a checkpoint is written or read.
    Update,
    /// The model is looked at: evaluation, samples, export.
    Look,
    /// Everything, as it was before memory was short.
    Everything,
}

/// What is away now and then, since memory was short.
pub(super) struct Away {
    idle: Idle,
    leaving: Leaving,
}

/// Which of the parts that come back in each step leave at all.
#[derive(Debug, Clone, Copy)]
struct Leaving {
    moments: bool,
    averages: bool,
}

impl Leaving {
    /// Decided once, while all are here. `others` leave too, and stay away for many steps.
    fn decide(memory: Memory, moments: Bytes, averages: Bytes, others: Bytes) -> Self {
        let fits = |each_step: Bytes| match Idle::home(memory, each_step + others) {
            Home::IdleOnHost => true,
            _ => each_step <= EACH_STEP_ON_DISK,
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
    /// Has in memory what `moment` uses, if memory was short before.
    ///
    /// # Errors
    /// When something does not come back. What cannot leave stays, and is told in the log.
    pub(super) fn enter(&mut self, moment: Moment) -> Result<(), Error> {
        let Some(mut away) = self.away.take() else {
            return Ok(());
        };
        let mut parts = self.parts(moment, away.leaving);
        let mut entered = away.idle.enter(&mut self.placer, &mut parts);
        if matches!(&entered, Err(error) if error.is_out_of_memory()) {
            self.machine.trim()?;
            entered = away.idle.enter(&mut self.placer, &mut parts);
        }
        match entered {
            Ok(_) => self.away = Some(away),
            Err(error) if moment == Moment::Passes && error.context_is_usable() => {
                tracing::warn!("what is idle stays on the device from here on: {error}");
                let mut everything = self.parts(Moment::Everything, away.leaving);
                away.idle.enter(&mut self.placer, &mut everything)?;
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Sends away what the passes of a step do not use, from now on. How much that was.
    ///
    /// # Errors
    /// When what could not leave does not come back either.
    pub(super) fn offload_idle(&mut self) -> Result<Bytes, Error> {
        let memory = self.machine.memory_for_plans(&self.placer);
        let folder = offload_folder(self.config);
        let made = std::fs::create_dir_all(&folder).and_then(|()| Idle::new(memory, &folder));
        let idle = match made {
            Ok(idle) => idle,
            Err(error) => {
                let folder = folder.display();
                tracing::warn!("what is idle stays on the device: `{folder}`: {error}");
                return Ok(Bytes::ZERO);
            }
        };
        let leaving = self.leaving(memory);
        let bytes = self.idle_bytes(leaving);
        self.away = Some(Away { idle, leaving });
        self.enter(Moment::Passes)?;
        Ok(self.away.as_ref().map_or(Bytes::ZERO, |_| bytes))
    }

    /// Whether there is anything that could leave.
    pub(super) fn has_idle_parts(&self) -> bool {
        let memory = self.machine.memory_for_plans(&self.placer);
        self.idle_bytes(self.leaving(memory)) > Bytes::ZERO
    }

    fn leaving(&self, memory: Memory) -> Leaving {
        let all = Leaving {
            moments: true,
            averages: true,
        };
        let [moments, averages, others] = self.parts(Moment::Passes, all);
        Leaving::decide(memory, moments.bytes(), averages.bytes(), others.bytes())
    }

    /// What the passes of a step do not use, as far as it may leave.
    fn idle_bytes(&self, leaving: Leaving) -> Bytes {
        let parts = self.parts(Moment::Passes, leaving);
        parts.iter().map(Part::bytes).sum()
    }

    /// Everything that is idle at some moment, and whether it is used at this one.
    fn parts(&self, moment: Moment, leaving: Leaving) -> [Part; 3] {
        let parameters = self.task.parameters();
        let moments = self.optimizer.state(parameters);
        let averages = self.ema.iter().flat_map(|ema| ema.state(parameters));
        let used = |moments: &[Moment]| moment == Moment::Everything || moments.contains(&moment);
        [
            Part::new(
                "optimizer",
                handles(leaving.moments, moments),
                used(&[Moment::Update]),
            ),
            Part::new(
                "averages",
                handles(leaving.averages, averages.collect()),
                used(&[Moment::Update, Moment::Look]),
            ),
            Part::new("task", self.task.idle_in_steps(), used(&[Moment::Look])),
        ]
    }
}

/// Handles on the tensors of a state, or none if they are not to leave. Those that do not lie in the order of their
/// elements stay: they would come back in it, and the optimizer wants the layout of the parameter.
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
            let leaving = Leaving::decide(memory, moments, averages, Bytes::mib(2048));
            (leaving.moments, leaving.averages)
        };
        assert_eq!(decided(apu, 512, 256), (true, true));
        assert_eq!(decided(apu, 1024, 512), (false, true));
        assert_eq!(decided(apu, 1024, 2048), (true, false));
        assert_eq!(decided(card, 4096, 2048), (true, true));
        // With what the task leaves, the host has room for 14 GiB.
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
    fn what_would_come_back_in_another_layout_stays() {
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
