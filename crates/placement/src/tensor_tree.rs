//! Nested structures of tensors, like JAX's pytrees.
//!
//! A tree is a tensor, a list or an option of trees, or a struct of them. Each tensor in it has a path
//! (`batch.0.input_ids`) that is the same for every batch; messages and verification identify it by that.

use std::convert::Infallible;
use std::fmt::Display;

use tch::Tensor;

/// Something that holds tensors and can be rebuilt with others in their places.
///
/// Implement it for a struct by mapping its fields:
///
/// ```
/// use surefoot_placement::{FieldPath, TensorTree};
/// use tch::Tensor;
///
/// struct Sample {
///     tokens: Tensor,
///     mask: Option<Tensor>,
///     file: String,
/// }
///
/// impl TensorTree for Sample {
///     fn try_map<E, F>(self, path: &FieldPath, map: &mut F) -> Result<Self, E>
///     where
///         F: FnMut(&FieldPath, Tensor) -> Result<Tensor, E>,
///     {
///         Ok(Sample {
///             tokens: self.tokens.try_map(&path.field("tokens"), map)?,
///             mask: self.mask.try_map(&path.field("mask"), map)?,
///             file: self.file,
///         })
///     }
/// }
/// ```
pub trait TensorTree: Sized {
    /// Replaces every tensor with the result of `map`, in a fixed order. Stops at the first error, and the
    /// batch is then lost.
    fn try_map<E, F>(self, path: &FieldPath, map: &mut F) -> Result<Self, E>
    where
        F: FnMut(&FieldPath, Tensor) -> Result<Tensor, E>;
}

/// The batch, and its tensors with their paths, in the order of [`TensorTree::try_map`].
pub(crate) fn fields<B: TensorTree>(batch: B, root: &FieldPath) -> (B, Vec<(FieldPath, Tensor)>) {
    let mut fields = Vec::new();
    let batch: Result<B, Infallible> = batch.try_map(root, &mut |path, tensor| {
        fields.push((path.clone(), tensor.shallow_clone()));
        Ok(tensor)
    });
    let Ok(batch) = batch;
    (batch, fields)
}

/// The batch with its tensors replaced. If it has more places than `tensors`, the rest keep their tensors.
pub(crate) fn refilled<B: TensorTree>(batch: B, root: &FieldPath, tensors: Vec<Tensor>) -> B {
    let mut tensors = tensors.into_iter();
    let batch: Result<B, Infallible> =
        batch.try_map(root, &mut |_, tensor| Ok(tensors.next().unwrap_or(tensor)));
    let Ok(batch) = batch;
    batch
}

/// The path of a tensor in a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldPath(String);

impl FieldPath {
    /// The batch itself, with this name.
    pub fn root(name: impl Into<String>) -> Self {
        Self(name.into())
    }

    /// A field, key or index of it.
    pub fn field(&self, name: impl Display) -> Self {
        Self(format!("{}.{name}", self.0))
    }

    /// The path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TensorTree for Tensor {
    fn try_map<E, F>(self, path: &FieldPath, map: &mut F) -> Result<Self, E>
    where
        F: FnMut(&FieldPath, Tensor) -> Result<Tensor, E>,
    {
        map(path, self)
    }
}

impl<B: TensorTree> TensorTree for Option<B> {
    fn try_map<E, F>(self, path: &FieldPath, map: &mut F) -> Result<Self, E>
    where
        F: FnMut(&FieldPath, Tensor) -> Result<Tensor, E>,
    {
        self.map(|inner| inner.try_map(path, map)).transpose()
    }
}

impl<B: TensorTree> TensorTree for Vec<B> {
    fn try_map<E, F>(self, path: &FieldPath, map: &mut F) -> Result<Self, E>
    where
        F: FnMut(&FieldPath, Tensor) -> Result<Tensor, E>,
    {
        let parts = self.into_iter().enumerate();
        parts
            .map(|(index, part)| part.try_map(&path.field(index), map))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths<B: TensorTree>(batch: B) -> Vec<String> {
        let mut seen = Vec::new();
        let mapped: Result<B, ()> =
            batch.try_map(&FieldPath::root("batch"), &mut |path, tensor| {
                seen.push(path.as_str().to_owned());
                Ok(tensor)
            });
        assert!(mapped.is_ok());
        seen
    }

    fn tensor() -> Tensor {
        Tensor::from(1_i64)
    }

    #[test]
    fn every_tensor_of_a_nested_batch_has_its_path() {
        let batch = vec![vec![Some(tensor()), None], vec![Some(tensor())]];
        assert_eq!(paths(batch), ["batch.0.0", "batch.1.0"]);
    }

    #[test]
    fn the_first_error_ends_it() {
        let mut calls = 0;
        let result: Result<Vec<Tensor>, &str> =
            vec![tensor(), tensor(), tensor()].try_map(&FieldPath::root("b"), &mut |_, tensor| {
                calls += 1;
                if calls == 2 { Err("no") } else { Ok(tensor) }
            });
        assert_eq!((result.unwrap_err(), calls), ("no", 2));
    }
}
