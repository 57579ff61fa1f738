//! Configs that are accepted, and the messages about those that are not.

use std::path::Path;

use super::*;

fn problems(text: &str, overrides: &[&str]) -> Vec<String> {
    let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
    match Config::parse("x.yaml", text, &overrides) {
        Ok(_) => Vec::new(),
        Err(error) => error.problems.iter().map(ToString::to_string).collect(),
    }
}

const DATA: &str = "data.dataset=shakespeare";

#[test]
fn the_committed_schema_is_that_of_the_structs() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/schema.json");
    if std::env::var_os("SUREFOOT_WRITE_SCHEMA").is_some() {
        std::fs::write(&path, schema_json()).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap();
    assert!(
        committed == schema_json(),
        "run `SUREFOOT_WRITE_SCHEMA=1 cargo test -p surefoot-trainer --lib schema`, then `cargo xtask handbook`, and commit configs/schema.json and docs/config-reference.md"
    );
}

#[test]
fn every_config_in_the_repository_is_valid() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs");
    let mut seen = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path
            .extension()
            .is_some_and(|extension| extension == "yaml")
        {
            Config::load(&path, &[]).unwrap();
            seen += 1;
        }
    }
    assert!(seen >= 6);
}

#[test]
fn a_written_config_reads_back_the_same() {
    let text = "name: a\ntrain: {bf16: true, learning_rate: 3e-4}\nsample: {prompts: ['x\n']}";
    let config = Config::parse("x.yaml", text, &[DATA.into()]).unwrap();
    assert_eq!(config.train.learning_rate, 3e-4);
    let yaml = config.to_yaml().unwrap();
    assert_eq!(Config::parse("y.yaml", &yaml, &[]).unwrap(), config);
}

#[test]
fn overrides_apply_even_to_keys_that_the_file_does_not_have() {
    let overrides = [
        DATA,
        "train.max_steps=7",
        "name=b",
        "train.save_total_limit=null",
    ];
    let overrides: Vec<String> = overrides.map(str::to_owned).into();
    let text = "name: a\ntrain:\n  save_total_limit: 3";
    let config = Config::parse("x.yaml", text, &overrides).unwrap();
    assert_eq!((&*config.name, config.train.max_steps), ("b", Some(7)));
    assert_eq!(config.train.save_total_limit, None);
}

#[test]
fn an_override_of_the_data_replaces_the_file_s_alternative_keys() {
    let data = |text: &str, overrides: &[&str]| {
        let overrides: Vec<_> = overrides.iter().map(ToString::to_string).collect();
        let config = Config::parse("x.yaml", text, &overrides).unwrap();
        (config.data.dataset, config.data.path)
    };
    let named = "data: {dataset: shakespeare}";
    let of_file = (None, Some("a.txt".into()));
    assert_eq!(data(named, &["data.path=a.txt"]), of_file);
    assert_eq!(data(named, &["path=a.txt"]), of_file);
    assert_eq!(data(named, &["dataset=null", "path=a.txt"]), of_file);
    assert_eq!(data(named, &["path=null"]).0, Some(Dataset::Shakespeare));
    let of_set = (Some(Dataset::Shakespeare), None);
    assert_eq!(data("data: {path: b.txt}", &[DATA]), of_set);
    let both = "data: {dataset: shakespeare, path: b.txt}";
    assert_eq!(data(both, &[DATA]), of_set);
    assert!(problems(both, &[])[0].contains("both set what is trained on"));
}

#[test]
fn an_unset_variable_in_a_path_is_refused_with_its_position() {
    let got = problems(
        "output_dir: $SUREFOOT_NOT_SET/runs",
        &[DATA, "path=~nobody/x"],
    );
    assert!(got[0].contains("`$SUREFOOT_NOT_SET` is not set"), "{got:?}");
    assert!(got[0].starts_with("x.yaml:1:13"), "{got:?}");
    assert!(got[1].contains("`~nobody`"), "{got:?}");
    let config = Config::parse("x.yaml", "", &["path=~/my-texts".into()]).unwrap();
    let home = std::env::var_os("HOME").unwrap();
    let want = std::path::Path::new(&home).join("my-texts");
    assert_eq!(config.data.path, Some(want));
}

#[test]
fn a_misspelled_key_gets_its_position_and_a_suggestion() {
    let text = "data:\n  dataset: shakespeare\ntrain:\n  learnign_rate: 1.0\n";
    let want = "x.yaml:4:3: unknown key `learnign_rate` in `train` (did you mean `learning_rate`?)";
    assert_eq!(problems(text, &[]), [want]);
}

#[test]
fn a_key_in_the_wrong_section_gets_the_right_one_suggested() {
    let want = "x.yaml:1:1: unknown key `learning_rate` at the top of a config (did you mean \
                `train.learning_rate`?)";
    assert_eq!(problems("learning_rate: 1", &[DATA]), [want]);
}

#[test]
fn a_key_of_another_trainer_gets_ours_suggested() {
    for (written, suggested) in [
        ("train.lr=1e-4", "train.learning_rate"),
        ("lr=1e-4", "train.learning_rate"),
        ("data.max_seq_length=512", "data.block_size"),
        ("cutoff_len=512", "data.block_size"),
        ("model.load_in_4bit=true", "model.quantization: nf4"),
        ("train.evaluation_strategy=steps", "train.eval_strategy"),
        ("adapter.rank=8", "adapter.r"),
        ("network_dim=8", "adapter.r"),
        ("train.mixed_precision=bf16", "train.bf16: true"),
    ] {
        let got = problems("", &[DATA, written]);
        let want = format!("(did you mean `{suggested}`?)");
        assert!(
            got.len() == 1 && got[0].ends_with(&want),
            "{written}: {got:?}"
        );
    }
}

#[test]
fn an_adapter_that_cannot_learn_is_refused() {
    let of = |adapter: &str| {
        let text = format!("model: {{name_or_path: m}}\nadapter: {{r: 4, {adapter}}}");
        problems(&text, &[DATA])
    };
    let got = of("lora_alpha: 0");
    assert!(
        got.len() == 1 && got[0].contains("(write `lora_alpha: 4`"),
        "{got:?}"
    );
    let got = of("target_parameters: [mlp.experts.down_proj], lora_dropout: 0.1, use_dora: true");
    assert!(
        got.len() == 2 && got[0].contains("`adapter.lora_dropout` does not work with adapters"),
        "{got:?}"
    );
    let got = of("type: lokr, decompose_factor: 0");
    assert!(
        got.len() == 1 && got[0].contains("`adapter.decompose_factor: 0` divides by 0 (write -1"),
        "{got:?}"
    );
    for (adapter, told) in [
        ("init_lora_weights: loftq", "nothing is quantised"),
        (
            "init_lora_weights: pissa, use_dora: true",
            "needs plain LoRAs",
        ),
        (
            "init_lora_weights: pissa, target_parameters: [mlp.experts.down_proj]",
            "`adapter.init_lora_weights` does not work with adapters on experts",
        ),
    ] {
        let got = of(adapter);
        assert!(got.len() == 1 && got[0].contains(told), "{got:?}");
    }
    for learns in [
        "type: lokr, decompose_factor: 4",
        "lora_alpha: 1",
        "init_lora_weights: pissa",
        "target_parameters: [mlp.experts.down_proj]",
        "lora_dropout: 0.1, target_parameters: []",
        "lora_alpha: 0, bias: all",
        "lora_alpha: 0, alpha_pattern: {q: 1}",
    ] {
        assert_eq!(of(learns), Vec::<String>::new(), "{learns}");
    }
}

#[test]
fn an_override_may_omit_an_unambiguous_section() {
    let overrides = [
        "learning_rate=0.5",
        "lora_alpha=7",
        "name_or_path=m",
        "seed=9",
    ];
    let overrides: Vec<String> = overrides.iter().map(|text| (*text).into()).collect();
    let config = Config::parse("x.yaml", "data: {path: t}", &overrides).unwrap();
    assert_eq!(config.train.learning_rate, 0.5);
    assert_eq!(config.adapter.unwrap().lora_alpha, 7.0);
    assert_eq!(config.model.name_or_path.as_deref(), Some("m"));
    assert_eq!(config.seed, 9);
    let want = "--set:1:1: unknown key `lerning_rate` at the top of a config (did you mean \
                `train.learning_rate`?)";
    assert_eq!(problems("", &[DATA, "lerning_rate=1"]), [want]);
    let want = "--set:1:15: `train.learning_rate` is `-1`, which is out of range";
    let got = problems("", &[DATA, "learning_rate=-1"]);
    assert!(got[0].starts_with(want), "{got:?}");
}

#[test]
fn an_invalid_word_gets_the_allowed_ones() {
    let want = "x.yaml:1:28: `train.lr_scheduler_type` cannot be the text `cosin` (did you mean \
                `cosine`? Allowed: `constant`, `constant_with_warmup`, `linear`, `cosine`, \
                `cosine_with_restarts`, `cosine_with_min_lr`, `polynomial`, `inverse_sqrt`, \
                `warmup_stable_decay`)";
    assert_eq!(
        problems("train: {lr_scheduler_type: cosin}", &[DATA]),
        [want]
    );
}

#[test]
fn types_and_ranges_are_described() {
    let cases = [
        (
            "train.max_steps=many",
            "`train.max_steps` takes a whole number, not the text `many`",
        ),
        (
            "train.max_steps=1.5",
            "`train.max_steps` takes a whole number, not `1.5`",
        ),
        ("model=7", "`model` takes a section of keys, not `7`"),
        ("name=", "`name` takes a text, not nothing"),
    ];
    for (argument, want) in cases {
        let got = problems("", &[DATA, argument]);
        assert_eq!(got.len(), 1, "{argument}: {got:?}");
        assert!(got[0].ends_with(want), "{argument}: {got:?}");
    }
    let cases = [
        (
            "train.learning_rate=-1",
            "out of range (allowed: more than 0 and at most 10)",
        ),
        ("train.learning_rate=.nan", "non-finite float `.nan`"),
        (
            "train.adam_beta2=1",
            "out of range (allowed: at least 0 and less than 1)",
        ),
        (
            "model.hidden_size=-4",
            "out of range (allowed: at least 1 and at most 65536)",
        ),
        ("sample.prompts=[]", "`sample.prompts` must not be empty"),
        ("device=cuda", "`device` cannot be `cuda`"),
        ("train.bf16=yess", "(allowed: `true`, `false`, `auto`)"),
    ];
    for (argument, want) in cases {
        let got = problems("", &[DATA, argument]);
        assert_eq!(got.len(), 1, "{argument}: {got:?}");
        assert!(got[0].contains(want), "{argument}: {got:?}");
    }
}

#[test]
fn an_integer_may_be_written_with_a_decimal_point() {
    let overrides = [
        "max_steps=2.0",
        "seed=1e3",
        "learning_rate=1",
        "adapter.rank_pattern={q: 4.0}",
    ];
    let overrides: Vec<String> = overrides.iter().map(|text| (*text).into()).collect();
    let text = "data: {path: t}\nmodel: {name_or_path: m}";
    let config = Config::parse("x.yaml", text, &overrides).unwrap();
    assert_eq!((config.train.max_steps, config.seed), (Some(2), 1000));
    assert_eq!(config.train.learning_rate, 1.0);
    assert_eq!(config.adapter.unwrap().rank_pattern["q"], 4);
}

/// Whatever is written under any key, the message is about the config, not about the types and libraries that read
/// it.
#[test]
fn no_message_is_about_the_program() {
    let config = Config {
        adapter: Some(AdapterConfig::default()),
        ..Config::default()
    };
    let values = [
        "-1",
        "1.5",
        "1e30",
        "99999999999999999999",
        "5000000000",
        "18446744073709551616",
        "true",
        "''",
        "x",
        "[1, -2]",
        "[x, [y]]",
        "[]",
        "{x: 1}",
        "{x: -1}",
        "{x: y}",
        "{x: 5000000000}",
        "{device: 99999999999999999999GB}",
        "{device: -3}",
        "99999999999999999999 TB",
        "{}",
        "~",
        "[{names: 1}]",
        "[{learning_rate: 1}]",
        "[{names: x, learning_rate: y}]",
        "[{}]",
        "[~]",
        "{1: 2}",
        "2024-01-01",
        ".inf",
        "*x",
        "[1, 2",
        "'x",
        "a: b: c",
        "@x",
        "`x`",
        "%x",
        "!x y",
        "&a x",
        "- x",
        "? x",
        "|",
        ">",
        "{x",
        "x]",
        "\"\\q\"",
        "# x",
        "!!int x",
        "!!binary x",
    ];
    let words = [
        "invalid ",
        "expected",
        "u32",
        "u64",
        "i64",
        "i128",
        "f64",
        "usize",
        "enum",
        "variant",
        "struct",
        "untagged",
        "serde",
        "any token",
        "scalar",
        "node",
        "mapping key",
        "Policy",
        "simple key",
        "deserializ",
        "floating point",
        "sequence",
        "while ",
    ];
    let mut told = Vec::new();
    for key in config.leaves().unwrap().keys() {
        for value in values {
            for problem in problems("", &[DATA, &format!("{key}={value}")]) {
                // A key of records.
                let problem = problem.replace("instruction", "…");
                if let Some(word) = words.iter().find(|word| problem.contains(*word)) {
                    told.push(format!("{key}={value}: `{word}` in: {problem}"));
                }
            }
        }
    }
    for text in [
        "a: b: c",
        "name: a\n  seed: 3",
        "train:\n  max_steps: 3\n seed: 4",
        "name: a\nname: b",
        "x",
        "name: a\n\tseed: 3",
        "name: 'a",
        "name: [a",
        "name: {a",
        "- a\nb: c",
        "name: a\n- b",
        "*a",
        "name: @x",
        "name: a\n---\nname: b",
        "name: a\nseed 3\ntrain: {}",
        "? [a]\n: b",
        "[a]: b",
        "name: !!int x",
        "%YAML 9",
        "name: |x\n y",
        "name: \"\\q\"",
        "<<: 3",
        "<<: *a",
        "\u{0}",
        "a:\n-b",
    ] {
        for problem in problems(text, &[]) {
            if let Some(word) = words.iter().find(|word| problem.contains(*word)) {
                told.push(format!("{text:?}: `{word}` in: {problem}"));
            }
        }
    }
    told.sort();
    assert!(
        told.is_empty(),
        "{} messages:\n{}",
        told.len(),
        told.join("\n")
    );
}

#[test]
fn all_problems_are_reported_at_once_with_their_positions() {
    let text = "seed: -1\nmodel:\n  hidden_sise: 3\ntrain:\n  bf16: 3\n";
    let got = problems(text, &[DATA, "train.nonsense=1"]);
    let places: Vec<&str> = got
        .iter()
        .filter_map(|text| text.split(": ").next())
        .collect();
    assert_eq!(
        places,
        ["x.yaml:1:7", "x.yaml:3:3", "x.yaml:5:9", "--set:1:7"]
    );
}

#[test]
fn rules_between_keys_hold() {
    let cases = [
        (
            &["model.num_attention_heads=3"][..],
            "3 attention heads do not divide",
        ),
        (
            &["model.head_dim=33"],
            "heads of width 33 cannot be rotated",
        ),
        (
            &["model.num_key_value_heads=3"],
            "4 query heads cannot share 3",
        ),
        (&["data.path=x.txt"], "both set what is trained on"),
        (&["data.dataset=null"], "there is nothing to train on"),
        (&["train.min_lr=1"], "`min_lr` 1 is above"),
        (
            &["train.warmup_steps=2000"],
            "a warm-up of 2000 steps does not fit",
        ),
        (
            &[
                "train.optim=prodigy",
                "train.learning_rate=1",
                "train.find_learning_rate=true",
            ],
            "estimates the learning rate itself",
        ),
        (&["train.report_to=[wandb]"], "`wandb` is not supported"),
        (&["name=../x"], "cannot be the name of a folder"),
        (
            &["train.gradient_accumulation_steps=much"],
            "takes a whole number, not the text `much`",
        ),
    ];
    for (arguments, want) in cases {
        let got = problems("", &[&[DATA], arguments].concat());
        assert!(
            got.len() == 1 && got[0].contains(want),
            "{arguments:?}: {got:?}"
        );
    }
}

#[test]
fn invalid_yaml_is_reported_with_its_position() {
    let cases = [
        "train: [1, 2",
        "a: b: c",
        "- a list",
        "name: a\nname: b",
        "just text",
    ];
    for text in cases {
        let got = problems(text, &[DATA]);
        assert_eq!(got.len(), 1, "{text:?}: {got:?}");
        assert!(got[0].starts_with("x.yaml:"), "{text:?}: {got:?}");
    }
}

#[test]
fn malformed_overrides_say_how_to_write_them() {
    for argument in ["train.max_steps", "=3", "train..x=1", "train.max_steps=[1"] {
        let got = problems("", &[DATA, argument]);
        assert!(
            got.len() == 1 && got[0].starts_with("--set:1:"),
            "{argument}: {got:?}"
        );
    }
}

#[test]
fn a_missing_file_says_so() {
    let error = Config::load(Path::new("no/such.yaml"), &[]).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("no/such.yaml:1:1: the config cannot be read")
    );
}

proptest::proptest! {
    #[test]
    fn no_text_makes_it_panic(text in "[a-z:{}\\[\\] \n\"'&*!|>0-9.-]{0,80}", set in ".{0,40}") {
        let _ = Config::parse("x.yaml", &text, &[set]);
    }
}

#[test]
fn a_held_out_fraction_beside_separate_evaluation_data_gives_a_warning_and_is_written_as_none() {
    let of = |arguments: &[&str]| {
        let arguments: Vec<String> = arguments.iter().map(|text| (*text).to_owned()).collect();
        let mut tree = tree::parse_file("x.yaml", "").unwrap();
        for argument in &arguments {
            tree::apply_override(&mut tree, argument, &schema::section_of).unwrap();
        }
        let told: Config = serde_json::from_value(tree.to_json()).unwrap();
        let told = consistency::unused(&told, &tree);
        let config = Config::parse("x.yaml", "", &arguments).unwrap();
        let told: Vec<_> = told.iter().map(ToString::to_string).collect();
        (told.concat(), config)
    };
    let other = "data.eval_dataset=other.jsonl";
    let (told, config) = of(&[DATA, other, "data.validation_fraction=0.1"]);
    assert!(
        told.contains("`data.validation_fraction: 0.1` has no effect beside `data.eval_dataset`"),
        "{told}"
    );
    assert_eq!(config.data.validation_fraction, 0.0);
    let written = Config::parse("y.yaml", &config.to_yaml().unwrap(), &[]);
    assert_eq!(written.unwrap(), config);
    for silent in [
        &[DATA, other][..],
        &[DATA, other, "data.validation_fraction=0"],
        &[DATA],
    ] {
        assert_eq!(of(silent).0, "", "{silent:?}");
    }
    assert_eq!(of(&[DATA]).1.data.validation_fraction, 0.05);
}
