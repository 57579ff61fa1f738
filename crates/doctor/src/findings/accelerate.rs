//! Accelerate: whether its configuration fits this machine.

use super::{Found, said};
use crate::plan::Plan;
use crate::wheels;
use platform::Gfx;
use platform::machine::{Gpu, Machine};
use platform::python::Python;

pub(super) fn find(machine: &Machine, plan: &Plan, found: &mut Found) {
    let python = machine.python.as_ref();
    let Some(python) = python.filter(|python| python.has("accelerate")) else {
        return;
    };
    let version = &python.packages["accelerate"];
    let is_old = wheels::major_minor(version).is_some_and(|version| version < (0, 26));
    if python.has("transformers") && is_old {
        let transformers = &python.packages["transformers"];
        found.add(
            &said::ACCELERATE_TOO_OLD,
            &[("version", version), ("transformers", transformers)],
        );
    }
    let Some(picked) = plan.pick.and_then(|index| machine.gpus.get(index)) else {
        return;
    };
    let is_yes = |value: &str| ["true", "yes", "1"].contains(&&*value.to_ascii_lowercase());
    if let Some((setting, _)) =
        setting(machine, python, "use_cpu").filter(|(_, value)| is_yes(value))
    {
        found.add(&said::ACCELERATE_ON_CPU, &[("setting", &setting)]);
    }
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

/// bf16 where the chip has none, or fp8. fp16 works on every GPU that HIP supports.
fn precision(machine: &Machine, python: &Python, picked: &Gpu, found: &mut Found) {
    let lacks_bf16 =
        |gfx: Gfx| gfx.major == 10 || gfx.major == 9 && gfx.minor == 0 && gfx.stepping < 8;
    let lacks_fp8 = |gfx: Gfx| gfx.major != 9 || gfx.minor < 4;
    let Some((setting, value)) = setting(machine, python, "mixed_precision") else {
        return;
    };
    let said = match value.to_ascii_lowercase().as_str() {
        "bf16" if picked.gfx.is_some_and(lacks_bf16) => &said::ACCELERATE_BF16,
        "fp8" if picked.gfx.is_some_and(lacks_fp8) => &said::ACCELERATE_FP8,
        _ => return,
    };
    found.add(said, &[("setting", &setting), ("gpu", &picked.name())]);
}

/// More processes than GPUs that are meant.
fn processes(machine: &Machine, python: &Python, plan: &Plan, found: &mut Found) {
    let Some((setting, value)) = setting(machine, python, "num_processes") else {
        return;
    };
    let usable = plan.visible.len();
    if value.parse::<usize>().is_ok_and(|wanted| wanted > usable) {
        let hidden = match plan.hide.len() {
            0 => String::new(),
            hidden => format!("; {hidden} more must stay hidden"),
        };
        found.add(
            &said::ACCELERATE_PROCESSES,
            &[
                ("setting", &setting),
                ("usable", &usable),
                ("hidden", &hidden),
            ],
        );
    }
}
