//! Prints a plan.

use std::fmt;

use crate::offload::plan::{Action, Memory, OffloadOptions, PhasePlan, Plan, Residency, Step};
use platform::Bytes;

impl fmt::Display for Plan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "memory: {}", self.memory)?;
        for phase in &self.phases {
            write!(formatter, "\n{phase}")?;
        }
        if !self.notes.is_empty() {
            writeln!(formatter)?;
        }
        for note in &self.notes {
            writeln!(formatter, "note: {note}")?;
        }
        Ok(())
    }
}

impl fmt::Display for PhasePlan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            formatter,
            "{}: {} on the device ({} resident, {} ring, {} working), {} on the host",
            self.phase,
            self.device(),
            self.resident,
            self.ring,
            self.working,
            self.host
        )?;
        for (number, step) in self.steps.iter().enumerate() {
            writeln!(formatter, "  {}. {step}", number + 1)?;
        }
        for row in rows(self) {
            writeln!(
                formatter,
                "  {:<20} {:>5} {:<8} {:>12}  {}",
                row.component,
                row.modules,
                if row.modules == 1 {
                    "module"
                } else {
                    "modules"
                },
                row.bytes,
                row.residency
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for Step {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = match self.action {
            Action::Offload => "offload",
            Action::Prepare => "prepare",
            Action::Onload => "load",
        };
        let count = if self.modules == 1 {
            "1 module".to_owned()
        } else {
            format!("{} modules", self.modules)
        };
        write!(
            formatter,
            "{verb} {} of {} ({}): {}",
            count, self.component, self.bytes, self.to
        )
    }
}

impl fmt::Display for Residency {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Residency::Device => "on the device",
            Residency::ZeroCopy => "zero-copy from host memory",
            Residency::StreamedFromHost => "streamed from host memory",
            Residency::StreamedFromDisk => "streamed from its file",
            Residency::IdleOnHost => "idle in host memory",
            Residency::IdleOnDisk => "idle in its file",
        })
    }
}

/// Modules of one component with the same residency.
struct Row<'a> {
    component: &'a str,
    residency: Residency,
    modules: usize,
    bytes: Bytes,
}

fn rows(phase: &PhasePlan) -> Vec<Row<'_>> {
    let mut rows: Vec<Row<'_>> = Vec::new();
    for placement in &phase.placements {
        let same = |row: &&mut Row<'_>| {
            row.component == placement.component && row.residency == placement.residency
        };
        match rows.iter_mut().find(same) {
            Some(row) => {
                row.modules += 1;
                row.bytes += placement.bytes;
            }
            None => rows.push(Row {
                component: &placement.component,
                residency: placement.residency,
                modules: 1,
                bytes: placement.bytes,
            }),
        }
    }
    rows
}

/// Remarks on the plan for the user.
pub(super) fn notes(phases: &[PhasePlan], memory: Memory, options: &OffloadOptions) -> Vec<String> {
    let anywhere = |residency: Residency| {
        phases.iter().any(|phase| {
            phase
                .placements
                .iter()
                .any(|placed| placed.residency == residency)
        })
    };
    let mut notes = Vec::new();
    let unified = matches!(memory, Memory::Unified { .. });
    let away = anywhere(Residency::ZeroCopy) || anywhere(Residency::StreamedFromDisk);
    if unified && (away || anywhere(Residency::IdleOnDisk)) {
        notes.push(
            "CPU and device share one memory: offloading to RAM would free nothing and copy everything, so \
             that nothing is offloaded there"
                .to_owned(),
        );
    }
    let fewer = |phase: &&PhasePlan| (1..options.ring_slots).contains(&phase.ring_slots);
    for phase in phases.iter().filter(fewer) {
        notes.push(format!(
            "`{}`: a ring of {} slots (`ring_slots`) does not fit, one of {} does{}",
            phase.phase,
            options.ring_slots,
            phase.ring_slots,
            if phase.ring_slots == 1 {
                "; each copy waits for the previous block"
            } else {
                ""
            }
        ));
    }
    if options.ring_slots == 1 && phases.iter().any(|phase| phase.ring_slots == 1) {
        notes.push(
            "a ring of one slot (`ring_slots: 1`) fetches nothing ahead: each copy waits until the block before \
             it is done"
                .to_owned(),
        );
    }
    if anywhere(Residency::StreamedFromDisk) {
        notes.push(
            "some blocks are read from disk each time they are used, so the disk will limit the speed"
                .to_owned(),
        );
    }
    notes
}
