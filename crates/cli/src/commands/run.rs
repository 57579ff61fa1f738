//! `surefoot run -- COMMAND`: runs any program with the environment that this machine needs, and explains its
//! failure.
//!
//! ```text
//! facts ─▶ plan ─▶ environment ─▶ child (signals in, exit code out)
//!                                   │ its output, through us
//!                                   ▼        (a page fault: once more, `restart`)
//!   last output + how it ended + memory and kernel log until then ─▶ explanation
//! ```

mod child;
mod restart;
mod streams;
mod watch;

use super::activation;
use super::env::no_such_gpu;
use child::Ended;
use doctor::explain::ending::{self, Ending};
use doctor::explain::{Explainer, Hints};
use doctor::findings::{Check, Severity, findings, seen_by_hip};
use doctor::plan::{Plan, VISIBILITY, Variable, WITHOUT_HIPBLASLT, plan_with};
use doctor::report::explanation_text;
use doctor::restart::Restarts;
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

/// Launch a command with the variables that this machine needs; explain it if it fails
///
/// Variables that are already set are respected, and reported if they are harmful.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Serialise launches and copies, so that an error names the right call (slow)
    #[arg(long)]
    debug: bool,

    /// Run on this GPU instead of the selected one
    #[arg(long, value_name = "INDEX")]
    gpu: Option<usize>,

    /// Enable hip-alloc in Python programs
    #[arg(long)]
    alloc: bool,

    /// Examine this Python, or environment, instead of the active one
    #[arg(long, value_name = "PATH")]
    python: Option<String>,

    /// Do not read the command's output, and explain nothing
    #[arg(long)]
    no_explain: bool,

    /// Start the command again when a page fault on the GPU ended it, at most three times, and only while it comes
    /// further; `surefoot train` resumes from its newest checkpoint, other commands are given SUREFOOT_RESTARTS=1, 2, 3
    #[arg(long, conflicts_with = "no_explain")]
    restart_on_fault: bool,

    /// The command and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND"
    )]
    command: Vec<OsString>,
}

/// Variables that serialise launches and copies, and enable logging of the runtime.
const DEBUG: [(&str, &str); 3] = [
    ("AMD_SERIALIZE_KERNEL", "3"),
    ("AMD_SERIALIZE_COPY", "3"),
    ("AMD_LOG_LEVEL", "3"),
];

const SIGPIPE: i32 = 13;

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<Outcome, Failure> {
    let python = args.python.clone().map_or(Python::Active, Python::At);
    let mut machine = live::machine(&python);
    // Some of what a machine needs it does not need with hip-alloc, which our trainer uses by itself.
    if args.alloc {
        machine.variables.insert("HIP_ALLOC".into(), "1".into());
    } else if restart::is_trainer(&args.command) {
        let own = machine.variables.entry("HIP_ALLOC".into());
        own.or_insert_with(|| "1".into());
    }
    if let Some(gpu) = args.gpu.filter(|&gpu| gpu >= machine.gpus.len()) {
        return Err(Failure::usage(no_such_gpu(gpu, machine.gpus.len())));
    }
    let plan = plan_with(&machine, args.gpu);
    unsafe_gpu::refuse_wrong_ones(device_zero(&machine, &plan, args.gpu))?;
    name_what_is_harmful(&machine, &plan, args);
    name_what_costs_time(&plan);
    let mut words = args.command.clone();
    let mut restarts = Restarts::default();
    let ended = loop {
        let ended = run_once(&words, &machine, &plan, args, restarts.count())?;
        let again = args.restart_on_fault && !ended.was_asked_to_stop;
        match again.then(|| restart::after(&ended, &words, &mut restarts)) {
            Some(Some(next)) => words = next,
            _ => break ended,
        }
    };
    // Windows has 32-bit exit codes, such as that of an access violation.
    #[cfg(windows)]
    if let Ending::Code(code) = ended.ending {
        std::process::exit(code);
    }
    Ok(Outcome::Child(exit_code(ended.ending)))
}

/// Runs a command to its end, and explains a bad one.
fn run_once(
    words: &[OsString],
    machine: &Machine,
    plan: &Plan,
    args: &Args,
    restarts: u32,
) -> Result<Ended, Failure> {
    let (program, rest) = words
        .split_first()
        .ok_or_else(|| Failure::usage("no command given"))?;
    let mut command = Command::new(program);
    command.args(rest);
    set_environment(&mut command, machine, plan, args)?;
    if restarts > 0 {
        command.env("SUREFOOT_RESTARTS", restarts.to_string());
    }
    let watch = Watch::start(machine);
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
    // If the reader of its stdout is gone (`| head`), the program did not fail by itself.
    let lost_its_reader = ended.ending == Ending::Signal(SIGPIPE);
    if !args.no_explain && !ended.was_asked_to_stop && !lost_its_reader {
        explain_death(machine, &ended, &watch.finish());
    }
    Ok(ended)
}

/// The GPU that the command will see first: the requested one, else what the user's own variables leave visible, else
/// the selected one, else any.
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

/// The exit code as in a shell: 128 + the number of the signal.
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
        // An explicit option outranks variables that were set before.
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

/// The user's settings are respected; harmful ones are reported once, before the start.
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
        // What the plan fixes is no longer wrong, and debugging is intended.
        let mended = matches!(
            finding.id.as_str(),
            "igpu-in-front" | "igpu-visible" | "override-missing"
        ) || args.debug && finding.id == "debug-variable-left-on"
            || finding.id == "lora-may-fault" && !without_hipblaslt(plan).is_empty();
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

/// The assignments by which the plan keeps the command away from hipBLASLt.
fn without_hipblaslt(plan: &Plan) -> Vec<&Variable> {
    let variables = plan.variables.iter();
    variables
        .filter(|variable| WITHOUT_HIPBLASLT.contains(&variable.name.as_str()))
        .collect()
}

/// A variable that makes the command slower is named, with what makes it superfluous.
fn name_what_costs_time(plan: &Plan) {
    let set = without_hipblaslt(plan);
    let Some(why) = set.first().map(|variable| &variable.why) else {
        return;
    };
    let set: Vec<_> = (set.iter())
        .map(|variable| format!("{}={}", variable.name, variable.value))
        .collect();
    eprintln!(
        "surefoot: set {}: {why} (`surefoot run --alloc`)",
        set.join(" ")
    );
}

/// Explains how the child ended.
fn explain_death(machine: &Machine, ended: &Ended, seen: &Seen) {
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
            "surefoot: its last output contains no known error message; `surefoot doctor` examines the machine"
        );
    } else {
        eprint!(
            "\n{}",
            explanation_text(&explanation, output::wants_colour(&io::stderr()))
        );
    }
}
