//! `surefoot explain`: explains error messages.

use doctor::answer::Reader;
use doctor::encoding::{Decoder, is_binary};
use doctor::explain::{Catalogue, Explanation, Hints};
use doctor::report::explanation_text;
use std::fs::{self, File};
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

    /// The log is from this machine: compare its numbers with the RAM of this machine
    #[arg(long)]
    here: bool,

    /// Know the errors of this file as well, which is written like those of `crates/doctor/catalogue`
    #[arg(long, value_name = "FILE")]
    catalogue: Option<PathBuf>,

    /// Print only commands, at most three, whose output would settle what is uncertain
    #[arg(long)]
    ask: bool,
}

/// Explains a log.
pub(crate) fn run(args: &Args, json: bool) -> Result<Outcome, Failure> {
    if args.file.as_os_str() == "-" && io::stdin().is_terminal() {
        let end = if cfg!(windows) {
            "Ctrl-Z and Enter"
        } else {
            "Ctrl-D"
        };
        eprintln!("surefoot: paste the messages, then press {end}");
    }
    let ram = if args.here {
        live::machine(&Python::Skip).memory.total
    } else {
        None
    };
    let catalogue = match &args.catalogue {
        Some(path) => catalogue_with(path)?,
        None => Catalogue::built_in(),
    };
    let mut reader = Reader::new(Hints { ram }, catalogue);
    let name = if args.file.as_os_str() == "-" {
        "stdin".to_owned()
    } else {
        args.file.display().to_string()
    };
    feed(&args.file, &mut reader)
        .map_err(|error| Failure::usage(format_args!("cannot read {name}: {error}")))?;
    let explanation = reader.finish().explanation;
    if args.ask {
        output::print(&to_ask(&explanation, json)?)?;
    } else if json {
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

/// The catalogue with the entries of one more file.
fn catalogue_with(path: &Path) -> Result<&'static Catalogue, Failure> {
    let name = path.display().to_string();
    let text = fs::read_to_string(path)
        .map_err(|error| Failure::usage(format_args!("cannot read {name}: {error}")))?;
    Catalogue::with(&name, &text).map_err(Failure::usage)
}

/// The commands to run next, as lines or as a JSON list.
fn to_ask(explanation: &Explanation, json: bool) -> Result<String, Failure> {
    let commands = explanation.to_ask();
    if json {
        return Ok(format!("{}\n", serde_json::to_string_pretty(&commands)?));
    }
    if commands.is_empty() {
        return Ok("Nothing to ask: the answer is certain.\n".to_owned());
    }
    let lines = commands.iter().map(|command| format!("    {command}\n"));
    Ok(format!(
        "Run these and add their output to the text:\n{}",
        lines.collect::<String>()
    ))
}

/// Reads the log in pieces, since it may be larger than memory.
fn feed(path: &Path, reader: &mut Reader) -> io::Result<()> {
    let mut from: Box<dyn Read> = if path == Path::new("-") {
        Box::new(io::stdin().lock())
    } else {
        Box::new(File::open(path)?)
    };
    let mut piece = vec![0; 256 << 10];
    let mut decoder = Decoder::default();
    // Only the first piece is checked; an archive is not read any further.
    let mut is_text = None;
    loop {
        match from.read(&mut piece) {
            Ok(0) => break,
            Ok(length) => decoder.read(&piece[..length], |text| {
                if *is_text.get_or_insert_with(|| !is_binary(text)) {
                    reader.read(text);
                }
            }),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if is_text == Some(false) {
            return Err(io::Error::other("it is not a text file"));
        }
    }
    decoder.finish(|text| reader.read(text));
    Ok(())
}
