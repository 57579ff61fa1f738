//! What a record sums up.

use std::collections::BTreeMap;

use crate::events::TurnMetrics;

/// What happened since the last record.
#[derive(Default)]
pub(super) struct Window {
    /// Of the steps that were not skipped.
    pub(super) loss: f64,
    pub(super) steps: u64,
    /// Norm of the last gradient before clipping.
    pub(super) norm: f64,
    pub(super) units: u64,
    pub(super) seconds: f64,
    /// Of parameters that learn in turn: loss and number of their steps, and the norm.
    turns: BTreeMap<&'static str, (f64, u64, f64)>,
}

impl Window {
    /// Takes in a step.
    pub(super) fn add(&mut self, loss: f64, norm: f64, units: u64, turn: Option<&'static str>) {
        if let Some(turn) = turn {
            let (sum, steps, last) = self.turns.entry(turn).or_default();
            *sum += loss;
            *steps += 1;
            *last = norm;
        }
        self.loss += loss;
        self.norm = norm;
        self.steps += 1;
        self.units += units;
    }

    /// The same of those that learn in turn.
    pub(super) fn turns(&self) -> BTreeMap<String, TurnMetrics> {
        let turns = self.turns.iter().map(|(name, (sum, steps, norm))| {
            let metrics = TurnMetrics {
                loss: sum / *steps as f64,
                grad_norm: *norm,
            };
            ((*name).to_owned(), metrics)
        });
        turns.collect()
    }
}
