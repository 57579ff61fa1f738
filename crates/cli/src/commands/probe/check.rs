//! One check: what it runs, how it can end, and what each end means.

#[cfg(unix)]
use doctor::explain::ending::signal;
use doctor::explain::explain;
use serde::Serialize;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The checks, as Python.
pub(super) const SCRIPT: &str = include_str!("checks.py");

/// One check.
pub(super) struct Check {
    /// Its name for people and programs.
    pub(super) name: &'static str,
    /// What it does.
    pub(super) title: &'static str,
    /// The function of the script.
    function: &'static str,
    /// Variables that it runs under.
    variables: &'static [(&'static str, &'static str)],
    /// Its time limit; the import of torch alone takes seconds.
    pub(super) seconds: u32,
    /// What to do when it fails.
    advice: &'static [&'static str],
}

impl Check {
    /// What to do about an outcome. Wrong values are about what was computed; a crash
    /// or a hang is about the driver, whatever was computed, unless the check is there
    /// to try one setting.
    fn advice_for(&self, outcome: Outcome) -> &'static [&'static str] {
        if outcome == Outcome::Slow && self.name == "matmul-fp32" {
            return &[
                "The library has no fast kernel for this GPU: install a wheel with native code (`surefoot doctor`), or another version.",
            ];
        }
        let is_about_values = matches!(outcome, Outcome::Wrong | Outcome::Nan | Outcome::Zeros);
        if is_about_values
            || outcome == Outcome::Slow
            || !self.variables.is_empty()
            || matches!(self.name, "import" | "memory")
        {
            return self.advice;
        }
        match outcome {
            Outcome::Hang => &[
                "sudo dmesg | grep -iE 'amdgpu|kfd' shows whether the GPU hung; gfx1151 needs kernel 6.18.4 or newer.",
                "HSA_ENABLE_INTERRUPT=0 helps when interrupts get lost; --patience 4 when a first run only compiles.",
            ],
            Outcome::Crash | Outcome::NoAnswer => &[
                "`surefoot doctor` looks for overrides, mixed libraries and a second GPU; its stderr is in --report.",
                "sudo dmesg | grep -iE 'amdgpu|kfd|segfault'",
            ],
            Outcome::OutOfMemory => {
                &["`surefoot doctor` tells how much this GPU may use and how to raise it."]
            }
            _ => &["`surefoot doctor` looks for the cause; the whole message is in --report."],
        }
    }
}

const fn check(
    name: &'static str,
    title: &'static str,
    function: &'static str,
    seconds: u32,
    advice: &'static [&'static str],
) -> Check {
    Check {
        name,
        title,
        function,
        variables: &[],
        seconds,
        advice,
    }
}

const OTHER_WAY: &str = "HSA_ENABLE_SDMA=0 sends copies another way; `surefoot train` verifies its transfers and falls back by itself.";
const WRONG_RESULTS: &str = "Results are wrong: remove overrides, install a wheel with native code for this GPU (`surefoot doctor`), or another version.";
const COPIES: &[&str] = &[
    "Copies do not arrive as they were sent: update driver and wheel together, and make only this GPU visible.",
    OTHER_WAY,
];
const COMPUTING: &[&str] = &[WRONG_RESULTS];

/// All checks, cheap ones first.
pub(super) const CHECKS: &[Check] = &[
    check(
        "import",
        "import torch, count GPUs",
        "import",
        120,
        &["`surefoot doctor` tells which wheel this GPU needs."],
    ),
    check(
        "copy-small",
        "4×4 to the GPU and back, ten times",
        "copy_small",
        60,
        COPIES,
    ),
    check(
        "copy-image",
        "16×1×64×64 to the GPU and back, ten times",
        "copy_image",
        60,
        COPIES,
    ),
    check(
        "copy-mixed",
        "a batch of seven types to the GPU and back",
        "copy_mixed",
        60,
        COPIES,
    ),
    check(
        "copy-loader",
        "batches of a data loader",
        "copy_loader",
        90,
        COPIES,
    ),
    check(
        "copy-large",
        "13000×384 to the GPU and back, twenty times",
        "copy_large",
        120,
        &[
            "Copies of this size break on gfx1030 with kernel 5.15 and ROCm 6.4: install a newer kernel.",
            OTHER_WAY,
        ],
    ),
    check(
        "matmul-fp32",
        "a matrix product in fp32 against the CPU",
        "matmul_fp32",
        120,
        COMPUTING,
    ),
    check(
        "matmul-bf16",
        "a matrix product in bf16 against the CPU",
        "matmul_bf16",
        120,
        &[
            WRONG_RESULTS,
            "TORCH_BLAS_PREFER_HIPBLASLT=0 takes another library.",
        ],
    ),
    Check {
        name: "matmul-bf16-rocblas",
        title: "the same without hipBLASLt",
        function: "matmul_bf16",
        variables: &[
            ("TORCH_BLAS_PREFER_HIPBLASLT", "0"),
            ("DISABLE_ADDMM_HIP_LT", "1"),
        ],
        seconds: 120,
        advice: COMPUTING,
    },
    check(
        "autograd",
        "five training steps against the CPU",
        "autograd",
        120,
        &[
            "Gradients are wrong: do not train with this GPU and this wheel (gfx1033 does this with every wheel).",
        ],
    ),
    check(
        "conv",
        "a convolution against the CPU",
        "conv",
        240,
        &[
            "torch.backends.cudnn.enabled = False goes round MIOpen; delete ~/.cache/miopen after an update.",
        ],
    ),
    check(
        "conv3d",
        "a convolution over frames against the CPU, 128 channels",
        "conv3d",
        240,
        &[
            "`surefoot train` and `generate` do without conv3d; other programs for video need it in their autoencoder.",
            "There: smaller tiles, or torch.backends.cudnn.enabled = False, which goes round MIOpen.",
        ],
    ),
    check(
        "attention",
        "attention against the CPU",
        "attention",
        120,
        &["Use the math kernel: torch.nn.attention.sdpa_kernel(SDPBackend.MATH)."],
    ),
    check(
        "attention-fused",
        "attention with a kernel that keeps no scores",
        "attention_fused",
        120,
        &[
            "TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL=1 brings some GPUs such a kernel; attention-aotriton tells whether it is right.",
            "Without one, memory grows with the square of the length: smaller batches, gradient checkpointing.",
        ],
    ),
    Check {
        name: "attention-aotriton",
        title: "attention with AOTriton's experimental kernels",
        function: "attention",
        variables: &[("TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL", "1")],
        seconds: 180,
        advice: &["Do not set TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL with this wheel."],
    },
    check(
        "handles",
        "handles of rocBLAS and MIOpen",
        "handles",
        240,
        &["Leave some hundred MiB of the GPU free."],
    ),
    Check {
        name: "handles-uncached",
        title: "the same without PyTorch's cache",
        function: "handles",
        variables: &[
            ("PYTORCH_NO_HIP_MEMORY_CACHING", "1"),
            ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1"),
        ],
        seconds: 240,
        advice: &[
            "Do not set PYTORCH_NO_HIP_MEMORY_CACHING; `surefoot run --alloc` frees memory without it.",
        ],
    },
    check(
        "memory",
        "60 % of the memory allocated and written",
        "memory",
        300,
        &[
            "Less memory can be used than is reported: `surefoot doctor` tells the limit and how to raise it.",
        ],
    ),
];

/// How a check ended. Every way of failing is told apart, because each has its own causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Outcome {
    Ok,
    /// It does not apply here.
    Skipped,
    /// Values differ.
    Wrong,
    /// NaN where numbers should be.
    Nan,
    /// Zeros where numbers should be.
    Zeros,
    /// Right, but in a way that takes far more time or memory.
    Slow,
    /// Out of memory.
    OutOfMemory,
    /// An error that Python could report.
    Error,
    /// The process died.
    Crash,
    /// The time limit passed.
    Hang,
    /// The process ended without an answer.
    NoAnswer,
}

impl Outcome {
    /// Whether something is wrong.
    pub(super) fn is_failure(self) -> bool {
        !self.is_good() && self != Self::Slow
    }

    /// Whether there is nothing to say about it.
    pub(super) fn is_good(self) -> bool {
        matches!(self, Self::Ok | Self::Skipped)
    }

    /// For people.
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Ok => "as expected",
            Self::Skipped => "not applicable",
            Self::Wrong => "wrong values",
            Self::Nan => "NaN",
            Self::Zeros => "zeros",
            Self::Slow => "slow",
            Self::OutOfMemory => "out of memory",
            Self::Error => "error",
            Self::Crash => "crashed",
            Self::Hang => "hangs",
            Self::NoAnswer => "no answer",
        }
    }
}

/// The result of a check.
#[derive(Debug, Serialize)]
pub(super) struct Result {
    pub(super) name: &'static str,
    pub(super) outcome: Outcome,
    pub(super) detail: String,
    pub(super) seconds: f64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) advice: Vec<String>,
    /// The end of its stderr, when it failed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) stderr: String,
    /// What was tested, as far as the check tells.
    #[serde(skip)]
    pub(super) identity: Option<Identity>,
}

/// The GPU and the torch that a result holds for.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    pub(super) architecture: String,
    pub(super) torch: String,
}

/// What runs the checks: a Python, and the script with all of them.
pub(super) struct Runner {
    pub(super) program: PathBuf,
    pub(super) script: PathBuf,
}

/// Runs one check to its end, or to its time limit.
pub(super) fn run(check: &Check, runner: &Runner, device: &str, limit: Duration) -> Result {
    let start = Instant::now();
    let (outcome, detail, stderr, identity) = observe(check, runner, device, limit);
    let mut result = Result {
        name: check.name,
        outcome,
        detail,
        seconds: (start.elapsed().as_secs_f64() * 100.0).round() / 100.0,
        advice: Vec::new(),
        stderr: String::new(),
        identity,
    };
    if !outcome.is_good() {
        // A message that is known beats general advice.
        let known = explain(&format!("{}\n{stderr}", result.detail)).matches;
        result
            .advice
            .extend(known.first().map(|found| found.cause.clone()));
        result.advice.extend(
            check
                .advice_for(outcome)
                .iter()
                .map(|&step| step.to_owned()),
        );
        result.stderr = last_lines(&stderr, 30);
    }
    result
}

fn observe(
    check: &Check,
    runner: &Runner,
    device: &str,
    limit: Duration,
) -> (Outcome, String, String, Option<Identity>) {
    let mut command = Command::new(&runner.program);
    command
        .arg(&runner.script)
        .args([check.function, device])
        .envs(check.variables.iter().copied());
    let (status, stdout, stderr) = match within(command, limit) {
        Ok(ended) => ended,
        Err(error) => {
            return (
                Outcome::Error,
                format!("cannot start {}: {error}", runner.program.display()),
                String::new(),
                None,
            );
        }
    };
    let identity = answer(&stdout).and_then(|answer| {
        Some(Identity {
            architecture: answer["architecture"].as_str()?.to_owned(),
            torch: answer["torch"].as_str()?.to_owned(),
        })
    });
    let (outcome, detail) = match status {
        None => (
            Outcome::Hang,
            format!("no answer within {:.0} s", limit.as_secs_f64().max(1.0)),
        ),
        Some(status) => judge(status, &stdout),
    };
    (outcome, detail, stderr, identity)
}

/// Runs a command, and ends it when it takes longer than `limit`: then it has no status. Returns what it wrote, too.
pub(super) fn within(
    mut command: Command,
    limit: Duration,
) -> std::io::Result<(Option<ExitStatus>, String, String)> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn()?;
    // Both pipes are emptied meanwhile: a full one would look like a hang.
    let stdout = child.stdout.take().map(collect);
    let stderr = child.stderr.take().map(collect);
    let end = Instant::now() + limit;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Some(status),
            Ok(None) if Instant::now() < end => thread::sleep(Duration::from_millis(10)),
            _ => {
                // It may have ended this moment, and a process that hangs in the
                // driver may not end at all: then we go on without it.
                let _ = child.kill();
                reap_for(&mut child, Duration::from_secs(2));
                break None;
            }
        }
    };
    let patience = Duration::from_secs(1);
    let stdout = stdout
        .map(|reader| reader.take(patience))
        .unwrap_or_default();
    let stderr = stderr
        .map(|reader| reader.take(patience))
        .unwrap_or_default();
    Ok((status, stdout, stderr))
}

fn reap_for(child: &mut std::process::Child, limit: Duration) {
    let end = Instant::now() + limit;
    while matches!(child.try_wait(), Ok(None)) && Instant::now() < end {
        thread::sleep(Duration::from_millis(10));
    }
}

/// Reads a stream to its end in the background.
fn collect(mut from: impl Read + Send + 'static) -> Reader {
    let (sender, receiver) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // What was read before an error is still worth something.
        let _ = from.read_to_end(&mut bytes);
        // Nobody waits any more when the other end is gone.
        let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    Reader(receiver)
}

struct Reader(std::sync::mpsc::Receiver<String>);

impl Reader {
    /// The text, unless somebody else (a grandchild) holds the stream open.
    fn take(self, limit: Duration) -> String {
        self.0.recv_timeout(limit).unwrap_or_default()
    }
}

/// From how it ended and what it said to an outcome. The answer counts only when the
/// process also ended well: a crash on the way out is a crash.
fn judge(status: ExitStatus, stdout: &str) -> (Outcome, String) {
    #[cfg(unix)]
    if let Some(number) = std::os::unix::process::ExitStatusExt::signal(&status) {
        let (name, meaning) = signal(number);
        return (
            Outcome::Crash,
            if name.is_empty() {
                format!("signal {number}")
            } else {
                format!("{name}: {meaning}")
            },
        );
    }
    let code = status.code().unwrap_or(1);
    // Windows has no signals; an exception is an exit code from 0xC0000000 on.
    if code as u32 >= 0xC000_0000 {
        return (Outcome::Crash, format!("exit code {:#010X}", code as u32));
    }
    let Some(answer) = answer(stdout) else {
        return (Outcome::NoAnswer, format!("exit code {code}"));
    };
    let outcome = match answer["verdict"].as_str() {
        _ if code != 0 => Outcome::NoAnswer,
        Some("ok") => Outcome::Ok,
        Some("skipped") => Outcome::Skipped,
        Some("wrong") => Outcome::Wrong,
        Some("nan") => Outcome::Nan,
        Some("zeros") => Outcome::Zeros,
        Some("slow") => Outcome::Slow,
        Some("oom") => Outcome::OutOfMemory,
        _ => Outcome::Error,
    };
    (
        outcome,
        answer["detail"].as_str().unwrap_or_default().to_owned(),
    )
}

/// The last line of its stdout that is JSON.
fn answer(stdout: &str) -> Option<serde_json::Value> {
    let mut lines = stdout.lines().rev();
    lines.find_map(|line| serde_json::from_str(line).ok())
}

fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The doctor's catalogue names them.
    #[test]
    fn the_doctor_knows_all_checks() {
        let names: Vec<&str> = CHECKS.iter().map(|check| check.name).collect();
        assert_eq!(names, doctor::CHECKS);
    }
}
