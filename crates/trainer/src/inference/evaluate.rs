//! How well a model predicts a data set.

use std::time::Instant;

use serde::Serialize;
use tch::{Kind, Tensor};

use super::LanguageModel;
use crate::Error;
use crate::records::Located;
use models::loss::summed_cross_entropy;
use models::model::Pass;
use models::text::Example;

/// The measured loss.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Score {
    /// Mean negative log-likelihood of a token, in nats.
    pub negative_log_likelihood: f64,
    /// Perplexity: e to the power of the loss.
    pub perplexity: f64,
    /// Tokens that were predicted.
    pub tokens: u64,
    /// Most tokens that the model saw at once.
    pub block_size: usize,
    /// Records that were measured.
    pub records: u64,
    /// Those of them that were longer than that, and measured in several windows.
    pub divided: u64,
    /// Tokens that went through the model, per second.
    pub tokens_per_second: f64,
}

/// The mean loss of `model` on every learned token of `records`, in windows of
/// `block_size` tokens that do not overlap. `on_progress` hears how many tokens are done.
///
/// # Errors
/// When a record cannot be read, there is nothing to predict, or memory runs out.
pub fn score(
    model: &LanguageModel,
    records: impl Iterator<Item = Result<Located, Error>>,
    block_size: usize,
    on_progress: &mut dyn FnMut(u64),
) -> Result<Score, Error> {
    let _no_grad = tch::no_grad_guard();
    let (mut nats, mut predicted, mut seen) = (0.0, 0u64, 0u64);
    let (mut measured, mut divided) = (0, 0);
    let began = Instant::now();
    for record in records {
        let example = record?.encode(&model.encoder)?;
        measured += 1;
        divided += u64::from(example.tokens.len() > block_size + 1);
        let mut start = 0;
        // Each window ends with the token that the next one begins with, so that every
        // token but the first is predicted once.
        while start + 1 < example.tokens.len() {
            let end = (start + block_size + 1).min(example.tokens.len());
            let (tokens, targets, learned) = window(&example, start, end)?;
            if learned > 0 {
                let tokens = tokens.f_to_device(model.device)?;
                let hidden = model.decoder.hidden(&tokens, Pass::Evaluate)?;
                let targets = targets.f_to_device(model.device)?;
                let loss = summed_cross_entropy(&model.decoder, &hidden, &targets, Pass::Evaluate)?;
                nats += f64::try_from(&loss.f_to_kind(Kind::Double)?)?;
                predicted += learned;
            }
            seen += (end - 1 - start) as u64;
            on_progress(seen);
            start = end - 1;
        }
    }
    if predicted == 0 {
        return Err(Error::Data("the data have no token to predict".into()));
    }
    let mean = nats / predicted as f64;
    Ok(Score {
        negative_log_likelihood: mean,
        perplexity: mean.exp(),
        tokens: predicted,
        block_size,
        records: measured,
        divided,
        tokens_per_second: seen as f64 / began.elapsed().as_secs_f64().max(1e-9),
    })
}

/// Inputs and targets `[1, end - start - 1]`, and how many targets count.
fn window(example: &Example, start: usize, end: usize) -> Result<(Tensor, Tensor, u64), Error> {
    let inputs: Vec<i64> = example.tokens[start..end - 1]
        .iter()
        .map(|id| i64::from(*id))
        .collect();
    let targets: Vec<i64> = (start + 1..end)
        .map(|at| match example.learned[at] {
            true => i64::from(example.tokens[at]),
            false => -100,
        })
        .collect();
    let learned = targets.iter().filter(|target| **target >= 0).count() as u64;
    Ok((
        Tensor::f_from_slice(&inputs)?.f_unsqueeze(0)?,
        Tensor::f_from_slice(&targets)?.f_unsqueeze(0)?,
        learned,
    ))
}
