//! Variables that do not exist, do nothing at run time, or were left on.

use super::{Check, Finding, Severity};
use crate::plan::{AOTRITON, AOTRITON_CHECK};
use platform::machine::{Machine, System};

/// Variables, the values that make them a problem, and why.
struct Rule {
    names: &'static [&'static str],
    severity: Severity,
    id: &'static str,
    /// Whether this value is a problem.
    applies: fn(&str) -> bool,
    why: &'static str,
    instead: &'static str,
    source: &'static str,
}

const DEBUG: &str =
    "It serialises or logs every launch: right for a diagnosis, several times slower for training.";

const RULES: &[Rule] = &[
    Rule {
        names: &["PYTORCH_MAX_SPLIT_SIZE_MB"],
        severity: Severity::Warning,
        id: "variable-does-not-exist",
        applies: any,
        why: "Nothing reads it. The setting is a key of PYTORCH_ALLOC_CONF.",
        instead: "export PYTORCH_ALLOC_CONF=max_split_size_mb:512",
        source: "https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-alloc-conf",
    },
    Rule {
        names: &["TORCH_USE_HIP_DSA", "TORCH_USE_CUDA_DSA"],
        severity: Severity::Info,
        id: "variable-compile-time",
        applies: any,
        why: "It is a switch of the compiler; an installed wheel does not read it.",
        instead: "",
        source: "https://docs.pytorch.org/docs/stable/notes/hip.html",
    },
    Rule {
        names: &["PYTORCH_ROCM_ARCH"],
        severity: Severity::Info,
        id: "variable-compile-time",
        applies: any,
        why: "It chooses architectures when torch or an extension is compiled; an installed wheel ignores it.",
        instead: "",
        source: "https://github.com/pytorch/pytorch/blob/main/.ci/docker/manywheel/build.sh",
    },
    Rule {
        names: &[
            "PYTORCH_NO_HIP_MEMORY_CACHING",
            "PYTORCH_NO_CUDA_MEMORY_CACHING",
        ],
        severity: Severity::Warning,
        id: "debug-variable-left-on",
        applies: any,
        why: "A debug switch: every tensor becomes a hipMalloc and a hipFree that waits for the whole GPU. It does not help against the limits of unified memory.",
        instead: "surefoot run --alloc -- …  # holds what is live without that cost",
        source: "https://docs.pytorch.org/docs/stable/notes/hip.html",
    },
    Rule {
        names: &[
            "AMD_SERIALIZE_KERNEL",
            "AMD_SERIALIZE_COPY",
            "HIP_LAUNCH_BLOCKING",
        ],
        severity: Severity::Warning,
        id: "debug-variable-left-on",
        applies: not_zero,
        why: DEBUG,
        instead: "",
        source: "https://rocm.docs.amd.com/projects/HIP/en/latest/reference/env_variables.html",
    },
    Rule {
        names: &["CUDA_LAUNCH_BLOCKING"],
        severity: Severity::Warning,
        id: "debug-variable-left-on",
        applies: not_zero,
        why: DEBUG,
        instead: "",
        source: "https://docs.pytorch.org/docs/stable/notes/hip.html",
    },
    Rule {
        names: &["AMD_LOG_LEVEL"],
        severity: Severity::Warning,
        id: "debug-variable-left-on",
        applies: three_or_more,
        why: DEBUG,
        instead: "",
        source: "https://rocm.docs.amd.com/projects/HIP/en/latest/how-to/logging.html",
    },
    Rule {
        names: &["HSAKMT_DEBUG_LEVEL"],
        severity: Severity::Warning,
        id: "debug-variable-left-on",
        applies: three_or_more,
        why: DEBUG,
        instead: "",
        source: "https://github.com/ROCm/rocm-systems/tree/develop/projects/rocr-runtime",
    },
    Rule {
        names: &["MIOPEN_LOG_LEVEL"],
        severity: Severity::Warning,
        id: "debug-variable-left-on",
        applies: five_or_more,
        why: DEBUG,
        instead: "",
        source: "https://rocm.docs.amd.com/projects/MIOpen/en/latest/reference/env_variables.html",
    },
    Rule {
        names: &["MIOPEN_ENABLE_LOGGING_CMD"],
        severity: Severity::Info,
        id: "debug-variable-left-on",
        applies: not_zero,
        why: DEBUG,
        instead: "",
        source: "https://rocm.docs.amd.com/projects/MIOpen/en/latest/reference/env_variables.html",
    },
    Rule {
        names: &["MIOPEN_FIND_ENFORCE"],
        severity: Severity::Warning,
        id: "debug-variable-left-on",
        applies: three_or_more,
        why: "It tunes every convolution anew: minutes for each new shape.",
        instead: "",
        source: "https://rocm.docs.amd.com/projects/MIOpen/en/latest/reference/env_variables.html",
    },
    Rule {
        names: &["HSA_XNACK"],
        severity: Severity::Info,
        id: "variable-without-effect",
        applies: any,
        why: "RDNA GPUs have no XNACK.",
        instead: "",
        source: "https://rocm.docs.amd.com/en/latest/conceptual/gpu-memory.html",
    },
    Rule {
        names: &["HIP_FORCE_DEV_KERNARG"],
        severity: Severity::Info,
        id: "variable-without-effect",
        applies: any,
        why: "It is on by default since 2024.",
        instead: "",
        source: "https://github.com/ROCm/clr/blob/develop/rocclr/utils/flags.hpp",
    },
    Rule {
        names: &["GPU_SINGLE_ALLOC_PERCENT", "GPU_MAX_HEAP_SIZE"],
        severity: Severity::Info,
        id: "variable-without-effect",
        applies: any,
        why: "A tip from the days of OpenCL mining; the limit it raises is gone.",
        instead: "",
        source: "https://github.com/ROCm/clr/blob/develop/rocclr/utils/flags.hpp",
    },
    Rule {
        names: &["PYTORCH_TUNABLEOP_ENABLED"],
        severity: Severity::Info,
        id: "slow-first-run",
        applies: not_zero,
        why: "Every new shape of a matrix product is tuned first: the first run is very slow.",
        instead: "",
        source: "https://github.com/comfyanonymous/ComfyUI#amd-rocm-tips",
    },
    Rule {
        names: &["HSA_ENABLE_INTERRUPT"],
        severity: Severity::Info,
        id: "work-around-left-on",
        applies: zero,
        why: "Busy waiting: it cures hangs from lost interrupts on gfx1151 and keeps one core busy. Without such hangs it only costs.",
        instead: "",
        source: "https://github.com/ROCm/ROCm/issues/6530",
    },
    Rule {
        names: &["HSA_ENABLE_SDMA"],
        severity: Severity::Info,
        id: "work-around-left-on",
        applies: zero,
        why: "Copies go through shader kernels instead of the copy engines: a work-around for broken copies, and slower.",
        instead: "",
        source: "https://rocm.docs.amd.com/projects/ROCR-Runtime/en/latest/",
    },
    Rule {
        names: &["ROCBLAS_USE_HIPBLASLT"],
        severity: Severity::Info,
        id: "leave-to-the-library",
        applies: any,
        why: "Unset, rocBLAS chooses by GPU. 1 prefers hipBLASLt with a fallback, 0 is a work-around for its crashes. It is not a switch of PyTorch.",
        instead: "",
        source: "https://rocm.docs.amd.com/projects/rocBLAS/en/latest/reference/env-variables.html",
    },
    Rule {
        names: &["TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL"],
        severity: Severity::Info,
        id: "aotriton-unverified",
        applies: not_zero,
        why: "Faster attention with far less memory where the build has kernels for the GPU; wrong numbers with AOTriton 0.11b on gfx1100. Compare once before trusting it.",
        instead: "surefoot probe --only attention",
        source: "https://github.com/pytorch/pytorch/pull/166397",
    },
];

fn any(_: &str) -> bool {
    true
}
fn zero(value: &str) -> bool {
    value == "0"
}
fn not_zero(value: &str) -> bool {
    value != "0"
}
fn three_or_more(value: &str) -> bool {
    value.parse::<u32>().is_ok_and(|level| level >= 3)
}
fn five_or_more(value: &str) -> bool {
    value.parse::<u32>().is_ok_and(|level| level >= 5)
}

/// Names that exist and have no rule; a name close to one of these is a slip.
const KNOWN: [&str; 19] = [
    "HSA_OVERRIDE_GFX_VERSION",
    "HSA_ENABLE_DXG_DETECTION",
    "HSA_NO_SCRATCH_RECLAIM",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "CUDA_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "GPU_MAX_HW_QUEUES",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_HIP_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "MIOPEN_FIND_MODE",
    "MIOPEN_USER_DB_PATH",
    "MIOPEN_CUSTOM_CACHE_DIR",
    "TORCH_BLAS_PREFER_HIPBLASLT",
    "DISABLE_ADDMM_CUDA_LT",
    "HIP_HOST_COHERENT",
    "HIP_ALLOC_CONF",
    "BNB_ROCM_VERSION",
];

pub(super) fn find(machine: &Machine, found: &mut Vec<Finding>) {
    let named = |rule: &'static Rule| rule.names.iter().map(move |&name| (name, rule));
    for (name, rule) in RULES.iter().flat_map(named) {
        let Some(value) = machine.variable(name).filter(|value| (rule.applies)(value)) else {
            continue;
        };
        let tried = (name == AOTRITON)
            .then(|| machine.probed.get(AOTRITON_CHECK))
            .flatten();
        match tried {
            Some(true) => continue,
            Some(false) => {
                found.push(aotriton_failed(value));
                continue;
            }
            None => {}
        }
        let title = match rule.id {
            "variable-does-not-exist" => format!("{} does not exist", name),
            "variable-compile-time" => format!("{} does nothing at run time", name),
            "variable-without-effect" => format!("{} has no effect", name),
            "debug-variable-left-on" => format!("{} is on", name),
            _ => format!("{} is set", name),
        };
        let mut fix = vec![format!("unset {name}")];
        if !rule.instead.is_empty() {
            fix.push(rule.instead.to_owned());
        }
        found.push(
            Finding::new(Check::Variables, rule.severity, rule.id, title)
                .seen(format!("{}={value}", name))
                .why(rule.why)
                .fix(fix)
                .source(rule.source),
        );
    }
    allocator(machine, found);
    slips(machine, found);
}

fn aotriton_failed(value: &str) -> Finding {
    Finding::new(
        Check::Variables,
        Severity::Error,
        "aotriton-fails",
        format!("{AOTRITON} breaks attention with this torch"),
    )
    .seen(format!(
        "{AOTRITON}={value}, and `surefoot probe` found attention failing or wrong under it."
    ))
    .why("This build has no kernels for the GPU, or wrong ones.")
    .fix([format!("unset {AOTRITON}")])
    .source("https://github.com/pytorch/pytorch/pull/166397")
}

/// `expandable_segments` where it is refused or corrupts.
fn allocator(machine: &Machine, found: &mut Vec<Finding>) {
    let names = [
        "PYTORCH_ALLOC_CONF",
        "PYTORCH_HIP_ALLOC_CONF",
        "PYTORCH_CUDA_ALLOC_CONF",
    ];
    let set: Vec<(&str, &str)> = names
        .iter()
        .filter_map(|&name| Some((name, machine.variable(name)?)))
        .collect();
    let is_on = |value: &str| {
        value
            .replace(' ', "")
            .to_ascii_lowercase()
            .contains("expandable_segments:true")
    };
    if let Some((name, value)) = set.iter().find(|(_, value)| is_on(value)) {
        let corrupts = machine
            .gpus
            .iter()
            .any(|gpu| gpu.gfx.is_some_and(|gfx| gfx.major == 12));
        let (severity, why) = if corrupts {
            (
                Severity::Error,
                "On gfx1201 training in bf16 gives NaN with it, without a message.",
            )
        } else if machine.system == System::Windows {
            (
                Severity::Info,
                "It is refused on Windows; the warning in the log is harmless.",
            )
        } else {
            (
                Severity::Warning,
                "It corrupts bf16 training on gfx1201 and is little tested on other consumer GPUs.",
            )
        };
        found.push(
            Finding::new(
                Check::Variables,
                severity,
                "expandable-segments",
                "expandable_segments is on",
            )
            .seen(format!("{name}={value}"))
            .why(why)
            .fix([
                format!("unset {name}"),
                "surefoot run --alloc -- …  # against fragmentation".to_owned(),
            ])
            .source("https://github.com/pytorch/pytorch/issues/195202"),
        );
    }
    if let [(first, a), .., (last, b)] = set.as_slice()
        && a != b
    {
        found.push(
            Finding::new(Check::Variables, Severity::Warning, "allocator-settings-differ", "Two names of the allocator's settings differ")
                .seen(format!("{first}={a} and {last}={b}"))
                .why("They are older and newer names of one setting; which one counts depends on the version of torch.")
                .fix([format!("unset {last}")])
                .source("https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-alloc-conf"),
        );
    }
}

/// A variable whose name is one or two letters off a real one.
fn slips(machine: &Machine, found: &mut Vec<Finding>) {
    let real = || {
        KNOWN
            .iter()
            .copied()
            .chain(RULES.iter().flat_map(|rule| rule.names.iter().copied()))
    };
    for name in machine.variables.keys() {
        // `…_1` is the form of the override for one KFD node.
        if real().any(|known| known == name) || name.starts_with("HSA_OVERRIDE_GFX_VERSION_") {
            continue;
        }
        let Some(meant) = real().find(|known| known.len() > 10 && distance(known, name) <= 2)
        else {
            continue;
        };
        found.push(
            Finding::new(
                Check::Variables,
                Severity::Warning,
                "variable-misspelled",
                format!("{name} does not exist; did you mean {meant}?"),
            )
            .seen(name.clone())
            .why("Nothing reads it.")
            .fix([format!("unset {name}")])
            .source(
                "https://rocm.docs.amd.com/projects/HIP/en/latest/reference/env_variables.html",
            ),
        );
    }
}

/// The number of letters to insert, remove or change.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let changed = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(variables: &[(&str, &str)]) -> Vec<String> {
        let variables = variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        let mut found = Vec::new();
        find(
            &Machine {
                variables,
                ..Machine::default()
            },
            &mut found,
        );
        found.into_iter().map(|finding| finding.id).collect()
    }

    #[test]
    fn folklore_is_named() {
        assert_eq!(
            ids(&[("PYTORCH_MAX_SPLIT_SIZE_MB", "512")]),
            ["variable-does-not-exist"]
        );
        assert_eq!(
            ids(&[("TORCH_USE_HIP_DSA", "1")]),
            ["variable-compile-time"]
        );
        assert_eq!(
            ids(&[("AMD_SERIALIZE_KERNEL", "3")]),
            ["debug-variable-left-on"]
        );
        assert_eq!(ids(&[("AMD_SERIALIZE_KERNEL", "0")]), [] as [&str; 0]);
        assert_eq!(
            ids(&[("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments: True")]),
            ["expandable-segments"]
        );
    }

    #[test]
    fn slips_are_named_and_real_names_are_not() {
        assert_eq!(
            ids(&[("HSA_OVERRIDE_GFX_VERISON", "10.3.0")]),
            ["variable-misspelled"]
        );
        assert_eq!(ids(&[("HIP_VISIBLE_DEVICE", "0")]), ["variable-misspelled"]);
        assert_eq!(
            ids(&[
                ("HSA_OVERRIDE_GFX_VERSION_1", "10.3.0"),
                ("HIP_PATH", "/opt"),
                ("AMD_LOG_LEVEL", "0")
            ]),
            [] as [&str; 0]
        );
    }

    #[test]
    fn distance_counts_letters() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "ab"), 2);
    }
}
