//! The held-out samples in batches that fit.
//!
//! A step that runs out of memory is repeated in pieces (`run/shortage.rs`); here it is the same for what is
//! only looked at. An evaluation is no reason to lose a run that is learning.

use crate::Error;

/// Gives all of `samples` to `look`, at most `rows` at a time; fewer from where memory ran out. `look` must
/// change nothing before it can fail.
///
/// # Errors
/// What `look` says, if it is about something else or about a single sample.
pub(super) fn in_batches<T>(
    samples: &[T],
    rows: usize,
    mut look: impl FnMut(&[T]) -> Result<(), Error>,
) -> Result<(), Error> {
    let (mut rows, mut rest) = (rows.max(1), samples);
    while !rest.is_empty() {
        let (batch, later) = rest.split_at(rows.min(rest.len()));
        match look(batch) {
            Ok(()) => rest = later,
            Err(error) if batch.len() > 1 && error.is_out_of_memory() => {
                rows = batch.len() / 2;
                tracing::warn!("evaluating {rows} samples at a time from here on: {error}");
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> Error {
        tch::TchError::Torch("HIP out of memory. Tried to allocate 8.00 MiB.".into()).into()
    }

    #[test]
    fn what_does_not_fit_is_halved_and_every_sample_seen_once() {
        let samples: Vec<u32> = (0..11).collect();
        let (mut seen, mut sizes) = (Vec::new(), Vec::new());
        in_batches(&samples, 6, |batch| {
            sizes.push(batch.len());
            if batch.len() > 2 {
                return Err(full());
            }
            seen.extend_from_slice(batch);
            Ok(())
        })
        .unwrap();
        assert_eq!(seen, samples);
        assert_eq!(sizes, [6, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
    }

    #[test]
    fn one_sample_that_does_not_fit_and_other_errors_end_it() {
        let mut tries = 0;
        let error = in_batches(&[1, 2], 2, |_| {
            tries += 1;
            Err(full())
        });
        assert!(error.unwrap_err().is_out_of_memory() && tries == 2);
        let error = in_batches(&[1, 2], 2, |_| Err(Error::Internal("no head".into())));
        assert!(matches!(error, Err(Error::Internal(_))));
    }
}
