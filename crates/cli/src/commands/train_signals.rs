//! The signals that `surefoot train` answers.

use std::io::Write;

use surefoot_cli::output::Failure;
use trainer::Stop;

/// Ctrl-C, SIGTERM and a closed terminal ask the run to stop; a second Ctrl-C or SIGTERM ends the process at once.
/// SIGUSR1 requests a checkpoint, SIGUSR2 samples.
pub(super) fn listen(stop: &Stop) -> Result<(), Failure> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
    let stop = stop.clone();
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGUSR1, SIGUSR2])?;
    // With `nohup` the run should outlive its terminal.
    if !is_ignored(SIGHUP) {
        signals.add_signal(SIGHUP)?;
    }
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            for signal in signals.forever() {
                match signal {
                    SIGUSR1 => {
                        stop.request_save();
                        continue;
                    }
                    SIGUSR2 => {
                        stop.request_sample();
                        continue;
                    }
                    _ => {}
                }
                // A closed terminal is reported twice, by the kernel and by the shell.
                if stop.is_requested() && signal != SIGHUP {
                    let _ = signal_hook::low_level::emulate_default_handler(signal);
                }
                // Printed once for all processes that train together.
                if trainer::rank_of_this_process() == 0 {
                    let _ = writeln!(
                        std::io::stderr(),
                        "\nfinishing the step and saving; once more ends it at once without saving"
                    );
                }
                match signal {
                    // As sent by `torchrun` to the ranks of one machine before it starts all of them again.
                    SIGTERM => stop.request_leave(),
                    _ => stop.request(),
                }
            }
        })?;
    Ok(())
}

/// Whether this process was started with the signal ignored (proc(5), `SigIgn`).
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}
