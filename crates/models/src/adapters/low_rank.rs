//! Low-rank changes that come near others: of matrices, by their singular values, and of whole models.

use std::collections::BTreeMap;

use tch::{Kind, Tensor};

use super::module::LoraModule;
use crate::Error;
use crate::formats::{TensorSource, require_finite};

/// How much of a matrix is kept.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Keep {
    /// So many singular values, if there are as many.
    Rank(i64),
    /// As few as have this share of the sum of all their squares.
    Energy(f64),
}

/// What came of one or several matrices.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Kept {
    /// The sum of the squares of all elements.
    pub all: f64,
    /// The part of it that is kept.
    pub kept: f64,
    /// The largest rank.
    pub rank: i64,
}

impl Kept {
    fn add(&mut self, other: Self) {
        self.all += other.all;
        self.kept += other.kept;
        self.rank = self.rank.max(other.rank);
    }

    /// The share that is kept, from 0 to 1.
    pub fn share(&self) -> f64 {
        match self.all > 0.0 {
            true => self.kept / self.all,
            false => 1.0,
        }
    }
}

/// The LoRA of a layer that comes nearest to `change`, the change of its weight: `[outputs, inputs]`, or that of a convolution,
/// whose down matrix then is one.
///
/// # Errors
/// If memory runs out.
pub(super) fn low_rank(change: &Tensor, keep: Keep) -> Result<(LoraModule, Kept), Error> {
    let _no_grad = tch::no_grad_guard();
    let matrix = change.f_to_kind(Kind::Float)?.f_flatten(1, -1)?;
    let (u, singular, v) = matrix.f_svd(true, true)?;
    let squares = Vec::<f64>::try_from(&singular.f_to_kind(Kind::Double)?.f_square()?)?;
    let all: f64 = squares.iter().sum();
    let rank = match keep {
        Keep::Rank(rank) => rank.min(squares.len() as i64),
        Keep::Energy(share) => {
            let mut sum = 0.0;
            let needed = squares.iter().take_while(|square| {
                let is_short = sum < share * all;
                sum += **square;
                is_short
            });
            needed.count() as i64
        }
    };
    let rank = rank.max(1);
    let root = singular.f_narrow(0, 0, rank)?.f_sqrt()?;
    let b = u.f_narrow(1, 0, rank)?.f_mul(&root)?.f_contiguous()?;
    let a = v
        .f_narrow(1, 0, rank)?
        .f_mul(&root)?
        .f_tr()?
        .f_contiguous()?;
    let (mut down, mut up) = (change.size(), vec![b.size()[0], rank]);
    down[0] = rank;
    up.resize(down.len(), 1);
    let module = LoraModule::lora(a.f_reshape(down)?, b.f_reshape(up)?, rank as f64);
    let kept = squares.iter().take(rank as usize).sum();
    Ok((module, Kept { all, kept, rank }))
}

/// What a model learned, as LoRAs.
#[derive(Debug, Default)]
pub struct Extracted {
    /// By layer.
    pub modules: BTreeMap<String, LoraModule>,
    /// Tensors that changed, too, and are none of the layers.
    pub others: Vec<String>,
    /// How much of the change of the layers is kept.
    pub kept: Kept,
}

/// The LoRAs that make of `base` nearly `tuned`, for each layer that changed of those that `is_layer` names. `on_tensor(done,
/// total)` reports progress.
///
/// # Errors
/// If the two do not have the same tensors, one is not finite, or memory runs out.
pub fn extract(
    base: &dyn TensorSource,
    tuned: &dyn TensorSource,
    is_layer: &dyn Fn(&str) -> bool,
    keep: Keep,
    on_tensor: &dyn Fn(usize, usize),
) -> Result<Extracted, Error> {
    let names = base.names();
    if let Some(more) = tuned.names().iter().find(|name| base.shape(name).is_none()) {
        let reason = format!("`{more}` is not in `{}`", base.path().display());
        return Err(Error::file(tuned.path(), reason));
    }
    let mut found = Extracted::default();
    for (number, name) in names.iter().enumerate() {
        let (shape, other) = (base.shape(name).unwrap_or_default(), tuned.shape(name));
        if other.as_ref() != Some(&shape) {
            let has = other.map_or("is missing".to_owned(), |other| format!("is {other:?}"));
            let place = base.path().display();
            return Err(Error::file(
                tuned.path(),
                format!("`{name}` {has}, and in `{place}` it is {shape:?}"),
            ));
        }
        let new = tuned.read(name, Kind::Float)?;
        require_finite(tuned, name, &new)?;
        let change = new.f_sub(&base.read(name, Kind::Float)?)?;
        on_tensor(number + 1, names.len());
        if change.f_ne(0.0)?.f_sum(Kind::Int64)?.f_int64_value(&[])? == 0 {
            continue;
        }
        let layer = name.strip_suffix(".weight").filter(|_| shape.len() > 1);
        match layer.filter(|layer| is_layer(layer)) {
            Some(layer) => {
                let (module, kept) = low_rank(&change, keep)?;
                found.modules.insert(layer.to_owned(), module);
                found.kept.add(kept);
            }
            None => found.others.push(name.clone()),
        }
    }
    Ok(found)
}

/// The same changes as LoRAs: of each module that is no plain LoRA, what comes nearest. A DoRA's depends on the weights, which
/// `base` has under the names of the layers.
///
/// # Errors
/// If a weight is needed and missing, or memory runs out.
pub fn plain(
    modules: BTreeMap<String, LoraModule>,
    base: Option<&dyn TensorSource>,
    keep: Keep,
) -> Result<(BTreeMap<String, LoraModule>, Kept), Error> {
    let mut all = Kept::default();
    let modules = modules.into_iter().map(|(name, module)| {
        if module.change.is_lora() && module.magnitude.is_none() {
            return Ok((name, module));
        }
        let change = match (&module.magnitude, base) {
            (None, _) => module.change.matrix()?.f_mul_scalar(module.scale())?,
            (Some(_), Some(base)) => {
                let weight = base.read(&format!("{name}.weight"), Kind::Float)?;
                module.merged(&weight, 1.0)?.f_sub(&weight)?
            }
            (Some(_), None) => {
                return Err(Error::Invalid(format!(
                    "what the DoRA of `{name}` adds depends on the weights that it was trained on: name their model"
                )));
            }
        };
        let (module, kept) = low_rank(&change, keep)?;
        all.add(kept);
        Ok((name, module))
    });
    let modules = modules.collect::<Result<_, Error>>()?;
    Ok((modules, all))
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;

    #[test]
    fn the_change_of_a_lora_is_the_lora() {
        let random = |size: &[i64]| Tensor::randn(size, (Kind::Float, Device::Cpu));
        for shape in [vec![12, 8], vec![6, 4, 3, 3]] {
            let columns: i64 = shape[1..].iter().product();
            let change = random(&[shape[0], 3]).matmul(&random(&[3, columns]));
            let change = change.view(shape.as_slice());
            for keep in [Keep::Rank(3), Keep::Energy(0.999_999)] {
                let (module, kept) = low_rank(&change, keep).unwrap();
                assert_eq!((kept.rank, module.scale()), (3, 1.0));
                assert!(kept.share() > 0.999_999, "{kept:?}");
                let [down, up] = module.factors().unwrap();
                assert_eq!((down.dim(), up.dim()), (shape.len(), shape.len()));
                let made = module.change.matrix().unwrap().view_as(&change);
                let apart = f64::try_from((made - &change).abs().max()).unwrap();
                assert!(apart < 1e-5, "{apart}");
            }
            let (module, kept) = low_rank(&change, Keep::Rank(2)).unwrap();
            assert!(kept.rank == 2 && kept.share() < 0.999, "{kept:?}");
            let lost = (module.change.matrix().unwrap().view_as(&change) - &change).square();
            let lost = f64::try_from(lost.sum(Kind::Double)).unwrap();
            assert!((lost - (kept.all - kept.kept)).abs() < 1e-4 * kept.all);
        }
    }
}
