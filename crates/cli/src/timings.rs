//! How long what a step is made of takes: the trainer measures it, and both binaries show it.

use serde::{Deserialize, Serialize};

/// One thing, done in one way (`trainer::Timing`).
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Timing {
    what: String,
    way: String,
    microseconds: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bytes: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    flops: Option<f64>,
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
            (Some(bytes), _) => format!("  {:7.1} GB/s", bytes / timing.microseconds / 1e3),
            (_, Some(flops)) => format!("  {:7.2} TFLOP/s", flops / timing.microseconds / 1e6),
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
        let timings: Vec<Timing> = serde_json::from_str(
            r#"[{"what": "a sum", "way": "a copy", "microseconds": 100.0, "bytes": 50000000},
                {"what": "a product", "way": "in bf16", "microseconds": 1000.0, "flops": 30000000000},
                {"what": "a product", "way": "in fp32", "microseconds": 12345.6}]"#,
        )
        .expect("timings");
        assert_eq!(
            table(&timings),
            "a sum\n  a copy                         100 µs    500.0 GB/s\n\
             a product\n  in bf16                       1000 µs    30.00 TFLOP/s\n  in fp32                      12346 µs\n"
        );
    }
}
