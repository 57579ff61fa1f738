//! Records placement problems and the start of block streaming, so that they can be shown on the curves.

use placement::{PlacementReport, ProblemCounts};

use super::Run;
use crate::Error;
use crate::events::{PlacementTrouble, Streaming};

/// The problems recorded so far.
#[derive(Debug, Default)]
pub(super) struct ReportedProblems {
    tensors: ProblemCounts,
    blocks: u64,
}

impl ReportedProblems {
    /// Problems since the last call; `repeated` is the total number of repeated copies of streamed blocks.
    fn since_last(
        &mut self,
        step: u64,
        report: &PlacementReport,
        repeated: u64,
    ) -> Option<PlacementTrouble> {
        let (before, now) = (self.tensors, report.trouble);
        let trouble = PlacementTrouble {
            step,
            tensors: now.tensors - before.tensors,
            mismatched: now.mismatched - before.mismatched,
            on_host: now.on_host - before.on_host,
            blocks: repeated.saturating_sub(self.blocks),
            first: usize::try_from(before.tensors)
                .ok()
                .and_then(|first| report.traces.get(first))
                .map(|trace| trace.to_string().trim_end().to_owned()),
        };
        (self.tensors, self.blocks) = (now, repeated);
        (trouble.tensors + trouble.blocks > 0).then_some(trouble)
    }
}

impl Run<'_> {
    /// Records the state at the start of a run or a resumed part: streamed blocks, and problems while loading
    /// the model.
    pub(super) fn record_start(&mut self) -> Result<(), Error> {
        if let Some(streamed) = self.task.streamed() {
            self.recorder.streaming(Streaming {
                step: self.step,
                ring_bytes: streamed.ring_bytes.0,
                host_bytes: streamed.host_bytes.0,
                disk_bytes: streamed.disk_bytes.0,
            })?;
        }
        self.record_problems()
    }

    /// Records placement problems since the last call.
    pub(super) fn record_problems(&mut self) -> Result<(), Error> {
        let repeated = self.task.streamed().map_or(0, |streamed| streamed.repeated);
        match self
            .recorded
            .since_last(self.step, self.placer.report(), repeated)
        {
            Some(trouble) => self.recorder.placement(trouble),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use placement::testing::{Fault, FaultInjection, FaultyHost, FaultyTransport};
    use placement::transport::{Element, Origin};
    use placement::{Policy, Request, Role, TransferEngine, TransferStrategy, Verify};

    use super::*;

    /// Moves a tensor, with `fault` injected into the first strategy, if given.
    fn move_one(engine: &mut TransferEngine, fault: Option<Fault>) {
        let mut device = FaultyTransport::apu(true).unwrap();
        if let Some(fault) = fault {
            device.inject(FaultInjection {
                fault,
                route: TransferStrategy::Direct,
                every_time: false,
            });
        }
        let host = FaultyHost::new(&[7; 4096], Element::F32, Origin::Memory).unwrap();
        let request = Request {
            name: "layers.0.weight",
            role: Role::Weight,
            cast: None,
        };
        engine.to_device(&mut device, &host, &request).unwrap();
    }

    #[test]
    fn problems_are_recorded_once_with_their_kind() {
        let mut engine = TransferEngine::new(Policy {
            verify: Verify::Always,
            ..Policy::default()
        });
        let mut recorded = ReportedProblems::default();
        move_one(&mut engine, None);
        assert_eq!(recorded.since_last(0, engine.report(), 0), None);
        move_one(&mut engine, Some(Fault::Refused));
        move_one(&mut engine, Some(Fault::Zeros));
        let found = recorded.since_last(3, engine.report(), 0).unwrap();
        assert_eq!((found.step, found.tensors, found.mismatched), (3, 2, 1));
        assert_eq!((found.on_host, found.blocks), (0, 0));
        let first = found.first.unwrap();
        assert!(first.starts_with("layers.0.weight ("), "{first}");
        assert_eq!(recorded.since_last(4, engine.report(), 0), None);
        move_one(&mut engine, Some(Fault::Zeros));
        let found = recorded.since_last(5, engine.report(), 2).unwrap();
        assert_eq!((found.tensors, found.mismatched, found.blocks), (1, 1, 2));
        assert!(found.first.unwrap().contains("wrong bytes arrived"));
        assert_eq!(recorded.since_last(6, engine.report(), 2), None);
    }

    /// The number of traces is limited, counts are not.
    #[test]
    fn problems_without_a_trace_are_counted_too() {
        let mut engine = TransferEngine::new(Policy {
            verify: Verify::Always,
            ..Policy::default()
        });
        let mut recorded = ReportedProblems::default();
        for _ in 0..300 {
            move_one(&mut engine, Some(Fault::Zeros));
        }
        assert!(engine.report().traces_left_out > 0);
        let found = recorded.since_last(1, engine.report(), 0).unwrap();
        assert_eq!((found.tensors, found.mismatched), (300, 300));
        move_one(&mut engine, Some(Fault::Zeros));
        let found = recorded.since_last(2, engine.report(), 0).unwrap();
        assert_eq!((found.tensors, found.first), (1, None));
    }
}
