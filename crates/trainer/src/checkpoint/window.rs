//! The steps that a record summarises.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::events::TurnMetrics;

/// What happened since the last record. It is part of a checkpoint, so that the next record of a resumed run
/// is the same.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Window {
    /// Sum of the losses of all steps that were not skipped.
    pub loss: f64,
    /// Number of steps that were not skipped.
    pub steps: u64,
    /// Norm of the last gradient, before clipping.
    pub norm: f64,
    /// Units (tokens) trained on.
    pub units: u64,
    /// Seconds of training.
    pub seconds: f64,
    /// For groups of parameters that are trained in turns: sum of the losses, number of steps, and last norm.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub turns: BTreeMap<String, (f64, u64, f64)>,
    /// Sums of what the task measures beside the loss.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub measured: Vec<f64>,
}

impl Window {
    /// Adds a step.
    pub fn add(&mut self, loss: f64, norm: f64, units: u64, turn: Option<&str>) {
        if let Some(turn) = turn {
            let (sum, steps, last) = self.turns.entry(turn.to_owned()).or_default();
            *sum += loss;
            *steps += 1;
            *last = norm;
        }
        self.loss += loss;
        self.norm = norm;
        self.steps += 1;
        self.units += units;
    }

    /// Adds what a step measured beside the loss.
    pub fn add_measured(&mut self, sums: &[f64]) {
        self.measured.resize(sums.len(), 0.0);
        for (sum, one) in self.measured.iter_mut().zip(sums) {
            *sum += one;
        }
    }

    /// Mean loss and last norm of each group.
    pub fn turns(&self) -> BTreeMap<String, TurnMetrics> {
        let turns = self.turns.iter().map(|(name, (sum, steps, norm))| {
            let metrics = TurnMetrics {
                loss: sum / *steps as f64,
                grad_norm: *norm,
            };
            (name.clone(), metrics)
        });
        turns.collect()
    }
}
