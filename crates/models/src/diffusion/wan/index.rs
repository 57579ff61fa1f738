//! What `model_index.json` says of a model's parts.

use crate::Error;
use crate::json::Object;

/// Parts that `model_index.json` names, with the classes that are supported; of the others any may be named.
const PARTS: [(&str, &[&str]); 9] = [
    ("transformer", &["WanTransformer3DModel"]),
    ("transformer_2", &["WanTransformer3DModel"]),
    ("vae", &["AutoencoderKLWan"]),
    ("text_encoder", &["UMT5EncoderModel"]),
    ("tokenizer", &[]),
    (
        "scheduler",
        &["UniPCMultistepScheduler", "FlowMatchEulerDiscreteScheduler"],
    ),
    // Unused by transformers without `image_dim`.
    ("image_encoder", &[]),
    ("image_processor", &[]),
    ("feature_extractor", &[]),
];

/// The class of a part in `model_index.json`.
pub(super) fn class_of<'a>(index: &'a Object, part: &str) -> Option<&'a str> {
    index.get(part)?.get(1)?.as_str()
}

/// Refuses parts of other classes in a `model_index.json`, and warns about keys without effect.
pub(super) fn check(index: &Object) -> Result<(), Error> {
    for (part, supported) in PARTS {
        let class = class_of(index, part);
        if let Some(class) =
            class.filter(|class| !supported.is_empty() && !supported.contains(class))
        {
            let reason = format!("is {class:?}: supported is {}", supported.join(", "));
            return Err(index.error(part, reason));
        }
    }
    let own = ["boundary_ratio", "expand_timesteps"];
    let known: Vec<_> = PARTS.iter().map(|(part, _)| *part).chain(own).collect();
    index.warn_about_unknown_keys(&known);
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::model::WanModel;
    use super::*;
    use crate::diffusion::{Diffusion, PartPaths};

    #[test]
    fn each_key_of_an_index_is_obeyed_refused_or_without_effect() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, value: &Value| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, value.to_string()).unwrap();
        };
        let golden = crate::golden::golden("wan");
        for (part, from) in [
            ("transformer", "training-i2v/transformer"),
            ("transformer_2", "training-i2v/transformer_2"),
            ("vae", "autoencoder-2.1"),
        ] {
            let config = std::fs::read_to_string(golden.join(from).join("config.json")).unwrap();
            write(
                &format!("{part}/config.json"),
                &serde_json::from_str(&config).unwrap(),
            );
        }
        let scheduler = json!({"_class_name": "FlowMatchEulerDiscreteScheduler"});
        write("scheduler/scheduler_config.json", &scheduler);
        let open = |key: &str, value: Value| {
            let mut index = json!({"_class_name": "WanImageToVideoPipeline"});
            index[key] = value;
            write("model_index.json", &index);
            let opened = WanModel::open(folder.path(), &PartPaths::default());
            opened.map_err(|error| error.to_string())
        };
        for (part, supported) in PARTS {
            let found = open(part, json!(["diffusers", "Another"]));
            match (supported.is_empty(), found) {
                (false, Err(reason)) => assert!(reason.contains(part), "{reason}"),
                (empty, found) => assert!(empty && found.is_ok(), "{part}"),
            }
        }
        let reason =
            open("scheduler", json!(["diffusers", "UniPCMultistepScheduler"])).unwrap_err();
        assert!(reason.contains("its `scheduler_config.json`"), "{reason}");
        let unused = open("transformer_2", json!([null, null])).unwrap();
        assert!(!unused.has_low_noise());
        let changed = open("boundary_ratio", json!(0.5)).unwrap();
        assert_eq!(
            (changed.boundary(), changed.has_low_noise()),
            (Some(0.5), true)
        );
        assert!(
            open("expand_timesteps", json!(true))
                .unwrap()
                .expand_timesteps
        );
        write(
            "scheduler/scheduler_config.json",
            &json!({"_class_name": "FlowMatchEulerDiscreteScheduler",
            "num_train_timesteps": 500}),
        );
        let reason = open("_note", Value::Null).unwrap_err();
        assert!(reason.contains("`num_train_timesteps` is 500"), "{reason}");
    }
}
