//! Experts that a file has as one tensor, as matrices of their own: that is how models name them here.
//!
//! ```text
//! transformers 5, in memory   experts.gate_up_proj [experts, 2 · inner, hidden] ─┬▶ experts.0.gate_proj.weight
//!                                                                                └▶ experts.0.up_proj.weight, …
//! GGUF                        ffn_gate_exps [experts, inner, hidden] ─────────────▶ experts.0.gate_proj.weight, …
//! Gemma 4, in files           layers.0.experts.gate_up_proj, as in memory ────────▶ layers.0.experts.0.gate_proj.weight, …
//! gpt-oss                     experts.gate_up_proj [experts, hidden, 2 · inner] ─┬▶ experts.0.gate_proj.weight
//!   outputs of gate and up    experts.gate_up_proj_blocks, …_scales (MXFP4)     ─┤
//!   in turns                                                                     └▶ experts.0.up_proj.weight, …
//!                             experts.gate_up_proj_bias [experts, 2 · inner] ─────▶ experts.0.gate_proj.bias, …
//! ```

use std::collections::BTreeMap;
use std::path::Path;

use tch::Tensor;

use crate::Error;
use crate::formats::{LazyTensor, write_safetensors};
use crate::language::DecoderConfig;
use crate::quant::Mxfp4;

/// Where the names of experts begin.
pub(super) const EXPERTS: &str = ".experts.";
/// How the names of a matrix in MXFP4 end: its numbers, and their factors.
pub(super) const BLOCKS: &str = "_blocks";
pub(super) const SCALES: &str = "_scales";

/// A matrix or a bias in a tensor of all experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slice {
    /// Which one, in the first dimension.
    pub(super) expert: i64,
    /// Of two in one: which one.
    half: Option<i64>,
    order: Order,
}

/// How a tensor of all experts is arranged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    /// Rows are outputs, and of two matrices one is below the other.
    Below,
    /// Columns are outputs, and those of two matrices take turns.
    Turned,
    /// Rows are outputs, and those of two matrices take turns.
    Turns,
}

/// `model.layers.3.mlp.experts.7.up_proj.weight`: all of them, `model.layers.3.mlp.experts`, 7, and `up_proj.weight`.
pub(super) fn expert(name: &str) -> Option<(&str, i64, &str)> {
    let start = name.find(EXPERTS)? + EXPERTS.len();
    let (number, part) = name[start..].split_once('.')?;
    Some((&name[..start - 1], number.parse().ok()?, part))
}

impl Slice {
    /// The matrices in the tensor `name` of this shape, each with its name; empty if it is not one of all experts.
    /// `alternating` as in [`Mixture`](crate::language::Mixture).
    pub(super) fn all_of(name: &str, shape: &[i64], alternating: bool) -> Vec<(String, Self)> {
        let Some((layer, part)) = name.split_once(EXPERTS) else {
            return Vec::new();
        };
        let (part, role, order) = match alternating {
            false => match part.strip_suffix(".bias") {
                Some(part) => (part, "bias", Order::Below),
                None => (
                    part.strip_suffix(".weight").unwrap_or(part),
                    "weight",
                    Order::Below,
                ),
            },
            true => match (part.strip_suffix("_bias"), part.strip_suffix(BLOCKS)) {
                (Some(part), _) => (part, "bias", Order::Turns),
                (None, Some(part)) => (part, "weight", Order::Turns),
                (None, None) => (part, "weight", Order::Turned),
            },
        };
        let parts: &[(&str, Option<i64>)] = match part {
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
                let name = format!("{layer}{EXPERTS}{expert}.{part}.{role}");
                let half = *half;
                (
                    name,
                    Self {
                        expert,
                        half,
                        order,
                    },
                )
            })
        };
        (0..experts).flat_map(of).collect()
    }

    /// The shape of the matrix in a tensor of this shape.
    pub(super) fn shape(&self, tensor: &[i64]) -> Vec<i64> {
        let mut shape = tensor.get(1..).unwrap_or_default().to_vec();
        // The numbers of a block are in sixteen bytes.
        if let &[rows, blocks, bytes] = &shape[..] {
            shape = vec![rows, blocks * bytes * 2];
        }
        if self.order == Order::Turned {
            shape.reverse();
        }
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
        let element = match self.order {
            Order::Turned => element.f_tr()?,
            Order::Below | Order::Turns => element,
        };
        let Some(half) = self.half else {
            return Ok(element.f_contiguous()?);
        };
        let rows = element.size().first().copied().unwrap_or(0);
        Ok(match self.order {
            Order::Below => element.f_narrow(0, half * (rows / 2), rows / 2)?,
            Order::Turned | Order::Turns => element.f_slice(0, half, rows, 2)?.f_contiguous()?,
        })
    }

    /// The same of one in MXFP4.
    ///
    /// # Errors
    /// If it has no rows.
    pub(super) fn of_mxfp4(&self, element: Mxfp4) -> Result<Mxfp4, Error> {
        match self.half {
            None => Ok(element),
            Some(half) => {
                let rows = element.size().first().copied().unwrap_or(0);
                let half = element.rows(half, rows - half, 2)?;
                half.map(&mut |tensor| Ok(tensor.f_contiguous()?))
            }
        }
    }
}

/// Writes the weights of a model with this config as its class in transformers has them: those of experts as one tensor,
/// if its files have them so.
///
/// # Errors
/// If a tensor cannot be made, or the file cannot be written.
pub fn write_weights<'a>(
    path: &Path,
    config: &DecoderConfig,
    tensors: Vec<(String, LazyTensor<'a>)>,
    note: Option<&str>,
) -> Result<(), Error> {
    let tensors = match &config.experts {
        Some(experts) if experts.alternating || experts.beside => {
            together(tensors, experts.alternating)?
        }
        _ => tensors,
    };
    write_safetensors(path, tensors, note)?;
    Ok(())
}

/// The parts of a tensor of all experts, by their number and name.
type Parts<'a> = BTreeMap<(i64, String), LazyTensor<'a>>;

/// Those of experts as gpt-oss has them if they are `alternating`, else one below the other.
fn together<'a>(
    tensors: Vec<(String, LazyTensor<'a>)>,
    alternating: bool,
) -> Result<Vec<(String, LazyTensor<'a>)>, Error> {
    let mut all = Vec::new();
    let mut groups: BTreeMap<String, Parts<'a>> = BTreeMap::new();
    for (name, tensor) in tensors {
        let place = name.split_once(EXPERTS).and_then(|(layer, rest)| {
            let [number, part, role] = rest.split('.').collect::<Vec<_>>()[..] else {
                return None;
            };
            let joined = match part {
                "gate_proj" | "up_proj" => "gate_up_proj",
                other => other,
            };
            let end = if role == "bias" { "_bias" } else { "" };
            let joined = format!("{layer}{EXPERTS}{joined}{end}");
            Some((joined, (number.parse().ok()?, part.to_owned())))
        });
        match place {
            Some((joined, place)) => {
                groups.entry(joined).or_default().insert(place, tensor);
            }
            None => all.push((name, tensor)),
        }
    }
    for (name, parts) in groups {
        let first = parts.values().next();
        let first = first.ok_or_else(|| Error::Internal("experts without parts".into()))?;
        let kind = first.kind();
        let mut shape: Vec<i64> = first.shape().iter().map(|size| *size as i64).collect();
        let each = if name.contains("gate_up_proj") { 2 } else { 1 };
        let outputs = match alternating {
            true => {
                shape.reverse();
                shape.last_mut()
            }
            false => shape.first_mut(),
        };
        if let Some(outputs) = outputs {
            *outputs *= each;
        }
        let one = shape.clone();
        shape.insert(0, parts.len() as i64 / each);
        let make = move || -> Result<Tensor, Error> {
            let parts: Vec<&LazyTensor<'_>> = parts.values().collect();
            // Of each expert gate and up.
            let experts = parts.chunks(each as usize).map(|parts| {
                let parts = parts.iter().map(|part| part.make());
                let parts = parts.collect::<Result<Vec<_>, Error>>()?;
                if !alternating {
                    return Ok(Tensor::f_cat(&parts, 0)?);
                }
                let parts = parts
                    .iter()
                    .map(Tensor::f_tr)
                    .collect::<Result<Vec<_>, _>>()?;
                Ok(Tensor::f_stack(&parts, -1)?.f_view(one.as_slice())?)
            });
            let experts = experts.collect::<Result<Vec<_>, Error>>()?;
            Ok(Tensor::f_stack(&experts, 0)?.f_to_kind(kind)?)
        };
        all.push((name, LazyTensor::made(&shape, kind, make)));
    }
    Ok(all)
}

/// The matrix in MXFP4 whose numbers (`[rows, blocks, 16]`) and factors (`[rows, blocks]`) these are.
///
/// # Errors
/// If they do not belong together.
pub(super) fn mxfp4(blocks: &Tensor, scales: Tensor) -> Result<Mxfp4, String> {
    match (&blocks.size()[..], &scales.size()[..]) {
        (&[rows, count, 16], &[same, also]) if (rows, count) == (same, also) => {}
        (blocks, scales) => {
            return Err(format!(
                "has {blocks:?} bytes of numbers and {scales:?} factors"
            ));
        }
    }
    let rows = scales.size()[0];
    let packed = blocks
        .f_view([rows, -1])
        .map_err(|error| error.to_string())?;
    Ok(Mxfp4 { packed, scales })
}
