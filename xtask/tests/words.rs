//! Names and comments use the field's terms, not words that this project once made up.

use crate::common::{assert_none, files, read};

/// A private word, and the term that PyTorch, CUDA or Linux use for it.
const PRIVATE: [(&str, &str); 26] = [
    ("boundless", "unlimited"),
    ("climb", "transfer"),
    ("climbs", "transfers"),
    ("crests", "peaks"),
    ("desk", "phase builder"),
    ("ebb", "step boundary"),
    ("farewell", "shutdown timeout"),
    ("home_before", "residency_before"),
    ("idle_home", "idle_residency"),
    ("in_hand", "active"),
    ("ladder", "transfer engine"),
    ("let_go", "drop_when_safe"),
    ("lull", "trough"),
    ("parting", "deferred drop"),
    ("rehearsal", "step predictor"),
    ("rung", "transfer strategy"),
    ("rungs", "transfer strategies"),
    ("see_itself", "self_attention"),
    ("see_text", "cross_attention"),
    ("shelf", "spill file"),
    ("someone_waits", "has_offloaded_modules"),
    ("tide", "step detector"),
    ("troubles", "deferred errors"),
    ("turn_towards", "update_direction"),
    ("wish", "option"),
    ("wishes", "options"),
];

#[test]
fn code_uses_the_terms_of_the_field() {
    let mut findings = Vec::new();
    for path in files(&["rs", "py", "cpp", "c", "h"]) {
        let path = path.to_string_lossy();
        if path == "xtask/tests/words.rs" {
            continue;
        }
        for (number, line) in read(&*path).lines().enumerate() {
            // Names in a file format do not change.
            if line.contains("serde(rename") {
                continue;
            }
            for (word, term) in private_words(line) {
                let at = number + 1;
                findings.push(format!("{path}:{at}: `{word}` is called {term}"));
            }
        }
    }
    assert_none("words that only this project uses", findings);
}

/// The private words of a line, as words of their own or as parts of snake_case and CamelCase names.
fn private_words(line: &str) -> Vec<(&'static str, &'static str)> {
    let mut spaced = String::new();
    let mut after_lower = false;
    for character in line.chars() {
        if character.is_uppercase() && after_lower {
            spaced.push(' ');
        }
        after_lower = character.is_lowercase();
        spaced.extend(character.to_lowercase());
    }
    let is_letter = |character: char| character.is_alphanumeric();
    let words: Vec<&str> = spaced.split(|character| !is_letter(character)).collect();
    let whole: Vec<&str> = spaced
        .split(|character| !is_letter(character) && character != '_')
        .collect();
    let found = PRIVATE.iter();
    found
        .filter(|(word, _)| words.contains(word) || whole.contains(word))
        .copied()
        .collect()
}

#[test]
fn parts_of_names_are_seen_and_other_words_are_not() {
    let found = |line| {
        private_words(line)
            .into_iter()
            .map(|(word, _)| word)
            .collect::<Vec<_>>()
    };
    assert_eq!(found("let shelf = WishesOf::new();"), ["shelf", "wishes"]);
    assert_eq!(found("fn place_rung_first() {}"), ["rung"]);
    assert_eq!(found("x.let_go()"), ["let_go"]);
    assert_eq!(
        found("// the rungless, wishful and shelfish"),
        Vec::<&str>::new()
    );
}

/// Files outside a diffusion model's folder that may name it, and why.
const NAMING_MODELS: [(&str, &str); 13] = [
    ("crates/models/src/diffusion.rs", "the folder's `mod`"),
    ("crates/models/src/diffusion/registry.rs", "its line"),
    (
        "crates/models/src/diffusion/parts/causal_kl/config.rs",
        "statistics of published autoencoders",
    ),
    ("crates/trainer/src/config.rs", "help for keys"),
    ("crates/trainer/src/config/data.rs", "help for keys"),
    ("crates/trainer/src/config/train.rs", "help for keys"),
    (
        "crates/trainer/src/config/words.rs",
        "words of other trainers",
    ),
    (
        "crates/trainer/src/media/ffmpeg.rs",
        "the part of a colour that is not its brightness",
    ),
    ("crates/doctor/src/wan.rs", "what it needs of a machine"),
    ("crates/doctor/src/lib.rs", "the `mod` of that"),
    ("crates/cli/src/commands/doctor.rs", "`--wan`"),
    ("crates/cli/src/commands/probe.rs", "what `--wan` says"),
    ("crates/cli/src/commands/probe/link.rs", "an amount of data"),
];

/// The folders of diffusion models, which are their names, and how else they are written.
const MODELS: [(&str, &[&str]); 8] = [
    ("wan", &[]),
    ("z_image", &["z-image", "zimage"]),
    ("flux1", &["schnell", "chroma"]),
    ("flux2", &["klein"]),
    ("anima", &[]),
    ("sdxl", &[]),
    ("qwen_image", &["qwen-image", "qwenimage"]),
    ("krea2", &["krea-2"]),
];

/// What a diffusion model is stands in its folder; everything else asks `models::diffusion`.
#[test]
fn a_diffusion_model_is_named_in_its_folder_alone() {
    let allowed = |path: &str| {
        let in_folder = |(name, _): &(&str, &[&str])| {
            path.starts_with(&format!("crates/models/src/diffusion/{name}"))
        };
        MODELS.iter().any(in_folder) || path.contains("/explain/catalogue/")
    };
    let is_named = |path: &str| {
        let text = read(path);
        // Tests are held against the model's files.
        let code = text
            .split("#[cfg(test)]\nmod tests {")
            .next()
            .unwrap_or_default();
        code.lines().any(|line| {
            let lower = line.to_lowercase();
            let is_part =
                |character: char| !character.is_alphanumeric() && !"_-".contains(character);
            let mut words = lower.split(is_part);
            words.any(|word| {
                let is =
                    |name: &str| word == name || word.split(['_', '-']).any(|part| part == name);
                MODELS
                    .iter()
                    .any(|(name, others)| is(name) || others.iter().any(|other| is(other)))
            })
        })
    };
    let mut findings = Vec::new();
    let mut named = Vec::new();
    for path in files(&["rs"]) {
        let path = path.to_string_lossy().into_owned();
        let is_source = path.starts_with("crates/") && path.contains("/src/");
        if is_source && !path.ends_with("/tests.rs") && !allowed(&path) && is_named(&path) {
            named.push(path);
        }
    }
    for path in &named {
        if !NAMING_MODELS.iter().any(|(file, _)| file == path) {
            findings.push(format!(
                "{path}: names a model; ask `models::diffusion` instead"
            ));
        }
    }
    for (file, _) in NAMING_MODELS {
        if !named.iter().any(|path| path == file) {
            findings.push(format!(
                "{file}: names no model any more; remove it from the list"
            ));
        }
    }
    assert_none("models that are named outside their folders", findings);
}

/// Where a family of language models may be named besides its own file, and why.
const NAMED: [(&str, &str); 7] = [
    (
        "crates/models/src/diffusion/krea2/model.rs",
        "a text encoder that is a part of a model of another kind",
    ),
    ("crates/models/src/diffusion/qwen_image/text.rs", "likewise"),
    ("crates/models/src/language.rs", "the registry"),
    (
        "crates/models/src/pretrained/gguf/export_tokenizer.rs",
        "tokenizers have such names",
    ),
    (
        "crates/models/src/pretrained/gguf/sentencepiece.rs",
        "llama.cpp calls a kind of tokenizer so",
    ),
    (
        "crates/models/src/pretrained/gguf/tokenizer.rs",
        "tokenizers have such names too",
    ),
    (
        "crates/models/src/text/tokenizer_class.rs",
        "so have their classes",
    ),
];

/// Names of other things that have a family's: programs, a scaling of the rotary embedding, whole models.
const OTHERS: [&str; 15] = [
    "fix_mistral_regex",
    "llama.cpp",
    "llama-cpp",
    "ollama",
    "llama_cpp",
    "llama-gguf-split",
    "llama-factory",
    "llamafactory",
    "llama3",
    "llama_4_scaling_beta",
    // Models of the hub, whose tokenizers others have.
    "qwen/qwen2.5-vl-7b-instruct",
    "qwen/qwen3-0.6b",
    "qwen/qwen3-4b",
    "qwen/qwen3-vl-4b-instruct",
    // A file of one.
    "qwen3vl_4b",
];

#[test]
fn a_family_of_language_models_is_named_in_its_own_file_only() {
    const FOLDER: &str = "crates/models/src/language/";
    const CRATES: [&str; 5] = ["models", "trainer", "cli", "placement", "ui"];
    let sources: Vec<String> = files(&["rs"])
        .iter()
        .filter_map(|path| path.to_str().map(str::to_owned))
        .collect();
    let families: Vec<&str> = sources
        .iter()
        .filter_map(|path| path.strip_prefix(FOLDER)?.strip_suffix(".rs"))
        .filter(|name| read(format!("{FOLDER}{name}.rs")).contains("static FAMILY: Family"))
        .collect();
    assert!(families.len() >= 3, "{families:?}");
    let mut findings = Vec::new();
    for path in &sources {
        let in_scope = CRATES
            .iter()
            .any(|name| path.starts_with(&format!("crates/{name}/src/")));
        let is_test = path.ends_with("tests.rs") || path.contains("/tests");
        let exempt = NAMED.iter().any(|(named, _)| named == path);
        if !in_scope || is_test || exempt || path.starts_with(FOLDER) {
            continue;
        }
        let text = read(path).to_lowercase().replace("llama 3", "llama3");
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        for (number, line) in code.lines().enumerate() {
            let line = OTHERS
                .iter()
                .fold(line.to_owned(), |line, other| line.replace(other, ""));
            for family in families.iter().filter(|family| line.contains(**family)) {
                findings.push(format!("{path}:{}: `{family}`", number + 1));
            }
        }
    }
    assert_none(
        "what differs between families is data in crates/models/src/language",
        findings,
    );
}
