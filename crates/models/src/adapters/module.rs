//! The change to one layer, as files have it: with its scale.

use tch::{Kind, Tensor};

use super::change::{AdapterType, Change, Factor, divided, rows};
use crate::Error;
use crate::tensor::to_kind;

/// The change to one layer, as files have it.
#[derive(Debug)]
pub struct LoraModule {
    /// What is added.
    pub change: Change,
    /// It is scaled by `alpha / rank`, if it has a rank.
    pub alpha: f64,
    /// `[outputs]`, or `[outputs, 1]`: the norm of each row of the changed weight (DoRA).
    pub magnitude: Option<Tensor>,
}

impl LoraModule {
    /// A LoRA: `alpha / rank · b · a`.
    pub fn lora(a: Tensor, b: Tensor, alpha: f64) -> Self {
        Self {
            change: Change::Lora { a, b },
            alpha,
            magnitude: None,
        }
    }

    /// A change that is scaled by `scale`; it is multiplied into one that has no rank.
    ///
    /// # Errors
    /// If memory runs out.
    pub fn scaled(
        mut change: Change,
        scale: f64,
        magnitude: Option<Tensor>,
    ) -> Result<Self, Error> {
        let rank = change.rank();
        if let (None, Change::Lokr([Factor::Whole(first), _])) = (rank, &mut change)
            && scale != 1.0
        {
            *first = to_kind(first, Kind::Float)?.f_mul_scalar(scale)?;
        }
        Ok(Self {
            change,
            alpha: rank.map_or(1.0, |rank| scale * rank as f64),
            magnitude,
        })
    }

    /// The matrices `[a, b]` of a LoRA, without the magnitude of a DoRA.
    pub fn factors(&self) -> Option<[&Tensor; 2]> {
        match &self.change {
            Change::Lora { a, b } => Some([a, b]),
            _ => None,
        }
    }

    /// The scale of the change.
    pub fn scale(&self) -> f64 {
        self.change
            .rank()
            .map_or(1.0, |rank| self.alpha / rank as f64)
    }

    /// What it changes a weight to, if its strength is not 1: a DoRA's magnitude counts as much.
    ///
    /// # Errors
    /// If the sizes do not fit.
    pub fn merged(&self, weight: &Tensor, strength: f64) -> Result<Tensor, Error> {
        let Some(magnitude) = &self.magnitude else {
            return self.change.merged(weight, strength * self.scale(), None);
        };
        let whole = self.change.merged(weight, self.scale(), Some(magnitude))?;
        let weight = to_kind(weight, Kind::Float)?;
        Ok(weight.f_add(&whole.f_sub(&weight)?.f_mul_scalar(strength)?)?)
    }

    /// A second handle to the same tensors.
    pub fn shallow_clone(&self) -> Self {
        Self {
            change: self.change.shallow_clone(),
            alpha: self.alpha,
            magnitude: self.magnitude.as_ref().map(Tensor::shallow_clone),
        }
    }

    /// The change of some rows: `before` and `own` are shares of `all`. A Kronecker product whose first factor is not divided
    /// by them becomes a matrix.
    ///
    /// # Errors
    /// If memory runs out.
    pub(crate) fn narrowed(&self, [before, own, all]: [i64; 3]) -> Result<Self, Error> {
        let rows_of = |tensor: &Tensor| -> Result<Tensor, Error> {
            let unit = rows(tensor) / all;
            Ok(tensor
                .f_narrow(0, before * unit, own * unit)?
                .f_contiguous()?)
        };
        let change = match &self.change {
            Change::Lora { a, b } => Change::Lora {
                a: a.shallow_clone(),
                b: rows_of(b)?,
            },
            Change::Loha([[a, b], [c, d]]) => Change::Loha([
                [rows_of(a)?, b.shallow_clone()],
                [rows_of(c)?, d.shallow_clone()],
            ]),
            Change::Lokr([first, second]) if first.size()[0] % all == 0 => {
                let first = match first {
                    Factor::Whole(whole) => Factor::Whole(rows_of(whole)?),
                    Factor::Product([a, b]) => Factor::Product([rows_of(a)?, b.shallow_clone()]),
                };
                Change::Lokr([first, second.shallow_clone()])
            }
            Change::Lokr(_) => {
                let matrix = rows_of(&self.change.matrix()?.f_mul_scalar(self.scale())?)?;
                let one = Tensor::f_ones([1, 1], (Kind::Float, matrix.device()))?;
                Change::Lokr([one, matrix].map(Factor::Whole))
            }
        };
        Ok(Self {
            alpha: self.alpha,
            magnitude: self.magnitude.as_ref().map(rows_of).transpose()?,
            change,
        })
    }

    /// Rank and alpha by which PEFT gives this layer matrices of this form and the same scale.
    pub(super) fn rank_and_alpha(&self) -> (i64, f64) {
        match self.change.rank() {
            Some(rank) => (rank, self.alpha),
            // Any rank from which on both are whole; the scale is 1.
            None => {
                let sides = self
                    .change
                    .parts()
                    .into_iter()
                    .flat_map(|(_, part)| part.size());
                let rank = sides.max().unwrap_or(1);
                (rank, rank as f64)
            }
        }
    }

    /// The kind of an adapter of PEFT that has all of these; `None` if there is none.
    pub(super) fn kind_of_all<'a>(
        all: impl Iterator<Item = &'a Self> + Clone,
    ) -> Option<AdapterType> {
        let lokr = || {
            all.clone().filter_map(|module| match &module.change {
                Change::Lokr(factors) => Some((module, factors)),
                _ => None,
            })
        };
        let (count, first) = (all.clone().count(), all.clone().next());
        match first.map(|first| &first.change) {
            None => Some(AdapterType::Lora),
            Some(Change::Lora { .. }) => {
                let same = all.clone().all(|module| module.change.is_lora());
                same.then_some(AdapterType::Lora)
            }
            Some(Change::Loha(_)) => {
                let same = all
                    .clone()
                    .all(|module| matches!(module.change, Change::Loha(_)));
                same.then_some(AdapterType::Loha)
            }
            Some(Change::Lokr(_)) => {
                let is_two = |factor: &Factor| factor.rank().is_some();
                let decompose_both = lokr().any(|(_, [first, _])| is_two(first));
                let fits = |factor: i64| {
                    lokr().all(|(module, [first, second])| {
                        let sides = module.change.size().map(|side| divided(side, factor));
                        let (rank, _) = module.rank_and_alpha();
                        let two = |size: [i64; 2]| 2 * rank < size[0].max(size[1]);
                        let sizes = [0, 1].map(|part| sides.map(|side| side[part]));
                        sizes == [first.size(), second.size()]
                            && is_two(first) == (decompose_both && two(sizes[0]))
                            && is_two(second) == two(sizes[1])
                    })
                };
                let small = lokr().flat_map(|(_, [first, _])| first.size());
                let factor = [-1].into_iter().chain(small).find(|factor| fits(*factor))?;
                (lokr().count() == count).then_some(AdapterType::Lokr {
                    factor,
                    decompose_both,
                })
            }
        }
    }
}
