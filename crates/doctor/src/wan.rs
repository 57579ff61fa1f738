//! What training a LoRA for Wan needs: memory for its experts, attention that does not store scores, and ffmpeg.
//! What it does not need is listed too, since other programs for Wan do need it.

use platform::Bytes;
use platform::machine::{Gpu, Machine};

use crate::needs::{self, Need};
use crate::plan::{AOTRITON, AOTRITON_CHECK};

/// Device memory that A14B needs with a LoRA of rank 16 on each expert, one clip at a time and every block
/// checkpointed, in GiB: the estimate of `surefoot train`, which was within 3 % of what such runs allocated on a
/// simulated device. By config keys, the fastest first: at 480 × 832 with 81 frames, and at
/// 512 × 512 with one.
const PLANS: [(&str, f64, f64); 6] = [
    ("bf16, both experts on the device", 82.5, 55.9),
    ("bf16, one expert at a time", 55.9, 29.3),
    ("`model.quantization: int8`", 42.5, 16.4),
    ("`model.quantization: nf4`", 36.8, 10.6),
    (
        "`model.quantization: nf4` and `model.offload: all`",
        29.8,
        3.6,
    ),
    (
        "`model.quantization: nf4`, `model.offload: all` and `train.activation_offload: true`",
        17.9,
        3.2,
    ),
];

/// All requirements of a LoRA for Wan, and whether `machine` meets them.
#[must_use]
pub fn needs(machine: &Machine) -> Vec<Need> {
    let mut needs = vec![
        Need {
            what: "conv3d",
            met: Some(true),
            text: "is not asked for: the autoencoders are made of conv2d, so that MIOpen's slow or missing kernels \
                   for it do not matter"
                .into(),
        },
        attention(machine),
        ffmpeg(machine),
    ];
    match machine.gpus.is_empty() {
        true => needs.push(Need {
            what: "memory",
            met: Some(false),
            text: "there is no GPU that HIP can use".into(),
        }),
        false => needs.extend(machine.gpus.iter().map(|gpu| memory(machine, gpu))),
    }
    needs
}

/// The same for people, one line a need, below a heading.
#[must_use]
pub fn text(machine: &Machine) -> String {
    needs::text("A LoRA for Wan", &needs(machine))
}

fn attention(machine: &Machine) -> Need {
    let (met, text) = match (
        machine.variable(AOTRITON),
        machine.probed.get(AOTRITON_CHECK),
    ) {
        (_, Some(false)) => (
            Some(false),
            format!(
                "`surefoot probe` found attention failing or wrong with {AOTRITON}=1: leave it unset, and train on \
                 pictures or few frames, since scores of long videos do not fit any memory"
            ),
        ),
        (Some(_), Some(true)) => (
            Some(true),
            format!("{AOTRITON} is set, and `surefoot probe` found its attention right"),
        ),
        (None, Some(true)) => (
            Some(true),
            format!(
                "`surefoot probe` found attention right with {AOTRITON}=1, which `surefoot train` sets: scores are \
                 not kept"
            ),
        ),
        (set, None) => (
            None,
            format!(
                "{AOTRITON} is {}, and nobody has tried it here: run `surefoot probe`. Without kernels that keep no \
                 scores, a video of 32,760 tokens needs 80 GiB for those of one layer",
                if set.is_some() { "set" } else { "not set" }
            ),
        ),
    };
    Need {
        what: "attention",
        met,
        text,
    }
}

fn ffmpeg(machine: &Machine) -> Need {
    let text = match machine.has_ffmpeg {
        Some(true) => "is there: video files are read, and previews are mp4",
        Some(false) => {
            "is missing (`apt install ffmpeg`): video files cannot be read; folders of frames, pictures, GIF and \
             animated WebP can, and previews are WebP"
        }
        None => "is not told of",
    };
    Need {
        what: "ffmpeg",
        met: machine.has_ffmpeg,
        text: text.into(),
    }
}

fn memory(machine: &Machine, gpu: &Gpu) -> Need {
    let unknown = || Need {
        what: "memory",
        met: None,
        text: format!("what {} may allocate is not known", gpu.name()),
    };
    let Some(total) = machine.capacity(gpu).map(|capacity| capacity.total) else {
        return unknown();
    };
    let fits = |gib: f64| gib * (1u64 << 30) as f64 <= total.0 as f64;
    // Both experts are on the device only if it shares the host's memory; otherwise one waits in host memory.
    let plans = || PLANS.iter().skip(usize::from(!gpu.is_apu()));
    let video = plans().find(|(_, video, _)| fits(*video));
    let picture = plans().find(|(_, _, picture)| fits(*picture));
    let describe = |plan: Option<&(&str, f64, f64)>, gib: fn(&(&str, f64, f64)) -> f64| match plan {
        Some(plan) => format!("{} ({:.1} GiB)", plan.0, gib(plan)),
        None => "not at all".to_owned(),
    };
    Need {
        what: "memory",
        met: Some(picture.is_some()),
        text: format!(
            "{} may allocate {}. A14B trains on 480 × 832 with 81 frames: {}; on pictures of 512 × 512: {}. {}",
            gpu.name(),
            Bytes(total.0),
            describe(video, |plan| plan.1),
            describe(picture, |plan| plan.2),
            host(machine, gpu)
        ),
    }
}

/// Host memory for the expert that is not being trained.
fn host(machine: &Machine, gpu: &Gpu) -> String {
    let Some(ram) = machine.memory.total.filter(|_| !gpu.is_apu()) else {
        return "Expected, not measured on a GPU".into();
    };
    format!(
        "The other expert waits in host memory: 26.6 GiB in bf16, 13.3 in int8, 7.5 in NF4, twice that where blocks \
         are streamed; this host has {ram}. Expected, not measured on a GPU"
    )
}

#[cfg(test)]
mod tests {
    use platform::machine::Class;

    use super::*;

    fn machine(class: Class, gib: u64) -> Machine {
        let gpu = Gpu {
            class: Some(class),
            usable_bytes: Some(Bytes::gib(gib)),
            vram_bytes: Some(Bytes::gib(gib)),
            ..Gpu::default()
        };
        let mut machine = Machine {
            gpus: vec![gpu],
            ..Machine::default()
        };
        machine.memory.total = Some(Bytes::gib(64));
        machine
    }

    fn about(machine: &Machine, what: &str) -> String {
        let needs = needs(machine);
        let texts = needs.iter().filter(|need| need.what == what);
        texts.map(|need| need.text.as_str()).collect()
    }

    #[test]
    fn a_card_gets_the_most_comfortable_plan_that_fits() {
        let of = |gib| about(&machine(Class::Dgpu, gib), "memory");
        assert!(of(24).contains("81 frames: `model.quantization: nf4`, `model.offload"));
        assert!(of(24).contains("512 × 512: `model.quantization: int8` (16.4"));
        assert!(of(96).contains("81 frames: bf16, one expert at a time"));
        assert!(of(8).contains("81 frames: not at all"));
        assert!(of(24).contains("this host has 64 GiB"));
        let needs = needs(&machine(Class::Dgpu, 2));
        let memory = needs.iter().find(|need| need.what == "memory");
        assert_eq!(memory.map(|need| need.met), Some(Some(false)));
    }

    #[test]
    fn without_a_gpu_that_is_told() {
        assert!(about(&Machine::default(), "memory").contains("no GPU"));
    }

    #[test]
    fn attention_and_ffmpeg_are_as_they_were_seen() {
        let mut seen = machine(Class::Dgpu, 24);
        assert!(about(&seen, "attention").contains("run `surefoot probe`"));
        assert!(about(&seen, "ffmpeg").contains("not told of"));
        seen.probed.insert(AOTRITON_CHECK.into(), true);
        seen.has_ffmpeg = Some(false);
        assert!(about(&seen, "attention").contains("which `surefoot train` sets"));
        assert!(about(&seen, "ffmpeg").contains("apt install ffmpeg"));
        seen.probed.insert(AOTRITON_CHECK.into(), false);
        assert!(about(&seen, "attention").contains("leave it unset"));
    }

    #[test]
    fn people_read_a_line_for_each() {
        let text = text(&machine(Class::Dgpu, 24));
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some("A LoRA for Wan"));
        let heads: Vec<_> = lines.map(|line| &line[..16]).collect();
        let expected = [
            "  yes conv3d    ",
            "  ?   attention ",
            "  ?   ffmpeg    ",
            "  yes memory    ",
        ];
        assert_eq!(heads, expected);
    }
}
