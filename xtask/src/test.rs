//! `cargo xtask test`: every test that needs no GPU.

mod changed;
mod programs;

use std::ffi::OsString;
use std::path::Path;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result};
use xshell::{Shell, cmd};

use crate::bench;
use crate::dist;
use crate::fuzz;
use crate::kernels;
use crate::matrix::Matrix;
use crate::references;
use crate::sanitize;
use crate::setup::{self, Libtorch};
use crate::ui;
use crate::windows;
use crate::workspace;

/// Set up, build, and run the tests.
#[derive(clap::Args)]
pub(crate) struct Test {
    /// Only what a change can reach: the tests of the packages whose files differ from this revision [default: the
    /// last commit], and of those that depend on them
    #[arg(long, value_name = "REVISION", num_args = 0..=1, default_missing_value = "HEAD", conflicts_with = "heavy")]
    changed: Option<String>,
    /// Also run what needs real PyTorch: the Python activation, and live parity of the trainer
    /// (makes an environment with the workspace's PyTorch the first time: 2.5 GB to download)
    #[arg(long)]
    heavy: bool,
    /// With --heavy: also what a release needs and an hour has no room for: fuzzing, the reference files
    /// made anew, the allocator under PyTorch for Windows, the crates used from a registry, the wheels built and installed, and the Python tests under
    /// the newest PyTorch that is known to work, in an environment of its own
    #[arg(long, requires = "heavy")]
    all: bool,
    /// With --all: instead of the newest PyTorch that is known to work, the one that PyPI has
    /// today
    #[arg(long, requires = "all")]
    newest_torch: bool,
    /// In place of all that: the allocator in Python programs under each Python and each PyTorch that can be had
    /// here (2.5 GB to download for each PyTorch; environments are removed again)
    #[arg(long, conflicts_with = "heavy")]
    matrix: bool,
    #[command(flatten)]
    of_matrix: Matrix,
}

impl Test {
    pub(crate) fn run(self) -> Result<()> {
        if self.matrix {
            // What is tested there knows no libtorch.
            return self.of_matrix.run(&workspace::shell()?);
        }
        let libtorch = setup::ensure()?;
        let shell = setup::shell(&libtorch)?;
        let cargo = workspace::cargo();
        // Mostly downloads, during which the other tests are built and run.
        let python = self.heavy.then(|| thread::spawn(setup::reference_python));
        // The shared libraries and the programs: tests load them from the target folder.
        cmd!(shell, "{cargo} build --workspace").run()?;
        let mut parts = Parts::default();
        let revision = self.changed.as_deref();
        let packages = revision.map(|revision| changed::packages(&shell, revision));
        let packages = packages.transpose()?;
        let again = are_failures_run_again();
        parts.run("Rust", || programs::run(&shell, packages.as_ref(), again));
        parts.run("documentation", || {
            Ok(cmd!(shell, "{cargo} test --workspace --doc").run()?)
        });
        if let Some(python) = python {
            let mut found = None;
            parts.run("setup of Python", || {
                found = Some(python.join().ok().context("setup panicked")??);
                Ok(())
            });
            if let Some(python) = found {
                heavy(&mut parts, &shell, &libtorch, &python);
                if self.all {
                    everything(&mut parts, &shell, &python, self.newest_torch);
                }
            }
        }
        parts.end()
    }
}

/// The tests under real PyTorch: the allocator and the simulated device as Python programs
/// meet them; the trainer's numbers against those of the libraries it is measured by, made
/// now; and a whole training run against the reference, loss by loss.
fn heavy(parts: &mut Parts, shell: &Shell, libtorch: &Libtorch, python: &Path) {
    parts.run("AMD's HIP runtime", || real_hip(shell));
    parts.run("kernels", || kernels::check(shell, 8));
    parts.run("sanitizers", || sanitize::run(shell));
    parts.run("browser", || ui::browser_tests(shell));
    parts.run("Python", || {
        python_tests(shell, python, &python_libraries(shell)?)
    });
    parts.run("Windows", || windows::test_if_possible(shell, python));
    parts.run("the hub's cache", || hub_cache(shell, python));
    parts.run("references", || references::check(shell, libtorch, python));
    parts.run("parity", || {
        let parity = workspace::target(shell)?.join("bench/parity.json");
        bench::TrainBench::parity_check(parity).run()
    });
}

/// What a release needs besides, with the PyTorch `of_today` or the newest that is known.
fn everything(parts: &mut Parts, shell: &Shell, python: &Path, of_today: bool) {
    parts.run("kernels without each wait", || kernels::check(shell, 1));
    // Ten seconds of it find what the seeds show, and building it takes minutes.
    parts.run("fuzzing", fuzz::briefly);
    // What it calls is compared with tch's own bindings by the crate's tests; the rest is another build of everything.
    parts.run("PyTorch's C interface", || c_interface(shell, python));
    parts.run("PyTorch for Windows", || {
        windows::test_torch_if_possible(shell, python)
    });
    parts.run("golden files", || references::golden(shell, python));
    parts.run("packages", || packages(shell));
    // LoRAs of real PyTorch and of our trainer, five times as long as in the group of all tests.
    let guard = "python/tests/test_allocator_on_device.py";
    parts.run("the guard", || {
        let test = cmd!(shell, "{python} -m pytest {guard} -k never_by_default");
        Ok(test
            .args(python_libraries(shell)?)
            .env("SUREFOOT_LORA_STEPS", "10000")
            .run()?)
    });
    parts.run("wheels", || {
        let newest = setup::newest_python(of_today)?;
        let options = dist::test_options(&setup::dist_python()?)?;
        // The trainer's wheel has a program for the PyTorch of each of the two.
        for python in [python, &newest] {
            cmd!(shell, "{python} -m pytest python/tests/test_wheel.py")
                .args(python_libraries(shell)?)
                .args(&options)
                .run()?;
        }
        Ok(())
    });
    parts.run("Python with the newest PyTorch", || {
        let newest = setup::newest_python(of_today)?;
        python_tests(shell, &newest, &python_libraries(shell)?)
    });
}

/// The parts of a run of the tests. One that fails does not keep the next from running: a run takes an hour, and the next
/// should not find what this one could have.
#[derive(Default)]
struct Parts {
    failed: Vec<&'static str>,
}

impl Parts {
    /// Runs a part, and says how long it took.
    fn run(&mut self, part: &'static str, run: impl FnOnce() -> Result<()>) {
        let began = Instant::now();
        if let Err(error) = run() {
            eprintln!("error: {error:#}");
            self.failed.push(part);
        }
        let seconds = began.elapsed().as_secs();
        eprintln!("time      {seconds} s for {part}");
    }

    fn end(self) -> Result<()> {
        let failed = self.failed.join(", ");
        anyhow::ensure!(failed.is_empty(), "tests failed: {failed}");
        Ok(())
    }
}

/// The tests of models and trainer without C++, in a target folder of their own: `torch-abi` is in the place of tch's own bindings,
/// and PyTorch is that of `python`.
fn c_interface(shell: &Shell, python: &Path) -> Result<()> {
    let cargo = workspace::cargo();
    let where_it_is = "import torch; print(torch.__path__[0])";
    let torch = cmd!(shell, "{python} -c {where_it_is}").read()?;
    let programs = [
        ["--package", "torch-ext", "--test", "all"].as_slice(),
        &[
            "--package",
            "surefoot-models",
            "--package",
            "surefoot-trainer",
            "--lib",
        ],
    ];
    workspace::with_torch_abi(shell, |options, _| {
        programs.into_iter().try_for_each(|programs| {
            // Tests of a program share libtorch's random generator. Several processes need C++, and plans for large models
            // take Python's fake tensors minutes.
            let test = cmd!(
                shell,
                "{cargo} test {options...} {programs...} -- --test-threads=1
                --skip ranks:: --skip plan::"
            );
            Ok(test.env("LIBTORCH", &torch).run()?)
        })
    })?;
    // The trainer as Windows has it: a library in the Python with PyTorch.
    let library = windows::build_trainer(shell, "dev", &[])?;
    let launcher = workspace::target(shell)?.join("debug/surefoot");
    cmd!(
        shell,
        "{python} -m pytest python/tests/test_hosted_trainer.py python/tests/test_gpu_check.py --hosted-launcher {launcher}
        --hosted-trainer {library}"
    )
    .run()?;
    Ok(())
}

/// Builds every crate that is published from its package alone, which cargo unpacks; then the documentation as docs.rs
/// does, without libtorch. (The examples of the READMEs are documentation tests.)
fn packages(shell: &Shell) -> Result<()> {
    let cargo = workspace::cargo();
    let private = ["device-sim", "harness", "torch-sys", "xtask"];
    let private = private.into_iter().flat_map(|name| ["--exclude", name]);
    cmd!(
        shell,
        "{cargo} package --workspace {private...} --allow-dirty"
    )
    .run()?;
    let options = ["--package", "surefoot-trainer", "--features", "doc-only"];
    cmd!(shell, "{cargo} doc --no-deps {options...}")
        .env("LIBTORCH", "/nowhere")
        .run()?;
    Ok(())
}

/// The tests in Python, in the environment of `python`, of the libraries that the options `libraries` name.
fn python_tests(shell: &Shell, python: &Path, libraries: &[OsString]) -> Result<()> {
    let cargo = workspace::cargo();
    // Verified transfers by real libtorch, which python/tests/test_rust_placement.py puts on the simulator.
    // Of the whole workspace: with the features of one package alone, cargo would build libtorch's bindings again.
    cmd!(
        shell,
        "{cargo} build --workspace --bin on-device --bin surefoot --bin surefoot-trainer"
    )
    .run()?;
    // A test is mostly the start of a Python process with PyTorch, so several at once; those that watch
    // the machine's memory or its clock come afterwards, one at a time.
    let cores =
        std::thread::available_parallelism().map_or(1, |cores| cores.get().min(MOST_AT_ONCE));
    let at_once = ["-m", "not alone", "-n", &cores.to_string()].map(OsString::from);
    let alone = ["-m", "alone"].map(OsString::from);
    for group in [at_once.as_slice(), &alone] {
        python_tests_of(shell, python, libraries, group)?;
    }
    Ok(())
}

/// How many tests in Python run at once at most: each may take 2 GB.
const MOST_AT_ONCE: usize = 4;

/// The tests in Python that the options `group` choose; once more those that fail, if that is allowed.
fn python_tests_of(
    shell: &Shell,
    python: &Path,
    libraries: &[OsString],
    group: &[OsString],
) -> Result<()> {
    // That of the workspace: a benchmark leaves one without the trainer in the folder for release.
    let program = workspace::target(shell)?.join("debug/surefoot");
    let tests = || {
        cmd!(shell, "{python} -m pytest python/tests")
            .args(libraries)
            .args(group)
            .env("SUREFOOT_PROGRAM", &program)
    };
    let Err(error) = tests().run() else {
        return Ok(());
    };
    if !are_failures_run_again() {
        return Err(error.into());
    }
    eprintln!("the tests in Python that failed, once more");
    // Nothing is collected, which is an error, where no test failed but pytest itself.
    tests()
        .args(["--last-failed", "--last-failed-no-failures", "none"])
        .run()?;
    Ok(())
}

/// Builds the libraries that the tests in Python are of; returns the options that name them.
pub(crate) fn python_libraries(shell: &Shell) -> Result<Vec<OsString>> {
    let cargo = workspace::cargo();
    cmd!(
        shell,
        "{cargo} build --release --package device-sim --package hip-alloc"
    )
    .run()?;
    let built = workspace::target(shell)?.join("release");
    Ok(vec![
        "--device-sim".into(),
        built.join("libdevice_sim.so").into(),
        "--hip-alloc".into(),
        built.join("libhip_alloc.so").into(),
    ])
}

/// The cache that Python's hub makes, and the one that it is given.
fn hub_cache(shell: &Shell, python: &Path) -> Result<()> {
    let cargo = workspace::cargo();
    let test = "hub::processes::pythons_hub_and_this_one_have_one_cache";
    let said = cmd!(
        shell,
        "{cargo} test --workspace --test all -- --ignored --exact {test}"
    )
    .env("SUREFOOT_HUB_PYTHON", python)
    .read()?;
    anyhow::ensure!(said.contains("1 passed"), "`{test}` was not run: {said}");
    Ok(())
}

/// Whether a test that fails gets a second chance: CI's machines are shared, and many tests watch real processes.
pub(crate) fn are_failures_run_again() -> bool {
    std::env::var_os("XTASK_RETRY").is_some_and(|value| value == "1")
}

/// The allocator against AMD's own runtime, as far as that goes without a GPU.
fn real_hip(shell: &Shell) -> Result<()> {
    let Some(folder) = setup::hip_runtime()? else {
        eprintln!("not run: the tests against AMD's HIP runtime, which setup gets through apt-get");
        return Ok(());
    };
    let cargo = workspace::cargo();
    let path = shell.var("LD_LIBRARY_PATH").unwrap_or_default();
    cmd!(shell, "{cargo} test --workspace --test real_hip")
        .env("LD_LIBRARY_PATH", format!("{}:{path}", folder.display()))
        .run()?;
    Ok(())
}
