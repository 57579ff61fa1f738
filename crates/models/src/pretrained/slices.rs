//! Experts that a file has as one tensor, as matrices of their own: that is how models name them here.
//!
//! ```text
//! transformers 5, in memory   experts.gate_up_proj [experts, 2 · inner, hidden] ─┬▶ experts.0.gate_proj.weight
//!                                                                                └▶ experts.0.up_proj.weight, …
//! GGUF                        ffn_gate_exps [experts, inner, hidden] ─────────────▶ experts.0.gate_proj.weight, …
//! ```

use tch::Tensor;

use crate::Error;

/// Where the names of experts begin.
const EXPERTS: &str = ".mlp.experts.";

/// A matrix in a tensor of all experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slice {
    /// Which one, in the first dimension.
    pub(super) expert: i64,
    /// Of two matrices one below the other: which one.
    half: Option<i64>,
}

impl Slice {
    /// The matrices in the tensor `name` of this shape, each with its name; empty if it is not one of all experts.
    pub(super) fn all_of(name: &str, shape: &[i64]) -> Vec<(String, Self)> {
        let Some((layer, part)) = name.split_once(EXPERTS) else {
            return Vec::new();
        };
        let parts: &[(&str, Option<i64>)] = match part.strip_suffix(".weight").unwrap_or(part) {
            "gate_up_proj" => &[("gate_proj", Some(0)), ("up_proj", Some(1))],
            "gate_proj" => &[("gate_proj", None)],
            "up_proj" => &[("up_proj", None)],
            "down_proj" => &[("down_proj", None)],
            _ => return Vec::new(),
        };
        let &[experts, ..] = shape else {
            return Vec::new();
        };
        let of = |expert: i64| {
            parts.iter().map(move |(part, half)| {
                let name = format!("{layer}{EXPERTS}{expert}.{part}.weight");
                (
                    name,
                    Self {
                        expert,
                        half: *half,
                    },
                )
            })
        };
        (0..experts).flat_map(of).collect()
    }

    /// The shape of the matrix in a tensor of this shape.
    pub(super) fn shape(&self, tensor: &[i64]) -> Vec<i64> {
        let mut shape = tensor.get(1..).unwrap_or_default().to_vec();
        if let (Some(rows), Some(_)) = (shape.first_mut(), self.half) {
            *rows /= 2;
        }
        shape
    }

    /// The matrix in the expert's element of the tensor.
    ///
    /// # Errors
    /// If it has no rows.
    pub(super) fn of(&self, element: Tensor) -> Result<Tensor, Error> {
        match self.half {
            None => Ok(element),
            Some(half) => {
                let rows = element.size().first().copied().unwrap_or(0) / 2;
                Ok(element.f_narrow(0, half * rows, rows)?)
            }
        }
    }
}
