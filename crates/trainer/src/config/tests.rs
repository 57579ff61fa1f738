//! What a config may say, and what it is told when it may not.

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
        "run `SUREFOOT_WRITE_SCHEMA=1 cargo test -p trainer schema` and commit configs/schema.json"
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
    assert!(seen >= 2);
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
fn overrides_win_and_reach_what_the_file_does_not_name() {
    let overrides = [
        DATA,
        "train.max_steps=7",
        "name=b",
        "train.save_total_limit=null",
    ];
    let overrides: Vec<String> = overrides.map(str::to_owned).into();
    let text = "name: a\ntrain:\n  save_total_limit: 3";
    let config = Config::parse("x.yaml", text, &overrides).unwrap();
    assert_eq!((&*config.name, config.train.max_steps), ("b", 7));
    assert_eq!(config.train.save_total_limit, None);
}

#[test]
fn a_misspelled_key_gets_its_place_and_a_guess() {
    let text = "data:\n  dataset: shakespeare\ntrain:\n  learnign_rate: 1.0\n";
    let want = "x.yaml:4:3: unknown key `learnign_rate` in `train` (did you mean `learning_rate`?)";
    assert_eq!(problems(text, &[]), [want]);
}

#[test]
fn a_key_in_the_wrong_section_is_sent_to_the_right_one() {
    let want = "x.yaml:1:1: unknown key `learning_rate` at the top of a config (did you mean \
                `train.learning_rate`?)";
    assert_eq!(problems("learning_rate: 1", &[DATA]), [want]);
}

#[test]
fn an_override_may_leave_out_a_section_that_is_clear() {
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
fn a_wrong_word_gets_the_allowed_ones() {
    let want = "x.yaml:1:28: `train.lr_scheduler_type` cannot be the text `cosin` (did you mean \
                `cosine`? Allowed: `constant`, `linear`, `cosine`)";
    assert_eq!(
        problems("train: {lr_scheduler_type: cosin}", &[DATA]),
        [want]
    );
}

#[test]
fn types_and_ranges_say_what_is_expected() {
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
fn every_problem_is_reported_at_once_with_its_place() {
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
        (&["data.path=x.txt"], "are both set"),
        (&["data.dataset=null"], "there is nothing to train on"),
        (&["train.min_lr=1"], "`min_lr` 1 is above"),
        (
            &["train.warmup_steps=2000"],
            "a warm-up of 2000 steps does not fit",
        ),
        (&["name=../x"], "cannot be the name of a folder"),
    ];
    for (arguments, want) in cases {
        let got = problems("", &[&[DATA], arguments].concat());
        assert!(
            got.len() == 1 && got[0].contains(want),
            "{arguments:?}: {got:?}"
        );
    }
}

/// A published model with an adapter, of which these memory keys ask something.
fn streamed(keys: &str) -> String {
    format!("model: {{name_or_path: m, {keys}}}\nadapter: {{r: 2}}\ndata: {{dataset: shakespeare}}")
}

#[test]
fn wishes_of_which_only_one_could_be_followed_are_refused() {
    for (keys, told) in [
        (
            "low_vram: true, blocks_to_swap: 2",
            "`low_vram` streams every block",
        ),
        (
            "offload_fraction: 0.5, blocks_to_swap: 2",
            "both say how much is streamed",
        ),
        (
            "device_map: {'': cpu}, blocks_to_swap: 2",
            "leaves nothing for `blocks_to_swap`",
        ),
        (
            "device_map: {'': cpu}, low_vram: true",
            "leaves nothing for `low_vram`",
        ),
        (
            "device_map: {'': cpu}, offload_fraction: 0.5",
            "leaves nothing for `offload_fraction`",
        ),
    ] {
        let told_is = |problem: &String| problem.contains(told) && problem.contains("keep one");
        let problems = problems(&streamed(keys), &[]);
        assert!(
            problems.len() == 1 && problems.iter().any(told_is),
            "{keys}: {problems:?}"
        );
    }
}

/// A profile is a start: what is set beside it takes the place of all that it says of the same.
#[test]
fn what_is_set_beside_a_profile_wins() {
    let wishes = |keys: &str| {
        let config = Config::parse("x.yaml", &streamed(keys), &[]).unwrap();
        config.model.wishes().unwrap()
    };
    for profile in ["low-vram", "balanced"] {
        for keys in ["blocks_to_swap: 2", "device_map: {'': cpu}"] {
            let wishes = wishes(&format!("profile: {profile}, {keys}"));
            assert_eq!(
                (wishes.low_vram, wishes.offload_fraction),
                (false, 0.0),
                "{profile}, {keys}"
            );
        }
    }
    let map = wishes("profile: low-vram, device_map: auto");
    assert!(map.low_vram, "`auto` leaves the choice to the profile");
}

#[test]
fn what_is_not_yaml_says_where() {
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
