//! Cross-entropy over a large vocabulary without materialising the logits.
//!
//! A batch of 4 × 256 tokens with a vocabulary of 49,152 has 200 MB of logits, and the textbook loss keeps
//! the logits, their softmax and their gradient. When the head is frozen, only the gradient with respect to
//! its input is needed, and it can be computed in the forward pass, a few rows at a time:
//!
//! ```text
//! rows of hidden ─▶ logits ─▶ loss
//!                     └────▶ (softmax − one-hot) · head = the rows' gradient
//! ```
//!
//! Only this gradient, as large as `hidden`, is kept. The idea is from "Cut Your Losses" (Wijmans et al.,
//! 2024) and Liger Kernel.

use tch::{Kind, Reduction, Tensor};
use torch_ext::checkpoint;

use crate::Error;
use crate::language::{Decoder, capped};
use crate::model::Pass;
use crate::tensor::to_kind;

/// The target that is ignored, as in PyTorch's `ignore_index`.
const IGNORED: i64 = -100;

/// Mean nats per target token: a scalar with a gradient. `hidden` is `[…, width]` fp32; `targets` has an
/// integer per row, −100 for rows to ignore.
///
/// # Errors
/// If memory runs out.
pub fn mean_cross_entropy(
    decoder: &Decoder,
    hidden: &Tensor,
    targets: &Tensor,
    pass: Pass,
) -> Result<Tensor, Error> {
    smoothed_cross_entropy(decoder, hidden, targets, 0.0, pass)
}

/// Like [`mean_cross_entropy`], with targets that have the probability `1 - smoothing`; the rest of it is spread evenly over
/// the vocabulary, as by transformers' `LabelSmoother`.
///
/// # Errors
/// If memory runs out.
pub fn smoothed_cross_entropy(
    decoder: &Decoder,
    hidden: &Tensor,
    targets: &Tensor,
    smoothing: f64,
    pass: Pass,
) -> Result<Tensor, Error> {
    let learned = f64::try_from(&targets.f_ne(IGNORED)?.f_sum(Kind::Double)?)?.max(1.0);
    let (_, nats) = kept(decoder, hidden, targets, smoothing, pass)?;
    Ok(nats.f_sum(Kind::Float)?.f_div_scalar(learned)?)
}

/// Like [`mean_cross_entropy`], but the sum.
///
/// # Errors
/// If memory runs out.
pub fn summed_cross_entropy(
    decoder: &Decoder,
    hidden: &Tensor,
    targets: &Tensor,
    pass: Pass,
) -> Result<Tensor, Error> {
    Ok(kept(decoder, hidden, targets, 0.0, pass)?
        .1
        .f_sum(Kind::Float)?)
}

/// The log-probability of each target, with a gradient: fp32 of the shape of `targets`, 0 for rows that are ignored.
/// `hidden` and `targets` as for [`mean_cross_entropy`].
///
/// # Errors
/// If memory runs out.
pub fn token_log_probabilities(
    decoder: &Decoder,
    hidden: &Tensor,
    targets: &Tensor,
    pass: Pass,
) -> Result<Tensor, Error> {
    let (kept, nats) = kept(decoder, hidden, targets, 0.0, pass)?;
    let all = Tensor::f_zeros(targets.numel() as i64, (Kind::Float, nats.device()))?;
    let all = all.f_index_copy(0, &kept, &nats.f_neg()?)?;
    Ok(all.f_view(targets.size().as_slice())?)
}

/// The indices of the rows that are not ignored, and the nats of each of their targets.
fn kept(
    decoder: &Decoder,
    hidden: &Tensor,
    targets: &Tensor,
    smoothing: f64,
    pass: Pass,
) -> Result<(Tensor, Tensor), Error> {
    let width = hidden.size().last().copied().unwrap_or(1);
    let (rows, targets) = (hidden.f_reshape([-1, width])?, targets.f_reshape([-1])?);
    // Rows that are ignored need no logits.
    let kept = targets.f_ne(IGNORED)?.f_nonzero()?.f_squeeze_dim(1)?;
    let (rows, targets) = match kept.numel() == targets.numel() {
        true => (rows, targets),
        false => (
            rows.f_index_select(0, &kept)?,
            targets.f_index_select(0, &kept)?,
        ),
    };
    let nats = match decoder.frozen_head() {
        Some(head) if hidden.requires_grad() => {
            fused((&rows, &targets), smoothing, &head, decoder)?
        }
        _ => chunked(decoder, (&rows, &targets), smoothing, pass)?,
    };
    Ok((kept, nats))
}

/// Through autograd, or without a gradient. Of several chunks, the logits are recomputed in the backward pass, so that
/// only one chunk of them is in memory at a time.
fn chunked(
    decoder: &Decoder,
    (rows, targets): (&Tensor, &Tensor),
    smoothing: f64,
    pass: Pass,
) -> Result<Tensor, Error> {
    let again = rows.requires_grad() && chunks(rows, decoder).count() > 1;
    let mut parts = Vec::new();
    for (start, length) in chunks(rows, decoder) {
        let piece = rows.f_narrow(0, start, length)?;
        let (head, targets) = (decoder.linear_head()?, targets.f_narrow(0, start, length)?);
        let cap = decoder.logits_cap;
        let nats = move |piece: &Tensor| -> Result<Tensor, Error> {
            let logits = head.forward(piece, pass != Pass::Evaluate)?;
            let logits = capped(&to_kind(&logits, Kind::Float)?, cap)?;
            cross_entropy(&logits, &targets, smoothing)
        };
        parts.push(match again {
            false => nats(&piece)?,
            true => checkpoint(&[&piece], move |inputs| {
                let nats = nats(&inputs[0]).map_err(Error::into_torch)?;
                Ok(vec![nats])
            })?
            .pop()
            .ok_or_else(|| Error::Internal("a checkpoint without output".into()))?,
        });
    }
    match parts.is_empty() {
        // None, but connected to `rows`: the backward pass must also work for a batch without targets.
        true => Ok(rows.f_sum_dim_intlist(1, false, Kind::Float)?),
        false => Ok(Tensor::f_cat(&parts, 0)?),
    }
}

/// Computes the gradient together with the loss and passes it to autograd as a constant.
fn fused(
    (rows, targets): (&Tensor, &Tensor),
    smoothing: f64,
    head: &Tensor,
    decoder: &Decoder,
) -> Result<Tensor, Error> {
    let compute = decoder.compute();
    let (nats, gradient) = {
        let _no_grad = tch::no_grad_guard();
        let head = to_kind(head, compute)?;
        let transposed = head.f_tr()?;
        let detached = to_kind(&rows.detach(), compute)?;
        let gradient = rows.detach().f_empty_like()?;
        let nats = Tensor::f_empty(targets.size(), (Kind::Float, rows.device()))?;
        for (start, length) in chunks(rows, decoder) {
            let logits = detached.f_narrow(0, start, length)?.f_matmul(&transposed)?;
            let logits = capped(&to_kind(&logits, Kind::Float)?, decoder.logits_cap)?;
            let targets = targets.f_narrow(0, start, length)?.f_unsqueeze(1)?;
            let mut log_probabilities = logits.f_log_softmax(1, Kind::Float)?;
            let picked = log_probabilities.f_gather(1, &targets, false)?;
            let mut part = nats.f_narrow(0, start, length)?;
            let mut found = picked.f_squeeze_dim(1)?;
            if smoothing > 0.0 {
                let of_all = log_probabilities.f_mean_dim(1, false, Kind::Float)?;
                found = found.f_lerp(&of_all, smoothing)?;
            }
            part.f_copy_(&found.f_neg()?)?;
            let mut difference = log_probabilities.f_exp_()?;
            if smoothing > 0.0 {
                let of_each = smoothing / difference.size()[1] as f64;
                difference = difference.f_sub_scalar_(of_each)?;
            }
            let wanted = picked.f_full_like(smoothing - 1.0)?;
            let mut difference = difference.f_scatter_add_(1, &targets, &wanted)?;
            if let Some(cap) = decoder.logits_cap {
                // The slope of what caps them.
                let slope = logits
                    .f_div_scalar(cap)?
                    .f_square()?
                    .f_neg()?
                    .f_add_scalar(1.0)?;
                difference = difference.f_mul_(&slope)?;
            }
            let product = to_kind(&difference, compute)?.f_matmul(&head)?;
            gradient.f_narrow(0, start, length)?.f_copy_(&product)?;
        }
        (nats, gradient)
    };
    // Numbers with the values `nats` and the gradients `gradient` with respect to `rows`.
    let carrier = rows
        .f_mul(&gradient)?
        .f_sum_dim_intlist(1, false, Kind::Float)?;
    Ok(nats.f_add(&carrier)?.f_sub(&carrier.detach())?)
}

fn chunks(rows: &Tensor, decoder: &Decoder) -> impl Iterator<Item = (i64, i64)> + use<> {
    let per_chunk = decoder.logits_at_once / decoder.vocabulary().max(1);
    spans(rows.size()[0], per_chunk.max(1))
}

/// Start and length of each chunk of at most `length` of `count` rows.
fn spans(count: i64, length: i64) -> impl Iterator<Item = (i64, i64)> {
    (0..count)
        .step_by(length as usize)
        .map(move |start| (start, length.min(count - start)))
}

fn cross_entropy(logits: &Tensor, targets: &Tensor, smoothing: f64) -> Result<Tensor, Error> {
    let weights = None::<&Tensor>;
    Ok(logits.f_cross_entropy_loss(targets, weights, Reduction::None, IGNORED, smoothing)?)
}

#[cfg(test)]
mod tests {
    use placement::{Placer, Policy};
    use tch::Device;

    use super::*;
    use crate::Parameters;
    use crate::formats::{SafetensorsFile, TensorSource};
    use crate::golden::golden;
    use crate::language::DecoderOptions;
    use crate::model::{Base, Builder, FileWeights};
    use crate::pretrained::HfFolder;

    const TRAIN: Pass = Pass::Train { checkpoint: false };

    fn decoder(base: Base) -> Decoder {
        let folder = HfFolder::open(&golden("models/llama-grouped")).unwrap();
        let mut placer = Placer::new(Device::Cpu, Policy::default()).unwrap();
        let mut source = FileWeights::new(&folder, Kind::Float, &mut placer);
        let mut parameters = Parameters::default();
        let mut builder = Builder::new(&mut source, &mut parameters, Kind::Float, base);
        let options = DecoderOptions {
            positions: 8,
            initializer_range: 0.0,
            device: Device::Cpu,
        };
        Decoder::new(folder.config(), options, &mut builder).unwrap()
    }

    /// Loss and gradient of the textbook implementation and of this module.
    fn both(
        base: Base,
        targets: &Tensor,
        at_once: i64,
        (smoothing, cap): (f64, Option<f64>),
    ) -> [(f64, Tensor); 2] {
        let mut decoder = decoder(base);
        decoder.logits_at_once = at_once;
        decoder.logits_cap = cap;
        let values = Tensor::randn([2, 4, 16], (Kind::Float, Device::Cpu));
        [true, false].map(|textbook| {
            let hidden = values.copy().set_requires_grad(true);
            let loss = match textbook {
                true => decoder
                    .head(&hidden, TRAIN)
                    .unwrap()
                    .view([-1, 48])
                    .cross_entropy_loss::<Tensor>(
                        &targets.view(-1),
                        None,
                        Reduction::Mean,
                        -100,
                        smoothing,
                    ),
                false => {
                    smoothed_cross_entropy(&decoder, &hidden, targets, smoothing, TRAIN).unwrap()
                }
            };
            torch_ext::backward(&loss).unwrap();
            (f64::try_from(&loss).unwrap(), hidden.grad())
        })
    }

    #[test]
    fn loss_and_gradient_are_the_textbooks() {
        let targets = Tensor::from_slice(&[5i64, -100, 0, 47, -100, -100, 7, 7]).view([2, 4]);
        // In one chunk, and in chunks of three rows of 48 logits.
        for (base, at_once) in [Base::Frozen(Kind::Float), Base::Trained]
            .into_iter()
            .flat_map(|base| [(base, 1 << 20), (base, 3 * 48)])
        {
            for settings in [(0.0, None), (0.1, None), (0.7, None), (0.1, Some(1.5))] {
                let [(loss, gradient), (ours, our_gradient)] =
                    both(base, &targets, at_once, settings);
                assert!((loss - ours).abs() < 1e-5, "{loss} and {ours}");
                assert!(gradient.allclose(&our_gradient, 1e-4, 1e-6, false));
            }
        }
    }

    #[test]
    fn smoothed_targets_give_the_loss_of_transformers() {
        let file = SafetensorsFile::open(&golden("regularised.safetensors")).unwrap();
        let number = |name: &str| file.read(name, Kind::Double).unwrap().double_value(&[]);
        let [tokens, targets] =
            ["tokens", "targets"].map(|name| file.read(name, Kind::Int64).unwrap());
        for (base, at_once) in [
            (Base::Frozen(Kind::Float), 1 << 20),
            (Base::Trained, 5 * 48),
        ] {
            let mut decoder = decoder(base);
            decoder.logits_at_once = at_once;
            let hidden = decoder.hidden(&tokens, Pass::Evaluate).unwrap().detach();
            let hidden = hidden.set_requires_grad(true);
            let smoothing = number("smoothing");
            let loss = smoothed_cross_entropy(&decoder, &hidden, &targets, smoothing, TRAIN);
            let (ours, theirs) = (loss.unwrap().double_value(&[]), number("smoothed_loss"));
            assert!((ours - theirs).abs() < 1e-6, "{ours} and {theirs}");
        }
    }

    /// Like a step that is repeated after it ran out of memory: split unevenly, into pieces with more, fewer
    /// and no targets.
    #[test]
    fn pieces_that_count_by_what_is_learned_in_them_are_the_whole() {
        let some = [5i64, -100, 0, 47, -100, -100, 7, -100];
        let (nothing, all) = ([-100i64; 8], [1i64, 2, 3, 4]);
        let targets = Tensor::from_slice(&[&some[..], &nothing, &all].concat()).view([5, 4]);
        let values = Tensor::randn([5, 4, 16], (Kind::Float, Device::Cpu));
        for base in [Base::Frozen(Kind::Float), Base::Trained] {
            let decoder = decoder(base);
            let learn = |cuts: &[(i64, i64)]| {
                let hidden = values.copy().set_requires_grad(true);
                let learned =
                    |targets: &Tensor| targets.ne(-100).sum(Kind::Double).double_value(&[]);
                let mut loss = 0.0;
                for &(start, length) in cuts {
                    let targets_here = targets.narrow(0, start, length);
                    let piece = hidden.narrow(0, start, length);
                    let share = learned(&targets_here) / learned(&targets);
                    let piece =
                        mean_cross_entropy(&decoder, &piece, &targets_here, TRAIN).unwrap() * share;
                    piece.backward();
                    loss += piece.double_value(&[]);
                }
                (loss, hidden.grad())
            };
            let (whole, gradient) = learn(&[(0, 5)]);
            for cuts in [
                vec![(0, 2), (2, 2), (4, 1)],
                vec![(0, 3), (3, 2)],
                vec![(0, 1), (1, 1), (2, 1), (3, 1), (4, 1)],
            ] {
                let (loss, gradient_in_pieces) = learn(&cuts);
                assert!(
                    (loss - whole).abs() < 1e-5 * whole,
                    "{cuts:?}: {loss} and {whole}"
                );
                assert!(
                    gradient_in_pieces.allclose(&gradient, 1e-4, 1e-7, false),
                    "{cuts:?}"
                );
            }
        }
    }

    #[test]
    fn chunks_cover_every_row_once() {
        let covered: Vec<_> = spans(10, 4).collect();
        assert_eq!(covered, [(0, 4), (4, 4), (8, 2)]);
        assert_eq!(spans(10, 1).count(), 10);
    }

    #[test]
    fn nothing_to_learn_is_a_loss_of_zero() {
        let targets = Tensor::full([2, 4], -100, (Kind::Int64, Device::Cpu));
        let [_, (loss, gradient)] = both(
            Base::Frozen(Kind::Float),
            &targets,
            1 << 20,
            (0.1, Some(1.5)),
        );
        assert_eq!(loss, 0.0);
        assert_eq!(f64::try_from(gradient.abs().max()).unwrap(), 0.0);
    }
}
