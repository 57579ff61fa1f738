//! The matrices of a layer's experts, and their products with the rows that were assigned to each.

use tch::{Kind, Tensor};

use crate::Error;
use crate::adapters::ExpertLora;
use crate::tensor::{BaseMap, map_frozen, shared, to_kind};
use crate::weight::Stack;

/// What a feed-forward layer makes of its gate and of what that lets through.
pub type Gated<'a> = &'a dyn Fn(&Tensor, &Tensor) -> Result<Tensor, Error>;

/// Gated feed-forward layers of the same size, of which each row goes through one.
#[derive(Debug)]
pub enum Experts {
    /// Each for itself.
    Trained(Vec<Expert>),
    /// All of them as two, which may be quantised.
    Frozen {
        /// The rows of gate, then those of up.
        gate_up: Stack,
        /// Down.
        down: Stack,
        /// The biases of both, one expert's after the other's, in fp32.
        biases: Option<[Tensor; 2]>,
        /// The adapters on gate and up, and on down.
        adapters: [Option<ExpertLora>; 2],
    },
}

/// An expert that is trained: gate, up and down.
#[derive(Debug)]
pub struct Expert {
    /// The matrices.
    pub weights: [Tensor; 3],
    /// Their biases, if they have some.
    pub biases: Option<[Tensor; 3]>,
}

impl Experts {
    /// The outputs for rows that are sorted by expert, `[rows, hidden]` to the same in `compute`: those of expert *e*
    /// are from `bounds[e]` to `bounds[e + 1]`, and `sorted` has the expert of each.
    ///
    /// # Errors
    /// If `bounds` are not those of `rows`, or memory runs out.
    pub fn forward(
        &self,
        rows: &Tensor,
        (bounds, sorted): (&[i64], &Tensor),
        gated: Gated<'_>,
        compute: Kind,
    ) -> Result<Tensor, Error> {
        let rows = to_kind(rows, compute)?;
        match self {
            Self::Frozen {
                gate_up,
                down,
                biases,
                adapters,
            } => {
                let product = |stack: &Stack, input: &Tensor, place: usize| {
                    let mut product = stack.product(input, bounds, compute)?;
                    if let Some(biases) = biases {
                        let width = product.size2()?.1;
                        let each = to_kind(&biases[place], compute)?.f_view([-1, width])?;
                        product = product.f_add_(&each.f_index_select(0, sorted)?)?;
                    }
                    match &adapters[place] {
                        Some(adapter) => adapter.forward(product, input, bounds),
                        None => Ok(product),
                    }
                };
                let both = product(gate_up, &rows, 0)?;
                let half = both.size2()?.1 / 2;
                let (gate, up) = (both.f_narrow(1, 0, half)?, both.f_narrow(1, half, half)?);
                product(down, &gated(&gate, &up)?, 1)
            }
            Self::Trained(experts) => {
                let counts: Vec<i64> = bounds.windows(2).map(|pair| pair[1] - pair[0]).collect();
                // Those without rows take part, too, so that their gradient is zero, as in transformers.
                let outputs = rows.f_split_with_sizes(counts, 0)?;
                let outputs = outputs.iter().zip(experts).map(|(rows, expert)| {
                    let product = |rows: &Tensor, place: usize| -> Result<Tensor, Error> {
                        let bias = match &expert.biases {
                            Some(biases) => Some(to_kind(&biases[place], compute)?),
                            None => None,
                        };
                        let weight = to_kind(&expert.weights[place], compute)?;
                        Ok(rows.f_linear(&weight, bias.as_ref())?)
                    };
                    product(&gated(&product(rows, 0)?, &product(rows, 1)?)?, 2)
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
            Self::Frozen {
                gate_up,
                down,
                biases,
                adapters,
            } => Self::Frozen {
                adapters: adapters.each_ref().map(|adapter| {
                    let adapter = adapter.as_ref();
                    adapter.map(ExpertLora::shallow_clone)
                }),
                gate_up: gate_up.map(map)?,
                down: down.map(map)?,
                biases: match biases {
                    Some([first, second]) => {
                        Some([map_frozen(first, map)?, map_frozen(second, map)?])
                    }
                    None => None,
                },
            },
            Self::Trained(experts) => {
                let handles = |[gate, up, down]: &[Tensor; 3]| -> Result<[Tensor; 3], Error> {
                    Ok([shared(gate)?, shared(up)?, shared(down)?])
                };
                let expert = |expert: &Expert| -> Result<Expert, Error> {
                    Ok(Expert {
                        weights: handles(&expert.weights)?,
                        biases: expert.biases.as_ref().map(handles).transpose()?,
                    })
                };
                Self::Trained(experts.iter().map(expert).collect::<Result<_, Error>>()?)
            }
        })
    }
}
