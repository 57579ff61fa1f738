//! The matrices of a layer's experts, and their products with the rows that were assigned to each.

use tch::{Kind, Tensor};

use crate::Error;
use crate::tensor::{BaseMap, shared, to_kind};
use crate::weight::Stack;

/// Gated feed-forward layers of the same size, of which each row goes through one.
#[derive(Debug)]
pub enum Experts {
    /// Gate, up and down of each.
    Trained(Vec<[Tensor; 3]>),
    /// All of them as two, which may be quantised.
    Frozen {
        /// The rows of gate, then those of up.
        gate_up: Stack,
        /// Down.
        down: Stack,
    },
}

impl Experts {
    /// The outputs for rows that are sorted by expert, `[rows, hidden]` to the same in `compute`: those of expert *e*
    /// are from `bounds[e]` to `bounds[e + 1]`.
    ///
    /// # Errors
    /// If `bounds` are not those of `rows`, or memory runs out.
    pub fn forward(
        &self,
        rows: &Tensor,
        bounds: &[i64],
        activation: &dyn Fn(&Tensor) -> Result<Tensor, Error>,
        compute: Kind,
    ) -> Result<Tensor, Error> {
        let rows = to_kind(rows, compute)?;
        match self {
            Self::Frozen { gate_up, down } => {
                let both = gate_up.product(&rows, bounds, compute)?;
                let half = both.size2()?.1 / 2;
                let gate = activation(&both.f_narrow(1, 0, half)?)?;
                down.product(
                    &gate.f_mul(&both.f_narrow(1, half, half)?)?,
                    bounds,
                    compute,
                )
            }
            Self::Trained(experts) => {
                let counts: Vec<i64> = bounds.windows(2).map(|pair| pair[1] - pair[0]).collect();
                // Those without rows take part, too, so that their gradient is zero, as in transformers.
                let outputs = rows.f_split_with_sizes(counts, 0)?;
                let outputs = outputs.iter().zip(experts).map(|(rows, [gate, up, down])| {
                    let product = |rows: &Tensor, weight: &Tensor| -> Result<Tensor, Error> {
                        Ok(rows.f_linear(&to_kind(weight, compute)?, None::<&Tensor>)?)
                    };
                    let gate = activation(&product(rows, gate)?)?;
                    product(&gate.f_mul(&product(rows, up)?)?, down)
                });
                Ok(Tensor::f_cat(
                    &outputs.collect::<Result<Vec<_>, Error>>()?,
                    0,
                )?)
            }
        }
    }

    /// The same experts on another base (see [`BaseMap`]).
    ///
    /// # Errors
    /// Those of `map`.
    pub fn with_base(&self, map: BaseMap<'_>) -> Result<Self, Error> {
        Ok(match self {
            Self::Frozen { gate_up, down } => Self::Frozen {
                gate_up: gate_up.map(map)?,
                down: down.map(map)?,
            },
            Self::Trained(experts) => {
                let handles = |[gate, up, down]: &[Tensor; 3]| -> Result<[Tensor; 3], Error> {
                    Ok([shared(gate)?, shared(up)?, shared(down)?])
                };
                Self::Trained(experts.iter().map(handles).collect::<Result<_, Error>>()?)
            }
        })
    }
}
