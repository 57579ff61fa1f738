//! The report page of a run, in a real browser: it draws, says what happened, loads nothing,
//! complains of nothing, and fits a narrow screen.
//!
//! Needs Chromium; where there is none the test says so and ends. `.ci/run` installs it.
//! `SUREFOOT_SCREENSHOTS=<folder>` keeps pictures of the page, light and dark, wide and narrow.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use trainer::{Allocator, Config, Silent, Stop};

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
    let text: String = (0..400).map(|n| format!("{n} bottles of ale\n")).collect();
    fs::write(folder.join("text.txt"), text).unwrap();
    let overrides = [
        format!("output_dir={}", folder.join("runs").display()),
        format!("data.path={}", folder.join("text.txt").display()),
    ];
    let config = Config::parse("test.yaml", CONFIG, &overrides).unwrap();
    trainer::run(&config, &Allocator::torch(), &mut Silent, &Stop::default()).unwrap();
    folder.join("runs/report/report.html")
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
            requests: performance.getEntriesByType('resource').length,
            overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
          };
          document.documentElement.dataset.seen = JSON.stringify(seen);
        }, 300));";
    let url = format!("file://{}", observed(&page, observer).display());
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
        assert_eq!(seen["requests"], 0, "{seen}");
        assert_eq!(seen["overflow"], 0, "{width}: {seen}");
    }
    if let Some(target) = std::env::var_os("SUREFOOT_SCREENSHOTS") {
        take_pictures(chromium, folder.path(), &page, Path::new(&target));
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
