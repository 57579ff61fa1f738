//! What is measured of preferences beside the loss, under TRL's names.

use std::collections::BTreeMap;

use tch::{Kind, Tensor};

use crate::Error;
use crate::config::{LossType, PreferenceConfig};

/// How many sums there are.
pub(super) const COUNT: usize = 11;

/// Sums over answers, of which means follow: `[COUNT]`. They add up over batches and processes.
///
/// ```text
/// 0, 1    answers that were chosen or are desirable, and the others
/// 2, 3    their rewards
/// 4, 5    their log-probabilities
/// 6       pairs whose chosen answer has the larger reward
/// 7       answers that the others count for
/// 8…      KTO's divergence; or the cross-entropy that is added, ORPO's log of the odds ratio's sigmoid, and log odds
/// ```
pub(super) struct Sums;

impl Sums {
    /// Of pairs: rewards and log-probabilities of both sides, `[rows]` each.
    pub(super) fn of_pairs(
        rewards: &[Tensor; 2],
        log_probabilities: &[Tensor; 2],
        extras: &[Tensor],
    ) -> Result<Tensor, Error> {
        let count = rewards[0].f_ones_like()?;
        let right = rewards[0].f_gt_tensor(&rewards[1])?;
        let mut columns = vec![count.shallow_clone(), count.shallow_clone()];
        columns.extend(
            rewards
                .iter()
                .chain(log_probabilities)
                .map(Tensor::shallow_clone),
        );
        columns.extend([right.f_to_kind(Kind::Float)?, count]);
        columns.extend(extras.iter().map(Tensor::shallow_clone));
        summed(columns)
    }

    /// Of answers that were judged one by one, each 1 in one of `judged` and 0 in the other.
    pub(super) fn of_single(
        judged: [&Tensor; 2],
        rewards: &Tensor,
        log_probabilities: &Tensor,
        divergence: &Tensor,
    ) -> Result<Tensor, Error> {
        let mut columns = Vec::from(judged.map(Tensor::shallow_clone));
        for values in [rewards, log_probabilities] {
            for judged in judged {
                columns.push(values.f_mul(judged)?);
            }
        }
        let count = rewards.f_ones_like()?;
        let divergence = divergence.f_mul(&count)?;
        columns.extend([count.f_zeros_like()?, count, divergence]);
        summed(columns)
    }
}

fn summed(mut columns: Vec<Tensor>) -> Result<Tensor, Error> {
    while columns.len() < COUNT {
        columns.push(columns[0].f_zeros_like()?);
    }
    Ok(Tensor::f_stack(&columns, 0)?.f_sum_dim_intlist(1, false, Kind::Double)?)
}

/// The means of such sums for a run with this loss.
pub(super) fn named(config: &PreferenceConfig, sums: &[f64]) -> BTreeMap<String, f64> {
    let loss = config.loss_type;
    let mut means = BTreeMap::new();
    let at = |index: usize| sums.get(index).copied().unwrap_or_default();
    let mut mean = |name: &str, sum: usize, count: usize| {
        if at(count) > 0.0 {
            means.insert(name.to_owned(), at(sum) / at(count));
        }
    };
    mean("rewards/chosen", 2, 0);
    mean("rewards/rejected", 3, 1);
    mean("logps/chosen", 4, 0);
    mean("logps/rejected", 5, 1);
    match loss {
        LossType::Kto => mean("kl", 8, 7),
        _ => mean("rewards/accuracies", 6, 7),
    }
    match loss {
        LossType::Orpo => {
            mean("nll_loss", 8, 7);
            mean("log_odds_ratio", 9, 7);
            mean("log_odds_chosen", 10, 7);
        }
        LossType::Simpo if config.cpo_alpha > 0.0 => mean("nll_loss", 8, 7),
        _ => {}
    }
    if let (Some(chosen), Some(rejected)) =
        (means.get("rewards/chosen"), means.get("rewards/rejected"))
    {
        let margin = chosen - rejected;
        means.insert("rewards/margins".to_owned(), margin);
    }
    means
}
