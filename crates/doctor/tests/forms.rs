//! Machines in the forms that people post: one line a GPU, and what is found.
//!
//! The texts of `fixtures/forms` are synthetic, written after the formats of the tools.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use surefoot_doctor::diagnose_text;

#[test]
fn every_form_is_read() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/forms");
    let mut paths: Vec<_> = fs::read_dir(folder)
        .expect("the folder")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    paths.sort();
    let mut all = String::new();
    for path in paths {
        let name = path.file_stem().expect("a name").to_string_lossy();
        let text = surefoot_doctor::dump::decode(&fs::read(&path).expect("a text"));
        let report = diagnose_text(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        let from = report.machine.read_from;
        let _ = writeln!(all, "{name}: {from:?}, {:?}", report.machine.system);
        for entry in &report.gpus {
            let gpu = &entry.gpu;
            let usable = gpu.usable_bytes.map(|bytes| bytes.to_string());
            let _ = writeln!(
                all,
                "    {} {:?} {} {:?}",
                gpu.name(),
                gpu.class,
                usable.as_deref().unwrap_or("?"),
                gpu.memory_rule
            );
        }
        let ids: Vec<&str> = report.findings.iter().map(|f| f.id.as_str()).collect();
        let _ = writeln!(
            all,
            "    pick {:?}, hide {:?}, {}",
            report.pick,
            report.hide,
            ids.join(" ")
        );
    }
    insta::assert_snapshot!(all);
}
