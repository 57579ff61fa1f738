//! Timesteps of musubi-tuner and sd-scripts.

use super::*;

/// The shift by the size of a picture is that for 1024 × 1024 here.
#[test]
fn shifts_by_size_are_those_of_the_model() {
    for how in ["flux2_shift", "krea2_shift", "qwen_shift"] {
        let text = format!(
            "dit = \"model.safetensors\"\nnetwork_module = \"networks.lora_krea2\"\ntimestep_sampling = \"{how}\"\n\
             discrete_flow_shift = 3.0\n"
        );
        let imported = imported("musubi.toml", &text);
        expect(
            &imported,
            &[("train.weighting_scheme", json!("logit_normal"))],
        );
        assert!(reason(&imported, "discrete_flow_shift").contains("no notice"));
    }
}

#[test]
fn timesteps_from_the_whole_range_are_not_shifted() {
    for (how, ours, shift) in [
        ("uniform", "uniform", json!(1)),
        ("sigmoid", "logit_normal", json!(1)),
        ("shift", "logit_normal", json!(3.0)),
    ] {
        let text = format!(
            "dit = \"model.safetensors\"\nnetwork_module = \"networks.lora_wan\"\ntimestep_sampling = \"{how}\"\n\
             discrete_flow_shift = 3.0\n"
        );
        let imported = imported("musubi.toml", &text);
        expect(
            &imported,
            &[
                ("train.weighting_scheme", json!(ours)),
                ("train.flow_shift", shift),
            ],
        );
    }
}
