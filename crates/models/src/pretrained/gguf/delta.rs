//! How llama.cpp stores the tensors of a gated delta rule, and the gate of an expert of all tokens.
//!
//! Where several heads of values share one of keys, Hugging Face has those of the same key one after the other, and
//! llama.cpp the first of each key, then the second of each. The factor of the decay is stored as the decay has it, and
//! the convolution as a matrix; a gate with one output is a vector.

use tch::{Kind, Tensor};

use crate::Error;
use crate::language::DecoderConfig;

/// What is different about a tensor.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Change {
    order: Option<Order>,
    /// Whether −e^A is stored instead of A.
    exponential: bool,
    /// The dimension of one that is missing.
    squeezed: Option<usize>,
}

/// The heads of values along a dimension.
#[derive(Debug, Clone, Copy)]
struct Order {
    dimension: i64,
    /// What stands before them.
    before: i64,
    /// Heads of keys, and heads of values for each.
    heads: (i64, i64),
    width: i64,
}

impl Change {
    /// That of the tensor `name` (Hugging Face's).
    pub(super) fn of(config: &DecoderConfig, name: &str) -> Self {
        if name.ends_with(".mlp.shared_expert_gate.weight") {
            return Self {
                squeezed: Some(0),
                ..Self::default()
            };
        }
        let part = name.split_once(".linear_attn.").map(|(_, part)| part);
        let (Some(part), Some(delta)) = (part, &config.delta) else {
            return Self::default();
        };
        let order = |dimension, before, width| {
            let heads = (delta.key_heads, delta.value_heads / delta.key_heads);
            let order = Order {
                dimension,
                before,
                heads,
                width,
            };
            (heads.1 > 1).then_some(order)
        };
        Self {
            order: match part {
                "in_proj_qkv.weight" | "conv1d.weight" => {
                    order(0, 2 * delta.keys(), delta.value_width)
                }
                "in_proj_z.weight" => order(0, 0, delta.value_width),
                "in_proj_a.weight" | "in_proj_b.weight" | "A_log" | "dt_bias" => order(0, 0, 1),
                "out_proj.weight" => order(1, 0, delta.value_width),
                _ => None,
            },
            exponential: part == "A_log",
            squeezed: (part == "conv1d.weight").then_some(1),
        }
    }

    /// The shape in Hugging Face's files of a tensor that has `shape` in llama.cpp's.
    pub(super) fn shape(&self, mut shape: Vec<i64>) -> Vec<i64> {
        // Older converters leave a gate as it is.
        match self.squeezed {
            Some(0) if shape.len() == 2 => {}
            Some(place) if !shape.is_empty() => shape.insert(place, 1),
            _ => {}
        }
        shape
    }

    /// The opposite of [`Change::shape`].
    pub(super) fn stored_shape(&self, mut shape: Vec<i64>) -> Vec<i64> {
        if let Some(place) = self.squeezed.filter(|place| *place < shape.len()) {
            shape.remove(place);
        }
        shape
    }

    /// A tensor of llama.cpp's as Hugging Face has it.
    pub(super) fn undo(&self, tensor: Tensor) -> Result<Tensor, Error> {
        let mut tensor = match &self.order {
            Some(order) => order.apply(&tensor, (order.heads.1, order.heads.0))?,
            None => tensor,
        };
        if self.exponential {
            tensor = tensor.f_to_kind(Kind::Float)?.f_neg()?.f_log()?;
        }
        Ok(match self.squeezed {
            Some(0) if tensor.dim() == 2 => tensor,
            Some(place) => tensor.f_unsqueeze(place as i64)?,
            None => tensor,
        })
    }

    /// The opposite of [`Change::undo`].
    pub(super) fn apply(&self, tensor: Tensor) -> Result<Tensor, Error> {
        let mut tensor = match self.squeezed {
            Some(place) => tensor.f_squeeze_dim(place as i64)?,
            None => tensor,
        };
        if self.exponential {
            tensor = tensor.f_exp()?.f_neg()?;
        }
        Ok(match &self.order {
            Some(order) => order.apply(&tensor, order.heads)?,
            None => tensor,
        })
    }
}

impl Change {
    /// The factors A and B of what is added to a matrix, for the matrix as [`Change::apply`] has it.
    pub(super) fn apply_to_factors(&self, [a, b]: [Tensor; 2]) -> Result<[Tensor; 2], Error> {
        Ok(match &self.order {
            Some(order) if order.dimension == 0 => [a, order.apply(&b, order.heads)?],
            Some(order) => [order.apply(&a, order.heads)?, b],
            None => [a, b],
        })
    }
}

impl Order {
    /// Heads that stand in groups, of the first number of groups with the second number of heads each: the first of each
    /// group, then the second of each.
    fn apply(&self, tensor: &Tensor, (groups, each): (i64, i64)) -> Result<Tensor, Error> {
        let all = groups * each * self.width;
        let dimension = usize::try_from(self.dimension).unwrap_or(0);
        let found = tensor.size().get(dimension).copied().unwrap_or(0);
        if found != self.before + all {
            let reason = format!(
                "a tensor of {:?} in place of {} heads",
                tensor.size(),
                groups * each
            );
            return Err(Error::Invalid(reason));
        }
        let heads = tensor.f_narrow(self.dimension, self.before, all)?;
        let mut split = heads.size();
        split.splice(dimension..=dimension, [groups, each, self.width]);
        let turned = heads
            .f_reshape(split)?
            .f_transpose(self.dimension, self.dimension + 1)?
            .f_reshape(heads.size())?;
        let before = tensor.f_narrow(self.dimension, 0, self.before)?;
        Ok(Tensor::f_cat(&[before, turned], self.dimension)?)
    }
}
