//! Choosing the next token from logits.

use tch::{Kind, Tensor};

use crate::Error;
use crate::config::SampleConfig;
use crate::data::SplitMix64;

/// Picks a token from `[vocabulary]` logits on the host: the likeliest at temperature 0,
/// else at random among those that together have probability `top_p`.
pub(crate) fn pick(
    logits: &Tensor,
    config: &SampleConfig,
    random: &mut SplitMix64,
) -> Result<u16, Error> {
    if config.temperature == 0.0 {
        return Ok(logits.f_argmax(0, false)?.f_int64_value(&[])? as u16);
    }
    let probabilities = logits
        .f_to_kind(Kind::Double)?
        .f_div_scalar(config.temperature)?
        .f_softmax(0, Kind::Double)?;
    let mut ranked: Vec<(usize, f64)> = Vec::<f64>::try_from(&probabilities)?
        .into_iter()
        .enumerate()
        .collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let mut total = 0.0;
    let kept = ranked.iter().take_while(|(_, probability)| {
        let keep = total < config.top_p;
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
            return Ok(*token as u16);
        }
    }
    Ok(ranked.last().map_or(0, |(token, _)| *token as u16))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(temperature: f64, top_p: f64) -> SampleConfig {
        SampleConfig {
            temperature,
            top_p,
            ..SampleConfig::default()
        }
    }

    fn counts(config: &SampleConfig) -> [u32; 4] {
        // Probabilities 0.5, 0.3, 0.15, 0.05.
        let logits = Tensor::from_slice(&[0.3f32.ln(), 0.5f32.ln(), 0.05f32.ln(), 0.15f32.ln()]);
        let mut random = SplitMix64::new(&[1]);
        let mut counts = [0; 4];
        for _ in 0..4000 {
            counts[usize::from(pick(&logits, config, &mut random).unwrap())] += 1;
        }
        counts
    }

    #[test]
    fn temperature_zero_takes_the_likeliest() {
        assert_eq!(counts(&config(0.0, 1.0)), [0, 4000, 0, 0]);
    }

    #[test]
    fn temperature_one_follows_the_probabilities() {
        let counts = counts(&config(1.0, 1.0));
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
        let counts = counts(&config(1.0, 0.7));
        assert_eq!((counts[2], counts[3]), (0, 0));
        assert!(counts[0].abs_diff(1500) < 120, "{counts:?}");
    }
}
