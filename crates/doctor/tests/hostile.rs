//! No input panics any parser: mutated fixtures, cut, spliced and damaged.

use proptest::prelude::*;
use std::fs;
use std::path::Path;
use std::sync::LazyLock;
use surefoot_doctor::diagnose_text;
use surefoot_doctor::explain::explain;
use surefoot_doctor::report::explanation_text;

static FIXTURES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let mut all = Vec::new();
    for folder in [root.clone(), root.join("synthetic")] {
        let mut paths: Vec<_> = fs::read_dir(folder)
            .expect("fixtures")
            .map(|entry| entry.expect("an entry").path())
            .collect();
        paths.sort();
        for path in paths
            .iter()
            .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
        {
            let bytes = fs::read(path).expect("a fixture");
            // Damage anywhere in the long ones is damage in the first part of them.
            all.push(bytes[..bytes.len().min(6000)].to_vec());
        }
    }
    all
});

#[derive(Clone, Debug)]
enum Damage {
    Truncate(usize),
    Replace(usize, Vec<u8>),
    Remove(usize, usize),
    Windows,
    Number(usize, String),
    Shuffle(usize, usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    let at = 0usize..6000;
    prop_oneof![
        at.clone().prop_map(Damage::Truncate),
        (at.clone(), proptest::collection::vec(any::<u8>(), 1..12))
            .prop_map(|(at, bytes)| Damage::Replace(at, bytes)),
        (at.clone(), 0usize..400).prop_map(|(at, length)| Damage::Remove(at, length)),
        Just(Damage::Windows),
        (at.clone(), "(-|[0-9]){0,24}|0x[0-9a-f]{0,20}|é|\u{fffd}")
            .prop_map(|(at, number)| Damage::Number(at, number)),
        (at.clone(), at).prop_map(|(a, b)| Damage::Shuffle(a, b)),
    ]
}

fn apply(mut bytes: Vec<u8>, damage: &Damage) -> Vec<u8> {
    let within = |at: usize, length: usize| at.min(length);
    match damage {
        Damage::Truncate(at) => bytes.truncate(*at),
        Damage::Replace(at, with) => {
            let at = within(*at, bytes.len());
            let end = within(at + with.len(), bytes.len());
            bytes.splice(at..end, with.iter().copied());
        }
        Damage::Remove(at, length) => {
            let at = within(*at, bytes.len());
            let end = within(at + length, bytes.len());
            bytes.drain(at..end);
        }
        Damage::Windows => {
            bytes = String::from_utf8_lossy(&bytes)
                .replace('\n', "\r\n")
                .into_bytes()
        }
        // The next number of the text becomes another.
        Damage::Number(at, number) => {
            let at = within(*at, bytes.len());
            if let Some(start) = bytes[at..]
                .iter()
                .position(u8::is_ascii_digit)
                .map(|start| at + start)
            {
                let length = bytes[start..]
                    .iter()
                    .take_while(|byte| byte.is_ascii_digit())
                    .count();
                bytes.splice(start..start + length, number.bytes());
            }
        }
        Damage::Shuffle(a, b) => {
            let (a, b) = (within(*a, bytes.len()), within(*b, bytes.len()));
            let (a, b) = (a.min(b), a.max(b));
            bytes.rotate_left(a);
            let length = bytes.len();
            bytes.truncate(within(length - (b - a) / 2, length));
        }
    }
    bytes
}

/// Everything that the program does with a text that somebody hands it.
fn use_everything(bytes: &[u8]) {
    let text = surefoot_doctor::dump::decode(bytes);
    if let Ok(report) = diagnose_text(&text) {
        let _ = report.to_text(true);
        let _ = report.fix_script();
        let _ = serde_json::to_string(&report).expect("a report is JSON");
        for gpu in &report.gpus {
            assert!(gpu.gpu.index < report.gpus.len());
        }
    }
    let explanation = explain(&text);
    let _ = explanation_text(&explanation, false);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn damaged_fixtures_do_not_panic(which in any::<prop::sample::Index>(), damages in proptest::collection::vec(damage(), 1..6)) {
        let mut bytes = FIXTURES[which.index(FIXTURES.len())].clone();
        for damage in &damages {
            bytes = apply(bytes, damage);
        }
        use_everything(&bytes);
    }

    #[test]
    fn two_fixtures_in_one_file_do_not_panic(a in any::<prop::sample::Index>(), b in any::<prop::sample::Index>(), cut in 0usize..6000) {
        let a = &FIXTURES[a.index(FIXTURES.len())];
        let mut bytes = a[..cut.min(a.len())].to_vec();
        bytes.extend(&FIXTURES[b.index(FIXTURES.len())]);
        use_everything(&bytes);
    }
}

#[test]
fn line_ends_of_windows_change_nothing() {
    for bytes in FIXTURES.iter() {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let windows = text.replace('\n', "\r\n");
        let findings = |text: &str| {
            diagnose_text(text).map(|report| {
                report
                    .findings
                    .into_iter()
                    .map(|f| f.id)
                    .collect::<Vec<_>>()
            })
        };
        let gpus = |text: &str| {
            diagnose_text(text).map(|report| serde_json::to_value(report.gpus).expect("JSON"))
        };
        assert_eq!(findings(&windows), findings(&text));
        assert_eq!(gpus(&windows), gpus(&text));
    }
}
