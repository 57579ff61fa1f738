//! Counts of a training step, and bounds of the time that it takes on a GPU.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use serde::Serialize;

/// What the makers say of a GPU: bytes and floating-point operations a second.
pub(super) struct Gpu {
    pub(super) name: &'static str,
    pub(super) bandwidth: f64,
    /// Of dense bfloat16 products.
    pub(super) half: f64,
    pub(super) full: f64,
    pub(super) source: &'static str,
}

pub(super) const GPUS: [Gpu; 4] = [
    Gpu {
        name: "gfx1151 (Radeon 8060S)",
        bandwidth: 256e9,
        half: 59.4e12,
        full: 29.7e12,
        source: "https://www.amd.com/en/products/processors/laptop/ryzen/ai-300-series/amd-ryzen-ai-max-plus-395.html: \
                 256 bits of LPDDR5x-8000, 40 CUs at 2.9 GHz, of which each does 512 (bf16) or 256 (fp32, two at a time) \
                 operations a cycle",
    },
    Gpu {
        name: "gfx1100 (RX 7900 XTX)",
        bandwidth: 960e9,
        half: 122.8e12,
        full: 61.4e12,
        source: "https://www.amd.com/en/products/graphics/desktops/radeon/7000-series/amd-radeon-rx-7900xtx.html",
    },
    Gpu {
        name: "gfx1201 (RX 9070 XT)",
        bandwidth: 640e9,
        half: 195e12,
        full: 48.7e12,
        source: "https://www.amd.com/en/products/graphics/desktops/radeon/9000-series/amd-radeon-rx-9070xt.html",
    },
    Gpu {
        name: "gfx1031 (RX 6700 XT)",
        bandwidth: 384e9,
        // It has no instructions for bfloat16 products.
        half: 13.2e12,
        full: 13.2e12,
        source: "https://www.amd.com/en/products/graphics/desktops/radeon/6000-series/amd-radeon-rx-6700-xt.html",
    },
];

/// Counts of operators of one kind, or sums of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(super) struct Counts {
    pub(super) operators: f64,
    pub(super) launches: f64,
    pub(super) bytes_read: f64,
    pub(super) bytes_written: f64,
    pub(super) flops_half: f64,
    pub(super) flops_full: f64,
}

impl Counts {
    pub(super) fn add(&mut self, other: &Self, times: f64) {
        self.operators += times * other.operators;
        self.launches += times * other.launches;
        self.bytes_read += times * other.bytes_read;
        self.bytes_written += times * other.bytes_written;
        self.flops_half += times * other.flops_half;
        self.flops_full += times * other.flops_full;
    }

    pub(super) fn bytes(&self) -> f64 {
        self.bytes_read + self.bytes_written
    }

    /// Seconds that these operators take at least.
    fn seconds(&self, gpu: &Gpu) -> f64 {
        let computing = self.flops_half / gpu.half + self.flops_full / gpu.full;
        computing.max(self.bytes() / gpu.bandwidth)
    }
}

/// Operators of a phase by name, type and intensity.
pub(super) type Step = BTreeMap<[String; 4], Counts>;

/// What is written of one side of a model.
#[derive(Serialize)]
pub(super) struct Side {
    pub(super) name: &'static str,
    pub(super) total: Counts,
    pub(super) phases: BTreeMap<String, Counts>,
    /// Seconds at least, by GPU.
    pub(super) roofline_seconds: BTreeMap<&'static str, f64>,
}

pub(super) fn side(name: &'static str, step: &Step) -> Side {
    let mut total = Counts::default();
    let mut phases: BTreeMap<String, Counts> = BTreeMap::new();
    for (key, counts) in step {
        total.add(counts, 1.0);
        let phase = phases.entry(key[0].clone()).or_default();
        phase.add(counts, 1.0);
    }
    let seconds = |gpu: &Gpu| step.values().map(|counts| counts.seconds(gpu)).sum();
    Side {
        name,
        total,
        phases,
        roofline_seconds: GPUS.iter().map(|gpu| (gpu.name, seconds(gpu))).collect(),
    }
}

/// Reads what the library wrote.
pub(super) fn parsed(text: &str) -> Result<Step> {
    let mut step = Step::new();
    let mut lines = text.lines();
    let steps = lines.next().and_then(|line| {
        let number = line.strip_prefix("# ")?.strip_suffix(" steps")?;
        number.parse::<u32>().ok()
    });
    // The first ones load kernels and try some.
    ensure!(
        steps.is_some_and(|steps| steps >= 2),
        "fewer than two whole steps"
    );
    for line in lines {
        let fields: Vec<&str> = line.split('\t').collect();
        let [phase, operator, kind, intensity, numbers @ ..] = &fields[..] else {
            anyhow::bail!("{line:?} has too few fields");
        };
        let numbers = numbers.iter().map(|number| number.parse::<f64>());
        let numbers = numbers.collect::<Result<Vec<_>, _>>()?;
        let [operators, launches, bytes_read, bytes_written, flops] = numbers[..] else {
            anyhow::bail!("{line:?} has {} numbers", numbers.len());
        };
        let is_full = *kind == "Float" || *kind == "Double";
        let key = [phase, operator, kind, intensity].map(|field| (**field).to_owned());
        let counts = Counts {
            operators,
            launches,
            bytes_read,
            bytes_written,
            flops_half: if is_full { 0.0 } else { flops },
            flops_full: if is_full { flops } else { 0.0 },
        };
        step.insert(key, counts);
    }
    Ok(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operator_takes_what_its_bytes_or_operations_need() {
        let text = "# 3 steps\nforward\taten::mm\tBFloat16\t9\t2\t2\t100\t100\t59400000000000\n\
                    forward\taten::mul\tFloat\t-1\t1\t1\t128000000000\t128000000000\t0\n\
                    backward\taten::mm\tFloat\t9\t1\t1\t0\t0\t29700000000000\n";
        let side = side("peft", &parsed(text).unwrap());
        assert_eq!(side.total.launches, 4.0);
        assert_eq!(
            (side.total.flops_half, side.total.flops_full),
            (59.4e12, 29.7e12)
        );
        assert_eq!(side.phases["forward"].bytes_read, 128e9 + 100.0);
        assert!((side.roofline_seconds[GPUS[0].name] - 3.0).abs() < 1e-9);
        assert!(parsed("# 1 steps\n").is_err());
        assert!(parsed("# 3 steps\nforward\taten::mm\n").is_err());
    }
}
