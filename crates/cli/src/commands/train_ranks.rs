//! `surefoot train --nproc N`: one process for each rank, all on this machine.
//!
//! Each is this program again with `torchrun`'s variables. The store by which they find each other
//! is here, so that it outlives them; signals are passed on to all.

use std::ffi::OsString;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use surefoot_cli::output::{Failure, Outcome};
use torch_ext::distributed::Store;

/// Tells a rank from a user who starts the program under `torchrun`.
const STARTED: &str = "SUREFOOT_NPROC";

/// What the message of a rank that ended elsewhere contains.
const ENDED_ELSEWHERE: &str = "has ended: ";

/// How long the others have, once a rank has failed, to notice and to say what they know.
const GRACE: Duration = Duration::from_secs(20);

/// Whether this process is to start the ranks, and not to be one.
pub(crate) fn are_to_be_started(processes: Option<u32>) -> Result<bool, Failure> {
    let Some(processes) = processes else {
        return Ok(false);
    };
    if std::env::var_os(STARTED).is_some() {
        return Ok(false);
    }
    if std::env::var_os("RANK").is_some() {
        return Err(Failure::usage(format_args!(
            "`--nproc {processes}` starts processes itself, and RANK in the environment says that \
             this is one of several already: leave one of them out"
        )));
    }
    Ok(processes > 1)
}

/// Starts the ranks and waits for all of them.
pub(crate) fn run(processes: u32) -> Result<Outcome, Failure> {
    let store = Store::host("127.0.0.1", 0)?;
    let program = std::env::current_exe()?;
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let mut ranks = Vec::new();
    for rank in 0..processes {
        let mut command = Command::new(&program);
        command.args(&arguments).env(STARTED, "1");
        for (name, value) in [
            ("RANK", rank.to_string()),
            ("LOCAL_RANK", rank.to_string()),
            ("WORLD_SIZE", processes.to_string()),
            ("LOCAL_WORLD_SIZE", processes.to_string()),
            ("MASTER_ADDR", "127.0.0.1".to_owned()),
            ("MASTER_PORT", store.port().to_string()),
            ("TORCHELASTIC_USE_AGENT_STORE", "True".to_owned()),
        ] {
            command.env(name, value);
        }
        if rank > 0 {
            command.stdin(Stdio::null()).stdout(Stdio::null());
        }
        // A Ctrl-C reaches this process alone, which passes it on: each rank gets it once.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        match command.spawn() {
            Ok(child) => ranks.push(child),
            Err(error) => {
                end(&ranks);
                return Err(error.into());
            }
        }
    }
    watch(ranks)
}

/// The failure of rank 0, with what the doctor knows of it where it is another rank's: nobody may
/// sit before the machine that has more to tell.
pub(crate) fn explained(failure: Failure) -> Failure {
    let (Failure::Usage(error) | Failure::Job(error)) = &failure;
    let message = format!("{error:#}");
    if !message.contains(ENDED_ELSEWHERE) {
        return failure;
    }
    let explanation = doctor::explain::explain(&message);
    if explanation.matches.is_empty() {
        return failure;
    }
    let text = doctor::report::explanation_text(&explanation, false);
    let whole = anyhow::anyhow!("{message}\n\n{}", text.trim_end());
    match failure {
        Failure::Usage(_) => Failure::Usage(whole),
        Failure::Job(_) => Failure::Job(whole),
    }
}

/// Passes signals on, waits for all ranks, and ends those that stay when one has failed.
fn watch(ranks: Vec<Child>) -> Result<Outcome, Failure> {
    let pids: Vec<Pid> = ranks.iter().filter_map(pid).collect();
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let passed_on = pids.clone();
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            for signal in signals.forever() {
                let signal = match signal {
                    SIGINT => Signal::INT,
                    SIGHUP => Signal::HUP,
                    _ => Signal::TERM,
                };
                for pid in &passed_on {
                    // One that has ended needs none.
                    let _ = kill_process(*pid, signal);
                }
            }
        })?;
    let (send, ended) = mpsc::channel();
    let mut left = ranks.len();
    for (rank, mut child) in ranks.into_iter().enumerate() {
        let send = send.clone();
        std::thread::Builder::new()
            .name(format!("rank {rank}"))
            .spawn(move || {
                // Nobody listens any more only when this process ends.
                let _ = send.send((rank, child.wait()));
            })?;
    }
    let mut failed: Option<(usize, ExitStatus)> = None;
    let mut until: Option<Instant> = None;
    while left > 0 {
        let patience = until.map_or(Duration::from_secs(3600), |until| {
            until.saturating_duration_since(Instant::now())
        });
        match ended.recv_timeout(patience) {
            Ok((rank, status)) => {
                left -= 1;
                let status = status?;
                if !status.success() && failed.is_none() {
                    failed = Some((rank, status));
                    until = Some(Instant::now() + GRACE);
                }
            }
            Err(RecvTimeoutError::Timeout) if until.is_some() => {
                // They have not noticed: a rank failed before they knew it, or they hang.
                for pid in &pids {
                    let _ = kill_process(*pid, Signal::KILL);
                }
                until = Some(Instant::now() + Duration::from_secs(3600));
            }
            Err(_) => {}
        }
    }
    match failed {
        None => Ok(Outcome::Fine),
        Some((rank, status)) => {
            let message = format!("the first of the processes to end was rank {rank}: {status}");
            match status.code() {
                Some(2) => Err(Failure::usage(message)),
                _ => Err(Failure::Job(anyhow::anyhow!(message))),
            }
        }
    }
}

fn pid(child: &Child) -> Option<Pid> {
    Pid::from_raw(i32::try_from(child.id()).ok()?)
}

/// Ends processes whose work cannot begin.
fn end(ranks: &[Child]) {
    for pid in ranks.iter().filter_map(pid) {
        let _ = kill_process(pid, Signal::KILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ended_another_rank_is_explained() {
        let of = |text: &str| match explained(Failure::Job(anyhow::anyhow!("{text}"))) {
            Failure::Job(error) | Failure::Usage(error) => format!("{error:#}"),
        };
        let elsewhere = "rank 1 on box2 has ended: device: HIP error: no kernel image is available for execution on the device";
        let told = of(elsewhere);
        assert!(told.starts_with(elsewhere), "{told}");
        assert!(told.contains("cause") && told.contains("fix"), "{told}");
        // What this machine has met says it itself, and what nobody knows is left as it is.
        for left in [
            "device: HIP error: no kernel image is available for execution on the device",
            "rank 1 on box2 has ended: data: `x.txt` is not there",
        ] {
            assert_eq!(of(left), left);
        }
    }
}
