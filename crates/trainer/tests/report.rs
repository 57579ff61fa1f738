//! The report page of a run, in a real browser: it draws, says what happened, loads nothing,
//! complains of nothing, and fits a narrow screen.
//!
//! Needs Chromium; where there is none the test says so and ends. `.ci/run` installs it.
//! `SUREFOOT_SCREENSHOTS=<folder>` keeps pictures of the page, light and dark, wide and narrow.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use surefoot_trainer::{Allocator, Config, NoObserver, Stop};

const CONFIG: &str = "
name: report
device: cpu
threads: 1
model: {hidden_size: 16, intermediate_size: 24, num_hidden_layers: 1, num_attention_heads: 2}
data: {block_size: 16}
sample: {prompts: ['</script><b>12', '7 bottles'], max_new_tokens: 24, sample_steps: 20}
train:
  bf16: false
  max_steps: 60
  per_device_train_batch_size: 4
  learning_rate: 0.01
  warmup_steps: 10
  logging_steps: 2
  eval_steps: 10
  save_steps: 0
  load_best_model_at_end: true
";

/// The page of a short run.
fn page(folder: &Path) -> PathBuf {
    page_of(folder, "report", &[])
}

/// The same with further keys, which decide the name of its folder.
fn page_of(folder: &Path, name: &str, more: &[&str]) -> PathBuf {
    let text: String = (0..400).map(|n| format!("{n} bottles of ale\n")).collect();
    fs::write(folder.join("text.txt"), text).unwrap();
    let mut overrides = vec![
        format!("output_dir={}", folder.join("runs").display()),
        format!("data.path={}", folder.join("text.txt").display()),
    ];
    overrides.extend(more.iter().map(|text| (*text).to_owned()));
    let config = Config::parse("test.yaml", CONFIG, &overrides).unwrap();
    surefoot_trainer::run(
        &config,
        &Allocator::torch(),
        &mut NoObserver,
        &Stop::default(),
    )
    .unwrap();
    folder.join("runs").join(name).join("report.html")
}

fn chromium() -> Option<&'static str> {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let found = names.into_iter().find(|name| {
        let version = Command::new(name).arg("--version").output();
        version.is_ok_and(|output| output.status.success())
    });
    if found.is_none() {
        eprintln!("skipped: there is no Chromium here (Debian: `apt install chromium`)");
    }
    found
}

/// Opens a page without a screen.
fn browse(chromium: &str, folder: &Path, arguments: &[String]) -> Output {
    let mut command = Command::new(chromium);
    command
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--enable-logging=stderr",
        ])
        .args([
            "--no-first-run",
            "--disable-dev-shm-usage",
            "--virtual-time-budget=3000",
        ])
        .arg(format!(
            "--user-data-dir={}",
            folder.join("profile").display()
        ))
        .args(arguments);
    command.output().unwrap()
}

/// The page with a script at its end that looks at it and writes what it saw into the title.
fn observed(page: &Path, observer: &str) -> PathBuf {
    let html = fs::read_to_string(page).unwrap();
    let script = format!("<script>{observer}</script></body>");
    let target = page.with_file_name("observed.html");
    fs::write(&target, html.replace("</body>", &script)).unwrap();
    target
}

#[test]
fn the_page_is_whole_in_a_browser() {
    let folder = tempfile::tempdir().unwrap();
    let page = page(folder.path());
    let html = fs::read_to_string(&page).unwrap();
    for outside in ["http://", "https://", "src=", "@import", "url("] {
        // The names of SVG and JSON are no addresses that anything is loaded from.
        let html = html.replace("http://www.w3.org/2000/svg", "");
        assert!(!html.contains(outside), "{outside}");
    }
    for told in [
        "held by the allocator",
        "held-out data",
        "surefoot generate --model ",
    ] {
        assert!(html.contains(told), "{told}");
    }
    let Some(chromium) = chromium() else { return };
    let observer = "
        window.addEventListener('load', () => setTimeout(() => {
          const seen = {
            curves: document.querySelectorAll('svg path').length,
            charts: document.querySelectorAll('.chart').length,
            samples: document.querySelectorAll('.sample').length,
            prompt: document.querySelector('.sample h3').textContent,
            bold: document.querySelectorAll('.sample b').length,
            figures: [...document.querySelectorAll('.figure span')].map((e) => e.textContent),
            environment: document.querySelectorAll('#environment tr').length,
            commands: document.querySelectorAll('#use pre').length,
            axes: document.querySelectorAll('.axis').length,
            ticks: [...document.querySelectorAll('.plot')].every((plot) => {
              const labels = [...plot.querySelectorAll('.tick')].map((label) => label.textContent);
              return labels.length > 1 && new Set(labels).size === labels.length;
            }),
            tips: (() => {
              const wide = document.querySelector('.whole svg');
              const box = wide.getBoundingClientRect();
              const at = { clientX: box.left + box.width / 2 };
              wide.dispatchEvent(new PointerEvent('pointermove', at));
              const tips = [...document.querySelectorAll('.tip')].filter((tip) => !tip.hidden);
              const rows = tips.map((tip) => [...tip.children].map((row) => row.textContent));
              wide.dispatchEvent(new PointerEvent('pointerleave'));
              return rows;
            })(),
            sizes: SIZES.map(bytes),
            shifted: Math.max(...[...document.querySelectorAll('.plot')].map((plot) => Math.abs(
              plot.querySelector('path').getBoundingClientRect().right
                - plot.querySelector('.grid').getBoundingClientRect().right))),
            wide: new Set([...document.querySelectorAll('.whole .grid')].map((line) => line.getAttribute('x1'))).size,
            requests: performance.getEntriesByType('resource').length,
            overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
          };
          document.documentElement.dataset.seen = JSON.stringify(seen);
        }, 300));";
    // Below and above each unit, and halves of the last digit.
    let sizes = [
        0,
        1023,
        1024,
        1152,
        1408,
        1664,
        1_048_575,
        1_048_576,
        209_715_200,
        818_140_938,
        67_076_651_745,
        1 << 40,
        3 << 40,
    ];
    let observer = observer.replace("SIZES", &format!("{sizes:?}"));
    let url = format!("file://{}", observed(&page, &observer).display());
    for width in ["1280,900", "360,740"] {
        let arguments = [
            format!("--window-size={width}"),
            "--dump-dom".into(),
            url.clone(),
        ];
        let output = browse(chromium, folder.path(), &arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!said.contains("CONSOLE"), "{width}: {said}");
        let dom = String::from_utf8_lossy(&output.stdout);
        let seen = dom.split("data-seen=\"").nth(1);
        let seen = seen.and_then(|rest| rest.split('"').next());
        let seen = seen.unwrap_or_else(|| panic!("{width}: no answer: {said}"));
        let seen: serde_json::Value = serde_json::from_str(&seen.replace("&quot;", "\"")).unwrap();
        assert_eq!(seen["charts"], 5, "{seen}");
        // Training, smoothed too, and held out; the process; and one each of the other three.
        assert_eq!(seen["curves"], 7, "{seen}");
        assert_eq!(
            (&seen["samples"], &seen["bold"]),
            (&2.into(), &0.into()),
            "{seen}"
        );
        assert!(seen["environment"].as_u64() > Some(6), "{seen}");
        assert!(
            seen["figures"].to_string().contains("best evaluation"),
            "{seen}"
        );
        assert_eq!(seen["commands"], 5, "{seen}");
        // Each has two, the last step is at the end of its scale, and the two wide charts are in line.
        assert_eq!(
            (&seen["axes"], &seen["wide"]),
            (&10.into(), &1.into()),
            "{seen}"
        );
        assert!(seen["shifted"].as_f64() < Some(4.0), "{width}: {seen}");
        // No two ticks of an axis say the same, and sizes are written as everywhere.
        assert_eq!(seen["ticks"], true, "{seen}");
        let written = sizes.map(|size| placement::Bytes(size).to_string());
        assert_eq!(seen["sizes"], serde_json::json!(written));
        // A pointer on one of the wide charts is on both, at the same step.
        let tips = seen["tips"].as_array().unwrap();
        assert_eq!(tips.len(), 2, "{seen}");
        assert_eq!(tips[0][0], tips[1][0], "{seen}");
        assert!(tips[0].to_string().contains("held-out data"), "{seen}");
        assert!(tips[1].to_string().contains("MiB"), "{seen}");
        assert_eq!(seen["requests"], 0, "{seen}");
        assert_eq!(seen["overflow"], 0, "{width}: {seen}");
    }
    if let Some(target) = std::env::var_os("SUREFOOT_SCREENSHOTS") {
        take_pictures(chromium, folder.path(), &page, Path::new(&target));
    }
}

/// The mark stands between the powers of ten that the suggestion lies between.
#[test]
fn the_page_of_a_search_shows_the_loss_over_the_rate_and_marks_what_was_found() {
    let folder = tempfile::tempdir().unwrap();
    let search = ["train.find_learning_rate=true"];
    let page = page_of(folder.path(), "report-lr", &search);
    let summary = fs::read(page.with_file_name("summary.json")).unwrap();
    let summary: serde_json::Value = serde_json::from_slice(&summary).unwrap();
    let rate = summary["learning_rate"]["learning_rate"].as_f64().unwrap();
    let Some(chromium) = chromium() else { return };
    let observer = "
        window.addEventListener('load', () => setTimeout(() => {
          const chart = [...document.querySelectorAll('.chart')].find((one) => one.textContent.startsWith('Loss over'));
          const powers = [...chart.querySelectorAll('text')].filter((one) => /^1e-[0-9]$/.test(one.textContent));
          const seen = {
            what: document.getElementById('what').textContent,
            mark: Number(chart.querySelector('.marked').getAttribute('x1')),
            powers: powers.map((one) => [Number(one.textContent), Number(one.getAttribute('x'))]),
            curves: chart.querySelectorAll('path').length,
          };
          document.documentElement.dataset.seen = JSON.stringify(seen);
        }, 300));";
    let url = format!("file://{}", observed(&page, observer).display());
    let output = browse(chromium, folder.path(), &["--dump-dom".into(), url]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!said.contains("CONSOLE"), "{said}");
    let dom = String::from_utf8_lossy(&output.stdout);
    let seen = dom.split("data-seen=\"").nth(1);
    let seen = seen.and_then(|rest| rest.split('"').next());
    let seen = seen.unwrap_or_else(|| panic!("no answer: {said}"));
    let seen: serde_json::Value = serde_json::from_str(&seen.replace("&quot;", "\"")).unwrap();
    let told = seen["what"].as_str().unwrap();
    assert!(told.contains("is suggested: a tenth of"), "{seen}");
    assert_eq!(seen["curves"], 2, "{seen}");
    let mark = seen["mark"].as_f64().unwrap();
    let powers = seen["powers"].as_array().unwrap();
    assert!(powers.len() > 3, "{seen}");
    for power in powers {
        let (power, at) = (power[0].as_f64().unwrap(), power[1].as_f64().unwrap());
        assert_eq!(at < mark, power < rate, "{rate}: {seen}");
    }
}

fn take_pictures(chromium: &str, folder: &Path, page: &Path, target: &Path) {
    fs::create_dir_all(target).unwrap();
    let url = format!("file://{}", page.display());
    for (name, size, dark) in [
        ("wide-light", "1280,2200", false),
        ("wide-dark", "1280,2200", true),
        ("narrow-light", "500,3400", false),
    ] {
        let picture = target.join(format!("{name}.png"));
        let mut arguments = vec![
            format!("--window-size={size}"),
            format!("--screenshot={}", picture.display()),
            url.clone(),
        ];
        if dark {
            arguments.insert(0, "--blink-settings=preferredColorScheme=0".into());
        }
        browse(chromium, folder, &arguments);
        assert!(picture.is_file(), "{name}");
    }
}

/// Looks at the page after the first step, and ends the run by what cannot be written.
struct Breaks(PathBuf, Option<String>);

impl surefoot_trainer::Observer for Breaks {
    fn stepped(&mut self, step: u64) {
        if step > 1 {
            return;
        }
        self.1 = fs::read_to_string(self.0.join("report.html")).ok();
        fs::write(self.0.join("checkpoints"), "no folder").unwrap();
    }
}

/// A config for a short run in `folder`, and the folder of the run.
fn short_run(folder: &Path, keys: &[&str]) -> (Config, PathBuf) {
    fs::write(
        folder.join("text.txt"),
        "seven bottles of ale\n".repeat(200),
    )
    .unwrap();
    let mut overrides = vec![
        format!("output_dir={}", folder.join("runs").display()),
        format!("data.path={}", folder.join("text.txt").display()),
    ];
    overrides.extend(keys.iter().map(|key| (*key).to_owned()));
    let config = Config::parse("test.yaml", CONFIG, &overrides).unwrap();
    (config, folder.join("runs/report"))
}

/// Puts a folder in the place of the page after the first step.
struct Blocks(PathBuf);

impl surefoot_trainer::Observer for Blocks {
    fn stepped(&mut self, step: u64) {
        if step == 1 {
            fs::remove_file(self.0.join("report.html")).unwrap();
            fs::create_dir(self.0.join("report.html")).unwrap();
            fs::write(self.0.join("report.html/note"), "mine").unwrap();
        }
    }
}

#[test]
fn a_page_that_cannot_be_written_ends_no_run() {
    let folder = tempfile::tempdir().unwrap();
    let (config, run) = short_run(
        folder.path(),
        &["max_steps=4", "save_steps=2", "warmup_steps=1"],
    );
    let (mut observer, allocator) = (Blocks(run.clone()), Allocator::torch());
    let summary =
        surefoot_trainer::run(&config, &allocator, &mut observer, &Stop::default()).unwrap();
    assert_eq!(summary.steps, 4);
    assert!(run.join("checkpoints/step-000004").is_dir());
    assert!(run.join("summary.json").is_file());
    let kept = fs::read_to_string(run.join("report.html/note")).unwrap();
    assert_eq!(kept, "mine");
}

#[test]
fn a_run_that_breaks_has_a_page_that_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let (config, run) = short_run(folder.path(), &["save_steps=4"]);
    let mut observer = Breaks(run.clone(), None);
    let allocator = Allocator::torch();
    let error = surefoot_trainer::run(&config, &allocator, &mut observer, &Stop::default());
    let before = observer.1.expect("a page from the first step on");
    assert!(before.contains("\"ending\":\"running\""));
    let page = fs::read_to_string(run.join("report.html")).unwrap();
    assert!(page.contains("\"ending\":\"failed\"") && page.contains("\"kind\":\"train\""));
    let reason = serde_json::to_string(&error.unwrap_err().to_string()).unwrap();
    assert!(page.contains(&format!("\"error\":{reason}")), "{reason}");
    assert!(page.contains("surefoot train --resume "));
}
