//! `surefoot run -- COMMAND`: any program, with the environment that this machine
//! needs, and an explanation when it dies.
//!
//! ```text
//! facts ─▶ plan ─▶ environment ─▶ child (signals in, exit code out)
//!                                   │ what it prints, through us
//!                                   ▼
//!   its last output + how it ended + memory and kernel log until then ─▶ explanation
//! ```

mod child;
mod streams;
mod watch;
#[cfg(windows)]
mod windows;

use super::activation;
use super::env::no_such_gpu;
use doctor::explain::ending::{self, Ending};
use doctor::explain::{Explainer, Hints};
use doctor::findings::{Check, Severity, findings, seen_by_hip};
use doctor::plan::{Plan, VISIBILITY, plan_with};
use doctor::report::explanation_text;
use platform::Machine;
use platform::machine::Gpu;
use std::ffi::OsString;
use std::io;
use std::process::Command;
use std::sync::atomic::Ordering;
use surefoot_cli::live::{self, Python};
use surefoot_cli::output::{self, Failure, Outcome};
use surefoot_cli::unsafe_gpu;
use watch::{Seen, Watch};

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

    /// Do not read what the command prints, and explain nothing
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

const SIGPIPE: i32 = 13;

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<Outcome, Failure> {
    let python = args.python.clone().map_or(Python::Active, Python::At);
    let machine = live::machine(&python);
    if let Some(gpu) = args.gpu.filter(|&gpu| gpu >= machine.gpus.len()) {
        return Err(Failure::usage(no_such_gpu(gpu, machine.gpus.len())));
    }
    let plan = plan_with(&machine, args.gpu);
    unsafe_gpu::refuse_wrong_ones(device_zero(&machine, &plan, args.gpu))?;
    name_what_is_harmful(&machine, &plan, args);
    let (program, rest) = args
        .command
        .split_first()
        .ok_or_else(|| Failure::usage("no command given"))?;
    let mut command = Command::new(program);
    command.args(rest);
    set_environment(&mut command, &machine, &plan, args)?;

    let watch = Watch::start(&machine);
    let pid = watch.pid();
    let started = |child| pid.store(child, Ordering::SeqCst);
    let ended = child::run(command, !args.no_explain, started).map_err(|error| {
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
    // A reader of its stdout that leaves (`| head`) ends a program without a fault in it.
    let lost_its_reader = ended.ending == Ending::Signal(SIGPIPE);
    if !args.no_explain && !ended.was_asked_to_stop && !lost_its_reader {
        explain_death(&machine, &ended, &watch.finish());
    }
    // Windows has exit codes of 32 bits, such as that of an access violation.
    #[cfg(windows)]
    if let Ending::Code(code) = ended.ending {
        std::process::exit(code);
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
        if let Some((program, arguments)) = args.command.split_first() {
            activation::refuse_isolated_python(program, arguments)?;
        }
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
fn explain_death(machine: &Machine, ended: &child::Ended, seen: &Seen) {
    let Some(how) = ending::describe(ended.ending, seen.events) else {
        return;
    };
    let mut explainer = Explainer::new(Hints {
        ram: machine.memory.total,
    });
    explainer.read(&ended.last_output);
    explainer.read(seen.kernel_log.join("\n").as_bytes());
    let explanation = explainer.finish();
    eprintln!("\nsurefoot: the command failed: {how}");
    eprintln!("surefoot: memory: {}", seen.memory);
    for line in seen.kernel_log.iter().rev().take(3).rev() {
        eprintln!("surefoot: kernel: {line}");
    }
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
