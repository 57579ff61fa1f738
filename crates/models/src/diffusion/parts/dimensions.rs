//! How the dimensions of a denoiser are read, of a `config.json` or of the shapes in a single file.

use std::fmt::Display;
use std::path::Path;

use crate::Error;
use crate::diffusion::Arch;
use crate::formats::TensorSource;
use crate::json::Object;

/// A key that does not fit the others, and what is wrong with it.
pub(crate) type Problem = (&'static str, String);

/// The config at `path`, which is of this class, with a warning for each key that is not in `keys`.
pub(crate) fn of_class(path: &Path, class: &str, keys: &[&str]) -> Result<Object, Error> {
    let object = Object::read(path)?;
    match object.text("_class_name")?.filter(|other| *other != class) {
        Some(other) => {
            let reason = format!("is {other:?}: only {class:?} is supported");
            Err(object.error("_class_name", reason))
        }
        None => {
            object.warn_about_unknown_keys(keys);
            Ok(object)
        }
    }
}

/// One whole number for each axis; `axes` are their names.
pub(crate) fn of_axes<const N: usize>(
    object: &Object,
    key: &str,
    default: [i64; N],
    axes: &str,
) -> Result<[i64; N], Error> {
    let found = object.integers(key, 1..=1 << 20)?;
    let found = found.map_or(Ok(default), TryInto::try_into);
    found.map_err(|_| {
        let count = if N == 3 { "three" } else { "four" };
        object.error(key, format!("must have {count} values: {axes}"))
    })
}

/// A config that was read, unless something is wrong with it.
pub(crate) fn sound<C>(object: &Object, config: C, problem: Option<Problem>) -> Result<C, Error> {
    match problem {
        Some((key, reason)) => Err(object.error(key, reason)),
        None => Ok(config),
    }
}

/// What is wrong with the parts of a head of width `head` that axes turn.
pub(crate) fn problem_of_axes(key: &'static str, axes: &[i64], head: i64) -> Option<Problem> {
    let fit = axes.iter().sum::<i64>() == head && axes.iter().all(|width| width % 2 == 0);
    (!fit).then(|| {
        let reason = format!(
            "is {axes:?}: even numbers are needed whose sum is the width of a head, {head}"
        );
        (key, reason)
    })
}

/// What tells a dimension in a file without a config.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Told {
    /// The number of blocks of the list with this index.
    Blocks(usize),
    /// The size of a weight in a dimension.
    Size(&'static str, usize),
    /// The rows of a weight, in heads of the width of a norm.
    Heads(&'static str, &'static str),
}

impl Told {
    /// The dimension `key` of a config.
    pub(crate) fn read(self, object: &Object, key: &str, default: i64) -> Result<i64, Error> {
        let least = i64::from(!matches!(self, Self::Blocks(_)));
        object.integer(key, Some(default), least..=1 << 20)
    }

    /// The dimension of a file.
    pub(crate) fn of_shapes(self, shapes: &Shapes) -> Result<i64, Error> {
        match self {
            Self::Blocks(list) => Ok(shapes.blocks(list)),
            Self::Size(weight, dimension) => shapes.size(weight, dimension),
            Self::Heads(weight, norm) => {
                let (rows, head) = (shapes.size(weight, 0)?, shapes.size(norm, 0)?);
                match rows % head {
                    0 => Ok(rows / head),
                    _ => Err(shapes.no(format!(
                        "`{weight}` has {rows} rows, which are not heads of {head}"
                    ))),
                }
            }
        }
    }
}

/// A struct of dimensions, of which each has the name of its key, what it is without one, and what tells it in a file.
macro_rules! dimensions {
    (
        $(#[$of_all:meta])*
        pub struct $name:ident {
            $($(#[$of_one:meta])* $key:ident = $default:literal, $told:expr;)*
        }
    ) => {
        $(#[$of_all])*
        #[derive(Debug, Clone, PartialEq)]
        pub struct $name {
            $($(#[$of_one])* pub $key: i64,)*
        }

        impl $name {
            const KEYS: &[&str] = &[$(stringify!($key)),*];

            fn read(object: &$crate::json::Object) -> Result<Self, $crate::Error> {
                Ok(Self {
                    $($key: $told.read(object, stringify!($key), $default)?,)*
                })
            }

            fn of_shapes(
                shapes: &$crate::diffusion::parts::dimensions::Shapes,
            ) -> Result<Self, $crate::Error> {
                Ok(Self {
                    $($key: $told.of_shapes(shapes)?,)*
                })
            }
        }
    };
}

pub(crate) use dimensions;

/// The shapes in a file from which dimensions are inferred.
pub(crate) struct Shapes<'a> {
    arch: &'a Arch,
    tensors: &'a dyn TensorSource,
}

impl<'a> Shapes<'a> {
    /// Those of the weights of a denoiser, with diffusers' names.
    pub(crate) fn new(arch: &'a Arch, tensors: &'a dyn TensorSource) -> Self {
        Self { arch, tensors }
    }

    /// Whether there is a weight of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.tensors.shape(name).is_some()
    }

    /// A dimension of the weight `name`, which must be there.
    pub(crate) fn size(&self, name: &str, dimension: usize) -> Result<i64, Error> {
        let shape = self.tensors.shape(name);
        let size = shape.and_then(|shape| shape.get(dimension).copied());
        size.filter(|size| *size > 0)
            .ok_or_else(|| self.no(format!("there is no `{name}`")))
    }

    /// Number of blocks of the list with this index.
    pub(crate) fn blocks(&self, list: usize) -> i64 {
        let counts = self.arch.blocks(self.tensors);
        counts.get(list).map_or(0, |count| *count as i64)
    }

    /// What is wrong with the file.
    pub(crate) fn wrong(&self, reason: impl Display) -> Error {
        Error::file(self.tensors.path(), reason.to_string())
    }

    /// Why it is no denoiser of this kind.
    pub(crate) fn no(&self, reason: impl Display) -> Error {
        self.wrong(format!("not a {} transformer: {reason}", self.arch.title))
    }
}
