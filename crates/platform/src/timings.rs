//! How long what a training step is made of takes: the trainer measures it, and both binaries show it.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// One thing, done in one way.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Timing {
    /// What is computed.
    pub what: Cow<'static, str>,
    /// By what.
    pub way: Cow<'static, str>,
    /// The median of rounds of several calls.
    pub microseconds: f64,
    /// What it has to read and to write, whichever the way; `None` where arithmetic takes the time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<i64>,
    /// Floating-point operations, where these take the time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flops: Option<i64>,
}

/// A line for each, under one for each thing; what moves bytes or computes has its rate beside the time.
#[must_use]
pub fn table(timings: &[Timing]) -> String {
    let mut text = String::new();
    for (index, timing) in timings.iter().enumerate() {
        if index == 0 || timings[index - 1].what != timing.what {
            text += &format!("{}\n", timing.what);
        }
        let rate = match (timing.bytes, timing.flops) {
            (Some(bytes), _) => format!("  {:7.1} GB/s", bytes as f64 / timing.microseconds / 1e3),
            (_, Some(flops)) => {
                format!("  {:7.2} TFLOP/s", flops as f64 / timing.microseconds / 1e6)
            }
            _ => String::new(),
        };
        text += &format!("  {:24} {:9.0} µs{rate}\n", timing.way, timing.microseconds);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_stand_beside_times() {
        let timing = |what: &'static str, way: &'static str, microseconds, bytes, flops| Timing {
            what: what.into(),
            way: way.into(),
            microseconds,
            bytes,
            flops,
        };
        let timings = [
            timing("a sum", "a copy", 100.0, Some(50_000_000), None),
            timing("a product", "in bf16", 1000.0, None, Some(30_000_000_000)),
            timing("a product", "in fp32", 12345.6, None, None),
        ];
        assert_eq!(
            table(&timings),
            "a sum\n  a copy                         100 µs    500.0 GB/s\n\
             a product\n  in bf16                       1000 µs    30.00 TFLOP/s\n  in fp32                      12346 µs\n"
        );
    }
}
