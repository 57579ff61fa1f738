//! What a denoiser is told besides the noisy latents.

use std::collections::BTreeMap;

use tch::{Device, Kind, Tensor};

use crate::Error;
use crate::formats::TensorSource;

/// The name of a text's rows: `[tokens, width]`, with a batch dimension in front for a batch.
pub const TEXT: &str = "text";

/// The name of the number of rows of each text of a batch that is no padding, `[batch]`.
pub const TEXT_TOKENS: &str = "text_tokens";

/// The name of the guidance that a denoiser is told, `[batch]`; without it, it is told 1.
pub const GUIDANCE: &str = "guidance";

/// The name of latent frames at the beginning that are given, not made: `[channels, frames, height, width]`. They are
/// neither noised nor predicted.
pub const FIRST_FRAME: &str = "first_frame";

/// Named tensors, as they lie in a cache file or, with a batch dimension, go into a denoiser.
#[derive(Debug, Default)]
pub struct Conditions {
    tensors: BTreeMap<String, Tensor>,
}

impl Conditions {
    /// A single condition.
    pub fn of(name: &str, tensor: Tensor) -> Self {
        let mut conditions = Self::default();
        conditions.insert(name, tensor);
        conditions
    }

    /// All tensors of a file in fp32, except those in `others`.
    ///
    /// # Errors
    /// If the file is damaged.
    pub fn read(file: &dyn TensorSource, others: &[&str]) -> Result<Self, Error> {
        let names = file.names().into_iter();
        let names = names.filter(|name| !others.contains(&name.as_str()));
        let tensors = names.map(|name| {
            let tensor = file.read(&name, Kind::Float)?;
            Ok((name, tensor))
        });
        Ok(Self {
            tensors: tensors.collect::<Result<_, Error>>()?,
        })
    }

    /// Those of a batch: each tensor of the rows stacked in a new first dimension.
    ///
    /// # Errors
    /// If shapes or names differ.
    pub fn stacked(rows: &[Self]) -> Result<Self, Error> {
        let mut stacked = Self::default();
        for name in rows.iter().take(1).flat_map(|row| row.tensors.keys()) {
            let all = rows.iter().map(|row| row.get(name));
            let all = all.collect::<Result<Vec<_>, _>>()?;
            stacked.insert(name, Tensor::f_stack(&all, 0)?);
        }
        Ok(stacked)
    }

    /// Those of a batch whose texts have different lengths: they are padded with zeros to `filled` rows for the longest,
    /// and [`TEXT_TOKENS`] says how many there were.
    ///
    /// # Errors
    /// If there is no text, or other shapes or names differ.
    pub fn padded(rows: &[Self], filled: impl Fn(i64) -> i64) -> Result<Self, Error> {
        let lengths = rows.iter().map(|row| Ok(row.get(TEXT)?.size2()?.0));
        let lengths = lengths.collect::<Result<Vec<_>, Error>>()?;
        let longest = filled(lengths.iter().max().copied().unwrap_or(0));
        let padded = rows.iter().zip(&lengths).map(|(row, tokens)| {
            let mut row = row.shallow_clone();
            let text = row.get(TEXT)?;
            let text = text.f_constant_pad_nd([0, 0, 0, longest - tokens])?;
            row.insert(TEXT, text);
            row.insert(
                TEXT_TOKENS,
                Tensor::f_from_slice(&[*tokens as f32])?.f_squeeze()?,
            );
            Ok(row)
        });
        Self::stacked(&padded.collect::<Result<Vec<_>, Error>>()?)
    }

    /// What [`TEXT_TOKENS`] says.
    ///
    /// # Errors
    /// If there is no such condition.
    pub fn text_tokens(&self) -> Result<Vec<i64>, Error> {
        let tokens = self.get(TEXT_TOKENS)?.f_to_device(Device::Cpu)?;
        let tokens = tokens.f_to_kind(Kind::Int64)?.f_view([-1])?;
        Ok(Vec::try_from(&tokens)?)
    }

    /// Adds or replaces a condition.
    pub fn insert(&mut self, name: &str, tensor: Tensor) {
        self.tensors.insert(name.to_owned(), tensor);
    }

    /// Adds or replaces those in `others`.
    pub fn extend(&mut self, others: Self) {
        self.tensors.extend(others.tensors);
    }

    /// Adds those in `others`. Of a condition that is there already, the new rows stand beside the old ones: that is how
    /// the texts of several encoders become one.
    ///
    /// # Errors
    /// If their numbers of rows differ, or memory runs out.
    pub fn join(&mut self, others: Self) -> Result<(), Error> {
        for (name, tensor) in others.tensors {
            let joined = match self.tensors.get(&name) {
                Some(there) => Tensor::f_cat(&[there, &tensor], -1)?,
                None => tensor,
            };
            self.tensors.insert(name, joined);
        }
        Ok(())
    }

    /// The condition of this name, if there is one.
    pub fn find(&self, name: &str) -> Option<&Tensor> {
        self.tensors.get(name)
    }

    /// The condition of this name.
    ///
    /// # Errors
    /// If there is none.
    pub fn get(&self, name: &str) -> Result<&Tensor, Error> {
        let found = self.find(name);
        found.ok_or_else(|| Error::Internal(format!("there is no condition `{name}`")))
    }

    /// Names and tensors.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        let tensors = self.tensors.iter();
        tensors.map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// Each tensor replaced by what `map` makes of it and its name.
    ///
    /// # Errors
    /// Those of `map`.
    pub fn map<E>(self, mut map: impl FnMut(&str, Tensor) -> Result<Tensor, E>) -> Result<Self, E> {
        let tensors = self.tensors.into_iter();
        let tensors = tensors.map(|(name, tensor)| {
            let mapped = map(&name, tensor)?;
            Ok((name, mapped))
        });
        Ok(Self {
            tensors: tensors.collect::<Result<_, E>>()?,
        })
    }

    /// A second handle to the same tensors.
    pub fn shallow_clone(&self) -> Self {
        let tensors = self.tensors.iter();
        Self {
            tensors: tensors
                .map(|(name, tensor)| (name.clone(), tensor.shallow_clone()))
                .collect(),
        }
    }
}
