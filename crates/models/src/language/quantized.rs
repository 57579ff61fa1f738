//! `quantization_config` in a `config.json`: the weights were saved quantised, and by which method. What a
//! family's files cannot be read with is refused with advice on what to use instead.

use serde_json::Value;

use crate::Error;
use crate::json::Object;

/// Where transformers looks for it; the second is its older name in llm-compressor's files.
const KEYS: [&str; 2] = ["quantization_config", "compression_config"];

/// The `quant_method`s of transformers 5.23 with their usual names.
const METHODS: [(&str, &str); 22] = [
    ("aqlm", "AQLM"),
    ("auto-round", "AutoRound"),
    ("awq", "AWQ"),
    ("bitnet", "BitNet"),
    ("bitsandbytes", "bitsandbytes"),
    ("bitsandbytes_4bit", "bitsandbytes"),
    ("bitsandbytes_8bit", "bitsandbytes"),
    ("compressed-tensors", "compressed-tensors"),
    ("eetq", "EETQ"),
    ("fbgemm_fp8", "FBGEMM as fp8"),
    ("fp8", "blocks of fp8"),
    ("fp_quant", "FP-Quant"),
    ("gptq", "GPTQ"),
    ("higgs", "HIGGS"),
    ("hqq", "HQQ"),
    ("modelopt", "NVIDIA ModelOpt"),
    ("mxfp4", "MXFP4"),
    ("quanto", "Quanto"),
    ("quark", "AMD Quark"),
    ("spqr", "SpQR"),
    ("torchao", "torchao"),
    ("vptq", "VPTQ"),
];

/// How weights that a folder is read with were saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Saved {
    /// fp8, with a factor for each block of this size, or one for each tensor.
    Fp8 {
        /// Rows and columns.
        block: Option<[i64; 2]>,
    },
    /// bitsandbytes' 8 or 4 bits.
    Bitsandbytes,
}

impl Saved {
    /// Takes out of a config what says that its weights are one of these.
    ///
    /// # Errors
    /// If blocks have a size that they cannot have.
    pub(crate) fn take(object: &mut Object) -> Result<Option<Self>, Error> {
        let Some(section) = object.object(KEYS[0])? else {
            return Ok(None);
        };
        let saved = match section
            .text("quant_method")?
            .map(str::to_lowercase)
            .as_deref()
        {
            Some("fp8") => {
                const BLOCK: &str = "weight_block_size";
                let block = match section.integers(BLOCK, 1..=1 << 20)?.as_deref() {
                    Some(&[rows, columns]) => Some([rows, columns]),
                    Some(_) => return Err(section.error(BLOCK, "must be rows and columns")),
                    // The default of transformers, where the key is missing.
                    None => (!section.has(BLOCK)).then_some([128, 128]),
                };
                Self::Fp8 { block }
            }
            Some("bitsandbytes" | "bitsandbytes_4bit" | "bitsandbytes_8bit") => Self::Bitsandbytes,
            None if four_bits(&section) || eight_bits(&section) => Self::Bitsandbytes,
            _ => return Ok(None),
        };
        object.set(KEYS[0], Value::Null);
        Ok(Some(saved))
    }
}

/// Refuses a config whose weights were saved quantised, unless by the method that is `read`.
///
/// # Errors
/// The error names the method, the number of bits if the config has it, and what to do.
pub(super) fn refuse(object: &Object, read: Option<&str>) -> Result<(), Error> {
    for key in KEYS {
        let Some(section) = object.object(key)? else {
            continue;
        };
        let method = match section.text("quant_method")? {
            Some(method) => method.to_lowercase(),
            // bitsandbytes' files from before there were other methods.
            None if four_bits(&section) || eight_bits(&section) => "bitsandbytes".into(),
            None => {
                return Err(section.error(
                    "quant_method",
                    "is missing: the config says that its weights are quantised, and not by what; \
                     take the model it was made from",
                ));
            }
        };
        if Some(method.as_str()) == read {
            continue;
        }
        let known = METHODS.iter().find(|(name, _)| *name == method);
        let name = known.map_or_else(|| format!("{method:?}"), |(_, name)| (*name).to_owned());
        let bits = match section.get("bits") {
            Some(Value::Number(bits)) => format!(" in {bits} bits"),
            _ if four_bits(&section) => " in 4 bits".into(),
            _ if eight_bits(&section) => " in 8 bits".into(),
            _ => String::new(),
        };
        let ours = match eight_bits(&section) || method.contains("fp8") {
            true => "int8",
            false => "nf4",
        };
        return Err(section.error(
            "quant_method",
            format!(
                "is {method:?}: the weights were saved by {name}{bits}, which cannot be read. Use \
                 the model it was made from (`base_model` on its page), and set \
                 `model.quantization: {ours}` to quantise it while an adapter is trained"
            ),
        ));
    }
    Ok(())
}

fn four_bits(section: &Object) -> bool {
    is_true(section, "load_in_4bit") || is_true(section, "_load_in_4bit")
}

fn eight_bits(section: &Object) -> bool {
    is_true(section, "load_in_8bit") || is_true(section, "_load_in_8bit")
}

fn is_true(section: &Object, key: &str) -> bool {
    section.get(key) == Some(&Value::Bool(true))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;

    fn refusal(config: &Value) -> Option<String> {
        let object = Object::parse(Path::new("config.json"), &config.to_string()).unwrap();
        refuse(&object, None).err().map(|error| error.to_string())
    }

    #[test]
    fn every_method_is_refused_with_its_name_and_what_to_do() {
        for (method, name) in METHODS {
            let config = json!({"quantization_config": {"quant_method": method}});
            let reason = refusal(&config).unwrap();
            assert!(
                reason.contains("`quantization_config.quant_method`") && reason.contains(name),
                "{reason}"
            );
            assert!(reason.contains("`model.quantization: "), "{reason}");
        }
        let reason = refusal(&json!({"quantization_config": {"quant_method": "tomorrows"}}));
        assert!(reason.unwrap().contains("by \"tomorrows\""));
    }

    #[test]
    fn what_to_set_is_as_many_bits_as_there_were() {
        for (section, parts) in [
            (
                json!({"quant_method": "bitsandbytes", "load_in_8bit": true}),
                ["in 8 bits", "int8"],
            ),
            (
                json!({"quant_method": "bitsandbytes", "_load_in_4bit": true}),
                ["in 4 bits", "nf4"],
            ),
            (
                json!({"quant_method": "gptq", "bits": 3}),
                ["in 3 bits", "nf4"],
            ),
            (json!({"load_in_4bit": true}), ["bitsandbytes", "nf4"]),
            (
                json!({"quant_method": "fp8", "weight_block_size": [128, 128]}),
                ["blocks of fp8", "int8"],
            ),
        ] {
            let reason = refusal(&json!({"quantization_config": section})).unwrap();
            for part in parts {
                assert!(reason.contains(part), "{reason}");
            }
        }
    }

    #[test]
    fn a_section_without_a_method_or_of_another_kind_is_named() {
        for (config, key) in [
            (
                json!({"quantization_config": {}}),
                "`quantization_config.quant_method` is missing",
            ),
            (
                json!({"quantization_config": 4}),
                "`quantization_config` must be an object",
            ),
            (
                json!({"compression_config": {"quant_method": "compressed-tensors"}}),
                "`compression_config.quant_method` is \"compressed-tensors\"",
            ),
        ] {
            let reason = refusal(&config).unwrap();
            assert!(reason.contains(key), "{reason}");
        }
        assert_eq!(refusal(&json!({"quantization_config": null})), None);
    }
}
