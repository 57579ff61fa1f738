//! `cargo xtask bench distributed`: two ranks over links of known rates, compared with PyTorch's DDP.
//!
//! ```text
//! namespace A, core 0          namespace B, core 1
//!   rank 0 ── veth ── tbf ── tbf ── veth ── rank 1
//! ```
//!
//! Each rank has one core and one end of a link whose rate is limited by the kernel's token bucket filter in both
//! directions. Both implementations train the same LoRA from the same adapter on the same blocks; the speed of two
//! ranks is compared with twice that of one rank on its core.

mod faults;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use xshell::{Shell, cmd};

use super::lora::ReferenceResult;
use super::measured::{self, difference, metrics, steady};
use super::train::cpu_name;
use crate::{setup, train, workspace};

const CONFIG: &str = "bench/lora/bench.yaml";
/// Warm-up steps that are not measured.
const WARM_UP: usize = 2;
/// How many losses are compared with DDP's.
const COMPARED: usize = 10;
const PORT: u16 = 29_711;
/// Timeout for two ranks.
const PATIENCE: Duration = Duration::from_secs(1800);

/// Training in two processes over links of known rates, compared with PyTorch's DDP; needs root.
#[derive(clap::Args)]
pub(crate) struct DistributedBench {
    /// Rates of the link, in megabits per second
    #[arg(long, value_name = "MBIT,...", value_delimiter = ',', default_values_t = [100, 1000, 2500])]
    rates: Vec<u32>,

    /// Samples per rank and step
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    batch: u32,

    /// Optimizer steps of each run; the first two are not counted
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(10..))]
    steps: u32,

    /// Leave out DDP
    #[arg(long)]
    alone: bool,

    /// Instead, kill ranks, cut links and switch machines off, and compare the final weights
    #[arg(long, conflicts_with_all = ["rates", "batch", "steps", "alone"])]
    faults: bool,

    /// With --faults, how many ranks are killed
    #[arg(long, default_value_t = 20, requires = "faults", value_parser = clap::value_parser!(u32).range(1..))]
    kills: u32,

    /// The output file [default: bench/distributed.json in the target folder]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Serialize)]
struct Report {
    evidence_level: &'static str,
    cpu: String,
    batch: u32,
    steps: u32,
    /// Bytes that two ranks sum per step.
    reduced_bytes: u64,
    versions: Vec<String>,
    one_rank: One,
    /// Two runs of one rank each at the same time: the cost of sharing a machine, without a link.
    two_at_once: One,
    links: Vec<Row>,
}

/// Tokens per second of one rank on its core, for both implementations.
#[derive(Serialize)]
struct One {
    surefoot: f64,
    ddp: Option<f64>,
}

#[derive(Serialize)]
struct Row {
    megabits_per_second: u32,
    /// Throughput of a TCP stream in both directions at once, in bytes per second: `surefoot probe --link`.
    measured_bytes_per_second: f64,
    surefoot: Side,
    ddp: Option<Side>,
    /// The largest relative difference of the first losses between ours and DDP.
    loss_difference: Option<f64>,
}

#[derive(Serialize)]
struct Side {
    /// For both ranks.
    tokens_per_second: f64,
    /// Relative to twice the speed of one rank alone.
    of_one_alone: f64,
    /// Relative to the speed of two at once without a link.
    of_two_at_once: f64,
    losses: Vec<f64>,
}

/// A run of one or two ranks: total tokens per second, and the losses.
struct Run {
    tokens_per_second: f64,
    losses: Vec<f64>,
}

impl DistributedBench {
    pub(crate) fn run(self) -> Result<()> {
        let shell = workspace::shell()?;
        ensure!(
            cmd!(shell, "id -u").read()?.trim() == "0",
            "network namespaces take root: run this as root"
        );
        if self.faults {
            return faults::run(&self, &shell);
        }
        let libtorch = setup::ensure()?;
        let python = setup::reference_python()?;
        let surefoot = train::build(&libtorch)?;
        let model = setup::published_model(&surefoot)?;
        let scratch = tempfile::tempdir().context("cannot make a temporary folder")?;
        let bench = Prepared {
            options: &self,
            shell: &shell,
            surefoot,
            adapter: scratch.path().join("adapter"),
            python: python.clone(),
            model: model.clone(),
            scratch: scratch.path().to_owned(),
        };
        let adapter = &bench.adapter;
        cmd!(
            shell,
            "{python} bench/lora/reference.py {CONFIG} --model {model} --make-adapter {adapter}"
        )
        .env("HF_HUB_OFFLINE", "1")
        .run()?;
        let report = bench.measure()?;
        report.print();
        let target = workspace::target(&shell)?;
        let out = self
            .out
            .clone()
            .unwrap_or(target.join("bench/distributed.json"));
        report.write(&out)
    }
}

struct Prepared<'a> {
    options: &'a DistributedBench,
    shell: &'a Shell,
    surefoot: PathBuf,
    python: PathBuf,
    model: PathBuf,
    adapter: PathBuf,
    scratch: PathBuf,
}

/// Two network namespaces with a link between them, which are removed on drop.
struct Cable<'a> {
    shell: &'a Shell,
    names: [String; 2],
}

const ADDRESSES: [&str; 2] = ["10.77.31.1", "10.77.31.2"];

impl<'a> Cable<'a> {
    /// Sets up `megabits` per second in each direction.
    fn lay(shell: &'a Shell, megabits: u32) -> Result<Self> {
        let names = ["a", "b"].map(|end| format!("surefoot-bench-{end}"));
        let cable = Self { shell, names };
        cable.cut();
        let [a, b] = &cable.names;
        let ends = ["sfbench0", "sfbench1"];
        for name in &cable.names {
            cmd!(shell, "ip netns add {name}").quiet().run()?;
        }
        let [first, second] = ends;
        cmd!(
            shell,
            "ip link add {first} netns {a} type veth peer name {second} netns {b}"
        )
        .quiet()
        .run()?;
        for ((name, end), address) in cable.names.iter().zip(ends).zip(ADDRESSES) {
            // The bytes of a fiftieth of a second, but at least a packet of the kernel's maximum size.
            let burst = (u64::from(megabits) * 1_000_000 / 8 / 50)
                .max(131_072)
                .to_string();
            let rate = format!("{megabits}mbit");
            for command in [
                cmd!(shell, "ip -n {name} address add {address}/24 dev {end}"),
                cmd!(shell, "ip -n {name} link set lo up"),
                cmd!(shell, "ip -n {name} link set {end} up"),
                cmd!(
                    shell,
                    "tc -n {name} qdisc add dev {end} root tbf rate {rate} burst {burst} latency 50ms"
                ),
            ] {
                command.quiet().run()?;
            }
        }
        Ok(cable)
    }

    fn cut(&self) {
        for name in &self.names {
            let delete = cmd!(self.shell, "ip netns delete {name}");
            // There usually is none left of an earlier run.
            let _ = delete.quiet().ignore_status().ignore_stderr().run();
        }
    }

    /// A command that runs `program` in the namespace of `rank`.
    fn command(&self, rank: usize, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[rank]]);
        command.arg(program);
        command
    }
}

impl Drop for Cable<'_> {
    fn drop(&mut self) {
        self.cut();
    }
}

impl Prepared<'_> {
    fn measure(&self) -> Result<Report> {
        eprintln!("one rank");
        let ours = self.alone("one", &[0])?;
        let ours_two: f64 = self.alone("two", &[0, 1])?.iter().map(Run::speed).sum();
        let mut versions = Vec::new();
        let (mut ddp, mut ddp_two) = (None, None);
        if !self.options.alone {
            ddp = self
                .reference("one-ddp", &[0], None, &mut versions)?
                .first()
                .map(Run::speed);
            let two = self.reference("two-ddp", &[0, 1], None, &mut versions)?;
            ddp_two = Some(two.iter().map(Run::speed).sum());
        }
        let one_rank = One {
            surefoot: ours[0].tokens_per_second,
            ddp,
        };
        let two_at_once = One {
            surefoot: ours_two,
            ddp: ddp_two,
        };
        let mut links = Vec::new();
        for rate in &self.options.rates {
            eprintln!("two ranks, {rate} Mb/s");
            let cable = Cable::lay(self.shell, *rate)?;
            let measured_bytes_per_second = self.probe(&cable)?;
            let ours = self.over(&cable, *rate)?;
            let theirs = match self.options.alone {
                true => None,
                false => {
                    let name = format!("ddp-{rate}");
                    let ranks = self.reference(&name, &[0, 1], Some(&cable), &mut versions)?;
                    let losses = ranks[0].losses.clone();
                    let tokens_per_second = ranks.iter().map(Run::speed).sum();
                    Some(Run {
                        tokens_per_second,
                        losses,
                    })
                }
            };
            let loss_difference = theirs
                .as_ref()
                .map(|theirs| difference(&ours.losses, &theirs.losses, COMPARED));
            links.push(Row {
                megabits_per_second: *rate,
                measured_bytes_per_second,
                surefoot: ours.beside(one_rank.surefoot, two_at_once.surefoot),
                ddp: theirs
                    .zip(one_rank.ddp.zip(two_at_once.ddp))
                    .map(|(theirs, (one, two))| theirs.beside(one, two)),
                loss_difference,
            });
        }
        Ok(Report {
            evidence_level: "CPU, real",
            cpu: cpu_name(),
            batch: self.options.batch,
            steps: self.options.steps,
            reduced_bytes: self.reduced_bytes()?,
            versions,
            one_rank,
            two_at_once,
            links,
        })
    }

    /// The measurement of our own TCP stream, in both directions at once.
    fn probe(&self, cable: &Cable<'_>) -> Result<f64> {
        let mut listener = cable.command(0, &self.surefoot);
        listener
            .args(["probe", "--listen", "29712"])
            .stderr(Stdio::null());
        let _listener = Ended(
            listener
                .spawn()
                .context("cannot start `surefoot probe --listen`")?,
        );
        let host = format!("{}:29712", ADDRESSES[0]);
        let until = Instant::now() + Duration::from_secs(10);
        loop {
            let mut probe = cable.command(1, &self.surefoot);
            let output = probe.args(["probe", "--json", "--link", &host]).output()?;
            if output.status.success() {
                let found: serde_json::Value = serde_json::from_slice(&output.stdout)?;
                let rate = found["bytes_per_second_both"].as_f64();
                return rate.context("`surefoot probe --link` reported no rate");
            }
            // The listener needs a moment to start.
            ensure!(
                Instant::now() < until,
                "`surefoot probe --link` failed: {}",
                String::from_utf8_lossy(&output.stderr)
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn settings(&self) -> [String; 6] {
        [
            format!("adapter.resume_from={}", self.adapter.display()),
            format!("train.max_steps={}", self.options.steps),
            format!("train.per_device_train_batch_size={}", self.options.batch),
            "train.bf16=false".to_owned(),
            "device=cpu".to_owned(),
            "threads=1".to_owned(),
        ]
    }

    /// Our trainer on one core, as one rank or one of two.
    fn ours(&self, mut command: Command, folder: &Path, core: usize) -> Command {
        let config = workspace::root().join(CONFIG);
        measured::steps_alone(&mut command, &config, &self.settings(), folder);
        pinned(command, core)
    }

    /// One independent rank on each of these cores, all at once.
    fn alone(&self, name: &str, cores: &[usize]) -> Result<Vec<Run>> {
        let folders: Vec<_> = cores
            .iter()
            .map(|core| self.scratch.join(format!("{name}-{core}")))
            .collect();
        let commands = cores.iter().zip(&folders);
        let commands = commands
            .map(|(core, folder)| self.ours(Command::new(&self.surefoot), folder, *core))
            .collect();
        all(commands)?;
        folders
            .iter()
            .map(|folder| read(&folder.join("bench")))
            .collect()
    }

    /// Two of our ranks, one at each end of the link.
    fn over(&self, cable: &Cable<'_>, rate: u32) -> Result<Run> {
        let folder = self.scratch.join(format!("link-{rate}"));
        let commands = [0, 1].map(|rank| {
            let mut command = self.ours(cable.command(rank, &self.surefoot), &folder, rank);
            command.envs(variables(rank, 2, ADDRESSES[0]));
            command
        });
        all(commands.into())?;
        read(&folder.join("bench"))
    }

    /// Hugging Face's Trainer, which uses DDP if there are two ranks: over the link, or each independently.
    fn reference(
        &self,
        name: &str,
        cores: &[usize],
        cable: Option<&Cable<'_>>,
        versions: &mut Vec<String>,
    ) -> Result<Vec<Run>> {
        let config = self.scratch.join("one-0/bench/config.yaml");
        let outs: Vec<_> = cores
            .iter()
            .map(|core| self.scratch.join(format!("{name}-{core}.json")))
            .collect();
        let commands = cores.iter().zip(&outs).map(|(core, out)| {
            let mut command = match cable {
                Some(cable) => cable.command(*core, &self.python),
                None => Command::new(&self.python),
            };
            command
                .arg(workspace::root().join("bench/lora/reference.py"))
                .arg(&config)
                .arg("--model")
                .arg(&self.model)
                .arg("--adapter")
                .arg(&self.adapter)
                .arg("--out")
                .arg(out)
                .envs([("HF_HUB_OFFLINE", "1"), ("OMP_NUM_THREADS", "1")])
                .env("GLOO_SOCKET_IFNAME", format!("sfbench{core}"));
            if cable.is_some() {
                command.envs(variables(*core, cores.len(), ADDRESSES[0]));
            }
            pinned(command, *core)
        });
        all(commands.collect())?;
        let mut runs = Vec::new();
        for out in &outs {
            let result = ReferenceResult::read(out)?;
            *versions = result.versions();
            runs.push(Run {
                tokens_per_second: steady(&result.speeds(), WARM_UP),
                losses: result.losses,
            });
        }
        Ok(runs)
    }

    /// The number of bytes according to a dry run.
    fn reduced_bytes(&self) -> Result<u64> {
        let mut command = self.ours(Command::new(&self.surefoot), &self.scratch.join("dry"), 0);
        let output = command.args(["--dry-run", "--json"]).output()?;
        let found: serde_json::Value =
            serde_json::from_slice(&output.stdout).context("the dry run did not print JSON")?;
        let bytes = found["reduced_bytes"].as_u64();
        bytes.context("the dry run does not report what two ranks sum")
    }
}

impl Run {
    fn speed(&self) -> f64 {
        self.tokens_per_second
    }

    /// The result of both ranks, relative to one alone and to two without a link.
    fn beside(self, one: f64, two: f64) -> Side {
        Side {
            tokens_per_second: self.tokens_per_second,
            of_one_alone: self.tokens_per_second / (2.0 * one),
            of_two_at_once: self.tokens_per_second / two,
            losses: self.losses,
        }
    }
}

/// The environment that `torchrun` sets for a rank on its own machine.
fn variables(rank: usize, size: usize, master: &str) -> [(&'static str, String); 6] {
    [
        ("RANK", rank.to_string()),
        ("LOCAL_RANK", "0".to_owned()),
        ("WORLD_SIZE", size.to_string()),
        ("LOCAL_WORLD_SIZE", "1".to_owned()),
        ("MASTER_ADDR", master.to_owned()),
        ("MASTER_PORT", PORT.to_string()),
    ]
}

/// The same on one core.
fn pinned(command: Command, core: usize) -> Command {
    let mut pinned = Command::new("taskset");
    pinned.args(["--cpu-list", &core.to_string()]);
    pinned.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => pinned.env(name, value),
            None => pinned.env_remove(name),
        };
    }
    pinned.current_dir(workspace::root());
    pinned
}

/// A process that is killed on drop.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs all of these at once, until they end.
fn all(commands: Vec<Command>) -> Result<()> {
    let mut running = Vec::new();
    for mut command in commands {
        let described = format!("{command:?}");
        command.stdin(Stdio::null()).stdout(std::io::stderr());
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {described}"))?;
        running.push((described, Ended(child)));
    }
    let until = Instant::now() + PATIENCE;
    while !running.is_empty() {
        let mut left = Vec::new();
        for (described, mut process) in running {
            match process.0.try_wait()? {
                Some(status) if !status.success() => bail!("{described} failed: {status}"),
                Some(_) => {}
                None => left.push((described, process)),
            }
        }
        running = left;
        ensure!(
            Instant::now() < until,
            "no end after {} s",
            PATIENCE.as_secs()
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// The speed and losses of one of our runs, over all ranks.
fn read(run: &Path) -> Result<Run> {
    let (losses, speeds) = metrics(run)?;
    Ok(Run {
        tokens_per_second: steady(&speeds, WARM_UP),
        losses,
    })
}

impl Report {
    fn print(&self) {
        println!(
            "{:>9} {:>10} | {:>9} {:>8} {:>8} | {:>9} {:>8} {:>8} | {:>8}",
            "link", "measured", "surefoot", "of 2 × 1", "of 2", "DDP", "of 2 × 1", "of 2", "losses"
        );
        for row in &self.links {
            let side = |side: &Side| {
                format!(
                    "{:>9.1} {:>8.3} {:>8.3}",
                    side.tokens_per_second, side.of_one_alone, side.of_two_at_once
                )
            };
            println!(
                "{:>4} Mb/s {:>5.0} MB/s | {} | {} | {:>8}",
                row.megabits_per_second,
                row.measured_bytes_per_second / 1e6,
                side(&row.surefoot),
                row.ddp.as_ref().map_or_else(|| format!("{:27}", ""), side),
                row.loss_difference
                    .map_or_else(String::new, |difference| format!("{difference:.1e}")),
            );
        }
        println!(
            "tokens/s of two ranks, a core each, by twice those of one alone ({:.1}; DDP {:.1}) and by those of two \
             that share the machine and no link ({:.1}; DDP {:.1}); {:.1} MB summed in a step of {} × 256 tokens a \
             rank; losses: largest relative difference of the first {COMPARED}",
            self.one_rank.surefoot,
            self.one_rank.ddp.unwrap_or(f64::NAN),
            self.two_at_once.surefoot,
            self.two_at_once.ddp.unwrap_or(f64::NAN),
            self.reduced_bytes as f64 / 1e6,
            self.batch,
        );
    }

    fn write(&self, path: &Path) -> Result<()> {
        measured::write(self, path)?;
        eprintln!("every run is in `{}`", path.display());
        Ok(())
    }
}
