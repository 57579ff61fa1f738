//! LoRAs of layers that original files have as one, such as that of queries, keys and values: as one LoRA of the whole, or
//! one of each part. Where zeros hide which columns are those of which part, a file says in its header the rank of each.
//!
//! ```text
//!            ┌ up q   0     0  ┐   ┌ down q ┐
//! up · down = │  0   up k   0  │ · │ down k │
//!            └  0     0   up v ┘   └ down v ┘
//! ```

use std::collections::{BTreeMap, BTreeSet};

use tch::{Device, Kind, Tensor};

use super::names::original_module;
use super::{LoraModule, folded};
use crate::Error;
use crate::adapters::Change;
use crate::diffusion::{Arch, BlockNames};
use crate::tensor::to_kind;

impl Arch {
    /// The layer that LoRA files with original names have in place of the layer `name` and others, by its name in diffusers.
    pub(super) fn whole_of(&self, name: &str) -> Option<String> {
        let weight = format!("{name}.weight");
        let original = original_module(name, self);
        let mut wholes = self.denoiser.stacked.iter().filter_map(|(whole, parts)| {
            let base = parts.iter().find_map(|part| weight.strip_suffix(part))?;
            Some(format!("{base}{}", whole.strip_suffix(".weight")?))
        });
        wholes.find(|whole| original_module(whole, self) == original)
    }

    /// One of `layers` that is part of a layer which LoRA files have as one, while another part of it is not among them.
    pub fn half_adapted<'a>(&self, layers: &'a [String]) -> Option<&'a String> {
        layers.iter().find(|layer| {
            let parts = self
                .whole_of(layer)
                .and_then(|whole| parts_of(self, &whole));
            let mut parts = parts.unwrap_or_default().into_iter();
            parts.any(|(part, _)| !layers.contains(&part))
        })
    }

    /// A layer that other programs have as one, although LoRA files with original names have one for each of its parts.
    pub fn split_layer(&self) -> Option<&'static str> {
        let plain = |name: &'static str| name.trim_matches('.').trim_end_matches(".weight");
        let original = |list: &BlockNames, name: &str| {
            let found = list.parts().find(|(own, _)| *own == name);
            found.map(|(_, other)| other)
        };
        let is_split = |(whole, parts): &&(&'static str, &[&'static str])| {
            let Some(first) = parts.first() else {
                return false;
            };
            let both = |list| (original(list, plain(whole)), original(list, plain(first)));
            let is_there = |(whole, first): (Option<_>, Option<_>)| whole.or(first).is_some();
            self.lists.iter().map(both).any(is_there)
                && !self
                    .lists
                    .iter()
                    .map(both)
                    .any(|(whole, first)| whole.is_some() && whole == first)
        };
        let found = self.denoiser.stacked.iter().find(is_split);
        found.map(|(whole, _)| plain(whole))
    }
}

/// The entry of a header with [`Ranks`], as JSON.
pub(super) const RANKS: &str = "surefoot.ranks_of_parts";

/// Of layers that are one in a file, by diffusers' name of the whole: the rank of each part, which is 0 if it has no LoRA.
pub(super) type Ranks = BTreeMap<String, Vec<i64>>;

/// `modules`, in which those of a layer that has one original name are one, under the name that diffusers has for the
/// whole; and the ranks of the parts of those whose values do not tell them.
pub(super) fn joined(
    arch: &Arch,
    modules: &BTreeMap<String, LoraModule>,
) -> Result<(BTreeMap<String, LoraModule>, Ranks), Error> {
    let (mut all, mut ranks) = (BTreeMap::new(), Ranks::new());
    let mut wholes = BTreeSet::new();
    for (name, module) in modules {
        match arch.whole_of(name).filter(|_| module.change.is_lora()) {
            Some(whole) => {
                wholes.insert(whole);
            }
            // A Kronecker product of the parts is none of the whole.
            None => {
                all.insert(name.clone(), module.shallow_clone());
            }
        }
    }
    for name in wholes {
        let parts = parts_of(arch, &name).unwrap_or_default();
        let parts = parts
            .iter()
            .map(|(part, share)| (modules.get(part), *share));
        let parts: Vec<_> = parts.collect();
        let one = one_of(&parts)?;
        if let Some([_, up]) = one.factors() {
            let learned = up.f_ne(0.0)?.f_any_dim(0, false)?.f_all()?;
            if learned.f_int64_value(&[])? == 0 {
                let rank = |(module, _): &(Option<&LoraModule>, i64)| {
                    let factors = module.and_then(LoraModule::factors);
                    factors.map_or(0, |[down, _]| down.size()[0])
                };
                ranks.insert(name.clone(), parts.iter().map(rank).collect());
            }
        }
        all.insert(name, one);
    }
    Ok((all, ranks))
}

/// The parts of the layer `name` that files have as one, and the share of the rows of each.
fn parts_of(arch: &Arch, name: &str) -> Option<Vec<(String, i64)>> {
    let mut parts = arch.denoiser.unstacked(&format!("{name}.weight"))?;
    for (part, _) in &mut parts {
        part.truncate(part.trim_end_matches(".weight").len());
    }
    Some(parts)
}

/// One LoRA for a layer of parts, of which some have one, with the share of the rows of each.
fn one_of(parts: &[(Option<&LoraModule>, i64)]) -> Result<LoraModule, Error> {
    let modules = || parts.iter().filter_map(|(module, _)| *module);
    let factors = |module: &LoraModule| -> Option<[Tensor; 2]> {
        let factors = module.factors()?;
        Some(factors.map(Tensor::shallow_clone))
    };
    let scales: Vec<f64> = modules().map(LoraModule::scale).collect();
    // In the matrices if they have different ones.
    let scale = scales.first().copied().unwrap_or(1.0);
    let is_same = scales.iter().all(|other| *other == scale);
    let all: Vec<[Tensor; 2]> = modules().filter_map(factors).collect();
    let magnitudes: Vec<&Tensor> = modules()
        .filter_map(|module| module.magnitude.as_ref())
        .collect();
    if !magnitudes.is_empty() && magnitudes.len() < parts.len() {
        return Err(Error::Invalid(
            "a layer that the files of this model have as one has DoRA for some of its parts, which no file can say: adapt \
             all of its parts, or none"
                .into(),
        ));
    }
    let first = all.first().map(|[down, _]| down.kind());
    let kind = match all.iter().all(|[down, _]| Some(down.kind()) == first) {
        true => first.unwrap_or(Kind::Float),
        false => Kind::Float,
    };
    let down = all.iter().map(|[down, _]| to_kind(down, kind));
    let down = Tensor::f_cat(&down.collect::<Result<Vec<_>, _>>()?, 0)?;
    let unit =
        |(module, share): &(Option<&LoraModule>, i64)| Some((*module)?.change.size()[0] / share);
    let unit = parts.iter().find_map(unit).unwrap_or(0);
    let rank = down.size()[0];
    let (mut blocks, mut before) = (Vec::new(), 0);
    for (module, share) in parts {
        let factors = module.and_then(|module| Some((module, factors(module)?)));
        blocks.push(match factors {
            None => down.f_new_zeros([share * unit, rank], (kind, down.device()))?,
            Some((module, [_, up])) => {
                let own = up.size()[1];
                let up = match is_same {
                    true => up,
                    false => folded(&up, module.scale())?,
                };
                let block = to_kind(&up, kind)?.f_constant_pad_nd([before, rank - before - own])?;
                before += own;
                block
            }
        });
    }
    let scale = if is_same { scale } else { 1.0 };
    let change = Change::Lora {
        a: down,
        b: Tensor::f_cat(&blocks, 0)?,
    };
    let magnitudes = magnitudes
        .iter()
        .map(|magnitude| magnitude.f_flatten(0, -1));
    let magnitudes = magnitudes.collect::<Result<Vec<_>, _>>()?;
    let magnitude = match magnitudes.is_empty() {
        true => None,
        false => Some(Tensor::f_cat(&magnitudes, 0)?),
    };
    LoraModule::scaled(change, scale, magnitude)
}

/// The change of each part of a layer that files have as one: LoRAs that were [`joined`] are taken apart again, by the `ranks`
/// in the header or by their zeros, and others share what they do not divide.
pub(super) fn parted(
    arch: &Arch,
    name: String,
    module: LoraModule,
    ranks: &Ranks,
) -> Result<Vec<(String, LoraModule)>, Error> {
    let Some(parts) = parts_of(arch, &name) else {
        return Ok(vec![(name, module)]);
    };
    let all: i64 = parts.iter().map(|(_, share)| share).sum();
    let [rows, _] = module.change.size();
    if rows % all != 0 {
        return Err(Error::Invalid(format!(
            "`{name}` has {rows} rows, which are not {all} times the width of a {}",
            arch.title
        )));
    }
    let (mut divided, mut before) = (Vec::new(), 0);
    for (_, share) in &parts {
        divided.push(module.narrowed([before, *share, all])?);
        before += share;
    }
    let rank = module.factors().map(|[down, _]| down.size()[0]);
    let told = ranks.get(&name).filter(|ranks| {
        let is_whole = Some(ranks.iter().sum::<i64>()) == rank;
        ranks.len() == parts.len() && is_whole && ranks.iter().all(|rank| *rank >= 0)
    });
    let columns = match told {
        Some(ranks) => consecutive(ranks)?,
        None => {
            let ups = divided
                .iter()
                .filter_map(|module| Some(module.factors()?[1].shallow_clone()));
            columns_of(&ups.collect::<Vec<_>>())?
        }
    };
    let mut modules = Vec::new();
    for (number, ((name, _), part)) in parts.into_iter().zip(divided).enumerate() {
        let part = match (columns.get(number).and_then(Option::as_ref), part.factors()) {
            // It changes nothing.
            (Some(columns), _) if columns.numel() == 0 && part.magnitude.is_none() => continue,
            (Some(columns), Some([down, up])) if columns.numel() > 0 => {
                let change = Change::Lora {
                    a: down.f_index_select(0, columns)?,
                    b: up.f_index_select(1, columns)?,
                };
                LoraModule::scaled(change, module.scale(), part.magnitude)?
            }
            _ => part,
        };
        modules.push((name, part));
    }
    Ok(modules)
}

/// So many columns for each, one after the other.
fn consecutive(ranks: &[i64]) -> Result<Vec<Option<Tensor>>, Error> {
    let mut before = 0;
    let columns = ranks.iter().map(|rank| {
        let first = before;
        before += rank;
        let options = (Kind::Int64, Device::Cpu);
        Ok(Some(Tensor::f_arange_start(first, before, options)?))
    });
    columns.collect()
}

/// The columns that each of `ups` has for itself, if every column is that of one of them; `None` otherwise.
fn columns_of(ups: &[Tensor]) -> Result<Vec<Option<Tensor>>, Error> {
    if ups.is_empty() {
        return Ok(Vec::new());
    }
    let used = ups.iter().map(|up| up.f_ne(0.0)?.f_any_dim(0, false));
    let used = Tensor::f_stack(&used.collect::<Result<Vec<_>, _>>()?, 0)?;
    let (count, rank) = used.size2()?;
    let owners = used.f_sum_dim_intlist([0].as_slice(), false, Kind::Int64)?;
    let most = owners.f_max()?.f_int64_value(&[])?;
    if most > 1 || (most == 0 && rank % count != 0) {
        return Ok(ups.iter().map(|_| None).collect());
    }
    if most == 0 {
        // Nothing was learned yet: the parts have as many columns each.
        return consecutive(&vec![rank / count; count as usize]);
    }
    let own = (0..count).map(|number| Ok(Some(used.f_get(number)?.f_nonzero()?.f_squeeze_dim(1)?)));
    own.collect()
}
