//! Which kernel attention runs on a device, found by asking libtorch and, for one that it has no question for, by trying.
//!
//! Variable-length flash attention is called past the checks of `scaled_dot_product_attention`, and builds differ in what
//! they do with it: some have none, some for ROCm ignore its window. So it is used only once it gave the same
//! outputs and gradients as matrix products on this device, for heads of the same shape.

use std::sync::{Mutex, PoisonError};

use tch::{Device, Kind, Tensor};

use super::attention_kernel::{MAX_EXPLICIT_LENGTH, explicit_attention, writes_scores_down};
use super::layers::{hidden, seen};
use crate::Error;
use crate::tensor::to_kind;

/// What `_fused_sdp_choice` answers.
pub(super) const WRITTEN_DOWN: i64 = 0;
const FLASH: i64 = 1;
const EFFICIENT: i64 = 2;
const CUDNN: i64 = 3;

/// The heads of an attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heads {
    /// Where they are.
    pub device: Device,
    /// Their type.
    pub kind: Kind,
    /// Number of those of queries.
    pub queries: i64,
    /// Number of those of keys and values.
    pub keys: i64,
    /// Their width.
    pub width: i64,
    /// Whether sinks take part, as one more key.
    pub has_sinks: bool,
    /// Whether scores have a soft cap.
    pub is_capped: bool,
}

impl Heads {
    /// Those of queries and keys `[batch, heads, length, width]`.
    pub(super) fn of(query: &Tensor, key: &Tensor) -> Result<Self, Error> {
        let (_, queries, _, width) = query.size4()?;
        Ok(Self {
            device: query.device(),
            kind: query.kind(),
            queries,
            keys: key.size4()?.1,
            width,
            has_sinks: false,
            is_capped: false,
        })
    }
}

/// How attention runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AttentionPath {
    /// The type of the scores, where they are kept for the backward pass.
    pub scores: Option<Kind>,
    /// For people.
    pub words: String,
}

/// How the attention of `heads` over rows of `length` tokens runs: rows of several texts if they are `packed`, and those
/// of some blocks with a `window`.
///
/// # Errors
/// If the device is lost, or memory runs out.
pub fn attention_path(
    heads: Heads,
    length: i64,
    packed: bool,
    window: Option<i64>,
) -> Result<AttentionPath, Error> {
    let window = window.filter(|window| *window < length);
    if heads.is_capped {
        let windows = window.map_or_else(String::new, |window| {
            format!(", windows of {window} tokens in blocks")
        });
        return Ok(AttentionPath {
            scores: Some(Kind::Float),
            words: format!(
                "scores written down, in memory that grows with the square of the length, since no kernel of libtorch \
                 knows the soft cap of this model's{windows}"
            ),
        });
    }
    if writes_scores_down(heads.device, heads.kind, length) {
        return Ok(AttentionPath {
            scores: Some(heads.kind),
            words: format!(
                "scores written down, which is fastest for rows of at most {MAX_EXPLICIT_LENGTH} tokens on this CPU"
            ),
        });
    }
    let (name, is_repeated) = match (heads.device, heads.queries == heads.keys) {
        (Device::Cpu, _) => ("the CPU's kernel, which keeps no scores", false),
        (_, is_equal) => {
            let repeated = Heads {
                keys: heads.queries,
                ..heads
            };
            match (choice(heads)?, is_equal) {
                (WRITTEN_DOWN, false) => (name(choice(repeated)?), true),
                (choice, _) => (name(choice), false),
            }
        }
    };
    if name.is_empty() {
        return Ok(AttentionPath {
            // It computes half precision in fp32.
            scores: Some(Kind::Float),
            words: format!(
                "scores written down, in memory that grows with the square of the length: this libtorch has no other \
                 kernel for {:?} heads {} wide on this GPU, or not with its settings (`surefoot probe` tries them)",
                heads.kind, heads.width
            ),
        });
    };
    let mut words = name.to_owned();
    if is_repeated {
        words += ", with keys and values repeated for each head, since it takes no groups";
    }
    let mut add = |is: bool, windowed: bool, together: String, apart: String| {
        if is {
            words += ", ";
            words += &match tried(heads, windowed)? {
                None => together,
                Some(reason) if heads.device == Device::Cpu || reason.is_empty() => apart,
                Some(reason) => format!("{apart} (variable-length flash: {reason})"),
            };
        }
        Ok::<_, Error>(())
    };
    add(
        packed,
        false,
        "the texts of a row in one call of variable length".into(),
        "a call for each text of a row".into(),
    )?;
    let tokens = window.unwrap_or_default();
    add(
        window.is_some(),
        true,
        format!("windows of {tokens} tokens within it"),
        format!("windows of {tokens} tokens in blocks"),
    )?;
    Ok(AttentionPath {
        scores: None,
        words,
    })
}

fn name(choice: i64) -> &'static str {
    match choice {
        FLASH => "flash",
        EFFICIENT => "memory-efficient",
        CUDNN => "cuDNN's",
        _ => "",
    }
}

/// What libtorch chooses for causal attention of such heads in training.
fn choice(heads: Heads) -> Result<i64, Error> {
    let made = |count| -> Result<Tensor, Error> {
        // With sinks, queries and keys are wider.
        let sinks = if heads.has_sinks {
            heads.queries / heads.keys.max(1)
        } else {
            0
        };
        let size = [1, 16, count, heads.width + sinks];
        let made = Tensor::f_empty(size, (heads.kind, heads.device))?;
        Ok(made.f_transpose(1, 2)?.f_set_requires_grad(true)?)
    };
    let (query, key, value) = (made(heads.queries)?, made(heads.keys)?, made(heads.keys)?);
    let grouped = heads.queries != heads.keys;
    Ok(Tensor::f_internal_fused_sdp_choice(
        &query,
        &key,
        &value,
        None::<&Tensor>,
        0.0,
        true,
        None,
        grouped,
    )?)
}

/// Whether variable-length flash attention takes such heads, with a window or without, and is right.
///
/// # Errors
/// If the device is lost, or memory runs out.
pub(super) fn takes_texts(heads: Heads, windowed: bool) -> Result<bool, Error> {
    Ok(tried(heads, windowed)?.is_none())
}

/// Why not, or `None`; each is tried once in a process.
fn tried(heads: Heads, windowed: bool) -> Result<Option<String>, Error> {
    static KNOWN: Mutex<Vec<(Heads, bool, Option<String>)>> = Mutex::new(Vec::new());
    let half = matches!(heads.kind, Kind::Half | Kind::BFloat16);
    if heads.device == Device::Cpu || !half || heads.has_sinks {
        return Ok(Some(String::new()));
    }
    let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let same = |entry: &&(Heads, bool, Option<String>)| entry.0 == heads && entry.1 == windowed;
    if let Some((_, _, reason)) = known().iter().find(same) {
        return Ok(reason.clone());
    }
    // Fake tensors have no numbers to compare: who measures with them has tried before.
    if torch_ext::fake::is_on() {
        return Ok(Some(String::new()));
    }
    let reason = match choice(heads)? {
        FLASH | CUDNN => try_texts(heads, windowed, torch_ext::flash_texts)?,
        _ => Some("libtorch takes flash for no rows of such heads here".into()),
    };
    known().push((heads, windowed, reason.clone()));
    Ok(reason)
}

/// Attention of texts that stand one after the other, as [`torch_ext::flash_texts`].
type OfTexts = fn([&Tensor; 3], (&Tensor, i64), Option<i64>, f64) -> torch_ext::Result<Tensor>;

/// Compares `of_texts` with matrix products in fp32: three texts, outputs and gradients. No random numbers are drawn, on which a
/// run that goes on later would depend.
fn try_texts(heads: Heads, windowed: bool, of_texts: OfTexts) -> Result<Option<String>, Error> {
    const BOUNDS: [i32; 4] = [0, 70, 71, 128];
    const LONGEST: i64 = 70;
    /// Of the largest element: several roundings of half precision.
    const BOUND: f64 = 0.03;
    let length = i64::from(BOUNDS[3]);
    let window = windowed.then_some(33);
    let scale = 1.0 / (heads.width as f64).sqrt();
    let waves = |count: i64, phase: f64| -> Result<Tensor, Error> {
        let numbers = Tensor::f_arange(length * count * heads.width, (Kind::Float, heads.device))?;
        let waves = numbers.f_mul_scalar(0.7)?.f_add_scalar(phase)?.f_sin()?;
        let size = [length, count, heads.width];
        to_kind(&waves.f_mul_scalar(1.5)?.f_view(size)?, heads.kind)
    };
    let weights = waves(heads.queries, 3.0)?;
    let compared = tch::with_grad(|| -> Result<bool, Error> {
        let leaf = |count, phase| -> Result<Tensor, Error> {
            Ok(waves(count, phase)?.f_set_requires_grad(true)?)
        };
        let inputs = [
            leaf(heads.queries, 0.0)?,
            leaf(heads.keys, 1.0)?,
            leaf(heads.keys, 2.0)?,
        ];
        let [query, key, value] = inputs.each_ref();
        let results = |output: Tensor| -> Result<Vec<Tensor>, Error> {
            let output = to_kind(&output, Kind::Float)?;
            let loss = output.f_mul(&weights)?.f_sum(Kind::Float)?;
            let mut results = Tensor::f_run_backward(&[loss], &inputs, false, false)?;
            results.push(output.f_detach()?);
            Ok(results)
        };
        let bounds = Tensor::f_from_slice(&BOUNDS)?.f_to_device(heads.device)?;
        let ours = results(of_texts(
            [query, key, value],
            (&bounds, LONGEST),
            window,
            scale,
        )?)?;
        let numbers = Tensor::f_arange(length, (Kind::Int64, heads.device))?;
        let text = numbers
            .f_ge(i64::from(BOUNDS[1]))?
            .f_add(&numbers.f_ge(i64::from(BOUNDS[2]))?.f_to_kind(Kind::Int64)?)?;
        let same = text.f_unsqueeze(1)?.f_eq_tensor(&text.f_unsqueeze(0)?)?;
        let seen = same.f_logical_and(&seen((length, 0), window, heads.device)?)?;
        let mask = hidden(&seen.f_unsqueeze(0)?, Kind::Float)?;
        let row = |tensor: &Tensor| -> Result<Tensor, Error> {
            let row = to_kind(tensor, Kind::Float)?;
            Ok(row.f_transpose(0, 1)?.f_unsqueeze(0)?)
        };
        let right = explicit_attention(
            [&row(query)?, &row(key)?, &row(value)?],
            Some(&mask),
            Some(scale),
        )?;
        let right = results(right.f_squeeze_dim(0)?.f_transpose(0, 1)?)?;
        let mut all = true;
        for (ours, right) in ours.iter().zip(&right) {
            if !ours.defined() {
                return Ok(false);
            }
            let (ours, right) = (to_kind(ours, Kind::Float)?, to_kind(right, Kind::Float)?);
            let difference = f64::try_from(ours.f_sub(&right)?.f_abs()?.f_max()?)?;
            let size = f64::try_from(right.f_abs()?.f_max()?)?;
            // False for what is no number.
            all &= difference <= BOUND * size;
        }
        Ok(all)
    });
    match compared {
        Ok(true) => Ok(None),
        Ok(false) => Ok(Some("its results are wrong here".into())),
        Err(error) => match error.into_torch() {
            lost @ torch_ext::Error::DeviceLost { .. } => Err(lost.into()),
            refusal => {
                let message = refusal.to_string();
                Ok(Some(message.lines().next().unwrap_or_default().to_owned()))
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADS: Heads = Heads {
        device: Device::Cpu,
        kind: Kind::BFloat16,
        queries: 4,
        keys: 2,
        width: 16,
        has_sinks: false,
        is_capped: false,
    };

    /// Matrix products in place of the kernel, with what a faulty one would do.
    fn of_texts(
        [query, key, value]: [&Tensor; 3],
        (bounds, longest): (&Tensor, i64),
        window: Option<i64>,
        scale: f64,
    ) -> torch_ext::Result<Tensor> {
        assert_eq!((bounds.kind(), longest), (Kind::Int, 70));
        let bounds = Vec::<i64>::try_from(bounds).unwrap();
        let parts: Vec<Tensor> = bounds
            .windows(2)
            .map(|pair| {
                let length = pair[1] - pair[0];
                let part = |tensor: &Tensor| {
                    let part = tensor.narrow(0, pair[0], length);
                    part.transpose(0, 1).unsqueeze(0)
                };
                let seen = seen((length, 0), window, Device::Cpu).unwrap();
                let mask = hidden(&seen.unsqueeze(0), query.kind()).unwrap();
                let mask = Some(&mask);
                explicit_attention([&part(query), &part(key), &part(value)], mask, Some(scale))
                    .unwrap()
                    .squeeze_dim(0)
                    .transpose(0, 1)
            })
            .collect();
        Ok(Tensor::cat(&parts, 0))
    }

    #[test]
    fn a_kernel_is_used_only_if_it_is_right() {
        let said = |windowed, kernel: OfTexts| try_texts(HEADS, windowed, kernel).unwrap();
        assert_eq!(said(false, of_texts), None);
        assert_eq!(said(true, of_texts), None);
        // A window that is ignored, texts that see each other, gradients that do not arrive, NaN.
        let faulty: [OfTexts; 3] = [
            |inputs, texts, _, scale| of_texts(inputs, texts, None, scale),
            |[query, key, value], texts, window, scale| {
                of_texts([query, key, &value.detach()], texts, window, scale)
            },
            |inputs, texts, window, scale| Ok(of_texts(inputs, texts, window, scale)? * f64::NAN),
        ];
        for kernel in faulty {
            assert!(said(true, kernel).is_some());
        }
        let together: OfTexts = |inputs, _, window, scale| {
            let all = Tensor::from_slice(&[0i32, 128]);
            let [query, key, value] = inputs;
            torch_ext::flash_texts([query, key, value], (&all, 128), window, scale)
        };
        // This libtorch has no such kernel on the CPU.
        let reason = said(false, together).unwrap();
        assert!(reason.contains("_flash_attention_forward"), "{reason}");
    }

    #[test]
    fn the_path_says_what_runs() {
        let path = |length, packed, window| attention_path(HEADS, length, packed, window).unwrap();
        let short = path(512, true, None);
        assert_eq!(short.scores, Some(Kind::BFloat16));
        assert!(short.words.contains("512 tokens"), "{}", short.words);
        let long = path(2048, true, Some(1024));
        assert_eq!(long.scores, None);
        assert_eq!(
            long.words,
            "the CPU's kernel, which keeps no scores, a call for each text of a row, windows of 1024 tokens in blocks"
        );
        let capped = Heads {
            is_capped: true,
            ..HEADS
        };
        let capped = attention_path(capped, 2048, true, Some(64)).unwrap();
        assert_eq!(capped.scores, Some(Kind::Float));
        assert!(capped.words.ends_with("windows of 64 tokens in blocks"));
        let whole = path(2048, false, Some(2048));
        assert_eq!(whole.words, "the CPU's kernel, which keeps no scores");
    }
}
