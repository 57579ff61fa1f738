//! LoRAs of layers that original files have as one, such as that of queries, keys and values: as one LoRA of the whole, or
//! one of each part.
//!
//! ```text
//!            ┌ up q   0     0  ┐   ┌ down q ┐
//! up · down = │  0   up k   0  │ · │ down k │
//!            └  0     0   up v ┘   └ down v ┘
//! ```

use std::collections::BTreeMap;

use tch::{Kind, Tensor};

use super::names::original_module;
use super::{LoraModule, folded};
use crate::Error;
use crate::diffusion::{Arch, BlockNames};
use crate::tensor::to_kind;

impl Arch {
    /// The layer that the denoiser's original files have in place of the layer `name` and others: its name in diffusers,
    /// and which of its parts `name` is.
    fn whole_of(&self, name: &str) -> Option<(String, usize)> {
        let weight = format!("{name}.weight");
        self.denoiser.stacked.iter().find_map(|(whole, parts)| {
            let of = |(number, part): (usize, &&str)| Some((weight.strip_suffix(part)?, number));
            let (base, number) = parts.iter().enumerate().find_map(of)?;
            let whole = whole.strip_suffix(".weight").unwrap_or(whole);
            Some((format!("{base}{whole}"), number))
        })
    }

    /// A layer that other programs have as one, although LoRA files with original names have one for each of its parts.
    pub fn split_layer(&self) -> Option<&'static str> {
        let parts = || self.lists.iter().flat_map(BlockNames::parts);
        let plain = |name: &'static str| name.trim_matches('.').trim_end_matches(".weight");
        let original = |name: &str| {
            parts()
                .find(|(own, _)| *own == name)
                .map(|(_, other)| other)
        };
        let is_split = |(whole, parts): &&(&'static str, &[&'static str])| {
            let first = parts.first().and_then(|part| original(plain(part)));
            first != original(plain(whole))
        };
        let found = self.denoiser.stacked.iter().find(is_split);
        found.map(|(whole, _)| plain(whole))
    }
}

/// `modules`, in which those of a layer that has one original name are one, under the name that diffusers has for the
/// whole.
pub(super) fn joined(
    arch: &Arch,
    modules: &BTreeMap<String, LoraModule>,
) -> Result<BTreeMap<String, LoraModule>, Error> {
    let mut all = BTreeMap::new();
    let mut wholes: BTreeMap<String, BTreeMap<usize, &LoraModule>> = BTreeMap::new();
    for (name, module) in modules {
        let whole = arch.whole_of(name);
        let whole =
            whole.filter(|(whole, _)| original_module(whole, arch) == original_module(name, arch));
        match whole {
            Some((whole, number)) => {
                wholes.entry(whole).or_default().insert(number, module);
            }
            None => {
                all.insert(name.clone(), module.shallow_clone());
            }
        }
    }
    for (name, parts) in wholes {
        let count = arch.denoiser.unstacked(&format!("{name}.weight"));
        let count = count.map_or(0, |parts| parts.len());
        all.insert(name, one_of(&parts, count)?);
    }
    Ok(all)
}

/// One LoRA for a layer of `count` equal parts, of which some have one.
fn one_of(parts: &BTreeMap<usize, &LoraModule>, count: usize) -> Result<LoraModule, Error> {
    let modules = || parts.values().copied();
    let scales: Vec<f64> = modules().map(LoraModule::scale).collect();
    // In the matrices if they have different ones.
    let scale = scales.first().copied().unwrap_or(1.0);
    let is_same = scales.iter().all(|other| *other == scale);
    let kinds: Vec<Kind> = modules().map(|module| module.down.kind()).collect();
    let kind = match kinds.iter().all(|kind| Some(kind) == kinds.first()) {
        true => kinds.first().copied().unwrap_or(Kind::Float),
        false => Kind::Float,
    };
    let down = modules().map(|module| to_kind(&module.down, kind));
    let down = Tensor::f_cat(&down.collect::<Result<Vec<_>, _>>()?, 0)?;
    let rows = modules().next().map_or(0, |module| module.up.size()[0]);
    let rank = down.size()[0];
    let (mut blocks, mut before) = (Vec::new(), 0);
    for number in 0..count {
        blocks.push(match parts.get(&number) {
            None => down.f_new_zeros([rows, rank], (kind, down.device()))?,
            Some(module) => {
                let up = match is_same {
                    true => module.up.shallow_clone(),
                    false => folded(module)?,
                };
                let after = rank - before - module.rank();
                let block = to_kind(&up, kind)?.f_constant_pad_nd([before, after])?;
                before += module.rank();
                block
            }
        });
    }
    Ok(LoraModule {
        down,
        up: Tensor::f_cat(&blocks, 0)?,
        alpha: if is_same {
            scale * rank as f64
        } else {
            rank as f64
        },
    })
}

/// The LoRA of each part of a layer that files have as one: those that were [`joined`] are taken apart again, and others
/// share `down`.
pub(super) fn parted(
    arch: &Arch,
    name: String,
    module: LoraModule,
) -> Result<Vec<(String, LoraModule)>, Error> {
    let Some(parts) = arch.denoiser.unstacked(&format!("{name}.weight")) else {
        return Ok(vec![(name, module)]);
    };
    let count = parts.len() as i64;
    let rows = module.up.size()[0] / count;
    let up = |number: i64| module.up.f_narrow(0, number * rows, rows)?.f_contiguous();
    let ups = (0..count).map(up).collect::<Result<Vec<_>, _>>()?;
    let columns = columns_of(&ups)?;
    let mut modules = Vec::new();
    for ((part, up), columns) in parts.iter().zip(ups).zip(columns) {
        let name = part.strip_suffix(".weight").unwrap_or(part).to_owned();
        let part = match columns {
            None => LoraModule {
                up,
                ..module.shallow_clone()
            },
            // It changes nothing.
            Some(columns) if columns.numel() == 0 => continue,
            Some(columns) => LoraModule {
                down: module.down.f_index_select(0, &columns)?,
                up: up.f_index_select(1, &columns)?,
                alpha: module.scale() * columns.numel() as f64,
            },
        };
        modules.push((name, part));
    }
    Ok(modules)
}

/// The columns that each of `ups` has for itself, if every column is that of one of them; `None` otherwise.
fn columns_of(ups: &[Tensor]) -> Result<Vec<Option<Tensor>>, Error> {
    let used = ups.iter().map(|up| up.f_ne(0.0)?.f_any_dim(0, false));
    let used = Tensor::f_stack(&used.collect::<Result<Vec<_>, _>>()?, 0)?;
    let (count, rank) = used.size2()?;
    let owners = used.f_sum_dim_intlist([0].as_slice(), false, Kind::Int64)?;
    let most = owners.f_max()?.f_int64_value(&[])?;
    if most > 1 || (most == 0 && rank % count != 0) {
        return Ok(ups.iter().map(|_| None).collect());
    }
    let own = (0..count).map(|number| {
        let columns = match most {
            // Nothing was learned yet: the parts have as many columns each.
            0 => Tensor::f_arange(rank, (Kind::Int64, used.device()))?.f_narrow(
                0,
                number * (rank / count),
                rank / count,
            )?,
            _ => used.f_get(number)?.f_nonzero()?.f_squeeze_dim(1)?,
        };
        Ok(Some(columns))
    });
    own.collect()
}
