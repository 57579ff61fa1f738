//! Going on with an adapter on the text part of a larger model.

use super::*;

#[test]
fn an_adapter_on_the_text_part_of_a_model_is_named_as_in_the_whole_and_goes_on() {
    let place = Place::new();
    let golden = "../../tests/reference/golden/models/gemma3-multimodal";
    for file in ["config.json", "model.safetensors"] {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join(golden);
        fs::copy(from.join(file), place.path("model").join(file)).unwrap();
    }
    place.run(&[]).unwrap();
    let adapter = place.path("runs/a/adapter");
    let weights = fs::read(adapter.join("adapter_model.safetensors")).unwrap();
    let name = b"base_model.model.model.language_model.layers.1.self_attn.v_proj.lora_B.weight";
    assert!(weights.windows(name.len()).any(|part| part == name));
    let config = fs::read_to_string(adapter.join("adapter_config.json")).unwrap();
    let config: serde_json::Value = serde_json::from_str(&config).unwrap();
    let targets = r"language_model\.layers\.(?:0|1)\.(?:self_attn\.q_proj|self_attn\.v_proj)";
    assert_eq!(config["target_modules"], format!(r"model\.{targets}"));
    let from = format!("adapter.resume_from={}", adapter.display());
    let first = |more: &[&str]| place.run(more).unwrap().first_loss.unwrap();
    assert!(first(&["name=b", &from]) < first(&["name=c"]));
}
