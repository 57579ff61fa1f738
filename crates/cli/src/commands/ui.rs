//! `surefoot ui`: serves a page that shows training runs.

use std::fs::File;
use std::io::Write;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context;
use doctor::report::diagnose;
use platform::detect;
use surefoot_cli::live::{self, Python};
use surefoot_cli::output::{self, Failure, Outcome};
use surefoot_ui::server::{Options, Server};

use super::ui_dev::Vite;

/// Show training runs in a browser
///
/// Prints an address with a token in it. The server only answers this machine; to use it from another one, run
/// `ssh -L 8420:127.0.0.1:8420 HOST` there. Runs go on when it ends.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The folder of runs
    #[arg(long, value_name = "FOLDER", default_value = "runs")]
    runs: PathBuf,

    /// The port; 0 chooses a free one
    #[arg(long, default_value_t = 8420)]
    port: u16,

    /// The address to listen at; with any other than this machine's own it is visible in the network, unencrypted
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    host: IpAddr,

    /// Another name by which browsers may call the server, such as `box.local`; may be repeated
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,

    /// A folder that configs from the page may use besides this one and that of the runs; may be repeated
    #[arg(long, value_name = "FOLDER")]
    data: Vec<PathBuf>,

    /// Open it in the browser
    #[arg(long)]
    open: bool,

    /// Serve the page from its sources in a checkout, with live updates; needs node 20 or newer
    #[arg(long)]
    dev: bool,
}

/// An environment variable with a folder in place of `/`, whose `sys` and `proc` are read for GPUs. For tests.
const SYSTEM: &str = "SUREFOOT_SYSTEM";

/// Serves until Ctrl-C or SIGTERM.
pub(crate) fn run(args: &Args, json: bool) -> Result<Outcome, Failure> {
    let state = state_folder()?;
    let folder = std::env::current_dir().context("cannot tell the current folder")?;
    let vite = args.dev.then(|| Vite::start(&folder)).transpose();
    // A missing folder or variable is a usage error.
    let vite = vite.map_err(|error| Failure::usage(format_args!("{error:#}")))?;
    let options = Options {
        runs: args.runs.clone(),
        address: args.host,
        port: args.port,
        names: args.allow_host.clone(),
        program: std::env::current_exe().context("cannot tell where this executable is")?,
        folder,
        data: args.data.clone(),
        token_file: state.join("ui-token"),
        dev: vite.as_ref().map(|vite| vite.port),
        system: std::env::var_os(SYSTEM).map_or("/".into(), PathBuf::from),
        diagnose: || diagnose(live_machine()),
        dump: || super::doctor::without_home(&live::snapshot(&Python::Active).to_text()),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(8)
        .build()?;
    runtime.block_on(async {
        let server = Server::bind(options)
            .await
            .with_context(|| format!("cannot listen at {}, port {}", args.host, args.port))?;
        let url = server.url();
        if !args.host.is_loopback() {
            eprintln!(
                "surefoot: {} is not this machine alone: whoever sees the traffic sees the token. \
                 `ssh -L` is the safe way",
                args.host
            );
        }
        match json {
            true => output::print(&format!(
                "{}\n",
                serde_json::json!({ "url": url, "port": server.address().port() })
            ))?,
            false => output::print(&format!("{url}\n"))?,
        }
        if args.open
            && let Err(error) = open(&state, &url)
        {
            eprintln!("surefoot: cannot open a browser: {error:#}");
        }
        let asked_to_end = asked_to_end()?;
        server.run(asked_to_end).await;
        anyhow::Ok(())
    })?;
    // A thread that waits for a disk must not keep the process alive.
    runtime.shutdown_background();
    Ok(Outcome::Fine)
}

fn live_machine() -> platform::Machine {
    match std::env::var_os(live::MACHINE) {
        Some(_) => live::machine(&Python::Active),
        None => detect::machine(&live::snapshot(&Python::Active)),
    }
}

/// Completes at Ctrl-C or any other request to end.
#[cfg(unix)]
fn asked_to_end() -> std::io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = terminate.recv() => {}
        }
    })
}

#[cfg(windows)]
fn asked_to_end() -> std::io::Result<impl Future<Output = ()>> {
    use tokio::signal::windows;
    let (mut closed, mut broken) = (windows::ctrl_close()?, windows::ctrl_break()?);
    Ok(async move {
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = closed.recv() => {}
            _ = broken.recv() => {}
        }
    })
}

/// `$XDG_STATE_HOME/surefoot`, or `~/.local/state/surefoot`; on Windows `%LOCALAPPDATA%\surefoot`.
fn state_folder() -> Result<PathBuf, Failure> {
    let folder = |name: &str| {
        let value = std::env::var_os(name).map(PathBuf::from);
        value.filter(|path| path.is_absolute())
    };
    if cfg!(windows) {
        return folder("LOCALAPPDATA")
            .map(|folder| folder.join("surefoot"))
            .ok_or_else(|| Failure::usage("LOCALAPPDATA is not set to a folder for the token"));
    }
    folder("XDG_STATE_HOME")
        .or_else(|| Some(folder("HOME")?.join(".local/state")))
        .map(|folder| folder.join("surefoot"))
        .ok_or_else(|| {
            Failure::usage("neither XDG_STATE_HOME nor HOME is set to a folder for the token")
        })
}

/// Opens a file that redirects to the page: every user can see the arguments of programs, but not our files.
fn open(state: &Path, url: &str) -> anyhow::Result<()> {
    let path = state.join("ui-open.html");
    let _ = std::fs::remove_file(&path);
    let mut options = File::options();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(&path)?;
    write!(
        file,
        "<!doctype html><meta http-equiv=\"refresh\" content=\"0;url={url}\">"
    )?;
    let program = if cfg!(windows) {
        "explorer"
    } else {
        "xdg-open"
    };
    Command::new(program)
        .arg(&path)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context(program)?;
    Ok(())
}
