//! Choosing the next token from logits.

use tch::{Kind, Tensor};

use crate::Error;
use crate::data::SplitMix64;

/// Picks a token from `[vocabulary]` logits on the host: the likeliest at temperature 0,
/// else at random among those that together have probability `top_p`.
pub(crate) fn pick(
    logits: &Tensor,
    temperature: f64,
    top_p: f64,
    random: &mut SplitMix64,
) -> Result<u32, Error> {
    if temperature == 0.0 {
        return Ok(logits.f_argmax(0, false)?.f_int64_value(&[])? as u32);
    }
    let probabilities = logits
        .f_to_kind(Kind::Double)?
        .f_div_scalar(temperature)?
        .f_softmax(0, Kind::Double)?;
    let mut ranked: Vec<(usize, f64)> = Vec::<f64>::try_from(&probabilities)?
        .into_iter()
        .enumerate()
        .collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let mut total = 0.0;
    let kept = ranked.iter().take_while(|(_, probability)| {
        let keep = total < top_p;
        total += probability;
        keep
    });
    let kept = kept.count().max(1);
    ranked.truncate(kept);
    let mass: f64 = ranked.iter().map(|(_, probability)| probability).sum();
    let mut point = random.unit() * mass;
    for (token, probability) in &ranked {
        point -= probability;
        if point < 0.0 {
            return Ok(*token as u32);
        }
    }
    Ok(ranked.last().map_or(0, |(token, _)| *token as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(temperature: f64, top_p: f64) -> [u32; 4] {
        // Probabilities 0.5, 0.3, 0.15, 0.05.
        let logits = Tensor::from_slice(&[0.3f32.ln(), 0.5f32.ln(), 0.05f32.ln(), 0.15f32.ln()]);
        let mut random = SplitMix64::new(&[1]);
        let mut counts = [0; 4];
        for _ in 0..4000 {
            counts[pick(&logits, temperature, top_p, &mut random).unwrap() as usize] += 1;
        }
        counts
    }

    #[test]
    fn temperature_zero_takes_the_likeliest() {
        assert_eq!(counts(0.0, 1.0), [0, 4000, 0, 0]);
    }

    #[test]
    fn temperature_one_follows_the_probabilities() {
        let counts = counts(1.0, 1.0);
        let want = [1200, 2000, 200, 600];
        assert!(
            counts
                .iter()
                .zip(want)
                .all(|(got, want)| got.abs_diff(want) < 120),
            "{counts:?}"
        );
    }

    #[test]
    fn top_p_drops_the_unlikely() {
        let counts = counts(1.0, 0.7);
        assert_eq!((counts[2], counts[3]), (0, 0));
        assert!(counts[0].abs_diff(1500) < 120, "{counts:?}");
    }
}
