//! Configs of LoHa and LoKr.

use super::*;

/// All keys of PEFT 0.21.2's `LoHaConfig` and `LoKrConfig`; those of the latter alone are below.
const LYCORIS_KEYS: [&str; 20] = [
    "alpha",
    "alpha_pattern",
    "auto_mapping",
    "base_model_name_or_path",
    "exclude_modules",
    "inference_mode",
    "init_weights",
    "layers_pattern",
    "layers_to_transform",
    "module_dropout",
    "modules_to_save",
    "peft_type",
    "peft_version",
    "r",
    "rank_dropout",
    "rank_pattern",
    "revision",
    "target_modules",
    "task_type",
    "use_effective_conv2d",
];

#[test]
fn every_key_of_their_configs_is_obeyed_or_without_effect_or_refused() {
    for key in
        LYCORIS_KEYS
            .into_iter()
            .chain(["decompose_both", "decompose_factor", "rank_dropout_scale"])
    {
        let places = [
            peft::APPLIED_LYCORIS.contains(&key),
            peft::NO_EFFECT.contains(&key),
            peft::UNSUPPORTED_LYCORIS
                .iter()
                .any(|(name, _)| *name == key),
        ];
        let count = places.iter().filter(|is_there| **is_there).count();
        assert_eq!(count, 1, "{key}");
    }
    let of = |kind: &str, more: Value| {
        let mut config = json!({"peft_type": kind, "target_modules": ["q_proj"]});
        config
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        read_config(&config)
    };
    let read = of(
        "LOKR",
        json!({"alpha": 3, "decompose_factor": 4, "rank_dropout": 0.0}),
    )
    .unwrap();
    let kind = AdapterType::Lokr {
        factor: 4,
        decompose_both: false,
    };
    assert_eq!((read.kind, read.alpha, read.rank), (kind, 3.0, 8));
    for (kind, more, told) in [
        (
            "LOHA",
            json!({"rank_dropout": 0.1}),
            "`rank_dropout` is 0.1",
        ),
        (
            "LOHA",
            json!({"decompose_factor": 4}),
            "`decompose_factor` is 4",
        ),
        (
            "LOKR",
            json!({"decompose_factor": 0}),
            "`decompose_factor` must be",
        ),
        ("LOKR", json!({"lora_alpha": 4}), "`lora_alpha` is 4"),
        ("OFT", json!({}), "only LORA, LOHA and LOKR"),
    ] {
        let error = of(kind, more).unwrap_err();
        assert!(error.contains(told), "{error}");
    }
}
