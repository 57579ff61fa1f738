//! Names of an encoder's weights in GGUF files.

use std::borrow::Cow;

/// transformers' name of a weight of an encoder whose name may be llama.cpp's.
pub(crate) fn of_llama_cpp(name: &str) -> Cow<'_, str> {
    const PARTS: [(&str, &str); 10] = [
        ("attn_norm", "0.layer_norm"),
        ("attn_q", "0.SelfAttention.q"),
        ("attn_k", "0.SelfAttention.k"),
        ("attn_v", "0.SelfAttention.v"),
        ("attn_o", "0.SelfAttention.o"),
        ("attn_rel_b", "0.SelfAttention.relative_attention_bias"),
        ("ffn_norm", "1.layer_norm"),
        ("ffn_gate", "1.DenseReluDense.wi_0"),
        ("ffn_up", "1.DenseReluDense.wi_1"),
        ("ffn_down", "1.DenseReluDense.wo"),
    ];
    let of_block = || {
        let rest = name.strip_prefix("enc.blk.")?.strip_suffix(".weight")?;
        let (number, part) = rest.split_once('.')?;
        let (_, part) = PARTS.iter().find(|(theirs, _)| *theirs == part)?;
        Some(format!("encoder.block.{number}.layer.{part}.weight"))
    };
    match name {
        "token_embd.weight" => "shared.weight".into(),
        "enc.output_norm.weight" => "encoder.final_layer_norm.weight".into(),
        _ => of_block().map_or(name.into(), Cow::from),
    }
}
