//! `surefoot run -- COMMAND`: any program, with the environment that this machine
//! needs, and an explanation when it dies.
//!
//! ```text
//! facts ─▶ plan ─▶ environment ─▶ child (signals in, exit code out)
//!                                   │ stderr, through us
//!                                   ▼
//!                    its last output + how it ended + memory ─▶ explanation
//! ```

mod activation;
mod child;

use super::env::no_such_gpu;
use platform::explain::ending::{self, Ending, KernelEvents};
use platform::explain::{Hints, explain_with};
use platform::findings::{Check, Severity, findings, seen_by_hip};
use platform::machine::Gpu;
use platform::memory::HostMemory;
use platform::plan::{Plan, VISIBILITY, plan_with};
use platform::report::explanation_text;
use platform::snapshot::Content;
use platform::source::Source;
use platform::{Bytes, Machine};
use std::ffi::OsString;
use std::io;
use std::process::Command;
use surefoot_cli::gradients;
use surefoot_cli::live::{self, Live, Python};
use surefoot_cli::output::{self, Failure, Outcome};

/// Launch a command with the variables that this machine needs; explain it when it dies
///
/// Variables that are set already are respected, and named when they are harmful.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Make launches and copies wait for each other, so that an error names the right call (slow)
    #[arg(long)]
    debug: bool,

    /// Run on this GPU instead of the one that is picked
    #[arg(long, value_name = "INDEX")]
    gpu: Option<usize>,

    /// Switch hip-alloc on in Python programs
    #[arg(long)]
    alloc: bool,

    /// Look at this Python, or environment, instead of the active one
    #[arg(long, value_name = "PATH")]
    python: Option<String>,

    /// Do not read what the command writes to stderr, and explain nothing
    #[arg(long)]
    no_explain: bool,

    /// The command and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND"
    )]
    command: Vec<OsString>,
}

/// What serialises launches and copies, and makes the runtime say what it does.
const DEBUG: [(&str, &str); 3] = [
    ("AMD_SERIALIZE_KERNEL", "3"),
    ("AMD_SERIALIZE_COPY", "3"),
    ("AMD_LOG_LEVEL", "3"),
];

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<Outcome, Failure> {
    let python = args.python.clone().map_or(Python::Active, Python::At);
    let machine = live::machine(&python);
    if let Some(gpu) = args.gpu.filter(|&gpu| gpu >= machine.gpus.len()) {
        return Err(Failure::usage(no_such_gpu(gpu, machine.gpus.len())));
    }
    let plan = plan_with(&machine, args.gpu);
    gradients::refuse_wrong_ones(device_zero(&machine, &plan, args.gpu))?;
    name_what_is_harmful(&machine, &plan, args);
    let (program, rest) = args
        .command
        .split_first()
        .ok_or_else(|| Failure::usage("no command given"))?;
    let mut command = Command::new(program);
    command.args(rest);
    set_environment(&mut command, &machine, &plan, args)?;

    let before = kernel_events();
    let ended = child::run(command, !args.no_explain).map_err(|error| {
        let program = program.to_string_lossy();
        match error.kind() {
            io::ErrorKind::NotFound => {
                Failure::usage(format_args!("`{program}`: command not found"))
            }
            io::ErrorKind::PermissionDenied => {
                Failure::usage(format_args!("`{program}`: not executable"))
            }
            _ => Failure::Job(anyhow::Error::new(error).context(format!("cannot run `{program}`"))),
        }
    })?;
    if !args.no_explain && !ended.was_asked_to_stop {
        explain_death(&machine, &ended, before);
    }
    Ok(Outcome::Child(exit_code(ended.ending)))
}

/// The GPU that the command will find as its first: the one asked for, else what the
/// user's own variables leave, else the one that is picked, else whatever is there.
fn device_zero<'a>(machine: &'a Machine, plan: &Plan, wanted: Option<usize>) -> Option<&'a Gpu> {
    let is_masked = VISIBILITY
        .iter()
        .any(|name| machine.variables.contains_key(*name));
    let index = match wanted.or(plan.pick) {
        _ if wanted.is_none() && is_masked => seen_by_hip(machine).first().copied()?,
        Some(index) => index,
        None => 0,
    };
    machine.gpus.get(index)
}

/// As a shell reports it: 128 + the number of the signal.
fn exit_code(ending: Ending) -> u8 {
    match ending {
        Ending::Code(code) => u8::try_from(code & 0xff).unwrap_or(1),
        Ending::Signal(number) => u8::try_from(128 + number).unwrap_or(255),
    }
}

fn set_environment(
    command: &mut Command,
    machine: &Machine,
    plan: &Plan,
    args: &Args,
) -> Result<(), Failure> {
    for variable in &plan.variables {
        command.env(&variable.name, &variable.value);
    }
    if args.gpu.is_some() {
        // Asked for here and now: that outranks what was set before.
        let chosen = if machine.uses_rocr() {
            "ROCR_VISIBLE_DEVICES"
        } else {
            "HIP_VISIBLE_DEVICES"
        };
        for name in VISIBILITY {
            command.env_remove(name);
        }
        let list: Vec<String> = plan.visible.iter().map(usize::to_string).collect();
        command.env(chosen, list.join(","));
    }
    if args.debug {
        for (name, value) in DEBUG {
            if std::env::var_os(name).is_none() {
                command.env(name, value);
            }
        }
    }
    if args.alloc || std::env::var("HIP_ALLOC").is_ok_and(|value| value == "1") {
        activation::activate(command)?;
    }
    Ok(())
}

/// The user's settings are respected; what they break is said once, before the start.
fn name_what_is_harmful(machine: &Machine, plan: &Plan, args: &Args) {
    let is_setting = |check| {
        matches!(
            check,
            Check::Override | Check::Visibility | Check::Variables
        )
    };
    for finding in findings(machine, plan) {
        let concerns = finding.severity == Severity::Error
            || finding.severity == Severity::Warning && is_setting(finding.check);
        // What the plan mends is no longer wrong, and debugging is on purpose.
        let mended = matches!(
            finding.id.as_str(),
            "igpu-in-front" | "igpu-visible" | "override-missing"
        ) || args.debug && finding.id == "debug-variable-left-on";
        if concerns && !mended {
            let advice = match finding.fix.first() {
                Some(step) if is_setting(finding.check) => format!("`{step}`"),
                _ => "`surefoot doctor` says more".to_owned(),
            };
            eprintln!(
                "surefoot: {} ({}); {advice}",
                finding.title,
                finding.seen.trim_end_matches('.')
            );
        }
    }
}

/// What the death of the child looks like from outside.
fn explain_death(machine: &Machine, ended: &child::Ended, before: KernelEvents) {
    let after = kernel_events();
    let events = KernelEvents {
        oom_kills: after.oom_kills.saturating_sub(before.oom_kills),
        cgroup_oom_kills: after
            .cgroup_oom_kills
            .saturating_sub(before.cgroup_oom_kills),
    };
    let Some(how) = ending::describe(ended.ending, events) else {
        return;
    };
    let explanation = explain_with(
        &ended.last_output,
        Hints {
            ram: machine.memory.total,
        },
    );
    eprintln!("\nsurefoot: the command failed: {how}");
    eprintln!("surefoot: memory now: {}", memory_now(machine));
    if explanation.matches.is_empty() {
        eprintln!(
            "surefoot: its last output has no message we know; `surefoot doctor` looks at the machine"
        );
    } else {
        eprint!(
            "\n{}",
            explanation_text(&explanation, output::wants_colour(&io::stderr()))
        );
    }
}

/// One line about RAM, swap and the memory of each GPU.
fn memory_now(machine: &Machine) -> String {
    let read = |path: &str| match Live.read(path) {
        Some(Content::Text(text)) => Some(text),
        _ => None,
    };
    let mut words = Vec::new();
    if let Some(memory) = read("/proc/meminfo").map(|text| HostMemory::parse(&text)) {
        let size =
            |bytes: Option<Bytes>| bytes.map_or_else(|| "?".to_owned(), |bytes| bytes.to_string());
        words.push(format!(
            "{} of {} RAM available",
            size(memory.available),
            size(memory.total)
        ));
        if memory.swap_total.is_some_and(|total| total > Bytes::ZERO) {
            words.push(format!(
                "{} of {} swap free",
                size(memory.swap_free),
                size(memory.swap_total)
            ));
        }
    }
    for gpu in &machine.gpus {
        let Some(node) = gpu
            .render_node
            .as_ref()
            .and_then(|path| path.strip_prefix("/dev/dri/"))
        else {
            continue;
        };
        let used = |name: &str| {
            read(&format!("/sys/class/drm/{node}/device/{name}"))
                .and_then(|text| Bytes::parse(&text))
        };
        if let (Some(vram), Some(gtt)) = (used("mem_info_vram_used"), used("mem_info_gtt_used")) {
            words.push(format!(
                "GPU {}: {vram} VRAM and {gtt} GTT in use",
                gpu.index
            ));
        }
    }
    words.join(", ")
}

/// How often the kernel has killed for memory, so far.
fn kernel_events() -> KernelEvents {
    let counter = |path: &str, key: &str| {
        let Some(Content::Text(text)) = Live.read(path) else {
            return 0;
        };
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
        value
            .and_then(|value| value.trim().parse().ok())
            .unwrap_or(0)
    };
    let cgroup = match Live.read("/proc/self/cgroup") {
        Some(Content::Text(text)) => text
            .lines()
            .find_map(|line| line.strip_prefix("0::"))
            .map(str::to_owned),
        _ => None,
    };
    let events = format!(
        "/sys/fs/cgroup{}/memory.events",
        cgroup.as_deref().unwrap_or_default().trim_end_matches('/')
    );
    KernelEvents {
        oom_kills: counter("/proc/vmstat", "oom_kill"),
        cgroup_oom_kills: counter(&events, "oom_kill"),
    }
}
