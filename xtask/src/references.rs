//! The trainer's numbers against those of the libraries it is measured by, made now: the
//! heavy tier; the golden files, for a release or when their scripts change.
//!
//! ```text
//! transformers, diffusers, PEFT, bitsandbytes ──tests/reference/*.py──▶ fresh golden files ──▶ the trainer's own tests
//!                                                          └─▶ adapters ──check_adapters.py──▶ PEFT's logits
//! surefoot train ──▶ adapter ──check_adapter.py──▶ PEFT's loss = `surefoot eval`'s
//! SmolLM2-135M: "The capital of France is" ──▶ " Paris"; and token for token as transformers
//! ```

use std::ffi::OsStr;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use xshell::{Shell, cmd};

use crate::setup::{self, Libtorch};
use crate::{train, workspace};

/// Maximum relative difference between our loss and theirs.
const TOLERANCE: f64 = 1e-4;

/// What `check_adapter.py` writes.
#[derive(Deserialize)]
struct Theirs {
    base: f64,
    adapted: f64,
    tokens: u64,
}

/// Prompts that a model continues, and the number of tokens.
const PROMPTS: [&str; 4] = [
    "The capital of France is",
    "Once upon a time there was a",
    "def fibonacci(n):\n    ",
    "Der schnelle braune Fuchs",
];
const CONTINUED: &str = "24";

/// What `surefoot generate --json` writes.
#[derive(Deserialize)]
struct Continued {
    tokens: Vec<u32>,
}

/// What `surefoot eval --json` writes.
#[derive(Deserialize)]
struct Ours {
    negative_log_likelihood: f64,
    tokens: u64,
}

/// Compares adapters, generated texts and losses of our programs with fresh ones of theirs.
pub(crate) fn check(shell: &Shell, libtorch: &Libtorch, python: &Path) -> Result<()> {
    let began = Instant::now();
    let surefoot = train::build(libtorch)?;
    let model = setup::published_model(&surefoot)?;
    paris(shell, &surefoot, &model)?;
    greedy(shell, python, &surefoot, &model)?;
    adapter(shell, python, &surefoot, &model)?;
    let seconds = began.elapsed().as_secs();
    eprintln!("references: all agree, in {seconds} s");
    Ok(())
}

/// Makes fresh reference files and runs the tests that read them; otherwise the tests read those in the
/// repository.
pub(crate) fn golden(shell: &Shell, python: &Path) -> Result<()> {
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    let golden = folder.path();
    for script in [
        "models",
        "gguf_formats",
        "adapters",
        "quantisation",
        "schedules",
        "optimizers",
        "regularised",
        // The first script creates the folder that the others write into.
        "wan",
        "wan_text",
        "wan_lora",
        "wan_pipeline",
        "wan_training",
        "z_image",
        "flux2",
        "anima",
        "sdxl",
        // After anima, whose functions it calls.
        "qwen_image",
        // After that one, likewise.
        "krea2",
        // After qwen_image.
        "qwen_image_edit",
        // After wan and sdxl, likewise.
        "flux1",
        // After flux1.
        "chroma",
        "preferences",
    ] {
        cmd!(shell, "{python} tests/reference/{script}.py {golden}").run()?;
    }
    // The tests of these targets that read golden files; the whole target if most do.
    let written = tempfile::tempdir().context("cannot make a temporary folder")?;
    let written = written.path();
    let kept = shell.push_env("SUREFOOT_ADAPTERS", written);
    reading(shell, golden, "surefoot-models", &["--lib"], &[])?;
    drop(kept);
    // And what one of them wrote.
    let script = "tests/reference/check_adapters.py";
    cmd!(shell, "{python} {script} {golden} {written}").run()?;
    reading(shell, golden, "surefoot-trainer", &["--lib"], &["optim::"])?;
    reading(
        shell,
        golden,
        "surefoot-trainer",
        &["--test", "all"],
        &["peft::", "preferences::"],
    )?;
    reading(
        shell,
        golden,
        "surefoot-trainer",
        &["--test", "all"],
        &[
            "wan::",
            "z_image::",
            "flux2::",
            "anima::",
            "sdxl::",
            "qwen_image::",
            "qwen_image_edit::",
            "training_adapter::",
            "flux1::",
            "krea2::",
            "chroma::",
        ],
    )?;
    Ok(())
}

/// Runs the tests of a target that match `filters` (all if empty) on the golden files in `folder`.
fn reading(
    shell: &Shell,
    folder: &Path,
    package: &str,
    target: &[&str],
    filters: &[&str],
) -> Result<()> {
    let cargo = workspace::cargo();
    // One at a time: libtorch has one random generator for all threads.
    let test = cmd!(
        shell,
        "{cargo} test --package {package} {target...} -- --test-threads=1 {filters...}"
    );
    let output = test
        .env("SUREFOOT_GOLDEN", folder)
        .ignore_status()
        .output()?;
    let printed = String::from_utf8_lossy(&output.stdout);
    println!("{printed}");
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    if !output.status.success() {
        bail!("{package} differs from the fresh golden files");
    }
    if printed.contains("running 0 tests") {
        bail!("no test of {package} {target:?} is named {filters:?}: nothing was compared");
    }
    Ok(())
}

fn paris(shell: &Shell, surefoot: &Path, model: &Path) -> Result<()> {
    let prompt = "The capital of France is";
    let text = cmd!(
        shell,
        "{surefoot} generate --model {model} --prompt {prompt} --max-new-tokens 2"
    )
    .read()?;
    if !text.trim_start().starts_with("Paris") {
        bail!("`{prompt}` is continued with `{text}`");
    }
    Ok(())
}

/// Greedy decoding gives the same tokens as transformers.
fn greedy(shell: &Shell, python: &Path, surefoot: &Path, model: &Path) -> Result<()> {
    let script = "tests/reference/greedy.py";
    let theirs = cmd!(shell, "{python} {script} {model} {CONTINUED} {PROMPTS...}").read()?;
    let theirs: Vec<Vec<u32>> = serde_json::from_str(&theirs).context("what greedy.py wrote")?;
    if theirs.len() != PROMPTS.len() {
        bail!("greedy.py continued {} prompts", theirs.len());
    }
    for (prompt, theirs) in PROMPTS.iter().zip(theirs) {
        let ours = cmd!(
            shell,
            "{surefoot} generate --model {model} --prompt {prompt} --max-new-tokens {CONTINUED} --json"
        )
        .read()?;
        let ours: Continued =
            serde_json::from_str(&ours).context("what `surefoot generate --json` wrote")?;
        if ours.tokens != theirs {
            bail!(
                "`{prompt}` goes on with {:?}, in transformers with {theirs:?}",
                ours.tokens
            );
        }
    }
    eprintln!("{} texts are continued as by transformers", PROMPTS.len());
    Ok(())
}

/// An adapter that we trained for a few steps gives the same loss in PEFT as here.
fn adapter(shell: &Shell, python: &Path, surefoot: &Path, model: &Path) -> Result<()> {
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    let (runs, text) = (folder.path().join("runs"), folder.path().join("text.txt"));
    let words = "ROMEO.\nBut soft, what light through yonder window breaks?\n";
    std::fs::write(&text, words.repeat(4))?;
    let mut arguments = Vec::new();
    for value in [
        format!("output_dir={}", runs.display()),
        "name=check".into(),
        "block_size=64".into(),
        "per_device_train_batch_size=1".into(),
        "max_steps=4".into(),
        "warmup_steps=0".into(),
        "learning_rate=0.005".into(),
        "bf16=false".into(),
        "eval_steps=0".into(),
        "save_steps=0".into(),
        "validation_fraction=0.0005".into(),
        "max_new_tokens=0".into(),
    ] {
        arguments.extend(["--set".to_owned(), value]);
    }
    cmd!(
        shell,
        "{surefoot} train configs/smollm2-lora.yaml {arguments...}"
    )
    .run()?;
    let adapter = runs.join("check/adapter");
    let script = "tests/reference/check_adapter.py";
    let theirs = cmd!(shell, "{python} {script} {model} {adapter} {text}").read()?;
    let theirs: Theirs = serde_json::from_str(&theirs).context("what check_adapter.py wrote")?;
    let base = evaluate(shell, surefoot, model, &text, &[])?;
    let with = ["--adapter".as_ref(), adapter.as_os_str()];
    let adapted = evaluate(shell, surefoot, model, &text, &with)?;
    for (what, ours, loss) in [
        ("the model", &base, theirs.base),
        ("our adapter", &adapted, theirs.adapted),
    ] {
        let difference = (ours.negative_log_likelihood / loss - 1.0).abs();
        eprintln!(
            "loss of {what}: {:.6} here, {loss:.6} in PEFT, {difference:.1e} apart",
            ours.negative_log_likelihood
        );
        if ours.tokens != theirs.tokens || difference.is_nan() | (difference > TOLERANCE) {
            bail!("PEFT's loss for {what} differs");
        }
    }
    if (base.negative_log_likelihood - adapted.negative_log_likelihood).abs() < 0.01 {
        bail!("the adapter changes nothing: the comparison says nothing");
    }
    Ok(())
}

fn evaluate(
    shell: &Shell,
    surefoot: &Path,
    model: &Path,
    text: &Path,
    more: &[&OsStr],
) -> Result<Ours> {
    let json = cmd!(
        shell,
        "{surefoot} eval --model {model} --data {text} --json {more...}"
    )
    .read()?;
    serde_json::from_str(&json).context("what `surefoot eval --json` wrote")
}
