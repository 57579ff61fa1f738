//! Configs of runs on videos.

use super::Config;

fn problems(overrides: &[&str]) -> Vec<String> {
    let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
    let text = "model: {name_or_path: m}\ndata: {path: clips}\n";
    match Config::parse("x.yaml", text, &overrides) {
        Ok(_) => Vec::new(),
        Err(error) => error.problems.iter().map(ToString::to_string).collect(),
    }
}

const VIDEO: [&str; 2] = ["data.resolution=512", "adapter={}"];

#[test]
fn every_key_of_the_other_kind_is_refused_by_name() {
    let set = [
        "data.num_frames=[1, 49]",
        "data.trigger_word=x",
        "train.flow_shift=3",
        "sample.num_frames=5",
        "model.boundary_ratio=0.9",
    ];
    for key in set {
        let name = key.split('=').next().unwrap();
        let got = problems(&[key]);
        assert!(
            got[0].contains(&format!("`{name}` is for videos")),
            "{got:?}"
        );
        assert_eq!(
            problems(&[&VIDEO[..], &[key]].concat()),
            Vec::<String>::new()
        );
    }
    for key in [
        "data.block_size=128",
        "data.packing=true",
        "model.hidden_size=64",
        "model.head_dim=8",
        "sample.top_p=0.5",
        "adapter.bias=all",
    ] {
        let name = key.split('=').next().unwrap();
        let got = problems(&[&VIDEO[..], &[key]].concat());
        assert!(
            got[0].contains(&format!("`{name}` has no effect on videos")),
            "{got:?}"
        );
    }
}

#[test]
fn keys_that_require_others_name_them() {
    for (keys, message) in [
        (
            vec!["data.frame_stride=4"],
            "`data.frame_extraction: slide`",
        ),
        (
            vec!["data.frame_extraction=full", "data.num_frames=9"],
            "`data.max_frames`",
        ),
        (
            vec!["train.logit_mean=1"],
            "`train.weighting_scheme: logit_normal`",
        ),
        (
            vec!["train.min_sigma=0.9", "train.max_sigma=0.8"],
            "is not below `train.max_sigma`",
        ),
        (vec!["data.resolution=[1, 2, 3]"], "has 3 numbers"),
        (vec!["data.resolution=0"], "out of range"),
        (vec!["train.experts=all"], "allowed: `high`, `low`, `both`"),
        (
            vec!["train.experts=low", "train.steps_per_expert=2"],
            "is for runs that train both experts",
        ),
    ] {
        let got = problems(&[&VIDEO[..], &keys].concat());
        assert!(
            got.iter().any(|line| line.contains(message)),
            "{keys:?}: {got:?}"
        );
    }
    // Without an adapter, all weights are trained.
    let whole = ["data.resolution=512", "model.name_or_path=m"];
    assert_eq!(problems(&whole), Vec::<String>::new());
    let text = problems(&[&whole[..], &["train.text_encoder=true"]].concat());
    assert!(text[0].contains("`train.text_encoder`"), "{text:?}");
}

#[test]
fn memory_plans_are_requested_as_for_language_models() {
    for key in [
        "model.profile=balanced",
        "model.offload_fraction=0.5",
        "model.max_memory={device: 8GB}",
        "model.device_map={'': device, transformer.blocks.1: cpu}",
        "model.low_vram=true",
        "model.blocks_to_swap=2",
    ] {
        assert_eq!(
            problems(&[&VIDEO[..], &[key]].concat()),
            Vec::<String>::new()
        );
    }
}

#[test]
fn a_model_is_named_and_either_gets_a_lora_or_starts_from_its_config() {
    let from_config = ["data.resolution=32", "model.from_config=true"];
    let with = |more: &[&'static str]| problems(&[&from_config[..], more].concat());
    assert_eq!(with(&[]), Vec::<String>::new());
    let set = [
        "model.vae=vae",
        "model.transformer=t",
        "train.gradient_checkpointing=true",
    ];
    assert_eq!(with(&set), Vec::<String>::new());
    for (keys, message) in [
        (vec!["model.name_or_path=null"], "no model is named"),
        (vec!["adapter={}"], "remove one of the two"),
        (vec!["model.hidden_size=64"], "has no effect on videos"),
        (vec!["model.low_vram=true"], "add an `adapter` section"),
        (
            vec!["data.path=null", "data.dataset=shakespeare"],
            "`data.dataset: shakespeare` is text",
        ),
    ] {
        let got = with(&keys);
        assert!(
            got.iter().any(|line| line.contains(message)),
            "{keys:?}: {got:?}"
        );
    }
    let text = problems(&["model.from_config=true"]);
    assert!(
        text[0].contains("`model.from_config` is for videos"),
        "{text:?}"
    );
    let garments = ["data.path=null", "data.dataset=garments"];
    assert_eq!(with(&garments), Vec::<String>::new());
    let text = problems(&garments);
    let told = |line: &String| line.contains("`data.dataset: garments` is pictures");
    assert!(text.iter().any(told), "{text:?}");
}
