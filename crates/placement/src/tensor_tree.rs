//! Nested structures of tensors, like JAX's pytrees.
//!
//! A tree is a tensor, or a tuple, list, option or dictionary of trees. Each tensor in it has a path
//! (`batch.0.input_ids`) that is the same for every batch; messages and verification identify it by that.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::fmt::Display;
use std::hash::{BuildHasher, Hash};

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

impl<B: TensorTree> TensorTree for Box<B> {
    fn try_map<E, F>(self, path: &FieldPath, map: &mut F) -> Result<Self, E>
    where
        F: FnMut(&FieldPath, Tensor) -> Result<Tensor, E>,
    {
        (*self).try_map(path, map).map(Box::new)
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

impl<K: Ord + Display, B: TensorTree> TensorTree for BTreeMap<K, B> {
    fn try_map<E, F>(self, path: &FieldPath, map: &mut F) -> Result<Self, E>
    where
        F: FnMut(&FieldPath, Tensor) -> Result<Tensor, E>,
    {
        let entries = self.into_iter();
        entries
            .map(|(key, part)| {
                let part = part.try_map(&path.field(&key), map)?;
                Ok((key, part))
            })
            .collect()
    }
}

/// In the order of the keys, so that moves do not depend on a hash seed.
impl<K: Ord + Hash + Display, B: TensorTree, S: BuildHasher + Default> TensorTree
    for HashMap<K, B, S>
{
    fn try_map<E, F>(self, path: &FieldPath, map: &mut F) -> Result<Self, E>
    where
        F: FnMut(&FieldPath, Tensor) -> Result<Tensor, E>,
    {
        let sorted: BTreeMap<K, B> = self.into_iter().collect();
        Ok(sorted.try_map(path, map)?.into_iter().collect())
    }
}

/// Values without tensors pass unchanged.
macro_rules! passes_unchanged {
    ($($type:ty),*) => {$(
        impl TensorTree for $type {
            fn try_map<E, F>(self, _: &FieldPath, _: &mut F) -> Result<Self, E>
            where
                F: FnMut(&FieldPath, Tensor) -> Result<Tensor, E>,
            {
                Ok(self)
            }
        }
    )*};
}
passes_unchanged!(
    (),
    bool,
    char,
    u8,
    u16,
    u32,
    u64,
    usize,
    i8,
    i16,
    i32,
    i64,
    isize,
    f32,
    f64,
    String,
    &'static str,
    std::path::PathBuf
);

macro_rules! tuples {
    ($($index:tt $name:ident),*) => {
        impl<$($name: TensorTree),*> TensorTree for ($($name,)*) {
            fn try_map<Error, Map>(self, path: &FieldPath, map: &mut Map) -> Result<Self, Error>
            where
                Map: FnMut(&FieldPath, Tensor) -> Result<Tensor, Error>,
            {
                Ok(($(self.$index.try_map(&path.field($index), map)?,)*))
            }
        }
    };
}
tuples!(0 A);
tuples!(0 A, 1 B);
tuples!(0 A, 1 B, 2 C);
tuples!(0 A, 1 B, 2 C, 3 D);
tuples!(0 A, 1 B, 2 C, 3 D, 4 E);
tuples!(0 A, 1 B, 2 C, 3 D, 4 E, 5 F);
tuples!(0 A, 1 B, 2 C, 3 D, 4 E, 5 F, 6 G);
tuples!(0 A, 1 B, 2 C, 3 D, 4 E, 5 F, 6 G, 7 H);

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
        let dictionary = HashMap::from([
            ("labels".to_owned(), vec![tensor()]),
            ("input_ids".to_owned(), vec![tensor(), tensor()]),
        ]);
        assert_eq!(
            paths((
                dictionary,
                Some(tensor()),
                None::<Tensor>,
                "file.txt".to_owned()
            )),
            [
                "batch.0.input_ids.0",
                "batch.0.input_ids.1",
                "batch.0.labels.0",
                "batch.1"
            ]
        );
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
