//! What all subcommands share: exit codes, printing and logging.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

/// The result of a subcommand that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Exit code 0.
    Fine,
    /// Exit code 3: `doctor` (or `probe`) found errors, which are already on stdout.
    FoundErrors,
    /// The exit code of a child process, passed on.
    Child(u8),
}

/// Why a subcommand failed; determines the exit code.
#[derive(Debug)]
pub enum Failure {
    /// Exit code 2: the command line or a config is wrong.
    Usage(anyhow::Error),
    /// Exit code 1: the job itself failed.
    Job(anyhow::Error),
}

impl Failure {
    /// A mistake in the command line.
    pub fn usage(message: impl std::fmt::Display) -> Self {
        Self::Usage(anyhow::anyhow!("{message}"))
    }

    /// The same, marked as the failure of one of several processes that train together, unless it is the first or the
    /// message already says so.
    pub fn of_rank(self, rank: usize) -> Self {
        let named = |error: anyhow::Error| {
            let known = rank == 0 || error.to_string().starts_with("rank ");
            match known {
                true => error,
                false => error.context(format!("rank {rank}")),
            }
        };
        match self {
            Self::Usage(error) => Self::Usage(named(error)),
            Self::Job(error) => Self::Job(named(error)),
        }
    }
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Job(error.into())
    }
}

/// Turns the result of a subcommand into the exit code of the process, and prints
/// the failure (with its causes) to stderr.
pub fn exit_code(result: Result<Outcome, Failure>) -> ExitCode {
    code(result).into()
}

/// The same as a number.
pub fn code(result: Result<Outcome, Failure>) -> u8 {
    let (error, code) = match result {
        Ok(Outcome::Fine) => return 0,
        Ok(Outcome::FoundErrors) => return 3,
        Ok(Outcome::Child(code)) => return code,
        Err(Failure::Job(error)) => (error, 1),
        Err(Failure::Usage(error)) => (error, 2),
    };
    // If the reader is gone (`| head`), there is nothing to report.
    if error
        .downcast_ref::<io::Error>()
        .is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
    {
        return 0;
    }
    // Nothing can be reported if stderr is closed, too.
    let _ = writeln!(io::stderr(), "surefoot: {error:#}");
    code
}

/// Writes a whole result to stdout.
///
/// # Errors
/// The error of the write; a broken pipe becomes a quiet success in [`exit_code`].
pub fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

/// Whether text for `stream` may carry colour: a terminal that understands it, and no `NO_COLOR`
/// (<https://no-color.org>: set and not empty).
pub fn wants_colour(stream: &impl IsTerminal) -> bool {
    stream.is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
        && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
        && understands_colour()
}

/// The Windows console prints escape sequences literally until it is configured to interpret them.
fn understands_colour() -> bool {
    #[cfg(windows)]
    {
        anstyle_query::windows::enable_ansi_colors().unwrap_or(false)
    }
    #[cfg(not(windows))]
    true
}

/// Sends logs to stderr; `RUST_LOG` chooses the level (default: warnings).
pub fn init_logging() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(wants_colour(&io::stderr()))
        .without_time()
        .init();
}
