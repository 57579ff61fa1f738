//! `surefoot env`: prints the variables that this machine needs, for a shell to evaluate.

use doctor::plan::{Variable, plan_with};
use std::fmt::Write as _;
use surefoot_cli::live::{self, Python};
use surefoot_cli::output::{self, Failure, Outcome};

/// Print the variables that this machine needs, and nothing else: eval "$(surefoot env)"
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The shell
    #[arg(long, value_enum, default_value_t = default_shell())]
    shell: Shell,

    /// Train on this GPU instead of the selected one
    #[arg(long, value_name = "INDEX")]
    gpu: Option<usize>,

    /// Examine this Python, or environment, instead of the active one
    #[arg(long, value_name = "PATH")]
    python: Option<String>,
}

/// A syntax for assignments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Shell {
    /// bash, zsh, sh
    Bash,
    /// fish
    Fish,
    /// PowerShell
    Powershell,
    /// The command prompt of Windows: save it as a .bat file and `call` that
    Cmd,
    /// A JSON object of names and values
    Json,
}

/// The usual shell of this system.
const fn default_shell() -> Shell {
    if cfg!(windows) {
        Shell::Powershell
    } else {
        Shell::Bash
    }
}

/// Prints the environment.
pub(crate) fn run(args: &Args, json: bool) -> Result<Outcome, Failure> {
    let python = args.python.clone().map_or(Python::Active, Python::At);
    let machine = live::machine(&python);
    if let Some(gpu) = args.gpu.filter(|&gpu| gpu >= machine.gpus.len()) {
        return Err(Failure::usage(no_such_gpu(gpu, machine.gpus.len())));
    }
    let plan = plan_with(&machine, args.gpu);
    let shell = if json { Shell::Json } else { args.shell };
    // Something may be known about a GPU that only ROCm sees.
    let has_gpu = !machine.gpus.is_empty() || !plan.variables.is_empty();
    if !has_gpu && shell == Shell::Json {
        eprintln!("surefoot: {NO_GPU}");
    }
    output::print(&assignments(shell, &plan.variables, has_gpu))?;
    Ok(Outcome::Fine)
}

/// The message for a `--gpu` that does not exist.
pub(crate) fn no_such_gpu(gpu: usize, count: usize) -> String {
    match count {
        0 => format!("--gpu {gpu}: HIP sees no GPU on this machine (`surefoot doctor` says why)"),
        1 => format!("--gpu {gpu}: this machine has one GPU, number 0"),
        count => format!("--gpu {gpu}: this machine has GPUs 0 to {}", count - 1),
    }
}

/// Without a GPU its needs are unknown.
const NO_GPU: &str = "no AMD GPU that HIP can use was found, so the variables it needs are unknown (`surefoot doctor` says why)";

/// The assignments, each with its reason in a comment above it.
fn assignments(shell: Shell, variables: &[Variable], has_gpu: bool) -> String {
    if shell == Shell::Json {
        let object: serde_json::Map<String, serde_json::Value> = variables
            .iter()
            .map(|variable| (variable.name.clone(), variable.value.clone().into()))
            .collect();
        return format!("{:#}\n", serde_json::Value::Object(object));
    }
    let mut text = String::new();
    let (remark, end) = match shell {
        // A .bat file prints each line unless it begins with `@`.
        Shell::Cmd => ("@rem", "\r\n"),
        _ => ("#", "\n"),
    };
    if !has_gpu {
        text = format!("{remark} {NO_GPU}{end}");
    } else if variables.is_empty() {
        text = format!("{remark} this machine needs no variables{end}");
    }
    for Variable { name, value, why } in variables {
        // Writing to a `String` cannot fail. Values are numbers, versions and words.
        let _ = match shell {
            Shell::Fish => writeln!(text, "# {why}\nset -gx {name} {value}"),
            Shell::Cmd => write!(text, "@rem {why}\r\n@set \"{name}={value}\"\r\n"),
            Shell::Powershell => writeln!(text, "# {why}\n$env:{name} = \"{value}\""),
            Shell::Bash | Shell::Json => writeln!(text, "# {why}\nexport {name}={value}"),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shell_gets_its_own_syntax() {
        let variables = [Variable {
            name: "ROCR_VISIBLE_DEVICES".into(),
            value: "1,0".into(),
            why: "hides GPU 2".into(),
        }];
        assert_eq!(
            assignments(Shell::Bash, &variables, true),
            "# hides GPU 2\nexport ROCR_VISIBLE_DEVICES=1,0\n"
        );
        assert_eq!(
            assignments(Shell::Fish, &variables, true),
            "# hides GPU 2\nset -gx ROCR_VISIBLE_DEVICES 1,0\n"
        );
        assert_eq!(
            assignments(Shell::Powershell, &variables, true),
            "# hides GPU 2\n$env:ROCR_VISIBLE_DEVICES = \"1,0\"\n"
        );
        assert_eq!(
            assignments(Shell::Cmd, &variables, true),
            "@rem hides GPU 2\r\n@set \"ROCR_VISIBLE_DEVICES=1,0\"\r\n"
        );
        assert_eq!(
            assignments(Shell::Json, &variables, true),
            "{\n  \"ROCR_VISIBLE_DEVICES\": \"1,0\"\n}\n"
        );
    }

    #[test]
    fn without_a_gpu_the_needed_variables_are_unknown() {
        let text = assignments(Shell::Bash, &[], false);
        assert!(text.starts_with("# no AMD GPU"), "{text}");
        let text = assignments(Shell::Cmd, &[], false);
        assert!(text.starts_with("@rem no AMD GPU"), "{text}");
        assert_eq!(assignments(Shell::Json, &[], false), "{}\n");
    }

    #[test]
    fn nothing_needed_is_still_valid_for_eval() {
        assert_eq!(
            assignments(Shell::Bash, &[], true),
            "# this machine needs no variables\n"
        );
    }
}
