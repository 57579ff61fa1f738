//! What an adapter adds to a weight, before it is scaled: two small matrices (LoRA), or what LyCORIS has beside them.
//!
//! | kind | the change | tensors in files |
//! |---|---|---|
//! | LoRA | `B · A` | `lora_A`, `lora_B` |
//! | LoHa | `(A₁ · B₁) ∘ (A₂ · B₂)`, multiplied element by element | `hada_w1_a`, `hada_w1_b`, `hada_w2_a`, `hada_w2_b` |
//! | LoKr | `W₁ ⊗ W₂`, the Kronecker product | `lokr_w1`, `lokr_w2`, or `lokr_w2_a` and `lokr_w2_b`, whose product it is |

use tch::{Kind, Tensor};

use crate::Error;
use crate::tensor::to_kind;

/// A kind of adapter: PEFT's `peft_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AdapterType {
    /// A product of two matrices.
    #[default]
    Lora,
    /// The element-wise product of two such products (Hyeon-Woo et al., 2022).
    Loha,
    /// A Kronecker product (Yeh et al., 2023).
    Lokr {
        /// What sides are divided by: the first factor has as many rows and columns. −1 divides near the root.
        factor: i64,
        /// Whether the first factor is a product, too, if it is large enough.
        decompose_both: bool,
    },
}

impl AdapterType {
    /// Its name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lora => "LoRA",
            Self::Loha => "LoHa",
            Self::Lokr { .. } => "LoKr",
        }
    }
}

/// A matrix of a [`Change`], with more dimensions for a convolution.
#[derive(Debug)]
pub enum Factor {
    /// As it is.
    Whole(Tensor),
    /// The product of two: `[rows, rank]` and `[rank, columns]`.
    Product([Tensor; 2]),
}

impl Factor {
    fn matrix(&self) -> Result<Tensor, Error> {
        match self {
            Self::Whole(whole) => flat(whole),
            Self::Product([a, b]) => Ok(flat(a)?.f_matmul(&flat(b)?)?),
        }
    }

    /// Rows and columns.
    pub(super) fn size(&self) -> [i64; 2] {
        match self {
            Self::Whole(whole) => [rows(whole), columns(whole)],
            Self::Product([a, b]) => [rows(a), columns(b)],
        }
    }

    pub(super) fn rank(&self) -> Option<i64> {
        match self {
            Self::Whole(_) => None,
            Self::Product([_, b]) => Some(rows(b)),
        }
    }

    pub(super) fn shallow_clone(&self) -> Self {
        match self {
            Self::Whole(whole) => Self::Whole(whole.shallow_clone()),
            Self::Product([a, b]) => Self::Product([a.shallow_clone(), b.shallow_clone()]),
        }
    }
}

/// What is added to a weight `[outputs, inputs]`, before it is scaled.
#[derive(Debug)]
pub enum Change {
    /// `b · a`
    Lora {
        /// `[rank, inputs]`
        a: Tensor,
        /// `[outputs, rank]`
        b: Tensor,
    },
    /// The element-wise product of two.
    Loha([[Tensor; 2]; 2]),
    /// The Kronecker product of two.
    Lokr([Factor; 2]),
}

/// `[rows, columns]` of a tensor that may be that of a convolution, in fp32.
fn flat(tensor: &Tensor) -> Result<Tensor, Error> {
    let tensor = match tensor.dim() {
        2 => tensor.shallow_clone(),
        _ => tensor.f_flatten(1, -1)?,
    };
    to_kind(&tensor, Kind::Float)
}

pub(super) fn rows(tensor: &Tensor) -> i64 {
    tensor.size().first().copied().unwrap_or(0)
}

/// Whether it has rows and columns, and numbers in them.
fn is_matrix(tensor: &Tensor) -> bool {
    tensor.dim() >= 2 && tensor.numel() > 0
}

fn columns(tensor: &Tensor) -> i64 {
    tensor.size().iter().skip(1).product()
}

impl Change {
    /// Rows and columns of the weight that it is for.
    pub fn size(&self) -> [i64; 2] {
        match self {
            Self::Lora { a, b } => [rows(b), columns(a)],
            Self::Loha([[a, b], _]) => [rows(a), columns(b)],
            Self::Lokr([first, second]) => {
                let ([a, b], [c, d]) = (first.size(), second.size());
                [a * c, b * d]
            }
        }
    }

    /// What alpha is divided by; `None` if it is ignored, since no part of it is a product.
    pub fn rank(&self) -> Option<i64> {
        match self {
            Self::Lora { a, .. } => Some(rows(a)),
            Self::Loha([[_, b], _]) => Some(rows(b)),
            Self::Lokr([first, second]) => second.rank().or(first.rank()),
        }
    }

    /// Whether it is a plain product.
    pub fn is_lora(&self) -> bool {
        matches!(self, Self::Lora { .. })
    }

    /// The whole matrix, `[outputs, inputs]` in fp32.
    pub fn matrix(&self) -> Result<Tensor, Error> {
        match self {
            Self::Lora { a, b } => Ok(flat(b)?.f_matmul(&flat(a)?)?),
            Self::Loha([one, other]) => {
                let product = |[a, b]: &[Tensor; 2]| -> Result<Tensor, Error> {
                    Ok(flat(a)?.f_matmul(&flat(b)?)?)
                };
                Ok(product(one)?.f_mul(&product(other)?)?)
            }
            Self::Lokr([first, second]) => Ok(first.matrix()?.f_kron(&second.matrix()?)?),
        }
    }

    /// `scaling · rows · matrixᵀ`, computed in `kind`: `[rows, inputs]` to `[rows, outputs]`.
    pub(super) fn apply(&self, rows: &Tensor, scaling: f64, kind: Kind) -> Result<Tensor, Error> {
        let rows = to_kind(rows, kind)?;
        let scaled = |tensor: Tensor| match scaling == 1.0 {
            true => Ok(tensor),
            false => tensor.f_mul_scalar(scaling),
        };
        match self {
            Self::Lora { a, b } => {
                let low = scaled(rows.f_linear(&to_kind(a, kind)?, None::<&Tensor>)?)?;
                Ok(low.f_linear(&to_kind(b, kind)?, None::<&Tensor>)?)
            }
            Self::Loha(_) => {
                let matrix = to_kind(&scaled(self.matrix()?)?, kind)?;
                Ok(rows.f_linear(&matrix, None::<&Tensor>)?)
            }
            // With the inputs as a matrix X, the outputs are W₁ · X · W₂ᵀ: the Kronecker product is never made.
            Self::Lokr([first, second]) => {
                let ([_, wide], [_, deep]) = (first.size(), second.size());
                let first = to_kind(&scaled(first.matrix()?)?, kind)?;
                let inner = rows.f_view([-1, wide, deep])?;
                let inner = match second {
                    Factor::Product([a, b]) => {
                        let low = inner.f_linear(&to_kind(&flat(b)?, kind)?, None::<&Tensor>)?;
                        low.f_linear(&to_kind(&flat(a)?, kind)?, None::<&Tensor>)?
                    }
                    Factor::Whole(whole) => {
                        inner.f_linear(&to_kind(&flat(whole)?, kind)?, None::<&Tensor>)?
                    }
                };
                // One product of all rows, whose gradient is one, too: the sum over rows is always the same.
                let turned = inner.f_transpose(1, 2)?.f_linear(&first, None::<&Tensor>)?;
                Ok(turned.f_transpose(1, 2)?.f_flatten(1, -1)?)
            }
        }
    }

    /// The weight with `scale` times the change, in fp32: `[outputs, inputs]`, or more dimensions. With a `magnitude` for each
    /// row (DoRA), its rows then have these norms.
    ///
    /// # Errors
    /// If the sizes do not fit.
    pub fn merged(
        &self,
        weight: &Tensor,
        scale: f64,
        magnitude: Option<&Tensor>,
    ) -> Result<Tensor, Error> {
        let change = self.matrix()?.f_mul_scalar(scale)?;
        let whole = to_kind(weight, Kind::Float)?.f_add(&change.f_reshape(weight.size())?)?;
        let Some(magnitude) = magnitude else {
            return Ok(whole);
        };
        let rows = whole.f_flatten(1, -1)?;
        let norm = rows.f_norm_scalaropt_dim(2.0, 1, true)?;
        let magnitude = to_kind(magnitude, Kind::Float)?.f_reshape([-1, 1])?;
        Ok(rows
            .f_mul(&magnitude.f_div(&norm.f_clamp_min(f64::from(f32::MIN_POSITIVE))?)?)?
            .f_reshape(weight.size())?)
    }

    /// Its tensors by their names in LyCORIS' and PEFT's files; those of a LoRA are named differently everywhere.
    pub fn parts(&self) -> Vec<(String, &Tensor)> {
        match self {
            Self::Lora { a, b } => vec![("lora_A.weight".into(), a), ("lora_B.weight".into(), b)],
            Self::Loha(products) => {
                let named = products.iter().zip(["hada_w1", "hada_w2"]);
                named
                    .flat_map(|([a, b], name)| [(format!("{name}_a"), a), (format!("{name}_b"), b)])
                    .collect()
            }
            Self::Lokr(factors) => {
                let named = factors.iter().zip(["lokr_w1", "lokr_w2"]);
                named
                    .flat_map(|(factor, name)| match factor {
                        Factor::Whole(whole) => vec![(name.to_owned(), whole)],
                        Factor::Product([a, b]) => {
                            vec![(format!("{name}_a"), a), (format!("{name}_b"), b)]
                        }
                    })
                    .collect()
            }
        }
    }

    /// The change of these [`parts`](Self::parts), each of which `take` gives.
    ///
    /// # Errors
    /// What is wrong with them, as the end of a sentence.
    pub fn of(mut take: impl FnMut(&str) -> Option<Tensor>) -> Result<Self, String> {
        match (take("lora_A.weight"), take("lora_B.weight")) {
            (None, None) => {}
            (Some(a), Some(b)) => {
                if a.dim() < 2 || b.dim() < 2 {
                    return Err("has a matrix without two dimensions".into());
                }
                // The up matrix of a convolution has as many columns as the rank, whatever its other dimensions.
                let (rank, inner) = (rows(&a), b.size()[1]);
                return match rank == inner && rank > 0 {
                    true => Ok(Self::Lora { a, b }),
                    false => Err(format!(
                        "has the rank {rank} in one matrix and {inner} in the other"
                    )),
                };
            }
            _ => return Err("has only one of its two matrices".into()),
        }
        let mut pair = |name: &str| -> Result<Option<[Tensor; 2]>, String> {
            let [a, b] = ["a", "b"].map(|part| take(&format!("{name}_{part}")));
            match (a, b) {
                (None, None) => Ok(None),
                (Some(a), Some(b)) if [&a, &b].into_iter().any(|part| !is_matrix(part)) => {
                    Err(format!("has no matrices as `{name}_a` and `{name}_b`"))
                }
                (Some(a), Some(b)) if columns(&a) == rows(&b) => Ok(Some([a, b])),
                (Some(a), Some(b)) => Err(format!(
                    "has `{name}_a` and `{name}_b` of the shapes {:?} and {:?}, which have no product",
                    a.size(),
                    b.size()
                )),
                _ => Err(format!("has only one of `{name}_a` and `{name}_b`")),
            }
        };
        let hada = [pair("hada_w1")?, pair("hada_w2")?];
        let [first, second] = [pair("lokr_w1")?, pair("lokr_w2")?];
        match hada {
            [None, None] => {}
            [Some(one), Some(other)] => {
                let sizes = [&one, &other].map(|[a, b]| [rows(a), columns(b)]);
                return match sizes[0] == sizes[1] {
                    true => Ok(Self::Loha([one, other])),
                    false => Err(format!("has two products of the sizes {sizes:?}")),
                };
            }
            _ => return Err("has only one of the two products of a LoHa".into()),
        }
        let mut factor = |name: &str, product: Option<[Tensor; 2]>| match (take(name), product) {
            (Some(_), Some(_)) => Err(format!("has both `{name}` and a product for it")),
            (Some(whole), None) if !is_matrix(&whole) => Err(format!("has no matrix as `{name}`")),
            (Some(whole), None) => Ok(Some(Factor::Whole(whole))),
            (None, product) => Ok(product.map(Factor::Product)),
        };
        match (factor("lokr_w1", first)?, factor("lokr_w2", second)?) {
            (Some(first), Some(second)) => Ok(Self::Lokr([first, second])),
            (None, None) => Err("has nothing that changes it".into()),
            _ => Err("has only one of the two factors of a LoKr".into()),
        }
    }

    /// A second handle to the same tensors.
    pub fn shallow_clone(&self) -> Self {
        match self {
            Self::Lora { a, b } => Self::Lora {
                a: a.shallow_clone(),
                b: b.shallow_clone(),
            },
            Self::Loha(products) => Self::Loha(
                products
                    .each_ref()
                    .map(|pair| pair.each_ref().map(Tensor::shallow_clone)),
            ),
            Self::Lokr(factors) => Self::Lokr(factors.each_ref().map(Factor::shallow_clone)),
        }
    }
}

/// The two numbers whose product is `side`, and by which LoKr divides it: as PEFT chooses them.
pub(crate) fn divided(side: i64, factor: i64) -> [i64; 2] {
    if factor > 0 && side % factor == 0 {
        return [factor, side / factor];
    }
    let most = if factor < 0 { side } else { factor };
    let near = (1..=most).take_while(|small| small * small <= side);
    let small = near.filter(|small| side % small == 0).last().unwrap_or(1);
    [small, side / small]
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;

    #[test]
    fn factors_that_are_no_matrices_are_refused() {
        let whole = ["lokr_w1", "lokr_w2"];
        let product = ["lokr_w1", "lokr_w2_a", "lokr_w2_b"];
        for (names, shapes, told) in [
            (&whole[..], &[&[2_i64, 2][..], &[3, 4]][..], ""),
            (&whole, &[&[4], &[3, 4]], "`lokr_w1`"),
            (&whole, &[&[2, 2], &[3, 0]], "`lokr_w2`"),
            (&product, &[&[2, 2], &[3, 2], &[2, 3, 1, 1]], ""),
            (&product, &[&[2, 2], &[3], &[1, 3]], "`lokr_w2_a`"),
            (&product, &[&[2, 2], &[0, 2], &[2, 3]], "`lokr_w2_a`"),
        ] {
            let change = Change::of(|name| {
                let at = names.iter().position(|own| *own == name)?;
                Some(Tensor::ones(shapes[at], (Kind::Float, Device::Cpu)))
            });
            let reason = change.err().unwrap_or_default();
            assert_eq!(reason.is_empty(), told.is_empty(), "{shapes:?}: {reason}");
            assert!(reason.contains(told), "{reason}");
        }
    }

    #[test]
    fn sides_are_divided_as_peft_does() {
        for (side, factor, expected) in [
            (3840, -1, [60, 64]),
            (3072, -1, [48, 64]),
            (360, -1, [18, 20]),
            (127, -1, [1, 127]),
            (128, 4, [4, 32]),
            (128, 16, [16, 8]),
            (360, 16, [15, 24]),
            (7, 4, [1, 7]),
        ] {
            assert_eq!(divided(side, factor), expected, "{side} by {factor}");
        }
    }

    /// What is computed without the whole matrix is what the matrix gives.
    #[test]
    fn rows_are_changed_by_the_matrix() {
        let random = |size: [i64; 2]| Tensor::randn(size, (Kind::Float, Device::Cpu));
        let pair = |rows, columns| [random([rows, 2]), random([2, columns])];
        for change in [
            Change::Loha([pair(6, 12), pair(6, 12)]),
            Change::Lokr([Factor::Whole(random([2, 3])), Factor::Whole(random([3, 4]))]),
            Change::Lokr([Factor::Whole(random([2, 3])), Factor::Product(pair(3, 4))]),
            Change::Lokr([Factor::Product(pair(2, 3)), Factor::Product(pair(3, 4))]),
        ] {
            assert_eq!(change.size(), [6, 12]);
            let input = random([5, 12]);
            let expected = input.matmul(&change.matrix().unwrap().tr()) * 0.3;
            let found = change.apply(&input, 0.3, Kind::Float).unwrap();
            let apart = f64::try_from((expected - found).abs().max()).unwrap();
            assert!(apart < 1e-5, "{change:?}: {apart}");
            let parts = change.parts();
            let again = Change::of(|name| {
                let found = parts.iter().find(|(part, _)| part == name);
                found.map(|(_, tensor)| tensor.shallow_clone())
            });
            let again = again.unwrap();
            assert_eq!(again.matrix().unwrap(), change.matrix().unwrap());
        }
    }
}
