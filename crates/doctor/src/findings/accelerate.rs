//! Accelerate: whether its configuration fits this machine.
//!
//! Its configuration counts for every program that starts through it, and outlives the
//! machine that it was written for.

use super::{Check, Finding, Severity};
use crate::plan::Plan;
use crate::wheels;
use platform::Gfx;
use platform::machine::{Gpu, Machine};
use platform::python::Python;

const SOURCE: &str = "https://huggingface.co/docs/accelerate/package_reference/cli";

pub(super) fn find(machine: &Machine, plan: &Plan, found: &mut Vec<Finding>) {
    let Some(python) = &machine.python else {
        return;
    };
    if !python.has("accelerate") {
        return;
    }
    too_old(python, found);
    let Some(picked) = plan.pick.and_then(|index| machine.gpus.get(index)) else {
        return;
    };
    on_cpu(machine, python, found);
    precision(machine, python, picked, found);
    processes(machine, python, plan, found);
}

/// A key of its file; a variable of the environment outranks it, as in Accelerate.
fn setting<'a>(machine: &'a Machine, python: &'a Python, key: &str) -> Option<(String, &'a str)> {
    let variable = format!("ACCELERATE_{}", key.to_ascii_uppercase());
    if let Some(value) = machine.variable(&variable) {
        return Some((format!("{variable}={value}"), value));
    }
    let value = python.accelerate.get(key)?.as_str();
    Some((
        format!("`{key}: {value}` in Accelerate's default_config.yaml"),
        value,
    ))
}

fn too_old(python: &Python, found: &mut Vec<Finding>) {
    let version = &python.packages["accelerate"];
    let is_old = wheels::major_minor(version).is_some_and(|version| version < (0, 26));
    if python.has("transformers") && is_old {
        found.push(
            Finding::new(
                Check::Python,
                Severity::Warning,
                "accelerate-too-old",
                "Accelerate is too old for the Trainer of transformers",
            )
            .seen(format!(
                "accelerate {version} beside transformers {}.",
                python.packages["transformers"]
            ))
            .why("The Trainer refuses to start with a version before 0.26.")
            .fix(["pip install -U accelerate"])
            .source("https://huggingface.co/docs/transformers/main/en/accelerate"),
        );
    }
}

fn on_cpu(machine: &Machine, python: &Python, found: &mut Vec<Finding>) {
    if let Some((seen, _)) = setting(machine, python, "use_cpu")
        .filter(|(_, value)| ["true", "yes", "1"].contains(&value.to_ascii_lowercase().as_str()))
    {
        found.push(
            Finding::new(
                Check::Python,
                Severity::Warning,
                "accelerate-on-cpu",
                "Accelerate is told to train on the CPU",
            )
            .seen(seen)
            .why("Every program that starts through it ignores the GPU, without a word.")
            .fix(["accelerate config  # and answer no to training on the CPU only"])
            .source(SOURCE),
        );
    }
}

/// bf16 where the chip has none. fp16 works on every GPU that HIP supports.
fn precision(machine: &Machine, python: &Python, picked: &Gpu, found: &mut Vec<Finding>) {
    let lacks_bf16 =
        |gfx: Gfx| gfx.major == 10 || gfx.major == 9 && gfx.minor == 0 && gfx.stepping < 8;
    let Some((seen, value)) = setting(machine, python, "mixed_precision") else {
        return;
    };
    let value = value.to_ascii_lowercase();
    if value == "bf16" && picked.gfx.is_some_and(lacks_bf16) {
        found.push(
            Finding::new(
                Check::Python,
                Severity::Warning,
                "accelerate-bf16",
                "Accelerate is told to use bf16, which this GPU lacks",
            )
            .seen(format!("{seen}, on {}.", picked.name()))
            .why("bf16 is converted to fp32 and back: slower than fp16, and with less precision.")
            .fix(["accelerate config  # mixed precision: fp16, or no"])
            .source(
                "https://github.com/comfyanonymous/ComfyUI/blob/master/comfy/model_management.py",
            ),
        );
    } else if value == "fp8"
        && picked
            .gfx
            .is_some_and(|gfx| gfx.major != 9 || gfx.minor < 4)
    {
        found.push(
            Finding::new(Check::Python, Severity::Warning, "accelerate-fp8", "Accelerate is told to use fp8, which needs another GPU")
                .seen(format!("{seen}, on {}.", picked.name()))
                .why("Its fp8 goes through libraries that exist for Instinct MI300 and newer, and for NVIDIA.")
                .fix(["accelerate config  # mixed precision: bf16 or fp16"])
                .source("https://huggingface.co/docs/accelerate/usage_guides/low_precision_training"),
        );
    }
}

/// More processes than GPUs that are meant: each takes one, also the integrated GPU.
fn processes(machine: &Machine, python: &Python, plan: &Plan, found: &mut Vec<Finding>) {
    let Some((seen, wanted)) = setting(machine, python, "num_processes")
        .and_then(|(seen, value)| Some((seen, value.parse::<usize>().ok()?)))
    else {
        return;
    };
    let usable = plan.visible.len();
    if wanted > usable {
        let rest = match plan.hide.len() {
            0 => String::new(),
            hidden => format!("; {hidden} more must stay hidden"),
        };
        found.push(
            Finding::new(Check::Python, Severity::Warning, "accelerate-processes", "Accelerate starts more processes than there are GPUs to train on")
                .seen(format!("{seen}; {usable} to train on{rest}."))
                .why("Each process takes a GPU of its own: one gets the integrated GPU, or none, and all wait for it.")
                .fix([format!("accelerate launch --num_processes {usable} …  # or accelerate config")])
                .source(SOURCE),
        );
    }
}
