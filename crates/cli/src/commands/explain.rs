//! `surefoot explain`: what an error message means.

use platform::dump;
use platform::explain::{Explainer, Hints};
use platform::report::explanation_text;
use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};
use surefoot_cli::live::{self, Python};
use surefoot_cli::output::{self, Failure, Outcome};

/// Explain the errors in a log: cause, remedy, source
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The log (`-`: stdin)
    #[arg(default_value = "-")]
    file: PathBuf,

    /// The log comes from this machine: judge its numbers by the RAM of this machine
    #[arg(long)]
    here: bool,
}

/// Explains a log.
pub(crate) fn run(args: &Args, json: bool) -> Result<Outcome, Failure> {
    if args.file.as_os_str() == "-" && io::stdin().is_terminal() {
        eprintln!("surefoot: paste the messages, then press Ctrl-D");
    }
    let ram = if args.here {
        live::machine(&Python::Skip).memory.total
    } else {
        None
    };
    let mut explainer = Explainer::new(Hints { ram });
    let name = if args.file.as_os_str() == "-" {
        "stdin".to_owned()
    } else {
        args.file.display().to_string()
    };
    feed(&args.file, &mut explainer)
        .map_err(|error| Failure::usage(format_args!("cannot read {name}: {error}")))?;
    let explanation = explainer.finish();
    if json {
        output::print(&format!(
            "{}\n",
            serde_json::to_string_pretty(&explanation)?
        ))?;
    } else {
        output::print(&explanation_text(
            &explanation,
            output::wants_colour(&io::stdout()),
        ))?;
    }
    Ok(Outcome::Fine)
}

/// Reads the log in pieces: it can be larger than the memory.
fn feed(path: &Path, explainer: &mut Explainer) -> io::Result<()> {
    let mut from: Box<dyn Read> = if path == Path::new("-") {
        Box::new(io::stdin().lock())
    } else {
        Box::new(File::open(path)?)
    };
    let mut piece = vec![0; 256 << 10];
    let mut is_first = true;
    loop {
        let length = match from.read(&mut piece) {
            Ok(0) => return Ok(()),
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if is_first && matches!(piece[..length], [0xff, 0xfe, ..] | [0xfe, 0xff, ..]) {
            // PowerShell's UTF-16 cannot be cut anywhere; such logs are short.
            let mut bytes = piece[..length].to_vec();
            from.read_to_end(&mut bytes)?;
            explainer.read(dump::decode(&bytes).as_bytes());
            return Ok(());
        }
        is_first = false;
        explainer.read(&piece[..length]);
    }
}
