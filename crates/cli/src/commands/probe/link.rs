//! `surefoot probe --link` and `--listen`: how fast is the network to another machine, and what does
//! that mean for training on both?

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv6Addr, TcpListener};
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context as _, anyhow};
use platform::Bytes;
use platform::live::Live;
use platform::network::{self, Interface, Medium};
use serde::Serialize;
use surefoot_cli::link::{self, Link, PORT};
use surefoot_cli::output::{self, Failure, Outcome};

use super::super::trainer_libraries;
use super::{clear_progress, show_progress};

/// Clocks further apart than this make logs of two machines hard to read.
const CLOCK_DIFFERENCE: f64 = 2.0;
/// The share of a step that a sum may take before it is worth a word.
const SMALL_SHARE: f64 = 0.05;

/// Sums that people ask for, where no config is given.
const USUAL_SUMS: [(&str, f64); 3] = [
    ("a LoRA of rank 16 on a 0.6 B model", 40e6),
    ("a LoRA of rank 16 on an expert of Wan A14B", 307e6),
    ("full training of 0.6 B parameters", 2.4e9),
];

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    host: &'a str,
    port: u16,
    /// This machine's address towards the other.
    address: Option<IpAddr>,
    interface: Option<Interface>,
    #[serde(flatten)]
    link: Link,
    step: Option<Step>,
}

/// A step of a config, on two machines like this one.
#[derive(Serialize)]
struct Step {
    config: String,
    /// Of the passes of one step, here.
    seconds: f64,
    reduced_bytes: u64,
    /// For the gradients of two machines over the link.
    sum_seconds: f64,
    /// Samples a second of both, as a share of twice those of one.
    efficiency: f64,
}

/// Measures the link to `host`.
pub(super) fn run(host: &str, config: Option<&Path>, json: bool) -> Result<Outcome, Failure> {
    let (host, port) = host_and_port(host)?;
    let step = config.map(try_step).transpose()?;
    let link = link::measure(host, port, show_progress);
    clear_progress();
    let link = link.map_err(|failure| explain(&failure, host, port))?;
    let address = network::source_address(host, port);
    let interface = address.and_then(|address| {
        let all = Interface::all(&Live::default());
        all.into_iter().find(|one| one.addresses.contains(&address))
    });
    let report = Report {
        host,
        port,
        address,
        interface,
        step: step.map(|(config, seconds, reduced_bytes)| {
            let sum_seconds = link.sum_seconds(reduced_bytes as f64);
            Step {
                config,
                seconds,
                reduced_bytes,
                sum_seconds,
                efficiency: seconds / (seconds + sum_seconds),
            }
        }),
        link,
    };
    match json {
        true => output::print(&format!("{}\n", serde_json::to_string_pretty(&report)?))?,
        false => output::print(&text(&report))?,
    }
    Ok(Outcome::Fine)
}

/// Answers until Ctrl-C.
pub(super) fn listen(place: &str) -> Result<Outcome, Failure> {
    let wrong = || {
        Failure::usage(format_args!(
            "--listen {place}: expected a port, as in 29600, or an address and a port, as in 192.0.2.1:29600"
        ))
    };
    let listener = match (place.parse::<u16>(), place.rsplit_once(':')) {
        // Both families where the system has IPv6, else IPv4 alone.
        (Ok(port), _) => TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
            .or_else(|_| TcpListener::bind(("0.0.0.0", port))),
        (Err(_), Some((_, port))) if port.parse::<u16>().is_ok() => TcpListener::bind(place),
        (Err(_), _) => return Err(wrong()),
    };
    let listener = listener.with_context(|| format!("cannot listen on {place}"))?;
    let port = listener.local_addr()?.port();
    say(format_args!(
        "surefoot: listening on port {port}, until Ctrl-C. On the other machine:"
    ));
    let all = Interface::all(&Live::default());
    let reachable = |one: &&Interface| !matches!(one.medium, Medium::Loopback | Medium::Virtual);
    let addresses: Vec<_> = all
        .iter()
        .filter(reachable)
        .flat_map(|one| one.addresses.iter().map(move |address| (one, address)))
        .collect();
    let port = match port {
        PORT => String::new(),
        other => format!(":{other}"),
    };
    for (interface, address) in &addresses {
        let host = match address {
            IpAddr::V6(address) => format!("[{address}]"),
            IpAddr::V4(address) => address.to_string(),
        };
        say(format_args!(
            "  surefoot probe --link {host}{port}    # by {}",
            interface.describe()
        ));
    }
    if addresses.is_empty() {
        say(format_args!("  surefoot probe --link THIS-MACHINE{port}"));
    }
    let error = link::listen(&listener, |address, end| match end {
        Ok(()) => say(format_args!(
            "surefoot: {} has measured",
            address.ip().to_canonical()
        )),
        Err(error) => say(format_args!(
            "surefoot: {}: {error}",
            address.ip().to_canonical()
        )),
    });
    Err(anyhow!(error).context("the listener failed").into())
}

/// On stderr; nobody may be there to read it any more.
fn say(line: std::fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// `box2`, `box2:29600`, `192.0.2.2:29600`, `[2001:db8::2]:29600` or `2001:db8::2`.
fn host_and_port(text: &str) -> Result<(&str, u16), Failure> {
    let wrong = || {
        Failure::usage(format_args!(
            "--link {text}: expected a host, as in box2, or a host and a port, as in box2:29600"
        ))
    };
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    };
    let port = match port {
        Some(port) => port.parse().map_err(|_| wrong())?,
        None => PORT,
    };
    match host.is_empty() || port == 0 {
        true => Err(wrong()),
        false => Ok((host, port)),
    }
}

/// The config's name, the seconds of a step, and the bytes to sum in it: by a dry run.
fn try_step(config: &Path) -> Result<(String, f64, u64), Failure> {
    let name = config.display().to_string();
    let start = trainer_libraries::choose()?;
    let program = start.program.clone();
    show_progress(&format!("a dry run of {name}"));
    let output = start
        .command()
        .arg("train")
        .arg(config)
        .args(["--dry-run", "--json"])
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start `{}`", program.display()))?;
    clear_progress();
    if !output.status.success() {
        io::stderr().write_all(&output.stderr)?;
        let why = format!("the dry run of {name} has failed");
        return Err(match output.status.code() {
            Some(2) => Failure::usage(why),
            _ => Failure::Job(anyhow!(why)),
        });
    }
    let found: serde_json::Value =
        serde_json::from_slice(&output.stdout).context("the dry run's answer is not readable")?;
    let seconds = found["step_seconds"].as_f64();
    let bytes = found["reduced_bytes"].as_u64();
    let (seconds, bytes) = seconds.zip(bytes).with_context(|| {
        format!(
            "`{}` does not report the length of a step: it is another version",
            program.display()
        )
    })?;
    Ok((name, seconds, bytes))
}

fn explain(failure: &link::Failure, host: &str, port: u16) -> Failure {
    let text = match failure {
        link::Failure::Unknown(error) => format!(
            "the name {host} cannot be resolved ({error}): use the machine's address, or put it into /etc/hosts"
        ),
        link::Failure::Refused => format!(
            "nothing listens on port {port} of {host}: start `surefoot probe --listen` there, or check whether a \
             firewall refuses the port"
        ),
        link::Failure::NoAnswer => format!(
            "no answer from port {port} of {host}: is the machine up, and does its firewall let this port through \
             (`sudo ufw allow from THIS-ADDRESS`, `sudo firewall-cmd --add-port={port}/tcp`)?"
        ),
        link::Failure::Stranger => format!(
            "what listens on port {port} of {host} is not `surefoot probe --listen` of this version"
        ),
        link::Failure::Other(error) => format!("cannot measure the link to {host}: {error}"),
    };
    Failure::Job(anyhow!(text))
}

/// For people.
fn text(report: &Report<'_>) -> String {
    let link = &report.link;
    let mut text = format!("Link to {}", report.host);
    // Writing to a `String` cannot fail, here and below.
    if let Some(address) = report.address {
        let _ = write!(text, ", from {address}");
    }
    if let Some(interface) = &report.interface {
        let _ = write!(text, " by {}", interface.describe());
    }
    let milliseconds = |seconds: f64| format!("{:.3} ms", seconds * 1e3);
    let rate = |rate: f64| format!("{:.0} MB/s, {:.3} Gb/s", rate / 1e6, rate * 8.0 / 1e9);
    let lines = [
        ("connection", milliseconds(link.connect_seconds)),
        (
            "round trip",
            format!(
                "{}, one in a hundred over {}",
                milliseconds(link.round_trip_seconds),
                milliseconds(link.slow_round_trip_seconds)
            ),
        ),
        ("to it", rate(link.bytes_per_second_to)),
        ("from it", rate(link.bytes_per_second_from)),
        (
            "both at once",
            format!("{} each way", rate(link.bytes_per_second_both)),
        ),
        ("its clock", clock(link.clock_ahead_seconds)),
    ];
    text.push('\n');
    for (name, value) in lines {
        let _ = writeln!(text, "  {name:<13} {value}");
    }
    for remark in remarks(report) {
        let _ = writeln!(text, "\n{remark}");
    }
    text.push('\n');
    match &report.step {
        Some(step) => step_text(&mut text, step),
        None => {
            let _ = writeln!(
                text,
                "What two machines sum in a step, and how long a step has to be for that to take {:.0} % of it:",
                SMALL_SHARE * 100.0
            );
            for (what, bytes) in USUAL_SUMS {
                let seconds = link.sum_seconds(bytes);
                let _ = writeln!(
                    text,
                    "  {what:<43} {:>8}  {:>7} s  {:>8} s",
                    Bytes(bytes as u64).to_string(),
                    figures(seconds),
                    figures(seconds * (1.0 - SMALL_SHARE) / SMALL_SHARE),
                );
            }
            text.push_str("`--config FILE` tries a step of a config.\n");
        }
    }
    text
}

fn step_text(text: &mut String, step: &Step) {
    let _ = writeln!(
        text,
        "A step of {}: {} s here, and {} s to sum {} a step. Two machines like this one do {:.2} times the \
         work of one.",
        step.config,
        figures(step.seconds),
        figures(step.sum_seconds),
        Bytes(step.reduced_bytes),
        2.0 * step.efficiency
    );
    let share = 1.0 - step.efficiency;
    if share > SMALL_SHARE {
        let _ = writeln!(
            text,
            "The sum takes {:.0} % of the time: a larger `gradient_accumulation_steps` makes steps longer for the \
             same sum, and `train.reduce_dtype: bfloat16` halves the bytes.",
            share * 100.0
        );
    }
}

fn remarks(report: &Report<'_>) -> Vec<String> {
    let mut remarks = Vec::new();
    let link = &report.link;
    let medium = report.interface.as_ref().map(|interface| interface.medium);
    if medium == Some(Medium::Wireless) {
        remarks.push(
            "This goes by Wi-Fi, which is slow and uneven: a cable between the two machines is better.".to_owned(),
        );
    }
    let nominal = report
        .interface
        .as_ref()
        .and_then(|one| one.megabits_per_second);
    let slower = link.bytes_per_second_to.min(link.bytes_per_second_from) * 8.0 / 1e6;
    if let Some(nominal) = nominal.filter(|nominal| slower < 0.7 * *nominal as f64) {
        remarks.push(format!(
            "The interface is for {nominal} Mb/s, and {slower:.0} were measured: another cable or switch port, other \
             work on the link, or the other machine's interface is slower."
        ));
    }
    let slowest = link.bytes_per_second_to.min(link.bytes_per_second_from);
    if link.bytes_per_second_both < 0.6 * slowest {
        remarks.push(
            "Both directions at once are much slower than each alone: half duplex, or a processor at its limit."
                .to_owned(),
        );
    }
    if link.clock_ahead_seconds.abs() > CLOCK_DIFFERENCE {
        remarks.push(
            "The clocks differ. Training does not mind, but the logs of the two are hard to read side by side: \
             `timedatectl set-ntp true` on both."
                .to_owned(),
        );
    }
    remarks
}

fn clock(ahead: f64) -> String {
    let size = ahead.abs();
    let size = match size {
        _ if size < 1.0 => format!("{:.1} ms", size * 1e3),
        _ => format!("{size:.1} s"),
    };
    format!("{size} {}", if ahead < 0.0 { "behind" } else { "ahead" })
}

/// About three figures.
fn figures(seconds: f64) -> String {
    match seconds {
        _ if seconds >= 100.0 => format!("{seconds:.0}"),
        _ if seconds >= 1.0 => format!("{seconds:.1}"),
        _ => format!("{seconds:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_told_from_ports() {
        let of = |text| host_and_port(text).ok();
        assert_eq!(of("box2"), Some(("box2", PORT)));
        assert_eq!(of("box2:1"), Some(("box2", 1)));
        assert_eq!(of("192.0.2.2:80"), Some(("192.0.2.2", 80)));
        assert_eq!(of("2001:db8::2"), Some(("2001:db8::2", PORT)));
        assert_eq!(of("[2001:db8::2]:80"), Some(("[2001:db8::2]", 80)));
        for wrong in ["", ":80", "box2:", "box2:port", "box2:70000", "box2:0"] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
    }

    fn report(link: Link, interface: Option<Interface>) -> String {
        let report = Report {
            host: "box2",
            port: PORT,
            address: Some("192.0.2.1".parse().unwrap()),
            interface,
            link,
            step: Some(Step {
                config: "a.yaml".into(),
                seconds: 3.0,
                reduced_bytes: 125_000_000,
                sum_seconds: link.sum_seconds(125e6),
                efficiency: 3.0 / (3.0 + link.sum_seconds(125e6)),
            }),
        };
        text(&report)
    }

    const GIGABIT: Link = Link {
        connect_seconds: 2e-4,
        round_trip_seconds: 1e-4,
        slow_round_trip_seconds: 3e-4,
        bytes_per_second_to: 125e6,
        bytes_per_second_from: 125e6,
        bytes_per_second_both: 125e6,
        clock_ahead_seconds: -0.0123,
    };

    fn cable(megabits: u64) -> Interface {
        Interface {
            name: "enp3s0".into(),
            medium: Medium::Cable,
            megabits_per_second: Some(megabits),
            addresses: Vec::new(),
        }
    }

    #[test]
    fn a_step_is_told_in_the_time_that_its_sum_takes() {
        let text = report(GIGABIT, Some(cable(1000)));
        assert!(
            text.contains("box2, from 192.0.2.1 by enp3s0 (cable, 1 Gb/s)\n"),
            "{text}"
        );
        assert!(text.contains("125 MB/s, 1.000 Gb/s each way"), "{text}");
        assert!(text.contains("12.3 ms behind"), "{text}");
        assert!(text.contains("3.0 s here, and 1.0 s to sum"), "{text}");
        assert!(text.contains("do 1.50 times the work of one"), "{text}");
        assert!(text.contains("takes 25 % of the time"), "{text}");
        assert!(!text.contains("Mb/s, and"), "{text}");
    }

    #[test]
    fn what_is_slower_than_it_should_be_is_remarked() {
        let text = report(GIGABIT, Some(cable(2500)));
        assert!(
            text.contains("is for 2500 Mb/s, and 1000 were measured"),
            "{text}"
        );
        let slow = Link {
            bytes_per_second_both: 60e6,
            clock_ahead_seconds: 7.0,
            ..GIGABIT
        };
        let wireless = Interface {
            medium: Medium::Wireless,
            ..cable(1000)
        };
        let text = report(slow, Some(wireless));
        for remark in [
            "Wi-Fi, which",
            "half duplex",
            "The clocks differ",
            "7.0 s ahead",
        ] {
            assert!(text.contains(remark), "{remark}: {text}");
        }
    }
}
