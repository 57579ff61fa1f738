//! `surefoot replay`: replays a recorded run on a simulated device, with this allocator and
//! PyTorch's.
//!
//! What PyTorch would hold comes from a model of its rules (`alloc_lab::baselines`), so PyTorch is not needed;
//! `cargo xtask bench alloc` measures the real one.

mod picture;
mod report;

use alloc_lab::baselines::Baseline;
use alloc_lab::replay::{replay, replay_watched};
use alloc_lab::trace::Trace;
use anyhow::Context;
use hip_alloc::config::Config;
use hip_alloc::driver::sim::SimConfig;
use hip_alloc::pool::PoolConfig;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use surefoot_cli::output::{self, Failure, Outcome};

use picture::Curve;
use report::Report;

/// The allocation granularity of the simulated device, as on real ones.
const GRANULE: u64 = 512;
/// Number of replays, of which the fastest counts.
const TIMED: usize = 3;

/// Replay an allocation trace and compare what allocators would hold
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The trace: recorded with HIP_ALLOC_TRACE=FILE, as text or zstd-compressed; or a snapshot by
    /// PyTorch's torch.cuda.memory._dump_snapshot with its history
    trace: PathBuf,

    /// Settings of the allocator, as in HIP_ALLOC_CONF: `warmup_mb:0,keep:off`
    #[arg(long, value_name = "KEY:VALUE,…")]
    policy: Option<String>,

    /// Memory of the simulated device in MiB [default: as much as needed]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..1 << 40))]
    capacity_mb: Option<u64>,

    /// Draw live and held memory over the run into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Replays a trace.
pub(crate) fn run(args: &Args, json: bool) -> Result<Outcome, Failure> {
    let name = args.trace.display().to_string();
    let config = match &args.policy {
        // The same syntax, but the error must not name the environment variable.
        Some(policy) => Config::parse(policy).map_err(|error| {
            Failure::usage(error.to_string().replace("HIP_ALLOC_CONF", "--policy"))
        })?,
        None => Config::from_variable(std::env::var_os("HIP_ALLOC_CONF").as_deref())
            .map_err(Failure::usage)?,
    };
    let config = config.pool(GRANULE, false);
    let trace = Trace::read(&args.trace)
        .map_err(|error| Failure::usage(format_args!("`{name}`: {error}")))?;
    if trace.is_cut_off {
        eprintln!(
            "surefoot: `{name}` ends in the middle, as when its program was killed: \
             {} events up to there are replayed",
            trace.events.len()
        );
    }
    if trace.requests == 0 {
        return Err(Failure::usage(format_args!(
            "`{name}`: it contains no requests"
        )));
    }
    let unlimited = SimConfig::default();
    let sim = SimConfig {
        capacity: args.capacity_mb.map_or(unlimited.capacity, |mib| mib << 20),
        call_latency: Duration::from_micros(50),
        clearing_rate: 5_000_000_000,
        ..unlimited
    };

    let progress = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(8));
    progress.set_style(ProgressStyle::with_template("{spinner} {msg}")?);
    progress.enable_steady_tick(Duration::from_millis(120));
    progress.set_message("replaying in hip-alloc");
    let mut curves = Vec::new();
    let mut live = Curve::new("live", trace.events.len());
    let mut held = Curve::new("hip-alloc", trace.events.len());
    let ours = replay_watched(&trace, config.clone(), sim.clone(), &mut |look| {
        live.add(look.event, look.live);
        held.add(look.event, look.held);
    });
    curves.extend([live, held]);
    let mut peers = Vec::new();
    for peer in Baseline::ALL {
        progress.set_message(format!("replaying in {}", peer.name()));
        let mut curve = Curve::new(&peer.name(), trace.events.len());
        let outcome = peer.replay(&trace, &mut |event, held| curve.add(event, held));
        // Without caching, held memory equals live memory.
        if peer != Baseline::NoCaching {
            curves.push(curve);
        }
        peers.push((peer, outcome));
    }
    progress.set_message("timing");
    let nanoseconds = time(&trace, &config, &sim);
    progress.finish_and_clear();

    let report = Report::new(&name, &trace, &config, &ours, &peers, nanoseconds);
    match json {
        true => output::print(&format!("{}\n", serde_json::to_string_pretty(&report)?))?,
        false => output::print(&report.to_string())?,
    }
    if let Some(path) = &args.svg {
        let title = args.trace.file_name().unwrap_or_default().to_string_lossy();
        picture::draw(path, &title, &curves)
            .with_context(|| format!("cannot draw `{}`", path.display()))?;
        eprintln!("surefoot: the picture is `{}`", path.display());
    }
    match ours.out_of_memory {
        0 => Ok(Outcome::Fine),
        refused => Err(Failure::Job(anyhow::anyhow!(
            "{refused} of {} requests were refused: the device is too small",
            trace.requests
        ))),
    }
}

/// Nanoseconds per request or free, including the simulated driver and the replay.
fn time(trace: &Trace, config: &PoolConfig, sim: &SimConfig) -> f64 {
    let once = |_| {
        let (config, sim) = (config.clone(), sim.clone());
        let began = Instant::now();
        let _ = replay(trace, config, sim);
        began.elapsed().as_nanos() as f64 / trace.events.len() as f64
    };
    (0..TIMED).map(once).fold(f64::INFINITY, f64::min)
}
