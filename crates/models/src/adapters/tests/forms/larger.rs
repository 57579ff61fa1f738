//! Adapters on the text part of a larger model.

use super::*;

/// Names, words and numbers are the same for PEFT whichever class it is given.
#[test]
fn an_adapter_goes_from_a_model_to_its_larger_one_and_back() {
    let config = LoraConfig {
        rank_pattern: IndexMap::from([(r"model\.layers\.1\.self_attn\.q_proj".into(), 3)]),
        alpha_pattern: IndexMap::from([("out_proj".into(), 2.0)]),
        layers: Some(Layers {
            indices: vec![0, 1],
            lists: Vec::new(),
        }),
        ..saving(&["q_proj", "out_proj", "lm_head"], &["model.norm"])
    };
    let base = "qwen3.5-multimodal";
    let adapted = fresh(base, &config).unwrap();
    let (part, written_for_part) = written(&adapted, Naming::PART);
    let prefix = "base_model.model.model.language_model.layers.";
    assert_eq!(
        tensors(part.path())[&format!("{prefix}1.self_attn.q_proj.lora_A.weight")],
        [3, 16]
    );
    let list = r"model\.language_model\.layers\.";
    assert_eq!(
        written_for_part["target_modules"],
        format!(
            r"lm_head|{list}(?:0)\.(?:linear_attn\.out_proj)|{list}(?:1)\.(?:self_attn\.q_proj)"
        )
    );
    assert_eq!(
        written_for_part["modules_to_save"],
        json!(["model.language_model.norm"])
    );
    assert_eq!(written_for_part["layers_to_transform"], json!(null));
    let read = |folder: &Path| {
        let saved = Attachment::saved(PeftAdapter::open(folder).unwrap()).unwrap();
        self::adapted(&golden(&format!("models/{base}")), saved).unwrap()
    };
    let again = read(part.path());
    let (alone, written_for_alone) = written(&again, Naming::ALONE);
    let (alone_first, _) = written(&adapted, Naming::ALONE);
    assert_eq!(tensors(alone.path()), tensors(alone_first.path()));
    assert_eq!(
        written_for_alone["rank_pattern"],
        json!({r"model\.layers\.1\.self_attn\.q_proj": 3})
    );
    for (read, first) in read(alone.path())
        .parameters
        .iter()
        .zip(adapted.parameters.iter())
    {
        assert!(read.name == first.name && read.tensor.equal(&first.tensor));
    }
}
