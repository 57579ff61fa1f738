//! Which files of a model are fetched: weights as safetensors, configs, tokenizer and templates. Never
//! pickles, which can execute code, and never code.

use models::diffusion;

/// The kind of model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelKind {
    /// Language models.
    Text,
    /// Video models in diffusers' format.
    Video,
    /// Either.
    Any,
    /// The tokenizer of a language model alone.
    Tokenizer,
}

/// The files of a language model besides its weights.
const COMPANIONS: [&str; 12] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
];

/// Those of them that a tokenizer does not need.
const NOT_OF_TOKENIZERS: [&str; 2] = ["config.json", "generation_config.json"];

const ENDINGS: [&str; 5] = [".json", ".safetensors", ".txt", ".model", ".jinja"];

/// The files to fetch, weights last.
///
/// # Errors
/// What is missing, as a phrase to follow the model's name.
pub(super) fn wanted(files: &[String], kind: ModelKind) -> Result<Vec<String>, String> {
    let is_there = |name: &str| files.iter().any(|file| file == name);
    if kind == ModelKind::Tokenizer {
        let needed = COMPANIONS
            .iter()
            .filter(|name| !NOT_OF_TOKENIZERS.contains(name));
        let chosen = needed
            .filter(|name| is_there(name))
            .map(|name| (*name).to_owned());
        return match lacks_tokenizer(is_there) {
            None => Ok(chosen.collect()),
            Some(file) => Err(format!("has no `{file}`")),
        };
    }
    let is_video = diffusion::INDEXES.iter().any(|name| is_there(name));
    if is_video && kind == ModelKind::Text {
        return Err("is a video or image model, not a language model: set \
        `data.resolution` (and `data.num_frames`) to train a video model"
            .into());
    }
    if !is_video && kind == ModelKind::Video {
        return Err(format!(
            "has no `model_index.json`: a video model in diffusers' format is needed, such as `{}`",
            diffusion::REGISTRY[0].example
        ));
    }
    let safe = files.iter().filter(|file| is_safe(file));
    let mut chosen: Vec<&String> = match is_video {
        true => safe.filter(|file| of_video(file)).collect(),
        false => safe
            .filter(|file| of_text(file, is_there("model.safetensors.index.json")))
            .collect(),
    };
    let is_weight = |file: &String| file.ends_with(".safetensors");
    if !chosen.iter().any(|file| is_weight(file)) {
        let has = |endings: &[&str]| {
            files
                .iter()
                .any(|file| endings.iter().any(|ending| file.ends_with(ending)))
        };
        let reason = match (has(&[".gguf"]), has(&[".bin", ".pt", ".pth", ".ckpt"])) {
            (true, _) => {
                "only GGUF files: download one and give its path, such as `name_or_path: ./model.gguf`"
            }
            (_, true) => {
                "only pickles (`.bin`, `.pt`), which can execute code and are not read: \
                look for a revision with safetensors, such as the branch `refs/convert/safetensors`"
            }
            _ => "no weights in a known format",
        };
        return Err(format!("has no `model.safetensors`, and {reason}"));
    }
    chosen.sort_by_key(|file| is_weight(file));
    Ok(chosen.into_iter().cloned().collect())
}

/// What a tokenizer lacks, of which these files are there.
pub(super) fn lacks_tokenizer(is_there: impl Fn(&str) -> bool) -> Option<&'static str> {
    let forms: [&[&str]; 3] = [
        &["tokenizer.json"],
        &["spiece.model"],
        &["vocab.json", "merges.txt"],
    ];
    let is_whole = |form: &&[&str]| form.iter().all(|name| is_there(name));
    (!forms.iter().any(is_whole)).then_some("tokenizer.json")
}

/// Whether a name stays inside its folder.
pub(super) fn is_safe(file: &str) -> bool {
    file.split('/')
        .all(|part| !part.is_empty() && !part.starts_with('.') && !part.contains(['\\', ':', '\0']))
}

fn of_text(file: &str, is_sharded: bool) -> bool {
    let is_template = file.strip_prefix("additional_chat_templates/");
    let is_template =
        is_template.is_some_and(|name| !name.contains('/') && name.ends_with(".jinja"));
    let is_weight = match is_sharded {
        true => file.starts_with("model-") && file.ends_with(".safetensors") && !file.contains('/'),
        false => file == "model.safetensors",
    };
    COMPANIONS.contains(&file)
        || is_template
        || is_weight
        || (is_sharded && file == "model.safetensors.index.json")
}

fn of_video(file: &str) -> bool {
    let Some((folder, name)) = file.split_once('/') else {
        return diffusion::INDEXES.contains(&file);
    };
    // `model.fp16.safetensors` contains the same weights again.
    let is_variant = name
        .strip_suffix(".safetensors")
        .is_some_and(|stem| stem.contains('.'));
    let known = diffusion::archs();
    known.iter().any(|arch| arch.folders.contains(&folder))
        && !name.contains('/')
        && !is_variant
        && ENDINGS.iter().any(|ending| name.ends_with(ending))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(files: &[&str], kind: ModelKind) -> Result<String, String> {
        let files: Vec<String> = files.iter().map(|file| (*file).to_owned()).collect();
        wanted(&files, kind).map(|files| files.join(" "))
    }

    #[test]
    fn weights_configs_and_tokenizers_are_fetched_and_no_code() {
        let files = [
            ".gitattributes",
            "README.md",
            "model.safetensors",
            "pytorch_model.bin",
            "modeling_evil.py",
            "config.json",
            "../config.json",
            "/etc/config.json",
            "tokenizer.json",
            "additional_chat_templates/tools.jinja",
            "onnx/model.onnx",
            "original/model.safetensors",
        ];
        let found = chosen(&files, ModelKind::Text).unwrap();
        let expected =
            "config.json tokenizer.json additional_chat_templates/tools.jinja model.safetensors";
        assert_eq!(found, expected);
    }

    #[test]
    fn a_tokenizer_comes_without_its_model() {
        let files = [
            "config.json",
            "merges.txt",
            "vocab.json",
            "model.safetensors",
        ];
        let found = chosen(&files, ModelKind::Tokenizer).unwrap();
        assert_eq!(found, "vocab.json merges.txt");
        let reason = chosen(&files[..2], ModelKind::Tokenizer).unwrap_err();
        assert_eq!(reason, "has no `tokenizer.json`");
        let found = chosen(&["spiece.model", "a.bin"], ModelKind::Tokenizer).unwrap();
        assert_eq!(found, "spiece.model");
    }

    #[test]
    fn shards_come_with_their_index_and_without_the_file_of_another_export() {
        let files = [
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors",
            "model.safetensors.index.json",
            "config.json",
        ];
        let found = chosen(&files, ModelKind::Any).unwrap();
        assert!(
            found.starts_with("model.safetensors.index.json config.json model-00001"),
            "{found}"
        );
        assert!(!found.contains("model.safetensors "), "{found}");
    }

    #[test]
    fn a_video_model_consists_of_its_parts() {
        let files = [
            "model_index.json",
            "vae/config.json",
            "vae/diffusion_pytorch_model.safetensors",
            "vae/diffusion_pytorch_model.fp16.safetensors",
            "tokenizer/spiece.model",
            "assets/picture.json",
            "transformer/code.py",
        ];
        let found = chosen(&files, ModelKind::Video).unwrap();
        let expected = "model_index.json vae/config.json tokenizer/spiece.model \
                        vae/diffusion_pytorch_model.safetensors";
        assert_eq!(found, expected);
        let modular = [
            "modular_model_index.json",
            "text_conditioner/config.json",
            "t5_tokenizer/tokenizer.json",
            "text_conditioner/diffusion_pytorch_model.safetensors",
            "other/config.json",
        ];
        let found = chosen(&modular, ModelKind::Video).unwrap();
        assert_eq!(found, modular[..4].join(" "));
    }

    #[test]
    fn an_unusable_model_is_refused_before_anything_is_fetched() {
        for (files, kind, told) in [
            (
                &["config.json", "pytorch_model.bin"][..],
                ModelKind::Text,
                "only pickles",
            ),
            (&["model-q4.gguf"], ModelKind::Text, "only GGUF files"),
            (
                &["README.md"],
                ModelKind::Text,
                "no weights in a known format",
            ),
            (
                &["model_index.json"],
                ModelKind::Text,
                "not a language model",
            ),
            (
                &["model.safetensors"],
                ModelKind::Video,
                "a video model in diffusers' format",
            ),
        ] {
            let reason = chosen(files, kind).unwrap_err();
            assert!(reason.contains(told), "{reason}");
        }
    }
}
